/* Joins the values of a warp's 32 lanes: by halves, so that the order is always the same. Every lane gets the
 * result. */
#ifndef SH_KERNELS_CUDA_WARP_CUH
#define SH_KERNELS_CUDA_WARP_CUH

__device__ __forceinline__ float sh_warp_sum(float v)
{
#pragma unroll
    for (int half = 16; half > 0; half /= 2) {
        v += __shfl_xor_sync(0xffffffffu, v, half);
    }
    return v;
}

__device__ __forceinline__ float sh_warp_max(float v)
{
#pragma unroll
    for (int half = 16; half > 0; half /= 2) {
        v = fmaxf(v, __shfl_xor_sync(0xffffffffu, v, half));
    }
    return v;
}

#endif
