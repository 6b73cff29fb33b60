/* Loaders: the order of samples, batches fetched by this process, and the loop's scope. */
#include "data/loader.h"

#include "base/error.h"
#include "kernels/random.h"
#include "tensor/tensor.h"

#include <stdlib.h>
#include <string.h>

#define WORKERS_MAX 1024
#define PREFETCH_MAX 1024
#define PREFETCH 2

/* ---- pairs ---- */

static bool is_free(const shoal_tensor *t)
{
    return sh_load_acquire(&t->refs) == 1 && sh_load_acquire(&t->storage->refs) == 1 && t->node == NULL &&
           t->grad == NULL && t->hooks == NULL && !t->requires_grad;
}

bool sh_batch_is_free(const sh_batch *batch)
{
    return batch->x != NULL && batch->y != NULL && is_free(batch->x) && is_free(batch->y);
}

void sh_batch_release(sh_batch *batch)
{
    shoal_tensor_release(batch->x);
    shoal_tensor_release(batch->y);
    *batch = (sh_batch){NULL, NULL};
}

shoal_err sh_batch_create(sh_batch *batch, const shoal_dataset *set, int64_t count,
                          shoal_tensor *(*make)(shoal_dtype, int, const int64_t *))
{
    sh_batch made = {.x = sh_dataset_new_x(set, count, make)};
    made.y = made.x != NULL ? sh_dataset_new_y(set, count, make) : NULL;
    if (made.y == NULL) {
        sh_batch_release(&made);
        return shoal_last_error();
    }
    sh_batch_release(batch);
    *batch = made;
    return SHOAL_OK;
}

static shoal_tensor *first_rows(const shoal_tensor *t, int64_t count)
{
    sh_shape s;
    sh_tensor_shape_of(t, &s);
    s.shape[0] = count;
    return sh_tensor_over(t->storage, &s);
}

shoal_err sh_batch_rows(sh_batch *rows, const sh_batch *batch, int64_t count)
{
    sh_batch made = {.x = first_rows(batch->x, count)};
    made.y = made.x != NULL ? first_rows(batch->y, count) : NULL;
    if (made.y == NULL) {
        sh_batch_release(&made);
        return shoal_last_error();
    }
    sh_batch_release(rows);
    *rows = made;
    return SHOAL_OK;
}

shoal_err sh_fetch_into(shoal_dataset *set, const int64_t *numbers, int64_t count, const sh_batch *batch)
{
    size_t mark = shoal_scope_mark();
    sh_tensor_touch(batch->x);
    sh_tensor_touch(batch->y);
    shoal_err err = sh_dataset_fetch(set, numbers, count, batch->x, batch->y);
    shoal_scope_release(mark);
    return err;
}

/* ---- the order of samples ---- */

/* Sets the numbers of this epoch: all samples or those of order, in that order or shuffled by seed and epoch. */
static void arrange(shoal_loader *loader)
{
    if (loader->numbers_epoch >= 0 && (!loader->shuffle || loader->numbers_epoch == loader->epoch)) {
        return;
    }
    if (loader->shuffle) {
        sh_random_key key = {.seed = loader->seed, .stream = sh_stream(SH_STREAM_SHUFFLE, (uint64_t)loader->epoch)};
        sh_random_permutation(key, loader->numbers, loader->count);
    }
    for (int64_t i = 0; i < loader->count; i++) {
        int64_t place = loader->shuffle ? loader->numbers[i] : i;
        loader->numbers[i] = loader->order != NULL ? loader->order[place] : place;
    }
    loader->numbers_epoch = loader->epoch;
}

const int64_t *sh_loader_order(shoal_loader *loader, int64_t epoch)
{
    loader->epoch = epoch;
    loader->next = 0;
    arrange(loader);
    return loader->numbers;
}

/* ---- life ---- */

static shoal_err check_options(const shoal_dataset *set, const shoal_loader_options *o)
{
    if (o->batch < 0 || o->workers < 0 || o->workers > WORKERS_MAX || o->prefetch < 0 || o->prefetch > PREFETCH_MAX) {
        return sh_fail(SHOAL_EINVAL,
                       "a loader with batches of %lld, %d workers and %d batches ahead: these must not be negative, "
                       "and at most %d workers "
                       "and %d batches ahead",
                       (long long)o->batch, o->workers, o->prefetch, WORKERS_MAX, PREFETCH_MAX);
    }
    if (o->timeout < 0) {
        return sh_fail(SHOAL_EINVAL, "the timeout of a loader is negative");
    }
    if (o->order_count < 0 || (o->order_count > 0 && o->order == NULL)) {
        return sh_fail(SHOAL_EINVAL,
                       "order_count of a loader is %lld: it must not be negative, and order must not be NULL",
                       (long long)o->order_count);
    }
    return o->order != NULL ? sh_dataset_check(set, o->order, o->order_count) : SHOAL_OK;
}

static shoal_err set_up(shoal_loader *loader, shoal_dataset *set, const shoal_loader_options *o)
{
    loader->set = shoal_dataset_retain(set);
    loader->batch = o->batch > 0 ? o->batch : 1;
    loader->shuffle = o->shuffle;
    loader->seed = o->seed;
    loader->timeout = o->timeout;
    loader->count = o->order != NULL ? o->order_count : set->type.length;
    loader->numbers_epoch = -1;
    loader->batches = loader->count / loader->batch + (!o->drop_last && loader->count % loader->batch > 0);
    size_t bytes = (size_t)loader->count * sizeof(int64_t);
    loader->numbers = malloc(bytes + 1);
    loader->order = o->order != NULL ? malloc(bytes + 1) : NULL;
    if (loader->numbers == NULL || (o->order != NULL && loader->order == NULL)) {
        return sh_fail(SHOAL_ENOMEM, "no memory for the order of %lld samples", (long long)loader->count);
    }
    if (loader->order != NULL) {
        memcpy(loader->order, o->order, bytes);
    }
    return o->workers > 0 ? sh_fetchers_create(loader, o->workers, o->prefetch > 0 ? o->prefetch : PREFETCH, o->start,
                                               &loader->fetchers)
                          : SHOAL_OK;
}

shoal_loader *shoal_loader_create_with(shoal_dataset *set, const shoal_loader_options *options)
{
    static const shoal_loader_options none;
    const shoal_loader_options *o = options != NULL ? options : &none;
    if (set == NULL) {
        return sh_null_in(__func__, "set");
    }
    if (check_options(set, o) != SHOAL_OK) {
        return NULL;
    }
    shoal_loader *loader = calloc(1, sizeof *loader);
    if (loader == NULL) {
        (void)sh_fail(SHOAL_ENOMEM, "no memory for a loader");
        return NULL;
    }
    if (set_up(loader, set, o) != SHOAL_OK) {
        shoal_loader_destroy(loader);
        return NULL;
    }
    return loader;
}

void shoal_loader_destroy(shoal_loader *loader)
{
    if (loader == NULL) {
        return;
    }
    sh_scope_mark_drop(&loader->mark);
    sh_batch_release(&loader->given);
    sh_batch_release(&loader->full);
    sh_fetchers_destroy(loader->fetchers);
    shoal_dataset_release(loader->set);
    free(loader->order);
    free(loader->numbers);
    free(loader);
}

/* ---- batches ---- */

/* Fetches the batch loader->next in this process. */
static shoal_err fetch_here(shoal_loader *loader, sh_batch **out_batch)
{
    const int64_t *numbers;
    int64_t count = sh_loader_batch(loader, loader->next, &numbers);
    shoal_err err = SHOAL_OK;
    if (!sh_batch_is_free(&loader->full)) {
        err = sh_batch_create(&loader->full, loader->set, loader->batch, shoal_empty);
    }
    if (err == SHOAL_OK && count < loader->batch) {
        err = sh_batch_rows(&loader->given, &loader->full, count);
    }
    *out_batch = &loader->full;
    SH_TRY(err);
    return sh_fetch_into(loader->set, numbers, count, count < loader->batch ? &loader->given : &loader->full);
}

static shoal_err give(shoal_loader *loader, shoal_batch *out_batch)
{
    sh_batch *full;
    const int64_t *numbers;
    arrange(loader);
    int64_t count = sh_loader_batch(loader, loader->next, &numbers);
    shoal_err err =
        loader->fetchers != NULL ? sh_fetchers_next(loader->fetchers, loader, &full) : fetch_here(loader, &full);
    if (err == SHOAL_OK && count < loader->batch && loader->given.x == NULL) {
        err = sh_batch_rows(&loader->given, full, count);
    }
    if (err != SHOAL_OK) {
        return err;
    }
    full = count < loader->batch ? &loader->given : full;
    *out_batch = (shoal_batch){.x = full->x, .y = full->y, .count = count, .index = loader->next};
    return SHOAL_OK;
}

shoal_err shoal_loader_next(shoal_loader *loader, shoal_batch *out_batch)
{
    if (loader == NULL || out_batch == NULL) {
        return sh_null_error("shoal_loader_next", loader == NULL ? "loader" : "out_batch");
    }
    sh_scope_mark_release(&loader->mark);
    sh_batch_release(&loader->given);
    if (loader->stopped.code != SHOAL_OK) {
        return sh_fail(
            SHOAL_ESTATE,
            "the loader stopped at batch %lld of epoch %lld (%s: %.255s): call shoal_loader_seek to continue",
            (long long)loader->next, (long long)loader->epoch, shoal_err_name(loader->stopped.code),
            loader->stopped.text);
    }
    if (loader->next == loader->batches) {
        loader->epoch++;
        loader->next = 0;
        return SHOAL_END;
    }
    shoal_err err = give(loader, out_batch);
    if (err == SHOAL_ETIMEDOUT || err == SHOAL_EINTR) {
        return err; /* from the wait: a data set's functions do not return these codes. The next call waits again */
    }
    sh_error_save(&loader->stopped, err);
    if (err != SHOAL_OK) {
        return err;
    }
    loader->next++;
    sh_scope_mark_set(&loader->mark);
    return SHOAL_OK;
}

int64_t shoal_loader_batches(const shoal_loader *loader)
{
    return loader != NULL ? loader->batches : 0;
}

int64_t shoal_loader_epoch(const shoal_loader *loader)
{
    return loader != NULL ? loader->epoch : 0;
}

shoal_err shoal_loader_seek(shoal_loader *loader, int64_t epoch, int64_t batch)
{
    if (loader == NULL) {
        return sh_null_error("shoal_loader_seek", "loader");
    }
    if (epoch < 0 || batch < 0 || batch > loader->batches) {
        return sh_fail(SHOAL_EINVAL, "batch %lld of epoch %lld: an epoch has %lld batches", (long long)batch,
                       (long long)epoch, (long long)shoal_loader_batches(loader));
    }
    loader->epoch = epoch;
    loader->next = batch;
    loader->stopped.code = SHOAL_OK;
    return SHOAL_OK;
}
