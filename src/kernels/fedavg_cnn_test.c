/* Tests of the step of fedavg-cnn: the plain one against the module, and a GPU's against the plain one. */
#include "kernels/kernels_test.h"

#include <shoal/autograd.h>
#include <shoal/nn.h>
#include <shoal/ops.h>
#include <shoal/tensor.h>

#define TENSORS SH_FEDAVG_CNN_TENSORS
#define IMAGES 200
#define ORDER 130 /* entries of each client */
#define FIRST 20  /* where the batch begins in it */

static const int64_t sizes[TENSORS] = {800, 32, 51200, 64, 512 * 3136, 512, 5120, 10};
static const double fans[TENSORS] = {25, 25, 800, 800, 3136, 3136, 512, 512};

typedef enum form { STEP, MOMENTUM, KEEP, SCORE, FORMS } form; /* SCORE: it only tests */

#define SCORES 20 /* two for each client */

typedef struct job {
    int clients;
    int64_t batch;
    bool uneven; /* of every three clients one has half of the batch, and one nothing */
    form form;
    bool tf32;
} job;

/* What a step reads and writes. The floats are param, momentum and grad: [3][clients][stride]. */
typedef struct data {
    float *floats;
    uint8_t *pixels, *labels;
    int64_t *order, *counts, state;
    float loss;
    double score[SCORES];
    int64_t at[TENSORS], stride;
    size_t float_bytes;
} data;

static void *room(size_t size)
{
    void *p = aligned_alloc(256, (size + 255) / 256 * 256);
    ck_assert_ptr_nonnull(p);
    return p;
}

static data data_make(const job *j, uint64_t seed)
{
    data d = {.state = FIRST, .loss = 0.5F};
    for (int t = 0; t < TENSORS; t++) {
        d.at[t] = d.stride;
        d.stride += (sizes[t] + 63) / 64 * 64;
    }
    int64_t all = j->clients * d.stride;
    d.float_bytes = (size_t)(3 * all) * sizeof(float);
    d.floats = room(d.float_bytes);
    for (int64_t i = 0; i < 3 * all; i++) {
        d.floats[i] = (float)unit(&seed) * 0.01F;
    }
    for (int c = 0; c < j->clients; c++) {
        for (int t = 0; t < TENSORS; t++) {
            for (int64_t i = 0; i < sizes[t]; i++) {
                d.floats[c * d.stride + d.at[t] + i] = (float)(unit(&seed) / sqrt(fans[t]));
            }
        }
    }
    d.pixels = room(IMAGES * 784);
    d.labels = room(IMAGES);
    d.order = room((size_t)j->clients * ORDER * sizeof(int64_t));
    d.counts = room((size_t)j->clients * sizeof(int64_t));
    for (int64_t i = 0; i < (int64_t)IMAGES * 784; i++) {
        d.pixels[i] = below(&seed, 2) ? (uint8_t)below(&seed, 256) : 0;
    }
    for (int i = 0; i < IMAGES; i++) {
        d.labels[i] = (uint8_t)below(&seed, 10);
    }
    for (int c = 0; c < j->clients; c++) {
        int64_t less[3] = {j->batch / 2, j->batch + 5, -7};
        d.counts[c] = FIRST + j->batch - (j->uneven ? less[c % 3] : 0);
        for (int i = 0; i < ORDER; i++) {
            d.order[c * ORDER + i] = below(&seed, IMAGES);
        }
    }
    return d;
}

static data data_copy(const data *from, const job *j)
{
    data d = *from;
    d.floats = room(d.float_bytes);
    memcpy(d.floats, from->floats, d.float_bytes);
    d.pixels = room(IMAGES * 784);
    memcpy(d.pixels, from->pixels, IMAGES * 784);
    d.labels = room(IMAGES);
    memcpy(d.labels, from->labels, IMAGES);
    d.order = room((size_t)j->clients * ORDER * sizeof(int64_t));
    memcpy(d.order, from->order, (size_t)j->clients * ORDER * sizeof(int64_t));
    d.counts = room((size_t)j->clients * sizeof(int64_t));
    memcpy(d.counts, from->counts, (size_t)j->clients * sizeof(int64_t));
    return d;
}

static void data_free(data *d)
{
    free(d->floats);
    free(d->pixels);
    free(d->labels);
    free(d->order);
    free(d->counts);
}

/* The step of these memories, wherever they are. */
static sh_fedavg_cnn_step step_of(const job *j, const data *d, float *floats, int64_t *state, float *loss,
                                  double *score)
{
    sh_fedavg_cnn_step s = {.stride = d->stride,
                            .clients = j->clients,
                            .pixels = d->pixels,
                            .labels = d->labels,
                            .order = d->order,
                            .order_stride = ORDER,
                            .counts = d->counts,
                            .scale = 0.013F,
                            .shift = -0.4F,
                            .batch = j->batch,
                            .state = state,
                            .lr = 0.5F,
                            .momentum_factor = 0.9F,
                            .loss = loss,
                            .tf32 = j->tf32,
                            .score = j->form == SCORE ? score : NULL};
    for (int t = 0; t < TENSORS; t++) {
        s.param[t] = floats + d->at[t];
        s.momentum[t] = j->form == MOMENTUM ? floats + j->clients * d->stride + d->at[t] : NULL;
        s.grad[t] = j->form == KEEP ? floats + 2 * j->clients * d->stride + d->at[t] : NULL;
    }
    return s;
}

static void step_plain(const job *j, data *d)
{
    sh_exec exec = {0};
    const sh_fedavg_cnn_kernels *k = &sh_fedavg_cnn_kernels_reference;
    void *scratch = room(k->scratch_size(j->batch, j->clients));
    sh_fedavg_cnn_step s = step_of(j, d, d->floats, &d->state, &d->loss, d->score);
    ck_assert_ok(k->step(&exec, &s, scratch));
    free(scratch);
    free(exec.scratch);
}

static void *sent(const sh_device *device, const void *from, size_t size)
{
    void *to = device->alloc(size);
    ck_assert_ptr_nonnull(to);
    ck_assert_ok(device->write(to, from, size));
    return to;
}

/* The scratch memory is full of NaN: a step must not use what it finds there. */
static void step_card(const sh_device *device, const job *j, data *d)
{
    const sh_fedavg_cnn_kernels *k = device->kernels()->fedavg_cnn;
    size_t pixels = IMAGES * 784, order = (size_t)j->clients * ORDER * sizeof(int64_t);
    size_t counts = (size_t)j->clients * sizeof(int64_t), scratch_size = k->scratch_size(j->batch, j->clients);
    void *poison = room(scratch_size);
    memset(poison, 0xff, scratch_size);
    void *scratch = sent(device, poison, scratch_size);
    data there = *d;
    there.pixels = sent(device, d->pixels, pixels);
    there.labels = sent(device, d->labels, IMAGES);
    there.order = sent(device, d->order, order);
    there.counts = sent(device, d->counts, counts);
    float *floats = sent(device, d->floats, d->float_bytes), *loss = sent(device, &d->loss, sizeof(float));
    int64_t *state = sent(device, &d->state, sizeof(int64_t));
    double *score = sent(device, d->score, sizeof d->score);

    sh_fedavg_cnn_step s = step_of(j, &there, floats, state, loss, score);
    ck_assert_ok(k->step(device->exec(), &s, scratch));
    ck_assert_ok(device->wait());
    ck_assert_ok(device->read(d->floats, floats, d->float_bytes));
    ck_assert_ok(device->read(&d->loss, loss, sizeof(float)));
    ck_assert_ok(device->read(&d->state, state, sizeof(int64_t)));
    ck_assert_ok(device->read(d->score, score, sizeof d->score));

    free(poison);
    device->free(scratch, scratch_size);
    device->free(there.pixels, pixels);
    device->free(there.labels, IMAGES);
    device->free(there.order, order);
    device->free(there.counts, counts);
    device->free(floats, d->float_bytes);
    device->free(loss, sizeof(float));
    device->free(state, sizeof(int64_t));
    device->free(score, sizeof d->score);
}

/* Returns the length of got - wanted, relative to what the step changed, beyond what rounding the result explains. */
static double error_of(const float *got, const float *wanted, const float *before, int64_t n)
{
    double difference = 0, change = 0, size = 0;
    for (int64_t i = 0; i < n; i++) {
        difference += ((double)got[i] - wanted[i]) * ((double)got[i] - wanted[i]);
        change += ((double)wanted[i] - before[i]) * ((double)wanted[i] - before[i]);
        size += (double)wanted[i] * wanted[i];
    }
    double over = sqrt(difference) - 1e-7 * sqrt(size);
    return isnan(over) ? INFINITY : over <= 0 ? 0 : over / sqrt(change);
}

/* TF32 decides more windows and relus otherwise than f32. */
static double tolerance(const job *j)
{
    return j->tf32 ? 0.05 : 2e-5;
}

/* Returns the greatest error of client c's tensors. Their gaps, and a client without rows, must be untouched. */
static double client_error(const job *j, int c, const data *got, const data *wanted, const data *before)
{
    double worst = 0;
    for (int kind = 0; kind < 3; kind++) {
        int64_t base = (kind * j->clients + c) * got->stride;
        for (int t = 0; t < TENSORS; t++) {
            int64_t at = base + got->at[t], end = t + 1 < TENSORS ? base + got->at[t + 1] : base + got->stride;
            int64_t gap = at + sizes[t];
            ck_assert_mem_eq(got->floats + gap, before->floats + gap, (size_t)(end - gap) * sizeof(float));
            if (memcmp(wanted->floats + at, before->floats + at, (size_t)sizes[t] * sizeof(float)) == 0) {
                ck_assert_mem_eq(got->floats + at, before->floats + at, (size_t)sizes[t] * sizeof(float));
                continue;
            }
            double error = error_of(got->floats + at, wanted->floats + at, before->floats + at, sizes[t]);
            if (error > tolerance(j)) {
                printf("%d clients, batch %d, form %d, tf32 %d: client %d tensor %d kind %d is off by %.2g\n",
                       j->clients, (int)j->batch, (int)j->form, j->tf32, c, t, kind, error);
            }
            worst = error > worst ? error : worst;
        }
    }
    return worst;
}

/* Two values of a window, or of relu and 0, may be so near each other that rounding decides which wins: then gradients
 * differ in their second digit. That is rare in f32. */
static void compare(const sh_device *device, const job *j, int *clients, int *loose)
{
    data before = data_make(j, 11 + (uint64_t)j->batch), wanted = data_copy(&before, j), got = data_copy(&before, j);
    data again = data_copy(&before, j);
    step_plain(j, &wanted);
    step_card(device, j, &got);
    step_card(device, j, &again);
    ck_assert_mem_eq(got.floats, again.floats, got.float_bytes);
    ck_assert_mem_eq(&got.loss, &again.loss, sizeof(float));
    ck_assert_mem_eq(got.score, again.score, sizeof got.score);
    ck_assert_int_eq(got.state, wanted.state);
    for (int i = 0; i < SCORES; i += 2) {
        ck_assert_double_eq_tol(got.score[i], wanted.score[i], (j->tf32 ? 2e-3 : 5e-6) * (double)j->batch);
        ck_assert_double_eq_tol(got.score[i + 1], wanted.score[i + 1], j->tf32 ? 1.5 : 0.5);
    }
    ck_assert_float_eq_tol(got.loss, wanted.loss, j->tf32 ? 2e-3F : 5e-6F);
    for (int c = 0; c < j->clients; c++) {
        double error = client_error(j, c, &got, &wanted, &before);
        ck_assert_msg(error < 0.1, "%d clients, batch %d, form %d, tf32 %d: client %d is off by %g", j->clients,
                      (int)j->batch, (int)j->form, j->tf32, c, error);
        *clients += 1;
        *loose += error > tolerance(j);
    }
    data_free(&before);
    data_free(&wanted);
    data_free(&got);
    data_free(&again);
}

static void compare_all(const job *jobs, int count)
{
    const sh_device *device = sh_mirror_device();
    if (device == NULL || device->kernels()->fedavg_cnn == NULL) {
        printf("not compared: the GPU's step\n");
        return;
    }
    int clients = 0, loose = 0;
    for (int i = 0; i < count; i++) {
        if (jobs[i].clients * jobs[i].batch <= (sh_mirror_is_host() ? 2 : sh_is_short() ? 50 : 500)) {
            compare(device, &jobs[i], &clients, &loose);
        }
    }
    ck_assert_msg(loose * 6 <= clients, "%d of %d clients' steps differ", loose, clients);
}

START_TEST(a_card_takes_the_step)
{
    static const job jobs[] = {
        {1, 1, false, STEP, false},  {1, 1, false, KEEP, false},     {1, 3, false, MOMENTUM, false},
        {1, 10, false, KEEP, false}, {1, 10, false, STEP, false},    {1, 50, false, KEEP, false},
        {1, 50, true, STEP, false},  {1, 20, false, KEEP, false},    {1, 60, true, MOMENTUM, false},
        {2, 3, false, STEP, false},  {2, 10, false, MOMENTUM, false}};
    compare_all(jobs, sizeof jobs / sizeof *jobs);
}
END_TEST

START_TEST(clients_may_have_fewer_rows_or_none)
{
    static const job jobs[] = {{2, 1, true, MOMENTUM, false},  {2, 10, true, STEP, false},
                               {3, 10, true, MOMENTUM, false}, {3, 50, true, KEEP, false},
                               {10, 3, true, STEP, false},     {10, 10, true, MOMENTUM, false},
                               {10, 10, false, KEEP, false},   {10, 50, true, MOMENTUM, false}};
    compare_all(jobs, sizeof jobs / sizeof *jobs);
}
END_TEST

START_TEST(a_card_takes_the_step_in_tf32)
{
    static const job jobs[] = {{1, 1, false, KEEP, true}, {1, 2, false, STEP, true}, {1, 10, false, MOMENTUM, true},
                               {1, 50, true, KEEP, true}, {3, 10, true, KEEP, true}, {10, 10, false, STEP, true},
                               {1, 20, false, STEP, true}};
    compare_all(jobs, sizeof jobs / sizeof *jobs);
}
END_TEST

START_TEST(a_card_tests)
{
    static const job jobs[] = {{1, 2, false, SCORE, false},
                               {1, 10, false, SCORE, false},
                               {1, 100, true, SCORE, false},
                               {3, 10, true, SCORE, false},
                               {1, 100, false, SCORE, true}};
    compare_all(jobs, sizeof jobs / sizeof *jobs);
}
END_TEST

/* Computes the module's loss and gradients of the batch of the one client. */
static void module_gradients(const job *j, data *d)
{
    static const char *const names[TENSORS] = {"conv1.weight", "conv1.bias", "conv2.weight", "conv2.bias",
                                               "fc1.weight",   "fc1.bias",   "fc2.weight",   "fc2.bias"};
    size_t mark = shoal_scope_mark();
    sh_fedavg_cnn_step s = step_of(j, d, d->floats, &d->state, &d->loss, d->score);
    shoal_module *model = shoal_model_create("fedavg-cnn");
    shoal_tensor *x = shoal_scoped(shoal_empty(SHOAL_F32, SHOAL_SHAPE(j->batch, 1, 28, 28)));
    shoal_tensor *target = shoal_scoped(shoal_empty(SHOAL_I64, SHOAL_SHAPE(j->batch)));
    for (int t = 0; t < TENSORS; t++) {
        shoal_tensor *param = shoal_module_get(model, names[t]);
        ck_assert_int_eq(shoal_tensor_count(param), sizes[t]);
        memcpy(shoal_tensor_data(param), s.param[t], (size_t)sizes[t] * sizeof(float));
    }
    for (int64_t i = 0; i < j->batch; i++) {
        int64_t sample = d->order[FIRST + i];
        ((int64_t *)shoal_tensor_data(target))[i] = d->labels[sample];
        for (int k = 0; k < 784; k++) {
            ((float *)shoal_tensor_data(x))[i * 784 + k] = (float)d->pixels[sample * 784 + k] * s.scale + s.shift;
        }
    }
    shoal_tensor *loss = shoal_nll_loss(shoal_module_forward(model, x), target);
    ck_assert_ok(shoal_backward(loss));
    d->loss += *(float *)shoal_tensor_data(loss);
    for (int t = 0; t < TENSORS; t++) {
        shoal_tensor *grad = shoal_tensor_grad(shoal_module_get(model, names[t]));
        memcpy(s.grad[t], shoal_tensor_data(grad), (size_t)sizes[t] * sizeof(float));
    }
    d->state += j->batch;
    shoal_scope_release(mark);
    shoal_module_destroy(model);
}

START_TEST(the_plain_step_is_the_modules)
{
    job j = {1, 4, false, KEEP, false};
    data before = data_make(&j, 3), wanted = data_copy(&before, &j), got = data_copy(&before, &j);
    module_gradients(&j, &wanted);
    step_plain(&j, &got);
    ck_assert_int_eq(got.state, wanted.state);
    ck_assert_float_eq_tol(got.loss, wanted.loss, 1e-6F);
    ck_assert(client_error(&j, 0, &got, &wanted, &before) <= 1e-5);
    data_free(&before);
    data_free(&wanted);
    data_free(&got);
}
END_TEST

KERNELS_SUITE("fedavg_cnn", the_plain_step_is_the_modules, a_card_takes_the_step, clients_may_have_fewer_rows_or_none,
              a_card_takes_the_step_in_tf32, a_card_tests)
