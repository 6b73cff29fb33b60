#include "train/model/clone.h"

#include "base/error.h"
#include "nn/module.h"
#include "share/module.h"

#include <shoal/autograd.h>

/* Returns the first entry that has the tensor of entry i. */
static size_t first_place(const shoal_module *module, size_t i)
{
    bool is_buffer;
    const shoal_tensor *t = sh_module_entry(module, i, &is_buffer)->tensor;
    size_t at = 0;
    while (sh_module_entry(module, at, &is_buffer)->tensor != t) {
        at++;
    }
    return at;
}

static shoal_err put_copy(shoal_module *to, const char *name, shoal_tensor *t)
{
    shoal_tensor *own = shoal_empty_shared(t->dtype, t->ndim, t->shape);
    shoal_err err = own ? shoal_tensor_set_requires_grad(own, t->requires_grad) : shoal_last_error();
    if (err == SHOAL_OK) {
        err = sh_module_replace(to, name, own);
    }
    shoal_tensor_release(own);
    return err;
}

/* Gives the clone, which still shares the module's tensors, separate ones. */
static shoal_err separate(shoal_module *clone, shoal_module *module)
{
    bool is_buffer;
    size_t i = 0;
    for (shoal_named it = {0}; shoal_module_next(module, &it) == SHOAL_OK; i++) {
        size_t first = first_place(module, i);
        SH_TRY(first < i ? sh_module_replace(clone, it.name, sh_module_entry(clone, first, &is_buffer)->tensor)
                         : put_copy(clone, it.name, it.tensor));
    }
    return shoal_module_copy(clone, module);
}

shoal_module *sh_clone_module(shoal_module *module)
{
    shoal_block *record;
    if (sh_share_describe_module(module, &record) != SHOAL_OK) {
        return NULL;
    }
    shoal_module *clone = sh_share_module_of(record);
    sh_block_release(record);
    if (clone != NULL && separate(clone, module) != SHOAL_OK) {
        shoal_module_destroy(clone);
        clone = NULL;
    }
    return clone;
}
