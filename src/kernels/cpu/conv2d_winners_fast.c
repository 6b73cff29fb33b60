/* The backward pass of the fused block, from the winners of the pool.
 *
 * Each live winner, at pixel p of output channel o with gradient g, adds g times the patch at p to grad_w[o], and g
 * times w[o] to the patch at p of grad_x. Images are converted to blocks of VEC channels, channels last, so a patch is
 * kernel x kernel vectors and no tap has idle lanes. For one output channel, first the sums of grad_w and then the
 * weights stay in registers while the loop runs over its winners. A block of an image fits into the L1 cache.
 *
 * An image of one channel has a separate algorithm, with vectors along rows. */
#include "kernels/cpu/conv2d_fused.h"

#include <string.h>

enum {
    ROWS_OF_ONE = VEC == 16 ? 5 : 2,  /* rows of the kernel whose sums, or whose weights, fit into the registers */
    ROWS_OF_BOTH = VEC == 16 ? 3 : 1, /* rows whose sums and weights fit together */
    STRIP_BYTES = 30 * 1024,          /* of x and grad_x, which stay in the L1 cache */
    ROW = 8,                          /* floats in a row of a patch, for images of one channel */
    PAGE = 4096 / sizeof(float),
    LINE = 16,         /* floats in a cache line */
    PIECE = 64 * LINE, /* windows of which a lane adds at most 64 */
    MOST_ADDED = 2048, /* windows of several images whose grad_w is summed in f32 */
};

/* The live winners of one output channel of one image: the positions where their patches begin, and their gradients. */
typedef struct winners {
    int64_t count;
    const int32_t *at;
    const float *g;
} winners;

typedef struct layout {
    int64_t windows, blocks, pixels, taps;
    bool single;                 /* one channel: vectors along rows, not blocks */
    int64_t row;                 /* floats from row to row of the converted image */
    int64_t image;               /* its floats: of one block, or of one of the two copies */
    int64_t strip;               /* rows of windows whose part of the image stays in the L1 cache */
    int64_t room_for;            /* winners of one channel: the number of windows, plus space to write past them */
    int32_t *at_left, *at_right; /* [windows]: where the patch begins if the left or the right column wins */
    int32_t *at;                 /* [O, room_for] */
    float *g;                    /* [O, room_for] */
    int64_t *count;              /* [O] */
    double *bias;                /* [O]: the sums of grad_bias over all images */
    float *x, *grad_x;           /* [blocks, padded_h, padded_w, VEC], or two copies of rows */
    float *w, *grad_w;           /* [O, blocks, kernel, kernel, VEC], or [O, kernel, ROW] */
    int64_t images;              /* after which grad_w is carried into totals; 0 if all are so few */
    double *totals;              /* as grad_w */
    size_t bytes;
} layout;

static void *take(char *room, size_t *bytes, int64_t count, size_t size)
{
    void *p = room ? room + *bytes : NULL;
    *bytes += round_64((size_t)count * size);
    return p;
}

static layout layout_of(const sh_fused_conv *b, bool grad_x, char *room)
{
    const int64_t out_c = b->c->out_c, in_c = b->c->in_c;
    layout l = {.windows = b->pooled_h * b->pooled_w, .single = in_c == 1 && !grad_x};
    l.blocks = l.single ? 1 : (in_c + VEC - 1) / VEC;
    l.pixels = b->padded_h * b->padded_w;
    l.taps = b->kernel * (l.single ? ROW : b->kernel * VEC);
    l.row = l.single ? (b->padded_w + 2 * LINE) / LINE * LINE : b->padded_w * VEC;
    l.image = l.row * b->padded_h;
    l.strip = (STRIP_BYTES / (int64_t)sizeof(float) / l.row / 2 - b->kernel + 1) / 2;
    l.strip = l.strip < 1 ? 1 : l.strip;
    l.room_for = l.windows + 16;
    l.at_left = take(room, &l.bytes, l.room_for, sizeof(int32_t));
    l.at_right = take(room, &l.bytes, l.room_for, sizeof(int32_t));
    l.at = take(room, &l.bytes, out_c * l.room_for, sizeof(int32_t));
    l.g = take(room, &l.bytes, out_c * l.room_for, sizeof(float));
    l.count = take(room, &l.bytes, out_c, sizeof(int64_t));
    l.x = take(room, &l.bytes, l.image * (l.single ? 2 : l.blocks), sizeof(float));
    l.grad_w = take(room, &l.bytes, out_c * l.blocks * l.taps, sizeof(float));
    l.grad_x = take(room, &l.bytes, grad_x ? l.image + PAGE : 0, sizeof(float));
    l.w = take(room, &l.bytes, grad_x ? out_c * l.blocks * l.taps : 0, sizeof(float));
    l.bias = take(room, &l.bytes, out_c, sizeof(double));
    l.images = l.windows < MOST_ADDED ? MOST_ADDED / l.windows : 1;
    l.images = b->c->n > l.images ? l.images : 0;
    l.totals = take(room, &l.bytes, l.images ? out_c * l.blocks * l.taps : 0, sizeof(double));
    return l;
}

size_t sh_fused_conv_winners_scratch(const sh_fused_conv *b, bool grad_x)
{
    return layout_of(b, grad_x, NULL).bytes;
}

/* ---- lists of winners ---- */

/* Returns where column j of a row begins. For one channel there are two copies of the image, the second shifted by half
 * a cache line, so that ROW floats from any column are in one cache line of one copy: a load that crosses lines costs
 * two. */
static int64_t column_at(const layout *l, int64_t j)
{
    if (!l->single) {
        return j * VEC;
    }
    return j % LINE <= LINE - ROW ? j : l->image + ROW + j;
}

static void fill_places(const sh_fused_conv *b, const layout *l)
{
    for (int64_t k = 0; k < l->windows; k++) {
        const int64_t top = 2 * (k / b->pooled_w) * l->row, j = 2 * (k % b->pooled_w);
        l->at_left[k] = (int32_t)(top + column_at(l, j));
        l->at_right[k] = (int32_t)(top + column_at(l, j + 1));
    }
}

/* Lists the live winners of windows [from, to) of one channel, with m times their gradients.
 * Returns their number; *sum += their gradients. */
INLINE int64_t list_winners(const layout *l, const float *grad_y, const uint8_t *winner, float m, int64_t from,
                            int64_t to, int32_t *at, float *g, double *sum)
{
    int64_t count = 0;
#if VEC == 16
    __m512 total = _mm512_setzero_ps();
    for (int64_t k = from; k < to; k += 16) {
        const int64_t left = to - k;
        const __mmask16 there = (__mmask16)(left < 16 ? (1u << left) - 1 : 0xffff);
        const __m512i who = _mm512_cvtepu8_epi32(_mm_maskz_loadu_epi8(there, winner + k));
        const __mmask16 live = _mm512_mask_cmplt_epi32_mask(there, who, _mm512_set1_epi32(SH_WINNER_DEAD));
        const __mmask16 right = _mm512_test_epi32_mask(who, _mm512_set1_epi32(1));
        const __mmask16 below = _mm512_test_epi32_mask(who, _mm512_set1_epi32(2));
        __m512i place =
            _mm512_mask_mov_epi32(_mm512_loadu_si512(l->at_left + k), right, _mm512_loadu_si512(l->at_right + k));
        place = _mm512_mask_add_epi32(place, below, place, _mm512_set1_epi32((int)l->row));
        const __m512 value = _mm512_mul_ps(_mm512_maskz_loadu_ps(live, grad_y + k), _mm512_set1_ps(m));
        total = _mm512_mask_add_ps(total, live, total, value);
        /* Compress in registers: compressing into memory is slow on some machines. */
        _mm512_storeu_si512(at + count, _mm512_maskz_compress_epi32(live, place));
        _mm512_storeu_ps(g + count, _mm512_maskz_compress_ps(live, value));
        count += __builtin_popcount(live);
    }
    *sum += (double)vec_sum(total);
#else
    const int32_t *const side[2] = {l->at_left, l->at_right};
    const int32_t down[2] = {0, (int32_t)l->row};
    for (int64_t k = from; k < to; k++) {
        const int who = winner[k]; /* unpredictable, so nothing here branches on it */
        at[count] = side[who & 1][k] + down[who >> 1 & 1];
        g[count] = grad_y[k] * m;
        count += who < SH_WINNER_DEAD;
    }
    double total = 0;
    for (int64_t k = 0; k < count; k++) {
        total += (double)g[k];
    }
    *sum += total;
#endif
    return count;
}

/* Lists all channels of an image, in pieces of windows short enough to be summed in f32. */
static void list_image(const sh_fused_conv *b, const layout *l, const float *grad_y, const uint8_t *winner,
                       const float *drop)
{
    for (int64_t o = 0; o < b->c->out_c; o++, grad_y += l->windows, winner += l->windows) {
        const float m = drop ? drop[o] : 1;
        int64_t count = 0;
        double sum = 0;
        for (int64_t from = 0; m != 0 && from < l->windows; from += PIECE) {
            const int64_t to = l->windows - from < PIECE ? l->windows : from + PIECE, at = o * l->room_for + count;
            count += list_winners(l, grad_y, winner, m, from, to, l->at + at, l->g + at, &sum);
        }
        l->count[o] = count;
        l->bias[o] += sum;
    }
}

static winners winners_of(const layout *l, int64_t o)
{
    return (winners){l->count[o], l->at + o * l->room_for, l->g + o * l->room_for};
}

/* ---- blocks of channels ---- */

/* Inputs and outputs of one output channel in one block. w and grad_w are [kernel, kernel, VEC]. */
typedef struct patches {
    const float *x, *w;
    float *grad_x, *grad_w; /* NULL if not wanted */
    int64_t row;
} patches;

/* For some rows of the kernel: grad_w += g * the patches of x, and the patches of grad_x += g * w. One loop does both,
 * because the first only loads and the second also stores. kernel, rows, to_w and to_x are constants where this is
 * inlined. */
INLINE void add_patches(const int kernel, const int rows, const bool to_w, const bool to_x, const patches *p,
                        const winners *v, const int first)
{
    vec sum[5][5], f[5][5];
    float *const grad_w = to_w ? p->grad_w + first * kernel * VEC : NULL;
    const int64_t row = p->row, count = v->count;
    const int32_t *const at = v->at;
    const float *const gradient = v->g;
#pragma GCC unroll 25
    for (int t = 0; t < rows * kernel; t++) {
        sum[t / kernel][t % kernel] = to_w ? vec_load(grad_w + t * VEC) : vec_zero();
        f[t / kernel][t % kernel] = to_x ? vec_load(p->w + (first * kernel + t) * VEC) : vec_zero();
    }
    for (int64_t k = 0; k < count; k++) {
        const float *from = to_w ? p->x + first * row + at[k] : NULL;
        float *to = to_x ? p->grad_x + first * row + at[k] : NULL;
        const vec g = vec_all(gradient[k]);
#pragma GCC unroll 5
        for (int a = 0; a < rows; a++) {
#pragma GCC unroll 5
            for (int d = 0; d < kernel; d++) {
                if (to_w) {
                    sum[a][d] = vec_fma(g, vec_load(from + d * VEC), sum[a][d]);
                }
                if (to_x) {
                    vec_store(to + d * VEC, vec_fma(g, f[a][d], vec_load(to + d * VEC)));
                }
            }
            from += to_w ? row : 0;
            to += to_x ? row : 0;
            /* One pointer for each array, not one for each tap: the compiler would keep those in vector registers. */
            __asm__("" : "+r"(from), "+r"(to));
        }
    }
    if (to_w) {
#pragma GCC unroll 25
        for (int t = 0; t < rows * kernel; t++) {
            vec_store(grad_w + t * VEC, sum[t / kernel][t % kernel]);
        }
    }
}

/* The same for all rows of the kernel, as many at a time as the registers hold. */
INLINE void add_rows_of_patches(const int kernel, const int rows, const bool to_w, const bool to_x, const patches *p,
                                const winners *v)
{
#pragma GCC unroll 5
    for (int a = 0; a + rows <= kernel; a += rows) {
        add_patches(kernel, rows, to_w, to_x, p, v, a);
    }
    if (kernel % rows) {
        add_patches(kernel, kernel % rows, to_w, to_x, p, v, kernel / rows * rows);
    }
}

#define BY_KERNEL(kernel)                                                                                              \
    static __attribute__((noinline)) void add_##kernel(const patches *p, const winners *v)                             \
    {                                                                                                                  \
        if (p->grad_w && p->grad_x) {                                                                                  \
            add_rows_of_patches(kernel, ROWS_OF_BOTH, true, true, p, v);                                               \
        } else if (p->grad_w) {                                                                                        \
            add_rows_of_patches(kernel, ROWS_OF_ONE, true, false, p, v);                                               \
        } else {                                                                                                       \
            add_rows_of_patches(kernel, ROWS_OF_ONE, false, true, p, v);                                               \
        }                                                                                                              \
    }

BY_KERNEL(5)
BY_KERNEL(3)

static int64_t channels_in(const sh_fused_conv *b, int64_t block)
{
    const int64_t left = b->c->in_c - block * VEC;
    return left < VEC ? left : VEC;
}

/* Converts x [C, H, W] to blocks of channels last. The padding, and lanes without a channel, were zeroed before. */
static void turn_image(const sh_fused_conv *b, const layout *l, const float *x)
{
    const sh_conv2d *c = b->c;
    const int64_t plane = c->in_h * c->in_w;
    for (int64_t block = 0; block < l->blocks; block++) {
        const float *from = x + block * VEC * plane;
        float *to = l->x + block * l->image + c->pad_h * l->row + c->pad_w * VEC;
        if (!b->padded) {
            transpose(from, plane, channels_in(b, block), plane, to, VEC);
            continue;
        }
        for (int64_t i = 0; i < c->in_h; i++) {
            transpose(from + i * c->in_w, plane, channels_in(b, block), c->in_w, to + i * l->row, VEC);
        }
    }
}

/* Converts one block back: grad_x [C, H, W] = the part inside the padding. */
static void turn_back(const sh_fused_conv *b, const layout *l, int64_t block, const float *turned, float *grad_x)
{
    const sh_conv2d *c = b->c;
    const int64_t plane = c->in_h * c->in_w;
    const float *from = turned + c->pad_h * l->row + c->pad_w * VEC;
    float *to = grad_x + block * VEC * plane;
    if (!b->padded) {
        transpose(from, VEC, plane, channels_in(b, block), to, plane);
        return;
    }
    for (int64_t i = 0; i < c->in_h; i++) {
        transpose(from + i * l->row, VEC, c->in_w, channels_in(b, block), to + i * c->in_w, plane);
    }
}

/* Convert w [O, C, kernel, kernel] to [O, blocks, kernel, kernel, VEC], and back. */
static void turn_weights(const sh_fused_conv *b, const layout *l, const float *w)
{
    const int64_t square = b->kernel * b->kernel, all = b->c->in_c * square;
    memset(l->w, 0, sizeof(float) * (size_t)(b->c->out_c * l->blocks * l->taps));
    for (int64_t k = 0; k < b->c->out_c * l->blocks; k++) {
        const int64_t o = k / l->blocks, block = k % l->blocks;
        transpose(w + o * all + block * VEC * square, square, channels_in(b, block), square, l->w + k * l->taps, VEC);
    }
}

static void add_weights_back(const sh_fused_conv *b, const layout *l, float *grad_w)
{
    const int64_t square = b->kernel * b->kernel, in_c = b->c->in_c;
    for (int64_t o = 0; o < b->c->out_c; o++) {
        for (int64_t c = 0; c < in_c; c++) {
            const float *from = l->grad_w + (o * l->blocks + c / VEC) * l->taps + c % VEC;
            for (int64_t tap = 0; tap < square; tap++) {
                grad_w[(o * in_c + c) * square + tap] += from[tap * VEC];
            }
        }
    }
}

/* Returns how many of the winners, which are sorted by row, are before a row of windows. */
static int64_t winners_before(const layout *l, const winners *v, int64_t window_row)
{
    const int32_t end = (int32_t)(2 * window_row * l->row);
    int32_t before = 0;
    for (int64_t k = 0; k < v->count; k++) {
        before += v->at[k] < end;
    }
    return before;
}

/* Returns the winners of o in the rows of windows [from, to). */
static winners winners_between(const layout *l, int64_t o, int64_t from, int64_t to)
{
    const winners v = winners_of(l, o);
    const int64_t begin = from ? winners_before(l, &v, from) : 0, end = winners_before(l, &v, to);
    return (winners){end - begin, v.at + begin, v.g + begin};
}

/* Returns where grad_x of a block begins: half a page away from x. If a load and an earlier store differ by whole
 * pages, the CPU takes the load for dependent on the store and waits. */
static float *grad_x_of(const layout *l, int64_t block)
{
    const ptrdiff_t off = l->x + block * l->image + PAGE / 2 - l->grad_x;
    return l->grad_x + (off % PAGE + PAGE) % PAGE;
}

static void backward_image(const sh_fused_conv *b, const layout *l, const float *x, float *grad_x, bool weights)
{
    const int64_t out_c = b->c->out_c;
    if (weights) {
        turn_image(b, l, x);
    }
    for (int64_t block = 0; block < l->blocks; block++) {
        float *const to = grad_x ? grad_x_of(l, block) : NULL;
        if (to) {
            memset(to, 0, sizeof(float) * (size_t)l->image);
        }
        for (int64_t top = 0; top < b->pooled_h; top += l->strip) {
            const int64_t bottom = top + l->strip < b->pooled_h ? top + l->strip : b->pooled_h;
            for (int64_t o = 0; o < out_c; o++) {
                const winners v = winners_between(l, o, top, bottom);
                const int64_t at = (o * l->blocks + block) * l->taps;
                const patches p = {
                    .x = l->x + block * l->image,
                    .w = l->w + at,
                    .grad_x = to,
                    .grad_w = weights ? l->grad_w + at : NULL,
                    .row = l->row,
                };
                if (v.count) {
                    (b->kernel == 5 ? add_5 : add_3)(&p, &v);
                }
            }
        }
        if (to) {
            turn_back(b, l, block, to, grad_x);
        }
    }
}

/* ---- one channel ---- */

/* Makes both copies of the image, with its padding. The elements of a patch row beyond the width of the kernel may have
 * any value. */
static void copy_image(const sh_fused_conv *b, const layout *l, const float *x)
{
    const sh_conv2d *c = b->c;
    const int64_t width = c->in_w;
    for (int64_t i = 0; i < c->in_h; i++, x += width) {
        float *to = l->x + (c->pad_h + i) * l->row + c->pad_w, *second = to + l->image + ROW;
        if (width < 8) {
            memcpy(to, x, sizeof(float) * (size_t)width);
            memcpy(second, x, sizeof(float) * (size_t)width);
            continue;
        }
        for (int64_t j = 0; j < width; j += 8) {
            const int64_t at = j + 8 <= width ? j : width - 8;
            const __m256 v = _mm256_loadu_ps(x + at);
            _mm256_storeu_ps(to + at, v);
            _mm256_storeu_ps(second + at, v);
        }
    }
}

/* grad_w [kernel, ROW] += the patches. Two sets of sums, so that a winner need not wait for the one before. */
INLINE void add_rows(const int kernel, const winners *v, const float *x, int64_t row, float *grad_w)
{
    __m256 sum[5], other[5];
#pragma GCC unroll 5
    for (int a = 0; a < kernel; a++) {
        sum[a] = _mm256_loadu_ps(grad_w + a * ROW);
        other[a] = _mm256_setzero_ps();
    }
    const int64_t count = v->count;
    const int32_t *const at = v->at;
    const float *const gradient = v->g;
    int64_t k = 0;
    for (; k + 2 <= count; k += 2) {
        const float *patch = x + at[k], *next = x + at[k + 1];
        const __m256 g = _mm256_set1_ps(gradient[k]), h = _mm256_set1_ps(gradient[k + 1]);
#pragma GCC unroll 5
        for (int a = 0; a < kernel; a++) {
            sum[a] = _mm256_fmadd_ps(g, _mm256_loadu_ps(patch), sum[a]);
            other[a] = _mm256_fmadd_ps(h, _mm256_loadu_ps(next), other[a]);
            patch += row;
            next += row;
            __asm__("" : "+r"(patch), "+r"(next)); /* or the compiler computes the address of each row again */
        }
    }
    if (k < count) {
        const __m256 g = _mm256_set1_ps(gradient[k]);
#pragma GCC unroll 5
        for (int a = 0; a < kernel; a++) {
            sum[a] = _mm256_fmadd_ps(g, _mm256_loadu_ps(x + at[k] + a * row), sum[a]);
        }
    }
#pragma GCC unroll 5
    for (int a = 0; a < kernel; a++) {
        _mm256_storeu_ps(grad_w + a * ROW, _mm256_add_ps(sum[a], other[a]));
    }
}

static void backward_single(const sh_fused_conv *b, const layout *l, const float *x)
{
    copy_image(b, l, x);
    for (int64_t o = 0; o < b->c->out_c; o++) {
        const winners v = winners_of(l, o);
        if (b->kernel == 5) {
            add_rows(5, &v, l->x, l->row, l->grad_w + o * l->taps);
        } else {
            add_rows(3, &v, l->x, l->row, l->grad_w + o * l->taps);
        }
    }
}

static void add_rows_back(const sh_fused_conv *b, const layout *l, float *grad_w)
{
    for (int64_t k = 0; k < b->c->out_c * b->kernel; k++) {
        for (int64_t d = 0; d < b->kernel; d++) {
            *grad_w++ += l->grad_w[k * ROW + d];
        }
    }
}

/* totals = grad_w at first, then += grad_w, and grad_w = 0; at the end grad_w = totals. */
static void carry(const layout *l, int64_t sums, bool first, bool end)
{
    for (int64_t k = 0; k < sums; k++) {
        l->totals[k] = (double)l->grad_w[k] + (first ? 0 : l->totals[k]);
        l->grad_w[k] = end ? (float)l->totals[k] : 0;
    }
}

void sh_fused_conv_winners_backward(const sh_fused_conv *b, const float *grad_y, const float *x, const float *w,
                                    const float *drop, const uint8_t *winner, float *grad_x, float *grad_w,
                                    float *grad_bias, void *room)
{
    const sh_conv2d *c = b->c;
    const layout l = layout_of(b, grad_x, room);
    const int64_t image = c->in_c * c->in_h * c->in_w, pooled = c->out_c * l.windows;
    const int64_t sums = c->out_c * l.blocks * l.taps;
    fill_places(b, &l);
    memset(l.bias, 0, sizeof(double) * (size_t)c->out_c);
    if (grad_w) {
        memset(l.x, 0, sizeof(float) * (size_t)(l.image * (l.single ? 2 : l.blocks)));
        memset(l.grad_w, 0, sizeof(float) * (size_t)sums);
    }
    if (grad_x) {
        turn_weights(b, &l, w);
    }
    for (int64_t n = 0; n < c->n; n++) {
        list_image(b, &l, grad_y + n * pooled, winner + n * pooled, drop ? drop + n * c->out_c : NULL);
        if (!l.single && (grad_w || grad_x)) {
            backward_image(b, &l, x + n * image, grad_x ? grad_x + n * image : NULL, grad_w);
        } else if (l.single && grad_w) {
            backward_single(b, &l, x + n * image);
        }
        if (l.images && grad_w && (n + 1 == c->n || (n + 1) % l.images == 0)) {
            carry(&l, sums, n < l.images, n + 1 == c->n);
        }
    }
    for (int64_t o = 0; grad_bias && o < c->out_c; o++) {
        grad_bias[o] = (float)((double)grad_bias[o] + l.bias[o]);
    }
    if (grad_w && l.single) {
        add_rows_back(b, &l, grad_w);
    } else if (grad_w) {
        add_weights_back(b, &l, grad_w);
    }
}
