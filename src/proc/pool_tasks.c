/* The owner's side of a pool: puts tasks, receives answers, and repairs what the death of a worker leaves. */
#include "base/clock.h"
#include "base/interrupt.h"
#include "ipc/message.h"
#include "ipc/queue.h"
#include "ipc/queue_steps.h"
#include "ipc/value.h"
#include "ipc/value_codec.h"
#include "proc/pool.h"
#include "shm/waits.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LOOK_INTERVAL SHOAL_MS(10) /* how long busy callers may not notice a killed worker */

/* ---- tasks ---- */

static void unlink_entry(shoal_pool *pool, sh_pool_task *e)
{
    e->next->previous = e->previous;
    e->previous->next = e->next;
    pool->queued--;
}

static void append(sh_pool_task ***end, sh_pool_task *e)
{
    e->next = NULL;
    **end = e;
    *end = &e->next;
}

/* Ends a task that is not queued. Takes ownership of the value, which may be NULL. */
static void end_task(shoal_pool *pool, sh_pool_task *e, shoal_err err, const char *text, shoal_value *value)
{
    pool->left--;
    if (e->job != NULL) {
        sh_future_finish(e->job, e->number, err, text, value);
        free(e);
        return;
    }
    e->answer.err = err;
    e->answer.value = value != NULL || text[0] == 0 ? value : shoal_value_string(text);
    append(&pool->finished_end, e);
}

/* Ends a queued task and releases it. A handle to the task that comes back later leads to no entry. */
static void finish_entry(shoal_pool *pool, sh_pool_task *e, shoal_err err, const char *text, shoal_value *value)
{
    shoal_block *block = e->block;
    unlink_entry(pool, e);
    block->extra = NULL;
    sh_block_release(block);
    end_task(pool, e, err, text, value);
}

/* Reads the result of a task. A task without one gives null. */
static shoal_err read_result(const shoal_block *block, shoal_value **out_value)
{
    sh_pool_work_shm *work = sh_pool_work_of(block);
    uint32_t size = work->result_size;
    if (size > 0 && sh_load_relaxed(&work->result) == 0) {
        return sh_value_decode(work->small_result, size < SH_POOL_SMALL_RESULT ? size : SH_POOL_SMALL_RESULT, NULL, 0,
                               out_value);
    }
    sh_ctx *c = sh_enter();
    if (c == NULL) {
        return shoal_last_error();
    }
    shoal_err err = sh_message_read_at(c, sh_offset_of(&work->result), false, out_value);
    sh_leave();
    return err;
}

/* The worker that has run a task does so. The owner does so for one that died. A child that was forked meanwhile may
 * hold the task for as long as it lives, and must not keep a large argument. */
void sh_pool_drop_argument(const shoal_block *block)
{
    sh_a64 *argument = &sh_pool_work_of(block)->argument;
    sh_ctx *c = sh_load_relaxed(argument) != 0 ? sh_enter_held() : NULL;
    if (c != NULL) {
        sh_heap_release(c, sh_offset_of(argument));
        sh_leave();
    }
}

/* Finishes a task whose state is DONE or FAILED. */
static void finish_task(shoal_pool *pool, sh_pool_task *e, bool done)
{
    if (pool->workers != NULL) {
        sh_supervisor_succeeded(pool->workers);
    }
    shoal_value *value = NULL;
    shoal_err err = read_result(e->block, &value);
    sh_pool_drop_argument(e->block);
    if (err != SHOAL_OK) {
        finish_entry(pool, e, err, shoal_last_error_text(), NULL);
    } else if (done) {
        finish_entry(pool, e, SHOAL_OK, "", value);
    } else if (shoal_value_count(value) == 2) {
        const shoal_value *what = shoal_value_at(value, 1);
        int64_t code = SHOAL_OK;
        err = shoal_value_as_int(shoal_value_at(value, 0), &code);
        finish_entry(pool, e, err == SHOAL_OK && code != SHOAL_OK ? (shoal_err)code : SHOAL_ECORRUPT,
                     e->job != NULL ? shoal_value_as_string(what) : "", e->job != NULL ? NULL : shoal_value_copy(what));
        shoal_value_destroy(value);
    } else {
        finish_entry(pool, e, SHOAL_ENOMEM, e->job != NULL ? "the worker had no memory for the task's result" : "",
                     NULL);
        shoal_value_destroy(value);
    }
}

/* Inside: puts the task into the queue and wakes nobody. Only the owner puts, so its own count is the message's
 * number. */
static shoal_err put_inside(sh_ctx *c, shoal_pool *pool, sh_pool_task *e)
{
    shoal_block *q = (shoal_block *)pool->tasks;
    sh_transfer transfer;
    bool full = false;
    shoal_err err = sh_queue_prepare(q, "a pool's queue");
    if (err == SHOAL_OK) {
        err = sh_transfer_part(c, e->block, &transfer);
    }
    if (err == SHOAL_OK) {
        err = sh_queue_put_once(c, q, SH_ENTRY_BLOCK, &transfer, &full);
    }
    if (full) {
        return sh_fail(SHOAL_ELIMIT, "the pool's queue of tasks has a bound");
    }
    pool->puts += err == SHOAL_OK;
    e->put = pool->puts;
    return err;
}

/* A worker that was woken may take the processor from the owner, which would put the next task a moment later. So a
 * series of tasks wakes workers for several of them at a time. The put was the full barrier that the wake-up needs. */
#define WAKE_EVERY 16

static void wake_workers(shoal_pool *pool, bool more)
{
    if (++pool->unwoken >= WAKE_EVERY || !more) {
        sh_pool_wake(pool);
    }
}

void sh_pool_wake(shoal_pool *pool)
{
    SH_DEATH("pool.owner.put"); /* death: the pool ends with its owner */
    sh_gate_wake(sh_queue_gate(pool->tasks), pool->unwoken);
    pool->unwoken = 0;
}

/* Puts a task again. */
static shoal_err put_again(shoal_pool *pool, sh_pool_task *e)
{
    sh_ctx *c = sh_enter_held();
    if (c == NULL) {
        return shoal_last_error();
    }
    shoal_err err = put_inside(c, pool, e);
    sh_leave();
    SH_TRY(err);
    wake_workers(pool, false);
    return SHOAL_OK;
}

/* Inside: makes the block of a task, with the argument in it if it is small. */
static shoal_err make_block(sh_ctx *c, const sh_target *target, const sh_encoding *argument, uint32_t members,
                            shoal_block **out_block)
{
    bool small = argument->object_count == 0 && argument->size <= SH_POOL_SMALL_ARGUMENT;
    size_t target_size = target != NULL ? sh_target_size(target) : 0, small_size = small ? argument->size : 0;
    uint64_t size = sizeof(sh_pool_work_shm) + target_size + small_size;
    shoal_block *block, *message;
    SH_TRY(sh_block_new(c, sh_class_of(size), size, &block));
    sh_block_become(block, SH_KIND_TASK);
    sh_pool_work_shm *work = sh_pool_work_of(block);
    work->count = members;
    work->target_size = (uint32_t)target_size;
    work->argument_size = (uint32_t)small_size;
    if (target != NULL) {
        memcpy(work->bytes, target, target_size);
    }
    memcpy(work->bytes + target_size, argument->bytes, small_size);
    shoal_err err = small ? SHOAL_OK : sh_message_make(c, argument, &message);
    if (err != SHOAL_OK) {
        sh_block_unref(c, block);
        return err;
    }
    if (!small) {
        sh_message_store(c, message, sh_offset_of(&work->argument));
    }
    *out_block = block;
    return SHOAL_OK;
}

static shoal_err make_and_put(shoal_pool *pool, sh_pool_task *e, const sh_target *target, const sh_encoding *argument,
                              uint32_t members)
{
    sh_ctx *c = sh_enter();
    if (c == NULL) {
        return shoal_last_error();
    }
    shoal_err err = make_block(c, target, argument, members, &e->block);
    if (err == SHOAL_OK) {
        SH_DEATH("pool.owner.made");
        err = put_inside(c, pool, e);
        if (err != SHOAL_OK) {
            sh_block_unref(c, e->block);
        }
    }
    sh_leave();
    return err;
}

/* Encodes and puts a task, and notes that it is queued. Wakes nobody. */
static shoal_err put_entry(shoal_pool *pool, sh_pool_task *e, const sh_target *target, const shoal_value *argument,
                           uint32_t members)
{
    sh_encoding encoding;
    shoal_err err = sh_encoding_init(&encoding, argument);
    if (err == SHOAL_OK) {
        err = make_and_put(pool, e, target, &encoding, members);
        sh_encoding_fini(&encoding);
    }
    if (err != SHOAL_OK) {
        return err;
    }
    e->block->extra = e;
    e->next = &pool->outstanding;
    e->previous = pool->outstanding.previous;
    e->previous->next = e;
    pool->outstanding.previous = e;
    pool->queued++;
    return SHOAL_OK;
}

static sh_pool_task *copy_of(const sh_pool_task *task)
{
    sh_pool_task *e = malloc(sizeof *e);
    if (e != NULL) {
        *e = *task;
    } else {
        (void)sh_fail(SHOAL_ENOMEM, "no memory for a task");
    }
    return e;
}

shoal_err sh_pool_put(shoal_pool *pool, const sh_pool_task *task, const sh_target *target, const shoal_value *argument,
                      uint32_t members, bool more)
{
    sh_pool_task *e = copy_of(task);
    shoal_err err = e != NULL ? put_entry(pool, e, target, argument, members) : shoal_last_error();
    if (err != SHOAL_OK) {
        free(e);
        return err;
    }
    pool->left++;
    wake_workers(pool, more);
    return SHOAL_OK;
}

/* How many tasks are queued at once. A forked child inherits a reference to each: with 20,000 of them, a fork takes 5
 * ms longer. */
#define QUEUED_MOST 2000

shoal_err sh_pool_submit(shoal_pool *pool, const sh_pool_task *task, shoal_value *argument, bool more)
{
    if (pool->queued < QUEUED_MOST) {
        shoal_err err = sh_pool_put(pool, task, NULL, argument, 0, more);
        sh_value_consume(argument);
        return err;
    }
    sh_pool_task *e = copy_of(task);
    shoal_value *kept = argument->owner == SH_OWNER_PROGRAM ? shoal_value_copy(argument) : argument;
    if (e == NULL || kept == NULL) {
        free(e);
        sh_value_consume(kept);
        return shoal_last_error();
    }
    e->answer.value = kept;
    append(&pool->backlog_end, e);
    pool->left++;
    if (pool->unwoken > 0) {
        sh_pool_wake(pool);
    }
    return SHOAL_OK;
}

/* Takes the oldest task of the backlog, with its argument, or returns NULL. */
static sh_pool_task *take_backlog(shoal_pool *pool, shoal_value **out_argument)
{
    sh_pool_task *e = pool->backlog;
    if (e != NULL) {
        pool->backlog = e->next;
        pool->backlog_end = e->next != NULL ? pool->backlog_end : &pool->backlog;
        *out_argument = e->answer.value;
        e->answer.value = NULL;
    }
    return e;
}

/* Puts tasks of the backlog where others have finished. */
static void refill(shoal_pool *pool)
{
    shoal_value *argument;
    sh_pool_task *e;
    while (pool->queued < QUEUED_MOST && (e = take_backlog(pool, &argument)) != NULL) {
        shoal_err err = put_entry(pool, e, NULL, argument, 0);
        shoal_value_destroy(argument);
        if (err == SHOAL_OK) {
            wake_workers(pool, pool->backlog != NULL);
        } else {
            end_task(pool, e, err, shoal_last_error_text(), NULL);
        }
    }
}

/* ---- workers ---- */

void sh_pool_fail_all(shoal_pool *pool, shoal_err err, const char *text)
{
    shoal_value *argument;
    for (sh_pool_task *e; (e = take_backlog(pool, &argument)) != NULL;) {
        shoal_value_destroy(argument);
        end_task(pool, e, err, text, NULL);
    }
    while (pool->outstanding.next != &pool->outstanding) {
        finish_entry(pool, pool->outstanding.next, err, text, NULL);
    }
}

/* Breaks the pool: every task fails, and every later one. */
static void break_pool(shoal_pool *pool, const char *what, const char *text)
{
    pool->broken = true;
    sh_supervisor_close(pool->workers);
    snprintf(pool->why, sizeof pool->why, "%s%s", what, text);
    sh_pool_fail_all(pool, SHOAL_ECHILD, pool->why);
}

static sh_a32 *place_of(const shoal_pool *pool, int rank)
{
    return (sh_a32 *)shoal_block_data(pool->places) + rank;
}

/* The tasks of the dead worker are: done but not sent back, taken, or dequeued and not yet taken. */
void sh_pool_worker_died(shoal_pool *pool, int rank, const char *text, const shoal_value *reason)
{
    sh_owner owner = sh_load_acquire(place_of(pool, rank));
    sh_store_release(place_of(pool, rank), 0);
    if (owner == 0 || owner == SH_PLACE_LEFT) {
        return; /* it took no task that it has not answered */
    }
    uint64_t takes = sh_queue_takes(pool->tasks);
    for (sh_pool_task *e = pool->outstanding.next, *next; e != &pool->outstanding; e = next) {
        sh_a32 *word = &sh_pool_work_of(e->block)->state;
        uint32_t state = sh_load_acquire(word);
        next = e->next;
        if (sh_pool_work_is_over(state, owner)) {
            finish_task(pool, e, (state & 3) == SH_POOL_WORK_DONE);
            continue;
        }
        bool was_running = state == sh_pool_work_by(owner, SH_POOL_WORK_TAKEN);
        if (was_running && e->attempts++ >= pool->retries) {
            finish_entry(pool, e, SHOAL_ECHILD, text, reason != NULL ? shoal_value_copy(reason) : NULL);
            continue;
        }
        if (was_running) {
            sh_store_release(word, SH_POOL_WORK_PENDING);
            SH_DEATH("pool.owner.freed");
        }
        /* A task that a living worker has dequeued and is about to take may be put a second time here, which is
         * harmless. */
        if ((was_running || (state == SH_POOL_WORK_PENDING && e->put <= takes)) && put_again(pool, e) != SHOAL_OK) {
            finish_entry(pool, e, shoal_last_error(), shoal_last_error_text(), NULL);
        }
    }
    refill(pool);
}

static bool is_ready(void *owner, int rank)
{
    return sh_load_acquire(place_of(owner, rank)) != 0;
}

static sh_verdict worker_ended(void *owner, int rank, const shoal_process *p)
{
    shoal_pool *pool = owner;
    if (p->status.end == SHOAL_PROCESS_FAILED && !is_ready(pool, rank)) {
        (void)sh_fail(SHOAL_ECHILD, "a worker's initializer failed: %s", p->status.text);
        return SH_VERDICT_FAIL;
    }
    char text[sizeof p->status.text + 64];
    snprintf(text, sizeof text, "the task's worker died: %s", p->status.text);
    sh_pool_worker_died(pool, rank, text, NULL);
    return SH_VERDICT_REPLACE;
}

shoal_err sh_pool_start_workers(shoal_pool *pool, shoal_start start)
{
    sh_supervisor_rules rules = {.target = sh_pool_worker_main,
                                 .options = {.start = start, .name = "worker"},
                                 .waits_for = SH_WAITS_POOL,
                                 .owner = pool,
                                 .args = pool->worker_args,
                                 .ended = worker_ended,
                                 .is_ready = is_ready,
                                 .failed_starts = 2 * pool->count + 2,
                                 .patient = true};
    SH_TRY(sh_supervisor_create(&rules, pool->count, &pool->workers));
    return sh_supervisor_start(pool->workers);
}

void sh_pool_tend(shoal_pool *pool)
{
    pool->looked_at = sh_now();
    if (pool->closed && pool->left == 0) {
        sh_supervisor_close(pool->workers);
    }
    if (sh_supervisor_tend(pool->workers) != SHOAL_OK) {
        break_pool(pool, "", shoal_last_error_text());
    }
    if (pool->left > 0 && !pool->broken && !pool->terminated && sh_supervisor_running(pool->workers) == 0) {
        break_pool(pool, "cannot start any worker: ", shoal_last_error_text());
    }
}

/* ---- answers ---- */

void sh_pool_take_in(shoal_pool *pool, const sh_taken *t)
{
    if (t->block != NULL) {
        sh_pool_task *e = t->block->kind == SH_KIND_TASK ? t->block->extra : NULL;
        uint32_t state = e != NULL ? sh_load_acquire(&sh_pool_work_of(t->block)->state) : SH_POOL_WORK_PENDING;
        if (sh_pool_work_is_over(state, 0)) {
            finish_task(pool, e, state == SH_POOL_WORK_DONE);
            refill(pool);
        }
        sh_block_release(t->block);
        return;
    }
    int rank = (int)(uint32_t)t->word;
    if (t->kind == SH_ENTRY_INT && pool->workers != NULL && rank >= 0 && rank < pool->count &&
        sh_supervisor_runs(pool->workers, rank) &&
        (int64_t)t->word == sh_pool_worker_notice(sh_supervisor_process(pool->workers, rank)->pid, rank)) {
        /* The worker retires: another can start while it ends. A notice of a worker that has already been joined is
         * ignored. */
        sh_supervisor_retire(pool->workers, rank);
        sh_store_release(place_of(pool, rank), 0);
        pool->looked_at = 0;
    }
}

bool sh_pool_take_answer(shoal_pool *pool)
{
    sh_taken t;
    size_t unused;
    bool got = sh_queue_ready(pool->answers) &&
               sh_queue_get_word((shoal_block *)pool->answers, SH_WANT_ANY, 0, SHOAL_NOW, &t, &unused) == SHOAL_OK;
    if (got) {
        sh_pool_take_in(pool, &t);
    }
    return got;
}

void sh_pool_poll(shoal_pool *pool)
{
    if (sh_pool_check_world(pool) != SHOAL_OK) {
        return;
    }
    while (!pool->waiting && sh_pool_take_answer(pool)) {
    }
    if (sh_now() - pool->looked_at >= LOOK_INTERVAL) {
        sh_pool_tend(pool);
    }
}

/* Waits while another thread waits for the queue and receives what comes; that thread signals `changed`. */
static void wait_for_change(shoal_pool *pool, int64_t deadline)
{
    int64_t now = sh_now(),
            until = sh_interrupt_bound(now, now + SH_SLICE_LONG < deadline ? now + SH_SLICE_LONG : deadline);
    struct timespec t = {.tv_sec = until / 1000000000, .tv_nsec = until % 1000000000};
    uint32_t entry = sh_waits_begin(sh_waits_name(SH_WAITS_POOL, ((shoal_block *)pool->answers)->id), 0);
    pthread_cond_timedwait(&pool->changed, &pool->lock, &t);
    sh_waits_end(entry);
    pthread_mutex_unlock(&pool->lock);
    (void)sh_interrupted(); /* asked without the lock */
    pthread_mutex_lock(&pool->lock);
}

/* Waits for the queue and for the workers, and receives one answer. */
static void wait_for_answer(shoal_pool *pool, int64_t deadline)
{
    pool->waiting = true;
    sh_supervisor_wait(pool->workers, pool->answers, &pool->lock, deadline);
    pool->waiting = false;
    sh_interrupt asked = sh_interrupt_suspend(); /* a signal must not cut short what follows */
    if (sh_pool_check_world(pool) == SHOAL_OK &&
        (!sh_pool_take_answer(pool) || sh_now() - pool->looked_at >= LOOK_INTERVAL)) {
        sh_pool_tend(pool);
    }
    pthread_cond_broadcast(&pool->changed);
    sh_interrupt_resume(asked);
}

bool sh_pool_await(shoal_pool *pool, bool (*predicate)(const void *), const void *thing, int64_t deadline)
{
    sh_interrupt_begin();
    while (!predicate(thing)) {
        if (sh_passed(deadline) || sh_interrupt_mine.hit || sh_pool_check_world(pool) != SHOAL_OK) {
            return false;
        }
        if (pool->waiting) {
            wait_for_change(pool, deadline);
        } else {
            wait_for_answer(pool, deadline);
        }
    }
    return true;
}
