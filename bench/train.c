/* Training on one thread of one process: images per second with loading, shuffling, dropout and SGD, compared with the
 * FMA peak. */
#include "bench/bench.h"

#include <string.h>

#define ROUNDS 7

/* The multiply-adds of a training step for one image, counted densely: forward, and the gradients of weights and
 * inputs, except the gradient of the first layer's input. */
typedef struct job {
    const char *name;
    const char *model;
    int64_t batch;
    int64_t images; /* in a round */
    double lr, momentum;
    double flops; /* per image */
} job;

/* The flops of a layer's forward pass. */
#define CONV(in, out, side) (2.0 * (in) * (out)*25 * (side) * (side))
#define DENSE(in, out) (2.0 * (in) * (out))

static const job jobs[] = {
    {"train_mnist_cnn_images_per_second", "mnist-cnn", 64, 6400, 0.01, 0.5,
     2 * CONV(1, 10, 24) + 3 * (CONV(10, 20, 8) + DENSE(320, 50) + DENSE(50, 10))},
    {"train_fedavg_cnn_b10_images_per_second", "fedavg-cnn", 10, 500, 0.1, 0,
     2 * CONV(1, 32, 28) + 3 * (CONV(32, 64, 14) + DENSE(3136, 512) + DENSE(512, 10))},
    {"train_fedavg_cnn_b50_images_per_second", "fedavg-cnn", 50, 1000, 0.1, 0,
     2 * CONV(1, 32, 28) + 3 * (CONV(32, 64, 14) + DENSE(3136, 512) + DENSE(512, 10))},
};

typedef struct trainer {
    shoal_module *model;
    shoal_optimizer *sgd;
    shoal_loader *loader;
    double first_loss, last_loss; /* means over a round */
} trainer;

static shoal_err begin(trainer *t, const job *j, shoal_dataset *data)
{
    shoal_manual_seed(1);
    t->model = shoal_model_create(j->model);
    t->sgd = t->model ? shoal_sgd_create(t->model, .lr = j->lr, .momentum = j->momentum) : NULL;
    t->loader = t->sgd ? shoal_loader_create(data, .batch = j->batch, .shuffle = true, .seed = 1) : NULL;
    return t->loader ? SHOAL_OK : shoal_last_error();
}

static void end(trainer *t)
{
    shoal_loader_destroy(t->loader);
    shoal_optimizer_destroy(t->sgd);
    shoal_module_destroy(t->model);
}

static shoal_err steps(trainer *t, int64_t images)
{
    double sum = 0;
    int64_t seen = 0, batches = 0;
    while (seen < images) {
        shoal_batch b;
        shoal_err err = shoal_loader_next(t->loader, &b);
        if (err == SHOAL_END) {
            continue;
        }
        if (err != SHOAL_OK) {
            return err;
        }
        shoal_optimizer_zero_grad(t->sgd);
        shoal_tensor *loss = shoal_nll_loss(shoal_module_forward(t->model, b.x), b.y);
        err = shoal_backward(loss);
        if (err == SHOAL_OK) {
            err = shoal_optimizer_step(t->sgd);
        }
        double number = 0;
        err = err == SHOAL_OK ? shoal_item(loss, &number) : err;
        if (err != SHOAL_OK) {
            return err;
        }
        sum += number;
        seen += b.count;
        batches++;
    }
    t->last_loss = sum / (double)batches;
    return SHOAL_OK;
}

/* The loss must have fallen: a kernel that does nothing would be fast too. */
static shoal_err check(const trainer *t, const job *j)
{
    return t->last_loss < 0.8 * t->first_loss ? SHOAL_OK
                                              : shoal_fail(SHOAL_ECORRUPT, "train: the loss of %s went from %g to %g",
                                                           j->model, t->first_loss, t->last_loss);
}

static shoal_err measure(const job *j, shoal_dataset *data, double *out_rate, double *out_peak)
{
    trainer t = {0};
    double rates[ROUNDS], peaks[ROUNDS];
    shoal_err err = begin(&t, j, data);
    if (err == SHOAL_OK) {
        err = steps(&t, 2 * j->batch);
    }
    t.first_loss = t.last_loss;
    if (err == SHOAL_OK) {
        err = steps(&t, j->images);
    }
    for (int i = 0; i < ROUNDS && err == SHOAL_OK; i++) {
        peaks[i] = bench_fma_peak();
        double begun = bench_now();
        err = steps(&t, j->images);
        rates[i] = (double)j->images / (bench_now() - begun);
    }
    if (err == SHOAL_OK) {
        err = check(&t, j);
    }
    if (err == SHOAL_OK) {
        *out_rate = bench_median(rates, ROUNDS);
        *out_peak = bench_median(peaks, ROUNDS);
    }
    end(&t);
    return err;
}

static shoal_err tell(bench_report *report, const job *j, double rate, double peak)
{
    char name[64];
    shoal_err err = bench_tell_limit(report, BENCH_FMA, peak);
    if (err == SHOAL_OK) {
        err = bench_tell(report, &(bench_line){.name = j->name, .unit = "1/s", .value = rate});
    }
    size_t stem = strlen(j->name) - strlen("_images_per_second");
    memcpy(name, j->name, stem);
    strcpy(name + stem, "_gflops");
    if (err == SHOAL_OK) {
        err = bench_tell(report, &(bench_line){.name = name,
                                               .unit = "GFLOP/s",
                                               .value = rate * j->flops * 1e-9,
                                               .limit_name = bench_limit_name(BENCH_FMA),
                                               .limit = peak});
    }
    return err;
}

/* ---- the memory of a worker that trains a shared model ---- */

static shoal_err train_once(int rank, const shoal_value *args)
{
    shoal_module *model = shoal_arg_module(args, "model");
    shoal_optimizer *sgd = model ? shoal_sgd_create(model, .lr = 0.01, .momentum = 0.5) : NULL;
    shoal_tensor *x = sgd ? shoal_zeros(SHOAL_F32, SHOAL_SHAPE(64, 1, 28, 28)) : NULL;
    shoal_tensor *y = x ? shoal_zeros(SHOAL_I64, SHOAL_SHAPE(64)) : NULL;
    shoal_err err = y ? SHOAL_OK : shoal_last_error();
    if (err == SHOAL_OK) {
        err = shoal_normal_(x, 0, 1) ? shoal_backward(shoal_nll_loss(shoal_module_forward(model, x), y))
                                     : shoal_last_error();
    }
    if (err == SHOAL_OK) {
        err = shoal_optimizer_step(sgd);
    }
    if (err == SHOAL_OK) {
        err = bench_idle(rank, args);
    }
    shoal_tensor_release(x);
    shoal_tensor_release(y);
    shoal_optimizer_destroy(sgd);
    return err;
}

static shoal_err report_worker(bench_report *report)
{
    shoal_module *model = shoal_model_create("mnist-cnn");
    shoal_err err = model ? shoal_module_share(model) : shoal_last_error();
    if (err == SHOAL_OK) {
        err = bench_worker_pss(report, "train_worker_pss", 12288, train_once, shoal_map("model", model));
    }
    shoal_module_destroy(model);
    return err;
}

shoal_err bench_train(bench_report *report)
{
    shoal_dataset *data = shoal_mnist(SHOAL_PART_TRAIN);
    if (!data) {
        return bench_tell_skip(report, jobs[0].name, shoal_last_error_text());
    }
    shoal_err err = SHOAL_OK;
    for (size_t i = 0; i < sizeof jobs / sizeof *jobs && err == SHOAL_OK; i++) {
        double rate = 0, peak = 0;
        err = measure(&jobs[i], data, &rate, &peak);
        if (err == SHOAL_OK) {
            err = tell(report, &jobs[i], rate, peak);
        }
    }
    shoal_dataset_release(data);
    if (err == SHOAL_OK) {
        err = report_worker(report);
    }
    return err == SHOAL_OK ? bench_loader(report) : err;
}
