/* Ops that copy and fill. */
#include "autograd/op.h"

#include "base/error.h"

#include <string.h>

static shoal_err clone_shape(sh_call *c)
{
    return sh_shape_init(&c->shape[0], c->in[0]->dtype, c->in[0]->ndim, c->in[0]->shape);
}

static shoal_err clone_forward(sh_call *c)
{
    return sh_tensor_copy_data(c->out[0], c->in[0]);
}

static shoal_err pass_backward(sh_back *b)
{
    return sh_back_give(b, 0, sh_back_grad(b, 0));
}

const sh_op sh_op_clone = {"clone", SH_OP_COMPUTES, clone_shape, clone_forward, pass_backward};

shoal_tensor *shoal_clone(shoal_tensor *a)
{
    return sh_run(&sh_op_clone, &(sh_call){.in = {a}, .in_count = 1}, 1);
}

shoal_tensor *shoal_contiguous(shoal_tensor *a)
{
    SH_NEED_TENSOR_OR_NULL(a);
    return a->contiguous ? a : shoal_clone(a);
}

bool sh_contiguous_if_given(const char *call, shoal_tensor **t)
{
    shoal_tensor *given = *t;
    *t = sh_tensor_exists(given, call) ? shoal_contiguous(given) : NULL;
    return *t || !given;
}

/* ---- to: a.i = dtype; sh_back_give converts the gradient back ---- */

static shoal_err to_shape(sh_call *c)
{
    return sh_shape_init(&c->shape[0], (shoal_dtype)c->a.i[0], c->in[0]->ndim, c->in[0]->shape);
}

const sh_op sh_op_to = {"to", SH_OP_COMPUTES, to_shape, clone_forward, pass_backward};

/* Integers have no gradient. */
static const sh_op to_integer = {"to", SH_OP_COMPUTES, to_shape, clone_forward, NULL};

shoal_tensor *shoal_to_dtype(shoal_tensor *a, shoal_dtype dtype)
{
    SH_NEED_TENSOR_OR_NULL(a);
    if (!a || (shoal_dtype)a->dtype == dtype) {
        return a;
    }
    const sh_op *op = shoal_dtype_is_float(dtype) && shoal_dtype_is_float(a->dtype) ? &sh_op_to : &to_integer;
    return sh_run(op, &(sh_call){.in = {a}, .in_count = 1, .a.i = {dtype}}, 1);
}

/* ---- tensor_to: out_device; sh_back_give copies the gradient back ---- */

const sh_op sh_op_tensor_to = {"tensor_to", SH_OP_COMPUTES, clone_shape, clone_forward, pass_backward};

shoal_tensor *sh_op_to_device(shoal_tensor *a, const sh_device *device)
{
    if (!a || a->storage->device == device) {
        return a;
    }
    return sh_run(&sh_op_tensor_to, &(sh_call){.in = {a}, .in_count = 1, .out_device = device}, 1);
}

shoal_tensor *shoal_to_device(shoal_tensor *a, shoal_device device)
{
    SH_NEED_TENSOR_OR_NULL(a);
    const sh_device *to = sh_device_get(device);
    return to ? sh_op_to_device(a, to) : NULL;
}

/* ---- copy_: in[1] into in[0] ---- */

static shoal_err copy_shape(sh_call *c)
{
    sh_shape both;
    SH_TRY(sh_shape_broadcast(&both, "copy_", c->in[0], c->in[1]));
    return sh_shape_init(&c->shape[0], c->in[0]->dtype, both.ndim, both.shape);
}

static shoal_err copy_forward(sh_call *c)
{
    return sh_tensor_copy_data(c->out[0], c->in[1]);
}

static shoal_err copy_backward(sh_back *b)
{
    if (sh_back_needs(b, 0)) {
        SH_TRY(sh_back_give(b, 0, sh_scope_add(shoal_zeros_like(sh_back_grad(b, 0)))));
    }
    sh_shape s;
    sh_back_shape(b, 1, &s);
    /* converted before sh_back_give sums what was repeated, so that the sum has the precision of in[1] */
    return sh_back_needs(b, 1) ? sh_back_give(b, 1, shoal_to_dtype(sh_back_grad(b, 0), s.dtype)) : SHOAL_OK;
}

const sh_op sh_op_copy = {"copy_", SH_OP_COPIES, copy_shape, copy_forward, copy_backward};

shoal_tensor *shoal_copy_(shoal_tensor *a, shoal_tensor *from)
{
    return sh_run_in_place(&sh_op_copy, &(sh_call){.in = {a, from}, .in_count = 2}, 2);
}

/* ---- shoal_tensor_copy_async: no gradient ---- */

shoal_err shoal_tensor_copy_async(shoal_tensor *a, shoal_tensor *from)
{
    SH_NEED_TENSOR(a);
    SH_NEED_TENSOR(from);
    const sh_device *to = a->storage->device, *here = from->storage->device;
    const sh_device *device = from->storage->pinned_for ? to : here;
    bool pinned = from->storage->pinned_for == to || a->storage->pinned_for == here;
    sh_text own, other;
    if (!pinned || to->host_readable == here->host_readable) {
        return sh_fail(SHOAL_EINVAL,
                       "shoal_tensor_copy_async: one tensor must be pinned (shoal_empty_pinned) and the other on its "
                       "GPU; use shoal_copy_");
    }
    if (!a->contiguous || !from->contiguous || a->dtype != from->dtype || a->ndim != from->ndim ||
        memcmp(a->shape, from->shape, (size_t)a->ndim * sizeof a->shape[0]) != 0) {
        return sh_fail(SHOAL_EINVAL,
                       "shoal_tensor_copy_async: %s and %s must be contiguous and have one dtype and shape",
                       sh_tensor_text(&own, a), sh_tensor_text(&other, from));
    }
    if ((a->requires_grad || from->requires_grad) && shoal_grad_enabled()) {
        return sh_fail(SHOAL_ESTATE,
                       "shoal_tensor_copy_async records no gradient: detach the tensors first, or use shoal_copy_");
    }
    sh_tensor_touch(a);
    size_t size = (size_t)a->count * shoal_dtype_size(a->dtype);
    return device == to ? device->write_later(sh_tensor_ptr(a), sh_tensor_ptr(from), size)
                        : device->read_later(sh_tensor_ptr(a), sh_tensor_ptr(from), size);
}

/* ---- fill_ ---- */

static shoal_err fill_shape(sh_call *c)
{
    SH_TRY(sh_number_check("fill_", c->in[0]->dtype, c->a.d[0]));
    return clone_shape(c);
}

static shoal_err fill_forward(sh_call *c)
{
    return sh_tensor_fill(c->out[0], c->a.d[0]);
}

static shoal_err fill_backward(sh_back *b)
{
    return sh_back_give(b, 0, sh_scope_add(shoal_zeros_like(sh_back_grad(b, 0))));
}

const sh_op sh_op_fill = {"fill_", SH_OP_COMPUTES, fill_shape, fill_forward, fill_backward};

shoal_tensor *shoal_fill_(shoal_tensor *a, double value)
{
    return sh_run_in_place(&sh_op_fill, &(sh_call){.in = {a}, .in_count = 1, .a.d = {value}}, 1);
}

shoal_tensor *shoal_zero_(shoal_tensor *a)
{
    SH_NEED_TENSOR_OR_NULL(a);
    return shoal_fill_(a, 0);
}

static shoal_tensor *full_on(const shoal_tensor *like, double value, int ndim, const int64_t *shape)
{
    sh_shape s;
    if (!like || sh_shape_init(&s, like->dtype, ndim, shape) != SHOAL_OK) {
        return NULL;
    }
    shoal_tensor *t = sh_scope_add(sh_tensor_new(like->storage->device, &s));
    return t && sh_tensor_fill(t, value) == SHOAL_OK ? t : NULL;
}

shoal_tensor *sh_zeros_on(const shoal_tensor *like, int ndim, const int64_t *shape)
{
    return full_on(like, 0, ndim, shape);
}

shoal_tensor *sh_op_scalar_on(const shoal_tensor *like, double value)
{
    return full_on(like, value, SHOAL_SCALAR);
}
