/* Conditions: a recursive lock, and a queue of waiters.
 *
 * A waiter is a small block with a word to park on. A notifier changes it WAITING -> NOTIFIED; the waiter itself
 * changes it WAITING -> CANCELLED when its time runs out. The waiter puts a handle to the block into the queue while it
 * holds the lock. notify, which holds the lock too, marks the oldest waiter and then takes it out. So notify(n) reaches
 * the n oldest waiters and no later ones, and there is no thundering herd.
 *
 * death: a notifier that dies between marking and taking leaves a marked waiter in the queue: the next notifier skips
 * it. A waiter that dies leaves its block: the notifier sees that its owner is dead and skips it. A waiter that dies
 * after it was notified and before it has the lock again leaves a notice that nobody acted on: recovery counts it in
 * the condition, and the next waiter whose slice is over passes it on. Recovery passes on the lock itself. */
#include "base/death.h"

#include "base/error.h"
#include "base/interrupt.h"
#include "ipc/queue.h"
#include "shm/slot.h"
#include "shm/waits.h"
#include "sync/rlock.h"

#include <shoal/sync.h>

#include <limits.h>
#include <stdlib.h>

#define PURGE_FROM 16 /* with this many entries in the queue after a timeout, remove those that are dead */

static sh_condition_shm *shm_of(const shoal_block *b)
{
    return (sh_condition_shm *)b->data;
}

static sh_rlock_shm *lock_of(const shoal_block *b)
{
    return (sh_rlock_shm *)b->parts[0]->data;
}

static shoal_queue *waiters_of(const shoal_block *b)
{
    return (shoal_queue *)b->parts[1];
}

shoal_err shoal_condition_create(shoal_condition **out_condition)
{
    if (out_condition == NULL) {
        return sh_null_error("shoal_condition_create", "out_condition");
    }
    shoal_block *b = NULL, *lock = NULL;
    shoal_queue *waiters = NULL;
    shoal_err err =
        sh_object_create(sh_class_of(sizeof(sh_condition_shm)), sizeof(sh_condition_shm), SH_KIND_CONDITION, &b);
    if (err == SHOAL_OK) {
        err = shoal_rlock_create((shoal_rlock **)&lock);
    }
    if (err == SHOAL_OK) {
        err = shoal_queue_create(0, &waiters);
    }
    if (err == SHOAL_OK) {
        b->parts[0] = lock;
        ((sh_rlock_shm *)lock->data)->lock.name = sh_waits_name(SH_WAITS_CONDITION_LOCK, b->id);
        b->parts[1] = (shoal_block *)waiters;
        sh_ctx *c = sh_enter();
        err = c == NULL ? shoal_last_error() : sh_block_give(c, lock, sh_offset_of(&shm_of(b)->lock));
        if (err == SHOAL_OK) {
            err = sh_block_give(c, (shoal_block *)waiters, sh_offset_of(&shm_of(b)->waiters));
        }
        if (c != NULL) {
            sh_leave();
        }
    } else {
        sh_block_release(lock);
    }
    if (err != SHOAL_OK) {
        sh_block_release(b);
        return err;
    }
    *out_condition = (shoal_condition *)b;
    return SHOAL_OK;
}

/* Opens handles for the lock and the queue of a condition that was received. */
static shoal_err prepare(shoal_condition *condition, const char *call)
{
    shoal_block *b = (shoal_block *)condition;
    sh_ctx *c = sh_enter_held();
    if (c == NULL) {
        return shoal_last_error();
    }
    shoal_err err = sh_block_require(b, SH_KIND_CONDITION, call);
    if (err == SHOAL_OK && b->parts[0] == NULL) {
        err = sh_block_open(c, sh_ref_id(sh_load_acquire(&shm_of(b)->lock)), &b->parts[0]);
    }
    if (err == SHOAL_OK && b->parts[1] == NULL) {
        err = sh_block_open(c, sh_ref_id(sh_load_acquire(&shm_of(b)->waiters)), &b->parts[1]);
    }
    if (err == SHOAL_OK && (b->parts[0]->kind != SH_KIND_RLOCK || b->parts[1]->kind != SH_KIND_QUEUE)) {
        err = sh_fail(SHOAL_ECORRUPT, "condition %llu is damaged", (unsigned long long)b->id);
    }
    sh_leave();
    return err;
}

static shoal_err prepare_held(shoal_condition *condition, const char *call)
{
    SH_TRY(prepare(condition, call));
    if (!sh_rlock_held(lock_of((shoal_block *)condition))) {
        return sh_fail(SHOAL_EPERM, "this thread does not hold the condition's lock");
    }
    return SHOAL_OK;
}

shoal_err shoal_condition_lock(shoal_condition *condition, int64_t timeout)
{
    SH_TRY(prepare(condition, "shoal_condition_lock"));
    return sh_rlock_lock(lock_of((shoal_block *)condition), timeout);
}

shoal_err shoal_condition_lock_consistent(shoal_condition *condition, int64_t timeout)
{
    SH_TRY(prepare(condition, "shoal_condition_lock_consistent"));
    return sh_rlock_lock_consistent(lock_of((shoal_block *)condition), timeout);
}

shoal_err shoal_condition_mark_consistent(shoal_condition *condition)
{
    SH_TRY(prepare_held(condition, "shoal_condition_mark_consistent"));
    return sh_rlock_mark_consistent(lock_of((shoal_block *)condition));
}

shoal_err shoal_condition_unlock(shoal_condition *condition)
{
    SH_TRY(prepare(condition, "shoal_condition_unlock"));
    return sh_rlock_unlock(lock_of((shoal_block *)condition));
}

/* The lock of a condition, for calls that cannot fail: NULL, and the last error stays. */
static shoal_rlock *rlock_or_null(shoal_condition *condition, const char *call)
{
    shoal_rlock *lock = NULL;
    sh_cleanup_begin();
    if (condition != NULL && prepare(condition, call) == SHOAL_OK) {
        lock = (shoal_rlock *)((shoal_block *)condition)->parts[0];
    }
    sh_cleanup_end();
    return lock;
}

bool shoal_condition_owner_died(shoal_condition *condition)
{
    return shoal_rlock_owner_died(rlock_or_null(condition, "shoal_condition_owner_died"));
}

shoal_holder shoal_condition_holder(shoal_condition *condition, uint32_t *out_depth)
{
    return shoal_rlock_holder(rlock_or_null(condition, "shoal_condition_holder"), out_depth);
}

static bool is_of_use(const sh_found *f)
{
    sh_waiter_shm *w = (sh_waiter_shm *)f->data;
    return f->size >= sizeof *w && sh_load_acquire(&w->state) == SH_WAITER_WAITING &&
           !sh_owner_is_dead(sh_load_relaxed(&w->owner));
}

/* Takes out the oldest entry of the queue. The caller holds the lock, so it is the entry that it looked at. */
static shoal_err take_out(shoal_queue *waiters)
{
    shoal_block *b;
    shoal_err err = shoal_queue_get_block(waiters, SHOAL_NOW, &b);
    if (err == SHOAL_OK) {
        sh_block_release(b);
    }
    return err == SHOAL_ECORRUPT ? SHOAL_OK : err; /* a corrupt entry was taken out, too */
}

/* After a timeout: removes useless entries and keeps the order of the others. A waiter is put at the end before it is
 * taken from the front: a death in between leaves it twice, which is harmless. If there is no memory for that, the rest
 * stays. */
static void purge(shoal_queue *waiters)
{
    uint64_t n = shoal_queue_size(waiters);
    sh_found f;
    for (uint64_t i = 0; n >= PURGE_FROM && i < n && sh_queue_peek_block(waiters, &f); i++) {
        if (is_of_use(&f)) {
            shoal_block *b;
            if (sh_queue_open_oldest(waiters, &b) != SHOAL_OK) {
                return;
            }
            shoal_err err = shoal_queue_put_block(waiters, b, SHOAL_NOW);
            sh_block_release(b);
            if (err != SHOAL_OK) {
                return;
            }
        }
        SH_DEATH("condition.purge.twice");
        if (take_out(waiters) != SHOAL_OK) {
            return;
        }
    }
}

/* Marks the waiter. Returns false if the notice is for another waiter. The waiter may die at any time, and its recovery
 * takes back what was marked before (kind.c). If recovery has already passed this waiter, this call takes it back
 * itself; one CAS decides who does. */
static bool mark(sh_waiter_shm *w)
{
    uint32_t waiting = SH_WAITER_WAITING, notified = SH_WAITER_NOTIFIED;
    SH_DEATH("condition.notify.looked"); /* a stop here may last until the waiter is dead and recovered */
    if (!sh_cas_seq_cst(&w->state, &waiting, SH_WAITER_NOTIFIED)) {
        return false;
    }
    return !sh_owner_is_being_recovered(sh_load_relaxed(&w->owner)) ||
           !sh_cas_acq_rel(&w->state, &notified, SH_WAITER_LOST);
}

/* Marks and wakes up to *count of the oldest waiters, and subtracts them from *count. The caller holds the lock. */
static shoal_err notify(const shoal_block *b, uint32_t *count)
{
    sh_found f;
    while (*count > 0 && sh_queue_peek_block(waiters_of(b), &f)) {
        sh_waiter_shm *w = (sh_waiter_shm *)f.data;
        if (is_of_use(&f) && mark(w)) {
            SH_DEATH("condition.notify.marked");
            sh_gate_wake(&w->gate, INT_MAX);
            --*count;
        }
        SH_DEATH("condition.notify.unqueued");
        SH_TRY(take_out(waiters_of(b)));
    }
    return SHOAL_OK;
}

/* Passes notices whose receivers died on to other waiters. */
static void hand_on_lost(const shoal_block *b)
{
    if (sh_load_acquire(&shm_of(b)->lost) == 0 || sh_rlock_lock(lock_of(b), SHOAL_NOW) != SHOAL_OK) {
        return; /* nothing to do, or a holder that is working; check again after the next slice */
    }
    uint32_t lost = sh_swap_acq_rel(&shm_of(b)->lost, 0);
    if (notify(b, &lost) != SHOAL_OK) {
        sh_add_acq_rel(&shm_of(b)->lost, lost);
    }
    (void)sh_rlock_unlock_all(lock_of(b));
}

/* Parks until notified. Returns true if it was, false if its time ran out first. */
static bool wait_for_notice(const shoal_block *b, sh_waiter_shm *w, int64_t timeout)
{
    sh_wait wait;
    sh_wait_init(&wait, timeout, SH_SLICE_LONG, b->data);
    wait.name = sh_waits_name(SH_WAITS_CONDITION, b->id);
    for (;;) {
        if (sh_load_acquire(&w->state) == SH_WAITER_NOTIFIED) { /* pairs with the CAS in mark */
            return true;
        }
        if (sh_wait_spin(&wait)) {
            continue;
        }
        uint32_t prepared = sh_gate_prepare(&w->gate);
        if (sh_load_acquire(&w->state) == SH_WAITER_NOTIFIED) {
            return true;
        }
        if (!sh_wait_park(&wait, &w->gate, prepared)) {
            uint32_t waiting = SH_WAITER_WAITING;
            return !sh_cas_acq_rel(&w->state, &waiting, SH_WAITER_CANCELLED);
        }
        hand_on_lost(b);
    }
}

shoal_err shoal_condition_wait(shoal_condition *condition, int64_t timeout)
{
    shoal_block *b = (shoal_block *)condition, *mine;
    shoal_err err = prepare_held(condition, "shoal_condition_wait");
    if (err == SHOAL_OK) {
        err = sh_object_create(sh_class_of(sizeof(sh_waiter_shm)), sizeof(sh_waiter_shm), SH_KIND_WAITER, &mine);
    }
    if (err != SHOAL_OK) {
        return err;
    }
    sh_waiter_shm *w = (sh_waiter_shm *)mine->data;
    sh_store_relaxed(&w->owner, sh_peers_now->self());
    sh_store_relaxed(&w->condition, b->id);
    err = shoal_queue_put_block(waiters_of(b), mine, SHOAL_NOW);
    if (err != SHOAL_OK) {
        sh_block_release(mine);
        return err;
    }
    SH_DEATH(
        "condition.wait.queued"); /* death: it holds the lock; recovery passes it on, and notify skips this waiter */
    uint32_t depth = sh_rlock_unlock_all(lock_of(b));
    bool notified = wait_for_notice(b, w, timeout);
    SH_DEATH("condition.wait.woken"); /* death: recovery sees NOTIFIED and the owner, and counts the notice as lost */
    sh_interrupt suspended = sh_interrupt_suspend(); /* the caller must hold the lock again, whatever happened */
    err = sh_rlock_lock_depth(lock_of(b), depth, SHOAL_FOREVER);
    sh_interrupt_resume(suspended);
    if (notified) {
        sh_store_release(&w->state, SH_WAITER_DONE);
    } else {
        purge(waiters_of(b));
    }
    sh_block_release(mine);
    SH_TRY(err);
    return notified ? SHOAL_OK : sh_fail_waiting(timeout, "the condition was not notified");
}

shoal_err shoal_condition_notify(shoal_condition *condition, uint32_t count)
{
    SH_TRY(prepare_held(condition, "shoal_condition_notify"));
    return notify((shoal_block *)condition, &count);
}

shoal_err shoal_condition_notify_all(shoal_condition *condition)
{
    SH_NEED(condition);
    return shoal_condition_notify(condition, UINT32_MAX);
}
