/* Random fills: the numbers of a seed, which a few lines of Python computed from the description in kernels/random.h;
 * strides and dtypes that go through another tensor; and statistics. */
#include "tests/harness/numbers.h"
#include "tests/harness/runner.h"

#include <shoal/ops.h>

#include <math.h>
#include <string.h>

enum {
    MANY = 100000,
};

START_TEST(known_numbers)
{
    static const float uniform[] = {0x1.39d5ep-1F, 0x1.dfd524p-2F, 0x1.2bf5p-4F, 0x1.5d0accp-2F, 0x1.f9b642p-1F};
    static const double wide[] = {0x1.dfd524ee73abcp-2, 0x1.5d0acf5c4afd4p-2, 0x1.4ee9b3f7f36c8p-2,
                                  0x1.d1381bee0e3d6p-2};
    static const double normal[] = {-0.9701897896896211, 0.1940189560319242, -1.235620741535049, 1.9239267500724069};
    static const int64_t integers[] = {4, 3, 3, 4, 6, 7}, order[] = {0, 5, 3, 4, 1, 2};
    static const uint8_t coins[] = {0, 1, 1, 1, 0, 1, 0, 1};
    shoal_tensor *f = shoal_empty(SHOAL_F32, SHOAL_SHAPE(5)), *d = shoal_empty(SHOAL_F64, SHOAL_SHAPE(4));
    shoal_tensor *i = shoal_empty(SHOAL_I64, SHOAL_SHAPE(6)), *b = shoal_empty(SHOAL_B8, SHOAL_SHAPE(8));
    shoal_manual_seed(42);
    ck_assert_ptr_eq(shoal_uniform_(f, 0, 1), f);
    ck_assert_int_eq(memcmp(shoal_tensor_data(f), uniform, sizeof uniform), 0);
    /* the generator has advanced by the two blocks that five numbers take */
    ck_assert(item_of(shoal_uniform_(shoal_narrow(f, 0, 0, 1), 0, 1)) == 0x1.a6d804p-1);

    shoal_manual_seed(42);
    ck_assert_int_eq(memcmp(shoal_tensor_data(shoal_uniform_(d, 0, 1)), wide, sizeof wide), 0);
    shoal_manual_seed(42);
    const float *z = shoal_tensor_data(shoal_normal_(f, 0, 1));
    for (int k = 0; k < 4; k++) {
        ck_assert(fabs(z[k] - normal[k]) < 1e-6);
    }
    shoal_manual_seed(42);
    ck_assert_int_eq(memcmp(shoal_tensor_data(shoal_randint_(i, 0, 10)), integers, sizeof integers), 0);
    shoal_manual_seed(42);
    ck_assert_int_eq(memcmp(shoal_tensor_data(shoal_bernoulli_(b, 0.5)), coins, sizeof coins), 0);
    shoal_manual_seed(42);
    shoal_tensor *p = shoal_randperm(6);
    ck_assert_int_eq(memcmp(shoal_tensor_data(p), order, sizeof order), 0);
    shoal_tensor *all[] = {f, d, i, b, p};
    for (int k = 0; k < 5; k++) {
        shoal_tensor_release(all[k]);
    }
    shoal_scope_release(0);
}
END_TEST

/* A strided tensor, and one of a dtype that kernels do not fill, get the same numbers as a contiguous f32 one. */
START_TEST(other_layouts)
{
    shoal_tensor *plain = shoal_empty(SHOAL_F32, SHOAL_SHAPE(4, 3)), *base = shoal_empty(SHOAL_F32, SHOAL_SHAPE(3, 4));
    shoal_tensor *half = shoal_empty(SHOAL_BF16, SHOAL_SHAPE(4, 3)), *few = shoal_empty(SHOAL_I32, SHOAL_SHAPE(50));
    shoal_tensor *turned = shoal_transpose(base, 0, 1);
    shoal_manual_seed(1);
    ck_assert_ptr_nonnull(shoal_normal_(plain, 1, 2));
    shoal_manual_seed(1);
    ck_assert_ptr_nonnull(shoal_normal_(turned, 1, 2));
    ck_assert(shoal_tensor_equal(plain, turned));
    shoal_manual_seed(1);
    ck_assert_ptr_nonnull(shoal_normal_(half, 1, 2));
    ck_assert(shoal_tensor_equal(half, shoal_to_dtype(plain, SHOAL_BF16)));
    ck_assert_ptr_nonnull(shoal_randint_(few, -3, 4));
    ck_assert(item_of(shoal_max(few, SHOAL_ALL_DIMS, false)) == 3 &&
              item_of(shoal_min(few, SHOAL_ALL_DIMS, false)) == -3);
    shoal_tensor *all[] = {plain, base, half, few};
    for (int k = 0; k < 4; k++) {
        shoal_tensor_release(all[k]);
    }
    shoal_scope_release(0);
}
END_TEST

static double mean_of(shoal_tensor *t)
{
    return item_of(shoal_mean(t, SHOAL_ALL_DIMS, false));
}

START_TEST(statistics)
{
    shoal_tensor *t = shoal_empty(SHOAL_F32, SHOAL_SHAPE(MANY));
    shoal_manual_seed(5);
    ck_assert_ptr_nonnull(shoal_normal_(t, 3, 2));
    ck_assert(fabs(mean_of(t) - 3) < 0.03);
    ck_assert(fabs(mean_of(shoal_square(shoal_add_scalar(t, -3))) - 4) < 0.08);
    ck_assert_ptr_nonnull(shoal_uniform_(t, -1, 3));
    ck_assert(fabs(mean_of(t) - 1) < 0.02);
    ck_assert_ptr_nonnull(shoal_bernoulli_(t, 0.3));
    ck_assert(fabs(mean_of(t) - 0.3) < 0.01);
    ck_assert_ptr_nonnull(shoal_fill_(t, 1));
    /* dropout keeps the mean and zeroes its fraction */
    shoal_tensor *dropped = shoal_dropout(t, 0.25);
    ck_assert(fabs(mean_of(dropped) - 1) < 0.01);
    double zeros = mean_of(shoal_to_dtype(shoal_eq(dropped, shoal_scoped(shoal_scalar(SHOAL_F32, 0))), SHOAL_F32));
    ck_assert(fabs(zeros - 0.25) < 0.01);
    shoal_tensor *channels = shoal_dropout2d(shoal_reshape(t, SHOAL_SHAPE(10, 1000, 10)), 0.25);
    shoal_tensor *most = shoal_max(channels, 2, false), *least = shoal_min(channels, 2, false);
    ck_assert(shoal_tensor_equal(most, least)); /* a channel is dropped or kept as a whole */
    ck_assert(fabs(mean_of(most) - 1) < 0.05);
    shoal_tensor_release(t);
    shoal_scope_release(0);
}
END_TEST

START_TEST(permutations)
{
    shoal_manual_seed(9);
    shoal_tensor *p = shoal_randperm(1000), *none = shoal_randperm(0);
    bool seen[1000] = {false};
    const int64_t *data = shoal_tensor_data(p);
    for (int k = 0; k < 1000; k++) {
        ck_assert(data[k] >= 0 && data[k] < 1000 && !seen[data[k]]);
        seen[data[k]] = true;
    }
    ck_assert_int_eq(shoal_tensor_count(none), 0);
    ck_assert_ptr_null(shoal_randperm(-1));
    shoal_tensor_release(p);
    shoal_tensor_release(none);
}
END_TEST

START_TEST(refused)
{
    shoal_tensor *i = shoal_zeros(SHOAL_I64, SHOAL_SHAPE(2)), *f = shoal_zeros(SHOAL_F32, SHOAL_SHAPE(2));
    ck_assert_ptr_null(shoal_uniform_(i, 0, 1));
    ck_assert_int_eq(shoal_last_error(), SHOAL_ETYPE);
    ck_assert_ptr_null(shoal_normal_(i, 0, 1));
    ck_assert_ptr_null(shoal_bernoulli_(f, 1.5));
    ck_assert_int_eq(shoal_last_error(), SHOAL_EINVAL);
    ck_assert_ptr_null(shoal_randint_(i, 3, 3));
    ck_assert_ptr_nonnull(strstr(shoal_last_error_text(), "from 3 to below 3"));
    ck_assert_ptr_null(shoal_normal_(NULL, 0, 1));
    shoal_tensor_release(i);
    shoal_tensor_release(f);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("tensor/random");
    TCase *tc = tcase_create("random");
    tcase_set_timeout(tc, SH_TEST_SECONDS);
    tcase_add_checked_fixture(tc, sh_leaks_begin, sh_leaks_end);
    tcase_add_test(tc, known_numbers);
    tcase_add_test(tc, other_layouts);
    tcase_add_test(tc, statistics);
    tcase_add_test(tc, permutations);
    tcase_add_test(tc, refused);
    suite_add_tcase(s, tc);
    return s;
}

SH_TEST_MAIN(suite)
