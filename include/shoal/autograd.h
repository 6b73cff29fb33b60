/* Gradients. Ops on tensors that need gradients are recorded; backward walks the record and adds to the grad of each
 * leaf, then lets go of the record: a second backward through it is SHOAL_ESTATE, unless it was asked to stay.
 *
 * The record belongs to the thread that made it. What backward needs of a tensor is kept alive by it, and checked: a
 * tensor that was changed in place since makes backward fail with SHOAL_ESTATE and the op's name.
 */
#ifndef SHOAL_AUTOGRAD_H
#define SHOAL_AUTOGRAD_H

#include <shoal/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Sets whether a leaf needs a gradient; floats only (SHOAL_ETYPE). The result of an op that was recorded needs one, and that cannot
 * be taken away (SHOAL_ESTATE): detach it. */
SHOAL_MUST_USE shoal_err shoal_tensor_set_requires_grad(shoal_tensor *t, bool needed);
bool shoal_tensor_requires_grad(const shoal_tensor *t);
bool shoal_tensor_is_leaf(const shoal_tensor *t);

/* The gradient of a tensor, or NULL when there is none yet; borrowed from t. set_grad retains its argument; NULL takes it away. */
shoal_tensor *shoal_tensor_grad(const shoal_tensor *t);
SHOAL_MUST_USE shoal_err shoal_tensor_set_grad(shoal_tensor *t, shoal_tensor *grad);

/* Computes the gradients of a tensor: adds d t / d leaf to the grad of every leaf that t, one element, was computed from. Errors:
 * SHOAL_EINVAL for NULL (the text ends with the error that made it NULL) and for more than one element; SHOAL_ESTATE when nothing needs a gradient, after another backward, or
 * for values changed in place; SHOAL_ENOMEM. */
shoal_err shoal_backward(shoal_tensor *t);

/* shoal_backward from a gradient of t's shape (NULL: one). With keep, the record stays for another backward. */
shoal_err shoal_backward_with(shoal_tensor *t, shoal_tensor *grad, bool keep);

/* A tensor over the same storage, outside of the record. It belongs to the scope. */
shoal_tensor *shoal_detach(shoal_tensor *t);

/* Stop recording in this thread: between begin and end it records nothing. They nest. */
void shoal_no_grad_begin(void);
void shoal_no_grad_end(void);
bool shoal_grad_enabled(void);

/* Hooks on gradients. A hook is called by backward with the gradient of t when it is complete and before it is used or stored; returns the gradient to
 * go on with (the same, or another of the same shape), NULL to fail. At most 8 a tensor (SHOAL_ELIMIT), in the order they
 * were added. out_id, if not NULL, is for removal; context may be NULL. */
typedef shoal_tensor *(*shoal_grad_hook)(shoal_tensor *grad, void *context);
SHOAL_MUST_USE shoal_err shoal_tensor_add_hook(shoal_tensor *t, shoal_grad_hook hook, void *context, int *out_id);
void shoal_tensor_remove_hook(shoal_tensor *t, int id);

#ifdef __cplusplus
}
#endif
#endif
