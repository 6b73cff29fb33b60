/* What kernels work on: an element type, a shape and strides over memory of one device. */
#ifndef SH_KERNELS_VIEW_H
#define SH_KERNELS_VIEW_H

#include <shoal/dtype.h>
#include <shoal/error.h>

#include <stddef.h>
#include <stdint.h>

#define SH_MAX_DIMS 8

/* Returns whether kernels compute with these floats; the narrow ones, bf16 and f16, are only stored and converted. */
static inline bool sh_dtype_is_wide_float(shoal_dtype dtype)
{
    return dtype == SHOAL_F32 || dtype == SHOAL_F64;
}

/* Strides count elements; they are never negative and may be 0 (a broadcast input).
 * data points to the first element. */
typedef struct sh_view {
    void *data;
    int64_t shape[SH_MAX_DIMS];
    int64_t strides[SH_MAX_DIMS];
    int32_t ndim; /* 0 means one element */
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

/* The context in which kernels run: one for each thread and device. Kernels of one context run one after another.
 * A kernel may use scratch while it runs; the next kernel overwrites it. */
typedef struct sh_exec {
    void *stream; /* of a GPU; NULL on the CPU */
    void *scratch;
    size_t scratch_size;
    const uint64_t *advance; /* on a GPU while a step is captured: blocks to add to the offset of each random key, in
                              * GPU memory, so that each replay draws other numbers; otherwise NULL */
} sh_exec;

/* Returns at least size bytes of scratch memory, aligned to 64; exec owns them. CPU only. Returns NULL and sets
 * SHOAL_ENOMEM if there is no memory. */
void *sh_exec_scratch(sh_exec *exec, size_t size);

#endif
