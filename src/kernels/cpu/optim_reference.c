/* Optimiser steps as PyTorch defines them, one element at a time, computed in f64 and rounded when stored. */
#include "kernels/optim.h"

#include "kernels/cpu/element.h"

#include <math.h>

/* Returns a scalar rounded to the dtype. */
static double as(shoal_dtype dtype, double x)
{
    return dtype == SHOAL_F32 ? (double)(float)x : x;
}

/* Returns the gradient with its sign and the weight decay. Without decay an infinite parameter adds no NaN. */
static double gradient(shoal_dtype dtype, const void *grad, int64_t i, bool maximize, double decay, double param)
{
    double g = sh_get(dtype, grad, i);
    g = maximize ? -g : g;
    return decay != 0 ? g + as(dtype, decay) * param : g;
}

static shoal_err sgd(sh_exec *exec, shoal_dtype dtype, int64_t n, const sh_sgd_args *args, void *param, void *buffer,
                     const void *grad)
{
    (void)exec;
    shoal_err err = sh_element_check_float("sgd", dtype);
    double momentum = as(dtype, args->momentum);
    for (int64_t i = 0; !err && i < n; i++) {
        double p = sh_get(dtype, param, i);
        double g = gradient(dtype, grad, i, args->maximize, args->weight_decay, p);
        if (args->momentum != 0) {
            double b = args->first ? g : momentum * sh_get(dtype, buffer, i) + as(dtype, 1 - args->dampening) * g;
            sh_element_put(dtype, buffer, i, b);
            g = args->nesterov ? g + momentum * b : b;
        }
        sh_element_put(dtype, param, i, p - as(dtype, args->lr) * g);
    }
    return err;
}

static shoal_err adam(sh_exec *exec, shoal_dtype dtype, int64_t n, const sh_adam_args *args, void *param, void *m,
                      void *v, void *v_max, const void *grad)
{
    (void)exec;
    shoal_err err = sh_element_check_float("adam", dtype);
    double step = as(dtype, args->lr / args->bias1), root = as(dtype, sqrt(args->bias2)), eps = as(dtype, args->eps);
    for (int64_t i = 0; !err && i < n; i++) {
        double p = sh_get(dtype, param, i);
        p *= args->decoupled ? as(dtype, 1 - args->lr * args->weight_decay) : 1;
        double g = gradient(dtype, grad, i, args->maximize, args->decoupled ? 0 : args->weight_decay, p);
        double first = as(dtype, args->beta1) * sh_get(dtype, m, i) + as(dtype, 1 - args->beta1) * g;
        double second = as(dtype, args->beta2) * sh_get(dtype, v, i) + as(dtype, 1 - args->beta2) * g * g;
        sh_element_put(dtype, m, i, first);
        sh_element_put(dtype, v, i, second);
        if (v_max) {
            second = fmax(second, sh_get(dtype, v_max, i));
            sh_element_put(dtype, v_max, i, second);
        }
        sh_element_put(dtype, param, i, p - step * (first / (sqrt(second) / root + eps)));
    }
    return err;
}

static shoal_err rmsprop(sh_exec *exec, shoal_dtype dtype, int64_t n, const sh_rmsprop_args *args, void *param, void *v,
                         void *average, void *buffer, const void *grad)
{
    (void)exec;
    shoal_err err = sh_element_check_float("rmsprop", dtype);
    double alpha = as(dtype, args->alpha), rest = as(dtype, 1 - args->alpha), lr = as(dtype, args->lr);
    for (int64_t i = 0; !err && i < n; i++) {
        double p = sh_get(dtype, param, i);
        double g = gradient(dtype, grad, i, args->maximize, args->weight_decay, p);
        double square = alpha * sh_get(dtype, v, i) + rest * g * g, variance = square;
        sh_element_put(dtype, v, i, square);
        if (average) {
            double a = alpha * sh_get(dtype, average, i) + rest * g;
            sh_element_put(dtype, average, i, a);
            variance -= a * a;
        }
        double step = g / (sqrt(variance) + as(dtype, args->eps));
        if (buffer) {
            step += as(dtype, args->momentum) * sh_get(dtype, buffer, i);
            sh_element_put(dtype, buffer, i, step);
        }
        sh_element_put(dtype, param, i, p - lr * step);
    }
    return err;
}

static shoal_err scale(sh_exec *exec, shoal_dtype dtype, int64_t n, void *x, double factor)
{
    (void)exec;
    shoal_err err = sh_element_check_float("scale", dtype);
    for (int64_t i = 0; !err && i < n; i++) {
        sh_element_put(dtype, x, i, sh_get(dtype, x, i) * as(dtype, factor));
    }
    return err;
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
    shoal_err err = sh_element_check_float("average", dtype);
    for (int64_t i = 0; !err && i < n; i++) {
        double sum = 0;
        for (int32_t j = 0; j < count; j++) {
            sum += weights[j] * sh_get(dtype, in[j], i);
        }
        sh_element_put(dtype, out, i, sum);
    }
    return err;
}

const sh_optim_kernels sh_optim_kernels_reference =
    {.sgd = sgd, .adam = adam, .rmsprop = rmsprop, .scale = scale, .clip = clip, .average = average};
