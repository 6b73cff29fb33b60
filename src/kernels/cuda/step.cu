/* The kernels around a step; the contract is kernels/step.h. One block per sample. */
#include "kernels/cuda/launch.cuh"
#include "kernels/step.h"

namespace
{

constexpr int THREADS = 128;

__device__ void take_label(const sh_step_batch &b, int64_t sample)
{
    if (b.byte_labels) {
        ((int64_t *)b.y)[blockIdx.x] = ((const uint8_t *)b.labels)[sample];
        return;
    }
    for (int64_t i = 0; i < b.label_size; i++) {
        ((uint8_t *)b.y)[blockIdx.x * b.label_size + i] = ((const uint8_t *)b.labels)[sample * b.label_size + i];
    }
}

/* Copies whole words if both rows are aligned to them. */
template <typename word> __device__ void copy_row(const sh_step_batch &b, int64_t sample)
{
    int64_t words = b.row * b.size / (int64_t)sizeof(word);
    const word *from = (const word *)b.samples + sample * words;
    word *to = (word *)b.x + blockIdx.x * words;
    for (int64_t i = threadIdx.x; i < words; i += THREADS) {
        to[i] = from[i];
    }
}

__device__ float scaled(const sh_step_batch &b, uint8_t pixel)
{
    return __fadd_rn(__fmul_rn((float)pixel, b.scale), b.shift);
}

__device__ void scale_row(const sh_step_batch &b, int64_t sample)
{
    const uint8_t *from = (const uint8_t *)b.samples + sample * b.row;
    float *to = (float *)b.x + blockIdx.x * b.row;
    if (b.row % 4 == 0) {
        for (int64_t i = threadIdx.x; i < b.row / 4; i += THREADS) {
            uchar4 q = ((const uchar4 *)from)[i];
            ((float4 *)to)[i] = make_float4(scaled(b, q.x), scaled(b, q.y), scaled(b, q.z), scaled(b, q.w));
        }
        return;
    }
    for (int64_t i = threadIdx.x; i < b.row; i += THREADS) {
        to[i] = scaled(b, from[i]);
    }
}

__global__ void __launch_bounds__(THREADS) take_kernel(sh_step_batch b)
{
    int64_t sample = b.order[b.state[0] + blockIdx.x], bytes = b.row * b.size;
    if (threadIdx.x == 0) {
        take_label(b, sample);
    }
    if (b.scaled) {
        scale_row(b, sample);
    } else if (bytes % 16 == 0) {
        copy_row<uint4>(b, sample);
    } else if (bytes % 4 == 0) {
        copy_row<uint32_t>(b, sample);
    } else {
        copy_row<uint8_t>(b, sample);
    }
}

__global__ void count_kernel(int64_t *state, int64_t count, float *sum, const float *loss)
{
    state[0] += count;
    *sum += *loss;
}

shoal_err take(sh_exec *exec, const sh_step_batch *batch)
{
    take_kernel<<<(unsigned)batch->count, THREADS, 0, sh_stream(exec)>>>(*batch);
    return sh_cuda_launched("take a batch");
}

shoal_err count(sh_exec *exec, int64_t *state, int64_t samples, float *sum, const float *loss)
{
    count_kernel<<<1, 1, 0, sh_stream(exec)>>>(state, samples, sum, loss);
    return sh_cuda_launched("count a step");
}

} // namespace

extern "C" const sh_step_kernels sh_step_kernels_cuda = {take, count};
