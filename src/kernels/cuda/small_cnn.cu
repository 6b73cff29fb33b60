/* A step of mnist-cnn in two launches. The contract is kernels/small_cnn.h.
 *
 * image_pass: one block per image. All data of the image stays in shared memory: 97 KiB. The 10 warps are the 10
 * channels of conv1, the 10 pairs of channels of conv2, and 5 outputs of fc1 each. Only the winners of the pools have
 * gradients. A channel that dropout drops costs nothing after its random number was drawn.
 * update_pass: one column of threads per parameter. It adds up the images in a fixed order, then takes the step of SGD.
 * The gradients of the linear layers are products of two vectors per image, so the first pass keeps only these
 * vectors. */
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/warp.cuh"
#include "kernels/philox.h"
#include "kernels/small_cnn.h"

namespace
{

constexpr int THREADS = 320;
constexpr int WARPS = THREADS / 32;
constexpr int X_STRIDE = 38;  /* 5 rows of 5 elements are in 25 different banks */
constexpr int A_STRIDE = 13;  /* the same */
constexpr int TAPS = 25;      /* elements of a 5x5 kernel */
constexpr int TAPS_ROOM = 28; /* rounded up, so that each kernel is aligned to 16 bytes */
constexpr int DEAD = -1;

/* Offsets of what the first pass leaves for the second, per image. */
constexpr int CONV1_W = 0, CONV1_B = 250, CONV2_W = 260, CONV2_B = 5260, CONVS = 5280;
constexpr int A2 = CONVS, DZ1 = A2 + 320, H1 = DZ1 + 50, DZ2 = H1 + 50, LOSS = DZ2 + 10, KEPT = 5712;

struct image_memory {
    float4 w2[20 * 10 * TAPS_ROOM / 4];
    float4 w1[10 * TAPS_ROOM / 4];
    float4 g2[20 * 16 * 2]; /* the gradient of conv2's output, [20, 8, 8], with 4 rows of zeros above and below */
    float2 g2s[320];        /* of the winners alone: the gradient, and the place in a1s as the bits of an int */
    float2 a1[10 * 12 * 6];
    float2 x[28 * X_STRIDE / 2];
    float2 g1[1440]; /* the gradient, and the winner's place in x as the bits of an int */
    float a1s[10 * 12 * A_STRIDE];
    float dx1[2][1440]; /* from the even and from the odd channels of conv2 */
    float part[WARPS][320];
    float a2[320], h1[52], dz1[52], z2[12], dz2[12], wf2[500];
    float b1[10], b2[20], bf1[50], bf2[10], drop[20];
    int place1[1440]; /* place of the winner in x, or DEAD */
    int place2[320];  /* place of the winner: row * 8 + column of conv2's output, or DEAD */
    int alive[20], alive_count, label;
};

static_assert(sizeof(image_memory) <= SH_SHARED_EVERYWHERE, "every GPU has this much");

__device__ void philox(uint64_t block, const sh_small_cnn_step &s, uint32_t out[4])
{
    uint64_t seed = s.seed != nullptr ? *s.seed : s.key.seed;
    sh_philox_block((uint32_t)block, (uint32_t)(block >> 32), (uint32_t)s.key.stream, (uint32_t)(s.key.stream >> 32),
                    (uint32_t)seed, (uint32_t)(seed >> 32), out);
}

/* Returns the maximum of a 2x2 window after relu, and which of the four it is: DEAD if relu gave 0. Of equal ones the
 * first wins; NaN wins over numbers. */
__device__ float pooled(const float v[4], int *out_winner)
{
    float best = v[0];
    int winner = 0;
#pragma unroll
    for (int i = 1; i < 4; i++) {
        if (v[i] > best || v[i] != v[i]) {
            best = v[i], winner = i;
        }
    }
    bool dead = best <= 0;
    *out_winner = dead ? DEAD : winner;
    return dead ? 0 : best;
}

__device__ void load_taps(float w[TAPS_ROOM], const float4 *taps)
{
#pragma unroll
    for (int i = 0; i < TAPS_ROOM / 4; i++) {
        float4 q = taps[i];
        w[4 * i] = q.x, w[4 * i + 1] = q.y, w[4 * i + 2] = q.z, w[4 * i + 3] = q.w;
    }
}

/* v[i] += the outputs of one kernel at the four positions of a 2x2 window, over a 6x6 patch. */
__device__ void convolve(float v[4], const float patch[36], const float4 *taps)
{
    float w[TAPS_ROOM];
    load_taps(w, taps);
#pragma unroll
    for (int a = 0; a < 5; a++) {
#pragma unroll
        for (int b = 0; b < 5; b++) {
            float t = w[a * 5 + b];
            v[0] += t * patch[a * 6 + b];
            v[1] += t * patch[a * 6 + b + 1];
            v[2] += t * patch[(a + 1) * 6 + b];
            v[3] += t * patch[(a + 1) * 6 + b + 1];
        }
    }
}

__device__ void load_patch(float patch[36], const float2 *from, int stride2)
{
#pragma unroll
    for (int r = 0; r < 6; r++) {
#pragma unroll
        for (int k = 0; k < 3; k++) {
            float2 q = from[r * stride2 + k];
            patch[r * 6 + 2 * k] = q.x, patch[r * 6 + 2 * k + 1] = q.y;
        }
    }
}

/* Loads the image and the weights of the convolutions, and draws which channels stay. */
__device__ void load_all(image_memory &m, const sh_small_cnn_step &s, uint64_t block)
{
    int t = threadIdx.x;
    float *x = (float *)m.x, *w1 = (float *)m.w1, *w2 = (float *)m.w2;
    for (int i = t; i < 250; i += THREADS) {
        w1[i / TAPS * TAPS_ROOM + i % TAPS] = s.param[0][i];
    }
#pragma unroll 16
    for (int i = t; i < 5000; i += THREADS) { /* all loads are in flight at once */
        w2[i / TAPS * TAPS_ROOM + i % TAPS] = s.param[2][i];
    }
    for (int i = t; i < 500; i += THREADS) {
        m.wf2[i] = s.param[6][i];
    }
    for (int i = t; i < 20 * 8; i += THREADS) { /* the rows of zeros around g2 */
        int row = i % 8 < 4 ? i % 8 : i % 8 + 8;
        m.g2[(i / 8 * 16 + row) * 2] = m.g2[(i / 8 * 16 + row) * 2 + 1] = make_float4(0, 0, 0, 0);
    }
    if (t < 10) {
        m.b1[t] = s.param[1][t];
        m.bf2[t] = s.param[7][t];
    }
    if (t < 20) {
        m.b2[t] = s.param[3][t];
    }
    if (t >= 64 && t < 114) {
        m.bf1[t - 64] = s.param[5][t - 64];
    }
    /* Three loads, each of which needs the one before. So they come last. */
    int64_t sample = s.order[s.state[0] + blockIdx.x];
    if (t == 128) {
        m.label = s.labels[sample];
    }
    if (t >= 32 && t < 37) {
        uint32_t word[4];
        philox(block + (uint64_t)blockIdx.x * 5 + (t - 32), s, word);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float u = (float)(word[i] >> 8) * 0x1p-24f;
            m.drop[(t - 32) * 4 + i] = !s.training ? 1.0f : u < 0.5f ? 2.0f : 0.0f;
        }
    }
    const uint8_t *pixels = s.pixels + sample * 784;
    for (int i = t; i < 784 / 4; i += THREADS) {
        uchar4 q = ((const uchar4 *)pixels)[i];
        int at = i * 4 / 28 * X_STRIDE + i * 4 % 28;
        x[at] = __fadd_rn(__fmul_rn((float)q.x, s.scale), s.shift);
        x[at + 1] = __fadd_rn(__fmul_rn((float)q.y, s.scale), s.shift);
        x[at + 2] = __fadd_rn(__fmul_rn((float)q.z, s.scale), s.shift);
        x[at + 3] = __fadd_rn(__fmul_rn((float)q.w, s.scale), s.shift);
    }
}

__device__ void conv1_forward(image_memory &m)
{
    int t = threadIdx.x;
    if (t >= 288) {
        return;
    }
    int half = t / 144, window = t % 144, py = window / 12, px = window % 12;
    float patch[36];
    load_patch(patch, m.x + 2 * py * (X_STRIDE / 2) + px, X_STRIDE / 2);
#pragma unroll 1
    for (int o = half * 5; o < half * 5 + 5; o++) {
        float bias = m.b1[o], v[4] = {0, 0, 0, 0};
        convolve(v, patch, m.w1 + o * (TAPS_ROOM / 4));
        v[0] += bias, v[1] += bias, v[2] += bias, v[3] += bias;
        int winner;
        float y = pooled(v, &winner);
        ((float *)m.a1)[o * 144 + window] = y;
        m.a1s[(o * 12 + py) * A_STRIDE + px] = y;
        m.place1[o * 144 + window] =
            winner == DEAD ? DEAD : (2 * py + (winner >> 1)) * X_STRIDE + 2 * px + (winner & 1);
    }
}

/* Each warp computes two channels. Two lanes share a window; each takes half of the input channels. */
__device__ void conv2_forward(image_memory &m)
{
    int half = threadIdx.x & 1, rest = threadIdx.x >> 1, window = rest % 16, pair = rest / 16;
    int py = window / 4, px = window % 4;
    float v[2][4] = {};
    bool stays[2] = {m.drop[2 * pair] != 0, m.drop[2 * pair + 1] != 0};
    if (stays[0] || stays[1]) {
#pragma unroll 1
        for (int c = half * 5; c < half * 5 + 5; c++) {
            float patch[36];
            load_patch(patch, m.a1 + c * 72 + 2 * py * 6 + px, 6);
            if (stays[0]) {
                convolve(v[0], patch, m.w2 + (2 * pair * 10 + c) * (TAPS_ROOM / 4));
            }
            if (stays[1]) {
                convolve(v[1], patch, m.w2 + ((2 * pair + 1) * 10 + c) * (TAPS_ROOM / 4));
            }
        }
    }
#pragma unroll
    for (int k = 0; k < 8; k++) {
        v[k / 4][k % 4] += __shfl_xor_sync(0xffffffffu, v[k / 4][k % 4], 1);
    }
    int o = 2 * pair + half, winner = DEAD;
    float factor = m.drop[o], bias = m.b2[o], out[4], y = 0;
#pragma unroll
    for (int k = 0; k < 4; k++) {
        out[k] = factor * ((half ? v[1][k] : v[0][k]) + bias);
    }
    if (factor != 0) {
        y = pooled(out, &winner);
    }
    m.a2[o * 16 + window] = y;
    m.place2[o * 16 + window] = winner == DEAD ? DEAD : (2 * py + (winner >> 1)) * 8 + 2 * px + (winner & 1);
}

/* The weights of fc1 that one thread has: every 32nd column of its warp's 5 outputs. They stay in registers from the
 * forward to the backward pass. */
struct fc1_weights {
    float w[5][10];
};

/* fc1, relu and dropout. Lane k of a warp gets output k of the warp. Returns the factor of that output's gradient. */
__device__ float fc1_forward(image_memory &m, const sh_small_cnn_step &s, float *kept, uint64_t block, fc1_weights &f)
{
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, output = warp * 5 + lane;
    float sum[5];
#pragma unroll
    for (int k = 0; k < 5; k++) {
#pragma unroll
        for (int j = 0; j < 10; j++) {
            f.w[k][j] = s.param[4][(warp * 5 + k) * 320 + lane + 32 * j];
        }
    }
#pragma unroll
    for (int k = 0; k < 5; k++) {
        sum[k] = 0;
#pragma unroll
        for (int j = 0; j < 10; j++) {
            sum[k] += f.w[k][j] * m.a2[lane + 32 * j];
        }
        sum[k] = sh_warp_sum(sum[k]);
    }
    if (lane >= 5) {
        return 0;
    }
    float z = lane == 0 ? sum[0] : lane == 1 ? sum[1] : lane == 2 ? sum[2] : lane == 3 ? sum[3] : sum[4];
    z += m.bf1[output];
    bool dead = z <= 0;
    float h = dead ? 0 : z, passes = dead ? 0.0f : 1.0f;
    if (s.training) {
        uint64_t i = (uint64_t)blockIdx.x * 50 + output;
        uint32_t word[4];
        philox(block + ((uint64_t)gridDim.x * 20 + 3) / 4 + i / 4, s, word);
        uint32_t drawn = i % 4 == 0 ? word[0] : i % 4 == 1 ? word[1] : i % 4 == 2 ? word[2] : word[3];
        bool stays = (float)(drawn >> 8) * 0x1p-24f >= 0.5f;
        h = stays ? h * 2 : 0;
        passes = stays ? passes * 2 : 0;
    }
    m.h1[output] = h;
    kept[H1 + output] = h;
    return passes;
}

/* fc2 and the loss. One warp per output of fc2; every warp computes the whole loss. Returns the gradient of output
 * `lane`. */
__device__ float fc2_and_loss(image_memory &m, float *kept)
{
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    float z2 = sh_warp_sum(m.wf2[warp * 50 + lane] * m.h1[lane] +
                           (lane < 18 ? m.wf2[warp * 50 + 32 + lane] * m.h1[32 + lane] : 0));
    if (lane == 0) {
        m.z2[warp] = z2 + m.bf2[warp];
    }
    __syncthreads();
    float z = lane < 10 ? m.z2[lane] : -INFINITY, greatest = sh_warp_max(z);
    float y = z - greatest - logf(sh_warp_sum(lane < 10 ? expf(z - greatest) : 0));
    float scale = 1.0f / (float)gridDim.x;
    float dz = lane < 10 ? (expf(y) - (lane == m.label ? 1.0f : 0.0f)) * scale : 0;
    if (warp == 0 && lane < 10) {
        kept[DZ2 + lane] = dz;
        if (lane == m.label) {
            kept[LOSS] = -y * scale;
        }
    }
    return dz;
}

/* Computes each warp's part of the gradient of a2 from the gradient of fc2's outputs. */
__device__ void linear_backward(image_memory &m, float *kept, const fc1_weights &f, float dz, float passes)
{
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, output = warp * 5 + lane;
    float dh = 0;
#pragma unroll
    for (int o = 0; o < 10; o++) {
        float dzo = __shfl_sync(0xffffffffu, dz, o);
        dh += lane < 5 ? m.wf2[o * 50 + output] * dzo : 0;
    }
    float dz1 = passes != 0 ? dh * passes : 0;
    if (lane < 5) {
        kept[DZ1 + output] = dz1;
    }
#pragma unroll
    for (int j = 0; j < 10; j++) {
        float sum = 0;
#pragma unroll
        for (int k = 0; k < 5; k++) {
            sum += f.w[k][j] * __shfl_sync(0xffffffffu, dz1, k);
        }
        m.part[warp][lane + 32 * j] = sum;
    }
}

__device__ void linear_layers(image_memory &m, const sh_small_cnn_step &s, float *kept, uint64_t block)
{
    fc1_weights f;
    float passes = fc1_forward(m, s, kept, block, f);
    __syncthreads();
    float dz = fc2_and_loss(m, kept);
    linear_backward(m, kept, f, dz, passes);
}

/* Computes the gradient of conv2's output from that of a2, and lists the channels that have one. */
__device__ void spread_to_conv2(image_memory &m, float *kept)
{
    int t = threadIdx.x, o = t / 16, window = t % 16, place = m.place2[t];
    float g = 0;
#pragma unroll
    for (int w = 0; w < WARPS; w++) {
        g += m.part[w][t];
    }
    g = place == DEAD ? 0 : g * m.drop[o];
    kept[A2 + t] = m.a2[t];
    float *out = (float *)m.g2 + o * 128 + 32 + window / 4 * 16 + window % 4 * 2;
    int at = place == DEAD ? -1 : place - (window / 4 * 16 + window % 4 * 2);
    out[0] = at == 0 ? g : 0;
    out[1] = at == 1 ? g : 0;
    out[8] = at == 8 ? g : 0;
    out[9] = at == 9 ? g : 0;
    m.g2s[t] = make_float2(g, __int_as_float(place == DEAD ? 0 : place / 8 * A_STRIDE + place % 8));
    if (t < 32) {
        bool stays = t < 20 && m.drop[t] != 0;
        unsigned who = __ballot_sync(0xffffffffu, stays);
        if (stays) {
            m.alive[__popc(who & ((1u << t) - 1))] = t;
        }
        if (t == 0) {
            m.alive_count = __popc(who);
        }
    }
}

/* The gradient of a1. A thread has one row of one channel, and every other channel of conv2. */
__device__ void conv2_backward_input(image_memory &m)
{
    int t = threadIdx.x;
    if (t >= 240) {
        return;
    }
    int half = t / 120, task = t % 120, c = task / 12, y = task % 12;
    float acc[12] = {};
    int count = m.alive_count;
    for (int i = half; i < count; i += 2) {
        int o = m.alive[i];
        float w[TAPS_ROOM];
        load_taps(w, m.w2 + (o * 10 + c) * (TAPS_ROOM / 4));
#pragma unroll
        for (int a = 0; a < 5; a++) {
            const float4 *row = m.g2 + o * 32 + (4 + y - a) * 2;
            float4 lo = row[0], hi = row[1];
            float g[8] = {lo.x, lo.y, lo.z, lo.w, hi.x, hi.y, hi.z, hi.w};
#pragma unroll
            for (int b = 0; b < 5; b++) {
#pragma unroll
                for (int k = 0; k < 8; k++) {
                    acc[k + b] += g[k] * w[a * 5 + b];
                }
            }
        }
    }
#pragma unroll
    for (int k = 0; k < 12; k++) {
        m.dx1[half][(c * 12 + y) * 12 + k] = acc[k];
    }
}

/* The gradients of conv2's weights. A warp has one output channel and half of the input channels at a time, a lane one
 * tap. Lane 25 adds up the gradients themselves, for the bias. */
__device__ void conv2_backward_weights(const image_memory &m, float *kept)
{
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, count = m.alive_count;
    int tap = lane < TAPS ? lane / 5 * A_STRIDE + lane % 5 : 0;
    for (int task = warp; task < 40; task += WARPS) {
        int i = task / 2, half = task % 2;
        if (i >= count) {
            break;
        }
        int o = m.alive[i];
        float acc[5] = {}, sum = 0;
        const float *a = m.a1s + half * 5 * 12 * A_STRIDE + tap;
#pragma unroll
        for (int window = 0; window < 16; window++) {
            float2 g = m.g2s[o * 16 + window];
            sum += g.x;
#pragma unroll
            for (int c = 0; c < 5; c++) {
                acc[c] += g.x * a[c * 12 * A_STRIDE + __float_as_int(g.y)];
            }
        }
        if (lane < TAPS) {
#pragma unroll
            for (int c = 0; c < 5; c++) {
                kept[CONV2_W + (o * 10 + half * 5 + c) * TAPS + lane] = acc[c];
            }
        } else if (lane == TAPS && half == 0) {
            kept[CONV2_B + o] = sum;
        }
    }
    for (int o = warp; o < 20; o += WARPS) {
        if (m.drop[o] == 0) {
            for (int i = lane; i < 250; i += 32) {
                kept[CONV2_W + o * 250 + i] = 0;
            }
            if (lane == 0) {
                kept[CONV2_B + o] = 0;
            }
        }
    }
}

/* The gradients of conv1's weights: one warp per channel, one lane per tap. Lane 25 adds up the gradient of the
 * bias. */
__device__ void conv1_backward_weights(const image_memory &m, float *kept)
{
    int lane = threadIdx.x % 32, o = threadIdx.x / 32;
    const float *x = (const float *)m.x + (lane < TAPS ? lane / 5 * X_STRIDE + lane % 5 : 0);
    float acc = 0, sum = 0;
#pragma unroll 8
    for (int window = 0; window < 144; window++) {
        float2 g = m.g1[o * 144 + window];
        acc += g.x * x[__float_as_int(g.y)];
        sum += g.x;
    }
    if (lane < TAPS) {
        kept[CONV1_W + o * TAPS + lane] = acc;
    } else if (lane == TAPS) {
        kept[CONV1_B + o] = sum;
    }
}

__global__ void __launch_bounds__(THREADS, 2) image_pass(sh_small_cnn_step s, float *kept)
{
    extern __shared__ float4 raw[];
    image_memory &m = *(image_memory *)raw;
    int t = threadIdx.x;
    uint64_t block = s.key.offset + (uint64_t)s.state[1];
    kept += (int64_t)blockIdx.x * KEPT;

    load_all(m, s, block);
    __syncthreads();
    conv1_forward(m);
    __syncthreads();
    conv2_forward(m);
    __syncthreads();
    linear_layers(m, s, kept, block);
    __syncthreads();
    spread_to_conv2(m, kept);
    __syncthreads();
    conv2_backward_input(m);
    conv2_backward_weights(m, kept);
    __syncthreads();
    for (int i = t; i < 1440; i += THREADS) {
        int place = m.place1[i];
        float g = place == DEAD ? 0 : m.dx1[0][i] + m.dx1[1][i];
        m.g1[i] = make_float2(g, __int_as_float(place == DEAD ? 0 : place));
    }
    __syncthreads();
    conv1_backward_weights(m, kept);
}

constexpr int COLUMNS = 64, SLICES = 4;
constexpr int PARAMS = 21840;

/* Returns the sum of thread (column, slice) for parameter p: over the images slice, slice + 4 and so on. */
__device__ float part_of_gradient(const float *kept, int p, int slice, int batch)
{
    const float *a, *b = nullptr;
    if (p < CONVS) {
        a = kept + p;
    } else if (p < CONVS + 16000) {
        a = kept + A2 + (p - CONVS) % 320, b = kept + DZ1 + (p - CONVS) / 320;
    } else if (p < CONVS + 16050) {
        a = kept + DZ1 + (p - CONVS - 16000);
    } else if (p < CONVS + 16550) {
        a = kept + H1 + (p - CONVS - 16050) % 50, b = kept + DZ2 + (p - CONVS - 16050) / 50;
    } else {
        a = kept + DZ2 + (p - CONVS - 16550);
    }
    float sum = 0;
    if (b != nullptr) {
#pragma unroll 16
        for (int n = slice; n < batch; n += SLICES) {
            sum += a[(int64_t)n * KEPT] * b[(int64_t)n * KEPT];
        }
    } else {
#pragma unroll 16
        for (int n = slice; n < batch; n += SLICES) {
            sum += a[(int64_t)n * KEPT];
        }
    }
    return sum;
}

__global__ void __launch_bounds__(COLUMNS *SLICES)
    update_pass(sh_small_cnn_step s, const float *kept, int batch, int64_t blocks)
{
    __shared__ float sums[SLICES][COLUMNS];
    int column = threadIdx.x % COLUMNS, slice = threadIdx.x / COLUMNS, p = blockIdx.x * COLUMNS + column;
    sums[slice][column] = p < PARAMS ? part_of_gradient(kept, p, slice, batch) : 0;
    __syncthreads();
    if (blockIdx.x == 0 && threadIdx.x == COLUMNS) { /* no other block reads these in this launch */
        float loss = 0;
        for (int n = 0; n < batch; n++) {
            loss += kept[(int64_t)n * KEPT + LOSS];
        }
        *s.loss += loss;
        s.state[0] += batch;
        s.state[1] += s.training ? blocks : 0;
    }
    if (slice > 0 || p >= PARAMS) {
        return;
    }
    float g = (sums[0][column] + sums[1][column]) + (sums[2][column] + sums[3][column]);
    const int ends[SH_SMALL_CNN_TENSORS] = {250, 260, 5260, 5280, 21280, 21330, 21830, 21840};
    int k = 0, first = 0;
#pragma unroll
    for (int i = 0; i + 1 < SH_SMALL_CNN_TENSORS; i++) {
        if (p >= ends[i]) {
            k = i + 1, first = ends[i];
        }
    }
    int at = p - first;
    if (s.grad[k] != nullptr) {
        s.grad[k][at] = g;
        return;
    }
    if (s.momentum[k] != nullptr) {
        g = s.momentum_factor * s.momentum[k][at] + g;
        s.momentum[k][at] = g;
    }
    s.param[k][at] -= s.lr * g;
}

size_t scratch_size(int64_t batch)
{
    return (size_t)batch * KEPT * sizeof(float);
}

shoal_err step(sh_exec *exec, const sh_small_cnn_step *args, void *scratch)
{
    static std::atomic<bool> allowed;
    shoal_err err = sh_allow_shared("small_cnn", image_pass, sizeof(image_memory), &allowed);
    if (err) {
        return err;
    }
    int64_t blocks = (args->batch * 20 + 3) / 4 + (args->batch * 50 + 3) / 4;
    image_pass<<<(unsigned)args->batch, THREADS, sizeof(image_memory), sh_stream(exec)>>>(*args, (float *)scratch);
    update_pass<<<(PARAMS + COLUMNS - 1) / COLUMNS, COLUMNS * SLICES, 0, sh_stream(exec)>>>(
        *args, (const float *)scratch, (int)args->batch, blocks);
    return sh_cuda_launched("small_cnn");
}

} // namespace

extern "C" const sh_small_cnn_kernels sh_small_cnn_kernels_cuda = {scratch_size, step};
