/* Two-dimensional convolution, and the block that small image networks are made of: convolution, dropout of whole
 * channels, max-pool 2x2, relu.
 *
 * Tensors are contiguous:  x [N, C, H, W]   w [O, C/groups, KH, KW]   bias [O]   y [N, O, OH, OW]
 * and of one element type, f32 or f64. No output overlaps an input or another output.
 *
 *     y[n,o,i,j] = bias[o] + sum over c, a, b of  w[o,c,a,b] * x[n, c', i*stride - pad + a*dilation, j*stride - pad + b*dilation]
 *
 * with c' = c plus the first channel of o's group. What lies outside of x adds nothing. The fast kernels may multiply the
 * padding as zeros, so that an infinite weight beside the edge gives NaN there; elsewhere NaN and infinity go their way as
 * the formula says. */
#ifndef SH_KERNELS_CONV2D_H
#define SH_KERNELS_CONV2D_H

#include "kernels/view.h"

#include <stdbool.h>

/* Per side h (rows) and w (columns). All sizes at least 1, but pads 0 and n 0 are fine; groups divides in_c and out_c. */
typedef struct sh_conv2d {
    shoal_dtype dtype;
    int64_t n, in_c, in_h, in_w;
    int64_t out_c, kernel_h, kernel_w;
    int64_t stride_h, stride_w;
    int64_t pad_h, pad_w;
    int64_t dilation_h, dilation_w;
    int64_t groups;
} sh_conv2d;

/* Below 1: the kernel does not fit into the padded image, and no kernel may be called. */
static inline int64_t sh_conv2d_out_h(const sh_conv2d *c)
{
    return (c->in_h + 2 * c->pad_h - c->dilation_h * (c->kernel_h - 1) - 1) / c->stride_h + 1;
}

static inline int64_t sh_conv2d_out_w(const sh_conv2d *c)
{
    return (c->in_w + 2 * c->pad_w - c->dilation_w * (c->kernel_w - 1) - 1) / c->stride_w + 1;
}

/* What the fused forward saves for each pooled output: which of the four of its window won, row by row (0 1 over 2 3; the
 * first of equals, and NaN wins, as in PyTorch), or that no gradient passes: relu gave 0 or the channel was dropped. */
enum {
    SH_WINNER_DEAD = 4,
};

/* Errors: SHOAL_EINVAL for an element type that is not f32 or f64, SHOAL_ENOMEM for scratch. */
typedef struct sh_conv_kernels {
    /* y =; bias may be NULL. */
    shoal_err (*forward)(sh_exec *exec, const sh_conv2d *c, const void *x, const void *w, const void *bias, void *y);

    /* grad_x =, grad_w +=, grad_bias +=; each may be NULL, and then is not computed. Saved: x, w. */
    shoal_err (*backward)(sh_exec *exec, const sh_conv2d *c, const void *grad_y, const void *x, const void *w,
                          void *grad_x, void *grad_w, void *grad_bias);

    /* y [N, O, OH/2, OW/2] = relu(maxpool2x2(drop * (conv(x, w) + bias)));  an odd last row or column is left out, and
     * both OH and OW are at least 2.
     * drop [N, O], or NULL for all ones, is what dropout2d multiplies each channel of each image with. Where it is 0 the
     * channel is not looked at: y is 0, even where the convolution is not finite.
     * winner [N, O, OH/2, OW/2] = who won, for backward. */
    shoal_err (*pool_relu_forward)(sh_exec *exec, const sh_conv2d *c, const void *x, const void *w, const void *bias,
                                   const void *drop, void *y, uint8_t *winner);

    /* grad_y [N, O, OH/2, OW/2]. grad_x =, grad_w +=, grad_bias +=; each may be NULL. Saved: x, w, drop, winner. */
    shoal_err (*pool_relu_backward)(sh_exec *exec, const sh_conv2d *c, const void *grad_y, const void *x, const void *w,
                                    const void *drop, const uint8_t *winner, void *grad_x, void *grad_w,
                                    void *grad_bias);
} sh_conv_kernels;

/* avx2 and avx512 exist on x86-64 only, and run only where the CPU has them: AVX2, FMA, F16C; and AVX-512 F, VL, BW, DQ. */
extern const sh_conv_kernels sh_conv_kernels_reference;
extern const sh_conv_kernels sh_conv_kernels_avx2;
extern const sh_conv_kernels sh_conv_kernels_avx512;

#endif
