/* f32 functions without branches and without libm, so that loops over them become vector code. They are within 2 ulp (8
 * for the normal distribution), subnormal results included; NaN and infinities behave as in libm. Polynomials of
 * Cephes. */
#ifndef SH_KERNELS_CPU_MATH_FAST_H
#define SH_KERNELS_CPU_MATH_FAST_H

#include "kernels/cpu/half.h"

#include <math.h>

/* Returns 2^n for n from -126 to 127. */
static inline float sh_power_of_two(int32_t n)
{
    return sh_bits_float((uint32_t)(n + 127) << 23);
}

static inline float sh_expf(float x)
{
    x = x > 89.0f ? 89.0f : x; /* NaN stays NaN */
    x = x < -104.0f ? -104.0f : x;
    float shifted = x * 1.44269504088896341f + 12582912.0f; /* adding 1.5 · 2^23 rounds to an integer in the low bits */
    float n = shifted - 12582912.0f;
    int32_t k = (int32_t)(sh_float_bits(shifted) - 0x4b400000u);
    float r = x - n * 0.693359375f;
    r = r - n * -2.12194440e-4f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * (r * r) + r + 1;
    k = k > 128 ? 128 : k < -151 ? -151 : k; /* for NaN, whose bits are arbitrary */
    int32_t half = k >> 1;
    return p * sh_power_of_two(half) * sh_power_of_two(k - half);
}

static inline float sh_logf(float x)
{
    float scaled = x < 0x1p-126f ? x * 0x1p23f : x;
    float e0 = x < 0x1p-126f ? -23.0f : 0.0f;
    uint32_t bits = sh_float_bits(scaled);
    int32_t e = (int32_t)(bits - 0x3f3504f3u) >> 23; /* the mantissa is then in [√½, √2) */
    float f = sh_bits_float(bits - ((uint32_t)e << 23)) - 1, k = (float)e + e0, z = f * f;
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
    y = f + y + k * 0.693359375f;
    y = x == 0 ? -INFINITY : y;
    y = x > 3.402823466e38f ? INFINITY : y;
    return x < 0 || x != x ? NAN : y;
}

static inline float sh_tanhf(float x)
{
    float a = sh_bits_float(sh_float_bits(x) & 0x7fffffffu), z = x * x;
    float p = -5.70498872745e-3f;
    p = p * z + 2.06390887954e-2f;
    p = p * z - 5.37397155531e-2f;
    p = p * z + 1.33314422036e-1f;
    p = p * z - 3.33332819422e-1f;
    float small = p * z * x + x;
    float large = 1 - 2 / (sh_expf(2 * a) + 1);
    float y = a < 0.625f ? small : large; /* small has the sign of x already, unless x is -0 */
    return sh_bits_float(sh_float_bits(y) | (sh_float_bits(x) & 0x80000000u));
}

static inline float sh_sigmoidf(float x)
{
    float a = sh_bits_float(sh_float_bits(x) | 0x80000000u); /* -|x| */
    float e = sh_expf(a);
    return (x < 0 ? e : 1) / (1 + e);
}

/* The distribution function of the normal distribution, erfc(-x/√2)/2. erfc uses the polynomial of Numerical Recipes,
 * with a correction for the rounding error of the square. */
static inline float sh_phif(float x)
{
    float a = sh_bits_float(sh_float_bits(x) & 0x7fffffffu);
    a = a > 16.0f ? 16.0f : a;
    float t = 1 / (1 + 0.35355339f * a), square = a * a, rest = fmaf(a, a, -square);
    float p = 0.17087277f;
    p = p * t - 0.82215223f;
    p = p * t + 1.48851587f;
    p = p * t - 1.13520398f;
    p = p * t + 0.27886807f;
    p = p * t - 0.18628806f;
    p = p * t + 0.09678418f;
    p = p * t + 0.37409196f;
    p = p * t + 1.00002368f;
    p = p * t - 1.26551223f;
    float tail = 0.5f * t * sh_expf(p - 0.5f * rest) * sh_expf(-0.5f * square);
    return x > 0 ? 1 - tail : tail;
}

static inline double sh_sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

/* Chooses by type; f64 calls libm. */
#define SH_EXP(x) _Generic((x), float : sh_expf, default : exp)(x)
#define SH_LOG(x) _Generic((x), float : sh_logf, default : log)(x)
#define SH_SQRT(x) _Generic((x), float : sqrtf, default : sqrt)(x)
#define SH_TANH(x) _Generic((x), float : sh_tanhf, default : tanh)(x)
#define SH_SIGMOID(x) _Generic((x), float : sh_sigmoidf, default : sh_sigmoid)(x)

#endif
