/* Softmax and the losses built on it. f32 and f64.
 *
 * Arrays are contiguous [outer, n, inner]: softmax goes along n; a batch of class scores is [samples, classes, 1], pictures of
 * scores are [samples, classes, pixels]. Targets are i64 [outer, inner]. Every function writes its outputs (`=`). */
#ifndef SH_KERNELS_SOFTMAX_H
#define SH_KERNELS_SOFTMAX_H

#include "kernels/view.h"

typedef enum sh_softmax_op {
    SH_SOFTMAX,
    SH_LOG_SOFTMAX,
    SH_SOFTMAX_OPS,
} sh_softmax_op;

typedef enum sh_reduction {
    SH_REDUCTION_NONE, /* one loss for each target, 0 where it is ignored */
    SH_REDUCTION_SUM,
    SH_REDUCTION_MEAN, /* sum divided by the sum of the weights of what is not ignored; NaN if that is all */
    SH_REDUCTIONS,
} sh_reduction;

typedef struct sh_softmax_shape {
    shoal_dtype dtype;
    int64_t outer, n, inner;
} sh_softmax_shape;

typedef struct sh_nll_args {
    sh_softmax_shape shape; /* n is the number of classes */
    sh_reduction reduction;
    const int64_t *target; /* [outer, inner]; 0 to n - 1, or ignore_index */
    int64_t ignore_index;
    const void *weight; /* of the classes, [n]; or NULL: all 1 */
} sh_nll_args;

typedef struct sh_softmax_kernels {
    /* y = softmax(x) or log_softmax(x). y may be x. */
    shoal_err (*forward)(sh_exec *exec, sh_softmax_op op, const sh_softmax_shape *shape, void *y, const void *x);
    /* dx from dy and y, the result of forward. dx may be dy.
     * SH_SOFTMAX: y · (dy - Σ dy·y). SH_LOG_SOFTMAX: dy - exp(y) · Σ dy. */
    shoal_err (*backward)(sh_exec *exec, sh_softmax_op op, const sh_softmax_shape *shape, void *dx, const void *dy,
                          const void *y);
    /* loss of log-probabilities: one element, or [outer, inner] for SH_REDUCTION_NONE. total: one element, the sum of weights,
     * kept for backward. A target out of range: SHOAL_EINVAL (on a card: NaN). */
    shoal_err (*nll)(sh_exec *exec, const sh_nll_args *args, void *loss, void *total, const void *log_probs);
    /* dx [outer, n, inner] = gradient of log-probabilities; dloss has the shape of loss and lies on the device. */
    shoal_err (*nll_backward)(sh_exec *exec, const sh_nll_args *args, void *dx, const void *dloss, const void *total);
    /* nll(log_softmax(x)) in one: also gives log_probs, which backward wants. log_probs may be x. */
    shoal_err (*cross_entropy)(sh_exec *exec, const sh_nll_args *args, void *loss, void *total, void *log_probs,
                               const void *x);
    /* dx = gradient of the scores, in one pass. dx may be log_probs. */
    shoal_err (*cross_entropy_backward)(sh_exec *exec, const sh_nll_args *args, void *dx, const void *dloss,
                                        const void *total, const void *log_probs);
} sh_softmax_kernels;

extern const sh_softmax_kernels sh_softmax_kernels_reference;
extern const sh_softmax_kernels sh_softmax_kernels_avx2;
extern const sh_softmax_kernels sh_softmax_kernels_avx512;

#endif
