/* Every method on a card, with its deaths, stops and resumes: over the stub of the driver, or on a card. What the
 * workers compute on the stub is what the CPU's plain kernels compute. */
#include "testing/cuda_stub/stub.h"
#include "testing/runner.h"

#include <shoal/train.h>

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define TRAIN (SH_SLOW ? 160 : 480)
#define TEST 200
#define ACCURACY (SH_SLOW ? 0.4 : 0.6)

static const shoal_train_options ways[] = {
    {.method = SHOAL_METHOD_HOGWILD},
    {.method = SHOAL_METHOD_SERIAL, .workers = 1},
    {.method = SHOAL_METHOD_SYNC},
    {.method = SHOAL_METHOD_SYNC, .average = SHOAL_AVERAGE_GRADIENTS},
    {.method = SHOAL_METHOD_LOCAL, .steps = 5},
    {.method = SHOAL_METHOD_FEDAVG, .clients = 8, .fraction = 0.5, .local_epochs = 2},
};

#define WAYS (int)(sizeof ways / sizeof *ways)

static shoal_dataset *part_of(shoal_part part, int64_t count)
{
    int64_t numbers[480];
    for (int64_t i = 0; i < count; i++) {
        numbers[i] = i;
    }
    shoal_dataset *all = shoal_mnist(part);
    shoal_dataset *some = shoal_subset(all, numbers, count);
    shoal_dataset_release(all);
    ck_assert_msg(some != NULL, "%s", shoal_last_error_text());
    return some;
}

static void set_up(void)
{
    sh_stub_use();
    if (sh_stub_control() != NULL) { /* the stub's captures run their ops at once */
        setenv("SHOAL_CAPTURE", "off", 1);
    }
    sh_leaks_begin();
}

typedef struct trained {
    shoal_module *model;
    shoal_train_result result;
} trained;

/* Trains from the same beginning. `more` has the device, callbacks and files. */
static trained train(int way, const shoal_train_options *more)
{
    shoal_dataset *samples = part_of(SHOAL_TRAIN, TRAIN), *test = part_of(SHOAL_TEST, TEST);
    shoal_manual_seed(3);
    trained t = {.model = shoal_model_create("logistic")};
    shoal_train_options o = ways[way];
    o.workers = o.workers > 0 ? o.workers : 2;
    o.module = t.model;
    o.train_set = samples;
    o.test_set = test;
    o.batch = 16;
    o.lr = 0.02;
    o.seed = 7;
    o.mps = SHOAL_MPS_OFF;
    o.epochs = more->epochs;
    o.device = more->device;
    o.save = more->save;
    o.resume = more->resume;
    o.call = more->call;
    o.context = more->context;
    ck_assert_ok(shoal_train_run(&o, &t.result));
    shoal_dataset_release(samples);
    shoal_dataset_release(test);
    return t;
}

static double greatest_difference(const shoal_module *a, const shoal_module *b)
{
    double most = 0;
    for (shoal_named it = {0}; shoal_module_next(a, &it) == SHOAL_OK;) {
        const float *x = shoal_tensor_data(it.tensor), *y = shoal_tensor_data(shoal_module_get(b, it.name));
        for (int64_t i = 0; i < shoal_tensor_count(it.tensor); i++) {
            most = fmax(most, fabs((double)x[i] - (double)y[i]));
        }
    }
    return most;
}

START_TEST(like_on_the_cpu)
{
    trained card = train(_i, &(shoal_train_options){.device = SHOAL_CUDA, .epochs = 3});
    trained cpu = train(_i, &(shoal_train_options){.device = SHOAL_CPU, .epochs = 3});
    ck_assert_int_eq(card.result.images, cpu.result.images);
    ck_assert_int_eq(card.result.deaths, 0);
    if (ways[_i].method == SHOAL_METHOD_HOGWILD) {
        ck_assert_double_gt(card.result.test_accuracy, ACCURACY);
    } else {
        ck_assert_double_le(greatest_difference(card.model, cpu.model), 1e-4);
        ck_assert_double_eq_tol(card.result.test_loss, cpu.result.test_loss, 1e-4);
    }
    shoal_module_destroy(card.model);
    shoal_module_destroy(cpu.model);
}
END_TEST

/* Kills at the first two epochs: nobody has ended yet, because more follow. */
static bool kill_two(const shoal_train_event *event, void *context)
{
    int *left = context;
    int victim = *left % event->workers_count;
    if (event->kind == SHOAL_TRAIN_EPOCH && *left > 0 && event->workers[victim].pid > 0) {
        *left -= kill(event->workers[victim].pid, SIGKILL) == 0;
    }
    return true;
}

/* B42 */
START_TEST(deaths_change_nothing)
{
    int left = 2;
    shoal_train_options disturbed = {.device = SHOAL_CUDA, .epochs = 10, .call = kill_two, .context = &left};
    trained a = train(_i, &disturbed);
    ck_assert_int_eq(left, 0);
    ck_assert_int_eq(a.result.deaths, 2);
    ck_assert_double_gt(a.result.test_accuracy, ACCURACY);
    if (ways[_i].method != SHOAL_METHOD_HOGWILD) {
        trained b = train(_i, &(shoal_train_options){.device = SHOAL_CUDA, .epochs = 10});
        ck_assert_double_eq(greatest_difference(a.model, b.model), 0);
        shoal_module_destroy(b.model);
    }
    shoal_module_destroy(a.model);
}
END_TEST

static bool stop_early(const shoal_train_event *event, void *context)
{
    (void)context;
    return event->so_far.epochs < 2;
}

START_TEST(resumes)
{
    char path[64];
    int64_t epochs = ways[_i].method == SHOAL_METHOD_HOGWILD ? 60 : 6; /* its workers run ahead of the reports */
    snprintf(path, sizeof path, "/tmp/shoal_card_test.%d", (int)getpid());
    trained a =
        train(_i, &(shoal_train_options){.device = SHOAL_CUDA, .epochs = epochs, .save = path, .call = stop_early});
    ck_assert(a.result.stopped && a.result.epochs < epochs);
    trained b = train(_i, &(shoal_train_options){.device = SHOAL_CUDA, .epochs = epochs, .resume = path, .save = path});
    ck_assert_int_eq(b.result.epochs, epochs);
    if (ways[_i].method == SHOAL_METHOD_HOGWILD) {
        ck_assert_double_gt(b.result.test_accuracy, ACCURACY);
    } else {
        trained whole = train(_i, &(shoal_train_options){.device = SHOAL_CUDA, .epochs = epochs});
        ck_assert_double_eq(greatest_difference(b.model, whole.model), 0);
        shoal_module_destroy(whole.model);
    }
    (void)unlink(path);
    shoal_module_destroy(a.model);
    shoal_module_destroy(b.model);
}
END_TEST

static bool note_death(const shoal_train_event *event, void *context)
{
    if (event->kind == SHOAL_TRAIN_DEATH) {
        snprintf(context, 256, "%s", event->text);
    }
    return true;
}

/* A worker whose context is lost ends with the reason and is started again, up to the limit. */
START_TEST(lost_cards)
{
    shoal_dataset *samples = part_of(SHOAL_TRAIN, 64);
    shoal_module *model = shoal_model_create("logistic");
    char text[256] = "";
    shoal_train_options o = {.method = SHOAL_METHOD_SYNC,
                             .device = SHOAL_CUDA,
                             .workers = 1,
                             .module = model,
                             .train_set = samples,
                             .restarts = 2,
                             .call = note_death,
                             .context = text};
    if (sh_stub_control() != NULL &&
        !SH_SLOW) { /* pinned memory goes with the process: a leak. In each worker, from its third copy on: an illegal address */
        setenv("SHOAL_STUB_FAIL", "cuMemcpyHtoDAsync:3:700", 1);
        ck_assert_err(shoal_train_run(&o, NULL), SHOAL_ECHILD);
        ck_assert_msg(strstr(text, "cannot use the card any more") != NULL, "%s", text);
        ck_assert_ptr_nonnull(strstr(shoal_last_error_text(), "had already been restarted 2 times"));
        unsetenv("SHOAL_STUB_FAIL");
    }
    shoal_module_destroy(model);
    shoal_dataset_release(samples);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("card");
    TCase *tc = tcase_create("card");
    tcase_set_timeout(tc, SH_TEST_SECONDS);
    tcase_add_checked_fixture(tc, set_up, sh_leaks_end);
    tcase_add_loop_test(tc, like_on_the_cpu, 0, WAYS);
    tcase_add_loop_test(tc, deaths_change_nothing, 0, 1);    /* hogwild; */
    tcase_add_loop_test(tc, deaths_change_nothing, 4, WAYS); /* local, with momentum that is kept, and fedavg */
    tcase_add_loop_test(tc, resumes, 0, 1);
    tcase_add_loop_test(tc, resumes, 4, WAYS);
    tcase_add_test(tc, lost_cards);
    suite_add_tcase(s, tc);
    return s;
}

SH_TEST_MAIN(suite)
