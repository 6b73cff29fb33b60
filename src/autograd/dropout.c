/* Dropout of elements and of channels. Uses the thread's random generator. in = x; a.d = p. */
#include "autograd/op.h"

#include "base/error.h"

static shoal_err dropout_shape(sh_call *c)
{
    const shoal_tensor *x = c->in[0];
    if (x->dtype != SHOAL_F32 && x->dtype != SHOAL_F64) {
        return sh_fail(SHOAL_ETYPE, "%s does not support %s; convert with shoal_to_dtype", c->op->name,
                       shoal_dtype_name(x->dtype));
    }
    return sh_shape_init(&c->shape[0], x->dtype, x->ndim, x->shape);
}

static bool is_probability(double p, const char *op)
{
    if (!(p >= 0 && p <= 1)) {
        (void)sh_fail(SHOAL_EINVAL, "%s: p is %g, not in [0, 1]", op, p);
        return false;
    }
    return true;
}

/* ---- dropout. Saved: the mask, one byte an element ---- */

static shoal_err dropout_forward(sh_call *c)
{
    const shoal_tensor *x = c->in[0];
    shoal_tensor *mask = sh_call_scratch(c, SHOAL_U8, x->ndim, x->shape);
    if (!mask) {
        return shoal_last_error();
    }
    sh_random_key key = sh_generator_take(sh_random_blocks(SHOAL_F32, x->count));
    return c->kernels->random->dropout(c->exec, key, x->dtype, sh_tensor_ptr(c->out[0]), sh_tensor_ptr(mask),
                                       sh_tensor_ptr(x), x->count, c->a.d[0]);
}

static shoal_err dropout_backward(sh_back *b)
{
    shoal_tensor *g = shoal_contiguous(sh_back_grad(b, 0));
    shoal_tensor *dx = g ? sh_scope_add(sh_tensor_new_like(g)) : NULL;
    if (!dx) {
        return shoal_last_error();
    }
    SH_TRY(sh_back_kernels(b)->random->dropout_backward(sh_back_exec(b), g->dtype, sh_tensor_ptr(dx), sh_tensor_ptr(g),
                                                        sh_tensor_ptr(sh_back_saved(b, 0)), g->count,
                                                        sh_back_attrs(b)->d[0]));
    return sh_back_give(b, 0, dx);
}

const sh_op sh_op_dropout = {"dropout", SH_OP_COMPUTES, dropout_shape, dropout_forward, dropout_backward};

shoal_tensor *shoal_dropout(shoal_tensor *x, double p)
{
    SH_NEED_TENSOR_OR_NULL(x);
    if (!x || !is_probability(p, "dropout") || p == 0) {
        return x && p == 0 ? x : NULL;
    }
    return sh_run(&sh_op_dropout, &(sh_call){.in = {shoal_contiguous(x)}, .in_count = 1, .a.d = {p}}, 1);
}

/* ---- dropout2d. Saved: the factor of each channel of each image, 0 or 1 / (1 - p); all are 0 if p is 1 ---- */

static shoal_err dropout2d_shape(sh_call *c)
{
    if (c->in[0]->ndim < 2) {
        sh_text text;
        return sh_fail(SHOAL_EINVAL, "dropout2d of %s: x must be [N, C, …]", sh_tensor_text(&text, c->in[0]));
    }
    return dropout_shape(c);
}

/* Returns [N, C] as a view [N, C, …] with repeated elements. */
static sh_view over_channels(const shoal_tensor *drop, const sh_view *like)
{
    sh_view v = *like;
    v.data = sh_tensor_ptr(drop);
    for (int d = 0; d < v.ndim; d++) {
        v.strides[d] = d == 0 ? drop->shape[1] : d == 1;
    }
    return v;
}

static shoal_err dropout2d_forward(sh_call *c)
{
    const shoal_tensor *x = c->in[0];
    double p = c->a.d[0];
    shoal_tensor *drop = sh_call_scratch(c, x->dtype, 2, x->shape);
    if (!drop) {
        return shoal_last_error();
    }
    sh_random_key key = sh_generator_take(sh_random_blocks(SHOAL_F32, drop->count));
    SH_TRY(
        c->kernels->random->bernoulli(c->exec, key, drop->dtype, sh_tensor_ptr(drop), drop->count, 1 - p, 1 / (1 - p)));
    sh_view out = sh_tensor_view(c->out[0]), in = sh_tensor_view(x), scale = over_channels(drop, &out);
    return c->kernels->elementwise->binary(c->exec, SH_BINARY_MUL, &out, &in, &scale);
}

static shoal_err dropout2d_backward(sh_back *b)
{
    const shoal_tensor *g = sh_back_grad(b, 0);
    shoal_tensor *dx = sh_scope_add(sh_tensor_new_like(g));
    if (!dx) {
        return shoal_last_error();
    }
    sh_view out = sh_tensor_view(dx), gv = sh_tensor_view(g), scale = over_channels(sh_back_saved(b, 0), &out);
    SH_TRY(sh_back_kernels(b)->elementwise->binary(sh_back_exec(b), SH_BINARY_MUL, &out, &gv, &scale));
    return sh_back_give(b, 0, dx);
}

const sh_op sh_op_dropout2d = {"dropout2d", SH_OP_COMPUTES, dropout2d_shape, dropout2d_forward, dropout2d_backward};

shoal_tensor *shoal_dropout2d(shoal_tensor *x, double p)
{
    SH_NEED_TENSOR_OR_NULL(x);
    if (!x || !is_probability(p, "dropout2d") || p == 0) {
        return x && p == 0 ? x : NULL;
    }
    return sh_run(&sh_op_dropout2d, &(sh_call){.in = {x}, .in_count = 1, .a.d = {p}}, 1);
}
