/* The fused block backward, computed from the pool's winners alone: at most a quarter of the convolution's outputs have
 * a gradient, fewer after relu and dropout. The contract is kernels/conv2d.h; the shapes are those of conv2d_fused.cu.
 *
 * A block has one image. It first lists the winners of each output channel in shared memory: the gradient, and the
 * offset of the patch in the padded image. Then each lane of a warp takes one element of the kernel:
 *
 *   grad_w   One warp per output channel and a few input channels: the sum of g * patch over the list.
 *   grad_x   One warp per input channel and some output channels: adds g * w to the patches of its own plane.
 *
 * A second kernel adds up grad_w and grad_bias over the images. All sums have a fixed order. */
#include "kernels/cuda/conv2d_fused.cuh"
#include "kernels/cuda/warp.cuh"

namespace
{

constexpr int WARPS = 16, THREADS = WARPS * 32;
constexpr int AHEAD = 8; /* loads per lane that are in flight together */
constexpr int MOST_SLOTS = 128;

struct entry {
    float g;
    int at; /* offset of the patch's corner in the padded plane */
};

/* How the work is divided. Slot i has the sum over the images i, i + slots, i + 2 * slots, ... */
struct plan {
    int slots;
    int w_parts, w_channels; /* blocks for grad_w, and output channels per block */
    int x_parts, x_channels; /* blocks for grad_x, and input channels per block, at most WARPS */
    int x_shares;            /* warps per input channel */
    int listed;              /* output channels whose lists are in shared memory at a time */
    int64_t sums;            /* floats per slot: grad_w, then grad_bias */
    sh_divisor by_chunks;    /* chunks of 32 windows */
    sh_divisor by_tasks;     /* tasks of `ct` input channels for grad_w */
};

/* Lists the winners of `count` output channels from `first` on: list [count][windows], length [count]. If bias is not
 * NULL, bias[o] = or += the sum of their gradients. */
__device__ void list_winners(const sh_cuda_fused_conv &s, const plan &p, int n, int first, int count,
                             const float *grad_y, const float *drop, const uint8_t *winner, entry *list, int *length,
                             float *bias, bool add)
{
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int chunks = (s.windows + 31) / 32, steps = (count - warp + WARPS - 1) / WARPS * chunks;
    int filled = 0;
    float sum = 0;
    for (int from = 0; from < steps; from += AHEAD) {
        float g[AHEAD];
        int which[AHEAD];
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            const int step = from + i, o = warp + step / p.by_chunks * WARPS, window = step % p.by_chunks * 32 + lane;
            which[i] = SH_WINNER_DEAD;
            if (step < steps && window < s.windows) {
                const int64_t map = (int64_t)n * s.out_c + first + o;
                const float factor = drop ? drop[map] : 1;
                which[i] = factor != 0 ? winner[map * s.windows + window] : SH_WINNER_DEAD;
                g[i] = grad_y[map * s.windows + window] * factor;
            }
        }
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            const int step = from + i, o = warp + step / p.by_chunks * WARPS, window = step % p.by_chunks * 32 + lane;
            if (step >= steps) {
                break;
            }
            const bool alive = which[i] < SH_WINNER_DEAD;
            const unsigned all = __ballot_sync(~0u, alive);
            if (alive) {
                const int row = 2 * (window / s.by_pooled_w) + which[i] / 2,
                          col = 2 * (window % s.by_pooled_w) + which[i] % 2;
                list[o * s.windows + filled + __popc(all & ((1u << lane) - 1))] = {g[i], row * s.pitch + col};
                sum += g[i];
            }
            filled += __popc(all);
            if (step % p.by_chunks == chunks - 1) {
                sum = sh_warp_sum(sum);
                if (lane == 0) {
                    length[o] = filled;
                    if (bias) {
                        bias[first + o] = add ? bias[first + o] + sum : sum;
                    }
                }
                filled = 0;
                sum = 0;
            }
        }
    }
}

/* Adds grad_w of the listed output channels, for CT input channels at a time. */
template <int K, int CT>
__device__ void sum_patches(const sh_cuda_fused_conv &s, const plan &p, int first, int count, const float *image,
                            const entry *list, const int *length, float *to, bool add)
{
    constexpr int KK = K * K;
    const int lane = threadIdx.x % 32, plane = s.rows * s.pitch, tasks = p.by_tasks.by;
    const int tap = lane < KK ? lane / K * s.pitch + lane % K : 0;
    for (int task = threadIdx.x / 32; task < count * tasks; task += WARPS) {
        const int o = task / p.by_tasks, c = task % p.by_tasks * CT, entries = length[o];
        const entry *e = list + o * s.windows;
        const float *patch[CT];
        float sum[CT] = {};
#pragma unroll
        for (int i = 0; i < CT; i++) {
            patch[i] = image + min(c + i, s.in_c - 1) * plane + tap;
        }
#pragma unroll 8
        for (int k = 0; k < entries; k++) {
            const entry one = e[k];
#pragma unroll
            for (int i = 0; i < CT; i++) {
                sum[i] = fmaf(one.g, patch[i][one.at], sum[i]);
            }
        }
#pragma unroll
        for (int i = 0; i < CT; i++) {
            if (lane < KK && c + i < s.in_c) {
                float *at = to + ((int64_t)(first + o) * s.in_c + c + i) * KK + lane;
                *at = add ? *at + sum[i] : sum[i];
            }
        }
    }
}

/* Adds what the listed output channels contribute to this warp's plane of grad_x, that of input channel c. */
template <int K>
__device__ void add_patches(const sh_cuda_fused_conv &s, const plan &p, int first, int count, int c, int share,
                            const float *w, const entry *list, const int *length, float *plane)
{
    constexpr int KK = K * K;
    const int lane = threadIdx.x % 32, tap = lane < KK ? lane / K * s.pitch + lane % K : 0;
    const float *weights = w + ((int64_t)first * s.in_c + c) * KK + lane;
    const int step = s.in_c * KK;
    float next = lane < KK && share < count ? weights[share * step] : 0;
    for (int o = share; o < count; o += p.x_shares) {
        const float weight = next;
        if (lane < KK && o + p.x_shares < count) {
            next = weights[(o + p.x_shares) * step];
        }
        for (int k = 0; k < length[o]; k++) {
            const entry one = list[o * s.windows + k];
            if (lane < KK) {
                plane[one.at + tap] = fmaf(one.g, weight, plane[one.at + tap]);
            }
            __syncwarp(); /* the next patch may overlap this one */
        }
    }
}

template <int K, int CT>
__device__ void backward_w(const sh_cuda_fused_conv &s, const plan &p, const float *grad_y, const float *x,
                           const float *drop, const uint8_t *winner, float *to, entry *list, int *length, float *image)
{
    const int begin = blockIdx.y * p.w_channels, end = min(begin + p.w_channels, s.out_c);
    for (int n = blockIdx.x; n < s.n; n += p.slots) {
        const bool add = n != (int)blockIdx.x;
        sh_cuda_fused_conv_fetch(s, x + (int64_t)n * s.in_c * s.in_h * s.in_w, s.in_c, s.pitch, image);
        __pipeline_commit();
        for (int first = begin; first < end; first += p.listed) {
            const int count = min(p.listed, end - first);
            list_winners(s, p, n, first, count, grad_y, drop, winner, list, length, to + p.sums - s.out_c, add);
            __pipeline_wait_prior(0);
            __syncthreads();
            sum_patches<K, CT>(s, p, first, count, image, list, length, to, add);
            __syncthreads();
        }
    }
}

template <int K>
__device__ void backward_x(const sh_cuda_fused_conv &s, const plan &p, const float *grad_y, const float *w,
                           const float *drop, const uint8_t *winner, float *grad_x, entry *list, int *length,
                           float *planes)
{
    const int begin = (blockIdx.y - p.w_parts) * p.x_channels, channels = min(p.x_channels, s.in_c - begin);
    const int warp = threadIdx.x / 32, c = warp / p.x_shares, share = warp % p.x_shares, size = s.rows * s.pitch;
    for (int n = blockIdx.x; n < s.n; n += p.slots) {
        for (int i = threadIdx.x; i < channels * p.x_shares * size; i += THREADS) {
            planes[i] = 0;
        }
        for (int first = 0; first < s.out_c; first += p.listed) {
            const int count = min(p.listed, s.out_c - first);
            list_winners(s, p, n, first, count, grad_y, drop, winner, list, length, nullptr, false);
            __syncthreads();
            if (c < channels) {
                add_patches<K>(s, p, first, count, begin + c, share, w, list, length, planes + warp * size);
            }
            __syncthreads();
        }
        const int inner = s.in_h * s.in_w;
        float *const to = grad_x + ((int64_t)n * s.in_c + begin) * inner;
        for (int i = threadIdx.x; i < channels * inner; i += THREADS) {
            const int c_here = i / s.by_plane, row = i % s.by_plane / s.by_in_w + s.pad_h,
                      col = i % s.by_in_w + s.pad_w;
            float sum = 0;
            /* If the output's size is odd, its last row or column is in no window: there is nothing to read beyond the
             * planes. */
            for (int k = 0; k < p.x_shares && row < s.rows && col < s.cols; k++) {
                sum += planes[(c_here * p.x_shares + k) * size + row * s.pitch + col];
            }
            to[i] = sum;
        }
        __syncthreads();
    }
}

/* blockIdx.x: the slot; blockIdx.y: the part, first those of grad_w, then those of grad_x. */
template <int K, int CT>
__global__ void __launch_bounds__(THREADS, 2)
    backward(sh_cuda_fused_conv s, plan p, const float *grad_y, const float *x, const float *w, const float *drop,
             const uint8_t *winner, float *grad_x, float *slots)
{
    extern __shared__ __align__(16) float room[];
    entry *const list = (entry *)room;
    int *const length = (int *)(list + p.listed * s.windows);
    float *const planes = (float *)(length + (p.listed + 3) / 4 * 4);
    if (blockIdx.y < p.w_parts) {
        backward_w<K, CT>(s, p, grad_y, x, drop, winner, slots + blockIdx.x * p.sums, list, length, planes);
    } else {
        backward_x<K>(s, p, grad_y, w, drop, winner, grad_x, list, length, planes);
    }
}

/* Each thread sums every ADDERS-th slot, and the first of them adds up these sums. Blocks after those for the slots add
 * up the shares. */
constexpr int ADDERS = 8;

__global__ void __launch_bounds__(32 * ADDERS) add(sh_cuda_fused_conv_sums a, int slot_blocks)
{
    __shared__ float part[ADDERS][32];
    if ((int)blockIdx.x >= slot_blocks) {
        const int64_t i = (int64_t)(blockIdx.x - slot_blocks) * blockDim.x * ADDERS + threadIdx.y * 32 + threadIdx.x;
        float sum = 0;
#pragma unroll 8
        for (int share = 0; share < a.share_count && i < a.x_count; share++) {
            sum += a.shares[share * a.x_count + i];
        }
        if (i < a.x_count) {
            a.grad_x[i] = sum;
        }
        return;
    }
    const int64_t i = (int64_t)blockIdx.x * 32 + threadIdx.x;
    float sum = 0;
#pragma unroll 8
    for (int slot = threadIdx.y; slot < a.slot_count && i < a.sums; slot += ADDERS) {
        sum += a.slots[slot * a.sums + i];
    }
    part[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    float *const to = i < a.weights ? a.grad_w : a.grad_bias;
    if (threadIdx.y == 0 && i < a.sums && to) {
        for (int k = 1; k < ADDERS; k++) {
            sum += part[k][threadIdx.x];
        }
        float *const place = to + (i < a.weights ? i : i - a.weights);
        *place = (a.overwrite ? 0 : *place) + sum;
    }
}

size_t plan_bytes(const sh_cuda_fused_conv &s, const plan &p)
{
    const size_t lists = sizeof(entry) * (size_t)(p.listed * s.windows) + sizeof(int) * (size_t)(p.listed + 4);
    const int planes = max(p.w_parts > 0 ? s.in_c : 0, p.x_parts > 0 ? p.x_channels * p.x_shares : 0);
    return lists + sizeof(float) * (size_t)planes * s.rows * s.pitch;
}

/* With few images, each has several blocks with some channels each. With many, each has one block per gradient. */
plan plan_of(const sh_cuda_fused_conv &s, int ct, bool for_w, bool for_x)
{
    plan p = {};
    p.slots = min(s.n, MOST_SLOTS);
    const int parts = max(1, SH_MULTIPROCESSORS / p.slots);
    p.w_parts = for_w ? min(parts, sh_ceil_div(s.out_c, 4)) : 0;
    p.w_channels = for_w ? sh_ceil_div(s.out_c, p.w_parts) : 0;
    p.w_parts = for_w ? sh_ceil_div(s.out_c, p.w_channels) : 0;
    p.x_channels = for_x ? min(WARPS, sh_ceil_div(s.in_c, parts)) : 0;
    p.x_parts = for_x ? sh_ceil_div(s.in_c, p.x_channels) : 0;
    p.x_shares = for_x ? WARPS / p.x_channels : 0;
    p.listed = for_x ? s.out_c : p.w_channels;
    while (p.listed > 1 && plan_bytes(s, p) > SH_SHARED_MOST) {
        p.listed = sh_ceil_div(p.listed, 2);
    }
    p.by_chunks = sh_divisor_of(sh_ceil_div(s.windows, 32));
    p.by_tasks = sh_divisor_of(sh_ceil_div(s.in_c, ct));
    p.sums = (int64_t)s.out_c * (s.in_c * s.kernel * s.kernel + 1);
    return p;
}

template <int K, int CT>
shoal_err run(sh_exec *exec, const sh_cuda_fused_conv &s, const float *grad_y, const float *x, const float *w,
              const float *drop, const uint8_t *winner, float *grad_x, float *grad_w, float *grad_bias)
{
    static std::atomic<bool> allowed;
    shoal_err err = sh_allow_shared("conv2d_pool_relu backward", backward<K, CT>, SH_SHARED_MOST, &allowed);
    if (err) {
        return err;
    }
    const plan p = plan_of(s, CT, grad_w || grad_bias, grad_x);
    float *slots = nullptr;
    if (p.w_parts > 0) {
        slots = (float *)sh_cuda_the_host->scratch(exec, sizeof(float) * (size_t)(p.sums * p.slots));
        if (!slots) {
            return SHOAL_ENOMEM;
        }
    }
    const dim3 grid((unsigned)p.slots, (unsigned)(p.w_parts + p.x_parts));
    const cudaStream_t stream = sh_stream(exec);
    backward<K, CT><<<grid, THREADS, plan_bytes(s, p), stream>>>(s, p, grad_y, x, w, drop, winner, grad_x, slots);
    const sh_cuda_fused_conv_sums sums = {slots,   p.slots, p.sums, p.sums - s.out_c, grad_w,     grad_bias,
                                          nullptr, 0,       0,      nullptr,          s.overwrite};
    return slots ? sh_cuda_fused_conv_add(exec, sums) : sh_cuda_launched("conv2d_pool_relu backward");
}

} // namespace

shoal_err sh_cuda_fused_conv_add(sh_exec *exec, const sh_cuda_fused_conv_sums &sums)
{
    const int64_t slot_blocks = sums.slot_count > 0 ? (sums.sums + 31) / 32 : 0;
    const int64_t share_blocks = sums.share_count > 0 ? (sums.x_count + 32 * ADDERS - 1) / (32 * ADDERS) : 0;
    add<<<(unsigned)(slot_blocks + share_blocks), dim3(32, ADDERS), 0, sh_stream(exec)>>>(sums, (int)slot_blocks);
    return sh_cuda_launched("conv2d_pool_relu backward");
}

bool sh_cuda_fused_conv_backward_fits(const sh_cuda_fused_conv &s)
{
    plan p = plan_of(s, 4, true, true);
    return plan_bytes(s, p) <= SH_SHARED_MOST;
}

shoal_err sh_cuda_fused_conv_backward(sh_exec *exec, const sh_cuda_fused_conv &s, const float *grad_y, const float *x,
                                      const float *w, const float *drop, const uint8_t *winner, float *grad_x,
                                      float *grad_w, float *grad_bias)
{
    if (!grad_x && !grad_w && !grad_bias) {
        return SHOAL_OK;
    }
    if (sh_cuda_fused_conv_channels_fit(s)) {
        return sh_cuda_fused_conv_channels_backward(exec, s, grad_y, x, w, drop, winner, grad_x, grad_w, grad_bias);
    }
    if (s.kernel == 3) {
        return run<3, 4>(exec, s, grad_y, x, w, drop, winner, grad_x, grad_w, grad_bias);
    }
    return s.in_c == 1 ? run<5, 1>(exec, s, grad_y, x, w, drop, winner, grad_x, grad_w, grad_bias)
                       : run<5, 4>(exec, s, grad_y, x, w, drop, winner, grad_x, grad_w, grad_bias);
}
