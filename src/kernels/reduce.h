/* Reductions of strided views.
 *
 * out has as many dimensions as a. A dimension in which out has size 1 is reduced, whatever a's size there is (0 too); in the
 * others the sizes are equal. out may have any strides and may not overlap a. Every function writes out (`=`). Results stay
 * in the memory of the device.
 *
 * Accuracy of f32: the reference sums in f64; the fast versions add at most 64 numbers in a lane of f32 before they go on in
 * f64, so the relative error is below 64 · 2^-24 of the sum of magnitudes, whatever the length. f64 is summed in f64.
 * Integers and bool are summed in i64, which wraps around. */
#ifndef SH_KERNELS_REDUCE_H
#define SH_KERNELS_REDUCE_H

#include "kernels/view.h"

typedef enum sh_reduce_op {
    SH_REDUCE_SUM,   /* floats: same dtype; integers and bool: out is i64. Of nothing: 0 */
    SH_REDUCE_PROD,  /* as SUM; of nothing: 1 */
    SH_REDUCE_MEAN,  /* floats only; of nothing: NaN */
    SH_REDUCE_SUMSQ, /* floats only: sum of squares */
    SH_REDUCE_MAX,   /* same dtype; NaN if any is. Of nothing: SHOAL_EINVAL */
    SH_REDUCE_MIN,   /* as MAX */
    SH_REDUCE_ARGMAX, /* out is i64: index of the first greatest (the first NaN, if any), counted in row-major order over the
                       * reduced dimensions. Of nothing: SHOAL_EINVAL */
    SH_REDUCE_ARGMIN, /* as ARGMAX */
    SH_REDUCE_ANY,    /* out is bool, a of f32, f64, i64, i32, u8 or bool; of nothing: false */
    SH_REDUCE_ALL,    /* as ANY; of nothing: true */
    SH_REDUCE_OPS,
} sh_reduce_op;

typedef struct sh_reduce_kernels {
    shoal_err (*reduce)(sh_exec *exec, sh_reduce_op op, const sh_view *out, const sh_view *a);
    /* out = log Σ exp(a), floats, over the reduced dimensions; -inf of nothing. Its gradient is g · exp(a - out). */
    shoal_err (*logsumexp)(sh_exec *exec, const sh_view *out, const sh_view *a);
} sh_reduce_kernels;

extern const sh_reduce_kernels sh_reduce_kernels_reference;
extern const sh_reduce_kernels sh_reduce_kernels_avx2;
extern const sh_reduce_kernels sh_reduce_kernels_avx512;

#endif
