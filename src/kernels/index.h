/* Reading and writing by index. Indices are i64 and run from 0: a negative one is out of range.
 *
 * An index out of range is SHOAL_EINVAL, with the index and the bound in the words; the CPU looks at all indices before it
 * writes anything. (A card cannot tell the host without waiting: there such an element reads as 0 and is not written.) */
#ifndef SH_KERNELS_INDEX_H
#define SH_KERNELS_INDEX_H

#include "kernels/view.h"

/* select and add: a table [outer, rows, inner] and count indices into rows; contiguous. Embedding: outer 1. */
typedef struct sh_index_shape {
    shoal_dtype dtype;
    int64_t outer, rows, inner;
    int64_t count;
} sh_index_shape;

typedef struct sh_index_kernels {
    /* out [outer, count, inner] = table[:, index, :]; any dtype. */
    shoal_err (*select)(sh_exec *exec, const sh_index_shape *shape, void *out, const void *table, const int64_t *index);
    /* table[:, index[i], :] += in [outer, count, inner]; i = 0, 1, … in order, so equal indices add up the same way each
     * time. f32, f64, i64, i32. */
    shoal_err (*add)(sh_exec *exec, const sh_index_shape *shape, void *table, const void *in, const int64_t *index);

    /* out[…, i, …] = a[…, index[…, i, …], …]: out and index have one shape, which is not greater than a's in the dimensions
     * other than dim. Any dtype. Any strides; out overlaps nothing. */
    shoal_err (*gather)(sh_exec *exec, int32_t dim, const sh_view *out, const sh_view *a, const sh_view *index);
    /* out[…, index[…, i, …], …] = a[…, i, …]: a and index have one shape, which is not greater than out's in the dimensions
     * other than dim. Of equal indices the last in row-major order stays. Any dtype. */
    shoal_err (*scatter)(sh_exec *exec, int32_t dim, const sh_view *out, const sh_view *a, const sh_view *index);
    /* The same with `+=`, in row-major order. f32, f64, i64, i32. */
    shoal_err (*scatter_add)(sh_exec *exec, int32_t dim, const sh_view *out, const sh_view *a, const sh_view *index);

    /* out [count, classes] = 1 at the index, else 0; contiguous; f32, f64, i64, i32, u8, bool. */
    shoal_err (*one_hot)(sh_exec *exec, shoal_dtype dtype, void *out, const int64_t *index, int64_t count,
                         int64_t classes);
} sh_index_kernels;

extern const sh_index_kernels sh_index_kernels_reference;
extern const sh_index_kernels sh_index_kernels_avx2;
extern const sh_index_kernels sh_index_kernels_avx512;

#endif
