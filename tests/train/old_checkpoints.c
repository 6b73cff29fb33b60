/* Checkpoints that version 0.2 wrote (v0.2/). A job that goes on from one must end as the same job did in that
 * version. */
#include "data/file_test.h"
#include "tests/train/v0.2/jobs.h"

#define OLD "tests/train/v0.2/"

static shoal_dataset *train, *test;

static void begin(void)
{
    ck_assert_int_eq(setenv("SHOAL_CPU", "plain", 1), 0); /* the same bits on every CPU */
    folder_begin();
    train = samples_of(SAMPLES, 1);
    test = samples_of(TESTS, 2);
    ck_assert(train != NULL && test != NULL);
}

static void end(void)
{
    shoal_dataset_release(train);
    shoal_dataset_release(test);
    folder_end();
}

/* Returns the bytes of the header, which has all settings and positions. */
static size_t header_of(const char *path, uint8_t *bytes, size_t capacity)
{
    uint64_t size;
    size_t read = bytes_of(path, bytes, capacity);
    memcpy(&size, bytes, sizeof size);
    ck_assert_uint_le(size + sizeof size, read);
    return size + sizeof size;
}

static void assert_same_file(const char *a, const char *b)
{
    static uint8_t one[1 << 14], other[1 << 14];
    size_t size = header_of(a, one, sizeof one);
    ck_assert_msg(header_of(b, other, sizeof other) == size && memcmp(one, other, size) == 0,
                  "the headers of %s and %s differ", a, b);
    shoal_tensors *old = shoal_safetensors_read(a), *now = shoal_safetensors_read(b);
    ck_assert(old != NULL && now != NULL && shoal_tensors_count(old) == shoal_tensors_count(now));
    for (size_t i = 0; i < shoal_tensors_count(old); i++) {
        const char *name = shoal_tensors_name(old, i);
        bool times = strcmp(name, "shoal/past") == 0;
        ck_assert_msg(times || shoal_tensor_equal(shoal_tensors_at(old, i), shoal_tensors_find(now, name)),
                      "%s of %s and %s differs", name, a, b);
    }
    shoal_tensors_destroy(old);
    shoal_tensors_destroy(now);
}

START_TEST(goes_on)
{
    char begun[100], done[100];
    shoal_module *model = small_model(jobs[_i].o.method, 100); /* not what the job began with */
    shoal_train_options o = job_of((size_t)_i, model, train, test);
    shoal_train_result r;
    snprintf(begun, sizeof begun, OLD "%s.begun", jobs[_i].name);
    snprintf(done, sizeof done, OLD "%s.done", jobs[_i].name);
    o.resume = begun;
    o.save = in_folder("done");
    ck_assert_ok(shoal_train_run(&o, &r));
    ck_assert_int_eq(r.epochs, shoal_train_defaults(&o).epochs);
    if (!jobs[_i].differs) {
        assert_same_file(done, o.save);
    } else if (o.method == SHOAL_METHOD_HOGWILD) {
        ck_assert_int_eq(r.images, o.epochs * SAMPLES * (o.shard ? 1 : o.workers));
        ck_assert_msg(r.test_accuracy > 0.7, "accuracy %g", r.test_accuracy);
    } else {
        ck_assert(r.images >= o.env_steps && r.episodes > 512); /* it had so many */
    }
    shoal_module_destroy(model);
}
END_TEST

/* The same job without a file of 0.2: whoever reads the files of today with 0.2 finds the same, too. */
START_TEST(writes_the_same)
{
    char done[100];
    shoal_module *model = small_model(jobs[_i].o.method, 3);
    shoal_train_options o = job_of((size_t)_i, model, train, test);
    snprintf(done, sizeof done, OLD "%s.done", jobs[_i].name);
    o.save = in_folder("done");
    if (!jobs[_i].differs) {
        ck_assert_ok(shoal_train_run(&o, NULL));
        assert_same_file(done, o.save);
    }
    shoal_module_destroy(model);
}
END_TEST

/* A setting of another job is refused, by the name that the file has. */
START_TEST(refuses_another_job)
{
    static const struct {
        size_t job;
        const char *says;
    } cases[] = {{1, "rounds is 3 in the checkpoint, but 4 was given"},
                 {3, "steps is 5 in the checkpoint, but 6 was given"},
                 {4, "clients is 12 in the checkpoint, but 13 was given"}};
    shoal_module *model = small_model(SHOAL_METHOD_SYNC, 3);
    for (size_t i = 0; i < COUNT(cases); i++) {
        char begun[100];
        shoal_train_options o = job_of(cases[i].job, model, train, test);
        snprintf(begun, sizeof begun, OLD "%s.begun", jobs[cases[i].job].name);
        o.resume = begun;
        o.rounds += i == 0;
        o.steps += i == 1;
        o.clients += i == 2;
        ck_assert_err(shoal_train_run(&o, NULL), SHOAL_EINVAL);
        ck_assert_msg(strstr(shoal_last_error_text(), cases[i].says) != NULL, "%s", shoal_last_error_text());
    }
    shoal_module_destroy(model);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("old_checkpoints");
    TCase *tc = tcase_create("old_checkpoints");
    tcase_set_timeout(tc, SH_TEST_SECONDS);
    tcase_add_checked_fixture(tc, begin, end);
    tcase_add_loop_test(tc, goes_on, 0, (int)COUNT(jobs));
    tcase_add_loop_test(tc, writes_the_same, 0, (int)COUNT(jobs));
    tcase_add_test(tc, refuses_another_job);
    suite_add_tcase(s, tc);
    return s;
}

SH_TEST_MAIN(suite)
