/* Sets of named tensors and texts, inside the library. */
#ifndef SH_DATA_TENSORS_H
#define SH_DATA_TENSORS_H

#include "os/file.h"

#include <shoal/file.h>

/* Names with this prefix are not weights: a checkpoint keeps its other data under them. */
#define SH_TENSORS_OWN "shoal/"

typedef struct sh_named {
    char *name;
    shoal_tensor *tensor; /* or */
    char *text;
    uint64_t hash;
    struct sh_named *next; /* in the same hash bucket */
} sh_named;

/* Names in the order in which they were added, and a hash table over them. */
typedef struct sh_names {
    sh_named **items;
    size_t count, room;
    sh_named **buckets;
    size_t bucket_count; /* a power of two, or 0 */
} sh_names;

struct shoal_tensors {
    sh_names tensors, texts;
};

/* Writes all elements in order, from any device. */
shoal_err sh_write_elements(sh_atomic_file *file, shoal_tensor *t);

/* Copies the tensor of that name into one of the same dtype and shape. path is the file that the set was read from, for
 * error texts. */
shoal_err sh_tensors_take(const shoal_tensors *set, const char *path, const char *name, shoal_tensor *to);

/* The same as shoal_weights_read, for a set that was read already. */
shoal_err sh_weights_take(const shoal_tensors *set, const char *path, shoal_module *module);

#endif
