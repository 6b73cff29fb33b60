/* Recursive lock in shared memory: a lock, the thread that holds it, and how many times.
 *
 * One word names a thread: (life of its process, tid). The kernel reuses the tid of an ended thread, even in another
 * process; the life tells those apart, so the name that a dead holder left in the word matches nobody. A thread that
 * ends while it holds the lock, in a process that lives on, leaves it locked, as in Python.
 */
#ifndef SH_SYNC_RLOCK_H
#define SH_SYNC_RLOCK_H

#include "sync/lock.h"

/* Synchronisation:
 *   lock     orders all that it protects, and the two fields below
 *   holder   (life << 32) | tid, 0 for nobody; written under the lock, read by anyone, relaxed
 *   depth    read and written only by the holder; set by the thread that takes the lock
 *
 * Relaxed is enough for holder: a thread finds its own name there only if it wrote that itself and has not cleared it
 * since, and it always sees its own writes.
 *
 *   lock     holder             depth        state
 *   free     0, or dead         any          free
 *   life     0, or dead         any          being taken or released by a thread of this life
 *   life     (life, tid)        1 and more   held */
typedef struct sh_rlock_shm {
    sh_lock_shm lock;
    sh_a32 depth;
    sh_a64 holder;
} sh_rlock_shm;

void sh_rlock_format(sh_rlock_shm *rlock);

/* As sh_lock_lock; succeeds at once if the calling thread holds it. Errors: also SHOAL_ESTATE if it is held 2^32 - 1
 * times. */
SHOAL_MUST_USE shoal_err sh_rlock_lock(sh_rlock_shm *rlock, int64_t timeout);

/* The same, but fails as sh_lock_lock_consistent does, unless the calling thread holds it. */
SHOAL_MUST_USE shoal_err sh_rlock_lock_consistent(sh_rlock_shm *rlock, int64_t timeout);

/* As for the lock inside; but only the thread that holds it may mark it, others get SHOAL_EPERM. */
bool sh_rlock_owner_died(sh_rlock_shm *rlock);
SHOAL_MUST_USE shoal_err sh_rlock_mark_consistent(sh_rlock_shm *rlock);

/* Errors: SHOAL_EPERM if the calling thread does not hold it. */
SHOAL_MUST_USE shoal_err sh_rlock_unlock(sh_rlock_shm *rlock);

/* Checks whether the calling thread holds it; how many times, 0 if it does not. */
bool sh_rlock_held(sh_rlock_shm *rlock);
uint32_t sh_rlock_depth(sh_rlock_shm *rlock);

/* For the condition, which releases the lock completely and takes it back with the same depth. unlock_all returns how
 * many times the calling thread held it, 0 if it did not. lock_depth is for a thread that does not hold it (otherwise
 * SHOAL_ESTATE), with a depth of at least 1 (otherwise SHOAL_EINVAL); apart from that as sh_rlock_lock. */
uint32_t sh_rlock_unlock_all(sh_rlock_shm *rlock);
SHOAL_MUST_USE shoal_err sh_rlock_lock_depth(sh_rlock_shm *rlock, uint32_t depth, int64_t timeout);

/* As for the lock inside. The next holder sets holder and depth. */
bool sh_rlock_repair(sh_rlock_shm *rlock, sh_owner dead);
sh_owner sh_rlock_owner(sh_rlock_shm *rlock);

/* Checks that the lock inside is valid and, if the calling thread is the holder, that its process owns the lock and the
 * depth is not 0. */
bool sh_rlock_valid(sh_rlock_shm *rlock);

#endif
