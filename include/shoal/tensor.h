/* Tensors: an element type, a shape and strides over a storage, which is private, in the shared heap, or on a card.
 *
 * Who owns what. A tensor that is made from nothing (shoal_zeros, shoal_from_data, a received one) is the caller's:
 * release it. A tensor that is computed from tensors (every function of ops.h, and the views here) belongs to the
 * calling thread's scope, so that people can write expressions; it lives until the scope is released. Retain it to
 * keep it longer.
 *
 *     err = shoal_loader_next(data, &b);     b.x, b.y: the loader's
 *     y = shoal_module_forward(model, b.x);  y: the scope's
 *     loss = shoal_nll_loss(y, b.y);         loss: the scope's
 *     err = shoal_item(loss, &x);            x: a number, yours
 *     sum = shoal_tensor_retain(loss);       sum: yours, release it
 *     err = shoal_loader_next(data, &b);     y and loss are gone
 *
 * The batch, y and loss live until the same loader's next batch, its SHOAL_END, or shoal_scope_release.
 * So sum over batches in numbers (shoal_item), or in a tensor of one's own (shoal_add_). A function that is given a tensor which
 * went with its scope fails with SHOAL_ESTATE where it can still tell; AddressSanitizer reports it always. A program without a
 * loader takes shoal_scope_mark before a step and calls shoal_scope_release after it; a thread that piles up a million results,
 * or about 1 GiB, is told so once in the log.
 *
 * Errors. Functions that return a tensor return NULL when they fail, and NULL in gives NULL out, so expressions need
 * one check at their end; shoal_last_error tells which call failed and why, with shapes and dtypes in the text.
 *
 * Threads. Any number of threads may read one tensor; writing is for one at a time, but for the races that Hogwild
 * wants on purpose. Nothing here blocks.
 */
#ifndef SHOAL_TENSOR_H
#define SHOAL_TENSOR_H

#include <shoal/cxx.h>
#include <shoal/device.h>
#include <shoal/dtype.h>
#include <shoal/error.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct shoal_tensor shoal_tensor;

#define SHOAL_MAX_DIMS 8

/* A shape as two arguments: shoal_zeros(SHOAL_F32, SHOAL_SHAPE(64, 10)). A 0-d tensor: SHOAL_SCALAR. */
#ifdef __cplusplus
#define SHOAL_SHAPE(...) decltype(shoal_cxx_shape(__VA_ARGS__))::count, shoal_cxx_shape(__VA_ARGS__).get()
#else
#define SHOAL_SHAPE(...)                                                                                               \
    (int)(sizeof((const int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), (const int64_t[])                                 \
    {                                                                                                                  \
        __VA_ARGS__                                                                                                    \
    }
#endif
#define SHOAL_SCALAR 0, NULL

/* Make a tensor, which the caller owns. Sizes may be 0. Errors: SHOAL_EINVAL for a negative size, more than
 * SHOAL_MAX_DIMS or a size beyond the address space; SHOAL_ENOMEM. */
shoal_tensor *shoal_empty(shoal_dtype dtype, int ndim, const int64_t *shape);
shoal_tensor *shoal_zeros(shoal_dtype dtype, int ndim, const int64_t *shape);
shoal_tensor *shoal_ones(shoal_dtype dtype, int ndim, const int64_t *shape);
shoal_tensor *shoal_full(shoal_dtype dtype, double value, int ndim, const int64_t *shape);
shoal_tensor *shoal_scalar(shoal_dtype dtype, double value);
shoal_tensor *shoal_arange(shoal_dtype dtype, double start, double end, double step);
shoal_tensor *shoal_eye(shoal_dtype dtype, int64_t n);

/* Makes a tensor from a copy of data. */
shoal_tensor *shoal_from_data(shoal_dtype dtype, const void *data, int ndim, const int64_t *shape);

/* Makes a tensor over the caller's memory, which must stay until release is called (NULL: for ever). After a failure release has not
 * been called. */
shoal_tensor *shoal_from_memory(shoal_dtype dtype, void *data, int ndim, const int64_t *shape, void (*release)(void *),
                                void *context);

/* Makes a tensor in the shared heap. It is never copied, and its address never changes. Its bytes are as the last user left them. */
shoal_tensor *shoal_empty_shared(shoal_dtype dtype, int ndim, const int64_t *shape);

/* Make an empty or zeroed tensor of the dtype, shape and device of another, contiguous. */
shoal_tensor *shoal_empty_like(const shoal_tensor *t);
shoal_tensor *shoal_zeros_like(const shoal_tensor *t);

/* Add or give back one reference. NULL is allowed. retain returns its argument. */
shoal_tensor *shoal_tensor_retain(shoal_tensor *t);
void shoal_tensor_release(shoal_tensor *t);

/* The scope of this thread. mark tells where it stands; release lets go of all that was computed since then. */
size_t shoal_scope_mark(void);
void shoal_scope_release(size_t mark);

/* Hands the caller's reference to the scope, for makers inside expressions: shoal_add(x, shoal_scoped(shoal_ones(…))).
 * NULL gives NULL. */
shoal_tensor *shoal_scoped(shoal_tensor *t);

/* Properties of a tensor. For NULL they are 0. */
shoal_dtype shoal_tensor_dtype(const shoal_tensor *t);
shoal_device shoal_tensor_device(const shoal_tensor *t);
int shoal_tensor_ndim(const shoal_tensor *t);
int64_t shoal_tensor_size(const shoal_tensor *t, int dim); /* dim may count from the end: -1 is the last */
int64_t shoal_tensor_stride(const shoal_tensor *t, int dim);
const int64_t *shoal_tensor_shape(const shoal_tensor *t);
int64_t shoal_tensor_count(const shoal_tensor *t);
int64_t shoal_tensor_offset(const shoal_tensor *t); /* in the storage, in elements */
bool shoal_tensor_is_contiguous(const shoal_tensor *t);

/* The first element, in memory that the CPU can read; NULL for a tensor on a card. Sharing a private tensor moves its
 * bytes: ask again afterwards. */
void *shoal_tensor_data(const shoal_tensor *t);

/* The storage of a tensor: its number, its size in bytes, and whether it is shared. Two tensors with the same number overlap in memory. */
uint64_t shoal_tensor_storage_id(const shoal_tensor *t);
size_t shoal_tensor_storage_size(const shoal_tensor *t);
bool shoal_tensor_is_shared(const shoal_tensor *t);

/* Read one element as a number: of a tensor with a single element, or at an index. From a card it waits. Errors: SHOAL_EINVAL,
 * SHOAL_ENOMEM. */
SHOAL_MUST_USE shoal_err shoal_item(const shoal_tensor *t, double *out);
SHOAL_MUST_USE shoal_err shoal_tensor_at(const shoal_tensor *t, int ndim, const int64_t *index, double *out);

/* Copies all elements of a tensor out, in order, as they are; size must be their size in bytes. */
SHOAL_MUST_USE shoal_err shoal_tensor_read(const shoal_tensor *t, void *out, size_t size);

/* Compare two tensors. equal: the same dtype, shape and elements, bit for bit (NaN equals itself). close: closer than atol + rtol * |b|. NULL equals nothing;
 * false with a last error where there is no memory to compare them in. */
bool shoal_tensor_equal(const shoal_tensor *a, const shoal_tensor *b);
bool shoal_tensor_close(const shoal_tensor *a, const shoal_tensor *b, double rtol, double atol);

/* Writes a tensor as text for people: numbers as Python prints them, long ones shortened by …, at most capacity bytes with the NUL.
 * Returns the length of the whole text; with a capacity of 0 buffer may be NULL. */
size_t shoal_tensor_format(const shoal_tensor *t, char *buffer, size_t capacity);

/* Views of a tensor. They share the storage, belong to the scope, and carry gradients, all but as_strided, which refuses a tensor that needs one
 * (SHOAL_ESTATE: detach it first). Dims may count from the end. slice is Python's: start and end may count from the end too, and what
 * lies beyond either end is taken to it; step is at least 1. narrow and select take nothing beyond the tensor (SHOAL_EINVAL). */
shoal_tensor *shoal_reshape(shoal_tensor *t, int ndim,
                            const int64_t *shape);                         /* one size may be -1; copies if it must */
shoal_tensor *shoal_view(shoal_tensor *t, int ndim, const int64_t *shape); /* never copies: SHOAL_EINVAL instead */
shoal_tensor *shoal_flatten(shoal_tensor *t, int first_dim);
shoal_tensor *shoal_transpose(shoal_tensor *t, int a, int b);
shoal_tensor *shoal_permute(shoal_tensor *t, int ndim, const int64_t *dims);
shoal_tensor *shoal_squeeze(shoal_tensor *t, int dim);
shoal_tensor *shoal_unsqueeze(shoal_tensor *t, int dim);
shoal_tensor *shoal_expand(shoal_tensor *t, int ndim, const int64_t *shape);
shoal_tensor *shoal_narrow(shoal_tensor *t, int dim, int64_t start, int64_t length);
shoal_tensor *shoal_slice(shoal_tensor *t, int dim, int64_t start, int64_t end, int64_t step);
shoal_tensor *shoal_select(shoal_tensor *t, int dim, int64_t index);
shoal_tensor *shoal_as_strided(shoal_tensor *t, int ndim, const int64_t *shape, const int64_t *strides, int64_t offset);

/* Random fills, in place; they return their tensor. The generator is Philox4x32-10 over (seed, position): the same
 * seed gives the same numbers on every machine. Each thread has one, which begins with
 * seed 0; a fill moves it on. */
void shoal_manual_seed(uint64_t seed);
shoal_tensor *shoal_uniform_(shoal_tensor *t, double low, double high);
shoal_tensor *shoal_normal_(shoal_tensor *t, double mean, double deviation);
shoal_tensor *shoal_bernoulli_(shoal_tensor *t, double p);
shoal_tensor *shoal_randint_(shoal_tensor *t, int64_t low, int64_t high); /* low to high - 1 */
shoal_tensor *shoal_randperm(int64_t n);                                  /* i64, the caller's */

#ifdef __cplusplus
}
#endif
#endif
