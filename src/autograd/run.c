/* Runs an op: checks, outputs, forward, record. */
#include "autograd/node.h"

#include "base/error.h"

#include <stdio.h>
#include <string.h>

static _Thread_local int no_grad __attribute__((tls_model("initial-exec")));

void shoal_no_grad_begin(void)
{
    no_grad++;
}

void shoal_no_grad_end(void)
{
    no_grad -= no_grad > 0;
}

bool shoal_grad_enabled(void)
{
    return no_grad == 0;
}

static shoal_err prepare(const sh_op *op, sh_call *call)
{
    call->op = op;
    call->out_count = 1;
    call->device = NULL;
    for (int i = 0; i < call->in_count; i++) {
        const shoal_tensor *t = call->in[i];
        if (!t) {
            continue;
        }
        if (!call->device) {
            call->device = t->storage->device;
        } else if (t->storage->device != call->device && op->kind != SH_OP_COPIES) {
            return sh_device_mixed(op->name, call->device, t->storage->device);
        }
        if (t->recorded != t->storage->recorded && op->backward && no_grad == 0) {
            return sh_fail(
                SHOAL_ESTATE,
                "%s: another view of the tensor's memory was changed in place by an op with a gradient, which "
                "this tensor's gradient would miss; use that view, or clone before changing it",
                op->name);
        }
        call->need[i] = t->requires_grad && no_grad == 0 && op->backward;
        call->record |= call->need[i];
    }
    call->kernels = call->device->kernels();
    call->exec = call->device->exec();
    return call->exec ? SHOAL_OK : shoal_last_error();
}

/* Writes the name of the public function into the buffer of 64 bytes. */
static const char *name_of(const sh_op *op, const sh_call *call, char *name)
{
    size_t n = strlen(op->name);
    (void)snprintf(name, 64, "shoal_%s%s", op->name, call->in_place && op->name[n - 1] != '_' ? "_" : "");
    return name;
}

/* Checks for an input that is NULL or was released, and sets the error. */
static bool inputs_missing(const sh_op *op, const sh_call *call, int required)
{
    for (int i = 0; i < call->in_count; i++) {
        if (!call->in[i] && i < required) {
            (void)sh_null_in(name_of(op, call, (char[64]){0}), i == 0   ? "the first tensor"
                                                               : i == 1 ? "the second tensor"
                                                                        : "a tensor");
            return true;
        }
        if (call->in[i] && sh_tensor_is_released(call->in[i])) {
            (void)sh_released_error(name_of(op, call, (char[64]){0}));
            return true;
        }
    }
    return false;
}

static void drop_saved(sh_call *call)
{
    for (int i = 0; i < call->saved_count; i++) {
        shoal_tensor_release(call->saved[i]);
    }
    call->saved_count = 0;
}

/* Takes over the caller's reference. */
static shoal_err save(sh_call *call, shoal_tensor *kept, uint32_t version)
{
    SH_INVARIANT(call->saved_count < SH_OP_SAVED);
    call->saved[call->saved_count] = kept;
    call->versions[call->saved_count++] = version;
    return SHOAL_OK;
}

shoal_err sh_call_save_in(sh_call *call, int i)
{
    shoal_tensor *t = call->in[i];
    if (!call->record) {
        return SHOAL_OK;
    }
    /* Forward in place overwrites it, so backward gets a copy. */
    if (call->in_place && t && t->storage == call->out[0]->storage) {
        t = sh_tensor_new_copy(t);
        if (!t) {
            return shoal_last_error();
        }
    } else {
        (void)shoal_tensor_retain(t);
    }
    return save(call, t, t ? t->storage->version : 0);
}

shoal_err sh_call_save_in_if(sh_call *call, int i, bool wanted)
{
    return wanted || !call->record ? sh_call_save_in(call, i) : save(call, NULL, 0);
}

shoal_err sh_call_save_out(sh_call *call, int i)
{
    if (!call->record) {
        return SHOAL_OK;
    }
    sh_shape s;
    sh_tensor_shape_of(call->out[i], &s);
    shoal_tensor *alias = sh_tensor_over(call->out[i]->storage, &s);
    return alias ? save(call, alias, alias->storage->version) : shoal_last_error();
}

shoal_tensor *sh_call_scratch(sh_call *call, shoal_dtype dtype, int ndim, const int64_t *shape)
{
    sh_shape s;
    if (sh_shape_init(&s, dtype, ndim, shape) != SHOAL_OK) {
        return NULL;
    }
    shoal_tensor *t = sh_scope_add(sh_tensor_new(call->device, &s));
    if (t && call->record) {
        (void)save(call, shoal_tensor_retain(t), 0);
    }
    return t;
}

static shoal_err make_outputs(sh_call *call)
{
    const sh_device *device = call->out_device ? call->out_device : call->device;
    for (int i = 0; i < call->out_count; i++) {
        call->out[i] =
            sh_scope_add(call->op->kind == SH_OP_VIEWS ? sh_tensor_over(call->in[0]->storage, &call->shape[i])
                                                       : sh_tensor_new(device, &call->shape[i]));
        if (!call->out[i]) {
            return shoal_last_error();
        }
    }
    return SHOAL_OK;
}

shoal_tensor *sh_run(const sh_op *op, sh_call *call, int required)
{
    if (inputs_missing(op, call, required)) {
        return NULL;
    }
    if (prepare(op, call) != SHOAL_OK || op->shape(call) != SHOAL_OK || make_outputs(call) != SHOAL_OK) {
        return NULL;
    }
    if ((op->forward && op->forward(call) != SHOAL_OK) || (call->record && sh_node_record(call) != SHOAL_OK)) {
        drop_saved(call);
        return NULL;
    }
    return call->out[0];
}

/* Checks that t may be changed in place: it has no repeated elements, and its gradient allows it. */
static shoal_err check_in_place(const sh_op *op, const shoal_tensor *t)
{
    for (int d = 0; t->count > 0 && d < t->ndim; d++) {
        if (t->shape[d] > 1 && t->strides[d] == 0) {
            sh_text text;
            return sh_fail(SHOAL_EINVAL, "%s in place: elements of %s are repeated; clone it first", op->name,
                           sh_tensor_text(&text, t));
        }
    }
    if (!t->requires_grad || no_grad > 0) {
        return SHOAL_OK;
    }
    if (!t->node) {
        return sh_fail(SHOAL_ESTATE,
                       "%s in place: a leaf that needs a gradient can be changed only between "
                       "shoal_no_grad_begin and shoal_no_grad_end",
                       op->name);
    }
    if (t->node->op->kind == SH_OP_VIEWS) {
        return sh_fail(SHOAL_ESTATE, "%s in place: a view that needs a gradient cannot be changed; clone it first",
                       op->name);
    }
    return SHOAL_OK;
}

/* Returns the range of bytes of the storage that a tensor uses. */
static void extent(const shoal_tensor *t, int64_t *out_first, int64_t *out_end)
{
    sh_shape s;
    sh_tensor_shape_of(t, &s);
    *out_first = t->offset * (int64_t)shoal_dtype_size(t->dtype);
    *out_end = sh_shape_reach(&s);
}

static bool is_same_view(const shoal_tensor *a, const shoal_tensor *b)
{
    size_t size = sizeof a->shape[0] * (size_t)a->ndim;
    return a->offset == b->offset && a->dtype == b->dtype && a->ndim == b->ndim &&
           memcmp(a->shape, b->shape, size) == 0 && memcmp(a->strides, b->strides, size) == 0;
}

/* Kernels write while they read, so an input that overlaps the output, and is not the same view, is copied before. */
static shoal_err copy_overlapping_inputs(sh_call *call)
{
    const shoal_tensor *t = call->in[0];
    int64_t first, end, from, to;
    extent(t, &first, &end);
    for (int i = 1; i < call->in_count; i++) {
        shoal_tensor *other = call->in[i];
        if (!other || other->storage != t->storage || is_same_view(t, other)) {
            continue;
        }
        extent(other, &from, &to);
        if (from < end && first < to && !(call->in[i] = shoal_clone(other))) {
            return shoal_last_error();
        }
    }
    return SHOAL_OK;
}

shoal_tensor *sh_run_in_place(const sh_op *op, sh_call *call, int required)
{
    call->in_place = true;
    if (inputs_missing(op, call, required)) {
        return NULL;
    }
    shoal_tensor *t = call->in[0];
    if (copy_overlapping_inputs(call) != SHOAL_OK || prepare(op, call) != SHOAL_OK ||
        check_in_place(op, t) != SHOAL_OK || op->shape(call) != SHOAL_OK) {
        return NULL;
    }
    const sh_shape *s = &call->shape[0];
    if (s->dtype != (shoal_dtype)t->dtype || s->ndim != t->ndim ||
        memcmp(s->shape, t->shape, (size_t)t->ndim * sizeof t->shape[0]) != 0) {
        sh_text own, made;
        (void)sh_fail(SHOAL_EINVAL, "%s in place: the result %s does not fit into %s", op->name,
                      sh_shape_text(&made, s->ndim, s->shape), sh_tensor_text(&own, t));
        return NULL;
    }
    call->out[0] = t;
    sh_tensor_touch(t);
    if (op->forward(call) != SHOAL_OK) {
        drop_saved(call);
        return NULL;
    }
    if (call->record) {
        t->recorded = ++t->storage->recorded;
        if (sh_node_record(call) != SHOAL_OK) {
            drop_saved(call);
            return NULL;
        }
    }
    return t;
}
