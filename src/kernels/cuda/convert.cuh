/* How an element of each dtype is stored, and conversion between any two dtypes, as the contract of copy says. */
#ifndef SH_KERNELS_CUDA_CONVERT_CUH
#define SH_KERNELS_CUDA_CONVERT_CUH

#include "kernels/cpu/half.h"

#include <shoal/dtype.h>

/* An element is computed with as a float, a double or an int64_t: its number. These functions convert it to the number
 * of another dtype. */

SH_BOTH static inline float sh_as_float(float x)
{
    return x;
}

/* Keeps the payload of a NaN, as x86 does. */
SH_BOTH static inline float sh_as_float(double x)
{
    if (x == x) {
        return (float)x;
    }
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    return sh_bits_float((uint32_t)(bits >> 32 & 0x80000000u) | 0x7fc00000u | (uint32_t)(bits >> 29 & 0x3fffffu));
}

SH_BOTH static inline float sh_as_float(int64_t x)
{
    return (float)x;
}

SH_BOTH static inline int64_t sh_as_i64(int64_t x)
{
    return x;
}

SH_BOTH static inline int64_t sh_as_i64(double x)
{
    return x != x ? 0 : x >= 9223372036854775808.0 ? INT64_MAX : x < -9223372036854775808.0 ? INT64_MIN : (int64_t)x;
}

SH_BOTH static inline int64_t sh_as_i64(float x)
{
    return sh_as_i64((double)x);
}

SH_BOTH static inline int32_t sh_as_i32(int64_t x)
{
    return (int32_t)(uint32_t)(uint64_t)x;
}

SH_BOTH static inline int32_t sh_as_i32(double x)
{
    return x != x ? 0 : x >= 2147483647.0 ? INT32_MAX : x <= -2147483648.0 ? INT32_MIN : (int32_t)x;
}

SH_BOTH static inline int32_t sh_as_i32(float x)
{
    return sh_as_i32((double)x);
}

/* type: what is in memory. get: its number. put: the element for a number of any kind. */
template <shoal_dtype> struct sh_element;

#define SH_ELEMENT(dtype, held, number, read, written)                                                                 \
    template <> struct sh_element<dtype> {                                                                             \
        typedef held type;                                                                                             \
        SH_BOTH static number get(held v)                                                                              \
        {                                                                                                              \
            return read;                                                                                               \
        }                                                                                                              \
        template <class Number> SH_BOTH static held put(Number n)                                                      \
        {                                                                                                              \
            return written;                                                                                            \
        }                                                                                                              \
    };

SH_ELEMENT(SHOAL_F32, float, float, v, sh_as_float(n))
SH_ELEMENT(SHOAL_F64, double, double, v, (double)n)
SH_ELEMENT(SHOAL_BF16, uint16_t, float, sh_bf16_to_float(v), sh_float_to_bf16(sh_as_float(n)))
SH_ELEMENT(SHOAL_F16, uint16_t, float, sh_f16_to_float(v), sh_float_to_f16(sh_as_float(n)))
SH_ELEMENT(SHOAL_I64, int64_t, int64_t, v, sh_as_i64(n))
SH_ELEMENT(SHOAL_I32, int32_t, int64_t, v, sh_as_i32(n))
SH_ELEMENT(SHOAL_U8, uint8_t, int64_t, v, (uint8_t)sh_as_i64(n))
SH_ELEMENT(SHOAL_B8, uint8_t, int64_t, v != 0, n != 0)

#endif
