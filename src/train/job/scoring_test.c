/* Tests by all workers give the bits of a test by one process, whoever dies. */
#include "base/death.h"
#include "train/job/crew.h"
#include "train/train_test.h"

#include <shoal/ops.h>

#include <signal.h>
#include <stdio.h>

#define TEST 1700 /* four batches, the last one smaller */

/* Trains a little, and compares the job's last test with one in this process. */
static shoal_train_result train(shoal_train_method method, int workers, shoal_start start)
{
    shoal_dataset *samples = part_of(SHOAL_PART_TRAIN, 96), *test = part_of(SHOAL_PART_TEST, TEST);
    shoal_manual_seed(3);
    shoal_module *model = shoal_model_create("logistic");
    shoal_train_options o = {.method = method,
                             .train_set = samples,
                             .test_set = test,
                             .module = model,
                             .workers = workers,
                             .start = start,
                             .epochs = 2,
                             .batch = 16,
                             .lr = 0.05};
    shoal_train_result r;
    double loss, accuracy;
    ck_assert_ok(shoal_train_run(&o, &r));
    ck_assert_ok(shoal_evaluate(model, test, &loss, &accuracy));
    ck_assert_int_eq(r.tested_epoch, 2);
    ck_assert_double_eq(loss, r.test_loss);
    ck_assert_double_eq(accuracy, r.test_accuracy);
    shoal_module_destroy(model);
    shoal_dataset_release(samples);
    shoal_dataset_release(test);
    return r;
}

START_TEST(workers_give_the_bits_of_one)
{
    static const int workers[] = {2, 3, 6}; /* six: two of them have nothing to test */
    ck_assert_int_eq(train(SHOAL_METHOD_SYNC, workers[_i], SHOAL_START_DEFAULT).deaths, 0);
    ck_assert_int_eq(train(SHOAL_METHOD_HOGWILD, workers[_i], SHOAL_START_DEFAULT).deaths, 0);
}
END_TEST

START_TEST(the_confusion_matrix_counts_each_sample_once)
{
    shoal_dataset *test = part_of(SHOAL_PART_TEST, TEST);
    shoal_manual_seed(3);
    shoal_module *model = shoal_model_create("logistic");
    double loss, accuracy, again[2] = {-1, -1};
    int64_t confusion[10][10], all = 0, right = 0;
    ck_assert_ok(shoal_evaluate(model, test, &loss, &accuracy));
    ck_assert_ok(shoal_evaluate_classes(model, test, 10, confusion[0], &again[0], &again[1]));
    ck_assert_double_eq(again[0], loss);
    ck_assert_double_eq(again[1], accuracy);
    for (int i = 0; i < 10; i++) {
        right += confusion[i][i];
        int64_t images = 0;
        for (int j = 0; j < 10; j++) {
            images += confusion[i][j];
        }
        ck_assert_int_gt(images, 0); /* the set has all classes */
        all += images;
    }
    ck_assert_int_eq(all, TEST);
    ck_assert_double_eq((double)right / TEST, accuracy);
    confusion[0][0] = again[0] = -1;
    ck_assert_err(shoal_evaluate_classes(model, test, 5, confusion[0], &again[0], NULL), SHOAL_EINVAL);
    ck_assert_err(shoal_evaluate_classes(model, test, 0, confusion[0], &again[0], NULL), SHOAL_EINVAL);
    ck_assert(confusion[0][0] == -1 && again[0] == -1);
    shoal_module_destroy(model);
    shoal_dataset_release(test);
}
END_TEST

#ifdef SHOAL_DEATH_POINTS
/* Each process dies at its second batch, before its score counts. Forked workers inherit the armed point. */
START_TEST(a_death_repeats_its_batch)
{
    sh_death_arm("train.scored", 2);
    shoal_train_result r = train(SHOAL_METHOD_SYNC, 3, SHOAL_START_FORK);
    sh_death_arm(NULL, 0);
    ck_assert_int_gt(r.deaths, 1);
}
END_TEST
#endif

static bool is_job; /* a worker does not know it */

static shoal_err stopped_fetch(void *state, const int64_t *numbers, int64_t count, shoal_tensor *x, shoal_tensor *y)
{
    (void)state;
    (void)numbers;
    (void)count;
    if (!is_job) {
        (void)raise(SIGSTOP);
    }
    return shoal_fill_(x, 0) && shoal_fill_(y, 0) ? SHOAL_OK : shoal_last_error();
}

static shoal_value *null_pack(void *state)
{
    (void)state;
    return shoal_value_null();
}

static shoal_err null_open(const shoal_value *packed, void **out_state)
{
    (void)packed;
    *out_state = NULL;
    return SHOAL_OK;
}

static bool until_tested(const shoal_train_event *event, void *context)
{
    (void)context;
    return event->so_far.epochs == 0;
}

/* Workers that are stopped (SIGSTOP) while they test do not keep the job from stopping. */
START_TEST(a_stop_does_not_wait_for_stopped_workers)
{
    static const shoal_dataset_type type = {.name = "stopped",
                                            .length = TEST,
                                            .x_ndim = 3,
                                            .x_shape = {1, 28, 28},
                                            .y_dtype = SHOAL_I64,
                                            .fetch = stopped_fetch,
                                            .pack = null_pack,
                                            .open = null_open};
    shoal_dataset *samples = part_of(SHOAL_PART_TRAIN, 96), *test = shoal_dataset_create(&type, NULL);
    shoal_train_result r;
    is_job = true;
    sh_crew_grace = SHOAL_MS(200);
    ck_assert_ok(shoal_train_run(&(shoal_train_options){.method = _i == 0 ? SHOAL_METHOD_SYNC : SHOAL_METHOD_HOGWILD,
                                                        .train_set = samples,
                                                        .test_set = test,
                                                        .model = "logistic",
                                                        .workers = 2,
                                                        .epochs = 2,
                                                        .call = until_tested},
                                 &r));
    ck_assert(r.stopped && r.deaths == 0);
    ck_assert_int_eq(r.tested_epoch, r.epochs);
    shoal_dataset_release(samples);
    shoal_dataset_release(test);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("scoring");
    TCase *tc = tcase_create("scoring");
    tcase_set_timeout(tc, SH_TEST_SECONDS);
    tcase_add_checked_fixture(tc, sh_leaks_begin, sh_leaks_end);
    tcase_add_loop_test(tc, workers_give_the_bits_of_one, 0, 3);
    tcase_add_test(tc, the_confusion_matrix_counts_each_sample_once);
    tcase_add_loop_test(tc, a_stop_does_not_wait_for_stopped_workers, 0, 2);
#ifdef SHOAL_DEATH_POINTS
    tcase_add_test(tc, a_death_repeats_its_batch);
#endif
    suite_add_tcase(s, tc);
    return s;
}

SH_TEST_MAIN(suite)
