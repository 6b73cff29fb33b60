/* Shapes: checking, counting, broadcasting, and their text. */
#include "tensor/tensor.h"

#include "base/error.h"

#include <stdio.h>

shoal_err sh_shape_init(sh_shape *out, shoal_dtype dtype, int ndim, const int64_t *shape)
{
    if (shoal_dtype_size(dtype) == 0) {
        return sh_fail(SHOAL_EINVAL, "%d is not a dtype", (int)dtype);
    }
    if (ndim < 0 || ndim > SHOAL_MAX_DIMS || (ndim > 0 && !shape)) {
        return sh_fail(SHOAL_EINVAL, "a tensor has 0 to %d dims, not %d", SHOAL_MAX_DIMS, ndim);
    }
    sh_shape made = {.ndim = ndim, .dtype = dtype};
    int64_t next = 1, bytes;
    bool fits = true;
    for (int d = ndim; d-- > 0 && fits;) {
        if (shape[d] < 0) {
            return sh_fail(SHOAL_EINVAL, "size %lld of dim %d is negative", (long long)shape[d], d);
        }
        made.shape[d] = shape[d];
        made.strides[d] = next;
        fits = !__builtin_mul_overflow(next, shape[d] > 0 ? shape[d] : 1, &next);
    }
    if (!fits || __builtin_mul_overflow(next, (int64_t)shoal_dtype_size(dtype), &bytes)) {
        sh_text text;
        return sh_fail(SHOAL_EINVAL, "a tensor of shape %s is larger than the address space",
                       sh_shape_text(&text, ndim, shape));
    }
    *out = made; /* shape may point into out */
    return SHOAL_OK;
}

int64_t sh_shape_count(const sh_shape *s)
{
    int64_t n = 1;
    for (int d = 0; d < s->ndim; d++) {
        if (s->shape[d] == 0) {
            return 0;
        }
    }
    for (int d = 0; d < s->ndim; d++) {
        if (__builtin_mul_overflow(n, s->shape[d], &n)) {
            return -1;
        }
    }
    return n;
}

int64_t sh_shape_reach(const sh_shape *s)
{
    int64_t last = s->offset;
    if (s->offset < 0) {
        return -1;
    }
    for (int d = 0; d < s->ndim; d++) {
        if (s->shape[d] < 0 || s->strides[d] < 0) {
            return -1;
        }
        if (s->shape[d] == 0) {
            return 0;
        }
        int64_t span;
        if (__builtin_mul_overflow(s->shape[d] - 1, s->strides[d], &span) ||
            __builtin_add_overflow(last, span, &last)) {
            return -1;
        }
    }
    int64_t bytes;
    if (__builtin_add_overflow(last, 1, &last) ||
        __builtin_mul_overflow(last, (int64_t)shoal_dtype_size(s->dtype), &bytes)) {
        return -1;
    }
    return bytes;
}

shoal_err sh_shape_broadcast(sh_shape *out, const char *op, const shoal_tensor *a, const shoal_tensor *b)
{
    int ndim = a->ndim > b->ndim ? a->ndim : b->ndim;
    int64_t shape[SHOAL_MAX_DIMS];
    for (int d = 0; d < ndim; d++) {
        int da = d - (ndim - a->ndim), db = d - (ndim - b->ndim);
        int64_t na = da < 0 ? 1 : a->shape[da], nb = db < 0 ? 1 : b->shape[db];
        if (na != nb && na != 1 && nb != 1) {
            sh_text ta, tb;
            return sh_fail(SHOAL_EINVAL, "%s: shapes %s and %s do not broadcast", op,
                           sh_shape_text(&ta, a->ndim, a->shape), sh_shape_text(&tb, b->ndim, b->shape));
        }
        shape[d] = na == 1 ? nb : na;
    }
    return sh_shape_init(out, a->dtype, ndim, shape);
}

const char *sh_shape_text(sh_text *buffer, int ndim, const int64_t *shape)
{
    size_t at = 0;
    for (int d = 0; d < ndim && at < sizeof buffer->text; d++) {
        at += (size_t)snprintf(buffer->text + at, sizeof buffer->text - at, "%s%lld", d == 0 ? "[" : ", ",
                               (long long)shape[d]);
    }
    if (at < sizeof buffer->text) {
        (void)snprintf(buffer->text + at, sizeof buffer->text - at, ndim > 0 ? "]" : "[]");
    }
    return buffer->text;
}

const char *sh_tensor_text(sh_text *buffer, const shoal_tensor *t)
{
    sh_text shape;
    (void)snprintf(buffer->text, sizeof buffer->text, "%s %.140s", shoal_dtype_name(t->dtype),
                   sh_shape_text(&shape, t->ndim, t->shape));
    return buffer->text;
}

shoal_err sh_dim(int *dim, int ndim, const char *op)
{
    int dims = ndim > 0 ? ndim : 1;
    int d = *dim < 0 ? *dim + dims : *dim;
    if (d < 0 || d >= dims) {
        return sh_fail(SHOAL_EINVAL, "%s: there is no dim %d in a tensor with %d dims", op, *dim, ndim);
    }
    *dim = d;
    return SHOAL_OK;
}
