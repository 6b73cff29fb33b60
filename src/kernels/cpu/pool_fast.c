/* Pooling in f32. Only 2x2 windows at stride 2 without padding, which networks use, have a fast version; it is
 * branch-free, so the compiler vectorises it. */
#include "kernels/isa.h"
#include "kernels/pool.h"

#include <string.h>

static bool is_disjoint_2x2(const sh_pool2d *p)
{
    return p->dtype == SHOAL_F32 && p->kernel_h == 2 && p->kernel_w == 2 && p->stride_h == 2 && p->stride_w == 2 &&
           p->pad_h == 0 && p->pad_w == 0 && p->in_h * p->in_w <= INT32_MAX;
}

/* Max-pools one row of windows. at is the position of the first element of the first window. */
static void max_row(int64_t windows, int64_t in_w, int32_t at, const float *restrict top, const float *restrict bottom,
                    float *restrict y, int32_t *restrict winner)
{
#pragma omp simd
    for (int64_t j = 0; j < windows; j++) {
        const float v1 = top[2 * j + 1], v2 = bottom[2 * j], v3 = bottom[2 * j + 1];
        float best = top[2 * j];
        int32_t place = 0;
        place = ((v1 > best) | (v1 != v1)) ? 1 : place;
        best = ((v1 > best) | (v1 != v1)) ? v1 : best;
        place = ((v2 > best) | (v2 != v2)) ? (int32_t)in_w : place;
        best = ((v2 > best) | (v2 != v2)) ? v2 : best;
        place = ((v3 > best) | (v3 != v3)) ? (int32_t)in_w + 1 : place;
        best = ((v3 > best) | (v3 != v3)) ? v3 : best;
        y[j] = best;
        winner[j] = at + (int32_t)(2 * j) + place;
    }
}

static shoal_err max_forward(sh_exec *exec, const sh_pool2d *p, const void *x, void *y, int32_t *winner)
{
    if (!is_disjoint_2x2(p)) {
        return sh_pooling_kernels_reference.max_forward(exec, p, x, y, winner);
    }
    const int64_t out_h = sh_pool2d_out_h(p), out_w = sh_pool2d_out_w(p);
    const float *plane = x;
    float *out = y;
    for (int64_t k = 0; k < p->n * p->c; k++, plane += p->in_h * p->in_w) {
        for (int64_t i = 0; i < out_h; i++, out += out_w, winner += out_w) {
            const int64_t at = 2 * i * p->in_w;
            max_row(out_w, p->in_w, (int32_t)at, plane + at, plane + at + p->in_w, out, winner);
        }
    }
    return SHOAL_OK;
}

/* The mean of one row of windows, and its gradient. */
static void avg_row(int64_t windows, const float *restrict top, const float *restrict bottom, float *restrict y)
{
#pragma omp simd
    for (int64_t j = 0; j < windows; j++) {
        y[j] = (top[2 * j] + top[2 * j + 1] + bottom[2 * j] + bottom[2 * j + 1]) / 4;
    }
}

static void avg_row_back(int64_t windows, const float *restrict grad_y, float *restrict top, float *restrict bottom)
{
#pragma omp simd
    for (int64_t j = 0; j < windows; j++) {
        const float g = grad_y[j] / 4;
        top[2 * j] = g;
        top[2 * j + 1] = g;
        bottom[2 * j] = g;
        bottom[2 * j + 1] = g;
    }
}

static shoal_err avg_forward(sh_exec *exec, const sh_pool2d *p, const void *x, void *y)
{
    if (!is_disjoint_2x2(p)) {
        return sh_pooling_kernels_reference.avg_forward(exec, p, x, y);
    }
    const int64_t out_h = sh_pool2d_out_h(p), out_w = sh_pool2d_out_w(p);
    const float *plane = x;
    float *out = y;
    for (int64_t k = 0; k < p->n * p->c; k++, plane += p->in_h * p->in_w) {
        for (int64_t i = 0; i < out_h; i++, out += out_w) {
            avg_row(out_w, plane + 2 * i * p->in_w, plane + (2 * i + 1) * p->in_w, out);
        }
    }
    return SHOAL_OK;
}

static shoal_err avg_backward(sh_exec *exec, const sh_pool2d *p, const void *grad_y, void *grad_x)
{
    if (!is_disjoint_2x2(p)) {
        return sh_pooling_kernels_reference.avg_backward(exec, p, grad_y, grad_x);
    }
    const int64_t out_h = sh_pool2d_out_h(p), out_w = sh_pool2d_out_w(p);
    const float *g = grad_y;
    float *plane = grad_x;
    memset(grad_x, 0, sizeof(float) * (size_t)(p->n * p->c * p->in_h * p->in_w));
    for (int64_t k = 0; k < p->n * p->c; k++, plane += p->in_h * p->in_w) {
        for (int64_t i = 0; i < out_h; i++, g += out_w) {
            avg_row_back(out_w, g, plane + 2 * i * p->in_w, plane + (2 * i + 1) * p->in_w);
        }
    }
    return SHOAL_OK;
}

/* This is a scatter: the reference is already as fast as possible. */
static shoal_err max_backward(sh_exec *exec, const sh_pool2d *p, const void *grad_y, const int32_t *winner,
                              void *grad_x)
{
    return sh_pooling_kernels_reference.max_backward(exec, p, grad_y, winner, grad_x);
}

const sh_pooling_kernels SH_ISA_NAME(sh_pooling_kernels) = {
    .max_forward = max_forward,
    .max_backward = max_backward,
    .avg_forward = avg_forward,
    .avg_backward = avg_backward,
};
