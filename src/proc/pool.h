/* The pool inside: tasks in shared memory, and what its owner and its workers give to each other.
 *
 * A task is a block. Its handle goes to the workers through one queue and comes back through another; the owner
 * holds every task that is not finished, so none is lost, whoever dies. A handle may be in the queue twice, after a
 * worker died; who swaps the state from PENDING runs it, and the other handle is dropped.
 */
#ifndef SH_PROC_POOL_H
#define SH_PROC_POOL_H

#include "proc/supervisor.h"
#include "sync/peers.h"

#include <shoal/pool.h>

/* State of a task: 2 bits, and above them the owner id of the worker that has it.
 *
 *   PENDING       -> TAKEN by w     w, by compare-and-swap
 *   TAKEN by w    -> DONE, FAILED   w (release), when the result is in its place
 *   TAKEN by w    -> PENDING        the pool's owner, once w is dead and buried
 */
typedef enum sh_work_state {
    SH_WORK_PENDING,
    SH_WORK_TAKEN,
    SH_WORK_DONE,   /* result: what the function gave, or a list of that */
    SH_WORK_FAILED, /* result: list of error and text */
} sh_work_state;

static inline uint32_t sh_work_taken_by(sh_owner owner)
{
    return owner << 2 | SH_WORK_TAKEN;
}

/* A task: a block of SH_KIND_TASK.
 * Synchronisation
 *   argument, count, target   the owner, before it is put
 *   state                     as above
 *   result                    the worker that has it; then the owner
 * death: of a worker with the task TAKEN: the owner buries it, which finishes a half-done store of the result, and
 * makes it PENDING again. */
typedef struct sh_work_shm {
    sh_a64 destroy[2];
    sh_a64 argument;
    sh_a64 result;
    sh_a32 state;
    uint32_t count; /* 0: one member, the argument itself; else the argument is a list of so many */
    sh_target target;
} sh_work_shm;

_Static_assert(offsetof(sh_work_shm, state) == offsetof(sh_task_shm, words), "a pool's task is a task");

static inline sh_work_shm *sh_work_of(const shoal_block *block)
{
    return (sh_work_shm *)block->data;
}

/* What a worker is started with: a map. */
#define SH_WORKER_TASKS "tasks"     /* queue: tasks to do */
#define SH_WORKER_ANSWERS "answers" /* queue: tasks done; and the rank of a worker that retires */
#define SH_WORKER_READY "ready"     /* block: one sh_a32 a rank, set by the worker when its initializer has returned */
#define SH_WORKER_LIMIT "limit"     /* members to do before it retires; 0: no limit */
#define SH_WORKER_INIT "init"       /* bytes: the initializer's sh_target; or null */
#define SH_WORKER_ARGS "args"       /* and its arguments */

/* The function that a worker process runs. */
shoal_err sh_pool_worker_main(int rank, const shoal_value *args);

/* What a worker that retires sends: which process it was, of which rank. The rank alone may be another's by then. */
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

/* A submission: one task or many. shoal_future and shoal_iterator are this type under other names. Under the lock of
 * its pool. */
typedef struct sh_future {
    shoal_pool *pool;
    size_t count;  /* of tasks */
    size_t left;   /* not ready yet */
    size_t next;   /* of an iterator: how many were given out */
    size_t *order; /* task numbers as they became ready */
    sh_outcome *outcomes;
    bool is_map;  /* the result is a list */
    bool chunked; /* each outcome is a list */
    bool ordered;
    bool taken;
    bool handle; /* the caller still has it */
} sh_future;

/* One task that is not finished. It is the block's `extra`, so the handle that comes back through the queue leads to
 * it. */
typedef struct sh_pool_task {
    struct sh_pool_task *next, *previous;
    shoal_block *block;
    sh_future *job;
    size_t number;
    uint64_t put; /* it is the put-th message of the queue of tasks */
    int attempts; /* workers that died with it */
} sh_pool_task;

/* Under the lock, but for what is written once by create. */
struct shoal_pool {
    uint64_t maker; /* sh_fork_generation of the process that it belongs to */
    pthread_mutex_t lock;
    pthread_cond_t changed; /* somebody who waited has taken something in */
    bool waiting;           /* one thread at a time waits at the queue of answers, the others for `changed` */
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

/* Puts task number i of the job: of one value (members is 0), or of a list of so many. Under the lock. */
shoal_err sh_pool_put(shoal_pool *pool, sh_future *job, size_t i, const sh_target *target, const shoal_value *argument,
                      uint32_t members);

/* Takes and gives back the lock; begin also looks after the workers. Errors: SHOAL_ECLOSED, SHOAL_ECHILD when the
 * pool cannot go on. */
shoal_err sh_pool_begin(shoal_pool *pool);
void sh_pool_end(shoal_pool *pool);

/* The lock for a call of a process that may be a fork of the pool's owner. SHOAL_EFORK then, and no lock: the pool and its workers
 * belong to the process that made it. */
shoal_err sh_pool_lock(shoal_pool *pool);

/* The lock for clean-up, which a fork may do too: it frees private memory only. False when there is nothing to be done: at the fork
 * another thread of the owner was in the middle of something. */
bool sh_pool_lock_to_free(shoal_pool *pool);

/* SHOAL_ESTATE when this process has left the pool's world: then its workers can be ended, and nothing else. */
shoal_err sh_pool_check_world(const shoal_pool *pool);

/* Waits, under the lock but not all the time, until the predicate holds; looks after the workers meanwhile. False
 * when the deadline passed. */
bool sh_pool_await(shoal_pool *pool, bool (*predicate)(const void *thing), const void *thing, int64_t deadline);

/* Takes in what is there without waiting. Under the lock. */
void sh_pool_poll(shoal_pool *pool);

/* Sees out the workers that have ended and starts others for them. Under the lock. */
void sh_pool_tend(shoal_pool *pool);

/* Makes the supervisor of the workers, and starts them. */
shoal_err sh_pool_start_workers(shoal_pool *pool, shoal_start start);

/* All tasks that are not done fail. Under the lock. */
void sh_pool_fail_all(shoal_pool *pool, shoal_err err, const char *text);

/* Task i of the job has ended; the value is taken over. Under the lock. The job goes with its last task when the
 * caller has given it up. */
void sh_future_finish(sh_future *job, size_t i, shoal_err err, const char *text, shoal_value *value);

/* A pool lives as long as its handle and its jobs. All under the lock. release gives the lock back; forget is for a
 * job that is not the last to hold the pool. */
void sh_pool_retain(shoal_pool *pool);
void sh_pool_forget(shoal_pool *pool);
void sh_pool_release(shoal_pool *pool);

#endif
