/* An fd for a queue, so that an event loop can wait for it: shoal_queue_fd, shoal_pipe_fd. */
#ifndef SH_IPC_WATCH_H
#define SH_IPC_WATCH_H

#include "ipc/queue_core.h"

/* The fd of a prepared queue, made at the first call. Anywhere but inside. */
shoal_err sh_watch_fd(shoal_block *queue, int *out_fd);

/* The queue is released, or its handle is: its fd is closed. Inside. */
void sh_watch_forget(sh_queue_view *view);

void sh_watch_got_slow(sh_queue_view *view);

/* A get took a message or found none: an fd that is readable for no reason any more is cleared. A process that watches has two threads,
 * so the quick way (queue_fast.h) need not do this. */
static inline void sh_watch_got(sh_queue_view *view)
{
    if (__builtin_expect(sh_load_relaxed(&view->watch) != 0, 0)) {
        sh_watch_got_slow(view);
    }
}

#endif
