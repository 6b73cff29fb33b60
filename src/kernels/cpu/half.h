/* Conversion of bf16 and f16, kept as bits. Branch-free, so that loops over it become vector code. Compiled for a GPU,
 * too: its bits are the same. */
#ifndef SH_KERNELS_CPU_HALF_H
#define SH_KERNELS_CPU_HALF_H

#include "kernels/both.h"

#include <stdint.h>
#include <string.h>

SH_BOTH static inline uint32_t sh_float_bits(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

SH_BOTH static inline float sh_bits_float(uint32_t u)
{
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

SH_BOTH static inline float sh_bf16_to_float(uint16_t h)
{
    return sh_bits_float((uint32_t)h << 16);
}

SH_BOTH static inline uint16_t sh_float_to_bf16(float x)
{
    uint32_t u = sh_float_bits(x);
    uint32_t rounded = (u + 0x7fffu + ((u >> 16) & 1)) >> 16;
    uint32_t nan = (u >> 16) | 0x40u;
    return (uint16_t)((u & 0x7fffffffu) > 0x7f800000u ? nan : rounded);
}

/* Multiplies by a power of two to move the exponent, which is exact for subnormal numbers too. */
SH_BOTH static inline float sh_f16_to_float(uint16_t h)
{
    uint32_t u = (uint32_t)(h & 0x7fffu) << 13;
    uint32_t finite = sh_float_bits(sh_bits_float(u) * 0x1p112f);
    uint32_t magnitude = (h & 0x7c00u) == 0x7c00u ? u | 0x7f800000u : finite;
    return sh_bits_float(magnitude | (uint32_t)(h & 0x8000u) << 16);
}

SH_BOTH static inline uint16_t sh_float_to_f16(float x)
{
    uint32_t u = sh_float_bits(x);
    uint32_t sign = (u >> 16) & 0x8000u;
    u &= 0x7fffffffu;
    /* Below 2^-14: after adding 0.5, the low bits of the sum are those of the rounded subnormal f16. */
    uint32_t small = sh_float_bits(sh_bits_float(u) + 0.5f) - 0x3f000000u;
    uint32_t normal = (u - 0x38000000u + 0xfffu + ((u >> 13) & 1)) >> 13;
    uint32_t h = u < 0x38800000u ? small : normal;
    h = u >= 0x477ff000u ? 0x7c00u : h; /* 65520 and above round to infinity */
    h = u > 0x7f800000u ? 0x7e00u | ((u >> 13) & 0x3ffu) : h;
    return (uint16_t)(h | sign);
}

#endif
