/* Tests which kernels are chosen. */
#include "kernels/kernels_test.h"

static const char *chosen_with(const char *wish)
{
    ck_assert_int_eq(wish ? setenv("SHOAL_CPU", wish, 1) : unsetenv("SHOAL_CPU"), 0);
    return sh_kernels_cpu()->name;
}

static const char *best(void)
{
    return sh_kernels_find("avx512") ? "avx512" : sh_kernels_find("avx2") ? "avx2" : "reference";
}

/* A process chooses once, and each test runs in a separate process. */
START_TEST(plain_is_plain)
{
    ck_assert_str_eq(chosen_with("plain"), "reference");
    ck_assert_str_eq(chosen_with("avx512"), "reference");
}
END_TEST

START_TEST(avx2_is_no_more_than_that)
{
    ck_assert_str_eq(chosen_with("avx2"), sh_kernels_find("avx2") ? "avx2" : "reference");
}
END_TEST

START_TEST(the_best_without_a_wish)
{
    ck_assert_str_eq(chosen_with(NULL), best());
}
END_TEST

START_TEST(an_unknown_wish_means_nothing)
{
    ck_assert_str_eq(chosen_with("sse9"), best());
}
END_TEST

START_TEST(unknown_names_are_not_found)
{
    ck_assert_ptr_null(sh_kernels_find("plain"));
    ck_assert_ptr_null(sh_kernels_find(""));
    ck_assert_str_eq(sh_kernels_find("reference")->name, "reference");
}
END_TEST

KERNELS_SUITE("table", plain_is_plain, avx2_is_no_more_than_that, the_best_without_a_wish,
              an_unknown_wish_means_nothing, unknown_names_are_not_found)
