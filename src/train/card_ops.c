/* The plan for any model: a step op by op. For each size of batch, the first step runs as it is, the second is captured,
 * and the others replay it. */
#include "train/card_inside.h"

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
    bool change;
    bool captures;
    double lr;
} ops;

static bool fits(const sh_worker *w)
{
    (void)w;
    return true;
}

static void forget(captured *c)
{
    shoal_capture_destroy(c->capture);
    sh_batch_release(&c->pair);
    *c = (captured){.samples = 0};
}

/* Makes the optimiser's momentum that of the card. */
static shoal_err adopt_momentum(const sh_worker *w, shoal_optimizer *sgd)
{
    shoal_err err = shoal_optimizer_prepare(sgd);
    size_t i = 0;
    for (shoal_named it = {0}; err == SHOAL_OK && shoal_optimizer_next(sgd, &it) == SHOAL_OK; i++) {
        shoal_tensor *view = sh_card_view(w->card, w->card->momentum, i, it.tensor);
        err = view ? shoal_optimizer_adopt(sgd, it.name, view) : shoal_last_error();
        shoal_tensor_release(view);
    }
    return err;
}

static shoal_err open(sh_worker *w)
{
    ops *o = w->card->own = calloc(1, sizeof *o);
    if (o == NULL) {
        return sh_fail(SHOAL_ENOMEM, "no memory for the steps on the GPU");
    }
    o->captures = sh_card_captures();
    o->sgd = shoal_sgd_create(w->card->module, .lr = w->settings.lr, .momentum = w->settings.momentum);
    if (o->sgd == NULL) {
        return shoal_last_error();
    }
    return w->card->momentum ? adopt_momentum(w, o->sgd) : SHOAL_OK;
}

static void close(sh_card *card)
{
    ops *o = card->own;
    for (int i = 0; o != NULL && i < SIZES; i++) {
        forget(&o->sizes[i]);
    }
    if (o != NULL) {
        shoal_optimizer_destroy(o->sgd);
        free(o);
    }
}

/* A captured step has its learning rate, and the seed of its random numbers, in it. */
static shoal_err begin(sh_worker *w, double lr, uint64_t seed, bool change)
{
    ops *o = w->card->own;
    for (int i = 0; i < SIZES && (o->lr != lr || o->change != change); i++) {
        shoal_capture_destroy(o->sizes[i].capture);
        o->sizes[i].capture = NULL;
    }
    o->lr = lr;
    o->change = change;
    shoal_optimizer_set_lr(o->sgd, lr);
    shoal_manual_seed(seed);
    return SHOAL_OK;
}

/* ---- a step ---- */

static shoal_tensor *make_on_card(shoal_dtype dtype, int ndim, const int64_t *shape)
{
    return shoal_empty_on(SHOAL_CUDA, dtype, ndim, shape);
}

/* Finds the place of a size, or makes it. */
static captured *size_of(sh_worker *w, int64_t samples)
{
    ops *o = w->card->own;
    captured *c = &o->sizes[samples == w->loader->batch ? 0 : 1];
    if (c->samples != samples) {
        forget(c);
        if (sh_batch_create(&c->pair, w->set, samples, make_on_card) != SHOAL_OK) {
            return NULL;
        }
        c->samples = samples;
    }
    return c;
}

static shoal_err take_batch(const sh_worker *w, const captured *c)
{
    const sh_card *card = w->card;
    const shoal_tensor *x = c->pair.x, *y = c->pair.y;
    sh_step_batch batch = {.x = sh_tensor_ptr(x),
                           .samples = sh_tensor_ptr(card->samples),
                           .row = x->count / c->samples,
                           .size = (int64_t)shoal_dtype_size(x->dtype),
                           .scaled = card->scaled,
                           .scale = card->scale,
                           .shift = card->shift,
                           .y = sh_tensor_ptr(y),
                           .labels = sh_tensor_ptr(card->labels),
                           .label_size = y->count / c->samples * (int64_t)shoal_dtype_size(y->dtype),
                           .byte_labels = card->scaled,
                           .order = sh_tensor_ptr(card->order),
                           .state = &sh_card_progress_of(card)->at,
                           .count = c->samples};
    return card->device->kernels()->step->take(card->exec, &batch);
}

static shoal_err keep_gradient(const sh_card *card)
{
    size_t at = 0;
    shoal_err err = SHOAL_OK;
    shoal_tensor *t;
    for (size_t i = 0; err == SHOAL_OK && (t = sh_module_next_parameter(card->module, &at)) != NULL; i++) {
        shoal_tensor *grad = shoal_tensor_grad(t), *view = sh_card_view(card, card->grads, i, t);
        err = view == NULL   ? shoal_last_error()
              : grad != NULL ? sh_tensor_copy_data(view, grad)
                             : sh_tensor_fill(view, 0);
        shoal_tensor_release(view);
    }
    return err;
}

static shoal_err run_ops(sh_worker *w, const captured *c)
{
    sh_card *card = w->card;
    ops *o = card->own;
    size_t mark = shoal_scope_mark();
    shoal_err err = take_batch(w, c);
    if (err == SHOAL_OK) {
        shoal_optimizer_zero_grad(o->sgd);
        shoal_tensor *loss = shoal_nll_loss(shoal_module_forward(card->module, c->pair.x), c->pair.y);
        err = loss != NULL ? shoal_backward(loss) : shoal_last_error(); /* a lost card is not a mistake: crew.c */
        if (err == SHOAL_OK) {
            err = o->change ? shoal_optimizer_step(o->sgd) : keep_gradient(card);
        }
        if (err == SHOAL_OK) {
            sh_card_progress *p = sh_card_progress_of(card);
            err = card->device->kernels()->step->count(card->exec, &p->at, c->samples, &p->loss, sh_tensor_ptr(loss));
        }
    }
    shoal_scope_release(mark);
    return err;
}

static shoal_err capture(sh_worker *w, captured *c)
{
    shoal_err err = shoal_capture_begin(&c->capture);
    if (err != SHOAL_OK) {
        return err;
    }
    err = run_ops(w, c);
    shoal_err ended = shoal_capture_end(c->capture);
    err = err == SHOAL_OK ? ended : err;
    if (err != SHOAL_OK) {
        shoal_capture_destroy(c->capture);
        c->capture = NULL;
    }
    return err;
}

static shoal_err step(sh_worker *w, int64_t samples)
{
    bool fresh = ((ops *)w->card->own)->sizes[samples == w->loader->batch ? 0 : 1].samples != samples;
    captured *c = size_of(w, samples);
    if (c == NULL) {
        return shoal_last_error();
    }
    if (fresh || !((ops *)w->card->own)->captures) {
        return run_ops(w, c); /* makes what exists from the first step on: gradients */
    }
    shoal_err err = c->capture ? SHOAL_OK : capture(w, c);
    if (err == SHOAL_OK) {
        err = shoal_capture_replay(c->capture);
    }
    if (err == SHOAL_ESTATE && c->capture) { /* it draws random numbers, with another seed */
        shoal_capture_destroy(c->capture);
        c->capture = NULL;
        err = capture(w, c);
        err = err == SHOAL_OK ? shoal_capture_replay(c->capture) : err;
    }
    return err;
}

static shoal_err steps(sh_worker *w, int64_t samples, int64_t count)
{
    shoal_err err = SHOAL_OK;
    for (int64_t i = 0; i < count && err == SHOAL_OK; i++) {
        err = step(w, samples);
    }
    return err;
}

const sh_card_plan sh_card_ops =
    {.name = "ops", .fits = fits, .open = open, .close = close, .begin = begin, .steps = steps};
