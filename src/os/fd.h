/* The fds that the library keeps: away from the standard streams, and out of processes that must not have them. */
#ifndef SH_OS_FD_H
#define SH_OS_FD_H

#include <stdbool.h>

/* Returns an fd for the same file that is not 0, 1 or 2. In a process without standard streams (a daemon) the system
 * hands those out, and the next printf would write into the file. Takes fd over; if it is one of the three, moves it
 * and makes it close-on-exec. A negative fd is returned as it is. Returns -1 with errno if no fd is left. */
int sh_fd_keep(int fd);

/* The same for both ends of a pipe or socket pair. If it returns false, with errno, both are closed. */
bool sh_fd_keep_both(int fds[2]);

/* Closes all fds of this process but the standard streams and this one, which may be -1. Does nothing on kernels before
 * 5.9. */
void sh_fd_close_others(int kept);

#endif
