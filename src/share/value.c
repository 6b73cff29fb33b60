/* Tensors and sparse tensors as members of values. */
#include "share/value.h"
#include "base/error.h"
#include "share/sparse.h"

#include <stdlib.h>

static void drop_tensor(void *tensor)
{
    shoal_tensor_release(tensor);
}

static void drop_sparse(void *sparse)
{
    shoal_sparse_destroy(sparse);
}

shoal_value *shoal_value_tensor(shoal_tensor *t)
{
    SH_NEED_TENSOR_OR_NULL(t);
    shoal_block *description;
    if (sh_share_describe_tensor(t, &description) != SHOAL_OK) {
        return NULL;
    }
    return sh_value_object(description);
}

shoal_value *shoal_value_sparse(shoal_sparse *s)
{
    SH_NEED_OR_NULL(s);
    shoal_block *record;
    if (sh_sparse_describe(s, &record) != SHOAL_OK) {
        return NULL;
    }
    shoal_value *value = sh_value_object(record);
    sh_block_release(record);
    return value;
}

void *sh_share_value_read(const shoal_value *value, shoal_kind kind, const char *call, void *(*make)(shoal_block *),
                          void (*drop)(void *))
{
    if (value == NULL || value->type != SHOAL_TYPE_OBJECT || value->kind != kind) {
        return sh_value_wrong(value, sh_kind_shared_name(kind), call);
    }
    shoal_block *object = value->as.object;
    void *made = sh_block_is_lost(object) ? NULL : sh_value_attached(value);
    if (made != NULL) {
        return made;
    }
    return sh_block_require(object, object->kind, call) == SHOAL_OK ? sh_value_attach(value, make(object), drop) : NULL;
}

static void *make_tensor(shoal_block *description)
{
    return sh_share_tensor_of(description);
}

static void *make_sparse(shoal_block *record)
{
    return sh_sparse_of_record(record);
}

shoal_tensor *shoal_value_as_tensor(const shoal_value *value)
{
    return sh_share_value_read(value, SHOAL_KIND_TENSOR, __func__, make_tensor, drop_tensor);
}

shoal_sparse *shoal_value_as_sparse(const shoal_value *value)
{
    return sh_share_value_read(value, SHOAL_KIND_SPARSE, __func__, make_sparse, drop_sparse);
}

shoal_tensor *shoal_arg_tensor(const shoal_value *args, const char *key)
{
    const shoal_value *value = sh_arg_find(args, key, __func__);
    shoal_tensor *tensor = value ? shoal_value_as_tensor(value) : NULL;
    if (value && !tensor) {
        (void)sh_arg_failed(key);
    }
    return tensor;
}

shoal_sparse *shoal_arg_sparse(const shoal_value *args, const char *key)
{
    const shoal_value *value = sh_arg_find(args, key, __func__);
    shoal_sparse *sparse = value ? shoal_value_as_sparse(value) : NULL;
    if (value && !sparse) {
        (void)sh_arg_failed(key);
    }
    return sparse;
}

shoal_module *shoal_arg_module(const shoal_value *args, const char *key)
{
    const shoal_value *value = sh_arg_find(args, key, __func__);
    shoal_module *module = value ? shoal_value_as_module(value) : NULL;
    if (value && !module) {
        (void)sh_arg_failed(key);
    }
    return module;
}
