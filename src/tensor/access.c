/* Views for kernels, fills and copies, and reading elements on the host. */
#include "tensor/tensor.h"

#include "base/error.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

sh_view sh_tensor_view(const shoal_tensor *t)
{
    sh_view v = {.data = sh_tensor_ptr(t), .ndim = t->ndim, .dtype = t->dtype};
    memcpy(v.shape, t->shape, sizeof v.shape);
    memcpy(v.strides, t->strides, sizeof v.strides);
    return v;
}

sh_view sh_tensor_view_as(const shoal_tensor *t, int ndim, const int64_t *shape)
{
    sh_view v = {.data = sh_tensor_ptr(t), .ndim = ndim, .dtype = t->dtype};
    for (int d = 0; d < ndim; d++) {
        int own = d - (ndim - t->ndim);
        v.shape[d] = shape[d];
        v.strides[d] = own < 0 || t->shape[own] == 1 ? 0 : t->strides[own];
    }
    return v;
}

/* Checks for a whole number from low to below end. */
static shoal_err check_whole(const char *call, shoal_dtype dtype, double value, double low, double end)
{
    if (value >= low && value < end && trunc(value) == value) {
        return SHOAL_OK;
    }
    return sh_fail(SHOAL_ETYPE, "%s: the number %g does not fit into %s: convert the tensor with shoal_to_dtype first",
                   call, value, shoal_dtype_name(dtype));
}

shoal_err sh_number_check(const char *call, shoal_dtype dtype, double value)
{
    return dtype == SHOAL_U8 ? check_whole(call, dtype, value, 0, 256) : sh_factor_check(call, dtype, value);
}

shoal_err sh_factor_check(const char *call, shoal_dtype dtype, double value)
{
    switch (dtype) {
    case SHOAL_I64: return check_whole(call, dtype, value, -0x1p63, 0x1p63);
    case SHOAL_I32: return check_whole(call, dtype, value, -0x1p31, 0x1p31);
    case SHOAL_U8: return check_whole(call, dtype, value, -255, 256);
    default: return SHOAL_OK;
    }
}

shoal_err sh_tensor_fill(shoal_tensor *t, double value)
{
    const sh_device *device = t->storage->device;
    sh_exec *exec = device->exec();
    sh_view out = sh_tensor_view(t);
    return exec ? device->kernels()->elementwise->fill(exec, &out, sh_scalar_float(value)) : shoal_last_error();
}

/* Returns a contiguous tensor of the shape and the dtype on that device: t itself, retained, if it is one; otherwise a
 * new one, with undefined elements. */
static shoal_tensor *packed_place(const shoal_tensor *t, const shoal_tensor *like, const sh_device *device)
{
    if (t->contiguous && t->dtype == like->dtype) {
        return shoal_tensor_retain((shoal_tensor *)(uintptr_t)t);
    }
    sh_shape s;
    return sh_shape_init(&s, like->dtype, t->ndim, t->shape) == SHOAL_OK ? sh_tensor_new(device, &s) : NULL;
}

/* Copies to a tensor of another device. Converts before, so that what is copied has the dtype of the destination, and
 * repeats after. */
static shoal_err copy_to_other_device(shoal_tensor *to, const shoal_tensor *from)
{
    const sh_device *there = to->storage->device, *here = from->storage->device;
    shoal_tensor *sent = packed_place(from, to, here);
    shoal_err err = sent ? SHOAL_OK : shoal_last_error();
    if (err == SHOAL_OK && sent != from) {
        err = sh_tensor_copy_data(sent, from);
    }
    bool direct = err == SHOAL_OK && to->contiguous && sent->ndim == to->ndim &&
                  memcmp(sent->shape, to->shape, (size_t)to->ndim * sizeof to->shape[0]) == 0;
    shoal_tensor *arrived = NULL;
    if (err == SHOAL_OK) {
        sh_shape s;
        sh_tensor_shape_of(sent, &s);
        s.offset = 0;
        arrived = direct ? shoal_tensor_retain(to) : sh_tensor_new(there, &s);
        err = arrived ? sh_copy_across(there, sh_tensor_ptr(arrived), here, sh_tensor_ptr(sent),
                                       (size_t)sent->count * shoal_dtype_size(sent->dtype))
                      : shoal_last_error();
    }
    if (err == SHOAL_OK && !direct) {
        err = sh_tensor_copy_data(to, arrived);
    }
    shoal_tensor_release(sent);
    shoal_tensor_release(arrived);
    return err;
}

shoal_err sh_tensor_copy_data(shoal_tensor *to, const shoal_tensor *from)
{
    const sh_device *device = to->storage->device;
    if (from->storage->device != device) {
        return copy_to_other_device(to, from);
    }
    sh_exec *exec = device->exec();
    sh_view out = sh_tensor_view(to), in = sh_tensor_view_as(from, to->ndim, to->shape);
    return exec ? device->kernels()->elementwise->copy(exec, &out, &in) : shoal_last_error();
}

/* Returns the elements in order, in this or another dtype, in host memory. The caller calls free() on the result. */
static void *host_copy(const shoal_tensor *t, shoal_dtype dtype)
{
    size_t size = (size_t)t->count * shoal_dtype_size(dtype);
    sh_shape s;
    void *host = NULL;
    shoal_tensor *packed =
        sh_shape_init(&s, dtype, t->ndim, t->shape) == SHOAL_OK ? sh_tensor_new(t->storage->device, &s) : NULL;
    if (packed && sh_tensor_copy_data(packed, t) == SHOAL_OK) {
        host = malloc(size > 0 ? size : 1);
        if (!host) {
            (void)sh_fail(SHOAL_ENOMEM, "no memory for %zu bytes", size);
        } else if (t->storage->device->read(host, sh_tensor_ptr(packed), size) != SHOAL_OK) {
            free(host);
            host = NULL;
        }
    }
    shoal_tensor_release(packed);
    return host;
}

shoal_err shoal_tensor_read(const shoal_tensor *t, void *out, size_t size)
{
    SH_NEED(out);
    SH_NEED_TENSOR(t);
    size_t own = (size_t)t->count * shoal_dtype_size(t->dtype);
    if (size != own) {
        return sh_fail(SHOAL_EINVAL, "shoal_tensor_read: the tensor has %zu bytes, not %zu", own, size);
    }
    if (t->contiguous) {
        return t->storage->device->read(out, sh_tensor_ptr(t), size);
    }
    void *host = host_copy(t, t->dtype);
    if (!host) {
        return shoal_last_error();
    }
    memcpy(out, host, size);
    free(host);
    return SHOAL_OK;
}

/* Returns the element at an offset into the storage, in elements. */
static shoal_err element(const shoal_tensor *t, int64_t offset, double *out)
{
    sh_shape s = {.offset = offset, .dtype = t->dtype};
    shoal_tensor *one = sh_tensor_over(t->storage, &s);
    double *number = one ? host_copy(one, SHOAL_F64) : NULL;
    shoal_err err = number ? SHOAL_OK : shoal_last_error();
    *out = number ? *number : *out;
    free(number);
    shoal_tensor_release(one);
    return err;
}

shoal_err shoal_item(const shoal_tensor *t, double *out)
{
    SH_NEED_TENSOR(t);
    SH_NEED(out);
    if (t->count != 1) {
        sh_text text;
        return sh_fail(SHOAL_EINVAL, "shoal_item: %s does not have exactly one element", sh_tensor_text(&text, t));
    }
    if (t->dtype == SHOAL_F32 && t->storage->device->host_readable) {
        *out = *(const float *)sh_tensor_ptr(t);
        return SHOAL_OK;
    }
    return element(t, t->offset, out);
}

shoal_err shoal_tensor_at(const shoal_tensor *t, int ndim, const int64_t *index, double *out)
{
    SH_NEED_TENSOR(t);
    SH_NEED(out);
    if (ndim > 0 && !index) {
        return sh_null_error(__func__, "index");
    }
    int64_t at = t->offset;
    bool inside = ndim == t->ndim;
    for (int d = 0; inside && d < ndim; d++) {
        inside = index[d] >= 0 && index[d] < t->shape[d];
        at += index[d] * t->strides[d];
    }
    if (!inside) {
        sh_text i, text;
        return sh_fail(SHOAL_EINVAL, "shoal_tensor_at: %s is not an index of %s",
                       sh_shape_text(&i, ndim < SHOAL_MAX_DIMS ? ndim : SHOAL_MAX_DIMS, index),
                       sh_tensor_text(&text, t));
    }
    return element(t, at, out);
}

static bool same_shape(const shoal_tensor *a, const shoal_tensor *b)
{
    return a->ndim == b->ndim && memcmp(a->shape, b->shape, (size_t)a->ndim * sizeof a->shape[0]) == 0;
}

bool shoal_tensor_equal(const shoal_tensor *a, const shoal_tensor *b)
{
    if (!sh_tensor_exists(a, __func__) || !sh_tensor_exists(b, __func__) || a->dtype != b->dtype || !same_shape(a, b)) {
        return false;
    }
    void *x = host_copy(a, a->dtype), *y = host_copy(b, b->dtype);
    bool equal = x && y && memcmp(x, y, (size_t)a->count * shoal_dtype_size(a->dtype)) == 0;
    free(x);
    free(y);
    return equal;
}

bool shoal_tensor_close(const shoal_tensor *a, const shoal_tensor *b, double rtol, double atol)
{
    if (!sh_tensor_exists(a, __func__) || !sh_tensor_exists(b, __func__) || !same_shape(a, b)) {
        return false;
    }
    double *x = host_copy(a, SHOAL_F64), *y = host_copy(b, SHOAL_F64);
    bool close = x && y;
    for (int64_t i = 0; close && i < a->count; i++) {
        close = x[i] == y[i] || fabs(x[i] - y[i]) <= atol + rtol * fabs(y[i]) || (isnan(x[i]) && isnan(y[i]));
    }
    free(x);
    free(y);
    return close;
}

void sh_tensor_grad_settle(shoal_tensor *t)
{
    if (t->grad_is_zero) {
        t->grad_is_zero = false;
        if (t->grad) {
            (void)sh_tensor_fill(t->grad, 0);
        }
    }
}
