/* An fd for a queue, so that an event loop can wait for it: shoal_queue_fd and shoal_pipe_fd. */
#ifndef SH_IPC_WATCH_H
#define SH_IPC_WATCH_H

#include "ipc/queue_core.h"

/* Returns the fd of a prepared queue. The first call creates it. Anywhere but inside. */
shoal_err sh_watch_fd(shoal_block *queue, int *out_fd);

/* Closes the fd of a queue that is released, or whose handle is. Inside. */
void sh_watch_forget(sh_queue_view *view);

void sh_watch_got_slow(sh_queue_view *view);

/* Called after a get took a message or found none: clears the fd if the queue is no longer ready. A process that
 * watches has two threads, so the fast path (queue_fast.h) need not do this. */
static inline void sh_watch_got(sh_queue_view *view)
{
    if (__builtin_expect(sh_load_relaxed(&view->watch) != 0, 0)) {
        sh_watch_got_slow(view);
    }
}

#endif
