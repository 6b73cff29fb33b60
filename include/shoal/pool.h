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

#ifdef __cplusplus
}
#endif
#endif
