/* Tests of reductions: each op of each dtype over each set of dimensions, fast against reference; and known values. */
#include "kernels/kernels_test.h"

static bool op_is_float_only(int op)
{
    return op == SH_REDUCE_MEAN || op == SH_REDUCE_SUMSQ;
}

static shoal_dtype result_of(int op, shoal_dtype dtype)
{
    bool is_float = dtype == SHOAL_F32 || dtype == SHOAL_F64;
    switch (op) {
    case SH_REDUCE_SUM:
    case SH_REDUCE_PROD: return is_float ? dtype : SHOAL_I64;
    case SH_REDUCE_ARGMAX:
    case SH_REDUCE_ARGMIN: return SHOAL_I64;
    case SH_REDUCE_ANY:
    case SH_REDUCE_ALL: return SHOAL_B8;
    default: return dtype;
    }
}

/* SH_REDUCE_OPS as op means logsumexp. */
static shoal_err run(const sh_kernels *k, int op, const sh_view *out, const sh_view *a)
{
    sh_exec exec = {0};
    if (op == SH_REDUCE_OPS) {
        return k->reduce->logsumexp(&exec, out, a);
    }
    return k->reduce->reduce(&exec, (sh_reduce_op)op, out, a);
}

static void compare(int op, shoal_dtype dtype, bool odd, uint64_t seed)
{
    uint64_t first = seed;
    int64_t shape[SH_MAX_DIMS], kept[SH_MAX_DIMS];
    int32_t ndim = any_shape(&seed, shape);
    if (ndim > 0 && below(&seed, 5) == 0) {
        shape[below(&seed, ndim)] *= 41; /* more than a block of lanes */
    }
    for (int32_t d = 0; d < ndim; d++) {
        kept[d] = below(&seed, 2) ? 1 : shape[d];
    }
    block a = block_make(dtype, ndim, shape, true, &seed, op == SH_REDUCE_PROD ? 1.3 : 20);
    if (!odd && (dtype == SHOAL_F32 || dtype == SHOAL_F64)) {
        free(a.view.data);
        a.view.data = numbers(dtype, a.elements, &seed, 5);
    }
    block out = block_make(result_of(op, dtype), ndim, kept, false, &seed, 1), wanted = block_copy(&out);
    shoal_err expected = run(reference(), op, &wanted.view, &a.view);
    FOR_FAST(k)
    {
        block got = block_copy(&out);
        ck_assert_int_eq(run(k, op, &got.view, &a.view), expected);
        char what[64];
        (void)snprintf(what, sizeof what, "%s reduction %d of %s", k->name, op, shoal_dtype_name(dtype));
        /* Sums of numbers up to 5 are compared relative to the sum of magnitudes. */
        double least = sh_view_count(&a.view) > 0 ? 25.0 * (double)sh_view_count(&a.view) : 1;
        least = op == SH_REDUCE_SUM || op == SH_REDUCE_SUMSQ || op == SH_REDUCE_MEAN ? least : 1e-30;
        /* The reference rounds once for each element, always in the same direction if all are one repeated element. */
        double tolerance = tolerance_of(dtype) / 3 + 0x1p-52 * (double)sh_view_count(&a.view);
        assert_close(wanted.view.dtype, got.view.data, wanted.view.data, wanted.elements, tolerance, least, what,
                     first);
        block_free(&got);
    }
    block_free(&a);
    block_free(&out);
    block_free(&wanted);
}

START_TEST(ops_agree)
{
    static const shoal_dtype dtypes[] = {SHOAL_F32, SHOAL_F64, SHOAL_I64, SHOAL_I32, SHOAL_U8, SHOAL_B8};
    for (int op = 0; op <= SH_REDUCE_OPS; op++) {
        for (int t = 0; t < (op_is_float_only(op) || op == SH_REDUCE_OPS ? 2 : 6); t++) {
            bool sums = op == SH_REDUCE_SUM || op == SH_REDUCE_MEAN || op == SH_REDUCE_SUMSQ;
            for (uint64_t seed = 0; seed < (uint64_t)sh_repeats(400); seed++) {
                compare(op, dtypes[t], !sums && op != SH_REDUCE_PROD && op != SH_REDUCE_OPS, 100 + seed);
            }
        }
    }
}
END_TEST

START_TEST(known_values)
{
    float a[] = {1, 5, 5, -2, NAN, 7}, max[2], sum[3];
    int64_t arg[2], of_all[1];
    uint8_t flags[] = {0, 1, 0, 0, 0, 0}, any[2], other[] = {1, 2, 0, 255, 0, 128}; /* all but 0 are true */
    FOR_ALL(k)
    {
        sh_view in = matrix(a, 2, 3, SHOAL_F32), bits = matrix(flags, 2, 3, SHOAL_B8),
                out = matrix(max, 2, 1, SHOAL_F32);
        ck_assert_ok(run(k, SH_REDUCE_MAX, &out, &in));
        ck_assert(max[0] == 5 && isnan(max[1]));
        out = matrix(arg, 2, 1, SHOAL_I64);
        ck_assert_ok(run(k, SH_REDUCE_ARGMAX, &out, &in));
        ck_assert(arg[0] == 1 && arg[1] == 1);
        ck_assert_ok(run(k, SH_REDUCE_ARGMIN, &out, &in));
        ck_assert(arg[0] == 0 && arg[1] == 1);
        out = matrix(of_all, 1, 1, SHOAL_I64);
        ck_assert_ok(run(k, SH_REDUCE_ARGMAX, &out, &in));
        ck_assert_int_eq(of_all[0], 4);
        ck_assert_ok(run(k, SH_REDUCE_SUM, &out, &bits));
        ck_assert_int_eq(of_all[0], 1);
        out = matrix(any, 2, 1, SHOAL_B8);
        ck_assert_ok(run(k, SH_REDUCE_ANY, &out, &bits));
        ck_assert(any[0] == 1 && any[1] == 0);
        bits = matrix(other, 2, 3, SHOAL_B8);
        ck_assert_ok(run(k, SH_REDUCE_MAX, &out, &bits));
        ck_assert(any[0] == 1 && any[1] == 1);
        out = matrix(arg, 2, 1, SHOAL_I64);
        ck_assert_ok(run(k, SH_REDUCE_SUM, &out, &bits));
        ck_assert(arg[0] == 2 && arg[1] == 2);
        ck_assert_ok(run(k, SH_REDUCE_ARGMAX, &out, &bits));
        ck_assert(arg[0] == 0 && arg[1] == 0);
        out = matrix(sum, 1, 3, SHOAL_F32);
        ck_assert_ok(run(k, SH_REDUCE_SUM, &out, &in));
        ck_assert(sum[0] == -1 && isnan(sum[1]) && sum[2] == 12);
        out = matrix(max, 1, 1, SHOAL_F64);
        ck_assert_err(run(k, SH_REDUCE_SUM, &out, &in), SHOAL_EINVAL);
    }
}
END_TEST

START_TEST(of_nothing)
{
    FOR_ALL(k)
    {
        float none[1], out[2];
        sh_view in = matrix(none, 2, 0, SHOAL_F32), to = matrix(out, 2, 1, SHOAL_F32);
        ck_assert_ok(run(k, SH_REDUCE_SUM, &to, &in));
        ck_assert(out[0] == 0 && out[1] == 0);
        ck_assert_ok(run(k, SH_REDUCE_PROD, &to, &in));
        ck_assert(out[0] == 1 && out[1] == 1);
        ck_assert_ok(run(k, SH_REDUCE_MEAN, &to, &in));
        ck_assert(isnan(out[0]));
        ck_assert_ok(run(k, SH_REDUCE_OPS, &to, &in));
        ck_assert(out[0] == -INFINITY);
        ck_assert_err(run(k, SH_REDUCE_MAX, &to, &in), SHOAL_EINVAL);
    }
}
END_TEST

/* A million times 0.1: a plain sum in f32 would be off by a percent. */
START_TEST(long_sums_are_accurate)
{
    const int64_t n = 1 << 20;
    float *a = malloc((size_t)n * sizeof *a), sum;
    for (int64_t i = 0; i < n; i++) {
        a[i] = 0.1f;
    }
    FOR_ALL(k)
    {
        for (int turned = 0; turned < 2; turned++) {
            sh_view in = matrix(a, turned ? n / 4 : 1, turned ? 4 : n, SHOAL_F32), out = matrix(&sum, 1, 1, SHOAL_F32);
            ck_assert_ok(run(k, SH_REDUCE_SUM, &out, &in));
            ck_assert_double_le(fabs(sum - 0.1f * (double)n), 0.3);
        }
    }
    free(a);
}
END_TEST

KERNELS_SUITE("reduce", ops_agree, known_values, of_nothing, long_sums_are_accurate)
