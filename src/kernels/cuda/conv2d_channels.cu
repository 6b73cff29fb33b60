/* The fused block backward for 5x5 kernels and input channels in multiples of 32. The 32 lanes of a warp are 32 input
 * channels, so all lanes do the same for each winner of the pool. Otherwise as conv2d_winners.cu.
 *
 *   grad_w   One warp per output channel. For each winner, each lane loads a patch of 25 elements and adds to 25 sums.
 *   grad_x   One warp per 4 adjacent windows of the pool. It keeps in registers the 6 x 12 elements of grad_x that
 *            their patches cover. For each output channel, each lane loads 25 weights. A winner's patch has one of four
 *            positions in the registers, so a jump chooses one of four pieces of code. */
#include "kernels/cuda/conv2d_fused.cuh"
#include "kernels/cuda/warp.cuh"

namespace
{

constexpr int K = 5, KK = K * K, LANES = 32;
/* The pitch of an element's channels in shared memory. It is odd, so that lanes can also run over elements without bank
 * conflicts. */
constexpr int PITCH = LANES + 1;
constexpr int MOST_WARPS = 16;

struct entry {
    float g;
    /* grad_w: the offset of the patch's corner in the padded plane. grad_x: which of the four positions, or
     * SH_WINNER_DEAD. */
    int at;
};

/* ---- grad_w ---- */

struct w_plan {
    int slots;    /* slot i has the sum over the images i, i + slots, ... */
    int channels; /* output channels per block, one per warp */
    int64_t sums; /* floats per slot: grad_w, then grad_bias */
};

/* Starts to copy x [32][H][W] to [rows * cols][PITCH], with zeros around it. */
__device__ void load_turned(const sh_cuda_fused_conv &s, const float *x, float *to)
{
    const int plane = s.in_h * s.in_w, lane = threadIdx.x % 32, warps = blockDim.x / 32;
    for (int i = threadIdx.x; i < s.rows * s.cols; i += blockDim.x) {
        const int h = i / s.cols - s.pad_h, v = i % s.cols - s.pad_w;
        if (h < 0 || h >= s.in_h || v < 0 || v >= s.in_w) {
            for (int c = 0; c < LANES; c++) {
                to[i * PITCH + c] = 0;
            }
        }
    }
    for (int c = threadIdx.x / 32; c < LANES; c += warps) {
        for (int i = lane; i < plane; i += 32) {
            const int row = i / s.by_in_w + s.pad_h, col = i % s.by_in_w + s.pad_w;
            if (row < s.rows && col < s.cols) {
                __pipeline_memcpy_async(to + (row * s.cols + col) * PITCH + c, x + c * plane + i, sizeof(float));
            }
        }
    }
    __pipeline_commit();
}

/* Lists the winners of output channel o of image n. Returns their number, and stores the sum of their gradients in
 * *out_sum. Called by one warp. */
__device__ int list_winners(const sh_cuda_fused_conv &s, int n, int o, const float *grad_y, const float *drop,
                            const uint8_t *winner, entry *list, float *out_sum)
{
    const int lane = threadIdx.x % 32;
    const int64_t map = (int64_t)n * s.out_c + o;
    const float factor = drop ? drop[map] : 1;
    int filled = 0;
    float sum = 0;
#pragma unroll 2
    for (int first = 0; first < s.windows; first += 32) {
        const int window = first + lane;
        const int which = window < s.windows && factor != 0 ? winner[map * s.windows + window] : SH_WINNER_DEAD;
        const float g = window < s.windows ? grad_y[map * s.windows + window] * factor : 0;
        const bool alive = which < SH_WINNER_DEAD;
        const unsigned all = __ballot_sync(~0u, alive);
        if (alive) {
            const int row = 2 * (window / s.by_pooled_w) + which / 2, col = 2 * (window % s.by_pooled_w) + which % 2;
            list[filled + __popc(all & ((1u << lane) - 1))] = {g, row * s.cols + col};
            sum += g;
        }
        filled += __popc(all);
    }
    *out_sum = sh_warp_sum(sum);
    return filled;
}

/* blockIdx.x: the slot; blockIdx.y: output channels; blockIdx.z: input channels. */
__global__ void __launch_bounds__(MOST_WARPS * 32)
    sum_winners(sh_cuda_fused_conv s, w_plan p, const float *grad_y, const float *x, const float *drop,
                const uint8_t *winner, float *slots)
{
    extern __shared__ __align__(16) float room[];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, o = blockIdx.y * p.channels + warp;
    float *const image = room;
    entry *const list = (entry *)(room + (s.rows * s.cols * PITCH + 1) / 2 * 2) + warp * s.windows;
    float sum[KK] = {}, bias = 0;
    for (int n = blockIdx.x; n < s.n; n += p.slots) {
        __syncthreads();
        load_turned(s, x + ((int64_t)n * s.in_c + blockIdx.z * LANES) * s.in_h * s.in_w, image);
        int count = 0;
        if (o < s.out_c) {
            float all;
            count = list_winners(s, n, o, grad_y, drop, winner, list, &all);
            bias += all;
        }
        __pipeline_wait_prior(0);
        __syncthreads();
        for (int i = 0; i < count; i++) {
            const entry one = list[i];
            const float *patch = image + one.at * PITCH + lane;
#pragma unroll
            for (int k = 0; k < KK; k++) {
                sum[k] = fmaf(one.g, patch[(k / K * s.cols + k % K) * PITCH], sum[k]);
            }
        }
    }
    /* Goes through shared memory, so that the warp writes its 32 * 25 sums contiguously. */
    __syncthreads();
    for (int k = 0; k < KK; k++) {
        room[warp * LANES * KK + lane * KK + k] = sum[k];
    }
    __syncwarp();
    float *const to = slots + blockIdx.x * p.sums;
    for (int k = 0; k < KK && o < s.out_c; k++) {
        to[((int64_t)o * s.in_c + blockIdx.z * LANES) * KK + k * 32 + lane] = room[warp * LANES * KK + k * 32 + lane];
    }
    if (lane == 0 && blockIdx.z == 0 && o < s.out_c) {
        to[p.sums - s.out_c + o] = bias;
    }
}

/* ---- grad_x ---- */

constexpr int WIDE = 4; /* windows per warp; with more, the code would not fit into the innermost instruction cache */
constexpr int TALL = K + 1, BROAD = 2 * WIDE + K - 1; /* elements of grad_x that these windows reach */
constexpr int AT_ONCE = 16;                           /* output channels whose weights are in shared memory */

struct x_plan {
    int pieces;   /* per row of windows, each of WIDE windows */
    int shares;   /* blocks per image */
    int channels; /* output channels per block */
    sh_divisor by_pieces;
};

/* Adds the patch of a winner. The patch begins at row ROW, column COL. */
template <int ROW, int COL> __device__ inline void add_patch(float g, const float (&w)[KK], float (&sum)[TALL][BROAD])
{
#pragma unroll
    for (int a = 0; a < K; a++) {
#pragma unroll
        for (int b = 0; b < K; b++) {
            sum[ROW + a][COL + b] = fmaf(g, w[a * K + b], sum[ROW + a][COL + b]);
        }
    }
}

template <int J>
__device__ inline void add_windows(const entry *row, int count, const float (&w)[KK], float (&sum)[TALL][BROAD])
{
    if constexpr (J < WIDE) {
        const entry one = J < count ? row[J] : entry{0, SH_WINNER_DEAD};
        switch (one.at) {
        case 0: add_patch<0, 2 * J>(one.g, w, sum); break;
        case 1: add_patch<0, 2 * J + 1>(one.g, w, sum); break;
        case 2: add_patch<1, 2 * J>(one.g, w, sum); break;
        case 3: add_patch<1, 2 * J + 1>(one.g, w, sum); break;
        default: break;
        }
        add_windows<J + 1>(row, count, w, sum);
    }
}

/* Loads the weights of `count` output channels, from `first` on: w [O, C, K, K] to weights [count][32][KK]. Fills
 * entries [count][windows]. */
__device__ void load_channels(const sh_cuda_fused_conv &s, int n, int first, int count, const float *w,
                              const float *grad_y, const float *drop, const uint8_t *winner, float *weights,
                              entry *entries)
{
    for (int i = threadIdx.x; i < count * LANES * KK; i += blockDim.x) {
        const float *from = w + ((int64_t)(first + i / (LANES * KK)) * s.in_c + blockIdx.z * LANES) * KK;
        __pipeline_memcpy_async(weights + i, from + i % (LANES * KK), sizeof(float));
    }
    __pipeline_commit();
    const int64_t map = (int64_t)n * s.out_c + first;
#pragma unroll 4
    for (int i = threadIdx.x; i < count * s.windows; i += blockDim.x) {
        const float factor = drop ? drop[map + i / s.by_windows] : 1;
        entries[i] = {grad_y[map * s.windows + i] * factor,
                      factor != 0 ? winner[map * s.windows + i] : (int)SH_WINNER_DEAD};
    }
    __pipeline_wait_prior(0);
}

/* Adds the warps' registers to planes [pieces][rows][BROAD][PITCH]. Rows of windows that are three apart do not
 * overlap. */
__device__ void add_to_planes(const sh_cuda_fused_conv &s, const x_plan &p, int row, int piece, int lane,
                              const float (&sum)[TALL][BROAD], float *planes)
{
    for (int i = threadIdx.x; i < p.pieces * s.rows * BROAD * PITCH; i += blockDim.x) {
        planes[i] = 0;
    }
    float *const to = planes + (piece * s.rows + 2 * row) * BROAD * PITCH + lane;
    for (int turn = 0; turn < 3; turn++) {
        __syncthreads();
        if (row % 3 == turn) {
#pragma unroll
            for (int e = 0; e < TALL * BROAD; e++) {
                to[e * PITCH] += sum[e / BROAD][e % BROAD];
            }
        }
    }
    __syncthreads();
}

/* to [shares][N, C, H, W]. blockIdx.x: the image; blockIdx.y: the share; blockIdx.z: the input channels. Each warp has
 * one piece of a row of windows. */
__global__ void __launch_bounds__(MOST_WARPS * 32, 1)
    spread_winners(sh_cuda_fused_conv s, x_plan p, const float *grad_y, const float *w, const float *drop,
                   const uint8_t *winner, float *to)
{
    extern __shared__ __align__(16) float room[];
    entry *const entries = (entry *)(room + AT_ONCE * LANES * KK);
    const int lane = threadIdx.x % 32, row = threadIdx.x / 32 / p.by_pieces, piece = threadIdx.x / 32 % p.by_pieces;
    const int begin = blockIdx.y * p.channels, end = min(begin + p.channels, s.out_c), n = blockIdx.x;
    float sum[TALL][BROAD] = {};
    for (int first = begin; first < end; first += AT_ONCE) {
        const int count = min(AT_ONCE, end - first);
        __syncthreads();
        load_channels(s, n, first, count, w, grad_y, drop, winner, room, entries);
        __syncthreads();
        for (int o = 0; o < count; o++) {
            float weights[KK];
#pragma unroll
            for (int k = 0; k < KK; k++) {
                weights[k] = room[(o * LANES + lane) * KK + k];
            }
            add_windows<0>(entries + o * s.windows + row * s.pooled_w + piece * WIDE, s.pooled_w - piece * WIDE,
                           weights, sum);
        }
    }
    __syncthreads();
    add_to_planes(s, p, row, piece, lane, sum, room);
    const int inner = s.in_h * s.in_w;
    float *const out = to + (((int64_t)blockIdx.y * s.n + n) * s.in_c + blockIdx.z * LANES) * inner;
    for (int i = threadIdx.x; i < LANES * inner; i += blockDim.x) {
        const int y = i % s.by_plane / s.by_in_w + s.pad_h, x = i % s.by_in_w + s.pad_w, last = x / (2 * WIDE);
        float all = 0;
        /* At most two pieces reach a column. If the output's size is odd, its last row or column is in no window. */
        for (int k = max(0, last - 1); k <= last && k < p.pieces && y < s.rows; k++) {
            const int col = x - k * 2 * WIDE;
            all += col < BROAD ? room[((k * s.rows + y) * BROAD + col) * PITCH + i / s.by_plane] : 0;
        }
        out[i] = all;
    }
}

w_plan w_plan_of(const sh_cuda_fused_conv &s)
{
    w_plan p;
    p.slots = s.n < 32 ? s.n : min(sh_ceil_div(s.n, 2), 64);
    p.channels = min(MOST_WARPS, max(4, sh_ceil_div(s.out_c, max(1, 2 * SH_MULTIPROCESSORS / p.slots))));
    p.sums = (int64_t)s.out_c * (s.in_c * KK + 1);
    return p;
}

size_t w_bytes(const sh_cuda_fused_conv &s, const w_plan &p)
{
    const size_t image =
        sizeof(float) * (size_t)(s.rows * s.cols * PITCH + 1) + sizeof(entry) * (size_t)(p.channels * s.windows);
    const size_t sums = sizeof(float) * (size_t)(p.channels * LANES * KK);
    return image > sums ? image : sums;
}

x_plan x_plan_of(const sh_cuda_fused_conv &s)
{
    x_plan p;
    p.pieces = sh_ceil_div(s.pooled_w, WIDE);
    p.by_pieces = sh_divisor_of(p.pieces);
    p.shares = min(sh_ceil_div(s.out_c, 4), max(1, SH_MULTIPROCESSORS / s.n));
    p.channels = sh_ceil_div(s.out_c, p.shares);
    p.shares = sh_ceil_div(s.out_c, p.channels);
    return p;
}

size_t x_bytes(const sh_cuda_fused_conv &s)
{
    const size_t staged = sizeof(float) * AT_ONCE * LANES * KK + sizeof(entry) * (size_t)(AT_ONCE * s.windows);
    const size_t planes = sizeof(float) * (size_t)(sh_ceil_div(s.pooled_w, WIDE) * s.rows * BROAD * PITCH);
    return staged > planes ? staged : planes;
}

} // namespace

bool sh_cuda_fused_conv_channels_fit(const sh_cuda_fused_conv &s)
{
    return s.kernel == K && s.in_c % LANES == 0 && s.in_c / LANES <= 65535 &&
           s.pooled_h * sh_ceil_div(s.pooled_w, WIDE) <= MOST_WARPS && x_bytes(s) <= SH_SHARED_MOST &&
           w_bytes(s, w_plan_of(s)) <= SH_SHARED_MOST;
}

shoal_err sh_cuda_fused_conv_channels_backward(sh_exec *exec, const sh_cuda_fused_conv &s, const float *grad_y,
                                               const float *x, const float *w, const float *drop, const uint8_t *winner,
                                               float *grad_x, float *grad_w, float *grad_bias)
{
    const bool for_w = grad_w || grad_bias;
    const w_plan wp = w_plan_of(s);
    const x_plan xp = x_plan_of(s);
    const int64_t x_count = (int64_t)s.n * s.in_c * s.in_h * s.in_w;
    const int64_t w_room = for_w ? wp.sums * wp.slots : 0, x_room = grad_x && xp.shares > 1 ? x_count * xp.shares : 0;
    static std::atomic<bool> allowed_w, allowed_x;
    shoal_err err = sh_allow_shared("conv2d_pool_relu backward", sum_winners, SH_SHARED_MOST, &allowed_w);
    err = err ? err : sh_allow_shared("conv2d_pool_relu backward", spread_winners, SH_SHARED_MOST, &allowed_x);
    if (err) {
        return err;
    }
    float *slots = nullptr;
    if (w_room + x_room > 0) {
        slots = (float *)sh_cuda_the_host->scratch(exec, sizeof(float) * (size_t)(w_room + x_room));
        if (!slots) {
            return SHOAL_ENOMEM;
        }
    }
    float *const shares = x_room > 0 ? slots + w_room : grad_x;
    const unsigned groups = (unsigned)(s.in_c / LANES);
    if (grad_x) {
        const dim3 grid((unsigned)s.n, (unsigned)xp.shares, groups);
        spread_winners<<<grid, s.pooled_h * xp.pieces * 32, x_bytes(s), sh_stream(exec)>>>(s, xp, grad_y, w, drop,
                                                                                           winner, shares);
    }
    if (for_w) {
        const dim3 grid((unsigned)wp.slots, (unsigned)sh_ceil_div(s.out_c, wp.channels), groups);
        sum_winners<<<grid, wp.channels * 32, w_bytes(s, wp), sh_stream(exec)>>>(s, wp, grad_y, x, drop, winner, slots);
    }
    const sh_cuda_fused_conv_sums sums = {slots,      for_w ? wp.slots : 0,
                                          wp.sums,    wp.sums - s.out_c,
                                          grad_w,     grad_bias,
                                          shares,     x_room > 0 ? xp.shares : 0,
                                          x_count,    grad_x,
                                          s.overwrite};
    return w_room + x_room > 0 ? sh_cuda_fused_conv_add(exec, sums) : sh_cuda_launched("conv2d_pool_relu backward");
}
