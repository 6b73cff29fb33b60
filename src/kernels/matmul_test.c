/* Tests of matrix products: fast against reference, for all sizes, strides and epilogues. */
#include "kernels/kernels_test.h"

typedef struct problem {
    sh_matmul_args args;
    void *a, *b, *c, *bias;
    int64_t c_elements;
} problem;

static problem make(shoal_dtype dtype, int64_t m, int64_t n, int64_t k, uint64_t *seed)
{
    int64_t batch = below(seed, 4) == 0 ? 3 : 1, gap = below(seed, 2) ? 0 : 5;
    problem p = {.args = {.dtype = dtype, .batch = batch, .m = m, .n = n, .k = k}};
    sh_matmul_args *g = &p.args;
    bool a_turned = below(seed, 2), b_turned = below(seed, 2);
    g->a_row = a_turned ? 1 : k + gap;
    g->a_col = a_turned ? m + gap : 1;
    g->b_row = b_turned ? 1 : n + gap;
    g->b_col = b_turned ? k + gap : 1;
    if (below(seed, 8) == 0) { /* neither stride is 1 */
        g->a_col *= 2, g->a_row *= 2, g->b_col *= 2, g->b_row *= 2;
    }
    g->c_row = n + gap;
    g->a_batch = below(seed, 3) ? m * g->a_row + k * g->a_col : 0;
    g->b_batch = below(seed, 3) ? k * g->b_row + n * g->b_col : 0;
    g->c_batch = m * g->c_row;
    /* Exactly as large as what may be read, so that AddressSanitizer detects an access beyond the end. */
    int64_t last_a = m && k ? (m - 1) * g->a_row + (k - 1) * g->a_col + 1 : 0;
    int64_t last_b = k && n ? (k - 1) * g->b_row + (n - 1) * g->b_col + 1 : 0;
    p.c_elements = m && n ? (batch - 1) * g->c_batch + (m - 1) * g->c_row + n : 0;
    g->a = p.a = numbers(dtype, (batch - 1) * g->a_batch + last_a, seed, 1);
    g->b = p.b = numbers(dtype, (batch - 1) * g->b_batch + last_b, seed, 1);
    p.c = numbers(dtype, p.c_elements, seed, 1);
    p.bias = numbers(dtype, n, seed, 1);
    g->bias = below(seed, 2) ? p.bias : NULL;
    g->alpha = below(seed, 2) ? 1 : -0.5;
    g->accumulate = below(seed, 2);
    g->relu = below(seed, 3) == 0;
    return p;
}

static void compare(shoal_dtype dtype, int64_t m, int64_t n, int64_t k, uint64_t seed)
{
    uint64_t first = seed;
    problem p = make(dtype, m, n, k, &seed);
    sh_matmul_args args = p.args;
    void *wanted = copied(dtype, p.c, p.c_elements);
    args.c = wanted;
    sh_exec exec = {0};
    ck_assert_ok(reference()->matmul->matmul(&exec, &args));
    FOR_FAST(kernels)
    {
        void *got = copied(dtype, p.c, p.c_elements);
        args.c = got;
        ck_assert_ok(kernels->matmul->matmul(&exec, &args));
        char what[96];
        (void)snprintf(what, sizeof what, "%s %s %lld x %lld x %lld", kernels->name, shoal_dtype_name(dtype),
                       (long long)m, (long long)k, (long long)n);
        assert_close(dtype, got, wanted, p.c_elements, dtype == SHOAL_F32 ? 1e-6 * (2 + sqrt((double)k)) : 1e-13, 1,
                     what, first);
        free(got);
    }
    free(exec.scratch);
    free(wanted);
    free(p.a);
    free(p.b);
    free(p.c);
    free(p.bias);
}

START_TEST(small_sizes_agree)
{
    for (int64_t m = 0; m <= 19; m += sh_every(4)) {
        for (int64_t n = 0; n <= 70; n += (1 + n % 3) * sh_every(3)) {
            int64_t k = (m * 7 + n * 3) % 23;
            compare(SHOAL_F32, m, n, k, (uint64_t)(m * 100 + n));
            compare(SHOAL_F64, m, n, k, (uint64_t)(m * 100 + n + 50000));
        }
    }
}
END_TEST

START_TEST(random_sizes_agree)
{
    uint64_t seed = 7;
    for (int i = 0; i < sh_repeats(800); i++) {
        int64_t m = 1 + below(&seed, 90), n = 1 + below(&seed, 200), k = 1 + below(&seed, 250);
        compare(i % 3 ? SHOAL_F32 : SHOAL_F64, m, n, k, sh_splitmix_next(&seed));
    }
}
END_TEST

/* More than one block of k, of columns and of rows; A is packed. */
START_TEST(large_sizes_agree)
{
    for (uint64_t seed = 1; seed <= 6; seed += (uint64_t)sh_every(5)) {
        compare(SHOAL_F32, 260, 300, 70, seed);
        compare(SHOAL_F32, 33, 270, 1100, seed + 100);
        compare(SHOAL_F64, 250, 210, 60, seed + 200);
        compare(SHOAL_F32, 200, 310, 600, seed + 300);
        compare(SHOAL_F32, 10, 512, 700, seed + 400);
    }
}
END_TEST

/* Few rows or columns, which use dot products, and the smallest numbers of rows that do not. */
START_TEST(few_rows_agree)
{
    static const int64_t lengths[] = {1, 7, 8, 16, 31, 64, 100, 130, 320, 1025};
    static const int64_t columns[] = {1, 2, 3, 4, 5, 7, 8, 11, 12, 33, 70};
    uint64_t seed = 11;
    for (size_t l = 0; l < sizeof lengths / sizeof *lengths; l += sh_is_short() ? 3 : 1) {
        for (size_t n = 0; n < sizeof columns / sizeof *columns; n += (size_t)sh_every(3)) {
            for (int64_t m = 1; m <= 41; m += m < 8 ? 1 : 11) {
                compare(m % 3 ? SHOAL_F32 : SHOAL_F64, m, columns[n], lengths[l], sh_splitmix_next(&seed));
            }
        }
    }
}
END_TEST

static double element(shoal_dtype dtype, const void *x, int64_t i)
{
    return dtype == SHOAL_F32 ? ((const float *)x)[i] : ((const double *)x)[i];
}

/* Returns one element of x·wᵀ + b, summed in double. *out_size is the sum of the magnitudes of its terms. */
static double linear_element(const sh_matmul_args *g, int64_t row, int64_t column, double *out_size)
{
    double sum = element(g->dtype, g->bias, column);
    *out_size = fabs(sum);
    for (int64_t p = 0; p < g->k; p++) {
        double x = element(g->dtype, g->a, row * g->a_row + p) * element(g->dtype, g->b, column * g->b_col + p);
        sum += x;
        *out_size += fabs(x);
    }
    return g->relu && sum < 0 ? 0 : sum;
}

/* Compares x·wᵀ + b, called as linear does, with sums in double.
 * C has gaps between its rows, which must stay unchanged. */
static void compare_linear(shoal_dtype dtype, int64_t rows, int64_t in, int64_t out, uint64_t seed)
{
    int64_t c_row = out + 3;
    sh_matmul_args g = {.dtype = dtype, .batch = 1, .m = rows, .n = out, .k = in, .a_row = in, .a_col = 1};
    g.b_row = 1, g.b_col = in, g.c_row = c_row, g.alpha = 1, g.relu = seed % 2;
    uint64_t first = seed;
    int64_t elements = (rows - 1) * c_row + out;
    void *a = numbers(dtype, rows * in, &seed, 1), *b = numbers(dtype, out * in, &seed, 1);
    void *bias = numbers(dtype, out, &seed, 1), *before = numbers(dtype, elements, &seed, 1);
    g.a = a, g.b = b, g.bias = bias;
    FOR_FAST(kernels)
    {
        void *got = copied(dtype, before, elements);
        g.c = got;
        sh_exec exec = {0};
        ck_assert_ok(kernels->matmul->matmul(&exec, &g));
        for (int64_t i = 0; i < elements; i++) {
            int64_t column = i % c_row;
            double wanted = element(dtype, before, i), allowed = 0;
            if (column < out) {
                wanted = linear_element(&g, i / c_row, column, &allowed);
                allowed *= dtype == SHOAL_F32 ? 6e-7 : 2e-15;
            }
            if (!(fabs(element(dtype, got, i) - wanted) <= allowed)) {
                ck_abort_msg("%s %s %lld x %lld -> %lld, seed %llu: %.9g instead of %.9g at row %lld, column %lld",
                             kernels->name, shoal_dtype_name(dtype), (long long)rows, (long long)in, (long long)out,
                             (unsigned long long)first, element(dtype, got, i), wanted, (long long)(i / c_row),
                             (long long)column);
            }
        }
        free(got);
        free(exec.scratch);
    }
    free(a);
    free(b);
    free(bias);
    free(before);
}

/* linear has special algorithms for few rows. Tests all numbers of rows and columns,
 * with lengths that no vector divides. */
START_TEST(linear_of_few_rows_is_exact)
{
    static const int64_t lengths[] = {1, 2, 3, 5, 8, 13, 17, 31, 50, 67};
    uint64_t seed = 3;
    for (size_t l = 0; l < sizeof lengths / sizeof *lengths; l++) {
        for (int64_t out = 1; out <= 17; out += sh_every(5)) {
            for (int64_t rows = 1; rows <= 17; rows += (sh_is_short() ? 1 + (out + (int64_t)l) % 3 : 1) * sh_every(3)) {
                compare_linear((rows + out) % 3 ? SHOAL_F32 : SHOAL_F64, rows, lengths[l], out, seed++);
            }
        }
    }
}
END_TEST

/* Wide layers: several blocks of columns, k divided into parts, and more rows than the widest band. */
START_TEST(linear_of_wide_layers_is_exact)
{
    static const int64_t rows[] = {2, 4, 5, 7, 9, 10, 13, 16, 19, 26, 33, 70}, widths[] = {33, 49, 70, 131};
    static const int64_t lengths[] = {64, 127, 301, 515, 1027};
    uint64_t seed = 5;
    for (size_t l = 0; l < sizeof lengths / sizeof *lengths; l += sh_is_short() ? 2 : 1) {
        for (size_t w = 0; w < sizeof widths / sizeof *widths; w++) {
            for (size_t r = 0; r < sizeof rows / sizeof *rows; r += sh_is_short() ? 2 : 1) {
                compare_linear(r % 4 ? SHOAL_F32 : SHOAL_F64, rows[r], lengths[l], widths[w], seed++);
            }
        }
    }
}
END_TEST

/* Data beyond the end of a row have no effect: neither infinities in the next row nor a NaN that the last product left
 * in scratch. */
START_TEST(linear_keeps_nan_in_its_column)
{
    FOR_FAST(kernels)
    {
        sh_exec exec = {0};
        for (int64_t rows = 1; rows <= 17; rows++) {
            enum { in = 67, out = 41 };
            static float a[17 * in], b[out * in], c[17 * out];
            for (int i = 0; i < 17 * in; i++) {
                a[i] = 1;
            }
            for (int i = 0; i < out * in; i++) {
                b[i] = i / in % 3 == 1 ? (i % 2 ? NAN : INFINITY) : 1;
            }
            sh_matmul_args g = {.dtype = SHOAL_F32, .batch = 1, .m = rows, .n = out, .k = in, .a = a, .a_row = in};
            g.a_col = 1, g.b = b, g.b_row = 1, g.b_col = in, g.c = c, g.c_row = out, g.alpha = 1;
            ck_assert_ok(kernels->matmul->matmul(&exec, &g));
            for (int64_t i = 0; i < rows * out; i++) {
                ck_assert(i % out % 3 == 1 ? isnan(c[i]) : c[i] == in);
            }
        }
        free(exec.scratch);
    }
}
END_TEST

START_TEST(integers_wrap_around)
{
    int64_t a[] = {INT64_MAX, 2, 3, 4}, b[] = {2, 1, 1, 1}, c[4];
    int32_t a32[] = {INT32_MAX, 2}, b32[] = {2, 3}, c32[1] = {10};
    sh_matmul_args g = {.dtype = SHOAL_I64, .batch = 1, .m = 2, .n = 2, .k = 2, .a = a, .a_row = 2, .a_col = 1, .b = b};
    g.b_row = 2, g.b_col = 1, g.c = c, g.c_row = 2, g.alpha = 1;
    sh_matmul_args h = {.dtype = SHOAL_I32, .batch = 1, .m = 1, .n = 1, .k = 2, .a = a32, .a_col = 1, .b = b32};
    h.b_row = 1, h.b_col = 1, h.c = c32, h.alpha = 1, h.accumulate = true;
    const sh_kernels *best = sh_kernels_cpu();
    ck_assert_ok(best->matmul->matmul(&(sh_exec){0}, &g));
    ck_assert(c[0] == 0 && c[1] == INT64_MIN + 1 && c[2] == 10 && c[3] == 7);
    ck_assert_ok(best->matmul->matmul(&(sh_exec){0}, &h));
    ck_assert_int_eq(c32[0], 14);
    h.relu = true;
    ck_assert_err(best->matmul->matmul(&(sh_exec){0}, &h), SHOAL_EINVAL);
    h.dtype = SHOAL_F16;
    ck_assert_err(best->matmul->matmul(&(sh_exec){0}, &h), SHOAL_EINVAL);
}
END_TEST

/* Columns that are computed only to fill a vector, and discarded, may hold NaN. */
START_TEST(nan_stays_in_its_row_and_column)
{
    FOR_FAST(k)
    {
        float a[3 * 4], b[4 * 5], c[3 * 5];
        for (int i = 0; i < 20; i++) {
            b[i] = 1;
            a[i % 12] = 1;
        }
        a[4] = NAN;     /* row 1 */
        b[5 + 4] = NAN; /* column 4 */
        sh_matmul_args g = {
            .dtype = SHOAL_F32, .batch = 1, .m = 3, .n = 5, .k = 4, .a = a, .a_row = 4, .a_col = 1, .b = b};
        g.b_row = 5, g.b_col = 1, g.c = c, g.c_row = 5, g.alpha = 1, g.relu = true;
        sh_exec exec = {0};
        ck_assert_ok(k->matmul->matmul(&exec, &g));
        for (int i = 0; i < 15; i++) {
            ck_assert(i / 5 == 1 || i % 5 == 4 ? isnan(c[i]) : c[i] == 4);
        }
        free(exec.scratch);
    }
}
END_TEST

KERNELS_SUITE("matmul", small_sizes_agree, random_sizes_agree, large_sizes_agree, few_rows_agree,
              linear_of_few_rows_is_exact, linear_of_wide_layers_is_exact, linear_keeps_nan_in_its_column,
              integers_wrap_around, nan_stays_in_its_row_and_column)
