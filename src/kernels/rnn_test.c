/* Tests of the LSTM cell: fast against reference, and the gradient against finite differences. */
#include "kernels/kernels_test.h"

static void compare(shoal_dtype dtype, uint64_t seed)
{
    uint64_t state = seed;
    sh_lstm_shape s = {.dtype = dtype, .n = below(&state, 5), .hidden = 1 + below(&state, 70)};
    int64_t n = s.n * s.hidden;
    void *gates = numbers(dtype, 4 * n, &state, 6), *before = numbers(dtype, n, &state, 2),
         *h = numbers(dtype, n, &state, 1);
    void *c = numbers(dtype, n, &state, 1), *acts = numbers(dtype, 4 * n, &state, 1),
         *dh = numbers(dtype, n, &state, 1);
    void *dc = numbers(dtype, n, &state, 1), *dgates = numbers(dtype, 4 * n, &state, 1),
         *dbefore = numbers(dtype, n, &state, 1);
    sh_exec exec = {0};
    ck_assert_ok(reference()->rnn->lstm(&exec, &s, h, c, acts, gates, before));
    ck_assert_ok(
        reference()->rnn->lstm_backward(&exec, &s, dgates, dbefore, dh, seed % 3 ? dc : NULL, acts, c, before));
    FOR_FAST(k)
    {
        void *h1 = copied(dtype, h, n), *c1 = copied(dtype, c, n), *a1 = copied(dtype, gates, 4 * n),
             *d1 = copied(dtype, dc, n);
        ck_assert_ok(k->rnn->lstm(&exec, &s, h1, c1, a1, a1, before));
        assert_close(dtype, h1, h, n, tolerance_of(dtype), 0.1, "h", seed);
        assert_close(dtype, c1, c, n, tolerance_of(dtype), 0.1, "c", seed);
        assert_close(dtype, a1, acts, 4 * n, tolerance_of(dtype), 0.1, "acts", seed);
        ck_assert_ok(k->rnn->lstm_backward(&exec, &s, a1, d1, dh, seed % 3 ? d1 : NULL, a1, c, before));
        assert_close(dtype, a1, dgates, 4 * n, 3 * tolerance_of(dtype), 1, "dgates", seed);
        assert_close(dtype, d1, dbefore, n, 3 * tolerance_of(dtype), 1, "dc_prev", seed);
        free(h1);
        free(c1);
        free(a1);
        free(d1);
    }
    void *all[] = {gates, before, h, c, acts, dh, dc, dgates, dbefore};
    for (int i = 0; i < 9; i++) {
        free(all[i]);
    }
}

START_TEST(versions_agree)
{
    for (uint64_t seed = 0; seed < (uint64_t)sh_repeats(1000); seed++) {
        compare(seed % 2 ? SHOAL_F32 : SHOAL_F64, seed);
    }
}
END_TEST

/* The gradient of loss = h + 2c with respect to the gates and the previous state. */
START_TEST(gradient_is_the_slope)
{
    double x[5] = {0.3, -0.7, 1.1, 0.2, 0.9}; /* i, f, g, o and the previous state */
    sh_lstm_shape s = {.dtype = SHOAL_F64, .n = 1, .hidden = 1};
    const sh_rnn_kernels *rnn = sh_kernels_cpu()->rnn;
    double h, c, acts[4], dgates[5], one = 1, two = 2;
    ck_assert_ok(rnn->lstm(&(sh_exec){0}, &s, &h, &c, acts, x, x + 4));
    ck_assert_ok(rnn->lstm_backward(&(sh_exec){0}, &s, dgates, dgates + 4, &one, &two, acts, &c, x + 4));
    for (int i = 0; i < 5; i++) {
        double loss[2];
        for (int side = 0; side < 2; side++) {
            double moved[5];
            memcpy(moved, x, sizeof x);
            moved[i] += side ? 1e-6 : -1e-6;
            ck_assert_ok(rnn->lstm(&(sh_exec){0}, &s, &h, &c, acts, moved, moved + 4));
            loss[side] = h + 2 * c;
        }
        ck_assert_double_le(fabs((loss[1] - loss[0]) / 2e-6 - dgates[i]), 1e-8);
    }
}
END_TEST

KERNELS_SUITE("rnn", versions_agree, gradient_is_the_slope)
