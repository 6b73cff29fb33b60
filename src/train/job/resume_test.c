/* Jobs that are stopped and resumed, with the same settings or others; full disks and vanished files. */
#include "train/job/resume_test.h"

#include <signal.h>
#include <sys/resource.h>

#define STOPS (SH_SLOW ? 4 : 8) /* how often a job is stopped; the next time it runs to its end */

/* ---- stopped and resumed ---- */

typedef struct watch {
    int events_left; /* stops the job after this many; negative: never */
    int begins, epochs, saves, summaries;
    int running;       /* workers, at the beginning */
    int64_t past;      /* epochs that the begin event reported */
    char resumed[200]; /* the text of the begin event */
    int64_t limit;     /* on the size of files, from the first epoch on; 0: none */
} watch;

static bool see(const shoal_train_event *event, void *context)
{
    watch *w = context;
    w->epochs += event->kind == SHOAL_TRAIN_EPOCH;
    w->saves += event->kind == SHOAL_TRAIN_SAVE;
    w->summaries += event->kind == SHOAL_TRAIN_SUMMARY;
    if (event->kind == SHOAL_TRAIN_BEGIN) {
        w->begins++;
        w->past = event->past != NULL ? event->past->count : -1;
        snprintf(w->resumed, sizeof w->resumed, "%s", event->text);
        for (int i = 0; i < event->workers_count; i++) {
            w->running += event->workers[i].pid > 0;
        }
    }
    if (event->kind == SHOAL_TRAIN_EPOCH && w->limit > 0) {
        ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &(struct rlimit){(rlim_t)w->limit, RLIM_INFINITY}), 0);
    }
    return w->events_left < 0 || w->events_left-- > 0;
}

/* The job is stopped again and again; each piece knows only the file. */
static void run_in_pieces(shoal_train_options o, const char *name, shoal_module *model, shoal_train_result *out_result)
{
    const char *path = o.save;
    int stops = 0;
    do {
        watch w = {.events_left = stops < STOPS ? (int)draw(6) : -1};
        shoal_module *piece = new_model(name, 100); /* not what the job began with */
        o.module = stops == 0 ? model : piece;
        o.resume = stops == 0 ? NULL : path;
        o.call = see;
        o.context = &w;
        ck_assert_ok(shoal_train_run(&o, out_result));
        ck_assert_int_eq(w.begins, 1);
        ck_assert_str_eq(w.resumed, stops == 0 ? "" : path);
        if (stops > 0) {
            ck_assert_ok(shoal_module_copy(model, piece));
        }
        shoal_module_destroy(piece);
        stops++;
    } while (out_result->stopped);
}

static const struct {
    shoal_train_method method;
    int64_t rounds;
    shoal_train_average average;
    double lr_decay;
} repeatable[] = {
    {.method = SHOAL_METHOD_SERIAL},
    {.method = SHOAL_METHOD_SYNC},
    {.method = SHOAL_METHOD_SYNC, .rounds = 3},
    {.method = SHOAL_METHOD_SYNC, .average = SHOAL_AVERAGE_GRADIENTS, .lr_decay = 0.5},
    {.method = SHOAL_METHOD_LOCAL, .lr_decay = 0.5},
};
#define REPEATABLE (int)(sizeof repeatable / sizeof *repeatable)

START_TEST(same_bits)
{
    shoal_module *whole = new_model("mnist-cnn", 3), *pieces = new_model("mnist-cnn", 3);
    shoal_train_options o = options_of(repeatable[_i % REPEATABLE].method, whole);
    shoal_train_result a, b;
    o.sync.rounds = repeatable[_i % REPEATABLE].rounds;
    o.sync.average = repeatable[_i % REPEATABLE].average;
    o.lr_decay = repeatable[_i % REPEATABLE].lr_decay;
    o.save = in_folder("whole");
    ck_assert_ok(shoal_train_run(&o, &a));
    chance = (uint64_t)_i + 10;
    o.save = in_folder("pieces");
    run_in_pieces(o, "mnist-cnn", pieces, &b);
    assert_same_bits(whole, pieces, true);
    assert_same_files(in_folder("whole"), in_folder("pieces"));
    ck_assert_int_eq(a.images, EPOCHS * TRAIN);
    ck_assert_int_eq(b.images, EPOCHS * TRAIN);
    ck_assert_int_eq(b.epochs, EPOCHS);
    ck_assert_double_eq(a.test_loss, b.test_loss);
    ck_assert_int_eq(count_files(folder), 2);
    shoal_module_destroy(whole);
    shoal_module_destroy(pieces);
}
END_TEST

/* The result is not bit-identical, but every worker does what was left for it. */
START_TEST(hogwild_continues)
{
    shoal_module *model = new_model("mlp", 3);
    shoal_train_options o = options_of(SHOAL_METHOD_HOGWILD, model);
    shoal_train_result r;
    chance = 7;
    o.lr = 0.005; /* these pixels are not centred: the rate of the other tests, and gradients that come late, would
                * diverge */
    o.hogwild.shared_state = _i == 1;
    o.save = in_folder("hogwild");
    run_in_pieces(o, "mlp", model, &r);
    ck_assert_int_eq(r.images, EPOCHS * TRAIN * WORKERS);
    ck_assert_int_eq(r.epochs, EPOCHS);
    ck_assert_msg(r.test_accuracy > 0.8, "accuracy %g", r.test_accuracy);
    shoal_module_destroy(model);
}
END_TEST

/* With more epochs the job trains on; with none left it says so, which is not a failure. */
START_TEST(more_epochs)
{
    shoal_module *models[2] = {new_model("logistic", 3), new_model("logistic", 3)};
    shoal_train_options o = options_of((shoal_train_method)_i, models[0]);
    shoal_train_result a, b;
    watch w = {.events_left = -1}, v = w;
    o.save = in_folder("job");
    o.call = see;
    o.context = &w;
    o.epochs = 2;
    ck_assert_ok(shoal_train_run(&o, &a));
    ck_assert_int_eq(w.past, -1);
    ck_assert(w.epochs == 2 &&
              (w.saves == 2 || o.method == SHOAL_METHOD_HOGWILD)); /* of which two epochs may have one */
    o.context = &v;
    o.resume = in_folder("job");
    o.module = models[1];
    ck_assert_ok(shoal_train_run(&o, &b));
    assert_same_bits(models[0], models[1], true);
    ck_assert(v.begins == 1 && v.running == 0 && v.epochs == 0 && v.summaries == 1 && v.past == 2);
    ck_assert(b.epochs == 2 && b.images == a.images && b.test_accuracy == a.test_accuracy && !b.stopped);
    o.epochs = 3;
    ck_assert_ok(shoal_train_run(&o, &b));
    ck_assert(b.epochs == 3 && b.images == a.images / 2 * 3 && v.running == o.workers && v.epochs == 1);
    o.epochs = 2;
    ck_assert_err(shoal_train_run(&o, NULL), SHOAL_EINVAL);
    ck_assert_msg(strstr(shoal_last_error_text(), "/job: ") != NULL, "%s", shoal_last_error_text());
    o = options_of(o.method, models[0]);
    shoal_module_destroy(models[0]);
    o.module = models[0] = new_model("logistic", 3);
    ck_assert_ok(shoal_train_run(&o, NULL));
    if (o.method != SHOAL_METHOD_HOGWILD) {
        assert_same_bits(models[0], models[1], true);
    }
    shoal_module_destroy(models[0]);
    shoal_module_destroy(models[1]);
}
END_TEST

/* A job that is good enough after an epoch still is when it is resumed, and can train on all the same. */
START_TEST(until)
{
    shoal_module *model = new_model("logistic", 3), *whole = new_model("logistic", 3);
    shoal_train_options o = options_of((shoal_train_method)_i, model);
    shoal_train_result r;
    watch w = {.events_left = -1};
    o.save = in_folder("job");
    o.call = see;
    o.context = &w;
    o.epochs = 50;
    o.until = 0.5;
    ck_assert_ok(shoal_train_run(&o, &r));
    ck_assert_msg(r.epochs < 50 && !r.stopped && (r.test_accuracy >= 0.5 || o.method == SHOAL_METHOD_HOGWILD),
                  "%lld epochs, accuracy %g", (long long)r.epochs, r.test_accuracy);
    int epochs = w.epochs;
    w.running = 0;
    o.resume = in_folder("job");
    if (o.method != SHOAL_METHOD_HOGWILD) {
        ck_assert_ok(shoal_train_run(&o, &r));
        ck_assert(w.epochs == epochs && w.running == 0);
    }
    o.epochs = o.method != SHOAL_METHOD_HOGWILD ? r.epochs + 2 : 51; /* some may be far ahead */
    o.until = 0;
    ck_assert_ok(shoal_train_run(&o, &r));
    ck_assert_int_eq(r.epochs, o.epochs);
    if (o.method != SHOAL_METHOD_HOGWILD) {
        o.resume = o.save = NULL;
        o.module = whole;
        ck_assert_ok(shoal_train_run(&o, NULL));
        assert_same_bits(model, whole, true);
    }
    shoal_module_destroy(model);
    shoal_module_destroy(whole);
}
END_TEST

/* The workers may finish all epochs while the first is tested. */
START_TEST(until_is_reached_when_all_is_done)
{
    for (int i = 0; i < 15; i++) {
        shoal_module *model = new_model("logistic", 3);
        shoal_train_options o = options_of(SHOAL_METHOD_HOGWILD, model);
        o.epochs = 2;
        o.until = 0.001;
        ck_assert_ok(shoal_train_run(&o, NULL));
        shoal_module_destroy(model);
    }
}
END_TEST

/* ---- other settings ---- */

typedef struct change {
    const char *words; /* of the error; NULL: none */
    shoal_train_method method;
    shoal_train_options o; /* what is not zero is changed */
} change;

static void apply(shoal_train_options *o, const shoal_train_options *with)
{
    o->workers = with->workers ? with->workers : o->workers;
    o->batch = with->batch ? with->batch : o->batch;
    o->local.steps = with->local.steps ? with->local.steps : o->local.steps;
    o->sync.rounds = with->sync.rounds ? with->sync.rounds : o->sync.rounds;
    o->lr = with->lr != 0 ? with->lr : o->lr;
    o->momentum = with->momentum != 0 ? with->momentum : o->momentum;
    o->seed = with->seed ? with->seed : o->seed;
    o->hogwild.shard = with->hogwild.shard;
    o->hogwild.shared_state = with->hogwild.shared_state;
    o->sync.average = with->sync.average;
    o->restarts = with->restarts;
    o->start = with->start;
    o->train_set = with->train_set ? with->train_set : o->train_set;
}

START_TEST(settings_agree)
{
    shoal_dataset *shorter = new_set(TRAIN - 1, 1);
    shoal_module *model = new_model("logistic", 3), *fresh = new_model("logistic", 4), *same = new_model("logistic", 4);
    const change changes[] = {
        {"workers is 3 in the checkpoint, but 2 was given", SHOAL_METHOD_SYNC, {.workers = 2}},
        {"batch is 8 in the checkpoint, but 9 was given", SHOAL_METHOD_SYNC, {.batch = 9}},
        {"lr is 0.05 in the checkpoint, but 0.04 was given", SHOAL_METHOD_SYNC, {.lr = 0.04}},
        {"momentum is 0.5 in the checkpoint, but 0 was given", SHOAL_METHOD_SYNC, {.momentum = -1}},
        {"seed is 5 in the checkpoint, but 18446744073709551615 was", SHOAL_METHOD_SYNC, {.seed = UINT64_MAX}},
        {"rounds is 1 in the checkpoint, but 2 was given", SHOAL_METHOD_SYNC, {.sync.rounds = 2}},
        {"average is parameters in the checkpoint, but gradients was",
         SHOAL_METHOD_SYNC,
         {.sync.average = SHOAL_AVERAGE_GRADIENTS}},
        {"shared_state is false in the checkpoint, but true was", SHOAL_METHOD_HOGWILD, {.hogwild.shared_state = true}},
        {SH_SLOW ? "samples is 450 in the checkpoint, but 449 was given"
                 : "samples is 900 in the checkpoint, but 899 was given",
         SHOAL_METHOD_SYNC,
         {.train_set = shorter}},
        {"steps is 7 in the checkpoint, but 8 was given", SHOAL_METHOD_LOCAL, {.local.steps = 8}},
        {"shard is false in the checkpoint, but true was given", SHOAL_METHOD_HOGWILD, {.hogwild.shard = true}},
        {NULL, SHOAL_METHOD_LOCAL, {.restarts = 3, .start = SHOAL_START_FORK}},
    };
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) {
        shoal_train_options o = options_of(changes[i].method, model);
        o.epochs = 1;
        o.save = in_folder("job");
        ck_assert_ok(shoal_train_run(&o, NULL));
        apply(&o, &changes[i].o);
        o.resume = o.save;
        o.module = fresh;
        if (changes[i].words == NULL) {
            ck_assert_ok(shoal_train_run(&o, NULL));
            continue;
        }
        ck_assert_err(shoal_train_run(&o, NULL), SHOAL_EINVAL);
        ck_assert_msg(strstr(shoal_last_error_text(), changes[i].words) && strstr(shoal_last_error_text(), "/job: "),
                      "%s", shoal_last_error_text());
        assert_same_bits(fresh, same, true);
    }
    shoal_train_options o = options_of(SHOAL_METHOD_SYNC, fresh);
    o.resume = in_folder("job");
    ck_assert_err(shoal_train_run(&o, NULL), SHOAL_EINVAL);
    ck_assert_msg(strstr(shoal_last_error_text(), "method is local in the checkpoint, but sync"), "%s",
                  shoal_last_error_text());
    shoal_module_destroy(model);
    shoal_module_destroy(fresh);
    shoal_module_destroy(same);
    shoal_dataset_release(shorter);
}
END_TEST

/* ---- disks and data ---- */

/* A limit on the size of files makes a write fail midway, as a full disk does, and needs no privileges. */
START_TEST(full_disk)
{
    struct rlimit limit;
    shoal_module *model = new_model("logistic", 3), *whole = new_model("logistic", 3);
    shoal_train_options o = options_of(SHOAL_METHOD_SYNC, model);
    shoal_train_result r;
    watch w = {.events_left = -1, .limit = 1000};
    signal(SIGXFSZ, SIG_IGN);
    ck_assert_int_eq(getrlimit(RLIMIT_FSIZE, &limit), 0);
    o.save = in_folder("job");
    o.call = see;
    o.context = &w;
    ck_assert_err(shoal_train_run(&o, NULL), SHOAL_EOS);
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
    ck_assert_msg(strstr(shoal_last_error_text(), "/job: write: File too large"), "%s", shoal_last_error_text());
    ck_assert(w.epochs == 1 && w.saves == 1 && w.summaries == 0);
    ck_assert_int_eq(count_files(folder), 1);
    o.call = NULL;
    o.resume = o.save; /* what the first epoch left */
    ck_assert_ok(shoal_train_run(&o, &r));
    o.resume = o.save = NULL;
    o.module = whole;
    ck_assert_ok(shoal_train_run(&o, NULL));
    assert_same_bits(model, whole, true);

    w = (watch){.events_left = -1};
    o.call = see;
    o.save = in_folder("absent/job");
    ck_assert_err(shoal_train_run(&o, NULL), SHOAL_ENOENT);
    ck_assert(strstr(shoal_last_error_text(), "absent/job") != NULL && w.begins == 0);
    shoal_module_destroy(model);
    shoal_module_destroy(whole);
}
END_TEST

/* A set that each worker reads from a file by itself. */
static shoal_err file_fetch(void *state, const int64_t *numbers, int64_t count, shoal_tensor *x, shoal_tensor *y)
{
    (void)state;
    for (int64_t i = 0; i < count; i++) {
        ((int64_t *)shoal_tensor_data(y))[i] = numbers[i] % CLASSES;
    }
    memset(shoal_tensor_data(x), 0, (size_t)count * PIXELS * sizeof(float));
    return SHOAL_OK;
}

static shoal_value *file_pack(void *state)
{
    return shoal_value_string(state);
}

static shoal_err file_open(const shoal_value *packed, void **out_state)
{
    shoal_tensors *file = shoal_safetensors_read(shoal_value_as_string(packed));
    shoal_err err = file != NULL ? SHOAL_OK : shoal_last_error();
    shoal_tensors_destroy(file);
    *out_state = NULL;
    return err;
}

static const shoal_dataset_type file_type = {.name = "file",
                                             .length = 100,
                                             .x_dtype = SHOAL_F32,
                                             .y_dtype = SHOAL_I64,
                                             .x_ndim = 3,
                                             .x_shape = {1, 28, 28},
                                             .fetch = file_fetch,
                                             .pack = file_pack,
                                             .open = file_open};

START_TEST(vanished_data)
{
    char data[200];
    shoal_module *model = new_model("logistic", 3);
    shoal_train_options o = options_of((shoal_train_method)_i, model);
    shoal_tensors *empty = shoal_tensors_create();
    snprintf(data, sizeof data, "%s", in_folder("data"));
    ck_assert_ok(shoal_safetensors_write(data, empty));
    shoal_tensors_destroy(empty);
    o.train_set = shoal_dataset_create(&file_type, data);
    ck_assert_ptr_nonnull(o.train_set);
    o.save = in_folder("job");
    ck_assert_ok(shoal_train_run(&o, NULL));
    ck_assert_int_eq(unlink(data), 0);
    char before[200];
    snprintf(before, sizeof before, "%s", o.save);
    o.resume = before;
    o.save = in_folder("next");
    o.epochs++;
    ck_assert_err(shoal_train_run(&o, NULL), SHOAL_ECHILD);
    ck_assert_msg(strstr(shoal_last_error_text(), data), "%s", shoal_last_error_text());
    assert_same_tensors(before, o.save);
    shoal_dataset_release(o.train_set);
    shoal_module_destroy(model);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("resume");
    TCase *tc = tcase_create("resume");
    tcase_set_timeout(tc, SH_TEST_SECONDS);
    tcase_add_checked_fixture(tc, begin, end);
    tcase_add_loop_test(tc, same_bits, 0, SH_SLOW ? REPEATABLE : 2 * REPEATABLE);
    tcase_add_loop_test(tc, hogwild_continues, 0, 2);
    tcase_add_loop_test(tc, more_epochs, 0, 4);
    tcase_add_loop_test(tc, until, 0, 4);
    tcase_add_test(tc, until_is_reached_when_all_is_done);
    tcase_add_test(tc, settings_agree);
    tcase_add_test(tc, full_disk);
    tcase_add_loop_test(tc, vanished_data, 0, 4);
    suite_add_tcase(s, tc);
    return s;
}

SH_TEST_MAIN(suite)
