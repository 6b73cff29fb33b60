/* The contract of the indexing kernels: read and write by index. Indices are i64 and start at 0; a negative index is
 * out of range.
 *
 * No output overlaps an input. An index out of range gives SHOAL_EINVAL, and the error text names the index and the
 * bound. The CPU kernels check all indices before they write anything. (A GPU cannot report to the host without
 * synchronising: its kernels read such an element as 0 and do not write it.) */
#ifndef SH_KERNELS_INDEX_H
#define SH_KERNELS_INDEX_H

#include "kernels/view.h"

/* For select and add: a contiguous table [outer, rows, inner], and count indices into rows.
 * An embedding has outer 1. */
typedef struct sh_index_shape {
    shoal_dtype dtype;
    int64_t outer, rows, inner;
    int64_t count;
} sh_index_shape;

typedef struct sh_index_kernels {
    /* out [outer, count, inner] = table[:, index, :]. Any dtype. */
    shoal_err (*select)(sh_exec *exec, const sh_index_shape *shape, void *out, const void *table, const int64_t *index);
    /* table[:, index[i], :] += in [outer, count, inner]. i runs from 0 upwards, so repeated indices always add in the
     * same order. f32, f64, i64, i32. */
    shoal_err (*add)(sh_exec *exec, const sh_index_shape *shape, void *table, const void *in, const int64_t *index);

    /* out[…, i, …] = a[…, index[…, i, …], …]. out and index have one shape, which does not exceed a's in any dimension
     * other than dim. Any dtype, any strides. */
    shoal_err (*gather)(sh_exec *exec, int32_t dim, const sh_view *out, const sh_view *a, const sh_view *index);
    /* out[…, index[…, i, …], …] = a[…, i, …]. a and index have one shape, which does not exceed out's in any dimension
     * other than dim. If an index repeats, the last element in row-major order wins. Any dtype, any strides. */
    shoal_err (*scatter)(sh_exec *exec, int32_t dim, const sh_view *out, const sh_view *a, const sh_view *index);
    /* As scatter, but `+=`, in row-major order. f32, f64, i64, i32. */
    shoal_err (*scatter_add)(sh_exec *exec, int32_t dim, const sh_view *out, const sh_view *a, const sh_view *index);

    /* out [count, classes] = 1 at the index and 0 elsewhere. Contiguous. f32, f64, i64, i32, u8, bool. */
    shoal_err (*one_hot)(sh_exec *exec, shoal_dtype dtype, void *out, const int64_t *index, int64_t count,
                         int64_t classes);
} sh_index_kernels;

extern const sh_index_kernels sh_index_kernels_reference;
extern const sh_index_kernels sh_index_kernels_avx2;
extern const sh_index_kernels sh_index_kernels_avx512;

#endif
