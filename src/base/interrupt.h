/* Waits that a signal handler ends, for threads that asked for it (shoal_set_interrupt).
 *
 * A wait of such a thread sleeps at most SH_INTERRUPT_SLICE at a time and asks the thread's check afterwards, also after
 * a signal that came between its last look and the sleep. When check says true the wait ends as if its time were over,
 * and sh_fail_waiting names the reason. Threads that did not ask pay one load of a thread-local word when they park. */
#ifndef SH_BASE_INTERRUPT_H
#define SH_BASE_INTERRUPT_H

#include "base/clock.h"
#include "base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SH_INTERRUPT_SLICE SHOAL_MS(50)

typedef struct sh_interrupt {
    bool (*check)(void *context); /* NULL: not asked for */
    void *context;
    bool hit; /* check said true in this wait */
} sh_interrupt;

extern _Thread_local sh_interrupt sh_interrupt_mine __attribute__((tls_model("initial-exec")));

/* At the begin of a wait. */
static inline void sh_interrupt_begin(void)
{
    if (__builtin_expect(sh_interrupt_mine.check != NULL, 0)) {
        sh_interrupt_mine.hit = false;
    }
}

/* Until when to sleep at most: until, or a slice from now. */
static inline int64_t sh_interrupt_bound(int64_t now, int64_t until)
{
    bool cut = __builtin_expect(sh_interrupt_mine.check != NULL, 0) && until - now > SH_INTERRUPT_SLICE;
    return cut ? now + SH_INTERRUPT_SLICE : until;
}

bool sh_interrupt_ask(void);

/* After a sleep, without a lock: must this wait end? Stays so until the next wait begins. */
static inline bool sh_interrupted(void)
{
    return __builtin_expect(sh_interrupt_mine.check != NULL, 0) && sh_interrupt_ask();
}

/* Between these no wait of this thread is ended: what must be finished is. */
sh_interrupt sh_interrupt_suspend(void);
void sh_interrupt_resume(sh_interrupt suspended);

/* The failure of a wait with that time limit: SHOAL_EINTR when it was ended by a signal, else SHOAL_ETIMEDOUT with the
 * words. */
__attribute__((format(printf, 2, 3))) shoal_err sh_fail_waiting(int64_t timeout, const char *format, ...);

#endif
