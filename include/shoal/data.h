/* Data sets, and loaders that make batches from them.
 *
 * A data set returns samples by number. A loader makes batches of samples, in this process or in worker processes.
 * Workers pass batches by handle, and get the memory back to use it again. In values, data sets are members like any
 * other: shoal_map("data", set). The receiver has the same memory.
 */
#ifndef SHOAL_DATA_H
#define SHOAL_DATA_H

#include <shoal/process.h>
#include <shoal/tensor.h>
#include <shoal/value.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct shoal_loader shoal_loader;

/* The parts of a data set such as MNIST: for training and for testing. */
typedef enum shoal_part {
    SHOAL_PART_TRAIN,
    SHOAL_PART_TEST,
} shoal_part;

/* A batch of samples. The loader owns x and y, which are valid until its next batch: retain them to use them for
 * longer. */
typedef struct shoal_batch {
    shoal_tensor *x;
    shoal_tensor *y;
    int64_t count; /* the number of samples */
    int64_t index; /* the number of the batch in its epoch, from 0 */
} shoal_batch;

/* The type of a data set that the program makes. A data set needs pack and open to be sent to worker processes;
 * without both it stays in its process. All four functions must be functions of the program or of a library that it
 * has loaded. A loader never runs two fetches of one set at the same time in one process. */
typedef struct shoal_dataset_type {
    const char *name;
    int64_t length;
    shoal_dtype x_dtype, y_dtype;
    int x_ndim, y_ndim; /* of one sample; y_ndim is 0 if y is a number */
    int64_t x_shape[SHOAL_MAX_DIMS - 1], y_shape[SHOAL_MAX_DIMS - 1];
    /* Copies count samples, by their numbers, into x and y, which are contiguous with shapes [count, sample...]. */
    shoal_err (*fetch)(void *state, const int64_t *numbers, int64_t count, shoal_tensor *x, shoal_tensor *y);
    void (*destroy)(void *state); /* may be NULL */

    /* May be NULL. Makes a value from the state. Shared tensors in it are not copied. Returns NULL on failure. */
    shoal_value *(*pack)(void *state);

    /* May be NULL. Makes a state from that value, in another process. */
    shoal_err (*open)(const shoal_value *packed, void **out_state);
} shoal_dataset_type;

/* Makes a data set. The caller owns one reference: shoal_dataset_release. If it succeeds, it takes over state, which
 * may be NULL. Does not block. Errors: SHOAL_EINVAL; SHOAL_ENOMEM. */
shoal_dataset *shoal_dataset_create(const shoal_dataset_type *type, void *state);

/* Add or drop a reference to a data set. retain returns its argument. NULL is allowed. Loaders and subsets retain
 * their data set. Do not block. Thread-safe. */
shoal_dataset *shoal_dataset_retain(shoal_dataset *set);
void shoal_dataset_release(shoal_dataset *set);

/* Return the number of samples of a data set, or its name. The data set owns the name. For NULL they return 0 or
 * NULL. Do not block. Thread-safe. */
int64_t shoal_dataset_length(const shoal_dataset *set);
const char *shoal_dataset_name(const shoal_dataset *set);

/* Copies samples of a data set, by their numbers, into x and y. x and y must have the dtypes of the set, be
 * contiguous, and have the shapes [count, sample...]. Blocks as long as the fetch function of the set does. Errors:
 * SHOAL_EINVAL if x or y does not fit or a number is out of range; the error of the fetch function. */
SHOAL_MUST_USE shoal_err shoal_dataset_fetch(shoal_dataset *set, const int64_t *numbers, int64_t count, shoal_tensor *x,
                                             shoal_tensor *y);

/* Makes a data set from the rows of two tensors of the same length. It retains them, or copies them if they are not
 * contiguous. The caller owns one reference. A set over the program's own memory (shoal_from_memory) cannot be sent
 * to another process. Does not block. Errors: SHOAL_EINVAL if the lengths differ; SHOAL_ENOMEM. */
shoal_dataset *shoal_tensor_dataset(shoal_tensor *x, shoal_tensor *y);

/* Open MNIST or Fashion-MNIST from IDX files, gzipped or not. The caller owns one reference. x is f32 [1, 28, 28],
 * normalised by the mean and deviation of the data set (MNIST 0.1307 and 0.3081, Fashion-MNIST 0.2860 and 0.3530),
 * and y is i64. The pixels are stored as bytes in the shared heap, and other processes use the same ones.
 *
 * If directory is NULL, or is not given, the files are searched for in a folder mnist or fashion-mnist: in
 * $SHOAL_DATA, in data in the current directory and beside the program, in share/shoal of the prefix in which the
 * program or the library is installed, and where the system has it. Block while they read the files. Errors:
 * SHOAL_ENOENT (the text says where it looked and what to set); SHOAL_ECORRUPT; SHOAL_ENOMEM; SHOAL_EOS. */
shoal_dataset *shoal_mnist(shoal_part part);
shoal_dataset *shoal_mnist_at(const char *directory, shoal_part part);
shoal_dataset *shoal_fashion_mnist(shoal_part part);
shoal_dataset *shoal_fashion_mnist_at(const char *directory, shoal_part part);

/* Returns the name of the i-th data set that is known by name, "mnist" first; NULL after the last. The library owns
 * it. Does not block. Thread-safe. */
const char *shoal_data_name(size_t i);

/* Finds the folder of a data set by its name. Writes at most capacity bytes of its path, the NUL included. Errors:
 * SHOAL_ENOENT if the name is unknown or the files are not found (the text says where it looked); SHOAL_EINVAL if the
 * path does not fit. */
SHOAL_MUST_USE shoal_err shoal_data_where(const char *name, char *folder, size_t capacity);

/* Returns a text for people that says where a data set can be downloaded; NULL if the name is unknown. The library
 * owns it. Does not block. Thread-safe. */
const char *shoal_data_origin(const char *name);

/* Gets the mean and deviation by which the samples of a data set are normalised: x = (pixel / 255 - mean) /
 * deviation. Does not block. Thread-safe. Errors: SHOAL_ENOENT if the name is unknown. */
SHOAL_MUST_USE shoal_err shoal_data_scale(const char *name, double *out_mean, double *out_deviation);

/* Verifies the files of a data set: their sizes and the CRC32 of their unpacked contents. If folder is NULL, it looks
 * where shoal_data_where does. Blocks while it reads. Errors: SHOAL_ENOENT; SHOAL_EPERM; SHOAL_EOS; SHOAL_ECORRUPT if
 * a file is wrong (the text names it). */
SHOAL_MUST_USE shoal_err shoal_data_verify(const char *name, const char *folder);

/* Verifies the files of a data set and copies them to a folder, which it makes. If from is NULL, it takes the files
 * from where shoal_data_where finds them. Blocks while it reads and writes. Errors: those of shoal_data_verify. */
SHOAL_MUST_USE shoal_err shoal_data_copy(const char *name, const char *from, const char *to);

/* Makes a tensor with the labels of all samples, i64 [length]. The caller owns it. Errors: SHOAL_ETYPE if y is not an
 * integer; the error of the fetch function; SHOAL_ENOMEM. */
shoal_tensor *shoal_dataset_labels(const shoal_dataset *set);

/* A function that changes the samples x of a batch in place, for shoal_subset_with. */
typedef shoal_err (*shoal_transform)(shoal_tensor *x, void *context);

/* Make a data set from some samples of another, by their numbers, in this order. The numbers are copied, and the
 * other set is retained. The caller owns one reference. transform changes each batch and may be NULL; context is
 * passed to it. A subset can be sent to another process if its set can, its transform is a function of the program,
 * and context is NULL. Do not block. Errors: SHOAL_EINVAL if a number is out of range; SHOAL_ENOMEM. */
shoal_dataset *shoal_subset(shoal_dataset *set, const int64_t *numbers, int64_t count);
shoal_dataset *shoal_subset_with(shoal_dataset *set, const int64_t *numbers, int64_t count, shoal_transform transform,
                                 void *context);

/* Split a data set into n parts. out gets n data sets that the caller owns, and does not change on failure. Errors:
 * SHOAL_EINVAL if there are fewer samples than parts; SHOAL_ETYPE if shoal_split_label gets a set without integer
 * labels; SHOAL_ENOMEM.
 *
 *   shard  contiguous parts of length / n samples; the last part also gets the rest
 *   iid    shuffled by seed into equal parts; the rest goes to the first parts, one sample each
 *   label  sorted by label and cut into n * shards_each shards, of which each part gets shards_each, drawn by seed;
 *          the last shard also gets the rest. 100 parts of two shards each are n = 100 and shards_each = 2
 */
SHOAL_MUST_USE shoal_err shoal_split_shard(shoal_dataset *set, int64_t n, shoal_dataset **out);
SHOAL_MUST_USE shoal_err shoal_split_iid(shoal_dataset *set, int64_t n, uint64_t seed, shoal_dataset **out);
SHOAL_MUST_USE shoal_err shoal_split_label(shoal_dataset *set, int64_t n, int64_t shards_each, uint64_t seed,
                                           shoal_dataset **out);

/* Options of shoal_loader_create. Zero is the default of each. */
typedef struct shoal_loader_options {
    int64_t batch;  /* samples in a batch; 0: 1 */
    bool shuffle;   /* a new order in each epoch, from seed and epoch */
    bool drop_last; /* leave out the last batch of an epoch if it is smaller */
    uint64_t seed;
    int workers;          /* processes that fetch; 0: this process fetches */
    int prefetch;         /* batches that each worker fetches ahead; 0: 2 */
    const int64_t *order; /* samples to use instead of all, in this order; copied */
    int64_t order_count;
    shoal_start start; /* start method of the workers */
    int64_t timeout;   /* how long shoal_loader_next waits for a worker, in ns; 0: no limit */
} shoal_loader_options;

/* Makes a loader for a data set, which it retains. The caller owns it: shoal_loader_destroy. options may be NULL.
 * With workers, the set must be one that can be sent to another process (shoal_value_dataset): MNIST, a tensor data
 * set, or a subset or split of these. Only one thread at a time may use a loader. Returns NULL on failure. Errors:
 * SHOAL_EINVAL; SHOAL_ENOMEM; those of shoal_process_start. */
shoal_loader *shoal_loader_create_with(shoal_dataset *set, const shoal_loader_options *options);

/* Destroys a loader and ends its workers. Its last batch becomes invalid. Does not release results of the scope. NULL
 * is allowed. Never changes the last error. */
void shoal_loader_destroy(shoal_loader *loader);

/* Makes a loader with named options: shoal_loader_create(set, .batch = 64, .shuffle = true). Otherwise like
 * shoal_loader_create_with. */
#ifdef __cplusplus
#define shoal_loader_create(set, ...)                                                                                  \
    shoal_loader_create_with(set, shoal_cxx_options(shoal_loader_options{__VA_ARGS__}))
#else
#define shoal_loader_create(set, ...) shoal_loader_create_with(set, &(shoal_loader_options){__VA_ARGS__})
#endif

/* Gets the next batch of this epoch. Returns SHOAL_END after the last one; the call after that begins the next epoch:
 *
 *     while ((err = shoal_loader_next(data, &b)) == SHOAL_OK) { ... }
 *     if (err != SHOAL_END) { ... }
 *
 * The loader owns the batch, which is valid until the next call. The call also releases what this thread has computed
 * since the loader's last batch (tensor.h), at the end of an epoch too. If loops over two loaders are nested, the
 * inner loader releases only what was computed since its own last batch, and nothing if the outer loader has gone on
 * since.
 *
 * With workers it waits for them, at most for the loader's timeout. After SHOAL_ETIMEDOUT nothing is lost, and the
 * next call continues to wait. A worker that is killed is replaced, and its batches are fetched again, each at most
 * three times (then SHOAL_ECHILD). Errors: SHOAL_ETIMEDOUT; SHOAL_ECHILD; the error of the fetch function, in a
 * worker too. After any error but SHOAL_ETIMEDOUT and SHOAL_EINTR, the loader returns SHOAL_ESTATE, with the first
 * error in the text, until shoal_loader_seek. */
SHOAL_MUST_USE shoal_err shoal_loader_next(shoal_loader *loader, shoal_batch *out_batch);

/* Return the number of batches in an epoch, or the number of the current epoch, from 0. They return 0 for NULL. Do
 * not block. */
int64_t shoal_loader_batches(const shoal_loader *loader);
int64_t shoal_loader_epoch(const shoal_loader *loader);

/* Moves a loader to another position: the next batch is the given batch of the given epoch. It also clears an earlier
 * error. Errors: SHOAL_EINVAL if there is no such batch. */
SHOAL_MUST_USE shoal_err shoal_loader_seek(shoal_loader *loader, int64_t epoch, int64_t batch);

#ifdef __cplusplus
}
#endif
#endif
