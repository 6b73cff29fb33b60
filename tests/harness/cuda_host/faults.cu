/* Kernels with a fault each: on the host, each gives a wrong result, or ends with a sentence. The same kernels without
 * their fault are right. faults_test.cpp calls them. */
#include "tests/harness/cuda_host/faults.h"

namespace
{

constexpr int THREADS = 96, WARP = 32;

/* Reads what its neighbour wrote. */
__global__ void shift(bool fault, int *out)
{
    __shared__ int words[THREADS];
    const int t = threadIdx.x;
    words[t] = -1;
    __syncthreads();
    words[t] = t;
    if (!fault) {
        __syncthreads();
    }
    out[t] = words[(t + 1) % THREADS];
}

/* One warp of three does not come to the barrier. */
__global__ void meet_partly(bool fault, int *out)
{
    const int t = threadIdx.x;
    if (!fault || t / WARP != 1) {
        __syncthreads();
    }
    out[t] = (t + 1) % THREADS;
}

/* One lane does not take part. */
__global__ void exchange(bool fault, int *out)
{
    const int t = threadIdx.x;
    if (!fault || t != 5) {
        out[t] = __shfl_sync(~0u, t, (t + 1) % WARP) / WARP == t / WARP ? (t + 1) % THREADS : -1;
    }
}

/* Reads shared memory that nobody wrote, or copied but did not wait for. */
__global__ void copy_early(bool fault, const int *numbers, int *out)
{
    extern __shared__ int room[];
    const int t = threadIdx.x;
    __pipeline_memcpy_async(room + t, numbers + t, sizeof(int));
    __pipeline_commit();
    if (!fault) {
        __pipeline_wait_prior(0);
    }
    __syncthreads();
    out[t] = (room[t] + 1) % THREADS;
}

/* Writes behind the end of shared memory. */
__global__ void write_behind(bool fault, int *out)
{
    extern __shared__ int room[];
    const int t = threadIdx.x;
    room[fault ? t + 1 : t] = t;
    out[t] = (t + 1) % THREADS;
}

} // namespace

void run_fault(fault_kind kind, bool fault, const int *numbers, int *out)
{
    switch (kind) {
    case FAULT_RACE: shift<<<1, THREADS>>>(fault, out); break;
    case FAULT_BARRIER: meet_partly<<<1, THREADS>>>(fault, out); break;
    case FAULT_LANE: exchange<<<1, THREADS>>>(fault, out); break;
    case FAULT_COPY: copy_early<<<1, THREADS, THREADS * sizeof(int)>>>(fault, numbers, out); break;
    case FAULT_SIZE: write_behind<<<1, THREADS, THREADS * sizeof(int)>>>(fault, out); break;
    case FAULTS: break;
    }
}
