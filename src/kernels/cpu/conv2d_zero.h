/* Zeroes the gradients that a backward pass is to overwrite; then it can add to them. */
#ifndef SH_KERNELS_CPU_CONV2D_ZERO_H
#define SH_KERNELS_CPU_CONV2D_ZERO_H

#include "kernels/conv2d.h"

#include <string.h>

static inline void sh_conv2d_zero(const sh_conv2d *c, void *grad_w, void *grad_bias)
{
    size_t size = c->overwrite ? shoal_dtype_size(c->dtype) : 0;
    if (size > 0 && grad_w) {
        memset(grad_w, 0, size * (size_t)(c->out_c * (c->in_c / c->groups) * c->kernel_h * c->kernel_w));
    }
    if (size > 0 && grad_bias) {
        memset(grad_bias, 0, size * (size_t)c->out_c);
    }
}

#endif
