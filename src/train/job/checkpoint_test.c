/* Tests files that are not valid checkpoints of the job. */
#include "train/job/past.h"
#include "train/job/resume_test.h"

#include <math.h>

/* The file of a finished job: resuming it starts no worker. */
static shoal_train_options good_file(shoal_train_method method, shoal_module *model, const char *path)
{
    shoal_train_options o = options_of(method, model);
    o.epochs = 1;
    o.save = path;
    ck_assert_ok(shoal_train_run(&o, NULL));
    o.save = NULL;
    o.resume = path;
    ck_assert_ok(shoal_train_run(&o, NULL));
    return o;
}

static void refuse(const shoal_train_options *o, shoal_err err, const char *words)
{
    shoal_err got = shoal_train_run(o, NULL);
    ck_assert_msg(got == err && strstr(shoal_last_error_text(), words) != NULL &&
                      strncmp(shoal_last_error_text(), o->resume, strlen(o->resume)) == 0,
                  "%s, wanted %s with '%s': %s", shoal_err_name(got), shoal_err_name(err), words,
                  shoal_last_error_text());
}

/* Writes the good file with a changed text, or with a tensor of another shape or with other numbers. */
static void write_changed(const char *good, const char *path, const char *name, const char *text, shoal_tensor *t)
{
    shoal_tensors *from = shoal_safetensors_read(good), *to = shoal_tensors_create();
    static const char *const texts[] = {
        "checkpoint",    "method",   "samples",     "workers",          "batch", "lr",    "lr_decay",
        "seed",          "momentum", "epochs",      "batches_in_round", "round", "steps", "test_loss",
        "test_accuracy", "shard",    "shared_state"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        const char *old = shoal_tensors_text(from, texts[i]);
        if (old != NULL && strcmp(texts[i], name) != 0) {
            ck_assert_ok(shoal_tensors_set_text(to, texts[i], old));
        }
    }
    if (text != NULL) {
        ck_assert_ok(shoal_tensors_set_text(to, name, text));
    }
    for (size_t i = 0; i < shoal_tensors_count(from); i++) {
        bool changed = strcmp(shoal_tensors_name(from, i), name) == 0;
        if (!changed || t != NULL) {
            ck_assert_ok(shoal_tensors_add(to, shoal_tensors_name(from, i), changed ? t : shoal_tensors_at(from, i)));
        }
    }
    ck_assert_ok(shoal_safetensors_write(path, to));
    shoal_tensors_destroy(from);
    shoal_tensors_destroy(to);
}

START_TEST(hostile_texts)
{
    static const struct {
        const char *name, *text, *words;
        shoal_err err;
    } cases[] = {
        {"checkpoint", NULL, "not a checkpoint", SHOAL_EINVAL},
        {"checkpoint", "2", "version 2; only version 1 can be read", SHOAL_EINVAL},
        {"workers", NULL, "does not say its workers", SHOAL_EINVAL},
        {"epochs", "-1", "epochs is '-1'", SHOAL_ECORRUPT},
        {"epochs", "99999999999999999999", "epochs is '9", SHOAL_ECORRUPT},
        {"epochs", "9223372036854775807", "epochs must be at least 9223372036854775807", SHOAL_EINVAL},
        {"round", NULL, "round is missing", SHOAL_ECORRUPT},
        {"round", "", "round is ''", SHOAL_ECORRUPT},
        {"round", "3x", "round is '3x'", SHOAL_ECORRUPT},
        {"round", "-3", "round is '-3'", SHOAL_ECORRUPT},
        {"round", "1000000", "epochs are finished or begun; epochs must be at least ", SHOAL_EINVAL},
        {"batches_in_round", "0", "batches_in_round is 0", SHOAL_EINVAL},
        {"test_accuracy", "7", "test_accuracy is '7'", SHOAL_ECORRUPT},
        {"test_loss", "small", "test_loss is 'small'", SHOAL_ECORRUPT},
    };
    shoal_module *model = new_model("logistic", 3);
    shoal_train_options o = good_file(SHOAL_METHOD_LOCAL, model, in_folder("good"));
    o.resume = in_folder("bad");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        write_changed(in_folder("good"), o.resume, cases[i].name, cases[i].text, NULL);
        refuse(&o, cases[i].err, cases[i].words);
    }
    shoal_module_destroy(model);
}
END_TEST

/* Before the option there was no decay, so a file without it is of a job without decay. */
START_TEST(before_lr_decay)
{
    shoal_module *model = new_model("logistic", 3);
    shoal_train_options o = good_file(SHOAL_METHOD_LOCAL, model, in_folder("good"));
    o.resume = in_folder("old");
    write_changed(in_folder("good"), o.resume, "lr_decay", NULL, NULL);
    ck_assert_ok(shoal_train_run(&o, NULL));
    o.lr_decay = 0.5;
    refuse(&o, SHOAL_EINVAL, "lr_decay is 1 in the checkpoint, but 0.5 was given");
    shoal_module_destroy(model);
}
END_TEST

/* serial on another device has rounds of another length: between epochs the job uses its own, within one those of the
 * file. Here both are on the CPU. */
START_TEST(rounds_of_another_length)
{
    shoal_module *whole = new_model("logistic", 3), *resumed = new_model("logistic", 3);
    shoal_train_options o = options_of(SHOAL_METHOD_SERIAL, whole);
    shoal_train_result r;
    int64_t batches = (TRAIN + o.batch - 1) / o.batch;
    char rounds[24];
    o.epochs = 2;
    ck_assert_ok(shoal_train_run(&o, NULL));
    o = good_file(SHOAL_METHOD_SERIAL, resumed, in_folder("good"));
    snprintf(rounds, sizeof rounds, "%lld", (long long)(batches + 9) / 10);
    write_changed(in_folder("good"), in_folder("shorter"), "batches_in_round", "10", NULL);
    write_changed(in_folder("shorter"), in_folder("end"), "round", rounds, NULL);
    o.epochs = 2;
    o.resume = in_folder("end");
    ck_assert_ok(shoal_train_run(&o, &r));
    ck_assert_int_eq(r.images, 2 * TRAIN);
    assert_same_bits(whole, resumed, true);
    write_changed(in_folder("shorter"), in_folder("middle"), "round", "3", NULL);
    o.epochs = 1;
    o.resume = o.save = in_folder("middle");
    ck_assert_ok(shoal_train_run(&o, &r));
    ck_assert_int_eq(r.images, TRAIN);
    shoal_tensors *file = shoal_safetensors_read(o.save);
    ck_assert_str_eq(shoal_tensors_text(file, "batches_in_round"), "10");
    ck_assert_str_eq(shoal_tensors_text(file, "round"), rounds);
    shoal_tensors_destroy(file);
    o.resume = in_folder("bad");
    write_changed(in_folder("good"), o.resume, "batches_in_round", "0", NULL);
    refuse(&o, SHOAL_ECORRUPT, "batches_in_round is '0'");
    shoal_module_destroy(whole);
    shoal_module_destroy(resumed);
}
END_TEST

/* Columns as past.c has them: the first five are whole numbers, the next two are times. */
START_TEST(past_epochs)
{
    enum { COLUMNS = 12 };
    static const struct {
        double first, second, seconds;
        bool good;
    } cases[] = {{1, 2, 1, true},    {2, 2, 1, false},    {3, 2, 1, false},  {1, 3, 1, false},
                 {1, 1.5, 1, false}, {-1, 2, 1, false},   {1, 2, -1, false}, {1, 2, (double)NAN, false},
                 {0, 2, 1, false},   {1, 1e300, 1, false}};
    shoal_module *model = new_model("logistic", 3);
    shoal_train_options o = options_of(SHOAL_METHOD_LOCAL, model);
    o.epochs = 2;
    o.save = in_folder("good");
    ck_assert_ok(shoal_train_run(&o, NULL));
    o.save = NULL;
    o.resume = in_folder("bad");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        shoal_tensor *t = shoal_zeros(SHOAL_F64, SHOAL_SHAPE(3, COLUMNS));
        double *rows = shoal_tensor_data(t);
        rows[0] = cases[i].first;
        rows[COLUMNS] = cases[i].second;
        rows[5] = cases[i].seconds;
        write_changed(in_folder("good"), o.resume, "shoal/past", NULL, t);
        if (cases[i].good) {
            ck_assert_ok(shoal_train_run(&o, NULL));
        } else {
            refuse(&o, SHOAL_ECORRUPT, "past epochs are not in order");
        }
        shoal_tensor_release(t);
    }
    shoal_tensor *narrow = shoal_zeros(SHOAL_F64, SHOAL_SHAPE(3, 2)),
                 *endless = shoal_zeros(SHOAL_F64, SHOAL_SHAPE(5000, COLUMNS));
    write_changed(in_folder("good"), o.resume, "shoal/past", NULL, narrow);
    refuse(&o, SHOAL_EINVAL, "shoal/past");
    write_changed(in_folder("good"), o.resume, "shoal/past", NULL, endless);
    refuse(&o, SHOAL_ECORRUPT, "5000 rows of past epochs");
    write_changed(in_folder("good"), o.resume, "shoal/past", NULL, NULL); /* a file of an earlier version */
    ck_assert_ok(shoal_train_run(&o, NULL));
    shoal_tensor_release(narrow);
    shoal_tensor_release(endless);
    shoal_module_destroy(model);
}
END_TEST

/* The list keeps its size, grows from left to right, and ends with the newest. */
START_TEST(past_is_thinned_out)
{
    sh_past past = {0};
    for (int64_t epoch = 1; epoch <= 5000; epoch++) {
        sh_past_add(&past, &(shoal_train_result){.seconds = (double)epoch}, epoch, 0.5);
        ck_assert(past.count <= 1024 && (epoch > 1000 || past.count == epoch));
        ck_assert_int_eq(past.epochs[past.count - 1].so_far.epochs, epoch);
    }
    ck_assert_int_ge(past.count, 512);
    for (int64_t i = 1; i < past.count; i++) {
        ck_assert_int_gt(past.epochs[i].so_far.epochs, past.epochs[i - 1].so_far.epochs);
    }
    sh_past_fini(&past);
}
END_TEST

START_TEST(hostile_tensors)
{
    shoal_module *model = new_model("logistic", 3), *other = new_model("mlp", 3);
    shoal_tensor *t = shoal_zeros(SHOAL_F32, SHOAL_SHAPE(3));
    shoal_train_options o = good_file(SHOAL_METHOD_LOCAL, model, in_folder("good"));
    o.resume = in_folder("bad");
    static const char *const names[] = {"fc.weight", "shoal/momentum/2/fc.bias.momentum_buffer"};
    for (size_t i = 0; i < 2; i++) {
        write_changed(in_folder("good"), o.resume, names[i], NULL, NULL);
        refuse(&o, SHOAL_EINVAL, names[i]);
        write_changed(in_folder("good"), o.resume, names[i], NULL, t);
        refuse(&o, SHOAL_EINVAL, names[i]);
    }
    o.module = other;
    o.resume = in_folder("good");
    refuse(&o, SHOAL_EINVAL, "fc1.weight");
    shoal_tensor_release(t);

    /* Positions of hogwild's workers. */
    static const int64_t positions[][2] = {{-1, 0}, {0, -1}, {0, INT64_MAX}, {INT64_MAX, 0}, {1, 1}, {INT64_MIN, 0}};
    o = good_file(SHOAL_METHOD_HOGWILD, model, in_folder("good"));
    o.resume = in_folder("bad");
    for (size_t i = 0; i < sizeof positions / sizeof *positions; i++) {
        t = shoal_zeros(SHOAL_I64, SHOAL_SHAPE(WORKERS, 2));
        memcpy((int64_t *)shoal_tensor_data(t) + 2, positions[i], sizeof positions[i]);
        write_changed(in_folder("good"), o.resume, "shoal/positions", NULL, t);
        bool far = positions[i][0] > 0;
        refuse(&o, far ? SHOAL_EINVAL : SHOAL_ECORRUPT, far ? "epochs are finished or begun" : "worker 1");
        shoal_tensor_release(t);
    }
    shoal_module_destroy(model);
    shoal_module_destroy(other);
}
END_TEST

/* B60: whatever the bytes are, the result is an error that names the file, or a finished job. */
START_TEST(broken_bytes)
{
    shoal_module *model = new_model("logistic", 3);
    shoal_train_options o = good_file(SHOAL_METHOD_LOCAL, model, in_folder("good"));
    bytes good = read_bytes(in_folder("good"));
    uint8_t *copy = malloc(good.size);
    int refused = 0, rounds = SH_SLOW ? 100 : 300;
    chance = 99;
    o.resume = in_folder("bad");
    o.test_set = NULL;
    for (int i = 0; i < rounds; i++) {
        size_t size = i % 3 == 0 ? (size_t)draw(good.size) : good.size;
        memcpy(copy, good.data, good.size);
        for (int j = 0; i % 3 != 0 && j < 1 + i % 4; j++) {
            copy[draw(2000)] = (uint8_t)draw(256); /* of the header */
        }
        file_of("bad", copy, size);
        shoal_err err = shoal_train_run(&o, NULL);
        refused += err != SHOAL_OK;
        ck_assert_msg(err == SHOAL_OK || strstr(shoal_last_error_text(), "/bad") != NULL, "%d: %s", i,
                      shoal_last_error_text());
    }
    ck_assert_int_gt(refused, rounds / 2);
    free(copy);
    free(good.data);
    o.resume = in_folder("absent");
    refuse(&o, SHOAL_ENOENT, "absent");
    o.resume = folder;
    refuse(&o, SHOAL_EINVAL, folder);
    shoal_module_destroy(model);
}
END_TEST

/* A checkpoint is a file of weights too. */
START_TEST(weights_of_checkpoints)
{
    shoal_module *model = new_model("logistic", 3), *fresh = new_model("logistic", 4), *other = new_model("mlp", 3);
    (void)good_file(SHOAL_METHOD_LOCAL, model, in_folder("good"));
    ck_assert_ok(shoal_weights_read(in_folder("good"), fresh));
    assert_same_bits(model, fresh, true);
    ck_assert_err(shoal_weights_read(in_folder("good"), other), SHOAL_EINVAL);
    ck_assert_msg(strstr(shoal_last_error_text(), "/good: "), "%s", shoal_last_error_text());
    ck_assert_err(shoal_weights_read(in_folder("absent"), fresh), SHOAL_ENOENT);
    ck_assert_err(shoal_weights_read(in_folder("good"), NULL), SHOAL_EINVAL);
    shoal_module_destroy(model);
    shoal_module_destroy(fresh);
    shoal_module_destroy(other);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("checkpoint");
    TCase *tc = tcase_create("checkpoint");
    tcase_set_timeout(tc, SH_TEST_SECONDS);
    tcase_add_checked_fixture(tc, begin, end);
    tcase_add_test(tc, hostile_texts);
    tcase_add_test(tc, before_lr_decay);
    tcase_add_test(tc, rounds_of_another_length);
    tcase_add_test(tc, past_epochs);
    tcase_add_test(tc, past_is_thinned_out);
    tcase_add_test(tc, hostile_tensors);
    tcase_add_test(tc, broken_bytes);
    tcase_add_test(tc, weights_of_checkpoints);
    suite_add_tcase(s, tc);
    return s;
}

SH_TEST_MAIN(suite)
