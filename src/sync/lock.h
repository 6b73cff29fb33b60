/* Lock in shared memory: one futex word that names its owner, so that the living can tell that the owner died.
 *
 *   owner   DIED   WAITERS   state
 *   0       0      0         free
 *   0       1      0         free, and the last owner died holding it: the next one is told
 *   life    0      0         held, nobody parked
 *   life    0      1         held, somebody may be parked: unlock wakes one
 *   anything else            never
 *
 *   from            to                    by
 *   free            life                  lock
 *   free            life + WAITERS        lock, by a waiter that was parked: others may be parked beside it
 *   free + DIED     life (+ WAITERS)      lock, which returns SHOAL_EOWNERDEAD
 *   life            life + WAITERS        a waiter, before it parks
 *   life (+ WAITERS)  free                unlock, which wakes one
 *   life (+ WAITERS)  free + DIED         repair, which wakes one
 *
 * A waiter that is woken either takes the lock with WAITERS or sets WAITERS again and parks, so the flag is lost only
 * when the woken one dies first. Then, and when an unlocker dies before it wakes, the others look again when their
 * slice passes.
 */
#ifndef SH_SYNC_LOCK_H
#define SH_SYNC_LOCK_H

#include <shoal/error.h>

#include "sync/park.h"
#include "sync/peers.h"

#include <stdbool.h>
#include <stdint.h>

/* Synchronisation:
 *   gate   its word is the state above, changed by compare-and-swap only; unlock releases what lock acquires
 *
 *   name   what a waiter at it shows (peers.h), 0: nothing; written after format, before others can see it
 *
 * It is a gate so that sh_wait_park can park on it. What would change the word, sh_gate_prepare and sh_gate_wake, is
 * never used on it. */
typedef struct sh_lock_shm {
    sh_gate gate;
    uint32_t unused;
    uint64_t name;
} sh_lock_shm;

void sh_lock_format(sh_lock_shm *lock);

/* SHOAL_OK; SHOAL_EOWNERDEAD: held by the caller, but the last owner died holding it, which only this call is told;
 * SHOAL_ETIMEDOUT. Blocks for the time limit; 0 tries once, and costs a system call when it fails, because a dead owner
 * is noticed then too. Not recursive. SHOAL_EOWNERDEAD records no text: it is for the caller to say what that means. */
SHOAL_MUST_USE shoal_err sh_lock_lock(sh_lock_shm *lock, int64_t timeout);

/* From any process. SHOAL_ESTATE when it is not locked. */
SHOAL_MUST_USE shoal_err sh_lock_unlock(sh_lock_shm *lock);

/* For recovery: hands the lock on if `dead` holds it, and tells whether it did. */
bool sh_lock_repair(sh_lock_shm *lock, sh_owner dead);

/* Who holds it, 0 for nobody: true at some instant during the call. */
sh_owner sh_lock_owner(sh_lock_shm *lock);

/* The word is one of the states above. True at every instant. */
bool sh_lock_valid(sh_lock_shm *lock);

#endif
