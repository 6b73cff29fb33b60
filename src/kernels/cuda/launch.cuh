/* Shared by all launchers: the stream, errors, and the size of a grid. */
#ifndef SH_KERNELS_CUDA_LAUNCH_CUH
#define SH_KERNELS_CUDA_LAUNCH_CUH

#include "kernels/cuda/library.h"

#include <atomic>
#include <cuda_runtime.h>

/* Set by sh_cuda_library_open. */
extern const sh_cuda_host *sh_cuda_the_host;

static inline cudaStream_t sh_stream(const sh_exec *exec)
{
    return (cudaStream_t)exec->stream;
}

/* Returns SHOAL_OK, or an error whose text says why the last launch of this thread failed. `what` names the kernel. */
shoal_err sh_cuda_launched(const char *what);

/* The same for the result of a call of the CUDA runtime. */
shoal_err sh_cuda_called(const char *what, cudaError_t result);

/* The number of multiprocessors for which launches are planned: that of a large GPU, whatever GPU it is. How work is
 * divided decides the order of sums, and so the bits of a result. They must not depend on a worker's share of the card.
 * A smaller GPU runs the blocks in more rounds; no block waits for another one. */
constexpr int SH_MULTIPROCESSORS = 132;

/* The bytes of shared memory that a block may have on every GPU since compute capability 8.0: 8.6, 8.9 and 12.0 have
 * no more. A kernel's static shared memory counts too. */
constexpr size_t SH_SHARED_EVERYWHERE = 99 << 10;

/* Lets a kernel have more dynamic shared memory than the usual 48 KiB. *done says that it has. The first call loads the
 * kernel's code, so it fails if the GPU's memory is full; then the next call tries again. */
template <typename K>
static inline shoal_err sh_allow_shared(const char *what, K *kernel, size_t bytes, std::atomic<bool> *done)
{
    if (done->load(std::memory_order_relaxed)) {
        return SHOAL_OK;
    }
    shoal_err err =
        sh_cuda_called(what, cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes));
    done->store(err == SHOAL_OK, std::memory_order_relaxed); /* two threads may do this twice */
    return err;
}

/* Returns a / b, rounded up, for positive integers. */
template <typename A, typename B> static inline auto sh_ceil_div(A a, B b)
{
    return (a + b - 1) / b;
}

/* Returns the number of blocks for n elements, at most `most`: kernels loop in strides of the grid. */
static inline unsigned sh_blocks(int64_t n, int threads, unsigned most)
{
    int64_t blocks = sh_ceil_div(n, threads);
    return blocks < 1 ? 1u : blocks < (int64_t)most ? (unsigned)blocks : most;
}

#endif
