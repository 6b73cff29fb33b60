/* Tests of pooling: a few windows by hand, the fast kernels against the reference,
 * backward against finite differences. */
#include "base/random.h"
#include "kernels/kernels.h"
#include "kernels/pool.h"
#include "tests/harness/cuda_mirror.h"
#include "tests/harness/runner.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define CASES sh_repeats(1000)

enum {
    LONGEST = 4096, /* elements of x or y in a test */
};

static uint64_t seed;
static sh_exec exec;
static const sh_pooling_kernels *const reference = &sh_pooling_kernels_reference;

/* Returns variant i of the fast kernels, or NULL if this CPU cannot run it. */
static const sh_pooling_kernels *fast(int i)
{
    const sh_kernels *kernels = sh_mirror_fast(i);
    return kernels ? kernels->pool : NULL;
}

static int64_t from_to(int64_t from, int64_t to)
{
    return from + (int64_t)sh_splitmix_below(&seed, (uint64_t)(to - from + 1));
}

static sh_pool2d any_shape(void)
{
    sh_pool2d p = {.dtype = SHOAL_F32, .n = from_to(1, 3), .c = from_to(1, 4)};
    const bool plain = from_to(0, 1);
    p.kernel_h = plain ? 2 : from_to(1, 4);
    p.kernel_w = plain ? 2 : from_to(1, 4);
    p.stride_h = plain ? 2 : from_to(1, 4);
    p.stride_w = plain ? 2 : from_to(1, 4);
    p.pad_h = plain ? 0 : from_to(0, p.kernel_h / 2);
    p.pad_w = plain ? 0 : from_to(0, p.kernel_w / 2);
    p.in_h = from_to(p.kernel_h, 8);
    p.in_w = from_to(p.kernel_w, 36);
    p.exclude_pad = from_to(0, 1);
    return p;
}

static int64_t count_x(const sh_pool2d *p)
{
    return p->n * p->c * p->in_h * p->in_w;
}

static int64_t count_y(const sh_pool2d *p)
{
    return p->n * p->c * sh_pool2d_out_h(p) * sh_pool2d_out_w(p);
}

/* Small integers with many ties; occasionally NaN or infinity. */
static float *grains(int64_t count, bool special)
{
    static const float odd[] = {NAN, INFINITY, -INFINITY, -0.0F};
    float *p = malloc(sizeof *p * (size_t)count);
    for (int64_t i = 0; i < count; i++) {
        p[i] = special && from_to(0, 9) == 0 ? odd[from_to(0, 3)] : (float)from_to(-4, 4);
    }
    return p;
}

static void expect(const char *what, const float *got, const float *wanted, int64_t count, int round)
{
    for (int64_t i = 0; i < count; i++) {
        ck_assert_msg(got[i] == wanted[i] || (isnan(got[i]) && isnan(wanted[i])), "round %d: %s[%lld] = %g, wanted %g",
                      round, what, (long long)i, (double)got[i], (double)wanted[i]);
    }
}

START_TEST(windows_by_hand)
{
    const float x[12] = {1, 3, 3, 2, 3, 0, 5, NAN, -INFINITY, -INFINITY, 7, 7}; /* 3 x 4 */
    sh_pool2d p = {.dtype = SHOAL_F32, .n = 1, .c = 1, .in_h = 3, .in_w = 4};
    float y[12], grad[12];
    int32_t winner[12];
    p.kernel_h = p.kernel_w = p.stride_h = p.stride_w = 2;
    ck_assert_ok(reference->max_forward(&exec, &p, x, y, winner));
    ck_assert_float_eq(y[0], 3);
    ck_assert_int_eq(winner[0], 1); /* the first of the two threes */
    ck_assert(isnan(y[1]));
    ck_assert_int_eq(winner[1], 7);
    ck_assert_ok(reference->max_backward(&exec, &p, (float[]){10, 20}, winner, grad));
    expect("grad", grad, (float[]){0, 10, 0, 0, 0, 0, 0, 20, 0, 0, 0, 0}, 12, 0);

    p.kernel_h = p.stride_h = 1;
    ck_assert_ok(reference->max_forward(&exec, &p, x, y, winner));
    ck_assert_int_eq(winner[4], 8); /* all are minus infinity: the first */
    ck_assert_int_eq(winner[5], 10);

    p = (sh_pool2d){.dtype = SHOAL_F32, .n = 1, .c = 1, .in_h = 2, .in_w = 2};
    p.kernel_h = p.kernel_w = p.stride_h = p.stride_w = 2;
    p.pad_h = p.pad_w = 1;
    ck_assert_ok(reference->avg_forward(&exec, &p, (float[]){4, 8, 12, 16}, y));
    expect("mean", y, (float[]){1, 2, 3, 4}, 4, 0);
    p.exclude_pad = true;
    ck_assert_ok(reference->avg_forward(&exec, &p, (float[]){4, 8, 12, 16}, y));
    expect("mean without padding", y, (float[]){4, 8, 12, 16}, 4, 0);
}
END_TEST

START_TEST(fast_is_the_reference)
{
    const sh_pooling_kernels *k = fast(_i);
    for (int round = 0; k && round < CASES; round++) {
        seed = (uint64_t)round + 1;
        const sh_pool2d p = any_shape();
        const int64_t nx = count_x(&p), ny = count_y(&p);
        float *x = grains(nx, round % 2), *grad = grains(ny, false);
        float *y = grains(ny, false), *wanted_y = grains(ny, false);
        float *gx = grains(nx, false), *wanted_gx = grains(nx, false);
        int32_t *winner = calloc((size_t)ny, sizeof *winner), *wanted_winner = calloc((size_t)ny, sizeof *winner);
        ck_assert_ok(reference->max_forward(&exec, &p, x, wanted_y, wanted_winner));
        ck_assert_ok(k->max_forward(&exec, &p, x, y, winner));
        expect("max", y, wanted_y, ny, round);
        ck_assert_mem_eq(winner, wanted_winner, sizeof *winner * (size_t)ny);
        ck_assert_ok(reference->max_backward(&exec, &p, grad, winner, wanted_gx));
        ck_assert_ok(k->max_backward(&exec, &p, grad, winner, gx));
        expect("gradient of max", gx, wanted_gx, nx, round);
        ck_assert_ok(reference->avg_forward(&exec, &p, x, wanted_y));
        ck_assert_ok(k->avg_forward(&exec, &p, x, y));
        expect("mean", y, wanted_y, ny, round);
        ck_assert_ok(reference->avg_backward(&exec, &p, grad, wanted_gx));
        ck_assert_ok(k->avg_backward(&exec, &p, grad, gx));
        expect("gradient of mean", gx, wanted_gx, nx, round);
        void *all[] = {x, grad, y, wanted_y, gx, wanted_gx, winner, wanted_winner};
        for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
            free(all[i]);
        }
    }
}
END_TEST

static double loss(const sh_pool2d *p, bool max, const double *x, const double *grad_y)
{
    static double y[LONGEST];
    static int32_t winner[LONGEST];
    double sum = 0;
    ck_assert_ok(max ? reference->max_forward(&exec, p, x, y, winner) : reference->avg_forward(&exec, p, x, y));
    for (int64_t i = 0; i < count_y(p); i++) {
        sum += y[i] * grad_y[i];
    }
    return sum;
}

START_TEST(finite_differences)
{
    static double x[LONGEST], y[LONGEST], grad_y[LONGEST], grad_x[LONGEST];
    static int32_t winner[LONGEST];
    const double step = 1e-6;
    for (int round = 0; round < CASES / 10; round++) {
        seed = (uint64_t)round + 1;
        sh_pool2d p = any_shape();
        const bool max = round % 2;
        p.dtype = SHOAL_F64;
        ck_assert(count_x(&p) <= LONGEST && count_y(&p) <= LONGEST);
        for (int64_t i = 0; i < LONGEST; i++) {
            x[i] = (double)sh_splitmix_next(&seed) * 0x1p-64;
            grad_y[i] = (double)sh_splitmix_next(&seed) * 0x1p-64;
        }
        ck_assert_ok(reference->max_forward(&exec, &p, x, y, winner));
        ck_assert_ok(max ? reference->max_backward(&exec, &p, grad_y, winner, grad_x)
                         : reference->avg_backward(&exec, &p, grad_y, grad_x));
        for (int probe = 0; probe < 8; probe++) {
            const int64_t at = from_to(0, count_x(&p) - 1);
            const double saved = x[at];
            x[at] = saved + step;
            const double up = loss(&p, max, x, grad_y);
            x[at] = saved - step;
            const double down = loss(&p, max, x, grad_y);
            x[at] = saved;
            ck_assert_msg(fabs((up - down) / (2 * step) - grad_x[at]) < 1e-6, "round %d at %lld: %g by difference, %g",
                          round, (long long)at, (up - down) / (2 * step), grad_x[at]);
        }
    }
}
END_TEST

START_TEST(refuses_other_types)
{
    sh_pool2d p = {.dtype = SHOAL_I64, .n = 1, .c = 1, .in_h = 2, .in_w = 2, .kernel_h = 2, .kernel_w = 2};
    int64_t x[4] = {0};
    p.stride_h = p.stride_w = 2;
    ck_assert_err(reference->avg_forward(&exec, &p, x, x), SHOAL_EINVAL);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("kernels/pool");
    TCase *tc = tcase_create("pool");
    tcase_set_timeout(tc, SH_TEST_SECONDS);
    tcase_add_test(tc, windows_by_hand);
    tcase_add_loop_test(tc, fast_is_the_reference, 0, 2);
    tcase_add_test(tc, finite_differences);
    tcase_add_test(tc, refuses_other_types);
    suite_add_tcase(s, tc);
    return s;
}

SH_TEST_MAIN(suite)
