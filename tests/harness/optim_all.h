/* The steps of several parameters (sh_optim_kernels.sgd_all …) as loops over those of one, for a device of the
 * tests. */
#ifndef TESTING_OPTIM_ALL_H
#define TESTING_OPTIM_ALL_H

#include "kernels/kernels.h"

#include <math.h>

static inline shoal_err loop_sgd_all(sh_exec *exec, shoal_dtype dtype, const sh_sgd_args *args,
                                     const sh_optim_part *parts, int32_t count)
{
    shoal_err err = SHOAL_OK;
    for (const sh_optim_part *p = parts; err == SHOAL_OK && p < parts + count; p++) {
        sh_sgd_args own = *args;
        own.first = p->step ? *p->step == 1 : args->first;
        err = sh_optim_kernels_reference.sgd(exec, dtype, p->n, &own, p->param, p->state[0], p->grad);
    }
    return err;
}

static inline shoal_err loop_adam_all(sh_exec *exec, shoal_dtype dtype, const sh_adam_args *args,
                                      const sh_optim_part *parts, int32_t count)
{
    shoal_err err = SHOAL_OK;
    for (const sh_optim_part *p = parts; err == SHOAL_OK && p < parts + count; p++) {
        sh_adam_args own = *args;
        own.bias1 = p->step ? 1 - pow(args->beta1, (double)*p->step) : args->bias1;
        own.bias2 = p->step ? 1 - pow(args->beta2, (double)*p->step) : args->bias2;
        err = sh_optim_kernels_reference.adam(exec, dtype, p->n, &own, p->param, p->state[0], p->state[1], p->state[2],
                                              p->grad);
    }
    return err;
}

static inline shoal_err loop_rmsprop_all(sh_exec *exec, shoal_dtype dtype, const sh_rmsprop_args *args,
                                         const sh_optim_part *parts, int32_t count)
{
    shoal_err err = SHOAL_OK;
    for (const sh_optim_part *p = parts; err == SHOAL_OK && p < parts + count; p++) {
        err = sh_optim_kernels_reference.rmsprop(exec, dtype, p->n, args, p->param, p->state[0], p->state[1],
                                                 p->state[2], p->grad);
    }
    return err;
}

static inline shoal_err loop_count_steps(sh_exec *exec, float *const *steps, int32_t count)
{
    (void)exec;
    for (int32_t i = 0; i < count; i++) {
        *steps[i] += 1;
    }
    return SHOAL_OK;
}

static inline shoal_err loop_sumsq_all(sh_exec *exec, shoal_dtype dtype, const sh_optim_part *parts, int32_t count,
                                       double *sumsq)
{
    (void)exec;
    double sum = 0;
    for (const sh_optim_part *p = parts; p < parts + count; p++) {
        for (int64_t i = 0; i < p->n; i++) {
            double x = dtype == SHOAL_F32 ? (double)((const float *)p->param)[i] : ((const double *)p->param)[i];
            sum += x * x;
        }
    }
    *sumsq = sum;
    return SHOAL_OK;
}

static inline shoal_err loop_clip_all(sh_exec *exec, shoal_dtype dtype, const sh_optim_part *parts, int32_t count,
                                      const double *sumsq, double max_norm)
{
    shoal_err err = SHOAL_OK;
    double factor = max_norm / (sqrt(*sumsq) + 1e-6);
    for (const sh_optim_part *p = parts; err == SHOAL_OK && p < parts + count; p++) {
        err = sh_optim_kernels_reference.scale(exec, dtype, p->n, p->param, factor < 1 ? factor : 1);
    }
    return err;
}

/* Returns the reference kernels with these. */
static inline const sh_kernels *reference_with_all(void)
{
    static sh_optim_kernels optim;
    static sh_kernels kernels;
    optim = sh_optim_kernels_reference;
    optim.sgd_all = loop_sgd_all;
    optim.adam_all = loop_adam_all;
    optim.rmsprop_all = loop_rmsprop_all;
    optim.count_steps = loop_count_steps;
    optim.sumsq_all = loop_sumsq_all;
    optim.clip_all = loop_clip_all;
    kernels = *sh_kernels_find("reference");
    kernels.optim = &optim;
    return &kernels;
}

#endif
