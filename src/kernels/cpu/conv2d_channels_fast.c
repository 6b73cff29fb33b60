/* The forward pass of the fused block, with vectors along 16 output channels and broadcast pixels.
 * A tile of two rows of outputs stays in registers over all taps and is pooled there. With AVX-512, 2 x 14 pixels by 16
 * channels take 28 registers of sums, one register holds the weights, and each pixel is the memory operand of its
 * multiply-add. */
#include "kernels/cpu/conv2d_fused.h"

#include <string.h>

enum {
    LANES = 16,
};

/* ---- sixteen lanes ----
 *
 * The next tap needs the same pixel again. The compiler would keep it in a register, and no register is free, so the
 * instruction that reads it from memory is written as assembly. */

#if VEC == 16
typedef __m512 wide;

INLINE wide wide_load(const float *p)
{
    return _mm512_load_ps(p);
}

/* sum + *pixel * w */
INLINE wide wide_fma(const float *pixel, wide w, wide sum)
{
    __asm__("vfmadd231ps %2%{1to16%}, %1, %0" : "+v"(sum) : "v"(w), "m"(*pixel));
    return sum;
}

INLINE wide wide_mul(wide a, wide b)
{
    return _mm512_mul_ps(a, b);
}

INLINE __m256 wide_half(wide w, const int half)
{
    return half ? _mm512_extractf32x8_ps(w, 1) : _mm512_castps512_ps256(w);
}
#else
typedef struct wide {
    __m256 half[2];
} wide;

INLINE wide wide_load(const float *p)
{
    return (wide){{_mm256_load_ps(p), _mm256_load_ps(p + 8)}};
}

INLINE wide wide_fma(const float *pixel, wide w, wide sum)
{
    __m256 all;
    __asm__("vbroadcastss %1, %0" : "=x"(all) : "m"(*pixel));
    return (wide){{_mm256_fmadd_ps(all, w.half[0], sum.half[0]), _mm256_fmadd_ps(all, w.half[1], sum.half[1])}};
}

INLINE wide wide_mul(wide a, wide b)
{
    return (wide){{_mm256_mul_ps(a.half[0], b.half[0]), _mm256_mul_ps(a.half[1], b.half[1])}};
}

INLINE __m256 wide_half(wide w, const int half)
{
    return w.half[half];
}
#endif

/* ---- scratch ---- */

typedef struct layout {
    int64_t blocks, taps, windows;
    float *weights; /* [blocks, taps, LANES] */
    float *bias;    /* [blocks, LANES] */
    float *drop;    /* [LANES], of the current block */
    float *y;       /* [windows, LANES] */
    uint8_t *winner;
    size_t bytes;
} layout;

static layout layout_of(const sh_fused_conv *b, char *room)
{
    layout l = {
        .blocks = (b->c->out_c + LANES - 1) / LANES,
        .taps = b->c->in_c * b->kernel * b->kernel,
        .windows = b->pooled_h * b->pooled_w,
    };
    const size_t line = sizeof(float) * LANES;
    const size_t weights = line * (size_t)(l.blocks * l.taps), bias = line * (size_t)l.blocks;
    const size_t y = line * (size_t)l.windows;
    l.bytes = weights + bias + line + y + LANES * (size_t)l.windows;
    if (room) {
        l.weights = (float *)room;
        l.bias = (float *)(room + weights);
        l.drop = (float *)(room + weights + bias);
        l.y = (float *)(room + weights + bias + line);
        l.winner = (uint8_t *)(room + weights + bias + line + y);
    }
    return l;
}

bool sh_fused_conv_channels_fit(const sh_fused_conv *b)
{
    return b->c->out_c >= LANES && (b->c->out_c % LANES == 0 || b->c->out_c > 4 * LANES) && b->pooled_w >= 4;
}

size_t sh_fused_conv_channels_scratch(const sh_fused_conv *b)
{
    return round_64(layout_of(b, NULL).bytes);
}

void sh_fused_conv_channels_begin(const sh_fused_conv *b, const float *w, const float *bias, void *room)
{
    const layout l = layout_of(b, room);
    const int64_t out_c = b->c->out_c;
    for (int64_t block = 0; block < l.blocks; block++) {
        const int64_t first = block * LANES, count = out_c - first < LANES ? out_c - first : LANES;
        float *to = l.weights + block * l.taps * LANES;
        if (count < LANES) {
            memset(to, 0, sizeof(float) * (size_t)(l.taps * LANES));
        }
        transpose(w + first * l.taps, l.taps, count, l.taps, to, LANES);
        for (int64_t o = 0; o < LANES; o++) {
            l.bias[first + o] = bias && o < count ? bias[first + o] : 0;
        }
    }
}

/* ---- a tile ---- */

typedef struct work {
    const sh_fused_conv *b;
    const float *x, *weights, *bias;
    const float *drop; /* [LANES] or NULL */
    float *y;          /* [windows, LANES] */
    uint8_t *winner;
} work;

/* The rows of the kernel that fall on the image and not on padding, for the first and the second row of outputs. */
typedef struct spans {
    int64_t second, both, first,
        end; /* [second, both): only the second; [both, first): both; [first, end): only the first */
} spans;

static int64_t within(int64_t v, int64_t least, int64_t most)
{
    return v < least ? least : v > most ? most : v;
}

static spans spans_of(const sh_fused_conv *b, int64_t i)
{
    const int64_t above = b->c->pad_h - i, below = above + b->c->in_h;
    spans s = {.second = within(above - 1, 0, b->kernel), .both = within(above, 0, b->kernel)};
    s.first = within(below - 1, s.both, b->kernel);
    s.end = within(below, s.first, b->kernel);
    return s;
}

/* The edges of the image at which a tile is, if the padding keeps the size of the image. Taps that fall beyond an edge
 * are skipped. */
enum {
    LEFT = 1,
    RIGHT = 2,
};

INLINE void pool_window(const work *k, wide v0, wide v1, wide v2, wide v3, int64_t window)
{
#pragma GCC unroll 2
    for (int half = 0; half < 2; half++) {
        pooled8 p = pool8(wide_half(v0, half), wide_half(v1, half), wide_half(v2, half), wide_half(v3, half));
        if (k->drop) {
            const __m256 gone = _mm256_cmp_ps(_mm256_load_ps(k->drop + 8 * half), _mm256_setzero_ps(), _CMP_EQ_OQ);
            p.y = _mm256_andnot_ps(gone, p.y);
            p.winner = _mm256_blendv_epi8(p.winner, _mm256_set1_epi32(SH_WINNER_DEAD), _mm256_castps_si256(gone));
        }
        _mm256_store_ps(k->y + window * LANES + 8 * half, p.y);
        _mm_storel_epi64((__m128i *)(k->winner + window * LANES + 8 * half), bytes8(p.winner));
    }
}

/* Adds one row of one channel's kernel to the sums of the first row of outputs, of the second, or of both. */
INLINE void add_taps(const int kernel, const int columns, const int edges, const bool first, const bool second,
                     const float *line, const float *next, const float *taps, wide sum[2][14])
{
#pragma GCC unroll 5
    for (int d = 0; d < kernel; d++) {
        const wide f = wide_load(taps + d * LANES);
        const int from = edges & LEFT && d < kernel / 2 ? kernel / 2 - d : 0;
        const int to = edges & RIGHT && d > kernel / 2 ? columns + kernel / 2 - d : columns;
#pragma GCC unroll 14
        for (int q = from; first && q < to; q++) {
            sum[0][q] = wide_fma(line + q + d, f, sum[0][q]);
        }
#pragma GCC unroll 14
        for (int q = from; second && q < to; q++) {
            sum[1][q] = wide_fma(next + q + d, f, sum[1][q]);
        }
    }
}

/* Computes two rows from i on, columns from j on. kernel, columns and edges are constants where this is inlined. */
INLINE void tile(const int kernel, const int columns, const int edges, const work *k, int64_t i, int64_t j)
{
    const sh_fused_conv *b = k->b;
    const int64_t row = b->padded_w, plane = b->padded_h * row;
    const spans s = spans_of(b, i);
    wide sum[2][14];
    const wide bias = wide_load(k->bias);
#pragma GCC unroll 14
    for (int q = 0; q < columns; q++) {
        sum[0][q] = sum[1][q] = bias;
    }
    const float *x = k->x + i * row + j, *w = k->weights;
    for (int64_t c = 0; c < b->c->in_c; c++, x += plane, w += kernel * kernel * LANES) {
        for (int64_t a = s.second; a < s.both; a++) {
            add_taps(kernel, columns, edges, false, true, NULL, x + (a + 1) * row, w + a * kernel * LANES, sum);
        }
        for (int64_t a = s.both; a < s.first; a++) {
            add_taps(kernel, columns, edges, true, true, x + a * row, x + (a + 1) * row, w + a * kernel * LANES, sum);
        }
        for (int64_t a = s.first; a < s.end; a++) {
            add_taps(kernel, columns, edges, true, false, x + a * row, NULL, w + a * kernel * LANES, sum);
        }
    }
    if (k->drop) {
        const wide m = wide_load(k->drop);
#pragma GCC unroll 14
        for (int q = 0; q < columns; q++) {
            sum[0][q] = wide_mul(sum[0][q], m);
            sum[1][q] = wide_mul(sum[1][q], m);
        }
    }
#pragma GCC unroll 7
    for (int q = 0; q < columns / 2; q++) {
        pool_window(k, sum[0][2 * q], sum[0][2 * q + 1], sum[1][2 * q], sum[1][2 * q + 1],
                    i / 2 * b->pooled_w + j / 2 + q);
    }
}

typedef void tile_function(const work *k, int64_t i, int64_t j);

#define TILE(kernel, columns, edges)                                                                                   \
    static __attribute__((noinline)) void tile_##kernel##_##columns##_##edges(const work *k, int64_t i, int64_t j)     \
    {                                                                                                                  \
        tile(kernel, columns, edges, k, i, j);                                                                         \
    }

typedef struct tiles {
    int64_t kernel, columns;
    tile_function *at[4]; /* indexed by edges */
} tiles;

#if VEC == 16
TILE(3, 14, 0)
TILE(3, 12, 0)
TILE(3, 8, 0)
TILE(5, 14, 0)
TILE(5, 14, 1)
TILE(5, 14, 2)
TILE(5, 14, 3)
TILE(5, 12, 0)
TILE(5, 8, 0)
static const tiles shapes[] = {
    {3, 14, {tile_3_14_0, tile_3_14_0, tile_3_14_0, tile_3_14_0}},
    {3, 12, {tile_3_12_0, tile_3_12_0, tile_3_12_0, tile_3_12_0}},
    {3, 8, {tile_3_8_0, tile_3_8_0, tile_3_8_0, tile_3_8_0}},
    {5, 14, {tile_5_14_0, tile_5_14_1, tile_5_14_2, tile_5_14_3}},
    {5, 12, {tile_5_12_0, tile_5_12_0, tile_5_12_0, tile_5_12_0}},
    {5, 8, {tile_5_8_0, tile_5_8_0, tile_5_8_0, tile_5_8_0}},
};
#else
TILE(3, 2, 0)
TILE(5, 2, 0)
static const tiles shapes[] = {
    {3, 2, {tile_3_2_0, tile_3_2_0, tile_3_2_0, tile_3_2_0}},
    {5, 2, {tile_5_2_0, tile_5_2_0, tile_5_2_0, tile_5_2_0}},
};
#endif

/* Chooses, among the tiles that compute the fewest columns twice, the widest. */
static const tiles *choose(int64_t kernel, int64_t even_w)
{
    const tiles *best = NULL;
    int64_t least = INT64_MAX;
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        const int64_t columns = (even_w + shapes[i].columns - 1) / shapes[i].columns * shapes[i].columns;
        if (shapes[i].kernel == kernel && shapes[i].columns <= even_w && columns < least) {
            least = columns;
            best = &shapes[i];
        }
    }
    return best;
}

/* ---- an image ---- */

/* Transposes 16 x 16 bytes. */
INLINE void transpose_bytes(const uint8_t *from, uint8_t *to, int64_t to_row)
{
    __m128i a[16], b[16];
    for (int i = 0; i < 16; i++) {
        a[i] = _mm_loadu_si128((const __m128i *)(from + 16 * i));
    }
    /* Four rounds of a perfect shuffle: each moves one bit of the row number into the column number. */
#pragma GCC unroll 4
    for (int round = 0; round < 4; round++) {
#pragma GCC unroll 8
        for (int i = 0; i < 8; i++) {
            b[2 * i] = _mm_unpacklo_epi8(a[i], a[i + 8]);
            b[2 * i + 1] = _mm_unpackhi_epi8(a[i], a[i + 8]);
        }
        memcpy(a, b, sizeof a);
    }
    for (int i = 0; i < 16; i++) {
        _mm_storeu_si128((__m128i *)(to + i * to_row), a[i]);
    }
}

/* y and winner [channels, windows] = those of the block, which are [windows, LANES]. */
static void unpack(const layout *l, int64_t channels, float *y, uint8_t *winner)
{
    transpose(l->y, LANES, l->windows, channels, y, l->windows);
    if (channels == LANES && l->windows >= 16) {
        for (int64_t i = 0; i < l->windows; i += 16) {
            const int64_t at = i + 16 <= l->windows ? i : l->windows - 16;
            transpose_bytes(l->winner + at * LANES, winner + at, l->windows);
        }
        return;
    }
    for (int64_t o = 0; o < channels; o++) {
        for (int64_t i = 0; i < l->windows; i++) {
            winner[o * l->windows + i] = l->winner[i * LANES + o];
        }
    }
}

void sh_fused_conv_channels_forward(const sh_fused_conv *b, const float *x, const float *drop, float *y,
                                    uint8_t *winner, void *room)
{
    const layout l = layout_of(b, room);
    const int64_t even_w = 2 * b->pooled_w, out_c = b->c->out_c;
    const tiles *t = choose(b->kernel, even_w);
    const bool same = b->c->pad_w == b->kernel / 2 && even_w == b->c->in_w;
    for (int64_t block = 0; block < l.blocks; block++) {
        const int64_t first = block * LANES, count = out_c - first < LANES ? out_c - first : LANES;
        const work k = {.b = b,
                        .x = x,
                        .weights = l.weights + block * l.taps * LANES,
                        .bias = l.bias + first,
                        .drop = drop ? l.drop : NULL,
                        .y = l.y,
                        .winner = l.winner};
        for (int64_t o = 0; drop && o < LANES; o++) {
            l.drop[o] = o < count ? drop[first + o] : 0;
        }
        for (int64_t i = 0; i < 2 * b->pooled_h; i += 2) {
            for (int64_t j = 0; j < even_w; j += t->columns) {
                const int64_t at = j + t->columns <= even_w ? j : even_w - t->columns;
                const int edges = (same && at == 0 ? LEFT : 0) | (same && at + t->columns == even_w ? RIGHT : 0);
                t->at[edges](&k, i, at);
            }
        }
        unpack(&l, count, y + first * l.windows, winner + first * l.windows);
    }
}
