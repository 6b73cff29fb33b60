/* Queues: many producers, many consumers, in any processes of the world.
 *
 * Messages of one producer arrive in their order. `put` has done its work when it returns: the message and what it
 * refers to are in the heap and owned by the queue, so the sender may exit, or be killed, at once. Three kinds of
 * message: raw bytes, one block, or a value (value.h). Up to 8 bytes, integers, floats and block handles travel
 * inside the ring; nothing is copied for a block. A consumer killed in the middle of `get` has either taken the
 * message or not; it is never half taken.
 *
 * A message that is written in place, without a value, is in binding.h.
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

/* Puts size raw bytes, which are copied. Blocks and fails as shoal_queue_put. */
SHOAL_MUST_USE shoal_err shoal_queue_put_bytes(shoal_queue *queue, const void *bytes, size_t size, int64_t timeout);

/* Puts a block: a handle travels, nothing is copied. The caller keeps its own reference. Blocks and fails as shoal_queue_put. */
SHOAL_MUST_USE shoal_err shoal_queue_put_block(shoal_queue *queue, shoal_block *block, int64_t timeout);

/* Puts a block together with the caller's reference: on success the block is no longer the caller's. This is the cheapest way to
 * send on what was received. Blocks and fails as shoal_queue_put. */
SHOAL_MUST_USE shoal_err shoal_queue_give_block(shoal_queue *queue, shoal_block *block, int64_t timeout);

/* Takes the oldest message, of any kind, as a value that the caller owns (shoal_value_destroy). Raw bytes arrive as
 * a bytes value, a block as a block value. Blocks while the queue is empty, at most timeout. Errors:
 * SHOAL_ETIMEDOUT, SHOAL_ECLOSED (closed and empty), SHOAL_ENOMEM, SHOAL_EINVAL (acknowledged), SHOAL_ECORRUPT, SHOAL_EFORK. After SHOAL_ENOMEM the
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

/* The number of messages in the queue. It is exact while nobody works on it. */
uint64_t shoal_queue_size(shoal_queue *queue);

/* Closes the queue: puts fail, and gets go on until it is empty. Wakes every waiter. May be called more than once. */
void shoal_queue_close(shoal_queue *queue);

/* An fd for poll, epoll and event loops: it polls readable while a get would not block, because there is a message or the queue is closed.
 * It may also be readable for no reason, when another process took the message: so get with SHOAL_NOW, and go on polling after
 * SHOAL_ETIMEDOUT, which clears it. Do nothing with it but poll; in particular, do not read it. It belongs to the handle and is closed with its
 * last reference in this process, or when the process leaves the world. Each call gives the same fd.
 *
 * The first call of a process starts a thread, with all signals blocked, that ends with the process's stay in the world. So the calls of
 * this process take its private lock from then on, as in every program with threads. Queues without an fd cost nothing. Messages of a process that was killed
 * are seen as by every waiter, after a second at the latest. A child of fork has neither the thread nor the fds, which are closed there: it asks anew.
 * Any thread. Errors: SHOAL_EINVAL, SHOAL_ENOMEM, SHOAL_EOS (no fd or thread left), SHOAL_EFORK, SHOAL_ESTATE. */
SHOAL_MUST_USE shoal_err shoal_queue_fd(shoal_queue *queue, int *out_fd);

/* Count finished messages. task_done says that one message got from this queue is dealt with; SHOAL_ESTATE when called more often than
 * messages were put. join waits until it was called for every message put so far. */
SHOAL_MUST_USE shoal_err shoal_queue_task_done(shoal_queue *queue);
SHOAL_MUST_USE shoal_err shoal_queue_join(shoal_queue *queue, int64_t timeout);

/* ---- acknowledged queues ----
 *
 * A message that was got from an acknowledged queue stays the queue's until its receiver says that it is done. When the receiver is
 * killed, or ends, before that, the next receiver gets the message, before newer ones, and is told that it was delivered before. So
 * every message arrives at least once. A receiver whose work must not happen twice looks at `deliveries`.
 *
 *     shoal_queue_options options = {.acknowledge = true};
 *     err = shoal_queue_create_with(&options, &queue);
 *     while (shoal_queue_get_delivery(queue, SHOAL_FOREVER, &value,
 *                                     &delivery) == SHOAL_OK) {
 *         ... work on value; delivery.deliveries is 1 the first time ...
 *         err = shoal_delivery_done(&delivery);
 *     }
 *
 * Only shoal_queue_get_delivery gets from it; the other gets, and task_done, are SHOAL_EINVAL. size, join, close and shoal_wait count
 * the messages that are out: join waits until all are done, and a closed queue gives SHOAL_ECLOSED when nothing is in it and nothing
 * is out. The bound counts the messages that wait, not those that are out. */

/* Options of shoal_queue_create_with. Zero is the default of each. */
typedef struct shoal_queue_options {
    uint64_t bound; /* as in shoal_queue_create */
    bool acknowledge;

    /* How long a receiver may keep a message, in ns. 0: as long as it lives, also while it is stopped. After that time the next
     * receiver gets it, and the first one's done is SHOAL_ESTATE. */
    int64_t lease;

    uint32_t deliveries;  /* of one message, at most; 0: no limit. After that it goes to rejects */
    shoal_queue *rejects; /* a queue for those, or NULL. Without one, or when it is full or closed, they are dropped */
} shoal_queue_options;

/* Makes a queue with options, which may be NULL. The caller owns one reference. lease, deliveries and rejects need
 * acknowledge: SHOAL_EINVAL otherwise. Errors: as shoal_queue_create. */
SHOAL_MUST_USE shoal_err shoal_queue_create_with(const shoal_queue_options *options, shoal_queue **out_queue);

/* A message that this process got and has not finished. It retains its queue. */
typedef struct shoal_delivery {
    shoal_queue *queue;     /* NULL: finished */
    uint64_t number, state; /* the library's */
    uint32_t deliveries;    /* how often the message was delivered, with this time: 1 is the first time */
} shoal_delivery;

/* Gets the oldest message of an acknowledged queue. The caller owns the value; the message stays the queue's until shoal_delivery_done or shoal_delivery_return.
 * Blocks at most timeout. Any thread, any process. Errors: SHOAL_ETIMEDOUT, SHOAL_ECLOSED, SHOAL_ENOMEM (the message is back in the
 * queue), SHOAL_EINVAL (not an acknowledged queue), SHOAL_ECORRUPT, SHOAL_EFORK. */
SHOAL_MUST_USE shoal_err shoal_queue_get_delivery(shoal_queue *queue, int64_t timeout, shoal_value **out_value,
                                                  shoal_delivery *out_delivery);

/* End a delivery. done: nobody gets the message again. return: the next receiver gets it, at once. Both end the delivery and release its queue. Any
 * thread of the process that got it. SHOAL_ESTATE: the delivery has ended, or is another process's, or its lease has passed and another
 * receiver has the message. */
SHOAL_MUST_USE shoal_err shoal_delivery_done(shoal_delivery *delivery);
SHOAL_MUST_USE shoal_err shoal_delivery_return(shoal_delivery *delivery);

/* Extends a lease: it lasts `time` from now on. Without a lease nothing changes. SHOAL_ESTATE: as above. */
SHOAL_MUST_USE shoal_err shoal_delivery_extend(shoal_delivery *delivery, int64_t time);

/* The number of messages that reached their limit of deliveries and were dropped because no queue took them. */
uint64_t shoal_queue_dropped(shoal_queue *queue);

/* ---- pipes ---- */

/* Pipes: two-way connections of two ends, or one-way ones (a receives, b sends). An end is a shared object like any other and can
 * be sent. When every holder of one end has released it or died, the other gets SHOAL_ECLOSED once it has read what
 * was sent. */
SHOAL_MUST_USE shoal_err shoal_pipe_create(bool duplex, shoal_pipe **out_a, shoal_pipe **out_b);
SHOAL_MUST_USE shoal_err shoal_pipe_send(shoal_pipe *end, shoal_value *value, int64_t timeout);
SHOAL_MUST_USE shoal_err shoal_pipe_recv(shoal_pipe *end, int64_t timeout, shoal_value **out_value);
SHOAL_MUST_USE shoal_err shoal_pipe_send_bytes(shoal_pipe *end, const void *bytes, size_t size, int64_t timeout);
SHOAL_MUST_USE shoal_err shoal_pipe_recv_bytes(shoal_pipe *end, void *buffer, size_t capacity, int64_t timeout,
                                               size_t *out_size);
/* Waits for something to receive: SHOAL_OK when recv would not block (a message, or the end), SHOAL_ETIMEDOUT otherwise. */
SHOAL_MUST_USE shoal_err shoal_pipe_poll(shoal_pipe *end, int64_t timeout);

/* An fd for poll, as shoal_queue_fd gives: readable while shoal_pipe_recv would not block. SHOAL_EINVAL when the end only sends. */
SHOAL_MUST_USE shoal_err shoal_pipe_fd(shoal_pipe *end, int *out_fd);

#ifdef __cplusplus
}
#endif
#endif
