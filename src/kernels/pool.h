/* The contract of the pooling kernels: the maximum or the mean of each window of an image.
 *
 * x [N, C, H, W] and y [N, C, OH, OW] are contiguous and have one element type, f32 or f64. No output overlaps an
 * input. */
#ifndef SH_KERNELS_POOL_H
#define SH_KERNELS_POOL_H

#include "kernels/view.h"

#include <stdbool.h>

/* h is the vertical direction (rows), w the horizontal one (columns). pad is at most half of kernel, so every window
 * contains at least one element of x. */
typedef struct sh_pool2d {
    shoal_dtype dtype;
    int64_t n, c, in_h, in_w;
    int64_t kernel_h, kernel_w;
    int64_t stride_h, stride_w;
    int64_t pad_h, pad_w;
    bool exclude_pad; /* divide by the elements inside x; else by kernel_h * kernel_w, PyTorch's default */
} sh_pool2d;

/* Return the height and the width of the output. If either is below 1, the window does not fit into the padded image
 * and no function below may be called. */
static inline int64_t sh_pool2d_out_h(const sh_pool2d *p)
{
    return (p->in_h + 2 * p->pad_h - p->kernel_h) / p->stride_h + 1;
}

static inline int64_t sh_pool2d_out_w(const sh_pool2d *p)
{
    return (p->in_w + 2 * p->pad_w - p->kernel_w) / p->stride_w + 1;
}

/* Errors: SHOAL_EINVAL if the element type is not f32 or f64, or if a plane has 2^31 elements or more. */
typedef struct sh_pooling_kernels {
    /* y = the maximum of the window. winner [N, C, OH, OW] = its position h * W + w within its plane of x. Of equal
     * maxima the first in row-major order wins. NaN counts as the greatest value, and the last of several NaNs wins, as
     * in PyTorch. */
    shoal_err (*max_forward)(sh_exec *exec, const sh_pool2d *p, const void *x, void *y, int32_t *winner);

    /* grad_x =. Saved by forward: winner. */
    shoal_err (*max_backward)(sh_exec *exec, const sh_pool2d *p, const void *grad_y, const int32_t *winner,
                              void *grad_x);

    /* y = the mean of the window. Padding counts as zeros. */
    shoal_err (*avg_forward)(sh_exec *exec, const sh_pool2d *p, const void *x, void *y);

    /* grad_x =. Nothing is saved. */
    shoal_err (*avg_backward)(sh_exec *exec, const sh_pool2d *p, const void *grad_y, void *grad_x);
} sh_pooling_kernels;

/* The avx2 and avx512 tables exist on x86-64 only, and need a CPU that has these instructions. */
extern const sh_pooling_kernels sh_pooling_kernels_reference;
extern const sh_pooling_kernels sh_pooling_kernels_avx2;
extern const sh_pooling_kernels sh_pooling_kernels_avx512;

#endif
