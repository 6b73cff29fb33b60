/* Data sets: creating them, fetching samples, labels, and sending them to other processes. */
#include "data/dataset.h"

#include "base/error.h"
#include "ipc/value.h"
#include "proc/target.h"
#include "tensor/tensor.h"

#include <stdlib.h>
#include <string.h>

#define LABELS_AT_ONCE 256

static bool is_whole(shoal_dtype dtype)
{
    return dtype == SHOAL_I64 || dtype == SHOAL_I32 || dtype == SHOAL_U8;
}

static shoal_err check_type(const shoal_dataset_type *t)
{
    if (t == NULL || t->fetch == NULL || t->length < 0 || t->x_ndim < 0 || t->x_ndim >= SHOAL_MAX_DIMS ||
        t->y_ndim < 0 || t->y_ndim >= SHOAL_MAX_DIMS) {
        return sh_fail(SHOAL_EINVAL, "a data set needs fetch, a length, and samples of 0 to %d dims",
                       SHOAL_MAX_DIMS - 1);
    }
    sh_shape s;
    SH_TRY(sh_shape_init(&s, t->x_dtype, t->x_ndim, t->x_shape));
    return sh_shape_init(&s, t->y_dtype, t->y_ndim, t->y_shape);
}

shoal_dataset *shoal_dataset_create(const shoal_dataset_type *type, void *state)
{
    SH_GIVEN_OR_NULL(type);
    if (check_type(type) != SHOAL_OK) {
        return NULL;
    }
    shoal_dataset *set = calloc(1, sizeof *set);
    char *name = strdup(type->name != NULL ? type->name : "data");
    if (set == NULL || name == NULL) {
        free(set);
        free(name);
        (void)sh_fail(SHOAL_ENOMEM, "no memory for a data set");
        return NULL;
    }
    set->type = *type;
    set->type.name = name;
    set->state = state;
    sh_store_relaxed(&set->refs, 1);
    return set;
}

shoal_dataset *shoal_dataset_retain(shoal_dataset *set)
{
    if (set != NULL) {
        (void)sh_add_relaxed(&set->refs, 1);
    }
    return set;
}

void shoal_dataset_release(shoal_dataset *set)
{
    if (set == NULL || sh_sub_acq_rel(&set->refs, 1) != 1) {
        return;
    }
    if (set->type.destroy != NULL) {
        set->type.destroy(set->state);
    }
    free((char *)set->type.name);
    free(set);
}

int64_t shoal_dataset_length(const shoal_dataset *set)
{
    return set != NULL ? set->type.length : 0;
}

const char *shoal_dataset_name(const shoal_dataset *set)
{
    return set != NULL ? set->type.name : NULL;
}

/* ---- fetching ---- */

static shoal_tensor *new_samples(shoal_dtype dtype, int ndim, const int64_t *sample, int64_t count,
                                 shoal_tensor *(*make)(shoal_dtype, int, const int64_t *))
{
    int64_t shape[SHOAL_MAX_DIMS] = {count};
    memcpy(shape + 1, sample, (size_t)ndim * sizeof *sample);
    return make(dtype, ndim + 1, shape);
}

shoal_tensor *sh_dataset_new_x(const shoal_dataset *set, int64_t count,
                               shoal_tensor *(*make)(shoal_dtype, int, const int64_t *))
{
    return new_samples(set->type.x_dtype, set->type.x_ndim, set->type.x_shape, count, make);
}

shoal_tensor *sh_dataset_new_y(const shoal_dataset *set, int64_t count,
                               shoal_tensor *(*make)(shoal_dtype, int, const int64_t *))
{
    return new_samples(set->type.y_dtype, set->type.y_ndim, set->type.y_shape, count, make);
}

shoal_err sh_dataset_check(const shoal_dataset *set, const int64_t *numbers, int64_t count)
{
    if (count < 0 || (count > 0 && numbers == NULL)) {
        return sh_fail(SHOAL_EINVAL, "%s: %lld is not a number of samples", set->type.name, (long long)count);
    }
    for (int64_t i = 0; i < count; i++) {
        if (numbers[i] < 0 || numbers[i] >= set->type.length) {
            return sh_fail(SHOAL_EINVAL, "%s: there is no sample %lld: the data set has %lld", set->type.name,
                           (long long)numbers[i], (long long)set->type.length);
        }
    }
    return SHOAL_OK;
}

static shoal_err check_tensor(const shoal_dataset *set, const char *which, const shoal_tensor *t, int64_t count,
                              shoal_dtype dtype, int ndim, const int64_t *sample)
{
    bool good = t != NULL && shoal_tensor_dtype(t) == dtype && shoal_tensor_ndim(t) == ndim + 1 &&
                shoal_tensor_size(t, 0) == count && shoal_tensor_is_contiguous(t) &&
                shoal_tensor_device(t) == SHOAL_CPU;
    for (int d = 0; good && d < ndim; d++) {
        good = shoal_tensor_size(t, d + 1) == sample[d];
    }
    if (good) {
        return SHOAL_OK;
    }
    sh_text text, wanted;
    return sh_fail(SHOAL_EINVAL, "%s: %s is %s, but must be %s [%lld, …] with samples %s, contiguous, on the CPU",
                   set->type.name, which, t != NULL ? sh_tensor_text(&text, t) : "NULL", shoal_dtype_name(dtype),
                   (long long)count, sh_shape_text(&wanted, ndim, sample));
}

shoal_err shoal_dataset_fetch(shoal_dataset *set, const int64_t *numbers, int64_t count, shoal_tensor *x,
                              shoal_tensor *y)
{
    SH_NEED(set);
    if (count > 0 && !numbers) {
        return sh_null_error(__func__, "numbers");
    }
    SH_NEED_TENSOR(x);
    SH_NEED_TENSOR(y);
    if (sh_tensor_check(x) != SHOAL_OK || sh_tensor_check(y) != SHOAL_OK) {
        return shoal_last_error();
    }
    const shoal_dataset_type *t = &set->type;
    SH_TRY(sh_dataset_check(set, numbers, count));
    SH_TRY(check_tensor(set, "x", x, count, t->x_dtype, t->x_ndim, t->x_shape));
    SH_TRY(check_tensor(set, "y", y, count, t->y_dtype, t->y_ndim, t->y_shape));
    return sh_dataset_fetch(set, numbers, count, x, y);
}

/* ---- labels ---- */

static void widen(const shoal_tensor *y, int64_t count, int64_t *out)
{
    const void *data = shoal_tensor_data(y);
    for (int64_t i = 0; i < count; i++) {
        switch (shoal_tensor_dtype(y)) {
        case SHOAL_I64: out[i] = ((const int64_t *)data)[i]; break;
        case SHOAL_I32: out[i] = ((const int32_t *)data)[i]; break;
        default: out[i] = ((const uint8_t *)data)[i]; break;
        }
    }
}

static shoal_err fetch_labels(shoal_dataset *set, int64_t *out)
{
    int64_t numbers[LABELS_AT_ONCE], at = 0;
    while (at < set->type.length) {
        int64_t count = set->type.length - at < LABELS_AT_ONCE ? set->type.length - at : LABELS_AT_ONCE;
        for (int64_t i = 0; i < count; i++) {
            numbers[i] = at + i;
        }
        shoal_tensor *x = sh_dataset_new_x(set, count, shoal_empty), *y = sh_dataset_new_y(set, count, shoal_empty);
        shoal_err err = x != NULL && y != NULL ? sh_dataset_fetch(set, numbers, count, x, y) : shoal_last_error();
        if (err == SHOAL_OK) {
            widen(y, count, out + at);
        }
        shoal_tensor_release(x);
        shoal_tensor_release(y);
        SH_TRY(err);
        at += count;
    }
    return SHOAL_OK;
}

shoal_err sh_dataset_labels(shoal_dataset *set, int64_t *out)
{
    if (set->type.y_ndim != 0 || !is_whole(set->type.y_dtype)) {
        return sh_fail(SHOAL_ETYPE, "%s has no labels: its y is %s of %d dims", set->type.name,
                       shoal_dtype_name(set->type.y_dtype), set->type.y_ndim);
    }
    return set->labels != NULL ? set->labels(set->state, out) : fetch_labels(set, out);
}

shoal_tensor *shoal_dataset_labels(const shoal_dataset *set)
{
    SH_NEED_OR_NULL(set);
    if (set == NULL) {
        (void)sh_fail(SHOAL_EINVAL, "shoal_dataset_labels: the data set is NULL");
        return NULL;
    }
    shoal_tensor *t = shoal_empty(SHOAL_I64, SHOAL_SHAPE(set->type.length));
    if (t != NULL && sh_dataset_labels((shoal_dataset *)set, shoal_tensor_data(t)) != SHOAL_OK) {
        shoal_tensor_release(t);
        t = NULL;
    }
    return t;
}

/* ---- sending to other processes ---- */

/* The numbers in a type. Processes of one build of the library send them as bytes. */
typedef struct form {
    int64_t length;
    shoal_dtype x_dtype, y_dtype;
    int x_ndim, y_ndim;
    int64_t x_shape[SHOAL_MAX_DIMS - 1], y_shape[SHOAL_MAX_DIMS - 1];
} form;

shoal_value *sh_dataset_function(sh_any_function function)
{
    sh_target target;
    if (function == NULL) {
        return shoal_value_null();
    }
    return sh_target_name((sh_function)function, &target) == SHOAL_OK
               ? shoal_value_bytes(&target, sh_target_size(&target))
               : NULL;
}

shoal_err sh_dataset_function_of(const shoal_value *value, sh_any_function *out_function)
{
    size_t size;
    if (value != NULL && shoal_value_type(value) == SHOAL_TYPE_NULL) {
        *out_function = NULL;
        return SHOAL_OK;
    }
    sh_target target;
    const void *bytes = shoal_value_as_bytes(value, &size);
    if (bytes == NULL || size > sizeof target) {
        return sh_fail(SHOAL_ETYPE, "a packed data set does not name its function");
    }
    memcpy(&target, bytes, size); /* the bytes of a value are not aligned */
    return sh_target_find(&target, size, out_function);
}

shoal_value *shoal_value_dataset(shoal_dataset *set)
{
    if (set == NULL) {
        return sh_null_in("shoal_value_dataset", "dataset");
    }
    if (set->type.pack == NULL || set->type.open == NULL) {
        (void)sh_fail(SHOAL_EINVAL, "%s cannot be sent to another process: its type has no pack and open",
                      shoal_dataset_name(set));
        return NULL;
    }
    const shoal_dataset_type *t = &set->type;
    form f;
    memset(&f, 0, sizeof f);
    f.length = t->length;
    f.x_dtype = t->x_dtype;
    f.y_dtype = t->y_dtype;
    f.x_ndim = t->x_ndim;
    f.y_ndim = t->y_ndim;
    memcpy(f.x_shape, t->x_shape, sizeof f.x_shape);
    memcpy(f.y_shape, t->y_shape, sizeof f.y_shape);
    uint64_t mark = sh_callback_mark();
    shoal_value *state = t->pack(set->state);
    if (state == NULL) {
        (void)sh_callback_null(mark, t->name, "pack");
        return NULL;
    }
    return shoal_map("dataset", t->name, "form", shoal_value_bytes(&f, sizeof f), "fetch",
                     sh_dataset_function((sh_any_function)t->fetch), "destroy",
                     sh_dataset_function((sh_any_function)t->destroy), "pack",
                     sh_dataset_function((sh_any_function)t->pack), "open",
                     sh_dataset_function((sh_any_function)t->open), "state", state);
}

static shoal_err open_type(const shoal_value *packed, shoal_dataset_type *t)
{
    size_t size;
    form f;
    sh_any_function fetch, destroy, pack, open;
    const void *bytes = shoal_value_as_bytes(shoal_value_find(packed, "form"), &size);
    if (bytes == NULL || size != sizeof f) {
        return sh_fail(SHOAL_ETYPE, "expected data set, but the value is another map");
    }
    memcpy(&f, bytes, sizeof f);
    shoal_err err = sh_dataset_function_of(shoal_value_find(packed, "fetch"), &fetch);
    if (err == SHOAL_OK) {
        err = sh_dataset_function_of(shoal_value_find(packed, "destroy"), &destroy);
    }
    if (err == SHOAL_OK) {
        err = sh_dataset_function_of(shoal_value_find(packed, "pack"), &pack);
    }
    if (err == SHOAL_OK) {
        err = sh_dataset_function_of(shoal_value_find(packed, "open"), &open);
    }
    if (err != SHOAL_OK) {
        return err;
    }
    *t = (shoal_dataset_type){
        .name = shoal_arg_string(packed, "dataset"),
        .length = f.length,
        .x_dtype = f.x_dtype,
        .y_dtype = f.y_dtype,
        .x_ndim = f.x_ndim,
        .y_ndim = f.y_ndim,
        .fetch = (shoal_err(*)(void *, const int64_t *, int64_t, shoal_tensor *, shoal_tensor *))fetch,
        .destroy = (void (*)(void *))destroy,
        .pack = (shoal_value * (*)(void *)) pack,
        .open = (shoal_err(*)(const shoal_value *, void **))open,
    };
    memcpy(t->x_shape, f.x_shape, sizeof t->x_shape);
    memcpy(t->y_shape, f.y_shape, sizeof t->y_shape);
    return t->open != NULL ? SHOAL_OK : sh_fail(SHOAL_ETYPE, "the packed data set cannot be opened");
}

/* Makes a data set for this process from a packed one. */
static shoal_dataset *open_set(const shoal_value *packed)
{
    shoal_dataset_type type;
    void *state = NULL;
    if (open_type(packed, &type) != SHOAL_OK || check_type(&type) != SHOAL_OK) {
        return NULL;
    }
    uint64_t mark = sh_callback_mark();
    shoal_err err = type.open(shoal_value_find(packed, "state"), &state);
    if (sh_callback_err(mark, err, type.name != NULL ? type.name : "data", "open") != SHOAL_OK) {
        return NULL;
    }
    shoal_dataset *set = shoal_dataset_create(&type, state);
    if (set == NULL && type.destroy != NULL) {
        type.destroy(state);
    }
    return set;
}

static void drop_set(void *set)
{
    shoal_dataset_release(set);
}

__attribute__((constructor)) static void register_maps(void)
{
    sh_value_kinds[SH_VALUE_MAP].drop = drop_set;
}

shoal_dataset *shoal_value_as_dataset(const shoal_value *value)
{
    if (value == NULL || value->type != SHOAL_TYPE_MAP || value->size == 0) {
        return sh_value_wrong(value, "data set", "shoal_value_as_dataset");
    }
    void *set = sh_value_attached(value);
    return set != NULL ? set : sh_value_attach(value, open_set(value));
}

shoal_dataset *shoal_arg_dataset(const shoal_value *args, const char *key)
{
    const shoal_value *value = sh_arg_find(args, key, __func__);
    shoal_dataset *set = value != NULL ? shoal_value_as_dataset(value) : NULL;
    if (value != NULL && set == NULL) {
        (void)sh_arg_failed(key);
    }
    return set;
}
