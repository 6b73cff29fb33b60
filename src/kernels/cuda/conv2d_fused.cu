/* The fused block forward, for small square kernels at stride 1 in f32. The contract is kernels/conv2d.h.
 *
 * A thread computes a strip of SW windows of the pool, which are two rows of 2 * SW outputs, for one output channel. So
 * each weight that it loads serves 4 * SW products. The cost is the number of words loaded from shared memory per
 * product, even where all lanes load the same word: at one word for four products, the loads are as fast as the
 * multiplications. A block computes some output channels of one image. Several threads may share a strip, each with
 * other input channels. While a block computes with some input channels, it copies the next ones into shared memory. */
#include "kernels/cuda/conv2d_fused.cuh"

namespace
{

constexpr int MOST_THREADS = 512;

/* How the work of one image is divided. */
struct plan {
    int outs;   /* output channels per block */
    int across; /* strips per row of windows */
    int strips; /* strips per image */
    int parts;  /* threads that share a strip */
    int chunk;  /* input channels in shared memory at a time */
    int pitch;  /* floats per row of the padded image in shared memory */
    int run;    /* floats between the weights of two output channels in shared memory */
    int stage;  /* floats per chunk in shared memory: [chunk][rows][pitch], then [outs][run] */
};

/* Starts to copy `channels` input channels from c on, and their weights. Each warp copies whole rows. */
template <int KK>
__device__ void fetch(const sh_cuda_fused_conv &s, const plan &p, const float *x, const float *w, int first, int c,
                      int channels, float *to)
{
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
    sh_cuda_fused_conv_fetch(s, x + (int64_t)c * s.in_h * s.in_w, channels, p.pitch, to);
    to += p.chunk * s.rows * p.pitch;
    for (int o = warp; o < p.outs && first + o < s.out_c; o += warps) {
        const float *from = w + ((int64_t)(first + o) * s.in_c + c) * KK;
        for (int e = lane; e < channels * KK; e += 32) {
            __pipeline_memcpy_async(to + o * p.run + e, from + e, sizeof(float));
        }
    }
    __pipeline_commit();
}

/* Adds one input channel to the sums of a strip. patch is its upper left corner in the padded image. */
template <int K, int SW>
__device__ inline void add_channel(const float *patch, int pitch, const float *w, float (&sum)[2][2 * SW])
{
    float weight[K * K];
#pragma unroll
    for (int e = 0; e < K * K; e++) {
        weight[e] = w[e];
    }
#pragma unroll
    for (int r = 0; r <= K; r++) {
        float row[2 * SW + K - 1];
#pragma unroll
        for (int j = 0; j < 2 * SW + K - 1; j += 2) {
            const float2 two = *(const float2 *)(patch + r * pitch + j);
            row[j] = two.x, row[j + 1] = two.y;
        }
#pragma unroll
        for (int i = 0; i < 2; i++) {
            if (r - i >= 0 && r - i < K) {
#pragma unroll
                for (int b = 0; b < K; b++) {
#pragma unroll
                    for (int j = 0; j < 2 * SW; j++) {
                        sum[i][j] = fmaf(weight[(r - i) * K + b], row[j + b], sum[i][j]);
                    }
                }
            }
        }
    }
}

/* Adds up the sums of the threads that share a strip, in the order of their parts. Part 0 gets the result. A thread
 * without a strip passes -1 as its part. */
template <int SW> __device__ void add_parts(const plan &p, int at, int part, float *room, float (&sum)[2][2 * SW])
{
    const int all = p.outs * p.strips;
    if (part > 0) {
#pragma unroll
        for (int i = 0; i < 4 * SW; i++) {
            room[((part - 1) * 4 * SW + i) * all + at] = sum[i / (2 * SW)][i % (2 * SW)];
        }
    }
    __syncthreads();
    for (int other = 0; part == 0 && other < p.parts - 1; other++) {
#pragma unroll
        for (int i = 0; i < 4 * SW; i++) {
            sum[i / (2 * SW)][i % (2 * SW)] += room[(other * 4 * SW + i) * all + at];
        }
    }
}

/* blockIdx.x: the group of output channels; blockIdx.y: the image. threadIdx.x = (part * outs + out) * strips + strip,
 * so the lanes of a warp read the same input channel. The last warp may have surplus threads, which only copy. */
template <int K, int SW>
__global__ void __launch_bounds__(MOST_THREADS, 1)
    forward(sh_cuda_fused_conv s, plan p, const float *x, const float *w, const float *bias, const float *drop,
            float *y, uint8_t *winner)
{
    extern __shared__ __align__(16) float room[];
    const int n = blockIdx.y, first = blockIdx.x * p.outs;
    const int strip = threadIdx.x % p.strips, unit = threadIdx.x / p.strips;
    const int out = unit % p.outs, part = unit / p.outs, o = first + out;
    const bool works = part < p.parts && o < s.out_c;
    const int row = strip / p.across, left = strip % p.across * SW;
    x += (int64_t)n * s.in_c * s.in_h * s.in_w;
    fetch<K * K>(s, p, x, w, first, 0, min(p.chunk, s.in_c), room);
    const float factor = !works ? 0 : drop ? drop[(int64_t)n * s.out_c + o] : 1, add = works && bias ? bias[o] : 0;
    float sum[2][2 * SW] = {};
    for (int c = 0, turn = 0; c < s.in_c; c += p.chunk, turn ^= 1) {
        const float *const image = room + turn * p.stage, *const weights = image + p.chunk * s.rows * p.pitch;
        const int next = c + p.chunk, channels = min(p.chunk, s.in_c - c);
        __pipeline_wait_prior(0);
        __syncthreads(); /* the chunk has arrived, and no thread reads the one before */
        if (next < s.in_c) {
            fetch<K * K>(s, p, x, w, first, next, min(p.chunk, s.in_c - next), room + (turn ^ 1) * p.stage);
        }
        for (int k = part; factor != 0 && k < channels; k += p.parts) {
            add_channel<K, SW>(image + (k * s.rows + 2 * row) * p.pitch + 2 * left, p.pitch,
                               weights + out * p.run + k * K * K, sum);
        }
    }
    if (p.parts > 1) {
        __syncthreads(); /* all threads have read the last chunk */
        add_parts<SW>(p, out * p.strips + strip, works ? part : -1, room, sum);
    }
    __syncthreads(); /* all threads have read the sums */
    float *const maxima = room;
    uint8_t *const winners = (uint8_t *)(room + p.outs * s.windows);
    const int to = (out * s.pooled_h + row) * s.pooled_w + left;
#pragma unroll
    for (int q = 0; q < SW; q++) {
        if (works && part == 0 && left + q < s.pooled_w) {
            float v[4] = {sum[0][2 * q], sum[0][2 * q + 1], sum[1][2 * q], sum[1][2 * q + 1]};
#pragma unroll
            for (int i = 0; i < 4; i++) {
                v[i] = factor == 0 ? 0 : (v[i] + add) * factor;
            }
            const sh_pooled<float> best = sh_pool_relu(v[0], v[1], v[2], v[3]);
            maxima[to + q] = best.y;
            winners[to + q] = best.winner;
        }
    }
    __syncthreads();
    /* The block's results are contiguous. Adjacent lanes write adjacent elements: separate stores of a few bytes would
     * be slow. */
    const int64_t begin = ((int64_t)n * s.out_c + first) * s.windows;
    const int count = min(p.outs, s.out_c - first) * s.windows;
    for (int i = threadIdx.x; i < count; i += blockDim.x) {
        y[begin + i] = maxima[i];
        winner[begin + i] = winners[i];
    }
}

/* Returns the number of output channels per block that gives the busiest multiprocessor the least work. Accepts about a
 * sixteenth more work if that makes fewer blocks. */
int outs_of(const sh_cuda_fused_conv &s, int most)
{
    int best = 1, least = INT32_MAX;
    for (int outs = 1; outs <= most; outs++) {
        const int cost = sh_ceil_div(s.n * sh_ceil_div(s.out_c, outs), SH_MULTIPROCESSORS) * outs;
        if (cost * 16 <= (int64_t)least * 17) {
            best = outs;
            least = min(cost, least);
        }
    }
    return best;
}

/* Plans with at most `parts` threads per strip. */
plan plan_with(const sh_cuda_fused_conv &s, int sw, int parts, size_t *out_bytes)
{
    plan p;
    p.across = sh_ceil_div(s.pooled_w, sw);
    p.strips = p.across * s.pooled_h;
    p.pitch = sh_ceil_div(2 * sw * p.across + s.kernel - 3, 16) * 16 + 2; /* 2 mod 16: no bank conflicts between rows */
    p.outs = outs_of(s, max(1, min(min(s.out_c, 32), 448 / p.strips)));
    const int blocks = s.n * sh_ceil_div(s.out_c, p.outs), threads = blocks > SH_MULTIPROCESSORS ? 224 : 384;
    p.parts = max(1, min(min(sh_ceil_div(s.in_c, 2), parts), threads / (p.outs * p.strips)));
    p.parts = sh_ceil_div(s.in_c, sh_ceil_div(s.in_c, p.parts));
    const int channel = s.rows * p.pitch + p.outs * s.kernel * s.kernel, room = 24 << 10; /* bytes of a chunk */
    p.chunk = max(1, min(sh_ceil_div(s.in_c, p.parts), room / (channel * 4 * p.parts))) * p.parts;
    p.run = p.chunk * s.kernel * s.kernel | 1;
    p.stage = (p.chunk * s.rows * p.pitch + p.outs * p.run + 3) / 4 * 4;
    const size_t staged = sizeof(float) * (size_t)p.stage * (p.chunk < s.in_c ? 2 : 1);
    const size_t sums = sizeof(float) * (size_t)((p.parts - 1) * 4 * sw * p.outs * p.strips);
    const size_t results = (sizeof(float) + 1) * (size_t)(p.outs * s.windows);
    *out_bytes = max(max(staged, sums), results);
    return p;
}

/* Each of the threads that share a strip has a channel of its own in shared memory, so large images allow fewer of
 * them. */
plan plan_of(const sh_cuda_fused_conv &s, int sw, size_t *out_bytes)
{
    plan p = plan_with(s, sw, MOST_THREADS, out_bytes);
    while (p.parts > 1 && *out_bytes > SH_SHARED_MOST) {
        p = plan_with(s, sw, p.parts - 1, out_bytes);
    }
    return p;
}

/* Returns the length of strip that wastes least of a row of windows; among equal ones the longest. */
int strip_of(const sh_cuda_fused_conv &s)
{
    int best = 4;
    for (int sw = 5; sw <= 7; sw++) {
        best = sh_ceil_div(s.pooled_w, sw) * sw <= sh_ceil_div(s.pooled_w, best) * best ? sw : best;
    }
    return best;
}

template <int K, int SW>
shoal_err run(sh_exec *exec, const sh_cuda_fused_conv &s, const float *x, const float *w, const float *bias,
              const float *drop, float *y, uint8_t *winner)
{
    size_t bytes;
    const plan p = plan_of(s, SW, &bytes);
    static std::atomic<bool> allowed;
    shoal_err err = sh_allow_shared("conv2d_pool_relu", forward<K, SW>, SH_SHARED_MOST, &allowed);
    if (err) {
        return err;
    }
    const int threads = sh_ceil_div(p.outs * p.parts * p.strips, 32) * 32;
    const dim3 grid((unsigned)sh_ceil_div(s.out_c, p.outs), (unsigned)s.n);
    forward<K, SW><<<grid, threads, bytes, sh_stream(exec)>>>(s, p, x, w, bias, drop, y, winner);
    return sh_cuda_launched("conv2d_pool_relu");
}

template <int K>
shoal_err run_kernel(sh_exec *exec, const sh_cuda_fused_conv &s, const float *x, const float *w, const float *bias,
                     const float *drop, float *y, uint8_t *winner)
{
    switch (strip_of(s)) {
    case 4: return run<K, 4>(exec, s, x, w, bias, drop, y, winner);
    case 5: return run<K, 5>(exec, s, x, w, bias, drop, y, winner);
    case 6: return run<K, 6>(exec, s, x, w, bias, drop, y, winner);
    default: return run<K, 7>(exec, s, x, w, bias, drop, y, winner);
    }
}

/* Returns the smallest pitch at which the elements of a patch are in different banks of shared memory. */
int pitch_of(const sh_cuda_fused_conv &s)
{
    for (int pitch = s.cols;; pitch++) {
        uint32_t used = 0;
        bool good = true;
        for (int a = 0; a < s.kernel; a++) {
            for (int b = 0; b < s.kernel; b++) {
                const uint32_t bank = 1u << (a * pitch + b) % 32;
                good = good && !(used & bank);
                used |= bank;
            }
        }
        if (good) {
            return pitch;
        }
    }
}

} // namespace

bool sh_cuda_fused_conv_of(const sh_conv2d *c, sh_cuda_fused_conv *out)
{
    const bool plain = c->dtype == SHOAL_F32 && c->groups == 1 && c->stride_h == 1 && c->stride_w == 1 &&
                       c->dilation_h == 1 && c->dilation_w == 1 && c->kernel_h == c->kernel_w &&
                       (c->kernel_h == 3 || c->kernel_h == 5);
    const int64_t pooled_h = sh_conv2d_out_h(c) / 2, pooled_w = sh_conv2d_out_w(c) / 2;
    /* Larger sizes are left to the plain kernels, which have no limits. */
    if (!plain || pooled_h * pooled_w > 512 || c->in_c > 4096 || c->out_c > 4096 || c->n > 65535 || c->in_h > 256 ||
        c->in_w > 256) {
        return false;
    }
    sh_cuda_fused_conv s = {};
    s.n = (int)c->n, s.in_c = (int)c->in_c, s.in_h = (int)c->in_h, s.in_w = (int)c->in_w, s.out_c = (int)c->out_c;
    s.kernel = (int)c->kernel_h, s.pad_h = (int)c->pad_h, s.pad_w = (int)c->pad_w;
    s.pooled_h = (int)pooled_h, s.pooled_w = (int)pooled_w, s.windows = (int)(pooled_h * pooled_w);
    s.overwrite = c->overwrite;
    s.rows = 2 * s.pooled_h + s.kernel - 1;
    s.cols = 2 * s.pooled_w + s.kernel - 1;
    s.pitch = pitch_of(s);
    s.by_pooled_w = sh_divisor_of(s.pooled_w);
    s.by_windows = sh_divisor_of(s.windows);
    s.by_rows = sh_divisor_of(s.rows);
    s.by_in_w = sh_divisor_of(s.in_w);
    s.by_plane = sh_divisor_of(s.in_h * s.in_w);
    *out = s;
    return true;
}

bool sh_cuda_fused_conv_forward_fits(const sh_cuda_fused_conv &s)
{
    size_t bytes;
    (void)plan_of(s, strip_of(s), &bytes);
    return bytes <= SH_SHARED_MOST;
}

shoal_err sh_cuda_fused_conv_forward(sh_exec *exec, const sh_cuda_fused_conv &s, const float *x, const float *w,
                                     const float *bias, const float *drop, float *y, uint8_t *winner)
{
    return s.kernel == 3 ? run_kernel<3>(exec, s, x, w, bias, drop, y, winner)
                         : run_kernel<5>(exec, s, x, w, bias, drop, y, winner);
}
