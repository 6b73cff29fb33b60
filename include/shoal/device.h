/* Devices: where the elements of a tensor are, the card of this process, and captures of its work.
 *
 * A process uses one CUDA card: the first that it sees, or number SHOAL_CARD (an environment variable). It is opened when
 * it is first needed. All work of the process on it is in one order (a CUDA stream), and the calls return before it is
 * done. Freed memory is kept for the next tensors; a loop in steady state asks the driver for nothing.
 *
 * After a card was used, the process cannot fork: start processes with spawn. In a child of a plain fork() every call
 * here fails with SHOAL_EFORK. If the card or a kernel fails, every later call fails with SHOAL_ECARD and the first
 * reason: the process must end.
 */
#ifndef SHOAL_DEVICE_H
#define SHOAL_DEVICE_H

#include <shoal/error.h>

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The device of a tensor: the CPU or a CUDA GPU. */
typedef enum shoal_device {
    SHOAL_CPU,
    SHOAL_CUDA,
} shoal_device;

/* ---- cards ---- */

/* A card that this process sees. */
typedef struct shoal_card_info {
    char name[96];
    char uuid[48]; /* as nvidia-smi shows it: "GPU-..." */
    size_t memory; /* bytes */
    int driver;    /* the CUDA version of the driver: 1000 * major + 10 * minor */
} shoal_card_info;

/* Memory of the card, in bytes. */
typedef struct shoal_card_memory {
    size_t asked; /* by this process, for tensors and scratch */
    size_t held;  /* by this process: asked, rounded up, and what is kept for later or lent to other processes */
    size_t free;  /* for all processes */
    size_t total;
} shoal_card_memory;

/* Counts the cards that this process sees. Loads the driver, which may take a quarter of a second, but opens no card.
 * Thread-safe. Errors: SHOAL_ENOENT if there is no driver, no card, or this build has no CUDA; SHOAL_ELAYOUT if the
 * driver or libshoal_cuda is of another version than Shoal needs; SHOAL_EPERM; SHOAL_EOS; SHOAL_EFORK. */
SHOAL_MUST_USE shoal_err shoal_card_count(int *out_count);

/* Returns the name and size of a card, numbered from 0. Opens no card. Thread-safe. Errors: those of shoal_card_count;
 * SHOAL_EINVAL if there is no card of that number. */
SHOAL_MUST_USE shoal_err shoal_card_info_get(int index, shoal_card_info *out_info);

/* Returns how much memory of this process's card is in use. Opens the card. Takes about a millisecond. Thread-safe.
 * Errors: those of shoal_card_count; SHOAL_ENOMEM; SHOAL_ELIMIT if MPS has no room for another process; SHOAL_ECARD. */
SHOAL_MUST_USE shoal_err shoal_card_memory_get(shoal_card_memory *out_memory);

/* Waits until all work of this process on the card is done. Does nothing if it has not used the card. Blocks as long as
 * that takes. Thread-safe. Errors: SHOAL_EOWNERDEAD if that work used a tensor of a process that died before it had
 * computed it; SHOAL_ECARD; SHOAL_ESTATE in a capture; SHOAL_EFORK. */
SHOAL_MUST_USE shoal_err shoal_card_wait(void);

/* Gives card memory back that this process keeps for later, and returns the number of bytes. It cannot give back part of
 * what it got from the driver at once (at least 32 MiB). Waits for the card's work. Thread-safe. */
size_t shoal_card_trim(void);

/* ---- streams of other libraries ----
 *
 * Another library in this process that uses the same card has streams of its own, which are not in order with Shoal's
 * work. These calls say in which order they run. None of them waits on the host, and none calls the driver twice if there
 * is nothing to wait for. A stream is a CUstream or cudaStream_t; NULL and (void *)1 are the legacy default stream, and
 * (void *)2 is the calling thread's default stream. */

/* Returns the stream of Shoal's work, for a library that wants to order its own with it. It exists until the process ends.
 * Opens the card. Thread-safe. Errors: those of shoal_card_memory_get; SHOAL_ESTATE in a capture. */
SHOAL_MUST_USE shoal_err shoal_card_stream(void **out_stream);

/* Shoal's later work waits for what is in the stream now. Opens the card. Thread-safe. Errors: those of
 * shoal_card_memory_get; SHOAL_ESTATE if Shoal or the other library is capturing. */
SHOAL_MUST_USE shoal_err shoal_card_follow_stream(void *stream);

/* What comes into the stream later waits for Shoal's work so far. Otherwise like shoal_card_follow_stream. */
SHOAL_MUST_USE shoal_err shoal_card_precede_stream(void *stream);

/* ---- captures ---- */

/* A step on the card, captured once and replayed any number of times. */
typedef struct shoal_capture shoal_capture;

/* Begins to capture what the calling thread does on the card: it is recorded, and does not run. The caller owns the
 * capture: shoal_capture_destroy. Other threads go on as before. Run the step once before, so that what it makes only
 * the first time (gradients, states of the optimiser) exists.
 *
 * A replay uses the tensors at the addresses of the capture. So what the step reads must exist until the last replay, and
 * new data is copied into the same tensors (shoal_copy_). Tensors that the step made have the results of the last replay;
 * their memory belongs to the capture until it is destroyed, even if they are released. The graph of gradients is recorded
 * as usual, so a step with a backward pass can be captured.
 *
 * What needs the host in the middle of the step cannot be captured: reading elements (shoal_item, shoal_tensor_data),
 * writing elements from memory that is not pinned, waiting, sending to and receiving from other processes. Such a call
 * fails with SHOAL_ESTATE and ends the capture. What the step does on the CPU is done once, during the capture, and not by
 * a replay: random permutations, learning rates and other numbers are captured as they are.
 *
 * Does not block. Errors: SHOAL_ESTATE if this thread captures already; those of opening the card, as for
 * shoal_card_memory_get. */
SHOAL_MUST_USE shoal_err shoal_capture_begin(shoal_capture **out_capture);

/* Ends a capture, in the thread that began it, and makes it ready. The thread's random numbers are as before the capture.
 * Does not block. Errors: SHOAL_ESTATE if another thread began it, it was ended already, or something could not be
 * captured (the text says what); SHOAL_ENOMEM; SHOAL_ECARD. After an error it can only be destroyed. */
SHOAL_MUST_USE shoal_err shoal_capture_end(shoal_capture *capture);

/* Runs the captured step once. Returns before it is done. The step draws the random numbers that it would draw if the
 * calling thread ran it now, so replays and ordinary steps can be mixed. May be called from any thread, by one at a time.
 * Errors: SHOAL_ESTATE if the capture was not ended, or failed, or if the thread has another seed than the capture
 * (shoal_manual_seed); SHOAL_ECARD; SHOAL_EFORK. */
SHOAL_MUST_USE shoal_err shoal_capture_replay(shoal_capture *capture);

/* Destroys a capture, ended or not, and gives its memory back. Waits until its last replay is done. NULL is allowed. */
void shoal_capture_destroy(shoal_capture *capture);

#ifdef __cplusplus
}
#endif
#endif
