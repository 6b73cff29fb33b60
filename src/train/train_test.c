/* Tests jobs of all methods on a small part of MNIST, with and without deaths. */
#include "train/train_test.h"
#include "proc/process.h"
#include "train/model/clone.h"
#include "train/model/reduce.h"

#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

/* Only the release build checks how much is learned, with a model of two layers: a sanitizer takes 20 times as long for
 * an image. */
#define TRAIN (SH_SLOW ? 600 : 2000)
#define TEST (SH_SLOW ? 100 : 1700) /* several batches of a test */
#define ACCURACY (SH_SLOW ? 0.5 : 0.7)
#define LOSS (SH_SLOW ? 2.0 : 1.0)

typedef struct sets {
    shoal_dataset *train, *test;
} sets;

static sets open_sets(void)
{
    return (sets){part_of(SHOAL_PART_TRAIN, TRAIN), part_of(SHOAL_PART_TEST, TEST)};
}

/* Enough to compare bits: ten batches of 16 for each of three workers. */
static sets open_few(void)
{
    return (sets){part_of(SHOAL_PART_TRAIN, 480), NULL};
}

static void close_sets(sets s)
{
    shoal_dataset_release(s.train);
    shoal_dataset_release(s.test);
}

static shoal_module *new_model_of(const char *name)
{
    shoal_manual_seed(3);
    shoal_module *model = shoal_model_create(name);
    ck_assert_ptr_nonnull(model);
    return model;
}

static shoal_module *new_model(void)
{
    return new_model_of(SH_SLOW ? "logistic" : "mlp");
}

static shoal_train_options options_of(shoal_train_method method, sets s, shoal_module *model)
{
    return (shoal_train_options){.method = method,
                                 .train_set = s.train,
                                 .test_set = s.test,
                                 .module = model,
                                 .workers = method == SHOAL_METHOD_SERIAL ? 1 : 3,
                                 .epochs = 4,
                                 .batch = 16,
                                 .local = {.steps = method == SHOAL_METHOD_LOCAL ? 5 : 0},
                                 .lr = 0.05,
                                 .seed = 7};
}

/* The ways to train: the methods with their variants. */
static const shoal_train_options ways[] = {
    {.method = SHOAL_METHOD_HOGWILD},
    {.method = SHOAL_METHOD_SERIAL},
    {.method = SHOAL_METHOD_SYNC},
    {.method = SHOAL_METHOD_LOCAL},
    {.method = SHOAL_METHOD_SYNC, .sync.average = SHOAL_AVERAGE_GRADIENTS},
    {.method = SHOAL_METHOD_SYNC, .sync.rounds = 3},
    {.method = SHOAL_METHOD_HOGWILD, .hogwild.shared_state = true},
};

#define WAYS (int)(sizeof ways / sizeof *ways)

static shoal_train_options way_of(int way, sets s, shoal_module *model)
{
    shoal_train_options o = options_of(ways[way].method, s, model);
    o.sync.average = ways[way].sync.average;
    o.sync.rounds = ways[way].sync.rounds;
    o.hogwild.shared_state = ways[way].hogwild.shared_state;
    return o;
}

/* The sum of all differences. */
static double distance(const shoal_module *a, const shoal_module *b)
{
    double sum = 0;
    for (shoal_named it = {0}; shoal_module_next(a, &it) == SHOAL_OK;) {
        const float *x = shoal_tensor_data(it.tensor), *y = shoal_tensor_data(shoal_module_get(b, it.name));
        for (int64_t i = 0; i < shoal_tensor_count(it.tensor); i++) {
            sum += fabsf(x[i] - y[i]);
        }
    }
    return sum;
}

/* The first epoch trains as usual; with a learning rate near zero after it, the other epochs change almost nothing. */
START_TEST(lr_decays)
{
    static const double decays[] = {1, 1e-9, 1e-9};
    static const int64_t epochs[] = {1, 1, 2};
    sets s = open_few();
    shoal_module *start = new_model(), *models[3];
    for (int i = 0; i < 3; i++) {
        models[i] = new_model();
        shoal_train_options o = _i < WAYS ? way_of(_i, s, models[i]) : options_of(SHOAL_METHOD_FEDAVG, s, models[i]);
        if (o.method == SHOAL_METHOD_FEDAVG) {
            o.fedavg.clients = 10;
            o.fedavg.local_epochs = 2;
        }
        o.workers = 1; /* then hogwild is repeatable too */
        o.momentum = -1;
        o.epochs = epochs[i];
        o.lr_decay = decays[i];
        ck_assert_ok(shoal_train_run(&o, NULL));
    }
    assert_same_bits(models[0], models[1]);
    double first = distance(models[1], start), rest = distance(models[2], models[1]);
    ck_assert_msg(first > 1 && rest < 1e-4 * first, "%g in the first epoch, %g after it", first, rest);
    for (int i = 0; i < 3; i++) {
        shoal_module_destroy(models[i]);
    }
    shoal_module_destroy(start);
    close_sets(s);
}
END_TEST

/* What a callback counts, and which workers it kills. */
typedef struct counts {
    int begins, epochs, deaths, summaries;
    int lost;            /* deaths after which the worker was not restarted */
    int64_t told;        /* deaths that the last death event reported */
    int kill_left;       /* how many workers to kill */
    int64_t kill_images; /* kills the next one after this many images of all workers */
    int64_t stop_images; /* 0: never */
    bool untested;       /* there is no test set */
} counts;

static bool count(const shoal_train_event *event, void *context)
{
    counts *c = context;
    c->begins += event->kind == SHOAL_TRAIN_BEGIN;
    if (event->kind == SHOAL_TRAIN_EPOCH) {
        ck_assert_int_eq(event->so_far.epochs, ++c->epochs); /* each once */
        ck_assert_int_ge(event->so_far.tested_epoch, c->untested ? 0 : c->epochs);
    }
    c->deaths += event->kind == SHOAL_TRAIN_DEATH;
    c->summaries += event->kind == SHOAL_TRAIN_SUMMARY;
    if (event->kind == SHOAL_TRAIN_DEATH) {
        c->lost += event->workers[event->worker].pid == 0;
        c->told = event->so_far.deaths;
    }
    int victim = c->kill_left % event->workers_count;
    if (event->kind == SHOAL_TRAIN_TICK && c->kill_left > 0 && event->so_far.images >= c->kill_images &&
        event->workers[victim].pid > 0) {
        c->kill_left--;
        c->kill_images += 500;
        (void)!kill(event->workers[victim].pid, SIGKILL);
    }
    return c->stop_images == 0 || event->so_far.images < c->stop_images;
}

START_TEST(reaches_a_loss)
{
    static const shoal_start starts[] = {SHOAL_START_SPAWN, SHOAL_START_FORK, SHOAL_START_FORKSERVER};
    sets s = open_sets();
    shoal_module *model = new_model();
    counts c = {0};
    shoal_train_options o = way_of(_i % WAYS, s, model);
    shoal_train_result r;
    o.start = starts[_i / WAYS];
    o.call = count;
    o.context = &c;
    ck_assert_ok(shoal_train_run(&o, &r));
    ck_assert_msg(r.test_accuracy > ACCURACY && r.test_loss < LOSS, "%s: accuracy %g, loss %g",
                  shoal_train_method_name(o.method), r.test_accuracy, r.test_loss);
    ck_assert_int_eq(r.images, o.epochs * TRAIN * (o.method == SHOAL_METHOD_HOGWILD ? o.workers : 1));
    ck_assert_int_eq(r.epochs, 4);
    ck_assert_int_eq(r.tested_epoch, 4);
    ck_assert(r.images_per_second > 0 && r.train_seconds <= r.seconds && !r.stopped && r.deaths == 0);
    ck_assert_int_eq(c.begins, 1);
    ck_assert_int_eq(c.summaries, 1);
    ck_assert_int_eq(c.epochs, 4);
    double loss, accuracy;
    ck_assert_ok(shoal_evaluate(model, s.test, &loss, &accuracy));
    ck_assert_double_eq(loss, r.test_loss);
    ck_assert_double_eq(accuracy, r.test_accuracy);
    if (o.start == SHOAL_START_FORKSERVER) {
        shoal_fork_server_stop();
    }
    shoal_module_destroy(model);
    close_sets(s);
}
END_TEST

/* Two runs are bit-identical, and another seed gives other bits. */
START_TEST(same_bits)
{
    if (ways[_i].method == SHOAL_METHOD_HOGWILD) {
        return; /* not bit-identical by design */
    }
    sets s = open_few();
    shoal_module *models[3];
    for (int i = 0; i < 3; i++) {
        models[i] = new_model();
        shoal_train_options o = way_of(_i, s, models[i]);
        o.epochs = 2;
        o.seed = i < 2 ? 7 : 8;
        ck_assert_ok(shoal_train_run(&o, NULL));
    }
    assert_same_bits(models[0], models[1]);
    ck_assert(distance(models[0], models[2]) > 0);
    for (int i = 0; i < 3; i++) {
        shoal_module_destroy(models[i]);
    }
    close_sets(s);
}
END_TEST

/* Serial gives the same as a hand-written loop. */
START_TEST(serial_is_plain)
{
    sets s = open_few();
    shoal_module *ours = new_model(), *sharded = new_model();
    shoal_train_options o = options_of(SHOAL_METHOD_SERIAL, s, ours);
    ck_assert_ok(shoal_train_run(&o, NULL));
    o = options_of(SHOAL_METHOD_LOCAL, s, sharded); /* of one worker: a mean of one, every five batches */
    o.workers = 1;
    ck_assert_ok(shoal_train_run(&o, NULL));
    assert_same_bits(ours, sharded);
    shoal_module *averaged = new_model(), *hogwild[2] = {new_model(), new_model()};
    o = way_of(4, s, averaged); /* of one worker: the mean of one gradient */
    o.workers = 1;
    ck_assert_ok(shoal_train_run(&o, NULL));
    assert_same_bits(ours, averaged);
    for (int i = 0; i < 2; i++) {
        o = way_of(i == 0 ? 0 : 6, s, hogwild[i]); /* with one worker it contains no other worker's momentum */
        o.workers = 1;
        ck_assert_ok(shoal_train_run(&o, NULL));
    }
    assert_same_bits(hogwild[0], hogwild[1]);
    shoal_module_destroy(ours);
    shoal_module_destroy(sharded);
    shoal_module_destroy(averaged);
    shoal_module_destroy(hogwild[0]);
    shoal_module_destroy(hogwild[1]);
    close_sets(s);
}
END_TEST

/* A mean of gradients, and the mean of what each worker's own step would have given, are the same except for rounding:
 * parameters and momentum are linear in the gradients. Parts of 160 samples: all workers have ten batches of 16. */
START_TEST(gradients_are_averaged)
{
    shoal_dataset *set = part_of(SHOAL_PART_TRAIN, 480);
    shoal_module *models[2] = {new_model(), new_model()};
    for (int i = 0; i < 2; i++) {
        shoal_train_options o = way_of(i == 0 ? 4 : 3, (sets){set, NULL}, models[i]);
        o.local.steps = i == 0 ? 0 : 1;
        o.epochs = 2;
        ck_assert_ok(shoal_train_run(&o, NULL));
    }
    shoal_module *start = new_model();
    for (shoal_named it = {0}; shoal_module_next(models[0], &it) == SHOAL_OK;) {
        const float *a = shoal_tensor_data(it.tensor), *b = shoal_tensor_data(shoal_module_get(models[1], it.name));
        const float *c = shoal_tensor_data(shoal_module_get(start, it.name));
        bool moved = false;
        for (int64_t j = 0; j < shoal_tensor_count(it.tensor); j++) {
            ck_assert_float_eq_tol(a[j], b[j], 1e-5);
            moved = moved || fabsf(a[j] - c[j]) > 1e-3f;
        }
        ck_assert_msg(moved, "%s", it.name);
    }
    shoal_module_destroy(start);
    shoal_module_destroy(models[0]);
    shoal_module_destroy(models[1]);
    shoal_dataset_release(set);
}
END_TEST

/* Without momentum, the rounds of one worker only decide when its parameters are copied. */
START_TEST(rounds_of_an_epoch)
{
    sets s = open_few();
    shoal_module *models[2] = {new_model(), new_model()};
    for (int i = 0; i < 2; i++) {
        shoal_train_options o = options_of(SHOAL_METHOD_SYNC, s, models[i]);
        o.workers = 1;
        o.momentum = -1;
        o.sync.rounds = i == 0 ? 1 : 7;
        ck_assert_ok(shoal_train_run(&o, NULL));
    }
    assert_same_bits(models[0], models[1]);
    shoal_train_options o = options_of(SHOAL_METHOD_SYNC, s, models[0]);
    o.sync.rounds = 1000;
    ck_assert_err(shoal_train_run(&o, NULL), SHOAL_EINVAL);
    ck_assert_msg(strstr(shoal_last_error_text(), "1000 rounds per epoch were given") != NULL, "%s",
                  shoal_last_error_text());
    shoal_module_destroy(models[0]);
    shoal_module_destroy(models[1]);
    close_sets(s);
}
END_TEST

START_TEST(deaths_are_counted)
{
    sets s = open_sets();
    shoal_module *models[2] = {new_model(), new_model()};
    counts c = {.kill_left = 4, .kill_images = 300};
    shoal_train_result r;
    for (int i = 0; i < 2; i++) {
        shoal_train_options o = way_of(_i, s, models[i]);
        o.epochs = 30; /* long enough for all the kills */
        o.call = i == 0 ? count : NULL;
        o.context = &c;
        o.test_set = i == 0 ? s.test : NULL;
        if (i == 0 || o.method != SHOAL_METHOD_HOGWILD) {
            ck_assert_ok(shoal_train_run(&o, i == 0 ? &r : NULL));
        }
    }
    ck_assert_int_eq(c.kill_left, 0);
    ck_assert_int_eq(r.deaths, 4);
    ck_assert_int_eq(c.deaths, 4);
    ck_assert_int_eq(c.epochs, 30);
    ck_assert(r.test_accuracy > ACCURACY);
    if (ways[_i].method != SHOAL_METHOD_HOGWILD) {
        assert_same_bits(models[0], models[1]);
    }
    shoal_module_destroy(models[0]);
    shoal_module_destroy(models[1]);
    close_sets(s);
}
END_TEST

/* A worker that answers and dies while the job starts another one: its answer is there, and its round is over. */
static struct {
    shoal_train_worker workers[2]; /* as last seen */
    int64_t stopped;               /* ticks since worker 1 was stopped */
    int forks;                     /* since worker 0 was killed; -1: it lives */
} late;

static bool stop_and_kill(const shoal_train_event *event, void *context)
{
    (void)context;
    if (event->kind != SHOAL_TRAIN_TICK || event->so_far.images == 0 || late.stopped > 4) {
        return true;
    }
    memcpy(late.workers, event->workers, sizeof late.workers);
    if (late.stopped++ == 0) {
        (void)!kill(late.workers[1].pid, SIGSTOP);
    } else if (late.stopped == 5) { /* the job waits for worker 1 only */
        late.forks = 0;
        (void)!kill(late.workers[0].pid, SIGKILL);
    }
    return true;
}

/* The job starts worker 0 again. Meanwhile worker 1 finishes its round, and dies. */
static void before_fork(void)
{
    siginfo_t info;
    if (late.forks >= 0 && late.forks++ == 0) {
        id_t pid = (id_t)late.workers[1].pid;
        (void)!kill(late.workers[1].pid, SIGCONT);
        (void)!usleep(200000);
        (void)!kill(late.workers[1].pid, SIGKILL);
        (void)!waitid(P_PID, pid, &info, WEXITED | WNOWAIT);
    }
}

/* The new worker 1 is so slow that the next round has begun. */
static void in_child(void)
{
    if (late.forks == 2) {
        (void)!usleep(200000);
    }
}

START_TEST(an_answer_of_the_dead_counts)
{
    sets s = open_few();
    shoal_module *models[2] = {new_model(), new_model()};
    shoal_train_result r;
    late.forks = -1;
    ck_assert_int_eq(pthread_atfork(before_fork, NULL, in_child), 0);
    for (int i = 0; i < 2; i++) {
        shoal_train_options o = options_of(SHOAL_METHOD_LOCAL, s, models[i]);
        o.workers = 2;
        o.epochs = SH_SLOW ? 50 : 200;
        o.start = SHOAL_START_FORK;
        o.call = i == 0 ? stop_and_kill : NULL;
        ck_assert_ok(shoal_train_run(&o, &r));
        ck_assert_int_eq(r.deaths, i == 0 ? 2 : 0);
        late.forks = -1;
    }
    assert_same_bits(models[0], models[1]);
    shoal_module_destroy(models[0]);
    shoal_module_destroy(models[1]);
    close_sets(s);
}
END_TEST

/* Epochs may be shorter than the interval between checks of the workers. A job that is stopped in the middle and
 * resumed reports the remaining ones. */
START_TEST(each_epoch_is_reported_once)
{
    sets s = open_few();
    shoal_module *model = new_model();
    counts c = {.stop_images = 480 * 5, .untested = true};
    shoal_train_options o = _i < WAYS ? way_of(_i, s, model) : options_of(SHOAL_METHOD_FEDAVG, s, model);
    shoal_train_result r;
    char path[64];
    snprintf(path, sizeof path, "/tmp/shoal_train_test.%d", (int)getpid());
    o.epochs = 20;
    o.fedavg.clients = o.method == SHOAL_METHOD_FEDAVG ? 10 : 0;
    o.lr = 0.01;
    o.save = path;
    o.call = count;
    o.context = &c;
    ck_assert_ok(shoal_train_run(&o, &r));
    ck_assert(r.stopped && r.epochs == c.epochs && c.epochs < 20);
    c.stop_images = 0;
    o.resume = path;
    ck_assert_ok(shoal_train_run(&o, &r));
    ck_assert_int_eq(c.epochs, 20);
    unlink(path);
    shoal_module_destroy(model);
    close_sets(s);
}
END_TEST

/* ---- losses that are not numbers ---- */

/* The job fails and names the epoch, and the file is that of the last good epoch; or it continues, if that is
 * allowed. Workers of hogwild wait for nobody: they may be in the next epoch when the job looks. */
START_TEST(nan_fails_the_job)
{
    sets s = open_sets();
    shoal_module *model = new_model_of("mlp"), *saved = new_model_of("mlp"); /* one layer gives no nan */
    counts c = {0};
    shoal_train_options o = _i < WAYS ? way_of(_i, s, model) : options_of(SHOAL_METHOD_FEDAVG, s, model);
    bool ahead = _i < WAYS && o.method == SHOAL_METHOD_HOGWILD;
    char path[64];
    snprintf(path, sizeof path, "/tmp/shoal_train_test.%d", (int)getpid());
    o.fedavg.clients = o.method == SHOAL_METHOD_FEDAVG ? 10 : 0;
    o.epochs = 2;
    o.lr = 1e6;
    o.save = path;
    o.call = count;
    o.context = &c;
    ck_assert_err(shoal_train_run(&o, NULL), SHOAL_ENAN);
    const char *text = shoal_last_error_text();
    ck_assert_msg(strstr(text, "loss is nan in epoch 1:") || (ahead && strstr(text, "loss is nan in epoch 2:")), "%s",
                  text);
    ck_assert_msg(strstr(text, "learning rate of 1e+06"), "%s", text);
    ck_assert(c.epochs == 0 && c.summaries == 0);
    ck_assert_ok(shoal_weights_read(path, saved));
    for (shoal_named it = {0}; shoal_module_next(saved, &it) == SHOAL_OK;) {
        double sum = 0;
        ck_assert_ok(shoal_item(shoal_sum(it.tensor, SHOAL_ALL_DIMS, false), &sum));
        ck_assert_msg(isfinite(sum), "%s", it.name);
    }
    shoal_module *again = new_model_of("mlp");
    o.module = again;
    o.allow_nan = true;
    shoal_train_result r;
    ck_assert_ok(shoal_train_run(&o, &r));
    ck_assert(c.epochs == 2 && c.summaries == 1 && !isfinite(r.test_loss));
    unlink(path);
    shoal_module_destroy(again);
    shoal_module_destroy(model);
    shoal_module_destroy(saved);
    close_sets(s);
}
END_TEST

START_TEST(restarts_are_limited)
{
    sets s = open_sets();
    shoal_module *model = new_model();
    counts c = {.kill_left = 100};
    shoal_train_options o = options_of((shoal_train_method)_i, s, model);
    o.epochs = 100000;
    o.restarts = 2;
    o.call = count;
    o.context = &c;
    ck_assert_err(shoal_train_run(&o, NULL), SHOAL_ECHILD);
    ck_assert(strstr(shoal_last_error_text(), "SIGKILL") && strstr(shoal_last_error_text(), "2 times"));
    ck_assert_int_ge(c.deaths, 3); /* the death that ends the job is reported too */
    ck_assert_int_eq(c.told, c.deaths);
    ck_assert(c.lost == 1 && c.summaries == 0);
    shoal_module_destroy(model);
    close_sets(s);
}
END_TEST

/* ---- functions of the program that fail without an error text ---- */

static shoal_err zero_fetch(void *state, const int64_t *numbers, int64_t count, shoal_tensor *x, shoal_tensor *y)
{
    (void)state;
    (void)numbers;
    (void)count;
    return shoal_fill_(x, 0) && shoal_fill_(y, 0) ? SHOAL_OK : shoal_last_error();
}

static shoal_value *null_pack(void *state)
{
    (void)state;
    return shoal_value_null();
}

static shoal_err bare_open(const shoal_value *packed, void **out_state)
{
    (void)packed;
    (void)out_state;
    return SHOAL_EPERM;
}

static shoal_tensor *null_forward(shoal_module *self, shoal_tensor *x)
{
    (void)self;
    (void)x;
    return NULL;
}

/* A set that no worker can open makes the job fail, whatever the method: nothing was trained. So does a model that
 * returns NULL. */
START_TEST(errors_without_text_fail_the_job)
{
    static const shoal_dataset_type type = {.name = "shut",
                                            .length = 60,
                                            .x_ndim = 3,
                                            .x_shape = {1, 28, 28},
                                            .y_dtype = SHOAL_I64,
                                            .fetch = zero_fetch,
                                            .pack = null_pack,
                                            .open = bare_open};
    static const shoal_module_type mute = {.name = "Mute", .forward = null_forward};
    shoal_dataset *set = shoal_dataset_create(&type, NULL);
    shoal_module *model = new_model(), *none = shoal_module_create(&mute, 0, NULL);
    shoal_train_options o = options_of((shoal_train_method)_i, (sets){set, NULL}, model);
    o.epochs = 2;
    o.fedavg.clients = o.method == SHOAL_METHOD_FEDAVG ? 6 : 0;
    ck_assert_err(shoal_train_run(&o, NULL), SHOAL_ECHILD);
    ck_assert_msg(strstr(shoal_last_error_text(), "shut: open returned SHOAL_EPERM"), "%s", shoal_last_error_text());
    ck_assert_err(shoal_evaluate(none, set, NULL, NULL), SHOAL_EINVAL);
    ck_assert_msg(strstr(shoal_last_error_text(), "Mute: forward returned NULL without setting an error"), "%s",
                  shoal_last_error_text());
    shoal_module_destroy(none);
    shoal_module_destroy(model);
    shoal_dataset_release(set);
}
END_TEST

START_TEST(stops)
{
    sets s = open_sets();
    shoal_module *model = new_model();
    counts c = {.stop_images = 1000};
    shoal_train_result r;
    char path[64];
    struct stat st;
    snprintf(path, sizeof path, "/tmp/shoal_train_test.%d", (int)getpid());
    shoal_train_options o = options_of((shoal_train_method)_i, s, model);
    o.epochs = 100000;
    o.save = path;
    o.call = count;
    o.context = &c;
    ck_assert_ok(shoal_train_run(&o, &r));
    ck_assert(r.stopped && r.images >= 1000 && c.summaries == 1);
    ck_assert(r.tested_epoch == r.epochs && (r.tested_epoch == 0) == isnan(r.test_accuracy));
    ck_assert_int_eq(stat(path, &st), 0);
    shoal_tensors *file = shoal_safetensors_read(path);
    ck_assert_ptr_nonnull(file);
    ck_assert_str_eq(shoal_tensors_text(file, "method"), shoal_train_method_name(o.method));
    for (shoal_named it = {0}; shoal_module_next(model, &it) == SHOAL_OK;) {
        ck_assert(shoal_tensor_equal(shoal_tensors_find(file, it.name), it.tensor));
    }
    shoal_tensors_destroy(file);
    unlink(path);
    shoal_module_destroy(model);
    close_sets(s);
}
END_TEST

START_TEST(wrong_options)
{
    static const struct {
        shoal_train_options o;
        const char *words;
        shoal_err err;
    } wrong[] = {
        {{.workers = -1}, "-1 workers; the range is 1 to 1024", SHOAL_EINVAL},
        {{.workers = 100000}, "100000 workers", SHOAL_EINVAL},
        {{.method = SHOAL_METHOD_SERIAL, .workers = 2}, "serial has one", SHOAL_EINVAL},
        {{.method = (shoal_train_method)77}, "unknown method 77", SHOAL_EINVAL},
        {{.epochs = -2}, "-2 epochs", SHOAL_EINVAL},
        {{.batch = -2}, "batch", SHOAL_EINVAL},
        {{.method = SHOAL_METHOD_SYNC, .sync.rounds = -1}, "-1 rounds", SHOAL_EINVAL},
        {{.method = SHOAL_METHOD_LOCAL, .local.steps = -1}, "-1 batches between two means", SHOAL_EINVAL},
        {{.method = SHOAL_METHOD_SYNC, .rounds = 2, .sync.rounds = 3}, "2 rounds (the old name) and 3", SHOAL_EINVAL},
        {{.method = SHOAL_METHOD_SYNC, .sync.average = (shoal_train_average)9}, "unknown average 9", SHOAL_EINVAL},
        {{.start = (shoal_start)9}, "unknown start method 9", SHOAL_EINVAL},
        {{.method = SHOAL_METHOD_SYNC, .sync = {.average = SHOAL_AVERAGE_GRADIENTS, .rounds = 3}},
         "3 rounds per epoch were given, but gradients are averaged after each batch",
         SHOAL_EINVAL},
        {{.lr = -1}, "learning rate", SHOAL_EINVAL},
        {{.lr = NAN}, "learning rate", SHOAL_EINVAL},
        {{.lr_decay = 1.5}, "decay of the learning rate is 1.5; it must be above 0", SHOAL_EINVAL},
        {{.lr_decay = -0.5}, "decay of the learning rate", SHOAL_EINVAL},
        {{.lr_decay = NAN}, "decay of the learning rate", SHOAL_EINVAL},
        {{.save = ""}, "save is an empty path", SHOAL_EINVAL},
        {{.resume = ""}, "resume is an empty path", SHOAL_EINVAL},
        {{.data = ""}, "data is an empty path", SHOAL_EINVAL},
        {{.momentum = 1}, "momentum", SHOAL_EINVAL},
        {{.tf32 = true}, "tf32 needs the device cuda", SHOAL_EINVAL},
        {{.mps = SHOAL_MPS_OFF}, "mps off needs the device cuda", SHOAL_EINVAL},
        {{.cuda_share = 50}, "cuda_share needs the device cuda", SHOAL_EINVAL},
        {{.device = SHOAL_CUDA, .cuda_share = 50, .mps = SHOAL_MPS_OFF}, "cuda_share needs MPS", SHOAL_EINVAL},
        {{.model = "brain"}, "unknown model 'brain'; the models are mnist-cnn", SHOAL_ENOENT},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        ck_assert_err(shoal_train_check(&wrong[i].o), wrong[i].err);
        ck_assert_err(shoal_train_run(&wrong[i].o, NULL), wrong[i].err);
        ck_assert_msg(strstr(shoal_last_error_text(), wrong[i].words) != NULL, "%s", shoal_last_error_text());
    }
    ck_assert_err(shoal_train_check(NULL), SHOAL_EINVAL);
    ck_assert_int_eq(shoal_train_defaults(NULL).workers, 4);
    ck_assert_str_eq(shoal_train_defaults(NULL).model, "mnist-cnn");
    ck_assert_err(shoal_train_run(&(shoal_train_options){.data = "/nowhere"}, NULL), SHOAL_ENOENT);
    shoal_train_method method = SHOAL_METHOD_SYNC;
    ck_assert_err(shoal_train_method_find("swim", &method), SHOAL_ENOENT);
    ck_assert_ok(shoal_train_method_find("local", &method));
    ck_assert_int_eq(method, SHOAL_METHOD_LOCAL);
    ck_assert_ptr_null(shoal_train_method_name((shoal_train_method)77));
}
END_TEST

/* An option that the method does not have is refused, with the methods that have it. */
START_TEST(options_of_other_methods)
{
    static const struct {
        shoal_train_options o;
        const char *words;
    } wrong[] = {
        {{.method = SHOAL_METHOD_A3C, .batch = 64},
         "batch is an option of hogwild, serial, sync, local and fedavg, but the method is a3c"},
        {{.method = SHOAL_METHOD_A3C, .momentum = -1}, "momentum is an option of hogwild, serial, sync, local and"},
        {{.method = SHOAL_METHOD_A3C, .lr_decay = 0.5}, "lr_decay is an option of hogwild, serial, sync, local and"},
        {{.method = SHOAL_METHOD_LOCAL, .rounds = 2},
         "rounds is an option of sync and fedavg, but the method is local"},
        {{.method = SHOAL_METHOD_SYNC, .hogwild.shard = true}, "hogwild.shard is an option of hogwild, but the"},
        {{.method = SHOAL_METHOD_FEDAVG, .shared_state = true}, "hogwild.shared_state is an option of hogwild, but"},
        {{.average = SHOAL_AVERAGE_GRADIENTS}, "sync.average is an option of sync, but the method is hogwild"},
        {{.method = SHOAL_METHOD_FEDAVG, .sync.rounds = 3},
         "sync.rounds is an option of sync, but the method is fedavg"},
        {{.method = SHOAL_METHOD_SYNC, .fedavg.rounds = 3}, "fedavg.rounds is an option of fedavg, but the method is"},
        {{.method = SHOAL_METHOD_SYNC, .steps = 4}, "local.steps is an option of local, but the method is sync"},
        {{.clients = 4}, "fedavg.clients is an option of fedavg, but the method is hogwild"},
        {{.fedavg.fraction = NAN}, "fedavg.fraction is an option of fedavg, but"},
        {{.local_epochs = 4}, "fedavg.local_epochs is an option of fedavg, but"},
        {{.split = SHOAL_SPLIT_SHARDS}, "fedavg.split is an option of fedavg, but"},
        {{.server_momentum = 0.5}, "fedavg.server_momentum is an option of fedavg, but"},
        {{.env = "cartpole"}, "a3c.env is an option of a3c, but the method is hogwild"},
        {{.env_steps = 4}, "a3c.env_steps is an option of a3c, but"},
        {{.rollout = 4}, "a3c.rollout is an option of a3c, but"},
        {{.gamma = 0.5}, "a3c.gamma is an option of a3c, but"},
        {{.entropy = 0.5}, "a3c.entropy is an option of a3c, but"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        ck_assert_err(shoal_train_check(&wrong[i].o), SHOAL_EINVAL);
        ck_assert_err(shoal_train_run(&wrong[i].o, NULL), SHOAL_EINVAL);
        ck_assert_msg(strstr(shoal_last_error_text(), wrong[i].words) != NULL, "%s", shoal_last_error_text());
    }
    ck_assert_ok(shoal_train_check(&(shoal_train_options){.fedavg.fraction = -0.0, .a3c.gamma = -0.0})); /* not given */
}
END_TEST

/* Defaults are options of the method: a job may be given them. An old name and the new one are the same option. */
START_TEST(defaults_are_options)
{
    for (int i = 0; shoal_train_method_name((shoal_train_method)i) != NULL; i++) {
        shoal_train_options o = shoal_train_defaults(&(shoal_train_options){.method = (shoal_train_method)i});
        ck_assert_ok(shoal_train_check(&o));
        ck_assert_int_eq(o.fedavg.clients != 0, i == SHOAL_METHOD_FEDAVG);
        ck_assert_int_eq(o.local.steps != 0, i == SHOAL_METHOD_LOCAL);
        ck_assert_int_eq(o.a3c.rollout != 0, i == SHOAL_METHOD_A3C);
        ck_assert_int_eq(o.batch != 0, i != SHOAL_METHOD_A3C);
    }
    shoal_train_options o = {.method = SHOAL_METHOD_FEDAVG, .rounds = 7, .clients = 30, .split = SHOAL_SPLIT_SHARDS};
    o = shoal_train_defaults(&o);
    ck_assert(o.epochs == 7 && o.fedavg.rounds == 7 && o.fedavg.clients == 30 && o.fedavg.split == SHOAL_SPLIT_SHARDS);
    o = shoal_train_defaults(&(shoal_train_options){.method = SHOAL_METHOD_SYNC, .rounds = 7});
    ck_assert(o.sync.rounds == 7 && o.rounds == 7 && o.epochs == 1);
    o = shoal_train_defaults(&(shoal_train_options){.method = SHOAL_METHOD_A3C, .gamma = 0.5, .env_steps = 25000});
    ck_assert(o.a3c.gamma == 0.5 && o.a3c.env_steps == 25000 && o.epochs == 3);
}
END_TEST

START_TEST(mean_of_models)
{
    shoal_module *models[3], *to = new_model();
    for (int i = 0; i < 3; i++) {
        models[i] = sh_clone_module(to);
        ck_assert_ptr_nonnull(models[i]);
        assert_same_bits(models[i], to);
        for (shoal_named it = {0}; shoal_module_next(models[i], &it) == SHOAL_OK;) {
            float *data = shoal_tensor_data(it.tensor);
            ck_assert(data != shoal_tensor_data(shoal_module_get(to, it.name)));
            ck_assert(shoal_tensor_is_shared(it.tensor) && shoal_tensor_requires_grad(it.tensor));
            for (int64_t j = 0; j < shoal_tensor_count(it.tensor); j++) {
                data[j] = (float)(i * i) + (float)j;
            }
        }
    }
    ck_assert_ok(sh_reducer_mean(&sh_reducer_here, to, models, 3));
    for (shoal_named it = {0}; shoal_module_next(to, &it) == SHOAL_OK;) {
        const float *data = shoal_tensor_data(it.tensor);
        for (int64_t j = 0; j < shoal_tensor_count(it.tensor); j++) {
            double wanted =
                1.0 / 3 * (double)(float)j + 1.0 / 3 * (double)(1 + (float)j) + 1.0 / 3 * (double)(4 + (float)j);
            ck_assert_float_eq_tol(data[j], (float)wanted, 1e-6 * wanted);
        }
    }
    ck_assert_ok(sh_reducer_mean(&sh_reducer_here, to, models + 1, 1));
    assert_same_bits(to, models[1]);
    shoal_module *other = shoal_model_create("mnist-cnn");
    ck_assert_err(sh_reducer_mean(&sh_reducer_here, to, &other, 1), SHOAL_EINVAL);
    ck_assert_err(sh_reducer_mean(&sh_reducer_here, to, models, 0), SHOAL_EINVAL);
    shoal_module_destroy(other);
    shoal_module_destroy(to);
    for (int i = 0; i < 3; i++) {
        shoal_module_destroy(models[i]);
    }
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("train");
    TCase *tc = tcase_create("train");
    tcase_set_timeout(tc, SH_TEST_SECONDS);
    tcase_add_checked_fixture(tc, sh_leaks_begin, sh_leaks_end);
    tcase_add_loop_test(tc, reaches_a_loss, 0, SH_SLOW ? WAYS : 3 * WAYS); /* every method, with every start method */
    tcase_add_loop_test(tc, same_bits, 0, WAYS);
    tcase_add_test(tc, serial_is_plain);
    tcase_add_loop_test(tc, lr_decays, 0, WAYS + 1); /* the last: fedavg */
    tcase_add_test(tc, gradients_are_averaged);
    tcase_add_test(tc, rounds_of_an_epoch);
    tcase_add_loop_test(tc, deaths_are_counted, 0, 5);
    tcase_add_test(tc, an_answer_of_the_dead_counts);
    tcase_add_loop_test(tc, each_epoch_is_reported_once, 0, WAYS + 1); /* the last: fedavg */
    tcase_add_loop_test(tc, nan_fails_the_job, 0, WAYS + 1);
    tcase_add_loop_test(tc, restarts_are_limited, 0, 4);
    tcase_add_loop_test(tc, errors_without_text_fail_the_job, SHOAL_METHOD_HOGWILD, SHOAL_METHOD_FEDAVG + 1);
    tcase_add_loop_test(tc, stops, 0, 4);
    tcase_add_test(tc, wrong_options);
    tcase_add_test(tc, options_of_other_methods);
    tcase_add_test(tc, defaults_are_options);
    tcase_add_test(tc, mean_of_models);
    suite_add_tcase(s, tc);
    return s;
}

SH_TEST_MAIN(suite)
