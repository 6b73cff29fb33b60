/* Matrix products for one instruction set; matmul_template.h says how. */
#include "base/error.h"
#include "kernels/isa.h"
#include "kernels/matmul.h"

#include <immintrin.h>
#include <string.h>

/* 32 registers of 64 bytes, or 16 of 32: how many vectors a tile is wide, and how many rows it then has. */
#ifdef __AVX512F__
#define VECTOR_BYTES 64
#define WIDTH 4
#define ROWS_WIDE 6
#define DOT_ROWS 6
#define DOT_COLUMNS 4
#else
#define VECTOR_BYTES 32
#define WIDTH 2
#define ROWS_WIDE 6
#define DOT_ROWS 3
#define DOT_COLUMNS 4
#endif

/* add_up: the sum of a vector's elements. load_part: the first n elements, the others 0; store_part: only the first n. What is
 * beyond is not touched. */
#ifdef __AVX512F__
static inline float f32_add_up(__m512 x)
{
    return _mm512_reduce_add_ps(x);
}

static inline double f64_add_up(__m512d x)
{
    return _mm512_reduce_add_pd(x);
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

#define T float
#define NAME(x) f32_##x
#include "kernels/cpu/matmul_template.h"
#undef T
#undef NAME
#define T double
#define NAME(x) f64_##x
#include "kernels/cpu/matmul_template.h"
#undef T
#undef NAME

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
