/* Shared by the files of the fast convolution: vectors, and the functions that they export to each other. f32 only.
 * Each file is compiled once for each instruction set. */
#ifndef SH_KERNELS_CPU_CONV2D_FAST_H
#define SH_KERNELS_CPU_CONV2D_FAST_H

#include "kernels/cpu/conv2d_zero.h"
#include "kernels/isa.h"

#include <immintrin.h>

#define INLINE static inline __attribute__((always_inline))

/* ---- the widest vector ---- */

#ifdef __AVX512F__
#define VEC 16
typedef __m512 vec;

INLINE vec vec_load(const float *p)
{
    return _mm512_loadu_ps(p);
}

INLINE void vec_store(float *p, vec v)
{
    _mm512_storeu_ps(p, v);
}

INLINE vec vec_all(float f)
{
    return _mm512_set1_ps(f);
}

/* a * b + c */
INLINE vec vec_fma(vec a, vec b, vec c)
{
    return _mm512_fmadd_ps(a, b, c);
}

/* The first n elements of a vector, 0 < n <= VEC. The remaining ones are not accessed in memory;
 * in the vector they are 0. */
INLINE vec vec_load_part(const float *p, int64_t n)
{
    return _mm512_maskz_loadu_ps((__mmask16)(0xffffu >> (VEC - n)), p);
}

INLINE void vec_store_part(float *p, int64_t n, vec v)
{
    _mm512_mask_storeu_ps(p, (__mmask16)(0xffffu >> (VEC - n)), v);
}

#else
#define VEC 8
typedef __m256 vec;

INLINE vec vec_load(const float *p)
{
    return _mm256_loadu_ps(p);
}

INLINE void vec_store(float *p, vec v)
{
    _mm256_storeu_ps(p, v);
}

INLINE vec vec_all(float f)
{
    return _mm256_set1_ps(f);
}

INLINE vec vec_fma(vec a, vec b, vec c)
{
    return _mm256_fmadd_ps(a, b, c);
}

INLINE __m256i vec_part(int64_t n)
{
    return _mm256_cmpgt_epi32(_mm256_set1_epi32((int)n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

INLINE vec vec_load_part(const float *p, int64_t n)
{
    return _mm256_maskload_ps(p, vec_part(n));
}

INLINE void vec_store_part(float *p, int64_t n, vec v)
{
    _mm256_maskstore_ps(p, vec_part(n), v);
}
#endif

INLINE vec vec_zero(void)
{
    return vec_all(0);
}

INLINE float sum8(__m256 v)
{
    const __m128 half = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    const __m128 quarter = _mm_add_ps(half, _mm_movehl_ps(half, half));
    return _mm_cvtss_f32(_mm_add_ss(quarter, _mm_movehdup_ps(quarter)));
}

INLINE float vec_sum(vec v)
{
#ifdef __AVX512F__
    return sum8(_mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1)));
#else
    return sum8(v);
#endif
}

/* ---- the general convolution, by a matrix of patches (conv2d_fast.c) ---- */

#define sh_conv_general_scratch SH_ISA_NAME(sh_conv_general_scratch)
#define sh_conv_general_forward SH_ISA_NAME(sh_conv_general_forward)
#define sh_conv_general_backward SH_ISA_NAME(sh_conv_general_backward)

/* Returns how many bytes the two functions below need at room, which is aligned to 64. */
size_t sh_conv_general_scratch(const sh_conv2d *c, bool grad_w);
void sh_conv_general_forward(const sh_conv2d *c, const float *x, const float *w, const float *bias, float *y,
                             void *room);
void sh_conv_general_backward(const sh_conv2d *c, const float *grad_y, const float *x, const float *w, float *grad_x,
                              float *grad_w, float *grad_bias, void *room);

/* ---- the fused block (conv2d_fused_fast.c) ---- */

#define sh_conv_pool_relu_forward SH_ISA_NAME(sh_conv_pool_relu_forward)
#define sh_conv_pool_relu_backward SH_ISA_NAME(sh_conv_pool_relu_backward)

shoal_err sh_conv_pool_relu_forward(sh_exec *exec, const sh_conv2d *c, const void *x, const void *w, const void *bias,
                                    const void *drop, void *y, uint8_t *winner);
shoal_err sh_conv_pool_relu_backward(sh_exec *exec, const sh_conv2d *c, const void *grad_y, const void *x,
                                     const void *w, const void *drop, const uint8_t *winner, void *grad_x, void *grad_w,
                                     void *grad_bias);

static inline size_t round_64(size_t bytes)
{
    return (bytes + 63) / 64 * 64;
}

#endif
