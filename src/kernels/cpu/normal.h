/* Makes two normal numbers from two random words, by Box-Muller. Uses neither fused multiply-add nor libm, so that
 * every instruction set gives the same bits; files that include this are compiled with -ffp-contract=off. Branch-free,
 * so that loops over it become vector code. A GPU computes the same bits (cuda/random.cu).
 *
 * Polynomials: log is that of Cephes for f32 and of fdlibm for f64, on [1/√2, √2]; so are sine and cosine, on [-π/4,
 * π/4]. */
#ifndef SH_KERNELS_CPU_NORMAL_H
#define SH_KERNELS_CPU_NORMAL_H

#include "kernels/both.h"

#include <math.h>
#include <stdint.h>
#include <string.h>

/* Returns log(x) of a normal positive x. */
SH_BOTH static inline float sh_normal_logf(float x)
{
    int32_t bits;
    memcpy(&bits, &x, sizeof bits);
    int32_t e = (bits - 0x3f3504f3) >> 23; /* the mantissa is then in [√½, √2) */
    bits -= (int32_t)((uint32_t)e << 23);
    float m;
    memcpy(&m, &bits, sizeof m);
    float f = m - 1, z = f * f, k = (float)e;
    float p = 7.0376836292e-2f;
    p = p * f - 1.1514610310e-1f;
    p = p * f + 1.1676998740e-1f;
    p = p * f - 1.2420140846e-1f;
    p = p * f + 1.4249322787e-1f;
    p = p * f - 1.6668057665e-1f;
    p = p * f + 2.0000714765e-1f;
    p = p * f - 2.4999993993e-1f;
    p = p * f + 3.3333331174e-1f;
    float y = f * z * p + k * -2.12194440e-4f - z * 0.5f;
    return f + y + k * 0.693359375f;
}

SH_BOTH static inline double sh_normal_log(double x)
{
    int64_t bits;
    memcpy(&bits, &x, sizeof bits);
    int64_t e = (bits - 0x3fe6a09e667f3bcd) >> 52;
    bits -= (int64_t)((uint64_t)e << 52);
    double m;
    memcpy(&m, &bits, sizeof m);
    double f = m - 1, s = f / (2 + f), z = s * s, w = z * z, k = (double)(int32_t)e;
    double t1 = w * (3.999999999940941908e-01 + w * (2.222219843214978396e-01 + w * 1.531383769920937332e-01));
    double t2 = z * (6.666666666666735130e-01 +
                     w * (2.857142874366239149e-01 + w * (1.818357216161805012e-01 + w * 1.479819860511658591e-01)));
    double half = 0.5 * f * f;
    return k * 6.93147180369123816490e-01 - ((half - (s * (half + (t1 + t2)) + k * 1.90821492927058770002e-10)) - f);
}

/* z[0] = r · cos(2π v / 2^32), z[1] = r · sin(2π v / 2^32), r = sqrt(-2 log((u + 1) / 2^32)). */
SH_BOTH static inline void sh_normal_pair_f32(uint32_t u, uint32_t v, float *z0, float *z1)
{
    float low = (float)(int32_t)(u & 0xffff) + 1, high = (float)(int32_t)(u >> 16) * 65536;
    float r = sqrtf(-2 * sh_normal_logf((high + low) * 0x1p-32f));
    uint32_t quarter = (v + 0x20000000u) >> 30;
    float a = (float)(int32_t)(v - (quarter << 30)) * 1.4629180792671596e-9f, z = a * a;
    float s = ((-1.9515295891e-4f * z + 8.3321608736e-3f) * z - 1.6666654611e-1f) * z * a + a;
    float c = ((2.443315711809948e-5f * z - 1.388731625493765e-3f) * z + 4.166664568298827e-2f) * z * z - 0.5f * z + 1;
    float cosine = quarter & 1 ? s : c, sine = quarter & 1 ? c : s;
    cosine = (quarter + 1) & 2 ? -cosine : cosine;
    sine = quarter & 2 ? -sine : sine;
    *z0 = r * cosine;
    *z1 = r * sine;
}

SH_BOTH static inline void sh_normal_pair_f64(uint64_t u, uint64_t v, double *z0, double *z1)
{
    double r = sqrt(-2 * sh_normal_log(((double)(int64_t)(u >> 11) + 1) * 0x1p-53));
    uint64_t quarter = (v + (UINT64_C(1) << 61)) >> 62;
    double a = (double)(int64_t)(v - (quarter << 62)) * 3.4061215800301474e-19, z = a * a;
    double s = 1.58969099521155010221e-10;
    s = s * z - 2.50507602534068634195e-08;
    s = s * z + 2.75573137070700676789e-06;
    s = s * z - 1.98412698298579493134e-04;
    s = s * z + 8.33333333332248946124e-03;
    s = s * z - 1.66666666666666324348e-01;
    s = s * z * a + a;
    double c = -1.13596475577881948265e-11;
    c = c * z + 2.08757232129817482790e-09;
    c = c * z - 2.75573143513906633035e-07;
    c = c * z + 2.48015872894767294178e-05;
    c = c * z - 1.38888888888741095749e-03;
    c = c * z + 4.16666666666666019037e-02;
    c = c * z * z - 0.5 * z + 1;
    double cosine = quarter & 1 ? s : c, sine = quarter & 1 ? c : s;
    *z0 = r * ((quarter + 1) & 2 ? -cosine : cosine);
    *z1 = r * (quarter & 2 ? -sine : sine);
}

#endif
