#include "os/fd.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sys/syscall.h>
#include <unistd.h>

int sh_fd_keep(int fd)
{
    if (fd < 0 || fd > STDERR_FILENO) {
        return fd;
    }
    int moved = fcntl(fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
    int number = errno;
    close(fd);
    errno = number;
    return moved;
}

bool sh_fd_keep_both(int fds[2])
{
    for (int i = 0; i < 2; i++) {
        fds[i] = sh_fd_keep(fds[i]);
        if (fds[i] < 0) {
            int number = errno;
            close(fds[1 - i]);
            errno = number;
            return false;
        }
    }
    return true;
}

static void close_range_of(unsigned first, unsigned last)
{
    if (first <= last) {
        (void)syscall(SYS_close_range, first, last, 0u);
    }
}

void sh_fd_close_others(int kept)
{
    unsigned first = STDERR_FILENO + 1;
    if (kept >= (int)first) {
        close_range_of(first, (unsigned)kept - 1);
        first = (unsigned)kept + 1;
    }
    close_range_of(first, UINT_MAX);
}
