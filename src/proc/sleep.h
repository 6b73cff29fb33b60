/* Sleeps until any of several things happens: something arrives at a gate, or a process ends. The caller adds what to
 * sleep on, checks all of it once more, and sleeps; then it checks again, whatever woke it.
 *
 * The caller sleeps on a process by its end word (sync/end_word.h), so the end of the process wakes it at once, also
 * after SIGKILL. What cannot be slept on shortens the sleep: a process that does not hold its word yet, a process that
 * is just ending, and more things than the kernel takes in one call. */
#ifndef SH_PROC_SLEEP_H
#define SH_PROC_SLEEP_H

#include "os/futex.h"
#include "proc/process.h"
#include "sync/park.h"

#define SH_SLEEP_UNSEEN SHOAL_MS(20) /* the end of a process that cannot be slept on is noticed within this time */

typedef struct sh_sleep {
    bool many; /* the kernel can wait for several words */
    size_t count;
    int64_t longest;
    sh_futex_pair pairs[SH_FUTEX_MANY];
} sh_sleep;

void sh_sleep_begin(sh_sleep *sleep);

/* Adds a futex word, or the end of a process. unseen: how often to check it if there are too many things to sleep on
 * it. */
void sh_sleep_add(sh_sleep *sleep, const void *word, uint32_t value, int64_t unseen);
void sh_sleep_add_process(sh_sleep *sleep, const shoal_process *process, int64_t unseen);

/* Sleeps until something happens, the deadline passes, or it is time to check what cannot be slept on. Sweeps dead
 * processes if nothing woke it. */
void sh_sleep_until(const sh_sleep *sleep, int64_t deadline);

/* Checks whether the process may have ended. False means that it runs, except in programs that destroy their list of
 * robust mutexes: call sh_process_has_ended once in a while too. This costs a load, that one a system call. */
bool sh_process_may_have_ended(const shoal_process *process);

#endif
