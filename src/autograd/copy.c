/* Ops that copy and fill. */
#include "autograd/op.h"

#include "base/error.h"

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
    SH_NEED_OR_NULL(a);
    return a->contiguous ? a : shoal_clone(a);
}

/* ---- to: a.i = dtype; sh_back_give converts the gradient back ---- */

static shoal_err to_shape(sh_call *c)
{
    return sh_shape_init(&c->shape[0], (shoal_dtype)c->a.i[0], c->in[0]->ndim, c->in[0]->shape);
}

const sh_op sh_op_to = {"to", SH_OP_COMPUTES, to_shape, clone_forward, pass_backward};

/* Integers have no gradient. */
static const sh_op to_integer = {"to", SH_OP_COMPUTES, to_shape, clone_forward, NULL};

shoal_tensor *shoal_to(shoal_tensor *a, shoal_dtype dtype)
{
    SH_NEED_OR_NULL(a);
    if (!a || (shoal_dtype)a->dtype == dtype) {
        return a;
    }
    const sh_op *op = shoal_dtype_is_float(dtype) && shoal_dtype_is_float(a->dtype) ? &sh_op_to : &to_integer;
    return sh_run(op, &(sh_call){.in = {a}, .in_count = 1, .a.i = {dtype}}, 1);
}

shoal_tensor *shoal_to_device(shoal_tensor *a, shoal_device device)
{
    SH_NEED_OR_NULL(a);
    if (!a || a->storage->device->kind == device) {
        return a;
    }
    const sh_device *to = sh_device_get(device);
    shoal_tensor *from = to ? shoal_contiguous(a) : NULL;
    sh_shape s;
    if (!from || sh_shape_init(&s, a->dtype, a->ndim, a->shape) != SHOAL_OK) {
        return NULL;
    }
    if (a->requires_grad && shoal_grad_enabled()) {
        (void)sh_fail(SHOAL_ESTATE, "to_device has no gradient; use shoal_detach first");
        return NULL;
    }
    shoal_tensor *t = sh_scope_add(sh_tensor_new(to, &s));
    size_t size = (size_t)a->count * shoal_dtype_size(a->dtype);
    shoal_err err = !t ? shoal_last_error()
                    : from->storage->device->host_readable
                        ? to->write(sh_tensor_ptr(t), sh_tensor_ptr(from), size)
                        : from->storage->device->read(sh_tensor_ptr(t), sh_tensor_ptr(from), size);
    return err == SHOAL_OK ? t : NULL;
}

/* ---- copy_: in[1] into in[0] ---- */

static shoal_err copy_shape(sh_call *c)
{
    sh_shape both;
    shoal_err err = sh_shape_broadcast(&both, "copy_", c->in[0], c->in[1]);
    if (err == SHOAL_OK) {
        err = sh_shape_init(&c->shape[0], c->in[0]->dtype, both.ndim, both.shape);
    }
    return err;
}

static shoal_err copy_forward(sh_call *c)
{
    return sh_tensor_copy_data(c->out[0], c->in[1]);
}

static shoal_err copy_backward(sh_back *b)
{
    shoal_err err = SHOAL_OK;
    if (sh_back_needs(b, 0)) {
        err = sh_back_give(b, 0, sh_scope_add(shoal_zeros_like(sh_back_grad(b, 0))));
    }
    return err == SHOAL_OK ? sh_back_give(b, 1, sh_back_grad(b, 0)) : err;
}

const sh_op sh_op_copy = {"copy_", SH_OP_COMPUTES, copy_shape, copy_forward, copy_backward};

shoal_tensor *shoal_copy_(shoal_tensor *a, shoal_tensor *from)
{
    return sh_run_in_place(&sh_op_copy, &(sh_call){.in = {a, from}, .in_count = 2}, 2);
}

/* ---- fill_ ---- */

static shoal_err fill_shape(sh_call *c)
{
    shoal_err err = sh_number_check("fill_", c->in[0]->dtype, c->a.d[0]);
    return err == SHOAL_OK ? clone_shape(c) : err;
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
    SH_NEED_OR_NULL(a);
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
