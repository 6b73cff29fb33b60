/* Lets signal handlers end waits, for threads that asked for it (shoal_set_interrupt).
 *
 * A wait of such a thread sleeps for at most SH_INTERRUPT_SLICE at a time and calls the thread's check afterwards; so
 * it also notices a signal that arrived between its last check and the sleep. If check returns true, the wait ends as
 * if its deadline had passed, and sh_fail_waiting reports the reason. Other threads pay one load of a thread-local word
 * when they park. */
#ifndef SH_BASE_INTERRUPT_H
#define SH_BASE_INTERRUPT_H

#include "base/clock.h"
#include "base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SH_INTERRUPT_SLICE SHOAL_MS(50)

typedef struct sh_interrupt {
    bool (*check)(void *context); /* NULL: this thread did not ask */
    void *context;
    bool hit; /* check returned true in this wait */
} sh_interrupt;

extern _Thread_local sh_interrupt sh_interrupt_mine __attribute__((tls_model("initial-exec")));

/* Called at the beginning of a wait. */
static inline void sh_interrupt_begin(void)
{
    if (__builtin_expect(sh_interrupt_mine.check != NULL, 0)) {
        sh_interrupt_mine.hit = false;
    }
}

/* Returns how long to sleep at most: until `until`, or for one slice from now. */
static inline int64_t sh_interrupt_bound(int64_t now, int64_t until)
{
    bool cut = __builtin_expect(sh_interrupt_mine.check != NULL, 0) && until - now > SH_INTERRUPT_SLICE;
    return cut ? now + SH_INTERRUPT_SLICE : until;
}

bool sh_interrupt_ask(void);

/* Called after a sleep, without a lock: checks whether this wait must end. The answer stays true until the next wait
 * begins. */
static inline bool sh_interrupted(void)
{
    return __builtin_expect(sh_interrupt_mine.check != NULL, 0) && sh_interrupt_ask();
}

/* Between these two calls, signals do not end the waits of this thread. For work that must be finished. */
sh_interrupt sh_interrupt_suspend(void);
void sh_interrupt_resume(sh_interrupt suspended);

/* The failure of a wait with that timeout: SHOAL_EINTR if a signal ended it, otherwise SHOAL_ETIMEDOUT with the
 * text. */
__attribute__((format(printf, 2, 3))) shoal_err sh_fail_waiting(int64_t timeout, const char *format, ...);

#endif
