/* Ops on pairs of elements, with broadcasting. sh_back_give sums the gradient of a repeated operand. */
#include "autograd/op.h"

#include "base/error.h"

static bool is_number(shoal_dtype dtype)
{
    return dtype == SHOAL_F32 || dtype == SHOAL_F64 || dtype == SHOAL_I64 || dtype == SHOAL_I32 || dtype == SHOAL_U8;
}

/* Returns 0 for bool, 1 for integers, 2 for floats. A higher category can hold the values of a lower one,
 * but not vice versa. */
static int category(const shoal_tensor *t)
{
    return t->dtype == SHOAL_B8 ? 0 : shoal_dtype_is_float(t->dtype) ? 2 : 1;
}

/* Finds the common dtype of a and b. If they differ, one must be 0-d, and takes the other's dtype if that loses
 * nothing: 1.5 does not become 1 to match integers. */
static shoal_err common_dtype(const sh_call *c, int i, int j, shoal_dtype *out)
{
    const shoal_tensor *a = c->in[i], *b = c->in[j];
    if (a->dtype == b->dtype || (b->ndim == 0 && category(b) <= category(a))) {
        *out = a->dtype;
    } else if (a->ndim == 0 && category(a) <= category(b)) {
        *out = b->dtype;
    } else {
        sh_text ta, tb;
        return sh_fail(SHOAL_ETYPE, "%s of %s and %s: convert one with shoal_to_dtype", c->op->name,
                       sh_tensor_text(&ta, a), sh_tensor_text(&tb, b));
    }
    return SHOAL_OK;
}

static shoal_err pair_shape(sh_call *c, bool floats_only, bool with_bool, bool gives_bool)
{
    shoal_dtype dtype = SHOAL_F32;
    SH_TRY(common_dtype(c, 0, 1, &dtype));
    bool known = floats_only ? sh_dtype_is_wide_float(dtype) : is_number(dtype) || (with_bool && dtype == SHOAL_B8);
    if (!known) {
        return sh_fail(SHOAL_ETYPE, "%s does not support %s; convert with shoal_to_dtype", c->op->name,
                       shoal_dtype_name(dtype));
    }
    shoal_err err = sh_shape_broadcast(&c->shape[0], c->op->name, c->in[0], c->in[1]);
    c->shape[0].dtype = gives_bool ? SHOAL_B8 : dtype;
    return err;
}

static shoal_err numbers_shape(sh_call *c)
{
    return pair_shape(c, false, false, false);
}

static shoal_err floats_shape(sh_call *c)
{
    return pair_shape(c, true, false, false);
}

static shoal_err ordered_shape(sh_call *c)
{
    return pair_shape(c, false, true, false);
}

static shoal_err compare_shape(sh_call *c)
{
    return pair_shape(c, false, true, true);
}

static shoal_err logic_shape(sh_call *c)
{
    if (c->in[0]->dtype != SHOAL_B8 || c->in[1]->dtype != SHOAL_B8) {
        return sh_fail(SHOAL_ETYPE, "%s supports bool, not %s and %s", c->op->name, shoal_dtype_name(c->in[0]->dtype),
                       shoal_dtype_name(c->in[1]->dtype));
    }
    return pair_shape(c, false, true, false);
}

/* Returns an operand in the common dtype, as the kernel needs it. The scope owns it if it was converted. */
static shoal_tensor *operand(shoal_tensor *t, shoal_dtype dtype)
{
    if ((shoal_dtype)t->dtype == dtype) {
        return t;
    }
    sh_shape s;
    shoal_tensor *same = sh_shape_init(&s, dtype, t->ndim, t->shape) == SHOAL_OK
                             ? sh_scope_add(sh_tensor_new(t->storage->device, &s))
                             : NULL;
    return same && sh_tensor_copy_data(same, t) == SHOAL_OK ? same : NULL;
}

static shoal_err binary(sh_call *c, sh_binary_op op)
{
    shoal_dtype dtype = SHOAL_F32;
    SH_TRY(common_dtype(c, 0, 1, &dtype));
    shoal_tensor *a = operand(c->in[0], dtype);
    shoal_tensor *b = a ? operand(c->in[1], dtype) : NULL;
    if (!b) {
        return shoal_last_error();
    }
    sh_view out = sh_tensor_view(c->out[0]);
    sh_view va = sh_tensor_view_as(a, out.ndim, out.shape), vb = sh_tensor_view_as(b, out.ndim, out.shape);
    return c->kernels->elementwise->binary(c->exec, op, &out, &va, &vb);
}

static shoal_err save_both(sh_call *c)
{
    SH_TRY(sh_call_save_in(c, 0));
    return sh_call_save_in(c, 1);
}

/* Saves the operands that backward of a product or quotient reads: the gradient of one needs the other. */
static shoal_err save_factors(sh_call *c, bool second)
{
    SH_TRY(sh_call_save_in_if(c, 0, c->need[1]));
    return sh_call_save_in_if(c, 1, second);
}

/* Returns a saved operand in the dtype of the gradient. */
static shoal_tensor *saved_as(sh_back *b, int i)
{
    return operand(sh_back_saved(b, i), sh_back_grad(b, 0)->dtype);
}

#define RUN2(name) sh_run(&sh_op_##name, &(sh_call){.in = {a, b}, .in_count = 2}, 2)
#define PUBLIC(name)                                                                                                   \
    shoal_tensor *shoal_##name(shoal_tensor *a, shoal_tensor *b)                                                       \
    {                                                                                                                  \
        return RUN2(name);                                                                                             \
    }
#define PUBLIC_IN_PLACE(name)                                                                                          \
    shoal_tensor *shoal_##name##_(shoal_tensor *a, shoal_tensor *b)                                                    \
    {                                                                                                                  \
        return sh_run_in_place(&sh_op_##name, &(sh_call){.in = {a, b}, .in_count = 2}, 2);                             \
    }

/* ---- add, sub, and a += scale · b ---- */

static shoal_err add_forward(sh_call *c)
{
    return binary(c, SH_BINARY_ADD);
}

static shoal_err add_backward(sh_back *b)
{
    SH_TRY(sh_back_give(b, 0, sh_back_grad(b, 0)));
    return sh_back_give(b, 1, sh_back_grad(b, 0));
}

const sh_op sh_op_add = {"add", SH_OP_COMPUTES, numbers_shape, add_forward, add_backward};
PUBLIC(add)
PUBLIC_IN_PLACE(add)

static shoal_err sub_forward(sh_call *c)
{
    return binary(c, SH_BINARY_SUB);
}

static shoal_err sub_backward(sh_back *b)
{
    SH_TRY(sh_back_give(b, 0, sh_back_grad(b, 0)));
    return sh_back_needs(b, 1) ? sh_back_give(b, 1, shoal_neg(sh_back_grad(b, 0))) : SHOAL_OK;
}

const sh_op sh_op_sub = {"sub", SH_OP_COMPUTES, numbers_shape, sub_forward, sub_backward};
PUBLIC(sub)
PUBLIC_IN_PLACE(sub)

static shoal_err add_scaled_shape(sh_call *c)
{
    const shoal_tensor *a = c->in[0];
    SH_TRY(sh_factor_check("add_scaled", a->dtype, c->a.d[0]));
    SH_TRY(numbers_shape(c));
    return sh_shape_init(&c->shape[0], a->dtype, c->shape[0].ndim, c->shape[0].shape);
}

static shoal_err add_scaled_forward(sh_call *c)
{
    shoal_tensor *b = operand(c->in[1], c->out[0]->dtype);
    if (!b) {
        return shoal_last_error();
    }
    sh_view out = sh_tensor_view(c->out[0]), vb = sh_tensor_view_as(b, out.ndim, out.shape);
    return c->kernels->elementwise->axpy(c->exec, &out, &vb, sh_scalar_float(c->a.d[0]));
}

static shoal_err add_scaled_backward(sh_back *b)
{
    SH_TRY(sh_back_give(b, 0, sh_back_grad(b, 0)));
    return sh_back_needs(b, 1) ? sh_back_give(b, 1, shoal_mul_scalar(sh_back_grad(b, 0), sh_back_attrs(b)->d[0]))
                               : SHOAL_OK;
}

const sh_op sh_op_add_scaled = {"add_scaled", SH_OP_COMPUTES, add_scaled_shape, add_scaled_forward,
                                add_scaled_backward};

shoal_tensor *shoal_add_scaled_(shoal_tensor *a, shoal_tensor *b, double scale)
{
    return sh_run_in_place(&sh_op_add_scaled, &(sh_call){.in = {a, b}, .in_count = 2, .a.d = {scale}}, 2);
}

/* ---- mul, div, pow ---- */

static shoal_err mul_forward(sh_call *c)
{
    SH_TRY(save_factors(c, c->need[0]));
    return binary(c, SH_BINARY_MUL);
}

static shoal_err mul_backward(sh_back *b)
{
    shoal_tensor *g = sh_back_grad(b, 0);
    if (sh_back_needs(b, 0)) {
        SH_TRY(sh_back_give(b, 0, shoal_mul(g, saved_as(b, 1))));
    }
    return sh_back_needs(b, 1) ? sh_back_give(b, 1, shoal_mul(g, saved_as(b, 0))) : SHOAL_OK;
}

const sh_op sh_op_mul = {"mul", SH_OP_COMPUTES, numbers_shape, mul_forward, mul_backward};
PUBLIC(mul)
PUBLIC_IN_PLACE(mul)

static shoal_err div_forward(sh_call *c)
{
    SH_TRY(save_factors(c, true));
    return binary(c, SH_BINARY_DIV);
}

/* d/da = g / b, d/db = -g · (a / b) / b, because b² could overflow. */
static shoal_err div_backward(sh_back *b)
{
    shoal_tensor *g = sh_back_grad(b, 0), *y = saved_as(b, 1);
    if (sh_back_needs(b, 0)) {
        SH_TRY(sh_back_give(b, 0, shoal_div(g, y)));
    }
    if (sh_back_needs(b, 1)) {
        shoal_tensor *quotient = shoal_div(saved_as(b, 0), y);
        SH_TRY(sh_back_give(b, 1, shoal_neg(shoal_mul(g, shoal_div(quotient, y)))));
    }
    return SHOAL_OK;
}

const sh_op sh_op_div = {"div", SH_OP_COMPUTES, numbers_shape, div_forward, div_backward};
PUBLIC(div)
PUBLIC_IN_PLACE(div)

static shoal_err pow_forward(sh_call *c)
{
    SH_TRY(save_both(c));
    SH_TRY(binary(c, SH_BINARY_POW));
    return sh_call_save_out(c, 0);
}

/* d/da = g · b · a^(b-1), 0 where b is 0; d/db = g · a^b · log a, 0 where a is 0 and b >= 0. */
static shoal_err pow_backward(sh_back *b)
{
    shoal_tensor *g = sh_back_grad(b, 0), *x = saved_as(b, 0), *y = saved_as(b, 1), *z = sh_back_saved(b, 2);
    shoal_tensor *zero = sh_op_scalar_on(g, 0);
    if (sh_back_needs(b, 0)) {
        shoal_tensor *dx = shoal_mul(g, shoal_mul(y, shoal_pow(x, shoal_add_scalar(y, -1))));
        SH_TRY(sh_back_give(b, 0, shoal_where(shoal_eq(y, zero), zero, dx)));
    }
    if (sh_back_needs(b, 1)) {
        shoal_tensor *flat = shoal_logical_and(shoal_eq(x, zero), shoal_ge(y, zero));
        SH_TRY(sh_back_give(b, 1, shoal_where(flat, zero, shoal_mul(g, shoal_mul(z, shoal_log(x))))));
    }
    return SHOAL_OK;
}

const sh_op sh_op_pow = {"pow", SH_OP_COMPUTES, floats_shape, pow_forward, pow_backward};
PUBLIC(pow)

/* ---- maximum, minimum: if both are equal, each gets half; if one is NaN, both get all of it, as in PyTorch ---- */

static shoal_err extreme_backward(sh_back *b, shoal_tensor *(*wins)(shoal_tensor *, shoal_tensor *))
{
    shoal_tensor *g = sh_back_grad(b, 0), *x = saved_as(b, 0), *y = saved_as(b, 1);
    shoal_tensor *zero = sh_op_scalar_on(g, 0);
    shoal_tensor *shared = shoal_where(shoal_eq(x, y), shoal_mul_scalar(g, 0.5), g);
    if (sh_back_needs(b, 0)) {
        SH_TRY(sh_back_give(b, 0, shoal_where(wins(y, x), zero, shared)));
    }
    return sh_back_needs(b, 1) ? sh_back_give(b, 1, shoal_where(wins(x, y), zero, shared)) : SHOAL_OK;
}

static shoal_err maximum_forward(sh_call *c)
{
    SH_TRY(save_both(c));
    return binary(c, SH_BINARY_MAX);
}

static shoal_err maximum_backward(sh_back *b)
{
    return extreme_backward(b, shoal_gt);
}

const sh_op sh_op_maximum = {"maximum", SH_OP_COMPUTES, ordered_shape, maximum_forward, maximum_backward};
PUBLIC(maximum)

static shoal_err minimum_forward(sh_call *c)
{
    SH_TRY(save_both(c));
    return binary(c, SH_BINARY_MIN);
}

static shoal_err minimum_backward(sh_back *b)
{
    return extreme_backward(b, shoal_lt);
}

const sh_op sh_op_minimum = {"minimum", SH_OP_COMPUTES, ordered_shape, minimum_forward, minimum_backward};
PUBLIC(minimum)

/* ---- comparisons and logic: no gradient ---- */

#define PLAIN(name, NAME, rule)                                                                                        \
    static shoal_err name##_forward(sh_call *c)                                                                        \
    {                                                                                                                  \
        return binary(c, SH_BINARY_##NAME);                                                                            \
    }                                                                                                                  \
    const sh_op sh_op_##name = {#name, SH_OP_COMPUTES, rule, name##_forward, NULL};                                    \
    PUBLIC(name)

PLAIN(eq, EQ, compare_shape)
PLAIN(ne, NE, compare_shape)
PLAIN(lt, LT, compare_shape)
PLAIN(le, LE, compare_shape)
PLAIN(gt, GT, compare_shape)
PLAIN(ge, GE, compare_shape)
PLAIN(logical_and, AND, logic_shape)
PLAIN(logical_or, OR, logic_shape)

/* ---- where: in[0] chooses ---- */

static shoal_err where_shape(sh_call *c)
{
    shoal_dtype dtype = SHOAL_F32;
    if (c->in[0]->dtype != SHOAL_B8) {
        return sh_fail(SHOAL_ETYPE, "where: the condition is %s, it must be bool", shoal_dtype_name(c->in[0]->dtype));
    }
    SH_TRY(common_dtype(c, 1, 2, &dtype));
    sh_shape both;
    SH_TRY(sh_shape_broadcast(&both, c->op->name, c->in[1], c->in[2]));
    shoal_tensor values = {.ndim = (int8_t)both.ndim};
    for (int d = 0; d < both.ndim; d++) {
        values.shape[d] = both.shape[d];
    }
    shoal_err err = sh_shape_broadcast(&c->shape[0], c->op->name, c->in[0], &values);
    c->shape[0].dtype = dtype;
    return err;
}

static shoal_err where_forward(sh_call *c)
{
    SH_TRY(sh_call_save_in(c, 0));
    shoal_tensor *a = operand(c->in[1], c->out[0]->dtype);
    shoal_tensor *b = a ? operand(c->in[2], c->out[0]->dtype) : NULL;
    if (!b) {
        return shoal_last_error();
    }
    sh_view out = sh_tensor_view(c->out[0]);
    sh_view condition = sh_tensor_view_as(c->in[0], out.ndim, out.shape);
    sh_view va = sh_tensor_view_as(a, out.ndim, out.shape), vb = sh_tensor_view_as(b, out.ndim, out.shape);
    return c->kernels->elementwise->where(c->exec, &out, &condition, &va, &vb);
}

static shoal_err where_backward(sh_back *b)
{
    shoal_tensor *g = sh_back_grad(b, 0), *condition = sh_back_saved(b, 0);
    shoal_tensor *zero = sh_op_scalar_on(g, 0);
    if (sh_back_needs(b, 1)) {
        SH_TRY(sh_back_give(b, 1, shoal_where(condition, g, zero)));
    }
    return sh_back_needs(b, 2) ? sh_back_give(b, 2, shoal_where(condition, zero, g)) : SHOAL_OK;
}

const sh_op sh_op_where = {"where", SH_OP_COMPUTES, where_shape, where_forward, where_backward};

shoal_tensor *shoal_where(shoal_tensor *condition, shoal_tensor *a, shoal_tensor *b)
{
    return sh_run(&sh_op_where, &(sh_call){.in = {condition, a, b}, .in_count = 3}, 3);
}

shoal_tensor *shoal_masked_fill(shoal_tensor *a, shoal_tensor *mask, double value)
{
    SH_NEED_TENSOR_OR_NULL(a);
    SH_NEED_TENSOR_OR_NULL(mask);
    if (!a || !mask || sh_number_check("masked_fill", a->dtype, value) != SHOAL_OK) {
        return NULL;
    }
    return shoal_where(mask, sh_op_scalar_on(a, value), a);
}
