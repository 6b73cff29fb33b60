/* Layer norm with vectors; the loops are in norm_template.h. */
#include "kernels/norm.h"

#include "kernels/cpu/element.h"
#include "kernels/cpu/loop.h"
#include "kernels/isa.h"

#include <math.h>
#include <string.h>

#define BLOCK_ROWS 64 /* whose gradients are summed in T */

#define TEMPLATE "kernels/cpu/norm_template.h"
#include "kernels/cpu/f32_f64.h"

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
    if (!err && s->dtype == SHOAL_F32) {
        f32_forward(s, eps, y, mean, rstd, x, gamma, beta);
    } else if (!err) {
        f64_forward(s, eps, y, mean, rstd, x, gamma, beta);
    }
    return err;
}

static shoal_err layer_norm_backward(sh_exec *exec, const sh_norm_shape *s, void *dx, void *dgamma, void *dbeta,
                                     const void *dy, const void *x, const void *gamma, const void *mean,
                                     const void *rstd)
{
    shoal_err err = check(s);
    if (err) {
        return err;
    }
    double *scratch = sh_exec_scratch(exec, (size_t)s->n * 6 * sizeof(double));
    if (!scratch) {
        return SHOAL_ENOMEM;
    }
    if (s->dtype == SHOAL_F32) {
        f32_backward(s, scratch, dx, dgamma, dbeta, dy, x, gamma, mean, rstd);
    } else {
        f64_backward(s, scratch, dx, dgamma, dbeta, dy, x, gamma, mean, rstd);
    }
    return SHOAL_OK;
}

const sh_norm_kernels SH_ISA_NAME(sh_norm_kernels) = {.layer_norm = layer_norm,
                                                      .layer_norm_backward = layer_norm_backward};
