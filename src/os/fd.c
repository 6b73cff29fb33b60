#include "os/fd.h"

#include <errno.h>
#include <fcntl.h>
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
