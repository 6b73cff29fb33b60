#include "sync/park.h"

#include "base/log.h"
#include "os/futex.h"
#include "os/pid.h"
#include "sync/peers.h"

#include <limits.h>
#include <stdlib.h>

#define SPIN_DEFAULT 20000      /* ns: about the cost of parking and waking up */
#define SPIN_MOST SHOAL_MS(100) /* a spinning waiter sees neither interrupts nor deaths */

sh_a64 sh_spin_limit = {SH_SPIN_UNSET};

#define FULL                                                                                                           \
    {                                                                                                                  \
        .credit = { SH_SPIN_CREDIT }                                                                                   \
    }
#define FULL_8 FULL, FULL, FULL, FULL, FULL, FULL, FULL, FULL
sh_spin sh_spins[SH_SPIN_RECORDS] = {FULL_8, FULL_8, FULL_8, FULL_8, FULL_8, FULL_8, FULL_8, FULL_8};

/* Returns the time in SHOAL_SPIN_NS, or -1 if it is not set or not valid. */
static int64_t spin_asked(const char *text)
{
    char *end = NULL;
    long long asked = text != NULL ? strtoll(text, &end, 10) : -1;
    return text != NULL && end != text && *end == 0 && asked >= 0 ? asked : -1;
}

shoal_err sh_spin_check(void)
{
    const char *text = getenv("SHOAL_SPIN_NS");
    return text == NULL || spin_asked(text) >= 0
               ? SHOAL_OK
               : sh_fail(SHOAL_EINVAL, "SHOAL_SPIN_NS=%s: expected a number of nanoseconds such as 20000", text);
}

int64_t sh_spin_read(void)
{
    const char *text = getenv("SHOAL_SPIN_NS");
    int64_t asked = spin_asked(text);
    if (asked > SPIN_MOST) { /* threads that read it at the same time each log this */
        sh_log("SHOAL_SPIN_NS=%s is more than 100 ms: a wait spins for 100 ms", text);
        asked = SPIN_MOST;
    }
    int64_t ns = sh_cores() == 1 ? 0 : asked >= 0 ? asked : SPIN_DEFAULT;
    sh_store_relaxed(&sh_spin_limit, (uint64_t)ns);
    return ns;
}

void sh_spin_set(int64_t ns)
{
    sh_store_relaxed(&sh_spin_limit, (uint64_t)ns);
}

void sh_gate_wake_slow(sh_gate *gate, int count)
{
    /* The count goes up first, so that a waiter between prepare and park does not sleep through this wake-up. The flag
     * stays: others may be parked beside those that are woken. It is cleared only if nobody was parked. Since somebody
     * may have parked on this very value just before it was cleared, all are woken once more, to set it again. */
    uint32_t word = sh_add_acq_rel(&gate->word, 2u) + 2u;
    if (sh_futex_wake(&gate->word, count) == 0 && sh_cas_acq_rel(&gate->word, &word, word & ~1u)) {
        sh_futex_wake(&gate->word, INT_MAX);
    }
}

void sh_wait_init(sh_wait *wait, int64_t timeout, int64_t longest, const void *gate)
{
    *wait = (sh_wait){.deadline = sh_deadline(timeout),
                      .slice = SH_SLICE_SHORT < longest ? SH_SLICE_SHORT : longest,
                      .longest = longest,
                      .spin = sh_spin_at(gate)};
    sh_interrupt_begin();
}

/* Decides whether a wait may spin. One that may is taken for won until it has lost, so that the end of a wait costs
 * nothing. */
static bool spin_begin(sh_spin *spin)
{
    if (sh_spin_ns() == 0) {
        return false;
    }
    if (!sh_spin_pays(spin)) {
        int32_t rested = (int32_t)sh_load_relaxed(&spin->credit) + 1;
        sh_store_relaxed(&spin->credit, (uint32_t)(rested < 0 ? rested : SH_SPIN_CREDIT / 2));
        return false;
    }
    sh_spin_won(spin);
    return true;
}

/* The spin was in vain. now makes the length of a rest irregular. */
static void spin_lost(sh_spin *spin, bool lost_core, int64_t now)
{
    int32_t credit = (int32_t)sh_load_relaxed(&spin->credit) - 1 - SH_SPIN_LOSS;
    if (credit <= 0 || lost_core) {
        uint32_t before = sh_load_relaxed(&spin->rest);
        uint32_t rest = before == 0 ? SH_REST_SHORT : before < SH_REST_LONG ? 2 * before : SH_REST_LONG;
        sh_store_relaxed(&spin->rest, rest);
        credit = -(int32_t)(rest / 2 + (uint32_t)(now >> 6) % rest);
    }
    sh_store_relaxed(&spin->credit, (uint32_t)credit);
}

/* The first rounds do not read the clock, so that a fast answer is seen at once. */
#define ROUNDS_BEFORE_CLOCK 64u
#define ROUNDS_PER_CLOCK 16u
#define CORE_LOST 10000 /* ns, between two looks at the clock, which are less than 2 us apart while it runs */

bool sh_wait_spin(sh_wait *wait)
{
    uint32_t round = wait->rounds++;
    if (round == 0 && !spin_begin(wait->spin)) {
        wait->spin_until = -1;
    }
    if (wait->spin_until < 0) {
        return false;
    }
    sh_pause();
    if (round < ROUNDS_BEFORE_CLOCK || round % ROUNDS_PER_CLOCK != 0) {
        return true;
    }
    int64_t now = sh_now();
    if (wait->spin_until == 0) {
        int64_t until = now + sh_spin_ns();
        wait->spin_until = until < wait->deadline ? until : wait->deadline;
        wait->spin_seen = now;
    }
    bool lost_core = now - wait->spin_seen > CORE_LOST;
    if (now >= wait->spin_until || lost_core) {
        spin_lost(wait->spin, lost_core, now);
        wait->spin_until = -1;
        return false;
    }
    wait->spin_seen = now;
    return true;
}

bool sh_wait_park(sh_wait *wait, sh_gate *gate, uint32_t prepared)
{
    int64_t now = sh_now();
    if (now >= wait->deadline) {
        return false;
    }
    if (wait->look_at == 0) {
        wait->look_at = now + wait->slice;
    }
    int64_t until = wait->look_at < wait->deadline ? wait->look_at : wait->deadline;
    const sh_peers *peers = sh_peers_now;
    bool seen = wait->name != 0 && peers->sleeps != NULL;
    uint32_t entry = seen ? peers->sleeps(wait->name, wait->holder) : 0;
    sh_futex_wait(&gate->word, prepared, sh_interrupt_bound(now, until));
    if (seen) {
        peers->wakes(entry);
    }
    if (sh_interrupted()) {
        return false;
    }
    now = sh_now();
    if (now >= wait->look_at) { /* even if wake-ups or signals keep coming */
        uint32_t times = sh_peers_now->sweep(wait->slice / 2);
        int64_t longest = wait->longest < SH_SLICE_LONG ? wait->longest : SH_SLICE_LONG * times;
        wait->slice = wait->slice * 2 < longest ? wait->slice * 2 : longest;
        wait->look_at = 0;
    }
    return now < wait->deadline;
}
