/* Devices: where the elements of a tensor are, the GPU of this process, and captures of its work.
 *
 * A process uses one CUDA GPU: the first one that it sees, or the one whose number is in the environment variable
 * SHOAL_CUDA_DEVICE. The first call that needs the GPU opens it. This takes up to half a second. Ops on GPU tensors
 * return before the GPU has done the work. The GPU does the work of all threads in the order of the calls, in one CUDA
 * stream. Calls that read elements wait for the GPU. The library keeps freed GPU memory for later tensors, so a loop
 * calls the driver for memory only in its first few rounds. If another process of the world needs this memory, a thread
 * of the library gives it back to the driver.
 *
 * That thread blocks all signals, and runs until the process ends or leaves its world. So end a program by exit or by a
 * return from main. If the program's last thread ends by pthread_exit instead, the process stays, and only SIGKILL ends
 * it.
 *
 * A process that has used a GPU may fork, but the child cannot use a GPU: each such call fails with SHOAL_EFORK in
 * the child. The child holds no GPU memory of its parent. Processes that the child spawns may use a GPU. Start
 * processes that use a GPU with spawn or forkserver.
 *
 * If the GPU or a kernel fails, that call and every later call of this process that uses the GPU fail with
 * SHOAL_ECUDA. The text has the first reason. The process must end. Other processes continue, unless they used the same
 * MPS server and it went down.
 */
#ifndef SHOAL_DEVICE_H
#define SHOAL_DEVICE_H

#include <shoal/error.h>

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The device of a tensor: the CPU, or an NVIDIA GPU. */
typedef enum shoal_device {
    SHOAL_CPU,
    SHOAL_CUDA,
} shoal_device;

/* ---- GPUs ---- */

/* A GPU that this process sees. */
typedef struct shoal_cuda_info {
    char name[96];
    char uuid[48]; /* as nvidia-smi shows it: "GPU-..." */
    size_t memory; /* bytes */
    int driver;    /* the CUDA version of the driver: 1000 * major + 10 * minor */
} shoal_cuda_info;

/* Memory of the GPU, in bytes. */
typedef struct shoal_cuda_memory {
    size_t asked; /* what this process uses for the tensors that it made, and for scratch memory. A tensor that it
                   * received is in the memory of the process that made it, and does not count here */
    size_t held;  /* what this process has from the driver: asked, rounded up; what it keeps for later; and what other
                   * processes still use of its memory */
    size_t free;  /* what the driver has left, for all processes */
    size_t total; /* the size of the GPU's memory */
} shoal_cuda_memory;

/* Counts the GPUs that this process sees. Loads the driver, which may take a quarter of a second. Does not open a
 * GPU. Thread-safe. Errors: SHOAL_ENOENT if there is no driver, no GPU or no libshoal_cuda; SHOAL_ELAYOUT if the
 * driver is too old or its parts differ in version, or if libshoal_cuda is from another build or cannot be loaded;
 * SHOAL_EPERM if this user may not use the GPU; SHOAL_EOS if the driver does not start; SHOAL_EFORK. */
SHOAL_MUST_USE shoal_err shoal_cuda_count(int *out_count);

/* Returns the name, UUID, memory size and driver version of a GPU. GPUs are numbered from 0. Does not open the GPU.
 * Thread-safe. Errors: those of shoal_cuda_count; SHOAL_EINVAL if there is no GPU with that number. */
SHOAL_MUST_USE shoal_err shoal_cuda_info_get(int index, shoal_cuda_info *out_info);

/* Returns how much memory of this process's GPU is in use. Opens the GPU. Takes about a millisecond. Thread-safe.
 * Errors: those of shoal_cuda_count; SHOAL_EINVAL if SHOAL_CUDA_DEVICE is not a number, SHOAL_ENOENT if there is no
 * such GPU; SHOAL_ENOMEM; SHOAL_ELIMIT if MPS accepts no more processes; SHOAL_ECUDA. */
SHOAL_MUST_USE shoal_err shoal_cuda_memory_get(shoal_cuda_memory *out_memory);

/* Waits until the GPU has done all work of this process, from all its threads. Does nothing if the process has not
 * used the GPU. Blocks as long as the work takes. Thread-safe. Errors: SHOAL_ELOST if the work used a tensor from
 * a process that lost its GPU or died before it had computed the tensor (the work is done, but its results are
 * undefined); SHOAL_ECUDA; SHOAL_ESTATE if this thread captures; SHOAL_EFORK. */
SHOAL_MUST_USE shoal_err shoal_cuda_wait(void);

/* Gives the GPU memory that this process keeps for later back to the driver, and returns the number of bytes. The
 * library takes memory from the driver in units of at least 32 MiB. It gives a unit back only if no tensor uses any of
 * it. Blocks until the GPU's work is done. Thread-safe. Returns 0 if the process has not used the GPU, or if the GPU
 * has failed. Never changes the last error. */
size_t shoal_cuda_trim(void);

/* ---- streams of other libraries ----
 *
 * Another library in this process that uses the same GPU, such as PyTorch, has its own streams. The GPU runs their
 * work and Shoal's in any order, unless these calls set one. The calls do not wait on the host. If there is nothing to
 * wait for, a call makes at most one call of the driver. A stream is a CUstream or cudaStream_t. NULL and (void *)1 are
 * the legacy default stream, and (void *)2 is the calling thread's default stream. */

/* Returns Shoal's stream, for a library that orders its own work with it. Shoal owns the stream. It exists until the
 * process ends. Opens the GPU. Thread-safe. Errors: those of shoal_cuda_memory_get; SHOAL_ESTATE if this thread
 * captures. */
SHOAL_MUST_USE shoal_err shoal_cuda_stream(void **out_stream);

/* Makes Shoal's later work wait for the work that is in the stream now. Opens the GPU. Thread-safe. Errors: those of
 * shoal_cuda_memory_get; SHOAL_ESTATE if this thread or the other library captures. */
SHOAL_MUST_USE shoal_err shoal_cuda_follow_stream(void *stream);

/* Makes later work in the stream wait for Shoal's work so far. Otherwise like shoal_cuda_follow_stream. */
SHOAL_MUST_USE shoal_err shoal_cuda_precede_stream(void *stream);

/* ---- captures ---- */

/* A step on the GPU, captured once and replayed any number of times. */
typedef struct shoal_capture shoal_capture;

/* Begins to capture: the GPU work of the calling thread is recorded, and does not run. The caller owns the capture:
 * shoal_capture_destroy. Other threads are not affected. First run the step once without a capture, so that everything
 * that is made only once (gradients, the state of an optimiser) exists.
 *
 * A replay reads and writes the memory of the tensors that the step used during the capture. So keep these tensors
 * until the last replay, and copy new data into them (shoal_copy_). Tensors that the step made hold the results of the
 * last replay. Their memory belongs to the capture until it is destroyed, even if they are released. The graph of
 * gradients is recorded as usual, so a step with a backward pass can be captured.
 *
 * A call that needs the host in the middle of the step cannot be captured: reading elements (shoal_item,
 * shoal_tensor_read), writing elements from memory that is not pinned, waiting, giving memory back to another library
 * (the release of a tensor from shoal_tensor_from_dlpack), and sending a GPU tensor to another
 * process or receiving one. Such a call fails with SHOAL_ESTATE and ends the capture. After that the thread's work runs
 * as usual, and shoal_capture_end fails. A tensor that could not be received is the next one that this process gets
 * from its queue. CPU work in the step is done once, during the capture. A replay does not repeat it: random
 * permutations, learning rates and other numbers keep the values of the capture.
 *
 * Does not block, except to open the GPU. Errors: SHOAL_ESTATE if this thread captures already; those of opening the
 * GPU, as for shoal_cuda_memory_get. */
SHOAL_MUST_USE shoal_err shoal_capture_begin(shoal_capture **out_capture);

/* Ends a capture and makes it ready to replay. Only the thread that began the capture may end it. The thread's random
 * generator is where it was before the capture. Does not block. Errors: SHOAL_ESTATE if another thread began the
 * capture, it was ended already, or a call could not be captured (the text names it); SHOAL_ENOMEM; SHOAL_ECUDA;
 * SHOAL_EFORK. After an error the capture can only be destroyed. */
SHOAL_MUST_USE shoal_err shoal_capture_end(shoal_capture *capture);

/* Runs the captured step once. Returns before the GPU has done it. The step draws the random numbers that it would
 * draw if the calling thread ran it now, so replays and ordinary steps can be mixed. Any thread may call this, one at a
 * time. Errors: SHOAL_ESTATE if the capture was not ended, or failed, or if the thread's seed differs from the
 * capture's (shoal_manual_seed), or if the step may have used tensors of other processes and this process has left
 * their world; SHOAL_ECUDA; SHOAL_EFORK. */
SHOAL_MUST_USE shoal_err shoal_capture_replay(shoal_capture *capture);

/* Destroys a capture, ended or not, and frees its memory. If the capture was not ended, only the thread that began it
 * may destroy it; any thread may do so after that thread has ended. Blocks until the last replay is done. NULL is
 * allowed. Never changes the last error. */
void shoal_capture_destroy(shoal_capture *capture);

#ifdef __cplusplus
}
#endif
#endif
