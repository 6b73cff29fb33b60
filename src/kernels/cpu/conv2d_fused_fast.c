/* Convolution, dropout of channels, 2x2 max-pool and relu in one call: chooses the algorithm for a shape.
 * A shape that no special algorithm supports is convolved by the general one and then pooled. */
#include "kernels/cpu/conv2d_fused.h"

#include "base/error.h"

#include <math.h>
#include <string.h>

typedef struct sizes {
    int64_t plane, out_w, pooled_h, pooled_w;
    size_t general, map; /* in bytes: the scratch of the convolution, and all outputs before the pool */
} sizes;

static sizes sizes_of(const sh_conv2d *c, bool grad_w)
{
    const int64_t out_h = sh_conv2d_out_h(c), out_w = sh_conv2d_out_w(c);
    return (sizes){
        .plane = out_h * out_w,
        .out_w = out_w,
        .pooled_h = out_h / 2,
        .pooled_w = out_w / 2,
        .general = round_64(sh_conv_general_scratch(c, grad_w)),
        .map = sizeof(float) * (size_t)(c->n * c->out_c * out_h * out_w),
    };
}

/* Pools one window, multiplied by m. */
static void pool_one(const float *top, const float *bottom, float m, float *y, uint8_t *winner)
{
    const float v[4] = {top[0] * m, top[1] * m, bottom[0] * m, bottom[1] * m};
    int best = 0;
    for (int k = 1; k < 4; k++) {
        best = v[k] > v[best] || isnan(v[k]) ? k : best;
    }
    const bool dead = v[best] <= 0;
    *y = dead ? 0 : v[best];
    *winner = (uint8_t)(dead ? SH_WINNER_DEAD : best);
}

static void pool_plane(const sizes *s, const float *map, float m, float *y, uint8_t *winner)
{
    const size_t count = (size_t)(s->pooled_h * s->pooled_w);
    if (m == 0) {
        memset(y, 0, sizeof(float) * count);
        memset(winner, SH_WINNER_DEAD, count);
        return;
    }
    for (int64_t i = 0; i < s->pooled_h; i++, map += 2 * s->out_w) {
        for (int64_t j = 0; j < s->pooled_w; j++) {
            pool_one(map + 2 * j, map + s->out_w + 2 * j, m, y++, winner++);
        }
    }
}

static shoal_err general_forward(sh_exec *exec, const sh_conv2d *c, const float *x, const float *w, const float *bias,
                                 const float *drop, float *y, uint8_t *winner)
{
    const sizes s = sizes_of(c, false);
    char *room = sh_exec_scratch(exec, s.general + s.map);
    if (!room) {
        return SHOAL_ENOMEM;
    }
    const float *map = (float *)(room + s.general);
    sh_conv_general_forward(c, x, w, bias, (float *)(room + s.general), room);
    for (int64_t k = 0; k < c->n * c->out_c; k++) {
        const int64_t at = k * s.pooled_h * s.pooled_w;
        pool_plane(&s, map + k * s.plane, drop ? drop[k] : 1, y + at, winner + at);
    }
    return SHOAL_OK;
}

static void unpool_plane(const sizes *s, const float *grad_y, const uint8_t *winner, float m, float *map)
{
    for (int64_t i = 0; i < s->pooled_h; i++) {
        for (int64_t j = 0; j < s->pooled_w; j++, grad_y++, winner++) {
            if (*winner != SH_WINNER_DEAD && m != 0) {
                map[(2 * i + *winner / 2) * s->out_w + 2 * j + *winner % 2] = *grad_y * m;
            }
        }
    }
}

static shoal_err general_backward(sh_exec *exec, const sh_conv2d *c, const float *grad_y, const float *x,
                                  const float *w, const float *drop, const uint8_t *winner, float *grad_x,
                                  float *grad_w, float *grad_bias)
{
    const sizes s = sizes_of(c, grad_w);
    char *room = sh_exec_scratch(exec, s.general + s.map);
    if (!room) {
        return SHOAL_ENOMEM;
    }
    float *map = (float *)(room + s.general);
    memset(map, 0, s.map);
    for (int64_t k = 0; k < c->n * c->out_c; k++) {
        const int64_t at = k * s.pooled_h * s.pooled_w;
        unpool_plane(&s, grad_y + at, winner + at, drop ? drop[k] : 1, map + k * s.plane);
    }
    sh_conv_general_backward(c, map, x, w, grad_x, grad_w, grad_bias, room);
    return SHOAL_OK;
}

/* ---- the algorithms for small square kernels ---- */

static bool is_block(const sh_conv2d *c, sh_fused_conv *out_block)
{
    const int64_t padded_h = c->in_h + 2 * c->pad_h, padded_w = c->in_w + 2 * c->pad_w;
    *out_block = (sh_fused_conv){
        .c = c,
        .kernel = c->kernel_h,
        .padded_h = padded_h,
        .padded_w = padded_w,
        .pooled_h = sh_conv2d_out_h(c) / 2,
        .pooled_w = sh_conv2d_out_w(c) / 2,
        .padded = c->pad_h || c->pad_w,
    };
    return (c->kernel_h == 5 || c->kernel_h == 3) && c->kernel_w == c->kernel_h && c->stride_h == 1 &&
           c->stride_w == 1 && c->dilation_h == 1 && c->dilation_w == 1 && c->groups == 1 &&
           padded_h * padded_w < INT32_MAX / 64; /* the positions of winners are 32-bit numbers */
}

/* Copies the image into the middle of its padding, which was zeroed before. */
static void pad_image(const sh_fused_conv *b, const float *x, float *to)
{
    const sh_conv2d *c = b->c;
    to += c->pad_h * b->padded_w + c->pad_w;
    for (int64_t k = 0; k < c->in_c; k++, to += b->padded_h * b->padded_w) {
        for (int64_t i = 0; i < c->in_h; i++, x += c->in_w) {
            memcpy(to + i * b->padded_w, x, sizeof(float) * (size_t)c->in_w);
        }
    }
}

/* Vectors along channels compute dropped channels too; vectors along rows skip them. */
static bool goes_by_channels(const sh_fused_conv *b, const float *drop)
{
    const int64_t count = b->c->n * b->c->out_c;
    int64_t live = 0;
    for (int64_t k = 0; drop && k < count; k++) {
        live += drop[k] != 0;
    }
    return sh_fused_conv_channels_fit(b) && (!drop || !sh_fused_conv_rows_fit(b) || 4 * live > 3 * count);
}

static shoal_err block_forward(sh_exec *exec, const sh_fused_conv *b, const float *x, const float *w, const float *bias,
                               const float *drop, float *y, uint8_t *winner)
{
    const sh_conv2d *c = b->c;
    const int64_t pooled = c->out_c * b->pooled_h * b->pooled_w;
    const bool by_channels = goes_by_channels(b, drop);
    const size_t padded = b->padded ? sizeof(float) * (size_t)(c->in_c * b->padded_h * b->padded_w) : 0;
    const size_t own = by_channels ? sh_fused_conv_channels_scratch(b) : sh_fused_conv_rows_scratch(b);
    char *room = sh_exec_scratch(exec, own + padded);
    if (!room) {
        return SHOAL_ENOMEM;
    }
    float *image = (float *)(room + own);
    memset(image, 0, padded);
    if (by_channels) {
        sh_fused_conv_channels_begin(b, w, bias, room);
    }
    for (int64_t n = 0; n < c->n; n++, x += c->in_c * c->in_h * c->in_w) {
        const float *from = b->padded ? image : x, *m = drop ? drop + n * c->out_c : NULL;
        if (b->padded) {
            pad_image(b, x, image);
        }
        if (by_channels) {
            sh_fused_conv_channels_forward(b, from, m, y + n * pooled, winner + n * pooled, room);
        } else {
            sh_fused_conv_rows_forward(b, from, w, bias, m, y + n * pooled, winner + n * pooled, room);
        }
    }
    return SHOAL_OK;
}

shoal_err sh_conv_pool_relu_forward(sh_exec *exec, const sh_conv2d *c, const void *x, const void *w, const void *bias,
                                    const void *drop, void *y, uint8_t *winner)
{
    sh_fused_conv b;
    if (c->dtype != SHOAL_F32) {
        return sh_conv_kernels_reference.pool_relu_forward(exec, c, x, w, bias, drop, y, winner);
    }
    if (is_block(c, &b) && (sh_fused_conv_channels_fit(&b) || sh_fused_conv_rows_fit(&b))) {
        return block_forward(exec, &b, x, w, bias, drop, y, winner);
    }
    return general_forward(exec, c, x, w, bias, drop, y, winner);
}

shoal_err sh_conv_pool_relu_backward(sh_exec *exec, const sh_conv2d *c, const void *grad_y, const void *x,
                                     const void *w, const void *drop, const uint8_t *winner, void *grad_x, void *grad_w,
                                     void *grad_bias)
{
    sh_fused_conv b;
    if (c->dtype != SHOAL_F32) {
        return sh_conv_kernels_reference.pool_relu_backward(exec, c, grad_y, x, w, drop, winner, grad_x, grad_w,
                                                            grad_bias);
    }
    sh_conv2d_zero(c, grad_w, grad_bias);
    if (!is_block(c, &b)) {
        return general_backward(exec, c, grad_y, x, w, drop, winner, grad_x, grad_w, grad_bias);
    }
    void *room = sh_exec_scratch(exec, sh_fused_conv_winners_scratch(&b, grad_x));
    if (!room) {
        return SHOAL_ENOMEM;
    }
    sh_fused_conv_winners_backward(&b, grad_y, x, w, drop, winner, grad_x, grad_w, grad_bias, room);
    return SHOAL_OK;
}
