/* The contract of the elementwise kernels: arithmetic on strided views.
 *
 * All views of a call have the same shape. To broadcast an input, the caller gives it the shape of the result and
 * stride 0 in the repeated dimensions. Inputs and outputs may have any strides, but no two elements of an output may
 * share memory. An output may be the same view as an input (same data, same strides); otherwise they may not overlap.
 * Every function overwrites out (`=`), except axpy (`+=`).
 *
 * Arithmetic works on f32, f64, i64, i32 and u8, and on bool where noted. f16 and bf16 can only be filled, copied and
 * selected (where). A dtype that an op does not support gives SHOAL_EINVAL. Integers wrap around. A bool byte other
 * than 0 counts as true; bool results are 0 or 1.
 * Accuracy: the fast f32 functions are within 2 ulp of the true value (exp, log, tanh, sqrt), 4 (sigmoid) or 8 (gelu);
 * NaN and infinities behave as in C's libm. f64 functions call libm. Integers and f64 are converted to bf16 and f16
 * through f32, as in PyTorch. */
#ifndef SH_KERNELS_ELEMENTWISE_H
#define SH_KERNELS_ELEMENTWISE_H

#include "kernels/view.h"

/* A number passed from the host. Float dtypes and bool use f; integer dtypes use i. */
typedef struct sh_scalar {
    double f;
    int64_t i;
} sh_scalar;

static inline sh_scalar sh_scalar_int(int64_t i)
{
    return (sh_scalar){(double)i, i};
}

/* Sets i to f truncated towards zero and clamped to the range of int64_t, or to 0 if f is NaN. */
static inline sh_scalar sh_scalar_float(double f)
{
    int64_t i = f != f                        ? 0
                : f >= 9223372036854775807.0  ? INT64_MAX
                : f <= -9223372036854775808.0 ? INT64_MIN
                                              : (int64_t)f;
    return (sh_scalar){f, i};
}

/* out = op(a); out and a have the same dtype. Floats support all ops but NOT; integers (i64, i32, u8) support NEG, ABS,
 * SIGN, SQUARE, RELU and NOT; bool supports NOT. */
typedef enum sh_unary_op {
    SH_UNARY_NEG,
    SH_UNARY_ABS,
    SH_UNARY_SIGN, /* -1, 0, 1; sign(NaN) = 0, as in PyTorch */
    SH_UNARY_SQUARE,
    SH_UNARY_RELU, /* relu(NaN) = NaN */
    SH_UNARY_EXP,
    SH_UNARY_LOG,
    SH_UNARY_SQRT,
    SH_UNARY_RSQRT,
    SH_UNARY_RECIPROCAL,
    SH_UNARY_SIGMOID,
    SH_UNARY_TANH,
    SH_UNARY_GELU, /* x/2 · (1 + erf(x/√2)) */
    SH_UNARY_SIN,
    SH_UNARY_COS,
    SH_UNARY_NOT, /* bool: logical not; integers: bitwise not */
    SH_UNARY_OPS,
} sh_unary_op;

/* out = op(a; x, y); out and a have the same dtype, x and y are numbers.
 * Floats support all ops; integers ADD, MUL, CLAMP. */
typedef enum sh_scalar_op {
    SH_SCALAR_ADD,   /* a + x */
    SH_SCALAR_MUL,   /* a · x */
    SH_SCALAR_POW,   /* a^x */
    SH_SCALAR_CLAMP, /* min(max(a, x), y). A NaN in a stays NaN, and a NaN bound makes every element NaN. For one bound
                      * only, pass an infinity, INT64_MIN or INT64_MAX as the other. Integers: a bound outside the range
                      * of the dtype counts as the end of that range */
    SH_SCALAR_LEAKY_RELU, /* a > 0 ? a : x · a */
    SH_SCALAR_OPS,
} sh_scalar_op;

/* out = op(a, b); a and b have one dtype. Arithmetic ops write the same dtype, comparisons write bool.
 * Floats support all ops but AND, OR and XOR; integers all but POW; bool MAX, MIN, the comparisons, AND, OR and XOR. */
typedef enum sh_binary_op {
    SH_BINARY_ADD,
    SH_BINARY_SUB,
    SH_BINARY_MUL,
    SH_BINARY_DIV,       /* floats: a/b; integers: rounded towards zero; SHOAL_EINVAL if b has a zero, out unchanged.
                          * (A GPU cannot report to the host without synchronising: there a/0 is 0.) */
    SH_BINARY_FLOOR_DIV, /* rounded towards minus infinity; integers: zeros in b as for DIV */
    SH_BINARY_POW,
    SH_BINARY_MAX, /* NaN if either operand is NaN; MIN too */
    SH_BINARY_MIN,
    SH_BINARY_AND, /* bitwise; logical for bool */
    SH_BINARY_OR,
    SH_BINARY_XOR,
    SH_BINARY_EQ, /* this op and all below write bool */
    SH_BINARY_NE,
    SH_BINARY_LT,
    SH_BINARY_LE,
    SH_BINARY_GT,
    SH_BINARY_GE,
    SH_BINARY_OPS,
} sh_binary_op;

static inline bool sh_binary_is_comparison(sh_binary_op op)
{
    return op >= SH_BINARY_EQ;
}

/* out = g · f'(…) for floats: the gradient of f. `saved` is f's result y,
 * or its input x where the comment says "x:". The order of the products is PyTorch's: it decides what overflows. */
typedef enum sh_grad_op {
    SH_GRAD_RELU,       /* y <= 0 ? 0 : g; where y is NaN, g passes */
    SH_GRAD_SIGMOID,    /* g · y · (1 - y) */
    SH_GRAD_TANH,       /* g · (1 - y²) */
    SH_GRAD_GELU,       /* x: g · (Φ(x) + x·φ(x)) */
    SH_GRAD_ABS,        /* x: g · sign(x) */
    SH_GRAD_EXP,        /* g · y */
    SH_GRAD_LOG,        /* x: g / x */
    SH_GRAD_SQRT,       /* g / (2y) */
    SH_GRAD_RSQRT,      /* (-g / 2) · (y · y · y) */
    SH_GRAD_RECIPROCAL, /* -g · (y · y) */
    SH_GRAD_SQUARE,     /* x: g · (2 · x) */
    SH_GRAD_SIN,        /* x: g · cos(x) */
    SH_GRAD_COS,        /* x: -g · sin(x) */
    SH_GRAD_LEAKY_RELU, /* x: x > 0 ? g : p · g */
    SH_GRAD_CLAMP,      /* x: p <= x && x <= q ? g : 0 */
    SH_GRAD_POW,        /* x: g · p · x^(p - 1); 0 where p is 0 */
    SH_GRAD_OPS,
} sh_grad_op;

typedef struct sh_elementwise_kernels {
    shoal_err (*unary)(sh_exec *exec, sh_unary_op op, const sh_view *out, const sh_view *a);
    shoal_err (*scalar)(sh_exec *exec, sh_scalar_op op, const sh_view *out, const sh_view *a, sh_scalar x, sh_scalar y);
    shoal_err (*binary)(sh_exec *exec, sh_binary_op op, const sh_view *out, const sh_view *a, const sh_view *b);
    /* p and q are the parameters of LEAKY_RELU, CLAMP and POW; other ops ignore them. */
    shoal_err (*grad)(sh_exec *exec, sh_grad_op op, const sh_view *out, const sh_view *g, const sh_view *saved,
                      double p, double q);
    /* out = cond ? a : b. cond is bool; out, a and b have one dtype, any of the eight. */
    shoal_err (*where)(sh_exec *exec, const sh_view *out, const sh_view *cond, const sh_view *a, const sh_view *b);
    /* out += alpha · a, for f32, f64, i64, i32 and u8. */
    shoal_err (*axpy)(sh_exec *exec, const sh_view *out, const sh_view *a, sh_scalar alpha);
    /* out = x, for any dtype. Integers take the low bits of x.i, floats take x.f rounded to nearest even, bool takes
     * x.f != 0. */
    shoal_err (*fill)(sh_exec *exec, const sh_view *out, sh_scalar x);
    /* out = a, between any two dtypes. To bf16 and f16: round to nearest, ties to even; NaN stays NaN. Float to i64 and
     * i32: truncate towards zero, clamp to the target's range, NaN gives 0. Float to u8: the low bits of the i64
     * result. Integer to integer: the low bits. To bool: a != 0, so NaN is true. */
    shoal_err (*copy)(sh_exec *exec, const sh_view *out, const sh_view *a);
} sh_elementwise_kernels;

extern const sh_elementwise_kernels sh_elementwise_kernels_reference;
extern const sh_elementwise_kernels sh_elementwise_kernels_avx2;
extern const sh_elementwise_kernels sh_elementwise_kernels_avx512;

#endif
