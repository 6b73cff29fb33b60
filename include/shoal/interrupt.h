/* Interrupts: lets signals, or a flag of the program, end the waits of a thread. For bindings to other languages,
 * and for programs that cancel; see also binding.h.
 */
#ifndef SHOAL_INTERRUPT_H
#define SHOAL_INTERRUPT_H

#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Sets a function that can end the waits of this thread. While a call waits, it calls check(context) about every 50
 * ms and after each signal handler. If check returns true, the call returns SHOAL_EINTR, at most 100 ms after the
 * signal, unless it can succeed at that moment. check must return true only once for each interrupt, or every later
 * wait ends too. It is not called before a call first sleeps, and so never with SHOAL_NOW. NULL, the default, means
 * that waits continue after signals. Does not block.
 *
 *     static volatile sig_atomic_t stop; // a handler sets it to 1
 *
 *     static bool check(void *context)
 *     {
 *         if (stop == 0) {
 *             return false;
 *         }
 *         stop = 0;
 *         return true;
 *     }
 *
 *     shoal_set_interrupt(check, NULL);
 *     err = shoal_queue_get(q, SHOAL_FOREVER, &v); // or SHOAL_EINTR
 *
 * For Python, check calls PyErr_CheckSignals. Another thread can cancel in the same way, with an atomic flag.
 *
 * The waiting thread calls check, without a lock of the library. check may call the library; waits within it are not
 * interrupted. The setting applies to this thread only, until it is changed; a child of fork inherits it. context
 * must stay valid as long. It applies to every call that blocks: queues, pipes, locks, semaphores, events,
 * conditions, barriers, joins, shoal_wait, pools, shoal_spawn, shoal_loader_next and shoal_train_run, but not to
 * clean-up.
 *
 * SHOAL_EINTR has the same effects as a timeout: a put has consumed its value unless it is kept, and a barrier
 * breaks. shoal_condition_wait locks its lock again before it returns, and shoal_spawn ends its processes. */
void shoal_set_interrupt(bool (*check)(void *context), void *context);

#ifdef __cplusplus
}
#endif
#endif
