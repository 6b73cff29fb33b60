/* Losses that compare x with a target of the same shape, element by element: in = x, target; a.i = reduction.
 *
 * Each loss consists of three expressions: the loss of an element, and its derivatives with respect to x and to the
 * target. */
#include "autograd/op.h"

#include "base/error.h"

#include <string.h>

typedef struct loss {
    shoal_tensor *(*value)(shoal_tensor *x, shoal_tensor *t);
    shoal_tensor *(*by_x)(shoal_tensor *x, shoal_tensor *t);
    shoal_tensor *(*by_target)(shoal_tensor *x, shoal_tensor *t);
    double factor; /* of both derivatives; 0 stands for 1 */
} loss;

static shoal_err loss_shape(sh_call *c)
{
    const shoal_tensor *x = c->in[0], *t = c->in[1];
    bool good = sh_dtype_is_wide_float(x->dtype) && x->dtype == t->dtype && x->ndim == t->ndim &&
                memcmp(x->shape, t->shape, sizeof x->shape[0] * (size_t)x->ndim) == 0;
    if (!good) {
        sh_text tx, tt;
        return sh_fail(SHOAL_EINVAL, "%s: x %s, target %s; both must have one shape and be f32 or f64", c->op->name,
                       sh_tensor_text(&tx, x), sh_tensor_text(&tt, t));
    }
    switch ((shoal_reduction)c->a.i[0]) {
    case SHOAL_REDUCTION_MEAN:
    case SHOAL_REDUCTION_SUM: return sh_shape_init(&c->shape[0], x->dtype, SHOAL_SCALAR);
    case SHOAL_REDUCTION_NONE: return sh_shape_init(&c->shape[0], x->dtype, x->ndim, x->shape);
    }
    return sh_fail(SHOAL_EINVAL, "%s: unknown reduction %lld", c->op->name, (long long)c->a.i[0]);
}

static shoal_err loss_forward(sh_call *c, const loss *l)
{
    shoal_err err = sh_call_save_in(c, 0);
    if (err == SHOAL_OK) {
        err = sh_call_save_in(c, 1);
    }
    if (err != SHOAL_OK) {
        return err;
    }
    shoal_no_grad_begin();
    shoal_tensor *value = l->value(c->in[0], c->in[1]);
    shoal_no_grad_end();
    if (!value) {
        return shoal_last_error();
    }
    if (c->a.i[0] == SHOAL_REDUCTION_NONE) {
        return sh_tensor_copy_data(c->out[0], value);
    }
    sh_view in = sh_tensor_view(value), out = {.data = sh_tensor_ptr(c->out[0]), .ndim = in.ndim, .dtype = in.dtype};
    for (int d = 0; d < out.ndim; d++) {
        out.shape[d] = out.strides[d] = 1;
    }
    return c->kernels->reduce->reduce(c->exec, c->a.i[0] == SHOAL_REDUCTION_MEAN ? SH_REDUCE_MEAN : SH_REDUCE_SUM, &out,
                                      &in);
}

/* A mean's 1 / count goes into the factor, as in PyTorch, or else into g. The order decides what overflows. */
static shoal_err loss_backward(sh_back *b, const loss *l)
{
    shoal_tensor *x = sh_back_saved(b, 0), *t = sh_back_saved(b, 1), *g = sh_back_grad(b, 0);
    bool mean = sh_back_attrs(b)->i[0] == SHOAL_REDUCTION_MEAN;
    double share = mean ? 1 / (double)x->count : 1, factor = l->factor * share;
    if (mean && factor == 0) {
        g = shoal_mul_scalar(g, share);
    }
    if (!g) {
        return shoal_last_error();
    }
    for (int i = 0; i < 2; i++) {
        if (sh_back_needs(b, i)) {
            shoal_tensor *d = i == 0 ? l->by_x(x, t) : l->by_target(x, t);
            SH_TRY(sh_back_give(b, i, shoal_mul(factor != 0 ? shoal_mul_scalar(d, factor) : d, g)));
        }
    }
    return SHOAL_OK;
}

#define LOSS(name, table)                                                                                              \
    static shoal_err name##_forward(sh_call *c)                                                                        \
    {                                                                                                                  \
        return loss_forward(c, &(table));                                                                              \
    }                                                                                                                  \
    static shoal_err name##_backward(sh_back *b)                                                                       \
    {                                                                                                                  \
        return loss_backward(b, &(table));                                                                             \
    }                                                                                                                  \
    const sh_op sh_op_##name = {#name, SH_OP_COMPUTES, loss_shape, name##_forward, name##_backward};                   \
    shoal_tensor *shoal_##name(shoal_tensor *x, shoal_tensor *target, shoal_reduction reduction)                       \
    {                                                                                                                  \
        return sh_run(&sh_op_##name, &(sh_call){.in = {x, target}, .in_count = 2, .a.i = {reduction}}, 2);             \
    }

/* ---- mse: d², d = x - t ---- */

static shoal_tensor *mse_value(shoal_tensor *x, shoal_tensor *t)
{
    return shoal_square(shoal_sub(x, t));
}

static shoal_tensor *mse_by_x(shoal_tensor *x, shoal_tensor *t)
{
    return shoal_sub(x, t);
}

static shoal_tensor *mse_by_target(shoal_tensor *x, shoal_tensor *t)
{
    return mse_by_x(t, x);
}

static const loss mse = {mse_value, mse_by_x, mse_by_target, 2};
LOSS(mse_loss, mse)

/* ---- l1: |d| ---- */

static shoal_tensor *l1_value(shoal_tensor *x, shoal_tensor *t)
{
    return shoal_abs(shoal_sub(x, t));
}

static shoal_tensor *l1_by_x(shoal_tensor *x, shoal_tensor *t)
{
    return shoal_sign(shoal_sub(x, t));
}

static shoal_tensor *l1_by_target(shoal_tensor *x, shoal_tensor *t)
{
    return l1_by_x(t, x);
}

static const loss l1 = {l1_value, l1_by_x, l1_by_target, 0};
LOSS(l1_loss, l1)

/* ---- smooth l1: d²/2 up to |d| = 1, |d| - 1/2 beyond. With m = min(|d|, 1) that is m · (|d| - m/2) ---- */

static shoal_tensor *smooth_value(shoal_tensor *x, shoal_tensor *t)
{
    shoal_tensor *d = l1_value(x, t), *m = shoal_clamp(d, 0, 1);
    return shoal_mul(m, shoal_sub(d, shoal_mul_scalar(m, 0.5)));
}

static shoal_tensor *smooth_by_x(shoal_tensor *x, shoal_tensor *t)
{
    return shoal_clamp(shoal_sub(x, t), -1, 1);
}

static shoal_tensor *smooth_by_target(shoal_tensor *x, shoal_tensor *t)
{
    return smooth_by_x(t, x);
}

static const loss smooth_l1 = {smooth_value, smooth_by_x, smooth_by_target, 0};
LOSS(smooth_l1_loss, smooth_l1)

/* ---- bce_with_logits: max(x, 0) - x·t + log(1 + e^-|x|) = |x|·u + log(1 + e^-|x|), u = x > 0 ? 1 - t : t ---- */

/* Returns log(1 + u) for u in (0, 1], accurate for small u too: the factor u / (w - 1), with w = 1 + u, corrects what
 * the sum 1 + u lost of u (Kahan). */
static shoal_tensor *log1p_of(shoal_tensor *u)
{
    shoal_tensor *w = shoal_add_scalar(u, 1), *kept = shoal_add_scalar(w, -1);
    shoal_tensor *zero = sh_op_scalar_on(u, 0);
    return shoal_where(shoal_eq(kept, zero), u, shoal_mul(shoal_log(w), shoal_div(u, kept)));
}

static shoal_tensor *bce_value(shoal_tensor *x, shoal_tensor *t)
{
    shoal_tensor *size = shoal_abs(x), *zero = sh_op_scalar_on(x, 0);
    shoal_tensor *u = shoal_where(shoal_gt(x, zero), shoal_sub(sh_op_scalar_on(x, 1), t), t);
    /* if x is infinite and the target agrees, the cost is 0, not NaN */
    shoal_tensor *cost = shoal_where(shoal_eq(u, zero), zero, shoal_mul(size, u));
    return shoal_add(cost, log1p_of(shoal_exp(shoal_neg(size))));
}

static shoal_tensor *bce_by_x(shoal_tensor *x, shoal_tensor *t)
{
    return shoal_sub(shoal_sigmoid(x), t);
}

static shoal_tensor *bce_by_target(shoal_tensor *x, shoal_tensor *t)
{
    (void)t;
    return shoal_neg(x);
}

static const loss bce = {bce_value, bce_by_x, bce_by_target, 0};
LOSS(bce_with_logits, bce)
