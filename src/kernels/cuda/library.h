/* The interface between libshoal and libshoal_cuda. libshoal loads libshoal_cuda when a program first asks for a GPU
 * (device/cuda_library.c). libshoal_cuda has only the kernels: memory, streams and sharing are in libshoal, which calls
 * the driver. One build makes both; the layout word below detects another build's. */
#ifndef SH_KERNELS_CUDA_LIBRARY_H
#define SH_KERNELS_CUDA_LIBRARY_H

#include "kernels/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What libshoal_cuda may call. Written once, by sh_cuda_library_open. */
typedef struct sh_cuda_host {
    /* Sets the error text and returns the code: shoal_fail. */
    shoal_err (*fail)(shoal_err err, const char *format, ...);
    /* Called after every launch. Counts it, because the order of work between processes depends on this count
     * (device/cuda_share.h). Returns SHOAL_OK for 0. Otherwise sets an error for the CUresult or cudaError_t, and
     * remembers an error that ended the context. `what` names the kernel. */
    shoal_err (*result)(const char *what, int result);
    /* Returns at least size bytes of GPU memory, aligned to 256. Valid until the next kernel of this exec. Returns
     * NULL and sets the error if there is none. */
    void *(*scratch)(sh_exec *exec, size_t size);
} sh_cuda_host;

typedef struct sh_cuda_library {
    uint64_t layout; /* SH_CUDA_LAYOUT of the build that made the library */
    const sh_kernels *kernels;
} sh_cuda_library;

#define SH_CUDA_LIBRARY_VERSION 1u
#define SH_CUDA_LAYOUT                                                                                                 \
    ((uint64_t)SH_CUDA_LIBRARY_VERSION << 48 ^ (uint64_t)sizeof(sh_kernels) << 36 ^ (uint64_t)sizeof(sh_exec) << 24 ^  \
     (uint64_t)sizeof(sh_cuda_host) << 12 ^ (uint64_t)sizeof(sh_cuda_library))

/* The one name that libshoal_cuda exports. Keeps the pointer. Calls no driver. */
typedef const sh_cuda_library *sh_cuda_library_open_fn(const sh_cuda_host *host);
sh_cuda_library_open_fn sh_cuda_library_open;

extern const sh_elementwise_kernels sh_elementwise_kernels_cuda;
extern const sh_reduce_kernels sh_reduce_kernels_cuda;
extern const sh_matmul_kernels sh_matmul_kernels_cuda;
extern const sh_softmax_kernels sh_softmax_kernels_cuda;
extern const sh_norm_kernels sh_norm_kernels_cuda;
extern const sh_index_kernels sh_index_kernels_cuda;
extern const sh_rnn_kernels sh_rnn_kernels_cuda;
extern const sh_random_kernels sh_random_kernels_cuda;
extern const sh_optim_kernels sh_optim_kernels_cuda;
extern const sh_conv_kernels sh_conv_kernels_cuda;
extern const sh_pooling_kernels sh_pooling_kernels_cuda;
extern const sh_small_cnn_kernels sh_small_cnn_kernels_cuda;
extern const sh_step_kernels sh_step_kernels_cuda;
extern const sh_fedavg_cnn_kernels sh_fedavg_cnn_kernels_cuda;

#ifdef __cplusplus
}
#endif

#endif
