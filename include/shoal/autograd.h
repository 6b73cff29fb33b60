/* Gradients: records ops on tensors, and computes derivatives from the record.
 *
 * Ops on tensors that need gradients are recorded. shoal_backward walks the record, adds to the gradient of each
 * leaf, and then frees the record. A second backward through it fails with SHOAL_ESTATE, unless the first one was
 * asked to keep the record. A leaf is a tensor that no recorded op computed, such as a parameter.
 *
 * A record keeps alive what backward needs. Only one thread at a time may use its tensors. If a tensor that backward
 * needs was changed in place since, backward fails with SHOAL_ESTATE and names the op. Nothing here blocks.
 */
#ifndef SHOAL_AUTOGRAD_H
#define SHOAL_AUTOGRAD_H

#include <shoal/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Sets whether a leaf needs a gradient. Errors: SHOAL_ETYPE if it is not a tensor of floats; SHOAL_ESTATE if needed is
 * false and t is the result of a recorded op, which always needs a gradient (detach it). */
SHOAL_MUST_USE shoal_err shoal_tensor_set_requires_grad(shoal_tensor *t, bool needed);

/* Return whether a tensor needs a gradient, and whether it is a leaf: no recorded op computed it. Cannot fail. */
bool shoal_tensor_requires_grad(const shoal_tensor *t);
bool shoal_tensor_is_leaf(const shoal_tensor *t);

/* Returns the gradient of a leaf, or NULL if it has none yet. Other tensors have no gradient. The tensor owns it:
 * retain it to use it for longer. */
shoal_tensor *shoal_tensor_grad(const shoal_tensor *t);

/* Sets the gradient of a tensor, which retains it. NULL removes the gradient. Errors: SHOAL_EINVAL if its dtype or
 * shape differs. */
SHOAL_MUST_USE shoal_err shoal_tensor_set_grad(shoal_tensor *t, shoal_tensor *grad);

/* Computes the gradients of a tensor with one element. Adds the derivative of t to the gradient of every leaf that t
 * was computed from and that needs one. Frees the record. Errors: SHOAL_EINVAL if t is NULL (the text ends with the
 * failure that made it NULL) or has more than one element; SHOAL_ESTATE if nothing needs a gradient, after another
 * backward, or if a tensor that it needs was changed in place; SHOAL_ENOMEM. */
SHOAL_MUST_USE shoal_err shoal_backward(shoal_tensor *t);

/* Computes gradients like shoal_backward, but starts with a gradient of t's shape; NULL stands for 1 and needs a t
 * with one element. If keep is true, the record stays for another backward. Errors: those of shoal_backward;
 * SHOAL_EINVAL if the dtype or shape of grad differs from t's. */
SHOAL_MUST_USE shoal_err shoal_backward_with(shoal_tensor *t, shoal_tensor *grad, bool keep);

/* Returns a tensor over the same storage that is not part of the record and needs no gradient. It belongs to the
 * scope. Returns NULL for NULL. Errors: SHOAL_ENOMEM. */
shoal_tensor *shoal_detach(shoal_tensor *t);

/* Stop and resume recording in this thread. Between begin and end ops record nothing. Pairs may be nested. Cannot
 * fail. */
void shoal_no_grad_begin(void);
void shoal_no_grad_end(void);

/* Returns whether this thread records ops: it is not between shoal_no_grad_begin and shoal_no_grad_end. */
bool shoal_grad_enabled(void);

/* A hook on the gradient of a tensor. backward calls it with the complete gradient, before the gradient is used or
 * stored. The hook returns the gradient to continue with, which backward borrows: grad itself, the result of an op,
 * or shoal_scoped of a new tensor, of the same shape. grad is valid during the call; retain it to use it for longer.
 * If the hook returns NULL, backward fails with the error that the hook set (shoal_fail), or SHOAL_EINVAL. */
typedef shoal_tensor *(*shoal_grad_hook)(shoal_tensor *grad, void *context);

/* Adds a hook to the gradient of a tensor. Hooks are called in the order in which they were added. context is passed
 * to the hook and may be NULL. *out_id is for shoal_tensor_remove_hook; out_id may be NULL. Errors: SHOAL_EINVAL if
 * the tensor needs no gradient; SHOAL_ELIMIT if it already has 8 hooks; SHOAL_ENOMEM. */
SHOAL_MUST_USE shoal_err shoal_tensor_add_hook(shoal_tensor *t, shoal_grad_hook hook, void *context, int *out_id);

/* Removes a hook from a tensor by its id. Does nothing if there is no such hook. */
void shoal_tensor_remove_hook(shoal_tensor *t, int id);

#ifdef __cplusplus
}
#endif
#endif
