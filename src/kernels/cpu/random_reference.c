/* Random numbers, each from a separate call of the generator. */
#include "kernels/random.h"

#include "kernels/cpu/element.h"
#include "kernels/cpu/normal.h"
#include "kernels/philox.h"

static uint32_t word32(sh_random_key key, int64_t i)
{
    uint64_t block = key.offset + (uint64_t)i / 4;
    uint32_t words[4];
    sh_philox_block((uint32_t)block, (uint32_t)(block >> 32), (uint32_t)key.stream, (uint32_t)(key.stream >> 32),
                    (uint32_t)key.seed, (uint32_t)(key.seed >> 32), words);
    return words[i % 4];
}

static uint64_t word64(sh_random_key key, int64_t i)
{
    return word32(key, 2 * i) | (uint64_t)word32(key, 2 * i + 1) << 32;
}

static float uniform_f32(sh_random_key key, int64_t i)
{
    return (float)(int32_t)(word32(key, i) >> 8) * 0x1p-24f;
}

static double uniform_f64(sh_random_key key, int64_t i)
{
    return (double)(int64_t)(word64(key, i) >> 11) * 0x1p-53;
}

static shoal_err uniform(sh_exec *exec, sh_random_key key, shoal_dtype dtype, void *out, int64_t n, double low,
                         double high)
{
    (void)exec;
    shoal_err err = sh_element_check_float("uniform", dtype);
    for (int64_t i = 0; !err && i < n; i++) {
        if (dtype == SHOAL_F32) {
            ((float *)out)[i] = (float)low + (float)(high - low) * uniform_f32(key, i);
        } else {
            ((double *)out)[i] = low + (high - low) * uniform_f64(key, i);
        }
    }
    return err;
}

static shoal_err normal(sh_exec *exec, sh_random_key key, shoal_dtype dtype, void *out, int64_t n, double mean,
                        double deviation)
{
    (void)exec;
    shoal_err err = sh_element_check_float("normal", dtype);
    for (int64_t i = 0; !err && i < n; i++) {
        if (dtype == SHOAL_F32) {
            float z[2];
            sh_normal_pair_f32(word32(key, i & ~1), word32(key, i | 1), &z[0], &z[1]);
            ((float *)out)[i] = (float)mean + (float)deviation * z[i & 1];
        } else {
            double z[2];
            sh_normal_pair_f64(word64(key, i & ~1), word64(key, i | 1), &z[0], &z[1]);
            ((double *)out)[i] = mean + deviation * z[i & 1];
        }
    }
    return err;
}

static shoal_err bernoulli(sh_exec *exec, sh_random_key key, shoal_dtype dtype, void *out, int64_t n, double p,
                           double value)
{
    (void)exec;
    bool is_float = sh_dtype_is_wide_float(dtype);
    if (!is_float && dtype != SHOAL_U8 && dtype != SHOAL_B8) {
        return sh_fail(SHOAL_EINVAL, "bernoulli does not support %s", shoal_dtype_name(dtype));
    }
    for (int64_t i = 0; i < n; i++) {
        bool hit = uniform_f32(key, i) < (float)p;
        if (is_float) {
            sh_element_put(dtype, out, i, hit ? value : 0);
        } else {
            ((uint8_t *)out)[i] = !hit ? 0 : dtype == SHOAL_B8 ? 1 : (uint8_t)value;
        }
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
    for (int64_t i = 0; i < n; i++) {
        out[i] = (int64_t)((uint64_t)low + (uint64_t)(((unsigned __int128)word64(key, i) * range) >> 64));
    }
    return SHOAL_OK;
}

static shoal_err dropout_backward(sh_exec *exec, shoal_dtype dtype, void *dx, const void *dy, const uint8_t *mask,
                                  int64_t n, double p)
{
    (void)exec;
    shoal_err err = sh_element_check_float("dropout", dtype);
    for (int64_t i = 0; !err && i < n; i++) {
        if (dtype == SHOAL_F32) {
            ((float *)dx)[i] = mask[i] ? ((const float *)dy)[i] * (float)(1 / (1 - p)) : 0;
        } else {
            ((double *)dx)[i] = mask[i] ? ((const double *)dy)[i] * (1 / (1 - p)) : 0;
        }
    }
    return err;
}

static shoal_err dropout(sh_exec *exec, sh_random_key key, shoal_dtype dtype, void *y, uint8_t *mask, const void *x,
                         int64_t n, double p)
{
    shoal_err err = sh_element_check_float("dropout", dtype);
    for (int64_t i = 0; !err && i < n; i++) {
        mask[i] = uniform_f32(key, i) >= (float)p;
    }
    return err ? err : dropout_backward(exec, dtype, y, x, mask, n, p);
}

const sh_random_kernels sh_random_kernels_reference = {
    .uniform = uniform,
    .normal = normal,
    .bernoulli = bernoulli,
    .integers = integers,
    .dropout = dropout,
    .dropout_backward = dropout_backward,
};
