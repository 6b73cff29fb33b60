/* Shared by the tests of jobs: small parts of MNIST, and comparisons of models. */
#ifndef SH_TRAIN_TRAIN_TEST_H
#define SH_TRAIN_TRAIN_TEST_H

#include "tests/harness/runner.h"

#include <shoal/train.h>

#include <math.h>
#include <stdlib.h>

/* The first images of a part. */
static inline shoal_dataset *part_of(shoal_part part, int64_t count)
{
    int64_t *numbers = calloc((size_t)count, sizeof *numbers);
    for (int64_t i = 0; i < count; i++) {
        numbers[i] = i;
    }
    shoal_dataset *all = shoal_mnist(part), *some = shoal_subset(all, numbers, count);
    shoal_dataset_release(all);
    free(numbers);
    ck_assert_msg(some != NULL, "%s", shoal_last_error_text());
    return some;
}

static inline void assert_same_bits(const shoal_module *a, const shoal_module *b)
{
    for (shoal_named it = {0}; shoal_module_next(a, &it) == SHOAL_OK;) {
        ck_assert_msg(shoal_tensor_equal(it.tensor, shoal_module_get(b, it.name)), "%s differs", it.name);
    }
}

/* The greatest difference. */
static inline double most_apart(const shoal_module *a, const shoal_module *b)
{
    double most = 0;
    for (shoal_named it = {0}; shoal_module_next(a, &it) == SHOAL_OK;) {
        const float *x = shoal_tensor_data(it.tensor), *y = shoal_tensor_data(shoal_module_get(b, it.name));
        for (int64_t i = 0; i < shoal_tensor_count(it.tensor); i++) {
            most = fmax(most, fabs((double)x[i] - (double)y[i]));
        }
    }
    return most;
}

#endif
