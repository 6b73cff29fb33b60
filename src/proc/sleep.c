#include "proc/sleep.h"

#include "base/interrupt.h"
#include "os/pidfd.h"
#include "sync/peers.h"

#define LONGEST SHOAL_MS(1000) /* between sweeps of dead processes, as in every wait (park.h) */
#define ENDING SHOAL_MS(1)     /* between the end of a target or a thread and the end of its process */

static bool can_wait_many(void)
{
    static sh_a32 known; /* 0: not asked; 1: no; 2: yes */
    uint32_t can = sh_load_relaxed(&known);
    if (can == 0) {
        can = sh_futex_can_wait_many() ? 2 : 1;
        sh_store_relaxed(&known, can);
    }
    return can == 2;
}

void sh_sleep_begin(sh_sleep *sleep)
{
    sleep->many = can_wait_many();
    sleep->count = 0;
    sleep->longest = LONGEST;
}

static void limit_sleep(sh_sleep *sleep, int64_t time)
{
    sleep->longest = time < sleep->longest ? time : sleep->longest;
}

void sh_sleep_add(sh_sleep *sleep, const void *word, uint32_t value, int64_t unseen)
{
    if (sleep->count < (sleep->many ? SH_FUTEX_MANY : 1)) {
        sleep->pairs[sleep->count++] = (sh_futex_pair){.word = word, .value = value};
    } else {
        limit_sleep(sleep, unseen);
    }
}

void sh_sleep_add_process(sh_sleep *sleep, const shoal_process *process, int64_t unseen)
{
    sh_start_shm *record = sh_start_of(process->record);
    uint32_t value;
    sh_end_state state = sh_end_word_read(&record->end, &value);
    if (state == SH_END_HELD) {
        sh_sleep_add(sleep, &record->end, value, unseen);
        return;
    }
    uint32_t phase = sh_load_acquire(&record->phase);
    bool ending = state == SH_END_SEEN || phase == SH_START_ENDED; /* nothing will wake this sleep any more */
    limit_sleep(sleep, ending ? ENDING : SH_SLEEP_UNSEEN);
    if (!ending) {
        sh_sleep_add(sleep, &record->phase, phase, unseen);
    }
}

void sh_sleep_until(const sh_sleep *sleep, int64_t deadline)
{
    int64_t now = sh_now(), until = now + sleep->longest < deadline ? now + sleep->longest : deadline;
    until = sh_interrupt_bound(now, until);
    bool woken = sleep->count == 0   ? (sh_poll(NULL, 0, until), false)
                 : sleep->count == 1 ? sh_futex_wait(sleep->pairs[0].word, sleep->pairs[0].value, until)
                                     : sh_futex_wait_many(sleep->pairs, sleep->count, until);
    if (!woken) {
        (void)sh_peers_now->sweep(sleep->longest / 2 > SH_SWEEP_AGE ? sleep->longest / 2 : SH_SWEEP_AGE);
    }
}

bool sh_process_may_have_ended(const shoal_process *process)
{
    uint32_t value;
    return sh_load_acquire(&process->ended) != 0 || sh_block_is_lost(process->record) ||
           sh_end_word_read(&sh_start_of(process->record)->end, &value) != SH_END_HELD;
}
