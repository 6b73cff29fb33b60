/* Loaders inside: the order of the samples is the loader's, fetching is done here or by a fetchers of worker processes. */
#ifndef SH_DATA_LOADER_H
#define SH_DATA_LOADER_H

#include "data/dataset.h"
#include "tensor/scope_mark.h"

/* The tensors of a batch. Both are owned. */
typedef struct sh_batch {
    shoal_tensor *x, *y;
} sh_batch;

typedef struct sh_fetchers sh_fetchers;

struct shoal_loader {
    shoal_dataset *set;
    int64_t batch; /* samples in one */
    bool shuffle;
    uint64_t seed;

    int64_t *order;   /* samples to take; NULL: all */
    int64_t count;    /* how many */
    int64_t *numbers; /* the samples of an epoch as they come */
    int64_t numbers_epoch;

    int64_t timeout; /* of waiting for a worker; 0: none */
    int64_t batches; /* in an epoch */
    int64_t epoch, next;
    shoal_err err;   /* not SHOAL_OK: next gives nothing until seek */
    char words[256]; /* of that error */

    sh_batch full;  /* without workers: where batches are fetched to */
    sh_batch given; /* views of fewer rows than that, while the caller has them */
    sh_scope_mark mark;
    sh_fetchers *fetchers; /* NULL: no workers */
};

/* Samples of a batch of this epoch, and their numbers. */
static inline int64_t sh_loader_batch(const shoal_loader *loader, int64_t batch, const int64_t **out_numbers)
{
    int64_t first = batch * loader->batch, left = loader->count - first;
    *out_numbers = loader->numbers + first;
    return left < loader->batch ? left : loader->batch;
}

/* True when nobody but the caller holds the tensors or a view of them: they can be written again. */
bool sh_batch_is_free(const sh_batch *pair);
void sh_batch_release(sh_batch *pair);
shoal_err sh_batch_create(sh_batch *pair, const shoal_dataset *set, int64_t count,
                          shoal_tensor *(*make)(shoal_dtype, int, const int64_t *));

/* Views of the first rows of a pair. */
shoal_err sh_batch_rows(sh_batch *rows, const sh_batch *pair, int64_t count);

/* Fetches, and lets go of what fetch computed on the way. */
shoal_err sh_fetch_into(shoal_dataset *set, const int64_t *numbers, int64_t count, const sh_batch *pair);

/* ---- workers (fetchers.c) ---- */

/* Starts the workers. */
shoal_err sh_fetchers_create(const shoal_loader *loader, int workers, int prefetch, shoal_start start,
                             sh_fetchers **out_crew);

/* Ends them. NULL is allowed. */
void sh_fetchers_destroy(sh_fetchers *fetchers);

/* The batch loader->next, in a pair of the fetchers; asks the workers for those that come after it. */
shoal_err sh_fetchers_next(sh_fetchers *fetchers, const shoal_loader *loader, sh_batch **out_pair);

#endif
