/* Sharing: passes tensors, sparse tensors and modules between processes.
 *
 * Sharing a tensor moves its storage into the heap once, for all views of it. After that, sending it sends a handle.
 * The receiver gets its own tensor over the same memory; if it arrives more than once, the tensors have the same
 * storage. In values, tensors and modules are members like any other: shoal_map("x", tensor, "model", module).
 *
 * A GPU tensor stays where it is: sharing and sending it copies nothing. The GPU does the sender's work from before
 * the put, then the work that the receiver enqueues after its get. Neither process waits. To send only finished work,
 * call shoal_cuda_wait before the put: the tensor then arrives complete even if its sender is killed.
 *
 * After shoal_world_leave the elements of a shared tensor are gone: shoal_tensor_data returns NULL, and calls that
 * need the elements fail with SHOAL_ESTATE. Its dtype and shape remain.
 */
#ifndef SHOAL_SHARE_H
#define SHOAL_SHARE_H

#include <shoal/nn.h>
#include <shoal/queue.h>
#include <shoal/value.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Moves the storage of a tensor, and of its gradient, into the shared heap. The address of the elements changes, except
 * on a GPU. Does nothing if the storage is shared already. No other thread may use the storage meanwhile. Does not
 * block. Errors: SHOAL_ENOMEM (the text has the sizes); SHOAL_ESTATE if the tensor needs a gradient and is not a leaf
 * (detach it first), or another library holds it (shoal_tensor_to_dlpack); SHOAL_EINVAL if the memory belongs to the
 * program or another library (shoal_from_memory, shoal_tensor_from_dlpack) and cannot move: clone the tensor first;
 * SHOAL_EFORK. For a GPU tensor also SHOAL_ELIMIT if the world cannot share more GPU memory (docs/cuda.md),
 * SHOAL_EPERM if this process joined the world by name and the system does not let it share GPU memory,
 * SHOAL_ETIMEDOUT if another process was stopped in the middle of such a call, SHOAL_EOS if the world has no sockets
 * for GPU memory (the text says why), SHOAL_ECUDA. */
SHOAL_MUST_USE shoal_err shoal_tensor_share(shoal_tensor *t);

/* Shares a tensor and puts it into a queue. The caller keeps its own reference. If sharing fails, nothing is put.
 * Blocks while the queue is full, at most for timeout. Thread-safe if the tensor was shared before. Errors: those of
 * shoal_tensor_share and shoal_queue_put. For a GPU tensor also SHOAL_ELOST if this process has computed with a
 * tensor whose sender died before its work was done, so that the elements are undefined. It is returned once; a later
 * put works again. */
SHOAL_MUST_USE shoal_err shoal_queue_put_tensor(shoal_queue *queue, shoal_tensor *t, int64_t timeout);

/* Puts a tensor into a queue and passes on the caller's reference. After success the caller must not use the tensor.
 * This is the cheapest way to forward a tensor that was received. Otherwise like shoal_queue_put_tensor. */
SHOAL_MUST_USE shoal_err shoal_queue_give_tensor(shoal_queue *queue, shoal_tensor *t, int64_t timeout);

/* Takes a tensor from a queue. The caller owns it. Blocks and fails like shoal_queue_get. Thread-safe. Errors: also
 * SHOAL_ETYPE if the oldest message is not a tensor; the message then stays in the queue. For a GPU tensor also
 * SHOAL_ELOST if its sender lost its GPU or died before its work was done; the message is then lost. (If that is
 * noticed after the get, the next shoal_cuda_wait, read or put returns SHOAL_ELOST instead.) If this process uses
 * another GPU or has none: SHOAL_EINVAL, or the errors of shoal_cuda_count. The message then goes back to the end of
 * the queue, for another process. */
SHOAL_MUST_USE shoal_err shoal_queue_get_tensor(shoal_queue *queue, int64_t timeout, shoal_tensor **out_tensor);

/* A shared GPU tensor in one process, as shoal_cuda_tensors_list reports it. The texts and the shape are valid only
 * during the callback. */
typedef struct shoal_cuda_tensor {
    uint64_t id;      /* of the tensor in its world: the same in every process that has it */
    int32_t pid;      /* of the process; 0: no process has the tensor, only a queue or another object */
    uint32_t slot;    /* of the process, as in shoal_ps_entry */
    const char *name; /* of the process, as given at its start; "" if there is none */
    union {
        const char *uuid; /* of the GPU, as nvidia-smi shows it */
        const char *card; /* its name in version 0.2 */
    };
    shoal_dtype dtype;
    int ndim;
    const int64_t *shape;
    uint64_t size; /* of its storage, in bytes; several tensors may share one storage */
} shoal_cuda_tensor;

/* Lists the shared GPU tensors of this process's world, like `shoal ps --tensors`. Calls `each`, with context, once
 * for each tensor and each process that has it. Stops when `each` returns false; that is not an error. Other processes
 * continue meanwhile, so the list may already be out of date. Needs no GPU. Does not block. Errors: SHOAL_ENOMEM;
 * SHOAL_EINVAL; those of shoal_world_info_get. */
SHOAL_MUST_USE shoal_err shoal_cuda_tensors_list(bool (*each)(const shoal_cuda_tensor *tensor, void *context),
                                                 void *context);

/* Lists the shared GPU tensors of a world of the same user, by the world's name, without joining it: for tools.
 * Otherwise like shoal_cuda_tensors_list. Errors: SHOAL_ESTATE if the process is in a world; SHOAL_ENOENT; SHOAL_EPERM;
 * SHOAL_ELAYOUT; SHOAL_ECORRUPT; SHOAL_ENOMEM; SHOAL_EINVAL. */
SHOAL_MUST_USE shoal_err shoal_cuda_tensors_list_of(const char *world,
                                                    bool (*each)(const shoal_cuda_tensor *tensor, void *context),
                                                    void *context);

/* Shares all parameters and buffers of a module, as shoal_tensor_share does. Does not block. Errors: those of
 * shoal_tensor_share. */
SHOAL_MUST_USE shoal_err shoal_module_share(shoal_module *module);

/* The layout of a sparse tensor. COO has indices i64 [ndim, n] and values [n, ...]. CSR has row starts i64 [rows +
 * 1], columns i64 [n] and values [n]. */
typedef struct shoal_sparse shoal_sparse;
typedef enum shoal_layout {
    SHOAL_LAYOUT_COO,
    SHOAL_LAYOUT_CSR,
} shoal_layout;

/* Make a sparse tensor from its parts, which it retains. The caller owns it: shoal_sparse_destroy. Does not block.
 * Errors: SHOAL_EINVAL if the shapes or dtypes do not fit; SHOAL_ENOMEM. */
shoal_sparse *shoal_sparse_coo(shoal_tensor *indices, shoal_tensor *values, int ndim, const int64_t *shape,
                               bool coalesced);
shoal_sparse *shoal_sparse_csr(shoal_tensor *starts, shoal_tensor *columns, shoal_tensor *values, int64_t rows,
                               int64_t columns_count);

/* Destroys a sparse tensor and releases its parts. NULL is allowed. Never changes the last error. */
void shoal_sparse_destroy(shoal_sparse *s);

/* Return a property of a sparse tensor: its layout, number of dims, shape (owned by the tensor), and whether its
 * indices are sorted and unique. For NULL they return 0, false or NULL. Cannot fail. */
shoal_layout shoal_sparse_layout(const shoal_sparse *s);
int shoal_sparse_ndim(const shoal_sparse *s);
const int64_t *shoal_sparse_shape(const shoal_sparse *s);
bool shoal_sparse_is_coalesced(const shoal_sparse *s);

/* Return a part of a sparse tensor: its indices (columns in CSR), its row starts (NULL in COO), or its values. The
 * sparse tensor owns it: retain it to use it for longer. */
shoal_tensor *shoal_sparse_indices(const shoal_sparse *s);
shoal_tensor *shoal_sparse_starts(const shoal_sparse *s);
shoal_tensor *shoal_sparse_values(const shoal_sparse *s);

/* Shares all parts of a sparse tensor, as shoal_tensor_share does. Errors: those of shoal_tensor_share. */
SHOAL_MUST_USE shoal_err shoal_sparse_share(shoal_sparse *s);

/* Convert a sparse tensor to a tensor, or back. The caller owns the result. Return NULL on failure, and for NULL.
 * Errors: SHOAL_EINVAL if the indices are out of range or CSR does not have 2 dims; SHOAL_ENOMEM. */
shoal_tensor *shoal_sparse_to_dense(const shoal_sparse *s);
shoal_sparse *shoal_sparse_from_dense(shoal_tensor *t, shoal_layout layout);

/* Makes a map of the names and tensors of a module's parameters and buffers. Shares the module: the tensors are over
 * the module's memory. The caller owns the map. Does not block. Returns NULL on failure. Errors: those of
 * shoal_tensor_share. */
shoal_value *shoal_module_state_dict(shoal_module *module);

/* Copies the tensors of a map into a module. shoal_module_state_dict makes such a map. Does not consume the map. Does
 * not block. Errors: SHOAL_EINVAL if a name is missing or unknown, or a shape differs (the text names the first);
 * SHOAL_ETYPE if it is not a map. */
SHOAL_MUST_USE shoal_err shoal_module_load_state_dict(shoal_module *module, const shoal_value *state);

#ifdef __cplusplus
}
#endif
#endif
