/* Recursive lock in shared memory: a lock, and which thread of the owner has it, how often.
 *
 * A thread is named by (life of its process, tid) in one word. The kernel gives a tid again after its thread ended,
 * also to another process; the life tells those apart, so what a dead holder left in the word is taken for nobody. A
 * thread that ends while it holds the lock, in a process that lives on, leaves it locked, as in Python.
 */
#ifndef SH_SYNC_RLOCK_H
#define SH_SYNC_RLOCK_H

#include "sync/lock.h"

/* Synchronisation:
 *   lock     orders all that it protects, and the two below
 *   holder   (life << 32) | tid, 0 for nobody; written under the lock, read by anyone, relaxed
 *   depth    read and written by the holder only; set by whoever takes the lock
 *
 * Relaxed is enough for holder: a thread finds its own name there only if it wrote that itself and has not cleared it
 * since, and it always sees its own writes.
 *
 *   lock     holder             depth        state
 *   free     0, or a dead one   any          free
 *   life     0, or a dead one   any          being taken or given up by a thread of this life
 *   life     (life, tid)        1 and more   held */
typedef struct sh_rlock_shm {
    sh_lock_shm lock;
    sh_a32 depth;
    sh_a64 holder;
} sh_rlock_shm;

void sh_rlock_format(sh_rlock_shm *rlock);

/* As sh_lock_lock; at once when the calling thread holds it. SHOAL_ESTATE when it is held 2^32 - 1 times. */
SHOAL_MUST_USE shoal_err sh_rlock_lock(sh_rlock_shm *rlock, int64_t timeout);

/* SHOAL_EPERM when the calling thread does not hold it. */
SHOAL_MUST_USE shoal_err sh_rlock_unlock(sh_rlock_shm *rlock);

/* Does the calling thread hold it? */
bool sh_rlock_held(sh_rlock_shm *rlock);

/* For the condition, which gives the lock up whole and takes it back as it was. unlock_all returns how often the
 * calling thread held it, 0 when it did not. lock_depth is called by a thread that does not hold it (SHOAL_ESTATE
 * otherwise), with a depth of at least 1 (SHOAL_EINVAL); else as lock. */
uint32_t sh_rlock_unlock_all(sh_rlock_shm *rlock);
SHOAL_MUST_USE shoal_err sh_rlock_lock_depth(sh_rlock_shm *rlock, uint32_t depth, int64_t timeout);

/* As for the lock inside. The next holder sets holder and depth. */
bool sh_rlock_repair(sh_rlock_shm *rlock, sh_owner dead);
sh_owner sh_rlock_owner(sh_rlock_shm *rlock);

/* The lock inside is valid; if the calling thread is the holder, its process owns the lock and the depth is not 0. */
bool sh_rlock_valid(sh_rlock_shm *rlock);

#endif
