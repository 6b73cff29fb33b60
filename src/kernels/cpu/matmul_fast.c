/* Matrix products for one instruction set; matmul_template.h describes the algorithms. */
#include "base/error.h"
#include "kernels/isa.h"
#include "kernels/matmul.h"

#include <immintrin.h>
#include <string.h>

/* A tile is WIDTH vectors wide and ROWS_WIDE rows high, to fit 32 registers of 64 bytes, or 16 of 32. Dot products win
 * for up to DOT_FEW rows, or if DOT_NARROW says that there are few enough columns. TURN_COST is the cost of the
 * transposed product compared with that of packing B. All as measured by bench/kernels/linear.c. */
#ifdef __AVX512F__
#define VECTOR_BYTES 64
#define WIDTH 4
#define ROWS_WIDE 6
#define DOT_ROWS 6
#define DOT_COLUMNS(rows) ((rows) <= 3 ? 8 : 4)
#define DOT_FEW(k) ((k) >= 64 ? 11 : 3)
#define DOT_NARROW(n, k) ((n) <= 64 && (k) >= 4 * (n))
#define TURN_COST(work) ((work)*4 / 3)
#else
#define VECTOR_BYTES 32
#define WIDTH 2
#define ROWS_WIDE 6
#define DOT_ROWS 3
#define DOT_COLUMNS(rows) ((rows) == 1 ? 8 : 4)
#define DOT_FEW(k) 3
#define DOT_NARROW(n, k) ((n) <= 32 && (k) >= 8 * (n))
#define TURN_COST(work) ((work)*4 / 5)
#endif

/* add_up adds the elements of a vector; add_up_4 does so for four vectors and returns the four sums. load_part loads
 * the first n elements and sets the others to 0; store_part stores the first n. Neither accesses the memory beyond
 * them. */
#ifdef __AVX512F__
static inline float f32_add_up(__m512 x)
{
    return _mm512_reduce_add_ps(x);
}

static inline double f64_add_up(__m512d x)
{
    return _mm512_reduce_add_pd(x);
}

static inline __m256 f32_halves(__m512 x)
{
    return _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
}

static inline __m256d f64_halves(__m512d x)
{
    return _mm256_add_pd(_mm512_castpd512_pd256(x), _mm512_extractf64x4_pd(x, 1));
}

static inline __m512 f32_load_part(const float *p, int64_t n)
{
    return _mm512_maskz_loadu_ps((__mmask16)((1u << n) - 1), p);
}

static inline __m512d f64_load_part(const double *p, int64_t n)
{
    return _mm512_maskz_loadu_pd((__mmask8)((1u << n) - 1), p);
}

static inline void f32_store_part(float *p, __m512 x, int64_t n)
{
    _mm512_mask_storeu_ps(p, (__mmask16)((1u << n) - 1), x);
}

static inline void f64_store_part(double *p, __m512d x, int64_t n)
{
    _mm512_mask_storeu_pd(p, (__mmask8)((1u << n) - 1), x);
}
#else
static inline __m256 f32_halves(__m256 x)
{
    return x;
}

static inline __m256d f64_halves(__m256d x)
{
    return x;
}

static inline float f32_add_up(__m256 x)
{
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}

static inline double f64_add_up(__m256d x)
{
    __m128d s = _mm_add_pd(_mm256_castpd256_pd128(x), _mm256_extractf128_pd(x, 1));
    return _mm_cvtsd_f64(_mm_add_sd(s, _mm_unpackhi_pd(s, s)));
}

static inline __m256i mask_32(int64_t n)
{
    return _mm256_cmpgt_epi32(_mm256_set1_epi32((int)n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

static inline __m256i mask_64(int64_t n)
{
    return _mm256_cmpgt_epi64(_mm256_set1_epi64x(n), _mm256_setr_epi64x(0, 1, 2, 3));
}

static inline __m256 f32_load_part(const float *p, int64_t n)
{
    return _mm256_maskload_ps(p, mask_32(n));
}

static inline __m256d f64_load_part(const double *p, int64_t n)
{
    return _mm256_maskload_pd(p, mask_64(n));
}

static inline void f32_store_part(float *p, __m256 x, int64_t n)
{
    _mm256_maskstore_ps(p, mask_32(n), x);
}

static inline void f64_store_part(double *p, __m256d x, int64_t n)
{
    _mm256_maskstore_pd(p, mask_64(n), x);
}
#endif

#define f32_add_up_4(x)                                                                                                \
    f32_add_up_halves(f32_halves((x)[0]), f32_halves((x)[1]), f32_halves((x)[2]), f32_halves((x)[3]))
#define f64_add_up_4(x)                                                                                                \
    f64_add_up_halves(f64_halves((x)[0]), f64_halves((x)[1]), f64_halves((x)[2]), f64_halves((x)[3]))

static inline __m128 f32_add_up_halves(__m256 a, __m256 b, __m256 c, __m256 d)
{
    __m256 s = _mm256_hadd_ps(_mm256_hadd_ps(a, b), _mm256_hadd_ps(c, d));
    return _mm_add_ps(_mm256_castps256_ps128(s), _mm256_extractf128_ps(s, 1));
}

static inline __m256d f64_add_up_halves(__m256d a, __m256d b, __m256d c, __m256d d)
{
    __m256d ab = _mm256_hadd_pd(a, b), cd = _mm256_hadd_pd(c, d);
    return _mm256_add_pd(_mm256_permute2f128_pd(ab, cd, 0x21), _mm256_blend_pd(ab, cd, 0xc));
}

/* Transposes a square of BLOCK rows that are step apart: to[p][j] = from[j][p]. */
#define f32_BLOCK 8
static inline __attribute__((always_inline)) void f32_turn(__m256 to[8], const float *from, int64_t step)
{
    __m256 r[8], s[8];
#pragma GCC unroll 4
    for (int j = 0; j < 4; j++) { /* pair the halves of rows j and j + 4, so that no later step crosses the middle */
        const float *low = from + j * step, *high = from + (j + 4) * step;
        r[j] = _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(low)), _mm_loadu_ps(high), 1);
        r[j + 4] = _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(low + 4)), _mm_loadu_ps(high + 4), 1);
    }
#pragma GCC unroll 2
    for (int h = 0; h < 8; h += 4) {
        s[h] = _mm256_unpacklo_ps(r[h], r[h + 1]);
        s[h + 1] = _mm256_unpackhi_ps(r[h], r[h + 1]);
        s[h + 2] = _mm256_unpacklo_ps(r[h + 2], r[h + 3]);
        s[h + 3] = _mm256_unpackhi_ps(r[h + 2], r[h + 3]);
        to[h] = _mm256_shuffle_ps(s[h], s[h + 2], 0x44);
        to[h + 1] = _mm256_shuffle_ps(s[h], s[h + 2], 0xee);
        to[h + 2] = _mm256_shuffle_ps(s[h + 1], s[h + 3], 0x44);
        to[h + 3] = _mm256_shuffle_ps(s[h + 1], s[h + 3], 0xee);
    }
}

/* The same for elements of 8 bytes; rows are step bytes apart. */
static inline __attribute__((always_inline)) void turn_8(__m256d to[4], const void *from, int64_t step)
{
    __m256d r[4];
#pragma GCC unroll 2
    for (int j = 0; j < 2; j++) {
        const char *low = (const char *)from + j * step, *high = low + 2 * step;
        r[j] = _mm256_insertf128_pd(_mm256_castpd128_pd256(_mm_loadu_pd((const void *)low)),
                                    _mm_loadu_pd((const void *)high), 1);
        r[j + 2] = _mm256_insertf128_pd(_mm256_castpd128_pd256(_mm_loadu_pd((const void *)(low + 16))),
                                        _mm_loadu_pd((const void *)(high + 16)), 1);
    }
    to[0] = _mm256_unpacklo_pd(r[0], r[1]);
    to[1] = _mm256_unpackhi_pd(r[0], r[1]);
    to[2] = _mm256_unpacklo_pd(r[2], r[3]);
    to[3] = _mm256_unpackhi_pd(r[2], r[3]);
}

#define f64_BLOCK 4
static inline __attribute__((always_inline)) void f64_turn(__m256d to[4], const double *from, int64_t step)
{
    turn_8(to, from, step * (int64_t)sizeof *from);
}

/* Load a piece of 8, 16 or 32 bytes and repeat it through a vector, in one instruction. */
typedef double loose_8 __attribute__((aligned(4), may_alias));
#ifdef __AVX512F__
#define MOST_PIECE 32
static inline __m512 repeat_8(const void *p)
{
    return _mm512_castpd_ps(_mm512_set1_pd(*(const loose_8 *)p));
}

static inline __m512 repeat_16(const void *p)
{
    return _mm512_broadcast_f32x4(_mm_loadu_ps(p));
}

static inline __m512 repeat_32(const void *p)
{
    return _mm512_broadcast_f32x8(_mm256_loadu_ps(p));
}
#else
#define MOST_PIECE 16
static inline __m256 repeat_8(const void *p)
{
    return _mm256_castpd_ps(_mm256_set1_pd(*(const loose_8 *)p));
}

static inline __m256 repeat_16(const void *p)
{
    return _mm256_broadcast_ps(p);
}
#endif

#define TEMPLATE "kernels/cpu/matmul_template.h"
#include "kernels/cpu/f32_f64.h"

static shoal_err matmul(sh_exec *exec, const sh_matmul_args *args)
{
    if (args->batch <= 0 || args->m <= 0 || args->n <= 0) {
        return SHOAL_OK;
    }
    switch (args->dtype) {
    case SHOAL_F32: return f32_matmul(exec, args);
    case SHOAL_F64: return f64_matmul(exec, args);
    default: return sh_matmul_kernels_reference.matmul(exec, args);
    }
}

const sh_matmul_kernels SH_ISA_NAME(sh_matmul_kernels) = {.matmul = matmul};
