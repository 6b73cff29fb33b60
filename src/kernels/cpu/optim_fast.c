/* Optimiser steps with vectors; the loops are in optim_template.h. */
#include "kernels/cpu/element.h"
#include "kernels/cpu/math_fast.h"
#include "kernels/isa.h"
#include "kernels/optim.h"

/* Hogwild: another process may write the same parameters at the same time. Plain loads and stores are intended and a
 * lost update is allowed, so ThreadSanitizer ignores these functions. */
#define RACY __attribute__((no_sanitize("thread")))

#define TEMPLATE "kernels/cpu/optim_template.h"
#include "kernels/cpu/f32_f64.h"

/* Calls the function for f32 or f64; fails for other dtypes. */
#define BY_DTYPE(what, ...)                                                                                            \
    do {                                                                                                               \
        if (dtype == SHOAL_F32) {                                                                                      \
            f32_##what(__VA_ARGS__);                                                                                   \
        } else if (dtype == SHOAL_F64) {                                                                               \
            f64_##what(__VA_ARGS__);                                                                                   \
        }                                                                                                              \
        return sh_element_check_float(#what, dtype);                                                                   \
    } while (0)

static shoal_err sgd(sh_exec *exec, shoal_dtype dtype, int64_t n, const sh_sgd_args *args, void *param, void *buffer,
                     const void *grad)
{
    (void)exec;
    BY_DTYPE(sgd, n, args, param, buffer, grad);
}

static shoal_err adam(sh_exec *exec, shoal_dtype dtype, int64_t n, const sh_adam_args *args, void *param, void *m,
                      void *v, void *v_max, const void *grad)
{
    (void)exec;
    BY_DTYPE(adam, n, args, param, m, v, v_max, grad);
}

static shoal_err rmsprop(sh_exec *exec, shoal_dtype dtype, int64_t n, const sh_rmsprop_args *args, void *param, void *v,
                         void *average, void *buffer, const void *grad)
{
    (void)exec;
    BY_DTYPE(rmsprop, n, args, param, v, average, buffer, grad);
}

static shoal_err scale(sh_exec *exec, shoal_dtype dtype, int64_t n, void *x, double factor)
{
    (void)exec;
    BY_DTYPE(scale, n, x, factor);
}

static shoal_err clip(sh_exec *exec, shoal_dtype dtype, int64_t n, void *x, const void *sumsq, double max_norm)
{
    shoal_err err = sh_element_check_float("clip", dtype);
    if (err) {
        return err;
    }
    double factor = max_norm / (sqrt(sh_get(dtype, sumsq, 0)) + 1e-6);
    return scale(exec, dtype, n, x, factor > 1 ? 1 : factor);
}

static shoal_err average(sh_exec *exec, shoal_dtype dtype, int64_t n, void *out, const void *const *in,
                         const double *weights, int32_t count)
{
    (void)exec;
    BY_DTYPE(average, n, out, in, weights, count);
}

const sh_optim_kernels SH_ISA_NAME(sh_optim_kernels) =
    {.sgd = sgd, .adam = adam, .rmsprop = rmsprop, .scale = scale, .clip = clip, .average = average};
