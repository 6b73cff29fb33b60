/* What all engines do alike. */
#include "train/engines/engine.h"
#include "train/model/state.h"

#include "base/error.h"

#include <stdlib.h>

const sh_engine_type *sh_engine_of(shoal_device device)
{
    static const sh_engine_type *const types[] = {[SHOAL_CPU] = &sh_engine_cpu, [SHOAL_CUDA] = &sh_engine_cuda};
    return (size_t)device < sizeof types / sizeof *types ? types[device] : NULL;
}

shoal_err sh_engine_open(const sh_engine_settings *settings, shoal_module *module, shoal_dataset *set,
                         shoal_dataset *test_set, sh_engine **out_engine)
{
    const sh_engine_type *type = sh_engine_of(settings->device);
    sh_engine *e = calloc(1, type->size);
    if (e == NULL) {
        return sh_fail(SHOAL_ENOMEM, "no memory for the engine %s", type->name);
    }
    *e = (sh_engine){.type = type, .settings = *settings, .module = module, .set = set, .test_set = test_set};
    shoal_err err = type->open(e);
    if (err == SHOAL_OK) {
        *out_engine = e;
    } else {
        sh_cleanup_begin();
        sh_engine_close(e);
        sh_cleanup_end();
    }
    return err;
}

void sh_engine_close(sh_engine *e)
{
    if (e != NULL) {
        e->type->close(e);
        shoal_loader_destroy(e->loader);
        free(e);
    }
}

shoal_err sh_engine_take_samples(sh_engine *e, const int64_t *samples, int64_t count, uint64_t seed)
{
    shoal_loader *loader = shoal_loader_create(e->set, .batch = e->settings.batch, .shuffle = true, .seed = seed,
                                               .order = samples, .order_count = count);
    if (loader == NULL) {
        return shoal_last_error();
    }
    shoal_loader_destroy(e->loader);
    e->loader = loader;
    e->loaders++;
    return SHOAL_OK;
}

shoal_value *sh_engine_new_sgd_state(const sh_engine_settings *settings, shoal_module *module)
{
    shoal_optimizer *sgd = shoal_sgd_create(module, .lr = settings->lr, .momentum = settings->momentum);
    shoal_value *state = sh_state_zeros(sgd);
    shoal_optimizer_destroy(sgd);
    return state;
}
