/* Models as rows of f64, which hold weighted sums.
 *
 * A row has the elements of all parameters and buffers that are f32 or f64, in the module's order. A tensor that has
 * two names is there once. Integers are not in it: they have no meaningful mean, and stay unchanged. */
#ifndef SH_TRAIN_FLAT_MODEL_H
#define SH_TRAIN_FLAT_MODEL_H

#include <shoal/nn.h>

/* Returns the length of a row. Errors: SHOAL_ETYPE if the model cannot be summed here: it has parts on a GPU, or of f16
 * or bf16. The other functions take models that passed this check. */
shoal_err sh_flat_length(const shoal_module *module, int64_t *out_length);

/* out = in + weight · module. in may be NULL, which means zeros, or out. */
void sh_flat_add(double *out, const double *in, const shoal_module *module, double weight);

/* module = sums / weight, the mean, if velocity is NULL. Otherwise the step from the module to the mean has momentum,
 * as in Hsu et al. ("Measuring the effects of non-identical data distribution for federated visual classification",
 * 2019): velocity = momentum · velocity + module - mean, module = module - velocity. */
void sh_flat_apply(shoal_module *module, const double *sums, double weight, double *velocity, double momentum);

#endif
