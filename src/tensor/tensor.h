/* Tensors inside. A tensor belongs to its process; other processes have their own over the same storage.
 *
 * What autograd keeps of a tensor stands here too, so that tensors need no second object; only autograd/ writes it. */
#ifndef SH_TENSOR_TENSOR_H
#define SH_TENSOR_TENSOR_H

#include "tensor/storage.h"

#include <shoal/tensor.h>

/* An op that was recorded; autograd/node.h has the rest of it. Belongs to the thread that recorded it. */
typedef struct sh_node sh_node;
typedef struct sh_node_head {
    uint32_t refs;
    void (*destroy)(sh_node *node);
} sh_node_head;

static inline void sh_node_release(sh_node *node)
{
    sh_node_head *head = (sh_node_head *)(void *)node;
    if (head && --head->refs == 0) {
        head->destroy(node);
    }
}

/* Functions to call with a tensor's gradient, in one allocation of malloc. */
typedef struct sh_hooks sh_hooks;

struct shoal_tensor {
    sh_a64 refs;
    sh_storage *storage;
    int64_t offset; /* of the first element, in elements */
    int64_t shape[SHOAL_MAX_DIMS];
    int64_t strides[SHOAL_MAX_DIMS]; /* in elements, never negative */
    int64_t count;                   /* of elements */
    int8_t ndim;
    uint8_t dtype;
    bool contiguous;
    bool requires_grad;
    bool grad_is_zero;   /* grad holds garbage and stands for zeros: see sh_tensor_grad_settle */
    uint8_t node_output; /* which output of node this is */
    uint32_t recorded; /* the storage's, when node was true of the bytes: later changes by other views are not in it */
    sh_node *node;     /* the op that made it, while recorded; NULL for a leaf */
    shoal_tensor *grad;
    sh_hooks *hooks;

    /* The block that describes this tensor to other processes, while what it says is so (share/description.c). */
    sh_a64 description;    /* a shoal_block *, or 0 */
    sh_a64 description_id; /* its id + 1; 0: never described */
    sh_a64 described;      /* what it says of the grad and of requires_grad */
    uint64_t stamp;        /* of that description: no other ever has it */
};

/* The dtype of a tensor that was destroyed, for as long as its memory is not used again. */
#define SH_TENSOR_RELEASED 0xff

/* How a tensor lies over its storage. */
typedef struct sh_shape {
    int64_t shape[SHOAL_MAX_DIMS];
    int64_t strides[SHOAL_MAX_DIMS];
    int64_t offset;
    int ndim;
    shoal_dtype dtype;
} sh_shape;

/* Fills out with a contiguous shape. Errors: SHOAL_EINVAL, in words. */
shoal_err sh_shape_init(sh_shape *out, shoal_dtype dtype, int ndim, const int64_t *shape);

/* Elements; and bytes of storage that the shape reaches, from the storage's beginning. -1 when it overflows. */
int64_t sh_shape_count(const sh_shape *s);
int64_t sh_shape_reach(const sh_shape *s);

/* The shape that a and b broadcast to. Errors: SHOAL_EINVAL with both shapes. */
shoal_err sh_shape_broadcast(sh_shape *out, const char *op, const shoal_tensor *a, const shoal_tensor *b);

/* "[64, 10]" for error texts; sh_text for tensors gives "f32 [64, 10]". Each call in an expression needs a buffer of its own. */
typedef struct sh_text {
    char text[160];
} sh_text;

const char *sh_shape_text(sh_text *buffer, int ndim, const int64_t *shape);
const char *sh_tensor_text(sh_text *buffer, const shoal_tensor *t);

/* dim counted from the end made positive, for a tensor of ndim dims (0-d counts as 1-d). Errors: SHOAL_EINVAL. */
shoal_err sh_dim(int *dim, int ndim, const char *op);

/* A tensor over a storage (retained). Does not check that the shape fits. NULL: SHOAL_ENOMEM. */
shoal_tensor *sh_tensor_over(sh_storage *storage, const sh_shape *s);

/* A new contiguous private tensor. NULL: SHOAL_ENOMEM. */
shoal_tensor *sh_tensor_new(const sh_device *device, const sh_shape *s);
shoal_tensor *sh_tensor_new_like(const shoal_tensor *t);

/* The other way: a tensor's shape. */
void sh_tensor_shape_of(const shoal_tensor *t, sh_shape *out);

static inline const sh_device *sh_tensor_device_of(const shoal_tensor *t)
{
    return t->storage->device;
}

static inline void *sh_tensor_ptr(const shoal_tensor *t)
{
    return (char *)t->storage->data + (size_t)t->offset * shoal_dtype_size(t->dtype);
}

/* SHOAL_ESTATE when this process has left the tensor's world. Kernels ask the device; this is for those who read the bytes themselves. */
static inline shoal_err sh_tensor_check(const shoal_tensor *t)
{
    return t->storage->device != &sh_device_left ? SHOAL_OK : sh_device_left.wait();
}

/* For kernels. broadcast: with the shape of `to`, stride 0 where it is repeated; it must broadcast. */
sh_view sh_tensor_view(const shoal_tensor *t);
sh_view sh_tensor_view_as(const shoal_tensor *t, int ndim, const int64_t *shape);

/* After a change in place: what autograd saved of this storage before is no longer true. */
static inline void sh_tensor_touch(shoal_tensor *t)
{
    t->storage->version++;
}

/* Appends to the scope; takes the caller's reference. NULL (and the tensor released): SHOAL_ENOMEM; NULL gives NULL. */
shoal_tensor *sh_scope_add(shoal_tensor *t);

/* Releases all since mark but keep, which afterwards is the scope's last. */
void sh_scope_release_but(size_t mark, shoal_tensor *keep);

/* Sets what grad stands for: zeros, written when somebody looks. */
void sh_tensor_grad_settle(shoal_tensor *t);

/* Where the thread's random numbers come from, moved on by blocks. */
sh_random_key sh_generator_take(uint64_t blocks);

/* Fill and copy through the device's kernels; no autograd, no version. */
shoal_err sh_tensor_fill(shoal_tensor *t, double value);

/* Refuses, with SHOAL_ETYPE and the call's name, a number that an integer dtype cannot hold: a fraction, NaN, one out of range.
 * Floats hold every number, and for bool it is true or false. */
shoal_err sh_number_check(const char *call, shoal_dtype dtype, double value);

/* The same for a number to add or to multiply with: of u8, which wraps around, from -255, so that adding -1 subtracts 1. */
shoal_err sh_factor_check(const char *call, shoal_dtype dtype, double value);
shoal_err sh_tensor_copy_data(shoal_tensor *to, const shoal_tensor *from);

#endif
