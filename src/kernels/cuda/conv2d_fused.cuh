/* Shared by the kernels of the fused block: convolution, dropout of channels, 2x2 max-pool, relu. */
#ifndef SH_KERNELS_CUDA_CONV2D_FUSED_CUH
#define SH_KERNELS_CUDA_CONV2D_FUSED_CUH

#include "kernels/cuda/launch.cuh"

template <typename T> struct sh_pooled {
    T y;
    uint8_t winner;
};

/* The first maximum of v0 v1 above v2 v3, and relu of it. NaN is greater than all numbers, and the last NaN wins. */
template <typename T> __device__ inline sh_pooled<T> sh_pool_relu(T v0, T v1, T v2, T v3)
{
    T best = v0;
    int which = 0;
    if (v1 > best || v1 != v1) {
        best = v1, which = 1;
    }
    if (v2 > best || v2 != v2) {
        best = v2, which = 2;
    }
    if (v3 > best || v3 != v3) {
        best = v3, which = 3;
    }
    const bool dead = best <= 0;
    return {dead ? 0 : best, (uint8_t)(dead ? SH_WINNER_DEAD : which)};
}

#endif
