/* Models as rows of f64, in which weighted sums are kept.
 *
 * A row has the elements of all parameters and buffers that are f32 or f64, in the module's order, a tensor that stands under two
 * names once. Whole numbers are not in it: the mean of them is none, and they stay what they are. */
#ifndef SH_TRAIN_FLAT_MODEL_H
#define SH_TRAIN_FLAT_MODEL_H

#include <shoal/nn.h>

/* How long a row is. Errors: SHOAL_ETYPE for a model that cannot be summed here: parts on a card, or of f16 or bf16. The others take
 * models that were measured. */
shoal_err sh_flat_length(const shoal_module *module, int64_t *out_length);

/* out = in + weight · module. in may be NULL: zeros, or out. */
void sh_flat_add(double *out, const double *in, const shoal_module *module, double weight);

/* module = sums / weight, the mean, when velocity is NULL. Else the way from the module to the mean has momentum, as in Hsu et al.
 * ("Measuring the effects of non-identical data distribution for federated visual classification", 2019): velocity = momentum ·
 * velocity + module - mean, module = module - velocity. */
void sh_flat_apply(shoal_module *module, const double *sums, double weight, double *velocity, double momentum);

#endif
