/* Access to single elements of any dtype, for the reference kernels, which prefer clarity to speed. */
#ifndef SH_KERNELS_CPU_ELEMENT_H
#define SH_KERNELS_CPU_ELEMENT_H

#include "base/error.h"
#include "kernels/view.h"

static inline double sh_get(shoal_dtype dtype, const void *data, int64_t i)
{
    return dtype == SHOAL_F32 ? (double)((const float *)data)[i] : ((const double *)data)[i];
}

static inline void sh_element_put(shoal_dtype dtype, void *data, int64_t i, double x)
{
    if (dtype == SHOAL_F32) {
        ((float *)data)[i] = (float)x;
    } else {
        ((double *)data)[i] = x;
    }
}

static inline int64_t sh_get_int(shoal_dtype dtype, const void *data, int64_t i)
{
    switch (dtype) {
    case SHOAL_I64: return ((const int64_t *)data)[i];
    case SHOAL_I32: return ((const int32_t *)data)[i];
    case SHOAL_B8: return ((const uint8_t *)data)[i] != 0; /* any byte other than 0 is true */
    default: return ((const uint8_t *)data)[i];
    }
}

static inline void sh_element_put_int(shoal_dtype dtype, void *data, int64_t i, int64_t x)
{
    switch (dtype) {
    case SHOAL_I64: ((int64_t *)data)[i] = x; break;
    case SHOAL_I32: ((int32_t *)data)[i] = (int32_t)(uint32_t)(uint64_t)x; break;
    default: ((uint8_t *)data)[i] = (uint8_t)x; break;
    }
}

/* Returns SHOAL_EINVAL unless dtype is f32 or f64. */
static inline shoal_err sh_element_check_float(const char *what, shoal_dtype dtype)
{
    if (dtype != SHOAL_F32 && dtype != SHOAL_F64) {
        return sh_fail(SHOAL_EINVAL, "%s does not support %s, only f32 and f64", what, shoal_dtype_name(dtype));
    }
    return SHOAL_OK;
}

#endif
