/* Futures and iterators: the handles by which a caller gets the results of a pool. */
#include "base/clock.h"

#include "base/error.h"
#include "base/interrupt.h"
#include "ipc/value.h"
#include "proc/pool.h"

#include <stdlib.h>
#include <string.h>

/* ---- jobs ---- */

static void free_job(sh_future *job)
{
    if (job != NULL) {
        for (size_t i = 0; i < job->count && job->outcomes != NULL; i++) {
            shoal_value_destroy(job->outcomes[i].value);
            free(job->outcomes[i].text);
        }
        free(job->outcomes);
        free(job->order);
        free(job);
    }
}

static sh_future *make_job(shoal_pool *pool, size_t count)
{
    sh_future *job = calloc(1, sizeof *job);
    if (job != NULL) {
        *job = (sh_future){.pool = pool,
                           .count = count,
                           .left = count,
                           .handle = true,
                           .outcomes = calloc(count + 1, sizeof(sh_outcome)),
                           .order = calloc(count + 1, sizeof(size_t))};
    }
    if (job == NULL || job->outcomes == NULL || job->order == NULL) {
        free_job(job);
        sh_fail(SHOAL_ENOMEM, "no memory for %zu tasks", count);
        return NULL;
    }
    sh_pool_retain(pool);
    return job;
}

void sh_future_finish(sh_future *job, size_t i, shoal_err err, const char *text, shoal_value *value)
{
    job->outcomes[i] =
        (sh_outcome){.ready = true, .err = err, .value = value, .text = err != SHOAL_OK ? strdup(text) : NULL};
    job->order[job->count - job->left] = i;
    job->left--;
    if (job->left == 0 && !job->handle) {
        sh_pool_forget(job->pool); /* the caller holds the pool itself */
        free_job(job);
    }
}

/* Destroys the caller's handle. Its tasks keep running. */
static void destroy_job(sh_future *job)
{
    if (job == NULL) {
        return;
    }
    shoal_pool *pool = job->pool;
    if (!sh_pool_lock_to_free(pool)) {
        return;
    }
    job->handle = false;
    if (job->left == 0) {
        free_job(job);
        sh_pool_release(pool);
    } else {
        sh_pool_end(pool);
    }
}

static bool is_finished(const void *thing)
{
    return ((const sh_future *)thing)->left == 0;
}

static shoal_err fail_as(const sh_outcome *o)
{
    return sh_fail(o->err, "%s", o->text != NULL ? o->text : "");
}

/* ---- submitting ---- */

/* How a list is split: into `count` tasks of `chunk` members each. With a chunk of 1 each task gets the member
 * itself. */
typedef struct plan {
    const shoal_value *argument; /* or, with chunk > 0, the list */
    size_t count;
    size_t chunk;
} plan;

static shoal_err put_task(shoal_pool *pool, sh_future *job, size_t i, const sh_target *target, const plan *p)
{
    const sh_pool_task task = {.job = job, .number = i};
    bool more = i + 1 < p->count;
    if (p->chunk == 0) {
        return sh_pool_put(pool, &task, target, p->argument, 0, more);
    }
    size_t first = i * p->chunk, members = p->argument->size - first;
    if (p->chunk == 1) {
        return sh_pool_put(pool, &task, target, p->argument->as.items[first], 0, more);
    }
    members = members < p->chunk ? members : p->chunk;
    /* This list borrows its members: it is only read. */
    const shoal_value part = {.type = SHOAL_TYPE_LIST,
                              .depth = p->argument->depth,
                              .size = members,
                              .as.items = p->argument->as.items + first};
    return sh_pool_put(pool, &task, target, &part, (uint32_t)members, more);
}

static shoal_err submit(shoal_pool *pool, shoal_task task, const plan *p, sh_future **out_job)
{
    sh_target target;
    shoal_err err = sh_target_name((sh_function)task, &target);
    if (err == SHOAL_OK) {
        err = sh_pool_begin(pool);
    }
    if (err != SHOAL_OK) {
        return err;
    }
    sh_future *job = make_job(pool, p->count);
    err = job != NULL ? SHOAL_OK : shoal_last_error();
    size_t put = 0;
    while (err == SHOAL_OK && put < p->count) {
        err = put_task(pool, job, put, &target, p);
        put += err == SHOAL_OK;
    }
    if (err == SHOAL_OK) {
        *out_job = job;
    } else if (job != NULL) { /* the tasks that were put keep running, but nobody gets their results */
        sh_pool_wake(pool);
        job->handle = false;
        while (put < p->count) {
            sh_future_finish(job, put++, err, "", NULL); /* the last one frees the job, if no task is outstanding */
        }
    }
    sh_pool_end(pool);
    return err;
}

static shoal_err submit_list(shoal_pool *pool, shoal_task task, shoal_value *list, size_t chunk, sh_future **out_job)
{
    shoal_err err =
        list->owner == SH_OWNER_CONTAINER           ? sh_value_check_free(list)
        : shoal_value_type(list) != SHOAL_TYPE_LIST ? sh_fail(SHOAL_ETYPE, "map needs a list")
        : chunk > UINT32_MAX || list->size > 1u << 30
            ? sh_fail(SHOAL_EINVAL, "map over %zu members in chunks of %zu: that is too many", list->size, chunk)
            : SHOAL_OK;
    if (err == SHOAL_OK) {
        plan p = {.argument = list, .chunk = chunk, .count = (list->size + chunk - 1) / chunk};
        err = submit(pool, task, &p, out_job);
    }
    sh_value_consume(list);
    return err;
}

/* About four tasks for each worker: enough to balance the load, few enough to cost little. */
static size_t choose_chunk(const shoal_pool *pool, const shoal_value *list, size_t asked)
{
    size_t tasks = 4 * (size_t)pool->count, limit = (size_t)pool->limit;
    size_t chunk = asked != 0 ? asked : (shoal_value_count(list) + tasks - 1) / tasks;
    chunk = limit != 0 && chunk > limit ? limit : chunk;
    return chunk > 0 ? chunk : 1;
}

/* ---- futures ---- */

shoal_err shoal_pool_apply_async(shoal_pool *pool, shoal_task task, shoal_value *arg, shoal_future **out_future)
{
    SH_NEED_OR_CONSUME(pool, arg);
    SH_NEED_OR_CONSUME(task, arg);
    SH_NEED(arg);
    SH_NEED_OR_CONSUME(out_future, arg);
    sh_future *job;
    shoal_err err = arg->owner == SH_OWNER_CONTAINER ? sh_value_check_free(arg)
                                                     : submit(pool, task, &(plan){.argument = arg, .count = 1}, &job);
    sh_value_consume(arg);
    SH_TRY(err);
    *out_future = (shoal_future *)job;
    return SHOAL_OK;
}

shoal_err shoal_pool_map_async(shoal_pool *pool, shoal_task task, shoal_value *list, size_t chunk,
                               shoal_future **out_future)
{
    SH_NEED_OR_CONSUME(pool, list);
    SH_NEED_OR_CONSUME(task, list);
    SH_NEED(list);
    SH_NEED_OR_CONSUME(out_future, list);
    sh_future *job;
    chunk = choose_chunk(pool, list, chunk);
    SH_TRY(submit_list(pool, task, list, chunk, &job));
    job->is_map = true; /* only the future's own calls read them */
    job->chunked = chunk > 1;
    *out_future = (shoal_future *)job;
    return SHOAL_OK;
}

/* Moves the members of a chunk into the list. */
static shoal_err move_members(shoal_value *list, shoal_value *chunk)
{
    shoal_err err = shoal_value_type(chunk) == SHOAL_TYPE_LIST
                        ? SHOAL_OK
                        : sh_fail(SHOAL_ECORRUPT, "a chunk's result is not a list");
    size_t moved = 0, size = shoal_value_count(chunk);
    while (err == SHOAL_OK && moved < size) {
        shoal_value *member = chunk->as.items[moved++];
        member->owner = SH_OWNER_CALLER;
        err = sh_list_append(list, member);
    }
    if (moved > 0) {
        memmove(chunk->as.items, chunk->as.items + moved, (size - moved) * sizeof(shoal_value *));
        chunk->size = size - moved;
    }
    shoal_value_destroy(chunk);
    return err;
}

static shoal_err collect(sh_future *job, shoal_value **out_result)
{
    for (size_t i = 0; i < job->count; i++) {
        if (job->outcomes[i].err != SHOAL_OK) {
            return fail_as(&job->outcomes[i]); /* the first in order; each later call returns it again */
        }
    }
    job->taken = true;
    if (!job->is_map) {
        *out_result = job->outcomes[0].value;
        job->outcomes[0].value = NULL;
        return SHOAL_OK;
    }
    shoal_value *list = shoal_value_list();
    shoal_err err = list != NULL ? SHOAL_OK : shoal_last_error();
    for (size_t i = 0; i < job->count && err == SHOAL_OK; i++) {
        shoal_value *value = job->outcomes[i].value;
        job->outcomes[i].value = NULL;
        err = job->chunked ? move_members(list, value) : sh_list_append(list, value);
    }
    if (err != SHOAL_OK) {
        shoal_value_destroy(list);
        return err;
    }
    *out_result = list;
    return SHOAL_OK;
}

/* Waits until the predicate holds. Returns SHOAL_ETIMEDOUT, without recording it, if it does not, and SHOAL_ESTATE if
 * this process has left the pool's world or is about to end. */
static shoal_err wait_for(sh_future *job, bool (*predicate)(const void *), int64_t deadline)
{
    shoal_err err = sh_pool_check_world(job->pool);
    return err != SHOAL_OK || sh_pool_await(job->pool, predicate, job, deadline) ? err : SHOAL_ETIMEDOUT;
}

shoal_err shoal_future_get(shoal_future *future, int64_t timeout, shoal_value **out_result)
{
    int64_t deadline = sh_deadline(timeout);
    sh_future *job = (sh_future *)future;
    SH_NEED(future);
    SH_NEED(out_result);
    SH_TRY(sh_pool_lock(job->pool));
    sh_pool_poll(job->pool);
    shoal_err err =
        job->taken ? sh_fail(SHOAL_ESTATE, "the result has already been taken") : wait_for(job, is_finished, deadline);
    if (err == SHOAL_OK) {
        err = collect(job, out_result);
    } else if (err == SHOAL_ETIMEDOUT) {
        err = sh_fail_waiting(timeout, "%zu of %zu tasks are not done", job->left, job->count);
    }
    sh_pool_end(job->pool);
    return err;
}

bool shoal_future_ready(shoal_future *future)
{
    sh_future *job = (sh_future *)future;
    if (job == NULL) {
        return false;
    }
    bool ready = true; /* also when shoal_future_get would return at once, with an error */
    sh_cleanup_begin();
    if (sh_pool_lock(job->pool) == SHOAL_OK) {
        sh_pool_poll(job->pool);
        ready = job->left == 0 || sh_pool_check_world(job->pool) != SHOAL_OK;
        sh_pool_end(job->pool);
    }
    sh_cleanup_end();
    return ready;
}

void shoal_future_destroy(shoal_future *future)
{
    sh_cleanup_begin();
    destroy_job((sh_future *)future);
    sh_cleanup_end();
}

static shoal_err get_and_destroy(shoal_future *future, shoal_value **out_result)
{
    shoal_err err = shoal_future_get(future, SHOAL_FOREVER, out_result);
    shoal_future_destroy(future);
    return err;
}

shoal_err shoal_pool_apply(shoal_pool *pool, shoal_task task, shoal_value *arg, shoal_value **out_result)
{
    SH_NEED_OR_CONSUME(pool, arg);
    SH_NEED(arg);
    SH_NEED_OR_CONSUME(task, arg);
    SH_NEED_OR_CONSUME(out_result, arg);
    shoal_future *future;
    SH_TRY(shoal_pool_apply_async(pool, task, arg, &future));
    return get_and_destroy(future, out_result);
}

shoal_err shoal_pool_map(shoal_pool *pool, shoal_task task, shoal_value *list, size_t chunk, shoal_value **out_results)
{
    SH_NEED_OR_CONSUME(pool, list);
    SH_NEED_OR_CONSUME(task, list);
    SH_NEED(list);
    SH_NEED_OR_CONSUME(out_results, list);
    shoal_future *future;
    SH_TRY(shoal_pool_map_async(pool, task, list, chunk, &future));
    return get_and_destroy(future, out_results);
}

/* ---- iterators ---- */

shoal_err shoal_pool_imap(shoal_pool *pool, shoal_task task, shoal_value *list, bool ordered,
                          shoal_iterator **out_iterator)
{
    SH_NEED_OR_CONSUME(pool, list);
    SH_NEED_OR_CONSUME(task, list);
    SH_NEED(list);
    SH_NEED_OR_CONSUME(out_iterator, list);
    sh_future *job;
    SH_TRY(submit_list(pool, task, list, 1, &job));
    job->ordered = ordered; /* only the iterator's own calls read it */
    *out_iterator = (shoal_iterator *)job;
    return SHOAL_OK;
}

static bool has_next(const void *thing)
{
    const sh_future *job = thing;
    return job->ordered ? job->outcomes[job->next].ready : job->count - job->left > job->next;
}

/* Returns the next result, which is ready; the caller owns it. */
static shoal_err take_next(sh_future *job, shoal_value **out_result)
{
    sh_outcome *o = &job->outcomes[job->ordered ? job->next : job->order[job->next]];
    job->next++;
    if (o->err != SHOAL_OK) {
        return fail_as(o);
    }
    *out_result = o->value;
    o->value = NULL;
    return SHOAL_OK;
}

shoal_err shoal_iterator_next(shoal_iterator *iterator, int64_t timeout, shoal_value **out_result)
{
    int64_t deadline = sh_deadline(timeout);
    sh_future *job = (sh_future *)iterator;
    SH_NEED(iterator);
    SH_NEED(out_result);
    SH_TRY(sh_pool_lock(job->pool));
    shoal_err err = SHOAL_END;
    if (job->next < job->count) {
        sh_pool_poll(job->pool);
        err = wait_for(job, has_next, deadline);
        if (err == SHOAL_OK) {
            err = take_next(job, out_result);
        } else if (err == SHOAL_ETIMEDOUT) {
            err = sh_fail_waiting(timeout, "result %zu of %zu is not ready yet", job->next, job->count);
        }
    }
    sh_pool_end(job->pool);
    return err;
}

void shoal_iterator_destroy(shoal_iterator *iterator)
{
    sh_cleanup_begin();
    destroy_job((sh_future *)iterator);
    sh_cleanup_end();
}
