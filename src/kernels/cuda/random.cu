/* The CUDA twin of cpu/random_reference.c; the contract is kernels/random.h. A thread computes one Philox block and the
 * four elements (two of f64 and i64) that it gives. This file is compiled without fused multiply-add, like the CPU's,
 * and both call the same functions: every number equals the CPU's to the bit. */
#include "kernels/cpu/normal.h"
#include "kernels/cuda/element.cuh"
#include "kernels/philox.h"

/* Where the numbers of a call begin. A captured step draws new numbers each time it is replayed. */
typedef struct source {
    sh_random_key key;
    const uint64_t *advance;
} source;

static __device__ __forceinline__ void words_of(const source &s, uint64_t block, uint32_t (&words)[4])
{
    uint64_t b = s.key.offset + block + (s.advance ? *s.advance : 0);
    sh_philox_block((uint32_t)b, (uint32_t)(b >> 32), (uint32_t)s.key.stream, (uint32_t)(s.key.stream >> 32),
                    (uint32_t)s.key.seed, (uint32_t)(s.key.seed >> 32), words);
}

static __device__ __forceinline__ float uniform_f32(uint32_t word)
{
    return (float)(int32_t)(word >> 8) * 0x1p-24f;
}

static __device__ __forceinline__ uint64_t word64(const uint32_t (&words)[4], int k)
{
    return words[2 * k] | (uint64_t)words[2 * k + 1] << 32;
}

#define FOR_BLOCKS(b, n, per_block)                                                                                    \
    for (int64_t b = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; b * (per_block) < (n);                            \
         b += gridDim.x * (int64_t)blockDim.x)

/* Writes the W elements that make(words, x) makes of each Philox block. */
template <int W, class T, class Make>
static __device__ __forceinline__ void fill(const source &s, T *out, int64_t n, const Make &make)
{
    FOR_BLOCKS(b, n, W)
    {
        uint32_t words[4];
        T x[W];
        words_of(s, (uint64_t)b, words);
        make(words, x);
        sh_put(out, b, n, x);
    }
}

static __global__ void uniform_f32_kernel(source s, float *out, int64_t n, float low, float range)
{
    fill<4>(s, out, n, [&](const uint32_t(&words)[4], float(&x)[4]) {
        for (int k = 0; k < 4; k++) {
            x[k] = low + range * uniform_f32(words[k]);
        }
    });
}

static __global__ void uniform_f64_kernel(source s, double *out, int64_t n, double low, double range)
{
    fill<2>(s, out, n, [&](const uint32_t(&words)[4], double(&x)[2]) {
        for (int k = 0; k < 2; k++) {
            x[k] = low + range * ((double)(int64_t)(word64(words, k) >> 11) * 0x1p-53);
        }
    });
}

static __global__ void normal_f32_kernel(source s, float *out, int64_t n, float mean, float deviation)
{
    fill<4>(s, out, n, [&](const uint32_t(&words)[4], float(&x)[4]) {
        sh_normal_pair_f32(words[0], words[1], &x[0], &x[1]);
        sh_normal_pair_f32(words[2], words[3], &x[2], &x[3]);
        for (int k = 0; k < 4; k++) {
            x[k] = mean + deviation * x[k];
        }
    });
}

static __global__ void normal_f64_kernel(source s, double *out, int64_t n, double mean, double deviation)
{
    fill<2>(s, out, n, [&](const uint32_t(&words)[4], double(&x)[2]) {
        sh_normal_pair_f64(word64(words, 0), word64(words, 1), &x[0], &x[1]);
        for (int k = 0; k < 2; k++) {
            x[k] = mean + deviation * x[k];
        }
    });
}

template <class T> static __global__ void bernoulli_kernel(source s, T *out, int64_t n, float p, T value)
{
    fill<4>(s, out, n, [&](const uint32_t(&words)[4], T(&x)[4]) {
        for (int k = 0; k < 4; k++) {
            x[k] = uniform_f32(words[k]) < p ? value : T(0);
        }
    });
}

static __global__ void integers_kernel(source s, int64_t *out, int64_t n, uint64_t low, uint64_t range)
{
    fill<2>(s, out, n, [&](const uint32_t(&words)[4], int64_t(&x)[2]) {
        for (int k = 0; k < 2; k++) {
            x[k] = (int64_t)(low + __umul64hi(word64(words, k), range));
        }
    });
}

template <class T>
static __global__ void dropout_kernel(source s, T *y, uint8_t *mask, const T *x, int64_t n, float p, T factor)
{
    FOR_BLOCKS(b, n, 4)
    {
        uint32_t words[4];
        uint8_t keep[4];
        T v[4];
        words_of(s, (uint64_t)b, words);
        sh_get(x, b, n, v);
        for (int k = 0; k < 4; k++) {
            keep[k] = uniform_f32(words[k]) >= p;
            v[k] = keep[k] ? v[k] * factor : T(0);
        }
        sh_put(mask, b, n, keep);
        sh_put(y, b, n, v);
    }
}

template <class T>
static __global__ void dropout_backward_kernel(T *dx, const T *dy, const uint8_t *mask, int64_t n, T factor)
{
    FOR_BLOCKS(b, n, 4)
    {
        uint8_t keep[4];
        T v[4];
        sh_get(mask, b, n, keep);
        sh_get(dy, b, n, v);
        for (int k = 0; k < 4; k++) {
            v[k] = keep[k] ? v[k] * factor : T(0);
        }
        sh_put(dx, b, n, v);
    }
}

/* ---- launches ---- */

static source source_of(const sh_exec *exec, sh_random_key key)
{
    return source{key, exec->advance};
}

static unsigned blocks_for(int64_t n, int per_thread)
{
    return sh_blocks((n + per_thread - 1) / per_thread, SH_THREADS, SH_MOST_BLOCKS);
}

static shoal_err uniform(sh_exec *exec, sh_random_key key, shoal_dtype dtype, void *out, int64_t n, double low,
                         double high)
{
    shoal_err err = sh_check_float("uniform", dtype);
    if (err || n == 0) {
        return err;
    }
    if (dtype == SHOAL_F32) {
        uniform_f32_kernel<<<blocks_for(n, 4), SH_THREADS, 0, sh_stream(exec)>>>(source_of(exec, key), (float *)out, n,
                                                                                 (float)low, (float)(high - low));
    } else {
        uniform_f64_kernel<<<blocks_for(n, 2), SH_THREADS, 0, sh_stream(exec)>>>(source_of(exec, key), (double *)out, n,
                                                                                 low, high - low);
    }
    return sh_cuda_launched("uniform");
}

static shoal_err normal(sh_exec *exec, sh_random_key key, shoal_dtype dtype, void *out, int64_t n, double mean,
                        double deviation)
{
    shoal_err err = sh_check_float("normal", dtype);
    if (err || n == 0) {
        return err;
    }
    if (dtype == SHOAL_F32) {
        normal_f32_kernel<<<blocks_for(n, 4), SH_THREADS, 0, sh_stream(exec)>>>(source_of(exec, key), (float *)out, n,
                                                                                (float)mean, (float)deviation);
    } else {
        normal_f64_kernel<<<blocks_for(n, 2), SH_THREADS, 0, sh_stream(exec)>>>(source_of(exec, key), (double *)out, n,
                                                                                mean, deviation);
    }
    return sh_cuda_launched("normal");
}

template <class T>
static shoal_err bernoulli_of(sh_exec *exec, sh_random_key key, void *out, int64_t n, double p, T value)
{
    bernoulli_kernel<T>
        <<<blocks_for(n, 4), SH_THREADS, 0, sh_stream(exec)>>>(source_of(exec, key), (T *)out, n, (float)p, value);
    return sh_cuda_launched("bernoulli");
}

static shoal_err bernoulli(sh_exec *exec, sh_random_key key, shoal_dtype dtype, void *out, int64_t n, double p,
                           double value)
{
    if (dtype != SHOAL_F32 && dtype != SHOAL_F64 && dtype != SHOAL_U8 && dtype != SHOAL_B8) {
        return shoal_fail(SHOAL_EINVAL, "bernoulli does not support %s", shoal_dtype_name(dtype));
    }
    if (n == 0) {
        return SHOAL_OK;
    }
    switch (dtype) {
    case SHOAL_F32: return bernoulli_of<float>(exec, key, out, n, p, (float)value);
    case SHOAL_F64: return bernoulli_of<double>(exec, key, out, n, p, value);
    case SHOAL_U8: return bernoulli_of<uint8_t>(exec, key, out, n, p, (uint8_t)value);
    default: return bernoulli_of<uint8_t>(exec, key, out, n, p, 1);
    }
}

static shoal_err integers(sh_exec *exec, sh_random_key key, int64_t *out, int64_t n, int64_t low, int64_t high)
{
    if (high <= low) {
        return shoal_fail(SHOAL_EINVAL, "the range of integers from %lld to below %lld is empty", (long long)low,
                          (long long)high);
    }
    if (n == 0) {
        return SHOAL_OK;
    }
    integers_kernel<<<blocks_for(n, 2), SH_THREADS, 0, sh_stream(exec)>>>(source_of(exec, key), out, n, (uint64_t)low,
                                                                          (uint64_t)high - (uint64_t)low);
    return sh_cuda_launched("integers");
}

static shoal_err dropout(sh_exec *exec, sh_random_key key, shoal_dtype dtype, void *y, uint8_t *mask, const void *x,
                         int64_t n, double p)
{
    shoal_err err = sh_check_float("dropout", dtype);
    if (err || n == 0) {
        return err;
    }
    if (dtype == SHOAL_F32) {
        dropout_kernel<float><<<blocks_for(n, 4), SH_THREADS, 0, sh_stream(exec)>>>(
            source_of(exec, key), (float *)y, mask, (const float *)x, n, (float)p, (float)(1 / (1 - p)));
    } else {
        dropout_kernel<double><<<blocks_for(n, 4), SH_THREADS, 0, sh_stream(exec)>>>(
            source_of(exec, key), (double *)y, mask, (const double *)x, n, (float)p, 1 / (1 - p));
    }
    return sh_cuda_launched("dropout");
}

static shoal_err dropout_backward(sh_exec *exec, shoal_dtype dtype, void *dx, const void *dy, const uint8_t *mask,
                                  int64_t n, double p)
{
    shoal_err err = sh_check_float("dropout", dtype);
    if (err || n == 0) {
        return err;
    }
    if (dtype == SHOAL_F32) {
        dropout_backward_kernel<float><<<blocks_for(n, 4), SH_THREADS, 0, sh_stream(exec)>>>(
            (float *)dx, (const float *)dy, mask, n, (float)(1 / (1 - p)));
    } else {
        dropout_backward_kernel<double><<<blocks_for(n, 4), SH_THREADS, 0, sh_stream(exec)>>>(
            (double *)dx, (const double *)dy, mask, n, 1 / (1 - p));
    }
    return sh_cuda_launched("dropout");
}

extern "C" const sh_random_kernels sh_random_kernels_cuda = {uniform,  normal,  bernoulli,
                                                             integers, dropout, dropout_backward};
