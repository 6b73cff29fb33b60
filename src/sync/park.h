/* Spin, then park: the way every waiter of the library waits.
 *
 * A gate is a futex word on which the waiters for one predicate park. The predicate lives elsewhere.
 *
 *   waiter                                  changer
 *   ------                                  -------
 *   spin on the predicate for a while       make the predicate true
 *   v = sh_gate_prepare(gate)               full barrier (a read-modify-write of the change does)
 *   predicate true? then done               sh_gate_wake(gate, n)
 *   sh_wait_park(&wait, gate, v)
 *   start over
 *
 * prepare sets the flag "somebody may be parked" with a full barrier; wake reads the flag after a full barrier. So
 * either the changer sees the flag, or the waiter sees the predicate. Bit 0 of the word is the flag; the other bits
 * count wake-ups, so that a wake-up between prepare and park makes the park return at once.
 *
 * death: a changer that dies between its change and the wake-up, or a waiter that is woken and dies before it acts,
 * leaves others parked although the predicate is true. So nobody parks for longer than a slice. After each slice, at
 * growing intervals (40 ms to 1 s), a waiter looks again and asks for a sweep of the dead, unless another process swept
 * in the second half of its slice: however many wait, the dead are swept for about twice in a slice. And recovery of a
 * dead process wakes the gates that it was busy with.
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

/* Whether to spin
 *
 * Spinning pays if the answer comes while the waiter spins: a round trip then costs 0.2 us instead of the 5 to 50 us of
 * two wake-ups. Otherwise it costs: the core is kept from the process that would answer, and two processes that never
 * sleep are kept on two cores, so that each wake-up has to rouse an idle core. Which of the two it is depends on the
 * peer and on the load, so each process learns it from its own waits, separately for each gate:
 *
 *   credit > 0     the next wait at this gate spins. A wait that ends while it spins adds 1, up to SH_SPIN_CREDIT. A
 *                  spin that ran out takes SH_SPIN_LOSS. So spinning goes on where more than about four fifths of the
 *                  waits end in time. A waiter that lost its core while it spun (two looks at the clock lie far apart)
 *                  loses all its credit: another process needs the core.
 *   credit <= 0    the gate rests: its waits park at once. Each wait adds 1. At 0 the gate gets half the credit and
 *                  tries again. Each rest is twice as long as the one before, from SH_REST_SHORT to SH_REST_LONG waits,
 *                  until full credit is reached again.
 *
 * Two processes that answer each other find out together that spinning pays again: a spin is in vain while the other
 * one parks. So a rest ends after an irregular number of waits, and a trial lasts a few waits.
 *
 * The records are private to the process and only advice: threads update them without order, and gates that share a
 * record share what was learned. */
typedef struct sh_spin {
    sh_a32 credit; /* int32_t */
    sh_a32 rest;   /* the length of the last rest; 0: none */
} sh_spin;

#define SH_SPIN_RECORDS 64u /* a power of two */
#define SH_SPIN_CREDIT 16
#define SH_SPIN_LOSS 4
#define SH_REST_SHORT 32u
#define SH_REST_LONG 512u

extern sh_spin sh_spins[SH_SPIN_RECORDS];

/* Returns the record for waits at the gate. */
static inline sh_spin *sh_spin_at(const void *gate)
{
    return &sh_spins[((uintptr_t)gate * UINT64_C(0x9e3779b97f4a7c15)) >> 58];
}

static inline bool sh_spin_pays(const sh_spin *spin)
{
    return (int32_t)sh_load_relaxed(&spin->credit) > 0;
}

/* A wait has ended, or is expected to end, while it spun. */
static inline void sh_spin_won(sh_spin *spin)
{
    int32_t credit = (int32_t)sh_load_relaxed(&spin->credit) + 1;
    if (credit <= SH_SPIN_CREDIT) {
        sh_store_relaxed(&spin->credit, (uint32_t)credit);
        if (credit == SH_SPIN_CREDIT) {
            sh_store_relaxed(&spin->rest, 0);
        }
    }
}

/* The state of one wait: how long to spin, when to check the peers. */
typedef struct sh_wait {
    int64_t deadline;   /* SH_NO_DEADLINE or sh_now time */
    int64_t slice;      /* the length of the current slice */
    int64_t look_at;    /* when the slice ends, however many wake-ups come before; 0: not started */
    int64_t longest;    /* the length up to which slices grow */
    int64_t spin_until; /* 0: not started; -1: done spinning */
    int64_t spin_seen;  /* the last time read while spinning */
    sh_spin *spin;
    uint32_t rounds;
    uint32_t holder; /* the sh_owner that holds what is waited for; 0: unknown */
    uint64_t name;   /* the name of what is waited for (peers.h); 0: none */
} sh_wait;

#define SH_SLICE_SHORT SHOAL_MS(40)  /* for waits for a particular peer: a lock's owner, a barrier's parties */
#define SH_SLICE_LONG SHOAL_MS(1000) /* in a world of thousands of processes up to 4 times as long (peers.h) */

/* Begins a wait at a gate, or at the object that it stands for. longest is one of the two above. The caller sets name,
 * and holder if there is one, before it parks. */
void sh_wait_init(sh_wait *wait, int64_t timeout, int64_t longest, const void *gate);

/* Called in the spin loop: pauses, and returns true if the caller should check the predicate again without parking.
 * Returns false when the time to spin is over: at once if spinning does not pay at this gate, on one core, or if
 * SHOAL_SPIN_NS is 0. */
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
