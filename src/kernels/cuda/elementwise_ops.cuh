/* What the elementwise ops compute, for packs of V elements. One switch for all ops of a dtype keeps the library small;
 * all threads of a launch take the same branch. */
#ifndef SH_KERNELS_CUDA_ELEMENTWISE_OPS_CUH
#define SH_KERNELS_CUDA_ELEMENTWISE_OPS_CUH

#include "kernels/both.h"
#include "kernels/elementwise.h"

#include <math.h>
#include <type_traits>

/* Ops of one input: sh_unary_op, then sh_scalar_op, then these. */
enum {
    ONE_SCALAR = SH_UNARY_OPS,
    ONE_CUBE = ONE_SCALAR + SH_SCALAR_OPS, /* a³ */
    ONE_LOGICAL_NOT,
};

/* Ops of two inputs: sh_binary_op, then sh_grad_op, then these. */
enum {
    TWO_GRAD = SH_BINARY_OPS,
    TWO_CUBE_GRAD = TWO_GRAD + SH_GRAD_OPS,
    TWO_AXPY, /* a + x · b */
};

/* Integer ops compute in an unsigned type, so that they wrap around. */
template <class T> struct wrapping;
template <> struct wrapping<int64_t> {
    typedef uint64_t type;
};
template <> struct wrapping<int32_t> {
    typedef uint32_t type;
};
template <> struct wrapping<uint8_t> {
    typedef uint32_t type;
};

template <class T> SH_BOTH static inline bool negative(T a)
{
    if constexpr (std::is_unsigned<T>::value) {
        return false;
    } else {
        return a < 0;
    }
}

template <class T> SH_BOTH static inline T sign(T a)
{
    return (T)((a > 0) - negative(a));
}

template <class T> SH_BOTH static inline T clamp(T a, T x, T y)
{
    T above = a < x ? x : a;
    return above > y ? y : above;
}

/* Exact to the ends of the range: exp never overflows. */
template <class T> SH_BOTH static inline T sigmoid(T a)
{
    T e = exp(a > 0 ? -a : a), r = 1 / (1 + e);
    return a < 0 ? e * r : r;
}

/* The distribution function of the normal distribution. In f32, erfc would lose the low bits of its argument. */
SH_BOTH static inline float phi(float a)
{
#ifdef __CUDA_ARCH__
    return normcdff(a);
#else
    return (float)(erfc((double)a * -0.70710678118654752440) / 2);
#endif
}

SH_BOTH static inline double phi(double a)
{
    return erfc(a * -0.70710678118654752440) / 2;
}

#define INV_SQRT_2PI 0.39894228040143267794

#define EACH1(expression)                                                                                              \
    for (int k = 0; k < V; k++) {                                                                                      \
        const T a = in[k];                                                                                             \
        out[k] = (T)(expression);                                                                                      \
    }                                                                                                                  \
    break
#define EACH2(expression)                                                                                              \
    for (int k = 0; k < V; k++) {                                                                                      \
        const T a = in[k], b = other[k];                                                                               \
        out[k] = (T)(expression);                                                                                      \
    }                                                                                                                  \
    break

/* ---- one input; x and y are numbers ---- */

template <class T, int V> SH_BOTH static inline void float_one(int op, T x, T y, const T (&in)[V], T (&out)[V])
{
    switch (op) {
    case SH_UNARY_NEG: EACH1(-a);
    case SH_UNARY_ABS: EACH1(a > 0 ? a : 0 - a);
    case SH_UNARY_SIGN: EACH1(sign(a));
    case SH_UNARY_SQUARE: EACH1(a * a);
    case SH_UNARY_RELU: EACH1(a < 0 ? 0 : a);
    case SH_UNARY_EXP: EACH1(exp(a));
    case SH_UNARY_LOG: EACH1(log(a));
    case SH_UNARY_SQRT: EACH1(sqrt(a));
    case SH_UNARY_RSQRT: EACH1(1 / sqrt(a));
    case SH_UNARY_RECIPROCAL: EACH1(1 / a);
    case SH_UNARY_SIGMOID: EACH1(sigmoid(a));
    case SH_UNARY_TANH: EACH1(tanh(a));
    case SH_UNARY_GELU: EACH1(a * phi(a));
    case SH_UNARY_SIN: EACH1(sin(a));
    case SH_UNARY_COS: EACH1(cos(a));
    case ONE_SCALAR + SH_SCALAR_ADD: EACH1(a + x);
    case ONE_SCALAR + SH_SCALAR_MUL: EACH1(a * x);
    case ONE_SCALAR + SH_SCALAR_POW: EACH1(pow(a, x));
    case ONE_SCALAR + SH_SCALAR_CLAMP: EACH1(clamp(a, x, y));
    case ONE_SCALAR + SH_SCALAR_LEAKY_RELU: EACH1(a > 0 ? a : a * x);
    case ONE_CUBE: EACH1(a * a * a);
    }
}

template <class T, int V> SH_BOTH static inline void integer_one(int op, T x, T y, const T (&in)[V], T (&out)[V])
{
    typedef typename wrapping<T>::type U;
    switch (op) {
    case SH_UNARY_NEG: EACH1(0 - (U)a);
    case SH_UNARY_ABS: EACH1(negative(a) ? 0 - (U)a : (U)a);
    case SH_UNARY_SIGN: EACH1(sign(a));
    case SH_UNARY_SQUARE: EACH1((U)a * (U)a);
    case SH_UNARY_RELU: EACH1(negative(a) ? 0 : a);
    case SH_UNARY_NOT: EACH1(~(U)a);
    case ONE_SCALAR + SH_SCALAR_ADD: EACH1((U)a + (U)x);
    case ONE_SCALAR + SH_SCALAR_MUL: EACH1((U)a * (U)x);
    case ONE_SCALAR + SH_SCALAR_CLAMP: EACH1(clamp(a, x, y));
    case ONE_LOGICAL_NOT: EACH1(!a);
    }
}

/* ---- two inputs. For gradients, a is g and b is the saved view; x and y are p and q ---- */

template <class T, int V>
SH_BOTH static inline void float_two(int op, T x, T y, const T (&in)[V], const T (&other)[V], T (&out)[V])
{
    switch (op) {
    case SH_BINARY_ADD: EACH2(a + b);
    case SH_BINARY_SUB: EACH2(a - b);
    case SH_BINARY_MUL: EACH2(a * b);
    case SH_BINARY_DIV: EACH2(a / b);
    case SH_BINARY_FLOOR_DIV: EACH2(floor(a / b));
    case SH_BINARY_POW: EACH2(pow(a, b));
    case SH_BINARY_MAX: EACH2(a > b || a != a ? a : b);
    case SH_BINARY_MIN: EACH2(a < b || a != a ? a : b);
    case TWO_GRAD + SH_GRAD_RELU: EACH2(b <= 0 ? 0 : a);
    case TWO_GRAD + SH_GRAD_SIGMOID: EACH2(a * b * (1 - b));
    case TWO_GRAD + SH_GRAD_TANH: EACH2(a * ((1 - b) * (1 + b)));
    case TWO_GRAD + SH_GRAD_GELU: EACH2(a * (phi(b) + b * (exp(b * b / -2) * (T)INV_SQRT_2PI)));
    case TWO_GRAD + SH_GRAD_ABS: EACH2(a * sign(b));
    case TWO_GRAD + SH_GRAD_EXP: EACH2(a * b);
    case TWO_GRAD + SH_GRAD_LOG: EACH2(a / b);
    case TWO_GRAD + SH_GRAD_SQRT: EACH2(a / (2 * b));
    case TWO_GRAD + SH_GRAD_RSQRT: EACH2(a * (T)-0.5 * (b * b * b));
    case TWO_GRAD + SH_GRAD_RECIPROCAL: EACH2(-a * (b * b));
    case TWO_GRAD + SH_GRAD_SQUARE: EACH2(a * (2 * b));
    case TWO_GRAD + SH_GRAD_SIN: EACH2(a * cos(b));
    case TWO_GRAD + SH_GRAD_COS: EACH2(-a * sin(b));
    case TWO_GRAD + SH_GRAD_LEAKY_RELU: EACH2(b > 0 ? a : a * x);
    case TWO_GRAD + SH_GRAD_CLAMP: EACH2(x <= b && b <= y ? a : 0);
    case TWO_GRAD + SH_GRAD_POW: EACH2(x == 0 ? 0 : a * (x * pow(b, x - 1)));
    case TWO_CUBE_GRAD: EACH2(3 * a * (b * b));
    case TWO_AXPY: EACH2(a + x * b);
    }
}

/* The smallest integer divided by -1 wraps around to itself; anything divided by 0 is 0. */
template <class T> SH_BOTH static inline T divide(T a, T b, bool down)
{
    typedef typename wrapping<T>::type U;
    if (b == 0) {
        return 0;
    }
    if (negative((T)-1) && b == (T)-1) {
        return (T)(0 - (U)a);
    }
    return (T)((U)(a / b) - (U)(down && a % b != 0 && negative(a) != negative(b)));
}

template <class T, int V>
SH_BOTH static inline void integer_two(int op, T x, T y, const T (&in)[V], const T (&other)[V], T (&out)[V])
{
    typedef typename wrapping<T>::type U;
    switch (op) {
    case SH_BINARY_ADD: EACH2((U)a + (U)b);
    case SH_BINARY_SUB: EACH2((U)a - (U)b);
    case SH_BINARY_MUL: EACH2((U)a * (U)b);
    case SH_BINARY_DIV: EACH2(divide(a, b, false));
    case SH_BINARY_FLOOR_DIV: EACH2(divide(a, b, true));
    case SH_BINARY_MAX: EACH2(a > b ? a : b);
    case SH_BINARY_MIN: EACH2(a < b ? a : b);
    case SH_BINARY_AND: EACH2(a & b);
    case SH_BINARY_OR: EACH2(a | b);
    case SH_BINARY_XOR: EACH2(a ^ b);
    case TWO_AXPY: EACH2((U)a + (U)x * (U)b);
    }
}

template <class T> SH_BOTH static inline bool compare(int op, T a, T b)
{
    switch (op) {
    case SH_BINARY_EQ: return a == b;
    case SH_BINARY_NE: return a != b;
    case SH_BINARY_LT: return a < b;
    case SH_BINARY_LE: return a <= b;
    case SH_BINARY_GT: return a > b;
    default: return a >= b;
    }
}

#undef EACH1
#undef EACH2

#endif
