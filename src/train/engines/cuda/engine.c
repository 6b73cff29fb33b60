/* The GPU's engine: moves parameters, state and samples to the GPU and back, and runs steps there. */
#include "train/engines/cuda/gpu.h"
#include "train/engines/cuda/mps.h"
#include "train/model/state.h"

#include "base/clock.h"
#include "base/error.h"
#include "data/dataset.h"
#include "share/module.h"

#include <shoal/autograd.h>
#include <shoal/share.h>

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define ALIGNED 64 /* elements: where a parameter may begin */

/* How long the steps that are enqueued before the engine returns should take, and how many at most. */
#define AHEAD_NS SHOAL_MS(4)
#define AHEAD_FIRST 25
#define AHEAD_MOST 400

#define MPS_AGAIN_US 300000

static size_t bytes_of(const shoal_tensor *t)
{
    return (size_t)t->count * shoal_dtype_size(t->dtype);
}

/* ---- opening and closing ---- */

shoal_tensor *sh_gpu_make(const sh_gpu *g, shoal_dtype dtype, int ndim, const int64_t *shape)
{
    sh_shape s;
    return sh_shape_init(&s, dtype, ndim, shape) == SHOAL_OK ? sh_tensor_new(g->device, &s) : NULL;
}

shoal_tensor *sh_gpu_view(const sh_gpu *g, const shoal_tensor *in, size_t i, const shoal_tensor *like)
{
    sh_shape s;
    if (sh_shape_init(&s, like->dtype, like->ndim, like->shape) != SHOAL_OK) {
        return NULL;
    }
    s.offset = g->offsets[i];
    return sh_tensor_over(in->storage, &s);
}

static shoal_err lay_out(sh_gpu *g, const shoal_module *model)
{
    size_t at = 0, room = 0;
    while (sh_module_next_parameter(model, &at) != NULL) {
        room++;
    }
    g->offsets = calloc(room + 1, sizeof *g->offsets);
    at = 0;
    for (const shoal_tensor *t; g->offsets != NULL && (t = sh_module_next_parameter(model, &at)) != NULL;) {
        if (t->dtype != SHOAL_F32 || !t->contiguous) {
            return sh_fail(SHOAL_ETYPE, "a parameter is %s%s; training on a GPU needs contiguous f32 parameters",
                           shoal_dtype_name(t->dtype), t->contiguous ? "" : " and not contiguous");
        }
        int64_t end = g->offsets[g->count] + t->count;
        g->offsets[++g->count] = (end + ALIGNED - 1) / ALIGNED * ALIGNED;
    }
    if (g->offsets == NULL) {
        return sh_fail(SHOAL_ENOMEM, "no memory for %zu parameters", room);
    }
    size_t size = (size_t)g->offsets[g->count] * sizeof(float);
    g->host = g->device->alloc_pinned(size);
    if (g->host == NULL) {
        return shoal_last_error();
    }
    memset(g->host, 0, size);
    return SHOAL_OK;
}

static shoal_err make_tensors(sh_gpu *g)
{
    int64_t length = g->offsets[g->count];
    shoal_tensor **wanted[] = {&g->params, &g->grads, g->base.settings.momentum > 0 ? &g->momentum : NULL};
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
        if (wanted[i] != NULL && (*wanted[i] = sh_gpu_make(g, SHOAL_F32, SHOAL_SHAPE(length))) == NULL) {
            return shoal_last_error();
        }
    }
    g->progress = sh_gpu_make(g, SHOAL_U8, SHOAL_SHAPE((int64_t)sizeof(sh_gpu_progress)));
    return g->progress ? SHOAL_OK : shoal_last_error();
}

static shoal_err replace_parameter(sh_gpu *g, size_t i, const shoal_named *named)
{
    shoal_tensor *view = sh_gpu_view(g, g->params, i, named->tensor);
    shoal_err err = view ? shoal_tensor_set_requires_grad(view, named->tensor->requires_grad) : shoal_last_error();
    if (err == SHOAL_OK) {
        err = sh_module_replace(g->module, named->name, view);
    }
    shoal_tensor_release(view);
    return err;
}

/* Makes a module of the model's architecture over the parameters on the GPU. */
static shoal_err make_module(sh_gpu *g)
{
    shoal_block *record;
    SH_TRY(sh_share_describe_module(g->base.module, &record));
    g->module = sh_share_module_of(record);
    sh_block_release(record);
    if (g->module == NULL) {
        return shoal_last_error();
    }
    size_t i = 0;
    for (shoal_named it = {0}; shoal_module_next(g->base.module, &it) == SHOAL_OK; i++) {
        if (it.is_buffer || i >= g->count) {
            return sh_fail(SHOAL_ETYPE, "the model has %s (%s); training on a GPU does not support that yet",
                           it.is_buffer ? "a buffer" : "a parameter with two names", it.name);
        }
        SH_TRY(replace_parameter(g, i, &it));
    }
    return SHOAL_OK;
}

shoal_tensor *sh_gpu_upload(const sh_gpu *g, const shoal_tensor *from)
{
    shoal_tensor *t = sh_gpu_make(g, from->dtype, from->ndim, from->shape);
    if (t != NULL && g->device->write(sh_tensor_ptr(t), sh_tensor_ptr(from), bytes_of(t)) != SHOAL_OK) {
        shoal_tensor_release(t);
        t = NULL;
    }
    return t;
}

enum { PIECE = 500 }; /* samples that are fetched and written at a time */

/* Fetches samples first to first + count - 1 into the first rows of a pair of tensors, and writes them to the GPU. */
static shoal_err upload_piece(sh_gpu *g, const sh_batch *pair, int64_t first, int64_t count)
{
    int64_t numbers[PIECE];
    size_t x = bytes_of(pair->x) / PIECE, y = bytes_of(pair->y) / PIECE;
    sh_batch rows = {NULL, NULL};
    for (int64_t i = 0; i < count; i++) {
        numbers[i] = first + i;
    }
    shoal_err err = sh_batch_rows(&rows, pair, count);
    if (err == SHOAL_OK) {
        err = sh_fetch_into(g->base.set, numbers, count, &rows);
    }
    if (err == SHOAL_OK) {
        err = g->device->write((char *)sh_tensor_ptr(g->samples) + (size_t)first * x, sh_tensor_ptr(rows.x),
                               (size_t)count * x);
    }
    if (err == SHOAL_OK) {
        err = g->device->write((char *)sh_tensor_ptr(g->labels) + (size_t)first * y, sh_tensor_ptr(rows.y),
                               (size_t)count * y);
    }
    sh_batch_release(&rows);
    return err;
}

static shoal_err upload_pieces(sh_gpu *g)
{
    int64_t length = shoal_dataset_length(g->base.set);
    sh_batch pair = {NULL, NULL};
    shoal_err err = sh_batch_create(&pair, g->base.set, PIECE, shoal_empty);
    for (int64_t at = 0; at < length && err == SHOAL_OK; at += PIECE) {
        err = upload_piece(g, &pair, at, length - at < PIECE ? length - at : PIECE);
    }
    sh_batch_release(&pair);
    return err;
}

static shoal_tensor *make_on_gpu(shoal_dtype dtype, int ndim, const int64_t *shape)
{
    return shoal_empty_on(SHOAL_CUDA, dtype, ndim, shape);
}

static shoal_err upload_set(sh_gpu *g)
{
    sh_byte_images images;
    shoal_dataset *set = g->base.set;
    int64_t length = shoal_dataset_length(set);
    g->scaled = sh_dataset_bytes(set, &images);
    if (g->scaled) {
        g->scale = images.scale;
        g->shift = images.shift;
        g->samples = sh_gpu_upload(g, images.pixels);
        g->labels = g->samples ? sh_gpu_upload(g, images.labels) : NULL;
    } else {
        g->samples = sh_dataset_new_x(set, length, make_on_gpu);
        g->labels = g->samples ? sh_dataset_new_y(set, length, make_on_gpu) : NULL;
    }
    g->order = g->labels ? sh_gpu_make(g, SHOAL_I64, SHOAL_SHAPE(length)) : NULL;
    if (g->order == NULL) {
        return shoal_last_error();
    }
    return g->scaled ? SHOAL_OK : upload_pieces(g);
}

static shoal_err open_plan(sh_gpu *g)
{
    static const sh_gpu_plan *const plans[] = {&sh_gpu_plan_mnist_cnn, &sh_gpu_plan_fedavg_cnn, &sh_gpu_plan_any};
    size_t i = 0;
    while (!plans[i]->fits(g)) {
        i++; /* the last fits every model */
    }
    g->plan = plans[i];
    return g->plan->open(g);
}

bool sh_gpu_captures(void)
{
    const char *own = getenv("SHOAL_CAPTURE");
    return own == NULL || strcmp(own, "off") != 0;
}

/* Opens the GPU. An MPS server that has just gone down with another client is back a moment later: the worker ends, and
 * is started again. */
static shoal_err open_device(sh_gpu *g)
{
    const sh_service_settings *service = &g->base.settings.service;
    sh_mps_join(service->folder, service->share);
    g->device = sh_device_get(SHOAL_CUDA);
    g->exec = g->device ? g->device->exec() : NULL;
    shoal_err err = g->exec ? SHOAL_OK : shoal_last_error();
    if (err == SHOAL_EOS && service->restarts) {
        (void)usleep(MPS_AGAIN_US);
        return sh_fail(SHOAL_ECUDA, "%s", shoal_last_error_text());
    }
    return err;
}

static shoal_err gpu_open(sh_engine *e)
{
    sh_gpu *g = (sh_gpu *)e;
    g->ahead = AHEAD_FIRST;
    g->order_pass = -1;
    g->evaluator = (sh_evaluator){.set = e->test_set, .device = SHOAL_CUDA};
    SH_TRY(open_device(g));
    SH_TRY(lay_out(g, e->module));
    SH_TRY(make_tensors(g));
    SH_TRY(make_module(g));
    SH_TRY(upload_set(g));
    SH_TRY(open_plan(g));
    return sh_gpu_load_state(e, NULL);
}

static void gpu_close(sh_engine *e)
{
    sh_gpu *g = (sh_gpu *)e;
    if (g->plan != NULL) {
        g->plan->close(g);
    }
    sh_evaluator_fini(&g->evaluator);
    sh_gpu_clients_close(g->clients);
    sh_gpu_tests_close(g->tests);
    shoal_module_destroy(g->module);
    shoal_tensor *all[] = {g->params, g->momentum, g->grads,  g->samples, g->labels,
                           g->order,  g->progress, g->common, g->sums};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        shoal_tensor_release(all[i]);
    }
    if (g->host != NULL) {
        g->device->free_pinned(g->host, (size_t)g->offsets[g->count] * sizeof(float));
    }
    free(g->offsets);
}

/* ---- parameters and state ---- */

static shoal_err send_host(sh_gpu *g, shoal_tensor *to)
{
    return g->device->write(sh_tensor_ptr(to), g->host, bytes_of(to));
}

static shoal_err fetch_host(sh_gpu *g, const shoal_tensor *from)
{
    return g->device->read(g->host, sh_tensor_ptr(from), bytes_of(from));
}

shoal_err sh_gpu_load(sh_engine *e, const shoal_module *from)
{
    sh_gpu *g = (sh_gpu *)e;
    size_t at = 0;
    const shoal_tensor *t;
    for (size_t i = 0; (t = sh_module_next_parameter(from, &at)) != NULL; i++) {
        memcpy(g->host + g->offsets[i], sh_tensor_ptr(t), bytes_of(t));
    }
    return send_host(g, g->params);
}

static shoal_err store_from(sh_gpu *g, const shoal_tensor *from, shoal_module *to)
{
    size_t at = 0;
    shoal_tensor *t;
    SH_TRY(fetch_host(g, from));
    for (size_t i = 0; (t = sh_module_next_parameter(to, &at)) != NULL; i++) {
        memcpy(sh_tensor_ptr(t), g->host + g->offsets[i], bytes_of(t));
        sh_tensor_touch(t);
    }
    return SHOAL_OK;
}

static shoal_err store(sh_engine *e, shoal_module *to)
{
    return store_from((sh_gpu *)e, ((sh_gpu *)e)->params, to);
}

static shoal_err store_gradient(sh_engine *e, shoal_module *to)
{
    return store_from((sh_gpu *)e, ((sh_gpu *)e)->grads, to);
}

/* The map has one tensor for each parameter, in order. */
shoal_err sh_gpu_load_state(sh_engine *e, const shoal_value *from)
{
    sh_gpu *g = (sh_gpu *)e;
    if (g->momentum == NULL) {
        return SHOAL_OK;
    }
    if (from == NULL) {
        return sh_tensor_fill(g->momentum, 0);
    }
    for (size_t i = 0; i < g->count; i++) {
        const shoal_tensor *t = shoal_value_as_tensor(shoal_value_at(from, i));
        if (t == NULL) {
            return shoal_last_error();
        }
        memcpy(g->host + g->offsets[i], sh_tensor_ptr(t), bytes_of(t));
    }
    return send_host(g, g->momentum);
}

static shoal_err store_state(sh_engine *e, const shoal_value *to)
{
    sh_gpu *g = (sh_gpu *)e;
    if (g->momentum == NULL) {
        return SHOAL_OK;
    }
    SH_TRY(fetch_host(g, g->momentum));
    for (size_t i = 0; i < g->count; i++) {
        shoal_tensor *t = shoal_value_as_tensor(shoal_value_at(to, i));
        if (t == NULL) {
            return shoal_last_error();
        }
        memcpy(sh_tensor_ptr(t), g->host + g->offsets[i], bytes_of(t));
        sh_tensor_touch(t);
    }
    return SHOAL_OK;
}

/* ---- sharing ---- */

static shoal_value *share(sh_engine *e)
{
    return shoal_value_tensor(((sh_gpu *)e)->params);
}

static shoal_err adopt(sh_engine *e, const shoal_value *shared)
{
    sh_gpu *g = (sh_gpu *)e;
    shoal_tensor *t = shoal_value_as_tensor(shared);
    if (t == NULL) {
        return shoal_last_error();
    }
    if (t->dtype != SHOAL_F32 || t->count != g->params->count || t->storage->device != g->device) {
        sh_text text;
        return sh_fail(SHOAL_ETYPE, "the shared parameters are %s; expected %lld elements of f32 on the GPU",
                       sh_tensor_text(&text, t), (long long)g->params->count);
    }
    g->plan->close(g);
    g->own = NULL;
    shoal_module_destroy(g->module);
    g->module = NULL;
    shoal_tensor_release(g->params);
    g->params = shoal_tensor_retain(t);
    SH_TRY(make_module(g));
    return open_plan(g);
}

/* ---- steps ---- */

shoal_err sh_gpu_begin_steps(sh_gpu *g, int64_t at, uint64_t seed)
{
    const sh_gpu_progress p = {.at = at, .seed = seed};
    g->loss_before = 0;
    return g->device->write(sh_tensor_ptr(g->progress), &p, sizeof p);
}

/* Sets the steps to enqueue for about AHEAD_NS, however long one takes. */
static void set_ahead(sh_gpu *g, int64_t took)
{
    if (took < AHEAD_NS / 2 && g->ahead < AHEAD_MOST) {
        g->ahead *= 2;
    } else if (took > 2 * AHEAD_NS && g->ahead > 1) {
        g->ahead /= 2;
    }
}

shoal_err sh_gpu_end_steps(sh_gpu *g, int64_t steps, int64_t begun, sh_engine_done *out_done)
{
    sh_gpu_progress p;
    SH_TRY(g->device->read(&p, sh_tensor_ptr(g->progress), sizeof p)); /* waits for the steps */
    out_done->steps = steps;
    out_done->loss = (double)(p.loss - g->loss_before) / (double)steps;
    g->loss_before = p.loss;
    set_ahead(g, sh_now() - begun);
    return SHOAL_OK;
}

static shoal_err upload_order(sh_gpu *g, int64_t pass)
{
    if (g->order_pass == pass && g->order_loaders == g->base.loaders) {
        return SHOAL_OK;
    }
    const int64_t *order = sh_loader_order(g->base.loader, pass);
    g->order_pass = pass;
    g->order_loaders = g->base.loaders;
    return g->device->write(sh_tensor_ptr(g->order), order, (size_t)g->base.loader->count * sizeof *order);
}

static shoal_err begin(sh_engine *e, const sh_engine_run *run)
{
    sh_gpu *g = (sh_gpu *)e;
    g->run = *run;
    g->at = run->first;
    SH_TRY(upload_order(g, run->pass));
    SH_TRY(g->plan->begin(g));
    return sh_gpu_begin_steps(g, run->first * e->loader->batch, run->seed);
}

/* Enqueues batches at to end - 1. Returns the number of their samples. Only the last of a pass may be smaller. */
static shoal_err enqueue(sh_gpu *g, int64_t at, int64_t end, int64_t *out_samples)
{
    const int64_t *numbers;
    int64_t whole = g->base.loader->batch, last = sh_loader_batch(g->base.loader, end - 1, &numbers);
    int64_t count = end - at - (last < whole);
    if (count > 0) {
        SH_TRY(g->plan->steps(g, whole, count));
    }
    *out_samples = count * whole + (last < whole ? last : 0);
    return last < whole ? g->plan->steps(g, last, 1) : SHOAL_OK;
}

static shoal_err run(sh_engine *e, sh_engine_done *out_done)
{
    sh_gpu *g = (sh_gpu *)e;
    int64_t first = g->at, begun = sh_now();
    int64_t end = first + g->ahead < g->run.last ? first + g->ahead : g->run.last;
    *out_done = (sh_engine_done){.batch = end};
    if (first >= end) {
        return SHOAL_OK;
    }
    SH_TRY(enqueue(g, first, end, &out_done->samples));
    g->at = end;
    return sh_gpu_end_steps(g, end - first, begun, out_done);
}

const sh_engine_type sh_engine_cuda = {
    .name = "cuda",
    .service = &sh_service_cuda,
    .round_factor = 10, /* a serial round of 1,000 steps takes some tens of milliseconds */
    .size = sizeof(sh_gpu),
    .open = gpu_open,
    .close = gpu_close,
    .load = sh_gpu_load,
    .store = store,
    .new_state = sh_engine_new_sgd_state,
    .load_state = sh_gpu_load_state,
    .store_state = store_state,
    .share = share,
    .adopt = adopt,
    .begin = begin,
    .run = run,
    .store_gradient = store_gradient,
    .clients_in_sum = INT64_MAX,
    .begin_round = sh_gpu_begin_round,
    .begin_client = sh_gpu_begin_client,
    .end_client = sh_gpu_end_client,
    .store_sum = sh_gpu_store_sum,
    .open_group = sh_gpu_open_group,
    .begin_group = sh_gpu_begin_group,
    .run_group = sh_gpu_run_group,
    .end_group = sh_gpu_end_group,
    .test = sh_gpu_test,
};
