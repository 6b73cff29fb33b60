/* Locks, semaphores, conditions, events and barriers that the processes of a world share.
 *
 * They behave like those of Python's multiprocessing. They are shared objects: they can be sent in values, they work
 * with every start method, and shoal_release drops a reference. A blocking call spins for a short time while its peer
 * is likely to be running, and then sleeps.
 *
 * If the holder of a lock, a recursive lock or a condition's lock dies, the next process that locks it gets it, with
 * SHOAL_OK. What the lock protects may then be half changed. shoal_lock_owner_died says so to every later holder, until
 * one has repaired the data and calls shoal_lock_mark_consistent. A program that never wants to work on such data locks
 * with shoal_lock_lock_consistent.
 *
 * All calls here are thread-safe. Each create gives the caller one reference, does not block, and fails with the
 * errors of shoal_block_create. The other calls that return shoal_err also fail with SHOAL_EINVAL for NULL, and with
 * SHOAL_EFORK (error.h).
 */
#ifndef SHOAL_SYNC_H
#define SHOAL_SYNC_H

#include <shoal/block.h>
#include <shoal/time.h>

#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Who holds a lock. A process that died holding it counts until the lock has been passed on. */
typedef enum shoal_holder {
    SHOAL_HOLDER_NONE = 0, /* nobody: it is not locked */
    SHOAL_HOLDER_SELF,     /* this process */
    SHOAL_HOLDER_OTHER,    /* another process */
} shoal_holder;

/* Makes a lock, which is not recursive. The caller owns one reference. The process that locks it is its holder. If
 * the holder ends, the next process that locks it gets it. Does not block. Thread-safe. Errors: those of
 * shoal_block_create. */
SHOAL_MUST_USE shoal_err shoal_lock_create(shoal_lock **out_lock);

/* Locks a lock. Blocks while it is locked, at most for timeout. A lock whose holder died is locked like any other.
 * Thread-safe. Errors: SHOAL_ETIMEDOUT. */
SHOAL_MUST_USE shoal_err shoal_lock_lock(shoal_lock *lock, int64_t timeout);

/* Locks a lock, unless a holder has died with it and nobody has marked it consistent since. Otherwise like
 * shoal_lock_lock. Errors: SHOAL_EOWNERDEAD if a holder died; SHOAL_ETIMEDOUT. */
SHOAL_MUST_USE shoal_err shoal_lock_lock_consistent(shoal_lock *lock, int64_t timeout);

/* Returns whether a process has died while it held a lock, and nobody has marked the lock consistent since. A dead
 * process counts once its lock has been released or passed on. If the caller holds the lock, nobody else changes the
 * answer. false for NULL. Does not block. Thread-safe. */
bool shoal_lock_owner_died(shoal_lock *lock);

/* Marks a lock consistent: the caller has repaired what the lock protects. Repair first, then mark: if the caller dies
 * in between, the next holder repairs it. Does nothing if no holder died. Does not block. Errors: SHOAL_EPERM if this
 * process does not hold the lock. */
SHOAL_MUST_USE shoal_err shoal_lock_mark_consistent(shoal_lock *lock);

/* Unlocks a lock. As in Python, any thread of any process may do so, not only the one that locked it. Does not block.
 * Errors: SHOAL_ESTATE if it is not locked. */
SHOAL_MUST_USE shoal_err shoal_lock_unlock(shoal_lock *lock);

/* Returns who holds a lock; it may be out of date at once, unless it is the caller. SHOAL_HOLDER_NONE for NULL. Does
 * not block. Thread-safe. */
shoal_holder shoal_lock_holder(shoal_lock *lock);

/* Makes a recursive lock: the thread that holds it may lock it again, and must unlock it as often. The caller owns
 * one reference. Does not block. Thread-safe. Errors: those of shoal_block_create. */
SHOAL_MUST_USE shoal_err shoal_rlock_create(shoal_rlock **out_rlock);

/* Locks a recursive lock. Blocks while another thread holds it, at most for timeout. Thread-safe. Errors:
 * SHOAL_ETIMEDOUT; SHOAL_ESTATE if the caller holds it 2^32 - 1 times. */
SHOAL_MUST_USE shoal_err shoal_rlock_lock(shoal_rlock *rlock, int64_t timeout);

/* Locks a recursive lock, unless a holder has died with it, like shoal_lock_lock_consistent. A thread that holds it
 * already locks it once more in any case. Errors: those of shoal_rlock_lock; SHOAL_EOWNERDEAD. */
SHOAL_MUST_USE shoal_err shoal_rlock_lock_consistent(shoal_rlock *rlock, int64_t timeout);

/* Returns whether a process has died while it held a recursive lock, like shoal_lock_owner_died. */
bool shoal_rlock_owner_died(shoal_rlock *rlock);

/* Marks a recursive lock consistent, like shoal_lock_mark_consistent. Errors: SHOAL_EPERM if this thread does not hold
 * it. */
SHOAL_MUST_USE shoal_err shoal_rlock_mark_consistent(shoal_rlock *rlock);

/* Unlocks a recursive lock once. Does not block. Errors: SHOAL_EPERM if this thread does not hold it. */
SHOAL_MUST_USE shoal_err shoal_rlock_unlock(shoal_rlock *rlock);

/* Returns who holds a recursive lock, like shoal_lock_holder. *out_depth is how many times the calling thread holds it,
 * 0 if it does not; out_depth may be NULL. Does not block. Thread-safe. */
shoal_holder shoal_rlock_holder(shoal_rlock *rlock, uint32_t *out_depth);

/* Makes a semaphore with an initial value. If bound is not 0, it is the largest value that the semaphore may have
 * (Python's BoundedSemaphore). The caller owns one reference. A semaphore has no owner: if a process is killed, the
 * units that it took stay taken. Does not block. Thread-safe. Errors: those of shoal_block_create; SHOAL_EINVAL if
 * value is over the bound. */
SHOAL_MUST_USE shoal_err shoal_semaphore_create(uint32_t value, uint32_t bound, shoal_semaphore **out_semaphore);

/* Takes one unit from a semaphore. Blocks while its value is 0, at most for timeout. Thread-safe. Errors:
 * SHOAL_ETIMEDOUT. */
SHOAL_MUST_USE shoal_err shoal_semaphore_wait(shoal_semaphore *semaphore, int64_t timeout);

/* Adds count units to a semaphore. Does not block. Thread-safe. Errors: SHOAL_ESTATE if the value would exceed its
 * bound. */
SHOAL_MUST_USE shoal_err shoal_semaphore_post(shoal_semaphore *semaphore, uint32_t count);

/* Returns the value of a semaphore; 0 for NULL. Does not block. Thread-safe. */
uint32_t shoal_semaphore_value(shoal_semaphore *semaphore);

/* Makes a condition, with a recursive lock of its own. The caller owns one reference. Does not block. Thread-safe.
 * Errors: those of shoal_block_create. */
SHOAL_MUST_USE shoal_err shoal_condition_create(shoal_condition **out_condition);

/* Locks a condition's lock, like shoal_rlock_lock. */
SHOAL_MUST_USE shoal_err shoal_condition_lock(shoal_condition *condition, int64_t timeout);

/* Locks a condition's lock, unless a holder has died with it, like shoal_rlock_lock_consistent. */
SHOAL_MUST_USE shoal_err shoal_condition_lock_consistent(shoal_condition *condition, int64_t timeout);

/* Returns whether a process has died while it held a condition's lock, like shoal_lock_owner_died. */
bool shoal_condition_owner_died(shoal_condition *condition);

/* Marks a condition's lock consistent, like shoal_rlock_mark_consistent. */
SHOAL_MUST_USE shoal_err shoal_condition_mark_consistent(shoal_condition *condition);

/* Unlocks a condition's lock, like shoal_rlock_unlock. */
SHOAL_MUST_USE shoal_err shoal_condition_unlock(shoal_condition *condition);

/* Returns who holds a condition's lock, like shoal_rlock_holder. */
shoal_holder shoal_condition_holder(shoal_condition *condition, uint32_t *out_depth);

/* Waits until a condition is notified. The caller must hold the lock. The call unlocks it, waits at most for timeout,
 * and locks it again, after SHOAL_ETIMEDOUT too. Locking it again may take longer than timeout. If a process died with
 * the lock in the meantime, shoal_condition_owner_died is true afterwards. Errors: SHOAL_ETIMEDOUT; SHOAL_EPERM if the
 * caller does not hold the lock; SHOAL_ENOMEM. */
SHOAL_MUST_USE shoal_err shoal_condition_wait(shoal_condition *condition, int64_t timeout);

/* Wakes at most count waiters of a condition, the oldest first. Only those who already wait are woken; dead waiters
 * do not count. The caller must hold the lock. Does not block. Errors: SHOAL_EPERM if the caller does not hold the
 * lock. */
SHOAL_MUST_USE shoal_err shoal_condition_notify(shoal_condition *condition, uint32_t count);

/* Wakes all waiters of a condition. Otherwise like shoal_condition_notify. */
SHOAL_MUST_USE shoal_err shoal_condition_notify_all(shoal_condition *condition);

/* Makes an event: a flag, clear at first, that can be set, cleared and waited for. The caller owns one reference.
 * Does not block. Thread-safe. Errors: those of shoal_block_create. */
SHOAL_MUST_USE shoal_err shoal_event_create(shoal_event **out_event);

/* Sets an event and wakes everyone who waits for it. Does not block. Thread-safe. */
void shoal_event_set(shoal_event *event);

/* Clears an event. Does not block. Thread-safe. */
void shoal_event_clear(shoal_event *event);

/* Returns whether an event is set; false for NULL. Does not block. Thread-safe. */
bool shoal_event_is_set(shoal_event *event);

/* Waits until an event is set. Blocks at most for timeout. Thread-safe. Errors: SHOAL_ETIMEDOUT. */
SHOAL_MUST_USE shoal_err shoal_event_wait(shoal_event *event, int64_t timeout);

/* Makes a barrier for a number of parties (threads or processes), at least 1. The caller owns one reference. Does not
 * block. Thread-safe. Errors: those of shoal_block_create; SHOAL_EINVAL if parties is out of range. */
SHOAL_MUST_USE shoal_err shoal_barrier_create(uint32_t parties, shoal_barrier **out_barrier);

/* Waits until all parties of a barrier wait. Then all of them return together, each with another number from 0 to
 * parties - 1 in *out_index, which may be NULL. The party that came last gets parties - 1. Blocks at most for
 * timeout. Thread-safe.
 *
 * The barrier breaks if a party times out, calls abort or dies. A killed process counts as a party that will not come
 * if it made the barrier, received it, or has waited at it; a process that only inherited the barrier by fork does
 * not count. A broken barrier stays broken until shoal_barrier_reset. Errors: SHOAL_ETIMEDOUT for the party whose own
 * timeout passed; SHOAL_EBROKEN for all others. */
SHOAL_MUST_USE shoal_err shoal_barrier_wait(shoal_barrier *barrier, int64_t timeout, uint32_t *out_index);

/* Breaks a barrier: everyone who waits there, now or later, gets SHOAL_EBROKEN. Does not block. Thread-safe. */
void shoal_barrier_abort(shoal_barrier *barrier);

/* Makes a broken barrier usable again. Everyone who waits at that moment gets SHOAL_EBROKEN. Does not block.
 * Thread-safe. */
void shoal_barrier_reset(shoal_barrier *barrier);

/* Returns whether a barrier is broken; false for NULL. Does not block. Thread-safe. */
bool shoal_barrier_is_broken(shoal_barrier *barrier);

/* Returns the number of parties that wait at a barrier; 0 for NULL. Does not block. Thread-safe. */
uint32_t shoal_barrier_waiting(shoal_barrier *barrier);

#ifdef __cplusplus
}
#endif
#endif
