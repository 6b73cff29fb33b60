/* Elementwise arithmetic on strided views.
 *
 * All views of a call have the same shape: who wants broadcasting gives an input the shape of the result and stride 0 in
 * the dimensions in which it is repeated. Strides are free in inputs and in the output, but no two elements of an output
 * may share memory. An output may be the same view as an input (same data, same strides); otherwise they may not overlap.
 * Every function writes out (`=`), but for axpy (`+=`).
 *
 * Arithmetic is on f32, f64, i64, i32 and u8 (and bool, where it says so); f16 and bf16 are only filled, copied and chosen
 * between (where). A dtype for which an op makes no sense gives SHOAL_EINVAL. Integers wrap around. Of a bool every byte but 0 is
 * true; results are 0 and 1.
 * f32 functions of the fast versions are within 2 ulp of the true value (exp, log, tanh, sqrt), 4 (sigmoid) or 8 (gelu); NaN and
 * infinities are as in C's libm. f64 functions are libm's. Integers and f64 become bf16 and f16 by way of f32, as in PyTorch. */
#ifndef SH_KERNELS_ELEMENTWISE_H
#define SH_KERNELS_ELEMENTWISE_H

#include "kernels/view.h"

/* A number from the host: f is used for float dtypes, i for integers and bool. */
typedef struct sh_scalar {
    double f;
    int64_t i;
} sh_scalar;

static inline sh_scalar sh_scalar_int(int64_t i)
{
    return (sh_scalar){(double)i, i};
}

/* i is f cut to an integer, within what int64_t holds; 0 for NaN. */
static inline sh_scalar sh_scalar_float(double f)
{
    int64_t i = f != f                        ? 0
                : f >= 9223372036854775807.0  ? INT64_MAX
                : f <= -9223372036854775808.0 ? INT64_MIN
                                              : (int64_t)f;
    return (sh_scalar){f, i};
}

/* out = op(a), same dtype. Floats all; integers (i64, i32, u8) NEG, ABS, SIGN, SQUARE, RELU; NOT for bool and integers. */
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
    SH_UNARY_NOT, /* bool: logical; integers: bits */
    SH_UNARY_OPS,
} sh_unary_op;

/* out = op(a; x, y), same dtype; x and y are numbers. Floats all; integers ADD, MUL, CLAMP. */
typedef enum sh_scalar_op {
    SH_SCALAR_ADD, /* a + x */
    SH_SCALAR_MUL, /* a · x */
    SH_SCALAR_POW, /* a^x */
    SH_SCALAR_CLAMP, /* min(max(a, x), y); NaN stays; one-sided: give an infinity, INT64_MIN or INT64_MAX. A bound of NaN makes
                           * all NaN; bounds beyond an integer dtype's range are its ends */
    SH_SCALAR_LEAKY_RELU, /* a > 0 ? a : x · a */
    SH_SCALAR_OPS,
} sh_scalar_op;

/* out = op(a, b): a and b of one dtype. Arithmetic: out of the same dtype. Comparisons: out is bool.
 * Floats: all but the bit ops. Integers: all but POW. bool: MAX, MIN, comparisons, AND, OR, XOR. */
typedef enum sh_binary_op {
    SH_BINARY_ADD,
    SH_BINARY_SUB,
    SH_BINARY_MUL,
    SH_BINARY_DIV, /* floats: a/b; integers: towards zero; a zero in b is SHOAL_EINVAL, before anything is written */
    SH_BINARY_FLOOR_DIV, /* towards minus infinity; integers as DIV */
    SH_BINARY_POW,
    SH_BINARY_MAX, /* NaN if either is */
    SH_BINARY_MIN,
    SH_BINARY_AND, /* bits; logical for bool */
    SH_BINARY_OR,
    SH_BINARY_XOR,
    SH_BINARY_EQ, /* from here on out is bool */
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

/* out = g · f'(…), floats: what backward needs, with f's result y or its input x as the saved view. */
typedef enum sh_grad_op {
    SH_GRAD_RELU,       /* y <= 0 ? 0 : g, so NaN lets g pass */
    SH_GRAD_SIGMOID,    /* g · y · (1 - y) */
    SH_GRAD_TANH,       /* g · (1 - y²) */
    SH_GRAD_GELU,       /* x: g · (Φ(x) + x·φ(x)) */
    SH_GRAD_ABS,        /* x: g · sign(x) */
    SH_GRAD_EXP,        /* g · y */
    SH_GRAD_LOG,        /* x: g / x */
    SH_GRAD_SQRT,       /* g / (2y) */
    SH_GRAD_RSQRT,      /* -g · y³ / 2 */
    SH_GRAD_RECIPROCAL, /* -g · y² */
    SH_GRAD_SQUARE,     /* x: 2 · g · x */
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
    /* p and q: the numbers of LEAKY_RELU, CLAMP and POW; ignored by the others. */
    shoal_err (*grad)(sh_exec *exec, sh_grad_op op, const sh_view *out, const sh_view *g, const sh_view *saved,
                      double p, double q);
    /* out = cond ? a : b; cond is bool, the others of one dtype, any of the eight. */
    shoal_err (*where)(sh_exec *exec, const sh_view *out, const sh_view *cond, const sh_view *a, const sh_view *b);
    /* out += alpha · a; f32, f64, i64, i32, u8. */
    shoal_err (*axpy)(sh_exec *exec, const sh_view *out, const sh_view *a, sh_scalar alpha);
    /* out = x, any dtype; integers take x.i (low bits), floats and bf16/f16 x.f (rounded to even), bool x.f != 0. */
    shoal_err (*fill)(sh_exec *exec, const sh_view *out, sh_scalar x);
    /* out = a, between any two dtypes. To bf16 and f16: nearest, ties to even, NaN stays NaN. Float to integer: towards zero;
     * what does not fit is clamped to the target's range and NaN gives 0 (i64, i32); u8 takes the low bits of the i64.
     * Integer to integer: low bits. To bool: != 0 (NaN is true). */
    shoal_err (*copy)(sh_exec *exec, const sh_view *out, const sh_view *a);
} sh_elementwise_kernels;

extern const sh_elementwise_kernels sh_elementwise_kernels_reference;
extern const sh_elementwise_kernels sh_elementwise_kernels_avx2;
extern const sh_elementwise_kernels sh_elementwise_kernels_avx512;

#endif
