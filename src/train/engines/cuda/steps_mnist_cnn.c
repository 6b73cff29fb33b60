/* The plan for mnist-cnn on images of bytes: two launches per step. The kernels count the steps and draw random numbers
 * by themselves, so several steps are captured together; the rest of a run is launched step by step. */
#include "train/engines/cuda/gpu.h"

#include "base/error.h"
#include "data/dataset.h"

#include <stdlib.h>
#include <string.h>

#define TOGETHER 25

typedef struct fused {
    sh_small_cnn_step step;
    shoal_tensor *scratch;
    bool captures, ran;     /* ran: a step has run as it is, so the kernels are loaded */
    shoal_capture *capture; /* of TOGETHER steps of whole batches; NULL: none yet */
} fused;

static bool fits(const sh_gpu *g)
{
    sh_byte_images images;
    return g->device->kernels()->small_cnn != NULL && g->count == SH_SMALL_CNN_TENSORS &&
           strcmp(shoal_module_type_name(g->base.module), "mnist-cnn") == 0 && sh_dataset_bytes(g->base.set, &images);
}

static shoal_err open_steps(sh_gpu *g)
{
    fused *f = g->own = calloc(1, sizeof *f);
    if (f == NULL) {
        return sh_fail(SHOAL_ENOMEM, "no memory for the steps on the GPU");
    }
    int64_t size = (int64_t)g->device->kernels()->small_cnn->scratch_size(g->base.settings.batch);
    f->captures = sh_gpu_captures();
    f->scratch = sh_gpu_make(g, SHOAL_U8, SHOAL_SHAPE(size));
    f->step = (sh_small_cnn_step){.pixels = sh_tensor_ptr(g->samples),
                                  .labels = sh_tensor_ptr(g->labels),
                                  .order = sh_tensor_ptr(g->order),
                                  .scale = g->scale,
                                  .shift = g->shift,
                                  .state = &sh_gpu_progress_of(g)->at,
                                  .seed = &sh_gpu_progress_of(g)->seed,
                                  .loss = &sh_gpu_progress_of(g)->loss,
                                  .momentum_factor = (float)g->base.settings.momentum,
                                  .training = true};
    for (size_t i = 0; i < g->count; i++) {
        f->step.param[i] = sh_gpu_at(g, g->params, i);
        f->step.momentum[i] = g->momentum ? sh_gpu_at(g, g->momentum, i) : NULL;
    }
    return f->scratch ? SHOAL_OK : shoal_last_error();
}

static void close_steps(sh_gpu *g)
{
    fused *f = g->own;
    if (f != NULL) {
        shoal_capture_destroy(f->capture);
        shoal_tensor_release(f->scratch);
        free(f);
    }
}

/* The captured steps contain their learning rate. The seed is in the progress. */
static shoal_err begin(sh_gpu *g)
{
    fused *f = g->own;
    float lr = (float)g->run.lr;
    if (f->step.lr != lr || (f->step.grad[0] != NULL) != g->run.gradient) {
        shoal_capture_destroy(f->capture);
        f->capture = NULL;
    }
    f->step.lr = lr;
    for (size_t i = 0; i < g->count; i++) {
        f->step.grad[i] = g->run.gradient ? sh_gpu_at(g, g->grads, i) : NULL;
    }
    return SHOAL_OK;
}

static shoal_err launch(const sh_gpu *g, int64_t samples, int64_t count)
{
    fused *f = g->own;
    f->step.batch = samples;
    f->ran = true;
    for (int64_t i = 0; i < count; i++) {
        SH_TRY(g->device->kernels()->small_cnn->step(g->exec, &f->step, sh_tensor_ptr(f->scratch)));
    }
    return SHOAL_OK;
}

static shoal_err capture(const sh_gpu *g, int64_t samples)
{
    fused *f = g->own;
    shoal_err err = shoal_capture_begin(&f->capture);
    if (err != SHOAL_OK) {
        return err;
    }
    err = launch(g, samples, TOGETHER);
    shoal_err ended = shoal_capture_end(f->capture);
    if (err == SHOAL_OK) {
        err = ended;
    }
    if (err != SHOAL_OK) {
        shoal_capture_destroy(f->capture);
        f->capture = NULL;
    }
    return err;
}

static shoal_err steps(sh_gpu *g, int64_t samples, int64_t count)
{
    fused *f = g->own;
    while (f->captures && f->ran && samples == g->base.loader->batch && count >= TOGETHER) {
        if (f->capture == NULL) {
            SH_TRY(capture(g, samples));
        }
        SH_TRY(shoal_capture_replay(f->capture));
        count -= TOGETHER;
    }
    return launch(g, samples, count);
}

const sh_gpu_plan sh_gpu_plan_mnist_cnn =
    {.name = "mnist-cnn", .fits = fits, .open = open_steps, .close = close_steps, .begin = begin, .steps = steps};
