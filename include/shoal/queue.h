/* Queues: many producers, many consumers, in any processes of the world.
 *
 * Messages of one producer arrive in their order. `put` has done its work when it returns: the message and what it
 * refers to are in the heap and owned by the queue, so the sender may exit, or be killed, at once. Three kinds of
 * message: raw bytes, one block, or a value (value.h). Up to 8 bytes, integers, floats and block handles travel
 * inside the ring; nothing is copied for a block. A consumer killed in the middle of `get` has either taken the
 * message or not; it is never half taken.
 *
 * Python's SimpleQueue is a queue without a bound; its JoinableQueue is one that task_done and join are called on.
 */
#ifndef SHOAL_QUEUE_H
#define SHOAL_QUEUE_H

#include <shoal/block.h>
#include <shoal/time.h>
#include <shoal/value.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Makes a queue for at most `bound` messages; 0 means no bound but the heap's. A bound has its memory from the start, 16 bytes for
 * each of the next power of two (256 MiB for 2^24); without one the queue grows as it fills. The caller owns one reference:
 * shoal_release. Errors: as shoal_block_create; SHOAL_EINVAL when bound is over 2^30. */
SHOAL_MUST_USE shoal_err shoal_queue_create(uint64_t bound, shoal_queue **out_queue);

/* Puts a value and consumes it, whether or not it succeeds. To try again after a failure, keep the value first
 * (shoal_value_keep). Blocks while the queue is full, at most timeout. Any thread, any process. Errors: SHOAL_ETIMEDOUT, SHOAL_ECLOSED,
 * SHOAL_ENOMEM, SHOAL_EINVAL (what cannot be sent), SHOAL_EFORK. */
SHOAL_MUST_USE shoal_err shoal_queue_put(shoal_queue *queue, shoal_value *value, int64_t timeout);

/* The same for size raw bytes, copied. */
SHOAL_MUST_USE shoal_err shoal_queue_put_bytes(shoal_queue *queue, const void *bytes, size_t size, int64_t timeout);

/* The same for a block: a handle travels. The caller keeps its own reference. */
SHOAL_MUST_USE shoal_err shoal_queue_put_block(shoal_queue *queue, shoal_block *block, int64_t timeout);

/* The same, and the caller's reference goes along: when it succeeds the block is no longer the caller's. To send on what
 * was received, this is the cheapest way. */
SHOAL_MUST_USE shoal_err shoal_queue_give_block(shoal_queue *queue, shoal_block *block, int64_t timeout);

/* Takes the oldest message, of any kind, as a value that the caller owns (shoal_value_destroy). Raw bytes arrive as
 * a bytes value, a block as a block value. Blocks while the queue is empty, at most timeout. Errors:
 * SHOAL_ETIMEDOUT, SHOAL_ECLOSED (closed and empty), SHOAL_ENOMEM, SHOAL_ECORRUPT, SHOAL_EFORK. After SHOAL_ENOMEM the
 * message is not lost: this process's next get from the queue, of any kind and by any thread, tries it first. Other
 * processes do not see it any more, and it goes when this process ends or releases the queue. */
SHOAL_MUST_USE shoal_err shoal_queue_get(shoal_queue *queue, int64_t timeout, shoal_value **out_value);

/* Takes a raw bytes message into the caller's buffer. SHOAL_ETYPE when the oldest message is something else,
 * SHOAL_EINVAL with the size in out_size when it does not fit: in both cases it stays in the queue. */
SHOAL_MUST_USE shoal_err shoal_queue_get_bytes(shoal_queue *queue, void *buffer, size_t capacity, int64_t timeout,
                                               size_t *out_size);

/* Takes a block message. The caller owns one reference. A block that this process holds already arrives as the same
 * handle. */
SHOAL_MUST_USE shoal_err shoal_queue_get_block(shoal_queue *queue, int64_t timeout, shoal_block **out_block);

/* How many messages are in it: exact when nobody works on it. */
uint64_t shoal_queue_size(shoal_queue *queue);

/* No more puts; gets go on until it is empty. Wakes every waiter. May be called more than once. */
void shoal_queue_close(shoal_queue *queue);

/* task_done says that one message got from this queue is dealt with; SHOAL_ESTATE when called more often than
 * messages were put. join waits until it was called for every message put so far. */
SHOAL_MUST_USE shoal_err shoal_queue_task_done(shoal_queue *queue);
SHOAL_MUST_USE shoal_err shoal_queue_join(shoal_queue *queue, int64_t timeout);

/* Two-way (or one-way: a receives, b sends) connection of two ends. An end is a shared object like any other and can
 * be sent. When every holder of one end has released it or died, the other gets SHOAL_ECLOSED once it has read what
 * was sent. */
SHOAL_MUST_USE shoal_err shoal_pipe_create(bool duplex, shoal_pipe **out_a, shoal_pipe **out_b);
SHOAL_MUST_USE shoal_err shoal_pipe_send(shoal_pipe *end, shoal_value *value, int64_t timeout);
SHOAL_MUST_USE shoal_err shoal_pipe_recv(shoal_pipe *end, int64_t timeout, shoal_value **out_value);
SHOAL_MUST_USE shoal_err shoal_pipe_send_bytes(shoal_pipe *end, const void *bytes, size_t size, int64_t timeout);
SHOAL_MUST_USE shoal_err shoal_pipe_recv_bytes(shoal_pipe *end, void *buffer, size_t capacity, int64_t timeout,
                                               size_t *out_size);
/* SHOAL_OK when recv would not block (a message, or the end), SHOAL_ETIMEDOUT otherwise. */
SHOAL_MUST_USE shoal_err shoal_pipe_poll(shoal_pipe *end, int64_t timeout);

#ifdef __cplusplus
}
#endif
#endif
