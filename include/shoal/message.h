/* Messages that the sender writes in place, in shared memory, and the receiver reads there. For bindings: see also binding.h. */
#ifndef SHOAL_MESSAGE_H
#define SHOAL_MESSAGE_H

#include <shoal/queue.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Makes a message of size bytes in the heap, to be written by the caller and then sent: fresh data is copied once, by whoever
 * makes it. The handle is the caller's until a give took it, and one thread's at a time. Errors: as shoal_block_create. */
typedef struct shoal_message shoal_message;
SHOAL_MUST_USE shoal_err shoal_message_create(size_t size, shoal_message **out_message);

/* The bytes of a message, not zeroed, and their number; NULL and 0 for NULL and when its world was left. */
void *shoal_message_data(shoal_message *message);
size_t shoal_message_size(const shoal_message *message);

/* Lets go of a message that was not given away, or that was received. NULL is allowed. */
void shoal_message_destroy(shoal_message *message);

/* Sends a message as raw bytes: every get of the other side reads it so. When it succeeds the message is no longer the
 * caller's, whose pointers into it end; otherwise it is, and can be given again. Blocks and fails as
 * shoal_queue_put_bytes. */
SHOAL_MUST_USE shoal_err shoal_queue_give_message(shoal_queue *queue, shoal_message *message, int64_t timeout);
SHOAL_MUST_USE shoal_err shoal_pipe_give_message(shoal_pipe *end, shoal_message *message, int64_t timeout);

/* Gets raw bytes without a copy, where they lie. Blocks and fails as shoal_queue_get_bytes; every size fits. */
SHOAL_MUST_USE shoal_err shoal_queue_get_message(shoal_queue *queue, int64_t timeout, shoal_message **out_message);
SHOAL_MUST_USE shoal_err shoal_pipe_recv_message(shoal_pipe *end, int64_t timeout, shoal_message **out_message);

#ifdef __cplusplus
}
#endif
#endif
