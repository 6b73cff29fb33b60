/* Barrier in shared memory: `parties` waiters leave together, any number of times.
 *
 * One round of the barrier is a phase. Two 64-bit words decide it, and each step is one compare-and-swap of the first,
 * or of both: to arrive, to complete the phase (the last arrival does both at once), to break, to reset. So there is no
 * instruction at which a killed process leaves a step half done.
 *
 *   bits    field     meaning
 *   0-15    arrived   the number of waiters, 0 to parties - 1
 *   16      BROKEN    nobody may arrive until reset; arrived is 0
 *   17-24   history   how the last 8 phases ended, the most recent in bit 17: 1 completed, 0 reset
 *   25-63   phase     the number of phases that ended, modulo 2^39
 *   64-127  resets    the number of phases ended by reset
 *
 *   from                     to                                             by
 *   arrived < parties - 1    arrived + 1                                    wait
 *   arrived = parties - 1    arrived = 0, next phase, history 1             wait, the last
 *   not BROKEN               arrived = 0, BROKEN                            abort, break, an expired timeout
 *   BROKEN or arrived > 0    arrived = 0, not BROKEN, next phase,           reset, of both words
 *                            history 0, resets + 1
 *
 * How a waiter that arrived at `mine` reads a later `now`. What counts is how its own phase ended; it may have slept
 * while others went through phases and resets, if more processes than parties use the barrier.
 *
 *   phases since   its phase is
 *   0              still waiting, or broken if BROKEN is set
 *   1 to 8         completed or broken, as history says
 *   more           completed if there was no reset since; otherwise taken for broken
 *
 * A waiter that is stopped is deceived if exactly a multiple of 2^39 phases end meanwhile: at the fastest, a fifth of a
 * microsecond for each, that is more than a day of nothing else. The number of resets never repeats.
 */
#ifndef SH_SYNC_BARRIER_H
#define SH_SYNC_BARRIER_H

#include <shoal/error.h>

#include "sync/atomic.h"
#include "sync/park.h"

#include <stdbool.h>
#include <stdint.h>

#define SH_BARRIER_PARTIES_MAX 65535u

/* Synchronisation:
 *   state     the two words above; anyone, by compare-and-swap: acq_rel to arrive, seq_cst to end a phase; pollers load
 *             the first with acquire
 *   gate      waiters park here; the process that ends a phase wakes all of them
 *   parties   written by format, then constant
 *   name      as in the lock
 * They share a cache line, so that a phase of spinning waiters moves only one line. */
typedef struct sh_barrier_shm {
    sh_a128 state;
    sh_gate gate;
    uint32_t parties;
    uint64_t name;
} __attribute__((aligned(16))) sh_barrier_shm;

/* Errors: SHOAL_EINVAL unless 1 <= parties <= SH_BARRIER_PARTIES_MAX. */
SHOAL_MUST_USE shoal_err sh_barrier_format(sh_barrier_shm *barrier, uint32_t parties);

/* Blocks until all parties have arrived. Returns SHOAL_OK and the caller's place in the order of arrival, from 0.
 * Errors: SHOAL_EBROKEN; SHOAL_ETIMEDOUT if the caller's own timeout expired, which breaks the barrier for the others.
 * With a timeout of 0 that happens unless the caller is the last. */
SHOAL_MUST_USE shoal_err sh_barrier_wait(sh_barrier_shm *barrier, int64_t timeout, uint32_t *out_index);

/* Breaks the barrier for those who wait now, and for everybody until reset. Recovery calls break for a barrier that a
 * dead process held; it may call it any number of times. */
void sh_barrier_abort(sh_barrier_shm *barrier);
void sh_barrier_break(sh_barrier_shm *barrier);

/* Breaks the barrier for those who wait now, and makes it usable for those who come later. */
void sh_barrier_reset(sh_barrier_shm *barrier);

bool sh_barrier_is_broken(sh_barrier_shm *barrier);
uint32_t sh_barrier_waiting(sh_barrier_shm *barrier);

/* Checks that arrived < parties, and that nobody is counted while BROKEN is set. True at every instant. */
bool sh_barrier_valid(sh_barrier_shm *barrier);

#endif
