/* Card memory between processes: pieces are lent, opened and given back, and their work is ordered.
 *
 * WHO HOLDS WHAT. sh_cuda_share makes a piece of the world's ledger (shm/granule.h) of memory that sh_cuda_alloc gave
 * out. Its maker keeps one reference until it is the only holder, even after sh_cuda_free. Only then are the bytes used
 * again. A process that receives the piece maps the granule once, and finds later pieces there without a driver call.
 *
 * ORDER. Each process has one stream. A put records how far the stream must have come: sh_cuda_mark writes that into
 * the piece's work word. A get makes the receiver's stream wait for it: sh_cuda_await notes the wait, and it is
 * enqueued before the next work of this process. If the work is done, the driver is not called. The host does not wait,
 * unless the driver cannot register the world's words; then the put waits for its stream. A receiver whose own work
 * uses the bytes keeps its reference until that work is done: sh_cuda_close. */
#ifndef SH_DEVICE_CUDA_SHARE_H
#define SH_DEVICE_CUDA_SHARE_H

#include "device/cuda_memory.h"
#include "shm/granule.h"

/* Makes a piece of the memory at data, which sh_cuda_alloc returned, or returns the one that it has. The caller owns
 * one reference. Errors: SHOAL_EINVAL if the memory is not Shoal's; SHOAL_ELIMIT if the world cannot have another
 * granule; SHOAL_ENOMEM; those of sh_cuda_check and of the driver. */
shoal_err sh_cuda_share(void *data, size_t size, shoal_block **out_piece);

/* Returns the address of a piece that this process holds. Maps its granule if this process has not yet. Not called
 * inside. Errors: SHOAL_EINVAL if it is on another card; SHOAL_ECORRUPT; those of sh_granule_fd and of the driver. */
shoal_err sh_cuda_open(const sh_piece *piece, void **out_data);

/* Releases the block that keeps a piece, when what this process has enqueued so far is done. Never fails. */
void sh_cuda_close(shoal_block *owner_block);

/* Before a piece is sent: stores in its work word what a receiver must wait for. Errors: those of the driver;
 * SHOAL_ESTATE in a capture. */
shoal_err sh_cuda_mark(sh_a64 *work);

/* After a piece was received: makes this process's stream wait for its work, before what it enqueues next. Errors:
 * SHOAL_ELOST if the work was lost with its process; those of the driver; SHOAL_ESTATE in a capture. */
shoal_err sh_cuda_await(sh_work work);

/* ---- between the files of the card ---- */

/* Counts work that was enqueued. Called by everyone who enqueues, after that: so whatever a mark does not cover is
 * counted after the mark. */
extern sh_a64 sh_cuda_enqueued;

static inline void sh_cuda_touch(void)
{
    sh_count_up(&sh_cuda_enqueued);
}

/* Called by everyone who enqueues, before that: the stream waits for what sh_cuda_await has noted. Errors:
 * SHOAL_ENOMEM; those of the driver. */
extern sh_a32 sh_cuda_noted;
shoal_err sh_cuda_follow_noted(void);

static inline shoal_err sh_cuda_follow(void)
{
    return __builtin_expect(sh_load_relaxed(&sh_cuda_noted) == 0, 1) ? SHOAL_OK : sh_cuda_follow_noted();
}

/* Says that other code enqueues work that is not counted. From now on every mark calls the driver. */
void sh_cuda_order_distrust(void);

/* Waits on the host until everything that was enqueued is done. Errors: SHOAL_ELOST if the stream waited for work
 * of a process that died, and that work was lost; those of the driver. */
shoal_err sh_cuda_order_wait(void);

/* The same, for a call that cannot fail: the next sh_cuda_order_wait reports what was lost. drain: does not release what
 * sh_cuda_close keeps, and takes no lock but that of the waits. */
void sh_cuda_order_finish(void);
void sh_cuda_order_drain(void);

/* Returns how many works of other processes the stream waits for, or are lost and not yet reported by a host wait. If
 * works were lost, releases the stream. Does not call the driver, and does not wait for a thread that does. */
size_t sh_cuda_order_look(void);

/* Others may wait for a mark of this process: asks the driver whether the card has failed before it. If so, what is not done is
 * lost (sh_timelines_lose). */
void sh_cuda_order_ask(void);

/* While the stream waits for other processes, a thread notices their deaths (cuda_watch.c). Called without locks when
 * it may have begun to wait, and when another library's stream waits for it. stop: ends the thread. end: the same
 * before the process ends; may be called in a signal handler. */
void sh_cuda_watch(void);
void sh_cuda_watch_stop(void);
void sh_cuda_watch_end(void);

/* Answers requests for card memory from now on (cuda_answer.c), if this process uses a card in a world. Cheap if it
 * does. leave: before it leaves the world. end: before it ends; may be called in a signal handler. */
void sh_cuda_answer_begin(void);
void sh_cuda_answer_leave(void);
void sh_cuda_answer_end(void);

/* Makes this process ready for it in its world. Cheap if it is. */
void sh_cuda_order_begin(void);

/* Releases the blocks of sh_cuda_close whose work is done, and tidies the imports. */
void sh_cuda_order_poll(void);

/* The same when another process has asked for memory: some blocks may have no mark yet, so it waits a moment, sh_cuda_mark_limit,
 * until those that it makes now are done. */
extern int64_t sh_cuda_mark_limit;
void sh_cuda_order_give_back(void);

/* If this process has lost its card, releases all blocks of sh_cuda_close: that card uses nothing any more. */
void sh_cuda_order_abandon(void);

/* Unmaps granules of other processes that have died. Costs one load if none has. */
void sh_cuda_imports_tidy(void);

/* Returns whether this process has mapped granules of others. Without the lock, at the end of the process: no other thread
 * is there. */
bool sh_cuda_imports_exist(void);

/* For captures, whose graphs keep addresses. left: counts the worlds that this process has left, where it unmapped the
 * granules of others. has: says whether it has mapped any now. */
uint64_t sh_cuda_worlds_left(void);
bool sh_cuda_has_imports(void);

/* Forgets what belongs to the world that this process leaves (cuda_share.c). */
void sh_cuda_share_leave(void);

/* Called by the allocator, under its lock. lend: a piece in use was freed, and has a ledger; it stays lent, or becomes
 * free at once. reclaim: looks at up to `most` lent pieces, and frees those that have come back. */
void sh_cuda_lend(sh_cuda_piece *piece);
void sh_cuda_reclaim(size_t most);

/* Gives a granule's ledger back: no other process has pieces of it, or this process leaves the world. */
void sh_cuda_granule_unshare(sh_cuda_granule *granule);

#endif
