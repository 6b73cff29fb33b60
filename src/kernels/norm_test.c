/* Tests of layer norm: fast against reference, and the gradient against finite differences. */
#include "kernels/kernels_test.h"

static void compare(shoal_dtype dtype, uint64_t seed)
{
    uint64_t state = seed;
    bool many = below(&state, 20) == 0; /* rows, or elements of a row */
    sh_norm_shape s = {.dtype = dtype, .rows = below(&state, many ? 600 : 9), .n = 1 + below(&state, many ? 40 : 300)};
    s.n *= below(&state, 20) == 0 ? 7 : 1;
    int64_t n = s.rows * s.n;
    void *x = numbers(dtype, n, &state, 3), *dy = numbers(dtype, n, &state, 1), *gamma = numbers(dtype, s.n, &state, 1);
    void *beta = numbers(dtype, s.n, &state, 1), *y = numbers(dtype, n, &state, 1),
         *mean = numbers(dtype, s.rows, &state, 1);
    void *rstd = numbers(dtype, s.rows, &state, 1), *dx = numbers(dtype, n, &state, 1);
    void *dgamma = numbers(dtype, s.n, &state, 1), *dbeta = numbers(dtype, s.n, &state, 1);
    const void *g = seed % 3 ? gamma : NULL, *b = seed % 5 ? beta : NULL;
    void *gamma_sum = copied(dtype, dgamma, s.n), *beta_sum = copied(dtype, dbeta, s.n);
    sh_exec exec = {0};
    ck_assert_ok(reference()->norm->layer_norm(&exec, &s, 1e-2, y, mean, rstd, x, g, b));
    ck_assert_ok(reference()->norm->layer_norm_backward(&exec, &s, dx, gamma_sum, beta_sum, dy, x, g, mean, rstd));
    FOR_FAST(k)
    {
        void *got = copied(dtype, x, n), *m = numbers(dtype, s.rows, &state, 1), *r = numbers(dtype, s.rows, &state, 1);
        void *d = copied(dtype, dy, n), *dg = copied(dtype, dgamma, s.n), *db = copied(dtype, dbeta, s.n);
        ck_assert_ok(k->norm->layer_norm(&exec, &s, 1e-2, got, m, r, got, g, b));
        double tolerance = 10 * tolerance_of(dtype);
        assert_close(dtype, got, y, n, tolerance, 1, "layer norm", seed);
        assert_close(dtype, m, mean, s.rows, tolerance, 1, "mean", seed);
        assert_close(dtype, r, rstd, s.rows, tolerance, 1, "rstd", seed);
        ck_assert_ok(k->norm->layer_norm_backward(&exec, &s, d, dg, db, d, x, g, mean, rstd));
        assert_close(dtype, d, dx, n, tolerance, 10, "dx", seed);
        assert_close(dtype, dg, gamma_sum, s.n, tolerance, 10, "dgamma", seed);
        assert_close(dtype, db, beta_sum, s.n, tolerance, 10, "dbeta", seed);
        ck_assert_ok(k->norm->layer_norm_backward(&exec, &s, NULL, NULL, NULL, dy, x, g, mean, rstd));
        void *all[] = {got, m, r, d, dg, db};
        for (int i = 0; i < 6; i++) {
            free(all[i]);
        }
    }
    void *all[] = {x, dy, gamma, beta, y, mean, rstd, dx, dgamma, dbeta, gamma_sum, beta_sum, exec.scratch};
    for (int i = 0; i < 13; i++) {
        free(all[i]);
    }
}

START_TEST(versions_agree)
{
    for (uint64_t seed = 0; seed < (uint64_t)sh_repeats(1000); seed++) {
        compare(seed % 2 ? SHOAL_F32 : SHOAL_F64, seed);
    }
    sh_norm_shape none = {.dtype = SHOAL_F32, .rows = 1, .n = 0};
    double x = 0;
    ck_assert_err(sh_kernels_cpu()->norm->layer_norm(&(sh_exec){0}, &none, 0, &x, &x, &x, &x, NULL, NULL),
                  SHOAL_EINVAL);
}
END_TEST

/* The gradient of loss = Σ w · y with respect to x. */
START_TEST(gradient_is_the_slope)
{
    double x[] = {0.5, -1, 2, 0.1}, w[] = {1, -2, 0.5, 3}, gamma[] = {1, 2, -1, 0.5}, y[4], mean, rstd, dx[4];
    sh_norm_shape s = {.dtype = SHOAL_F64, .rows = 1, .n = 4};
    const sh_norm_kernels *norm = sh_kernels_cpu()->norm;
    sh_exec exec = {0};
    ck_assert_ok(norm->layer_norm(&exec, &s, 1e-5, y, &mean, &rstd, x, gamma, NULL));
    ck_assert_double_le(fabs(mean - 0.4), 1e-12);
    ck_assert_ok(norm->layer_norm_backward(&exec, &s, dx, NULL, NULL, w, x, gamma, &mean, &rstd));
    for (int i = 0; i < 4; i++) {
        double loss[2];
        for (int side = 0; side < 2; side++) {
            double moved[4];
            memcpy(moved, x, sizeof x);
            moved[i] += side ? 1e-6 : -1e-6;
            ck_assert_ok(norm->layer_norm(&exec, &s, 1e-5, y, NULL, NULL, moved, gamma, NULL));
            loss[side] = w[0] * y[0] + w[1] * y[1] + w[2] * y[2] + w[3] * y[3];
        }
        ck_assert_double_le(fabs((loss[1] - loss[0]) / 2e-6 - dx[i]), 1e-6);
    }
    free(exec.scratch);
}
END_TEST

/* dbeta is 0.1 for each row: a plain sum in f32 would be off by more than 1e-4. Equal calls have equal bits. */
START_TEST(sums_of_many_rows_are_accurate)
{
    enum { N = 3 };
    const int64_t rows = sh_mirror_kernels() ? 20000 : 100000;
    const sh_norm_shape s = {.dtype = SHOAL_F32, .rows = rows, .n = N};
    float *x = malloc((size_t)(rows * N) * sizeof *x), *dy = malloc((size_t)(rows * N) * sizeof *dy);
    float *mean = calloc((size_t)rows, sizeof *mean), *rstd = malloc((size_t)rows * sizeof *rstd);
    for (int64_t i = 0; i < rows * N; i++) {
        x[i] = 1.1f;
        dy[i] = 0.1f;
        rstd[i / N] = 1;
    }
    const sh_kernels *list[3] = {reference()};
    for (int v = 0, count = 1 + fast_kernels(list + 1); v < count; v++) {
        sh_exec exec = {0};
        float sums[2][2][N] = {0};
        for (int again = 0; again < 2; again++) {
            ck_assert_ok(list[v]->norm->layer_norm_backward(&exec, &s, NULL, sums[again][0], sums[again][1], dy, x,
                                                            NULL, mean, rstd));
        }
        for (int j = 0; j < N; j++) {
            ck_assert_double_le(distance(sums[0][0][j], (double)0.1f * 1.1f * (double)rows, 0), 2e-6);
            ck_assert_double_le(distance(sums[0][1][j], (double)0.1f * (double)rows, 0), 2e-6);
        }
        ck_assert_mem_eq(sums[0], sums[1], sizeof sums[0]);
        float alone[N] = {0}; /* without dgamma */
        ck_assert_ok(list[v]->norm->layer_norm_backward(&exec, &s, NULL, NULL, alone, dy, x, NULL, mean, rstd));
        ck_assert_mem_eq(alone, sums[0][1], sizeof alone);
        free(exec.scratch);
    }
    free(x);
    free(dy);
    free(mean);
    free(rstd);
}
END_TEST

KERNELS_SUITE("norm", versions_agree, gradient_is_the_slope, sums_of_many_rows_are_accurate)
