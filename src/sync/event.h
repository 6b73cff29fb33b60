/* Event in shared memory: a flag that can be waited for.
 *
 *   bit 0     set
 *   1-31      the number of times it went from clear to set
 *
 *   from      to                      by
 *   clear     set, count + 1          set, which wakes all
 *   set       clear                   clear
 *
 * Because of the count, a waiter that slept through set and clear still returns.
 */
#ifndef SH_SYNC_EVENT_H
#define SH_SYNC_EVENT_H

#include <shoal/error.h>

#include "sync/park.h"

#include <stdbool.h>
#include <stdint.h>

/* Synchronisation:
 *   word   anyone, by compare-and-swap. What was written before set is visible to the waiters that it releases
 *   gate   waiters park here while the word is clear and unchanged since they looked first
 *   name   as in the lock */
typedef struct sh_event_shm {
    sh_a32 word;
    sh_gate gate;
    uint64_t name;
} sh_event_shm;

void sh_event_format(sh_event_shm *event);
void sh_event_set(sh_event_shm *event);
void sh_event_clear(sh_event_shm *event);
bool sh_event_is_set(sh_event_shm *event);

/* Waits until the event is set. Also returns SHOAL_OK if it was set and cleared during the call. Errors:
 * SHOAL_ETIMEDOUT. */
SHOAL_MUST_USE shoal_err sh_event_wait(sh_event_shm *event, int64_t timeout);

#endif
