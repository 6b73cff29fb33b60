/* Pooling over windows of an image: the greatest, or the mean.
 *
 * x [N, C, H, W] and y [N, C, OH, OW] are contiguous and of one element type, f32 or f64. No output overlaps an input. */
#ifndef SH_KERNELS_POOL_H
#define SH_KERNELS_POOL_H

#include "kernels/view.h"

#include <stdbool.h>

/* Per side h (rows) and w (columns). pad is at most half of kernel, so that each window holds something of x. */
typedef struct sh_pool2d {
    shoal_dtype dtype;
    int64_t n, c, in_h, in_w;
    int64_t kernel_h, kernel_w;
    int64_t stride_h, stride_w;
    int64_t pad_h, pad_w;
    bool exclude_pad; /* the mean is over what lies inside of x; else over kernel_h * kernel_w, PyTorch's default */
} sh_pool2d;

/* Below 1: the window does not fit into the padded image, and no kernel may be called. */
static inline int64_t sh_pool2d_out_h(const sh_pool2d *p)
{
    return (p->in_h + 2 * p->pad_h - p->kernel_h) / p->stride_h + 1;
}

static inline int64_t sh_pool2d_out_w(const sh_pool2d *p)
{
    return (p->in_w + 2 * p->pad_w - p->kernel_w) / p->stride_w + 1;
}

/* Errors: SHOAL_EINVAL for an element type that is not f32 or f64, or a plane of 2^31 elements or more. */
typedef struct sh_pooling_kernels {
    /* y =, and winner [N, C, OH, OW] = the place h * W + w of the greatest within its plane: the first of equals in
     * row-major order; NaN is greater than all, and of several the last one is taken, as in PyTorch. */
    shoal_err (*max_forward)(sh_exec *exec, const sh_pool2d *p, const void *x, void *y, int32_t *winner);

    /* grad_x =. Saved: winner. */
    shoal_err (*max_backward)(sh_exec *exec, const sh_pool2d *p, const void *grad_y, const int32_t *winner,
                              void *grad_x);

    /* y =. Padding counts as zeros. */
    shoal_err (*avg_forward)(sh_exec *exec, const sh_pool2d *p, const void *x, void *y);

    /* grad_x =. */
    shoal_err (*avg_backward)(sh_exec *exec, const sh_pool2d *p, const void *grad_y, void *grad_x);
} sh_pooling_kernels;

/* avx2 and avx512 exist on x86-64 only, and run only where the CPU has them. */
extern const sh_pooling_kernels sh_pooling_kernels_reference;
extern const sh_pooling_kernels sh_pooling_kernels_avx2;
extern const sh_pooling_kernels sh_pooling_kernels_avx512;

#endif
