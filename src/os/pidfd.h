/* Pidfds, poll and mutexes with a deadline: what the C library does not wrap yet. */
#ifndef SH_OS_PIDFD_H
#define SH_OS_PIDFD_H

#include "base/clock.h"

#include <poll.h>
#include <pthread.h>
#include <stdbool.h>

/* poll with an absolute deadline (sh_now time); continues after signals. Returns the number of fds that are ready, or 0
 * if the deadline passed or a signal ended the wait (base/interrupt.h). */
int sh_poll(struct pollfd *fds, nfds_t count, int64_t deadline);

/* Locks the mutex. Returns false if the deadline passed first. */
bool sh_mutex_lock_until(pthread_mutex_t *mutex, int64_t deadline);

/* Checks whether the process behind the pidfd has ended. */
bool sh_pidfd_ended(int pidfd);

/* Sends a signal. Returns false with errno if that fails. */
bool sh_pidfd_signal(int pidfd, int signal);

/* Returns a close-on-exec copy of an fd of that process, or -1 with errno: often the system forbids it. */
int sh_pidfd_copy(int pidfd, int fd);

/* Returns the number of threads of this process. */
int sh_thread_count(void);

#endif
