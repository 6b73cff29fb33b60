/* Locks and their kin, in shared memory: from any process of the world, whatever its start method.
 *
 * The rules are those of Python's multiprocessing. All live in the heap, can be sent in values, and are given back
 * with shoal_release. Each blocking call spins a little while the peer is likely to be running, then parks. A lock
 * whose holder died is handed on: the next holder has it, and is told so once by SHOAL_EOWNERDEAD.
 */
#ifndef SHOAL_SYNC_H
#define SHOAL_SYNC_H

#include <shoal/block.h>
#include <shoal/time.h>

#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Locks, not recursive. A lock may be unlocked by another thread or process than the one that locked it, as in Python. Its
 * holder is the process that locked it: when that ends, the lock is handed on. lock: SHOAL_OK, SHOAL_EOWNERDEAD (you
 * hold it), SHOAL_ETIMEDOUT. unlock: SHOAL_ESTATE when it is not locked. */
SHOAL_MUST_USE shoal_err shoal_lock_create(shoal_lock **out_lock);
SHOAL_MUST_USE shoal_err shoal_lock_lock(shoal_lock *lock, int64_t timeout);
SHOAL_MUST_USE shoal_err shoal_lock_unlock(shoal_lock *lock);

/* Recursive locks: the thread that holds one may lock it again, and unlocks as often. unlock: SHOAL_EPERM when another holds it
 * or nobody. */
SHOAL_MUST_USE shoal_err shoal_rlock_create(shoal_rlock **out_rlock);
SHOAL_MUST_USE shoal_err shoal_rlock_lock(shoal_rlock *rlock, int64_t timeout);
SHOAL_MUST_USE shoal_err shoal_rlock_unlock(shoal_rlock *rlock);

/* Semaphores. With bound > 0 it is a BoundedSemaphore: post beyond it is SHOAL_ESTATE. What a killed process had taken
 * stays taken, as with every semaphore: nobody is its owner. */
SHOAL_MUST_USE shoal_err shoal_semaphore_create(uint32_t value, uint32_t bound, shoal_semaphore **out_semaphore);
SHOAL_MUST_USE shoal_err shoal_semaphore_wait(shoal_semaphore *semaphore, int64_t timeout);
SHOAL_MUST_USE shoal_err shoal_semaphore_post(shoal_semaphore *semaphore, uint32_t count);
uint32_t shoal_semaphore_value(shoal_semaphore *semaphore);

/* Conditions, each over a recursive lock of its own. wait must be called by the holder; it gives the lock up, waits to be
 * notified, takes it again (also after SHOAL_ETIMEDOUT, and SHOAL_EOWNERDEAD tells that its last holder died).
 * notify wakes at most count waiters that began before it, oldest first; a waiter that died does not use one up.
 * Both: SHOAL_EPERM when the caller does not hold the lock. */
SHOAL_MUST_USE shoal_err shoal_condition_create(shoal_condition **out_condition);
SHOAL_MUST_USE shoal_err shoal_condition_lock(shoal_condition *condition, int64_t timeout);
SHOAL_MUST_USE shoal_err shoal_condition_unlock(shoal_condition *condition);
SHOAL_MUST_USE shoal_err shoal_condition_wait(shoal_condition *condition, int64_t timeout);
SHOAL_MUST_USE shoal_err shoal_condition_notify(shoal_condition *condition, uint32_t count);
SHOAL_MUST_USE shoal_err shoal_condition_notify_all(shoal_condition *condition);

/* Events: flags that can be set, cleared and waited for. wait returns SHOAL_OK when the event is set, else SHOAL_ETIMEDOUT. */
SHOAL_MUST_USE shoal_err shoal_event_create(shoal_event **out_event);
void shoal_event_set(shoal_event *event);
void shoal_event_clear(shoal_event *event);
bool shoal_event_is_set(shoal_event *event);
SHOAL_MUST_USE shoal_err shoal_event_wait(shoal_event *event, int64_t timeout);

/* Barriers for `parties` (at least 1). wait returns SHOAL_OK to all of them together, with a number from 0 to parties
 * - 1 that is each waiter's own (parties - 1: it came last); or SHOAL_EBROKEN to all when one of them timed out,
 * called abort, or died: a process that is killed and made the barrier, was given it, or has waited there, is a party that
 * will not come; one that only inherited it by fork is none. A broken barrier stays broken until reset, which also breaks it for those who wait at that moment. A waiter
 * whose own time limit passed gets SHOAL_ETIMEDOUT. out_index may be
 * NULL. */
SHOAL_MUST_USE shoal_err shoal_barrier_create(uint32_t parties, shoal_barrier **out_barrier);
SHOAL_MUST_USE shoal_err shoal_barrier_wait(shoal_barrier *barrier, int64_t timeout, uint32_t *out_index);
void shoal_barrier_abort(shoal_barrier *barrier);
void shoal_barrier_reset(shoal_barrier *barrier);
bool shoal_barrier_is_broken(shoal_barrier *barrier);
uint32_t shoal_barrier_waiting(shoal_barrier *barrier);

#ifdef __cplusplus
}
#endif
#endif
