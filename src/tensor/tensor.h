/* Tensors inside the library. A tensor belongs to its process; other processes have their own tensors over the same
 * storage.
 *
 * What autograd needs to know about a tensor is here too, so that tensors need no second object. Only autograd/ writes
 * it. There is also room for what the layer share knows of it. */
#ifndef SH_TENSOR_TENSOR_H
#define SH_TENSOR_TENSOR_H

#include "base/error.h"
#include "tensor/storage.h"

#include <shoal/tensor.h>

/* An op that was recorded; autograd/node.h has the rest. It belongs to the thread that recorded it. */
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

/* Functions to call with a tensor's gradient, in one allocation from malloc. */
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
    bool grad_is_zero;   /* grad holds garbage and means zeros: see sh_tensor_grad_settle */
    uint8_t node_output; /* which output of node this is */
    /* The storage's count when node described the bytes: later changes by other views are not in it. */
    uint32_t recorded;
    sh_node *node; /* the op that made it, while recorded; NULL for a leaf */
    shoal_tensor *grad;
    sh_hooks *hooks;

    sh_a64 shared[5]; /* used by share/ only; zeros in a new tensor */
};

/* Called with a tensor whose last reference is gone, if shared[0] is not 0. Returns true if it keeps the tensor, to use
 * it again; otherwise it has released what `shared` refers to. Set when share/ is loaded. */
extern bool (*sh_tensor_let_go)(shoal_tensor *t);

/* The dtype of a tensor whose last reference is gone, until its memory is used again. A call that gets such a tensor
 * fails with SHOAL_ESTATE. It cannot tell once the memory holds another tensor; AddressSanitizer reports every use. */
#define SH_TENSOR_RELEASED 0xff

static inline bool sh_tensor_is_released(const shoal_tensor *t)
{
    return __builtin_expect(t->dtype == SH_TENSOR_RELEASED, 0);
}

/* Reports that a call got a released tensor. Returns SHOAL_ESTATE. */
__attribute__((cold)) shoal_err sh_released_error(const char *call);

/* SH_NEED and SH_NEED_OR_NULL for a tensor, which must not be released either. */
#define SH_NEED_TENSOR(t)                                                                                              \
    do {                                                                                                               \
        SH_NEED(t);                                                                                                    \
        if (sh_tensor_is_released(t)) {                                                                                \
            return sh_released_error(__func__);                                                                        \
        }                                                                                                              \
    } while (0)

#define SH_NEED_TENSOR_OR_NULL(t)                                                                                      \
    do {                                                                                                               \
        SH_NEED_OR_NULL(t);                                                                                            \
        if (sh_tensor_is_released(t)) {                                                                                \
            (void)sh_released_error(__func__);                                                                         \
            return NULL;                                                                                               \
        }                                                                                                              \
    } while (0)

/* For calls that accept NULL: returns whether there is a tensor to use. Sets SHOAL_ESTATE if it was released. */
static inline bool sh_tensor_exists(const shoal_tensor *t, const char *call)
{
    return t && !(sh_tensor_is_released(t) && sh_released_error(call));
}

/* How a tensor uses its storage. */
typedef struct sh_shape {
    int64_t shape[SHOAL_MAX_DIMS];
    int64_t strides[SHOAL_MAX_DIMS];
    int64_t offset;
    int ndim;
    shoal_dtype dtype;
} sh_shape;

/* Fills out with a contiguous shape. Errors: SHOAL_EINVAL, with the reason. */
shoal_err sh_shape_init(sh_shape *out, shoal_dtype dtype, int ndim, const int64_t *shape);

/* Return the number of elements, and the bytes of storage that the shape reaches, from the start of the storage; -1 on
 * overflow. */
int64_t sh_shape_count(const sh_shape *s);
int64_t sh_shape_reach(const sh_shape *s);

/* Computes the shape that a and b broadcast to. Errors: SHOAL_EINVAL, with both shapes. */
shoal_err sh_shape_broadcast(sh_shape *out, const char *op, const shoal_tensor *a, const shoal_tensor *b);

/* "[64, 10]" for error texts; for tensors "f32 [64, 10]". Each call in an expression needs a separate buffer. */
typedef struct sh_text {
    char text[160];
} sh_text;

const char *sh_shape_text(sh_text *buffer, int ndim, const int64_t *shape);
const char *sh_tensor_text(sh_text *buffer, const shoal_tensor *t);

/* Makes a dim that counts from the end positive, for a tensor of ndim dims (0-d counts as 1-d). Errors:
 * SHOAL_EINVAL. */
shoal_err sh_dim(int *dim, int ndim, const char *op);

/* Makes a tensor over a storage, which it retains. Does not check that the shape fits. Returns NULL and sets
 * SHOAL_ENOMEM if there is no memory. */
shoal_tensor *sh_tensor_over(sh_storage *storage, const sh_shape *s);

/* Makes a new contiguous private tensor. Returns NULL and sets SHOAL_ENOMEM if there is no memory. */
shoal_tensor *sh_tensor_new(const sh_device *device, const sh_shape *s);
shoal_tensor *sh_tensor_new_like(const shoal_tensor *t);

/* Makes a contiguous private copy, which autograd does not record. Returns NULL on failure. Errors: SHOAL_ENOMEM, and
 * those of sh_tensor_copy_data. */
shoal_tensor *sh_tensor_new_copy(const shoal_tensor *t);

/* Returns a tensor's shape. */
void sh_tensor_shape_of(const shoal_tensor *t, sh_shape *out);

static inline const sh_device *sh_tensor_device_of(const shoal_tensor *t)
{
    return t->storage->device;
}

static inline void *sh_tensor_ptr(const shoal_tensor *t)
{
    return (char *)t->storage->data + (size_t)t->offset * shoal_dtype_size(t->dtype);
}

/* Returns SHOAL_ESTATE if this process has left the tensor's world. Kernels ask the device; this is for code that reads
 * the bytes itself. */
static inline shoal_err sh_tensor_check(const shoal_tensor *t)
{
    return t->storage->device != &sh_device_left ? SHOAL_OK : sh_device_left.wait();
}

/* Views for kernels. sh_tensor_view_as has the given shape, with stride 0 where the tensor repeats; it must
 * broadcast. */
sh_view sh_tensor_view(const shoal_tensor *t);
sh_view sh_tensor_view_as(const shoal_tensor *t, int ndim, const int64_t *shape);

/* Called after a change in place: what autograd saved from this storage before is out of date. */
static inline void sh_tensor_touch(shoal_tensor *t)
{
    t->storage->version++;
}

/* Appends to the scope and takes the caller's reference. Returns NULL, with the tensor released and SHOAL_ENOMEM set,
 * if there is no memory. NULL gives NULL. */
shoal_tensor *sh_scope_add(shoal_tensor *t);

/* Releases all since mark except keep, which then is the scope's last. */
void sh_scope_release_but(size_t mark, shoal_tensor *keep);

/* Writes zeros to a grad that is only marked as zero (grad_is_zero). */
void sh_tensor_grad_settle(shoal_tensor *t);

/* Returns the current key of the thread's random numbers and advances it by that many blocks. */
sh_random_key sh_generator_take(uint64_t blocks);

/* The state of the thread's random numbers: the next key has this seed and offset. */
typedef struct sh_generator {
    uint64_t seed, offset;
} sh_generator;

sh_generator sh_generator_get(void);
void sh_generator_set(sh_generator generator);

/* Fill and copy with the device's kernels, without autograd and without changing the version. The tensors of a copy may
 * be on different devices. */
shoal_err sh_tensor_fill(shoal_tensor *t, double value);
shoal_err sh_tensor_copy_data(shoal_tensor *to, const shoal_tensor *from);

/* Checks that the dtype can hold the number. Returns SHOAL_ETYPE, with the call's name, if an integer dtype gets a
 * fraction, a NaN or a number out of range. Floats hold every number, and for bool the number is true or false. */
shoal_err sh_number_check(const char *call, shoal_dtype dtype, double value);

/* The same for a number to add or to multiply by. For u8, which wraps around, it may start at -255, so that adding -1
 * subtracts 1. */
shoal_err sh_factor_check(const char *call, shoal_dtype dtype, double value);

#endif
