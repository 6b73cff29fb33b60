/* Compares whole training steps with PyTorch's, which computes in f64 where Shoal uses f32. generate.py says what is
 * compared and how closely. */
#include "kernels/kernels.h"
#include "tests/harness/numbers.h"
#include "tests/harness/runner.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FILE_NAME "tests/golden_train/values.txt"
#define SAMPLES 96
#define CASES 6

/* ---- numbers from a formula; generate.py has the same formula in Python ---- */

static uint32_t lcg(uint32_t *seed)
{
    *seed = *seed * 1664525u + 1013904223u;
    return *seed >> 16;
}

static float scale_of(int64_t fan_in)
{
    float scale = 1;
    for (int64_t power = 1; power < fan_in; power *= 4) {
        scale /= 2;
    }
    return scale;
}

static void fill_parameters(const shoal_module *m, uint32_t seed)
{
    int64_t fan_in = 1;
    uint32_t i = 0;
    for (shoal_named it = {0}; shoal_module_next(m, &it) == SHOAL_OK;) {
        float *values = shoal_tensor_data(it.tensor);
        uint32_t state = seed + 7919u * ++i;
        if (shoal_tensor_ndim(it.tensor) > 1) {
            fan_in = shoal_tensor_count(it.tensor) / shoal_tensor_size(it.tensor, 0);
        }
        for (int64_t k = 0; k < shoal_tensor_count(it.tensor); k++) {
            values[k] = ((float)lcg(&state) - 32768) / 32768 * scale_of(fan_in);
        }
    }
}

static shoal_tensor *make_images(uint32_t seed, int64_t count)
{
    shoal_tensor *x = shoal_empty(SHOAL_F32, SHOAL_SHAPE(count, 1, 28, 28));
    for (int64_t i = 0; i < count * 784; i++) {
        ((float *)shoal_tensor_data(x))[i] = (float)lcg(&seed) / 65536;
    }
    return x;
}

static shoal_tensor *make_labels(uint32_t seed, int64_t count)
{
    shoal_tensor *y = shoal_empty(SHOAL_I64, SHOAL_SHAPE(count));
    for (int64_t i = 0; i < count; i++) {
        ((int64_t *)shoal_tensor_data(y))[i] = lcg(&seed) % 10;
    }
    return y;
}

static shoal_tensor *make_mask(uint32_t seed, int ndim, const int64_t *shape)
{
    shoal_tensor *t = shoal_empty(SHOAL_F32, ndim, shape);
    for (int64_t i = 0; i < shoal_tensor_count(t); i++) {
        ((float *)shoal_tensor_data(t))[i] = lcg(&seed) >= 32768 ? 2 : 0;
    }
    return t;
}

/* ---- the file ---- */

typedef struct golden {
    FILE *file;
    char model[32], optimizer[16], masks[16];
    uint32_t seed;
    int count;
} golden;

static void expect(const golden *g, bool read)
{
    ck_assert_msg(read, FILE_NAME ": unexpected text at byte %ld", ftell(g->file));
}

/* Opens the file at case n. */
static void golden_open(golden *g, int n)
{
    char line[512];
    *g = (golden){.file = fopen(FILE_NAME, "re")};
    ck_assert_msg(g->file != NULL, "no " FILE_NAME);
    for (int seen = -1; seen < n;) {
        expect(g, fgets(line, sizeof line, g->file) != NULL);
        seen += strncmp(line, "case ", 5) == 0;
    }
    expect(g, sscanf(line, "case %31s %15s %15s %u %d", g->model, g->optimizer, g->masks, &g->seed, &g->count) == 5);
}

typedef struct sample {
    double sum, norm, max;
    long long count, step;
    int stored;
    double values[SAMPLES];
} sample;

static void read_sample(const golden *g, const char *what, const char *name, sample *s)
{
    char found_what[16], found_name[64];
    expect(g, fscanf(g->file, " tensor %15s %63s %lld %lld %d %lf %lf %lf", found_what, found_name, &s->count, &s->step,
                     &s->stored, &s->sum, &s->norm, &s->max) == 8);
    ck_assert_str_eq(found_what, what);
    ck_assert_str_eq(found_name, name);
    ck_assert_int_le(s->stored, SAMPLES);
    for (int i = 0; i < s->stored; i++) {
        expect(g, fscanf(g->file, "%lf", &s->values[i]) == 1);
    }
}

/* ---- comparison ---- */

static void compare_totals(const golden *g, const char *what, const char *name, const sample *s, const float *values)
{
    double sum = 0, squares = 0, max = 0;
    for (long long i = 0; i < s->count; i++) {
        sum += values[i];
        squares += (double)values[i] * values[i];
        max = fmax(max, fabs((double)values[i]));
    }
    double norm = sqrt(squares);
    ck_assert_msg(fabs(norm - s->norm) <= 1e-5 * s->norm, "%s %s, %s %s: norm %.9g, wanted %.9g", g->model,
                  g->optimizer, what, name, norm, s->norm);
    ck_assert_msg(fabs(max - s->max) <= 1e-5 * s->max, "%s %s, %s %s: greatest %.9g, wanted %.9g", g->model,
                  g->optimizer, what, name, max, s->max);
    ck_assert_msg(fabs(sum - s->sum) <= 1e-5 * sqrt((double)s->count) * s->norm, "%s %s, %s %s: sum %.9g, wanted %.9g",
                  g->model, g->optimizer, what, name, sum, s->sum);
}

static void compare_tensor(const golden *g, const char *what, const char *name, const shoal_tensor *t)
{
    sample s;
    read_sample(g, what, name, &s);
    const float *values = shoal_tensor_data(t);
    ck_assert_msg(t && shoal_tensor_is_contiguous(t), "%s %s", what, name);
    ck_assert_int_eq(shoal_tensor_count(t), s.count);
    for (int i = 0; i < s.stored; i++) {
        long long at = i * s.step % s.count;
        double error = fabs((double)values[at] - s.values[i]);
        ck_assert_msg(error <= 1e-5 * s.max && error <= 1e-4 * fabs(s.values[i]) + 1e-6 * s.max,
                      "%s %s, %s %s[%lld]: %.9g, wanted %.9g (greatest %.9g)", g->model, g->optimizer, what, name, at,
                      (double)values[at], s.values[i], s.max);
    }
    compare_totals(g, what, name, &s, values);
}

static void compare_loss(const golden *g, int step, double loss)
{
    int found;
    double wanted;
    expect(g, fscanf(g->file, " loss %d %lf", &found, &wanted) == 2 && found == step);
    ck_assert_msg(fabs(loss - wanted) <= 1e-5 * wanted, "%s %s: loss %d is %.9g, wanted %.9g", g->model, g->optimizer,
                  step, loss, wanted);
}

static void compare_all(const golden *g, const char *what, const shoal_module *m, bool grads)
{
    for (shoal_named it = {0}; shoal_module_next(m, &it) == SHOAL_OK;) {
        compare_tensor(g, what, it.name, grads ? shoal_tensor_grad(it.tensor) : it.tensor);
    }
}

/* ---- the step ---- */

typedef enum way {
    MODEL, /* the model's own forward, with fused ops */
    PARTS, /* op by op, as in PyTorch's example, with dropout as given factors */
} way;

static shoal_tensor *convolve(const shoal_module *m, const char *name, shoal_tensor *x)
{
    return shoal_module_forward(shoal_module_child(m, name), x);
}

static shoal_tensor *forward_by_parts(const shoal_module *m, shoal_tensor *x, shoal_tensor *const *masks)
{
    x = shoal_relu(shoal_max_pool2d(convolve(m, "conv1", x), 2));
    x = convolve(m, "conv2", x);
    x = masks[0] ? shoal_mul(x, masks[0]) : x;
    x = shoal_flatten(shoal_relu(shoal_max_pool2d(x, 2)), 1);
    x = shoal_relu(shoal_module_forward(shoal_module_child(m, "fc1"), x));
    x = masks[1] ? shoal_mul(x, masks[1]) : x;
    return shoal_log_softmax(shoal_module_forward(shoal_module_child(m, "fc2"), x), 1);
}

static shoal_optimizer *make_optimizer(const golden *g, shoal_module *m)
{
    return strcmp(g->optimizer, "sgd") == 0 ? shoal_sgd_create(m, .lr = 0.05, .momentum = 0.5)
                                            : shoal_adam_create(m, .lr = 0.002, .eps = 1e-3);
}

static void three_steps(const golden *g, way how, shoal_tensor *const *masks)
{
    shoal_module *m = shoal_model_create(g->model);
    shoal_tensor *x = make_images(g->seed + 100, g->count), *y = make_labels(g->seed + 101, g->count);
    shoal_optimizer *optimizer = make_optimizer(g, m);
    fill_parameters(m, g->seed);
    shoal_module_train(m, false); /* no dropout; gradients are still recorded */
    for (int step = 1; step <= 3; step++) {
        shoal_optimizer_zero_grad(optimizer);
        shoal_tensor *out = how == MODEL ? shoal_module_forward(m, x) : forward_by_parts(m, x, masks);
        shoal_tensor *loss = shoal_nll_loss(out, y);
        ck_assert_ok(shoal_backward(loss));
        compare_loss(g, step, item_of(loss));
        if (step == 1) {
            compare_all(g, "grad", m, true);
        }
        ck_assert_ok(shoal_optimizer_step(optimizer));
        if (step != 2) {
            compare_all(g, step == 1 ? "after1" : "after3", m, false);
        }
        shoal_scope_release(0);
    }
    shoal_optimizer_destroy(optimizer);
    shoal_module_destroy(m);
    shoal_tensor_release(x);
    shoal_tensor_release(y);
}

static void run_case(int n, way how)
{
    golden g;
    char end[8];
    golden_open(&g, n);
    shoal_tensor *masks[2] = {NULL, NULL};
    if (strcmp(g.masks, "masks") == 0) {
        masks[0] = make_mask(g.seed + 200, SHOAL_SHAPE(g.count, 20, 1, 1));
        masks[1] = make_mask(g.seed + 201, SHOAL_SHAPE(g.count, 50));
    }
    three_steps(&g, how, masks);
    expect(&g, fscanf(g.file, "%7s", end) == 1 && strcmp(end, "end") == 0);
    shoal_tensor_release(masks[0]);
    shoal_tensor_release(masks[1]);
    fclose(g.file);
}

/* A process chooses its kernels at their first use, and each test is a separate process, so each can use different
 * kernels. If this CPU cannot run some kernels, the next lower ones run instead. */
static const char *const kernels[] = {"plain", "avx2", "avx512"};
static const int plain_cases[] = {0, 1, 4, 5};

static void choose_kernels(int i)
{
    setenv("SHOAL_CPU", kernels[i], 1);
    const char *name = i == 0 ? "reference" : kernels[i];
    ck_assert(!sh_kernels_find(name) || sh_kernels_cpu() == sh_kernels_find(name));
}

#define KERNELS (int)(sizeof kernels / sizeof kernels[0])
#define PLAIN_CASES (int)(sizeof plain_cases / sizeof plain_cases[0])

START_TEST(the_model_trains_as_pytorch_does)
{
    choose_kernels(_i % KERNELS);
    run_case(plain_cases[_i / KERNELS], MODEL);
}
END_TEST

START_TEST(the_ops_train_as_pytorch_does)
{
    choose_kernels(_i % KERNELS);
    run_case(_i / KERNELS, PARTS);
}
END_TEST

START_TEST(the_file_has_all_cases)
{
    static const char *const wanted[CASES] = {"mnist-cnn sgd plain",  "mnist-cnn adam plain", "mnist-cnn sgd masks",
                                              "mnist-cnn adam masks", "fedavg-cnn sgd plain", "fedavg-cnn adam plain"};
    for (int i = 0; i < CASES; i++) {
        golden g;
        char title[80];
        golden_open(&g, i);
        snprintf(title, sizeof title, "%s %s %s", g.model, g.optimizer, g.masks);
        ck_assert_str_eq(title, wanted[i]);
        fclose(g.file);
    }
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("golden_train");
    TCase *group = tcase_create("golden_train");
    tcase_set_timeout(group, SH_TEST_SECONDS);
    tcase_add_checked_fixture(group, sh_leaks_begin, sh_leaks_end);
    tcase_add_test(group, the_file_has_all_cases);
    tcase_add_loop_test(group, the_model_trains_as_pytorch_does, 0, PLAIN_CASES * KERNELS);
    tcase_add_loop_test(group, the_ops_train_as_pytorch_does, 0, CASES * KERNELS);
    suite_add_tcase(s, group);
    return s;
}

SH_TEST_MAIN(suite)
