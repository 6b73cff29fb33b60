/* Splits the dimensions of a reduction into those that are kept and those that are reduced. Strides count elements. */
#ifndef SH_KERNELS_REDUCE_PLAN_H
#define SH_KERNELS_REDUCE_PLAN_H

#include "kernels/reduce.h"

typedef struct sh_reduce_plan {
    int32_t kept, reduced; /* how many of each */
    int64_t kept_shape[SH_MAX_DIMS], kept_in[SH_MAX_DIMS], kept_out[SH_MAX_DIMS];
    int64_t reduced_shape[SH_MAX_DIMS], reduced_in[SH_MAX_DIMS];
    int64_t results; /* product of kept_shape */
    int64_t each;    /* product of reduced_shape */
} sh_reduce_plan;

/* Checks the shapes and dtypes for op. Reduced dimensions keep their order;
 * those that are adjacent in memory are merged. */
shoal_err sh_reduce_plan_init(sh_reduce_plan *plan, sh_reduce_op op, const sh_view *out, const sh_view *a);

/* Advances at by one position over shape, and *offset by the strides. Returns false at the end. */
static inline bool sh_reduce_next(int32_t ndim, const int64_t shape[], const int64_t strides[], int64_t at[],
                                  int64_t *offset)
{
    for (int32_t d = ndim; d-- > 0;) {
        *offset += strides[d];
        if (++at[d] < shape[d]) {
            return true;
        }
        *offset -= strides[d] * shape[d];
        at[d] = 0;
    }
    return false;
}

#endif
