/* Tensors and sparse tensors as members of values. */
#include "share/value.h"
#include "base/error.h"
#include "share/sparse.h"

#include <stdlib.h>

static void drop_tensor(sh_made_of *a)
{
    shoal_tensor_release(a->made);
    free(a);
}

static void drop_sparse(sh_made_of *a)
{
    shoal_sparse_destroy(a->made);
    free(a);
}

void *sh_value_keep(const shoal_value *value, void *made, void (*drop)(sh_made_of *))
{
    if (!made) {
        return NULL;
    }
    sh_made_of *a = malloc(sizeof *a);
    if (!a) {
        drop(&(sh_made_of){.made = made});
        (void)sh_fail(SHOAL_ENOMEM, "no room for what a value holds");
        return NULL;
    }
    *a = (sh_made_of){.destroy = drop, .made = made};
    return sh_value_attach(value, a);
}

shoal_value *shoal_value_tensor(shoal_tensor *t)
{
    SH_NEED_OR_NULL(t);
    shoal_block *description;
    if (!t || sh_tensor_describe(t, &description) != SHOAL_OK) {
        return NULL;
    }
    return sh_value_object(description);
}

shoal_value *shoal_value_sparse(shoal_sparse *s)
{
    SH_NEED_OR_NULL(s);
    shoal_block *record;
    if (!s || sh_sparse_describe(s, &record) != SHOAL_OK) {
        return NULL;
    }
    shoal_value *value = sh_value_object(record);
    sh_block_release(record);
    return value;
}

bool sh_value_is_kind(const shoal_value *value, shoal_kind kind, const char *what)
{
    return (value && value->type == SHOAL_OBJECT && value->kind == kind) ||
           sh_value_wrong(value, what, "shoal_value_as_…");
}

shoal_tensor *shoal_value_as_tensor(const shoal_value *value)
{
    if (!sh_value_is_kind(value, SHOAL_KIND_TENSOR, "tensor")) {
        return NULL;
    }
    void *made = sh_value_attached(value);
    return made ? made : sh_value_keep(value, sh_tensor_of_description(value->as.object), drop_tensor);
}

shoal_sparse *shoal_value_as_sparse(const shoal_value *value)
{
    if (!sh_value_is_kind(value, SHOAL_KIND_SPARSE, "sparse")) {
        return NULL;
    }
    void *made = sh_value_attached(value);
    return made ? made : sh_value_keep(value, sh_sparse_of_record(value->as.object), drop_sparse);
}

shoal_tensor *shoal_arg_tensor(const shoal_value *args, const char *key)
{
    const shoal_value *value = sh_arg_find(args, key);
    shoal_tensor *tensor = value ? shoal_value_as_tensor(value) : NULL;
    if (value && !tensor) {
        (void)sh_arg_failed(key);
    }
    return tensor;
}

shoal_sparse *shoal_arg_sparse(const shoal_value *args, const char *key)
{
    const shoal_value *value = sh_arg_find(args, key);
    shoal_sparse *sparse = value ? shoal_value_as_sparse(value) : NULL;
    if (value && !sparse) {
        (void)sh_arg_failed(key);
    }
    return sparse;
}

shoal_module *shoal_arg_module(const shoal_value *args, const char *key)
{
    const shoal_value *value = sh_arg_find(args, key);
    shoal_module *module = value ? shoal_value_as_module(value) : NULL;
    if (value && !module) {
        (void)sh_arg_failed(key);
    }
    return module;
}
