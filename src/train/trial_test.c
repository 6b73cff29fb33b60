/* Tests by all workers give the bits of a test by one process, whoever dies. */
#include "base/death.h"
#include "train/train_test.h"

#include <stdio.h>

#define TEST 1700 /* four batches, the last one smaller */

/* Trains a little, and compares the job's last test with one in this process. */
static shoal_train_result train(shoal_train_method method, int workers, shoal_start start)
{
    shoal_dataset *samples = part_of(SHOAL_TRAIN, 96), *test = part_of(SHOAL_TEST, TEST);
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

#ifdef SHOAL_DEATH_POINTS
/* Each process dies at its second batch, before its score counts. Forked workers inherit the armed point. */
START_TEST(a_death_repeats_its_batch)
{
    sh_death_arm("train.trial.scored", 2);
    shoal_train_result r = train(SHOAL_METHOD_SYNC, 3, SHOAL_START_FORK);
    sh_death_arm(NULL, 0);
    ck_assert_int_gt(r.deaths, 1);
}
END_TEST
#endif

static Suite *suite(void)
{
    Suite *s = suite_create("trial");
    TCase *tc = tcase_create("trial");
    tcase_set_timeout(tc, SH_TEST_SECONDS);
    tcase_add_checked_fixture(tc, sh_leaks_begin, sh_leaks_end);
    tcase_add_loop_test(tc, workers_give_the_bits_of_one, 0, 3);
#ifdef SHOAL_DEATH_POINTS
    tcase_add_test(tc, a_death_repeats_its_batch);
#endif
    suite_add_tcase(s, tc);
    return s;
}

SH_TEST_MAIN(suite)
