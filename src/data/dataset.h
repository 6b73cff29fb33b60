/* Data sets inside: a type with its functions, and a state. Subsets, MNIST and rows of tensors are types like any other. */
#ifndef SH_DATA_DATASET_H
#define SH_DATA_DATASET_H

#include "base/error.h"
#include "sync/atomic.h"

#include <shoal/data.h>

struct shoal_dataset {
    sh_a64 refs;
    shoal_dataset_type type; /* its name is the set's own */
    void *state;

    /* All labels at once, in this process; NULL: through fetch. Does not travel. */
    shoal_err (*labels)(void *state, int64_t *out);
};

/* The same as shoal_dataset_fetch, of arguments that are known to be right. */
static inline shoal_err sh_dataset_fetch(shoal_dataset *set, const int64_t *numbers, int64_t count, shoal_tensor *x,
                                         shoal_tensor *y)
{
    uint64_t mark = sh_callback_mark();
    return sh_callback_err(mark, set->type.fetch(set->state, numbers, count, x, y), set->type.name, "fetch");
}

/* The numbers are samples of the set, or SHOAL_EINVAL names the first that is not. */
shoal_err sh_dataset_check(const shoal_dataset *set, const int64_t *numbers, int64_t count);

/* Writes length labels. */
shoal_err sh_dataset_labels(shoal_dataset *set, int64_t *out);

/* A new tensor for count samples of x or y. */
shoal_tensor *sh_dataset_new_x(const shoal_dataset *set, int64_t count,
                               shoal_tensor *(*make)(shoal_dtype, int, const int64_t *));
shoal_tensor *sh_dataset_new_y(const shoal_dataset *set, int64_t count,
                               shoal_tensor *(*make)(shoal_dtype, int, const int64_t *));

/* A split as numbers, for who needs no set of each part: part i has the samples numbers[ends[i - 1]] (the first: numbers[0]) to
 * numbers[ends[i] - 1]. Errors and parts as shoal_split_iid and shoal_split_label. fini takes one that was not made. */
typedef struct sh_split {
    int64_t *numbers, *ends;
} sh_split;
shoal_err sh_split_iid(const shoal_dataset *set, int64_t n, uint64_t seed, sh_split *out_split);
shoal_err sh_split_label(shoal_dataset *set, int64_t n, int64_t shards_each, uint64_t seed, sh_split *out_split);
void sh_split_fini(sh_split *split);

/* A function of the program as a value, and back; NULL and null are each other. Errors as in proc/target.h. */
typedef void (*sh_any_function)(void);
shoal_value *sh_dataset_function(sh_any_function function);
shoal_err sh_dataset_function_of(const shoal_value *value, sh_any_function *out_function);

/* Streams of random numbers (kernels/random.h), so that no two uses of one seed are alike. */
enum { SH_STREAM_SHUFFLE = 1, SH_STREAM_SPLIT = 2, SH_STREAM_CLIENTS = 3 };
static inline uint64_t sh_stream(int use, uint64_t number)
{
    return (uint64_t)use << 56 ^ number;
}

#endif
