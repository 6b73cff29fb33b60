/* Shared by the algorithms of the fused block: convolution with a small square kernel at stride 1, dropout of channels,
 * 2x2 max-pool, relu. f32, one image at a time.
 *
 *   rows      forward, vectors along the rows of the image: for few output channels, or if channels are dropped
 *   channels  forward, vectors along the output channels: for many of them
 *   winners   backward, from the winners of the pool alone: a quarter of the outputs, or less after relu and dropout */
#ifndef SH_KERNELS_CPU_CONV2D_FUSED_H
#define SH_KERNELS_CPU_CONV2D_FUSED_H

#include "kernels/cpu/conv2d_fast.h"

typedef struct sh_fused_conv {
    const sh_conv2d *c;
    int64_t kernel;             /* 3 or 5 */
    int64_t padded_h, padded_w; /* size of the image with its padding */
    int64_t pooled_h, pooled_w;
    bool padded;
} sh_fused_conv;

#define sh_fused_conv_rows_fit SH_ISA_NAME(sh_fused_conv_rows_fit)
#define sh_fused_conv_rows_scratch SH_ISA_NAME(sh_fused_conv_rows_scratch)
#define sh_fused_conv_rows_forward SH_ISA_NAME(sh_fused_conv_rows_forward)
#define sh_fused_conv_channels_fit SH_ISA_NAME(sh_fused_conv_channels_fit)
#define sh_fused_conv_channels_scratch SH_ISA_NAME(sh_fused_conv_channels_scratch)
#define sh_fused_conv_channels_begin SH_ISA_NAME(sh_fused_conv_channels_begin)
#define sh_fused_conv_channels_forward SH_ISA_NAME(sh_fused_conv_channels_forward)
#define sh_fused_conv_winners_scratch SH_ISA_NAME(sh_fused_conv_winners_scratch)
#define sh_fused_conv_winners_backward SH_ISA_NAME(sh_fused_conv_winners_backward)

/* Forward for one image: x [C, padded_h, padded_w], drop [O] or NULL, y and winner [O, pooled_h, pooled_w]. */
bool sh_fused_conv_rows_fit(const sh_fused_conv *b);
size_t sh_fused_conv_rows_scratch(const sh_fused_conv *b);
void sh_fused_conv_rows_forward(const sh_fused_conv *b, const float *x, const float *w, const float *bias,
                                const float *drop, float *y, uint8_t *winner, void *room);

/* The same. begin packs the weights into room; they then serve all images. */
bool sh_fused_conv_channels_fit(const sh_fused_conv *b);
size_t sh_fused_conv_channels_scratch(const sh_fused_conv *b);
void sh_fused_conv_channels_begin(const sh_fused_conv *b, const float *w, const float *bias, void *room);
void sh_fused_conv_channels_forward(const sh_fused_conv *b, const float *x, const float *drop, float *y,
                                    uint8_t *winner, void *room);

/* Backward for all images and all gradients; x has no padding. */
size_t sh_fused_conv_winners_scratch(const sh_fused_conv *b, bool grad_x);
void sh_fused_conv_winners_backward(const sh_fused_conv *b, const float *grad_y, const float *x, const float *w,
                                    const float *drop, const uint8_t *winner, float *grad_x, float *grad_w,
                                    float *grad_bias, void *room);

/* ---- max-pool and relu on vectors ---- */

typedef struct pooled8 {
    __m256 y;
    __m256i winner;
} pooled8;

/* pool8 if any element is NaN: lane by lane. */
static __attribute__((noinline, cold)) void pool8_nan(const float v[4][8], float y[8], int32_t winner[8])
{
    for (int lane = 0; lane < 8; lane++) {
        int best = 0;
        for (int k = 1; k < 4; k++) {
            best = v[k][lane] > v[best][lane] || v[k][lane] != v[k][lane] ? k : best;
        }
        const bool dead = v[best][lane] <= 0;
        y[lane] = dead ? 0 : v[best][lane];
        winner[lane] = dead ? SH_WINNER_DEAD : best;
    }
}

/* Pools eight windows; each lane of v0 v1 above v2 v3 is one window. */
INLINE pooled8 pool8(__m256 v0, __m256 v1, __m256 v2, __m256 v3)
{
    pooled8 p;
    const __m256 nan = _mm256_or_ps(_mm256_cmp_ps(v0, v1, _CMP_UNORD_Q), _mm256_cmp_ps(v2, v3, _CMP_UNORD_Q));
    if (__builtin_expect(_mm256_movemask_ps(nan), 0)) {
        float v[4][8], y[8];
        int32_t winner[8];
        _mm256_storeu_ps(v[0], v0);
        _mm256_storeu_ps(v[1], v1);
        _mm256_storeu_ps(v[2], v2);
        _mm256_storeu_ps(v[3], v3);
        pool8_nan((const float(*)[8])v, y, winner);
        p.y = _mm256_loadu_ps(y);
        p.winner = _mm256_loadu_si256((const __m256i *)winner);
        return p;
    }
    const __m256 top = _mm256_max_ps(v0, v1), bottom = _mm256_max_ps(v2, v3), best = _mm256_max_ps(top, bottom);
    const __m256i one = _mm256_castps_si256(_mm256_cmp_ps(v1, v0, _CMP_GT_OQ));
    const __m256i three = _mm256_castps_si256(_mm256_cmp_ps(v3, v2, _CMP_GT_OQ));
    const __m256i below = _mm256_castps_si256(_mm256_cmp_ps(bottom, top, _CMP_GT_OQ));
    const __m256 dead = _mm256_cmp_ps(best, _mm256_setzero_ps(), _CMP_LE_OQ);
    /* A lane of a true comparison is -1. */
    const __m256i which = _mm256_blendv_epi8(_mm256_sub_epi32(_mm256_setzero_si256(), one),
                                             _mm256_sub_epi32(_mm256_set1_epi32(2), three), below);
    p.winner = _mm256_blendv_epi8(which, _mm256_set1_epi32(SH_WINNER_DEAD), _mm256_castps_si256(dead));
    p.y = _mm256_andnot_ps(dead, best);
    return p;
}

/* The low bytes of eight numbers, in the low half of the result. */
INLINE __m128i bytes8(__m256i v)
{
#ifdef __AVX512VL__
    return _mm256_cvtepi32_epi8(v);
#else
    const __m128i words = _mm_packs_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    return _mm_packus_epi16(words, words);
#endif
}

/* ---- transposition ---- */

INLINE void transpose_8x8(const float *from, int64_t from_row, float *to, int64_t to_row)
{
    __m256 a[8], b[8];
    for (int i = 0; i < 4; i++) {
        a[i] = _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(from + i * from_row)),
                                    _mm_loadu_ps(from + (i + 4) * from_row), 1);
        a[i + 4] = _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(from + i * from_row + 4)),
                                        _mm_loadu_ps(from + (i + 4) * from_row + 4), 1);
    }
    for (int i = 0; i < 8; i += 4) {
        b[i] = _mm256_unpacklo_ps(a[i], a[i + 1]);
        b[i + 1] = _mm256_unpackhi_ps(a[i], a[i + 1]);
        b[i + 2] = _mm256_unpacklo_ps(a[i + 2], a[i + 3]);
        b[i + 3] = _mm256_unpackhi_ps(a[i + 2], a[i + 3]);
    }
    for (int i = 0; i < 8; i += 4) {
        _mm256_storeu_ps(to + i * to_row, _mm256_shuffle_ps(b[i], b[i + 2], 0x44));
        _mm256_storeu_ps(to + (i + 1) * to_row, _mm256_shuffle_ps(b[i], b[i + 2], 0xee));
        _mm256_storeu_ps(to + (i + 2) * to_row, _mm256_shuffle_ps(b[i + 1], b[i + 3], 0x44));
        _mm256_storeu_ps(to + (i + 3) * to_row, _mm256_shuffle_ps(b[i + 1], b[i + 3], 0xee));
    }
}

/* Transposes two rows of eight. */
INLINE void transpose_2x8(const float *from, int64_t from_row, float *to, int64_t to_row)
{
    const __m256 a = _mm256_loadu_ps(from), b = _mm256_loadu_ps(from + from_row);
    const __m256 low = _mm256_unpacklo_ps(a, b), high = _mm256_unpackhi_ps(a, b);
    const __m128 pairs[4] = {_mm256_castps256_ps128(low), _mm256_castps256_ps128(high), _mm256_extractf128_ps(low, 1),
                             _mm256_extractf128_ps(high, 1)};
    for (int i = 0; i < 4; i++) {
        _mm_storel_pi((__m64 *)(to + 2 * i * to_row), pairs[i]);
        _mm_storeh_pi((__m64 *)(to + (2 * i + 1) * to_row), pairs[i]);
    }
}

/* to[j, i] = from[i, j]. If a size is not a multiple of eight, the last block overlaps the one before. Two remaining
 * rows are common enough to deserve a separate step. */
static inline void transpose(const float *from, int64_t from_row, int64_t rows, int64_t columns, float *to,
                             int64_t to_row)
{
    if (rows < 8 || columns < 8) {
        for (int64_t i = 0; i < rows; i++) {
            for (int64_t j = 0; j < columns; j++) {
                to[j * to_row + i] = from[i * from_row + j];
            }
        }
        return;
    }
    for (int64_t i = 0; i < rows; i += 8) {
        const bool two = i + 2 == rows;
        const int64_t at_i = i + 8 <= rows || two ? i : rows - 8;
        for (int64_t j = 0; j < columns; j += 8) {
            const int64_t at_j = j + 8 <= columns ? j : columns - 8;
            const float *block = from + at_i * from_row + at_j;
            if (two) {
                transpose_2x8(block, from_row, to + at_j * to_row + at_i, to_row);
            } else {
                transpose_8x8(block, from_row, to + at_j * to_row + at_i, to_row);
            }
        }
    }
}

#endif
