/* Every method on a card, with its deaths, stops and resumes: over the stub of the driver, or on a card. What the
 * workers compute on the stub is what the CPU's plain kernels compute. */
#include "tests/harness/cuda_mirror.h"
#include "tests/harness/cuda_stub/stub.h"
#include "train/train_test.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define TRAIN (sh_is_short() ? 160 : 480)
#define TEST 200
#define ACCURACY (sh_is_short() ? 0.4 : 0.6)

static const shoal_train_options ways[] = {
    {.method = SHOAL_METHOD_HOGWILD},
    {.method = SHOAL_METHOD_SERIAL, .workers = 1},
    {.method = SHOAL_METHOD_SYNC},
    {.method = SHOAL_METHOD_SYNC, .sync.average = SHOAL_AVERAGE_GRADIENTS},
    {.method = SHOAL_METHOD_LOCAL, .local.steps = 5},
    {.method = SHOAL_METHOD_FEDAVG, .fedavg.clients = 8, .fedavg.fraction = 0.5, .fedavg.local_epochs = 2},
};

#define WAYS (int)(sizeof ways / sizeof *ways)

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
    shoal_dataset *samples = part_of(SHOAL_PART_TRAIN, TRAIN), *test = part_of(SHOAL_PART_TEST, TEST);
    shoal_manual_seed(3);
    trained t = {.model = shoal_model_create("logistic")};
    shoal_train_options o = ways[way];
    o.workers = o.workers > 0 ? o.workers : 2;
    o.module = t.model;
    o.train_set = samples;
    o.test_set = test;
    o.batch = more->batch > 0 ? more->batch : 16;
    o.lr = 0.02;
    o.seed = 7;
    o.mps = more->device == SHOAL_CUDA ? SHOAL_MPS_OFF : SHOAL_MPS_AUTO;
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

START_TEST(like_on_the_cpu)
{
    trained card = train(_i, &(shoal_train_options){.device = SHOAL_CUDA, .epochs = 3});
    trained cpu = train(_i, &(shoal_train_options){.device = SHOAL_CPU, .epochs = 3});
    ck_assert_int_eq(card.result.images, cpu.result.images);
    ck_assert_int_eq(card.result.deaths, 0);
    if (ways[_i].method == SHOAL_METHOD_HOGWILD) {
        ck_assert_double_gt(card.result.test_accuracy, ACCURACY);
    } else {
        ck_assert_double_le(most_apart(card.model, cpu.model), 1e-4);
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
    bool ahead = ways[_i].method == SHOAL_METHOD_HOGWILD && sh_stub_control() == NULL;
    int64_t epochs = ahead ? 2000 : 10; /* on a card its workers are far ahead of the reports */
    shoal_train_options disturbed = {.device = SHOAL_CUDA, .epochs = epochs, .call = kill_two, .context = &left};
    trained a = train(_i, &disturbed);
    ck_assert_int_eq(left, 0);
    ck_assert_int_eq(a.result.deaths, 2);
    ck_assert_double_gt(a.result.test_accuracy, ACCURACY);
    if (ways[_i].method != SHOAL_METHOD_HOGWILD) {
        trained b = train(_i, &(shoal_train_options){.device = SHOAL_CUDA, .epochs = 10});
        ck_assert_double_eq(most_apart(a.model, b.model), 0);
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
        ck_assert_double_eq(most_apart(b.model, whole.model), 0);
        shoal_module_destroy(whole.model);
    }
    (void)unlink(path);
    shoal_module_destroy(a.model);
    shoal_module_destroy(b.model);
}
END_TEST

/* serial's rounds are longer on a card: there, an epoch of this job is one round, and on the CPU it is more. */
START_TEST(resumes_on_another_device)
{
    char path[64];
    int64_t batch = TRAIN / 120;
    snprintf(path, sizeof path, "/tmp/shoal_card_test.%d", (int)getpid());
    trained whole = train(1, &(shoal_train_options){.device = SHOAL_CPU, .epochs = 3, .batch = batch});
    trained a = train(1, &(shoal_train_options){.device = SHOAL_CPU, .epochs = 1, .batch = batch, .save = path});
    trained b = train(
        1, &(shoal_train_options){.device = SHOAL_CUDA, .epochs = 2, .batch = batch, .save = path, .resume = path});
    trained c = train(1, &(shoal_train_options){.device = SHOAL_CPU, .epochs = 3, .batch = batch, .resume = path});
    ck_assert_int_eq(c.result.images, 3 * TRAIN);
    ck_assert_double_le(most_apart(c.model, whole.model), 1e-4);
    (void)unlink(path);
    shoal_module_destroy(whole.model);
    shoal_module_destroy(a.model);
    shoal_module_destroy(b.model);
    shoal_module_destroy(c.model);
}
END_TEST

/* ---- fedavg-cnn and mnist-cnn, which have steps of their own ---- */

#define CNN_NEAR (sh_stub_control() != NULL ? 1e-4 : 5e-3) /* a card may choose another element of a pool */
#define CNN_TRAIN 46                                       /* 4 clients: two of 12 and two of 11 samples */

static const struct cnn_way {
    const char *model;
    shoal_train_options options;
} cnn_ways[] = {
    {"fedavg-cnn", {.method = SHOAL_METHOD_SERIAL, .workers = 1, .batch = 8, .momentum = 0.5}},
    {"fedavg-cnn", {.method = SHOAL_METHOD_SYNC, .batch = 8}},
    {"fedavg-cnn", {.method = SHOAL_METHOD_SYNC, .sync.average = SHOAL_AVERAGE_GRADIENTS, .batch = 8, .momentum = 0.5}},
    {"fedavg-cnn", {.method = SHOAL_METHOD_LOCAL, .local.steps = 2, .batch = 5, .momentum = 0.5}},
    {"fedavg-cnn", {.method = SHOAL_METHOD_FEDAVG, .batch = 250, .lr_decay = 0.5}}, /* two clients at a time */
    {"fedavg-cnn", {.method = SHOAL_METHOD_FEDAVG, .batch = 5, .momentum = 0.5}},
    {"mnist-cnn", {.method = SHOAL_METHOD_SERIAL, .workers = 1, .batch = 8, .momentum = 0.5}},
    {"mnist-cnn", {.method = SHOAL_METHOD_SYNC, .sync.average = SHOAL_AVERAGE_GRADIENTS, .batch = 8}},
    {"mnist-cnn", {.method = SHOAL_METHOD_FEDAVG, .batch = 5, .momentum = 0.5}},
};

#define FEDAVG_CNN_WAYS 6 /* the first ones */
#define CNN_CLIENTS 5     /* the way that trains clients side by side */
#define CNN_WAYS (int)(sizeof cnn_ways / sizeof *cnn_ways)

static void write_idx(const char *folder, const char *name, int dims, uint8_t (*byte)(int), int count)
{
    char path[128];
    uint8_t head[16] = {0, 0, 8, (uint8_t)dims, 0, 0, 0, CNN_TRAIN, 0, 0, 0, 28, 0, 0, 0, 28};
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *f = fopen(path, "wb");
    ck_assert_ptr_nonnull(f);
    ck_assert_uint_eq(fwrite(head, 1, (size_t)(4 + 4 * dims), f), (size_t)(4 + 4 * dims));
    for (int i = 0; i < count; i++) {
        fputc(byte(i), f);
    }
    fclose(f);
}

static uint8_t label(int i)
{
    return (uint8_t)(i * 7 % 10);
}

/* Noise, so that no two elements of a pool are almost equal: the CPU and a card may then choose different ones. */
static uint8_t pixel(int i)
{
    return (uint8_t)((uint32_t)(i + 1) * 2654435761U >> 24);
}

/* Makes a small set of images of bytes, which a subset is not. */
static shoal_dataset *few_images(void)
{
    char folder[] = "/tmp/shoal_card_test.XXXXXX", path[128];
    const char *names[] = {"train-images-idx3-ubyte", "train-labels-idx1-ubyte"};
    ck_assert_ptr_nonnull(mkdtemp(folder));
    write_idx(folder, names[0], 3, pixel, CNN_TRAIN * 784);
    write_idx(folder, names[1], 1, label, CNN_TRAIN);
    shoal_dataset *set = shoal_mnist_at(folder, SHOAL_PART_TRAIN);
    ck_assert_msg(set != NULL, "%s", shoal_last_error_text());
    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "%s/%s", folder, names[i]);
        ck_assert_int_eq(unlink(path), 0);
    }
    ck_assert_int_eq(rmdir(folder), 0);
    return set;
}

static trained train_cnn(int way, const shoal_train_options *more)
{
    shoal_dataset *samples = few_images();
    shoal_manual_seed(3);
    trained t = {.model = shoal_model_create(cnn_ways[way].model)};
    shoal_train_options o = cnn_ways[way].options;
    o.workers = more->workers > 0 ? more->workers : o.workers > 0 ? o.workers : 2;
    o.module = t.model;
    o.train_set = samples;
    o.test_set = samples;
    o.momentum = o.momentum > 0 ? o.momentum : -1;
    o.lr = 0.05;
    if (o.method == SHOAL_METHOD_FEDAVG) {
        o.fedavg.clients = 4;
        o.fedavg.fraction = 1;
        o.fedavg.local_epochs = 2;
    }
    o.seed = 7;
    o.mps = more->device == SHOAL_CUDA ? SHOAL_MPS_OFF : SHOAL_MPS_AUTO;
    o.epochs = more->epochs;
    o.device = more->device;
    o.call = more->call;
    o.context = more->context;
    ck_assert_ok(shoal_train_run(&o, &t.result));
    shoal_dataset_release(samples);
    return t;
}

static bool note_loss(const shoal_train_event *event, void *context)
{
    *(double *)context = event->loss;
    return true;
}

START_TEST(cnn_like_on_the_cpu)
{
    double losses[2];
    shoal_train_options o = {.device = SHOAL_CUDA, .epochs = 2, .call = note_loss, .context = &losses[0]};
    trained card = train_cnn(_i, &o);
    o.device = SHOAL_CPU;
    o.context = &losses[1];
    trained cpu = train_cnn(_i, &o);
    ck_assert_int_eq(card.result.images, cpu.result.images);
    ck_assert_int_eq(card.result.deaths, 0);
    ck_assert_double_le(most_apart(card.model, cpu.model), CNN_NEAR);
    ck_assert_double_eq_tol(card.result.test_loss, cpu.result.test_loss, CNN_NEAR);
    ck_assert_double_eq_tol(card.result.test_accuracy, cpu.result.test_accuracy, 1.5 / CNN_TRAIN);
    ck_assert_double_eq_tol(losses[0], losses[1], 0.2); /* running means, not of the same steps one by one */
    shoal_module_destroy(card.model);
    shoal_module_destroy(cpu.model);
}
END_TEST

/* The sums are added in the order of the draw, so who trains a client with whom makes no difference to them; on a card,
 * its sums of products may have another order. Deaths and repetitions change no bit. */
START_TEST(cnn_clients_side_by_side)
{
    int left = 2;
    shoal_train_options o = {.device = SHOAL_CUDA, .epochs = 3, .workers = 1};
    trained together = train_cnn(CNN_CLIENTS, &o);
    o.call = kill_two;
    o.context = &left;
    trained again = train_cnn(CNN_CLIENTS, &o);
    o.call = NULL;
    o.workers = 4;
    trained apart = train_cnn(CNN_CLIENTS, &o);
    ck_assert_int_eq(left, 0);
    ck_assert_int_eq(again.result.deaths, 2);
    ck_assert_double_eq(most_apart(together.model, again.model), 0);
    ck_assert_double_le(most_apart(together.model, apart.model), sh_stub_control() != NULL ? 0 : CNN_NEAR);
    shoal_module_destroy(together.model);
    shoal_module_destroy(again.model);
    shoal_module_destroy(apart.model);
}
END_TEST

typedef struct heard {
    char death[256], note[256]; /* the last */
    int notes, events;
} heard;

static bool hear(const shoal_train_event *event, void *context)
{
    heard *h = context;
    h->events++;
    if (event->kind == SHOAL_TRAIN_DEATH) {
        snprintf(h->death, sizeof h->death, "%s", event->text);
    } else if (event->kind == SHOAL_TRAIN_NOTE) {
        snprintf(h->note, sizeof h->note, "%s", event->text);
        h->notes++;
    }
    return true;
}

/* A worker whose context is lost ends with the reason and is started again, up to the limit. With MPS, a line says that
 * its server went down. */
START_TEST(lost_cards)
{
    shoal_dataset *samples = part_of(SHOAL_PART_TRAIN, 64);
    shoal_module *model = shoal_model_create("logistic");
    heard h = {.notes = 0};
    char folder[] = "/tmp/shoal_card_test.XXXXXX", control[64];
    shoal_train_options o = {.method = SHOAL_METHOD_SYNC,
                             .device = SHOAL_CUDA,
                             .workers = 2,
                             .module = model,
                             .train_set = samples,
                             .restarts = 2,
                             .call = hear,
                             .context = &h};
    if (sh_stub_control() != NULL &&
        !SH_SLOW) { /* pinned memory goes with the process: a leak. In each worker, from its third copy on: an illegal
                     * address */
        setenv("SHOAL_STUB_FAIL", "cuMemcpyHtoDAsync:3:700", 1);
        ck_assert_ptr_nonnull(mkdtemp(folder)); /* of a daemon that seems to run */
        snprintf(control, sizeof control, "%s/control", folder);
        FILE *f = fopen(control, "w");
        ck_assert_ptr_nonnull(f);
        fclose(f);
        setenv("CUDA_MPS_PIPE_DIRECTORY", folder, 1);
        ck_assert_err(shoal_train_run(&o, NULL), SHOAL_ECHILD);
        ck_assert_msg(strstr(h.death, "can no longer use the GPU") != NULL, "%s", h.death);
        ck_assert_msg(strstr(h.note, "the MPS server went down with a worker") != NULL, "%s", h.note);
        ck_assert_int_ge(h.notes, 1);
        ck_assert_int_eq(unlink(control), 0);
        ck_assert_int_eq(rmdir(folder), 0);
        ck_assert_ptr_nonnull(strstr(shoal_last_error_text(), "had already been restarted 2 times"));
        unsetenv("SHOAL_STUB_FAIL");
    }
    shoal_module_destroy(model);
    shoal_dataset_release(samples);
}
END_TEST

/* Wherever the context is lost: while the first worker of hogwild shares the parameters, and in the forward pass. */
START_TEST(lost_cards_are_deaths)
{
    static const struct {
        const char *fails, *model;
        shoal_train_method method;
        int64_t batch;
    } cases[] = {{"cuMemExportToShareableHandle:1:700", "logistic", SHOAL_METHOD_HOGWILD, 64},
                 {"cuMemCreate:2:700", "lenet5", SHOAL_METHOD_SERIAL, 2000}};
    shoal_dataset *samples = part_of(SHOAL_PART_TRAIN, 2000);
    for (int i = 0; sh_stub_control() != NULL && !SH_SLOW && i < 2; i++) {
        heard h = {.notes = 0};
        shoal_module *model = shoal_model_create(cases[i].model);
        shoal_train_options o = {.method = cases[i].method,
                                 .device = SHOAL_CUDA,
                                 .workers = 1,
                                 .batch = cases[i].batch,
                                 .mps = SHOAL_MPS_OFF,
                                 .module = model,
                                 .train_set = samples,
                                 .restarts = 1,
                                 .call = hear,
                                 .context = &h};
        setenv("SHOAL_STUB_FAIL", cases[i].fails, 1);
        ck_assert_err(shoal_train_run(&o, NULL), SHOAL_ECHILD);
        ck_assert_msg(strstr(h.death, "can no longer use the GPU") != NULL, "%s: %s", cases[i].fails, h.death);
        ck_assert_ptr_nonnull(strstr(shoal_last_error_text(), "had already been restarted 1 time"));
        unsetenv("SHOAL_STUB_FAIL");
        shoal_module_destroy(model);
    }
    shoal_dataset_release(samples);
}
END_TEST

/* B54: the job says why in one sentence, reports no event and writes nothing. */
START_TEST(cards_that_are_not_there)
{
    static const struct {
        const char *name, *value, *words;
        shoal_err err;
    } cases[] = {{"SHOAL_CUDA_DEVICE", "77", "SHOAL_CUDA_DEVICE is 77, but this process sees 1 GPU", SHOAL_ENOENT},
                 {"SHOAL_CUDA_DEVICE", "first", "SHOAL_CUDA_DEVICE is \"first\"", SHOAL_EINVAL},
                 {"SHOAL_STUB_CARDS", "0", "no CUDA GPU found", SHOAL_ENOENT},
                 {"SHOAL_STUB_FAIL", "cuInit:1:999", "cannot start the CUDA driver", SHOAL_EOS}};
    shoal_dataset *samples = part_of(SHOAL_PART_TRAIN, 64);
    shoal_module *model = shoal_model_create("logistic");
    heard h = {.notes = 0};
    char path[64];
    snprintf(path, sizeof path, "/tmp/shoal_card_test.%d", (int)getpid());
    shoal_train_options o = {.device = SHOAL_CUDA,
                             .workers = 2,
                             .mps = SHOAL_MPS_OFF,
                             .module = model,
                             .train_set = samples,
                             .save = path,
                             .call = hear,
                             .context = &h};
    for (int i = 0; i < (sh_stub_control() != NULL ? 4 : 1); i++) {
        setenv(cases[i].name, cases[i].value, 1);
        ck_assert_err(shoal_train_run(&o, NULL), cases[i].err);
        ck_assert_msg(strncmp(shoal_last_error_text(), cases[i].words, strlen(cases[i].words)) == 0, "%s",
                      shoal_last_error_text());
        unsetenv(cases[i].name);
    }
    ck_assert_int_eq(h.events, 0);
    ck_assert_int_ne(access(path, F_OK), 0);
    shoal_module_destroy(model);
    shoal_dataset_release(samples);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("cuda_engine");
    TCase *tc = tcase_create("cuda_engine");
    tcase_set_timeout(tc, SH_TEST_SECONDS);
    tcase_add_checked_fixture(tc, set_up, sh_leaks_end);
    tcase_add_loop_test(tc, like_on_the_cpu, 0, WAYS);
    tcase_add_loop_test(tc, cnn_like_on_the_cpu, FEDAVG_CNN_WAYS, CNN_WAYS);
    if (!sh_mirror_is_host()) { /* where these take long, and show nothing about the kernels */
        tcase_add_loop_test(tc, cnn_like_on_the_cpu, 0, FEDAVG_CNN_WAYS);
        tcase_add_test(tc, cnn_clients_side_by_side);
        tcase_add_loop_test(tc, deaths_change_nothing, 0, 1);    /* hogwild; */
        tcase_add_loop_test(tc, deaths_change_nothing, 4, WAYS); /* local, with momentum that is kept, and fedavg */
        tcase_add_loop_test(tc, resumes, 0, 1);
        tcase_add_loop_test(tc, resumes, 4, WAYS);
        tcase_add_test(tc, resumes_on_another_device);
        tcase_add_test(tc, lost_cards);
        tcase_add_test(tc, lost_cards_are_deaths);
        tcase_add_test(tc, cards_that_are_not_there);
    }
    suite_add_tcase(s, tc);
    return s;
}

SH_TEST_MAIN(suite)
