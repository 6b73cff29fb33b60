/* What a worker and its job share, and the steps that workers of all methods take. */
#ifndef SH_TRAIN_WORKER_H
#define SH_TRAIN_WORKER_H

#include "sync/atomic.h"
#include "train/engines/engine.h"

#include <shoal/data.h>
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

/* Synchronisation: the job writes stop and test, all workers read them before each step.
 *   stop    set to 1 (relaxed: they may see it a step later)
 *   test    the number of the last test (scoring.h), 0: none; stored with release, so that a worker that sees it sees
 *           the parameters to test
 *   begun   sh_now when the first worker began to train, 0: none yet. The first one sets it, the job reads it
 *           (relaxed) */
typedef struct sh_board_shm {
    sh_a32 stop __attribute__((aligned(SH_CACHE_LINE)));
    sh_a64 test;
    sh_a64 begun __attribute__((aligned(SH_CACHE_LINE)));
    sh_progress_shm workers[];
} sh_board_shm;

static inline uint64_t sh_position(int64_t epoch, int64_t batch)
{
    return (uint64_t)epoch << 32 | (uint64_t)batch;
}

/* The settings that all workers share; sent as bytes between processes of one program. */
typedef struct sh_settings {
    int64_t epochs;
    double lr_decay;
    uint64_t seed;
    int32_t workers;
    bool shard; /* each worker has a contiguous part of the set: length / workers samples, the last takes the rest */
    int64_t reseed; /* batches after which dropout is seeded anew within a run; 0: never */
    sh_engine_settings engine;
} sh_settings;

typedef struct sh_worker {
    int rank;
    int64_t stream; /* selects its random numbers: the rank, or a number that the method chooses */
    int64_t
        passes; /* over the engine's samples in what is reported as one epoch: 1, or a number that the method chooses */
    sh_settings settings;
    shoal_module *model, *global; /* what it trains; the job's model. Owned by the arguments, like the queues */
    bool model_is_apart;          /* from the job's model: it is loaded when a round begins */
    sh_engine *engine;            /* NULL: the method computes itself (a3c) */
    shoal_queue *tasks, *answers;
    shoal_dataset *set;
    shoal_dataset *test_set; /* NULL: the workers test nothing */
    struct sh_score_shm *scores;
    uint64_t test; /* the last one in which this worker has done its part */
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
#define SH_TASK_TEST INT64_C(-1) /* the worker does its part of a test (scoring.h); it has done it */

/* attach takes "model", "board" and "settings" from the arguments that every worker gets. open also takes the sets and
 * queues, and opens the engine with the worker's part of "data" as its samples. open_without_samples is for methods
 * that choose the samples themselves (sh_worker_take_samples). close accepts a half-opened worker. */
shoal_err sh_worker_attach(sh_worker *w, int rank, const shoal_value *args);
shoal_err sh_worker_open(sh_worker *w, int rank, const shoal_value *args);
shoal_err sh_worker_open_without_samples(sh_worker *w, int rank, const shoal_value *args);
void sh_worker_close(sh_worker *w);

/* Returns a seed that depends on the job's seed, the rank and two more numbers. */
uint64_t sh_worker_seed(const sh_worker *w, uint64_t a, uint64_t b);

/* Reports finished steps on the board: the position of the next step, their samples, and their mean loss, which enters
 * a running mean. */
void sh_worker_report(const sh_worker *w, uint64_t position, const sh_engine_done *done);

/* Sets the time when training began, if this is the first worker to train. */
void sh_worker_begin_training(const sh_worker *w);

/* Returns the seed of the orders in which a stream goes over its samples. */
uint64_t sh_worker_order_seed(uint64_t seed, int64_t stream);

/* Sets the engine's samples, in orders of the worker's seed and stream. */
shoal_err sh_worker_take_samples(sh_worker *w, const int64_t *samples, int64_t count);

/* Trains on batches first to last - 1 of a pass over the engine's samples (fewer, if there are no more), or until the
 * job stops. Dropout depends on seed, stream, pass and first only, so repeating the same steps from the same parameters
 * is bit-identical. */
shoal_err sh_worker_train(sh_worker *w, int64_t pass, int64_t first, int64_t last);

/* Computes the gradient of one batch in the same way, for the engine's store_gradient, and takes no step. */
shoal_err sh_worker_gradient(sh_worker *w, int64_t pass, int64_t batch);

/* Waits for the next task from the job, not negative, and does the worker's part of tests meanwhile. Errors:
 * SHOAL_ECLOSED if the job ends. */
shoal_err sh_worker_next(sh_worker *w, int64_t *out_task);

/* Sends a number to the job, which wakes it. */
shoal_err sh_worker_ring(const sh_worker *w, int64_t number);

/* scoring.c: does the worker's part of the last test. */
shoal_err sh_worker_test(sh_worker *w);

static inline bool sh_worker_has_test(const sh_worker *w)
{
    return sh_load_acquire(&w->board->test) != w->test;
}

static inline bool sh_worker_stopped(const sh_worker *w)
{
    return sh_load_relaxed(&w->board->stop) != 0;
}

#endif
