/* Convolution of any shape, as products with a matrix of patches. Column p of the matrix holds the inputs of output p,
 * and each tap of the kernel has a row. The matrix is built for a few rows of outputs at a time, so that it stays in
 * the L2 cache. */
#include "kernels/cpu/conv2d_fast.h"

#include "base/error.h"

#include <string.h>

enum {
    PATCH_BYTES = 256 * 1024,
    MOST_ADDED = 64, /* products with a patch matrix that grad_w adds in f32 */
};

/* One group of one image, and the rows of outputs that are being computed. */
typedef struct part {
    const sh_conv2d *c;
    int64_t group_c, group_o; /* channels in and out of one group */
    int64_t taps;             /* rows of the patch matrix */
    int64_t out_h, out_w;
    int64_t rows;       /* rows of outputs in a full patch matrix */
    int64_t top, count; /* of the current matrix: its first row of outputs, and its number of outputs */
    int64_t stride;     /* elements from row to row of the patch matrix; at least count */
} part;

static part part_of(const sh_conv2d *c)
{
    part p = {
        .c = c,
        .group_c = c->in_c / c->groups,
        .group_o = c->out_c / c->groups,
        .out_h = sh_conv2d_out_h(c),
        .out_w = sh_conv2d_out_w(c),
    };
    p.taps = p.group_c * c->kernel_h * c->kernel_w;
    p.rows = PATCH_BYTES / ((int64_t)sizeof(float) * p.taps * p.out_w);
    p.rows = p.rows < 1 ? 1 : p.rows > p.out_h ? p.out_h : p.rows;
    p.stride = (p.rows * p.out_w + VEC - 1) / VEC * VEC;
    return p;
}

static void part_at(part *p, int64_t top)
{
    p->top = top;
    p->count = (p->out_h - top < p->rows ? p->out_h - top : p->rows) * p->out_w;
}

static size_t patch_bytes(const part *p)
{
    return round_64(sizeof(float) * (size_t)(p->taps * p->stride));
}

/* Returns after how many images grad_w is carried into totals in f64; 0 if they are so few that it need not be. */
static int64_t images_at_once(const part *p)
{
    const int64_t matrices = (p->out_h + p->rows - 1) / p->rows, images = MOST_ADDED / matrices;
    if (images < 1) {
        return p->c->n > 1;
    }
    return p->c->n > images ? images : 0;
}

size_t sh_conv_general_scratch(const sh_conv2d *c, bool grad_w)
{
    const part p = part_of(c);
    const bool totals = grad_w && images_at_once(&p) > 0;
    return patch_bytes(&p) + (totals ? sizeof(double) * (size_t)(c->out_c * p.taps) : 0);
}

/* Finds the columns [out_from, out_to): the outputs j for which j * stride + shift is in [0, size). */
static void columns_inside(int64_t shift, int64_t stride, int64_t size, int64_t out_w, int64_t *out_from,
                           int64_t *out_to)
{
    int64_t from = shift >= 0 ? 0 : (-shift + stride - 1) / stride;
    int64_t to = shift >= size ? 0 : (size - 1 - shift) / stride + 1;
    from = from > out_w ? out_w : from;
    to = to > out_w ? out_w : to;
    *out_from = from;
    *out_to = to < from ? from : to;
}

/* matrix = the patches of x, which points to the first channel of the group. */
static void gather_patches(const part *p, const float *x, float *matrix)
{
    const sh_conv2d *c = p->c;
    for (int64_t tap = 0; tap < p->taps; tap++, matrix += p->stride) {
        const int64_t b = tap % c->kernel_w, a = tap / c->kernel_w % c->kernel_h;
        const float *plane = x + tap / (c->kernel_w * c->kernel_h) * c->in_h * c->in_w;
        const int64_t shift = b * c->dilation_w - c->pad_w;
        int64_t from, to;
        columns_inside(shift, c->stride_w, c->in_w, p->out_w, &from, &to);
        for (int64_t at = 0, i = p->top; at < p->count; at += p->out_w, i++) {
            float *row = matrix + at;
            const int64_t h = i * c->stride_h - c->pad_h + a * c->dilation_h;
            if (h < 0 || h >= c->in_h) {
                memset(row, 0, sizeof(float) * (size_t)p->out_w);
                continue;
            }
            const float *line = plane + h * c->in_w;
            memset(row, 0, sizeof(float) * (size_t)from);
            for (int64_t j = from; j < to; j++) {
                row[j] = line[j * c->stride_w + shift];
            }
            memset(row + to, 0, sizeof(float) * (size_t)(p->out_w - to));
        }
    }
}

/* grad_x += the patches of matrix: adds each element to the place that gather_patches read. */
static void scatter_patches(const part *p, const float *matrix, float *grad_x)
{
    const sh_conv2d *c = p->c;
    for (int64_t tap = 0; tap < p->taps; tap++, matrix += p->stride) {
        const int64_t b = tap % c->kernel_w, a = tap / c->kernel_w % c->kernel_h;
        float *plane = grad_x + tap / (c->kernel_w * c->kernel_h) * c->in_h * c->in_w;
        const int64_t shift = b * c->dilation_w - c->pad_w;
        int64_t from, to;
        columns_inside(shift, c->stride_w, c->in_w, p->out_w, &from, &to);
        for (int64_t at = 0, i = p->top; at < p->count; at += p->out_w, i++) {
            const int64_t h = i * c->stride_h - c->pad_h + a * c->dilation_h;
            if (h < 0 || h >= c->in_h) {
                continue;
            }
            float *line = plane + h * c->in_w;
            for (int64_t j = from; j < to; j++) {
                line[j * c->stride_w + shift] += matrix[at + j];
            }
        }
    }
}

/* A matrix whose element (i, j) is data[i * row + j * column]. */
typedef struct matrix {
    const float *data;
    int64_t row, column;
} matrix;

enum {
    TILE_ROWS = VEC == 16 ? 8 : 4,
    TILE_VECS = 2,
};

/* C rows i to i + rows, columns j to j + width (at most TILE_VECS vectors) = bias + A B.
 * Rows of B and C are contiguous. */
INLINE void product_tile(const int rows, int64_t inner, matrix a, const float *b, int64_t b_row, const float *bias,
                         float *out, int64_t out_row, int64_t width)
{
    vec sum[TILE_ROWS][TILE_VECS];
    const bool whole = width == TILE_VECS * VEC;
    const int64_t first = width < VEC ? width : VEC;
    const int64_t second = width - first;
    for (int i = 0; i < rows; i++) {
        sum[i][0] = sum[i][1] = vec_all(bias ? bias[i] : 0);
    }
    for (int64_t k = 0; k < inner; k++) {
        const float *line = b + k * b_row;
        vec v0, v1;
        if (whole) {
            v0 = vec_load(line);
            v1 = vec_load(line + VEC);
        } else {
            v0 = vec_load_part(line, first);
            v1 = second ? vec_load_part(line + VEC, second) : vec_zero();
        }
        for (int i = 0; i < rows; i++) {
            const vec f = vec_all(a.data[i * a.row + k * a.column]);
            sum[i][0] = vec_fma(f, v0, sum[i][0]);
            sum[i][1] = vec_fma(f, v1, sum[i][1]);
        }
    }
    for (int i = 0; i < rows; i++) {
        vec_store_part(out + i * out_row, first, sum[i][0]);
        if (second) {
            vec_store_part(out + i * out_row + VEC, second, sum[i][1]);
        }
    }
}

/* C [rows, columns] = bias (one element for each row, or NULL) + A [rows, inner] B [inner, columns]. */
static void product(int64_t rows, int64_t columns, int64_t inner, matrix a, const float *b, int64_t b_row,
                    const float *bias, float *out, int64_t out_row)
{
    for (int64_t i = 0; i < rows;) {
        const int64_t step = rows - i >= TILE_ROWS ? TILE_ROWS : 1;
        const matrix at = {a.data + i * a.row, a.row, a.column};
        const float *start = bias ? bias + i : NULL;
        for (int64_t j = 0; j < columns; j += TILE_VECS * VEC) {
            const int64_t left = columns - j;
            const int64_t width = left < TILE_VECS * VEC ? left : TILE_VECS * VEC;
            if (step == TILE_ROWS) {
                product_tile(TILE_ROWS, inner, at, b + j, b_row, start, out + i * out_row + j, out_row, width);
            } else {
                product_tile(1, inner, at, b + j, b_row, start, out + i * out_row + j, out_row, width);
            }
        }
        i += step;
    }
}

/* out[i, j] += row i of a times row j of b, for rows_a by rows_b pairs of rows of count elements. */
INLINE void dots_tile(const int rows_a, const int rows_b, int64_t count, const float *a, int64_t a_row, const float *b,
                      int64_t b_row, float *out, int64_t out_row)
{
    vec sum[4][4];
    for (int i = 0; i < rows_a; i++) {
        for (int j = 0; j < rows_b; j++) {
            sum[i][j] = vec_zero();
        }
    }
    for (int64_t k = 0; k < count; k += VEC) {
        const int64_t width = count - k < VEC ? count - k : VEC;
        vec line[4];
        for (int j = 0; j < rows_b; j++) {
            line[j] = vec_load_part(b + j * b_row + k, width);
        }
        for (int i = 0; i < rows_a; i++) {
            const vec f = vec_load_part(a + i * a_row + k, width);
            for (int j = 0; j < rows_b; j++) {
                sum[i][j] = vec_fma(f, line[j], sum[i][j]);
            }
        }
    }
    for (int i = 0; i < rows_a; i++) {
        for (int j = 0; j < rows_b; j++) {
            out[i * out_row + j] += vec_sum(sum[i][j]);
        }
    }
}

/* out [rows_a, rows_b] += A Bᵀ, over rows of count elements. */
static void dots(int64_t rows_a, int64_t rows_b, int64_t count, const float *a, int64_t a_row, const float *b,
                 int64_t b_row, float *out, int64_t out_row)
{
    const int64_t even_a = rows_a / 4 * 4, even_b = rows_b / 4 * 4;
    for (int64_t i = 0; i < even_a; i += 4) {
        for (int64_t j = 0; j < even_b; j += 4) {
            dots_tile(4, 4, count, a + i * a_row, a_row, b + j * b_row, b_row, out + i * out_row + j, out_row);
        }
    }
    for (int64_t i = 0; i < rows_a; i++) {
        for (int64_t j = i < even_a ? even_b : 0; j < rows_b; j++) {
            dots_tile(1, 1, count, a + i * a_row, a_row, b + j * b_row, b_row, out + i * out_row + j, out_row);
        }
    }
}

void sh_conv_general_forward(const sh_conv2d *c, const float *x, const float *w, const float *bias, float *y,
                             void *room)
{
    part p = part_of(c);
    float *patches = room;
    const int64_t plane = p.out_h * p.out_w;
    for (int64_t k = 0; k < c->n * c->groups; k++) {
        const int64_t group = k % c->groups;
        const matrix weights = {w + group * p.group_o * p.taps, p.taps, 1};
        for (int64_t top = 0; top < p.out_h; top += p.rows) {
            part_at(&p, top);
            gather_patches(&p, x + k * p.group_c * c->in_h * c->in_w, patches);
            product(p.group_o, p.count, p.taps, weights, patches, p.stride, bias ? bias + group * p.group_o : NULL,
                    y + k * p.group_o * plane + top * p.out_w, plane);
        }
    }
}

INLINE float sum_of_piece(const float *x, int64_t count)
{
    vec sum = vec_zero();
    for (; count >= VEC; x += VEC, count -= VEC) {
        sum = vec_fma(vec_all(1), vec_load(x), sum);
    }
    return vec_sum(count ? vec_fma(vec_all(1), vec_load_part(x, count), sum) : sum);
}

/* Returns the sum of a plane: a lane adds at most 64 elements in f32. */
INLINE double sum_of_plane(const float *x, int64_t count)
{
    double total = 0;
    for (; count > 64 * VEC; x += 64 * VEC, count -= 64 * VEC) {
        total += (double)sum_of_piece(x, 64 * VEC);
    }
    return total + (double)sum_of_piece(x, count);
}

/* The sums over all images are in f64, of some channels at a time. */
static void add_bias_gradient(const sh_conv2d *c, const float *grad_y, float *grad_bias)
{
    enum { CHANNELS = 64 };
    const int64_t plane = sh_conv2d_out_h(c) * sh_conv2d_out_w(c);
    for (int64_t first = 0; first < c->out_c; first += CHANNELS) {
        const int64_t count = c->out_c - first < CHANNELS ? c->out_c - first : CHANNELS;
        double total[CHANNELS] = {0};
        for (int64_t n = 0; n < c->n; n++) {
            for (int64_t o = 0; o < count; o++) {
                total[o] += sum_of_plane(grad_y + (n * c->out_c + first + o) * plane, plane);
            }
        }
        for (int64_t o = 0; o < count; o++) {
            grad_bias[first + o] = (float)((double)grad_bias[first + o] + total[o]);
        }
    }
}

/* totals += grad_w, and grad_w = 0, or, at the end, grad_w = totals. */
static void carry(double *totals, float *grad_w, int64_t count, bool end)
{
    for (int64_t k = 0; k < count; k++) {
        totals[k] += (double)grad_w[k];
        grad_w[k] = end ? (float)totals[k] : 0;
    }
}

void sh_conv_general_backward(const sh_conv2d *c, const float *grad_y, const float *x, const float *w, float *grad_x,
                              float *grad_w, float *grad_bias, void *room)
{
    part p = part_of(c);
    float *patches = room;
    const int64_t plane = p.out_h * p.out_w, group_x = p.group_c * c->in_h * c->in_w, weights = c->out_c * p.taps;
    const int64_t every = grad_w ? images_at_once(&p) * c->groups : 0;
    double *totals = (double *)((char *)room + patch_bytes(&p));
    if (every) {
        memset(totals, 0, sizeof(double) * (size_t)weights);
    }
    if (grad_bias) {
        add_bias_gradient(c, grad_y, grad_bias);
    }
    if (grad_x) {
        memset(grad_x, 0, sizeof(float) * (size_t)(c->n * c->groups * group_x));
    }
    for (int64_t k = 0; k < c->n * c->groups; k++) {
        const int64_t at_w = k % c->groups * p.group_o * p.taps;
        for (int64_t top = 0; top < p.out_h; top += p.rows) {
            part_at(&p, top);
            const float *g = grad_y + k * p.group_o * plane + top * p.out_w;
            if (grad_w) {
                gather_patches(&p, x + k * group_x, patches);
                dots(p.group_o, p.taps, p.count, g, plane, patches, p.stride, grad_w + at_w, p.taps);
            }
            if (grad_x) {
                const matrix transposed = {w + at_w, 1, p.taps};
                product(p.taps, p.count, p.group_o, transposed, g, plane, NULL, patches, p.stride);
                scatter_patches(&p, patches, grad_x + k * group_x);
            }
        }
        const bool end = k + 1 == c->n * c->groups;
        if (every && (end || (k + 1) % every == 0)) {
            carry(totals, grad_w, weights, end);
        }
    }
}

static shoal_err forward(sh_exec *exec, const sh_conv2d *c, const void *x, const void *w, const void *bias, void *y)
{
    if (c->dtype != SHOAL_F32) {
        return sh_conv_kernels_reference.forward(exec, c, x, w, bias, y);
    }
    void *room = sh_exec_scratch(exec, sh_conv_general_scratch(c, false));
    if (!room) {
        return SHOAL_ENOMEM;
    }
    sh_conv_general_forward(c, x, w, bias, y, room);
    return SHOAL_OK;
}

static shoal_err backward(sh_exec *exec, const sh_conv2d *c, const void *grad_y, const void *x, const void *w,
                          void *grad_x, void *grad_w, void *grad_bias)
{
    if (c->dtype != SHOAL_F32) {
        return sh_conv_kernels_reference.backward(exec, c, grad_y, x, w, grad_x, grad_w, grad_bias);
    }
    void *room = sh_exec_scratch(exec, sh_conv_general_scratch(c, grad_w));
    if (!room) {
        return SHOAL_ENOMEM;
    }
    sh_conv2d_zero(c, grad_w, grad_bias);
    sh_conv_general_backward(c, grad_y, x, w, grad_x, grad_w, grad_bias, room);
    return SHOAL_OK;
}

const sh_conv_kernels SH_ISA_NAME(sh_conv_kernels) = {
    .forward = forward,
    .backward = backward,
    .pool_relu_forward = sh_conv_pool_relu_forward,
    .pool_relu_backward = sh_conv_pool_relu_backward,
};
