/* Shared by the init functions of the kinds: reads settings as integers, and makes parameters with PyTorch's default
 * values from the thread's random generator. While a module is rebuilt for another module's values
 * (sh_module_is_rebuilding), no random numbers are drawn and the parameters hold garbage. */
#ifndef SH_NN_INIT_H
#define SH_NN_INIT_H

#include "nn/module.h"

/* Returns setting i as an integer of at least low. Errors: SHOAL_EINVAL; the text names the kind and the setting. */
shoal_err sh_setting(const shoal_module *m, int i, const char *name, int64_t low, int64_t *out);

/* Return a new f32 tensor, which the caller owns, or NULL after an error. */
shoal_tensor *sh_init_uniform(double bound, int ndim, const int64_t *shape); /* in [-bound, bound) */
shoal_tensor *sh_init_normal(int ndim, const int64_t *shape);                /* mean 0, deviation 1 */
shoal_tensor *sh_init_full(double value, int ndim, const int64_t *shape);

/* Adds "weight" and, if with_bias is set, "bias" of shape[0]. Both are uniform within 1 / sqrt(fan_in), where fan_in is
 * the product of the weight's other sizes. PyTorch writes this as kaiming_uniform with a = sqrt(5). */
shoal_err sh_init_weight_and_bias(shoal_module *m, int ndim, const int64_t *shape, bool with_bias);

#endif
