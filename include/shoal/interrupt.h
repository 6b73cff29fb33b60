/* Waits that a signal handler can end. For bindings: see also binding.h. */
#ifndef SHOAL_INTERRUPT_H
#define SHOAL_INTERRUPT_H

#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Lets signals end the waits of this thread. check is called after each sleep of a wait, so after a signal's handler has
 * run, and every 50 ms, by the waiting thread and without a lock of the library; it may call the library. When it returns
 * true the call ends with SHOAL_EINTR, at the latest 100 ms after the signal; a call that can succeed at that moment does.
 * For Python it is PyErr_CheckSignals. NULL, the default, ends this: then waits go on after signals.
 *
 * It holds for every call that blocks: queues, pipes, locks, semaphores, events, conditions, barriers, joins, shoal_wait,
 * pools and shoal_spawn. What a passed time limit does, this does too: a barrier is broken. shoal_condition_wait has its
 * lock again before it returns, shoal_spawn has ended its processes. */
void shoal_set_interrupt(bool (*check)(void *context), void *context);

#ifdef __cplusplus
}
#endif
#endif
