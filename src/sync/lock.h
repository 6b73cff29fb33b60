/* Lock in shared memory: a word that names its owner, so that other processes can tell that the owner died.
 *
 * The owner is a whole life (peers.h), which never repeats: a waiter that finds the owner dead, and is stopped before
 * it repairs the lock, changes nothing if the lock was taken since, by whatever process. Both flags are in the low
 * half, which is the futex. Two lives with the same low half do not confuse parked waiters: the flag is set for both.
 *
 *   owner   DIED     WAITERS   state
 *   0       0        0         free
 *   0       1        0         free; an owner has died holding it since it was last marked consistent
 *   life    0 or 1   0         held, nobody parked; DIED as above
 *   life    0 or 1   1         held, somebody may be parked: unlock wakes one; DIED as above
 *   anything else              never
 *
 *   from                      to                        by
 *   free (+ DIED)             life (+ DIED)             lock
 *   free (+ DIED)             life (+ DIED) + WAITERS   lock, by a waiter that was parked: others may still be parked
 *   life (+ DIED)             life (+ DIED) + WAITERS   a waiter, before it parks
 *   life (+ DIED, WAITERS)    free (+ DIED)             unlock, which wakes one if WAITERS was set; DIED stays
 *   life + DIED (+ WAITERS)   life (+ WAITERS)          mark_consistent, by the owner
 *   life (+ DIED, WAITERS)    free + DIED               repair, which wakes one
 *
 * lock_consistent takes the lock only from free without DIED. From free + DIED it changes nothing; if it was parked, it
 * wakes another waiter instead of itself.
 *
 * A waiter that is woken takes the lock with WAITERS set, or sets WAITERS again and parks, or wakes another one. So the
 * flag is lost only if the woken waiter dies first. Then, and if an unlocker dies before it wakes a waiter, the others
 * look again when their slice ends. */
#ifndef SH_SYNC_LOCK_H
#define SH_SYNC_LOCK_H

#include <shoal/error.h>

#include "sync/park.h"
#include "sync/peers.h"

#include <stdbool.h>
#include <stdint.h>

/* Synchronisation:
 *   word   the state above, changed only by compare-and-swap; the release in unlock pairs with the acquire in lock
 *   gate   the low half of the word
 *   name   what a waiter shows (peers.h), or 0; written after format, before others can see the lock
 *
 * The low half is a gate so that sh_wait_park can park on it. sh_gate_prepare and sh_gate_wake, which would change it,
 * are never used on it. */
typedef struct sh_lock_shm {
    union {
        sh_a64 word;
        sh_gate gate;
    };
    uint64_t name;
} sh_lock_shm;

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the gate is the low half of the word");

void sh_lock_format(sh_lock_shm *lock);

/* Takes the lock. Blocks until the timeout expires; a timeout of 0 tries once, and costs a system call if the lock is
 * held, to notice a dead owner. Not recursive. Errors: SHOAL_ETIMEDOUT. */
SHOAL_MUST_USE shoal_err sh_lock_lock(sh_lock_shm *lock, int64_t timeout);

/* The same, but does not take a lock for which sh_lock_owner_died is true. Errors: also SHOAL_EOWNERDEAD, at once if it
 * is free, else when it becomes free. */
SHOAL_MUST_USE shoal_err sh_lock_lock_consistent(sh_lock_shm *lock, int64_t timeout);

/* Whether an owner has died holding the lock since it was last marked consistent. A dead owner that still holds the
 * lock does not count yet. */
bool sh_lock_owner_died(sh_lock_shm *lock);

/* Makes sh_lock_owner_died false until the next death. Errors: SHOAL_EPERM if this process does not hold the lock. */
SHOAL_MUST_USE shoal_err sh_lock_mark_consistent(sh_lock_shm *lock);

/* Releases the lock. Any process may call it. Errors: SHOAL_ESTATE if it is not locked. */
SHOAL_MUST_USE shoal_err sh_lock_unlock(sh_lock_shm *lock);

/* For recovery only, as long as the slot of `dead` has no further life: releases the lock if `dead` holds it. Returns
 * whether it did. */
bool sh_lock_repair(sh_lock_shm *lock, sh_owner dead);

/* Returns who holds the lock, or 0: true at some instant during the call. */
sh_owner sh_lock_owner(sh_lock_shm *lock);

/* Checks that the word is one of the states above. True at every instant. */
bool sh_lock_valid(sh_lock_shm *lock);

#endif
