/* Captures: a step of this process recorded once, as a CUDA graph, and launched again and again.
 *
 * A capture belongs to the thread that began it, until it is ended: what this thread enqueues is recorded in a stream
 * of its own, and does not run. Other threads go on. Memory that the thread allocates meanwhile belongs to the graph
 * until the graph is destroyed, whatever frees it (SH_CUDA_KEPT): each launch uses the same addresses. Within the
 * capture it can be used again once it was freed, since the graph keeps the order. Memory from before that is freed
 * meanwhile is kept as well: the graph may read it. So what one capture made and another one freed is kept until both
 * are destroyed. The same holds for pinned memory, but it is not used again within the capture.
 *
 * A call that needs the host in between (sh_cuda_capture_refuse) ends the capture: it fails, and so does
 * sh_cuda_capture_end, with the same reason. */
#ifndef SH_DEVICE_CUDA_CAPTURE_H
#define SH_DEVICE_CUDA_CAPTURE_H

#include "device/cuda_memory.h"

/* Begins a capture. Errors: SHOAL_ESTATE if this thread captures already; those of the driver. */
shoal_err sh_cuda_capture_begin(sh_cuda_capture **out_capture);

/* Ends it, and makes the graph. Errors: SHOAL_ESTATE if it was not begun by this thread or a call inside it could not
 * be captured (the text names it); those of the driver. */
shoal_err sh_cuda_capture_end(sh_cuda_capture *capture);

/* Launches the graph, in order with the other work. advance: what the random kernels add to the offsets they were
 * captured with. */
shoal_err sh_cuda_capture_launch(sh_cuda_capture *capture, uint64_t advance);

/* Waits for the graph and frees it. NULL is allowed. Never fails. */
void sh_cuda_capture_destroy(sh_cuda_capture *capture);

/* ---- between the files of the card ---- */

/* If the calling thread captures, ends that and returns SHOAL_ESTATE, with a text that starts with `what`; else
 * SHOAL_OK. For calls that cannot be captured. */
shoal_err sh_cuda_capture_refuse(const char *what);

/* A thread ends: the capture that it has not ended fails. */
void sh_cuda_capture_thread_ends(void);

/* Returns the capture of the calling thread, or NULL. */
sh_cuda_capture *sh_cuda_capturing(void);

/* Returns the calling thread's stream: that of the process, or that of its capture. */
sh_cu_stream sh_cuda_stream(void);

/* Under SH_CARD_LOCK_STATE. take: returns a piece of at least size bytes that was freed in this capture, or NULL.
 * add: a piece was allocated in it. keep: a piece was freed; returns true if it stays with a graph. */
sh_cuda_piece *sh_cuda_capture_take(sh_cuda_capture *capture, size_t size);
void sh_cuda_capture_add(sh_cuda_capture *capture, sh_cuda_piece *piece);
bool sh_cuda_capture_keep(sh_cuda_piece *piece);

/* sh_cuda_close in a thread that captures: takes the reference, until the graph is destroyed. Returns false if the
 * thread does not capture. */
bool sh_cuda_capture_hold(shoal_block *owner_block);

#endif
