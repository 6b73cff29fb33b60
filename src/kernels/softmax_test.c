/* Tests of softmax and its losses: fast against reference, values from PyTorch,
 * gradients against finite differences. */
#include "kernels/kernels_test.h"

#include <float.h>

static sh_softmax_shape any_softmax_shape(shoal_dtype dtype, uint64_t *seed)
{
    sh_softmax_shape s = {.dtype = dtype, .outer = below(seed, 40), .n = 1 + below(seed, 150), .inner = 1};
    if (below(seed, 4) == 0) {
        s.inner = below(seed, 2) ? 1 + below(seed, 9) : 100 + below(seed, 60);
        s.n = s.inner > 9 ? 1 + below(seed, 30) : s.n;
        s.outer = below(seed, 4);
    }
    if (s.inner > 1 && s.inner <= 9 && below(seed, 30) == 0) {
        s.outer = 12000 / s.inner; /* more than one block of a GPU */
        s.n = 1 + below(seed, 4);
        s.inner = below(seed, 2) ? 1 : s.inner;
    } else if (s.inner <= 9 && below(seed, 6) == 0) {
        s.n = 1000 + below(seed, 3000);
        s.outer = below(seed, 3);
    }
    return s;
}

START_TEST(softmax_agrees)
{
    for (uint64_t seed = 0; seed < (uint64_t)sh_repeats(1000); seed++) {
        uint64_t state = seed;
        shoal_dtype dtype = seed % 2 ? SHOAL_F32 : SHOAL_F64;
        sh_softmax_op op = seed % 4 < 2 ? SH_SOFTMAX : SH_LOG_SOFTMAX;
        sh_softmax_shape s = any_softmax_shape(dtype, &state);
        int64_t n = s.outer * s.n * s.inner;
        void *x = numbers(dtype, n, &state, 20), *dy = numbers(dtype, n, &state, 1);
        void *y = numbers(dtype, n, &state, 1), *dx = numbers(dtype, n, &state, 1);
        sh_exec exec = {0};
        ck_assert_ok(reference()->softmax->forward(&exec, op, &s, y, x));
        ck_assert_ok(reference()->softmax->backward(&exec, op, &s, dx, dy, y));
        FOR_FAST(k)
        {
            void *got = copied(dtype, x, n), *grad = copied(dtype, dy, n);
            ck_assert_ok(k->softmax->forward(&exec, op, &s, got, got)); /* in place */
            assert_close(dtype, got, y, n, tolerance_of(dtype), op == SH_SOFTMAX ? 1e-2 : 1, "softmax", seed);
            ck_assert_ok(k->softmax->backward(&exec, op, &s, grad, grad, y));
            assert_close(dtype, grad, dx, n, tolerance_of(dtype), 10, "softmax backward", seed);
            free(got);
            free(grad);
        }
        free(exec.scratch);
        free(x);
        free(dy);
        free(y);
        free(dx);
    }
}
END_TEST

static void compare_losses(sh_nll_args args, const void *x, uint64_t seed)
{
    shoal_dtype dtype = args.shape.dtype;
    int64_t n = args.shape.outer * args.shape.n * args.shape.inner, rows = args.shape.outer * args.shape.inner;
    uint64_t state = seed;
    int64_t losses = args.reduction == SHOAL_REDUCTION_NONE ? rows : 1;
    void *dloss = numbers(dtype, losses, &state, 1), *loss = numbers(dtype, losses, &state, 1),
         *total = numbers(dtype, 1, &state, 1);
    void *logp = numbers(dtype, n, &state, 1), *dx = numbers(dtype, n, &state, 1),
         *dlogp = numbers(dtype, n, &state, 1);
    sh_exec exec = {0};
    ck_assert_ok(reference()->softmax->cross_entropy(&exec, &args, loss, total, logp, x));
    ck_assert_ok(reference()->softmax->cross_entropy_backward(&exec, &args, dx, dloss, total, logp));
    ck_assert_ok(reference()->softmax->nll_backward(&exec, &args, dlogp, dloss, total));
    FOR_FAST(k)
    {
        void *l = copied(dtype, loss, losses), *t = numbers(dtype, 1, &state, 1), *p = copied(dtype, x, n),
             *d = copied(dtype, dx, n);
        ck_assert_ok(k->softmax->cross_entropy(&exec, &args, l, t, p, p));
        assert_close(dtype, l, loss, losses, tolerance_of(dtype), 1, "loss", seed);
        assert_close(dtype, t, total, 1, tolerance_of(dtype), 1, "total", seed);
        assert_close(dtype, p, logp, n, tolerance_of(dtype), 1, "log_probs", seed);
        ck_assert_ok(k->softmax->cross_entropy_backward(&exec, &args, p, dloss, total, p));
        assert_close(dtype, p, dx, n, 3 * tolerance_of(dtype), 1, "cross entropy backward", seed);
        ck_assert_ok(k->softmax->nll_backward(&exec, &args, d, dloss, total));
        assert_close(dtype, d, dlogp, n, tolerance_of(dtype), 1, "nll backward", seed);
        ck_assert_ok(k->softmax->nll(&exec, &args, l, t, logp));
        assert_close(dtype, l, loss, losses, tolerance_of(dtype), 1, "nll", seed);
        free(l);
        free(t);
        free(p);
        free(d);
    }
    free(exec.scratch);
    free(dloss);
    free(loss);
    free(total);
    free(logp);
    free(dx);
    free(dlogp);
}

START_TEST(losses_agree)
{
    for (uint64_t seed = 0; seed < (uint64_t)sh_repeats(1000); seed++) {
        uint64_t state = seed;
        shoal_dtype dtype = seed % 2 ? SHOAL_F32 : SHOAL_F64;
        sh_nll_args args = {.shape = any_softmax_shape(dtype, &state),
                            .reduction = (shoal_reduction)(seed / 2 % 3),
                            .ignore_index = -100};
        int64_t rows = args.shape.outer * args.shape.inner;
        int64_t *target = malloc((size_t)(rows + 1) * sizeof *target);
        for (int64_t i = 0; i < rows; i++) {
            target[i] = below(&state, 5) ? below(&state, args.shape.n) : -100;
        }
        void *weight = numbers(dtype, args.shape.n, &state, 0.5), *x = numbers(dtype, rows * args.shape.n, &state, 5);
        for (int64_t j = 0; j < args.shape.n; j++) {
            double w = 1 + (dtype == SHOAL_F32 ? ((float *)weight)[j] : ((double *)weight)[j]);
            dtype == SHOAL_F32 ? (void)(((float *)weight)[j] = (float)w) : (void)(((double *)weight)[j] = w);
        }
        args.target = target;
        args.weight = seed % 5 < 2 ? weight : NULL;
        compare_losses(args, x, seed);
        free(target);
        free(weight);
        free(x);
    }
}
END_TEST

/* torch.nn.functional.cross_entropy([[1, 2, 3], [1, 2, -1]], [2, 0]) = 0.87795115 */
START_TEST(known_values)
{
    FOR_ALL(k)
    {
        float x[] = {1, 2, 3, 1, 2, -1}, logp[6], loss, total, one = 1, dx[6];
        int64_t target[] = {2, 0};
        sh_nll_args args = {
            .shape = {SHOAL_F32, 2, 3, 1}, .reduction = SHOAL_REDUCTION_MEAN, .target = target, .ignore_index = -100};
        sh_exec exec = {0};
        ck_assert_ok(k->softmax->cross_entropy(&exec, &args, &loss, &total, logp, x));
        double l0 = log(exp(-2) + exp(-1) + 1), l1 = 1 + log(exp(-1) + 1 + exp(-3));
        ck_assert_double_le(fabs(loss - (l0 + l1) / 2), 1e-6);
        ck_assert(total == 2);
        ck_assert_ok(k->softmax->cross_entropy_backward(&exec, &args, dx, &one, &total, logp));
        ck_assert_double_le(fabs(dx[2] - (exp(-l0) - 1) / 2), 1e-6);
        ck_assert_double_le(fabs(dx[0] + dx[1] + dx[2]), 1e-6);
        float none = 0, wild[] = {NAN, 0, 0, 0, 0, 0}; /* 0 times NaN is NaN, but not in a row that is ignored */
        ck_assert_ok(k->softmax->cross_entropy_backward(&exec, &args, dx, &none, &total, wild));
        ck_assert(isnan(dx[0]) && dx[1] == 0 && dx[3] == 0);
        target[0] = -100;
        ck_assert_ok(k->softmax->cross_entropy_backward(&exec, &args, dx, &none, &total, wild));
        ck_assert(dx[0] == 0 && dx[3] == 0);
        target[0] = 2;
        target[1] = 3;
        loss = 42;
        if (is_card(k)) {
            ck_assert_ok(k->softmax->cross_entropy(&exec, &args, &loss, &total, logp, x));
            ck_assert(isnan(loss));
            continue;
        }
        ck_assert_err(k->softmax->cross_entropy(&exec, &args, &loss, &total, logp, x), SHOAL_EINVAL);
        ck_assert(loss == 42);
        ck_assert_ptr_nonnull(strstr(shoal_last_error_text(), "target 3"));
        free(exec.scratch);
    }
}
END_TEST

/* Every kernel keeps log n however large the scores are, along the last dimension and along others. */
START_TEST(large_scores)
{
    for (int v = 0; v < 6; v++) {
        const sh_kernels *k = version_of_kernels(v % 3);
        if (!k) {
            continue;
        }
        bool last = v < 3;
        float x[32], y[32];
        double wide[32], wide_y[32], offset = 1e12;
        for (int i = 0; i < 32; i++) {
            x[i] = -FLT_MAX;
            wide[i] = offset + (last ? i % 4 : i / 8);
        }
        sh_softmax_shape s = {SHOAL_F32, last ? 8 : 1, 4, last ? 1 : 8};
        sh_exec exec = {0};
        for (int op = 0; op < SH_SOFTMAX_OPS; op++) {
            s.dtype = SHOAL_F32;
            ck_assert_ok(k->softmax->forward(&exec, (sh_softmax_op)op, &s, y, x));
            s.dtype = SHOAL_F64;
            ck_assert_ok(k->softmax->forward(&exec, (sh_softmax_op)op, &s, wide_y, wide));
            double log_sum = log(1 + exp(-1) + exp(-2) + exp(-3)) + 3;
            for (int i = 0; i < 32; i++) {
                double wanted = (last ? i % 4 : i / 8) - log_sum;
                ck_assert(fabs(y[i] - (op == SH_SOFTMAX ? 0.25 : -1.3862943611198906)) < 1e-6);
                ck_assert(fabs(wide_y[i] - (op == SH_SOFTMAX ? exp(wanted) : wanted)) < 1e-14);
            }
        }
        int64_t target[] = {0, 3, 0, 0, 0, 0, 0, 0};
        double loss, total, logp[32];
        sh_nll_args args = {.shape = s, .reduction = SHOAL_REDUCTION_SUM, .target = target, .ignore_index = -100};
        ck_assert_ok(k->softmax->cross_entropy(&exec, &args, &loss, &total, logp, wide));
        ck_assert(fabs(loss - (8 * (log(1 + exp(-1) + exp(-2) + exp(-3)) + 3) - 3)) < 1e-13);
        free(exec.scratch);
    }
}
END_TEST

KERNELS_SUITE("softmax", softmax_agrees, losses_agree, known_values, large_scores)
