/* One sleep until any of several things happens: something arrives at a gate, or a process ends. The caller adds what to sleep on, looks
 * once more at all of it, and sleeps; then it looks again, whatever woke it.
 *
 * A process is slept on by its end word (sync/end_word.h), so its end wakes at once, a SIGKILL too. What cannot be slept on shortens the
 * sleep: a process that does not hold its word yet, one that is just ending, and things beyond what the kernel takes at a time. */
#ifndef SH_PROC_SLEEP_H
#define SH_PROC_SLEEP_H

#include "os/futex.h"
#include "proc/process.h"
#include "sync/park.h"

#define SH_SLEEP_UNSEEN SHOAL_MS(20) /* the end of a process that cannot be slept on is seen within this time */

typedef struct sh_sleep {
    bool many; /* the kernel can wait for several words */
    size_t count;
    int64_t longest;
    sh_futex_pair pairs[SH_FUTEX_MANY];
} sh_sleep;

void sh_sleep_begin(sh_sleep *sleep);

/* unseen: how often to look at it, if it cannot be slept on because there are too many. */
void sh_sleep_add(sh_sleep *sleep, const void *word, uint32_t value, int64_t unseen);
void sh_sleep_add_process(sh_sleep *sleep, const shoal_process *process, int64_t unseen);

/* Sleeps until something happens, the deadline passes, or it is time to look at what cannot be slept on. Sweeps the dead when nothing
 * woke it. */
void sh_sleep_until(const sh_sleep *sleep, int64_t deadline);

/* May it have ended? False means that it runs, but for programs that destroy their list of robust mutexes: ask sh_process_has_ended once
 * in a while. Costs a load, that one a system call. */
bool sh_process_may_have_ended(const shoal_process *process);

#endif
