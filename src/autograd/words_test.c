/* Error texts of ops for wrong inputs, and that the first error passes through an expression. */
#include "tests/harness/runner.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static void end(shoal_tensor *a, shoal_tensor *b)
{
    shoal_tensor_release(a);
    shoal_tensor_release(b);
    shoal_scope_release(0);
}

START_TEST(null_passes)
{
    ck_assert_err(shoal_backward(NULL), SHOAL_EINVAL);
    shoal_tensor *a = shoal_ones(SHOAL_F32, SHOAL_SHAPE(2, 3)), *b = shoal_ones(SHOAL_F32, SHOAL_SHAPE(4, 5));
    shoal_tensor *bad = shoal_matmul(a, b);
    ck_assert_ptr_null(bad);
    char first_text[200];
    (void)snprintf(first_text, sizeof first_text, "%s", shoal_last_error_text());
    ck_assert_ptr_nonnull(strstr(first_text, "f32 [2, 3]"));
    ck_assert_ptr_nonnull(strstr(first_text, "f32 [4, 5]"));
    shoal_tensor *h, *c;
    shoal_tensor *chain =
        shoal_relu(shoal_add(shoal_linear(bad, a, NULL), shoal_softmax(shoal_reshape(bad, SHOAL_SHAPE(1)), 0)));
    ck_assert_ptr_null(chain);
    ck_assert_ptr_null(shoal_mse_loss(bad, a, SHOAL_REDUCTION_MEAN));
    ck_assert_ptr_null(shoal_conv2d(bad, a, NULL, NULL));
    ck_assert_ptr_null(shoal_dropout(bad, 0.5));
    ck_assert_ptr_null(shoal_add_(bad, a));
    ck_assert_ptr_null(shoal_cat((shoal_tensor *[]){a, bad}, 2, 0));
    ck_assert_str_eq(shoal_last_error_text(), first_text); /* the first error stays */
    char own_text[300];
    ck_assert_err(shoal_lstm_cell(a, bad, bad, a, a, NULL, NULL, &h, &c), SHOAL_EINVAL);
    (void)snprintf(own_text, sizeof own_text, "shoal_lstm_cell: h is NULL, after SHOAL_EINVAL: %s", first_text);
    ck_assert_str_eq(shoal_last_error_text(), own_text); /* a new error, whose text ends with the first */
    ck_assert_err(shoal_backward(chain), SHOAL_EINVAL);
    (void)snprintf(own_text, sizeof own_text, "shoal_backward: t is NULL, after SHOAL_EINVAL: %s", first_text);
    ck_assert_str_eq(shoal_last_error_text(), own_text);
    end(a, b);
}
END_TEST

/* Error texts of ops for wrong inputs. */
START_TEST(words)
{
    shoal_tensor *a = shoal_ones(SHOAL_F32, SHOAL_SHAPE(2, 3)), *img = shoal_ones(SHOAL_F32, SHOAL_SHAPE(1, 2, 5, 5));
    shoal_tensor *w = shoal_scoped(shoal_ones(SHOAL_F32, SHOAL_SHAPE(4, 2, 3, 3)));
    shoal_tensor *f64 = shoal_to_dtype(a, SHOAL_F64), *half = shoal_to_dtype(a, SHOAL_BF16);
    shoal_tensor *i = shoal_to_dtype(a, SHOAL_I64);
    int64_t far[] = {0, 7};
    shoal_tensor *index = shoal_scoped(shoal_from_data(SHOAL_I64, far, SHOAL_SHAPE(2)));
#define REFUSED(call, err, words)                                                                                      \
    do {                                                                                                               \
        ck_assert_ptr_null(call);                                                                                      \
        ck_assert_msg(shoal_last_error() == (err) && strstr(shoal_last_error_text(), words), "%s: %s: %s", #call,      \
                      shoal_err_name(shoal_last_error()), shoal_last_error_text());                                    \
    } while (0)
    REFUSED(shoal_add(a, f64), SHOAL_ETYPE, "f64 [2, 3]");
    REFUSED(shoal_add(half, half), SHOAL_ETYPE, "bf16");
    REFUSED(shoal_exp(i), SHOAL_ETYPE, "i64");
    REFUSED(shoal_add(a, img), SHOAL_EINVAL, "[1, 2, 5, 5]");
    REFUSED(shoal_sum(a, 2, false), SHOAL_EINVAL, "dim 2");
    REFUSED(shoal_conv2d(a, w, NULL, NULL), SHOAL_EINVAL, "x f32 [2, 3]");
    REFUSED(shoal_conv2d(img, w, a, NULL), SHOAL_EINVAL, "b f32 [2, 3]");
    REFUSED(shoal_conv2d(img, w, NULL, &(shoal_conv2d_options){.groups = 3}), SHOAL_EINVAL, "groups 3");
    REFUSED(shoal_conv2d(img, w, NULL, &(shoal_conv2d_options){.stride = {-1, 1}}), SHOAL_EINVAL, "stride -1");
    REFUSED(shoal_conv2d(img, w, NULL, &(shoal_conv2d_options){.dilation = {3, 3}, .stride = {9, 9}}), SHOAL_EINVAL,
            "larger than the padded image");
    REFUSED(shoal_conv2d_pool_relu(img, w, NULL, 0, 1.5), SHOAL_EINVAL, "p is 1.5");
    REFUSED(shoal_conv2d_pool_relu(img, w, NULL, -1, 0), SHOAL_EINVAL, "padding -1");
    REFUSED(shoal_max_pool2d_with(img, &(shoal_pool2d_options){{6, 6}, {9, 9}, {0, 0}}), SHOAL_EINVAL, "size 6");
    REFUSED(shoal_max_pool2d_with(img, &(shoal_pool2d_options){{2, 2}, {1, 1}, {2, 0}}), SHOAL_EINVAL, "padding 2");
    REFUSED(shoal_avg_pool2d_with(img, NULL), SHOAL_EINVAL, "options is NULL");
    REFUSED(shoal_max_pool2d(img, 6), SHOAL_EINVAL, "size 6");
    REFUSED(shoal_avg_pool2d(img, 0), SHOAL_EINVAL, "size 0");
    REFUSED(shoal_softmax(a, 5), SHOAL_EINVAL, "dim 5");
    REFUSED(shoal_log_softmax(i, 0), SHOAL_ETYPE, "i64");
    REFUSED(shoal_nll_loss(a, index), SHOAL_EINVAL, "7");
    REFUSED(shoal_nll_loss(a, a), SHOAL_ETYPE, "f32");
    REFUSED(shoal_cross_entropy(img, index), SHOAL_EINVAL, "i64 [2]");
    REFUSED(shoal_nll_loss_with(a, index, NULL, (shoal_reduction)9), SHOAL_EINVAL, "9");
    REFUSED(shoal_mse_loss(a, img, SHOAL_REDUCTION_MEAN), SHOAL_EINVAL, "f32 [1, 2, 5, 5]");
    REFUSED(shoal_l1_loss(a, a, (shoal_reduction)7), SHOAL_EINVAL, "7");
    REFUSED(shoal_dropout(a, -0.1), SHOAL_EINVAL, "-0.1");
    REFUSED(shoal_dropout(a, NAN), SHOAL_EINVAL, "nan");
    REFUSED(shoal_dropout2d(img, 1.1), SHOAL_EINVAL, "1.1");
    REFUSED(shoal_dropout2d(shoal_flatten(a, 0), 0.5), SHOAL_EINVAL, "f32 [6]");
    REFUSED(shoal_layer_norm(a, img, NULL, 1, 1e-5), SHOAL_EINVAL, "weight f32 [1, 2, 5, 5]");
    REFUSED(shoal_layer_norm(a, NULL, NULL, 3, 1e-5), SHOAL_EINVAL, "last 3 dims");
    REFUSED(shoal_index_select(a, 0, index), SHOAL_EINVAL, "7");
    REFUSED(shoal_expand(shoal_scoped(shoal_ones(SHOAL_F32, SHOAL_SHAPE(1))),
                         SHOAL_SHAPE((int64_t)1 << 40, (int64_t)1 << 40)),
            SHOAL_EINVAL, "expand");
    shoal_tensor *h, *c;
    ck_assert_err(shoal_lstm_cell(a, a, a, a, a, NULL, NULL, &h, &c), SHOAL_EINVAL);
    ck_assert_ptr_nonnull(strstr(shoal_last_error_text(), "w_hh f32 [2, 3]"));
    ck_assert_ptr_eq(shoal_dropout(a, 0), a);
    ck_assert_ptr_eq(shoal_dropout2d(img, 0), img);
    end(a, img);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("autograd/words");
    TCase *tc = tcase_create("words");
    tcase_set_timeout(tc, SH_TEST_SECONDS);
    tcase_add_checked_fixture(tc, sh_leaks_begin, sh_leaks_end);
    tcase_add_test(tc, null_passes);
    tcase_add_test(tc, words);
    suite_add_tcase(s, tc);
    return s;
}

SH_TEST_MAIN(suite)
