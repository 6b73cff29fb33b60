/* A step of fedavg-cnn for several clients. The contract is kernels/fedavg_cnn.h; fedavg_cnn.cuh describes the parts.
 *
 * Each lane is a channel of conv1. So adjacent lanes read and write adjacent elements, and all lanes read the same
 * pixels from shared memory. The last launch adds up the partial gradients of the convolutions and updates their
 * parameters. */
#include "kernels/cuda/conv2d_fused.cuh"
#include "kernels/cuda/fedavg_cnn.cuh"
#include "kernels/cuda/warp.cuh"

namespace
{

static_assert(SH_CLOSED == SH_WINNER_DEAD, "sh_pool_relu");

constexpr int WARPS1 = 7, THREADS1 = 32 * WARPS1; /* one warp per pair of windows of a row */
/* Floats per row of an image in shared memory. With this pitch the winners of a window are in 4 different banks. */
constexpr int PITCH = 36;
constexpr int SUMS1 = SH_W1 + 32, SUMS2 = SH_W2 + 64;

/* Returns the number of image n in the data set, or -1 if the batch has no such row. */
__device__ int64_t sample_of(const sh_fedavg_cnn_step &s, int n)
{
    int c = n / (int)s.batch, row = n % (int)s.batch;
    int64_t at = *s.state + row;
    return at < s.counts[c] ? s.order[c * s.order_stride + at] : -1;
}

/* Loads rows first to first + count - 1 of the image with its border of 2 zeros. If there is no image, all is 0. */
__device__ void load_rows(const sh_fedavg_cnn_step &s, int n, int first, int count, float *x)
{
    int64_t sample = sample_of(s, n);
    for (int i = threadIdx.x; i < count * 8; i += THREADS1) {
        int row = i / 8, y = first + row - 2, j = i % 8;
        float2 *to = (float2 *)(x + row * PITCH);
        if (j == 7) {
            to[0] = to[15] = make_float2(0, 0);
            continue;
        }
        float2 left = make_float2(0, 0), right = left;
        if (sample >= 0 && y >= 0 && y < 28) {
            uchar4 q = ((const uchar4 *)(s.pixels + sample * 784 + y * 28))[j];
            left.x = __fadd_rn(__fmul_rn((float)q.x, s.scale), s.shift);
            left.y = __fadd_rn(__fmul_rn((float)q.y, s.scale), s.shift);
            right.x = __fadd_rn(__fmul_rn((float)q.z, s.scale), s.shift);
            right.y = __fadd_rn(__fmul_rn((float)q.w, s.scale), s.shift);
        }
        to[2 * j + 1] = left, to[2 * j + 2] = right;
    }
}

/* Computes two adjacent windows: v has 2 rows of 4 outputs. */
__device__ void convolve(float v[2][4], const float w[25], const float *x)
{
#pragma unroll
    for (int r = 0; r < 6; r++) {
        float4 l = *(const float4 *)(x + r * PITCH), h = *(const float4 *)(x + r * PITCH + 4);
        float patch[8] = {l.x, l.y, l.z, l.w, h.x, h.y, h.z, h.w};
#pragma unroll
        for (int i = 0; i < 2; i++) {
#pragma unroll
            for (int k = 0; k < 20; k++) {
                if (r - i >= 0 && r - i < 5) {
                    v[i][k % 4] += w[(r - i) * 5 + k / 4] * patch[k / 4 + k % 4];
                }
            }
        }
    }
}

/* Writes the zeros around x1: on both sides, and above and below the rows of this block. */
__device__ void write_border(const sh_fedavg_cnn_memory &m, int n, int first, int rows)
{
    int begin = first == 0 ? 0 : first + 2, end = first + rows == 14 ? 18 : first + rows + 2;
    float4 *x1 = (float4 *)m.x1 + (int64_t)n * 18 * 18 * 8;
    for (int i = begin * 18 * 8 + threadIdx.x; i < end * 18 * 8; i += THREADS1) {
        int y = i / (18 * 8), x = i / 8 % 18;
        if (y < 2 || y >= 16 || x < 2 || x >= 16) {
            x1[i] = make_float4(0, 0, 0, 0);
        }
    }
}

/* conv1, pool, relu. A block has `rows` rows of windows, so an image has 14 / rows blocks. Images and blocks share the
 * grid's x dimension, because a batch may have more images than the others can hold. */
__global__ void __launch_bounds__(THREADS1)
    conv1_forward(const sh_fedavg_cnn_step s, const sh_fedavg_cnn_memory m, int rows)
{
    __shared__ __align__(16) float x[32 * PITCH];
    __shared__ float weights[SH_W1];
    int t = threadIdx.x, lane = t % 32, pair = t / 32, groups = 14 / rows, n = (int)blockIdx.x / groups;
    int c = n / (int)s.batch, first = (int)blockIdx.x % groups * rows;
    for (int i = t; i < SH_W1; i += THREADS1) {
        weights[i] = s.param[0][c * s.stride + i];
    }
    float bias = s.param[1][c * s.stride + lane], w[25];
    if (first == 0 && n % (int)s.batch == 0 && t == 0) {
        int64_t left = s.counts[c] - *s.state;
        m.rows[c] = left <= 0 ? 0 : left < s.batch ? (int)left : (int)s.batch;
    }
    load_rows(s, n, 2 * first, 2 * rows + 4, x);
    write_border(m, n, first, rows);
    __syncthreads();
#pragma unroll
    for (int k = 0; k < 25; k++) {
        w[k] = weights[lane * 25 + k];
    }
    for (int y = 0; y < rows; y++) {
        float v[2][4] = {{bias, bias, bias, bias}, {bias, bias, bias, bias}};
        convolve(v, w, x + 2 * y * PITCH + 4 * pair);
        float *x1 = m.x1 + (((int64_t)n * 18 + first + y + 2) * 18 + 2 * pair + 2) * 32 + lane;
        uint8_t *winners = m.winners1 + (((int64_t)n * 14 + first + y) * 14 + 2 * pair) * 32 + lane;
#pragma unroll
        for (int k = 0; k < 2; k++) {
            sh_pooled<float> best = sh_pool_relu(v[0][2 * k], v[0][2 * k + 1], v[1][2 * k], v[1][2 * k + 1]);
            x1[k * 32] = best.y;
            winners[k * 32] = best.winner;
        }
    }
}

/* Computes one part of the gradient of conv1's weight and bias: units part * units / parts to (part + 1) * units /
 * parts - 1 of client blockIdx.y. A unit is `rows` rows of windows of an image. */
__global__ void __launch_bounds__(THREADS1)
    conv1_gradient(const sh_fedavg_cnn_step s, const sh_fedavg_cnn_memory m, int rows)
{
    __shared__ __align__(16) float x[32 * PITCH];
    __shared__ float sums[WARPS1][SUMS1];
    int t = threadIdx.x, lane = t % 32, warp = t / 32, c = blockIdx.y, part = blockIdx.x;
    int groups = 14 / rows, units = m.rows[c] * groups;
    float acc[25] = {}, sum = 0;
    for (int u = part * units / (int)gridDim.x; u < (part + 1) * units / (int)gridDim.x; u++) {
        int n = c * (int)s.batch + u / groups, first = u % groups * rows;
        const int64_t at = (((int64_t)n * 14 + first) * 14 + warp) * 32 + lane;
        __syncthreads();
        load_rows(s, n, 2 * first, 2 * rows + 4, x);
        __syncthreads();
#pragma unroll 4
        for (int k = 0; k < 2 * rows; k++) { /* windows `warp` and `warp + 7` of each row */
            int winner = m.winners1[at + k * WARPS1 * 32];
            float g = winner == SH_CLOSED ? 0 : m.dx1[at + k * WARPS1 * 32];
            const float *from =
                x + (k / 2 * 2 + (winner >> 1 & 1)) * PITCH + 2 * (warp + k % 2 * WARPS1) + (winner & 1);
            sum += g;
#pragma unroll
            for (int i = 0; i < 25; i++) {
                acc[i] += g * from[i / 5 * PITCH + i % 5];
            }
        }
    }
#pragma unroll
    for (int i = 0; i < 25; i++) {
        sums[warp][lane * 25 + i] = acc[i];
    }
    sums[warp][SH_W1 + lane] = sum;
    __syncthreads();
    float *out = m.parts1 + ((int64_t)c * m.parts1_count + part) * SUMS1;
    for (int i = t; i < SUMS1; i += THREADS1) {
        float total = 0;
#pragma unroll
        for (int k = 0; k < WARPS1; k++) {
            total += sums[k][i];
        }
        out[i] = total;
    }
}

constexpr int THREADS = 256;

/* Adds up `count` partial gradients of tensors t and t + 1 and updates the parameters. A block has COLUMNS groups of 4
 * parameters; each thread of a column adds every (THREADS / COLUMNS)-th part. */
template <int COLUMNS>
__device__ void add_parts(const sh_fedavg_cnn_step &s, const float *parts, int count, int block, int t, int weights,
                          int all, float4 shared[THREADS])
{
    constexpr int SLICES = THREADS / COLUMNS;
    int column = threadIdx.x % COLUMNS, slice = threadIdx.x / COLUMNS, i = 4 * (block * COLUMNS + column);
    float4 sum = make_float4(0, 0, 0, 0);
    if (i < all) {
#pragma unroll 8
        for (int p = slice; p < count; p += SLICES) {
            float4 v = *(const float4 *)(parts + (int64_t)p * all + i);
            sum.x += v.x, sum.y += v.y, sum.z += v.z, sum.w += v.w;
        }
    }
    shared[threadIdx.x] = sum;
    __syncthreads();
    if (slice > 0 || i >= all) {
        return;
    }
#pragma unroll
    for (int k = 1; k < SLICES; k++) {
        float4 v = shared[k * COLUMNS + column];
        sum.x += v.x, sum.y += v.y, sum.z += v.z, sum.w += v.w;
    }
    int64_t at = blockIdx.y * s.stride + (i < weights ? i : i - weights);
    if (i < weights) {
        sh_fedavg_cnn_change4<true>(s, t, at, sum, sh_fedavg_cnn_fetch4<true>(s, t, at));
    } else {
        sh_fedavg_cnn_change4<true>(s, t + 1, at, sum, sh_fedavg_cnn_fetch4<true>(s, t + 1, at));
    }
}

/* Adds the loss, and counts the samples. No other block reads these in this launch. */
__device__ void count_on(const sh_fedavg_cnn_step &s, const sh_fedavg_cnn_memory &m, float4 shared[THREADS])
{
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    float total = 0, with_rows = 0;
    for (int c = warp; c < s.clients; c += THREADS / 32) {
        float sum = 0;
        int rows = m.rows[c];
        for (int i = lane; i < rows; i += 32) {
            sum += m.losses[c * s.batch + i];
        }
        sum = sh_warp_sum(sum);
        if (rows > 0) {
            total += sum / (float)rows;
            with_rows += 1;
        }
    }
    if (lane == 0) {
        shared[warp] = make_float4(total, with_rows, 0, 0);
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        for (int k = 1; k < THREADS / 32; k++) {
            total += shared[k].x;
            with_rows += shared[k].y;
        }
        if (with_rows > 0) {
            *s.loss += total / with_rows;
        }
        *s.state += s.batch;
    }
}

constexpr int COLUMNS1 = 16, COLUMNS2 = 64;
constexpr int BLOCKS1 = SUMS1 / 4 / COLUMNS1, BLOCKS2 = (SUMS2 / 4 + COLUMNS2 - 1) / COLUMNS2;

/* Updates the convolutions of client blockIdx.y. */
__global__ void __launch_bounds__(THREADS) finish(const sh_fedavg_cnn_step s, const sh_fedavg_cnn_memory m)
{
    __shared__ float4 shared[THREADS];
    int c = blockIdx.y, block = blockIdx.x;
    if (block == BLOCKS1 + BLOCKS2) {
        if (c == 0) {
            count_on(s, m, shared);
        }
    } else if (m.rows[c] == 0) {
        return;
    } else if (block < BLOCKS1) {
        add_parts<COLUMNS1>(s, m.parts1 + (int64_t)c * m.parts1_count * SUMS1, m.parts1_count, block, 0, SH_W1, SUMS1,
                            shared);
    } else {
        add_parts<COLUMNS2>(s, m.parts2 + (int64_t)c * m.parts2_count * SUMS2, m.parts2_count, block - BLOCKS1, 2,
                            SH_W2, SUMS2, shared);
    }
}

/* Returns the rows of windows per block of conv1: few if there are few images, so that the whole GPU works. */
int forward_rows(int64_t images)
{
    return images <= 20 ? 1 : images <= 200 ? 2 : 7;
}

int gradient_rows(int64_t images)
{
    return images <= 20 ? 2 : images <= 128 ? 7 : 14;
}

int gradient_parts(int64_t batch, int clients)
{
    int64_t units = batch * (14 / gradient_rows(batch * clients)), most = 2 * SH_MULTIPROCESSORS / clients;
    return (int)(most < 1 ? 1 : units < most ? units : most);
}

/* Divides the scratch memory at `base`. Returns its size. */
size_t divide(int64_t batch, int clients, char *base, sh_fedavg_cnn_memory *out)
{
    size_t n = (size_t)batch * (size_t)clients, used = 0, k = (size_t)clients;
    auto take = [&](size_t bytes) {
        char *at = base + used;
        used += (bytes + 255) / 256 * 256;
        return (void *)at;
    };
    sh_fedavg_cnn_memory m = {};
    m.parts1_count = gradient_parts(batch, clients);
    m.parts2_count = sh_fedavg_cnn_conv2_parts(batch, clients);
    m.rows = (int *)take(k * sizeof(int));
    m.x1 = (float *)take(n * 18 * 18 * 32 * sizeof(float));
    m.winners1 = (uint8_t *)take(n * 14 * 14 * 32);
    m.x2 = (float *)take(n * 3136 * sizeof(float));
    m.winners2 = (uint8_t *)take(n * 3136);
    m.h = (float *)take(n * 512 * sizeof(float));
    m.dh = (float *)take(n * 512 * sizeof(float));
    m.dz = (float *)take(n * 10 * sizeof(float));
    m.losses = (float *)take(n * sizeof(float));
    m.dx2 = (float *)take(n * 3136 * sizeof(float));
    m.dx1 = (float *)take(n * 14 * 14 * 32 * sizeof(float));
    m.parts1 = (float *)take(k * (size_t)m.parts1_count * SUMS1 * sizeof(float));
    m.parts2 = (float *)take(k * (size_t)m.parts2_count * SUMS2 * sizeof(float));
    m.conv2 = take(sh_fedavg_cnn_conv2_size(batch, clients));
    m.linear = take(sh_fedavg_cnn_linear_size(batch, clients));
    *out = m;
    return used;
}

size_t scratch_size(int64_t batch, int clients)
{
    sh_fedavg_cnn_memory m;
    return divide(batch, clients, nullptr, &m);
}

shoal_err step(sh_exec *exec, const sh_fedavg_cnn_step *args, void *scratch)
{
    const sh_fedavg_cnn_step &s = *args;
    const int64_t images = s.batch * s.clients;
    const unsigned clients = (unsigned)s.clients;
    const int rows = forward_rows(images);
    sh_fedavg_cnn_memory m;
    (void)divide(s.batch, s.clients, (char *)scratch, &m);
    conv1_forward<<<(unsigned)(14 / rows * images), THREADS1, 0, sh_stream(exec)>>>(s, m, rows);
    shoal_err err = sh_cuda_launched("fedavg_cnn conv1");
    err = err == SHOAL_OK ? sh_fedavg_cnn_conv2(exec, s, m) : err;
    err = err == SHOAL_OK ? sh_fedavg_cnn_linear(exec, s, m) : err;
    if (err == SHOAL_OK && s.score != nullptr) {
        return sh_fedavg_cnn_score(exec, s, m);
    }
    err = err == SHOAL_OK ? sh_fedavg_cnn_linear_backward(exec, s, m) : err;
    err = err == SHOAL_OK ? sh_fedavg_cnn_conv2_backward(exec, s, m) : err;
    if (err != SHOAL_OK) {
        return err;
    }
    conv1_gradient<<<dim3((unsigned)m.parts1_count, clients), THREADS1, 0, sh_stream(exec)>>>(s, m,
                                                                                              gradient_rows(images));
    finish<<<dim3(BLOCKS1 + BLOCKS2 + 1, clients), THREADS, 0, sh_stream(exec)>>>(s, m);
    return sh_cuda_launched("fedavg_cnn");
}

} // namespace

extern "C" const sh_fedavg_cnn_kernels sh_fedavg_cnn_kernels_cuda = {scratch_size, step};
