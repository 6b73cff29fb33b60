/* Pooling as the formula defines it. */
#include "kernels/pool.h"

#include "base/error.h"

#include <math.h>
#include <string.h>

/* The part of a window that is inside x, and the divisor of its mean. */
typedef struct window {
    int64_t top, bottom, left, right, count;
} window;

static window window_of(const sh_pool2d *p, int64_t i, int64_t j)
{
    const int64_t h = i * p->stride_h - p->pad_h, w = j * p->stride_w - p->pad_w;
    window win = {
        .top = h < 0 ? 0 : h,
        .bottom = h + p->kernel_h > p->in_h ? p->in_h : h + p->kernel_h,
        .left = w < 0 ? 0 : w,
        .right = w + p->kernel_w > p->in_w ? p->in_w : w + p->kernel_w,
    };
    win.count = p->exclude_pad ? (win.bottom - win.top) * (win.right - win.left) : p->kernel_h * p->kernel_w;
    return win;
}

#define TEMPLATE "kernels/cpu/pool_reference.h"
#include "kernels/cpu/f32_f64.h"

/* Calls the version for p's element type. */
#define BY_TYPE(name, ...)                                                                                             \
    do {                                                                                                               \
        if (p->in_h * p->in_w > INT32_MAX) {                                                                           \
            return sh_fail(SHOAL_EINVAL, "pooling: planes of %lld x %lld are too large", (long long)p->in_h,           \
                           (long long)p->in_w);                                                                        \
        }                                                                                                              \
        switch (p->dtype) {                                                                                            \
        case SHOAL_F32: f32_##name(p, __VA_ARGS__); return SHOAL_OK;                                                   \
        case SHOAL_F64: f64_##name(p, __VA_ARGS__); return SHOAL_OK;                                                   \
        default: return sh_fail(SHOAL_EINVAL, "pooling does not support %s", shoal_dtype_name(p->dtype));              \
        }                                                                                                              \
    } while (0)

static shoal_err max_forward(sh_exec *exec, const sh_pool2d *p, const void *x, void *y, int32_t *winner)
{
    (void)exec;
    BY_TYPE(max_forward, x, y, winner);
}

static shoal_err max_backward(sh_exec *exec, const sh_pool2d *p, const void *grad_y, const int32_t *winner,
                              void *grad_x)
{
    (void)exec;
    BY_TYPE(max_backward, grad_y, winner, grad_x);
}

static shoal_err avg_forward(sh_exec *exec, const sh_pool2d *p, const void *x, void *y)
{
    (void)exec;
    BY_TYPE(avg_forward, x, y);
}

static shoal_err avg_backward(sh_exec *exec, const sh_pool2d *p, const void *grad_y, void *grad_x)
{
    (void)exec;
    BY_TYPE(avg_backward, grad_y, grad_x);
}

const sh_pooling_kernels sh_pooling_kernels_reference = {
    .max_forward = max_forward,
    .max_backward = max_backward,
    .avg_forward = avg_forward,
    .avg_backward = avg_backward,
};
