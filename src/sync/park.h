/* Spin, then park: how every waiter of the library waits.
 *
 * A gate is a futex word on which the waiters for one predicate park. The predicate lives elsewhere.
 *
 *   waiter                                  changer
 *   ------                                  -------
 *   spin on the predicate for a while       make the predicate true
 *   v = sh_gate_prepare(gate)               full barrier (a read-modify-write of the change does)
 *   predicate true? then done               sh_gate_wake(gate, n)
 *   sh_gate_park(gate, v, deadline)
 *   start over
 *
 * prepare sets the flag "somebody may be parked" with a full barrier; wake looks at it after one. So either the
 * changer sees the flag, or the waiter sees the predicate. Word: bit 0 the flag, the other bits a count of wakes, so
 * that a wake between prepare and park makes the park return at once.
 *
 * death: a changer that dies between its change and the wake, or a waiter that is woken and dies before it acts,
 * leaves others parked although the predicate is true. So nobody parks for longer than a slice: it looks again, at
 * growing intervals (50 ms to 1 s), and asks for a sweep of the dead; and recovery of the dead wakes the gates they
 * were busy with.
 */
#ifndef SH_SYNC_PARK_H
#define SH_SYNC_PARK_H

#include "base/interrupt.h"
#include "sync/atomic.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct sh_gate {
    sh_a32 word;
} sh_gate;

static inline uint32_t sh_gate_prepare(sh_gate *gate)
{
    uint32_t word = sh_or_seq_cst(&gate->word, 1u) | 1u; /* pairs with the load in sh_gate_wake */
    sh_fence_seq_cst(); /* the look at the predicate that follows is a mere acquire; on x86-64 this costs nothing that counts */
    return word;
}

void sh_gate_wake_slow(sh_gate *gate, int count);

/* Wakes up to count waiters. The caller has changed the predicate, followed by a full barrier. */
static inline void sh_gate_wake(sh_gate *gate, int count)
{
    if (__builtin_expect(sh_load_seq_cst(&gate->word) & 1u, 0)) {
        sh_gate_wake_slow(gate, count);
    }
}

/* Looks at a word for a moment, a microsecond or two, without the clock, while it holds the value: what a waiter does
 * first, because a peer that answers at once shall be seen at once. Returns what the word holds then. */
#define SH_SPIN_LOOKS 64

static inline uint64_t sh_spin_while(const sh_a64 *word, uint64_t value)
{
    uint64_t now = sh_load_acquire(word);
    for (int looks = 0; now == value && looks < SH_SPIN_LOOKS; looks++) {
        sh_pause();
        now = sh_load_acquire(word);
    }
    return now;
}

/* The state of one wait: how long to spin, when to look at the peers. */
typedef struct sh_wait {
    int64_t deadline;   /* SH_NO_DEADLINE or sh_now time */
    int64_t slice;      /* length of this parked slice */
    int64_t look_at;    /* when it is over, however often we are woken before; 0: not begun */
    int64_t longest;    /* to which it grows */
    int64_t spin_until; /* 0: not begun */
    uint32_t rounds;
    uint32_t holder; /* sh_owner that has what is waited for; 0: not known */
    uint64_t name;   /* of what is waited for (peers.h); 0: it has none */
} sh_wait;

#define SH_SLICE_SHORT SHOAL_MS(40) /* when a particular peer is waited for: a lock's owner, a barrier's parties */
#define SH_SLICE_LONG SHOAL_MS(1000)

/* longest: one of the two above. The caller sets name, and holder where there is one, before it parks. */
void sh_wait_init(sh_wait *wait, int64_t timeout, int64_t longest);

/* One more look at the predicate without parking? Call it in the spin loop; pauses inside. False when the spinning
 * time is over (at once on one core, or when SHOAL_SPIN_NS is 0). */
bool sh_wait_spin(sh_wait *wait);

/* Parks on the gate. Returns false when the deadline has passed: the caller looks at its predicate once more and
 * gives up. When a slice passed without a wake, it sweeps the dead. */
bool sh_wait_park(sh_wait *wait, sh_gate *gate, uint32_t prepared);

/* The longest time to spin, in ns. Read once from SHOAL_SPIN_NS; settable for benchmarks and tests. */
#define SH_SPIN_UNSET UINT64_MAX
extern sh_a64 sh_spin_limit; /* SH_SPIN_UNSET until it is read */
int64_t sh_spin_read(void);
shoal_err sh_spin_check(void); /* SHOAL_EINVAL when the variable is no number */

static inline int64_t sh_spin_ns(void)
{
    uint64_t ns = sh_load_relaxed(&sh_spin_limit);
    return __builtin_expect(ns != SH_SPIN_UNSET, 1) ? (int64_t)ns : sh_spin_read();
}

void sh_spin_set(int64_t ns);

#endif
