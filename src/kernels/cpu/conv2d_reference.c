/* The convolution as the formula defines it. */
#include "kernels/conv2d.h"

#include "base/error.h"
#include "kernels/cpu/conv2d_zero.h"

#include <math.h>
#include <string.h>

static bool inside(const sh_conv2d *c, int64_t h, int64_t w)
{
    return h >= 0 && h < c->in_h && w >= 0 && w < c->in_w;
}

static int64_t weights_of(const sh_conv2d *c)
{
    return c->out_c * (c->in_c / c->groups) * c->kernel_h * c->kernel_w;
}

/* The sums of grad_w and grad_bias over all images, in scratch. w is NULL if not wanted. */
typedef struct sums {
    double *w, *bias;
} sums;

static shoal_err sums_init(sh_exec *exec, const sh_conv2d *c, bool weights, sums *out)
{
    const size_t bytes = (size_t)(c->out_c + (weights ? weights_of(c) : 0)) * sizeof(double);
    double *room = sh_exec_scratch(exec, bytes);
    if (!room) {
        return SHOAL_ENOMEM;
    }
    memset(room, 0, bytes);
    *out = (sums){.w = weights ? room + c->out_c : NULL, .bias = room};
    return SHOAL_OK;
}

#define TEMPLATE "kernels/cpu/conv2d_reference.h"
#include "kernels/cpu/f32_f64.h"

/* Calls the version for c's element type. */
#define BY_TYPE(name, ...)                                                                                             \
    do {                                                                                                               \
        switch (c->dtype) {                                                                                            \
        case SHOAL_F32: f32_##name(c, __VA_ARGS__); return SHOAL_OK;                                                   \
        case SHOAL_F64: f64_##name(c, __VA_ARGS__); return SHOAL_OK;                                                   \
        default: return sh_fail(SHOAL_EINVAL, "conv2d does not support %s", shoal_dtype_name(c->dtype));               \
        }                                                                                                              \
    } while (0)

static shoal_err forward(sh_exec *exec, const sh_conv2d *c, const void *x, const void *w, const void *bias, void *y)
{
    (void)exec;
    BY_TYPE(forward, x, w, bias, y);
}

static shoal_err backward(sh_exec *exec, const sh_conv2d *c, const void *grad_y, const void *x, const void *w,
                          void *grad_x, void *grad_w, void *grad_bias)
{
    sums s;
    if (sums_init(exec, c, grad_w, &s) != SHOAL_OK) {
        return SHOAL_ENOMEM;
    }
    sh_conv2d_zero(c, grad_w, grad_bias);
    BY_TYPE(backward, &s, grad_y, x, w, grad_x, grad_w, grad_bias);
}

static shoal_err pool_relu_forward(sh_exec *exec, const sh_conv2d *c, const void *x, const void *w, const void *bias,
                                   const void *drop, void *y, uint8_t *winner)
{
    (void)exec;
    BY_TYPE(pool_relu_forward, x, w, bias, drop, y, winner);
}

static shoal_err pool_relu_backward(sh_exec *exec, const sh_conv2d *c, const void *grad_y, const void *x, const void *w,
                                    const void *drop, const uint8_t *winner, void *grad_x, void *grad_w,
                                    void *grad_bias)
{
    sums s;
    if (sums_init(exec, c, grad_w, &s) != SHOAL_OK) {
        return SHOAL_ENOMEM;
    }
    sh_conv2d_zero(c, grad_w, grad_bias);
    BY_TYPE(pool_relu_backward, &s, grad_y, x, w, drop, winner, grad_x, grad_w, grad_bias);
}

const sh_conv_kernels sh_conv_kernels_reference = {
    .forward = forward,
    .backward = backward,
    .pool_relu_forward = pool_relu_forward,
    .pool_relu_backward = pool_relu_backward,
};
