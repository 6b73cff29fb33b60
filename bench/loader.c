/* Batches of 64 from MNIST, shuffled and normalised: in this process, and by two workers. */
#include "bench/bench.h"

#include <string.h>

#define BATCH 64
#define ROUNDS 9
#define BYTES (BATCH * 28 * 28 * sizeof(float))
#define COPIES 1000

/* Runs one epoch. The sum of the labels proves that all samples arrived. */
static shoal_err epoch(shoal_loader *loader, int64_t labels, double *out_rate)
{
    int64_t sum = 0;
    double begun = bench_now();
    shoal_err err;
    for (shoal_batch b; (err = shoal_loader_next(loader, &b)) == SHOAL_OK;) {
        const int64_t *y = shoal_tensor_data(b.y);
        for (int64_t i = 0; i < b.count; i++) {
            sum += y[i];
        }
    }
    *out_rate = (double)shoal_loader_batches(loader) / (bench_now() - begun);
    if (err == SHOAL_END && sum != labels) {
        return shoal_fail(SHOAL_ECORRUPT, "loader: the sum of the labels is wrong");
    }
    return err == SHOAL_END ? SHOAL_OK : err;
}

/* The limit: how often as many bytes as a batch has can be copied in a second. */
static double copies_per_second(void)
{
    static char from[BYTES], to[BYTES];
    double rates[ROUNDS];
    for (int r = 0; r < ROUNDS; r++) {
        double begun = bench_now();
        for (int i = 0; i < COPIES; i++) {
            memcpy(to, from, BYTES);
            __asm__ volatile("" ::"r"(to) : "memory");
        }
        rates[r] = COPIES / (bench_now() - begun);
    }
    return bench_median(rates, ROUNDS);
}

static shoal_err measure(bench_report *report, shoal_dataset *set, int64_t labels, int workers, const char *name)
{
    double rates[ROUNDS], limit = copies_per_second();
    shoal_loader *loader = shoal_loader_create(set, .batch = BATCH, .shuffle = true, .seed = 1, .workers = workers);
    shoal_err err = loader ? epoch(loader, labels, &rates[0]) : shoal_last_error(); /* warms up */
    for (int r = 0; r < ROUNDS && err == SHOAL_OK; r++) {
        err = epoch(loader, labels, &rates[r]);
    }
    shoal_loader_destroy(loader);
    if (err != SHOAL_OK) {
        return err;
    }
    return bench_tell(report, &(bench_line){.name = name,
                                            .unit = "1/s",
                                            .value = bench_median(rates, ROUNDS),
                                            .limit_name = "memcpy_of_a_batch",
                                            .limit = limit});
}

static int64_t sum_of(const shoal_tensor *labels)
{
    const int64_t *y = shoal_tensor_data(labels);
    int64_t sum = 0;
    for (int64_t i = 0; i < shoal_tensor_count(labels); i++) {
        sum += y[i];
    }
    return sum;
}

shoal_err bench_loader(bench_report *report)
{
    shoal_dataset *set = shoal_mnist(SHOAL_PART_TRAIN);
    shoal_tensor *labels = set ? shoal_dataset_labels(set) : NULL;
    shoal_err err = labels ? SHOAL_OK : shoal_last_error();
    if (err == SHOAL_OK) {
        err = measure(report, set, sum_of(labels), 0, "loader_batches_per_second");
    }
    if (err == SHOAL_OK) {
        err = measure(report, set, sum_of(labels), 2, "loader_2_workers_batches_per_second");
    }
    shoal_tensor_release(labels);
    shoal_dataset_release(set);
    return err;
}
