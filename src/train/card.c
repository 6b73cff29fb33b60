#include "train/card.h"

#include "base/clock.h"
#include "base/error.h"
#include "data/dataset.h"
#include "data/loader.h"
#include "nn/module.h"
#include "tensor/tensor.h"

#include <shoal/share.h>

#include <stdlib.h>
#include <string.h>

#define ALIGNED 64 /* elements: where a parameter may begin */

/* How long the steps that are enqueued before the worker looks at the board should take, and how many at most. */
#define AHEAD_NS SHOAL_MS(4)
#define AHEAD_FIRST 16
#define AHEAD_MOST 512

/* What the steps keep in card memory; the worker reads it back. */
typedef struct progress {
    int64_t at;     /* samples of the epoch before the next batch */
    int64_t blocks; /* of random numbers */
    float loss;     /* the sum of the batches' losses */
    float unused;
} progress;

struct sh_card {
    const sh_device *device;
    sh_exec *exec;
    size_t count;                            /* of parameters */
    int64_t *offsets;                        /* of each in the tensors below, in elements; count + 1 of them */
    float *host;                             /* room for all parameters */
    shoal_tensor *params, *momentum, *grads; /* f32 [offsets[count]]; momentum: NULL without */

    shoal_tensor *pixels, *labels; /* u8 */
    float scale, shift;
    shoal_tensor *order; /* i64, the samples of an epoch */
    int64_t order_epoch, order_loads;

    shoal_tensor *progress, *scratch;
    int64_t ahead; /* steps to enqueue at a time */
};

/* ---- opening and closing ---- */

static shoal_tensor *make(const sh_card *card, shoal_dtype dtype, int64_t count)
{
    sh_shape s;
    return sh_shape_init(&s, dtype, 1, &count) == SHOAL_OK ? sh_tensor_new(card->device, &s) : NULL;
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
            return sh_fail(SHOAL_ETYPE, "a parameter is %s%s; on a card only contiguous f32 is trained",
                           shoal_dtype_name(t->dtype), t->contiguous ? "" : " and not contiguous");
        }
        int64_t end = card->offsets[card->count] + t->count;
        card->offsets[++card->count] = (end + ALIGNED - 1) / ALIGNED * ALIGNED;
    }
    card->host = card->offsets != NULL ? calloc((size_t)card->offsets[card->count] + 1, sizeof(float)) : NULL;
    return card->host != NULL ? SHOAL_OK : sh_fail(SHOAL_ENOMEM, "no memory for %zu parameters", room);
}

static shoal_err make_tensors(sh_card *card, const sh_settings *s)
{
    int64_t length = card->offsets[card->count];
    card->params = make(card, SHOAL_F32, length);
    card->grads = card->params ? make(card, SHOAL_F32, length) : NULL;
    card->momentum = card->grads && s->momentum > 0 ? make(card, SHOAL_F32, length) : NULL;
    bool made = card->grads != NULL && (s->momentum <= 0 || card->momentum != NULL);
    card->progress = made ? make(card, SHOAL_U8, sizeof(progress)) : NULL;
    card->scratch = card->progress
                        ? make(card, SHOAL_U8, (int64_t)card->device->kernels()->small_cnn->scratch_size(s->batch))
                        : NULL;
    return card->scratch ? SHOAL_OK : shoal_last_error();
}

static shoal_tensor *uploaded(const sh_card *card, const shoal_tensor *from)
{
    size_t size = (size_t)from->count * shoal_dtype_size(from->dtype);
    shoal_tensor *t = make(card, from->dtype, from->count);
    if (t != NULL && card->device->write(sh_tensor_ptr(t), sh_tensor_ptr(from), size) != SHOAL_OK) {
        shoal_tensor_release(t);
        t = NULL;
    }
    return t;
}

static shoal_err upload_set(sh_card *card, const shoal_dataset *set)
{
    sh_byte_images images;
    if (!sh_dataset_bytes(set, &images)) {
        return sh_fail(SHOAL_ETYPE, "this data set cannot be put on a card yet");
    }
    card->scale = images.scale;
    card->shift = images.shift;
    card->pixels = uploaded(card, images.pixels);
    card->labels = card->pixels ? uploaded(card, images.labels) : NULL;
    card->order = card->labels ? make(card, SHOAL_I64, images.labels->count) : NULL;
    return card->order ? SHOAL_OK : shoal_last_error();
}

static shoal_err fill(sh_card *card, const sh_worker *w)
{
    card->device = sh_device_get(SHOAL_CUDA);
    card->exec = card->device ? card->device->exec() : NULL;
    if (card->exec == NULL) {
        return shoal_last_error();
    }
    if (strcmp(shoal_module_type_name(w->model), "mnist-cnn") != 0) {
        return sh_fail(SHOAL_ETYPE, "the model %s cannot be trained on a card yet", shoal_module_type_name(w->model));
    }
    shoal_err err = lay_out(card, w->model);
    if (err == SHOAL_OK) {
        err = make_tensors(card, &w->settings);
    }
    return err == SHOAL_OK ? upload_set(card, w->set) : err;
}

shoal_err sh_card_open(sh_worker *w)
{
    w->card = calloc(1, sizeof *w->card);
    if (w->card == NULL) {
        return sh_fail(SHOAL_ENOMEM, "no memory for a worker's half on the card");
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
    shoal_tensor *all[] = {card->params, card->momentum, card->grads,    card->pixels,
                           card->labels, card->order,    card->progress, card->scratch};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        shoal_tensor_release(all[i]);
    }
    free(card->offsets);
    free(card->host);
    free(card);
}

/* ---- copies ---- */

static size_t bytes_of(const shoal_tensor *t)
{
    return (size_t)t->count * shoal_dtype_size(t->dtype);
}

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
    memset(card->host, 0, bytes_of(card->momentum));
    for (size_t i = 0; from != NULL && i < card->count; i++) {
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

/* Describes the steps of a run. */
static sh_small_cnn_step describe(const sh_worker *w, double lr, uint64_t seed, bool change)
{
    const sh_card *card = w->card;
    progress *p = sh_tensor_ptr(card->progress);
    sh_small_cnn_step s = {.pixels = sh_tensor_ptr(card->pixels),
                           .labels = sh_tensor_ptr(card->labels),
                           .order = sh_tensor_ptr(card->order),
                           .scale = card->scale,
                           .shift = card->shift,
                           .state = &p->at,
                           .key = {.seed = seed},
                           .lr = (float)lr,
                           .momentum_factor = (float)w->settings.momentum,
                           .loss = &p->loss,
                           .training = true};
    for (size_t i = 0; i < card->count; i++) {
        s.param[i] = (float *)sh_tensor_ptr(card->params) + card->offsets[i];
        s.momentum[i] = card->momentum ? (float *)sh_tensor_ptr(card->momentum) + card->offsets[i] : NULL;
        s.grad[i] = change ? NULL : (float *)sh_tensor_ptr(card->grads) + card->offsets[i];
    }
    return s;
}

/* Enqueues batches at to end - 1. Returns the number of their samples. */
static shoal_err enqueue(const sh_worker *w, sh_small_cnn_step *s, int64_t at, int64_t end, int64_t *out_samples)
{
    const sh_card *card = w->card;
    shoal_err err = SHOAL_OK;
    *out_samples = 0;
    for (; at < end && err == SHOAL_OK; at++) {
        const int64_t *numbers;
        s->batch = sh_loader_batch(w->loader, at, &numbers);
        *out_samples += s->batch;
        err = card->device->kernels()->small_cnn->step(card->exec, s, sh_tensor_ptr(card->scratch));
    }
    return err;
}

/* Enqueues steps for about AHEAD_NS, however long one takes. */
static int64_t next_ahead(int64_t ahead, int64_t took)
{
    if (took < AHEAD_NS / 2 && ahead < AHEAD_MOST) {
        return ahead * 2;
    }
    return took > 2 * AHEAD_NS && ahead > 1 ? ahead / 2 : ahead;
}

static shoal_err run_steps(sh_worker *w, sh_small_cnn_step *s, int64_t epoch, int64_t first, int64_t last)
{
    sh_card *card = w->card;
    progress p = {.at = first * w->loader->batch};
    float before = 0;
    shoal_err err = card->device->write(sh_tensor_ptr(card->progress), &p, sizeof p);
    for (int64_t at = first, end; at < last && err == SHOAL_OK && !sh_worker_stopped(w); at = end) {
        int64_t samples, begun = sh_now();
        err = sh_worker_has_trial(w) ? sh_worker_test(w) : SHOAL_OK;
        end = at + card->ahead < last ? at + card->ahead : last;
        if (err == SHOAL_OK) {
            err = enqueue(w, s, at, end, &samples);
        }
        if (err == SHOAL_OK) {
            err = card->device->read(&p, sh_tensor_ptr(card->progress), sizeof p); /* waits for the steps */
        }
        if (err == SHOAL_OK) {
            sh_worker_tell_many(w, sh_position(epoch / w->passes, end), samples,
                                (double)(p.loss - before) / (double)(end - at), end - at);
            before = p.loss;
            card->ahead = next_ahead(card->ahead, sh_now() - begun);
        }
    }
    return err;
}

shoal_err sh_card_run(sh_worker *w, int64_t epoch, int64_t first, int64_t last, uint64_t seed, bool change)
{
    shoal_err err = upload_order(w, epoch);
    if (err == SHOAL_OK) {
        sh_small_cnn_step s = describe(w, sh_settings_lr(&w->settings, epoch / w->passes), seed, change);
        err = run_steps(w, &s, epoch, first, last);
    }
    return err;
}
