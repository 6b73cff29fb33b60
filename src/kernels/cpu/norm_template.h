/* Layer norm of one dtype. norm_fast.c includes it with T and NAME(x) defined. */
#include "kernels/cpu/rows_template.h"

static void NAME(forward)(const sh_norm_shape *s, double eps, T *y, T *mean, T *rstd, const T *x, const T *gamma,
                          const T *beta)
{
    int64_t n = s->n;
    for (int64_t r = 0; r < s->rows; r++, x += n, y += n) {
        T m = (T)(NAME(row_sum)(x, NULL, n) / (double)n);
        SH_INDEPENDENT for (int64_t j = 0; j < n; j++)
        {
            y[j] = x[j] - m;
        }
        T scale = (T)(1 / sqrt(NAME(row_sumsq)(y, NULL, n) / (double)n + eps));
        for (int64_t j = 0; j < n; j++) {
            y[j] = y[j] * scale * (gamma ? gamma[j] : 1) + (beta ? beta[j] : 0);
        }
        if (mean) {
            mean[r] = m;
            rstd[r] = scale;
        }
    }
}

static void NAME(backward)(const sh_norm_shape *s, T *xhat, T *dx, T *dgamma, T *dbeta, const T *dy, const T *x,
                           const T *gamma, const T *mean, const T *rstd)
{
    int64_t n = s->n;
    T *g = xhat + n; /* both are in scratch */
    for (int64_t r = 0; r < s->rows; r++, x += n, dy += n) {
        T m = mean[r], scale = rstd[r];
        for (int64_t j = 0; j < n; j++) {
            xhat[j] = (x[j] - m) * scale;
            g[j] = dy[j] * (gamma ? gamma[j] : 1);
        }
        for (int64_t j = 0; dgamma && j < n; j++) {
            dgamma[j] += dy[j] * xhat[j];
        }
        for (int64_t j = 0; dbeta && j < n; j++) {
            dbeta[j] += dy[j];
        }
        if (dx) {
            T mean_g = (T)(NAME(row_sum)(g, NULL, n) / (double)n), mean_gx = (T)(NAME(row_dot)(g, xhat, n) / (double)n);
            for (int64_t j = 0; j < n; j++) {
                dx[r * n + j] = scale * (g[j] - mean_g - xhat[j] * mean_gx);
            }
        }
    }
}
