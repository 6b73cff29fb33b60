/* Tensors, sparse tensors and modules between processes.
 *
 * Sharing moves a storage into the heap once, for all its views; what travels then is a handle. The receiver gets its own
 * tensor over the same memory, and the same storage however often it arrives. In values they stand like any other member:
 * shoal_map("x", tensor, "model", module).
 *
 * After shoal_world_leave the elements of a shared tensor are gone: shoal_tensor_data is NULL, and what needs them is SHOAL_ESTATE. Its
 * dtype and shape can still be asked.
 */
#ifndef SHOAL_SHARE_H
#define SHOAL_SHARE_H

#include <shoal/nn.h>
#include <shoal/queue.h>
#include <shoal/value.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Moves the storage into the shared heap, and the grad's; nothing happens when it is there, or on a card. The address of
 * the data changes. No other thread may use the storage meanwhile. Errors: SHOAL_ENOMEM with the sizes; SHOAL_ESTATE, with
 * the word detach, for a tensor that needs a gradient and is no leaf; SHOAL_EINVAL for memory of the program's own
 * (shoal_from_memory), which cannot move. */
SHOAL_MUST_USE shoal_err shoal_tensor_share(shoal_tensor *t);

/* Puts t on a queue: shares it first. Nothing is put when that fails. Blocks as shoal_queue_put does. Any thread; several at
 * once when t was shared before. */
SHOAL_MUST_USE shoal_err shoal_queue_put_tensor(shoal_queue *queue, shoal_tensor *t, int64_t timeout);

/* Puts t together with the caller's reference: on success t is no longer the caller's. This is the cheapest way to send on what was
 * received. Blocks and fails as shoal_queue_put_tensor. */
SHOAL_MUST_USE shoal_err shoal_queue_give_tensor(shoal_queue *queue, shoal_tensor *t, int64_t timeout);

/* Gets a tensor, which is the caller's. SHOAL_ETYPE when another kind of message is next; it stays there. */
SHOAL_MUST_USE shoal_err shoal_queue_get_tensor(shoal_queue *queue, int64_t timeout, shoal_tensor **out_tensor);

/* Shares all parameters and buffers of a module. */
SHOAL_MUST_USE shoal_err shoal_module_share(shoal_module *module);

/* Sparse tensors: COO (indices i64 [ndim, n], values [n, …]) and CSR (row starts i64 [rows + 1], columns i64 [n], values
 * [n]). The parts are retained. The caller owns the result. Errors: SHOAL_EINVAL for shapes that do not fit. */
typedef struct shoal_sparse shoal_sparse;
typedef enum shoal_layout {
    SHOAL_COO,
    SHOAL_CSR,
} shoal_layout;

shoal_sparse *shoal_sparse_coo(shoal_tensor *indices, shoal_tensor *values, int ndim, const int64_t *shape,
                               bool coalesced);
shoal_sparse *shoal_sparse_csr(shoal_tensor *starts, shoal_tensor *columns, shoal_tensor *values, int64_t rows,
                               int64_t columns_count);
void shoal_sparse_destroy(shoal_sparse *s);
shoal_layout shoal_sparse_layout(const shoal_sparse *s);
int shoal_sparse_ndim(const shoal_sparse *s);
const int64_t *shoal_sparse_shape(const shoal_sparse *s);
bool shoal_sparse_is_coalesced(const shoal_sparse *s);
shoal_tensor *shoal_sparse_indices(const shoal_sparse *s); /* CSR: the columns; borrowed, like the next two */
shoal_tensor *shoal_sparse_starts(const shoal_sparse *s);  /* CSR only, else NULL */
shoal_tensor *shoal_sparse_values(const shoal_sparse *s);
SHOAL_MUST_USE shoal_err shoal_sparse_share(shoal_sparse *s);
shoal_tensor *shoal_sparse_to_dense(const shoal_sparse *s); /* the caller's */
shoal_sparse *shoal_sparse_from_dense(shoal_tensor *t, shoal_layout layout);

/* Tensors, sparse tensors and modules in values. The makers share their argument; the value keeps its memory, whatever becomes of the argument; NULL gives NULL. The
 * readers borrow: what they return lives as long as the value (a tensor longer, when it is retained). A module that arrived is of
 * the same kinds and settings over the same parameters. */
shoal_value *shoal_value_tensor(shoal_tensor *t);
shoal_value *shoal_value_sparse(shoal_sparse *s);
shoal_value *shoal_value_module(shoal_module *module);
shoal_tensor *shoal_value_as_tensor(const shoal_value *value);
shoal_sparse *shoal_value_as_sparse(const shoal_value *value);
shoal_module *shoal_value_as_module(const shoal_value *value);

/* Read a member of a map by its key, as shoal_arg_queue in value.h does. */
shoal_tensor *shoal_arg_tensor(const shoal_value *args, const char *key);
shoal_sparse *shoal_arg_sparse(const shoal_value *args, const char *key);
shoal_module *shoal_arg_module(const shoal_value *args, const char *key);

/* The state of a module: a map of names to tensors that share the module's memory. load copies every value of the map into the module
 * (SHOAL_EINVAL names the first that is missing, too much, or of another shape). */
shoal_value *shoal_module_state_dict(shoal_module *module);
SHOAL_MUST_USE shoal_err shoal_module_load_state_dict(shoal_module *module, const shoal_value *state);

#ifdef __cplusplus
}
#endif
#endif
