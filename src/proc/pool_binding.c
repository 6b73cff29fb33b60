/* Pools whose workers a binding starts: the owner's side. */
#include "base/error.h"
#include "ipc/value.h"
#include "proc/pool.h"

#include <stdlib.h>

shoal_err shoal_pool_create_on(const shoal_pool_objects *objects, int retries, shoal_pool **out_pool)
{
    SH_NEED(objects);
    SH_NEED(out_pool);
    SH_NEED(objects->tasks);
    SH_NEED(objects->answers);
    SH_NEED(objects->places);
    if (retries < 0) {
        return sh_fail(SHOAL_EINVAL, "a task cannot be run %d times again", retries);
    }
    shoal_pool *pool = calloc(1, sizeof *pool);
    if (pool == NULL) {
        return sh_fail(SHOAL_ENOMEM, "no memory for a pool");
    }
    sh_pool_init(pool, (int)(shoal_block_size(objects->places) / sizeof(sh_a32)), retries);
    pool->tasks = shoal_queue_retain(objects->tasks);
    pool->answers = shoal_queue_retain(objects->answers);
    pool->places = shoal_block_retain(objects->places);
    *out_pool = pool;
    return SHOAL_OK;
}

/* Locks a pool without workers of its own. */
static shoal_err lock_ours(shoal_pool *pool)
{
    SH_TRY(sh_pool_lock(pool));
    shoal_err err =
        pool->workers != NULL ? sh_fail(SHOAL_EINVAL, "the pool has workers of its own") : sh_pool_check_world(pool);
    if (err != SHOAL_OK) {
        sh_pool_end(pool);
    }
    return err;
}

shoal_err shoal_pool_submit(shoal_pool *pool, uint64_t job, uint64_t index, shoal_value *task, bool more)
{
    SH_NEED_OR_CONSUME(pool, task);
    SH_NEED(task);
    SH_TRY(sh_value_check_free(task));
    shoal_err err = lock_ours(pool);
    if (err == SHOAL_OK && pool->closed) {
        sh_pool_end(pool);
        err = sh_fail(SHOAL_ECLOSED, "the pool is closed");
    }
    if (err != SHOAL_OK) {
        sh_value_consume(task);
        return err;
    }
    err = sh_pool_submit(pool, &(sh_pool_task){.answer = {.job = job, .index = index}}, task, more);
    sh_pool_end(pool);
    return err;
}

void shoal_pool_wake(shoal_pool *pool)
{
    sh_cleanup_begin();
    if (pool != NULL && lock_ours(pool) == SHOAL_OK) {
        sh_pool_wake(pool);
        sh_pool_end(pool);
    }
    sh_cleanup_end();
}

static bool take_finished(shoal_pool *pool, shoal_answer *out_answer)
{
    sh_pool_task *e = pool->finished;
    if (e == NULL) {
        return false;
    }
    *out_answer = e->answer;
    pool->finished = e->next;
    pool->finished_end = e->next != NULL ? pool->finished_end : &pool->finished;
    free(e);
    return true;
}

shoal_err shoal_pool_next(shoal_pool *pool, int64_t timeout, shoal_answer *out_answer)
{
    SH_NEED(pool);
    SH_NEED(out_answer);
    SH_TRY(lock_ours(pool));
    while (pool->finished == NULL && sh_pool_take_answer(pool)) {
    }
    if (pool->finished == NULL) { /* waits without the lock */
        sh_taken taken;
        size_t unused;
        sh_pool_end(pool);
        SH_TRY(sh_queue_get_word((shoal_block *)pool->answers, SH_WANT_ANY, 0, timeout, &taken, &unused));
        pthread_mutex_lock(&pool->lock);
        sh_pool_take_in(pool, &taken);
    }
    shoal_err err = take_finished(pool, out_answer) ? SHOAL_OK : sh_fail(SHOAL_ETIMEDOUT, "no answer yet");
    sh_pool_end(pool);
    return err;
}

shoal_err shoal_pool_lost(shoal_pool *pool, int rank, shoal_value *reason)
{
    SH_NEED_OR_CONSUME(pool, reason);
    shoal_err err = sh_value_check_free(reason);
    if (err == SHOAL_OK) {
        err = rank >= 0 && rank < pool->count ? lock_ours(pool) : sh_fail(SHOAL_EINVAL, "no worker has rank %d", rank);
    }
    if (err == SHOAL_OK) {
        uint32_t place = sh_load_acquire((sh_a32 *)shoal_block_data(pool->places) + rank);
        if (place != 0 && place != SH_PLACE_LEFT) { /* one that the library did not start may not be buried yet */
            (void)(shoal_world_sweep(NULL) == SHOAL_OK);
        }
        sh_pool_worker_died(pool, rank, "the task's worker ended", reason);
        bool wake = pool->finished != NULL;
        sh_pool_end(pool);
        if (wake) { /* without memory for that, the one who waits sees it after its timeout */
            (void)(shoal_queue_put(pool->answers, shoal_value_int(0), SHOAL_NOW) == SHOAL_OK);
        }
    }
    sh_value_consume(reason);
    return err;
}
