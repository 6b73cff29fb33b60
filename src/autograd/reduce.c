/* Reductions over one dim, or over all: a.i = dim (SHOAL_ALL_DIMS), keep. */
#include "autograd/op.h"

#include "base/error.h"

/* Returns the output's shape with every reduced dim kept as 1, as kernels need it. */
static void kept_shape(const shoal_tensor *t, int64_t dim, int64_t *shape)
{
    for (int d = 0; d < t->ndim; d++) {
        shape[d] = dim == SHOAL_ALL_DIMS || d == dim ? 1 : t->shape[d];
    }
}

static shoal_err reduced_shape(sh_call *c, shoal_dtype dtype)
{
    const shoal_tensor *t = c->in[0];
    bool keep = c->a.i[1] != 0;
    int64_t shape[SHOAL_MAX_DIMS];
    int ndim = 0;
    if (c->a.i[0] != SHOAL_ALL_DIMS) {
        int dim = (int)c->a.i[0];
        SH_TRY(sh_dim(&dim, t->ndim, c->op->name));
        c->a.i[0] = dim;
    }
    for (int d = 0; d < t->ndim; d++) {
        bool reduced = c->a.i[0] == SHOAL_ALL_DIMS || d == c->a.i[0];
        if (!reduced || keep) {
            shape[ndim++] = reduced ? 1 : t->shape[d];
        }
    }
    return sh_shape_init(&c->shape[0], dtype, ndim, shape);
}

static shoal_err refuse(const sh_call *c)
{
    return sh_fail(SHOAL_ETYPE, "%s does not support %s; convert with shoal_to_dtype", c->op->name,
                   shoal_dtype_name(c->in[0]->dtype));
}

static shoal_err sum_shape(sh_call *c)
{
    const shoal_tensor *t = c->in[0];
    bool half = t->dtype == SHOAL_BF16 || t->dtype == SHOAL_F16;
    return half ? refuse(c) : reduced_shape(c, sh_dtype_is_wide_float(t->dtype) ? (shoal_dtype)t->dtype : SHOAL_I64);
}

static shoal_err float_shape(sh_call *c)
{
    return sh_dtype_is_wide_float(c->in[0]->dtype) ? reduced_shape(c, c->in[0]->dtype) : refuse(c);
}

static shoal_err same_shape(sh_call *c)
{
    const shoal_tensor *t = c->in[0];
    return t->dtype == SHOAL_BF16 || t->dtype == SHOAL_F16 ? refuse(c) : reduced_shape(c, t->dtype);
}

static shoal_err index_shape(sh_call *c)
{
    const shoal_tensor *t = c->in[0];
    return t->dtype == SHOAL_BF16 || t->dtype == SHOAL_F16 ? refuse(c) : reduced_shape(c, SHOAL_I64);
}

static shoal_err bool_shape(sh_call *c)
{
    const shoal_tensor *t = c->in[0];
    return t->dtype == SHOAL_BF16 || t->dtype == SHOAL_F16 ? refuse(c) : reduced_shape(c, SHOAL_B8);
}

/* Returns the output as the kernel needs it: the same elements, with the reduced dims as 1. */
static sh_view kept_view(const sh_call *c)
{
    sh_view v = {.data = sh_tensor_ptr(c->out[0]), .ndim = c->in[0]->ndim, .dtype = c->out[0]->dtype};
    kept_shape(c->in[0], c->a.i[0], v.shape);
    int64_t next = 1;
    for (int d = v.ndim; d-- > 0;) {
        v.strides[d] = next;
        next *= v.shape[d];
    }
    return v;
}

static shoal_err reduce(sh_call *c, sh_reduce_op op)
{
    sh_view out = kept_view(c), in = sh_tensor_view(c->in[0]);
    return c->kernels->reduce->reduce(c->exec, op, &out, &in);
}

/* Returns a reduced tensor with its reduced dims as 1 again, so that it broadcasts against the input. */
static shoal_tensor *unreduced(sh_back *b, shoal_tensor *t)
{
    sh_shape s;
    sh_back_shape(b, 0, &s);
    int64_t dim = sh_back_attrs(b)->i[0];
    for (int d = 0; d < s.ndim; d++) {
        s.shape[d] = dim == SHOAL_ALL_DIMS || d == dim ? 1 : s.shape[d];
    }
    return shoal_reshape(t, s.ndim, s.shape);
}

static shoal_tensor *expand_to_input(sh_back *b, shoal_tensor *g)
{
    sh_shape s;
    sh_back_shape(b, 0, &s);
    return shoal_expand(unreduced(b, g), s.ndim, s.shape);
}

#define PUBLIC(name)                                                                                                   \
    shoal_tensor *shoal_##name(shoal_tensor *a, int dim, bool keep)                                                    \
    {                                                                                                                  \
        return sh_run(&sh_op_##name, &(sh_call){.in = {a}, .in_count = 1, .a.i = {dim, keep}}, 1);                     \
    }

/* ---- sum, mean ---- */

static shoal_err sum_forward(sh_call *c)
{
    return reduce(c, SH_REDUCE_SUM);
}

static shoal_err sum_backward(sh_back *b)
{
    return sh_back_give(b, 0, expand_to_input(b, sh_back_grad(b, 0)));
}

const sh_op sh_op_sum = {"sum", SH_OP_COMPUTES, sum_shape, sum_forward, sum_backward};
PUBLIC(sum)

static shoal_err mean_forward(sh_call *c)
{
    return reduce(c, SH_REDUCE_MEAN);
}

static shoal_err mean_backward(sh_back *b)
{
    sh_shape s;
    sh_back_shape(b, 0, &s);
    int64_t dim = sh_back_attrs(b)->i[0];
    double n = dim == SHOAL_ALL_DIMS ? (double)sh_shape_count(&s) : s.ndim > 0 ? (double)s.shape[dim] : 1;
    return sh_back_give(b, 0, expand_to_input(b, shoal_mul_scalar(sh_back_grad(b, 0), 1 / n)));
}

const sh_op sh_op_mean = {"mean", SH_OP_COMPUTES, float_shape, mean_forward, mean_backward};
PUBLIC(mean)

/* ---- prod: the gradient is g · prod / x, or, if x has zeros, g · the product of the other elements ---- */

static shoal_err prod_forward(sh_call *c)
{
    SH_TRY(sh_call_save_in(c, 0));
    return reduce(c, SH_REDUCE_PROD);
}

/* Replacing zeros by ones gives the product p of the other elements. If a row has one zero, only the zero's own
 * gradient is p; if it has more, all gradients are 0. */
static shoal_err prod_backward(sh_back *b)
{
    shoal_tensor *x = sh_back_saved(b, 0), *g = expand_to_input(b, sh_back_grad(b, 0));
    int dim = (int)sh_back_attrs(b)->i[0];
    shoal_tensor *zero = sh_op_scalar_on(x, 0);
    shoal_tensor *is_zero = shoal_eq(x, zero);
    shoal_tensor *filled = shoal_masked_fill(x, is_zero, 1);
    shoal_tensor *others = unreduced(b, shoal_prod(filled, dim, false));
    shoal_tensor *zeros = unreduced(b, shoal_to_dtype(shoal_sum(is_zero, dim, false), x->dtype));
    shoal_tensor *own = shoal_to_dtype(is_zero, x->dtype);
    /* the number of zeros among the other elements */
    shoal_tensor *alive = shoal_eq(shoal_sub(zeros, own), zero);
    return sh_back_give(b, 0, shoal_where(alive, shoal_mul(g, shoal_div(others, filled)), zero));
}

const sh_op sh_op_prod = {"prod", SH_OP_COMPUTES, sum_shape, prod_forward, prod_backward};
PUBLIC(prod)

/* ---- max, min. As in PyTorch: along a dim the first winner gets the gradient, over all dims equal winners share it
 * ---- */

static shoal_err extreme(sh_call *c, sh_reduce_op op)
{
    SH_TRY(sh_call_save_in(c, 0));
    SH_TRY(reduce(c, op));
    return sh_call_save_out(c, 0);
}

static shoal_err extreme_backward(sh_back *b, shoal_tensor *(*place)(shoal_tensor *, int, bool))
{
    shoal_tensor *x = sh_back_saved(b, 0), *y = sh_back_saved(b, 1), *g = sh_back_grad(b, 0);
    int64_t dim = sh_back_attrs(b)->i[0];
    if (dim == SHOAL_ALL_DIMS) {
        /* NaN wins, but is not equal to itself */
        shoal_tensor *places = shoal_logical_or(shoal_eq(x, y), shoal_ne(x, x));
        shoal_tensor *winners = shoal_to_dtype(places, x->dtype);
        return sh_back_give(b, 0, shoal_mul(winners, shoal_div(g, shoal_sum(winners, SHOAL_ALL_DIMS, false))));
    }
    if (x->ndim == 0) {
        return sh_back_give(b, 0, g);
    }
    shoal_tensor *all = sh_zeros_on(x, x->ndim, x->shape);
    return sh_back_give(b, 0, shoal_scatter_add(all, (int)dim, place(x, (int)dim, true), unreduced(b, g)));
}

static shoal_err max_forward(sh_call *c)
{
    return extreme(c, SH_REDUCE_MAX);
}

static shoal_err max_backward(sh_back *b)
{
    return extreme_backward(b, shoal_argmax);
}

const sh_op sh_op_max = {"max", SH_OP_COMPUTES, same_shape, max_forward, max_backward};
PUBLIC(max)

static shoal_err min_forward(sh_call *c)
{
    return extreme(c, SH_REDUCE_MIN);
}

static shoal_err min_backward(sh_back *b)
{
    return extreme_backward(b, shoal_argmin);
}

const sh_op sh_op_min = {"min", SH_OP_COMPUTES, same_shape, min_forward, min_backward};
PUBLIC(min)

/* ---- ops without a gradient ---- */

#define PLAIN(name, NAME, rule)                                                                                        \
    static shoal_err name##_forward(sh_call *c)                                                                        \
    {                                                                                                                  \
        return reduce(c, SH_REDUCE_##NAME);                                                                            \
    }                                                                                                                  \
    const sh_op sh_op_##name = {#name, SH_OP_COMPUTES, rule, name##_forward, NULL};                                    \
    PUBLIC(name)

PLAIN(argmax, ARGMAX, index_shape)
PLAIN(argmin, ARGMIN, index_shape)
PLAIN(any, ANY, bool_shape)
PLAIN(all, ALL, bool_shape)

/* ---- logsumexp: the gradient is g · exp(x - y) ---- */

static shoal_err logsumexp_forward(sh_call *c)
{
    SH_TRY(sh_call_save_in(c, 0));
    sh_view out = kept_view(c), in = sh_tensor_view(c->in[0]);
    SH_TRY(c->kernels->reduce->logsumexp(c->exec, &out, &in));
    return sh_call_save_out(c, 0);
}

static shoal_err logsumexp_backward(sh_back *b)
{
    shoal_tensor *y = unreduced(b, sh_back_saved(b, 1));
    return sh_back_give(
        b, 0, shoal_mul(expand_to_input(b, sh_back_grad(b, 0)), shoal_exp(shoal_sub(sh_back_saved(b, 0), y))));
}

const sh_op sh_op_logsumexp = {"logsumexp", SH_OP_COMPUTES, float_shape, logsumexp_forward, logsumexp_backward};
PUBLIC(logsumexp)

/* ---- norm: the root of the sum of squares; the gradient is g · x / norm, or 0 if the norm is 0 ---- */

static shoal_err norm_forward(sh_call *c)
{
    SH_TRY(sh_call_save_in(c, 0));
    SH_TRY(reduce(c, SH_REDUCE_SUMSQ));
    sh_view out = sh_tensor_view(c->out[0]);
    SH_TRY(c->kernels->elementwise->unary(c->exec, SH_UNARY_SQRT, &out, &out));
    return sh_call_save_out(c, 0);
}

static shoal_err norm_backward(sh_back *b)
{
    shoal_tensor *x = sh_back_saved(b, 0), *y = sh_back_saved(b, 1);
    shoal_tensor *zero = sh_op_scalar_on(x, 0);
    shoal_tensor *scale = shoal_where(shoal_eq(y, zero), zero, shoal_div(sh_back_grad(b, 0), y));
    return sh_back_give(b, 0, shoal_mul(x, scale));
}

const sh_op sh_op_norm = {"norm", SH_OP_COMPUTES, float_shape, norm_forward, norm_backward};

shoal_tensor *shoal_norm(shoal_tensor *a)
{
    return sh_run(&sh_op_norm, &(sh_call){.in = {a}, .in_count = 1, .a.i = {SHOAL_ALL_DIMS}}, 1);
}
