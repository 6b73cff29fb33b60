/* GPU memory between processes: pieces are lent, opened and given back, and their work is ordered.
 *
 * WHO HOLDS WHAT. sh_cuda_share makes a piece of the world's ledger (shm/granule.h) of memory that sh_cuda_alloc gave
 * out. Its maker keeps one reference until it is the only holder, even after sh_cuda_free. Only then are the bytes used
 * again. A process that receives the piece maps the granule once, and finds later pieces there without a driver call.
 *
 * ORDER. Each process has one stream. A put records how far the stream must have come: sh_cuda_mark writes that into
 * the piece's work word. A get makes the receiver's stream wait for it: sh_cuda_await remembers the wait, and it is
 * enqueued before the next work of this process. If the work is done, the driver is not called. The host does not wait,
 * unless the driver cannot register the world's words; then the put waits for its stream. A receiver whose own work
 * uses the bytes keeps its reference until that work is done: sh_cuda_close.
 *
 * Other files enqueue work like this, and in no other way:
 *
 *     SH_TRY(sh_cuda_follow());     before: the stream waits for what sh_cuda_await has remembered
 *     ... enqueue ...
 *     sh_cuda_touch();              after, also if it failed: the work is counted, so that the next mark comes after it
 *
 * The other two entry points are sh_cuda_mark and sh_cuda_order_wait. */
#ifndef SH_DEVICE_CUDA_SHARE_H
#define SH_DEVICE_CUDA_SHARE_H

#include "device/cuda_state.h"
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

/* ---- between the files of the GPU ---- */

/* Counts work that was enqueued. Called by all code that enqueues, after that: so work that no mark includes yet is
 * counted after the last mark. */
static inline void sh_cuda_touch(void)
{
    sh_count_up(&sh_gpu.enqueued);
}

/* Called by all code that enqueues, before that. Errors: those of the driver. */
shoal_err sh_cuda_follow_slow(void);

static inline shoal_err sh_cuda_follow(void)
{
    return __builtin_expect(sh_load_relaxed(&sh_gpu.wait_count) == 0, 1) ? SHOAL_OK : sh_cuda_follow_slow();
}

/* Waits on the host until everything that was enqueued is done. Errors: SHOAL_ELOST if the stream waited for work
 * of a process that died, and that work was lost; those of the driver. */
shoal_err sh_cuda_order_wait(void);

/* The same, for a call that cannot fail: the next sh_cuda_order_wait reports what was lost. drain: does not release
 * what sh_cuda_close keeps, and takes no lock. */
void sh_cuda_order_finish(void);
void sh_cuda_order_drain(void);

/* Returns how many works of other processes the stream waits for, or are lost and not yet reported by a host wait. If
 * works were lost, releases the stream. Does not call the driver, and takes no lock. */
size_t sh_cuda_order_look(void);

/* Checks whether this process has made a mark that the GPU has not reached. Takes no lock. */
bool sh_cuda_order_is_awaited(void);

/* Asks the driver whether the GPU has failed before that mark. If so, what is not done is lost (sh_timelines_lose). */
void sh_cuda_order_ask(void);

/* Makes this process ready for it in its world. Cheap if it is. */
void sh_cuda_order_begin(void);

/* Releases the blocks of sh_cuda_close whose work is done, and unmaps imports that no longer exist. */
void sh_cuda_order_poll(void);

/* The same when another process has asked for memory: some blocks may have no mark yet, so it waits a moment,
 * sh_cuda_mark_limit, until those that it makes now are done. */
extern int64_t sh_cuda_mark_limit;
void sh_cuda_order_give_back(void);

/* If this process has lost its GPU, releases all blocks of sh_cuda_close: that GPU uses nothing any more. */
void sh_cuda_order_abandon(void);

/* ---- the service thread (cuda_service.c) ---- */

/* Starts it, if this process uses a GPU in a world. Cheap if it runs. watch: the stream, or another library's, may have
 * begun to wait for other processes, so the thread looks for deaths. Both called without locks but that of sh_enter. */
void sh_cuda_service_begin(void);
void sh_cuda_service_watch(void);

/* Stops it in two steps. quiet: it gives nothing back any more, but looks for deaths. end: it is gone. At the end of
 * the process (ends) they may be called in a signal handler, take no lock, and wait for half a second at most. */
void sh_cuda_service_quiet(bool ends);
void sh_cuda_service_end(bool ends);

/* ---- granules of others (cuda_share.c) ---- */

/* Unmaps those that no longer exist. Costs two loads if none has died. */
void sh_cuda_imports_tidy(void);

/* Returns whether this process has mapped any. Takes no lock. */
bool sh_cuda_imports_exist(void);

/* Forgets what belongs to the world that this process leaves. */
void sh_cuda_share_leave(void);

/* Under SH_CARD_LOCK_STATE. lend: a piece in use was freed, and has a ledger; it stays lent, or becomes free at once.
 * reclaim: looks at up to `most` lent pieces, and frees those that have come back. */
void sh_cuda_lend(sh_cuda_piece *piece);
void sh_cuda_reclaim(size_t most);

#endif
