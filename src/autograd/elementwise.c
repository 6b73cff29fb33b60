/* Elementwise ops on one tensor, or on one tensor and a number. */
#include "autograd/op.h"

#include "base/error.h"

#include <math.h>

static shoal_err same_shape(sh_call *c)
{
    const shoal_tensor *x = c->in[0];
    return sh_shape_init(&c->shape[0], x->dtype, x->ndim, x->shape);
}

static shoal_err check_arithmetic(const sh_call *c, bool floats_only)
{
    shoal_dtype dtype = c->in[0]->dtype;
    bool is_float = sh_dtype_is_wide_float(dtype);
    if (is_float || (!floats_only && (dtype == SHOAL_I64 || dtype == SHOAL_I32 || dtype == SHOAL_U8))) {
        return SHOAL_OK;
    }
    return sh_fail(SHOAL_ETYPE, "%s does not support %s; convert with shoal_to_dtype", c->op->name,
                   shoal_dtype_name(dtype));
}

static shoal_err numbers_shape(sh_call *c)
{
    SH_TRY(check_arithmetic(c, false));
    return same_shape(c);
}

static shoal_err floats_shape(sh_call *c)
{
    SH_TRY(check_arithmetic(c, true));
    return same_shape(c);
}

static shoal_err unary(sh_call *c, sh_unary_op op)
{
    sh_view out = sh_tensor_view(c->out[0]), x = sh_tensor_view(c->in[0]);
    return c->kernels->elementwise->unary(c->exec, op, &out, &x);
}

static shoal_err with_number(sh_call *c, sh_scalar_op op, double a, double b)
{
    sh_view out = sh_tensor_view(c->out[0]), x = sh_tensor_view(c->in[0]);
    return c->kernels->elementwise->scalar(c->exec, op, &out, &x, sh_scalar_float(a), sh_scalar_float(b));
}

/* Gives in[0] the gradient g · f'(saved), computed by a kernel. */
static shoal_err chain(sh_back *b, sh_grad_op op, double p, double q)
{
    shoal_tensor *g = sh_back_grad(b, 0);
    shoal_tensor *dx = sh_scope_add(sh_tensor_new_like(g));
    if (!dx) {
        return shoal_last_error();
    }
    sh_view out = sh_tensor_view(dx), gv = sh_tensor_view(g), saved = sh_tensor_view(sh_back_saved(b, 0));
    SH_TRY(sh_back_kernels(b)->elementwise->grad(sh_back_exec(b), op, &out, &gv, &saved, p, q));
    return sh_back_give(b, 0, dx);
}

/* An op whose gradient is g · f'(x) or g · f'(y): SAVE is in or out. */
#define CHAINED(name, NAME, rule, SAVE)                                                                                \
    static shoal_err name##_forward(sh_call *c)                                                                        \
    {                                                                                                                  \
        SH_TRY(sh_call_save_##SAVE(c, 0));                                                                             \
        return unary(c, SH_UNARY_##NAME);                                                                              \
    }                                                                                                                  \
    static shoal_err name##_backward(sh_back *b)                                                                       \
    {                                                                                                                  \
        return chain(b, SH_GRAD_##NAME, 0, 0);                                                                         \
    }                                                                                                                  \
    const sh_op sh_op_##name = {#name, SH_OP_COMPUTES, rule, name##_forward, name##_backward};                         \
    shoal_tensor *shoal_##name(shoal_tensor *a)                                                                        \
    {                                                                                                                  \
        return sh_run(&sh_op_##name, &(sh_call){.in = {a}, .in_count = 1}, 1);                                         \
    }

CHAINED(abs, ABS, numbers_shape, in)
CHAINED(square, SQUARE, numbers_shape, in)
CHAINED(sqrt, SQRT, floats_shape, out)
CHAINED(rsqrt, RSQRT, floats_shape, out)
CHAINED(reciprocal, RECIPROCAL, floats_shape, out)
CHAINED(exp, EXP, floats_shape, out)
CHAINED(log, LOG, floats_shape, in)
CHAINED(sin, SIN, floats_shape, in)
CHAINED(cos, COS, floats_shape, in)
CHAINED(sigmoid, SIGMOID, floats_shape, out)
CHAINED(tanh, TANH, floats_shape, out)
CHAINED(relu, RELU, numbers_shape, out)
CHAINED(gelu, GELU, floats_shape, in)

shoal_tensor *shoal_relu_(shoal_tensor *a)
{
    return sh_run_in_place(&sh_op_relu, &(sh_call){.in = {a}, .in_count = 1}, 1);
}

/* ---- neg, sign, not ---- */

static shoal_err neg_forward(sh_call *c)
{
    return unary(c, SH_UNARY_NEG);
}

static shoal_err neg_backward(sh_back *b)
{
    return sh_back_give(b, 0, shoal_neg(sh_back_grad(b, 0)));
}

const sh_op sh_op_neg = {"neg", SH_OP_COMPUTES, numbers_shape, neg_forward, neg_backward};

shoal_tensor *shoal_neg(shoal_tensor *a)
{
    return sh_run(&sh_op_neg, &(sh_call){.in = {a}, .in_count = 1}, 1);
}

static shoal_err sign_forward(sh_call *c)
{
    return unary(c, SH_UNARY_SIGN);
}

static shoal_err sign_backward(sh_back *b)
{
    return sh_back_give(b, 0, sh_scope_add(shoal_zeros_like(sh_back_grad(b, 0))));
}

const sh_op sh_op_sign = {"sign", SH_OP_COMPUTES, numbers_shape, sign_forward, sign_backward};

shoal_tensor *shoal_sign(shoal_tensor *a)
{
    return sh_run(&sh_op_sign, &(sh_call){.in = {a}, .in_count = 1}, 1);
}

static shoal_err not_shape(sh_call *c)
{
    const shoal_tensor *x = c->in[0];
    if (x->dtype != SHOAL_B8) {
        return sh_fail(SHOAL_ETYPE, "logical_not supports bool, not %s", shoal_dtype_name(x->dtype));
    }
    return same_shape(c);
}

static shoal_err not_forward(sh_call *c)
{
    return unary(c, SH_UNARY_NOT);
}

const sh_op sh_op_logical_not = {"logical_not", SH_OP_COMPUTES, not_shape, not_forward, NULL};

shoal_tensor *shoal_logical_not(shoal_tensor *a)
{
    return sh_run(&sh_op_logical_not, &(sh_call){.in = {a}, .in_count = 1}, 1);
}

/* ---- ops with numbers, which are in a.d ---- */

static shoal_err factor_shape(sh_call *c)
{
    SH_TRY(numbers_shape(c));
    return sh_factor_check(c->op->name, c->in[0]->dtype, c->a.d[0]);
}

static shoal_err add_scalar_forward(sh_call *c)
{
    return with_number(c, SH_SCALAR_ADD, c->a.d[0], 0);
}

static shoal_err add_scalar_backward(sh_back *b)
{
    return sh_back_give(b, 0, sh_back_grad(b, 0));
}

const sh_op sh_op_add_scalar = {"add_scalar", SH_OP_COMPUTES, factor_shape, add_scalar_forward, add_scalar_backward};

shoal_tensor *shoal_add_scalar(shoal_tensor *a, double s)
{
    return sh_run(&sh_op_add_scalar, &(sh_call){.in = {a}, .in_count = 1, .a.d = {s}}, 1);
}

shoal_tensor *shoal_add_scalar_(shoal_tensor *a, double s)
{
    return sh_run_in_place(&sh_op_add_scalar, &(sh_call){.in = {a}, .in_count = 1, .a.d = {s}}, 1);
}

static shoal_err mul_scalar_forward(sh_call *c)
{
    return with_number(c, SH_SCALAR_MUL, c->a.d[0], 0);
}

static shoal_err mul_scalar_backward(sh_back *b)
{
    return sh_back_give(b, 0, shoal_mul_scalar(sh_back_grad(b, 0), sh_back_attrs(b)->d[0]));
}

const sh_op sh_op_mul_scalar = {"mul_scalar", SH_OP_COMPUTES, factor_shape, mul_scalar_forward, mul_scalar_backward};

shoal_tensor *shoal_mul_scalar(shoal_tensor *a, double s)
{
    return sh_run(&sh_op_mul_scalar, &(sh_call){.in = {a}, .in_count = 1, .a.d = {s}}, 1);
}

shoal_tensor *shoal_mul_scalar_(shoal_tensor *a, double s)
{
    return sh_run_in_place(&sh_op_mul_scalar, &(sh_call){.in = {a}, .in_count = 1, .a.d = {s}}, 1);
}

static shoal_err pow_scalar_forward(sh_call *c)
{
    SH_TRY(sh_call_save_in(c, 0));
    return with_number(c, SH_SCALAR_POW, c->a.d[0], 0);
}

static shoal_err pow_scalar_backward(sh_back *b)
{
    return chain(b, SH_GRAD_POW, sh_back_attrs(b)->d[0], 0);
}

const sh_op sh_op_pow_scalar = {"pow_scalar", SH_OP_COMPUTES, floats_shape, pow_scalar_forward, pow_scalar_backward};

shoal_tensor *shoal_pow_scalar(shoal_tensor *a, double s)
{
    return sh_run(&sh_op_pow_scalar, &(sh_call){.in = {a}, .in_count = 1, .a.d = {s}}, 1);
}

static shoal_err leaky_relu_forward(sh_call *c)
{
    SH_TRY(sh_call_save_in(c, 0));
    return with_number(c, SH_SCALAR_LEAKY_RELU, c->a.d[0], 0);
}

static shoal_err leaky_relu_backward(sh_back *b)
{
    return chain(b, SH_GRAD_LEAKY_RELU, sh_back_attrs(b)->d[0], 0);
}

const sh_op sh_op_leaky_relu = {"leaky_relu", SH_OP_COMPUTES, floats_shape, leaky_relu_forward, leaky_relu_backward};

shoal_tensor *shoal_leaky_relu(shoal_tensor *a, double slope)
{
    return sh_run(&sh_op_leaky_relu, &(sh_call){.in = {a}, .in_count = 1, .a.d = {slope}}, 1);
}

/* For integers the bounds must be integers. A bound outside the range of the dtype, or infinite, counts as the end of
 * that range. */
static shoal_err clamp_shape(sh_call *c)
{
    shoal_dtype dtype = c->in[0]->dtype;
    if (c->a.d[0] > c->a.d[1]) {
        return sh_fail(SHOAL_EINVAL, "clamp: the range from %g to %g is empty", c->a.d[0], c->a.d[1]);
    }
    for (int i = 0; i < 2 && !shoal_dtype_is_float(dtype); i++) {
        if (trunc(c->a.d[i]) != c->a.d[i]) {
            return sh_fail(
                SHOAL_ETYPE,
                "clamp: the bound %g is not an integer but the tensor is %s; convert with shoal_to_dtype first",
                c->a.d[i], shoal_dtype_name(dtype));
        }
    }
    return numbers_shape(c);
}

static shoal_err clamp_forward(sh_call *c)
{
    SH_TRY(sh_call_save_in(c, 0));
    return with_number(c, SH_SCALAR_CLAMP, c->a.d[0], c->a.d[1]);
}

static shoal_err clamp_backward(sh_back *b)
{
    return chain(b, SH_GRAD_CLAMP, sh_back_attrs(b)->d[0], sh_back_attrs(b)->d[1]);
}

const sh_op sh_op_clamp = {"clamp", SH_OP_COMPUTES, clamp_shape, clamp_forward, clamp_backward};

shoal_tensor *shoal_clamp(shoal_tensor *a, double low, double high)
{
    return sh_run(&sh_op_clamp, &(sh_call){.in = {a}, .in_count = 1, .a.d = {low, high}}, 1);
}

shoal_tensor *shoal_clamp_(shoal_tensor *a, double low, double high)
{
    return sh_run_in_place(&sh_op_clamp, &(sh_call){.in = {a}, .in_count = 1, .a.d = {low, high}}, 1);
}
