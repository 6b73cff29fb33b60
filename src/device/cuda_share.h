/* Card memory between processes: pieces are lent, opened and given back, and their work is ordered.
 *
 * WHO HOLDS WHAT. sh_cuda_share makes a piece of the world's ledger (shm/granule.h) of memory that sh_cuda_alloc gave
 * out. Its maker keeps one reference until it is the only holder, also after sh_cuda_free: only then are the bytes used
 * again. A process that receives the piece maps the granule once, and finds later pieces there without a call.
 *
 * ORDER. Each process has one stream. A put says how far it must have come: sh_cuda_mark writes that into the piece's
 * work word. A get makes the receiver's stream wait for it: sh_cuda_await. If the work is done, neither calls the
 * driver. No host waits, unless the driver cannot register the world's words; then the put waits for its stream.
 * A receiver whose own work uses the bytes keeps its reference until that is done: sh_cuda_close. */
#ifndef SH_DEVICE_CUDA_SHARE_H
#define SH_DEVICE_CUDA_SHARE_H

#include "device/cuda_memory.h"
#include "shm/granule.h"

/* Makes a piece of the memory at data, which sh_cuda_alloc returned, or returns the one that it has. The caller owns one
 * reference. Errors: SHOAL_EINVAL if the memory is not Shoal's; SHOAL_ELIMIT if the world has no room for another
 * granule; SHOAL_ENOMEM; those of sh_cuda_check and of the driver. */
shoal_err sh_cuda_share(void *data, size_t size, shoal_block **out_piece);

/* Returns the address of a piece that this process holds. Maps its granule if this process has not yet. Not called
 * inside. Errors: SHOAL_EINVAL if it is on another card; SHOAL_ECORRUPT; those of sh_granule_fd and of the driver. */
shoal_err sh_cuda_open(const sh_piece *piece, void **out_data);

/* Releases the block that keeps a piece, when what this process has enqueued so far is done. Never fails. */
void sh_cuda_close(shoal_block *keeper);

/* Before a piece is sent: stores in its work word what a receiver must wait for. Errors: those of the driver;
 * SHOAL_ESTATE in a capture. */
shoal_err sh_cuda_mark(sh_a64 *work);

/* After a piece was received: makes this process's stream wait for its work. Errors: SHOAL_EOWNERDEAD if the work was
 * lost with its process; those of the driver; SHOAL_ESTATE in a capture. */
shoal_err sh_cuda_await(sh_work work);

/* ---- between the files of the card ---- */

/* Counts work that was enqueued. Called by everyone who enqueues, after that: so whatever a mark does not cover is
 * counted after the mark. */
extern sh_a64 sh_cuda_enqueued;

static inline void sh_cuda_touch(void)
{
    sh_count_up(&sh_cuda_enqueued);
}

/* Says that others enqueue work, which nobody counts: from now on every mark calls the driver. */
void sh_cuda_order_distrust(void);

/* Waits on the host until everything that was enqueued is done. Errors: SHOAL_EOWNERDEAD if the stream waited for work
 * of a process that died, and that work was lost; those of the driver. */
shoal_err sh_cuda_order_wait(void);

/* The same, but leaves it to sh_cuda_order_wait to tell what failed. */
void sh_cuda_order_drain(void);

/* Makes this process ready for it in its world. Cheap if it is. */
void sh_cuda_order_begin(void);

/* Releases what sh_cuda_close kept, as far as its time has come, and tidies the imports. */
void sh_cuda_order_poll(void);

/* Unmaps granules of other processes that have died. Costs one load if none has. */
void sh_cuda_imports_tidy(void);

/* Forgets what belongs to the world that this process leaves (cuda_share.c). */
void sh_cuda_share_leave(void);

/* Called by the allocator, under its lock. lend: a piece in use was freed, and has a ledger; it stays lent, or becomes
 * free at once. reclaim: looks at up to `most` lent pieces, and frees those that have come back. drop: a granule that
 * was shared goes. */
void sh_cuda_lend(sh_cuda_piece *piece);
void sh_cuda_reclaim(size_t most);
void sh_cuda_granule_unshare(sh_cuda_granule *granule);

#endif
