/* Softmax and its losses as defined, in f64. */
#include "kernels/softmax.h"

#include "kernels/cpu/element.h"
#include "kernels/cpu/softmax_check.h"

#include <math.h>

/* Column (o, i) of an array [outer, n, inner] starts at index o·n·inner + i and has stride inner. */
static int64_t column(const sh_softmax_shape *s, int64_t o, int64_t i)
{
    return o * s->n * s->inner + i;
}

/* Returns log Σ exp(x - greatest) of a column, and its greatest element. They are kept apart because their sum would
 * lose the logarithm if the greatest is large: log_softmax is x - greatest - log. */
static double log_sum_exp(const sh_softmax_shape *s, const void *x, int64_t at, double *out_greatest)
{
    double greatest = -INFINITY, sum = 0;
    for (int64_t j = 0; j < s->n; j++) {
        greatest = fmax(greatest, sh_get(s->dtype, x, at + j * s->inner));
    }
    for (int64_t j = 0; j < s->n; j++) {
        sum += exp(sh_get(s->dtype, x, at + j * s->inner) - greatest);
    }
    *out_greatest = greatest;
    return log(sum);
}

static shoal_err forward(sh_exec *exec, sh_softmax_op op, const sh_softmax_shape *s, void *y, const void *x)
{
    (void)exec;
    shoal_err err = sh_element_check_float("softmax", s->dtype);
    for (int64_t o = 0; !err && o < s->outer; o++) {
        for (int64_t i = 0; i < s->inner; i++) {
            int64_t at = column(s, o, i);
            double greatest, log_sum = log_sum_exp(s, x, at, &greatest);
            for (int64_t j = 0; j < s->n; j++) {
                double v = sh_get(s->dtype, x, at + j * s->inner) - greatest - log_sum;
                sh_element_put(s->dtype, y, at + j * s->inner, op == SH_SOFTMAX ? exp(v) : v);
            }
        }
    }
    return err;
}

static shoal_err backward(sh_exec *exec, sh_softmax_op op, const sh_softmax_shape *s, void *dx, const void *dy,
                          const void *y)
{
    (void)exec;
    shoal_err err = sh_element_check_float("softmax", s->dtype);
    for (int64_t o = 0; !err && o < s->outer; o++) {
        for (int64_t i = 0; i < s->inner; i++) {
            double sum = 0;
            for (int64_t j = 0, at = column(s, o, i); j < s->n; j++, at += s->inner) {
                sum += sh_get(s->dtype, dy, at) * (op == SH_SOFTMAX ? sh_get(s->dtype, y, at) : 1);
            }
            for (int64_t j = 0, at = column(s, o, i); j < s->n; j++, at += s->inner) {
                double g = sh_get(s->dtype, dy, at), v = sh_get(s->dtype, y, at);
                sh_element_put(s->dtype, dx, at, op == SH_SOFTMAX ? v * (g - sum) : g - exp(v) * sum);
            }
        }
    }
    return err;
}

/* Returns the weight of target t; 0 if it is ignored. */
static double weight_of(const sh_nll_args *args, int64_t t)
{
    return t == args->ignore_index ? 0 : args->weight ? sh_get(args->shape.dtype, args->weight, t) : 1;
}

static shoal_err nll(sh_exec *exec, const sh_nll_args *args, void *loss, void *total, const void *log_probs)
{
    (void)exec;
    const sh_softmax_shape *s = &args->shape;
    shoal_err err = sh_nll_check(args);
    if (err) {
        return err;
    }
    double sum = 0, weights = 0;
    for (int64_t o = 0; o < s->outer; o++) {
        for (int64_t i = 0; i < s->inner; i++) {
            int64_t t = args->target[o * s->inner + i];
            double one = 0;
            if (t != args->ignore_index) {
                one = -weight_of(args, t) * sh_get(s->dtype, log_probs, column(s, o, i) + t * s->inner);
            }
            sum += one;
            weights += weight_of(args, t);
            if (args->reduction == SHOAL_REDUCTION_NONE) {
                sh_element_put(s->dtype, loss, o * s->inner + i, one);
            }
        }
    }
    if (args->reduction != SHOAL_REDUCTION_NONE) {
        sh_element_put(s->dtype, loss, 0, args->reduction == SHOAL_REDUCTION_MEAN ? sum / weights : sum);
    }
    sh_element_put(s->dtype, total, 0, weights);
    return SHOAL_OK;
}

/* Returns the factor of the gradient of target number at. */
static double scale_of(const sh_nll_args *args, const void *dloss, const void *total, int64_t at)
{
    shoal_dtype dtype = args->shape.dtype;
    int64_t t = args->target[at];
    if (t == args->ignore_index) {
        return 0;
    }
    double g = sh_get(dtype, dloss, args->reduction == SHOAL_REDUCTION_NONE ? at : 0) * weight_of(args, t);
    return args->reduction == SHOAL_REDUCTION_MEAN ? g / sh_get(dtype, total, 0) : g;
}

/* dx = scale · (softmax - onehot). If log_probs is NULL, softmax counts as 0. */
static shoal_err nll_gradient(const sh_nll_args *args, void *dx, const void *dloss, const void *total,
                              const void *log_probs)
{
    const sh_softmax_shape *s = &args->shape;
    shoal_err err = sh_nll_check(args);
    for (int64_t o = 0; !err && o < s->outer; o++) {
        for (int64_t i = 0; i < s->inner; i++) {
            double scale = scale_of(args, dloss, total, o * s->inner + i);
            int64_t t = args->target[o * s->inner + i];
            for (int64_t j = 0, at = column(s, o, i); j < s->n; j++, at += s->inner) {
                double p = log_probs && t != args->ignore_index ? exp(sh_get(s->dtype, log_probs, at)) : 0;
                sh_element_put(s->dtype, dx, at, scale * (p - (j == t)));
            }
        }
    }
    return err;
}

static shoal_err nll_backward(sh_exec *exec, const sh_nll_args *args, void *dx, const void *dloss, const void *total)
{
    (void)exec;
    return nll_gradient(args, dx, dloss, total, NULL);
}

static shoal_err cross_entropy(sh_exec *exec, const sh_nll_args *args, void *loss, void *total, void *log_probs,
                               const void *x)
{
    shoal_err err = sh_nll_check(args);
    if (!err) {
        err = forward(exec, SH_LOG_SOFTMAX, &args->shape, log_probs, x);
    }
    return err ? err : nll(exec, args, loss, total, log_probs);
}

static shoal_err cross_entropy_backward(sh_exec *exec, const sh_nll_args *args, void *dx, const void *dloss,
                                        const void *total, const void *log_probs)
{
    (void)exec;
    return nll_gradient(args, dx, dloss, total, log_probs);
}

const sh_softmax_kernels sh_softmax_kernels_reference = {
    .forward = forward,
    .backward = backward,
    .nll = nll,
    .nll_backward = nll_backward,
    .cross_entropy = cross_entropy,
    .cross_entropy_backward = cross_entropy_backward,
};
