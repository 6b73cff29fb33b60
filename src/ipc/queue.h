/* What other layers use of queues and pipes, in addition to the public calls. */
#ifndef SH_IPC_QUEUE_H
#define SH_IPC_QUEUE_H

#include "ipc/ring.h"
#include "shm/block.h"

#include <shoal/queue.h>

/* Returns whether a get would not block: there is a message, or the queue is closed. */
bool sh_queue_ready(shoal_queue *queue);

/* Returns the gate where waiters for sh_queue_ready park. */
sh_gate *sh_queue_gate(shoal_queue *queue);

/* Returns until when to park there at most, up to the deadline: the end of a lease wakes nobody. */
int64_t sh_queue_wait_until(shoal_queue *queue, int64_t deadline);

/* Returns an fd that polls readable while sh_queue_ready holds. `call` is for error texts. */
shoal_err sh_queue_watch(shoal_queue *queue, const char *call, int *out_fd);

/* Returns the queue that this end of a pipe reads, borrowed, or NULL if the end only sends. */
shoal_queue *sh_pipe_read_queue(shoal_pipe *end);

/* Returns the queue that this end of a pipe writes, borrowed. Errors: SHOAL_EINVAL if the end only receives. */
shoal_err sh_pipe_write_queue(shoal_pipe *end, shoal_queue **out_queue);

/* Looks at the oldest message, if it is a block, without taking it. The data that it returns is valid only until
 * somebody takes the message. */
bool sh_queue_peek_block(shoal_queue *queue, sh_found *out_found);

/* The same, but opens a handle for the block. Nobody may take the message meanwhile. */
shoal_err sh_queue_open_oldest(shoal_queue *queue, shoal_block **out_block);

/* Return how many messages were ever put and taken. The counts are exact if nobody uses the queue meanwhile. The n-th
 * message (from 1) has been taken if takes >= n. */
uint64_t sh_queue_puts(shoal_queue *queue);
uint64_t sh_queue_takes(shoal_queue *queue);

#endif
