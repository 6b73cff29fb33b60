/* A pool of worker processes, after Python's multiprocessing.Pool.
 *
 * A task is a function of one value that gives one value. A worker that is killed is replaced; its task is run
 * again, up to `retries` times, and then fails with an error that names the signal. There is no helper thread: dead
 * workers are replaced by the calls that wait (get, next, map, join) and by the next submission.
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

/* A task of a pool. arg is borrowed. The result is taken over; NULL with SHOAL_OK means null. An error keeps its code and its text on the
 * way back; without a text (shoal_fail) it gets one: "the task returned SHOAL_ELIMIT". SHOAL_END, SHOAL_ETIMEDOUT and SHOAL_EINTR
 * are words of the call that asks for the result, so from a task they arrive as SHOAL_ECHILD with a text that names the code. */
typedef shoal_err (*shoal_task)(const shoal_value *arg, shoal_value **out_result);

/* Options of shoal_pool_create. Zero is the default of each. */
typedef struct shoal_pool_options {
    int workers; /* 0: one a core */
    shoal_start start;
    shoal_target
        initializer; /* run by each worker first, with its rank; failing ends the worker and the pool reports it */
    shoal_value *init_args; /* consumed by shoal_pool_create */
    int tasks_per_child;    /* 0: no limit; else a worker is replaced by a fresh one after so many */
    int retries;            /* how often a task whose worker was killed is run again; 0 means once, -1 never */
} shoal_pool_options;

/* Makes a pool, which is the caller's. options may be NULL. Errors: SHOAL_EINVAL, and as shoal_process_start. */
SHOAL_MUST_USE shoal_err shoal_pool_create(const shoal_pool_options *options, shoal_pool **out_pool);

/* Runs one task and waits. arg is consumed. */
SHOAL_MUST_USE shoal_err shoal_pool_apply(shoal_pool *pool, shoal_task task, shoal_value *arg,
                                          shoal_value **out_result);

/* Starts one task. out_future is the caller's (shoal_future_destroy); the task runs even when it is destroyed early. */
SHOAL_MUST_USE shoal_err shoal_pool_apply_async(shoal_pool *pool, shoal_task task, shoal_value *arg,
                                                shoal_future **out_future);

/* Results of one task. get gives the result, or the task's error (SHOAL_ECHILD with its text when the worker died), or SHOAL_ETIMEDOUT. A result
 * can be taken once. */
SHOAL_MUST_USE shoal_err shoal_future_get(shoal_future *future, int64_t timeout, shoal_value **out_result);
bool shoal_future_ready(shoal_future *future);
void shoal_future_destroy(shoal_future *future);

/* Runs the task for each member of a list; out_results is a list in the same order. starmap: the same thing in C,
 * each member being a list of arguments. The first error, in order, is returned. chunk: members handed over at a
 * time, 0 chooses. list is consumed. */
SHOAL_MUST_USE shoal_err shoal_pool_map(shoal_pool *pool, shoal_task task, shoal_value *list, size_t chunk,
                                        shoal_value **out_results);
SHOAL_MUST_USE shoal_err shoal_pool_map_async(shoal_pool *pool, shoal_task task, shoal_value *list, size_t chunk,
                                              shoal_future **out_future);

/* Runs the task for each member of a list and gives one result at a time, in order or as they come. next gives SHOAL_END after the last, a task's error in its place. */
SHOAL_MUST_USE shoal_err shoal_pool_imap(shoal_pool *pool, shoal_task task, shoal_value *list, bool ordered,
                                         shoal_iterator **out_iterator);
SHOAL_MUST_USE shoal_err shoal_iterator_next(shoal_iterator *iterator, int64_t timeout, shoal_value **out_result);
void shoal_iterator_destroy(shoal_iterator *iterator);

/* Ends of a pool. close: no more tasks; workers end when all are done. join waits for that (SHOAL_ESTATE before close). terminate ends the
 * workers now; tasks not done fail with SHOAL_ECLOSED. destroy terminates and frees; NULL is allowed. */
void shoal_pool_close(shoal_pool *pool);
SHOAL_MUST_USE shoal_err shoal_pool_join(shoal_pool *pool, int64_t timeout);
void shoal_pool_terminate(shoal_pool *pool);
void shoal_pool_destroy(shoal_pool *pool);

/* The number of workers that were replaced because they died. */
uint64_t shoal_pool_losses(const shoal_pool *pool);

#ifdef __cplusplus
}
#endif
#endif
