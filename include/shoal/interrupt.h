/* Interrupts: lets signals end the waits of a thread. For bindings to other languages; see also binding.h. */
#ifndef SHOAL_INTERRUPT_H
#define SHOAL_INTERRUPT_H

#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Sets a function that can end the waits of this thread, so that signals interrupt them. While a call waits, it calls
 * check(context) after each sleep, and therefore after a signal handler has run, and every 50 ms. If check returns
 * true, the call returns SHOAL_EINTR, at most 100 ms after the signal, unless it can succeed at that moment. The
 * waiting thread calls check, without a lock of the library; check may call the library. For Python, check calls
 * PyErr_CheckSignals. NULL, the default, means that waits continue after signals.
 *
 * It applies to every call that blocks: queues, pipes, locks, semaphores, events, conditions, barriers, joins,
 * shoal_wait, pools and shoal_spawn. SHOAL_EINTR has the same effects as a timeout: a barrier breaks.
 * shoal_condition_wait locks its lock again before it returns, and shoal_spawn ends its processes. Does not block. */
void shoal_set_interrupt(bool (*check)(void *context), void *context);

#ifdef __cplusplus
}
#endif
#endif
