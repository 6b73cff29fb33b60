/* What the C library does not wrap yet. */
#ifndef SH_OS_PIDFD_H
#define SH_OS_PIDFD_H

#include "base/clock.h"

#include <poll.h>
#include <pthread.h>
#include <stdbool.h>

/* poll with an absolute deadline (sh_now time), going on after signals. Returns how many fds are ready, 0 when the
 * deadline passed or a signal ended the wait (base/interrupt.h). */
int sh_poll(struct pollfd *fds, nfds_t count, int64_t deadline);

/* Locks, or gives up at the deadline: false. */
bool sh_mutex_lock_until(pthread_mutex_t *mutex, int64_t deadline);

/* Has the process behind the pidfd ended? */
bool sh_pidfd_ended(int pidfd);

/* False with errno when it cannot. */
bool sh_pidfd_signal(int pidfd, int signal);

/* Threads of this process. */
int sh_thread_count(void);

#endif
