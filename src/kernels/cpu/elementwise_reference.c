/* The elementwise kernels, one element at a time. f32 functions are computed in f64. */
#include <math.h>

#define LOOP1(name, R, A, half, expression)                                                                            \
    static void name(char *const p[], const int64_t s[], int64_t n, const void *context)                               \
    {                                                                                                                  \
        typedef A T;                                                                                                   \
        const numbers *c = context;                                                                                    \
        const T x = (T)c->half[0], y = (T)c->half[1];                                                                  \
        (void)x, (void)y;                                                                                              \
        for (int64_t i = 0; i < n; i++) {                                                                              \
            const T a = *(const T *)(p[1] + i * s[1]);                                                                 \
            *(R *)(p[0] + i * s[0]) = (R)(expression);                                                                 \
        }                                                                                                              \
    }
#define LOOP2(name, R, A, half, expression)                                                                            \
    static void name(char *const p[], const int64_t s[], int64_t n, const void *context)                               \
    {                                                                                                                  \
        typedef A T;                                                                                                   \
        const numbers *c = context;                                                                                    \
        const T x = (T)c->half[0], y = (T)c->half[1];                                                                  \
        (void)x, (void)y;                                                                                              \
        for (int64_t i = 0; i < n; i++) {                                                                              \
            const T a = *(const T *)(p[1] + i * s[1]);                                                                 \
            const T b = *(const T *)(p[2] + i * s[2]);                                                                 \
            *(R *)(p[0] + i * s[0]) = (R)(expression);                                                                 \
        }                                                                                                              \
    }
#define EXP(a) exp(a)
#define LOG(a) log(a)
#define SQRT(a) sqrt(a)
#define SIN(a) sin(a)
#define COS(a) cos(a)
#define TANH(a) tanh(a)
#define POW(a, b) pow(a, b)
#define FLOOR(a) floor(a)
#define SIGMOID(a) (1 / (1 + exp(-(double)(a))))
#define PHI(a) (erfc((double)(a) * -0.70710678118654752440) / 2)
#define TABLE sh_elementwise_kernels_reference

#include "kernels/cpu/elementwise_template.h"
