/* What all launchers share: the stream, errors, and the size of a grid. */
#ifndef SH_KERNELS_CUDA_LAUNCH_CUH
#define SH_KERNELS_CUDA_LAUNCH_CUH

#include "kernels/cuda/library.h"

#include <cuda_runtime.h>

/* Set by sh_cuda_library_open. */
extern const sh_cuda_host *sh_cuda_the_host;

static inline cudaStream_t sh_stream(const sh_exec *exec)
{
    return (cudaStream_t)exec->stream;
}

/* Returns SHOAL_OK, or records why the last launch of this thread failed. `what` names the kernel. */
shoal_err sh_cuda_launched(const char *what);

/* The same for the result of a call of the CUDA runtime. */
shoal_err sh_cuda_called(const char *what, cudaError_t result);

/* Blocks for n elements, at most `most`: kernels go on in strides of the grid. */
static inline unsigned sh_blocks(int64_t n, int threads, unsigned most)
{
    int64_t blocks = (n + threads - 1) / threads;
    return blocks < 1 ? 1u : blocks < (int64_t)most ? (unsigned)blocks : most;
}

#endif
