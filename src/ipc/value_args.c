/* Arguments: members of a map, by key and type. */
#include "base/error.h"
#include "ipc/value.h"

#include <string.h>

const shoal_value *sh_arg_find(const shoal_value *args, const char *key, const char *call)
{
    if (args == NULL || key == NULL) {
        return sh_not_given(call, args == NULL ? "args" : "key");
    }
    if (args->type != SHOAL_TYPE_MAP) {
        (void)sh_fail(SHOAL_ETYPE, "argument \"%s\": the arguments are a %s, not a map", key, sh_type_name(args->type));
        return NULL;
    }
    const sh_value_pair *pair = sh_map_find(args, key, strlen(key));
    if (pair == NULL) {
        (void)sh_fail(SHOAL_ENOENT, "no argument \"%s\" among the %zu given", key, args->size);
        return NULL;
    }
    return pair->value;
}

shoal_err sh_arg_failed(const char *key)
{
    return sh_fail(shoal_last_error(), "argument \"%s\": %s", key, shoal_last_error_text());
}

/* Defines a reader that returns a code: it finds the member with that key, then calls the reader of values. */
#define NUMBER_ARG(name, type)                                                                                         \
    shoal_err shoal_arg_##name(const shoal_value *args, const char *key, type *out_##name)                             \
    {                                                                                                                  \
        SH_NEED(args);                                                                                                 \
        SH_NEED(key);                                                                                                  \
        SH_NEED(out_##name);                                                                                           \
        const shoal_value *value = sh_arg_find(args, key, __func__);                                                   \
        if (value == NULL) {                                                                                           \
            return shoal_last_error();                                                                                 \
        }                                                                                                              \
        return shoal_value_as_##name(value, out_##name) == SHOAL_OK ? SHOAL_OK : sh_arg_failed(key);                   \
    }

NUMBER_ARG(bool, bool)
NUMBER_ARG(int, int64_t)
NUMBER_ARG(uint, uint64_t)
NUMBER_ARG(float, double)

/* Passes on what a reader of values returned. If that is NULL, adds the key to the error. */
static void *with_key(const char *key, const void *got)
{
    if (got == NULL) {
        (void)sh_arg_failed(key);
    }
    return (void *)(uintptr_t)got;
}

const char *shoal_arg_string(const shoal_value *args, const char *key)
{
    const shoal_value *value = sh_arg_find(args, key, __func__);
    return value != NULL ? with_key(key, shoal_value_as_string(value)) : NULL;
}

const void *shoal_arg_bytes(const shoal_value *args, const char *key, size_t *out_size)
{
    const shoal_value *value = sh_arg_find(args, key, __func__);
    if (value == NULL && out_size != NULL) {
        *out_size = 0; /* as shoal_value_as_bytes does if the type is wrong */
    }
    return value != NULL ? with_key(key, shoal_value_as_bytes(value, out_size)) : NULL;
}

#define OBJECT_ARG(type, shared, kind)                                                                                 \
    shoal_##type *shoal_arg_##type(const shoal_value *args, const char *key)                                           \
    {                                                                                                                  \
        const shoal_value *value = sh_arg_find(args, key, __func__);                                                   \
        return value != NULL ? with_key(key, sh_value_read_object(value, SHOAL_KIND_##shared, __func__)) : NULL;       \
    }
SH_VALUE_OBJECTS(OBJECT_ARG)
