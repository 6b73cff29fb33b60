/* The contract of the convolution kernels: two-dimensional convolution, and the fused block that small image networks
 * repeat: convolution, dropout of whole channels, 2x2 max-pooling, relu.
 *
 * All tensors are contiguous:  x [N, C, H, W]   w [O, C/groups, KH, KW]   bias [O]   y [N, O, OH, OW]
 * They have one element type, f32 or f64. No output overlaps an input or another output.
 *
 *     y[n,o,i,j] = bias[o] + sum over c, a, b of
 *                  w[o,c,a,b] * x[n, c', i*stride - pad + a*dilation, j*stride - pad + b*dilation]
 *
 * where c' is c plus the first channel of o's group. Positions outside x add nothing. The fast kernels may multiply the
 * padding as zeros, so an infinite weight at the border may give NaN there. Everywhere else NaN and infinity propagate
 * as the formula says. */
#ifndef SH_KERNELS_CONV2D_H
#define SH_KERNELS_CONV2D_H

#include "kernels/view.h"

#include <stdbool.h>

/* h is the vertical direction (rows), w the horizontal one (columns). All sizes are at least 1, except that pads and n
 * may be 0. groups divides in_c and out_c. */
typedef struct sh_conv2d {
    shoal_dtype dtype;
    int64_t n, in_c, in_h, in_w;
    int64_t out_c, kernel_h, kernel_w;
    int64_t stride_h, stride_w;
    int64_t pad_h, pad_w;
    int64_t dilation_h, dilation_w;
    int64_t groups;
    bool overwrite; /* of a backward pass: grad_w and grad_bias hold nothing yet, so it sets them */
} sh_conv2d;

/* Return the height and the width of the output. If either is below 1, the kernel does not fit into the padded image
 * and no function below may be called. */
static inline int64_t sh_conv2d_out_h(const sh_conv2d *c)
{
    return (c->in_h + 2 * c->pad_h - c->dilation_h * (c->kernel_h - 1) - 1) / c->stride_h + 1;
}

static inline int64_t sh_conv2d_out_w(const sh_conv2d *c)
{
    return (c->in_w + 2 * c->pad_w - c->dilation_w * (c->kernel_w - 1) - 1) / c->stride_w + 1;
}

/* The fused forward pass saves one byte for each pooled output: which of the four elements of its window is the
 * maximum, numbered row by row (0 1 above 2 3), or SH_WINNER_DEAD if no gradient passes, because relu gave 0 or the
 * channel was dropped. Of equal elements the first wins; NaN wins over numbers, and the last of several NaNs wins, as
 * in PyTorch. */
enum {
    SH_WINNER_DEAD = 4,
};

/* Errors: SHOAL_EINVAL if the element type is not f32 or f64, SHOAL_ENOMEM if there is no scratch memory. The sums of
 * grad_w and grad_bias over the images have a fixed order. On the CPU they continue in f64 after some images, so that
 * their error does not grow with the batch. */
typedef struct sh_conv_kernels {
    /* y = conv(x, w) + bias. bias may be NULL. */
    shoal_err (*forward)(sh_exec *exec, const sh_conv2d *c, const void *x, const void *w, const void *bias, void *y);

    /* grad_x =, grad_w +=, grad_bias += (= if c->overwrite). A gradient whose pointer is NULL is not computed. Saved by
     * forward: x, w. */
    shoal_err (*backward)(sh_exec *exec, const sh_conv2d *c, const void *grad_y, const void *x, const void *w,
                          void *grad_x, void *grad_w, void *grad_bias);

    /* y [N, O, OH/2, OW/2] = relu(maxpool2x2(drop * (conv(x, w) + bias))). OH and OW are at least 2; if one is odd, its
     * last row or column is ignored.
     * drop [N, O] is the factor of dropout2d for each channel of each image; NULL means all ones. Where drop is 0, y is
     * 0 even if the convolution is not finite there.
     * winner [N, O, OH/2, OW/2] = the saved byte described above. */
    shoal_err (*pool_relu_forward)(sh_exec *exec, const sh_conv2d *c, const void *x, const void *w, const void *bias,
                                   const void *drop, void *y, uint8_t *winner);

    /* grad_y [N, O, OH/2, OW/2]. grad_x =, grad_w +=, grad_bias += (= if c->overwrite). A gradient whose pointer is
     * NULL is not computed. Saved by forward: x, w, drop, winner. */
    shoal_err (*pool_relu_backward)(sh_exec *exec, const sh_conv2d *c, const void *grad_y, const void *x, const void *w,
                                    const void *drop, const uint8_t *winner, void *grad_x, void *grad_w,
                                    void *grad_bias);
} sh_conv_kernels;

/* The avx2 and avx512 tables exist on x86-64 only. avx2 needs a CPU with AVX2, FMA and F16C; avx512 also needs AVX-512
 * F, VL, BW and DQ. */
extern const sh_conv_kernels sh_conv_kernels_reference;
extern const sh_conv_kernels sh_conv_kernels_avx2;
extern const sh_conv_kernels sh_conv_kernels_avx512;

#endif
