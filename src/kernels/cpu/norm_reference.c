/* Layer norm as defined, in f64. */
#include "kernels/norm.h"

#include "kernels/cpu/element.h"

#include <math.h>
#include <string.h>

static shoal_err check(const sh_norm_shape *s)
{
    shoal_err err = sh_element_check_float("layer norm", s->dtype);
    return err        ? err
           : s->n > 0 ? SHOAL_OK
                      : sh_fail(SHOAL_EINVAL, "layer norm over %lld elements; it needs at least 1", (long long)s->n);
}

static shoal_err layer_norm(sh_exec *exec, const sh_norm_shape *s, double eps, void *y, void *mean, void *rstd,
                            const void *x, const void *gamma, const void *beta)
{
    (void)exec;
    shoal_err err = check(s);
    for (int64_t r = 0; !err && r < s->rows; r++) {
        int64_t at = r * s->n;
        double m = 0, variance = 0;
        for (int64_t j = 0; j < s->n; j++) {
            m += sh_get(s->dtype, x, at + j) / (double)s->n;
        }
        for (int64_t j = 0; j < s->n; j++) {
            double d = sh_get(s->dtype, x, at + j) - m;
            variance += d * d / (double)s->n;
        }
        double scale = 1 / sqrt(variance + eps);
        for (int64_t j = 0; j < s->n; j++) {
            double v = (sh_get(s->dtype, x, at + j) - m) * scale;
            v *= gamma ? sh_get(s->dtype, gamma, j) : 1;
            sh_element_put(s->dtype, y, at + j, v + (beta ? sh_get(s->dtype, beta, j) : 0));
        }
        if (mean) {
            sh_element_put(s->dtype, mean, r, m);
            sh_element_put(s->dtype, rstd, r, scale);
        }
    }
    return err;
}

/* to += sums, if wanted. */
static void add_sums(const sh_norm_shape *s, void *to, const double *sums)
{
    for (int64_t j = 0; to && j < s->n; j++) {
        sh_element_put(s->dtype, to, j, sh_get(s->dtype, to, j) + sums[j]);
    }
}

/* With xhat = (x - mean) · rstd and g = dy · gamma: dx = rstd · (g - mean(g) - xhat · mean(g · xhat)). */
static shoal_err layer_norm_backward(sh_exec *exec, const sh_norm_shape *s, void *dx, void *dgamma, void *dbeta,
                                     const void *dy, const void *x, const void *gamma, const void *mean,
                                     const void *rstd)
{
    shoal_err err = check(s);
    double *sums = err ? NULL : sh_exec_scratch(exec, (size_t)s->n * 2 * sizeof *sums); /* of gamma and of beta */
    if (!sums) {
        return err ? err : SHOAL_ENOMEM;
    }
    memset(sums, 0, (size_t)s->n * 2 * sizeof *sums);
    for (int64_t r = 0; r < s->rows; r++) {
        double m = sh_get(s->dtype, mean, r), scale = sh_get(s->dtype, rstd, r), sum_g = 0, sum_gx = 0;
        for (int64_t j = 0, at = r * s->n; j < s->n; j++, at++) {
            double d = sh_get(s->dtype, dy, at), xhat = (sh_get(s->dtype, x, at) - m) * scale;
            double g = d * (gamma ? sh_get(s->dtype, gamma, j) : 1);
            sum_g += g / (double)s->n;
            sum_gx += g * xhat / (double)s->n;
            sums[j] += d * xhat;
            sums[s->n + j] += d;
        }
        for (int64_t j = 0, at = r * s->n; dx && j < s->n; j++, at++) {
            double xhat = (sh_get(s->dtype, x, at) - m) * scale;
            double g = sh_get(s->dtype, dy, at) * (gamma ? sh_get(s->dtype, gamma, j) : 1);
            sh_element_put(s->dtype, dx, at, scale * (g - sum_g - xhat * sum_gx));
        }
    }
    add_sums(s, dgamma, sums);
    add_sums(s, dbeta, sums + s->n);
    return SHOAL_OK;
}

const sh_norm_kernels sh_norm_kernels_reference = {.layer_norm = layer_norm,
                                                   .layer_norm_backward = layer_norm_backward};
