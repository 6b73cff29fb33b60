#include "train/engines/cuda/steps_fedavg_cnn.h"

#include "base/error.h"
#include "data/dataset.h"

#include <stdlib.h>
#include <string.h>

#define TOGETHER 10

bool sh_gpu_cnn_fits(const sh_gpu *g)
{
    sh_byte_images images;
    return g->device->kernels()->fedavg_cnn != NULL && g->count == SH_FEDAVG_CNN_TENSORS &&
           strcmp(shoal_module_type_name(g->base.module), "fedavg-cnn") == 0 && sh_dataset_bytes(g->base.set, &images);
}

shoal_err sh_gpu_cnn_open(sh_gpu_cnn *s, sh_gpu *g, int clients, const shoal_tensor *params,
                          const shoal_tensor *momentum, const shoal_tensor *order, int64_t order_stride)
{
    int64_t size = (int64_t)g->device->kernels()->fedavg_cnn->scratch_size(g->base.settings.batch, clients);
    s->captures = sh_gpu_captures();
    s->scratch = sh_gpu_make(g, SHOAL_U8, SHOAL_SHAPE(size));
    s->counts = s->scratch ? sh_gpu_make(g, SHOAL_I64, SHOAL_SHAPE(clients)) : NULL;
    if (s->counts == NULL) {
        return shoal_last_error();
    }
    s->step = (sh_fedavg_cnn_step){.stride = g->offsets[g->count],
                                   .clients = clients,
                                   .pixels = sh_tensor_ptr(g->samples),
                                   .labels = sh_tensor_ptr(g->labels),
                                   .order = sh_tensor_ptr(order),
                                   .order_stride = order_stride,
                                   .counts = sh_tensor_ptr(s->counts),
                                   .scale = g->scale,
                                   .shift = g->shift,
                                   .batch = g->base.settings.batch,
                                   .state = &sh_gpu_progress_of(g)->at,
                                   .loss = &sh_gpu_progress_of(g)->loss,
                                   .momentum_factor = (float)g->base.settings.momentum,
                                   .tf32 = g->base.settings.tf32};
    for (size_t i = 0; i < g->count; i++) {
        s->step.param[i] = sh_gpu_at(g, params, i);
        s->step.momentum[i] = momentum ? sh_gpu_at(g, momentum, i) : NULL;
    }
    g->ahead = 2 * TOGETHER; /* and from there twice or half as many: whole captures for long */
    return SHOAL_OK;
}

static void forget(sh_gpu_cnn *s)
{
    shoal_capture_destroy(s->capture);
    s->capture = NULL;
}

void sh_gpu_cnn_close(sh_gpu_cnn *s)
{
    forget(s);
    shoal_tensor_release(s->scratch);
    shoal_tensor_release(s->counts);
    *s = (sh_gpu_cnn){.captures = false};
}

shoal_err sh_gpu_cnn_count(sh_gpu_cnn *s, const int64_t *counts)
{
    const sh_device *device = s->counts->storage->device;
    return device->write(sh_tensor_ptr(s->counts), counts, (size_t)s->counts->count * sizeof *counts);
}

void sh_gpu_cnn_begin(sh_gpu_cnn *s, const sh_gpu *g, double lr, const shoal_tensor *grads)
{
    if (s->step.lr != (float)lr || (s->step.grad[0] == NULL) != (grads == NULL)) {
        forget(s);
    }
    s->step.lr = (float)lr;
    for (size_t i = 0; i < g->count; i++) {
        s->step.grad[i] = grads ? sh_gpu_at(g, grads, i) : NULL;
    }
}

static shoal_err launch(sh_gpu_cnn *s, const sh_gpu *g, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        SH_TRY(g->device->kernels()->fedavg_cnn->step(g->exec, &s->step, sh_tensor_ptr(s->scratch)));
        s->ran = true;
    }
    return SHOAL_OK;
}

static shoal_err capture(sh_gpu_cnn *s, const sh_gpu *g)
{
    shoal_err err = shoal_capture_begin(&s->capture);
    if (err != SHOAL_OK) {
        return err;
    }
    err = launch(s, g, TOGETHER);
    shoal_err ended = shoal_capture_end(s->capture);
    if (err == SHOAL_OK) {
        err = ended;
    }
    if (err != SHOAL_OK) {
        forget(s);
    }
    return err;
}

shoal_err sh_gpu_cnn_steps(sh_gpu_cnn *s, const sh_gpu *g, int64_t count)
{
    while (s->captures && s->ran && count >= TOGETHER) {
        if (s->capture == NULL) {
            SH_TRY(capture(s, g));
        }
        SH_TRY(shoal_capture_replay(s->capture));
        count -= TOGETHER;
    }
    return launch(s, g, count);
}

/* ---- the plan for one client ---- */

typedef struct one_client {
    sh_gpu_cnn cnn;
    int64_t count; /* of samples, as the GPU has it */
} one_client;

static shoal_err open_steps(sh_gpu *g)
{
    one_client *o = g->own = calloc(1, sizeof *o);
    if (o == NULL) {
        return sh_fail(SHOAL_ENOMEM, "no memory for the steps on the GPU");
    }
    o->count = -1;
    return sh_gpu_cnn_open(&o->cnn, g, 1, g->params, g->momentum, g->order, 0);
}

static void close_steps(sh_gpu *g)
{
    one_client *o = g->own;
    if (o != NULL) {
        sh_gpu_cnn_close(&o->cnn);
        free(o);
    }
}

/* The seed is not needed: this model draws no random numbers. */
static shoal_err begin(sh_gpu *g)
{
    one_client *o = g->own;
    sh_gpu_cnn_begin(&o->cnn, g, g->run.lr, g->run.gradient ? g->grads : NULL);
    if (o->count == g->base.loader->count) {
        return SHOAL_OK;
    }
    o->count = g->base.loader->count;
    return sh_gpu_cnn_count(&o->cnn, &o->count);
}

/* A smaller batch needs nothing: the kernels know the number of samples. */
static shoal_err steps(sh_gpu *g, int64_t samples, int64_t count)
{
    (void)samples;
    one_client *o = g->own;
    return sh_gpu_cnn_steps(&o->cnn, g, count);
}

const sh_gpu_plan sh_gpu_plan_fedavg_cnn = {.name = "fedavg-cnn",
                                            .fits = sh_gpu_cnn_fits,
                                            .open = open_steps,
                                            .close = close_steps,
                                            .begin = begin,
                                            .steps = steps};
