/* Softmax along a dim, and the losses for classes. Kernels work on contiguous [outer, n, inner]. */
#include "autograd/op.h"

#include "base/error.h"

#include <string.h>

static sh_softmax_shape split_at_dim(const shoal_tensor *x, int64_t dim)
{
    sh_softmax_shape s = {.dtype = x->dtype, .outer = 1, .n = x->ndim > 0 ? x->shape[dim] : 1, .inner = 1};
    for (int d = 0; d < x->ndim; d++) {
        s.outer *= d < dim ? x->shape[d] : 1;
        s.inner *= d > dim ? x->shape[d] : 1;
    }
    return s;
}

/* ---- softmax, log_softmax: in = x; a.i = dim; saved: y ---- */

static shoal_err softmax_shape(sh_call *c)
{
    const shoal_tensor *x = c->in[0];
    int dim = (int)c->a.i[0];
    if (!sh_dtype_is_wide_float(x->dtype)) {
        return sh_fail(SHOAL_ETYPE, "%s does not support %s; convert with shoal_to_dtype", c->op->name,
                       shoal_dtype_name(x->dtype));
    }
    SH_TRY(sh_dim(&dim, x->ndim, c->op->name));
    c->a.i[0] = dim;
    return sh_shape_init(&c->shape[0], x->dtype, x->ndim, x->shape);
}

static shoal_err forward(sh_call *c, sh_softmax_op op)
{
    sh_softmax_shape s = split_at_dim(c->in[0], c->a.i[0]);
    SH_TRY(sh_call_save_out(c, 0));
    return c->out[0]->count > 0
               ? c->kernels->softmax->forward(c->exec, op, &s, sh_tensor_ptr(c->out[0]), sh_tensor_ptr(c->in[0]))
               : SHOAL_OK;
}

static shoal_err backward(sh_back *b, sh_softmax_op op)
{
    shoal_tensor *y = sh_back_saved(b, 0), *g = shoal_contiguous(sh_back_grad(b, 0));
    shoal_tensor *dx = g ? sh_scope_add(sh_tensor_new_like(y)) : NULL;
    if (!dx) {
        return shoal_last_error();
    }
    sh_softmax_shape s = split_at_dim(y, sh_back_attrs(b)->i[0]);
    SH_TRY(dx->count > 0 ? sh_back_kernels(b)->softmax->backward(sh_back_exec(b), op, &s, sh_tensor_ptr(dx),
                                                                 sh_tensor_ptr(g), sh_tensor_ptr(y))
                         : SHOAL_OK);
    return sh_back_give(b, 0, dx);
}

#define SOFTMAX(name, NAME)                                                                                            \
    static shoal_err name##_forward(sh_call *c)                                                                        \
    {                                                                                                                  \
        return forward(c, NAME);                                                                                       \
    }                                                                                                                  \
    static shoal_err name##_backward(sh_back *b)                                                                       \
    {                                                                                                                  \
        return backward(b, NAME);                                                                                      \
    }                                                                                                                  \
    const sh_op sh_op_##name = {#name, SH_OP_COMPUTES, softmax_shape, name##_forward, name##_backward};                \
    shoal_tensor *shoal_##name(shoal_tensor *a, int dim)                                                               \
    {                                                                                                                  \
        SH_NEED_TENSOR_OR_NULL(a);                                                                                     \
        return sh_run(&sh_op_##name, &(sh_call){.in = {shoal_contiguous(a)}, .in_count = 1, .a.i = {dim}}, 1);         \
    }

SOFTMAX(softmax, SH_SOFTMAX)
SOFTMAX(log_softmax, SH_LOG_SOFTMAX)

/* ---- nll_loss, cross_entropy: in = x [N, C, …], target [N, …], weight [C]; a.i = reduction ---- */

#define IGNORED (-100)

static shoal_err refuse_classes(const sh_call *c)
{
    sh_text tx, tt, tw;
    return sh_fail(SHOAL_EINVAL,
                   "%s: x %s, target %s, weight %s; x must be [N, C, …] of floats, the target [N, …], the weight [C]",
                   c->op->name, sh_tensor_text(&tx, c->in[0]), sh_tensor_text(&tt, c->in[1]),
                   c->in[2] ? sh_tensor_text(&tw, c->in[2]) : "none");
}

static shoal_err classes_shape(sh_call *c)
{
    const shoal_tensor *x = c->in[0], *target = c->in[1], *weight = c->in[2];
    bool good = sh_dtype_is_wide_float(x->dtype) && x->ndim >= 2 && target->ndim == x->ndim - 1 &&
                (!weight || (weight->dtype == x->dtype && weight->ndim == 1 && weight->shape[0] == x->shape[1]));
    for (int d = 0; good && d < target->ndim; d++) {
        good = target->shape[d] == x->shape[d > 0 ? d + 1 : 0];
    }
    if (!good) {
        return refuse_classes(c);
    }
    switch ((shoal_reduction)c->a.i[0]) {
    case SHOAL_REDUCTION_MEAN:
    case SHOAL_REDUCTION_SUM: return sh_shape_init(&c->shape[0], x->dtype, SHOAL_SCALAR);
    case SHOAL_REDUCTION_NONE: return sh_shape_init(&c->shape[0], x->dtype, target->ndim, target->shape);
    }
    return sh_fail(SHOAL_EINVAL, "%s: unknown reduction %lld", c->op->name, (long long)c->a.i[0]);
}

static sh_nll_args nll_args(const sh_softmax_shape *shape, int64_t reduction, const shoal_tensor *target,
                            const shoal_tensor *weight)
{
    return (sh_nll_args){
        .shape = *shape,
        .reduction = (shoal_reduction)reduction,
        .target = sh_tensor_ptr(target),
        .ignore_index = IGNORED,
        .weight = weight ? sh_tensor_ptr(weight) : NULL,
    };
}

/* Saves the target, the weight and the sum of weights; cross_entropy also saves the log-probabilities. */
static shoal_err classes_forward(sh_call *c, bool from_scores)
{
    const shoal_tensor *x = c->in[0];
    SH_TRY(sh_call_save_in(c, 1));
    SH_TRY(sh_call_save_in(c, 2));
    shoal_tensor *total = sh_call_scratch(c, x->dtype, SHOAL_SCALAR);
    if (!total) {
        return shoal_last_error();
    }
    sh_softmax_shape shape = split_at_dim(x, 1);
    sh_nll_args args = nll_args(&shape, c->a.i[0], c->in[1], c->in[2]);
    if (!from_scores) {
        return c->kernels->softmax->nll(c->exec, &args, sh_tensor_ptr(c->out[0]), sh_tensor_ptr(total),
                                        sh_tensor_ptr(x));
    }
    shoal_tensor *log_probs = sh_call_scratch(c, x->dtype, x->ndim, x->shape);
    return log_probs
               ? c->kernels->softmax->cross_entropy(c->exec, &args, sh_tensor_ptr(c->out[0]), sh_tensor_ptr(total),
                                                    sh_tensor_ptr(log_probs), sh_tensor_ptr(x))
               : shoal_last_error();
}

static shoal_err classes_backward(sh_back *b, bool from_scores)
{
    sh_shape s;
    sh_back_shape(b, 0, &s);
    SH_TRY(sh_shape_init(&s, s.dtype, s.ndim, s.shape));
    shoal_tensor *g = shoal_contiguous(sh_back_grad(b, 0));
    shoal_tensor *dx = g ? sh_scope_add(sh_tensor_new(sh_tensor_device_of(g), &s)) : NULL;
    if (!dx) {
        return shoal_last_error();
    }
    const void *total = sh_tensor_ptr(sh_back_saved(b, 2));
    sh_softmax_shape shape = split_at_dim(dx, 1);
    sh_nll_args args = nll_args(&shape, sh_back_attrs(b)->i[0], sh_back_saved(b, 0), sh_back_saved(b, 1));
    const sh_softmax_kernels *k = sh_back_kernels(b)->softmax;
    SH_TRY(from_scores ? k->cross_entropy_backward(sh_back_exec(b), &args, sh_tensor_ptr(dx), sh_tensor_ptr(g), total,
                                                   sh_tensor_ptr(sh_back_saved(b, 3)))
                       : k->nll_backward(sh_back_exec(b), &args, sh_tensor_ptr(dx), sh_tensor_ptr(g), total));
    return sh_back_give(b, 0, dx);
}

static shoal_err nll_loss_forward(sh_call *c)
{
    return classes_forward(c, false);
}

static shoal_err nll_loss_backward(sh_back *b)
{
    return classes_backward(b, false);
}

const sh_op sh_op_nll_loss = {"nll_loss", SH_OP_COMPUTES, classes_shape, nll_loss_forward, nll_loss_backward};

static shoal_err cross_entropy_forward(sh_call *c)
{
    return classes_forward(c, true);
}

static shoal_err cross_entropy_backward(sh_back *b)
{
    return classes_backward(b, true);
}

const sh_op sh_op_cross_entropy = {"cross_entropy", SH_OP_COMPUTES, classes_shape, cross_entropy_forward,
                                   cross_entropy_backward};

/* weight is contiguous. */
static shoal_tensor *run_classes(const sh_op *op, shoal_tensor *x, shoal_tensor *target, shoal_tensor *weight,
                                 shoal_reduction reduction)
{
    return sh_run(op,
                  &(sh_call){.in = {shoal_contiguous(x), sh_as_index(target, op->name), weight},
                             .in_count = 3,
                             .a.i = {reduction}},
                  2);
}

shoal_tensor *shoal_nll_loss(shoal_tensor *x, shoal_tensor *target)
{
    SH_NEED_TENSOR_OR_NULL(x);
    SH_NEED_TENSOR_OR_NULL(target);
    return run_classes(&sh_op_nll_loss, x, target, NULL, SHOAL_REDUCTION_MEAN);
}

shoal_tensor *shoal_nll_loss_with(shoal_tensor *x, shoal_tensor *target, shoal_tensor *weight,
                                  shoal_reduction reduction)
{
    SH_NEED_TENSOR_OR_NULL(x);
    SH_NEED_TENSOR_OR_NULL(target);
    return sh_contiguous_if_given(__func__, &weight) ? run_classes(&sh_op_nll_loss, x, target, weight, reduction)
                                                     : NULL;
}

shoal_tensor *shoal_cross_entropy(shoal_tensor *x, shoal_tensor *target)
{
    SH_NEED_TENSOR_OR_NULL(x);
    SH_NEED_TENSOR_OR_NULL(target);
    return run_classes(&sh_op_cross_entropy, x, target, NULL, SHOAL_REDUCTION_MEAN);
}

shoal_tensor *shoal_cross_entropy_with(shoal_tensor *x, shoal_tensor *target, shoal_reduction reduction)
{
    SH_NEED_TENSOR_OR_NULL(x);
    SH_NEED_TENSOR_OR_NULL(target);
    return run_classes(&sh_op_cross_entropy, x, target, NULL, reduction);
}
