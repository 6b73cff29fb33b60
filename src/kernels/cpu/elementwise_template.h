/* The elementwise kernels, written once. elementwise_reference.c and elementwise_fast.c include it, and first define
 *
 *     LOOP1, LOOP2      the loop over a row: name, output type, input type, half of sh_scalar (f or i),
 *                       expression in a (and b), x, y
 *     EXP(a) … PHI(a)   the functions, for float and double
 *     TABLE             the name of the table of kernels
 */
#include "kernels/cpu/elementwise_move.h"

/* Integer ops compute in the unsigned type of the same width, so that they wrap around. */
typedef uint64_t unsigned_i64;
typedef uint32_t unsigned_i32;
typedef uint32_t unsigned_u8;

#define SIGN(a) ((a) > 0 ? 1 : (a) < 0 ? -1 : 0)
#define INV_SQRT_2PI 0.39894228040143267794

/* ---- unary: enum, name, expression in T a ---- */

#define UNARY_FLOAT(X)                                                                                                 \
    X(NEG, neg, -a)                                                                                                    \
    X(ABS, abs, a > 0 ? a : 0 - a)                                                                                     \
    X(SIGN, sign, SIGN(a))                                                                                             \
    X(SQUARE, square, a *a)                                                                                            \
    X(RELU, relu, a < 0 ? 0 : a)                                                                                       \
    X(EXP, exp, EXP(a))                                                                                                \
    X(LOG, log, LOG(a))                                                                                                \
    X(SQRT, sqrt, SQRT(a))                                                                                             \
    X(RSQRT, rsqrt, 1 / SQRT(a))                                                                                       \
    X(RECIPROCAL, reciprocal, 1 / a)                                                                                   \
    X(SIGMOID, sigmoid, SIGMOID(a))                                                                                    \
    X(TANH, tanh, TANH(a))                                                                                             \
    X(GELU, gelu, a *PHI(a))                                                                                           \
    X(SIN, sin, SIN(a))                                                                                                \
    X(COS, cos, COS(a))
#define UNARY_INT(X) X(NEG, neg, 0 - (U)a) X(SQUARE, square, (U)a *(U)a) X(NOT, not, ~(U)a)
#define UNARY_SIGNED(X) X(ABS, abs, a < 0 ? 0 - (U)a : (U)a) X(SIGN, sign, SIGN(a)) X(RELU, relu, a < 0 ? 0 : a)
#define UNARY_UNSIGNED(X) X(ABS, abs, a) X(SIGN, sign, a != 0) X(RELU, relu, a)

#define NOT_BOOL(X) X(NOT, not, !a)

#define SCALAR_FLOAT(X)                                                                                                \
    X(ADD, add_scalar, a + x)                                                                                          \
    X(MUL, mul_scalar, a *x)                                                                                           \
    X(POW, pow_scalar, POW(a, x))                                                                                      \
    X(CLAMP, clamp, CLAMP(a, x, y))                                                                                    \
    X(LEAKY_RELU, leaky_relu, a > 0 ? a : a * x)
#define SCALAR_INT(X)                                                                                                  \
    X(ADD, add_scalar, (U)a + (U)x)                                                                                    \
    X(MUL, mul_scalar, (U)a *(U)x)                                                                                     \
    X(CLAMP, clamp, CLAMP(a, x, y))
#define ABOVE(a, x) ((a) < (x) ? (x) : (a))
#define CLAMP(a, x, y) (ABOVE(a, x) > (y) ? (y) : ABOVE(a, x))

/* ---- binary: enum, name, expression in T a, T b ---- */

#define BINARY_FLOAT(X)                                                                                                \
    X(ADD, add, a + b)                                                                                                 \
    X(SUB, sub, a - b)                                                                                                 \
    X(MUL, mul, a *b)                                                                                                  \
    X(DIV, div, a / b)                                                                                                 \
    X(FLOOR_DIV, floor_div, FLOOR(a / b))                                                                              \
    X(POW, pow, POW(a, b))                                                                                             \
    X(MAX, max, a > b || a != a ? a : b)                                                                               \
    X(MIN, min, a < b || a != a ? a : b)
#define BINARY_INT(X)                                                                                                  \
    X(ADD, add, (U)a + (U)b)                                                                                           \
    X(SUB, sub, (U)a - (U)b)                                                                                           \
    X(MUL, mul, (U)a *(U)b)                                                                                            \
    X(MAX, max, a > b ? a : b)                                                                                         \
    X(MIN, min, a < b ? a : b)                                                                                         \
    X(AND, and, a &b)                                                                                                  \
    X(OR, or, a | b)                                                                                                   \
    X(XOR, xor, a ^ b)
/* The smallest integer divided by -1 wraps around to itself. The kernel rejects a divisor that contains zeros; if
 * another process writes a zero after that check, the division must not trap, so it gives 0. */
#define BINARY_SIGNED(X)                                                                                               \
    X(DIV, div, b == 0 ? 0 : b == -1 ? 0 - (U)a : (U)(a / b))                                                          \
    X(FLOOR_DIV, floor_div, b == 0 ? 0 : b == -1 ? 0 - (U)a : (U)(a / b) - (U)(a % b != 0 && (a < 0) != (b < 0)))
#define BINARY_UNSIGNED(X) X(DIV, div, b == 0 ? 0 : a / b) X(FLOOR_DIV, floor_div, b == 0 ? 0 : a / b)
/* Any byte other than 0 is true: bool memory from elsewhere need not hold 1. */
#define TRUE(a) ((a) != 0)
#define BINARY_BOOL(X)                                                                                                 \
    X(MAX, max, TRUE(a) | TRUE(b))                                                                                     \
    X(MIN, min, TRUE(a) & TRUE(b))                                                                                     \
    X(AND, and, TRUE(a) & TRUE(b))                                                                                     \
    X(OR, or, TRUE(a) | TRUE(b))                                                                                       \
    X(XOR, xor, TRUE(a) ^ TRUE(b))
#define COMPARE_BOOL(X)                                                                                                \
    X(EQ, eq, TRUE(a) == TRUE(b))                                                                                      \
    X(NE, ne, TRUE(a) != TRUE(b))                                                                                      \
    X(LT, lt, TRUE(a) < TRUE(b))                                                                                       \
    X(LE, le, TRUE(a) <= TRUE(b))                                                                                      \
    X(GT, gt, TRUE(a) > TRUE(b))                                                                                       \
    X(GE, ge, TRUE(a) >= TRUE(b))
#define COMPARE(X)                                                                                                     \
    X(EQ, eq, a == b) X(NE, ne, a != b) X(LT, lt, a < b) X(LE, le, a <= b) X(GT, gt, a > b) X(GE, ge, a >= b)

/* ---- gradients: a is g, b is the saved view; x and y are p and q ---- */

#define GRAD(X)                                                                                                        \
    X(RELU, relu_grad, b <= 0 ? 0 : a)                                                                                 \
    X(SIGMOID, sigmoid_grad, a *b *(1 - b))                                                                            \
    X(TANH, tanh_grad, a *((1 - b) * (1 + b)))                                                                         \
    X(GELU, gelu_grad, a *(PHI(b) + b * (EXP(b * b / -2) * (T)INV_SQRT_2PI)))                                          \
    X(ABS, abs_grad, a *SIGN(b))                                                                                       \
    X(EXP, exp_grad, a *b)                                                                                             \
    X(LOG, log_grad, a / b)                                                                                            \
    X(SQRT, sqrt_grad, a / (2 * b))                                                                                    \
    X(RSQRT, rsqrt_grad, a *(T)-0.5 * (b * b * b))                                                                     \
    X(RECIPROCAL, reciprocal_grad, -a *(b * b))                                                                        \
    X(SQUARE, square_grad, a *(2 * b))                                                                                 \
    X(SIN, sin_grad, a *COS(b))                                                                                        \
    X(COS, cos_grad, -a *SIN(b))                                                                                       \
    X(LEAKY_RELU, leaky_relu_grad, b > 0 ? a : a * x)                                                                  \
    X(CLAMP, clamp_grad, x <= b && b <= y ? a : 0)                                                                     \
    X(POW, pow_grad, x == 0 ? 0 : a * (x * (T)POW(b, x - 1)))

/* ---- the row functions ---- */

#define FLOAT1_f32(E, name, expression) LOOP1(name##_f32, float, float, f, expression)
#define FLOAT1_f64(E, name, expression) LOOP1(name##_f64, double, double, f, expression)
#define FLOAT2_f32(E, name, expression) LOOP2(name##_f32, float, float, f, expression)
#define FLOAT2_f64(E, name, expression) LOOP2(name##_f64, double, double, f, expression)
#define CMP2_f32(E, name, expression) LOOP2(name##_f32, uint8_t, float, f, expression)
#define CMP2_f64(E, name, expression) LOOP2(name##_f64, uint8_t, double, f, expression)
#define INT1_i64(E, name, expression) LOOP1(name##_i64, int64_t, int64_t, i, expression)
#define INT1_i32(E, name, expression) LOOP1(name##_i32, int32_t, int32_t, i, expression)
#define INT1_u8(E, name, expression) LOOP1(name##_u8, uint8_t, uint8_t, i, expression)
#define INT2_i64(E, name, expression) LOOP2(name##_i64, int64_t, int64_t, i, expression)
#define INT2_i32(E, name, expression) LOOP2(name##_i32, int32_t, int32_t, i, expression)
#define INT2_u8(E, name, expression) LOOP2(name##_u8, uint8_t, uint8_t, i, expression)
#define BOOL1_b8(E, name, expression) LOOP1(name##_b8, uint8_t, uint8_t, i, expression)
#define BOOL2_b8(E, name, expression) LOOP2(name##_b8, uint8_t, uint8_t, i, expression)
#define CMP2_i64(E, name, expression) LOOP2(name##_i64, uint8_t, int64_t, i, expression)
#define CMP2_i32(E, name, expression) LOOP2(name##_i32, uint8_t, int32_t, i, expression)
#define CMP2_u8(E, name, expression) LOOP2(name##_u8, uint8_t, uint8_t, i, expression)

UNARY_FLOAT(FLOAT1_f32)
UNARY_FLOAT(FLOAT1_f64)
SCALAR_FLOAT(FLOAT1_f32)
SCALAR_FLOAT(FLOAT1_f64)
BINARY_FLOAT(FLOAT2_f32)
BINARY_FLOAT(FLOAT2_f64)
COMPARE(CMP2_f32)
COMPARE(CMP2_f64)
GRAD(FLOAT2_f32)
GRAD(FLOAT2_f64)
#define U unsigned_i64
UNARY_INT(INT1_i64)
UNARY_SIGNED(INT1_i64)
SCALAR_INT(INT1_i64)
BINARY_INT(INT2_i64)
BINARY_SIGNED(INT2_i64)
COMPARE(CMP2_i64)
#undef U
#define U unsigned_i32
UNARY_INT(INT1_i32)
UNARY_SIGNED(INT1_i32)
SCALAR_INT(INT1_i32)
BINARY_INT(INT2_i32)
BINARY_SIGNED(INT2_i32)
COMPARE(CMP2_i32)
#undef U
#define U unsigned_u8
UNARY_INT(INT1_u8)
UNARY_UNSIGNED(INT1_u8)
SCALAR_INT(INT1_u8)
BINARY_INT(INT2_u8)
BINARY_UNSIGNED(INT2_u8)
COMPARE(CMP2_u8)
#undef U
BINARY_BOOL(BOOL2_b8)
COMPARE_BOOL(BOOL2_b8)
NOT_BOOL(BOOL1_b8)

/* Powers computed as products: a³ and its gradient. */
LOOP1(cube_f32, float, float, f, a *a *a)
LOOP1(cube_f64, double, double, f, a *a *a)
LOOP2(cube_grad_f32, float, float, f, 3 * a * (b * b))
LOOP2(cube_grad_f64, double, double, f, 3 * a * (b * b))

/* out += x · a: the second input of the loop is out itself. */
LOOP2(axpy_f32, float, float, f, a + x * b)
LOOP2(axpy_f64, double, double, f, a + x * b)
LOOP2(axpy_i64, int64_t, int64_t, i, (uint64_t)a + (uint64_t)x * (uint64_t)b)
LOOP2(axpy_i32, int32_t, int32_t, i, (uint32_t)a + (uint32_t)x * (uint32_t)b)
LOOP2(axpy_u8, uint8_t, uint8_t, i, (uint32_t)a + (uint32_t)x * (uint32_t)b)

/* ---- the tables ---- */

#define PLACE(op, dtype, row) [op][dtype] = row,
#define AT_UNARY_f32(E, name, expression) PLACE(SH_UNARY_##E, SHOAL_F32, name##_f32)
#define AT_UNARY_f64(E, name, expression) PLACE(SH_UNARY_##E, SHOAL_F64, name##_f64)
#define AT_UNARY_i64(E, name, expression) PLACE(SH_UNARY_##E, SHOAL_I64, name##_i64)
#define AT_UNARY_i32(E, name, expression) PLACE(SH_UNARY_##E, SHOAL_I32, name##_i32)
#define AT_UNARY_u8(E, name, expression) PLACE(SH_UNARY_##E, SHOAL_U8, name##_u8)
#define AT_UNARY_b8(E, name, expression) PLACE(SH_UNARY_##E, SHOAL_B8, name##_b8)
#define AT_SCALAR_f32(E, name, expression) PLACE(SH_SCALAR_##E, SHOAL_F32, name##_f32)
#define AT_SCALAR_f64(E, name, expression) PLACE(SH_SCALAR_##E, SHOAL_F64, name##_f64)
#define AT_SCALAR_i64(E, name, expression) PLACE(SH_SCALAR_##E, SHOAL_I64, name##_i64)
#define AT_SCALAR_i32(E, name, expression) PLACE(SH_SCALAR_##E, SHOAL_I32, name##_i32)
#define AT_SCALAR_u8(E, name, expression) PLACE(SH_SCALAR_##E, SHOAL_U8, name##_u8)
#define AT_BINARY_f32(E, name, expression) PLACE(SH_BINARY_##E, SHOAL_F32, name##_f32)
#define AT_BINARY_f64(E, name, expression) PLACE(SH_BINARY_##E, SHOAL_F64, name##_f64)
#define AT_BINARY_i64(E, name, expression) PLACE(SH_BINARY_##E, SHOAL_I64, name##_i64)
#define AT_BINARY_i32(E, name, expression) PLACE(SH_BINARY_##E, SHOAL_I32, name##_i32)
#define AT_BINARY_u8(E, name, expression) PLACE(SH_BINARY_##E, SHOAL_U8, name##_u8)
#define AT_BINARY_b8(E, name, expression) PLACE(SH_BINARY_##E, SHOAL_B8, name##_b8)
#define AT_GRAD_f32(E, name, expression) PLACE(SH_GRAD_##E, SHOAL_F32, name##_f32)
#define AT_GRAD_f64(E, name, expression) PLACE(SH_GRAD_##E, SHOAL_F64, name##_f64)

static const sh_iter_row unary_rows[SH_UNARY_OPS][SHOAL_DTYPES] = {
    UNARY_FLOAT(AT_UNARY_f32)   //
    UNARY_FLOAT(AT_UNARY_f64)   //
    UNARY_INT(AT_UNARY_i64)     //
    UNARY_SIGNED(AT_UNARY_i64)  //
    UNARY_INT(AT_UNARY_i32)     //
    UNARY_SIGNED(AT_UNARY_i32)  //
    UNARY_INT(AT_UNARY_u8)      //
    UNARY_UNSIGNED(AT_UNARY_u8) //
    NOT_BOOL(AT_UNARY_b8)       //
};
static const sh_iter_row scalar_rows[SH_SCALAR_OPS][SHOAL_DTYPES] = {
    SCALAR_FLOAT(AT_SCALAR_f32) //
    SCALAR_FLOAT(AT_SCALAR_f64) //
    SCALAR_INT(AT_SCALAR_i64)   //
    SCALAR_INT(AT_SCALAR_i32)   //
    SCALAR_INT(AT_SCALAR_u8)    //
};
static const sh_iter_row binary_rows[SH_BINARY_OPS][SHOAL_DTYPES] = {
    BINARY_FLOAT(AT_BINARY_f32)   //
    BINARY_FLOAT(AT_BINARY_f64)   //
    BINARY_INT(AT_BINARY_i64)     //
    BINARY_SIGNED(AT_BINARY_i64)  //
    BINARY_INT(AT_BINARY_i32)     //
    BINARY_SIGNED(AT_BINARY_i32)  //
    BINARY_INT(AT_BINARY_u8)      //
    BINARY_UNSIGNED(AT_BINARY_u8) //
    BINARY_BOOL(AT_BINARY_b8)     //
    COMPARE(AT_BINARY_f32)        //
    COMPARE(AT_BINARY_f64)        //
    COMPARE(AT_BINARY_i64)        //
    COMPARE(AT_BINARY_i32)        //
    COMPARE(AT_BINARY_u8)         //
    COMPARE_BOOL(AT_BINARY_b8)    //
};
static const sh_iter_row grad_rows[SH_GRAD_OPS][SHOAL_DTYPES] = {GRAD(AT_GRAD_f32) GRAD(AT_GRAD_f64)};
static const sh_iter_row axpy_rows[SHOAL_DTYPES] = {[SHOAL_F32] = axpy_f32,
                                                    [SHOAL_F64] = axpy_f64,
                                                    [SHOAL_I64] = axpy_i64,
                                                    [SHOAL_I32] = axpy_i32,
                                                    [SHOAL_U8] = axpy_u8};

/* ---- integer divisors ---- */

typedef struct search {
    bool *found;
} search;

#define FIND_ZERO(name, T)                                                                                             \
    static void zero_##name(char *const p[], const int64_t s[], int64_t n, const void *context)                        \
    {                                                                                                                  \
        int found = 0;                                                                                                 \
        if (s[0] == sizeof(T)) {                                                                                       \
            const T *a = (const T *)p[0];                                                                              \
            for (int64_t i = 0; i < n; i++) {                                                                          \
                found |= a[i] == 0;                                                                                    \
            }                                                                                                          \
        } else {                                                                                                       \
            for (int64_t i = 0; i < n; i++) {                                                                          \
                found |= *(const T *)(p[0] + i * s[0]) == 0;                                                           \
            }                                                                                                          \
        }                                                                                                              \
        *((const search *)context)->found |= found != 0;                                                               \
    }
FIND_ZERO(i64, int64_t)
FIND_ZERO(i32, int32_t)
FIND_ZERO(u8, uint8_t)

static const sh_iter_row zero_rows[SHOAL_DTYPES] = {
    [SHOAL_I64] = zero_i64,
    [SHOAL_I32] = zero_i32,
    [SHOAL_U8] = zero_u8,
};

static shoal_err check_divisor(const sh_view *b)
{
    bool found = false;
    sh_iter_row row = zero_rows[b->dtype];
    sh_view once = *b; /* check repeated elements once */
    for (int32_t d = 0; d < once.ndim; d++) {
        once.shape[d] = once.strides[d] == 0 && once.shape[d] > 1 ? 1 : once.shape[d];
    }
    shoal_err err = row ? walk(row, 1, (const sh_view *[]){&once}, &(search){&found}) : SHOAL_OK;
    return found ? sh_fail(SHOAL_EINVAL, "division by zero: a divisor of %s is 0", shoal_dtype_name(b->dtype)) : err;
}

/* ---- the bounds of clamp, clamped to the range of an integer dtype ---- */

static int64_t saturated(shoal_dtype dtype, int64_t x)
{
    int64_t low = dtype == SHOAL_I32 ? INT32_MIN : dtype == SHOAL_U8 ? 0 : INT64_MIN;
    int64_t high = dtype == SHOAL_I32 ? INT32_MAX : dtype == SHOAL_U8 ? UINT8_MAX : INT64_MAX;
    return x < low ? low : x > high ? high : x;
}

/* ---- the kernels ---- */

static shoal_err unary(sh_exec *exec, sh_unary_op op, const sh_view *out, const sh_view *a)
{
    (void)exec;
    sh_iter_row row = (unsigned)op < SH_UNARY_OPS && out->dtype == a->dtype ? unary_rows[op][a->dtype] : NULL;
    if (!row) {
        return no_such("unary", op, a->dtype);
    }
    return walk(row, 2, (const sh_view *[]){out, a}, &(numbers){0});
}

static shoal_err scalar(sh_exec *exec, sh_scalar_op op, const sh_view *out, const sh_view *a, sh_scalar x, sh_scalar y)
{
    (void)exec;
    sh_iter_row row = (unsigned)op < SH_SCALAR_OPS && out->dtype == a->dtype ? scalar_rows[op][a->dtype] : NULL;
    if (!row) {
        return no_such("scalar", op, a->dtype);
    }
    if (op == SH_SCALAR_POW && x.f == 2) {
        row = unary_rows[SH_UNARY_SQUARE][a->dtype];
    } else if (op == SH_SCALAR_POW && x.f == 3) {
        row = a->dtype == SHOAL_F32 ? cube_f32 : cube_f64;
    }
    if (op == SH_SCALAR_CLAMP) {
        if (sh_dtype_is_wide_float(out->dtype) && (x.f != x.f || y.f != y.f)) {
            return fill(exec, out, sh_scalar_float(NAN));
        }
        x.i = saturated(a->dtype, x.i);
        y.i = saturated(a->dtype, y.i);
    }
    return walk(row, 2, (const sh_view *[]){out, a}, &(numbers){{x.f, y.f}, {x.i, y.i}});
}

static shoal_err binary(sh_exec *exec, sh_binary_op op, const sh_view *out, const sh_view *a, const sh_view *b)
{
    (void)exec;
    shoal_dtype wanted = sh_binary_is_comparison(op) ? SHOAL_B8 : a->dtype;
    bool fits = (unsigned)op < SH_BINARY_OPS && a->dtype == b->dtype && out->dtype == wanted;
    sh_iter_row row = fits ? binary_rows[op][a->dtype] : NULL;
    if (!row) {
        return no_such("binary", op, a->dtype);
    }
    if (op == SH_BINARY_DIV || op == SH_BINARY_FLOOR_DIV) {
        shoal_err err = check_divisor(b);
        if (err) {
            return err;
        }
    }
    return walk(row, 3, (const sh_view *[]){out, a, b}, &(numbers){0});
}

static shoal_err grad(sh_exec *exec, sh_grad_op op, const sh_view *out, const sh_view *g, const sh_view *saved,
                      double p, double q)
{
    (void)exec;
    bool fits = (unsigned)op < SH_GRAD_OPS && g->dtype == saved->dtype && out->dtype == g->dtype;
    sh_iter_row row = fits ? grad_rows[op][g->dtype] : NULL;
    if (!row) {
        return no_such("gradient", op, g->dtype);
    }
    if (op == SH_GRAD_POW && p == 2) {
        row = grad_rows[SH_GRAD_SQUARE][g->dtype];
    } else if (op == SH_GRAD_POW && p == 3) {
        row = g->dtype == SHOAL_F32 ? cube_grad_f32 : cube_grad_f64;
    }
    return walk(row, 3, (const sh_view *[]){out, g, saved}, &(numbers){{p, q}, {0}});
}

static shoal_err axpy(sh_exec *exec, const sh_view *out, const sh_view *a, sh_scalar alpha)
{
    (void)exec;
    sh_iter_row row = out->dtype == a->dtype ? axpy_rows[a->dtype] : NULL;
    if (!row) {
        return no_such("axpy", 0, a->dtype);
    }
    return walk(row, 3, (const sh_view *[]){out, out, a}, &(numbers){{alpha.f, 0}, {alpha.i, 0}});
}

const sh_elementwise_kernels TABLE = {
    .unary = unary,
    .scalar = scalar,
    .binary = binary,
    .grad = grad,
    .where = where,
    .axpy = axpy,
    .fill = fill,
    .copy = copy,
};
