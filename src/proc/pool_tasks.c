/* The owner's side of a pool: puts tasks, receives answers, and repairs what the death of a worker leaves. */
#include "base/clock.h"
#include "base/interrupt.h"
#include "ipc/message.h"
#include "ipc/queue.h"
#include "ipc/queue_core.h"
#include "proc/pool.h"
#include "shm/slot.h"
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
    pool->left--;
}

/* Frees the entry and releases the task. A handle to the task that comes back later leads to no entry. */
static void finish_entry(shoal_pool *pool, sh_pool_task *e, shoal_err err, const char *text, shoal_value *value)
{
    shoal_block *block = e->block;
    unlink_entry(pool, e);
    sh_future_finish(e->job, e->number, err, text, value);
    block->extra = NULL;
    free(e);
    sh_block_release(block);
}

/* Finishes a task whose state is DONE or FAILED. */
static void finish_task(shoal_pool *pool, sh_pool_task *e, bool done)
{
    sh_supervisor_succeeded(pool->workers);
    shoal_value *value = NULL;
    sh_ctx *c = sh_enter();
    shoal_err err = c == NULL ? shoal_last_error() : SHOAL_OK;
    if (c != NULL) {
        err = sh_message_read_at(c, sh_offset_of(&sh_pool_work_of(e->block)->result), false, &value);
        sh_leave();
    }
    if (err != SHOAL_OK) {
        finish_entry(pool, e, err, shoal_last_error_text(), NULL);
    } else if (done) {
        finish_entry(pool, e, SHOAL_OK, "", value);
    } else if (shoal_value_count(value) == 2) {
        int64_t code = SHOAL_OK;
        err = shoal_value_as_int(shoal_value_at(value, 0), &code);
        finish_entry(pool, e, err == SHOAL_OK && code != SHOAL_OK ? (shoal_err)code : SHOAL_ECORRUPT,
                     shoal_value_as_string(shoal_value_at(value, 1)), NULL);
        shoal_value_destroy(value);
    } else {
        finish_entry(pool, e, SHOAL_ENOMEM, "the worker had no memory for the task's result", NULL);
        shoal_value_destroy(value);
    }
}

/* Puts the task into the queue. Only the owner puts, so its own count is the message's number. */
static shoal_err put_entry(shoal_pool *pool, sh_pool_task *e)
{
    shoal_err err = shoal_queue_put_block(pool->tasks, e->block, SHOAL_FOREVER); /* unbounded: does not block */
    if (err == SHOAL_OK) {
        e->put = ++pool->puts;
    }
    return err;
}

static shoal_err make_task(const sh_target *target, const sh_encoding *argument, uint32_t members,
                           shoal_block **out_block)
{
    uint64_t size = offsetof(sh_pool_work_shm, target) + sh_target_size(target);
    sh_ctx *c = sh_enter();
    if (c == NULL) {
        return shoal_last_error();
    }
    shoal_block *block, *message;
    shoal_err err = sh_block_new(c, sh_class_of(size), size, &block);
    if (err == SHOAL_OK) {
        sh_block_become(block, SH_KIND_TASK);
        sh_pool_work_of(block)->count = members;
        memcpy(&sh_pool_work_of(block)->target, target, sh_target_size(target));
        err = sh_message_make(c, argument, &message);
        if (err == SHOAL_OK) {
            sh_message_store(c, message, sh_offset_of(&sh_pool_work_of(block)->argument));
            *out_block = block;
        } else {
            sh_block_unref(c, block);
        }
    }
    sh_leave();
    return err;
}

shoal_err sh_pool_put(shoal_pool *pool, sh_future *job, size_t i, const sh_target *target, const shoal_value *argument,
                      uint32_t members)
{
    sh_pool_task *e = calloc(1, sizeof *e);
    if (e == NULL) {
        return sh_fail(SHOAL_ENOMEM, "no memory for a task");
    }
    sh_encoding encoding;
    shoal_err err = sh_encoding_init(&encoding, argument);
    if (err == SHOAL_OK) {
        err = make_task(target, &encoding, members, &e->block);
        sh_encoding_fini(&encoding);
    }
    if (err != SHOAL_OK) {
        free(e);
        return err;
    }
    SH_DEATH("pool.owner.made");
    shoal_block *block = e->block;
    e->job = job;
    e->number = i;
    err = put_entry(pool, e);
    if (err != SHOAL_OK) {
        free(e);
        sh_block_release(block);
        return err;
    }
    SH_DEATH("pool.owner.put");
    block->extra = e;
    e->next = &pool->outstanding;
    e->previous = pool->outstanding.previous;
    e->previous->next = e;
    pool->outstanding.previous = e;
    pool->left++;
    return SHOAL_OK;
}

/* ---- workers ---- */

void sh_pool_fail_all(shoal_pool *pool, shoal_err err, const char *text)
{
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

/* Looks for the tasks of a worker that died and is buried: done but not sent back, taken, or dequeued and not yet
 * taken. */
static void look_after_tasks(shoal_pool *pool, const shoal_process *dead)
{
    sh_owner owner = sh_slot_owner(dead->slot, sh_slot_state_make(SH_PHASE_DEAD, 0, dead->generation));
    uint64_t takes = sh_queue_takes(pool->tasks);
    for (sh_pool_task *e = pool->outstanding.next, *next; e != &pool->outstanding; e = next) {
        sh_a32 *word = &sh_pool_work_of(e->block)->state;
        uint32_t state = sh_load_acquire(word);
        next = e->next;
        if (state == SH_POOL_WORK_DONE || state == SH_POOL_WORK_FAILED) {
            finish_task(pool, e, state == SH_POOL_WORK_DONE);
            continue;
        }
        bool was_running = state == sh_pool_work_taken_by(owner);
        if (was_running && e->attempts++ >= pool->retries) {
            char text[sizeof dead->status.text + 64];
            snprintf(text, sizeof text, "the task's worker died: %s", dead->status.text);
            finish_entry(pool, e, SHOAL_ECHILD, text, NULL);
            continue;
        }
        if (was_running) {
            sh_store_release(word, SH_POOL_WORK_PENDING);
            SH_DEATH("pool.owner.freed");
        }
        /* A task that a living worker has dequeued and is about to take may be put a second time here, which is
         * harmless. */
        if ((was_running || (state == SH_POOL_WORK_PENDING && e->put <= takes)) && put_entry(pool, e) != SHOAL_OK) {
            finish_entry(pool, e, shoal_last_error(), shoal_last_error_text(), NULL);
        }
    }
}

static bool is_ready(void *owner, int rank)
{
    return sh_load_acquire(&((shoal_pool *)owner)->ready[rank]) != 0;
}

static sh_verdict worker_ended(void *owner, int rank, const shoal_process *p)
{
    shoal_pool *pool = owner;
    if (p->status.end == SHOAL_FAILED && !is_ready(pool, rank)) {
        (void)sh_fail(SHOAL_ECHILD, "a worker's initializer failed: %s", p->status.text);
        return SH_VERDICT_FAIL;
    }
    if (p->status.end != SHOAL_RETURNED) {
        look_after_tasks(pool, p);
    }
    sh_store_release(&pool->ready[rank], 0);
    return SH_VERDICT_REPLACE;
}

shoal_err sh_pool_start_workers(shoal_pool *pool, shoal_start start)
{
    sh_supervisor_rules rules = {.target = sh_pool_worker_main,
                                 .start = start,
                                 .name = "worker",
                                 .waits_for = SH_WAITS_POOL,
                                 .owner = pool,
                                 .args = pool->worker_args,
                                 .ended = worker_ended,
                                 .is_ready = is_ready,
                                 .failed_starts = 2 * pool->count + 2,
                                 .patient = true};
    shoal_err err = sh_supervisor_create(&rules, pool->count, &pool->workers);
    return err == SHOAL_OK ? sh_supervisor_start(pool->workers) : err;
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

static void take_in(shoal_pool *pool, const sh_taken *t)
{
    if (t->kind == SH_ENTRY_BLOCK) {
        sh_pool_task *e = t->block->kind == SH_KIND_TASK ? t->block->extra : NULL;
        uint32_t state = e != NULL ? sh_load_acquire(&sh_pool_work_of(t->block)->state) : SH_POOL_WORK_PENDING;
        if (state == SH_POOL_WORK_DONE || state == SH_POOL_WORK_FAILED) {
            finish_task(pool, e, state == SH_POOL_WORK_DONE);
        }
        sh_block_release(t->block);
        return;
    }
    int rank = (int)(uint32_t)t->word;
    if (t->kind == SH_ENTRY_INT && rank >= 0 && rank < pool->count && sh_supervisor_runs(pool->workers, rank) &&
        (int64_t)t->word == sh_pool_worker_notice(sh_supervisor_process(pool->workers, rank)->pid, rank)) {
        /* The worker retires: another can start while it ends. A notice of a worker that has already been joined is
         * ignored. */
        sh_supervisor_retire(pool->workers, rank);
        sh_store_release(&pool->ready[rank], 0);
        pool->looked_at = 0;
    }
}

/* Receives one answer, if one is there. */
static bool take_answer(shoal_pool *pool)
{
    sh_taken t;
    size_t unused;
    bool got = sh_queue_ready(pool->answers) &&
               sh_queue_get_word((shoal_block *)pool->answers, SH_WANT_ANY, 0, SHOAL_NOW, &t, &unused) == SHOAL_OK;
    if (got) {
        take_in(pool, &t);
    }
    return got;
}

void sh_pool_poll(shoal_pool *pool)
{
    if (sh_pool_check_world(pool) != SHOAL_OK) {
        return;
    }
    while (!pool->waiting && take_answer(pool)) {
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
    if (sh_pool_check_world(pool) == SHOAL_OK && (!take_answer(pool) || sh_now() - pool->looked_at >= LOOK_INTERVAL)) {
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
