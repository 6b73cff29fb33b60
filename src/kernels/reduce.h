/* The contract of the reductions of strided views.
 *
 * out has as many dimensions as a. A dimension in which out has size 1 is reduced, whatever its size in a (0 included);
 * in all others the sizes are equal. out may have any strides but may not overlap a. Every function overwrites out
 * (`=`). The result stays in device memory.
 *
 * Accuracy: for f32 the reference sums in f64. The fast versions add at most 64 numbers in an f32 lane before they
 * continue in f64, so the relative error is below 64 · 2^-24 of the sum of magnitudes for any length. f64 is summed in
 * f64. Integers and bool are summed in i64, which wraps around. */
#ifndef SH_KERNELS_REDUCE_H
#define SH_KERNELS_REDUCE_H

#include "kernels/view.h"

typedef enum sh_reduce_op {
    SH_REDUCE_SUM,    /* floats: same dtype; integers and bool: out is i64. 0 if there are no elements */
    SH_REDUCE_PROD,   /* dtypes as SUM; 1 if there are no elements */
    SH_REDUCE_MEAN,   /* floats only; NaN if there are no elements */
    SH_REDUCE_SUMSQ,  /* floats only: the sum of squares */
    SH_REDUCE_MAX,    /* same dtype; NaN if any element is NaN. SHOAL_EINVAL if there are no elements */
    SH_REDUCE_MIN,    /* as MAX */
    SH_REDUCE_ARGMAX, /* out is i64: the index of the first maximum (of the first NaN, if there is one), counted in
                       * row-major order over the reduced dimensions. SHOAL_EINVAL if there are no elements */
    SH_REDUCE_ARGMIN, /* as ARGMAX */
    SH_REDUCE_ANY,    /* out is bool; a is f32, f64, i64, i32, u8 or bool. False if there are no elements */
    SH_REDUCE_ALL,    /* as ANY; true if there are no elements */
    SH_REDUCE_OPS,
} sh_reduce_op;

typedef struct sh_reduce_kernels {
    shoal_err (*reduce)(sh_exec *exec, sh_reduce_op op, const sh_view *out, const sh_view *a);
    /* out = log Σ exp(a) over the reduced dimensions; -inf if there are no elements. Floats. The gradient is g · exp(a
     * - out). */
    shoal_err (*logsumexp)(sh_exec *exec, const sh_view *out, const sh_view *a);
} sh_reduce_kernels;

extern const sh_reduce_kernels sh_reduce_kernels_reference;
extern const sh_reduce_kernels sh_reduce_kernels_avx2;
extern const sh_reduce_kernels sh_reduce_kernels_avx512;

#endif
