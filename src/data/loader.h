/* Loaders inside the library: a loader decides the order of the samples; this process or worker processes fetch
 * them. */
#ifndef SH_DATA_LOADER_H
#define SH_DATA_LOADER_H

#include "base/error.h"
#include "data/dataset.h"
#include "tensor/scope_mark.h"

/* The tensors of a batch, which it owns. */
typedef struct sh_batch {
    shoal_tensor *x, *y;
} sh_batch;

typedef struct sh_fetchers sh_fetchers;

struct shoal_loader {
    shoal_dataset *set;
    int64_t batch; /* samples per batch */
    bool shuffle;
    uint64_t seed;

    int64_t *order;   /* samples to use; NULL: all */
    int64_t count;    /* their number */
    int64_t *numbers; /* the samples of an epoch in the order in which they come */
    int64_t numbers_epoch;

    int64_t timeout; /* for waiting for a worker; 0: none */
    int64_t batches; /* in an epoch */
    int64_t epoch, next;
    sh_error stopped; /* not SHOAL_OK: next fails until seek is called */

    sh_batch full;  /* without workers: the tensors that batches are fetched into */
    sh_batch given; /* views of fewer rows, while the caller has them */
    sh_scope_mark mark;
    sh_fetchers *fetchers; /* NULL: no workers */
};

/* Returns the number of samples in a batch of this epoch, and their numbers. */
static inline int64_t sh_loader_batch(const shoal_loader *loader, int64_t batch, const int64_t **out_numbers)
{
    int64_t first = batch * loader->batch, left = loader->count - first;
    *out_numbers = loader->numbers + first;
    return left < loader->batch ? left : loader->batch;
}

/* Arranges an epoch, and returns the numbers of its samples in order; their number is loader->count. */
const int64_t *sh_loader_order(shoal_loader *loader, int64_t epoch);

/* Returns whether only the caller holds the tensors: there are no other references and no views, so they can be
 * overwritten. */
bool sh_batch_is_free(const sh_batch *batch);
void sh_batch_release(sh_batch *batch);
shoal_err sh_batch_create(sh_batch *batch, const shoal_dataset *set, int64_t count,
                          shoal_tensor *(*make)(shoal_dtype, int, const int64_t *));

/* Makes views of the first rows of a batch. */
shoal_err sh_batch_rows(sh_batch *rows, const sh_batch *batch, int64_t count);

/* Fetches samples, and releases what fetch computed in its scope. */
shoal_err sh_fetch_into(shoal_dataset *set, const int64_t *numbers, int64_t count, const sh_batch *batch);

/* ---- workers (fetchers.c) ---- */

/* Starts the worker processes of a loader. */
shoal_err sh_fetchers_create(const shoal_loader *loader, int workers, int prefetch, shoal_start start,
                             sh_fetchers **out_fetchers);

/* Ends the workers. NULL is allowed. */
void sh_fetchers_destroy(sh_fetchers *fetchers);

/* Returns the batch loader->next, which the fetchers own, and asks the workers for the batches after it. */
shoal_err sh_fetchers_next(sh_fetchers *fetchers, const shoal_loader *loader, sh_batch **out_batch);

#endif
