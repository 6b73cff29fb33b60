/* Queues inside the library. */
#ifndef SH_IPC_QUEUE_H
#define SH_IPC_QUEUE_H

#include "ipc/ring.h"
#include "shm/block.h"

#include <shoal/queue.h>

/* A get would not block: there is a message, or the queue is closed. */
bool sh_queue_ready(shoal_queue *queue);

/* Where those park who wait for sh_queue_ready. */
sh_gate *sh_queue_gate(shoal_queue *queue);

/* An fd that polls readable while sh_queue_ready holds. `call` is for the words. */
shoal_err sh_queue_watch(shoal_queue *queue, const char *call, int *out_fd);

/* The queue that this end of a pipe reads, borrowed; NULL when it only sends. */
shoal_queue *sh_pipe_read_queue(shoal_pipe *end);

/* The queue that this end of a pipe writes, borrowed. Errors: SHOAL_EINVAL when it only receives. */
shoal_err sh_pipe_write_queue(shoal_pipe *end, shoal_queue **out_queue);

/* Looks at the oldest message, if it is a block, without taking it: its data, which only stays while nobody takes
 * it. */
bool sh_queue_peek_block(shoal_queue *queue, sh_found *out_found);

/* The same, with a handle of one's own. Nobody may take it meanwhile. */
shoal_err sh_queue_open_oldest(shoal_queue *queue, shoal_block **out_block);

/* How many messages were ever put and taken; exact when nobody works on it. The n-th put (from 1) has been taken
 * when takes >= n. */
uint64_t sh_queue_puts(shoal_queue *queue);
uint64_t sh_queue_takes(shoal_queue *queue);

#endif
