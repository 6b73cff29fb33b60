/* The fused block forward, for small square kernels at stride 1 in f32. The contract is kernels/conv2d.h.
 *
 * A thread computes one window of the pool, so four outputs of the convolution, for OT output channels: each element of
 * the image that it loads serves up to 4 * OT products. A block has one image and some output channels. Where there are
 * fewer windows than threads, several threads share a window: each sums over other input channels. */
#include "kernels/cuda/conv2d_fused.cuh"

namespace
{

/* How the work of one image is divided. */
struct plan {
    int groups; /* of OT output channels in a block */
    int parts;  /* threads that share a window */
    int chunk;  /* input channels in shared memory at a time */
    int pitch;  /* of the weights in shared memory: [chunk][kernel * kernel][pitch] */
};

/* The weights of a group begin at a multiple of 16 bytes. */
constexpr int padded(int ot)
{
    return (ot + 3) / 4 * 4;
}

/* w [O, C, K, K] -> to [channels][K * K][pitch], from output channel `first`; zeros beyond the last. Lanes run over 8
 * elements of 4 output channels each: reads of whole sectors, and few bank conflicts. */
template <int KK, int OT>
__device__ void load_weights(const sh_fused &s, const plan &p, const float *w, int first, int c, int channels,
                             float *to)
{
    const int steps = channels * KK, lane = threadIdx.x % 32, warps = blockDim.x / 32;
    const int tiles = (steps + 7) / 8, quads = (p.groups * OT + 3) / 4;
#pragma unroll 4
    for (int t = threadIdx.x / 32; t < tiles * quads; t += warps) {
        const int e = t % tiles * 8 + lane % 8, o = t / tiles * 4 + lane / 8;
        if (e < steps && o < p.groups * OT) {
            to[e * p.pitch + o / OT * padded(OT) + o % OT] =
                first + o < s.out_c ? w[((int64_t)(first + o) * s.in_c + c) * KK + e] : 0;
        }
    }
}

/* The weights of OT output channels, in as few loads as there can be. */
template <int OT> __device__ inline void load_some(const float *from, float (&to)[OT])
{
#pragma unroll
    for (int i = 0; i + 4 <= OT; i += 4) {
        const float4 v = *(const float4 *)(from + i);
        to[i] = v.x, to[i + 1] = v.y, to[i + 2] = v.z, to[i + 3] = v.w;
    }
#pragma unroll
    for (int i = OT / 4 * 4; i < OT; i++) {
        to[i] = from[i];
    }
}

/* Adds one input channel to the sums of one window. patch is its upper left corner in the padded image. */
template <int K, int OT>
__device__ inline void add_channel(const float *patch, int pitch, const float *w, int w_pitch, float (&sum)[OT][4])
{
    float v[K + 1][K + 1];
#pragma unroll
    for (int a = 0; a <= K; a++) {
#pragma unroll
        for (int b = 0; b <= K; b += 2) {
            const float2 two = *(const float2 *)(patch + a * pitch + b);
            v[a][b] = two.x, v[a][b + 1] = two.y;
        }
    }
#pragma unroll
    for (int a = 0; a < K; a++) {
#pragma unroll
        for (int b = 0; b < K; b++) {
            float weight[OT];
            load_some<OT>(w + (a * K + b) * w_pitch, weight);
#pragma unroll
            for (int o = 0; o < OT; o++) {
                sum[o][0] = fmaf(weight[o], v[a][b], sum[o][0]);
                sum[o][1] = fmaf(weight[o], v[a][b + 1], sum[o][1]);
                sum[o][2] = fmaf(weight[o], v[a + 1][b], sum[o][2]);
                sum[o][3] = fmaf(weight[o], v[a + 1][b + 1], sum[o][3]);
            }
        }
    }
}

/* Adds the sums of the threads that share a window, in the order of their parts; part 0 gets the result. A thread that
 * has no window is part -1. */
template <int OT>
__device__ void add_parts(const plan &p, int windows, int unit, int part, int window, float *room, float (&sum)[OT][4])
{
    __syncthreads(); /* room was the image and the weights */
    const int all = p.groups * windows;
    if (part > 0) {
#pragma unroll
        for (int i = 0; i < OT * 4; i++) {
            room[((part - 1) * OT * 4 + i) * all + unit * windows + window] = sum[i / 4][i % 4];
        }
    }
    __syncthreads();
    for (int other = 0; part == 0 && other < p.parts - 1; other++) {
#pragma unroll
        for (int i = 0; i < OT * 4; i++) {
            sum[i / 4][i % 4] += room[(other * OT * 4 + i) * all + unit * windows + window];
        }
    }
}

/* blockIdx.x: which output channels; blockIdx.y: the image. threadIdx.x = (group * parts + part) * windows + window; the
 * last warp may have threads beyond, which only copy. */
template <int K, int OT>
__global__ void __launch_bounds__(512, 1) forward(sh_fused s, plan p, const float *x, const float *w, const float *bias,
                                                  const float *drop, float *y, uint8_t *winner)
{
    extern __shared__ __align__(16) float room[];
    float *const image = room, *const weights = room + ((p.chunk * s.rows * s.pitch + 3) & ~3);
    const int n = blockIdx.y, first = blockIdx.x * p.groups * OT;
    const int window = threadIdx.x % s.windows, unit = threadIdx.x / s.windows;
    const int group = unit / p.parts, part = unit % p.parts, mine = first + group * OT;
    const bool works = group < p.groups && mine < s.out_c;
    float factor[OT], sum[OT][4] = {};
    bool alive = false;
#pragma unroll
    for (int o = 0; o < OT; o++) {
        factor[o] = works && mine + o < s.out_c ? (drop ? drop[(int64_t)n * s.out_c + mine + o] : 1) : 0;
        alive = alive || factor[o] != 0;
    }
    const float *patch = image + 2 * (window / s.pooled_w) * s.pitch + 2 * (window % s.pooled_w);
    for (int c = 0; c < s.in_c; c += p.chunk) {
        const int channels = min(p.chunk, s.in_c - c);
        if (c > 0) {
            __syncthreads();
        }
        sh_fused_load(s, x + ((int64_t)n * s.in_c + c) * s.in_h * s.in_w, channels, image);
        load_weights<K * K, OT>(s, p, w, first, c, channels, weights);
        __syncthreads();
        for (int k = part; alive && k < channels; k += p.parts) {
            add_channel<K, OT>(patch + k * s.rows * s.pitch, s.pitch,
                               weights + k * K * K * p.pitch + group * padded(OT), p.pitch, sum);
        }
    }
    if (p.parts > 1) {
        add_parts<OT>(p, s.windows, group, works ? part : -1, window, room, sum);
    }
    if (!works || part > 0) {
        return;
    }
#pragma unroll
    for (int o = 0; o < OT; o++) {
        if (mine + o < s.out_c) {
            const float add = bias ? bias[mine + o] : 0, f = factor[o];
            float v[4];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                v[i] = f == 0 ? 0 : (sum[o][i] + add) * f;
            }
            const sh_pooled<float> best = sh_pool_relu(v[0], v[1], v[2], v[3]);
            const int64_t to = ((int64_t)n * s.out_c + mine + o) * s.windows + window;
            y[to] = best.y;
            winner[to] = best.winner;
        }
    }
}

int divided(int a, int b)
{
    return (a + b - 1) / b;
}

size_t plan_bytes(const sh_fused &s, const plan &p, int ot, int chunk)
{
    const size_t staged = sizeof(float) * (size_t)chunk * (s.rows * s.pitch + s.kernel * s.kernel * p.pitch) + 16;
    const size_t sums = sizeof(float) * (size_t)((p.parts - 1) * ot * 4 * p.groups * s.windows);
    return staged > sums ? staged : sums;
}

constexpr int CARD = 132; /* multiprocessors of a large card */

/* How long a channel of the image takes the busiest multiprocessor if a thread has `ot` output channels, in cycles: the
 * products, and half of the loads, which overlap with them. A block for each group of each image. */
int cost_of(const sh_fused &s, int ot)
{
    const int rounds = divided(s.n * divided(s.out_c, ot), CARD);
    return rounds * (25 * ot + (25 * divided(ot, 4) + 72) / 2);
}

plan plan_of(const sh_fused &s, int ot, size_t *out_bytes)
{
    const int groups = divided(s.out_c, ot), blocks = s.n * groups, threads = blocks > CARD ? 256 : 448;
    plan p;
    p.parts = max(1, min(divided(s.in_c, 2), threads / s.windows));
    p.parts = divided(s.in_c, divided(s.in_c, p.parts));
    p.groups = max(1, min(min(groups, blocks / CARD), min(128 / padded(ot), threads / (s.windows * p.parts))));
    p.pitch = p.groups * padded(ot) + 4;
    p.chunk = s.in_c;
    while (p.chunk > 1 && plan_bytes(s, p, ot, p.chunk) > SH_SHARED_MOST) {
        p.chunk = divided(p.chunk, 2);
    }
    *out_bytes = plan_bytes(s, p, ot, p.chunk);
    return p;
}

template <int K, int OT>
shoal_err run(sh_exec *exec, const sh_fused &s, const float *x, const float *w, const float *bias, const float *drop,
              float *y, uint8_t *winner)
{
    size_t bytes;
    const plan p = plan_of(s, OT, &bytes);
    static const cudaError_t raised =
        cudaFuncSetAttribute(forward<K, OT>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)SH_SHARED_MOST);
    if (raised != cudaSuccess) {
        return sh_cuda_called("conv2d_pool_relu", raised);
    }
    const int threads = divided(p.groups * p.parts * s.windows, 32) * 32;
    const dim3 grid((unsigned)divided(s.out_c, p.groups * OT), (unsigned)s.n);
    forward<K, OT><<<grid, threads, bytes, sh_stream(exec)>>>(s, p, x, w, bias, drop, y, winner);
    return sh_cuda_launched("conv2d_pool_relu");
}

template <int K>
shoal_err run_kernel(sh_exec *exec, const sh_fused &s, const float *x, const float *w, const float *bias,
                     const float *drop, float *y, uint8_t *winner)
{
    int best = 4;
    for (int ot : {5, 8, 13}) {
        best = cost_of(s, ot) < cost_of(s, best) ? ot : best;
    }
    switch (best) {
    case 4: return run<K, 4>(exec, s, x, w, bias, drop, y, winner);
    case 5: return run<K, 5>(exec, s, x, w, bias, drop, y, winner);
    case 8: return run<K, 8>(exec, s, x, w, bias, drop, y, winner);
    default: return run<K, 13>(exec, s, x, w, bias, drop, y, winner);
    }
}

} // namespace

bool sh_fused_of(const sh_conv2d *c, sh_fused *out)
{
    const bool plain = c->dtype == SHOAL_F32 && c->groups == 1 && c->stride_h == 1 && c->stride_w == 1 &&
                       c->dilation_h == 1 && c->dilation_w == 1 && c->kernel_h == c->kernel_w &&
                       (c->kernel_h == 3 || c->kernel_h == 5);
    const int64_t pooled_h = sh_conv2d_out_h(c) / 2, pooled_w = sh_conv2d_out_w(c) / 2;
    /* Sizes beyond these are left to the plain kernels, which have no limits. */
    if (!plain || pooled_h * pooled_w > 512 || c->in_c > 4096 || c->out_c > 4096 || c->n > 65535 || c->in_h > 256 ||
        c->in_w > 256) {
        return false;
    }
    sh_fused s = {(int)c->n,
                  (int)c->in_c,
                  (int)c->in_h,
                  (int)c->in_w,
                  (int)c->out_c,
                  (int)c->kernel_h,
                  (int)c->pad_h,
                  (int)c->pad_w,
                  (int)pooled_h,
                  (int)pooled_w,
                  (int)(pooled_h * pooled_w),
                  0,
                  0,
                  0};
    s.rows = 2 * s.pooled_h + s.kernel - 1;
    s.cols = 2 * s.pooled_w + s.kernel - 1;
    s.pitch = s.cols == 18 ? 20 : s.cols; /* 18 would give bank conflicts */
    *out = s;
    return true;
}

shoal_err sh_fused_forward(sh_exec *exec, const sh_fused &s, const float *x, const float *w, const float *bias,
                           const float *drop, float *y, uint8_t *winner)
{
    return s.kernel == 3 ? run_kernel<3>(exec, s, x, w, bias, drop, y, winner)
                         : run_kernel<5>(exec, s, x, w, bias, drop, y, winner);
}
