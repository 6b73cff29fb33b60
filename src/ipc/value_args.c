/* Arguments: members of a map, by key and type. */
#include "base/error.h"
#include "ipc/value.h"

#include <string.h>

const shoal_value *sh_arg_find(const shoal_value *args, const char *key)
{
    if (args == NULL || key == NULL) {
        return sh_null_in("shoal_arg", args == NULL ? "the map of arguments" : "the key");
    }
    if (args->type != SHOAL_MAP) {
        (void)sh_fail(SHOAL_ETYPE, "argument \"%s\": the arguments are no map but %s", key, sh_type_name(args->type));
        return NULL;
    }
    const sh_pair *pair = sh_map_find(args, key, strlen(key));
    if (pair == NULL) {
        (void)sh_fail(SHOAL_ENOENT, "no argument \"%s\" among %zu", key, args->size);
        return NULL;
    }
    return pair->value;
}

shoal_err sh_arg_failed(const char *key)
{
    return sh_fail(shoal_last_error(), "argument \"%s\": %s", key, shoal_last_error_text());
}

/* Why there is no member, for the calls that return a code: NULL is theirs, whatever failed before. */
static shoal_err missing(const shoal_value *args, const char *key, const char *call)
{
    return args == NULL  ? sh_null_error(call, "the map of arguments")
           : key == NULL ? sh_null_error(call, "the key")
                         : shoal_last_error();
}

shoal_err shoal_arg_bool(const shoal_value *args, const char *key, bool *out_bool)
{
    SH_NEED(args);
    SH_NEED(out_bool);
    const shoal_value *value = sh_arg_find(args, key);
    if (value == NULL) {
        return missing(args, key, "shoal_arg_bool");
    }
    return shoal_value_as_bool(value, out_bool) == SHOAL_OK ? SHOAL_OK : sh_arg_failed(key);
}

shoal_err shoal_arg_int(const shoal_value *args, const char *key, int64_t *out_int)
{
    SH_NEED(args);
    SH_NEED(out_int);
    const shoal_value *value = sh_arg_find(args, key);
    if (value == NULL) {
        return missing(args, key, "shoal_arg_int");
    }
    return shoal_value_as_int(value, out_int) == SHOAL_OK ? SHOAL_OK : sh_arg_failed(key);
}

shoal_err shoal_arg_uint(const shoal_value *args, const char *key, uint64_t *out_uint)
{
    SH_NEED(args);
    SH_NEED(out_uint);
    const shoal_value *value = sh_arg_find(args, key);
    if (value == NULL) {
        return missing(args, key, "shoal_arg_uint");
    }
    return shoal_value_as_uint(value, out_uint) == SHOAL_OK ? SHOAL_OK : sh_arg_failed(key);
}

shoal_err shoal_arg_float(const shoal_value *args, const char *key, double *out_float)
{
    SH_NEED(args);
    SH_NEED(out_float);
    const shoal_value *value = sh_arg_find(args, key);
    if (value == NULL) {
        return missing(args, key, "shoal_arg_float");
    }
    return shoal_value_as_float(value, out_float) == SHOAL_OK ? SHOAL_OK : sh_arg_failed(key);
}

/* What a reader gave of the member of that key; NULL: its error gets the key. */
static const void *with_key(const char *key, const void *got)
{
    if (got == NULL) {
        (void)sh_arg_failed(key);
    }
    return got;
}

const char *shoal_arg_string(const shoal_value *args, const char *key)
{
    const shoal_value *value = sh_arg_find(args, key);
    return value != NULL ? with_key(key, shoal_value_as_string(value)) : NULL;
}

const void *shoal_arg_bytes(const shoal_value *args, const char *key, size_t *out_size)
{
    const shoal_value *value = sh_arg_find(args, key);
    return value != NULL ? with_key(key, shoal_value_as_bytes(value, out_size)) : NULL;
}

/* All shared objects are blocks underneath; the kind says which of the public types the handle is. */
static void *object_arg(const shoal_value *args, const char *key, shoal_kind kind)
{
    const shoal_value *value = sh_arg_find(args, key);
    if (value == NULL) {
        return NULL;
    }
    if (value->type != SHOAL_OBJECT || value->kind != kind) {
        (void)sh_value_wrong(value, sh_kind_name((uint8_t)kind), "shoal_arg");
        (void)sh_arg_failed(key);
        return NULL;
    }
    return value->as.object;
}

shoal_block *shoal_arg_block(const shoal_value *args, const char *key)
{
    return object_arg(args, key, SHOAL_KIND_BLOCK);
}

shoal_queue *shoal_arg_queue(const shoal_value *args, const char *key)
{
    return object_arg(args, key, SHOAL_KIND_QUEUE);
}

shoal_pipe *shoal_arg_pipe(const shoal_value *args, const char *key)
{
    return object_arg(args, key, SHOAL_KIND_PIPE);
}

shoal_lock *shoal_arg_lock(const shoal_value *args, const char *key)
{
    return object_arg(args, key, SHOAL_KIND_LOCK);
}

shoal_rlock *shoal_arg_rlock(const shoal_value *args, const char *key)
{
    return object_arg(args, key, SHOAL_KIND_RLOCK);
}

shoal_semaphore *shoal_arg_semaphore(const shoal_value *args, const char *key)
{
    return object_arg(args, key, SHOAL_KIND_SEMAPHORE);
}

shoal_condition *shoal_arg_condition(const shoal_value *args, const char *key)
{
    return object_arg(args, key, SHOAL_KIND_CONDITION);
}

shoal_event *shoal_arg_event(const shoal_value *args, const char *key)
{
    return object_arg(args, key, SHOAL_KIND_EVENT);
}

shoal_barrier *shoal_arg_barrier(const shoal_value *args, const char *key)
{
    return object_arg(args, key, SHOAL_KIND_BARRIER);
}
