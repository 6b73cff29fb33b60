#include "train/model/state.h"

#include "base/error.h"

#include <shoal/share.h>

shoal_value *sh_state_zeros(shoal_optimizer *optimizer)
{
    if (optimizer == NULL || shoal_optimizer_prepare(optimizer) != SHOAL_OK) {
        return NULL;
    }
    shoal_value *map = shoal_value_map();
    for (shoal_named it = {0}; map != NULL && shoal_optimizer_next(optimizer, &it) == SHOAL_OK;) {
        shoal_tensor *t = shoal_zeros_like(it.tensor);
        map = shoal_map_set(map, it.name, shoal_value_tensor(t));
        shoal_tensor_release(t);
    }
    return map;
}

shoal_err sh_state_adopt(shoal_optimizer *optimizer, const shoal_value *state)
{
    for (size_t i = 0; i < shoal_value_count(state); i++) {
        shoal_tensor *t = shoal_value_as_tensor(shoal_value_at(state, i));
        SH_TRY(t ? shoal_optimizer_adopt(optimizer, shoal_value_key_at(state, i), t) : shoal_last_error());
    }
    return SHOAL_OK;
}
