/* The sentinel: the fd by which a process notices the end of its child.
 *
 * It is a pidfd where the system has them. Elsewhere (an old kernel, a sandbox that forbids pidfd_open, valgrind) it is
 * the read end of a pipe whose write end only the child holds: the kernel closes that when the child ends. A child may
 * close it earlier, as daemons close all fds, and another process may have inherited it. So the pipe only ends a sleep
 * early: waitid says whether the process has ended, and is asked at least every SH_SENTINEL_SLICE.
 *
 * Order of calls: prepare, make the child, then watch, or cancel if there is no child; all three in one thread. A
 * forked child calls hold; so does a started program, with the fd that it was passed.
 */
#ifndef SH_PROC_SENTINEL_H
#define SH_PROC_SENTINEL_H

#include "proc/process.h"

#include <poll.h>

#define SH_SENTINEL_SLICE SHOAL_MS(20)

/* Call it before making a child. Does nothing where there are pidfds; otherwise only one child is made at a time.
 * Errors: SHOAL_EOS. */
shoal_err sh_sentinel_prepare(void);

/* Returns the pipe end that the child must hold; -1 where there are pidfds. */
int sh_sentinel_child_end(void);

/* Undoes prepare if no child was made. */
void sh_sentinel_cancel(void);

/* Called in the child: keeps its pipe end open until the process ends. A forked child has the end already; a program
 * was passed its number, or -1. */
void sh_sentinel_hold_forked(void);
void sh_sentinel_hold(int fd);

/* Waits until the process has ended, at most until the deadline. Returns whether it has ended. */
bool sh_process_wait_end(const shoal_process *process, int64_t deadline);

/* Sends a signal to a process that may have been joined meanwhile. Returns false and sets errno on failure. */
bool sh_process_send(shoal_process *process, int signal);

/* Polls the sentinels of several processes, for at most a slice if one of them is a pipe. fds holds their fds, -1 for
 * those to leave out. Returns what sh_poll returns. */
int sh_sentinels_poll(shoal_process *const *processes, struct pollfd *fds, size_t count, int64_t deadline);

#endif
