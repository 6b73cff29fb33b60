/* A loader over MNIST: microseconds for a batch of 64, fetched here and by workers, beside a memcpy of as many bytes as a batch has.
 * One JSON object a line. */
#include <shoal/shoal.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define BATCH 64
#define ROUNDS 9

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static int compare(const void *left, const void *right)
{
    double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

static double median(double *values)
{
    qsort(values, ROUNDS, sizeof *values, compare);
    return values[ROUNDS / 2];
}

/* One epoch; the sum of its labels tells that all came. Microseconds a batch, or below 0. */
static double epoch(shoal_loader *loader, int64_t labels)
{
    int64_t sum = 0;
    double begin = now();
    for (shoal_batch b; shoal_loader_next(loader, &b);) {
        const int64_t *y = shoal_tensor_data(b.y);
        for (int64_t i = 0; i < b.count; i++) {
            sum += y[i];
        }
    }
    double seconds = now() - begin;
    return shoal_loader_error(loader) == SHOAL_OK && sum == labels
               ? seconds * 1e6 / (double)shoal_loader_batches(loader)
               : -1;
}

static double limit(void)
{
    enum { SIZE = BATCH * 28 * 28 * 4, TIMES = 1000 };
    static char from[SIZE], to[SIZE];
    double rounds[ROUNDS];
    for (int r = 0; r < ROUNDS; r++) {
        double begin = now();
        for (int i = 0; i < TIMES; i++) {
            memcpy(to, from, SIZE);
            __asm__ volatile("" ::"r"(to) : "memory");
        }
        rounds[r] = (now() - begin) * 1e6 / TIMES;
    }
    return median(rounds);
}

static bool measure(shoal_dataset *set, int64_t labels, int workers, double memcpy_us)
{
    double rounds[ROUNDS];
    shoal_loader *loader = shoal_loader_create(set, .batch = BATCH, .shuffle = true, .seed = 1, .workers = workers);
    bool good = loader != NULL && epoch(loader, labels) >= 0; /* warms up */
    for (int r = 0; good && r < ROUNDS; r++) {
        rounds[r] = epoch(loader, labels);
        good = rounds[r] >= 0;
    }
    shoal_loader_destroy(loader);
    if (!good) {
        fprintf(stderr, "loader with %d workers: wrong sum, or %s\n", workers, shoal_last_error_text());
        return false;
    }
    printf("{\"name\": \"loader_mnist_64_workers_%d\", \"value\": %.2f, \"unit\": \"us\", \"limit\": %.2f, "
           "\"limit_name\": "
           "\"memcpy of a batch\"}\n",
           workers, median(rounds), memcpy_us);
    return true;
}

int main(int argc, char **argv)
{
    if (shoal_init(&argc, &argv) != SHOAL_OK) {
        return EXIT_FAILURE;
    }
    double memcpy_us = limit(), begin = now();
    shoal_dataset *set = shoal_mnist(SHOAL_TRAIN);
    shoal_tensor *labels = set != NULL ? shoal_dataset_labels(set) : NULL;
    if (labels == NULL) {
        fprintf(stderr, "loader: %s\n", shoal_last_error_text());
        return EXIT_FAILURE;
    }
    printf("{\"name\": \"mnist_open\", \"value\": %.0f, \"unit\": \"ms\", \"limit\": null, \"limit_name\": null}\n",
           (now() - begin) * 1e3);
    int64_t sum = 0;
    for (int64_t i = 0; i < shoal_tensor_count(labels); i++) {
        sum += ((const int64_t *)shoal_tensor_data(labels))[i];
    }
    bool good = true;
    for (int workers = 0; good && workers <= 2; workers++) {
        good = measure(set, sum, workers, memcpy_us);
    }
    shoal_tensor_release(labels);
    shoal_dataset_release(set);
    return good ? EXIT_SUCCESS : EXIT_FAILURE;
}
