/* Tensors: n-dimensional arrays of one element type, in private memory, in the shared heap, or on a GPU.
 *
 * A tensor is an element type, a shape and strides over a storage. Several tensors can share one storage.
 *
 * Ownership. The caller owns a tensor that was made from nothing (shoal_zeros, shoal_from_data, a received tensor),
 * and must release it. A tensor that is computed from other tensors (by every function of ops.h, and the views here)
 * belongs to the calling thread's scope, so that calls can be written as expressions. It exists until the scope is
 * released. Retain it to use it for longer.
 *
 *     err = shoal_loader_next(data, &b);     // makes b.x and b.y
 *     y = shoal_module_forward(model, b.x);
 *     loss = shoal_nll_loss(y, b.y);
 *     err = shoal_item(loss, &x);            // x is a plain number
 *     sum = shoal_tensor_retain(loss);
 *     err = shoal_loader_next(data, &b);     // releases y and loss
 *     shoal_tensor_release(sum);             // sum was valid until here
 *
 * b.x, b.y, y and loss exist until the next batch of the same loader, its SHOAL_END, or shoal_scope_release. So sum
 * over batches in a number (shoal_item), or in a tensor that the program owns (shoal_add_).
 *
 * Every call that gets a released tensor fails with SHOAL_ESTATE, until another tensor uses its memory. A call that
 * otherwise cannot fail returns what it returns for NULL, and sets the last error. AddressSanitizer reports every such
 * use. A program without a loader calls shoal_scope_mark before a step and shoal_scope_release after it. If the scope
 * of a thread holds a million results, or about 1 GiB, the library writes one log line.
 *
 * Errors. A function that returns a tensor returns NULL on failure, and returns NULL if a tensor argument is NULL. So
 * an expression needs one check, at its end. shoal_last_error_text names the call that failed, with shapes and
 * dtypes.
 *
 * Threads. Any number of threads may read a tensor. Only one thread may write it at a time, except for the races that
 * Hogwild makes on purpose. No call here blocks, except those that read elements from a GPU or write them there
 * (shoal_from_data_on). The first call in a process that needs a GPU takes up to half a second.
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

/* The largest number of dimensions of a tensor. */
#define SHOAL_MAX_DIMS 8

/* Write a shape as two arguments, ndim and shape: shoal_zeros(SHOAL_F32, SHOAL_SHAPE(64, 10)). SHOAL_SCALAR is the
 * shape of a tensor with one element and no dims. */
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

/* Make a tensor of a dtype and shape. The caller owns it. shoal_empty leaves the elements undefined; shoal_zeros,
 * shoal_ones and shoal_full set each to the same value. Sizes may be 0. Errors: SHOAL_EINVAL if a size is negative,
 * there are more than SHOAL_MAX_DIMS dims, or the tensor is larger than the address space; SHOAL_ETYPE if the dtype
 * cannot hold the value; SHOAL_ENOMEM. */
shoal_tensor *shoal_empty(shoal_dtype dtype, int ndim, const int64_t *shape);
shoal_tensor *shoal_zeros(shoal_dtype dtype, int ndim, const int64_t *shape);
shoal_tensor *shoal_ones(shoal_dtype dtype, int ndim, const int64_t *shape);
shoal_tensor *shoal_full(shoal_dtype dtype, double value, int ndim, const int64_t *shape);

/* Make a tensor on a device. The caller owns it. shoal_empty_on leaves the elements undefined. shoal_full_on sets each
 * to the same value. shoal_from_data_on copies the elements from data, as shoal_from_data does, and blocks until the
 * copy is done. The others do not block, except that the first use of a GPU takes up to half a second. Errors: those
 * of shoal_empty, shoal_full and shoal_from_data; for a GPU also those of shoal_cuda_memory_get: SHOAL_ENOENT,
 * SHOAL_ELAYOUT, SHOAL_EPERM or SHOAL_ELIMIT if this process can use no GPU, SHOAL_ENOMEM (the text has the sizes),
 * SHOAL_ECUDA, SHOAL_EFORK. */
shoal_tensor *shoal_empty_on(shoal_device device, shoal_dtype dtype, int ndim, const int64_t *shape);
shoal_tensor *shoal_full_on(shoal_device device, shoal_dtype dtype, double value, int ndim, const int64_t *shape);
shoal_tensor *shoal_from_data_on(shoal_device device, shoal_dtype dtype, const void *data, int ndim,
                                 const int64_t *shape);

/* Makes a tensor in pinned host memory, for copies to and from the GPU that do not block: shoal_tensor_copy_async. It
 * is a CPU tensor and can be used like any other. The elements are undefined. The caller owns it. Sharing moves it to
 * ordinary memory. Opens the GPU. Errors: those of shoal_empty_on with a GPU. */
shoal_tensor *shoal_empty_pinned(shoal_dtype dtype, int ndim, const int64_t *shape);

/* Makes a tensor with one element and no dims. The caller owns it. Errors: SHOAL_ETYPE if the dtype cannot hold the
 * value; SHOAL_ENOMEM. */
shoal_tensor *shoal_scalar(shoal_dtype dtype, double value);

/* Makes a tensor of the numbers start, start + step and so on, below end (above end if step is negative). The caller
 * owns it. It is empty if step leads away from end. Errors: SHOAL_EINVAL if step is 0 or there would be too many
 * numbers; SHOAL_ENOMEM. */
shoal_tensor *shoal_arange(shoal_dtype dtype, double start, double end, double step);

/* Makes an n x n tensor with ones on the diagonal and zeros elsewhere. The caller owns it. Errors: SHOAL_EINVAL if n
 * is negative; SHOAL_ENOMEM. */
shoal_tensor *shoal_eye(shoal_dtype dtype, int64_t n);

/* Makes a tensor from a copy of data. The caller owns the tensor. data has the elements in row-major order. Errors:
 * SHOAL_EINVAL, as for shoal_empty and if data is NULL; SHOAL_ENOMEM. */
shoal_tensor *shoal_from_data(shoal_dtype dtype, const void *data, int ndim, const int64_t *shape);

/* Makes a tensor over the program's own memory, without a copy. The caller owns the tensor. The memory must stay
 * valid until the library calls release(context), when no tensor uses it any more; if release is NULL, for ever. If
 * shoal_from_memory fails, release is not called. Errors: SHOAL_EINVAL, as for shoal_from_data; SHOAL_ENOMEM. */
shoal_tensor *shoal_from_memory(shoal_dtype dtype, void *data, int ndim, const int64_t *shape, void (*release)(void *),
                                void *context);

/* Makes a tensor in the shared heap. The caller owns it. Sharing it copies nothing, and its address never changes.
 * The elements are undefined. Errors: as for shoal_empty; those of shoal_block_create. */
shoal_tensor *shoal_empty_shared(shoal_dtype dtype, int ndim, const int64_t *shape);

/* Make an empty or zeroed tensor with the dtype, shape and device of another. It is contiguous, and the caller owns
 * it. Errors: SHOAL_ENOMEM. */
shoal_tensor *shoal_empty_like(const shoal_tensor *t);
shoal_tensor *shoal_zeros_like(const shoal_tensor *t);

/* Add or drop a reference to a tensor. retain returns its argument, or NULL with SHOAL_ESTATE if the tensor was
 * released. NULL is allowed. release never changes the last error; for a tensor that was released before, it only
 * writes a log line. Do not block. Thread-safe. */
shoal_tensor *shoal_tensor_retain(shoal_tensor *t);
void shoal_tensor_release(shoal_tensor *t);

/* Returns the current position in this thread's scope, for shoal_scope_release. Does not block. Cannot fail. */
size_t shoal_scope_mark(void);

/* Releases the results that this thread has computed since a mark, which came from shoal_scope_mark. Results that
 * were retained stay. Does not block. Cannot fail. */
void shoal_scope_release(size_t mark);

/* Passes the caller's reference to this thread's scope, and returns the tensor. It allows new tensors inside
 * expressions: shoal_add(x, shoal_scoped(shoal_ones(...))). Takes the reference on failure too. NULL gives NULL.
 * Errors: SHOAL_ENOMEM. */
shoal_tensor *shoal_scoped(shoal_tensor *t);

/* Return a property of a tensor: its dtype, device, number of dims, the size or stride of a dim, its shape (ndim
 * sizes, owned by the tensor), its number of elements, the offset of its first element in the storage, and whether it
 * is contiguous. Strides and offsets are in elements. A dim may count from the end: -1 is the last. For NULL they
 * return 0, false or NULL. Do not block. Thread-safe. Cannot fail. */
shoal_dtype shoal_tensor_dtype(const shoal_tensor *t);
shoal_device shoal_tensor_device(const shoal_tensor *t);
int shoal_tensor_ndim(const shoal_tensor *t);
int64_t shoal_tensor_size(const shoal_tensor *t, int dim);
int64_t shoal_tensor_stride(const shoal_tensor *t, int dim);
const int64_t *shoal_tensor_shape(const shoal_tensor *t);
int64_t shoal_tensor_count(const shoal_tensor *t);
int64_t shoal_tensor_offset(const shoal_tensor *t);
bool shoal_tensor_is_contiguous(const shoal_tensor *t);

/* Returns the address of a tensor's first element, in memory that the CPU can read. The tensor owns the memory.
 * Returns NULL for NULL and for a tensor on a GPU. Sharing a private tensor moves its elements: call this again
 * afterwards. Does not block. Thread-safe. */
void *shoal_tensor_data(const shoal_tensor *t);

/* Return the number of a tensor's storage, its size in bytes, and whether it is shared (share.h). Two tensors with
 * the same storage number share memory. For NULL they return 0 or false. Do not block. Thread-safe. Cannot fail. */
uint64_t shoal_tensor_storage_id(const shoal_tensor *t);
size_t shoal_tensor_storage_size(const shoal_tensor *t);
bool shoal_tensor_is_shared(const shoal_tensor *t);

/* Reads the element of a tensor that has only one, as a number. Blocks if the tensor is on a GPU, until it is
 * computed. Errors: SHOAL_EINVAL if the tensor does not have exactly one element; SHOAL_ENOMEM; on a GPU also those of
 * shoal_cuda_wait. */
SHOAL_MUST_USE shoal_err shoal_item(const shoal_tensor *t, double *out);

/* Reads one element of a tensor by its index, as a number. index has ndim numbers. Blocks if the tensor is on a GPU,
 * until it is computed. Errors: SHOAL_EINVAL if the index does not fit the tensor; SHOAL_ENOMEM; on a GPU also those
 * of shoal_cuda_wait. */
SHOAL_MUST_USE shoal_err shoal_tensor_at(const shoal_tensor *t, int ndim, const int64_t *index, double *out);

/* Copies all elements of a tensor to the caller's memory, in row-major order and without conversion. size must be
 * their size in bytes. Blocks if the tensor is on a GPU, until it is computed. Errors: SHOAL_EINVAL if size differs;
 * SHOAL_ENOMEM; on a GPU also those of shoal_cuda_wait. */
SHOAL_MUST_USE shoal_err shoal_tensor_read(const shoal_tensor *t, void *out, size_t size);

/* Returns whether two tensors have the same dtype, shape and elements, bit for bit: a NaN equals itself. Returns
 * false if one is NULL, and, with SHOAL_ENOMEM as the last error, if there is no memory for the comparison. */
bool shoal_tensor_equal(const shoal_tensor *a, const shoal_tensor *b);

/* Returns whether two tensors have the same shape and nearly the same elements: |a - b| <= atol + rtol * |b|, or both
 * are NaN. Their dtypes may differ. Returns false if one is NULL, and, with SHOAL_ENOMEM as the last error, if there
 * is no memory for the comparison. */
bool shoal_tensor_close(const shoal_tensor *a, const shoal_tensor *b, double rtol, double atol);

/* Writes a tensor as text for people, in the style of Python, with long rows shortened by "...". The dtype and the
 * shape follow if it is not a plain f32 tensor, and "cuda" if it is on a GPU. Writes at most capacity bytes, including
 * the NUL. With a capacity of 0, buffer may be NULL. Returns the length of the whole text
 * without the NUL. */
size_t shoal_tensor_format(const shoal_tensor *t, char *buffer, size_t capacity);

/* Gives a tensor another shape with the same number of elements. One size may be -1: it is computed from the others.
 * The result shares the storage if possible, and is otherwise a copy. It belongs to the scope and carries gradients.
 * Errors: SHOAL_EINVAL if the shape does not fit; SHOAL_ENOMEM. */
shoal_tensor *shoal_reshape(shoal_tensor *t, int ndim, const int64_t *shape);

/* Gives a tensor another shape over the same storage. Never copies. Otherwise like shoal_reshape. Errors:
 * SHOAL_EINVAL if the shape does not fit, or the strides do not allow it; SHOAL_ENOMEM. */
shoal_tensor *shoal_view(shoal_tensor *t, int ndim, const int64_t *shape);

/* Make a view of a tensor with other dims: merge all dims from first_dim on (flatten, which copies if it must), swap
 * two dims (transpose), reorder all dims (permute), remove a dim of size 1 (squeeze), add one (unsqueeze), or repeat
 * dims of size 1 without a copy (expand). A dim may count from the end. The result belongs to the scope and carries
 * gradients. Errors: SHOAL_EINVAL if the dims do not fit; SHOAL_ENOMEM. */
shoal_tensor *shoal_flatten(shoal_tensor *t, int first_dim);
shoal_tensor *shoal_transpose(shoal_tensor *t, int a, int b);
shoal_tensor *shoal_permute(shoal_tensor *t, int ndim, const int64_t *dims);
shoal_tensor *shoal_squeeze(shoal_tensor *t, int dim);
shoal_tensor *shoal_unsqueeze(shoal_tensor *t, int dim);
shoal_tensor *shoal_expand(shoal_tensor *t, int ndim, const int64_t *shape);

/* Make a view of a part of a tensor along one dim: length elements from start (narrow), from start to below end in
 * steps (slice), or one element, without the dim (select). A dim, the index of select, and start and end of slice may
 * count from the end. slice follows Python: start and end beyond the tensor mean its ends; step is at least 1. The
 * result belongs to the scope and carries gradients. Errors: SHOAL_EINVAL if a dim does not exist, if narrow or
 * select reach beyond the tensor, or if step is below 1; SHOAL_ENOMEM. */
shoal_tensor *shoal_narrow(shoal_tensor *t, int dim, int64_t start, int64_t length);
shoal_tensor *shoal_slice(shoal_tensor *t, int dim, int64_t start, int64_t end, int64_t step);
shoal_tensor *shoal_select(shoal_tensor *t, int dim, int64_t index);

/* Makes a view of a tensor's storage with any shape, strides and offset, in elements. The result belongs to the
 * scope. Errors: SHOAL_EINVAL if it would reach beyond the storage; SHOAL_ESTATE if the tensor needs a gradient
 * (detach it first); SHOAL_ENOMEM. */
shoal_tensor *shoal_as_strided(shoal_tensor *t, int ndim, const int64_t *shape, const int64_t *strides, int64_t offset);

/* Sets the seed of this thread's random generator. The generator is Philox4x32-10: the same seed gives the same
 * numbers on every machine. Each thread has its own, with seed 0 at first. Does not block. Cannot fail. */
void shoal_manual_seed(uint64_t seed);

/* Fill a tensor with random numbers from this thread's generator, in place, and return it. uniform_ takes numbers
 * from low to below high, normal_ a normal distribution, bernoulli_ 1 with probability p and 0 otherwise, randint_
 * integers from low to high - 1. Gradients are not recorded. Errors: SHOAL_EINVAL if an argument is out of range;
 * SHOAL_ETYPE if uniform_ or normal_ gets a tensor that is not of floats; SHOAL_ENOMEM. */
shoal_tensor *shoal_uniform_(shoal_tensor *t, double low, double high);
shoal_tensor *shoal_normal_(shoal_tensor *t, double mean, double deviation);
shoal_tensor *shoal_bernoulli_(shoal_tensor *t, double p);
shoal_tensor *shoal_randint_(shoal_tensor *t, int64_t low, int64_t high);

/* Makes an i64 tensor with a random permutation of 0 to n - 1, from this thread's generator. The caller owns it.
 * Errors: SHOAL_EINVAL if n is negative; SHOAL_ENOMEM. */
shoal_tensor *shoal_randperm(int64_t n);

#ifdef __cplusplus
}
#endif
#endif
