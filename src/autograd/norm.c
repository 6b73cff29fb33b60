/* Layer norm: in = x, weight, bias; a.i = the number of last dims; a.d = eps. Saved: x, weight, mean, 1 / deviation. */
#include "autograd/op.h"

#include "base/error.h"

#include <string.h>

static bool has_last_dims(const shoal_tensor *t, const shoal_tensor *x, int dims)
{
    return !t || (t->dtype == x->dtype && t->ndim == dims &&
                  memcmp(t->shape, x->shape + x->ndim - dims, sizeof t->shape[0] * (size_t)dims) == 0);
}

static sh_norm_shape norm_shape(const shoal_tensor *x, int64_t dims)
{
    sh_norm_shape s = {.dtype = x->dtype, .n = 1};
    for (int d = x->ndim - (int)dims; d < x->ndim; d++) {
        s.n *= x->shape[d];
    }
    s.rows = s.n > 0 ? x->count / s.n : 0;
    return s;
}

static shoal_err layer_norm_shape(sh_call *c)
{
    const shoal_tensor *x = c->in[0], *w = c->in[1], *b = c->in[2];
    int64_t dims = c->a.i[0];
    bool good = sh_dtype_is_wide_float(x->dtype) && dims >= 1 && dims <= x->ndim && has_last_dims(w, x, (int)dims) &&
                has_last_dims(b, x, (int)dims);
    if (!good) {
        sh_text tx, tw, tb;
        return sh_fail(SHOAL_EINVAL,
                       "layer_norm over the last %lld dims: x %s, weight %s, bias %s; weight and bias must have these "
                       "dims, and all must be f32 or all f64",
                       (long long)dims, sh_tensor_text(&tx, x), w ? sh_tensor_text(&tw, w) : "none",
                       b ? sh_tensor_text(&tb, b) : "none");
    }
    if (!(c->a.d[0] >= 0)) {
        return sh_fail(SHOAL_EINVAL, "layer_norm: eps is %g, it must not be negative or NaN", c->a.d[0]);
    }
    return sh_shape_init(&c->shape[0], x->dtype, x->ndim, x->shape);
}

static void *ptr_or_null(const shoal_tensor *t)
{
    return t ? sh_tensor_ptr(t) : NULL;
}

static shoal_err layer_norm_forward(sh_call *c)
{
    const shoal_tensor *x = c->in[0];
    sh_norm_shape shape = norm_shape(x, c->a.i[0]);
    shoal_tensor *mean = NULL, *rstd = NULL;
    if (c->record) {
        if (sh_call_save_in(c, 0) != SHOAL_OK || sh_call_save_in(c, 1) != SHOAL_OK ||
            !(mean = sh_call_scratch(c, x->dtype, SHOAL_SHAPE(shape.rows))) ||
            !(rstd = sh_call_scratch(c, x->dtype, SHOAL_SHAPE(shape.rows)))) {
            return shoal_last_error();
        }
    }
    if (x->count == 0) {
        return SHOAL_OK;
    }
    return c->kernels->norm->layer_norm(c->exec, &shape, c->a.d[0], sh_tensor_ptr(c->out[0]), ptr_or_null(mean),
                                        ptr_or_null(rstd), sh_tensor_ptr(x), ptr_or_null(c->in[1]),
                                        ptr_or_null(c->in[2]));
}

static shoal_err layer_norm_backward(sh_back *b)
{
    shoal_tensor *x = sh_back_saved(b, 0), *w = sh_back_saved(b, 1), *g = shoal_contiguous(sh_back_grad(b, 0));
    shoal_tensor *dx = NULL, *dw = NULL, *db = NULL;
    if (!g || (sh_back_needs(b, 0) && !(dx = sh_scope_add(sh_tensor_new_like(x)))) ||
        (sh_back_needs(b, 1) && !(dw = sh_back_target_zeroed(b, 1))) ||
        (sh_back_needs(b, 2) && !(db = sh_back_target_zeroed(b, 2)))) {
        return shoal_last_error();
    }
    if (db && db == dw) { /* one leaf is both weight and bias: the kernel's outputs may not overlap */
        db = sh_zeros_on(dw, dw->ndim, dw->shape);
    }
    sh_norm_shape shape = norm_shape(x, sh_back_attrs(b)->i[0]);
    if (x->count > 0) {
        SH_TRY(sh_back_kernels(b)->norm->layer_norm_backward(
            sh_back_exec(b), &shape, ptr_or_null(dx), ptr_or_null(dw), ptr_or_null(db), sh_tensor_ptr(g),
            sh_tensor_ptr(x), ptr_or_null(w), sh_tensor_ptr(sh_back_saved(b, 2)), sh_tensor_ptr(sh_back_saved(b, 3))));
    }
    if (dx) {
        SH_TRY(sh_back_give(b, 0, dx));
    }
    if (dw) {
        SH_TRY(sh_back_give(b, 1, dw));
    }
    return db ? sh_back_give(b, 2, db) : SHOAL_OK;
}

const sh_op sh_op_layer_norm = {"layer_norm", SH_OP_COMPUTES, layer_norm_shape, layer_norm_forward,
                                layer_norm_backward};

shoal_tensor *shoal_layer_norm(shoal_tensor *x, shoal_tensor *weight, shoal_tensor *bias, int normalized_dims,
                               double eps)
{
    SH_NEED_TENSOR_OR_NULL(x);
    if (!sh_contiguous_if_given(__func__, &weight) || !sh_contiguous_if_given(__func__, &bias)) {
        return NULL;
    }
    return sh_run(
        &sh_op_layer_norm,
        &(sh_call){.in = {shoal_contiguous(x), weight, bias}, .in_count = 3, .a.i = {normalized_dims}, .a.d = {eps}},
        1);
}
