/* Read elements of tensors as numbers, in tests and in the processes they start.
 * A failure gives NaN, which equals nothing. */
#ifndef SH_TESTING_NUMBERS_H
#define SH_TESTING_NUMBERS_H

#include <shoal/tensor.h>

#include <math.h>

static inline double item_of(const shoal_tensor *t)
{
    double x = NAN;
    return shoal_item(t, &x) == SHOAL_OK ? x : NAN;
}

static inline double item_at(const shoal_tensor *t, int ndim, const int64_t *index)
{
    double x = NAN;
    return shoal_tensor_at(t, ndim, index, &x) == SHOAL_OK ? x : NAN;
}

#endif
