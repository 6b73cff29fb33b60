#include "os/cord.h"

#include "os/fd.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

void sh_cord_make(sh_cord *cord)
{
    int ends[2];
    *cord = (sh_cord){.near = -1, .far = -1};
    if (pipe2(ends, O_CLOEXEC) == 0 && sh_fd_keep_both(ends)) {
        *cord = (sh_cord){.near = ends[0], .far = ends[1], .file = sh_memory_identify(ends[0])};
    }
}

static void close_end(int *fd, const sh_memory_id *file)
{
    if (*fd >= 0 && sh_memory_is(*fd, file)) {
        close(*fd);
    }
    *fd = -1;
}

void sh_cord_let_go(sh_cord *cord)
{
    close_end(&cord->far, &cord->file);
}

void sh_cord_close(sh_cord *cord)
{
    close_end(&cord->near, &cord->file);
}

sh_cord_state sh_cord_look(const sh_cord *cord)
{
    struct pollfd end = {.fd = cord->near};
    if (cord->near < 0 || !sh_memory_is(cord->near, &cord->file) || poll(&end, 1, 0) < 0) {
        return SH_CORD_UNKNOWN;
    }
    return (end.revents & POLLHUP) != 0 ? SH_CORD_CUT : SH_CORD_WHOLE;
}
