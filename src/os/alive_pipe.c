#include "os/alive_pipe.h"

#include "os/fd.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

void sh_alive_pipe_open(sh_alive_pipe *pipe)
{
    int ends[2];
    *pipe = (sh_alive_pipe){.read_end = -1, .write_end = -1};
    if (pipe2(ends, O_CLOEXEC) == 0 && sh_fd_keep_both(ends)) {
        *pipe = (sh_alive_pipe){.read_end = ends[0], .write_end = ends[1], .file = sh_memory_identify(ends[0])};
    }
}

static void close_end(int *fd, const sh_memory_id *file)
{
    if (*fd >= 0 && sh_memory_is(*fd, file)) {
        close(*fd);
    }
    *fd = -1;
}

void sh_alive_pipe_close_write(sh_alive_pipe *pipe)
{
    close_end(&pipe->write_end, &pipe->file);
}

void sh_alive_pipe_close_read(sh_alive_pipe *pipe)
{
    close_end(&pipe->read_end, &pipe->file);
}

sh_alive_pipe_state sh_alive_pipe_check(const sh_alive_pipe *pipe)
{
    struct pollfd end = {.fd = pipe->read_end};
    if (pipe->read_end < 0 || !sh_memory_is(pipe->read_end, &pipe->file) || poll(&end, 1, 0) < 0) {
        return SH_ALIVE_PIPE_UNKNOWN;
    }
    return (end.revents & POLLHUP) != 0 ? SH_ALIVE_PIPE_CLOSED : SH_ALIVE_PIPE_OPEN;
}
