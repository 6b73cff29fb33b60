/* Fds that the library keeps. */
#ifndef SH_OS_FD_H
#define SH_OS_FD_H

#include <stdbool.h>

/* A new fd, never 0, 1 or 2: in a process without standard streams (a daemon) the system gives those out, and the next
 * printf would write into what is behind. Moves fd, which is taken over, when it is one of them; close-on-exec then. A
 * negative fd stays so. -1 with errno when there is none left. */
int sh_fd_keep(int fd);

/* The same for the two ends of a pipe or a pair of sockets. False with errno: both are closed. */
bool sh_fd_keep_both(int fds[2]);

#endif
