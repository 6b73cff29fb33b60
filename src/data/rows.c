/* A data set made of the rows of two tensors. */
#include "data/dataset.h"

#include "base/error.h"
#include "tensor/tensor.h"

#include <shoal/ops.h>
#include <shoal/share.h>

#include <stdlib.h>
#include <string.h>

typedef struct rows {
    shoal_tensor *x, *y;
    size_t x_bytes, y_bytes; /* of a row */
} rows;

static void gather(shoal_tensor *to, const shoal_tensor *from, size_t bytes, const int64_t *numbers, int64_t count)
{
    char *out = shoal_tensor_data(to);
    const char *in = shoal_tensor_data(from);
    for (int64_t i = 0; i < count && bytes > 0; i++) {
        memcpy(out + (size_t)i * bytes, in + (size_t)numbers[i] * bytes, bytes);
    }
}

static shoal_err rows_fetch(void *state, const int64_t *numbers, int64_t count, shoal_tensor *x, shoal_tensor *y)
{
    const rows *r = state;
    if (sh_tensor_check(r->x) != SHOAL_OK || sh_tensor_check(r->y) != SHOAL_OK) {
        return shoal_last_error();
    }
    gather(x, r->x, r->x_bytes, numbers, count);
    gather(y, r->y, r->y_bytes, numbers, count);
    return SHOAL_OK;
}

static void rows_destroy(void *state)
{
    rows *r = state;
    if (r != NULL) {
        shoal_tensor_release(r->x);
        shoal_tensor_release(r->y);
        free(r);
    }
}

static shoal_value *rows_pack(void *state)
{
    const rows *r = state;
    return shoal_map("x", shoal_value_tensor(r->x), "y", shoal_value_tensor(r->y));
}

/* Takes both references, even if it fails. */
static rows *rows_create(shoal_tensor *x, shoal_tensor *y)
{
    rows *r = x != NULL && y != NULL ? calloc(1, sizeof *r) : NULL;
    if (r == NULL) {
        if (x != NULL && y != NULL) {
            (void)sh_fail(SHOAL_ENOMEM, "no memory for a data set");
        }
        shoal_tensor_release(x);
        shoal_tensor_release(y);
        return NULL;
    }
    r->x = x;
    r->y = y;
    int64_t length = shoal_tensor_size(x, 0);
    if (length > 0) {
        r->x_bytes = (size_t)(shoal_tensor_count(x) / length) * shoal_dtype_size(shoal_tensor_dtype(x));
        r->y_bytes = (size_t)(shoal_tensor_count(y) / length) * shoal_dtype_size(shoal_tensor_dtype(y));
    }
    return r;
}

static shoal_err rows_open(const shoal_value *packed, void **out_state)
{
    shoal_tensor *x = shoal_tensor_retain(shoal_arg_tensor(packed, "x"));
    shoal_tensor *y = shoal_tensor_retain(shoal_arg_tensor(packed, "y"));
    *out_state = rows_create(x, y);
    return *out_state != NULL ? SHOAL_OK : shoal_last_error();
}

/* Returns a reference to t, or to a contiguous copy of it. */
static shoal_tensor *packed_rows(shoal_tensor *t)
{
    if (shoal_tensor_is_contiguous(t)) {
        return shoal_tensor_retain(t);
    }
    size_t mark = shoal_scope_mark();
    shoal_tensor *copy = shoal_tensor_retain(shoal_contiguous(t));
    shoal_scope_release(mark);
    return copy;
}

shoal_dataset *shoal_tensor_dataset(shoal_tensor *x, shoal_tensor *y)
{
    SH_NEED_TENSOR_OR_NULL(x);
    SH_NEED_TENSOR_OR_NULL(y);
    if (sh_tensor_check(x) != SHOAL_OK || sh_tensor_check(y) != SHOAL_OK) {
        return NULL;
    }
    if (shoal_tensor_ndim(x) < 1 || shoal_tensor_ndim(y) < 1 || shoal_tensor_size(x, 0) != shoal_tensor_size(y, 0) ||
        shoal_tensor_data(x) == NULL || shoal_tensor_data(y) == NULL) {
        (void)sh_fail(SHOAL_EINVAL,
                      "shoal_tensor_dataset: x has %lld rows and y %lld: they need the same number, on the CPU",
                      (long long)shoal_tensor_size(x, 0), (long long)shoal_tensor_size(y, 0));
        return NULL;
    }
    shoal_dataset_type type = {
        .name = "tensors",
        .length = shoal_tensor_size(x, 0),
        .x_dtype = shoal_tensor_dtype(x),
        .y_dtype = shoal_tensor_dtype(y),
        .x_ndim = shoal_tensor_ndim(x) - 1,
        .y_ndim = shoal_tensor_ndim(y) - 1,
        .fetch = rows_fetch,
        .destroy = rows_destroy,
        .pack = rows_pack,
        .open = rows_open,
    };
    memcpy(type.x_shape, shoal_tensor_shape(x) + 1, (size_t)type.x_ndim * sizeof(int64_t));
    memcpy(type.y_shape, shoal_tensor_shape(y) + 1, (size_t)type.y_ndim * sizeof(int64_t));
    rows *r = rows_create(packed_rows(x), packed_rows(y));
    shoal_dataset *set = r != NULL ? shoal_dataset_create(&type, r) : NULL;
    if (set == NULL) {
        rows_destroy(r);
    }
    return set;
}
