/* Data sets, splits and loaders.
 *
 * A data set gives samples by number; a loader makes batches of them, in this process or in worker processes that hand
 * batches over by handle and get their blocks back to use again.
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

/* The two parts of a data set such as MNIST. */
typedef enum shoal_part {
    SHOAL_TRAIN,
    SHOAL_TEST,
} shoal_part;

/* A batch: x and y are the loader's, good until its next batch; retain what is to stay. */
typedef struct shoal_batch {
    shoal_tensor *x;
    shoal_tensor *y;
    int64_t count; /* samples in it */
    int64_t index; /* number of the batch in its epoch */
} shoal_batch;

/* A data set of the program's own. fetch writes count samples, by their numbers, into x and y, contiguous, whose shapes are
 * [count, sample…]; no two calls run at once on one set of a loader.
 *
 * To travel to worker processes a set needs pack and open: pack makes a value of the state (shared tensors in it are not
 * copied), open makes a state of that value in the other process. Without them both it stays in its process. All four
 * functions must be of the program or of a library that it has loaded. */
typedef struct shoal_dataset_type {
    const char *name;
    int64_t length;
    shoal_dtype x_dtype, y_dtype;
    int x_ndim, y_ndim; /* of one sample; y_ndim 0: a number */
    int64_t x_shape[SHOAL_MAX_DIMS - 1], y_shape[SHOAL_MAX_DIMS - 1];
    shoal_err (*fetch)(void *state, const int64_t *numbers, int64_t count, shoal_tensor *x, shoal_tensor *y);
    void (*destroy)(void *state);                                   /* may be NULL */
    shoal_value *(*pack)(void *state);                              /* may be NULL; NULL returned: the error it told */
    shoal_err (*open)(const shoal_value *packed, void **out_state); /* may be NULL */
} shoal_dataset_type;

/* Makes a data set, which the caller owns; takes state, which may be NULL, over when it succeeds; loaders and subsets of it retain it. Errors: SHOAL_EINVAL,
 * SHOAL_ENOMEM. */
shoal_dataset *shoal_dataset_create(const shoal_dataset_type *type, void *state);
shoal_dataset *shoal_dataset_retain(shoal_dataset *set);
void shoal_dataset_release(shoal_dataset *set);
int64_t shoal_dataset_length(const shoal_dataset *set);   /* of NULL: 0 */
const char *shoal_dataset_name(const shoal_dataset *set); /* of NULL: NULL */

/* Fetches samples by their numbers into x and y, of the set's dtypes, contiguous, with shapes [count, sample…]. Errors:
 * SHOAL_EINVAL for other tensors and for numbers beyond the set; what fetch of the set returns. */
SHOAL_MUST_USE shoal_err shoal_dataset_fetch(shoal_dataset *set, const int64_t *numbers, int64_t count, shoal_tensor *x,
                                             shoal_tensor *y);

/* A data set as a value, to give to another process: shoal_map("data", set). The reader gives the set that it is there, over the
 * same memory; it belongs to the value, so retain what is to stay longer. A set is opened once for each value, by the first reader.
 * shoal_arg_dataset reads the member of that key, as shoal_arg_queue in value.h. NULL gives NULL.
 * Errors: SHOAL_EINVAL for a set that cannot travel, with the reason; SHOAL_ETYPE for another kind of value; what pack tells and what open
 * returns. */
shoal_value *shoal_value_dataset(shoal_dataset *set);
shoal_dataset *shoal_value_as_dataset(const shoal_value *value);
shoal_dataset *shoal_arg_dataset(const shoal_value *args, const char *key);

/* Makes a data set of the rows of two tensors of the same length; both are retained, or copied where they are not contiguous. Tensors of the program's
 * own memory (shoal_from_memory) cannot travel. */
shoal_dataset *shoal_tensor_dataset(shoal_tensor *x, shoal_tensor *y);

/* MNIST and Fashion-MNIST from IDX files, gzipped or not: x f32 [1, 28, 28], normalised by the data set's mean and
 * deviation (MNIST 0.1307, 0.3081; Fashion 0.2860, 0.3530), y i64. directory NULL: the folder mnist or
 * fashion-mnist in SHOAL_DATA of the environment, in data here and beside the program, in share/shoal of the prefix that the program
 * or the library is installed in, then where the system has it. Errors: SHOAL_ENOENT says where it looked and what to set. The pixels stay one byte each, in the shared heap; a set that is packed and
 * opened elsewhere is over the same ones. */
shoal_dataset *shoal_mnist(shoal_part part);
shoal_dataset *shoal_mnist_at(const char *directory, shoal_part part);
shoal_dataset *shoal_fashion_mnist(shoal_part part);
shoal_dataset *shoal_fashion_mnist_at(const char *directory, shoal_part part);

/* The data sets that are known by name, "mnist" first; NULL beyond the last. Where one lies: the folder, at most capacity bytes
 * with the NUL; SHOAL_ENOENT says where it looked. Where it can be had, in words. */
const char *shoal_data_name(size_t i);
SHOAL_MUST_USE shoal_err shoal_data_where(const char *name, char *folder, size_t capacity);
const char *shoal_data_origin(const char *name);

/* How the samples of a data set are normalised: x = (pixel / 255 - mean) / deviation. SHOAL_ENOENT for an unknown name. */
SHOAL_MUST_USE shoal_err shoal_data_scale(const char *name, double *out_mean, double *out_deviation);

/* Check or copy the files of a data set. verify checks sizes and CRC32 of the unpacked files in a folder (NULL: where it lies). copy copies them from one folder (NULL: the same) to another, which
 * is made, after checking them. Errors: SHOAL_ENOENT, SHOAL_EPERM, SHOAL_EOS; SHOAL_ECORRUPT names the file. */
SHOAL_MUST_USE shoal_err shoal_data_verify(const char *name, const char *folder);
SHOAL_MUST_USE shoal_err shoal_data_copy(const char *name, const char *from, const char *to);

/* Labels of all samples as i64 [length], the caller's. SHOAL_ETYPE when y is no whole number. */
shoal_tensor *shoal_dataset_labels(const shoal_dataset *set);

/* Makes a data set of some samples of another one, in the order given, each batch passed through transform (NULL: none), which changes x in place.
 * numbers are copied. A subset travels when its set does, its transform is a function of the program, and context is NULL. */
typedef shoal_err (*shoal_transform)(shoal_tensor *x, void *context);
shoal_dataset *shoal_subset(shoal_dataset *set, const int64_t *numbers, int64_t count);
shoal_dataset *shoal_subset_with(shoal_dataset *set, const int64_t *numbers, int64_t count, shoal_transform transform,
                                 void *context);

/* Split a data set; out receives n sets that the caller owns; after an error it is untouched. SHOAL_EINVAL when there are fewer samples
 * than parts. shard: contiguous, length / n each, the last takes the rest. iid:
 * shuffled by seed, equal parts, the rest one each to the first. label: sorted by label, cut into n * shards_each shards,
 * shards_each drawn for each by seed (200 shards of 300, two a client: n = 100, shards_each = 2); the last shard takes the rest. */
SHOAL_MUST_USE shoal_err shoal_split_shard(shoal_dataset *set, int64_t n, shoal_dataset **out);
SHOAL_MUST_USE shoal_err shoal_split_iid(shoal_dataset *set, int64_t n, uint64_t seed, shoal_dataset **out);
SHOAL_MUST_USE shoal_err shoal_split_label(shoal_dataset *set, int64_t n, int64_t shards_each, uint64_t seed,
                                           shoal_dataset **out);

/* Options of shoal_loader_create. Zero is the default of each. */
typedef struct shoal_loader_options {
    int64_t batch; /* 0: 1 */
    bool shuffle;  /* a new order each epoch, by seed and epoch */
    bool drop_last;
    uint64_t seed;
    int workers;          /* processes that fetch; 0: this one does */
    int prefetch;         /* batches ahead for each worker; 0: 2 */
    const int64_t *order; /* samples to take instead of all, in this order; copied */
    int64_t order_count;
    shoal_start start; /* of the workers */
    int64_t timeout;   /* how long shoal_loader_next waits for a worker, in ns; 0: no limit */
} shoal_loader_options;

/* Makes a loader, which the caller owns; it retains the set. options may be NULL. With workers, set must be one that can travel (shoal_value_dataset): MNIST, a
 * tensor data set, a subset or split of these. One thread at a time uses a loader. NULL: SHOAL_EINVAL, SHOAL_ENOMEM, and what
 * shoal_process_start gives. */
shoal_loader *shoal_loader_create_with(shoal_dataset *set, const shoal_loader_options *options);
void shoal_loader_destroy(shoal_loader *loader);
#ifdef __cplusplus
#define shoal_loader_create(set, ...)                                                                                  \
    shoal_loader_create_with(set, shoal_cxx_options(shoal_loader_options{__VA_ARGS__}))
#else
#define shoal_loader_create(set, ...) shoal_loader_create_with(set, &(shoal_loader_options){__VA_ARGS__})
#endif

/* Gets the next batch of this epoch. SHOAL_END after the last one; the call after that begins the next epoch:
 *
 *     while ((err = shoal_loader_next(data, &b)) == SHOAL_OK) { … }
 *     if (err != SHOAL_END) { … }
 *
 * After an error the loader gives nothing (SHOAL_ESTATE, with the first error in its text) until shoal_loader_seek.
 *
 * Releases what this thread computed since the loader's last batch (tensor.h), if that is still the innermost: when another
 * loader, whose loop lies around this one's, has gone on since, there is nothing to release. The end of an epoch releases too;
 * destroying a loader does not.
 *
 * With workers it waits for them, at most the loader's `timeout`: after SHOAL_ETIMEDOUT nothing is lost, and the next call waits
 * on. A worker that is killed is replaced and its batches are fetched again, three times for one
 * batch at most (SHOAL_ECHILD). An error of fetch in a worker is this call's. */
SHOAL_MUST_USE shoal_err shoal_loader_next(shoal_loader *loader, shoal_batch *out_batch);
int64_t shoal_loader_batches(const shoal_loader *loader); /* in an epoch */
int64_t shoal_loader_epoch(const shoal_loader *loader);

/* Continues at another place: the batch of that number in that epoch comes next. */
SHOAL_MUST_USE shoal_err shoal_loader_seek(shoal_loader *loader, int64_t epoch, int64_t batch);

#ifdef __cplusplus
}
#endif
#endif
