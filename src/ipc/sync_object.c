/* Locks, semaphores, events and barriers as shared objects: blocks of a separate size class, where recovery finds
 * them. */
#include "shm/block.h"
#include "shm/waits.h"
#include "sync/barrier.h"
#include "sync/event.h"
#include "sync/lock.h"
#include "sync/rlock.h"
#include "sync/semaphore.h"

#include <shoal/sync.h>

static shoal_err make(sh_kind kind, shoal_block **out_block)
{
    return sh_object_create(SH_CLASS_SYNC, SH_SYNC_SIZE, kind, out_block);
}

/* For calls that cannot fail: if the object is NULL or does not belong to this process, they do nothing and return
 * zero. They do not change the last error. A handle that is lost or was left behind has no kind. */
static inline bool is_ours(const void *object, sh_kind kind)
{
    const shoal_block *block = object;
    bool ours =
        block != NULL && block->magic == SH_HANDLE_MAGIC && block->kind == kind && sh_attachment_now() == SH_ATTACHED;
    return __builtin_expect(ours, 1);
}

/* Returns the error of a call for an object that is not ours. The callers jump to it, or to what they do for their own,
 * and save no registers: a locked instruction waits for stores before it. */
static __attribute__((noinline, cold)) shoal_err refuse(const void *object, sh_kind kind, const char *call)
{
    SH_TRY(sh_block_require(object, kind, call));
    return sh_fail(SHOAL_ESTATE, "%s: this process is not in the world of the object", call);
}

static void *data_of(const void *object)
{
    return ((const shoal_block *)object)->data;
}

static shoal_holder holder_of(sh_owner owner)
{
    return owner == 0 ? SHOAL_HOLDER_NONE : owner == sh_peers_now->self() ? SHOAL_HOLDER_SELF : SHOAL_HOLDER_OTHER;
}

shoal_err shoal_lock_create(shoal_lock **out_lock)
{
    if (out_lock == NULL) {
        return sh_null_error("shoal_lock_create", "out_lock");
    }
    shoal_block *b;
    SH_TRY(make(SH_KIND_LOCK, &b));
    sh_lock_format(data_of(b));
    ((sh_lock_shm *)data_of(b))->name = sh_waits_name(SH_WAITS_LOCK, b->id);
    *out_lock = (shoal_lock *)b;
    return SHOAL_OK;
}

shoal_err shoal_lock_lock(shoal_lock *lock, int64_t timeout)
{
    return is_ours(lock, SH_KIND_LOCK) ? sh_lock_lock(data_of(lock), timeout)
                                       : refuse(lock, SH_KIND_LOCK, "shoal_lock_lock");
}

shoal_err shoal_lock_lock_consistent(shoal_lock *lock, int64_t timeout)
{
    return is_ours(lock, SH_KIND_LOCK) ? sh_lock_lock_consistent(data_of(lock), timeout)
                                       : refuse(lock, SH_KIND_LOCK, "shoal_lock_lock_consistent");
}

bool shoal_lock_owner_died(shoal_lock *lock)
{
    return is_ours(lock, SH_KIND_LOCK) && sh_lock_owner_died(data_of(lock));
}

shoal_err shoal_lock_mark_consistent(shoal_lock *lock)
{
    return is_ours(lock, SH_KIND_LOCK) ? sh_lock_mark_consistent(data_of(lock))
                                       : refuse(lock, SH_KIND_LOCK, "shoal_lock_mark_consistent");
}

shoal_err shoal_lock_unlock(shoal_lock *lock)
{
    return is_ours(lock, SH_KIND_LOCK) ? sh_lock_unlock(data_of(lock))
                                       : refuse(lock, SH_KIND_LOCK, "shoal_lock_unlock");
}

shoal_holder shoal_lock_holder(shoal_lock *lock)
{
    return is_ours(lock, SH_KIND_LOCK) ? holder_of(sh_lock_owner(data_of(lock))) : SHOAL_HOLDER_NONE;
}

shoal_err shoal_rlock_create(shoal_rlock **out_rlock)
{
    if (out_rlock == NULL) {
        return sh_null_error("shoal_rlock_create", "out_rlock");
    }
    shoal_block *b;
    SH_TRY(make(SH_KIND_RLOCK, &b));
    sh_rlock_format(data_of(b));
    ((sh_rlock_shm *)data_of(b))->lock.name = sh_waits_name(SH_WAITS_RLOCK, b->id);
    *out_rlock = (shoal_rlock *)b;
    return SHOAL_OK;
}

shoal_err shoal_rlock_lock(shoal_rlock *rlock, int64_t timeout)
{
    return is_ours(rlock, SH_KIND_RLOCK) ? sh_rlock_lock(data_of(rlock), timeout)
                                         : refuse(rlock, SH_KIND_RLOCK, "shoal_rlock_lock");
}

shoal_err shoal_rlock_lock_consistent(shoal_rlock *rlock, int64_t timeout)
{
    return is_ours(rlock, SH_KIND_RLOCK) ? sh_rlock_lock_consistent(data_of(rlock), timeout)
                                         : refuse(rlock, SH_KIND_RLOCK, "shoal_rlock_lock_consistent");
}

bool shoal_rlock_owner_died(shoal_rlock *rlock)
{
    return is_ours(rlock, SH_KIND_RLOCK) && sh_rlock_owner_died(data_of(rlock));
}

shoal_err shoal_rlock_mark_consistent(shoal_rlock *rlock)
{
    return is_ours(rlock, SH_KIND_RLOCK) ? sh_rlock_mark_consistent(data_of(rlock))
                                         : refuse(rlock, SH_KIND_RLOCK, "shoal_rlock_mark_consistent");
}

shoal_err shoal_rlock_unlock(shoal_rlock *rlock)
{
    return is_ours(rlock, SH_KIND_RLOCK) ? sh_rlock_unlock(data_of(rlock))
                                         : refuse(rlock, SH_KIND_RLOCK, "shoal_rlock_unlock");
}

shoal_holder shoal_rlock_holder(shoal_rlock *rlock, uint32_t *out_depth)
{
    bool ours = is_ours(rlock, SH_KIND_RLOCK);
    if (out_depth != NULL) {
        *out_depth = ours ? sh_rlock_depth(data_of(rlock)) : 0;
    }
    return ours ? holder_of(sh_rlock_owner(data_of(rlock))) : SHOAL_HOLDER_NONE;
}

shoal_err shoal_semaphore_create(uint32_t value, uint32_t bound, shoal_semaphore **out_semaphore)
{
    if (out_semaphore == NULL) {
        return sh_null_error("shoal_semaphore_create", "out_semaphore");
    }
    shoal_block *b;
    SH_TRY(make(SH_KIND_SEMAPHORE, &b));
    shoal_err err = sh_semaphore_format(data_of(b), value, bound);
    if (err != SHOAL_OK) {
        sh_block_release(b);
        return err;
    }
    ((sh_semaphore_shm *)data_of(b))->name = sh_waits_name(SH_WAITS_SEMAPHORE, b->id);
    *out_semaphore = (shoal_semaphore *)b;
    return SHOAL_OK;
}

shoal_err shoal_semaphore_wait(shoal_semaphore *semaphore, int64_t timeout)
{
    return is_ours(semaphore, SH_KIND_SEMAPHORE) ? sh_semaphore_wait(data_of(semaphore), timeout)
                                                 : refuse(semaphore, SH_KIND_SEMAPHORE, "shoal_semaphore_wait");
}

shoal_err shoal_semaphore_post(shoal_semaphore *semaphore, uint32_t count)
{
    return is_ours(semaphore, SH_KIND_SEMAPHORE) ? sh_semaphore_post(data_of(semaphore), count)
                                                 : refuse(semaphore, SH_KIND_SEMAPHORE, "shoal_semaphore_post");
}

uint32_t shoal_semaphore_value(shoal_semaphore *semaphore)
{
    return is_ours(semaphore, SH_KIND_SEMAPHORE) ? sh_semaphore_value(data_of(semaphore)) : 0;
}

shoal_err shoal_event_create(shoal_event **out_event)
{
    if (out_event == NULL) {
        return sh_null_error("shoal_event_create", "out_event");
    }
    shoal_block *b;
    SH_TRY(make(SH_KIND_EVENT, &b));
    sh_event_format(data_of(b));
    ((sh_event_shm *)data_of(b))->name = sh_waits_name(SH_WAITS_EVENT, b->id);
    *out_event = (shoal_event *)b;
    return SHOAL_OK;
}

void shoal_event_set(shoal_event *event)
{
    if (is_ours(event, SH_KIND_EVENT)) {
        sh_event_set(data_of(event));
    }
}

void shoal_event_clear(shoal_event *event)
{
    if (is_ours(event, SH_KIND_EVENT)) {
        sh_event_clear(data_of(event));
    }
}

bool shoal_event_is_set(shoal_event *event)
{
    return is_ours(event, SH_KIND_EVENT) && sh_event_is_set(data_of(event));
}

shoal_err shoal_event_wait(shoal_event *event, int64_t timeout)
{
    return is_ours(event, SH_KIND_EVENT) ? sh_event_wait(data_of(event), timeout)
                                         : refuse(event, SH_KIND_EVENT, "shoal_event_wait");
}

shoal_err shoal_barrier_create(uint32_t parties, shoal_barrier **out_barrier)
{
    if (out_barrier == NULL) {
        return sh_null_error("shoal_barrier_create", "out_barrier");
    }
    shoal_block *b;
    SH_TRY(make(SH_KIND_BARRIER, &b));
    shoal_err err = sh_barrier_format(data_of(b), parties);
    if (err != SHOAL_OK) {
        sh_block_release(b);
        return err;
    }
    ((sh_barrier_shm *)data_of(b))->name = sh_waits_name(SH_WAITS_BARRIER, b->id);
    *out_barrier = (shoal_barrier *)b;
    return SHOAL_OK;
}

/* Makes this process a party of the barrier. A process is a party if it waits at the barrier, or got it as an argument
 * or in a message; one that only inherited it is not. */
static shoal_err take_part(shoal_barrier *barrier)
{
    shoal_block *b = (shoal_block *)barrier;
    shoal_err err = sh_block_require(b, SH_KIND_BARRIER, "shoal_barrier_wait");
    if (err != SHOAL_OK || !b->inherited) {
        return err;
    }
    sh_ctx *c = sh_enter_held();
    if (c == NULL) {
        return shoal_last_error();
    }
    err = sh_block_own(c, b);
    sh_leave();
    return err;
}

shoal_err shoal_barrier_wait(shoal_barrier *barrier, int64_t timeout, uint32_t *out_index)
{
    uint32_t index;
    SH_TRY(take_part(barrier));
    return sh_barrier_wait(data_of(barrier), timeout, out_index != NULL ? out_index : &index);
}

void shoal_barrier_abort(shoal_barrier *barrier)
{
    if (is_ours(barrier, SH_KIND_BARRIER)) {
        sh_barrier_abort(data_of(barrier));
    }
}

void shoal_barrier_reset(shoal_barrier *barrier)
{
    if (is_ours(barrier, SH_KIND_BARRIER)) {
        sh_barrier_reset(data_of(barrier));
    }
}

bool shoal_barrier_is_broken(shoal_barrier *barrier)
{
    return !is_ours(barrier, SH_KIND_BARRIER) || sh_barrier_is_broken(data_of(barrier));
}

uint32_t shoal_barrier_waiting(shoal_barrier *barrier)
{
    return is_ours(barrier, SH_KIND_BARRIER) ? sh_barrier_waiting(data_of(barrier)) : 0;
}
