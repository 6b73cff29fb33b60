/* What the loader tests share: a data set that counts, and a loop over one epoch. */
#ifndef SH_DATA_LOADER_TEST_H
#define SH_DATA_LOADER_TEST_H

#include "proc/process_test.h"

#include <stdlib.h>
#include <string.h>

/* Makes a data set of n samples: x is [number, -number], y the number. */
static inline shoal_dataset *counting(int64_t n)
{
    shoal_tensor *x = shoal_empty(SHOAL_F32, SHOAL_SHAPE(n, 2)), *y = shoal_empty(SHOAL_I64, SHOAL_SHAPE(n));
    for (int64_t i = 0; i < n; i++) {
        ((float *)shoal_tensor_data(x))[2 * i] = (float)i;
        ((float *)shoal_tensor_data(x))[2 * i + 1] = -(float)i;
        ((int64_t *)shoal_tensor_data(y))[i] = i;
    }
    shoal_dataset *set = shoal_tensor_dataset(x, y);
    shoal_tensor_release(x);
    shoal_tensor_release(y);
    return set;
}

static inline shoal_loader *must_load(shoal_dataset *set, shoal_loader_options o)
{
    shoal_loader *loader = shoal_loader_create_with(set, &o);
    ck_assert_msg(loader != NULL, "%s", shoal_last_error_text());
    return loader;
}

/* Writes the numbers of a batch, checked against x. Returns how many there are. */
static inline int64_t numbers_of(const shoal_batch *b, int64_t *out)
{
    const float *x = shoal_tensor_data(b->x);
    const int64_t *y = shoal_tensor_data(b->y);
    ck_assert_int_eq(shoal_tensor_size(b->x, 0), b->count);
    ck_assert_int_eq(shoal_tensor_size(b->y, 0), b->count);
    for (int64_t i = 0; i < b->count; i++) {
        ck_assert_msg(x[2 * i] == (float)y[i] && x[2 * i + 1] == -(float)y[i], "batch %lld, row %lld: %g, %g, %lld",
                      (long long)b->index, (long long)i, (double)x[2 * i], (double)x[2 * i + 1], (long long)y[i]);
        out[i] = y[i];
    }
    return b->count;
}

/* Writes the samples of one epoch in the order in which they come. Returns how many there are. */
static inline int64_t one_epoch(shoal_loader *loader, int64_t *out)
{
    int64_t n = 0, batch = 0;
    shoal_err err;
    for (shoal_batch b; (err = shoal_loader_next(loader, &b)) == SHOAL_OK;) {
        ck_assert_int_eq(b.index, batch++);
        n += numbers_of(&b, out + n);
    }
    ck_assert_msg(err == SHOAL_END, "%s", shoal_last_error_text());
    ck_assert_int_eq(batch, shoal_loader_batches(loader));
    return n;
}

static inline void assert_each_once(const int64_t *numbers, int64_t n)
{
    bool *seen = calloc((size_t)n, 1);
    for (int64_t i = 0; i < n; i++) {
        ck_assert(numbers[i] >= 0 && numbers[i] < n && !seen[numbers[i]]);
        seen[numbers[i]] = true;
    }
    free(seen);
}

#endif
