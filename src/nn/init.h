/* What the init functions of the kinds share: settings as whole numbers, and new parameters with PyTorch's default values,
 * drawn from the thread's generator. While a module is built again for another's values (sh_module_is_rebuilding) nothing is
 * drawn and the parameters hold garbage. */
#ifndef SH_NN_INIT_H
#define SH_NN_INIT_H

#include "nn/module.h"

/* Setting i as a whole number of at least low. Errors: SHOAL_EINVAL with the kind and the name. */
shoal_err sh_setting(const shoal_module *m, int i, const char *name, int64_t low, int64_t *out);

/* New f32 tensors, the caller's; NULL with an error. */
shoal_tensor *sh_init_uniform(double bound, int ndim, const int64_t *shape); /* in [-bound, bound) */
shoal_tensor *sh_init_normal(int ndim, const int64_t *shape);                /* mean 0, deviation 1 */
shoal_tensor *sh_init_full(double value, int ndim, const int64_t *shape);

/* "weight", and with_bias "bias" of shape[0]: uniform within 1 / sqrt(fan_in), fan_in being the product of the weight's other
 * sizes. PyTorch writes this as kaiming_uniform with a = sqrt(5). */
shoal_err sh_init_weight_and_bias(shoal_module *m, int ndim, const int64_t *shape, bool with_bias);

#endif
