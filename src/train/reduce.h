/* How what several workers have becomes one. The methods with means know no more than this interface, so that another
 * engine (several machines) can take this one's place. */
#ifndef SH_TRAIN_REDUCE_H
#define SH_TRAIN_REDUCE_H

#include <shoal/nn.h>

typedef struct sh_reducer {
    const char *name;

    /* to = Σ weights[i] · from[i], i = 0 … count - 1 in this order and in f64, so the same inputs give the same bits; parameters and
     * buffers of floats alike, others are taken from from[0]. All are of one architecture; to may be one of from. Errors:
     * SHOAL_EINVAL for models that differ. */
    shoal_err (*sum)(shoal_module *to, shoal_module *const *from, const double *weights, int count);

    /* The same for rows of length numbers, sums already (flat_model.h): to[k] = Σ from[i][k]; to may be from[0]. */
    shoal_err (*add)(double *to, const double *const *from, int count, int64_t length);
} sh_reducer;

/* In this process, over memory that it can reach. */
extern const sh_reducer sh_reducer_here;

/* The mean, of equal weights. */
shoal_err sh_reducer_mean(const sh_reducer *reducer, shoal_module *to, shoal_module *const *from, int count);

#endif
