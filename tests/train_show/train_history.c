/* What a job of several days keeps for its report: lists and a page whose size does not grow. */
#include "cli/history.h"
#include "cli/report.h"

#include "tests/harness/runner.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

START_TEST(a_list_that_is_full_gets_coarser_and_keeps_the_newest)
{
    enum { ROOM = 8 };
    cli_thin list;
    ck_assert(cli_thin_init(&list, sizeof(int64_t), ROOM));
    for (int64_t n = 0; n < 5000; n++) {
        *(int64_t *)cli_thin_next(&list) = n;
        ck_assert_uint_le(list.count, ROOM);
        ck_assert_int_eq(list.seen, n + 1);
        ck_assert_int_eq(*(const int64_t *)cli_thin_at(&list, list.count - 1), n);
        for (size_t i = 0; i + 1 < list.count; i++) {
            ck_assert_int_eq(*(const int64_t *)cli_thin_at(&list, i), (int64_t)i * list.stride);
        }
        ck_assert(n < ROOM || list.count > ROOM / 2);
    }
    cli_thin_fini(&list);
}
END_TEST

enum { WORKERS = 20, TICKS = 400000, EPOCH = 40 };

/* A job of three and a half days. One tick a second would be about 300,000.
 * There are deaths and checkpoints throughout. */
static void live(cli_history *history)
{
    shoal_train_worker workers[WORKERS] = {{.pid = 0}};
    for (int64_t i = 0; i < TICKS; i++) {
        shoal_train_event event = {.kind = i == 0           ? SHOAL_TRAIN_BEGIN
                                           : i % EPOCH == 0 ? SHOAL_TRAIN_EPOCH
                                           : i % EPOCH == 1 ? SHOAL_TRAIN_SAVE
                                           : i % 200 == 77  ? SHOAL_TRAIN_DEATH
                                                            : SHOAL_TRAIN_TICK,
                                   .worker = (int)(i % WORKERS),
                                   .text = i % EPOCH == 1 ? "/a/file" : "ended by SIGKILL",
                                   .loss = 2.3 / (1.0 + (double)i * 1e-3),
                                   .workers = workers,
                                   .workers_count = WORKERS};
        event.so_far = (shoal_train_result){.seconds = (double)i * 0.75,
                                            .train_seconds = (double)i * 0.75,
                                            .images = i * WORKERS * 1000,
                                            .epochs = i / EPOCH,
                                            .test_loss = event.loss / 2,
                                            .test_accuracy = 1 - event.loss / 4,
                                            .tested_epoch = i / EPOCH,
                                            .deaths = i / 200};
        for (int w = 0; w < WORKERS; w++) {
            workers[w].pid = 1; /* each was started again */
            workers[w].images = i * (1000 + 10 * w);
            workers[w].loss = event.loss;
        }
        ck_assert(cli_history_event(history, &event));
    }
}

START_TEST(a_job_of_days_has_a_report_of_the_usual_size)
{
    const char *keep = getenv("SHOAL_TEST_REPORT"); /* to view it */
    char path[] = "/tmp/shoal-report-XXXXXX";
    int fd = mkstemp(path);
    ck_assert_int_ge(fd, 0);
    close(fd);
    cli_history history;
    ck_assert(cli_history_init(&history, SHOAL_METHOD_HOGWILD));
    live(&history);
    ck_assert_uint_le(history.samples.count, 1024);
    ck_assert_uint_le(history.epochs.count, 1024);
    ck_assert_uint_le(history.deaths.count, 128);
    ck_assert_uint_le(history.saves.count, 128);
    const shoal_train_options job = {.epochs = TICKS, .batch = 64, .lr = 0.01, .momentum = 0.5, .save = "/a/file"};
    char file[] = "/a/<file>";
    const cli_settings settings = {.all = {{.name = "save", .text = file}}, .count = 1};
    ck_assert_ptr_null(cli_report_obstacle(path));
    ck_assert(
        cli_report_write(keep != NULL ? keep : path, &job, &settings, &history, "rank 3 failed: <b> & \"quotes\""));
    struct stat there;
    ck_assert_int_eq(stat(keep != NULL ? keep : path, &there), 0);
    ck_assert_int_gt(there.st_size, 20000);
    ck_assert_int_lt(there.st_size, 600000);
    cli_history_fini(&history);
    unlink(path);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("train_history");
    TCase *tc = tcase_create("train_history");
    tcase_set_timeout(tc, SH_TEST_SECONDS);
    tcase_add_test(tc, a_list_that_is_full_gets_coarser_and_keeps_the_newest);
    tcase_add_test(tc, a_job_of_days_has_a_report_of_the_usual_size);
    suite_add_tcase(s, tc);
    return s;
}

SH_TEST_MAIN(suite)
