/* A pipe that tells a process whether the child that it is about to fork still exists, without a pid. Only the child
 * has the write end.
 *
 * The parent opens the pipe before the fork and closes its write end after it. The pipe is closed when no process has
 * the write end open any more: the fork failed, the child has ended, or the child has closed it. A stopped child
 * keeps it open. A process that a bare clone makes in between has it too, until it ends or executes another program:
 * then the parent sees the pipe closed later, never too early.
 */
#ifndef SH_OS_ALIVE_PIPE_H
#define SH_OS_ALIVE_PIPE_H

#include "os/memory.h"

#include <stdbool.h>

typedef struct sh_alive_pipe {
    int read_end, write_end; /* fds, close-on-exec, or -1 */
    sh_memory_id file;       /* the pipe behind both: the program may close them and open other files in their place */
} sh_alive_pipe;

/* Opens a pipe. If there are no fds left, sh_alive_pipe_check returns SH_ALIVE_PIPE_UNKNOWN for it. */
void sh_alive_pipe_open(sh_alive_pipe *pipe);

/* Closes the write end. The parent calls it after the fork, the child when nobody needs to wait for it any more. */
void sh_alive_pipe_close_write(sh_alive_pipe *pipe);

/* Closes the read end. The parent calls it when it no longer needs the pipe, the child for each pipe of its parent. */
void sh_alive_pipe_close_read(sh_alive_pipe *pipe);

typedef enum sh_alive_pipe_state {
    SH_ALIVE_PIPE_UNKNOWN,
    SH_ALIVE_PIPE_OPEN,
    SH_ALIVE_PIPE_CLOSED
} sh_alive_pipe_state;
sh_alive_pipe_state sh_alive_pipe_check(const sh_alive_pipe *pipe);

#endif
