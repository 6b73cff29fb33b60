/* Semaphore in shared memory: a count. wait takes one from it, post adds any number.
 *
 *   from               to                  by
 *   value > 0          value - 1           wait
 *   value              value + count       post, which wakes count waiters; fails if that is more than the limit
 *
 * Nobody owns what was taken: what a killed process took stays taken.
 */
#ifndef SH_SYNC_SEMAPHORE_H
#define SH_SYNC_SEMAPHORE_H

#include <shoal/error.h>

#include "sync/park.h"

#include <stdbool.h>
#include <stdint.h>

#define SH_SEMAPHORE_MAX (UINT32_MAX / 2)

/* Synchronisation:
 *   value   anyone, by compare-and-swap. What a process wrote before post is visible to those who take after it
 *   gate    waiters park here while value is 0
 *   bound   the limit of value, 0 for SH_SEMAPHORE_MAX; written by format, then constant
 *   name    as in the lock */
typedef struct sh_semaphore_shm {
    sh_a32 value;
    sh_gate gate;
    uint32_t bound;
    uint32_t unused;
    uint64_t name;
} sh_semaphore_shm;

/* Errors: SHOAL_EINVAL if value is more than the bound, or either is more than SH_SEMAPHORE_MAX. */
SHOAL_MUST_USE shoal_err sh_semaphore_format(sh_semaphore_shm *semaphore, uint32_t value, uint32_t bound);

/* Takes one. While the value is 0, blocks until the timeout expires (0 tries once). Errors: SHOAL_ETIMEDOUT. */
SHOAL_MUST_USE shoal_err sh_semaphore_wait(sh_semaphore_shm *semaphore, int64_t timeout);

/* Adds count. Errors: SHOAL_ESTATE, with nothing changed, if the value would exceed its limit. */
SHOAL_MUST_USE shoal_err sh_semaphore_post(sh_semaphore_shm *semaphore, uint32_t count);

uint32_t sh_semaphore_value(sh_semaphore_shm *semaphore);

/* Checks that value is within its limit. True at every instant. */
bool sh_semaphore_valid(sh_semaphore_shm *semaphore);

#endif
