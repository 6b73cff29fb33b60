/* Combines the workers' models into one. The methods that average use only this interface, so that another engine
 * (several machines) can replace this one. */
#ifndef SH_TRAIN_REDUCE_H
#define SH_TRAIN_REDUCE_H

#include <shoal/nn.h>

typedef struct sh_reducer {
    const char *name;

    /* to = Σ weights[i] · from[i], i = 0 … count - 1 in this order and in f64, so the same inputs give bit-identical
     * results. This holds for parameters and buffers of floats; others are copied from from[0]. All models have the
     * same architecture; to may be one of from. Errors: SHOAL_EINVAL if the models differ. */
    shoal_err (*sum)(shoal_module *to, shoal_module *const *from, const double *weights, int count);

    /* The same for rows of `length` numbers that are already sums (flat_model.h): to[k] = Σ from[i][k]; to may be
     * from[0]. */
    shoal_err (*add)(double *to, const double *const *from, int count, int64_t length);
} sh_reducer;

/* Computes in this process, in its own memory and shared memory. */
extern const sh_reducer sh_reducer_here;

/* Computes the mean, with equal weights. */
shoal_err sh_reducer_mean(const sh_reducer *reducer, shoal_module *to, shoal_module *const *from, int count);

#endif
