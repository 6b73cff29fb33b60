/* Layer norm over the last n elements of each of rows rows. f32 and f64, contiguous.
 *
 *     y = (x - mean) · rstd · gamma + beta,   rstd = 1 / sqrt(variance + eps), the variance being the biased one
 *
 * gamma and beta are [n] and may be NULL, each (1 and 0). mean and rstd are [rows], saved for backward. n = 0 is refused. */
#ifndef SH_KERNELS_NORM_H
#define SH_KERNELS_NORM_H

#include "kernels/view.h"

typedef struct sh_norm_shape {
    shoal_dtype dtype;
    int64_t rows, n;
} sh_norm_shape;

typedef struct sh_norm_kernels {
    /* y, mean, rstd `=`. y may be x. mean and rstd may both be NULL when no backward follows. */
    shoal_err (*layer_norm)(sh_exec *exec, const sh_norm_shape *shape, double eps, void *y, void *mean, void *rstd,
                            const void *x, const void *gamma, const void *beta);
    /* dx `=` (or NULL), dgamma and dbeta `+=` (or NULL). dx may be dy. Rows are added in order. */
    shoal_err (*layer_norm_backward)(sh_exec *exec, const sh_norm_shape *shape, void *dx, void *dgamma, void *dbeta,
                                     const void *dy, const void *x, const void *gamma, const void *mean,
                                     const void *rstd);
} sh_norm_kernels;

extern const sh_norm_kernels sh_norm_kernels_reference;
extern const sh_norm_kernels sh_norm_kernels_avx2;
extern const sh_norm_kernels sh_norm_kernels_avx512;

#endif
