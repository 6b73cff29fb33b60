/* Numbers at the edges: cases that the stored PyTorch results (golden_test.c) do not cover, because PyTorch promotes
 * dtypes, fails, or has no answer. */
#include "autograd/op.h"
#include "tests/harness/runner.h"

#include <math.h>
#include <string.h>

static shoal_tensor *doubles(int64_t n, const double *values, bool needs_grad)
{
    shoal_tensor *t = shoal_scoped(shoal_from_data(SHOAL_F64, values, SHOAL_SHAPE(n)));
    ck_assert_ptr_nonnull(t);
    ck_assert_ok(shoal_tensor_set_requires_grad(t, needs_grad));
    return t;
}
#define DOUBLES(needs_grad, ...)                                                                                       \
    doubles((int64_t)(sizeof((double[]){__VA_ARGS__}) / sizeof(double)), (double[]){__VA_ARGS__}, needs_grad)

static void expect(shoal_tensor *t, int64_t n, const double *wanted)
{
    ck_assert_msg(t != NULL, "%s", shoal_last_error_text());
    ck_assert_int_eq(shoal_tensor_count(t), n);
    shoal_no_grad_begin();
    shoal_tensor *d = shoal_contiguous(shoal_to_dtype(shoal_detach(t), SHOAL_F64));
    shoal_no_grad_end();
    const double *got = shoal_tensor_data(d);
    for (int64_t i = 0; i < n; i++) {
        ck_assert_msg(got[i] == wanted[i] || (isnan(got[i]) && isnan(wanted[i])), "at %lld: %.17g, not %.17g",
                      (long long)i, got[i], wanted[i]);
    }
}
#define EXPECT(t, ...) expect(t, (int64_t)(sizeof((double[]){__VA_ARGS__}) / sizeof(double)), (double[]){__VA_ARGS__})

/* The call failed with SHOAL_ETYPE, and the error text names the call and suggests shoal_to_dtype. */
static void expect_refused(const shoal_tensor *t, const char *call)
{
    ck_assert_msg(t == NULL, "%s does not fail", call);
    ck_assert_int_eq(shoal_last_error(), SHOAL_ETYPE);
    ck_assert_msg(strstr(shoal_last_error_text(), call) && strstr(shoal_last_error_text(), "shoal_to_dtype"), "%s",
                  shoal_last_error_text());
}

static shoal_tensor *total(shoal_tensor *t)
{
    return shoal_sum(t, SHOAL_ALL_DIMS, false);
}

/* Bounds beyond the range of the integers do not wrap around. */
START_TEST(clamp_of_integers)
{
    shoal_tensor *i32 = shoal_scoped(shoal_from_data(SHOAL_I32, (int32_t[]){-7, 0, 5, INT32_MAX}, SHOAL_SHAPE(4)));
    EXPECT(shoal_clamp(i32, 0, INFINITY), 0, 0, 5, INT32_MAX);
    EXPECT(shoal_clamp(i32, -INFINITY, 3), -7, 0, 3, 3);
    EXPECT(shoal_clamp(i32, -1e30, 0x1p40), -7, 0, 5, INT32_MAX);
    EXPECT(shoal_clamp(i32, 0x1p40, INFINITY), INT32_MAX, INT32_MAX, INT32_MAX, INT32_MAX);
    shoal_tensor *u8 = shoal_scoped(shoal_from_data(SHOAL_U8, (uint8_t[]){0, 5, 200, 255}, SHOAL_SHAPE(4)));
    EXPECT(shoal_clamp(u8, 0, 256), 0, 5, 200, 255);
    EXPECT(shoal_clamp(u8, -5, 100), 0, 5, 100, 100);
    EXPECT(shoal_clamp_(shoal_clone(u8), 300, 400), 255, 255, 255, 255);
    int64_t wide[] = {INT64_MIN, -(INT64_C(1) << 53) - 1, (INT64_C(1) << 53) + 1, INT64_MAX};
    shoal_tensor *i64 = shoal_scoped(shoal_from_data(SHOAL_I64, wide, SHOAL_SHAPE(4)));
    shoal_tensor *same = shoal_clamp(i64, -INFINITY, 0x1p63);
    ck_assert_int_eq(memcmp(shoal_tensor_data(same), wide, sizeof wide), 0);
    shoal_tensor *cut = shoal_clamp(i64, -0x1p53, 0x1p53);
    ck_assert(((int64_t *)shoal_tensor_data(cut))[2] == INT64_C(1) << 53);
    expect_refused(shoal_clamp(i32, 0.5, 2), "clamp");
    expect_refused(shoal_clamp(i32, 0, NAN), "clamp");
    ck_assert_ptr_null(shoal_clamp(i32, 2, 1));
    ck_assert_int_eq(shoal_last_error(), SHOAL_EINVAL);
    EXPECT(shoal_clamp(DOUBLES(false, -INFINITY, 0, NAN), NAN, 1), NAN, NAN, NAN);
    shoal_scope_release(0);
}
END_TEST

/* An op in place never loses what its own backward needs, and keeps nothing that no gradient needs. */
START_TEST(in_place_backward)
{
    shoal_tensor *x = DOUBLES(true, 1, 2), *w = DOUBLES(true, 3, -4), *c = DOUBLES(false, 3, -4);
    shoal_tensor *y = shoal_mul_(shoal_clone(x), c);
    ck_assert_ok(shoal_backward(total(shoal_clamp_(shoal_mul_scalar_(y, 2), -20, 5))));
    EXPECT(shoal_tensor_grad(x), 0, -8);
    ck_assert_ok(shoal_tensor_set_grad(x, NULL));
    ck_assert_ok(shoal_backward(total(shoal_mul_(shoal_clone(x), w))));
    EXPECT(shoal_tensor_grad(x), 3, -4);
    EXPECT(shoal_tensor_grad(w), 1, 2);
    ck_assert_ok(shoal_tensor_set_grad(x, NULL));
    ck_assert_ok(shoal_tensor_set_grad(w, NULL));
    ck_assert_ok(shoal_backward(total(shoal_div_(shoal_clone(x), w))));
    EXPECT(shoal_tensor_grad(x), 1.0 / 3, -1.0 / 4);
    EXPECT(shoal_tensor_grad(w), -(1.0 / 3 / 3), -(2.0 / -4 / -4));

    /* the factors of the product may change if no gradient needs them: w needs none here */
    shoal_tensor *a = shoal_clone(x), *product = shoal_mul(a, c);
    ck_assert_ptr_nonnull(shoal_add_scalar_(a, 100));
    ck_assert_ok(shoal_tensor_set_grad(x, NULL));
    ck_assert_ok(shoal_backward(total(product)));
    EXPECT(shoal_tensor_grad(x), 3, -4);

    /* but what another op's backward needs may not */
    shoal_tensor *b = shoal_clone(x), *square = shoal_square(b);
    ck_assert_ptr_nonnull(shoal_mul_(b, c));
    ck_assert_err(shoal_backward(total(square)), SHOAL_ESTATE);
    shoal_scope_release(0);
}
END_TEST

/* Integers have no infinity: a zero among the divisors is an error. */
START_TEST(division_by_zero)
{
    static const shoal_dtype integers[] = {SHOAL_I64, SHOAL_I32, SHOAL_U8};
    for (size_t i = 0; i < sizeof integers / sizeof *integers; i++) {
        shoal_tensor *a = shoal_scoped(shoal_arange(integers[i], 1, 41, 1));
        shoal_tensor *b = shoal_scoped(shoal_arange(integers[i], 1, 41, 1));
        EXPECT(total(shoal_div(a, b)), 40);
        ck_assert_ptr_nonnull(shoal_fill_(shoal_narrow(b, 0, 37, 1), 0));
        ck_assert_ptr_null(shoal_div(a, b));
        ck_assert_int_eq(shoal_last_error(), SHOAL_EINVAL);
        ck_assert_ptr_nonnull(strstr(shoal_last_error_text(), "division by zero"));
        ck_assert_ptr_null(shoal_div_(a, b));
        EXPECT(total(a), 820); /* nothing was written */
        EXPECT(total(shoal_div(a, shoal_scoped(shoal_scalar(integers[i], 41)))), 0);
        ck_assert_ptr_null(shoal_div(a, shoal_scoped(shoal_scalar(integers[i], 0))));
        ck_assert_ptr_nonnull(shoal_div(shoal_narrow(a, 0, 0, 0), shoal_narrow(b, 0, 0, 0)));
    }
    EXPECT(shoal_div(DOUBLES(false, 1, -1, 0), DOUBLES(false, 0, 0, 0)), INFINITY, -INFINITY, NAN);
    shoal_scope_release(0);
}
END_TEST

START_TEST(fractions_for_integers)
{
    shoal_tensor *t = shoal_scoped(shoal_ones(SHOAL_I32, SHOAL_SHAPE(2)));
    shoal_tensor *u8 = shoal_scoped(shoal_ones(SHOAL_U8, SHOAL_SHAPE(2)));
    shoal_tensor *mask = shoal_scoped(shoal_ones(SHOAL_B8, SHOAL_SHAPE(2)));
    expect_refused(shoal_mul_scalar(t, 1.5), "mul_scalar");
    expect_refused(shoal_mul_scalar_(t, 1.5), "mul_scalar");
    expect_refused(shoal_add_scalar(t, 0.5), "add_scalar");
    expect_refused(shoal_add_scalar(t, NAN), "add_scalar");
    expect_refused(shoal_add_scalar(t, 0x1p31), "add_scalar");
    expect_refused(shoal_add_scaled_(t, t, 0.5), "add_scaled");
    expect_refused(shoal_fill_(t, 1.5), "fill_");
    expect_refused(shoal_fill_(u8, 256), "fill_");
    expect_refused(shoal_fill_(u8, -1), "fill_");
    expect_refused(shoal_full(SHOAL_I64, INFINITY, SHOAL_SHAPE(2)), "shoal_full");
    expect_refused(shoal_full(SHOAL_I64, 0x1p63, SHOAL_SHAPE(2)), "shoal_full");
    expect_refused(shoal_masked_fill(t, mask, 2.5), "masked_fill");
    shoal_tensor *half = shoal_scoped(shoal_scalar(SHOAL_F32, 1.5)), *two = shoal_scoped(shoal_scalar(SHOAL_I64, 2));
    expect_refused(shoal_mul(t, half), "mul");
    expect_refused(shoal_where(mask, t, half), "where");
    EXPECT(t, 1, 1);

    EXPECT(shoal_mul(t, two), 2, 2);
    EXPECT(shoal_mul(two, half), 3); /* both are 0-d: the float dtype holds both */
    EXPECT(shoal_mul_scalar(t, -3), -3, -3);
    EXPECT(shoal_add_scalar(u8, -1), 0, 0); /* u8 wraps around, so this subtracts */
    EXPECT(shoal_mul_scalar(u8, -1), 255, 255);
    EXPECT(shoal_fill_(u8, 255), 255, 255);
    EXPECT(shoal_masked_fill(t, mask, -7), -7, -7);
    EXPECT(shoal_fill_(mask, 0.5), 1, 1); /* 0.5 counts as true */
    shoal_scope_release(0);
}
END_TEST

/* Bool memory from elsewhere: any byte other than 0 is true. */
START_TEST(bytes_of_bools)
{
    uint8_t odd[] = {0, 1, 2, 255, 0, 128}, plain[] = {0, 1, 1, 1, 0, 1};
    shoal_tensor *a = shoal_scoped(shoal_from_memory(SHOAL_B8, odd, SHOAL_SHAPE(6), NULL, NULL));
    shoal_tensor *b = shoal_scoped(shoal_from_data(SHOAL_B8, plain, SHOAL_SHAPE(6)));
    EXPECT(shoal_eq(a, b), 1, 1, 1, 1, 1, 1);
    EXPECT(shoal_lt(b, a), 0, 0, 0, 0, 0, 0);
    EXPECT(shoal_logical_and(a, b), 0, 1, 1, 1, 0, 1);
    EXPECT(shoal_logical_or(a, b), 0, 1, 1, 1, 0, 1);
    EXPECT(shoal_logical_not(a), 1, 0, 0, 0, 1, 0);
    EXPECT(shoal_maximum(a, a), 0, 1, 1, 1, 0, 1);
    EXPECT(shoal_minimum(a, b), 0, 1, 1, 1, 0, 1);
    EXPECT(shoal_to_dtype(a, SHOAL_F64), 0, 1, 1, 1, 0, 1);
    EXPECT(shoal_to_dtype(a, SHOAL_U8), 0, 1, 1, 1, 0, 1);
    EXPECT(shoal_clone(a), 0, 1, 1, 1, 0, 1);
    EXPECT(total(a), 4);
    EXPECT(shoal_prod(shoal_narrow(a, 0, 1, 3), SHOAL_ALL_DIMS, false), 1);
    EXPECT(shoal_max(a, SHOAL_ALL_DIMS, false), 1);
    EXPECT(shoal_argmax(a, SHOAL_ALL_DIMS, false), 1);
    EXPECT(shoal_where(a, DOUBLES(false, 1, 1, 1, 1, 1, 1), DOUBLES(false, 0, 0, 0, 0, 0, 0)), 0, 1, 1, 1, 0, 1);
    shoal_scope_release(0);
}
END_TEST

/* The limits; PyTorch gives inf, NaN, NaN, NaN for the first four. */
START_TEST(infinite_logits)
{
    shoal_tensor *x = DOUBLES(true, INFINITY, -INFINITY, INFINITY, -INFINITY, NAN, 0);
    shoal_tensor *t = DOUBLES(false, 0, 0, 1, 1, 0, NAN);
    shoal_tensor *loss = shoal_bce_with_logits(x, t, SHOAL_REDUCTION_NONE);
    EXPECT(loss, INFINITY, 0, 0, INFINITY, NAN, NAN);
    ck_assert_ok(shoal_backward(total(loss)));
    EXPECT(shoal_tensor_grad(x), 1, 0, 0, -1, NAN, NAN);
    shoal_scope_release(0);
}
END_TEST

/* For N1: a row that is skipped has no gradient; PyTorch gives NaN for the second row. */
START_TEST(skipped_rows)
{
    shoal_tensor *x = shoal_reshape(DOUBLES(false, 0, 0, -INFINITY, -INFINITY, NAN, 1), SHOAL_SHAPE(3, 2));
    ck_assert_ok(shoal_tensor_set_requires_grad(x, true));
    int64_t classes[] = {0, -100, -100};
    shoal_tensor *target = shoal_scoped(shoal_from_data(SHOAL_I64, classes, SHOAL_SHAPE(3)));
    ck_assert_ok(shoal_backward(shoal_cross_entropy(x, target)));
    EXPECT(shoal_tensor_grad(x), -0.5, 0.5, 0, 0, 0, 0);
    ck_assert_ptr_null(shoal_cross_entropy(x, shoal_unsqueeze(target, 1)));
    ck_assert_ptr_nonnull(strstr(shoal_last_error_text(), "x must be [N, C, …]"));
    shoal_scope_release(0);
}
END_TEST

/* For N1: the gradient of a copy is summed in the dtype of what was copied. */
START_TEST(gradient_of_a_copy)
{
    shoal_tensor *x = DOUBLES(true, 7);
    shoal_tensor *a = shoal_scoped(shoal_zeros(SHOAL_F32, SHOAL_SHAPE(3)));
    shoal_tensor *g = shoal_to_dtype(DOUBLES(false, 1, 0x1p-30, 0x1p-30), SHOAL_F32);
    ck_assert_ok(shoal_backward_with(shoal_copy_(a, x), g, false));
    EXPECT(shoal_tensor_grad(x), 1 + 0x1p-29);
    shoal_scope_release(0);
}
END_TEST

/* For N1: what gather and its like refuse, and why. */
START_TEST(indices)
{
    shoal_tensor *bytes = shoal_scoped(shoal_ones(SHOAL_U8, SHOAL_SHAPE(2, 2)));
    shoal_tensor *zeros = shoal_scoped(shoal_zeros(SHOAL_I64, SHOAL_SHAPE(2, 2)));
    ck_assert_ptr_null(shoal_scatter_add(bytes, 0, zeros, bytes));
    ck_assert_err(shoal_last_error(), SHOAL_ETYPE);
    ck_assert_ptr_null(shoal_matmul(bytes, bytes));
    ck_assert_err(shoal_last_error(), SHOAL_ETYPE);

    shoal_tensor *source = DOUBLES(true, 1, 2, 3), *index = shoal_narrow(shoal_reshape(zeros, SHOAL_SHAPE(4)), 0, 0, 2);
    shoal_tensor *sum = shoal_scatter_add(DOUBLES(false, 10, 20), 0, index, source);
    EXPECT(sum, 13, 20);
    ck_assert_ok(shoal_backward(total(sum)));
    EXPECT(shoal_tensor_grad(source), 1, 1, 0);
    ck_assert_ptr_null(shoal_scatter_add(DOUBLES(false, 10, 20), 0, index, DOUBLES(false, 1)));
    ck_assert_err(shoal_last_error(), SHOAL_EINVAL);

    shoal_tensor *one = shoal_scoped(shoal_scalar(SHOAL_F32, 5));
    ck_assert_ptr_null(shoal_index_select(one, 0, index));
    ck_assert_err(shoal_last_error(), SHOAL_EINVAL);
    ck_assert_ptr_nonnull(strstr(shoal_last_error_text(), "it has one element"));
    ck_assert_ptr_null(shoal_index_select(bytes, 0, zeros));
    ck_assert_ptr_nonnull(strstr(shoal_last_error_text(), "the index must be 1-d"));

    shoal_tensor *mixed[] = {shoal_scoped(shoal_zeros(SHOAL_F64, SHOAL_SHAPE(0))), one};
    mixed[1] = shoal_scoped(shoal_zeros(SHOAL_F32, SHOAL_SHAPE(2, 2)));
    ck_assert_ptr_null(shoal_cat(mixed, 2, 0)); /* the dtypes differ */
    ck_assert_err(shoal_last_error(), SHOAL_EINVAL);
    shoal_scope_release(0);
}
END_TEST

/* A view and its base share memory but have separate histories. The one that was not changed itself does not know of
 * the change, so its gradients would silently be wrong. */
START_TEST(another_view_was_changed)
{
    shoal_tensor *x = DOUBLES(true, 1, 1, 1);
    shoal_tensor *y = shoal_mul_scalar(x, 2), *view = shoal_reshape(y, SHOAL_SHAPE(3, 1));
    ck_assert_ptr_nonnull(shoal_mul_scalar_(y, 3));
    ck_assert_ptr_null(total(view));
    ck_assert_err(shoal_last_error(), SHOAL_ESTATE);
    EXPECT(shoal_detach(view), 6, 6, 6); /* the values can still be read */
    ck_assert_ok(shoal_backward(total(shoal_reshape(y, SHOAL_SHAPE(3, 1)))));
    EXPECT(shoal_tensor_grad(x), 6, 6, 6);

    shoal_tensor *rows = DOUBLES(false, 0, 0, 0); /* it needs no gradient itself, but what is written into it does */
    shoal_tensor *row = shoal_copy_(shoal_select(rows, 0, 0), shoal_select(x, 0, 0));
    ck_assert_ptr_nonnull(row);
    ck_assert_ptr_null(shoal_mul(rows, x));
    ck_assert_err(shoal_last_error(), SHOAL_ESTATE);
    ck_assert_ptr_nonnull(shoal_mul(row, x));
    shoal_no_grad_begin();
    ck_assert_ptr_nonnull(shoal_mul(rows, x));
    shoal_no_grad_end();

    shoal_tensor *q = DOUBLES(false, 1, 1, 1), *before = shoal_reshape(q, SHOAL_SHAPE(3));
    ck_assert_ptr_nonnull(shoal_mul_(q, x));
    ck_assert_ptr_null(shoal_mul(before, x));
    ck_assert_err(shoal_last_error(), SHOAL_ESTATE);
    shoal_scope_release(0);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("autograd/corners");
    TCase *tc = tcase_create("corners");
    tcase_set_timeout(tc, SH_TEST_SECONDS);
    tcase_add_checked_fixture(tc, sh_leaks_begin, sh_leaks_end);
    tcase_add_test(tc, clamp_of_integers);
    tcase_add_test(tc, in_place_backward);
    tcase_add_test(tc, division_by_zero);
    tcase_add_test(tc, fractions_for_integers);
    tcase_add_test(tc, bytes_of_bools);
    tcase_add_test(tc, infinite_logits);
    tcase_add_test(tc, skipped_rows);
    tcase_add_test(tc, gradient_of_a_copy);
    tcase_add_test(tc, indices);
    tcase_add_test(tc, another_view_was_changed);
    suite_add_tcase(s, tc);
    return s;
}

SH_TEST_MAIN(suite)
