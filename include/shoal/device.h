/* Devices: where the elements of a tensor are, the card of this process, and captures of its work.
 *
 * A process uses one CUDA card: the first that it sees, or number SHOAL_CARD (an environment variable). The first call
 * that needs the card opens it, which takes up to half a second. Ops on tensors of the card return before the work is
 * done. The card does the work of all threads in the order of the calls (in one CUDA stream). Calls that read elements
 * wait for it. Freed memory is kept for the next tensors, so a loop that has run a few times asks the driver for
 * nothing. A thread of the library gives it back to the driver when another process of the world needs it.
 *
 * That thread, which blocks all signals, exists until the process ends or leaves its world. So end a program by exit or
 * by a return from main: if its last own thread ends by pthread_exit, the process remains, and only SIGKILL ends it.
 *
 * After a process has used a card, it cannot fork: start processes with spawn or forkserver. shoal_process_start
 * refuses fork then (SHOAL_ESTATE). In a child of a plain fork() every call that uses the card fails with SHOAL_EFORK.
 *
 * If the card or a kernel fails, that call and every later call of this process that uses the card fail with
 * SHOAL_ECARD, and the text has the first reason. The process must end. Other processes go on, unless all of them
 * share an MPS server that has gone down.
 */
#ifndef SHOAL_DEVICE_H
#define SHOAL_DEVICE_H

#include <shoal/error.h>

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The device of a tensor: the CPU, or an NVIDIA card. */
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
    size_t asked; /* what this process uses for its tensors and for scratch memory */
    size_t held;  /* what this process has from the driver: asked, rounded up, what is kept for later, and what other
                   * processes still use of its memory */
    size_t free;  /* what the driver has left, for all processes */
    size_t total;
} shoal_card_memory;

/* Counts the cards that this process sees. Loads the driver, which may take a quarter of a second, but opens no card.
 * Thread-safe. Errors: SHOAL_ENOENT if there is no driver, no card or no libshoal_cuda; SHOAL_ELAYOUT if the driver or
 * libshoal_cuda is of another version than Shoal needs, or libshoal_cuda cannot be loaded; SHOAL_EPERM if this user may
 * not use the card; SHOAL_EOS if the driver does not start; SHOAL_EFORK. */
SHOAL_MUST_USE shoal_err shoal_card_count(int *out_count);

/* Returns the name and size of a card, numbered from 0. Opens no card. Thread-safe. Errors: those of shoal_card_count;
 * SHOAL_EINVAL if there is no card of that number. */
SHOAL_MUST_USE shoal_err shoal_card_info_get(int index, shoal_card_info *out_info);

/* Returns how much memory of this process's card is in use. Opens the card. Takes about a millisecond. Thread-safe.
 * Errors: those of shoal_card_count; SHOAL_EINVAL if SHOAL_CARD is not a number, SHOAL_ENOENT if there is no such card;
 * SHOAL_ENOMEM; SHOAL_ELIMIT if MPS has no room for another process; SHOAL_ECARD. */
SHOAL_MUST_USE shoal_err shoal_card_memory_get(shoal_card_memory *out_memory);

/* Waits until all work of this process on the card is done, that of its other threads too. Does nothing if the process
 * has not used the card. Blocks as long as that takes. Thread-safe. Errors: SHOAL_EOWNERDEAD if the work used a tensor
 * of a process that died before it had computed it (the work is done, but such results are undefined); SHOAL_ECARD;
 * SHOAL_ESTATE if this thread captures; SHOAL_EFORK. */
SHOAL_MUST_USE shoal_err shoal_card_wait(void);

/* Gives the card memory that this process keeps for later back to the driver, and returns the number of bytes. Memory
 * comes from the driver in units of at least 32 MiB; a unit is given back only if no tensor uses any of it. Waits for
 * the card's work. Thread-safe. Returns 0 if the process has not used the card, or if the card has failed. Never
 * changes the last error. */
size_t shoal_card_trim(void);

/* ---- streams of other libraries ----
 *
 * Another library in this process that uses the same card has its own streams. Their work and Shoal's run in any order,
 * unless these calls say otherwise. None of them waits on the host. If there is nothing to wait for, each costs at most
 * one call of the driver. A stream is a CUstream or cudaStream_t; NULL and (void *)1 are the legacy default stream, and
 * (void *)2 is the calling thread's default stream. */

/* Returns the stream of Shoal's work, for a library that orders its own work with it. Shoal owns the stream, which
 * exists until the process ends. Opens the card. Thread-safe. Errors: those of shoal_card_memory_get; SHOAL_ESTATE if
 * this thread captures. */
SHOAL_MUST_USE shoal_err shoal_card_stream(void **out_stream);

/* Makes Shoal's later work wait for what is in the stream now. Opens the card. Thread-safe. Errors: those of
 * shoal_card_memory_get; SHOAL_ESTATE if this thread or the other library captures. */
SHOAL_MUST_USE shoal_err shoal_card_follow_stream(void *stream);

/* Makes what is put into the stream later wait for Shoal's work so far. Otherwise like shoal_card_follow_stream. */
SHOAL_MUST_USE shoal_err shoal_card_precede_stream(void *stream);

/* ---- captures ---- */

/* A step on the card, captured once and replayed any number of times. */
typedef struct shoal_capture shoal_capture;

/* Begins to capture what the calling thread does on the card: it is recorded, and does not run. The caller owns the
 * capture: shoal_capture_destroy. Other threads go on as before. Run the step once without a capture first, so that
 * what is made only once (gradients, the state of an optimiser) exists.
 *
 * A replay reads and writes the memory of the tensors that the step used when it was captured. So these tensors must
 * exist until the last replay, and new data is copied into them (shoal_copy_). Tensors that the step made have the
 * results of the last replay. Their memory belongs to the capture until it is destroyed, even if they are released. The
 * graph of gradients is recorded as usual, so a step with a backward pass can be captured.
 *
 * What needs the host in the middle of the step cannot be captured: reading elements (shoal_item, shoal_tensor_read),
 * writing elements from memory that is not pinned, waiting, sending a tensor of the card to another process and receiving
 * one. Such a call fails with SHOAL_ESTATE and ends the capture: what the thread does then runs as usual, and
 * shoal_capture_end fails. A tensor that could not be received is the next one that this process gets from its queue.
 * What the step does on the CPU is done once, during the capture, and not by a replay: random permutations, learning
 * rates and other numbers stay as they were then.
 *
 * Does not block, except to open the card. Errors: SHOAL_ESTATE if this thread captures already; those of opening the
 * card, as for shoal_card_memory_get. */
SHOAL_MUST_USE shoal_err shoal_capture_begin(shoal_capture **out_capture);

/* Ends a capture, in the thread that began it, and makes it ready. The thread's random numbers are as before the capture.
 * Does not block. Errors: SHOAL_ESTATE if another thread began it, it was ended already, or something could not be
 * captured (the text says what); SHOAL_ENOMEM; SHOAL_ECARD; SHOAL_EFORK. After an error it can only be destroyed. */
SHOAL_MUST_USE shoal_err shoal_capture_end(shoal_capture *capture);

/* Runs the captured step once. Returns before it is done. The step draws the random numbers that it would draw if the
 * calling thread ran it now, so replays and ordinary steps can be mixed. May be called from any thread, by one at a time.
 * Errors: SHOAL_ESTATE if the capture was not ended, or failed, or if the thread has another seed than the capture
 * (shoal_manual_seed); SHOAL_ECARD; SHOAL_EFORK. */
SHOAL_MUST_USE shoal_err shoal_capture_replay(shoal_capture *capture);

/* Destroys a capture, ended or not, and frees its memory. If it was not ended, only its thread may call this, or any
 * thread after that one has ended. Waits until its last replay is done. NULL is allowed. Never changes the last
 * error. */
void shoal_capture_destroy(shoal_capture *capture);

#ifdef __cplusplus
}
#endif
#endif
