#include "sync/barrier.h"

#include "base/death.h"
#include "base/error.h"

#include <limits.h>

enum { HISTORY_SHIFT = 17, HISTORY_BITS = 8, PHASE_SHIFT = 25 };

#define FIELD(shift, bits) (((UINT64_C(1) << (bits)) - 1) << (shift))
#define ARRIVED FIELD(0, 16)
#define BROKEN FIELD(16, 1)
#define HISTORY FIELD(HISTORY_SHIFT, HISTORY_BITS)
#define PHASE FIELD(PHASE_SHIFT, 39)

#define ONE_ARRIVAL UINT64_C(1)
#define YOUNGEST (UINT64_C(1) << HISTORY_SHIFT)
#define ONE_PHASE (UINT64_C(1) << PHASE_SHIFT)

/* What a waiter found when it arrived: the word before, and the number of resets so far. */
typedef struct arrival {
    uint64_t word;
    uint64_t resets;
} arrival;

/* How a waiter's phase ended. */
typedef enum phase_end { GATHERING, COMPLETED, BROKEN_UP } phase_end;

/* now: loaded with acquire, so the number of resets is at least as new. */
static phase_end end_of_phase(const sh_barrier_shm *barrier, uint64_t now, const arrival *mine)
{
    uint64_t since = ((now & PHASE) - (mine->word & PHASE)) >> PHASE_SHIFT;
    if (since == 0) {
        return now & BROKEN ? BROKEN_UP : GATHERING;
    }
    bool completed = since <= HISTORY_BITS ? (now >> (HISTORY_SHIFT + since - 1)) & 1
                                           : sh_load_relaxed(&barrier->state.hi) == mine->resets;
    return completed ? COMPLETED : BROKEN_UP;
}

/* The word when a phase has ended, by completion (how: YOUNGEST) or by reset (how: 0). */
static uint64_t next_phase(uint64_t word, uint64_t how)
{
    return ((word & PHASE) + ONE_PHASE) | (((word & HISTORY) << 1) & HISTORY) | how;
}

static uint64_t after_break(uint64_t word)
{
    return (word & ~ARRIVED) | BROKEN;
}

shoal_err sh_barrier_format(sh_barrier_shm *barrier, uint32_t parties)
{
    if (parties == 0 || parties > SH_BARRIER_PARTIES_MAX) {
        return sh_fail(SHOAL_EINVAL, "a barrier has 1 to %u parties, not %u", SH_BARRIER_PARTIES_MAX, parties);
    }
    *barrier = (sh_barrier_shm){.parties = parties};
    return SHOAL_OK;
}

static void wake_all(sh_barrier_shm *barrier)
{
    /* death: the phase has ended completely. Spinning waiters see it now, parked ones when their slice ends, or when
     * recovery breaks the barrier. */
    SH_DEATH("sync.barrier.before_wake");
    sh_gate_wake(&barrier->gate, INT_MAX);
}

/* Ends the phase of all who wait now by changing the word to `next`, and wakes them. The exchange is seq_cst, so that
 * it comes before the load of the gate: it pairs with the flag that sh_gate_prepare sets before the last load of the
 * word. Returns false if the word was no longer *seen. */
static bool end_phase(sh_barrier_shm *barrier, uint64_t *seen, uint64_t next)
{
    if (!sh_cas_seq_cst(&barrier->state.lo, seen, next)) {
        return false;
    }
    wake_all(barrier);
    return true;
}

/* Called when the caller's timeout expired or a signal ended its wait. Breaks the barrier, unless its phase has ended
 * by now. */
static shoal_err give_up(sh_barrier_shm *barrier, const arrival *mine, int64_t timeout)
{
    uint64_t now = sh_load_acquire(&barrier->state.lo);
    phase_end end;
    while ((end = end_of_phase(barrier, now, mine)) == GATHERING) {
        if (end_phase(barrier, &now, after_break(now))) {
            return sh_fail_waiting(timeout,
                                   "the other parties did not arrive at the barrier in time; it is broken now");
        }
    }
    return end == COMPLETED ? SHOAL_OK : SHOAL_EBROKEN;
}

/* Each of the first LOOKERS that arrive looks for dead parties in every slice, each of the next in every second one,
 * and so on: otherwise thousands that wait would do nothing but look. If all who look most often die, the next take
 * their place. */
#define LOOKERS 32

/* Spins, then parks, until the phase of `mine` has ended. Every acquire of the word pairs with the exchanges by which
 * the parties arrived: each of them continues the release sequence of those before, so what any party wrote before it
 * arrived is visible here. */
static shoal_err wait_for_end(sh_barrier_shm *barrier, const arrival *mine, int64_t timeout)
{
    phase_end end;
    sh_wait wait;
    sh_wait_init(&wait, timeout, SH_SLICE_SHORT, &barrier->gate);
    int64_t slice = SH_SLICE_SHORT * (int64_t)(1 + (mine->word & ARRIVED) / LOOKERS);
    wait.slice = wait.longest = slice < SH_SLICE_LONG ? slice : SH_SLICE_LONG;
    wait.name = barrier->name;
    do {
        end = end_of_phase(barrier, sh_load_acquire(&barrier->state.lo), mine);
    } while (end == GATHERING && timeout > SHOAL_NOW && sh_wait_spin(&wait));
    while (end == GATHERING) {
        uint32_t prepared = sh_gate_prepare(&barrier->gate);
        end = end_of_phase(barrier, sh_load_seq_cst(&barrier->state.lo), mine);
        if (end == GATHERING && !sh_wait_park(&wait, &barrier->gate, prepared)) {
            return give_up(barrier, mine, timeout);
        }
    }
    return end == COMPLETED ? SHOAL_OK : SHOAL_EBROKEN;
}

shoal_err sh_barrier_wait(sh_barrier_shm *barrier, int64_t timeout, uint32_t *out_index)
{
    arrival mine = {.word = sh_load_acquire(&barrier->state.lo)};
    shoal_err err = SHOAL_EBROKEN;
    while (!(mine.word & BROKEN)) {
        /* Read after the word. If there was a reset since, the word has changed, and the swap fails. */
        mine.resets = sh_load_acquire(&barrier->state.hi);
        bool last = (mine.word & ARRIVED) + 1 == barrier->parties;
        if (last && end_phase(barrier, &mine.word, next_phase(mine.word, YOUNGEST))) {
            err = SHOAL_OK;
            break;
        }
        /* The release is for those who see the end of the phase: see wait_for_end. */
        if (!last && sh_cas_acq_rel(&barrier->state.lo, &mine.word, mine.word + ONE_ARRIVAL)) {
            /* death: it is counted, and will not leave. If all the others arrive, the phase completes without harm. If
             * not, recovery breaks the barrier, which the dead process held, at the latest when a waiter's slice
             * ends. */
            SH_DEATH("sync.barrier.arrived");
            err = wait_for_end(barrier, &mine, timeout);
            break;
        }
    }
    if (err == SHOAL_OK) {
        *out_index = (uint32_t)(mine.word & ARRIVED);
    }
    if (err == SHOAL_EBROKEN) {
        return sh_fail(err, "the barrier is broken: aborted, reset, timed out, or a party died");
    }
    return err;
}

void sh_barrier_break(sh_barrier_shm *barrier)
{
    uint64_t now = sh_load_relaxed(&barrier->state.lo);
    while (!(now & BROKEN) && !end_phase(barrier, &now, after_break(now))) {
    }
    sh_gate_wake(&barrier->gate, INT_MAX); /* in place of one that broke it and died before it woke the others */
}

void sh_barrier_abort(sh_barrier_shm *barrier)
{
    sh_barrier_break(barrier);
}

/* Both words at once, and seq_cst as in end_phase. */
void sh_barrier_reset(sh_barrier_shm *barrier)
{
    for (;;) {
        uint64_t now = sh_load_acquire(&barrier->state.lo), resets = sh_load_acquire(&barrier->state.hi);
        if ((now & (BROKEN | ARRIVED)) == 0) {
            return;
        }
        if (sh_cas128(&barrier->state, now, resets, next_phase(now, 0), resets + 1)) {
            wake_all(barrier);
            return;
        }
    }
}

bool sh_barrier_is_broken(sh_barrier_shm *barrier)
{
    return (sh_load_acquire(&barrier->state.lo) & BROKEN) != 0;
}

uint32_t sh_barrier_waiting(sh_barrier_shm *barrier)
{
    return (uint32_t)(sh_load_acquire(&barrier->state.lo) & ARRIVED);
}

bool sh_barrier_valid(sh_barrier_shm *barrier)
{
    uint64_t word = sh_load_acquire(&barrier->state.lo);
    return barrier->parties >= 1 && barrier->parties <= SH_BARRIER_PARTIES_MAX && (word & ARRIVED) < barrier->parties &&
           !((word & BROKEN) && (word & ARRIVED));
}
