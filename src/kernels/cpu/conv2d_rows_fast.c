/* The forward pass of the fused block, with vectors along the rows of the image and broadcast weights.
 * A tile of outputs (some channels, some rows, one or three vectors of eight columns) stays in registers over all taps
 * and is pooled there. Dropped channels cost nothing: tiles contain only channels that are not dropped. */
#include "kernels/cpu/conv2d_fused.h"

#include <string.h>

enum {
    MOST_CHANNELS = 4,
};

typedef struct work {
    const sh_fused_conv *b;
    const float *x, *w, *bias, *drop;
    float *y;
    uint8_t *winner;
} work;

bool sh_fused_conv_rows_fit(const sh_fused_conv *b)
{
    return b->pooled_w >= 4;
}

size_t sh_fused_conv_rows_scratch(const sh_fused_conv *b)
{
    return round_64(sizeof(int32_t) * (size_t)b->c->out_c);
}

/* Pools 16 columns of two rows, a above b, into eight windows and stores them: four at y and four at y_next, which may
 * be in the next row of windows. A NULL y_next drops the second four. */
INLINE void pool_store(__m256 a0, __m256 a1, __m256 b0, __m256 b1, float *y, uint8_t *winner, float *y_next,
                       uint8_t *winner_next)
{
    const pooled8 p = pool8(_mm256_shuffle_ps(a0, a1, 0x88), _mm256_shuffle_ps(a0, a1, 0xdd),
                            _mm256_shuffle_ps(b0, b1, 0x88), _mm256_shuffle_ps(b0, b1, 0xdd));
    /* The shuffles above work within halves of 128 bits. This restores the order. */
    const __m256d ordered = _mm256_permute4x64_pd(_mm256_castps_pd(p.y), 0xd8);
    const __m128i bytes = bytes8(_mm256_permute4x64_epi64(p.winner, 0xd8));
    const int32_t low = _mm_cvtsi128_si32(bytes), high = _mm_extract_epi32(bytes, 1);
    _mm_storeu_pd((double *)y, _mm256_castpd256_pd128(ordered));
    memcpy(winner, &low, sizeof low);
    if (y_next) {
        _mm_storeu_pd((double *)y_next, _mm256_extractf128_pd(ordered, 1));
        memcpy(winner_next, &high, sizeof high);
    }
}

/* Pools two rows of three vectors, or of one. A single vector shares its registers with that of the next channel. */
INLINE void pool_wide(const int vectors, const int channels, __m256 sum[MOST_CHANNELS][8][3], float *const *y,
                      uint8_t *const *winner)
{
    const int last = vectors - 1;
#pragma GCC unroll 4
    for (int o = 0; o < channels; o++) {
        if (vectors == 3) {
            pool_store(sum[o][0][0], sum[o][0][1], sum[o][1][0], sum[o][1][1], y[o], winner[o], y[o] + 4,
                       winner[o] + 4);
        }
        if (o % 2) {
            pool_store(sum[o - 1][0][last], sum[o][0][last], sum[o - 1][1][last], sum[o][1][last], y[o - 1] + 4 * last,
                       winner[o - 1] + 4 * last, y[o] + 4 * last, winner[o] + 4 * last);
        } else if (o + 1 == channels) {
            pool_store(sum[o][0][last], sum[o][0][last], sum[o][1][last], sum[o][1][last], y[o] + 4 * last,
                       winner[o] + 4 * last, NULL, NULL);
        }
    }
}

/* Pools one vector in each of several rows. */
INLINE void pool_tall(const int rows, const int channels, __m256 sum[MOST_CHANNELS][8][3], int64_t pooled_w,
                      float *const *y, uint8_t *const *winner)
{
#pragma GCC unroll 4
    for (int o = 0; o < channels; o++) {
#pragma GCC unroll 2
        for (int r = 0; r < rows; r += 4) {
            const int64_t at = r / 2 * pooled_w;
            pool_store(sum[o][r][0], sum[o][r + 2][0], sum[o][r + 1][0], sum[o][r + 3][0], y[o] + at, winner[o] + at,
                       y[o] + at + pooled_w, winner[o] + at + pooled_w);
        }
    }
}

/* Computes the outputs at row i, column j of the given channels. All four sizes are constants where this is inlined. */
INLINE void tile(const int kernel, const int rows, const int vectors, const int channels, const work *k,
                 const int32_t *channel, int64_t i, int64_t j)
{
    const sh_fused_conv *b = k->b;
    const int64_t row = b->padded_w, plane = b->padded_h * row, in_c = b->c->in_c;
    __m256 sum[MOST_CHANNELS][8][3];
    const float *w[MOST_CHANNELS];
#pragma GCC unroll 4
    for (int o = 0; o < channels; o++) {
        const __m256 bias = _mm256_set1_ps(k->bias ? k->bias[channel[o]] : 0);
        w[o] = k->w + channel[o] * in_c * kernel * kernel;
#pragma GCC unroll 8
        for (int r = 0; r < rows; r++) {
#pragma GCC unroll 3
            for (int v = 0; v < vectors; v++) {
                sum[o][r][v] = bias;
            }
        }
    }
    const float *x = k->x + i * row + j;
    int64_t tap = 0;
    for (int64_t c = 0; c < in_c; c++, x += plane) {
        const float *line = x;
        for (int a = 0; a < kernel; a++, line += row) {
#pragma GCC unroll 5
            for (int d = 0; d < kernel; d++, tap++) {
                __m256 f[MOST_CHANNELS];
#pragma GCC unroll 4
                for (int o = 0; o < channels; o++) {
                    f[o] = _mm256_set1_ps(w[o][tap]);
                }
#pragma GCC unroll 8
                for (int r = 0; r < rows; r++) {
#pragma GCC unroll 3
                    for (int v = 0; v < vectors; v++) {
                        const __m256 in = _mm256_loadu_ps(line + r * row + 8 * v + d);
#pragma GCC unroll 4
                        for (int o = 0; o < channels; o++) {
                            sum[o][r][v] = _mm256_fmadd_ps(in, f[o], sum[o][r][v]);
                        }
                    }
                }
            }
        }
    }
#pragma GCC unroll 4
    for (int o = 0; o < channels; o++) {
        if (!k->drop) {
            break;
        }
        const __m256 m = _mm256_set1_ps(k->drop[channel[o]]);
#pragma GCC unroll 8
        for (int r = 0; r < rows; r++) {
#pragma GCC unroll 3
            for (int v = 0; v < vectors; v++) {
                sum[o][r][v] = _mm256_mul_ps(sum[o][r][v], m);
            }
        }
    }
    float *y[MOST_CHANNELS];
    uint8_t *winner[MOST_CHANNELS];
#pragma GCC unroll 4
    for (int o = 0; o < channels; o++) {
        const int64_t at = (channel[o] * b->pooled_h + i / 2) * b->pooled_w + j / 2;
        y[o] = k->y + at;
        winner[o] = k->winner + at;
    }
    if (rows == 2) {
        pool_wide(vectors, channels, sum, y, winner);
    } else {
        pool_tall(rows, channels, sum, b->pooled_w, y, winner);
    }
}

/* Computes all rows of the columns from j on. If the rows are not a multiple of the tile, the last tile overlaps the
 * one before and computes the same results again. The loop is inside so that addresses are computed once. */
typedef void tile_function(const work *k, const int32_t *channel, int64_t j);

#define TILE(kernel, rows, vectors, channels)                                                                          \
    static __attribute__((noinline)) void tile_##kernel##_##rows##_##vectors##_##channels(                             \
        const work *k, const int32_t *channel, int64_t j)                                                              \
    {                                                                                                                  \
        const int64_t even_h = 2 * k->b->pooled_h;                                                                     \
        for (int64_t i = 0; i < even_h; i += rows) {                                                                   \
            tile(kernel, rows, vectors, channels, k, channel, i + rows <= even_h ? i : even_h - rows, j);              \
        }                                                                                                              \
    }

/* Tiles of one shape, indexed by their number of channels. */
typedef struct tiles {
    int64_t rows, columns;
    int most; /* the greatest number of channels */
    tile_function *of[MOST_CHANNELS + 1];
} tiles;

#if VEC == 16
#define TILES(kernel)                                                                                                  \
    TILE(kernel, 2, 3, 1)                                                                                              \
    TILE(kernel, 2, 3, 2)                                                                                              \
    TILE(kernel, 2, 3, 3)                                                                                              \
    TILE(kernel, 2, 3, 4)                                                                                              \
    TILE(kernel, 8, 1, 1)                                                                                              \
    TILE(kernel, 8, 1, 2)                                                                                              \
    TILE(kernel, 8, 1, 3)                                                                                              \
    TILE(kernel, 2, 1, 1)                                                                                              \
    static const tiles tiles_##kernel[3] = {                                                                           \
        {2,                                                                                                            \
         24,                                                                                                           \
         4,                                                                                                            \
         {NULL, tile_##kernel##_2_3_1, tile_##kernel##_2_3_2, tile_##kernel##_2_3_3, tile_##kernel##_2_3_4}},          \
        {8, 8, 3, {NULL, tile_##kernel##_8_1_1, tile_##kernel##_8_1_2, tile_##kernel##_8_1_3}},                        \
        {2, 8, 1, {NULL, tile_##kernel##_2_1_1}},                                                                      \
    };
#else
#define TILES(kernel)                                                                                                  \
    TILE(kernel, 2, 3, 1)                                                                                              \
    TILE(kernel, 2, 3, 2)                                                                                              \
    TILE(kernel, 4, 1, 1)                                                                                              \
    TILE(kernel, 4, 1, 2)                                                                                              \
    TILE(kernel, 4, 1, 3)                                                                                              \
    TILE(kernel, 2, 1, 1)                                                                                              \
    static const tiles tiles_##kernel[3] = {                                                                           \
        {2, 24, 2, {NULL, tile_##kernel##_2_3_1, tile_##kernel##_2_3_2}},                                              \
        {4, 8, 3, {NULL, tile_##kernel##_4_1_1, tile_##kernel##_4_1_2, tile_##kernel##_4_1_3}},                        \
        {2, 8, 1, {NULL, tile_##kernel##_2_1_1}},                                                                      \
    };
#endif

TILES(5)
TILES(3)

/* Computes the columns from j on for all given channels, with tiles of one shape. */
static void strip(const work *k, const tiles *t, const int32_t *channel, int64_t count, int64_t j)
{
    for (int64_t o = 0; o < count;) {
        const int64_t left = count - o;
        /* The last two tiles share the remaining channels: a tile of one channel would wait for its own sums. */
        const int64_t take = left <= t->most ? left : left < 2 * t->most ? (left + 1) / 2 : t->most;
        t->of[take](k, channel + o, j);
        o += take;
    }
}

static int64_t list_live(const sh_fused_conv *b, const float *drop, float *y, uint8_t *winner, int32_t *channel)
{
    const int64_t plane = b->pooled_h * b->pooled_w;
    int64_t count = 0;
    for (int64_t o = 0; o < b->c->out_c; o++) {
        if (!drop || drop[o] != 0) {
            channel[count++] = (int32_t)o;
        } else {
            memset(y + o * plane, 0, sizeof(float) * (size_t)plane);
            memset(winner + o * plane, SH_WINNER_DEAD, (size_t)plane);
        }
    }
    return count;
}

void sh_fused_conv_rows_forward(const sh_fused_conv *b, const float *x, const float *w, const float *bias,
                                const float *drop, float *y, uint8_t *winner, void *room)
{
    const work k = {b, x, w, bias, drop, y, winner};
    const tiles *shapes = b->kernel == 5 ? tiles_5 : tiles_3;
    const tiles *narrow = 2 * b->pooled_h >= shapes[1].rows ? &shapes[1] : &shapes[2];
    int32_t *channel = room;
    const int64_t count = list_live(b, drop, y, winner, channel), even_w = 2 * b->pooled_w;
    int64_t j = 0;
    for (; j + shapes[0].columns <= even_w; j += shapes[0].columns) {
        strip(&k, &shapes[0], channel, count, j);
    }
    for (; j < even_w; j += narrow->columns) {
        strip(&k, narrow, channel, count, j + narrow->columns <= even_w ? j : even_w - narrow->columns);
    }
}
