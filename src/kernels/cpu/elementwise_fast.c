/* The elementwise kernels with vectors: separate loops for rows that are contiguous or repeat one element. */
#include "kernels/cpu/math_fast.h"
#include "kernels/isa.h"

/* If an output is also an input, they are the same elements in the same places, so no iteration depends on another. */
#define EACH(...)                                                                                                      \
    SH_INDEPENDENT for (int64_t i = 0; i < n; i++)                                                                     \
    {                                                                                                                  \
        __VA_ARGS__                                                                                                    \
    }
#define NUMBERS(half)                                                                                                  \
    const numbers *c = context;                                                                                        \
    const T x = (T)c->half[0], y = (T)c->half[1];                                                                      \
    (void)x, (void)y

#define LOOP1(name, R, A, half, expression)                                                                            \
    static void name(char *const p[], const int64_t s[], int64_t n, const void *context)                               \
    {                                                                                                                  \
        typedef A T;                                                                                                   \
        NUMBERS(half);                                                                                                 \
        if (s[0] == sizeof(R) && s[1] == sizeof(A)) {                                                                  \
            R *out = (R *)p[0];                                                                                        \
            const T *pa = (const T *)p[1];                                                                             \
            EACH(const T a = pa[i]; out[i] = (R)(expression);)                                                         \
            return;                                                                                                    \
        }                                                                                                              \
        for (int64_t i = 0; i < n; i++) {                                                                              \
            const T a = *(const T *)(p[1] + i * s[1]);                                                                 \
            *(R *)(p[0] + i * s[0]) = (R)(expression);                                                                 \
        }                                                                                                              \
    }

#define LOOP2(name, R, A, half, expression)                                                                            \
    static void name(char *const p[], const int64_t s[], int64_t n, const void *context)                               \
    {                                                                                                                  \
        typedef A T;                                                                                                   \
        NUMBERS(half);                                                                                                 \
        R *out = (R *)p[0];                                                                                            \
        const T *pa = (const T *)p[1], *pb = (const T *)p[2];                                                          \
        if (s[0] == sizeof(R) && s[1] == sizeof(T) && s[2] == sizeof(T)) {                                             \
            EACH(const T a = pa[i], b = pb[i]; out[i] = (R)(expression);)                                              \
        } else if (s[0] == sizeof(R) && s[1] == sizeof(T) && s[2] == 0) {                                              \
            const T b = *pb;                                                                                           \
            EACH(const T a = pa[i]; out[i] = (R)(expression);)                                                         \
        } else if (s[0] == sizeof(R) && s[1] == 0 && s[2] == sizeof(T)) {                                              \
            const T a = *pa;                                                                                           \
            EACH(const T b = pb[i]; out[i] = (R)(expression);)                                                         \
        } else {                                                                                                       \
            for (int64_t i = 0; i < n; i++) {                                                                          \
                const T a = *(const T *)(p[1] + i * s[1]), b = *(const T *)(p[2] + i * s[2]);                          \
                *(R *)(p[0] + i * s[0]) = (R)(expression);                                                             \
            }                                                                                                          \
        }                                                                                                              \
    }

static inline double normal_cdf(double a)
{
    return erfc(a * -0.70710678118654752440) / 2;
}

#define CHOOSE(a, f32, f64) _Generic((a), float : f32, default : f64)
#define EXP(a) SH_EXP(a)
#define LOG(a) SH_LOG(a)
#define SQRT(a) SH_SQRT(a)
#define SIN(a) CHOOSE(a, sinf, sin)(a)
#define COS(a) CHOOSE(a, cosf, cos)(a)
#define TANH(a) SH_TANH(a)
#define POW(a, b) CHOOSE(a, powf, pow)(a, b)
#define FLOOR(a) CHOOSE(a, floorf, floor)(a)
#define SIGMOID(a) SH_SIGMOID(a)
#define PHI(a) CHOOSE(a, sh_phif, normal_cdf)(a)
#define TABLE SH_ISA_NAME(sh_elementwise_kernels)

#include "kernels/cpu/elementwise_template.h"
