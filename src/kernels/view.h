/* What kernels work on: an element type, a shape and strides over plain memory of one device. */
#ifndef SH_KERNELS_VIEW_H
#define SH_KERNELS_VIEW_H

#include <shoal/dtype.h>
#include <shoal/error.h>

#include <stddef.h>
#include <stdint.h>

#define SH_MAX_DIMS 8

/* Strides count elements, are not negative, and may be 0 (a broadcast input). data points to the first element. */
typedef struct sh_view {
    void *data;
    int64_t shape[SH_MAX_DIMS];
    int64_t strides[SH_MAX_DIMS];
    int32_t ndim; /* 0: one element */
    shoal_dtype dtype;
} sh_view;

static inline int64_t sh_view_count(const sh_view *v)
{
    int64_t n = 1;
    for (int32_t d = 0; d < v->ndim; d++) {
        n *= v->shape[d];
    }
    return n;
}

static inline bool sh_view_is_contiguous(const sh_view *v)
{
    int64_t next = 1;
    for (int32_t d = v->ndim; d-- > 0;) {
        if (v->shape[d] != 1 && v->strides[d] != next) {
            return false;
        }
        next *= v->shape[d];
    }
    return true;
}

/* Where a kernel runs. One per thread and device; kernels of one exec run one after another.
 * scratch: room that a kernel may use while it runs; what is in it is lost with the next kernel. */
typedef struct sh_exec {
    void *stream; /* of a card; NULL on the CPU */
    void *scratch;
    size_t scratch_size;
} sh_exec;

/* At least size bytes of scratch, aligned to 64; NULL and SHOAL_ENOMEM when there are none. On the CPU. */
void *sh_exec_scratch(sh_exec *exec, size_t size);

#endif
