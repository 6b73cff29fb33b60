/* Spin, then park: the way every waiter of the library waits.
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
 * prepare sets the flag "somebody may be parked" with a full barrier; wake reads the flag after a full barrier. So
 * either the changer sees the flag, or the waiter sees the predicate. Bit 0 of the word is the flag; the other bits
 * count wake-ups, so that a wake-up between prepare and park makes the park return at once.
 *
 * death: a changer that dies between its change and the wake-up, or a waiter that is woken and dies before it acts,
 * leaves others parked although the predicate is true. So nobody parks for longer than a slice. After each slice, at
 * growing intervals (40 ms to 1 s), a waiter looks again and asks for a sweep of the dead; and recovery of a dead
 * process wakes the gates that it was busy with.
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
    sh_fence_seq_cst(); /* the load of the predicate that follows is only an acquire; costs little on x86-64 */
    return word;
}

void sh_gate_wake_slow(sh_gate *gate, int count);

/* Wakes up to count waiters. The caller has changed the predicate and then executed a full barrier. */
static inline void sh_gate_wake(sh_gate *gate, int count)
{
    if (__builtin_expect(sh_load_seq_cst(&gate->word) & 1u, 0)) {
        sh_gate_wake_slow(gate, count);
    }
}

/* Polls a word while it holds the value, for a microsecond or two and without reading the clock. A waiter does this
 * first, so that it sees a fast answer at once. Returns the last value read. */
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

/* The state of one wait: how long to spin, when to check the peers. */
typedef struct sh_wait {
    int64_t deadline;   /* SH_NO_DEADLINE or sh_now time */
    int64_t slice;      /* the length of the current slice */
    int64_t look_at;    /* when the slice ends, however many wake-ups come before; 0: not started */
    int64_t longest;    /* the length up to which slices grow */
    int64_t spin_until; /* 0: not started; -1: done spinning */
    uint32_t rounds;
    uint32_t holder; /* the sh_owner that holds what is waited for; 0: unknown */
    uint64_t name;   /* the name of what is waited for (peers.h); 0: none */
} sh_wait;

#define SH_SLICE_SHORT SHOAL_MS(40) /* for waits for a particular peer: a lock's owner, a barrier's parties */
#define SH_SLICE_LONG SHOAL_MS(1000)

/* Begins a wait. longest is one of the two above. The caller sets name, and holder if there is one, before it parks. */
void sh_wait_init(sh_wait *wait, int64_t timeout, int64_t longest);

/* Called in the spin loop: pauses, and returns true if the caller should check the predicate again without parking.
 * Returns false when the time to spin is over (at once on one core, or if SHOAL_SPIN_NS is 0). */
bool sh_wait_spin(sh_wait *wait);

/* Parks on the gate. Returns false if the deadline has passed: the caller checks its predicate once more and gives up.
 * When a slice ends, it sweeps the dead. */
bool sh_wait_park(sh_wait *wait, sh_gate *gate, uint32_t prepared);

/* The longest time to spin, in ns. Read once from SHOAL_SPIN_NS; benchmarks and tests can set it. */
#define SH_SPIN_UNSET UINT64_MAX
extern sh_a64 sh_spin_limit; /* SH_SPIN_UNSET until it is read */
int64_t sh_spin_read(void);
shoal_err sh_spin_check(void); /* SHOAL_EINVAL if the variable is not a number */

static inline int64_t sh_spin_ns(void)
{
    uint64_t ns = sh_load_relaxed(&sh_spin_limit);
    return __builtin_expect(ns != SH_SPIN_UNSET, 1) ? (int64_t)ns : sh_spin_read();
}

void sh_spin_set(int64_t ns);

#endif
