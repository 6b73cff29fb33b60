/* Compares federated averaging with a plain computation of it, with deaths at every moment, on a small part of
 * MNIST. */
#include "base/death.h"
#include "train/methods/fedavg.h"
#include "train/train_test.h"

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define TRAIN 1003 /* not divisible by any number of clients here, so clients have different sizes */
#define TEST 200
#define CLIENTS 7

static shoal_module *new_model(void)
{
    shoal_manual_seed(3);
    shoal_module *model = shoal_model_create("logistic");
    ck_assert_ptr_nonnull(model);
    return model;
}

static shoal_train_options options_of(shoal_dataset *train, shoal_module *model)
{
    return (shoal_train_options){.method = SHOAL_METHOD_FEDAVG,
                                 .train_set = train,
                                 .module = model,
                                 .workers = 3,
                                 .fedavg.clients = CLIENTS,
                                 .fedavg.fraction = 0.7, /* five of them: two workers have two, one has one */
                                 .fedavg.local_epochs = 2,
                                 .batch = 16,
                                 .fedavg.rounds = 3,
                                 .lr = 0.05,
                                 .momentum = 0.5,
                                 .seed = 7};
}

static sh_fedavg_plan plan_of(const shoal_train_options *o, int64_t drawn)
{
    return (sh_fedavg_plan){.clients = o->fedavg.clients, .drawn = drawn, .seed = o->seed, .workers = o->workers};
}

/* ---- the plain computation ---- */

static void train_client(shoal_module *model, shoal_dataset *samples, const shoal_train_options *o, int64_t round,
                         int64_t client)
{
    shoal_optimizer *sgd = shoal_sgd_create(model, .lr = o->lr, .momentum = o->momentum);
    shoal_loader *loader =
        shoal_loader_create(samples, .batch = o->batch, .shuffle = true, .seed = sh_worker_order_seed(o->seed, client));
    for (int64_t pass = 0; pass < o->fedavg.local_epochs; pass++) {
        ck_assert_ok(shoal_loader_seek(loader, round * o->fedavg.local_epochs + pass, 0));
        for (shoal_batch b; shoal_loader_next(loader, &b) == SHOAL_OK;) {
            shoal_optimizer_zero_grad(sgd);
            ck_assert_ok(shoal_backward(shoal_nll_loss(shoal_module_forward(model, b.x), b.y)));
            ck_assert_ok(shoal_optimizer_step(sgd));
        }
    }
    shoal_loader_destroy(loader);
    shoal_optimizer_destroy(sgd);
    shoal_scope_release(0);
}

/* model becomes Σ n / N · (the model trained by each client of the round). */
static void plain_round(shoal_module *model, shoal_dataset *const *parts, const shoal_train_options *o, int64_t round,
                        int64_t drawn)
{
    sh_fedavg_plan plan = plan_of(o, drawn);
    int64_t clients[CLIENTS], all = 0;
    shoal_module *local = new_model(), *mean = new_model();
    sh_fedavg_draw(&plan, round, clients);
    for (int64_t i = 0; i < drawn; i++) {
        all += shoal_dataset_length(parts[clients[i]]);
    }
    for (int64_t i = 0; i < drawn; i++) {
        double share = (double)shoal_dataset_length(parts[clients[i]]) / (double)all;
        ck_assert_ok(shoal_module_copy(local, model));
        train_client(local, parts[clients[i]], o, round, clients[i]);
        for (shoal_named it = {0}; shoal_module_next(mean, &it) == SHOAL_OK;) {
            float *to = shoal_tensor_data(it.tensor);
            const float *from = shoal_tensor_data(shoal_module_get(local, it.name));
            for (int64_t k = 0; k < shoal_tensor_count(it.tensor); k++) {
                to[k] = (i > 0 ? to[k] : 0) + (float)(share * (double)from[k]);
            }
        }
    }
    ck_assert_ok(shoal_module_copy(model, mean));
    shoal_module_destroy(local);
    shoal_module_destroy(mean);
}

static void assert_few_labels(shoal_dataset *part)
{
    shoal_tensor *labels = shoal_dataset_labels(part);
    const int64_t *label = shoal_tensor_data(labels);
    bool seen[10] = {false};
    int kinds = 0;
    for (int64_t i = 0; i < shoal_tensor_count(labels); i++) {
        kinds += !seen[label[i]];
        seen[label[i]] = true;
    }
    ck_assert_int_le(kinds, 4); /* two shards, each of one label or over the border of two */
    shoal_tensor_release(labels);
}

/* Each split, with one worker, with several, and with more than there are clients in a round. */
START_TEST(equals_a_plain_loop)
{
    static const int workers[] = {1, 3, 6};
    shoal_dataset *train = part_of(SHOAL_PART_TRAIN, TRAIN), *parts[CLIENTS];
    shoal_module *plain = new_model();
    shoal_train_options o = options_of(train, NULL);
    o.fedavg.split = _i % 2 == 0 ? SHOAL_SPLIT_IID : SHOAL_SPLIT_SHARDS;
    o.workers = workers[_i / 2];
    ck_assert_ok(o.fedavg.split == SHOAL_SPLIT_IID ? shoal_split_iid(train, CLIENTS, o.seed, parts)
                                                   : shoal_split_label(train, CLIENTS, 2, o.seed, parts));
    for (o.fedavg.rounds = 1; o.fedavg.rounds <= 2; o.fedavg.rounds++) {
        o.module = new_model();
        plain_round(plain, parts, &o, o.fedavg.rounds - 1, 5);
        ck_assert_ok(shoal_train_run(&o, NULL));
        ck_assert_msg(most_apart(o.module, plain) < 1e-6, "%g", most_apart(o.module, plain));
        shoal_module_destroy(o.module);
    }
    for (int i = 0; i < CLIENTS; i++) {
        if (o.fedavg.split == SHOAL_SPLIT_SHARDS) {
            assert_few_labels(parts[i]);
        }
        shoal_dataset_release(parts[i]);
    }
    shoal_module_destroy(plain);
    shoal_dataset_release(train);
}
END_TEST

/* ---- the same bits ---- */

START_TEST(same_bits)
{
    shoal_dataset *train = part_of(SHOAL_PART_TRAIN, TRAIN);
    shoal_module *models[3];
    for (int i = 0; i < 3; i++) {
        models[i] = new_model();
        shoal_train_options o = options_of(train, models[i]);
        o.seed = i < 2 ? 7 : 8;
        ck_assert_ok(shoal_train_run(&o, NULL));
    }
    assert_same_bits(models[0], models[1]);
    ck_assert(most_apart(models[0], models[2]) > 1e-4);
    for (int i = 0; i < 3; i++) {
        shoal_module_destroy(models[i]);
    }
    shoal_dataset_release(train);
}
END_TEST

/* A data set in which every n-th fetch kills the process that fetches. n is larger than a client's number of fetches
 * (18), so that some clients finish. */
enum { DEADLY = 23 };
typedef struct deadly {
    shoal_dataset *inner;
    shoal_block *count; /* an sh_a64: fetches of all processes */
} deadly;

static shoal_err deadly_fetch(void *state, const int64_t *numbers, int64_t count, shoal_tensor *x, shoal_tensor *y)
{
    const deadly *d = state;
    if (sh_add_relaxed((sh_a64 *)shoal_block_data(d->count), 1) % DEADLY == DEADLY - 1) {
        kill(getpid(), SIGKILL);
    }
    return shoal_dataset_fetch(d->inner, numbers, count, x, y);
}

static void deadly_destroy(void *state)
{
    deadly *d = state;
    shoal_dataset_release(d->inner);
    shoal_release(d->count);
    free(d);
}

static shoal_value *deadly_pack(void *state)
{
    const deadly *d = state;
    return shoal_map("inner", shoal_value_dataset(d->inner), "count", d->count);
}

static shoal_err deadly_open(const shoal_value *packed, void **out_state)
{
    deadly *d = calloc(1, sizeof *d);
    d->inner = shoal_dataset_retain(shoal_arg_dataset(packed, "inner"));
    d->count = shoal_retain(shoal_arg_block(packed, "count"));
    *out_state = d;
    return d->inner && d->count ? SHOAL_OK : shoal_last_error();
}

static shoal_dataset *deadly_set(shoal_dataset *inner)
{
    deadly *d = calloc(1, sizeof *d);
    d->inner = shoal_dataset_retain(inner);
    ck_assert_ok(shoal_block_create_zeroed(sizeof(sh_a64), &d->count));
    shoal_dataset *set = shoal_dataset_create(&(shoal_dataset_type){.name = "deadly",
                                                                    .length = shoal_dataset_length(inner),
                                                                    .x_dtype = SHOAL_F32,
                                                                    .y_dtype = SHOAL_I64,
                                                                    .x_ndim = 3,
                                                                    .x_shape = {1, 28, 28},
                                                                    .fetch = deadly_fetch,
                                                                    .destroy = deadly_destroy,
                                                                    .pack = deadly_pack,
                                                                    .open = deadly_open},
                                              d);
    ck_assert_ptr_nonnull(set);
    return set;
}

/* B42: workers die in the middle of their clients, again and again; everything is redone, and nothing counts twice. */
START_TEST(deaths_change_nothing)
{
    shoal_dataset *train = part_of(SHOAL_PART_TRAIN, TRAIN), *set = deadly_set(train);
    shoal_module *models[2] = {new_model(), new_model()};
    shoal_train_result r;
    shoal_train_options o = options_of(train, models[0]);
    o.fedavg.server_momentum = 0.5;
    ck_assert_ok(shoal_train_run(&o, NULL));
    o.train_set = set;
    o.module = models[1];
    o.restarts = 1000;
    ck_assert_ok(shoal_train_run(&o, &r));
    ck_assert_int_gt(r.deaths, 10);
    ck_assert_int_eq(r.epochs, o.fedavg.rounds);
    assert_same_bits(models[0], models[1]);
    shoal_module_destroy(models[0]);
    shoal_module_destroy(models[1]);
    shoal_dataset_release(set);
    shoal_dataset_release(train);
}
END_TEST

#ifdef SHOAL_DEATH_POINTS
/* Kills at each point between the steps of adding a client. Forked workers inherit the armed point, also when they are
 * restarted. */
START_TEST(deaths_at_every_point)
{
    static const char *const points[] = {"train.fedavg.trained", "train.fedavg.summed", "train.fedavg.named"};
    shoal_dataset *train = part_of(SHOAL_PART_TRAIN, TRAIN);
    shoal_module *models[2] = {new_model(), new_model()};
    for (int i = 0; i < 2; i++) {
        shoal_train_result r;
        shoal_train_options o = options_of(train, models[i]);
        o.start = SHOAL_START_FORK;
        o.workers = 2;
        o.fedavg.rounds = 2;
        o.restarts = 1000;
        sh_death_arm(i > 0 ? points[_i] : NULL, 2);
        ck_assert_ok(shoal_train_run(&o, &r));
        sh_death_arm(NULL, 0);
        ck_assert(i > 0 ? r.deaths > 0 : r.deaths == 0);
    }
    assert_same_bits(models[0], models[1]);
    shoal_module_destroy(models[0]);
    shoal_module_destroy(models[1]);
    shoal_dataset_release(train);
}
END_TEST
#endif

/* ---- what is reported, and when it stops ---- */

typedef struct seen {
    int rounds;
    int64_t total, most_epoch;
    int64_t stop_images; /* 0: never */
    uint64_t bytes;      /* live in the heap after the first round */
    int64_t anonymous;   /* private KiB of the first worker then */
} seen;

static int64_t private_memory(int32_t pid)
{
    char path[64], line[256];
    long long kib = 0;
    snprintf(path, sizeof path, "/proc/%d/status", (int)pid);
    FILE *file = fopen(path, "re");
    while (file != NULL && fgets(line, sizeof line, file) != NULL) {
        (void)sscanf(line, "RssAnon: %lld", &kib);
    }
    if (file != NULL) {
        fclose(file);
    }
    return kib;
}

static bool see(const shoal_train_event *event, void *context)
{
    seen *s = context;
    s->total = event->images_total;
    for (int i = 0; i < event->workers_count; i++) {
        s->most_epoch = event->workers[i].epoch > s->most_epoch ? event->workers[i].epoch : s->most_epoch;
    }
    if (event->kind == SHOAL_TRAIN_EPOCH && s->rounds++ == 0) {
        shoal_world_info info = sh_test_world();
        s->bytes = info.bytes_live;
        s->anonymous = private_memory(event->workers[0].pid);
    }
    return s->stop_images == 0 || event->so_far.images < s->stop_images;
}

START_TEST(reports)
{
    shoal_dataset *train = part_of(SHOAL_PART_TRAIN, TRAIN), *test = part_of(SHOAL_PART_TEST, TEST);
    shoal_module *model = new_model();
    shoal_train_options o = options_of(train, model);
    shoal_train_result r;
    seen s = {0};
    o.fedavg.split = _i == 0 ? SHOAL_SPLIT_IID : SHOAL_SPLIT_SHARDS;
    o.fedavg.rounds = 0;
    o.epochs = 4; /* the same as rounds */
    o.test_set = test;
    o.call = see;
    o.context = &s;
    ck_assert_ok(shoal_train_run(&o, &r));
    ck_assert_int_eq(s.rounds, 4);
    ck_assert_int_eq(r.epochs, 4);
    ck_assert_int_eq(r.images, s.total);
    ck_assert_int_eq(s.most_epoch, 3);
    ck_assert(s.total > 4 * 2 * 5 * (TRAIN / CLIENTS - CLIENTS) &&
              s.total < 4 * 2 * 5 * (TRAIN / CLIENTS + CLIENTS * 2));
    ck_assert_msg(r.test_accuracy > 0.5, "%g", r.test_accuracy);
    shoal_module_destroy(model);
    shoal_dataset_release(train);
    shoal_dataset_release(test);
}
END_TEST

/* An unfinished round leaves nothing in the parameters. */
START_TEST(stops_between_rounds)
{
    shoal_dataset *train = part_of(SHOAL_PART_TRAIN, TRAIN);
    shoal_module *models[2] = {new_model(), new_model()};
    shoal_train_options o = options_of(train, models[0]);
    shoal_train_result r;
    seen s = {.stop_images = 5000};
    o.fedavg.rounds = 100000;
    o.call = see;
    o.context = &s;
    ck_assert_ok(shoal_train_run(&o, &r));
    ck_assert(r.stopped && r.epochs < o.fedavg.rounds);
    if (r.epochs > 0) {
        o = options_of(train, models[1]);
        o.fedavg.rounds = r.epochs;
        ck_assert_ok(shoal_train_run(&o, NULL));
    }
    assert_same_bits(models[0], models[1]);
    shoal_module_destroy(models[0]);
    shoal_module_destroy(models[1]);
    shoal_dataset_release(train);
}
END_TEST

/* A job in three pieces, the second stopped in the middle of a round, has the bits and the counts of a job in one
 * piece. */
START_TEST(resumes)
{
    shoal_dataset *train = part_of(SHOAL_PART_TRAIN, TRAIN);
    shoal_module *models[2] = {new_model(), new_model()};
    shoal_train_result whole, r;
    char path[64];
    seen s = {0};
    snprintf(path, sizeof path, "/tmp/shoal_fedavg_test.%d", (int)getpid());
    shoal_train_options o = options_of(train, models[0]);
    o.fedavg.split = SHOAL_SPLIT_SHARDS;
    o.fedavg.server_momentum = 0.5;
    o.fedavg.rounds = 5;
    ck_assert_ok(shoal_train_run(&o, &whole));
    o.module = models[1];
    o.save = path;
    o.fedavg.rounds = 2;
    ck_assert_ok(shoal_train_run(&o, NULL));
    o.fedavg.rounds = 5;
    o.resume = path;
    o.call = see;
    o.context = &s;
    s.stop_images = whole.images * 7 / 10; /* somewhere in the fourth */
    ck_assert_ok(shoal_train_run(&o, &r));
    ck_assert(r.stopped && r.epochs >= 2 && r.epochs < 5);
    o.call = NULL;
    ck_assert_ok(shoal_train_run(&o, &r));
    ck_assert_int_eq(r.epochs, 5);
    ck_assert_int_eq(r.images, whole.images);
    assert_same_bits(models[0], models[1]);
    o.fedavg.local_epochs++;
    ck_assert_err(shoal_train_run(&o, NULL), SHOAL_EINVAL);
    ck_assert_msg(strstr(shoal_last_error_text(), "local_epochs") != NULL, "%s", shoal_last_error_text());
    unlink(path);
    shoal_module_destroy(models[0]);
    shoal_module_destroy(models[1]);
    shoal_dataset_release(train);
}
END_TEST

/* ---- draws, momentum, memory, errors ---- */

START_TEST(draws)
{
    shoal_train_options o = {.fedavg.clients = 50, .seed = 3};
    sh_fedavg_plan plan = plan_of(&o, 50);
    int64_t first[50], out[50], times[50] = {0};
    for (int64_t round = 0; round < 200; round++) {
        bool drawn[50] = {false};
        sh_fedavg_draw(&plan, round, out);
        for (int i = 0; i < 5; i++) {
            ck_assert(out[i] >= 0 && out[i] < 50 && !drawn[out[i]]);
            drawn[out[i]] = true;
            times[out[i]]++;
        }
        if (round == 0) {
            memcpy(first, out, sizeof first);
        } else {
            ck_assert(memcmp(first, out, sizeof first) != 0);
        }
    }
    for (int i = 0; i < 50; i++) {
        ck_assert_msg(times[i] > 4 && times[i] < 45, "client %d: %lld times of 20", i, (long long)times[i]);
    }
    sh_fedavg_draw(&plan, 0, out);
    ck_assert(memcmp(first, out, sizeof first) == 0);
    plan = (sh_fedavg_plan){.drawn = 10, .workers = 4};
    ck_assert(sh_fedavg_turns(&plan, 0) == 3 && sh_fedavg_turns(&plan, 1) == 3);
    ck_assert(sh_fedavg_turns(&plan, 2) == 2 && sh_fedavg_turns(&plan, 3) == 2);
    plan.drawn = 2;
    ck_assert(sh_fedavg_turns(&plan, 1) == 1 && sh_fedavg_turns(&plan, 2) == 0);
}
END_TEST

/* The fraction is rounded to the nearest client, and is at least one. */
START_TEST(fractions)
{
    static const struct {
        double fraction;
        int64_t clients, drawn;
    } cases[] = {{0.01, 10, 1}, {0.29, 100, 29}, {0.07, 100, 7}, {1, 10, 10}, {0.25, 10, 3}};
    shoal_dataset *train = part_of(SHOAL_PART_TRAIN, 1000);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        shoal_module *model = new_model();
        shoal_train_options o = options_of(train, model);
        shoal_train_result r;
        o.fedavg.clients = cases[i].clients;
        o.fedavg.fraction = cases[i].fraction;
        o.fedavg.rounds = o.fedavg.local_epochs = 1;
        ck_assert_ok(shoal_train_run(&o, &r));
        ck_assert_int_eq(r.images, cases[i].drawn * 1000 / cases[i].clients);
        shoal_module_destroy(model);
    }
    shoal_dataset_release(train);
}
END_TEST

/* After the second round: the mean, plus half of the first round's step. */
START_TEST(server_momentum)
{
    shoal_dataset *train = part_of(SHOAL_PART_TRAIN, TRAIN);
    shoal_module *models[4]; /* at the beginning; after one round, after two; after two with momentum */
    for (int i = 0; i < 4; i++) {
        models[i] = new_model();
        shoal_train_options o = options_of(train, models[i]);
        o.fedavg.rounds = i < 2 ? 1 : 2;
        o.fedavg.server_momentum = i == 3 ? 0.5 : 0;
        if (i > 0) {
            ck_assert_ok(shoal_train_run(&o, NULL));
        }
    }
    for (shoal_named it = {0}; shoal_module_next(models[0], &it) == SHOAL_OK;) {
        const float *begin = shoal_tensor_data(it.tensor),
                    *one = shoal_tensor_data(shoal_module_get(models[1], it.name));
        float *two = shoal_tensor_data(shoal_module_get(models[2], it.name));
        for (int64_t i = 0; i < shoal_tensor_count(it.tensor); i++) {
            two[i] += 0.5F * (one[i] - begin[i]);
        }
    }
    ck_assert_msg(most_apart(models[2], models[3]) < 1e-6, "%g", most_apart(models[2], models[3]));
    ck_assert(most_apart(models[1], models[3]) > 1e-3);
    for (int i = 0; i < 4; i++) {
        shoal_module_destroy(models[i]);
    }
    shoal_dataset_release(train);
}
END_TEST

START_TEST(memory_is_bounded)
{
    static const int64_t clients[] = {10, 500};
    shoal_dataset *train = part_of(SHOAL_PART_TRAIN, TRAIN);
    seen s[2] = {{0}, {0}};
    for (int i = 0; i < 2; i++) {
        shoal_module *model = new_model();
        shoal_train_options o = options_of(train, model);
        o.fedavg.clients = clients[i];
        o.fedavg.fraction = 1;
        o.fedavg.rounds = o.fedavg.local_epochs = 1;
        o.call = see;
        o.context = &s[i];
        ck_assert_ok(shoal_train_run(&o, NULL));
        shoal_module_destroy(model);
    }
    int64_t more = (int64_t)(s[1].bytes - s[0].bytes), a_model = 7850 * 4;
    ck_assert_msg(s[0].bytes > 0 && more < a_model, "%lld bytes more for 490 clients more", (long long)more);
    if (!SH_SLOW) { /* a sanitizer keeps freed memory for a while */
        more = (s[1].anonymous - s[0].anonymous) * 1024;
        ck_assert_msg(s[0].anonymous > 0 && more < 490 / 3 * a_model / 10, "a worker has %lld bytes more",
                      (long long)more);
    }
    shoal_dataset_release(train);
}
END_TEST

START_TEST(wrong_options)
{
    static const struct {
        shoal_train_options o;
        const char *words;
    } wrong[] = {
        {{.fedavg.fraction = 1.5}, "fraction of clients is 1.5; it must be above 0 and at most 1"},
        {{.fedavg.fraction = -0.1}, "fraction of clients is -0.1"},
        {{.fedavg.fraction = NAN}, "fraction of clients is nan"},
        {{.fedavg.clients = -3}, "-3 clients; the range is 1 to "},
        {{.fedavg.clients = 1004}, "1004 clients, but the set has 1003 samples"},
        {{.fedavg.clients = 502, .fedavg.split = SHOAL_SPLIT_SHARDS},
         "502 clients, but the set has 1003 samples, and each needs two"},
        {{.fedavg.clients = 1000000000}, "1000000000 clients, but the set has"},
        {{.fedavg.local_epochs = -1}, "-1 local epochs"},
        {{.fedavg.server_momentum = 1}, "server momentum is 1;"},
        {{.fedavg.server_momentum = -0.5}, "server momentum is -0.5"},
        {{.fedavg.split = (shoal_train_split)9}, "unknown split 9"},
        {{.epochs = 3, .rounds = 4}, "3 epochs and 4 rounds"},
        {{.fedavg.rounds = -1}, "-1 epochs"},
    };
    shoal_dataset *train = part_of(SHOAL_PART_TRAIN, TRAIN);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        shoal_train_options o = wrong[i].o;
        o.method = SHOAL_METHOD_FEDAVG;
        o.model = "logistic";
        o.train_set = train;
        ck_assert_err(shoal_train_run(&o, NULL), SHOAL_EINVAL);
        ck_assert_msg(strstr(shoal_last_error_text(), wrong[i].words) != NULL, "%s", shoal_last_error_text());
    }
    shoal_dataset_release(train);
}
END_TEST

START_TEST(own_defaults)
{
    shoal_train_options o = shoal_train_defaults(&(shoal_train_options){.method = SHOAL_METHOD_FEDAVG});
    ck_assert_str_eq(o.model, "fedavg-cnn");
    ck_assert(o.epochs == 20 && o.batch == 10 && o.fedavg.clients == 100 && o.fedavg.local_epochs == 5);
    ck_assert(o.fedavg.fraction > 0.09 && o.fedavg.fraction < 0.11 && o.momentum < 0 && o.fedavg.server_momentum == 0 &&
              o.lr > 0.01);
    ck_assert_int_eq(o.fedavg.split, SHOAL_SPLIT_IID);
    shoal_train_options again = shoal_train_defaults(&o);
    ck_assert(again.momentum < 0 && again.epochs == 20);
    o = shoal_train_defaults(&(shoal_train_options){0});
    ck_assert_str_eq(o.model, "mnist-cnn");
    ck_assert(o.epochs == 1 && o.batch == 64 && o.momentum > 0 && o.fedavg.clients == 0);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("fedavg");
    TCase *tc = tcase_create("fedavg");
    tcase_set_timeout(tc, SH_TEST_SECONDS);
    tcase_add_checked_fixture(tc, sh_leaks_begin, sh_leaks_end);
    tcase_add_loop_test(tc, equals_a_plain_loop, 0, 6);
    tcase_add_test(tc, same_bits);
    tcase_add_test(tc, deaths_change_nothing);
#ifdef SHOAL_DEATH_POINTS
    tcase_add_loop_test(tc, deaths_at_every_point, 0, 3);
#endif
    tcase_add_loop_test(tc, reports, 0, 2);
    tcase_add_test(tc, stops_between_rounds);
    tcase_add_test(tc, resumes);
    tcase_add_test(tc, draws);
    tcase_add_test(tc, fractions);
    tcase_add_test(tc, server_momentum);
    tcase_add_test(tc, memory_is_bounded);
    tcase_add_test(tc, wrong_options);
    tcase_add_test(tc, own_defaults);
    suite_add_tcase(s, tc);
    return s;
}

SH_TEST_MAIN(suite)
