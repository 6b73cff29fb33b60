/* Data sets inside the library: a type with its functions, and a state. Subsets, MNIST and rows of tensors are ordinary
 * types. */
#ifndef SH_DATA_DATASET_H
#define SH_DATA_DATASET_H

#include "base/error.h"
#include "sync/atomic.h"

#include <shoal/data.h>

struct shoal_dataset {
    sh_a64 refs;
    shoal_dataset_type type; /* the data set owns its name */
    void *state;

    /* Returns all labels at once, in this process; NULL: fetch them. It is not sent to other processes. */
    shoal_err (*labels)(void *state, int64_t *out);
};

/* The same as shoal_dataset_fetch, for arguments that were checked. */
static inline shoal_err sh_dataset_fetch(shoal_dataset *set, const int64_t *numbers, int64_t count, shoal_tensor *x,
                                         shoal_tensor *y)
{
    uint64_t mark = sh_callback_mark();
    return sh_callback_err(mark, set->type.fetch(set->state, numbers, count, x, y), set->type.name, "fetch");
}

/* Checks that the numbers are samples of the data set. Returns SHOAL_EINVAL and names the first that is not. */
shoal_err sh_dataset_check(const shoal_dataset *set, const int64_t *numbers, int64_t count);

/* Writes the labels of all samples. */
shoal_err sh_dataset_labels(shoal_dataset *set, int64_t *out);

/* Make a tensor for count samples of x or y. */
shoal_tensor *sh_dataset_new_x(const shoal_dataset *set, int64_t count,
                               shoal_tensor *(*make)(shoal_dtype, int, const int64_t *));
shoal_tensor *sh_dataset_new_y(const shoal_dataset *set, int64_t count,
                               shoal_tensor *(*make)(shoal_dtype, int, const int64_t *));

/* A set of images of bytes: pixel p of a sample is p * scale + shift, rounded after the product and after the sum; its
 * label is a byte. The set owns the tensors. */
typedef struct sh_byte_images {
    shoal_tensor *pixels, *labels; /* u8 [n, ...] and u8 [n] */
    float scale, shift;
} sh_byte_images;

/* Returns whether the set is one (mnist.c). */
bool sh_dataset_bytes(const shoal_dataset *set, sh_byte_images *out_images);

/* A split as numbers, for callers that need no data set of each part: part i has the samples numbers[ends[i - 1]] (the
 * first part: numbers[0]) to numbers[ends[i] - 1]. Errors and parts are those of shoal_split_iid and shoal_split_label.
 * sh_split_fini accepts a zeroed split. */
typedef struct sh_split {
    int64_t *numbers, *ends;
} sh_split;
shoal_err sh_split_iid(const shoal_dataset *set, int64_t n, uint64_t seed, sh_split *out_split);
shoal_err sh_split_label(shoal_dataset *set, int64_t n, int64_t shards_each, uint64_t seed, sh_split *out_split);
void sh_split_fini(sh_split *split);

/* Convert a function of the program to a value and back; NULL and null correspond. Errors are those of
 * proc/target.h. */
typedef void (*sh_any_function)(void);
shoal_value *sh_dataset_function(sh_any_function function);
shoal_err sh_dataset_function_of(const shoal_value *value, sh_any_function *out_function);

/* Streams of random numbers (kernels/random.h), so that different uses of one seed get different numbers. */
enum { SH_STREAM_SHUFFLE = 1, SH_STREAM_SPLIT = 2, SH_STREAM_CLIENTS = 3 };
static inline uint64_t sh_stream(int use, uint64_t number)
{
    return (uint64_t)use << 56 ^ number;
}

#endif
