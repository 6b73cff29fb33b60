/* Queues and pipes: carry messages between any processes of the world.
 *
 * A queue has any number of producers and consumers. The messages of one producer arrive in the order in which it
 * put them. When a put returns, the message and everything it refers to are in the heap and belong to the queue, so
 * the sender may exit or be killed at once. A consumer that is killed during a get has either taken the message or
 * not; no message is half taken. A message that it had taken is lost with it, unless the queue is acknowledged
 * (below).
 *
 * A message is raw bytes, a block (block.h), or a value (value.h). share.h has the calls for tensors, and message.h
 * messages that are written in place. Integers, floats, block handles and up to 8 raw bytes are stored in the
 * queue itself, without an allocation. A block is never copied. Every other message is copied into memory of the heap,
 * whatever its size, and freed when it is received. A message that does not fit into the heap, or has over 1 TiB, is
 * refused with SHOAL_ENOMEM; a value with a string or bytes of 4 GiB or more with SHOAL_ELIMIT.
 *
 * Queues and ends of pipes are reference counted: shoal_release(queue), or shoal_queue_release and
 * shoal_pipe_release (handle.h), drop a reference. error.h explains SHOAL_EFORK.
 *
 * Python's SimpleQueue is a queue with a bound in bytes. Its JoinableQueue is a queue with task_done and join.
 */
#ifndef SHOAL_QUEUE_H
#define SHOAL_QUEUE_H

#include <shoal/block.h>
#include <shoal/time.h>
#include <shoal/value.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Makes a queue for at most `bound` messages. A bound of 0 means no bound except the heap's. The caller owns one
 * reference: shoal_release. Does not block. Thread-safe. Errors: those of shoal_block_create; SHOAL_EINVAL if bound
 * is over 2^30.
 *
 * A bounded queue allocates its memory at once: 16 bytes for each message, with the number of messages rounded up to
 * a power of two (256 MiB for 2^24). An unbounded queue grows as it fills and does not shrink: until it is freed, it
 * keeps 16 to 64 bytes for each message of the largest number that it held. The contents of the messages come on
 * top, and are freed when they are received. */
SHOAL_MUST_USE shoal_err shoal_queue_create(uint64_t bound, shoal_queue **out_queue);

/* Puts a value into a queue. Consumes the value, on success and on failure; to try again after a failure, keep the
 * value first (shoal_value_keep). Blocks while the queue is full, at most for timeout. Thread-safe. Errors:
 * SHOAL_ETIMEDOUT; SHOAL_ECLOSED; SHOAL_ENOMEM; SHOAL_EINVAL if the value is NULL or a member of a container (put a
 * copy of it: shoal_value_copy); SHOAL_ELIMIT if a string or bytes in it has 4 GiB or more; SHOAL_ESTATE if this
 * process has left the world of an object in it; SHOAL_EFORK. */
SHOAL_MUST_USE shoal_err shoal_queue_put(shoal_queue *queue, shoal_value *value, int64_t timeout);

/* Puts a copy of size raw bytes into a queue. Blocks and fails like shoal_queue_put. Thread-safe. */
SHOAL_MUST_USE shoal_err shoal_queue_put_bytes(shoal_queue *queue, const void *bytes, size_t size, int64_t timeout);

/* Puts a block into a queue. The block's bytes are not copied. The caller keeps its own reference. Blocks and fails
 * like shoal_queue_put. Thread-safe. */
SHOAL_MUST_USE shoal_err shoal_queue_put_block(shoal_queue *queue, shoal_block *block, int64_t timeout);

/* Puts a block into a queue and passes on the caller's reference. After success the caller must not use the block.
 * This is the cheapest way to forward a block that was received. Blocks and fails like shoal_queue_put. Thread-safe. */
SHOAL_MUST_USE shoal_err shoal_queue_give_block(shoal_queue *queue, shoal_block *block, int64_t timeout);

/* Takes the oldest message from a queue as a value. Raw bytes arrive as a bytes value, a block as a block value. The
 * caller owns the value: shoal_value_destroy. Blocks while the queue is empty, at most for timeout. Thread-safe.
 * Errors: SHOAL_ETIMEDOUT; SHOAL_ECLOSED if the queue is closed and empty; SHOAL_ENOMEM; SHOAL_EINVAL if the queue
 * is acknowledged or an argument is NULL; SHOAL_ECORRUPT; SHOAL_EFORK.
 *
 * After SHOAL_ENOMEM the message is not lost: the next get of this process from this queue, by any thread and of any
 * kind, tries it first. shoal_queue_size still counts it in this process. Other processes no longer see the message,
 * and it is freed when this process ends or releases the queue. */
SHOAL_MUST_USE shoal_err shoal_queue_get(shoal_queue *queue, int64_t timeout, shoal_value **out_value);

/* Takes a message of raw bytes, from shoal_queue_put_bytes and not a bytes value, from a queue into the caller's
 * buffer, and its size into *out_size. out_size must not be NULL; buffer may be, if capacity is 0. Blocks and fails
 * like shoal_queue_get. Thread-safe. Errors: also SHOAL_ETYPE if the oldest message is not raw bytes, and SHOAL_EINVAL
 * if it does not fit; in both cases the message stays in the queue. If it does not fit, *out_size is its size; after
 * any other failure *out_size is unchanged. */
SHOAL_MUST_USE shoal_err shoal_queue_get_bytes(shoal_queue *queue, void *buffer, size_t capacity, int64_t timeout,
                                               size_t *out_size);

/* Takes a block from a queue. The caller owns one reference. A block that this process already holds arrives as the
 * same handle. Blocks and fails like shoal_queue_get. Thread-safe. Errors: also SHOAL_ETYPE if the oldest message is
 * not a block; the message then stays in the queue. */
SHOAL_MUST_USE shoal_err shoal_queue_get_block(shoal_queue *queue, int64_t timeout, shoal_block **out_block);

/* Returns the number of messages in a queue. The number is exact if no one uses the queue meanwhile. Returns 0 for
 * NULL. Does not block. Thread-safe. */
uint64_t shoal_queue_size(shoal_queue *queue);

/* Returns the bound that a queue was made with; 0 for none, for NULL, and after this process left the queue's world.
 * Does not block. Thread-safe. */
uint64_t shoal_queue_bound(const shoal_queue *queue);

/* Closes a queue. Puts fail with SHOAL_ECLOSED, and so do those that already wait. Gets continue until the queue is
 * empty, and then fail with SHOAL_ECLOSED, those that wait included. shoal_queue_join still waits until all messages
 * are done. May be called more than once. NULL is allowed. Does not block. Thread-safe. */
void shoal_queue_close(shoal_queue *queue);

/* Returns a file descriptor for poll, epoll and event loops. It is readable at least while a get would not block,
 * because there is a message or the queue is closed. It may also be readable without a message, if another process
 * took it. So get with SHOAL_NOW, and keep polling after SHOAL_ETIMEDOUT, which clears the fd.
 *
 * Only poll the fd; in particular, do not read it. The handle owns the fd: it is closed with the last reference in
 * this process, or when the process leaves the world. Each call returns the same fd. A child of fork does not have
 * the fd, which is closed there; it calls shoal_queue_fd itself.
 *
 * The first call in a process starts a thread, with all signals blocked, that ends when the process leaves the
 * world. Because the process now has several threads, its calls take a private lock and become a little slower.
 * Queues without an fd cost nothing more. If a process is killed just after it put a message, the fd becomes
 * readable after a second at the latest.
 *
 * Does not block. Thread-safe. Errors: SHOAL_EINVAL; SHOAL_ENOMEM; SHOAL_EOS if there is no fd or thread left;
 * SHOAL_EFORK; SHOAL_ESTATE. */
SHOAL_MUST_USE shoal_err shoal_queue_fd(shoal_queue *queue, int *out_fd);

/* Reports that one message that was taken from a queue is done. Counts calls against puts only. Does not block.
 * Thread-safe. Errors: SHOAL_ESTATE if it is called more often than messages were put; SHOAL_EINVAL if the queue is
 * acknowledged (use shoal_delivery_done). */
SHOAL_MUST_USE shoal_err shoal_queue_task_done(shoal_queue *queue);

/* Waits until shoal_queue_task_done was called for every message that was put. If a receiver is killed before it
 * calls shoal_queue_task_done, that never happens: use an acknowledged queue where this matters. Blocks at most for
 * timeout. Thread-safe. Errors: SHOAL_ETIMEDOUT. */
SHOAL_MUST_USE shoal_err shoal_queue_join(shoal_queue *queue, int64_t timeout);

/* ---- acknowledged queues ----
 *
 * A message that was taken from an acknowledged queue belongs to the queue until its receiver reports that it is
 * done. If the receiver is killed or ends before that, the next receiver gets the message, before newer ones, with
 * its count of deliveries. So every message arrives at least once. A receiver that must not do the work twice checks
 * `deliveries`: over 1 means that another receiver got the message before, and may have done some or all of its work.
 *
 *     shoal_queue_options options = {.acknowledge = true};
 *     err = shoal_queue_create_with(&options, &queue);
 *     while (shoal_queue_get_delivery(queue, SHOAL_FOREVER, &value,
 *                                     &delivery) == SHOAL_OK) {
 *         ... work on value; delivery.deliveries is 1 the first time ...
 *         shoal_value_destroy(value);
 *         if (shoal_delivery_done(&delivery) != SHOAL_OK) {
 *             ... another receiver has it ...
 *         }
 *     }
 *
 * Only shoal_queue_get_delivery takes messages from such a queue; the other gets, and shoal_queue_task_done, fail
 * with SHOAL_EINVAL. A message that is delivered and not done still counts: for shoal_queue_size; for
 * shoal_queue_join, which waits until all are done; and for a closed queue, which reports SHOAL_ECLOSED only once no
 * message is waiting or delivered. The bound limits only the messages that wait for delivery. */

/* Options of shoal_queue_create_with. Zero is the default of each. */
typedef struct shoal_queue_options {
    uint64_t bound; /* as in shoal_queue_create */

    /* A put waits while at least so many bytes are in the queue; 0: no such bound. It counts 16 bytes for a message,
     * its contents, and the blocks that it brings because nobody else holds them. A block or tensor that its sender
     * keeps is only a handle, and so is one that is the whole message (shoal_queue_give_block). A message of any size
     * goes through. The count may be wrong by 16 KiB for each process that uses the queue. It does not hold up messages
     * that come from an acknowledged queue as rejects. Not for acknowledged queues. */
    uint64_t bytes;

    bool acknowledge; /* makes an acknowledged queue; the members below need it */

    /* How long a receiver may keep a message, in ns. 0 means as long as it lives, even while it is stopped. Once the
     * lease has passed, another receiver may get the message; until one does, the first can still end the delivery. */
    int64_t lease;

    uint32_t deliveries; /* how often one message is delivered at most, then it goes to rejects; 0: no limit */

    /* May be NULL. Without it, or if it is closed, such messages are dropped. If it is full, or there is no memory for
     * it to grow, they stay in this queue, where they count as not done and delay no other message. Gets, also those
     * that wait, try to move them again every 10 ms. */
    shoal_queue *rejects;
} shoal_queue_options;

/* Makes a queue with options, which may be NULL. The caller owns one reference. Does not block. Thread-safe. Errors:
 * those of shoal_queue_create; SHOAL_EINVAL if lease, deliveries or rejects is set without acknowledge, if bytes is
 * set with acknowledge, or if bytes is over 2^60. */
SHOAL_MUST_USE shoal_err shoal_queue_create_with(const shoal_queue_options *options, shoal_queue **out_queue);

/* A message that this process has taken from an acknowledged queue and not finished. The library retains the queue
 * for it until shoal_delivery_done or shoal_delivery_return. If neither is called, the message stays out until its
 * lease has passed or this process ends, and the reference to the queue stays too. The struct may be copied: the
 * delivery ends once, and then every call with another copy fails with SHOAL_ESTATE. */
typedef struct shoal_delivery {
    shoal_queue *queue;     /* NULL once the delivery has ended */
    uint64_t number, state; /* for the library only */
    /* How often the message was delivered, this time included: 1 is the first time. A receiver that is killed during
     * the get counts, one whose get fails does not, unless its lease has passed by then. */
    uint32_t deliveries;
} shoal_delivery;

/* Takes the oldest message from an acknowledged queue. The caller owns the value. The message belongs to the queue
 * until shoal_delivery_done or shoal_delivery_return. Blocks while there is none, at most for timeout. Thread-safe.
 * Errors: SHOAL_ETIMEDOUT; SHOAL_ECLOSED; SHOAL_ENOMEM and SHOAL_ELIMIT (the message is back in the queue, and this
 * does not count as a delivery); SHOAL_EINVAL if the queue is not acknowledged; SHOAL_ECORRUPT (the message could not
 * be read, and is dropped); SHOAL_EFORK. */
SHOAL_MUST_USE shoal_err shoal_queue_get_delivery(shoal_queue *queue, int64_t timeout, shoal_value **out_value,
                                                  shoal_delivery *out_delivery);

/* Ends a delivery because its message is done: no one gets the message again. Releases the delivery's reference to
 * the queue and sets delivery->queue to NULL, after SHOAL_ESTATE too. Does not block. Any thread of the process that
 * took the message may call it. Errors: SHOAL_ESTATE if the delivery has already ended, another process took the
 * message, or another receiver got it after the lease had passed; SHOAL_EINVAL; SHOAL_EFORK. */
SHOAL_MUST_USE shoal_err shoal_delivery_done(shoal_delivery *delivery);

/* Ends a delivery and returns its message to the queue: the next receiver gets it at once. Otherwise like
 * shoal_delivery_done. */
SHOAL_MUST_USE shoal_err shoal_delivery_return(shoal_delivery *delivery);

/* Sets the end of a delivery's lease to `time` nanoseconds from now, which may be later or earlier than before. Does
 * nothing if the queue has no lease. Does not block. Thread-safe: one thread may extend a copy of a delivery while
 * another thread ends it. Errors: SHOAL_ESTATE as for shoal_delivery_done, but the delivery keeps its reference to the
 * queue until shoal_delivery_done or shoal_delivery_return; SHOAL_EINVAL if time is negative; SHOAL_EFORK. */
SHOAL_MUST_USE shoal_err shoal_delivery_extend(shoal_delivery *delivery, int64_t time);

/* Returns the number of messages that an acknowledged queue has dropped: they reached the limit of deliveries and
 * there was no open queue of rejects, or they could not be read. Returns 0 for NULL. Does not block. Thread-safe. */
uint64_t shoal_queue_dropped(shoal_queue *queue);

/* ---- pipes ---- */

/* How much one direction of a pipe holds: more than a pipe (64 KiB) or socket (208 KiB) of the system, so that what can
 * be sent there without being received can be sent here, too. */
#define SHOAL_PIPE_BYTES (UINT64_C(1) << 20)

/* Makes a pipe, which connects two ends. With duplex both ends send and receive; without it, a receives and b sends.
 * The caller owns one reference to each end: shoal_release. An end is a shared object and can be sent to another
 * process. Each direction holds up to SHOAL_PIPE_BYTES, counted as the bytes of shoal_queue_options. Does not block.
 * Thread-safe. Errors: those of shoal_queue_create.
 *
 * When every holder of one end has released it or died, the other end gets SHOAL_ECLOSED: a send at once, a receive
 * after all that was sent. The process that made the pipe is such a holder: it must release the end that it gave
 * away. A child that was started with SHOAL_START_FORK holds both ends too, and must release the one that it does
 * not use; after a plain fork() the child holds neither (SHOAL_EFORK). */
SHOAL_MUST_USE shoal_err shoal_pipe_create(bool duplex, shoal_pipe **out_a, shoal_pipe **out_b);

/* Sends a value through a pipe, and consumes it on success and on failure. Blocks while the pipe is full, at most for
 * timeout. Fails like shoal_queue_put. Thread-safe. Errors: also SHOAL_ECLOSED if the other end is closed, before or
 * during the wait, and SHOAL_EINVAL if this end only receives. */
SHOAL_MUST_USE shoal_err shoal_pipe_send(shoal_pipe *end, shoal_value *value, int64_t timeout);

/* Receives the oldest message from a pipe as a value, which the caller owns. Blocks and fails like shoal_queue_get.
 * Thread-safe. Errors: also SHOAL_ECLOSED if the other end is closed and nothing is left, and SHOAL_EINVAL if this
 * end only sends. */
SHOAL_MUST_USE shoal_err shoal_pipe_recv(shoal_pipe *end, int64_t timeout, shoal_value **out_value);

/* Sends a copy of size raw bytes through a pipe. Blocks and fails like shoal_pipe_send. Thread-safe. */
SHOAL_MUST_USE shoal_err shoal_pipe_send_bytes(shoal_pipe *end, const void *bytes, size_t size, int64_t timeout);

/* Receives a message of raw bytes from a pipe into the caller's buffer. Blocks and fails like shoal_queue_get_bytes.
 * Thread-safe. Errors: also SHOAL_EINVAL if the end only sends. */
SHOAL_MUST_USE shoal_err shoal_pipe_recv_bytes(shoal_pipe *end, void *buffer, size_t capacity, int64_t timeout,
                                               size_t *out_size);

/* Waits until a pipe has something to receive: a message, or the close of the other end. It returns SHOAL_OK for
 * both; after a close, shoal_pipe_recv returns what is left and then SHOAL_ECLOSED. Takes no message. Blocks at most
 * for timeout. Thread-safe. Errors: SHOAL_ETIMEDOUT; SHOAL_EINVAL if the end only sends. */
SHOAL_MUST_USE shoal_err shoal_pipe_poll(shoal_pipe *end, int64_t timeout);

/* Returns a file descriptor for poll, like shoal_queue_fd: it is readable while shoal_pipe_recv would not block.
 * Errors: those of shoal_queue_fd; SHOAL_EINVAL if the end only sends. */
SHOAL_MUST_USE shoal_err shoal_pipe_fd(shoal_pipe *end, int *out_fd);

/* For bindings to other languages: do the same as shoal_queue_get and shoal_pipe_recv, but return a message without
 * shared objects that is not raw bytes as a packed value (shoal_value_as_packed). Its bytes are a private copy, and
 * nobody has checked them. */
SHOAL_MUST_USE shoal_err shoal_queue_get_packed(shoal_queue *queue, int64_t timeout, shoal_value **out_value);
SHOAL_MUST_USE shoal_err shoal_pipe_recv_packed(shoal_pipe *end, int64_t timeout, shoal_value **out_value);

#ifdef __cplusplus
}
#endif
#endif
