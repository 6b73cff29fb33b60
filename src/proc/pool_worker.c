/* A pool's worker process: takes a task, runs it, stores the result in the task, and sends the task back. */
#include "base/log.h"
#include "ipc/message.h"
#include "ipc/value.h"
#include "proc/pool.h"
#include "shm/waits.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct worker {
    shoal_queue *tasks, *answers;
    sh_target target; /* of the last task, as a cache: most tasks have the same target */
    size_t target_size;
    shoal_task function;
} worker;

static shoal_err find_function(worker *w, const shoal_block *block)
{
    const sh_target *target = &sh_pool_work_of(block)->target;
    size_t size = block->size - offsetof(sh_pool_work_shm, target);
    if (size == w->target_size && memcmp(target, &w->target, size) == 0) {
        return SHOAL_OK;
    }
    sh_function function;
    shoal_err err = sh_target_find(target, size, &function);
    if (err == SHOAL_OK) {
        memcpy(&w->target, target, size);
        w->target_size = size;
        w->function = (shoal_task)function;
    }
    return err;
}

/* Runs one member. On success *out_result is a value. */
static shoal_err run_member(const worker *w, const shoal_value *argument, shoal_value **out_result)
{
    shoal_value *result = NULL;
    uint64_t mark = sh_callback_mark();
    shoal_err err = sh_callback_err(mark, w->function(argument, &result), NULL, "the task");
    if (err != SHOAL_OK) {
        return err;
    }
    if (result != NULL && (result->owner == SH_OWNER_CONTAINER || result == argument)) {
        return sh_fail(SHOAL_EINVAL, "the task's result is its argument or a part of it: return a copy of it");
    }
    *out_result = result != NULL ? result : shoal_value_null();
    return *out_result != NULL ? SHOAL_OK : shoal_last_error();
}

/* Runs all members of a chunk, up to the first error. */
static shoal_err run_chunk(const worker *w, const shoal_value *list, shoal_value **out_result)
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
    sh_ctx *c = sh_enter();
    if (c == NULL) {
        return shoal_last_error();
    }
    /* The argument stays in the task: if this worker dies, another reads it again. */
    shoal_err err = sh_message_read_at(c, sh_offset_of(&sh_pool_work_of(block)->argument), true, out_argument);
    sh_leave();
    return err;
}

static shoal_err store_result(const shoal_block *block, const shoal_value *result)
{
    sh_encoding e;
    shoal_err err = sh_encoding_init(&e, result);
    if (err != SHOAL_OK) {
        return err;
    }
    shoal_block *message;
    sh_ctx *c = sh_enter();
    err = c != NULL ? sh_message_make(c, &e, &message) : shoal_last_error();
    if (err == SHOAL_OK) {
        SH_DEATH("pool.worker.made");
        sh_message_store(c, message, sh_offset_of(&sh_pool_work_of(block)->result));
    }
    if (c != NULL) {
        sh_leave();
    }
    sh_encoding_fini(&e);
    return err;
}

/* Stores the error as the result, as a list of code and text. If there is no memory even for that, the owner finds no
 * result and reports SHOAL_ENOMEM. */
static void store_failure(const shoal_block *block, shoal_err err)
{
    shoal_value *words = shoal_list((int)err, shoal_last_error_text());
    words = words != NULL ? words : shoal_list((int)err, "its error text is not UTF-8");
    if (words != NULL) {
        (void)(store_result(block, words) == SHOAL_OK);
        shoal_value_destroy(words);
    }
}

/* The task is ours: TAKEN. */
static void run_task(worker *w, const shoal_block *block)
{
    sh_pool_work_shm *work = sh_pool_work_of(block);
    shoal_value *argument = NULL, *result = NULL;
    shoal_err err = find_function(w, block);
    if (err == SHOAL_OK) {
        err = read_argument(block, &argument);
    }
    if (err == SHOAL_OK) {
        SH_DEATH("pool.worker.running");
        err = work->count == 0 ? run_member(w, argument, &result) : run_chunk(w, argument, &result);
        if (sh_block_is_lost(block)) {
            sh_log("a pool's task left the world, so its worker ends");
            _exit(EXIT_FAILURE); /* the worker holds nothing any more; the owner sees that it died */
        }
    }
    if (err == SHOAL_OK) {
        err = store_result(block, result);
    }
    if (err != SHOAL_OK) {
        store_failure(block, err);
    }
    SH_DEATH("pool.worker.stored"); /* death: TAKEN; the task runs again, and the next result replaces this one */
    sh_store_release(&work->state, err == SHOAL_OK
                                       ? SH_POOL_WORK_DONE
                                       : SH_POOL_WORK_FAILED); /* pairs with the acquire in pool.c: the result */
    SH_DEATH("pool.worker.done"); /* death: the owner finds the state when it looks for this worker's tasks */
    shoal_value_destroy(argument);
    sh_value_consume(result);
}

static bool is_task(const shoal_block *block)
{
    return block->kind == SH_KIND_TASK && block->size > offsetof(sh_pool_work_shm, target) &&
           block->size <= sizeof(sh_pool_work_shm);
}

/* Handles one message of the queue. Adds the number of members that it ran to *done. */
static shoal_err serve(worker *w, shoal_block *block, int64_t *done)
{
    uint32_t pending = SH_POOL_WORK_PENDING;
    shoal_err err = SHOAL_OK;
    SH_DEATH("pool.worker.got"); /* death: PENDING and in no queue; the owner puts it again */
    if (is_task(block) &&
        sh_cas_acq_rel(&sh_pool_work_of(block)->state, &pending, sh_pool_work_taken_by(sh_peers_now->self()))) {
        SH_DEATH("pool.worker.claimed");
        run_task(w, block);
        *done += sh_pool_work_of(block)->count == 0 ? 1 : sh_pool_work_of(block)->count;
        err = shoal_queue_put_block(w->answers, block, SHOAL_FOREVER);
        SH_DEATH("pool.worker.told");
    }
    sh_block_release(block);
    return err;
}

static shoal_err initialize(int rank, const shoal_value *args)
{
    size_t size;
    const shoal_value *named = shoal_value_find(args, SH_WORKER_INIT);
    if (shoal_value_type(named) != SHOAL_BYTES) {
        return SHOAL_OK;
    }
    sh_target target;
    sh_function function;
    const void *bytes = shoal_value_as_bytes(named, &size);
    if (size > sizeof target) {
        return sh_fail(SHOAL_ECORRUPT, "an initializer of %zu bytes is not well formed", size);
    }
    memcpy(&target, bytes, size);
    shoal_err err = sh_target_find(&target, size, &function);
    return err != SHOAL_OK ? err : ((shoal_target)function)(rank, shoal_value_find(args, SH_WORKER_ARGS));
}

/* Works until the queue is closed or the limit is reached. */
static shoal_err work(worker *w, int rank, int64_t limit)
{
    shoal_err err = SHOAL_OK;
    for (int64_t done = 0; err == SHOAL_OK && (limit == 0 || done < limit);) {
        shoal_block *block;
        sh_waits_kind before = sh_waits_serve(SH_WAITS_TASK);
        err = shoal_queue_get_block(w->tasks, SHOAL_FOREVER, &block);
        sh_waits_serve(before);
        if (err == SHOAL_OK) {
            err = serve(w, block, &done);
        }
    }
    if (err == SHOAL_OK) { /* it retires: the owner need not wait until it notices the end of this process */
        err = shoal_queue_put(w->answers, shoal_value_int(sh_pool_worker_notice(getpid(), rank)), SHOAL_FOREVER);
    }
    return err == SHOAL_ECLOSED ? SHOAL_OK : err;
}

shoal_err sh_pool_worker_main(int rank, const shoal_value *args)
{
    worker w = {.tasks = shoal_arg_queue(args, SH_WORKER_TASKS), .answers = shoal_arg_queue(args, SH_WORKER_ANSWERS)};
    shoal_block *ready = shoal_arg_block(args, SH_WORKER_READY);
    int64_t limit;
    shoal_err err = shoal_arg_int(args, SH_WORKER_LIMIT, &limit);
    if (err == SHOAL_OK) {
        err = initialize(rank, args);
    }
    if (err != SHOAL_OK) {
        return err;
    }
    sh_store_release((sh_a32 *)shoal_block_data(ready) + rank, 1);
    return work(&w, rank, limit);
}
