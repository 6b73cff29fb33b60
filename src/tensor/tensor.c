/* Tensors: creating them, reference counts, and reading their properties. */
#include "tensor/tensor.h"

#include "base/log.h"

#include <stdlib.h>
#include <string.h>

/* A tensor without elements is always contiguous. */
static bool is_contiguous(const sh_shape *s, int64_t count)
{
    int64_t next = 1;
    for (int d = s->ndim; count > 0 && d-- > 0;) {
        if (s->shape[d] != 1 && s->strides[d] != next) {
            return false;
        }
        next *= s->shape[d];
    }
    return true;
}

shoal_tensor *sh_tensor_over(sh_storage *storage, const sh_shape *s)
{
    shoal_tensor *t = sh_cpu_cache_alloc(sizeof *t);
    if (!t) {
        return NULL;
    }
    int64_t count = sh_shape_count(s);
    *t = (shoal_tensor){
        .storage = sh_storage_retain(storage),
        .offset = s->offset,
        .count = count,
        .ndim = (int8_t)s->ndim,
        .dtype = (uint8_t)s->dtype,
        .contiguous = is_contiguous(s, count),
        .recorded = storage->recorded,
    };
    memcpy(t->shape, s->shape, sizeof t->shape);
    memcpy(t->strides, s->strides, sizeof t->strides);
    sh_store_relaxed(&t->refs, 1);
    return t;
}

static size_t bytes_of(const sh_shape *s)
{
    return (size_t)sh_shape_count(s) * shoal_dtype_size(s->dtype);
}

static shoal_tensor *over_new(sh_storage *storage, const sh_shape *s)
{
    shoal_tensor *t = storage ? sh_tensor_over(storage, s) : NULL;
    sh_storage_release(storage);
    return t;
}

shoal_tensor *sh_tensor_new(const sh_device *device, const sh_shape *s)
{
    return over_new(sh_storage_create(device, bytes_of(s)), s);
}

void sh_tensor_shape_of(const shoal_tensor *t, sh_shape *out)
{
    *out = (sh_shape){.offset = t->offset, .ndim = t->ndim, .dtype = t->dtype};
    memcpy(out->shape, t->shape, sizeof out->shape);
    memcpy(out->strides, t->strides, sizeof out->strides);
}

shoal_tensor *sh_tensor_new_like(const shoal_tensor *t)
{
    sh_shape s;
    return sh_shape_init(&s, t->dtype, t->ndim, t->shape) == SHOAL_OK ? sh_tensor_new(t->storage->device, &s) : NULL;
}

shoal_tensor *sh_tensor_new_copy(const shoal_tensor *t)
{
    shoal_tensor *copy = sh_tensor_new_like(t);
    if (copy && sh_tensor_copy_data(copy, t) != SHOAL_OK) {
        shoal_tensor_release(copy);
        copy = NULL;
    }
    return copy;
}

bool (*sh_tensor_let_go)(shoal_tensor *t);

static void destroy(shoal_tensor *t)
{
    if (sh_load_acquire(&t->shared[0]) != 0 && sh_tensor_let_go(t)) {
        return;
    }
    sh_node_release(t->node);
    shoal_tensor_release(t->grad);
    free(t->hooks);
    sh_storage_release(t->storage);
    t->dtype = SH_TENSOR_RELEASED;
    sh_cpu_cache_free(t, sizeof *t);
}

shoal_err sh_released_error(const char *call)
{
    return sh_fail(
        SHOAL_ESTATE,
        "%s: the tensor was released, by shoal_tensor_release, shoal_scope_release or a loader's next batch; "
        "use it before (shoal_item of a loss before the next batch), or keep it with shoal_tensor_retain",
        call);
}

shoal_tensor *shoal_tensor_retain(shoal_tensor *t)
{
    if (!sh_tensor_exists(t, __func__)) {
        return NULL;
    }
    sh_count_up(&t->refs);
    return t;
}

__attribute__((cold, noinline)) static void report_second_release(void)
{
    sh_log("shoal_tensor_release: the tensor was released before; this call does nothing");
}

void shoal_tensor_release(shoal_tensor *t)
{
    if (t && sh_tensor_is_released(t)) {
        report_second_release();
    } else if (t && sh_count_down(&t->refs)) {
        destroy(t);
    }
}

/* ---- creating ---- */

/* NULL as the device is the result of a failed sh_device_get. */
static shoal_tensor *empty_on(const sh_device *device, shoal_dtype dtype, int ndim, const int64_t *shape)
{
    sh_shape s;
    return device && sh_shape_init(&s, dtype, ndim, shape) == SHOAL_OK ? sh_tensor_new(device, &s) : NULL;
}

shoal_tensor *shoal_empty(shoal_dtype dtype, int ndim, const int64_t *shape)
{
    if (ndim > 0 && !shape) {
        return sh_not_given(__func__, "shape");
    }
    return empty_on(&sh_device_cpu, dtype, ndim, shape);
}

shoal_tensor *shoal_empty_on(shoal_device device, shoal_dtype dtype, int ndim, const int64_t *shape)
{
    if (ndim > 0 && !shape) {
        return sh_not_given(__func__, "shape");
    }
    return empty_on(sh_device_get(device), dtype, ndim, shape);
}

shoal_tensor *shoal_empty_pinned(shoal_dtype dtype, int ndim, const int64_t *shape)
{
    if (ndim > 0 && !shape) {
        return sh_not_given(__func__, "shape");
    }
    sh_shape s;
    const sh_device *card = sh_device_get(SHOAL_CUDA);
    return card && sh_shape_init(&s, dtype, ndim, shape) == SHOAL_OK
               ? over_new(sh_storage_create_pinned(card, bytes_of(&s)), &s)
               : NULL;
}

shoal_tensor *shoal_empty_shared(shoal_dtype dtype, int ndim, const int64_t *shape)
{
    if (ndim > 0 && !shape) {
        return sh_not_given(__func__, "shape");
    }
    sh_shape s;
    return sh_shape_init(&s, dtype, ndim, shape) == SHOAL_OK ? over_new(sh_storage_create_shared(bytes_of(&s)), &s)
                                                             : NULL;
}

/* Sets every element of t. Returns t, or releases it and returns NULL. */
static shoal_tensor *filled(shoal_tensor *t, double value)
{
    if (t && sh_tensor_fill(t, value) != SHOAL_OK) {
        shoal_tensor_release(t);
        t = NULL;
    }
    return t;
}

shoal_tensor *shoal_full(shoal_dtype dtype, double value, int ndim, const int64_t *shape)
{
    if (ndim > 0 && !shape) {
        return sh_not_given(__func__, "shape");
    }
    if (sh_number_check("shoal_full", dtype, value) != SHOAL_OK) {
        return NULL;
    }
    return filled(shoal_empty(dtype, ndim, shape), value);
}

shoal_tensor *shoal_full_on(shoal_device device, shoal_dtype dtype, double value, int ndim, const int64_t *shape)
{
    if (ndim > 0 && !shape) {
        return sh_not_given(__func__, "shape");
    }
    if (sh_number_check("shoal_full_on", dtype, value) != SHOAL_OK) {
        return NULL;
    }
    return filled(shoal_empty_on(device, dtype, ndim, shape), value);
}

shoal_tensor *shoal_zeros(shoal_dtype dtype, int ndim, const int64_t *shape)
{
    if (ndim > 0 && !shape) {
        return sh_not_given(__func__, "shape");
    }
    return shoal_full(dtype, 0, ndim, shape);
}

shoal_tensor *shoal_ones(shoal_dtype dtype, int ndim, const int64_t *shape)
{
    if (ndim > 0 && !shape) {
        return sh_not_given(__func__, "shape");
    }
    return shoal_full(dtype, 1, ndim, shape);
}

shoal_tensor *shoal_scalar(shoal_dtype dtype, double value)
{
    return shoal_full(dtype, value, SHOAL_SCALAR);
}

shoal_tensor *shoal_empty_like(const shoal_tensor *t)
{
    SH_NEED_TENSOR_OR_NULL(t);
    return t ? sh_tensor_new_like(t) : NULL;
}

shoal_tensor *shoal_zeros_like(const shoal_tensor *t)
{
    SH_NEED_TENSOR_OR_NULL(t);
    return filled(shoal_empty_like(t), 0);
}

/* Copies data into the new tensor t. Returns t, or releases it and returns NULL. */
static shoal_tensor *written(shoal_tensor *t, const void *data)
{
    if (t && t->storage->device->write(t->storage->data, data, t->storage->size) != SHOAL_OK) {
        shoal_tensor_release(t);
        t = NULL;
    }
    return t;
}

shoal_tensor *shoal_from_data(shoal_dtype dtype, const void *data, int ndim, const int64_t *shape)
{
    SH_GIVEN_OR_NULL(data);
    if (ndim > 0 && !shape) {
        return sh_not_given(__func__, "shape");
    }
    return written(shoal_empty(dtype, ndim, shape), data);
}

shoal_tensor *shoal_from_data_on(shoal_device device, shoal_dtype dtype, const void *data, int ndim,
                                 const int64_t *shape)
{
    SH_GIVEN_OR_NULL(data);
    if (ndim > 0 && !shape) {
        return sh_not_given(__func__, "shape");
    }
    return written(shoal_empty_on(device, dtype, ndim, shape), data);
}

shoal_tensor *shoal_from_memory(shoal_dtype dtype, void *data, int ndim, const int64_t *shape, void (*release)(void *),
                                void *context)
{
    SH_GIVEN_OR_NULL(data);
    if (ndim > 0 && !shape) {
        return sh_not_given(__func__, "shape");
    }
    sh_shape s;
    if (sh_shape_init(&s, dtype, ndim, shape) != SHOAL_OK) {
        return NULL;
    }
    sh_storage *storage = sh_storage_create_foreign(&sh_device_cpu, data, bytes_of(&s), release, context);
    shoal_tensor *t = storage ? sh_tensor_over(storage, &s) : NULL;
    if (storage && !t) {
        storage->release = NULL;
    }
    sh_storage_release(storage);
    return t;
}

/* Makes a tensor of the dtype with element i = start + i * step. Computes in f64 or i64, whichever is exact for the
 * dtype. */
static shoal_tensor *from_numbers(shoal_dtype dtype, int64_t count, double start, double step)
{
    const int64_t shape[] = {count};
    shoal_dtype wide = shoal_dtype_is_float(dtype) ? SHOAL_F64 : SHOAL_I64;
    shoal_tensor *numbers = shoal_empty(wide, 1, shape);
    shoal_tensor *t = numbers ? shoal_empty(dtype, 1, shape) : NULL;
    for (int64_t i = 0; t && i < count; i++) {
        double x = start + (double)i * step;
        if (wide == SHOAL_F64) {
            ((double *)numbers->storage->data)[i] = x;
        } else {
            ((int64_t *)numbers->storage->data)[i] = (int64_t)x;
        }
    }
    if (t && sh_tensor_copy_data(t, numbers) != SHOAL_OK) {
        shoal_tensor_release(t);
        t = NULL;
    }
    shoal_tensor_release(numbers);
    return t;
}

shoal_tensor *shoal_arange(shoal_dtype dtype, double start, double end, double step)
{
    double n = (end - start) / step;
    if (!(step != 0 && n < 9e15)) {
        (void)sh_fail(SHOAL_EINVAL, "shoal_arange: cannot count from %g to %g by %g", start, end, step);
        return NULL;
    }
    int64_t count = n <= 0 ? 0 : (int64_t)n + ((double)(int64_t)n < n);
    return from_numbers(dtype, count, start, step);
}

shoal_tensor *shoal_eye(shoal_dtype dtype, int64_t n)
{
    shoal_tensor *t = shoal_zeros(dtype, SHOAL_SHAPE(n, n));
    if (t && n > 0) {
        sh_shape diagonal = {.shape = {n}, .strides = {n + 1}, .ndim = 1, .dtype = dtype};
        shoal_tensor *d = sh_tensor_over(t->storage, &diagonal);
        if (!d || sh_tensor_fill(d, 1) != SHOAL_OK) {
            shoal_tensor_release(t);
            t = NULL;
        }
        shoal_tensor_release(d);
    }
    return t;
}

/* ---- asking ---- */

shoal_dtype shoal_tensor_dtype(const shoal_tensor *t)
{
    return sh_tensor_exists(t, __func__) ? t->dtype : SHOAL_F32;
}

shoal_device shoal_tensor_device(const shoal_tensor *t)
{
    return sh_tensor_exists(t, __func__) ? t->storage->device->kind : SHOAL_CPU;
}

int shoal_tensor_ndim(const shoal_tensor *t)
{
    return sh_tensor_exists(t, __func__) ? t->ndim : 0;
}

int64_t shoal_tensor_size(const shoal_tensor *t, int dim)
{
    return sh_tensor_exists(t, __func__) && t->ndim > 0 && sh_dim(&dim, t->ndim, __func__) == SHOAL_OK ? t->shape[dim]
                                                                                                       : 0;
}

int64_t shoal_tensor_stride(const shoal_tensor *t, int dim)
{
    return sh_tensor_exists(t, __func__) && t->ndim > 0 && sh_dim(&dim, t->ndim, __func__) == SHOAL_OK ? t->strides[dim]
                                                                                                       : 0;
}

const int64_t *shoal_tensor_shape(const shoal_tensor *t)
{
    return sh_tensor_exists(t, __func__) ? t->shape : NULL;
}

int64_t shoal_tensor_count(const shoal_tensor *t)
{
    return sh_tensor_exists(t, __func__) ? t->count : 0;
}

int64_t shoal_tensor_offset(const shoal_tensor *t)
{
    return sh_tensor_exists(t, __func__) ? t->offset : 0;
}

bool shoal_tensor_is_contiguous(const shoal_tensor *t)
{
    return sh_tensor_exists(t, __func__) && t->contiguous;
}

void *shoal_tensor_data(const shoal_tensor *t)
{
    return sh_tensor_exists(t, __func__) && t->storage->device->host_readable ? sh_tensor_ptr(t) : NULL;
}

uint64_t shoal_tensor_storage_id(const shoal_tensor *t)
{
    return sh_tensor_exists(t, __func__) ? t->storage->id : 0;
}

size_t shoal_tensor_storage_size(const shoal_tensor *t)
{
    return sh_tensor_exists(t, __func__) ? t->storage->size : 0;
}

bool shoal_tensor_is_shared(const shoal_tensor *t)
{
    return sh_tensor_exists(t, __func__) && sh_storage_is_shared(t->storage);
}
