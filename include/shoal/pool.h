/* Pools: worker processes that run tasks, like Python's multiprocessing.Pool.
 *
 * A task is a function that takes one value and returns one value. A worker that is killed is replaced. Its task is
 * run again, up to `retries` times, and then fails with an error that names the signal. A pool has no helper thread:
 * the calls that wait (get, next, map, join) and the next submission replace dead workers.
 *
 * All calls here are thread-safe. A pool, its futures and its iterators belong to the process that made them: in a
 * forked child they fail with SHOAL_EFORK (error.h).
 */
#ifndef SHOAL_POOL_H
#define SHOAL_POOL_H

#include <shoal/process.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct shoal_pool shoal_pool;
typedef struct shoal_future shoal_future;     /* one task */
typedef struct shoal_iterator shoal_iterator; /* many tasks */

/* A task of a pool. The pool owns arg. The pool takes over the result; NULL together with SHOAL_OK means null. A
 * task that fails leaves *out_result alone, and destroys what it has made: the pool does not look at it. If a task
 * fails, the caller gets its error code and text. If the task did not call shoal_fail, the text is like "the
 * task returned SHOAL_ELIMIT". SHOAL_END, SHOAL_ETIMEDOUT and SHOAL_EINTR have a meaning for the call that asks for
 * the result, so from a task they arrive as SHOAL_ECHILD, with a text that names the code. */
typedef shoal_err (*shoal_task)(const shoal_value *arg, shoal_value **out_result);

/* Options of shoal_pool_create. Zero is the default of each. */
typedef struct shoal_pool_options {
    int workers; /* 0: one for each core */
    shoal_start start;
    /* each worker calls it first, with its rank; if it fails, the worker ends and the pool reports the failure */
    shoal_target initializer;
    shoal_value *init_args; /* the initializer's args, consumed by shoal_pool_create; NULL: it gets null */
    int tasks_per_child;    /* a worker is replaced after this number of tasks; 0: never */
    int retries; /* how often a task is run again after its worker was killed; 0 or 1: once, 2: twice, -1: never */
} shoal_pool_options;

/* Makes a pool and starts its workers. The caller owns it: shoal_pool_destroy. options may be NULL. Consumes
 * options->init_args, on success and on failure. Does not wait for the workers to come up. Thread-safe. Errors:
 * SHOAL_EINVAL; those of shoal_process_start. */
SHOAL_MUST_USE shoal_err shoal_pool_create(const shoal_pool_options *options, shoal_pool **out_pool);

/* Runs one task and waits for its result. Consumes arg, on success and on failure. The caller owns the result. Blocks
 * until the task is done. Thread-safe. Errors: the task's own error; SHOAL_ECHILD if its worker died or the
 * initializer failed; SHOAL_ECLOSED if the pool is closed; SHOAL_EINVAL; SHOAL_ENOMEM; SHOAL_EFORK. */
SHOAL_MUST_USE shoal_err shoal_pool_apply(shoal_pool *pool, shoal_task task, shoal_value *arg,
                                          shoal_value **out_result);

/* Submits one task without waiting for it. Consumes arg, on success and on failure. The caller owns the future:
 * shoal_future_destroy. The task runs even if the future is destroyed before. Does not block. Thread-safe. Errors:
 * SHOAL_ECHILD if the initializer failed; SHOAL_ECLOSED if the pool is closed; SHOAL_EINVAL; SHOAL_ENOMEM;
 * SHOAL_EFORK. */
SHOAL_MUST_USE shoal_err shoal_pool_apply_async(shoal_pool *pool, shoal_task task, shoal_value *arg,
                                                shoal_future **out_future);

/* Waits for a future and takes its result, which the caller then owns. A result can be taken once. Blocks at most for
 * timeout. Thread-safe. Errors: the task's own error; SHOAL_ECHILD if its worker died; SHOAL_ETIMEDOUT; SHOAL_ESTATE
 * if the result was already taken; SHOAL_ECLOSED if the pool was terminated before; SHOAL_EFORK. */
SHOAL_MUST_USE shoal_err shoal_future_get(shoal_future *future, int64_t timeout, shoal_value **out_result);

/* Returns whether shoal_future_get would return at once; false for NULL. Does not block. Thread-safe. */
bool shoal_future_ready(shoal_future *future);

/* Destroys a future. Its task still runs. NULL is allowed. Does not block. Never changes the last error. */
void shoal_future_destroy(shoal_future *future);

/* Runs a task for each member of a list and waits for all results. They are a list in the same order, which the
 * caller owns. Consumes the list, on success and on failure. chunk is the number of members that a worker gets at a
 * time; 0 lets the pool choose. For Python's starmap, make each member a list of arguments. Blocks until all tasks
 * are done. Thread-safe. Errors: the error of the first member, in order, that failed; SHOAL_ETYPE if it is not a
 * list; those of shoal_pool_apply. */
SHOAL_MUST_USE shoal_err shoal_pool_map(shoal_pool *pool, shoal_task task, shoal_value *list, size_t chunk,
                                        shoal_value **out_results);

/* Submits a task for each member of a list without waiting. shoal_future_get gives the list of results. Otherwise
 * like shoal_pool_map and shoal_pool_apply_async. */
SHOAL_MUST_USE shoal_err shoal_pool_map_async(shoal_pool *pool, shoal_task task, shoal_value *list, size_t chunk,
                                              shoal_future **out_future);

/* Submits a task for each member of a list, and makes an iterator over the results: in the order of the list, or as
 * they come. Consumes the list, on success and on failure. The caller owns the iterator: shoal_iterator_destroy. Does
 * not block. Thread-safe. Errors: as for shoal_pool_map_async. */
SHOAL_MUST_USE shoal_err shoal_pool_imap(shoal_pool *pool, shoal_task task, shoal_value *list, bool ordered,
                                         shoal_iterator **out_iterator);

/* Waits for the next result of an iterator, which the caller then owns. Returns SHOAL_END after the last one. If a
 * task failed, its error takes the place of its result, and the iteration can continue. Blocks at most for timeout.
 * Thread-safe. Errors: those of shoal_future_get. */
SHOAL_MUST_USE shoal_err shoal_iterator_next(shoal_iterator *iterator, int64_t timeout, shoal_value **out_result);

/* Destroys an iterator. Its tasks still run. NULL is allowed. Does not block. Never changes the last error. */
void shoal_iterator_destroy(shoal_iterator *iterator);

/* Closes a pool: it takes no more tasks, and its workers end when all tasks are done. NULL is allowed. Does not
 * block. Thread-safe. */
void shoal_pool_close(shoal_pool *pool);

/* Waits until all tasks of a closed pool are done and its workers have ended. Blocks at most for timeout.
 * Thread-safe. Errors: SHOAL_ETIMEDOUT; SHOAL_ESTATE if the pool is not closed; SHOAL_EFORK. */
SHOAL_MUST_USE shoal_err shoal_pool_join(shoal_pool *pool, int64_t timeout);

/* Ends the workers of a pool now: SIGTERM, and SIGKILL after a second. Tasks that are not done fail with
 * SHOAL_ECLOSED. Blocks until the workers have ended. NULL is allowed. Thread-safe. */
void shoal_pool_terminate(shoal_pool *pool);

/* Terminates a pool and frees it. Blocks like shoal_pool_terminate. NULL is allowed. Never changes the last error. */
void shoal_pool_destroy(shoal_pool *pool);

/* Returns how many workers were replaced because they died; 0 for NULL. Does not block. */
uint64_t shoal_pool_losses(const shoal_pool *pool);

/* ---- for bindings to other languages: pools whose workers the binding starts ----
 *
 * The binding makes the objects, starts its workers in its own way, and gives each the objects and a rank from 0. It
 * submits tasks that its workers understand, receives the answers in the order in which they come, and reports each
 * worker that has ended. The other calls refuse such a pool with SHOAL_EINVAL, except for shoal_pool_close,
 * shoal_pool_terminate and shoal_pool_destroy, which end no worker: closing the tasks lets the workers end. */
typedef struct shoal_pool_objects {
    shoal_queue *tasks, *answers; /* without bound, and used by this pool only */
    shoal_block *places;          /* zeroed; an uint32_t for each worker: not 0 once it has been ready for tasks */
} shoal_pool_objects;

/* Makes a pool of these objects, which it retains. retries: how often a task is run again after its worker ended. The
 * caller owns the pool: shoal_pool_destroy. Does not block. Errors: SHOAL_EINVAL; SHOAL_ENOMEM. */
SHOAL_MUST_USE shoal_err shoal_pool_create_on(const shoal_pool_objects *objects, int retries, shoal_pool **out_pool);

/* Submits a task, for whichever worker takes it. job and index come back with its answer. more: another task follows at
 * once, so the workers need not be woken yet. Consumes task, on success and on failure. Does not block. Thread-safe.
 * Errors: SHOAL_ECLOSED; SHOAL_EINVAL; SHOAL_ENOMEM; SHOAL_EFORK. */
SHOAL_MUST_USE shoal_err shoal_pool_submit(shoal_pool *pool, uint64_t job, uint64_t index, shoal_value *task,
                                           bool more);

/* Wakes workers for tasks that were submitted with `more`, if no other task follows after all. NULL is allowed. */
void shoal_pool_wake(shoal_pool *pool);

/* How a task ended. */
typedef struct shoal_answer {
    uint64_t job, index;
    shoal_err err; /* of shoal_worker_answer; SHOAL_ECHILD: its worker ended; SHOAL_ENOMEM: no memory for the value */
    shoal_value *value; /* of shoal_worker_answer or shoal_pool_lost; else a text or NULL. The caller owns it */
} shoal_answer;

/* Waits for the next answer, each of which comes once. Blocks at most for timeout; whatever else is put into the queue
 * of answers ends the wait early. Thread-safe. Errors: SHOAL_ETIMEDOUT; SHOAL_ECLOSED if the queue of answers is closed
 * and empty; SHOAL_EINVAL; SHOAL_EFORK; SHOAL_EINTR. */
SHOAL_MUST_USE shoal_err shoal_pool_next(shoal_pool *pool, int64_t timeout, shoal_answer *out_answer);

/* Reports that the worker of this rank has ended and was joined, before another one with this rank starts. If it had a
 * task, another worker gets it, or it is answered with SHOAL_ECHILD and the reason. Consumes reason, on success and on
 * failure. Sets the worker's place to 0. Does not block. Thread-safe. Errors: SHOAL_EINVAL; SHOAL_EFORK. */
SHOAL_MUST_USE shoal_err shoal_pool_lost(shoal_pool *pool, int rank, shoal_value *reason);

/* The worker's side, in the worker's process. One thread at a time uses a worker. */
typedef struct shoal_worker shoal_worker;

/* Makes the worker of this rank, which is ready for tasks now. Retains the objects. The caller owns it:
 * shoal_worker_end. Errors: SHOAL_EINVAL; SHOAL_ENOMEM; SHOAL_EFORK. */
SHOAL_MUST_USE shoal_err shoal_worker_begin(const shoal_pool_objects *objects, int rank, shoal_worker **out_worker);

/* Takes the next task. The caller owns the value, and calls shoal_worker_answer before it takes another. Blocks at most
 * for timeout. Errors: SHOAL_ETIMEDOUT; SHOAL_ECLOSED if the queue of tasks is closed and empty; SHOAL_ENOMEM (nothing
 * is lost: the next call gets the same task); SHOAL_ESTATE if the last task was not answered; SHOAL_EINTR. */
SHOAL_MUST_USE shoal_err shoal_worker_take(shoal_worker *worker, int64_t timeout, shoal_value **out_task);

/* Answers the task: with its result, or if err is not SHOAL_OK, with an error and a value of any kind, NULL for the
 * text of the last error. If there is no memory for the value, the answer is SHOAL_ENOMEM. Consumes value, on success
 * and on failure. Does not block. Errors: SHOAL_ESTATE if there is no task; SHOAL_ENOMEM: this process must end now,
 * and the pool finds the answer then. */
SHOAL_MUST_USE shoal_err shoal_worker_answer(shoal_worker *worker, shoal_err err, shoal_value *value);

/* Ends a worker in order: the pool does not look for a task of it. If it has one, the pool does. NULL is allowed. */
void shoal_worker_end(shoal_worker *worker);

#ifdef __cplusplus
}
#endif
#endif
