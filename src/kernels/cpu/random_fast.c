/* Random numbers with vectors: fills a buffer with the words of many blocks,
 * then converts them as the reference does. */
#include "kernels/random.h"

#include "kernels/cpu/element.h"
#include "kernels/cpu/loop.h"
#include "kernels/cpu/normal.h"
#include "kernels/isa.h"
#include "kernels/philox.h"

#define WORDS 1024 /* in a buffer */

/* Makes the words of count blocks, from block first on. */
static void make_words(sh_random_key key, uint64_t first, int64_t count, uint32_t *restrict words)
{
    uint32_t c2 = (uint32_t)key.stream, c3 = (uint32_t)(key.stream >> 32);
    uint32_t k0 = (uint32_t)key.seed, k1 = (uint32_t)(key.seed >> 32);
    for (int64_t i = 0; i < count; i++) {
        uint64_t block = first + (uint64_t)i;
        uint32_t out[4];
        sh_philox_block((uint32_t)block, (uint32_t)(block >> 32), c2, c3, k0, k1, out);
        words[4 * i] = out[0];
        words[4 * i + 1] = out[1];
        words[4 * i + 2] = out[2];
        words[4 * i + 3] = out[3];
    }
}

/* The words for count elements, from element at on. */
typedef struct buffer {
    int64_t at, count;
    uint32_t words[WORDS];
} buffer;

/* Makes the next words for n elements; an element takes `each` words. Returns false at the end. */
static bool next_words(buffer *b, sh_random_key key, int64_t n, int64_t each)
{
    b->at += b->count;
    if (b->at >= n) {
        return false;
    }
    b->count = n - b->at < WORDS / each ? n - b->at : WORDS / each;
    make_words(key, key.offset + (uint64_t)(b->at * each / 4), (b->count * each + 3) / 4, b->words);
    return true;
}

/* Runs once for each buffer b of words for n elements. */
#define FOR_WORDS(b, key, n, each)                                                                                     \
    buffer b;                                                                                                          \
    b.at = b.count = 0;                                                                                                \
    while (next_words(&b, key, n, each))

static inline uint64_t pair(const uint32_t *words, int64_t i)
{
    return words[2 * i] | (uint64_t)words[2 * i + 1] << 32;
}

static inline float unit_f32(uint32_t word)
{
    return (float)(int32_t)(word >> 8) * 0x1p-24f;
}

static void uniform_f32(sh_random_key key, float *out, int64_t n, float low, float range)
{
    FOR_WORDS(b, key, n, 1)
    {
        for (int64_t i = 0; i < b.count; i++) {
            out[b.at + i] = low + range * unit_f32(b.words[i]);
        }
    }
}

static void uniform_f64(sh_random_key key, double *out, int64_t n, double low, double range)
{
    FOR_WORDS(b, key, n, 2)
    {
        for (int64_t i = 0; i < b.count; i++) {
            out[b.at + i] = low + range * ((double)(int64_t)(pair(b.words, i) >> 11) * 0x1p-53);
        }
    }
}

static shoal_err uniform(sh_exec *exec, sh_random_key key, shoal_dtype dtype, void *out, int64_t n, double low,
                         double high)
{
    (void)exec;
    if (dtype == SHOAL_F32) {
        uniform_f32(key, out, n, (float)low, (float)(high - low));
    } else if (dtype == SHOAL_F64) {
        uniform_f64(key, out, n, low, high - low);
    }
    return sh_element_check_float("uniform", dtype);
}

static void normal_f32(sh_random_key key, float *out, int64_t n, float mean, float deviation)
{
    float z[WORDS];
    FOR_WORDS(b, key, n, 1)
    {
        for (int64_t i = 0; i < (b.count + 1) / 2; i++) {
            float z0, z1;
            sh_normal_pair_f32(b.words[2 * i], b.words[2 * i + 1], &z0, &z1);
            z[2 * i] = mean + deviation * z0;
            z[2 * i + 1] = mean + deviation * z1;
        }
        memcpy(out + b.at, z, (size_t)b.count * sizeof *out);
    }
}

static void normal_f64(sh_random_key key, double *out, int64_t n, double mean, double deviation)
{
    double z[WORDS / 2];
    FOR_WORDS(b, key, n, 2)
    {
        for (int64_t i = 0; i < (b.count + 1) / 2; i++) {
            double z0, z1;
            sh_normal_pair_f64(pair(b.words, 2 * i), pair(b.words, 2 * i + 1), &z0, &z1);
            z[2 * i] = mean + deviation * z0;
            z[2 * i + 1] = mean + deviation * z1;
        }
        memcpy(out + b.at, z, (size_t)b.count * sizeof *out);
    }
}

static shoal_err normal(sh_exec *exec, sh_random_key key, shoal_dtype dtype, void *out, int64_t n, double mean,
                        double deviation)
{
    (void)exec;
    if (dtype == SHOAL_F32) {
        normal_f32(key, out, n, (float)mean, (float)deviation);
    } else if (dtype == SHOAL_F64) {
        normal_f64(key, out, n, mean, deviation);
    }
    return sh_element_check_float("normal", dtype);
}

#define BERNOULLI(name, T)                                                                                             \
    static void name(sh_random_key key, T *out, int64_t n, float p, T value)                                           \
    {                                                                                                                  \
        FOR_WORDS(b, key, n, 1)                                                                                        \
        {                                                                                                              \
            for (int64_t i = 0; i < b.count; i++) {                                                                    \
                out[b.at + i] = unit_f32(b.words[i]) < p ? value : 0;                                                  \
            }                                                                                                          \
        }                                                                                                              \
    }
BERNOULLI(bernoulli_f32, float)
BERNOULLI(bernoulli_f64, double)
BERNOULLI(bernoulli_u8, uint8_t)

static shoal_err bernoulli(sh_exec *exec, sh_random_key key, shoal_dtype dtype, void *out, int64_t n, double p,
                           double value)
{
    (void)exec;
    switch (dtype) {
    case SHOAL_F32: bernoulli_f32(key, out, n, (float)p, (float)value); break;
    case SHOAL_F64: bernoulli_f64(key, out, n, (float)p, value); break;
    case SHOAL_U8: bernoulli_u8(key, out, n, (float)p, (uint8_t)value); break;
    case SHOAL_B8: bernoulli_u8(key, out, n, (float)p, 1); break;
    default: return sh_fail(SHOAL_EINVAL, "bernoulli does not support %s", shoal_dtype_name(dtype));
    }
    return SHOAL_OK;
}

static shoal_err integers(sh_exec *exec, sh_random_key key, int64_t *out, int64_t n, int64_t low, int64_t high)
{
    (void)exec;
    if (high <= low) {
        return sh_fail(SHOAL_EINVAL, "the range of integers from %lld to below %lld is empty", (long long)low,
                       (long long)high);
    }
    uint64_t range = (uint64_t)high - (uint64_t)low;
    FOR_WORDS(b, key, n, 2)
    {
        for (int64_t i = 0; i < b.count; i++) {
            uint64_t below = (uint64_t)(((unsigned __int128)pair(b.words, i) * range) >> 64);
            out[b.at + i] = (int64_t)((uint64_t)low + below);
        }
    }
    return SHOAL_OK;
}

/* mask · x · factor, but 0 where the mask is 0, even if x is not finite. */
#define MASKED(name, T)                                                                                                \
    static void name(T *out, const T *x, const uint8_t *mask, int64_t n, T factor)                                     \
    {                                                                                                                  \
        SH_INDEPENDENT for (int64_t i = 0; i < n; i++)                                                                 \
        {                                                                                                              \
            T v = x[i] * factor;                                                                                       \
            out[i] = mask[i] ? v : 0;                                                                                  \
        }                                                                                                              \
    }
MASKED(masked_f32, float)
MASKED(masked_f64, double)

static shoal_err dropout_backward(sh_exec *exec, shoal_dtype dtype, void *dx, const void *dy, const uint8_t *mask,
                                  int64_t n, double p)
{
    (void)exec;
    if (dtype == SHOAL_F32) {
        masked_f32(dx, dy, mask, n, (float)(1 / (1 - p)));
    } else if (dtype == SHOAL_F64) {
        masked_f64(dx, dy, mask, n, 1 / (1 - p));
    }
    return sh_element_check_float("dropout", dtype);
}

static shoal_err dropout(sh_exec *exec, sh_random_key key, shoal_dtype dtype, void *y, uint8_t *mask, const void *x,
                         int64_t n, double p)
{
    (void)exec;
    shoal_err err = sh_element_check_float("dropout", dtype);
    if (err) {
        return err;
    }
    float least = (float)p;
    FOR_WORDS(b, key, n, 1)
    {
        for (int64_t i = 0; i < b.count; i++) {
            mask[b.at + i] = unit_f32(b.words[i]) >= least;
        }
        if (dtype == SHOAL_F32) {
            masked_f32((float *)y + b.at, (const float *)x + b.at, mask + b.at, b.count, (float)(1 / (1 - p)));
        } else {
            masked_f64((double *)y + b.at, (const double *)x + b.at, mask + b.at, b.count, 1 / (1 - p));
        }
    }
    return SHOAL_OK;
}

const sh_random_kernels SH_ISA_NAME(sh_random_kernels) = {
    .uniform = uniform,
    .normal = normal,
    .bernoulli = bernoulli,
    .integers = integers,
    .dropout = dropout,
    .dropout_backward = dropout_backward,
};
