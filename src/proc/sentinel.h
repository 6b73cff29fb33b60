/* The fd by which a process sees the end of its child.
 *
 * It is a pidfd where the system has them. Where it has none (an old kernel, a sandbox that forbids pidfd_open,
 * valgrind) it is the end to read of a pipe whose other end only the child holds: the kernel closes that at the child's
 * end. A child may close it earlier, as daemons do with all fds, and another process may have inherited it. So that fd
 * only ends a sleep early: whether the process has ended is asked of waitid, at the latest every SH_SENTINEL_SLICE.
 *
 * Order of calls: prepare, make the child, then watch or, when there is none, cancel, all three in one thread. A forked
 * child calls hold, a started program too, with the fd that it was passed.
 */
#ifndef SH_PROC_SENTINEL_H
#define SH_PROC_SENTINEL_H

#include "proc/process.h"

#include <poll.h>

#define SH_SENTINEL_SLICE SHOAL_MS(20)

/* Before a child is made. Does nothing where there are pidfds; else one child at a time is made. Errors: SHOAL_EOS. */
shoal_err sh_sentinel_prepare(void);

/* The end that the child must hold; -1 where there are pidfds. */
int sh_sentinel_child_end(void);

/* No child was made. */
void sh_sentinel_cancel(void);

/* In the child: keeps its end until it ends. A forked child has it already; a program was passed its number, or -1. */
void sh_sentinel_hold_forked(void);
void sh_sentinel_hold(int fd);

/* Waits until the process has ended, at most until the deadline. */
bool sh_process_wait_end(const shoal_process *process, int64_t deadline);

/* Sends a signal to a process that may have been joined meanwhile. False with errno. */
bool sh_process_send(shoal_process *process, int signal);

/* Polls the sentinels of several processes, not longer than a slice where one of them is a pipe. Their fds stand in
 * fds, -1 for those to leave out. Returns as sh_poll. */
int sh_sentinels_poll(shoal_process *const *processes, struct pollfd *fds, size_t count, int64_t deadline);

#endif
