/* The gradient of a tensor: whether it needs one, the gradient itself, and hooks. */
#include "autograd/node.h"

#include "base/error.h"

#include <stdlib.h>
#include <string.h>

shoal_err shoal_tensor_set_requires_grad(shoal_tensor *t, bool needed)
{
    SH_NEED_TENSOR(t);
    if (t->node) {
        return needed ? SHOAL_OK
                      : sh_fail(SHOAL_ESTATE, "the result of %s needs a gradient; use shoal_detach", t->node->op->name);
    }
    if (needed && !shoal_dtype_is_float(t->dtype)) {
        sh_text text;
        return sh_fail(SHOAL_ETYPE, "%s cannot need a gradient; only floats can", sh_tensor_text(&text, t));
    }
    t->requires_grad = needed;
    return SHOAL_OK;
}

bool shoal_tensor_requires_grad(const shoal_tensor *t)
{
    return sh_tensor_exists(t, __func__) && t->requires_grad;
}

bool shoal_tensor_is_leaf(const shoal_tensor *t)
{
    return sh_tensor_exists(t, __func__) && !t->node;
}

shoal_tensor *shoal_tensor_grad(const shoal_tensor *t)
{
    if (!sh_tensor_exists(t, __func__)) {
        return NULL;
    }
    sh_tensor_grad_settle((shoal_tensor *)(uintptr_t)t);
    return t->grad;
}

shoal_err shoal_tensor_set_grad(shoal_tensor *t, shoal_tensor *grad)
{
    SH_NEED_TENSOR(t);
    if (grad) {
        SH_NEED_TENSOR(grad);
    }
    if (grad && (grad == t || grad->dtype != t->dtype || grad->ndim != t->ndim ||
                 memcmp(grad->shape, t->shape, sizeof t->shape[0] * (size_t)t->ndim) != 0)) {
        sh_text own, given;
        return sh_fail(SHOAL_EINVAL, "%s cannot be the gradient of %s", sh_tensor_text(&given, grad),
                       sh_tensor_text(&own, t));
    }
    if (grad && grad->storage->device != t->storage->device) {
        return sh_device_mixed("shoal_tensor_set_grad", t->storage->device, grad->storage->device);
    }
    (void)shoal_tensor_retain(grad);
    shoal_tensor_release(t->grad);
    t->grad = grad;
    t->grad_is_zero = false;
    return SHOAL_OK;
}

/* The node owns the hooks of a recorded tensor, because they must outlive the tensor. */
static sh_hooks **hooks_of(shoal_tensor *t)
{
    return t->node ? &t->node->hooks[t->node_output] : &t->hooks;
}

shoal_err shoal_tensor_add_hook(shoal_tensor *t, shoal_grad_hook hook, void *context, int *out_id)
{
    SH_NEED(hook);
    SH_NEED_TENSOR(t);
    if (!hook || !t->requires_grad) {
        return sh_fail(SHOAL_EINVAL, hook ? "a tensor that needs no gradient cannot have a hook" : "the hook is NULL");
    }
    sh_hooks **place = hooks_of(t);
    if (!*place) {
        *place = calloc(1, sizeof **place);
        if (!*place) {
            return sh_fail(SHOAL_ENOMEM, "no memory for a hook");
        }
    }
    sh_hooks *h = *place;
    if (h->count == SH_HOOKS) {
        return sh_fail(SHOAL_ELIMIT, "a tensor can have at most %d hooks", SH_HOOKS);
    }
    h->list[h->count].id = ++h->next_id;
    h->list[h->count].call = hook;
    h->list[h->count].context = context;
    h->count++;
    if (out_id) {
        *out_id = h->next_id;
    }
    return SHOAL_OK;
}

void shoal_tensor_remove_hook(shoal_tensor *t, int id)
{
    sh_hooks *h = sh_tensor_exists(t, __func__) ? *hooks_of(t) : NULL;
    for (int i = 0; h && i < h->count; i++) {
        if (h->list[i].id == id) {
            memmove(&h->list[i], &h->list[i + 1], (size_t)(h->count - i - 1) * sizeof h->list[0]);
            h->count--;
            return;
        }
    }
}

shoal_tensor *shoal_detach(shoal_tensor *t)
{
    SH_NEED_TENSOR_OR_NULL(t);
    sh_shape s;
    sh_tensor_shape_of(t, &s);
    return sh_scope_add(sh_tensor_over(t->storage, &s));
}
