#include "train/card_inside.h"

#include "base/clock.h"
#include "base/error.h"
#include "data/dataset.h"
#include "data/loader.h"
#include "share/module.h"

#include <shoal/autograd.h>
#include <shoal/share.h>

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define ALIGNED 64 /* elements: where a parameter may begin */

/* How long the steps that are enqueued before the worker looks at the board should take, and how many at most. */
#define AHEAD_NS SHOAL_MS(4)
#define AHEAD_FIRST 25
#define AHEAD_MOST 400

#define MPS_AGAIN_US 300000

static size_t bytes_of(const shoal_tensor *t)
{
    return (size_t)t->count * shoal_dtype_size(t->dtype);
}

/* ---- opening and closing ---- */

shoal_tensor *sh_card_make(const sh_card *card, shoal_dtype dtype, int ndim, const int64_t *shape)
{
    sh_shape s;
    return sh_shape_init(&s, dtype, ndim, shape) == SHOAL_OK ? sh_tensor_new(card->device, &s) : NULL;
}

shoal_tensor *sh_card_view(const sh_card *card, const shoal_tensor *in, size_t i, const shoal_tensor *like)
{
    sh_shape s;
    if (sh_shape_init(&s, like->dtype, like->ndim, like->shape) != SHOAL_OK) {
        return NULL;
    }
    s.offset = card->offsets[i];
    return sh_tensor_over(in->storage, &s);
}

static shoal_err lay_out(sh_card *card, const shoal_module *model)
{
    size_t at = 0, room = 0;
    while (sh_module_next_parameter(model, &at) != NULL) {
        room++;
    }
    card->offsets = calloc(room + 1, sizeof *card->offsets);
    at = 0;
    for (const shoal_tensor *t; card->offsets != NULL && (t = sh_module_next_parameter(model, &at)) != NULL;) {
        if (t->dtype != SHOAL_F32 || !t->contiguous) {
            return sh_fail(SHOAL_ETYPE, "a parameter is %s%s; training on a GPU needs contiguous f32 parameters",
                           shoal_dtype_name(t->dtype), t->contiguous ? "" : " and not contiguous");
        }
        int64_t end = card->offsets[card->count] + t->count;
        card->offsets[++card->count] = (end + ALIGNED - 1) / ALIGNED * ALIGNED;
    }
    if (card->offsets == NULL) {
        return sh_fail(SHOAL_ENOMEM, "no memory for %zu parameters", room);
    }
    size_t size = (size_t)card->offsets[card->count] * sizeof(float);
    card->host = card->device->alloc_pinned(size);
    if (card->host == NULL) {
        return shoal_last_error();
    }
    memset(card->host, 0, size);
    return SHOAL_OK;
}

static shoal_err make_tensors(sh_card *card, const sh_settings *s)
{
    int64_t length = card->offsets[card->count];
    shoal_tensor **wanted[] = {&card->params, &card->grads, s->momentum > 0 ? &card->momentum : NULL};
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
        if (wanted[i] != NULL && (*wanted[i] = sh_card_make(card, SHOAL_F32, SHOAL_SHAPE(length))) == NULL) {
            return shoal_last_error();
        }
    }
    card->progress = sh_card_make(card, SHOAL_U8, SHOAL_SHAPE((int64_t)sizeof(sh_card_progress)));
    return card->progress ? SHOAL_OK : shoal_last_error();
}

/* Makes a module of the model's architecture over the parameters on the card. */
static shoal_err make_module(sh_card *card, shoal_module *model)
{
    shoal_block *record;
    shoal_err err = sh_share_describe_module(model, &record);
    if (err != SHOAL_OK) {
        return err;
    }
    card->module = sh_share_module_of(record);
    sh_block_release(record);
    size_t i = 0;
    for (shoal_named it = {0}; card->module && err == SHOAL_OK && shoal_module_next(model, &it) == SHOAL_OK; i++) {
        if (it.is_buffer || i >= card->count) {
            return sh_fail(SHOAL_ETYPE, "the model has %s (%s); training on a GPU does not support that yet",
                           it.is_buffer ? "a buffer" : "a parameter with two names", it.name);
        }
        shoal_tensor *view = sh_card_view(card, card->params, i, it.tensor);
        err = view ? shoal_tensor_set_requires_grad(view, it.tensor->requires_grad) : shoal_last_error();
        err = err == SHOAL_OK ? sh_module_replace(card->module, it.name, view) : err;
        shoal_tensor_release(view);
    }
    return card->module ? err : shoal_last_error();
}

shoal_tensor *sh_card_upload(const sh_card *card, const shoal_tensor *from)
{
    shoal_tensor *t = sh_card_make(card, from->dtype, from->ndim, from->shape);
    if (t != NULL && card->device->write(sh_tensor_ptr(t), sh_tensor_ptr(from), bytes_of(t)) != SHOAL_OK) {
        shoal_tensor_release(t);
        t = NULL;
    }
    return t;
}

/* Fetches a set piece by piece, and writes the pieces to the card. */
static shoal_err upload_pieces(sh_card *card, shoal_dataset *set)
{
    enum { PIECE = 500 };
    int64_t length = shoal_dataset_length(set), numbers[PIECE];
    sh_batch pair = {NULL, NULL};
    shoal_err err = sh_batch_create(&pair, set, PIECE, shoal_empty);
    for (int64_t at = 0; at < length && err == SHOAL_OK; at += PIECE) {
        int64_t count = length - at < PIECE ? length - at : PIECE;
        sh_batch rows = {NULL, NULL};
        for (int64_t i = 0; i < count; i++) {
            numbers[i] = at + i;
        }
        err = sh_batch_rows(&rows, &pair, count);
        err = err == SHOAL_OK ? sh_fetch_into(set, numbers, count, &rows) : err;
        if (err == SHOAL_OK) {
            size_t x = bytes_of(pair.x) / PIECE, y = bytes_of(pair.y) / PIECE;
            err = card->device->write((char *)sh_tensor_ptr(card->samples) + (size_t)at * x, sh_tensor_ptr(rows.x),
                                      (size_t)count * x);
            err = err == SHOAL_OK ? card->device->write((char *)sh_tensor_ptr(card->labels) + (size_t)at * y,
                                                        sh_tensor_ptr(rows.y), (size_t)count * y)
                                  : err;
        }
        sh_batch_release(&rows);
    }
    sh_batch_release(&pair);
    return err;
}

static shoal_tensor *make_on_card(shoal_dtype dtype, int ndim, const int64_t *shape)
{
    return shoal_empty_on(SHOAL_CUDA, dtype, ndim, shape);
}

static shoal_err upload_set(sh_card *card, shoal_dataset *set)
{
    sh_byte_images images;
    int64_t length = shoal_dataset_length(set);
    card->scaled = sh_dataset_bytes(set, &images);
    if (card->scaled) {
        card->scale = images.scale;
        card->shift = images.shift;
        card->samples = sh_card_upload(card, images.pixels);
        card->labels = card->samples ? sh_card_upload(card, images.labels) : NULL;
    } else {
        card->samples = sh_dataset_new_x(set, length, make_on_card);
        card->labels = card->samples ? sh_dataset_new_y(set, length, make_on_card) : NULL;
    }
    card->order = card->labels ? sh_card_make(card, SHOAL_I64, SHOAL_SHAPE(length)) : NULL;
    if (card->order == NULL) {
        return shoal_last_error();
    }
    return card->scaled ? SHOAL_OK : upload_pieces(card, set);
}

static shoal_err open_plan(sh_worker *w)
{
    sh_card *card = w->card;
    card->plan = sh_card_fused.fits(w) ? &sh_card_fused : sh_card_cnn_plan.fits(w) ? &sh_card_cnn_plan : &sh_card_ops;
    return card->plan->open(w);
}

bool sh_card_captures(void)
{
    const char *own = getenv("SHOAL_CAPTURE");
    return own == NULL || strcmp(own, "off") != 0;
}

/* Opens the card. An MPS server that has just gone down with another client is back a moment later: the worker ends, and
 * is started again. */
static shoal_err open_device(sh_card *card, const sh_worker *w)
{
    card->device = sh_device_get(SHOAL_CUDA);
    card->exec = card->device ? card->device->exec() : NULL;
    shoal_err err = card->exec ? SHOAL_OK : shoal_last_error();
    if (err == SHOAL_EOS && w->settings.mps_used) {
        (void)usleep(MPS_AGAIN_US);
        return sh_fail(SHOAL_ECUDA, "%s", shoal_last_error_text());
    }
    return err;
}

static shoal_err fill(sh_card *card, sh_worker *w)
{
    shoal_err err = open_device(card, w);
    if (err == SHOAL_OK) {
        err = lay_out(card, w->model);
    }
    if (err == SHOAL_OK) {
        err = make_tensors(card, &w->settings);
    }
    if (err == SHOAL_OK) {
        err = make_module(card, w->model);
    }
    if (err == SHOAL_OK) {
        err = upload_set(card, w->set);
    }
    return err == SHOAL_OK ? open_plan(w) : err;
}

shoal_module *sh_card_module(const sh_card *card)
{
    return card->module;
}

shoal_err sh_card_open(sh_worker *w)
{
    w->card = calloc(1, sizeof *w->card);
    if (w->card == NULL) {
        return sh_fail(SHOAL_ENOMEM, "no memory for a worker's state on the GPU");
    }
    w->card->ahead = AHEAD_FIRST;
    w->card->order_epoch = -1;
    return fill(w->card, w);
}

void sh_card_close(sh_card *card)
{
    if (card == NULL) {
        return;
    }
    if (card->plan != NULL) {
        card->plan->close(card);
    }
    sh_card_clients_close(card->clients);
    sh_card_tests_close(card->tests);
    shoal_module_destroy(card->module);
    shoal_tensor *all[] = {card->params, card->momentum, card->grads,  card->samples, card->labels,
                           card->order,  card->progress, card->common, card->sums};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        shoal_tensor_release(all[i]);
    }
    if (card->host != NULL) {
        card->device->free_pinned(card->host, (size_t)card->offsets[card->count] * sizeof(float));
    }
    free(card->offsets);
    free(card);
}

/* ---- copies ---- */

static shoal_err send(sh_card *card, shoal_tensor *to)
{
    return card->device->write(sh_tensor_ptr(to), card->host, bytes_of(to));
}

static shoal_err fetch(sh_card *card, const shoal_tensor *from)
{
    return card->device->read(card->host, sh_tensor_ptr(from), bytes_of(from));
}

shoal_err sh_card_take(sh_card *card, const shoal_module *from)
{
    size_t at = 0;
    const shoal_tensor *t;
    for (size_t i = 0; (t = sh_module_next_parameter(from, &at)) != NULL; i++) {
        memcpy(card->host + card->offsets[i], sh_tensor_ptr(t), bytes_of(t));
    }
    return send(card, card->params);
}

static shoal_err give(sh_card *card, const shoal_tensor *from, shoal_module *to)
{
    size_t at = 0;
    shoal_tensor *t;
    shoal_err err = fetch(card, from);
    for (size_t i = 0; err == SHOAL_OK && (t = sh_module_next_parameter(to, &at)) != NULL; i++) {
        memcpy(sh_tensor_ptr(t), card->host + card->offsets[i], bytes_of(t));
        sh_tensor_touch(t);
    }
    return err;
}

shoal_err sh_card_give(sh_card *card, shoal_module *to)
{
    return give(card, card->params, to);
}

shoal_err sh_card_give_gradient(sh_card *card, shoal_module *to)
{
    return give(card, card->grads, to);
}

/* The map has one tensor for each parameter, in order. */
shoal_err sh_card_take_momentum(sh_card *card, const shoal_value *from)
{
    if (card->momentum == NULL) {
        return SHOAL_OK;
    }
    if (from == NULL) {
        return sh_tensor_fill(card->momentum, 0);
    }
    for (size_t i = 0; i < card->count; i++) {
        const shoal_tensor *t = shoal_value_as_tensor(shoal_value_at(from, i));
        if (t == NULL) {
            return shoal_last_error();
        }
        memcpy(card->host + card->offsets[i], sh_tensor_ptr(t), bytes_of(t));
    }
    return send(card, card->momentum);
}

shoal_err sh_card_give_momentum(sh_card *card, const shoal_value *to)
{
    shoal_err err = card->momentum != NULL ? fetch(card, card->momentum) : SHOAL_OK;
    for (size_t i = 0; err == SHOAL_OK && card->momentum != NULL && i < card->count; i++) {
        shoal_tensor *t = shoal_value_as_tensor(shoal_value_at(to, i));
        if (t == NULL) {
            return shoal_last_error();
        }
        memcpy(sh_tensor_ptr(t), card->host + card->offsets[i], bytes_of(t));
        sh_tensor_touch(t);
    }
    return err;
}

/* ---- sharing ---- */

shoal_value *sh_card_share(sh_card *card)
{
    return shoal_value_tensor(card->params);
}

shoal_err sh_card_adopt(sh_worker *w, const shoal_value *shared)
{
    sh_card *card = w->card;
    shoal_tensor *t = shoal_value_as_tensor(shared);
    if (t == NULL) {
        return shoal_last_error();
    }
    if (t->dtype != SHOAL_F32 || t->count != card->params->count || t->storage->device != card->device) {
        sh_text text;
        return sh_fail(SHOAL_ETYPE, "the shared parameters are %s; expected %lld elements of f32 on the GPU",
                       sh_tensor_text(&text, t), (long long)card->params->count);
    }
    card->plan->close(card);
    card->own = NULL;
    shoal_module_destroy(card->module);
    card->module = NULL;
    shoal_tensor_release(card->params);
    card->params = shoal_tensor_retain(t);
    shoal_err err = make_module(card, w->model);
    return err == SHOAL_OK ? open_plan(w) : err;
}

/* ---- steps ---- */

static shoal_err upload_order(sh_worker *w, int64_t epoch)
{
    sh_card *card = w->card;
    if (card->order_epoch == epoch && card->order_loads == w->loads) {
        return SHOAL_OK;
    }
    const int64_t *order = sh_loader_order(w->loader, epoch);
    card->order_epoch = epoch;
    card->order_loads = w->loads;
    return card->device->write(sh_tensor_ptr(card->order), order, (size_t)w->loader->count * sizeof *order);
}

/* Enqueues batches at to end - 1. Returns the number of their samples. Only the last of an epoch may be smaller. */
static shoal_err enqueue(sh_worker *w, int64_t at, int64_t end, int64_t *out_samples)
{
    const int64_t *numbers;
    int64_t whole = w->loader->batch, last = sh_loader_batch(w->loader, end - 1, &numbers);
    int64_t count = end - at - (last < whole);
    shoal_err err = count > 0 ? w->card->plan->steps(w, whole, count) : SHOAL_OK;
    *out_samples = count * whole + (last < whole ? last : 0);
    return err == SHOAL_OK && last < whole ? w->card->plan->steps(w, last, 1) : err;
}

/* Enqueues steps for about AHEAD_NS, however long one takes. */
void sh_card_ran_ahead(sh_card *card, int64_t took)
{
    if (took < AHEAD_NS / 2 && card->ahead < AHEAD_MOST) {
        card->ahead *= 2;
    } else if (took > 2 * AHEAD_NS && card->ahead > 1) {
        card->ahead /= 2;
    }
}

static shoal_err run_steps(sh_worker *w, int64_t epoch, int64_t first, int64_t last, uint64_t seed)
{
    sh_card *card = w->card;
    sh_card_progress p = {.at = first * w->loader->batch, .seed = seed};
    float before = 0;
    shoal_err err = card->device->write(sh_tensor_ptr(card->progress), &p, sizeof p);
    for (int64_t at = first, end; at < last && err == SHOAL_OK && !sh_worker_stopped(w); at = end) {
        int64_t samples, begun = sh_now();
        err = sh_worker_has_trial(w) ? sh_worker_test(w) : SHOAL_OK;
        end = at + card->ahead < last ? at + card->ahead : last;
        if (err == SHOAL_OK) {
            err = enqueue(w, at, end, &samples);
        }
        if (err == SHOAL_OK) {
            err = card->device->read(&p, sh_tensor_ptr(card->progress), sizeof p); /* waits for the steps */
        }
        if (err == SHOAL_OK) {
            sh_worker_tell_many(w, sh_position(epoch / w->passes, end), samples,
                                (double)(p.loss - before) / (double)(end - at), end - at);
            before = p.loss;
            sh_card_ran_ahead(card, sh_now() - begun);
        }
    }
    return err;
}

shoal_err sh_card_run(sh_worker *w, int64_t epoch, int64_t first, int64_t last, uint64_t seed, bool change)
{
    shoal_err err = upload_order(w, epoch);
    if (err == SHOAL_OK) {
        err = w->card->plan->begin(w, sh_settings_lr(&w->settings, epoch / w->passes), seed, change);
    }
    if (err == SHOAL_OK) {
        err = run_steps(w, epoch, first, last, seed);
    }
    return err;
}
