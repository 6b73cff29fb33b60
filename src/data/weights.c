/* Reads a model's weights from a file: plain weights, PyTorch's, or a checkpoint. */
#include "data/tensors.h"

#include "base/error.h"
#include "tensor/tensor.h"

#include <string.h>

static shoal_err check_one(const shoal_tensors *set, const char *path, const char *name, const shoal_tensor *to)
{
    sh_text own, other;
    const shoal_tensor *from = shoal_tensors_find(set, name);
    if (from == NULL) {
        return sh_fail(SHOAL_EINVAL, "%s: there is no tensor '%.100s'", path, name);
    }
    if (from->dtype != to->dtype || from->ndim != to->ndim ||
        memcmp(from->shape, to->shape, sizeof from->shape[0] * (size_t)from->ndim) != 0) {
        return sh_fail(SHOAL_EINVAL, "%s: '%.100s' is %s, but must be %s", path, name, sh_tensor_text(&other, from),
                       sh_tensor_text(&own, to));
    }
    return SHOAL_OK;
}

shoal_err sh_tensors_take(const shoal_tensors *set, const char *path, const char *name, shoal_tensor *to)
{
    SH_TRY(check_one(set, path, name, to));
    shoal_err err = sh_tensor_copy_data(to, shoal_tensors_find(set, name));
    sh_tensor_touch(to);
    return err;
}

static shoal_err check_all(const shoal_tensors *set, const char *path, const shoal_module *module)
{
    for (shoal_named it = {0}; shoal_module_next(module, &it) == SHOAL_OK;) {
        SH_TRY(check_one(set, path, it.name, it.tensor));
    }
    for (size_t i = 0; i < shoal_tensors_count(set); i++) {
        const char *name = shoal_tensors_name(set, i);
        if (strncmp(name, SH_TENSORS_OWN, strlen(SH_TENSORS_OWN)) != 0 && shoal_module_get(module, name) == NULL) {
            return sh_fail(SHOAL_EINVAL, "%s: there is a tensor '%.100s', which the model does not have", path, name);
        }
    }
    return SHOAL_OK;
}

shoal_err sh_weights_take(const shoal_tensors *set, const char *path, shoal_module *module)
{
    SH_TRY(check_all(set, path, module));
    for (shoal_named it = {0}; shoal_module_next(module, &it) == SHOAL_OK;) {
        SH_TRY(sh_tensors_take(set, path, it.name, it.tensor));
    }
    return SHOAL_OK;
}

shoal_err shoal_weights_read(const char *path, shoal_module *module)
{
    SH_NEED(path);
    SH_NEED(module);
    shoal_tensors *set = shoal_safetensors_read(path);
    shoal_err err = set != NULL ? sh_weights_take(set, path, module) : shoal_last_error();
    shoal_tensors_destroy(set);
    return err;
}

shoal_err shoal_weights_write(const char *path, const shoal_module *module)
{
    SH_NEED(path);
    SH_NEED(module);
    shoal_tensors *set = shoal_tensors_create();
    shoal_err err = set ? SHOAL_OK : shoal_last_error();
    for (shoal_named it = {0}; err == SHOAL_OK && shoal_module_next(module, &it) == SHOAL_OK;) {
        err = shoal_tensors_add(set, it.name, it.tensor);
    }
    if (err == SHOAL_OK) {
        err = shoal_safetensors_write(path, set);
    }
    shoal_tensors_destroy(set);
    return err;
}
