/* The inside of a pool: tasks in shared memory, and what its owner and its workers exchange.
 *
 * A task is a block. Its handle goes to the workers through one queue and comes back through another; the owner holds
 * every unfinished task, so no task is lost when a worker dies. After a worker's death a handle may be in the queue
 * twice. The worker that swaps the state from PENDING runs the task, and the other handle is dropped.
 */
#ifndef SH_PROC_POOL_H
#define SH_PROC_POOL_H

#include "proc/supervisor.h"
#include "sync/peers.h"

#include <shoal/pool.h>

/* State of a task: the low 2 bits, and above them the owner id of the worker that has it.
 *
 *   PENDING       -> TAKEN by w     w, by compare-and-swap
 *   TAKEN by w    -> DONE, FAILED   w (release), when the result is in its place
 *   TAKEN by w    -> PENDING        the pool's owner, once w is dead and buried
 */
typedef enum sh_pool_work_state {
    SH_POOL_WORK_PENDING,
    SH_POOL_WORK_TAKEN,
    SH_POOL_WORK_DONE,   /* result: the function's result, or a list of results */
    SH_POOL_WORK_FAILED, /* result: list of error and text */
} sh_pool_work_state;

static inline uint32_t sh_pool_work_taken_by(sh_owner owner)
{
    return owner << 2 | SH_POOL_WORK_TAKEN;
}

/* A task, a block of SH_KIND_TASK.
 * Synchronisation
 *   argument, count, target   the owner, before it is put
 *   state                     as above
 *   result                    the worker that has it; then the owner
 * death: of a worker with the task TAKEN: the owner buries it, which finishes a half-done store of the result, and
 * makes it PENDING again. */
typedef struct sh_pool_work_shm {
    sh_a64 destroy[2];
    sh_a64 argument;
    sh_a64 result;
    sh_a32 state;
    uint32_t count; /* 0: one member, the argument itself; else the argument is a list of count members */
    sh_target target;
} sh_pool_work_shm;

_Static_assert(offsetof(sh_pool_work_shm, state) == offsetof(sh_task_shm, words), "a pool's task is a task");

static inline sh_pool_work_shm *sh_pool_work_of(const shoal_block *block)
{
    return (sh_pool_work_shm *)block->data;
}

/* The arguments of a worker: a map. */
#define SH_WORKER_TASKS "tasks"     /* queue: tasks to do */
#define SH_WORKER_ANSWERS "answers" /* queue: tasks done; and the notice of a worker that retires */
#define SH_WORKER_READY "ready"     /* block: an sh_a32 for each rank, set when the worker's initializer has returned */
#define SH_WORKER_LIMIT "limit"     /* how many members it runs before it retires; 0: no limit */
#define SH_WORKER_INIT "init"       /* bytes: the initializer's sh_target; or null */
#define SH_WORKER_ARGS "args"       /* the initializer's arguments */

/* The function that a worker process runs. */
shoal_err sh_pool_worker_main(int rank, const shoal_value *args);

/* What a retiring worker sends: its pid and its rank. By then the rank alone may be that of another worker. */
static inline int64_t sh_pool_worker_notice(int32_t pid, int rank)
{
    return (int64_t)pid << 32 | (uint32_t)rank;
}

/* ---- private to the pool's owner ---- */

/* How one task ended. */
typedef struct sh_outcome {
    bool ready;
    shoal_err err;
    char *text;         /* of err; malloc */
    shoal_value *value; /* NULL: taken */
} sh_outcome;

/* A submission of one task or many. shoal_future and shoal_iterator are this type under other names. The pool's lock
 * guards it. */
typedef struct sh_future {
    shoal_pool *pool;
    size_t count;  /* of tasks */
    size_t left;   /* not ready yet */
    size_t next;   /* of an iterator: how many it has returned */
    size_t *order; /* task numbers as they became ready */
    sh_outcome *outcomes;
    bool is_map;  /* the result is a list */
    bool chunked; /* each outcome is a list */
    bool ordered;
    bool taken;
    bool handle; /* the caller still has it */
} sh_future;

/* An unfinished task. The block's `extra` points to it, so the handle that comes back through the queue leads to it. */
typedef struct sh_pool_task {
    struct sh_pool_task *next, *previous;
    shoal_block *block;
    sh_future *job;
    size_t number;
    uint64_t put; /* it is message number `put` of the task queue */
    int attempts; /* how many workers died while they ran it */
} sh_pool_task;

/* The lock guards all fields except those that create writes once. */
struct shoal_pool {
    uint64_t maker; /* sh_fork_generation of the process that it belongs to */
    pthread_mutex_t lock;
    pthread_cond_t changed; /* a thread that waited has received something */
    bool waiting;           /* one thread at a time waits for the answer queue, the others for `changed` */
    size_t references;
    int count; /* of workers */
    int retries;
    int limit;
    sh_supervisor *workers; /* NULL: create has failed */
    shoal_value *worker_args;
    shoal_queue *tasks, *answers;
    sh_a32 *ready;            /* in worker_args */
    sh_pool_task outstanding; /* a ring with this as its head */
    size_t left;
    uint64_t puts;
    int64_t looked_at;
    bool closed, terminated, broken;
    char why[SH_START_TEXT + 256]; /* broken */
};

/* Puts task number i of the job into the queue. Its argument is one value (members is 0) or a list of `members` values.
 * Call it under the lock. */
shoal_err sh_pool_put(shoal_pool *pool, sh_future *job, size_t i, const sh_target *target, const shoal_value *argument,
                      uint32_t members);

/* Lock and unlock the pool. begin also tends the workers. Errors: SHOAL_ECLOSED, SHOAL_ECHILD if the pool is broken. */
shoal_err sh_pool_begin(shoal_pool *pool);
void sh_pool_end(shoal_pool *pool);

/* Locks the pool. Fails with SHOAL_EFORK, without the lock, in a fork of the pool's owner: the pool and its workers
 * belong to the process that made them. */
shoal_err sh_pool_lock(shoal_pool *pool);

/* Locks the pool for clean-up, which a fork may do too: there it frees private memory only. Returns false if the fork
 * cannot clean up because another thread of the owner held the lock at the fork. */
bool sh_pool_lock_to_free(shoal_pool *pool);

/* Returns SHOAL_ESTATE if this process has left the pool's world, or is about to end. Then the workers can be ended,
 * and nothing else. */
shoal_err sh_pool_check_world(const shoal_pool *pool);

/* Waits until the predicate holds and tends the workers meanwhile. The caller holds the lock; the wait releases it
 * while it sleeps. Returns false if the deadline passed, a signal ended the wait, or this process left the world. */
bool sh_pool_await(shoal_pool *pool, bool (*predicate)(const void *thing), const void *thing, int64_t deadline);

/* Receives the answers that are there, without waiting. Call it under the lock. */
void sh_pool_poll(shoal_pool *pool);

/* Joins the workers that have ended and starts their replacements. Call it under the lock. */
void sh_pool_tend(shoal_pool *pool);

/* Makes the supervisor of the workers, and starts them. */
shoal_err sh_pool_start_workers(shoal_pool *pool, shoal_start start);

/* Makes all unfinished tasks fail. Call it under the lock. */
void sh_pool_fail_all(shoal_pool *pool, shoal_err err, const char *text);

/* Records that task i of the job has ended, and takes ownership of the value. Call it under the lock. If the caller has
 * destroyed the handle, the last task frees the job. */
void sh_future_finish(sh_future *job, size_t i, shoal_err err, const char *text, shoal_value *value);

/* A pool lives as long as its handle and its jobs. Call all three under the lock. release unlocks it. forget is for a
 * job that does not hold the last reference. */
void sh_pool_retain(shoal_pool *pool);
void sh_pool_forget(shoal_pool *pool);
void sh_pool_release(shoal_pool *pool);

#endif
