/* The contract of softmax and of the losses built on it. f32 and f64.
 *
 * Arrays are contiguous [outer, n, inner], and softmax runs along n: class scores of a batch are [samples, classes, 1],
 * class scores of each pixel are [samples, classes, pixels]. Targets are i64 [outer, inner]. Every function overwrites
 * its outputs (`=`). Arrays may not overlap unless noted. */
#ifndef SH_KERNELS_SOFTMAX_H
#define SH_KERNELS_SOFTMAX_H

#include "kernels/view.h"

#include <shoal/reduction.h>

typedef enum sh_softmax_op {
    SH_SOFTMAX,
    SH_LOG_SOFTMAX,
    SH_SOFTMAX_OPS,
} sh_softmax_op;

typedef struct sh_softmax_shape {
    shoal_dtype dtype;
    int64_t outer, n, inner;
} sh_softmax_shape;

typedef struct sh_nll_args {
    sh_softmax_shape shape; /* n is the number of classes */
    /* SHOAL_REDUCTION_NONE: one loss for each target, 0 if it is ignored. SHOAL_REDUCTION_MEAN: the sum divided by the
     * total weight of the targets that are not ignored, NaN if all are. */
    shoal_reduction reduction;
    const int64_t *target; /* [outer, inner]; each is 0 to n - 1, or ignore_index */
    int64_t ignore_index;
    const void *weight; /* of each class, [n]; NULL means all 1 */
} sh_nll_args;

typedef struct sh_softmax_kernels {
    /* y = softmax(x) or log_softmax(x). y may be x. */
    shoal_err (*forward)(sh_exec *exec, sh_softmax_op op, const sh_softmax_shape *shape, void *y, const void *x);
    /* dx = the gradient of x, from dy and y, the result of forward. dx may be dy.
     * SH_SOFTMAX: dx = y · (dy - Σ dy·y). SH_LOG_SOFTMAX: dx = dy - exp(y) · Σ dy. */
    shoal_err (*backward)(sh_exec *exec, sh_softmax_op op, const sh_softmax_shape *shape, void *dx, const void *dy,
                          const void *y);
    /* loss = the negative log-likelihood of log_probs: one element, or [outer, inner] for SHOAL_REDUCTION_NONE. total =
     * the sum of the targets' weights, one element, saved for backward. Errors: SHOAL_EINVAL if a target is out of
     * range (a GPU gives NaN instead). */
    shoal_err (*nll)(sh_exec *exec, const sh_nll_args *args, void *loss, void *total, const void *log_probs);
    /* dx [outer, n, inner] = the gradient of log_probs. dloss has the shape of loss and is in device memory. */
    shoal_err (*nll_backward)(sh_exec *exec, const sh_nll_args *args, void *dx, const void *dloss, const void *total);
    /* loss and total as nll(log_softmax(x)), and log_probs = log_softmax(x), saved for backward. log_probs may be x. */
    shoal_err (*cross_entropy)(sh_exec *exec, const sh_nll_args *args, void *loss, void *total, void *log_probs,
                               const void *x);
    /* dx = the gradient of x, in one pass. dx may be log_probs. */
    shoal_err (*cross_entropy_backward)(sh_exec *exec, const sh_nll_args *args, void *dx, const void *dloss,
                                        const void *total, const void *log_probs);
} sh_softmax_kernels;

extern const sh_softmax_kernels sh_softmax_kernels_reference;
extern const sh_softmax_kernels sh_softmax_kernels_avx2;
extern const sh_softmax_kernels sh_softmax_kernels_avx512;

#endif
