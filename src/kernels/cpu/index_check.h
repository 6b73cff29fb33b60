/* Checks all indices before anything is written. */
#ifndef SH_KERNELS_CPU_INDEX_CHECK_H
#define SH_KERNELS_CPU_INDEX_CHECK_H

#include "base/error.h"
#include "kernels/index.h"

static inline shoal_err sh_index_check(const int64_t *index, int64_t count, int64_t bound)
{
    for (int64_t i = 0; i < count; i++) {
        if ((uint64_t)index[i] >= (uint64_t)bound) {
            return sh_fail(SHOAL_EINVAL, "index %lld at %lld is out of range: the bound is %lld", (long long)index[i],
                           (long long)i, (long long)bound);
        }
    }
    return SHOAL_OK;
}

#endif
