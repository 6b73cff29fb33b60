/* What a worker and its job share, and the steps that workers of all methods take. */
#ifndef SH_TRAIN_WORKER_H
#define SH_TRAIN_WORKER_H

#include "sync/atomic.h"
#include "train/evaluate.h"

#include <shoal/data.h>
#include <shoal/optim.h>
#include <shoal/process.h>

/* A worker's report of its progress, in its own cache lines. A step costs three plain stores and no message.
 *
 * Synchronisation, by field: the worker of that rank writes, the job reads; all relaxed, because each word is
 * independent.
 *   position   epoch << 32 | batch: the next step. A restarted worker begins here.
 *   images     trained on
 *   loss       bits of a double, a running mean; 0 means none yet
 * death: the words describe the finished steps; the step in progress is repeated. */
typedef struct sh_progress_shm {
    sh_a64 position;
    sh_a64 images;
    sh_a64 loss;
} __attribute__((aligned(SH_CACHE_LINE))) sh_progress_shm;

/* Synchronisation: the job writes stop and trial, all workers read them before each step.
 *   stop    set to 1, once (relaxed: they may see it a step later)
 *   trial   the number of the last trial (trial.h), 0: none; stored with release, so that a worker that sees it sees the
 *           parameters to test
 *   begun   sh_now when the first worker began to train, 0: none yet. The first one sets it, the job reads it (relaxed) */
typedef struct sh_board_shm {
    sh_a32 stop __attribute__((aligned(SH_CACHE_LINE)));
    sh_a64 trial;
    sh_a64 begun __attribute__((aligned(SH_CACHE_LINE)));
    sh_progress_shm workers[];
} sh_board_shm;

static inline uint64_t sh_position(int64_t epoch, int64_t batch)
{
    return (uint64_t)epoch << 32 | (uint64_t)batch;
}

/* The settings that all workers share; sent as bytes between processes of one program. */
typedef struct sh_settings {
    int64_t epochs, batch;
    double lr, lr_decay, momentum;
    uint64_t seed;
    int32_t workers;
    int64_t reseed; /* batches after which dropout is seeded anew within a run; 0: never */
    shoal_device device;
    int cuda_share; /* percent of the card; 0: all */
    bool tf32;      /* products on the card may be TF32 */
    char mps[64];   /* for sh_mps_join */
    bool mps_used;  /* the card is that of an MPS server, which may go down */
    bool shard; /* each worker has a contiguous part of the set: length / workers samples, the last takes the rest */
} sh_settings;

typedef struct sh_worker {
    int rank;
    int64_t stream; /* selects its random numbers: the rank, or a number that the method chooses */
    int64_t
        passes; /* over the loader's samples in what is reported as one epoch: 1, or a number that the method chooses */
    sh_settings settings;
    shoal_module *model, *global; /* what it trains; the job's model. Owned by the arguments, like the queues */
    shoal_queue *tasks, *answers;
    shoal_dataset *set;
    shoal_dataset *test_set; /* NULL: the workers test nothing */
    sh_evaluator evaluator;  /* of test_set */
    struct sh_trial_part_shm *parts;
    uint64_t trial;       /* the last one in which this worker has done its part */
    bool model_is_apart;  /* from the job's model: it is copied when a round begins */
    struct sh_card *card; /* NULL: it trains on the CPU (card.h) */
    int64_t loads;        /* how many loaders it has had */
    shoal_loader *loader;
    shoal_optimizer *sgd;
    sh_board_shm *board;
    sh_progress_shm *progress;
} sh_worker;

/* Returns the learning rate of an epoch. */
double sh_settings_lr(const sh_settings *s, int64_t epoch);

/* Return the number of batches in an epoch of that rank, for a set of `length` samples; and the number of samples in
 * one of them, 0 beyond the last. */
int64_t sh_shard_batches(const sh_settings *s, int64_t length, int rank);
int64_t sh_shard_samples(const sh_settings *s, int64_t length, int rank, int64_t batch);

/* Returns how many images the worker has trained on when that batch of that epoch comes next. */
int64_t sh_shard_images(const sh_settings *s, int64_t length, int rank, int64_t epoch, int64_t batch);

/* Messages between a job and its workers are numbers of 64 bits. A negative task or answer: */
#define SH_TASK_TRIAL INT64_C(-1) /* the worker does its part of a trial (trial.h); it has done it */

/* attach takes "model", "board" and "settings" from the arguments that every worker gets. open also takes the sets and
 * queues, and makes a loader of the worker's part of "data", and an optimiser. open_without_loader makes no loader, for methods that choose the
 * samples themselves (sh_worker_load). close accepts a half-opened worker. */
shoal_err sh_worker_attach(sh_worker *w, int rank, const shoal_value *args);
shoal_err sh_worker_open(sh_worker *w, int rank, const shoal_value *args);
shoal_err sh_worker_open_without_loader(sh_worker *w, int rank, const shoal_value *args);
void sh_worker_close(sh_worker *w);

/* Returns a seed that depends on the job's seed, the rank and two more numbers. */
uint64_t sh_worker_seed(const sh_worker *w, uint64_t a, uint64_t b);

/* Reports a finished step on the board: the position of the next step, the number of images, and the loss, which enters
 * a running mean. */
void sh_worker_tell(const sh_worker *w, uint64_t position, int64_t images, double loss);

/* The same for several steps, with the mean of their losses. */
void sh_worker_tell_many(const sh_worker *w, uint64_t position, int64_t images, double loss, int64_t steps);

/* Notes that a worker trains now, if it is the first. */
void sh_worker_note_begin(const sh_worker *w);

/* Returns the seed of the orders in which a stream goes over its samples. */
uint64_t sh_worker_order_seed(uint64_t seed, int64_t stream);

/* take copies the job's parameters into the worker's model, give copies what the worker trained into the model that the
 * job sees: nothing to do on the CPU. */
shoal_err sh_worker_take(sh_worker *w);
shoal_err sh_worker_give(sh_worker *w);

/* load replaces the loader by one of these samples, shuffled by seed and stream. renew replaces the optimiser by a
 * fresh one. */
shoal_err sh_worker_load(sh_worker *w, const int64_t *order, int64_t count);
shoal_err sh_worker_renew(sh_worker *w);

/* Trains on batches first to last - 1 of an epoch (fewer, if there are no more), or until the job stops. Dropout
 * depends on seed, stream, epoch and first only, so repeating the same steps from the same parameters is
 * bit-identical. */
shoal_err sh_worker_train(sh_worker *w, int64_t epoch, int64_t first, int64_t last);

/* Computes the gradient of one batch in the same way. Leaves it in the model, and takes no step. */
shoal_err sh_worker_gradient(sh_worker *w, int64_t epoch, int64_t batch);

/* Waits for the next task from the job, not negative, and does the worker's part of trials meanwhile. Errors:
 * SHOAL_ECLOSED if the job ends. */
shoal_err sh_worker_next(sh_worker *w, int64_t *out_task);

/* Sends a number to the job, which wakes it. */
shoal_err sh_worker_ring(const sh_worker *w, int64_t number);

/* trial.c: does the worker's part of the last trial. */
shoal_err sh_worker_test(sh_worker *w);

static inline bool sh_worker_has_trial(const sh_worker *w)
{
    return sh_load_acquire(&w->board->trial) != w->trial;
}

static inline bool sh_worker_stopped(const sh_worker *w)
{
    return sh_load_relaxed(&w->board->stop) != 0;
}

#endif
