/* The inside of a pool: tasks in shared memory, and what its owner and its workers exchange.
 *
 * A task is a block. Its handle goes to the workers through one queue and comes back through another; the owner holds
 * every unfinished task, so no task is lost when a worker dies. After a worker's death a handle may be in the queue
 * twice. The worker that swaps the state from PENDING runs the task, and the other handle is dropped.
 */
#ifndef SH_PROC_POOL_H
#define SH_PROC_POOL_H

#include "ipc/queue_core.h"
#include "proc/supervisor.h"
#include "sync/peers.h"

#include <shoal/pool.h>

/* State of a task: the low 2 bits, and above them the owner id of the worker that has it.
 *
 *   PENDING       -> TAKEN by w               w, by compare-and-swap
 *   TAKEN by w    -> DONE by w, FAILED by w   w (release), when the result is in its place; then w drops the argument
 *   DONE by w     -> DONE, FAILED             w, before it sends the task back
 *   TAKEN by w    -> PENDING                  the pool's owner, once w is dead and buried
 *
 * The owner finishes a task that is DONE or FAILED, or was left so by a worker that is dead and buried.
 */
typedef enum sh_pool_work_state {
    SH_POOL_WORK_PENDING,
    SH_POOL_WORK_TAKEN,
    SH_POOL_WORK_DONE,   /* result: the function's result, or a list of results */
    SH_POOL_WORK_FAILED, /* result: list of error and text, or error and value (shoal_worker_answer) */
} sh_pool_work_state;

static inline uint32_t sh_pool_work_by(sh_owner owner, sh_pool_work_state state)
{
    return owner << 2 | (uint32_t)state;
}

/* Returns whether the owner may finish a task in this state. dead: a worker that is dead and buried, or 0. */
static inline bool sh_pool_work_is_over(uint32_t state, sh_owner dead)
{
    return (state & 3) >= SH_POOL_WORK_DONE && (state >> 2 == 0 || state >> 2 == dead);
}

/* Releases the argument of a task that nobody will run again. */
void sh_pool_drop_argument(const shoal_block *block);

/* What fits into the task itself needs no message of its own: then a task is one block, not three. */
#define SH_POOL_SMALL_ARGUMENT 4096
#define SH_POOL_SMALL_RESULT 160 /* the text of an error, too: it needs no memory when there is none */

/* A task, a block of SH_KIND_TASK.
 * Synchronisation
 *   argument, count, target_size, argument_size, bytes   the owner, before it is put
 *   state                                                as above
 *   result, result_size, small_result                    the worker that has it; then the owner
 * death: of a worker with the task TAKEN: the owner buries it, which finishes a half-done store of the result, and
 * makes it PENDING again. The next worker overwrites what the dead one wrote. */
typedef struct sh_pool_work_shm {
    sh_a64 destroy[2];
    sh_a64 argument; /* 0: it is in bytes */
    sh_a64 result;   /* 0: it is in small_result, if result_size is not 0; otherwise there is none */
    sh_a32 state;
    uint32_t count;       /* 0: one member, the argument itself; else the argument is a list of count members */
    uint32_t target_size; /* 0: the workers know what to do with the argument (shoal_pool_submit) */
    uint32_t argument_size;
    uint32_t result_size;
    uint8_t small_result[SH_POOL_SMALL_RESULT];
    uint8_t bytes[] __attribute__((aligned(8))); /* the target, then a small argument, encoded */
} sh_pool_work_shm;

_Static_assert(offsetof(sh_pool_work_shm, state) == offsetof(sh_task_shm, words), "a pool's task is a task");

static inline sh_pool_work_shm *sh_pool_work_of(const shoal_block *block)
{
    return (sh_pool_work_shm *)block->data;
}

/* The arguments of a worker: a map. */
#define SH_WORKER_TASKS "tasks"     /* queue: tasks to do */
#define SH_WORKER_ANSWERS "answers" /* queue: tasks done; and the notice of a worker that retires */
#define SH_WORKER_PLACES "places"   /* block: a place for each rank */
#define SH_WORKER_LIMIT "limit"     /* how many members it runs before it retires; 0: no limit */
#define SH_WORKER_INIT "init"       /* bytes: the initializer's sh_target; or null */
#define SH_WORKER_ARGS "args"       /* the initializer's arguments */

/* A place, an sh_a32: 0 until the worker of that rank is ready for tasks, then the owner id under which it takes them,
 * SH_PLACE_LEFT once it has ended in order. */
#define SH_PLACE_LEFT UINT32_MAX

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
    sh_future *job; /* NULL: it came from shoal_pool_submit, and goes to shoal_pool_next */
    size_t number;
    uint64_t put;        /* it is message number `put` of the task queue */
    int attempts;        /* how many workers died while they ran it */
    shoal_answer answer; /* without a job; job and index are those of the submission */
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
    sh_supervisor *workers; /* NULL: the caller starts the workers, or create has failed */
    shoal_value *worker_args;
    shoal_queue *tasks, *answers;
    shoal_block *places;
    sh_pool_task outstanding;               /* a ring with this as its head: tasks that are queued or taken */
    size_t queued;                          /* how many are in it */
    size_t left;                            /* tasks that are not finished: these and the backlog */
    sh_pool_task *backlog, **backlog_end;   /* of shoal_pool_submit, in order; answer.value is the task */
    sh_pool_task *finished, **finished_end; /* of shoal_pool_submit, for shoal_pool_next */
    uint64_t puts;
    int unwoken; /* tasks for which no worker was woken yet */
    int64_t looked_at;
    bool closed, terminated, broken;
    char why[SH_START_TEXT + 256]; /* broken */
};

/* Puts a task like `task` into the queue. target: NULL if the workers know what to do. Its argument is one value
 * (members is 0) or a list of `members` values. more: another task follows at once, so the workers need not be woken
 * yet. Call it under the lock. */
shoal_err sh_pool_put(shoal_pool *pool, const sh_pool_task *task, const sh_target *target, const shoal_value *argument,
                      uint32_t members, bool more);

/* The same for shoal_pool_submit. Takes ownership of the argument, and of what it keeps back for later. */
shoal_err sh_pool_submit(shoal_pool *pool, const sh_pool_task *task, shoal_value *argument, bool more);

/* Wakes workers for the tasks that were put with `more`. Call it under the lock. */
void sh_pool_wake(shoal_pool *pool);

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

/* Prepares a pool that was cleared. Its queues and places are still to be made. */
void sh_pool_init(shoal_pool *pool, int count, int retries);

/* Receives one answer without waiting. Returns false if there is none. Call it under the lock. */
bool sh_pool_take_answer(shoal_pool *pool);

/* The same for an answer that has been taken from the queue. */
void sh_pool_take_in(shoal_pool *pool, const sh_taken *answer);

/* Looks after the tasks of the worker of this rank, which died and is buried. A task that is not run again fails with
 * SHOAL_ECHILD, the text, and a copy of the reason, which may be NULL. Clears the place. Call it under the lock. */
void sh_pool_worker_died(shoal_pool *pool, int rank, const char *text, const shoal_value *reason);

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
