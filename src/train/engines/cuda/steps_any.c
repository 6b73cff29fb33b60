/* The plan for any model: a step op by op. For each size of batch, the first step runs as it is, the second is
 * captured, and the others replay it. */
#include "train/engines/cuda/gpu.h"

#include "base/error.h"
#include "data/dataset.h"

#include <shoal/autograd.h>

#include <stdlib.h>

/* The step of one size of batch. */
typedef struct captured {
    int64_t samples; /* 0: this place is free */
    sh_batch pair;
    shoal_capture *capture; /* NULL: not captured yet */
} captured;

#define SIZES 2 /* of an epoch's batches: whole ones, and the last */

typedef struct ops {
    shoal_optimizer *sgd;
    captured sizes[SIZES];
    bool gradient;
    bool captures;
    double lr;
} ops;

static bool fits(const sh_gpu *g)
{
    (void)g;
    return true;
}

static void forget(captured *c)
{
    shoal_capture_destroy(c->capture);
    sh_batch_release(&c->pair);
    *c = (captured){.samples = 0};
}

/* Makes the optimiser keep its momentum in g->momentum. */
static shoal_err adopt_momentum(const sh_gpu *g, shoal_optimizer *sgd)
{
    SH_TRY(shoal_optimizer_prepare(sgd));
    size_t i = 0;
    for (shoal_named it = {0}; shoal_optimizer_next(sgd, &it) == SHOAL_OK; i++) {
        shoal_tensor *view = sh_gpu_view(g, g->momentum, i, it.tensor);
        shoal_err err = view ? shoal_optimizer_adopt(sgd, it.name, view) : shoal_last_error();
        shoal_tensor_release(view);
        SH_TRY(err);
    }
    return SHOAL_OK;
}

static shoal_err open_steps(sh_gpu *g)
{
    ops *o = g->own = calloc(1, sizeof *o);
    if (o == NULL) {
        return sh_fail(SHOAL_ENOMEM, "no memory for the steps on the GPU");
    }
    o->captures = sh_gpu_captures();
    o->sgd = shoal_sgd_create(g->module, .lr = g->base.settings.lr, .momentum = g->base.settings.momentum);
    if (o->sgd == NULL) {
        return shoal_last_error();
    }
    return g->momentum ? adopt_momentum(g, o->sgd) : SHOAL_OK;
}

static void close_steps(sh_gpu *g)
{
    ops *o = g->own;
    for (int i = 0; o != NULL && i < SIZES; i++) {
        forget(&o->sizes[i]);
    }
    if (o != NULL) {
        shoal_optimizer_destroy(o->sgd);
        free(o);
    }
}

/* A captured step contains its learning rate, and the seed of its random numbers. */
static shoal_err begin(sh_gpu *g)
{
    ops *o = g->own;
    const sh_engine_run *run = &g->run;
    for (int i = 0; i < SIZES && (o->lr != run->lr || o->gradient != run->gradient); i++) {
        shoal_capture_destroy(o->sizes[i].capture);
        o->sizes[i].capture = NULL;
    }
    o->lr = run->lr;
    o->gradient = run->gradient;
    shoal_optimizer_set_lr(o->sgd, run->lr);
    shoal_manual_seed(run->seed);
    return SHOAL_OK;
}

/* ---- a step ---- */

static shoal_tensor *make_on_gpu(shoal_dtype dtype, int ndim, const int64_t *shape)
{
    return shoal_empty_on(SHOAL_CUDA, dtype, ndim, shape);
}

/* Returns the place of a batch's size. */
static captured *place_of(const sh_gpu *g, int64_t samples)
{
    return &((ops *)g->own)->sizes[samples == g->base.loader->batch ? 0 : 1];
}

static shoal_err make_batch(const sh_gpu *g, captured *c, int64_t samples)
{
    forget(c);
    SH_TRY(sh_batch_create(&c->pair, g->base.set, samples, make_on_gpu));
    c->samples = samples;
    return SHOAL_OK;
}

static shoal_err take_batch(const sh_gpu *g, const captured *c)
{
    const shoal_tensor *x = c->pair.x, *y = c->pair.y;
    sh_step_batch batch = {.x = sh_tensor_ptr(x),
                           .samples = sh_tensor_ptr(g->samples),
                           .row = x->count / c->samples,
                           .size = (int64_t)shoal_dtype_size(x->dtype),
                           .scaled = g->scaled,
                           .scale = g->scale,
                           .shift = g->shift,
                           .y = sh_tensor_ptr(y),
                           .labels = sh_tensor_ptr(g->labels),
                           .label_size = y->count / c->samples * (int64_t)shoal_dtype_size(y->dtype),
                           .byte_labels = g->scaled,
                           .order = sh_tensor_ptr(g->order),
                           .state = &sh_gpu_progress_of(g)->at,
                           .count = c->samples};
    return g->device->kernels()->step->take(g->exec, &batch);
}

static shoal_err keep_gradient(const sh_gpu *g)
{
    size_t at = 0;
    shoal_tensor *t;
    for (size_t i = 0; (t = sh_module_next_parameter(g->module, &at)) != NULL; i++) {
        shoal_tensor *grad = shoal_tensor_grad(t), *view = sh_gpu_view(g, g->grads, i, t);
        shoal_err err = view == NULL   ? shoal_last_error()
                        : grad != NULL ? sh_tensor_copy_data(view, grad)
                                       : sh_tensor_fill(view, 0);
        shoal_tensor_release(view);
        SH_TRY(err);
    }
    return SHOAL_OK;
}

static shoal_err step_in_scope(const sh_gpu *g, const captured *c)
{
    const ops *o = g->own;
    SH_TRY(take_batch(g, c));
    shoal_optimizer_zero_grad(o->sgd);
    shoal_tensor *loss = shoal_nll_loss(shoal_module_forward(g->module, c->pair.x), c->pair.y);
    if (loss == NULL) {
        return shoal_last_error(); /* shoal_backward would say EINVAL for a lost GPU */
    }
    SH_TRY(shoal_backward(loss));
    if (o->gradient) {
        SH_TRY(keep_gradient(g));
    } else {
        SH_TRY(shoal_optimizer_step(o->sgd));
    }
    sh_gpu_progress *p = sh_gpu_progress_of(g);
    return g->device->kernels()->step->count(g->exec, &p->at, c->samples, &p->loss, sh_tensor_ptr(loss));
}

static shoal_err run_ops(const sh_gpu *g, const captured *c)
{
    size_t mark = shoal_scope_mark();
    shoal_err err = step_in_scope(g, c);
    shoal_scope_release(mark);
    return err;
}

static shoal_err capture(const sh_gpu *g, captured *c)
{
    SH_TRY(shoal_capture_begin(&c->capture));
    shoal_err err = run_ops(g, c), ended = shoal_capture_end(c->capture);
    if (err == SHOAL_OK) {
        err = ended;
    }
    if (err != SHOAL_OK) {
        shoal_capture_destroy(c->capture);
        c->capture = NULL;
    }
    return err;
}

static shoal_err step(const sh_gpu *g, int64_t samples)
{
    captured *c = place_of(g, samples);
    bool first = c->samples != samples;
    if (first) {
        SH_TRY(make_batch(g, c, samples));
    }
    if (first || !((ops *)g->own)->captures) {
        return run_ops(g, c); /* the first step makes the gradients, which later ones keep */
    }
    if (c->capture == NULL) {
        SH_TRY(capture(g, c));
    }
    shoal_err err = shoal_capture_replay(c->capture);
    if (err != SHOAL_ESTATE) {
        return err;
    }
    shoal_capture_destroy(c->capture); /* it draws random numbers, with another seed */
    c->capture = NULL;
    SH_TRY(capture(g, c));
    return shoal_capture_replay(c->capture);
}

static shoal_err steps(sh_gpu *g, int64_t samples, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        SH_TRY(step(g, samples));
    }
    return SHOAL_OK;
}

const sh_gpu_plan sh_gpu_plan_any =
    {.name = "any", .fits = fits, .open = open_steps, .close = close_steps, .begin = begin, .steps = steps};
