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

/* totals += sums, and sums = 0. */
static void NAME(carry)(double *totals, T *sums, int64_t n)
{
    for (int64_t j = 0; j < n; j++) {
        totals[j] += (double)sums[j];
        sums[j] = 0;
    }
}

/* to += totals, if wanted. */
static void NAME(add_totals)(T *to, const double *totals, int64_t n)
{
    for (int64_t j = 0; to && j < n; j++) {
        to[j] = (T)((double)to[j] + totals[j]);
    }
}

/* dgamma and dbeta are both given, or neither. */
static void NAME(backward_rows)(const sh_norm_shape *s, T *restrict xhat, T *dx, T *restrict dgamma, T *restrict dbeta,
                                const T *dy, const T *x, const T *gamma, const T *mean, const T *rstd)
{
    int64_t n = s->n;
    T *g = xhat + n; /* both are in scratch */
    for (int64_t r = 0; r < s->rows; r++, x += n, dy += n) {
        T m = mean[r], scale = rstd[r];
        for (int64_t j = 0; j < n; j++) {
            xhat[j] = (x[j] - m) * scale;
            g[j] = dy[j] * (gamma ? gamma[j] : 1);
            if (dgamma) {
                dgamma[j] += dy[j] * xhat[j];
                dbeta[j] += dy[j];
            }
        }
        if (dx) {
            T mean_g = (T)(NAME(row_sum)(g, NULL, n) / (double)n), mean_gx = (T)(NAME(row_dot)(g, xhat, n) / (double)n);
            for (int64_t j = 0; j < n; j++) {
                dx[r * n + j] = scale * (g[j] - mean_g - xhat[j] * mean_gx);
            }
        }
    }
}

/* Scratch has 6n doubles. More rows than BLOCK_ROWS are summed in blocks, and the sums of blocks in f64. */
static void NAME(backward)(const sh_norm_shape *s, double *scratch, T *dx, T *dgamma, T *dbeta, const T *dy, const T *x,
                           const T *gamma, const T *mean, const T *rstd)
{
    int64_t n = s->n;
    double *totals = scratch + 4 * n;
    T *room = (T *)scratch, *sums = room + 2 * n;
    if (!dgamma == !dbeta && (s->rows <= BLOCK_ROWS || !dgamma)) {
        NAME(backward_rows)(s, room, dx, dgamma, dbeta, dy, x, gamma, mean, rstd);
        return;
    }
    memset(totals, 0, (size_t)n * 2 * sizeof *totals);
    memset(sums, 0, (size_t)n * 2 * sizeof *sums);
    for (int64_t r = 0; r < s->rows; r += BLOCK_ROWS) {
        sh_norm_shape block = *s;
        block.rows = s->rows - r < BLOCK_ROWS ? s->rows - r : BLOCK_ROWS;
        NAME(backward_rows)
        (&block, room, dx ? dx + r * n : NULL, sums, sums + n, dy + r * n, x + r * n, gamma, mean + r, rstd + r);
        NAME(carry)(totals, sums, 2 * n);
    }
    NAME(add_totals)(dgamma, totals, n);
    NAME(add_totals)(dbeta, totals + n, n);
}
