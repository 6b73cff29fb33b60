/* Compares every op's backward with finite differences, in f64, for random sizes and for inputs that are transposed,
 * sliced and repeated views. The gradients must be the same if only one input needs one, after two passes, and with a
 * hook on each input. */
#include "autograd/cases_test.h"
#include "tests/harness/numbers.h"

enum {
    ROUNDS = SH_SLOW ? 2 : 4,
    PROBES = 10, /* elements tested in each input */
};

static double loss_value(int number, const case_inputs *made)
{
    size_t mark = shoal_scope_mark();
    shoal_no_grad_begin();
    double value = item_of(case_loss(number, made, NULL));
    shoal_no_grad_end();
    shoal_scope_release(mark);
    return value;
}

static void backward(int number, const case_inputs *made)
{
    size_t mark = shoal_scope_mark();
    shoal_err err = shoal_backward(case_loss(number, made, NULL));
    ck_assert_msg(err == SHOAL_OK, "%s: %s", cases[number].call, shoal_last_error_text());
    shoal_scope_release(mark);
    ck_assert_uint_eq(shoal_scope_mark(), mark);
}

static double grad_at(const case_inputs *made, int input, int64_t at)
{
    const shoal_tensor *grad = shoal_tensor_grad(made->leaf[input]);
    ck_assert_ptr_nonnull(grad);
    ck_assert(grad->contiguous);
    return ((const double *)sh_tensor_ptr(grad))[at];
}

static void expect_close(int number, const char *what, int input, int64_t at, double got, double wanted, double limit)
{
    ck_assert_msg(fabs(got - wanted) <= limit * (1 + fabs(wanted)), "%s: %s, input %d at %lld: %.12g, not %.12g",
                  cases[number].call, what, input, (long long)at, got, wanted);
}

static void differences(int number, const case_inputs *made, uint64_t *seed)
{
    const double step = 1e-5;
    for (int i = 0; i < made->count; i++) {
        const shoal_tensor *leaf = made->leaf[i];
        if (!leaf->requires_grad || leaf->count == 0) {
            continue;
        }
        double *data = sh_tensor_ptr(leaf);
        for (int probe = 0; probe < PROBES; probe++) {
            int64_t at = between(seed, 0, leaf->count - 1);
            double before = data[at];
            data[at] = before + step;
            double up = loss_value(number, made);
            data[at] = before - step;
            double down = loss_value(number, made);
            data[at] = before;
            expect_close(number, "by differences", i, at, grad_at(made, i, at), (up - down) / (2 * step), 1e-6);
        }
    }
}

static shoal_tensor *same(shoal_tensor *grad, void *calls)
{
    ++*(int *)calls;
    return grad;
}

/* The gradients in `again` must be `times` those in `made`. */
static void compare(int number, const char *what, const case_inputs *made, const case_inputs *again, double times)
{
    for (int i = 0; i < made->count; i++) {
        for (int64_t at = 0; again->leaf[i]->requires_grad && at < made->leaf[i]->count; at++) {
            expect_close(number, what, i, at, grad_at(again, i, at), times * grad_at(made, i, at), 1e-12);
        }
    }
}

static void other_ways(int number, const case_inputs *made, layout how, uint64_t seed)
{
    case_inputs twice = case_make(&cases[number], &sh_device_cpu, SHOAL_F64, how, seed);
    backward(number, &twice);
    backward(number, &twice);
    compare(number, "two backwards", made, &twice, 2);
    for (int i = 0; i < twice.count; i++) { /* a stale grad counts as zeros */
        twice.leaf[i]->grad_is_zero = twice.leaf[i]->grad != NULL;
    }
    backward(number, &twice);
    compare(number, "over a grad that counts as zeros", made, &twice, 1);
    case_release(&twice);

    case_inputs hooked = case_make(&cases[number], &sh_device_cpu, SHOAL_F64, how, seed);
    int calls = 0, needed = 0;
    for (int i = 0; i < hooked.count; i++) {
        if (hooked.leaf[i]->requires_grad) {
            ck_assert_ok(shoal_tensor_add_hook(hooked.leaf[i], same, &calls, NULL));
            needed++;
        }
    }
    backward(number, &hooked);
    ck_assert_msg(calls == needed, "%s: %d hooks ran, not %d", cases[number].call, calls, needed);
    compare(number, "with hooks", made, &hooked, 1);
    case_release(&hooked);

    for (int only = 0; only < made->count; only++) {
        if (!made->leaf[only]->requires_grad) {
            continue;
        }
        case_inputs one = case_make(&cases[number], &sh_device_cpu, SHOAL_F64, how, seed);
        for (int i = 0; i < one.count; i++) {
            ck_assert_ok(shoal_tensor_set_requires_grad(one.leaf[i], i == only));
        }
        backward(number, &one);
        compare(number, "alone", made, &one, 1);
        for (int i = 0; i < one.count; i++) {
            ck_assert(i == only || shoal_tensor_grad(one.leaf[i]) == NULL);
        }
        case_release(&one);
    }
}

START_TEST(gradients)
{
    uint64_t probes = 5;
    for (int round = 0; round < ROUNDS; round++) {
        for (layout how = LAYOUT_PLAIN; how < LAYOUTS; how++) {
            uint64_t seed = (uint64_t)(1000 * round + 10 * _i + 1);
            case_inputs made = case_make(&cases[_i], &sh_device_cpu, SHOAL_F64, how, seed);
            backward(_i, &made);
            differences(_i, &made, &probes);
            other_ways(_i, &made, how, seed);
            case_release(&made);
        }
    }
}
END_TEST

START_TEST(every_op_has_a_case)
{
    for (const sh_op *const *op = sh_ops; *op; op++) {
        /* conversions are too coarse for differences, see below; tests/cuda/tensors.c has the other device */
        bool found = !(*op)->backward || *op == &sh_op_to || *op == &sh_op_tensor_to;
        for (int i = 0; i < CASES; i++) {
            found |= strcmp(cases[i].op, (*op)->name) == 0;
        }
        ck_assert_msg(found, "%s has a backward but no case", (*op)->name);
    }
}
END_TEST

START_TEST(conversion)
{
    shoal_tensor *t = shoal_uniform_(shoal_empty(SHOAL_F64, SHOAL_SHAPE(2, 3)), -1, 1);
    ck_assert_ok(shoal_tensor_set_requires_grad(t, true));
    shoal_tensor *w = shoal_arange(SHOAL_F32, 1, 7, 1);
    shoal_tensor *narrow = shoal_to_dtype(shoal_transpose(t, 0, 1), SHOAL_F32);
    ck_assert_int_eq(shoal_tensor_dtype(narrow), SHOAL_F32);
    ck_assert_ok(shoal_backward(shoal_sum(shoal_mul(narrow, shoal_view(w, SHOAL_SHAPE(3, 2))), SHOAL_ALL_DIMS, false)));
    shoal_tensor *grad = shoal_tensor_grad(t);
    ck_assert_int_eq(shoal_tensor_dtype(grad), SHOAL_F64);
    for (int i = 0; i < 2; i++) {
        for (int j = 0; j < 3; j++) {
            ck_assert(item_at(grad, SHOAL_SHAPE(i, j)) == 2 * j + i + 1);
        }
    }
    ck_assert(!shoal_tensor_requires_grad(shoal_to_dtype(t, SHOAL_I64)));
    shoal_tensor_release(t);
    shoal_tensor_release(w);
    shoal_scope_release(0);
}
END_TEST

/* prod of elements with zeros, which the random inputs of the table do not have. */
START_TEST(prod_with_zeros)
{
    const double data[] = {0, 2, 3, 0, 5, 0, 1, 2, 4};
    const double wanted[] = {6, 0, 0, 0, 0, 0, 8, 4, 2};
    shoal_tensor *t = shoal_from_data(SHOAL_F64, data, SHOAL_SHAPE(3, 3));
    ck_assert_ok(shoal_tensor_set_requires_grad(t, true));
    ck_assert_ok(shoal_backward(shoal_sum(shoal_prod(t, 1, false), SHOAL_ALL_DIMS, false)));
    shoal_tensor *w = shoal_from_data(SHOAL_F64, wanted, SHOAL_SHAPE(3, 3));
    ck_assert(shoal_tensor_close(shoal_tensor_grad(t), w, 1e-12, 0));
    shoal_tensor_release(t);
    shoal_tensor_release(w);
    shoal_scope_release(0);
}
END_TEST

/* Targets of -100 are ignored. */
START_TEST(ignored_targets)
{
    const int64_t classes[] = {1, -100, 0, -100};
    shoal_tensor *t = shoal_from_data(SHOAL_I64, classes, SHOAL_SHAPE(4));
    shoal_tensor *x = shoal_uniform_(shoal_empty(SHOAL_F64, SHOAL_SHAPE(4, 3)), -1, 1);
    ck_assert_ok(shoal_tensor_set_requires_grad(x, true));
    shoal_tensor *whole = shoal_cross_entropy(x, t);
    shoal_tensor *chain = shoal_nll_loss(shoal_log_softmax(x, 1), t);
    ck_assert(shoal_tensor_close(whole, chain, 1e-12, 0));
    ck_assert_ok(shoal_backward(whole));
    const double *grad = shoal_tensor_data(shoal_tensor_grad(x));
    for (int i = 0; i < 3; i++) {
        ck_assert(grad[3 + i] == 0 && grad[9 + i] == 0 && grad[i] != 0);
    }
    const double before = grad[0];
    ck_assert_ok(shoal_backward(chain));
    ck_assert(fabs(((const double *)shoal_tensor_data(shoal_tensor_grad(x)))[0] - 2 * before) < 1e-12);
    shoal_tensor_release(t);
    shoal_tensor_release(x);
    shoal_scope_release(0);
}
END_TEST

/* linear without outputs has nothing to compute: the gradient must be zeros, not uninitialised memory. */
START_TEST(linear_without_outputs)
{
    shoal_tensor *x = shoal_ones(SHOAL_F64, SHOAL_SHAPE(3, 4)), *w = shoal_ones(SHOAL_F64, SHOAL_SHAPE(0, 4));
    ck_assert_ok(shoal_tensor_set_requires_grad(x, true));
    shoal_tensor_release(shoal_full(SHOAL_F64, 7, SHOAL_SHAPE(3, 4)));
    ck_assert_ok(shoal_backward(shoal_sum(shoal_linear(x, w, NULL), SHOAL_ALL_DIMS, false)));
    shoal_tensor *zeros = shoal_zeros_like(x);
    ck_assert(shoal_tensor_equal(shoal_tensor_grad(x), zeros));
    shoal_tensor_release(zeros);
    shoal_tensor_release(x);
    shoal_tensor_release(w);
    shoal_scope_release(0);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("autograd/gradient");
    TCase *tc = tcase_create("gradient");
    tcase_set_timeout(tc, SH_TEST_SECONDS);
    tcase_add_checked_fixture(tc, sh_leaks_begin, sh_leaks_end);
    tcase_add_test(tc, every_op_has_a_case);
    tcase_add_loop_test(tc, gradients, 0, CASES);
    tcase_add_test(tc, conversion);
    tcase_add_test(tc, prod_with_zeros);
    tcase_add_test(tc, ignored_targets);
    tcase_add_test(tc, linear_without_outputs);
    suite_add_tcase(s, tc);
    return s;
}

SH_TEST_MAIN(suite)
