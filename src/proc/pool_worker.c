/* A pool's worker process: takes a task, runs it, stores the result in the task, and sends the task back. */
#include "base/error.h"
#include "base/log.h"
#include "ipc/message.h"
#include "ipc/value.h"
#include "proc/pool.h"
#include "shm/waits.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct shoal_worker {
    shoal_pool_objects objects;
    sh_a32 *place;
    shoal_block *held; /* the task that it has TAKEN, or NULL */
    bool unread;       /* its argument is still to be read, because there was no memory for it */
};

/* A worker of a pool of this library: its tasks name functions. */
typedef struct native_worker {
    shoal_worker *worker;
    sh_target target; /* of the last task, as a cache: most tasks have the same target */
    size_t target_size;
    shoal_task function;
} native_worker;

static shoal_err find_function(native_worker *w, const shoal_block *block)
{
    const sh_target *target = (const sh_target *)sh_pool_work_of(block)->bytes;
    size_t size = sh_pool_work_of(block)->target_size;
    if (size == w->target_size && memcmp(target, &w->target, size) == 0) {
        return SHOAL_OK;
    }
    sh_function function;
    SH_TRY(sh_target_find(target, size, &function));
    memcpy(&w->target, target, size);
    w->target_size = size;
    w->function = (shoal_task)function;
    return SHOAL_OK;
}

/* Runs one member. On success *out_result is a value. */
static shoal_err run_member(const native_worker *w, const shoal_value *argument, shoal_value **out_result)
{
    shoal_value *result = NULL;
    uint64_t mark = sh_callback_mark();
    SH_TRY(sh_callback_err(mark, w->function(argument, &result), NULL, "the task"));
    if (result != NULL && (result->owner == SH_OWNER_CONTAINER || result == argument)) {
        return sh_fail(SHOAL_EINVAL, "the task's result is its argument or a part of it: return a copy of it");
    }
    *out_result = result != NULL ? result : shoal_value_null();
    return *out_result != NULL ? SHOAL_OK : shoal_last_error();
}

/* Runs all members of a chunk, up to the first error. */
static shoal_err run_chunk(const native_worker *w, const shoal_value *list, shoal_value **out_result)
{
    shoal_value *results = shoal_value_list();
    for (size_t i = 0; i < shoal_value_count(list) && results != NULL; i++) {
        shoal_value *result;
        shoal_err err = run_member(w, shoal_value_at(list, i), &result);
        if (err != SHOAL_OK) {
            shoal_value_destroy(results);
            return err;
        }
        results = shoal_list_add(results, result);
    }
    *out_result = results;
    return results != NULL ? SHOAL_OK : shoal_last_error();
}

static shoal_err read_argument(const shoal_block *block, shoal_value **out_argument)
{
    sh_pool_work_shm *work = sh_pool_work_of(block);
    if (work->argument_size > 0) {
        return sh_value_decode(work->bytes + work->target_size, work->argument_size, NULL, 0, out_argument);
    }
    sh_ctx *c = sh_enter();
    if (c == NULL) {
        return shoal_last_error();
    }
    /* The argument stays in the task: if this worker dies, another reads it again. */
    shoal_err err = sh_message_read_at(c, sh_offset_of(&work->argument), true, out_argument);
    sh_leave();
    return err;
}

/* Stores a result that needs a message. */
static shoal_err store_message(const shoal_block *block, const sh_encoding *e)
{
    shoal_block *message;
    sh_ctx *c = sh_enter();
    if (c == NULL) {
        return shoal_last_error();
    }
    shoal_err err = sh_message_make(c, e, &message);
    if (err == SHOAL_OK) {
        SH_DEATH("pool.worker.made");
        sh_message_store(c, message, sh_offset_of(&sh_pool_work_of(block)->result));
    }
    sh_leave();
    return err;
}

static shoal_err store_result(const shoal_block *block, const shoal_value *result)
{
    sh_pool_work_shm *work = sh_pool_work_of(block);
    sh_encoding e;
    work->result_size = 0; /* a worker that died may have left a result: this, or a message */
    SH_TRY(sh_encoding_init(&e, result));
    shoal_err err = SHOAL_OK;
    bool small = e.object_count == 0 && e.size <= SH_POOL_SMALL_RESULT && sh_load_relaxed(&work->result) == 0;
    if (small) {
        memcpy(work->small_result, e.bytes, e.size);
        work->result_size = (uint32_t)e.size;
    } else {
        err = store_message(block, &e);
    }
    sh_encoding_fini(&e);
    return err;
}

/* Stores an error as the result, as a list of the code and a value, or the text of the last error if value is NULL.
 * If there is no memory even for that, the owner finds no result and reports SHOAL_ENOMEM. */
static void store_failure(const shoal_block *block, shoal_err err, shoal_value *value)
{
    shoal_value *words = value != NULL ? shoal_list((int)err, value) : shoal_list((int)err, shoal_last_error_text());
    words = words != NULL || value != NULL ? words : shoal_list((int)err, "its error text is not UTF-8");
    shoal_err stored = words != NULL ? store_result(block, words) : SHOAL_ENOMEM;
    shoal_value_destroy(words);
    if (stored == SHOAL_ENOMEM && value != NULL) {
        store_failure(block, SHOAL_ENOMEM, NULL);
    }
}

static bool is_task(const shoal_block *block)
{
    const sh_pool_work_shm *work = sh_pool_work_of(block);
    return block->kind == SH_KIND_TASK && block->size >= sizeof *work &&
           block->size - sizeof *work >= (uint64_t)work->target_size + work->argument_size &&
           work->target_size <= sizeof(sh_target);
}

/* ---- workers ---- */

shoal_err shoal_worker_begin(const shoal_pool_objects *objects, int rank, shoal_worker **out_worker)
{
    SH_NEED(objects);
    SH_NEED(out_worker);
    SH_NEED(objects->tasks);
    SH_NEED(objects->answers);
    SH_NEED(objects->places);
    if (rank < 0 || (size_t)rank >= shoal_block_size(objects->places) / sizeof(sh_a32)) {
        return sh_fail(SHOAL_EINVAL, "the pool has no place for rank %d", rank);
    }
    shoal_worker *w = malloc(sizeof *w);
    if (w == NULL) {
        return sh_fail(SHOAL_ENOMEM, "no memory for a worker");
    }
    *w = (shoal_worker){.objects = {.tasks = shoal_queue_retain(objects->tasks),
                                    .answers = shoal_queue_retain(objects->answers),
                                    .places = shoal_block_retain(objects->places)},
                        .place = (sh_a32 *)shoal_block_data(objects->places) + rank};
    sh_store_release(w->place, sh_peers_now->self());
    *out_worker = w;
    return SHOAL_OK;
}

void shoal_worker_end(shoal_worker *w)
{
    if (w == NULL) {
        return;
    }
    sh_cleanup_begin();
    if (w->held == NULL && !sh_block_is_lost(w->objects.places)) {
        sh_store_release(w->place, SH_PLACE_LEFT);
    }
    if (w->held != NULL) {
        sh_block_release(w->held);
    }
    shoal_queue_release(w->objects.tasks);
    shoal_queue_release(w->objects.answers);
    sh_block_release(w->objects.places);
    free(w);
    sh_cleanup_end();
}

/* Takes the next task from the queue and claims it. */
static shoal_err claim(shoal_worker *w, int64_t timeout)
{
    for (;;) {
        shoal_block *block;
        sh_waits_kind before = sh_waits_serve(SH_WAITS_TASK);
        shoal_err err = shoal_queue_get_block(w->objects.tasks, timeout, &block);
        sh_waits_serve(before);
        if (err != SHOAL_OK) {
            return err;
        }
        uint32_t pending = SH_POOL_WORK_PENDING;
        SH_DEATH("pool.worker.got"); /* death: PENDING and in no queue; the owner puts it again */
        if (is_task(block) && sh_cas_acq_rel(&sh_pool_work_of(block)->state, &pending,
                                             sh_pool_work_by(sh_peers_now->self(), SH_POOL_WORK_TAKEN))) {
            SH_DEATH("pool.worker.claimed");
            w->held = block;
            return SHOAL_OK;
        }
        sh_block_release(block);
    }
}

shoal_err shoal_worker_take(shoal_worker *w, int64_t timeout, shoal_value **out_task)
{
    SH_NEED(w);
    SH_NEED(out_task);
    if (w->held != NULL && !w->unread) {
        return sh_fail(SHOAL_ESTATE, "the last task was not answered");
    }
    for (;;) {
        SH_TRY(w->held != NULL ? SHOAL_OK : claim(w, timeout));
        shoal_err err = read_argument(w->held, out_task);
        w->unread = err == SHOAL_ENOMEM;
        if (err == SHOAL_OK || err == SHOAL_ENOMEM) {
            return err;
        }
        SH_TRY(shoal_worker_answer(w, err, NULL));
    }
}

shoal_err shoal_worker_answer(shoal_worker *w, shoal_err err, shoal_value *value)
{
    SH_NEED_OR_CONSUME(w, value);
    shoal_block *block = w->held;
    if (block == NULL || sh_block_is_lost(block)) {
        sh_value_consume(value);
        return sh_fail(SHOAL_ESTATE, block == NULL ? "there is no task to answer" : "this process has left the world");
    }
    sh_pool_work_shm *work = sh_pool_work_of(block);
    if (err == SHOAL_OK) {
        err = store_result(block, value);
        sh_value_consume(value);
        value = NULL;
    }
    if (err != SHOAL_OK) {
        store_failure(block, err, value);
    }
    SH_DEATH("pool.worker.stored"); /* death: TAKEN; the task runs again, and the next result replaces this one */
    sh_pool_work_state state = err == SHOAL_OK ? SH_POOL_WORK_DONE : SH_POOL_WORK_FAILED;
    if (sh_load_relaxed(&work->argument) != 0) { /* its memory serves for the next one, while it is in the caches */
        sh_store_release(&work->state, sh_pool_work_by(sh_peers_now->self(), state));
        SH_DEATH("pool.worker.over"); /* death: the owner finishes the task and drops the argument */
        sh_pool_drop_argument(block);
    }
    sh_store_release(&work->state, state); /* pairs with the acquire in pool_tasks.c: the result */
    SH_DEATH("pool.worker.done");          /* death: the owner finds the state when it looks for this worker's tasks */
    err = shoal_queue_put_block(w->objects.answers, block, SHOAL_FOREVER);
    SH_DEATH("pool.worker.told");
    SH_TRY(err);
    w->held = NULL;
    sh_block_release(block);
    return SHOAL_OK;
}

/* ---- workers of a pool of this library ---- */

/* Runs the task that the worker has, and answers it. */
static shoal_err run_task(native_worker *w, shoal_value *argument)
{
    const shoal_block *block = w->worker->held;
    shoal_value *result = NULL;
    shoal_err err = find_function(w, block);
    if (err == SHOAL_OK) {
        SH_DEATH("pool.worker.running");
        err = sh_pool_work_of(block)->count == 0 ? run_member(w, argument, &result) : run_chunk(w, argument, &result);
        if (sh_block_is_lost(block)) {
            sh_log("a pool's task left the world, so its worker ends");
            _exit(EXIT_FAILURE); /* the worker holds nothing any more; the owner sees that it died */
        }
    }
    err = shoal_worker_answer(w->worker, err, result);
    shoal_value_destroy(argument);
    return err;
}

static shoal_err initialize(int rank, const shoal_value *args)
{
    size_t size;
    const shoal_value *named = shoal_value_find(args, SH_WORKER_INIT);
    if (shoal_value_type(named) != SHOAL_TYPE_BYTES) {
        return SHOAL_OK;
    }
    sh_target target;
    sh_function function;
    const void *bytes = shoal_value_as_bytes(named, &size);
    if (size > sizeof target) {
        return sh_fail(SHOAL_ECORRUPT, "an initializer of %zu bytes is not well formed", size);
    }
    memcpy(&target, bytes, size);
    SH_TRY(sh_target_find(&target, size, &function));
    return ((shoal_target)function)(rank, shoal_value_find(args, SH_WORKER_ARGS));
}

/* Works until the queue is closed or the limit is reached. */
static shoal_err work(native_worker *w, int rank, int64_t limit, shoal_queue *answers)
{
    shoal_err err = SHOAL_OK;
    for (int64_t done = 0; err == SHOAL_OK && (limit == 0 || done < limit);) {
        shoal_value *argument;
        err = shoal_worker_take(w->worker, SHOAL_FOREVER, &argument);
        if (err == SHOAL_OK) {
            uint32_t count = sh_pool_work_of(w->worker->held)->count;
            done += count == 0 ? 1 : count;
            err = run_task(w, argument);
        } else if (err == SHOAL_ENOMEM && w->worker->held != NULL) {
            err = shoal_worker_answer(w->worker, err, NULL);
        }
    }
    shoal_worker_end(w->worker);
    if (err == SHOAL_OK) { /* it retires: the owner need not wait until it notices the end of this process */
        err = shoal_queue_put(answers, shoal_value_int(sh_pool_worker_notice(getpid(), rank)), SHOAL_FOREVER);
    }
    return err == SHOAL_ECLOSED ? SHOAL_OK : err;
}

shoal_err sh_pool_worker_main(int rank, const shoal_value *args)
{
    shoal_pool_objects objects = {.tasks = shoal_arg_queue(args, SH_WORKER_TASKS),
                                  .answers = shoal_arg_queue(args, SH_WORKER_ANSWERS),
                                  .places = shoal_arg_block(args, SH_WORKER_PLACES)};
    native_worker w = {.worker = NULL};
    int64_t limit;
    SH_TRY(shoal_arg_int(args, SH_WORKER_LIMIT, &limit));
    SH_TRY(initialize(rank, args));
    SH_TRY(shoal_worker_begin(&objects, rank, &w.worker));
    return work(&w, rank, limit, objects.answers);
}
