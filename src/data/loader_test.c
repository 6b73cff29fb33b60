/* Loaders without workers: order, epochs, seek, reuse of tensors, and the scope. */
#include "data/loader_test.h"
#include "tests/harness/numbers.h"

#include <malloc.h>
#include <sys/wait.h>
#include <unistd.h>

#define N 103

START_TEST(in_order)
{
    int64_t numbers[N];
    shoal_dataset *set = counting(N);
    shoal_loader *loader = shoal_loader_create(set, .batch = 10);
    shoal_dataset_release(set);
    ck_assert_int_eq(shoal_loader_batches(loader), 11);
    for (int epoch = 0; epoch < 3; epoch++) {
        ck_assert_int_eq(shoal_loader_epoch(loader), epoch);
        ck_assert_int_eq(one_epoch(loader, numbers), N);
        for (int i = 0; i < N; i++) {
            ck_assert_int_eq(numbers[i], i);
        }
    }
    shoal_loader_destroy(loader);
}
END_TEST

START_TEST(shuffled)
{
    int64_t first[N], second[N], again[N];
    shoal_dataset *set = counting(N);
    shoal_loader *a = shoal_loader_create(set, .batch = 7, .shuffle = true, .seed = 3);
    shoal_loader *b = shoal_loader_create(set, .batch = 50, .shuffle = true, .seed = 3);
    shoal_loader *c = shoal_loader_create(set, .batch = 7, .shuffle = true, .seed = 4);
    ck_assert_int_eq(one_epoch(a, first), N);
    ck_assert_int_eq(one_epoch(a, second), N);
    assert_each_once(first, N);
    assert_each_once(second, N);
    ck_assert_mem_ne(first, second, sizeof first);
    ck_assert_int_eq(one_epoch(b, again), N); /* the order does not depend on the batches */
    ck_assert_mem_eq(first, again, sizeof first);
    ck_assert_int_eq(one_epoch(c, again), N);
    ck_assert_mem_ne(first, again, sizeof first);

    ck_assert_ok(shoal_loader_seek(b, 1, 0));
    ck_assert_int_eq(one_epoch(b, again), N);
    ck_assert_mem_eq(second, again, sizeof first);
    shoal_loader_destroy(a);
    shoal_loader_destroy(b);
    shoal_loader_destroy(c);
    shoal_dataset_release(set);
}
END_TEST

START_TEST(drop_last)
{
    int64_t numbers[N];
    shoal_dataset *set = counting(N);
    shoal_loader *loader = shoal_loader_create(set, .batch = 10, .drop_last = true);
    ck_assert_int_eq(shoal_loader_batches(loader), 10);
    ck_assert_int_eq(one_epoch(loader, numbers), 100);
    shoal_loader_destroy(loader);
    loader = shoal_loader_create(set, .batch = 200, .drop_last = true);
    ck_assert_int_eq(shoal_loader_batches(loader), 0);
    ck_assert_int_eq(one_epoch(loader, numbers), 0);
    ck_assert_int_eq(one_epoch(loader, numbers), 0);
    ck_assert_int_eq(shoal_loader_epoch(loader), 2);
    shoal_loader_destroy(loader);
    loader = shoal_loader_create(set); /* batches of 1 */
    ck_assert_int_eq(shoal_loader_batches(loader), N);
    shoal_loader_destroy(loader);
    shoal_dataset_release(set);
}
END_TEST

START_TEST(some_samples)
{
    int64_t numbers[N], order[] = {5, 3, 99, 3};
    shoal_dataset *set = counting(N);
    shoal_loader *loader = shoal_loader_create(set, .batch = 3, .order = order, .order_count = 4);
    order[0] = 0; /* the loader has a copy */
    ck_assert_int_eq(one_epoch(loader, numbers), 4);
    ck_assert_mem_eq(numbers, ((int64_t[]){5, 3, 99, 3}), 4 * sizeof *numbers);
    shoal_loader_destroy(loader);

    loader = shoal_loader_create(set, .batch = 3, .order = order, .order_count = 4, .shuffle = true);
    ck_assert_int_eq(one_epoch(loader, numbers), 4);
    ck_assert_int_eq(numbers[0] + numbers[1] + numbers[2] + numbers[3], 0 + 3 + 99 + 3);
    shoal_loader_destroy(loader);
    order[1] = N;
    ck_assert_ptr_null(shoal_loader_create(set, .order = order, .order_count = 4));
    ck_assert_int_eq(shoal_last_error(), SHOAL_EINVAL);
    ck_assert_ptr_null(shoal_loader_create(set, .batch = -1));
    ck_assert_ptr_null(shoal_loader_create(set, .workers = -1));
    ck_assert_ptr_null(shoal_loader_create(NULL, .batch = 1));
    shoal_dataset_release(set);
}
END_TEST

START_TEST(seek)
{
    int64_t whole[2 * N], rest[2 * N];
    shoal_dataset *set = counting(N);
    shoal_loader *a = shoal_loader_create(set, .batch = 10, .shuffle = true, .seed = 1);
    shoal_loader *b = shoal_loader_create(set, .batch = 10, .shuffle = true, .seed = 1);
    int64_t n = one_epoch(a, whole), left = 0;
    n += one_epoch(a, whole + n);
    ck_assert_ok(shoal_loader_seek(b, 1, 4));
    for (shoal_batch batch; shoal_loader_next(b, &batch) == SHOAL_OK;) {
        ck_assert_int_eq(batch.index, 4 + left / 10);
        left += numbers_of(&batch, rest + left);
    }
    ck_assert_int_eq(left, N - 40);
    ck_assert_mem_eq(rest, whole + N + 40, (size_t)left * sizeof *rest);
    shoal_batch none;
    ck_assert_ok(shoal_loader_seek(b, 0, 11)); /* the end is a valid position too */
    ck_assert_int_eq(shoal_loader_next(b, &none), SHOAL_END);
    ck_assert_int_eq(shoal_loader_epoch(b), 1);
    ck_assert_err(shoal_loader_seek(b, 0, 12), SHOAL_EINVAL);
    ck_assert_err(shoal_loader_seek(b, -1, 0), SHOAL_EINVAL);
    shoal_loader_destroy(a);
    shoal_loader_destroy(b);
    shoal_dataset_release(set);
}
END_TEST

/* The same tensors come again and again, unless somebody holds one of them or a view of one. */
START_TEST(used_again)
{
    int64_t numbers[N];
    shoal_batch b;
    shoal_dataset *set = counting(N);
    shoal_loader *loader = shoal_loader_create(set, .batch = 10);
    ck_assert(shoal_loader_next(loader, &b) == SHOAL_OK);
    const shoal_tensor *first = b.x;
    ck_assert(shoal_loader_next(loader, &b) == SHOAL_OK);
    ck_assert_ptr_eq(b.x, first);

    shoal_tensor *kept = shoal_tensor_retain(b.x);
    ck_assert(shoal_loader_next(loader, &b) == SHOAL_OK);
    ck_assert_ptr_ne(b.x, kept);
    shoal_tensor *view = shoal_tensor_retain(shoal_narrow(b.y, 0, 0, 2));
    ck_assert(shoal_loader_next(loader, &b) == SHOAL_OK);
    ck_assert_double_eq(item_at(kept, SHOAL_SHAPE(9, 0)), 19);
    ck_assert_double_eq(item_at(view, SHOAL_SHAPE(1)), 21);
    ck_assert_int_eq(numbers_of(&b, numbers), 10);
    ck_assert_int_eq(numbers[0], 30);

    ck_assert_ok(shoal_loader_seek(loader, 0, 10)); /* the short batch is a view of the others */
    ck_assert(shoal_loader_next(loader, &b) == SHOAL_OK);
    ck_assert_int_eq(b.count, 3);
    shoal_tensor *tail = shoal_tensor_retain(b.x);
    ck_assert_int_eq(shoal_loader_next(loader, &b), SHOAL_END);
    ck_assert(shoal_loader_next(loader, &b) == SHOAL_OK);
    ck_assert_double_eq(item_at(tail, SHOAL_SHAPE(2, 0)), 102);
    ck_assert_uint_ne(shoal_tensor_storage_id(tail), shoal_tensor_storage_id(b.x));
    shoal_loader_destroy(loader);
    ck_assert_double_eq(item_at(tail, SHOAL_SHAPE(1, 1)), -101);
    shoal_tensor_release(tail);
    shoal_tensor_release(view);
    shoal_tensor_release(kept);
    shoal_dataset_release(set);
}
END_TEST

START_TEST(allocates_nothing)
{
    int64_t numbers[N];
    shoal_dataset *set = counting(N);
    shoal_loader *loader = shoal_loader_create(set, .batch = 10, .shuffle = true);
    (void)!one_epoch(loader, numbers);
    (void)!one_epoch(loader, numbers);
    struct mallinfo2 before = mallinfo2();
    for (int epoch = 0; epoch < 20; epoch++) {
        (void)!one_epoch(loader, numbers);
    }
    struct mallinfo2 after = mallinfo2();
    ck_assert_uint_eq(after.uordblks, before.uordblks);
    shoal_loader_destroy(loader);
    shoal_dataset_release(set);
}
END_TEST

START_TEST(scope_of_a_step)
{
    shoal_batch b;
    shoal_dataset *set = counting(N);
    shoal_loader *loader = shoal_loader_create(set, .batch = 10);
    shoal_tensor *before = shoal_narrow(shoal_scoped(shoal_ones(SHOAL_F32, SHOAL_SHAPE(4))), 0, 0, 2);
    size_t base = shoal_scope_mark();
    for (int step = 0; step < 5 && shoal_loader_next(loader, &b) == SHOAL_OK; step++) {
        ck_assert_uint_eq(shoal_scope_mark(),
                          base); /* the last step's tensors are gone, those from before the loop are not */
        ck_assert_ptr_nonnull(shoal_narrow(b.x, 0, 0, 1));
        ck_assert_ptr_nonnull(shoal_narrow(b.x, 0, 1, 1));
    }
    ck_assert_uint_eq(shoal_scope_mark(), base + 2);
    shoal_loader_destroy(loader); /* releases nothing: the caller may need the last step's result */
    ck_assert_uint_eq(shoal_scope_mark(), base + 2);
    ck_assert_double_eq(item_at(before, SHOAL_SHAPE(1)), 1);
    shoal_dataset_release(set);
    shoal_scope_release(0);
}
END_TEST

START_TEST(nested_loops)
{
    shoal_batch a, b;
    shoal_dataset *set = counting(20);
    shoal_loader *outer = shoal_loader_create(set, .batch = 5), *inner = shoal_loader_create(set, .batch = 10);
    size_t base = shoal_scope_mark();
    while (shoal_loader_next(outer, &a) == SHOAL_OK) {
        ck_assert_uint_eq(shoal_scope_mark(), base);
        shoal_tensor *kept = shoal_narrow(a.x, 0, 0, 1); /* of the outer step: inner steps do not release it */
        while (shoal_loader_next(inner, &b) == SHOAL_OK) {
            ck_assert_uint_eq(shoal_scope_mark(), base + 1);
            ck_assert_ptr_nonnull(shoal_narrow(b.x, 0, 0, 1));
            if (a.index % 2 == 0) {
                break; /* leaves this loop, which continues in the next step */
            }
        }
        ck_assert_int_eq((int)item_at(kept, SHOAL_SHAPE(0, 0)), (int)a.index * 5);
    }
    ck_assert_uint_eq(shoal_scope_mark(), base);
    shoal_loader_destroy(inner);
    shoal_loader_destroy(outer);
    shoal_dataset_release(set);
    shoal_scope_release(0);
}
END_TEST

/* Two loaders side by side: what was computed from the first one's batch is still there after the second one's next. */
START_TEST(side_by_side)
{
    shoal_batch a, b;
    shoal_dataset *set = counting(20);
    shoal_loader *one = shoal_loader_create(set, .batch = 5), *two = shoal_loader_create(set, .batch = 5);
    size_t base = shoal_scope_mark();
    for (int step = 0; step < 4; step++) {
        ck_assert(shoal_loader_next(one, &a) == SHOAL_OK);
        ck_assert_uint_eq(shoal_scope_mark(), base);
        shoal_tensor *of_one = shoal_narrow(a.x, 0, 0, 1);
        ck_assert(shoal_loader_next(two, &b) == SHOAL_OK);
        ck_assert_int_eq((int)item_at(of_one, SHOAL_SHAPE(0, 0)), 5 * step);
        ck_assert_uint_eq(shoal_scope_mark(), base + 1);
    }
    shoal_loader_destroy(one);
    shoal_loader_destroy(two);
    shoal_dataset_release(set);
    shoal_scope_release(0);
}
END_TEST

static shoal_err fails_at_42(void *state, const int64_t *numbers, int64_t count, shoal_tensor *x, shoal_tensor *y)
{
    (void)state;
    for (int64_t i = 0; i < count; i++) {
        if (numbers[i] == 42) {
            return shoal_fail(SHOAL_ESTATE, "sample 42 is gone");
        }
        ((float *)shoal_tensor_data(x))[2 * i] = (float)numbers[i];
        ((float *)shoal_tensor_data(x))[2 * i + 1] = -(float)numbers[i];
        ((int64_t *)shoal_tensor_data(y))[i] = numbers[i];
    }
    return SHOAL_OK;
}

START_TEST(fetch_fails)
{
    shoal_batch b;
    int64_t numbers[N];
    shoal_dataset *set = shoal_dataset_create(
        &(shoal_dataset_type){
            .name = "own", .length = 60, .x_ndim = 1, .x_shape = {2}, .y_dtype = SHOAL_I64, .fetch = fails_at_42},
        NULL);
    shoal_loader *loader = shoal_loader_create(set, .batch = 10);
    for (int i = 0; i < 4; i++) {
        ck_assert(shoal_loader_next(loader, &b) == SHOAL_OK);
    }
    ck_assert_err(shoal_loader_next(loader, &b), SHOAL_ESTATE);
    ck_assert_str_eq(shoal_last_error_text(), "sample 42 is gone");
    ck_assert_err(shoal_loader_next(loader, &b), SHOAL_ESTATE);
    ck_assert_str_eq(shoal_last_error_text(),
                     "the loader stopped at batch 4 of epoch 0 (SHOAL_ESTATE: sample 42 is gone): "
                     "call shoal_loader_seek to continue");
    ck_assert_int_eq(shoal_loader_epoch(loader), 0);
    ck_assert_ok(shoal_loader_seek(loader, 0, 5)); /* after the bad sample */
    ck_assert(shoal_loader_next(loader, &b) == SHOAL_OK);
    ck_assert_int_eq(numbers_of(&b, numbers), 10);
    ck_assert_int_eq(numbers[9], 59);
    shoal_loader_destroy(loader);
    ck_assert_ptr_null(shoal_loader_create(set, .batch = 10, .workers = 1)); /* it cannot be sent to a worker */
    ck_assert_int_eq(shoal_last_error(), SHOAL_EINVAL);
    shoal_dataset_release(set);
}
END_TEST

/* The end of an epoch is not a failure: next returns SHOAL_END and does not change the last error. */
START_TEST(end_of_an_epoch)
{
    shoal_batch b = {0};
    shoal_dataset *set = counting(20);
    shoal_loader *loader = shoal_loader_create(set, .batch = 10);
    (void)shoal_fail(SHOAL_ELIMIT, "an earlier failure");
    for (int epoch = 0; epoch < 2; epoch++) {
        ck_assert_int_eq(shoal_loader_next(loader, &b), SHOAL_OK);
        ck_assert_int_eq(shoal_loader_next(loader, &b), SHOAL_OK);
        ck_assert_int_eq(shoal_loader_next(loader, &b), SHOAL_END);
        ck_assert_int_eq(b.index, 1); /* untouched */
    }
    ck_assert_int_eq(shoal_last_error(), SHOAL_ELIMIT);
    ck_assert_str_eq(shoal_last_error_text(), "an earlier failure");
    shoal_loader_destroy(loader);
    shoal_dataset_release(set);
}
END_TEST

/* If the data set could not be opened, the loader reports that error. */
START_TEST(of_no_set)
{
    shoal_batch b;
    ck_assert_ptr_null(shoal_mnist_at("/nowhere", SHOAL_PART_TEST));
    shoal_err first = shoal_last_error();
    char text[512];
    snprintf(text, sizeof text, "%s", shoal_last_error_text());
    ck_assert_ptr_null(shoal_loader_create(NULL, .batch = 10));
    ck_assert_int_eq(shoal_last_error(), first);
    ck_assert_str_eq(shoal_last_error_text(), text);
    ck_assert_err(shoal_loader_next(NULL, &b), SHOAL_EINVAL); /* a separate code, and the reason */
    ck_assert(strstr(shoal_last_error_text(), "shoal_loader_next: loader is NULL, after SHOAL_ENOENT: ") != NULL);
    ck_assert(strstr(shoal_last_error_text(), text) != NULL);
    ck_assert_err(shoal_loader_seek(NULL, 0, 0), SHOAL_EINVAL);
    ck_assert(strstr(shoal_last_error_text(), text) != NULL);
}
END_TEST

#ifdef __SANITIZE_ADDRESS__
#define SANITIZED 1
#else
#define SANITIZED 0
#endif

/* A sum over batches that nobody retained. The next batch released it: this is an error in a release build, a report of
 * AddressSanitizer in a sanitized one, and never a silent read. */
START_TEST(a_sum_over_batches_is_refused)
{
    shoal_dataset *set = counting(20);
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        (void)!freopen("/dev/null", "w", stderr);
        shoal_loader *loader = shoal_loader_create(set, .batch = 5);
        shoal_tensor *total = shoal_scoped(shoal_zeros(SHOAL_F32, SHOAL_SCALAR));
        shoal_batch b;
        while (total && shoal_loader_next(loader, &b) == SHOAL_OK) {
            total = shoal_add(total, shoal_sum(b.x, SHOAL_ALL_DIMS, false));
        }
        _exit(total ? 0 : shoal_last_error() == SHOAL_ESTATE && strstr(shoal_last_error_text(), "retain") ? 3 : 4);
    }
    int status = 0;
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert_msg(SANITIZED ? WIFSIGNALED(status) || WEXITSTATUS(status) != 0 : WEXITSTATUS(status) == 3, "status %d",
                  status);
    shoal_dataset_release(set);
}
END_TEST

/* For N2: the loss of the batch before. */
START_TEST(a_loss_read_after_the_next_batch_is_refused)
{
    if (SANITIZED) {
        return; /* AddressSanitizer reports it: see above */
    }
    shoal_dataset *set = counting(20);
    shoal_loader *loader = shoal_loader_create(set, .batch = 5);
    shoal_batch b;
    ck_assert_err(shoal_loader_next(loader, &b), SHOAL_OK);
    shoal_tensor *loss = shoal_sum(shoal_square(b.x), SHOAL_ALL_DIMS, false);
    ck_assert_err(shoal_loader_next(loader, &b), SHOAL_OK);
    double number = 7;
    ck_assert_err(shoal_item(loss, &number), SHOAL_ESTATE);
    ck_assert(strstr(shoal_last_error_text(), "shoal_item: the tensor was released") != NULL);
    ck_assert(strstr(shoal_last_error_text(), "a loader's next batch") != NULL);
    ck_assert(number == 7);
    ck_assert_ptr_null(shoal_tensor_retain(loss));
    ck_assert_err(shoal_last_error(), SHOAL_ESTATE);
    shoal_loader_destroy(loader);
    shoal_dataset_release(set);
}
END_TEST

static void count_warnings(const char *line, void *context)
{
    *(int *)context += strstr(line, "shoal_scope_release") != NULL;
}

/* A thread that never releases gets one warning that says what to call. */
START_TEST(results_that_pile_up_give_a_warning)
{
    int warnings = 0;
    shoal_set_log(count_warnings, &warnings);
    shoal_tensor *big = shoal_empty(SHOAL_U8, SHOAL_SHAPE((int64_t)1 << 22));
    for (int i = 0; i < 1100; i++) {
        ck_assert_ptr_nonnull(shoal_narrow(big, 0, 0, 1)); /* a view counts as much as its storage */
        ck_assert_int_eq(warnings, i >= 256);
    }
    shoal_set_log(NULL, NULL);
    shoal_tensor_release(big);
    shoal_scope_release(0);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("loader");
    TCase *tc = methods_case("loader");
    tcase_add_test(tc, in_order);
    tcase_add_test(tc, shuffled);
    tcase_add_test(tc, drop_last);
    tcase_add_test(tc, some_samples);
    tcase_add_test(tc, seek);
    tcase_add_test(tc, used_again);
    tcase_add_test(tc, allocates_nothing);
    tcase_add_test(tc, scope_of_a_step);
    tcase_add_test(tc, nested_loops);
    tcase_add_test(tc, side_by_side);
    tcase_add_test(tc, fetch_fails);
    tcase_add_test(tc, end_of_an_epoch);
    tcase_add_test(tc, of_no_set);
    tcase_add_test(tc, a_sum_over_batches_is_refused);
    tcase_add_test(tc, a_loss_read_after_the_next_batch_is_refused);
    tcase_add_test(tc, results_that_pile_up_give_a_warning);
    suite_add_tcase(s, tc);
    return s;
}

SH_TEST_MAIN(suite)
