#include "nn/init.h"

#include "base/error.h"

#include <math.h>

shoal_err sh_setting(const shoal_module *m, int i, const char *name, int64_t low, int64_t *out)
{
    double x = m->settings[i];
    if (!(x >= (double)low && x <= 9e15 && x == floor(x))) {
        return sh_fail(SHOAL_EINVAL, "%s: %s is %.15g, it must be an integer of at least %lld", m->type->name, name, x,
                       (long long)low);
    }
    *out = (int64_t)x;
    return SHOAL_OK;
}

/* Returns t if it could be filled; otherwise releases t and returns NULL. */
static shoal_tensor *filled(shoal_tensor *t, bool went_well)
{
    if (!went_well) {
        shoal_tensor_release(t);
        return NULL;
    }
    return t;
}

shoal_tensor *sh_init_uniform(double bound, int ndim, const int64_t *shape)
{
    shoal_tensor *t = shoal_empty(SHOAL_F32, ndim, shape);
    return t && !sh_module_is_rebuilding() ? filled(t, shoal_uniform_(t, -bound, bound) != NULL) : t;
}

shoal_tensor *sh_init_normal(int ndim, const int64_t *shape)
{
    shoal_tensor *t = shoal_empty(SHOAL_F32, ndim, shape);
    return t && !sh_module_is_rebuilding() ? filled(t, shoal_normal_(t, 0, 1) != NULL) : t;
}

shoal_tensor *sh_init_full(double value, int ndim, const int64_t *shape)
{
    return sh_module_is_rebuilding() ? shoal_empty(SHOAL_F32, ndim, shape) : shoal_full(SHOAL_F32, value, ndim, shape);
}

shoal_err sh_init_weight_and_bias(shoal_module *m, int ndim, const int64_t *shape, bool with_bias)
{
    double fan_in = 1;
    for (int d = 1; d < ndim; d++) {
        fan_in *= (double)shape[d];
    }
    double bound = 1 / sqrt(fan_in);
    SH_TRY(sh_module_add_parameter(m, "weight", sh_init_uniform(bound, ndim, shape)));
    if (with_bias) {
        SH_TRY(sh_module_add_parameter(m, "bias", sh_init_uniform(bound, 1, shape)));
    }
    return SHOAL_OK;
}
