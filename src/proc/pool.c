/* Creates, closes, joins, terminates and destroys pools. */
#include "proc/pool.h"

#include "base/error.h"

#include "base/clock.h"
#include "base/fork.h"
#include "base/interrupt.h"
#include "ipc/value.h"
#include "os/pid.h"
#include "proc/sentinel.h"

#include <stdlib.h>
#include <string.h>

#define WORKERS_MAX 4000
#define GRACE SHOAL_SECONDS(1) /* of terminate, between SIGTERM and SIGKILL */

shoal_err sh_pool_lock(shoal_pool *pool)
{
    if (!sh_fork_is_ours(pool->maker)) {
        return sh_fail(SHOAL_EFORK,
                       "the pool belongs to the process that this one was forked from: make a pool in this process");
    }
    pthread_mutex_lock(&pool->lock);
    return SHOAL_OK;
}

bool sh_pool_lock_to_free(shoal_pool *pool)
{
    return sh_fork_is_ours(pool->maker) ? pthread_mutex_lock(&pool->lock) == 0
                                        : pthread_mutex_trylock(&pool->lock) == 0;
}

void sh_pool_end(shoal_pool *pool)
{
    pthread_mutex_unlock(&pool->lock);
}

shoal_err sh_pool_check_world(const shoal_pool *pool)
{
    return sh_block_is_lost((const shoal_block *)pool->answers)
               ? sh_fail(SHOAL_ESTATE, "this process has left the world of the pool")
           : sh_attachment_now() == SH_ENDED || sh_attachment_now() == SH_LEAVING ? sh_world_ending("the pool")
                                                                                  : SHOAL_OK;
}

shoal_err sh_pool_begin(shoal_pool *pool)
{
    SH_TRY(sh_pool_lock(pool));
    if (pool->workers == NULL) {
        sh_pool_end(pool);
        return sh_fail(SHOAL_EINVAL, "the pool has no workers of its own: use shoal_pool_submit");
    }
    sh_pool_poll(pool);
    shoal_err err = pool->broken   ? sh_fail(SHOAL_ECHILD, "%s", pool->why)
                    : pool->closed ? sh_fail(SHOAL_ECLOSED, "the pool is closed")
                                   : sh_pool_check_world(pool);
    if (err != SHOAL_OK) {
        sh_pool_end(pool);
    }
    return err;
}

void sh_pool_retain(shoal_pool *pool)
{
    pool->references++;
}

void sh_pool_forget(shoal_pool *pool)
{
    pool->references--;
}

void sh_pool_release(shoal_pool *pool)
{
    bool last = --pool->references == 0;
    sh_pool_end(pool);
    if (!last) {
        return;
    }
    shoal_value_destroy(pool->worker_args);
    shoal_queue_release(pool->tasks);
    shoal_queue_release(pool->answers);
    sh_block_release(pool->places);
    while (pool->finished != NULL) {
        sh_pool_task *next = pool->finished->next;
        shoal_value_destroy(pool->finished->answer.value);
        free(pool->finished);
        pool->finished = next;
    }
    pthread_mutex_destroy(&pool->lock);
    pthread_cond_destroy(&pool->changed);
    sh_supervisor_destroy(pool->workers);
    free(pool);
}

/* Makes the map that every worker gets as its argument. */
static shoal_err make_worker_args(shoal_pool *pool, const shoal_pool_options *o)
{
    sh_target target;
    shoal_value *init = NULL, *args = o->init_args != NULL ? shoal_value_copy(o->init_args) : shoal_value_null();
    shoal_err err = o->initializer != NULL ? sh_target_name((sh_function)o->initializer, &target) : SHOAL_OK;
    if (err == SHOAL_OK) {
        err = shoal_block_create_zeroed((size_t)pool->count * sizeof(sh_a32), &pool->places);
    }
    if (err != SHOAL_OK) {
        shoal_value_destroy(args);
        return err;
    }
    init = o->initializer != NULL ? shoal_value_bytes(&target, sh_target_size(&target)) : shoal_value_null();
    pool->worker_args =
        shoal_map(SH_WORKER_TASKS, pool->tasks, SH_WORKER_ANSWERS, pool->answers, SH_WORKER_PLACES, pool->places,
                  SH_WORKER_LIMIT, pool->limit, SH_WORKER_INIT, init, SH_WORKER_ARGS, args);
    return pool->worker_args != NULL ? SHOAL_OK : shoal_last_error();
}

void sh_pool_init(shoal_pool *pool, int count, int retries)
{
    pthread_condattr_t clock;
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    pthread_cond_init(&pool->changed, &clock);
    pthread_condattr_destroy(&clock);
    pthread_mutex_init(&pool->lock, NULL);
    pool->maker = sh_fork_generation();
    pool->references = 1;
    pool->outstanding.next = pool->outstanding.previous = &pool->outstanding;
    pool->finished_end = &pool->finished;
    pool->backlog_end = &pool->backlog;
    pool->count = count;
    pool->retries = retries;
}

static shoal_err set_up(shoal_pool *pool, const shoal_pool_options *o)
{
    sh_pool_init(pool, o->workers > 0 ? o->workers : sh_cores(), o->retries > 0 ? o->retries : o->retries == 0 ? 1 : 0);
    pool->limit = o->tasks_per_child;
    SH_TRY(shoal_queue_create(0, &pool->tasks));
    SH_TRY(shoal_queue_create(0, &pool->answers));
    SH_TRY(make_worker_args(pool, o));
    return sh_pool_start_workers(pool, o->start);
}

shoal_err shoal_pool_create(const shoal_pool_options *options, shoal_pool **out_pool)
{
    static const shoal_pool_options none;
    const shoal_pool_options *o = options != NULL ? options : &none;
    if (out_pool == NULL) {
        sh_value_consume(o->init_args);
        return sh_null_error(__func__, "out_pool");
    }
    shoal_pool *pool = NULL;
    shoal_err err = sh_value_check_free(o->init_args);
    if (o->workers < 0 || o->workers > WORKERS_MAX || o->tasks_per_child < 0) {
        err = sh_fail(SHOAL_EINVAL, "a pool of %d workers for %d tasks each: expected 0 to %d workers", o->workers,
                      o->tasks_per_child, WORKERS_MAX);
    } else if (err == SHOAL_OK) {
        pool = calloc(1, sizeof *pool);
        err = pool != NULL ? set_up(pool, o) : sh_fail(SHOAL_ENOMEM, "no memory for a pool");
    }
    sh_value_consume(o->init_args);
    if (err == SHOAL_OK) {
        *out_pool = pool;
    } else {
        shoal_pool_destroy(pool);
    }
    return err;
}

/* Lets the workers end if no task is left and none can come. */
static void close_if_done(shoal_pool *pool)
{
    if (pool->closed && pool->left == 0) {
        shoal_queue_close(pool->tasks);
        if (pool->workers != NULL) {
            sh_supervisor_close(pool->workers);
        }
    }
}

void shoal_pool_close(shoal_pool *pool)
{
    sh_cleanup_begin();
    if (pool != NULL && sh_pool_lock(pool) == SHOAL_OK) {
        pool->closed = true;
        if (pool->workers != NULL) {
            sh_pool_poll(pool);
        }
        close_if_done(pool); /* else join does it: a task may have to be put again */
        sh_pool_end(pool);
    }
    sh_cleanup_end();
}

static bool nothing_left(const void *thing)
{
    return ((const shoal_pool *)thing)->left == 0;
}

shoal_err shoal_pool_join(shoal_pool *pool, int64_t timeout)
{
    int64_t deadline = sh_deadline(timeout);
    SH_TRY(pool != NULL ? sh_pool_lock(pool) : sh_null_error("shoal_pool_join", "the pool"));
    shoal_err err = !pool->closed ? sh_fail(SHOAL_ESTATE, "call shoal_pool_close before shoal_pool_join")
                    : pool->workers == NULL
                        ? sh_fail(SHOAL_EINVAL, "the pool has no workers of its own: join them yourself")
                        : sh_pool_check_world(pool);
    if (err == SHOAL_OK) {
        bool over = sh_pool_await(pool, nothing_left, pool, deadline);
        close_if_done(pool);
        err = over && sh_supervisor_join(pool->workers, deadline)
                  ? SHOAL_OK
                  : sh_fail_waiting(timeout, "the pool has %zu unfinished tasks", pool->left);
    }
    sh_pool_end(pool);
    return err;
}

static void end_workers(shoal_pool *pool)
{
    pool->closed = pool->terminated = true;
    if (pool->tasks != NULL) {
        shoal_queue_close(pool->tasks);
    }
    if (pool->workers == NULL) {
        return;
    }
    sh_supervisor_end(pool->workers, SHOAL_NOW, GRACE);
    if (!pool->waiting) {
        sh_pool_poll(pool); /* accepts the answers that came in time */
    }
}

/* Makes all unfinished tasks fail. Called under the lock. */
static void drop_all(shoal_pool *pool)
{
    sh_pool_fail_all(pool, SHOAL_ECLOSED, "the pool was terminated before the task was done");
    pthread_cond_broadcast(&pool->changed);
}

void shoal_pool_terminate(shoal_pool *pool)
{
    sh_cleanup_begin();
    if (pool != NULL && sh_pool_lock(pool) == SHOAL_OK) {
        end_workers(pool);
        drop_all(pool);
        sh_pool_end(pool);
    }
    sh_cleanup_end();
}

void shoal_pool_destroy(shoal_pool *pool)
{
    sh_cleanup_begin();
    if (pool != NULL && sh_pool_lock_to_free(pool)) {
        if (sh_fork_is_ours(pool->maker)) {
            end_workers(pool);
        }
        drop_all(pool);
        sh_pool_release(pool);
    }
    sh_cleanup_end();
}

uint64_t shoal_pool_losses(const shoal_pool *pool)
{
    return pool != NULL && pool->workers != NULL ? sh_supervisor_deaths(pool->workers) : 0;
}
