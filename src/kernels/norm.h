/* The contract of layer norm, over the n elements of each of `rows` rows. f32 and f64, contiguous.
 *
 *     y = (x - mean) · rstd · gamma + beta,   rstd = 1 / sqrt(variance + eps), with the biased variance
 *
 * gamma and beta are [n]; a NULL gamma means 1 and a NULL beta means 0. mean and rstd are [rows], saved for backward.
 * Errors: SHOAL_EINVAL if the dtype is not f32 or f64, or if n is 0; SHOAL_ENOMEM if there is no scratch memory. */
#ifndef SH_KERNELS_NORM_H
#define SH_KERNELS_NORM_H

#include "kernels/view.h"

typedef struct sh_norm_shape {
    shoal_dtype dtype;
    int64_t rows, n;
} sh_norm_shape;

typedef struct sh_norm_kernels {
    /* y =, mean =, rstd =. y may be x. mean and rstd may both be NULL if no backward pass follows. */
    shoal_err (*layer_norm)(sh_exec *exec, const sh_norm_shape *shape, double eps, void *y, void *mean, void *rstd,
                            const void *x, const void *gamma, const void *beta);
    /* dx =, dgamma +=, dbeta +=. A gradient whose pointer is NULL is not computed. dx may be dy. The sums over
     * the rows have a fixed order; at most 64 rows are added in f32 before the sum continues in f64. */
    shoal_err (*layer_norm_backward)(sh_exec *exec, const sh_norm_shape *shape, void *dx, void *dgamma, void *dbeta,
                                     const void *dy, const void *x, const void *gamma, const void *mean,
                                     const void *rstd);
} sh_norm_kernels;

extern const sh_norm_kernels sh_norm_kernels_reference;
extern const sh_norm_kernels sh_norm_kernels_avx2;
extern const sh_norm_kernels sh_norm_kernels_avx512;

#endif
