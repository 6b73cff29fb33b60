/* Shared by the kernels of the fused block: convolution, dropout of channels, 2x2 max-pool, relu.
 *
 *   conv2d.cu           every shape and type: the plain kernels
 *   conv2d_fused.cu     forward, for small square kernels at stride 1 in f32
 *   conv2d_winners.cu   backward from the winners of the pool alone, for the same shapes
 *   conv2d_channels.cu  the same, if the input channels are a multiple of 32 */
#ifndef SH_KERNELS_CUDA_CONV2D_FUSED_CUH
#define SH_KERNELS_CUDA_CONV2D_FUSED_CUH

#include "kernels/cuda/launch.cuh"

#include <cuda_pipeline.h>

/* The most shared memory that one block uses. */
constexpr size_t SH_SHARED_MOST = 96 << 10;
static_assert(SH_SHARED_MOST <= SH_SHARED_EVERYWHERE, "every GPU has this much");

/* Divides small numbers by a number that is known at the launch: by one multiplication, instead of the many
 * instructions of a division. Exact while the product of both is below 2^31. */
struct sh_divisor {
    int by;
    unsigned factor;
};

inline sh_divisor sh_divisor_of(int by)
{
    return {by, (unsigned)(((UINT64_C(1) << 31) + (unsigned)by - 1) / (unsigned)by)};
}

__device__ inline int operator/(int x, const sh_divisor &d)
{
    return (int)__umulhi(2 * (unsigned)x, d.factor);
}

__device__ inline int operator%(int x, const sh_divisor &d)
{
    return x - x / d * d.by;
}

/* The sizes as the fast kernels use them. The padded image is only as large as the pool's windows need. */
struct sh_cuda_fused_conv {
    int n, in_c, in_h, in_w, out_c, kernel, pad_h, pad_w;
    int pooled_h, pooled_w, windows; /* windows = pooled_h * pooled_w */
    int rows, cols, pitch;           /* of the padded image in shared memory; pitch >= cols */
    bool overwrite;                  /* of grad_w and grad_bias */
    sh_divisor by_pooled_w, by_windows, by_rows, by_in_w, by_plane; /* by_plane: in_h * in_w */
};

/* Returns whether the fast kernels serve c. If so, fills *out. */
bool sh_cuda_fused_conv_of(const sh_conv2d *c, sh_cuda_fused_conv *out);

/* Returns whether two input channels fit into shared memory. */
bool sh_cuda_fused_conv_forward_fits(const sh_cuda_fused_conv &s);
shoal_err sh_cuda_fused_conv_forward(sh_exec *exec, const sh_cuda_fused_conv &s, const float *x, const float *w,
                                     const float *bias, const float *drop, float *y, uint8_t *winner);
/* Returns whether one image fits into shared memory. */
bool sh_cuda_fused_conv_backward_fits(const sh_cuda_fused_conv &s);
shoal_err sh_cuda_fused_conv_backward(sh_exec *exec, const sh_cuda_fused_conv &s, const float *grad_y, const float *x,
                                      const float *w, const float *drop, const uint8_t *winner, float *grad_x,
                                      float *grad_w, float *grad_bias);

bool sh_cuda_fused_conv_channels_fit(const sh_cuda_fused_conv &s);
shoal_err sh_cuda_fused_conv_channels_backward(sh_exec *exec, const sh_cuda_fused_conv &s, const float *grad_y,
                                               const float *x, const float *w, const float *drop, const uint8_t *winner,
                                               float *grad_x, float *grad_w, float *grad_bias);

/* Sums that blocks left in scratch memory. slots [slot_count][sums]: their sum is added to grad_w (the first `weights`
 * of `sums`) and to grad_bias (the rest), or overwrites them; either may be NULL. shares [share_count][x_count]: their
 * sum is grad_x. */
struct sh_cuda_fused_conv_sums {
    const float *slots;
    int slot_count;
    int64_t sums, weights;
    float *grad_w, *grad_bias;
    const float *shares;
    int share_count;
    int64_t x_count;
    float *grad_x;
    bool overwrite;
};

/* Adds up these sums in a fixed order. */
shoal_err sh_cuda_fused_conv_add(sh_exec *exec, const sh_cuda_fused_conv_sums &sums);

template <typename T> struct sh_pooled {
    T y;
    uint8_t winner;
};

/* Returns relu of the maximum of v0 v1 above v2 v3, and which of them it is. Of equal ones the first wins; NaN is
 * greater than all numbers, and of several NaN the last wins. */
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

/* Starts to copy `channels` planes of an image into shared memory, with zeros around them. __pipeline_commit must
 * follow. All threads of the block call it. Each warp copies whole rows. */
__device__ inline void sh_cuda_fused_conv_fetch(const sh_cuda_fused_conv &s, const float *x, int channels, int pitch,
                                                float *to)
{
    const int lane = threadIdx.x % 32, warps = blockDim.x / 32;
    for (int r = threadIdx.x / 32; r < channels * s.rows; r += warps) {
        const int h = r % s.by_rows - s.pad_h;
        const float *row = x + (r / s.by_rows * s.in_h + h) * s.in_w - s.pad_w;
        for (int j = lane; j < pitch; j += 32) {
            if (h >= 0 && h < s.in_h && j >= s.pad_w && j - s.pad_w < s.in_w) {
                __pipeline_memcpy_async(to + r * pitch + j, row + j, sizeof(float));
            } else {
                to[r * pitch + j] = 0;
            }
        }
    }
}

#endif
