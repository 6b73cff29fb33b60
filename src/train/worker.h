/* What a worker and its job share, and the steps that workers of all methods take. */
#ifndef SH_TRAIN_WORKER_H
#define SH_TRAIN_WORKER_H

#include "sync/atomic.h"

#include <shoal/data.h>
#include <shoal/optim.h>
#include <shoal/process.h>

/* What a worker tells of itself, in cache lines of its own; a step costs it three plain stores and no message.
 *
 * Synchronisation, by field: the worker of that rank writes, the job reads; all relaxed, each word stands for itself.
 *   position   epoch << 32 | batch: the step that comes next. A worker that is started again begins here.
 *   images     trained on
 *   loss       bits of a double, a running mean; 0 stands for none yet
 * death: the words say what the steps before did; the step that was under way is taken again. */
typedef struct sh_progress_shm {
    sh_a64 position;
    sh_a64 images;
    sh_a64 loss;
} __attribute__((aligned(SH_CACHE_LINE))) sh_progress_shm;

/* Synchronisation: stop is written by the job, once, to 1, and read by all workers before each step (relaxed: they may see it a step
 * later). */
typedef struct sh_board_shm {
    sh_a32 stop __attribute__((aligned(SH_CACHE_LINE)));
    sh_progress_shm workers[];
} sh_board_shm;

static inline uint64_t sh_position(int64_t epoch, int64_t batch)
{
    return (uint64_t)epoch << 32 | (uint64_t)batch;
}

/* The same for all workers; travels as bytes, between processes of one program. */
typedef struct sh_settings {
    int64_t epochs, batch;
    double lr, lr_decay, momentum;
    uint64_t seed;
    int32_t workers;
    bool shard; /* of the set, contiguous: length / workers each, the last takes the rest */
} sh_settings;

typedef struct sh_worker {
    int rank;
    int64_t stream; /* what its random numbers belong to: the rank, or what the method says */
    int64_t passes; /* over the loader's samples in what is told as one epoch: 1, or what the method says */
    sh_settings settings;
    shoal_module *model; /* the arguments' */
    shoal_dataset *set;
    shoal_loader *loader;
    shoal_optimizer *sgd;
    sh_board_shm *board;
    sh_progress_shm *progress;
} sh_worker;

/* The learning rate of an epoch. */
double sh_settings_lr(const sh_settings *s, int64_t epoch);

/* Batches in an epoch of that rank, of a set of so many samples; and samples in one of them, 0 beyond the last. */
int64_t sh_shard_batches(const sh_settings *s, int64_t length, int rank);
int64_t sh_shard_samples(const sh_settings *s, int64_t length, int rank, int64_t batch);

/* Images that it has trained on when that batch of that epoch comes next. */
int64_t sh_shard_images(const sh_settings *s, int64_t length, int rank, int64_t epoch, int64_t batch);

/* Of the arguments that every worker gets: "model", "board", "settings"; attach does no more than that, open makes a loader of
 * its part of "data" and an optimiser too; the third makes no loader, because the method has its own samples (sh_worker_load). close takes a half-opened one. */
shoal_err sh_worker_attach(sh_worker *w, int rank, const shoal_value *args);
shoal_err sh_worker_open(sh_worker *w, int rank, const shoal_value *args);
shoal_err sh_worker_open_without_loader(sh_worker *w, int rank, const shoal_value *args);
void sh_worker_close(sh_worker *w);

/* A seed that depends on the job's seed, the rank, and two numbers more. */
uint64_t sh_worker_seed(const sh_worker *w, uint64_t a, uint64_t b);

/* A step is taken: the next one, images more, and the loss, of which a running mean is kept. */
void sh_worker_tell(const sh_worker *w, uint64_t position, int64_t images, double loss);

/* The seed of the orders in which a stream's samples are passed over. */
uint64_t sh_worker_order_seed(uint64_t seed, int64_t stream);

/* A loader of these samples in the place of the one it has, shuffled by seed and stream; and an optimiser that begins anew. */
shoal_err sh_worker_load(sh_worker *w, const int64_t *order, int64_t count);
shoal_err sh_worker_renew(sh_worker *w);

/* Trains on batches first to last - 1 of an epoch (less, when there are no more), or until the job stops. Dropout depends on seed,
 * stream, epoch and first only, so taking the same steps again from the same parameters gives the same bits. */
shoal_err sh_worker_train(sh_worker *w, int64_t epoch, int64_t first, int64_t last);

/* The same for the gradient of one batch: it is left in the model, and no step is taken. */
shoal_err sh_worker_gradient(sh_worker *w, int64_t epoch, int64_t batch);

static inline bool sh_worker_stopped(const sh_worker *w)
{
    return sh_load_relaxed(&w->board->stop) != 0;
}

#endif
