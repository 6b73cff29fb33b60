#include "sync/event.h"

#include "base/death.h"
#include "base/error.h"

#include <limits.h>

#define SET UINT32_C(1)
#define ONE_TIME UINT32_C(2)

void sh_event_format(sh_event_shm *event)
{
    *event = (sh_event_shm){0};
}

void sh_event_set(sh_event_shm *event)
{
    uint32_t word = sh_load_relaxed(&event->word);
    /* If it is set already, the exchange changes nothing but still releases the caller's writes. seq_cst: it comes
     * before the load of the gate, and pairs with the flag that sh_gate_prepare sets before the waiter's last load of
     * the word. */
    while (!sh_cas_seq_cst(&event->word, &word, word & SET ? word : word + ONE_TIME + SET)) {
    }
    /* death: set; the parked waiters see it when their slice ends. */
    SH_DEATH("sync.event.before_wake");
    sh_gate_wake(&event->gate, INT_MAX);
}

void sh_event_clear(sh_event_shm *event)
{
    sh_and_seq_cst(&event->word, ~SET);
}

bool sh_event_is_set(sh_event_shm *event)
{
    return (sh_load_acquire(&event->word) & SET) != 0; /* pairs with set */
}

shoal_err sh_event_wait(sh_event_shm *event, int64_t timeout)
{
    uint32_t found = sh_load_acquire(&event->word); /* pairs with set, as do the loads below */
    if (found & SET) {
        return SHOAL_OK;
    }
    /* Only set changes a clear word, so a word that differs from `found` was set since. */
    sh_wait wait;
    sh_wait_init(&wait, timeout, SH_SLICE_LONG, &event->gate); /* it waits for no particular peer */
    wait.name = event->name;
    bool in_time = timeout > SHOAL_NOW;
    while (in_time && sh_wait_spin(&wait)) {
        if (sh_load_acquire(&event->word) != found) {
            return SHOAL_OK;
        }
    }
    while (in_time) {
        uint32_t prepared = sh_gate_prepare(&event->gate);
        if (sh_load_seq_cst(&event->word) != found) { /* pairs with the exchange in set */
            return SHOAL_OK;
        }
        in_time = sh_wait_park(&wait, &event->gate, prepared);
    }
    return sh_load_acquire(&event->word) != found ? SHOAL_OK : sh_fail_waiting(timeout, "the event was not set");
}
