/* Messages in place: the sender writes a message in shared memory, and the receiver reads it there. For bindings to
 * other languages; see also binding.h.
 */
#ifndef SHOAL_MESSAGE_H
#define SHOAL_MESSAGE_H

#include <shoal/queue.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Makes a message of size bytes in the heap. The caller writes the bytes, which are not zeroed, and then sends the
 * message with a give; so the data is copied only once, by the program that produces it. The caller owns the message
 * until a give succeeds. Only one thread at a time may use it. Does not block. Errors: those of shoal_block_create. */
typedef struct shoal_message shoal_message;
SHOAL_MUST_USE shoal_err shoal_message_create(size_t size, shoal_message **out_message);

/* Return the bytes of a message, or their number. The message owns them. They return NULL or 0 for NULL, and after
 * the process left the world. Cannot fail. */
void *shoal_message_data(shoal_message *message);
size_t shoal_message_size(const shoal_message *message);

/* Destroys a message that was received, or was not sent. NULL is allowed. Does not block. Never changes the last
 * error. */
void shoal_message_destroy(shoal_message *message);

/* Send a message as raw bytes through a queue or a pipe. Every get of the receiver can read it as such. After success
 * the caller no longer owns the message, and its pointers into it are invalid. After a failure the caller still owns
 * it, and can send it again. Block and fail like shoal_queue_put_bytes. */
SHOAL_MUST_USE shoal_err shoal_queue_give_message(shoal_queue *queue, shoal_message *message, int64_t timeout);
SHOAL_MUST_USE shoal_err shoal_pipe_give_message(shoal_pipe *end, shoal_message *message, int64_t timeout);

/* Take a message of raw bytes from a queue or a pipe without a copy. The caller owns it. Block and fail like
 * shoal_queue_get_bytes, except that every size fits. */
SHOAL_MUST_USE shoal_err shoal_queue_get_message(shoal_queue *queue, int64_t timeout, shoal_message **out_message);
SHOAL_MUST_USE shoal_err shoal_pipe_recv_message(shoal_pipe *end, int64_t timeout, shoal_message **out_message);

#ifdef __cplusplus
}
#endif
#endif
