/* fc1, fc2 and the loss of a step of fedavg-cnn, forward and backward; fedavg_cnn.cuh describes the data.
 *
 * At small batches, most of the time goes to reading fc1's weight, 6.4 MB per client. So each warp loads its part of
 * the weight directly into the registers from which the tensor cores take it, in loads of 16 bytes that use whole
 * sectors. A lane may have any of the factors or outputs, so it takes 4 adjacent ones. A tile has 8 images. If a batch
 * does not fill its last tile, the tile computes the last image several times and keeps one result. The warps of a
 * block divide the sum over the factors, and add up their parts in shared memory. */
#include "kernels/cuda/fedavg_cnn.cuh"
#include "kernels/cuda/warp.cuh"

namespace
{

constexpr int IN = 3136, OUT = 512, CLASSES = 10;
constexpr int THREADS = 256, WARPS = THREADS / 32;
constexpr int CHUNKS = IN / 16;           /* each of 16 factors, which belong to 4 lanes */
constexpr int MOST_TILES = 7;             /* each of 8 images */
constexpr int HIGH = 2, ROWS = 16 * HIGH; /* outputs of fc1 per warp; each image is read OUT / ROWS times */

/* Returns the number of tiles of 8 images that a block computes. Other blocks compute the rest of the batch. */
int tiles_of(int64_t batch)
{
    return batch <= 8 ? 1 : batch <= 16 ? 2 : batch <= 32 ? 4 : MOST_TILES;
}

int groups_of(int64_t batch)
{
    int at_once = 8 * tiles_of(batch);
    return (int)((batch + at_once - 1) / at_once);
}

/* Returns among how many blocks the sum over fc1's factors is divided. A large GPU runs the blocks in rounds; the
 * number is chosen so that they fill the last round well. */
int splits_of(int64_t batch, int clients)
{
    const int64_t blocks = (int64_t)(OUT / ROWS) * clients * groups_of(batch);
    const int64_t at_once = (tiles_of(batch) > 2 ? 1 : 2) * SH_MULTIPROCESSORS;
    if (blocks < 128) {
        return (int)(128 / blocks);
    }
    int best = 1;
    double least = 1e30;
    for (int splits = 1; splits <= 4; splits++) {
        const int64_t rounds = (blocks * splits + at_once - 1) / at_once;
        const double time = (double)rounds / splits + 0.05 * splits; /* with more splits, adding up takes longer */
        if (time < least) {
            best = splits, least = time;
        }
    }
    return best;
}

__device__ void load4(float out[4], const float *from)
{
    float4 v = *(const float4 *)from;
    out[0] = v.x, out[1] = v.y, out[2] = v.z, out[3] = v.w;
}

/* The factors of a tile, split into high and low. */
template <int COUNT, bool TF32> struct factors {
    uint32_t high[COUNT], low[COUNT];

    __device__ void set(int i, float x)
    {
        if (TF32) {
            high[i] = sh_tf32(x);
        } else {
            sh_tf32_pair pair = sh_tf32_split(x);
            high[i] = pair.high, low[i] = pair.low;
        }
    }
};

/* acc += left * the images' factors. Successive products of the splits go to different sums, so that none waits for the
 * one before. */
template <int HIGH, int TILES, bool TF32>
__device__ void multiply_all(float acc[HIGH][TILES][4], const factors<4, TF32> left[HIGH], const float b[TILES][4],
                             int half)
{
#pragma unroll
    for (int t = 0; t < TILES; t++) {
        factors<2, TF32> right;
        right.set(0, b[t][half]), right.set(1, b[t][half + 1]);
#pragma unroll
        for (int pass = TF32 ? 2 : 0; pass < 3; pass++) {
#pragma unroll
            for (int i = 0; i < HIGH; i++) {
                sh_tf32_mma(acc[i][t], pass == 0 ? left[i].low : left[i].high, pass == 1 ? right.low : right.high);
            }
        }
    }
}

/* acc = this warp's part of fc1's sums: for ROWS outputs, whose weights begin at `weight`, for the images at x, over
 * the chunks `from` to `to`. */
template <int TILES, bool TF32>
__device__ __forceinline__ void fc1_products(float (&acc)[HIGH][TILES][4], const float *weight,
                                             const float *const (&x)[TILES], int from, int to)
{
    constexpr int AHEAD = TILES > 2 ? 2 : 3; /* chunks whose loads are in flight */
    float a[AHEAD][2 * HIGH][4], b[AHEAD][TILES][4];
    const auto load = [&](int d, int k) {
#pragma unroll
        for (int i = 0; i < 2 * HIGH; i++) {
            load4(a[d][i], weight + i * 8 * IN + 16 * k);
        }
#pragma unroll
        for (int t = 0; t < TILES; t++) {
            load4(b[d][t], x[t] + 16 * k);
        }
    };
#pragma unroll
    for (int d = 0; d < AHEAD; d++) {
        if (from + d < to) {
            load(d, from + d);
        }
    }
#pragma unroll 1
    for (int k = from; k < to; k += AHEAD) {
#pragma unroll
        for (int d = 0; d < AHEAD; d++) {
            if (k + d >= to) {
                break;
            }
#pragma unroll
            for (int half = 0; half < 4; half += 2) {
                factors<4, TF32> left[HIGH];
#pragma unroll
                for (int i = 0; i < HIGH; i++) {
                    left[i].set(0, a[d][2 * i][half]), left[i].set(1, a[d][2 * i + 1][half]);
                    left[i].set(2, a[d][2 * i][half + 1]), left[i].set(3, a[d][2 * i + 1][half + 1]);
                }
                multiply_all<HIGH, TILES, TF32>(acc, left, b[d], half);
            }
            if (k + d + AHEAD < to) {
                load(d, k + d + AHEAD);
            }
        }
    }
}

/* Adds up what the warps of a block have stored in `sums`, shared memory [WARPS][8 * TILES][WIDTH + 4]. Calls
 * store(image of the tiles, column, sum) for each sum. */
template <int WARPS, int TILES, int WIDTH, class Store>
__device__ __forceinline__ void add_up_warps(const float *sums, const Store &store)
{
    __syncthreads();
    for (int i = threadIdx.x; i < 8 * TILES * WIDTH; i += 32 * WARPS) {
        float sum = 0;
#pragma unroll
        for (int k = 0; k < WARPS; k++) {
            sum += sums[(k * 8 * TILES + i / WIDTH) * (WIDTH + 4) + i % WIDTH];
        }
        store(i / WIDTH, i % WIDTH, sum);
    }
}

/* parts [splits, images, OUT]: the parts of fc1's sums. blockIdx.x: the outputs; y: the split; z: the client and the
 * group of images. */
template <int TILES, bool TF32>
__global__ void __launch_bounds__(THREADS)
    fc1_forward(const sh_fedavg_cnn_step s, const sh_fedavg_cnn_memory m, float *parts, int groups)
{
    constexpr int PITCH = ROWS + 4;
    extern __shared__ float4 raw[];
    float *sums = (float *)raw; /* [WARPS][8 * TILES][PITCH] */
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, q = lane % 4;
    int c = blockIdx.z / groups, group = blockIdx.z % groups, batch = (int)s.batch, out = blockIdx.x * ROWS;
    int begin = CHUNKS * (int)blockIdx.y / (int)gridDim.y, end = CHUNKS * (int)(blockIdx.y + 1) / (int)gridDim.y;
    int from = begin + (end - begin) * warp / WARPS, to = begin + (end - begin) * (warp + 1) / WARPS;
    const float *weight = s.param[4] + c * s.stride + (int64_t)(out + g) * IN + 4 * q;
    const float *x[TILES];
#pragma unroll
    for (int t = 0; t < TILES; t++) {
        x[t] = m.x2 + (int64_t)(c * batch + min(group * 8 * TILES + t * 8 + g, batch - 1)) * IN + 4 * q;
    }
    float acc[HIGH][TILES][4] = {};
    fc1_products<TILES, TF32>(acc, weight, x, from, to);
#pragma unroll
    for (int i = 0; i < HIGH * TILES * 4; i++) {
        int high = i / 4 / TILES, t = i / 4 % TILES, e = i % 4;
        sums[(warp * 8 * TILES + t * 8 + 2 * q + e % 2) * PITCH + high * 16 + g + e / 2 * 8] = acc[high][t][e];
    }
    int images = batch * s.clients;
    add_up_warps<WARPS, TILES, ROWS>(sums, [&](int row, int column, float sum) {
        int image = group * 8 * TILES + row;
        if (image < batch) {
            parts[((int64_t)blockIdx.y * images + c * batch + image) * OUT + out + column] = sum;
        }
    });
}

/* The rest of fc1 forward, fc2, the loss, and their gradients back to fc1's output. One block per image, one thread per
 * output of fc1. */
__global__ void __launch_bounds__(OUT)
    fc2_and_loss(const sh_fedavg_cnn_step s, const sh_fedavg_cnn_memory m, const float *parts, int splits)
{
    __shared__ float sums[OUT / 32][CLASSES];
    int o = threadIdx.x, lane = o % 32, warp = o / 32, n = blockIdx.x, c = n / (int)s.batch, row = n % (int)s.batch;
    int rows = m.rows[c];
    bool exists = row < rows;
    int label = exists ? s.labels[s.order[c * s.order_stride + *s.state + row]] : 0;
    float w[CLASSES], z = 0, bias = lane < CLASSES ? s.param[7][c * s.stride + lane] : 0;
#pragma unroll
    for (int j = 0; j < CLASSES; j++) {
        w[j] = s.param[6][c * s.stride + j * OUT + o];
    }
#pragma unroll 8
    for (int k = 0; k < splits; k++) {
        z += parts[((int64_t)k * gridDim.x + n) * OUT + o];
    }
    z += s.param[5][c * s.stride + o];
    bool closed = z <= 0;
    float h = closed ? 0 : z;
    m.h[(int64_t)n * OUT + o] = h;
#pragma unroll
    for (int j = 0; j < CLASSES; j++) {
        float sum = sh_warp_sum(w[j] * h);
        if (lane == 0) {
            sums[warp][j] = sum;
        }
    }
    __syncthreads();

    /* Every warp computes the whole loss. */
    float y = -INFINITY;
    if (lane < CLASSES) {
        y = bias;
#pragma unroll
        for (int k = 0; k < OUT / 32; k++) {
            y += sums[k][lane];
        }
    }
    const float greatest = sh_warp_max(y);
    y = y - greatest - logf(sh_warp_sum(lane < CLASSES ? expf(y - greatest) : 0));
    float dz = exists && lane < CLASSES ? (expf(y) - (lane == label ? 1.0f : 0.0f)) / (float)rows : 0;
    if (warp == 0 && lane < CLASSES) {
        m.dz[n * CLASSES + lane] = s.score != nullptr ? y : dz;
        if (lane == label) {
            m.losses[n] = exists ? -y : 0;
        }
    }
    float dh = 0;
#pragma unroll
    for (int j = 0; j < CLASSES; j++) {
        dh += w[j] * __shfl_sync(0xffffffffu, dz, j);
    }
    m.dh[(int64_t)n * OUT + o] = closed || !exists ? 0 : dh;
}

constexpr int COLUMNS = 32; /* columns of fc1's weight per block of backward */

/* dx2 = dh * weight, for 8 * TILES images from `first_image` on. The warps of the block divide the factors. sums:
 * shared memory [WARPS][8 * TILES][COLUMNS + 4]. */
template <int WARPS, int TILES, bool TF32>
__device__ void back_images(const sh_fedavg_cnn_step &s, const sh_fedavg_cnn_memory &m, float *sums, int c,
                            int first_image)
{
    constexpr int PITCH = COLUMNS + 4, STEPS = OUT / WARPS / 16, AHEAD = 2;
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, q = lane % 4;
    int batch = (int)s.batch, column = blockIdx.x * COLUMNS, first = warp * 16 * STEPS + 4 * q;
    const float *weight = s.param[4] + c * s.stride + (int64_t)first * IN + column + 4 * g;
    const float *dh[TILES];
#pragma unroll
    for (int t = 0; t < TILES; t++) {
        dh[t] = m.dh + (int64_t)(c * batch + min(first_image + t * 8 + g, batch - 1)) * OUT + first;
    }
    float acc[2][TILES][4] = {}, a[AHEAD][4][4], b[AHEAD][TILES][4];
    const auto load = [&](int d, int k) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            load4(a[d][i], weight + (16 * k + i) * IN);
        }
#pragma unroll
        for (int t = 0; t < TILES; t++) {
            load4(b[d][t], dh[t] + 16 * k);
        }
    };
#pragma unroll
    for (int d = 0; d < AHEAD; d++) {
        load(d, d);
    }
#pragma unroll
    for (int k = 0; k < STEPS; k++) {
        const int d = k % AHEAD;
#pragma unroll
        for (int half = 0; half < 4; half += 2) {
            factors<4, TF32> left[2]; /* columns 4g and 4g + 1, then the next two */
#pragma unroll
            for (int i = 0; i < 2; i++) {
                left[i].set(0, a[d][half][2 * i]), left[i].set(1, a[d][half][2 * i + 1]);
                left[i].set(2, a[d][half + 1][2 * i]), left[i].set(3, a[d][half + 1][2 * i + 1]);
            }
            multiply_all<2, TILES, TF32>(acc, left, b[d], half);
        }
        if (k + AHEAD < STEPS) {
            load(d, k + AHEAD);
        }
    }
#pragma unroll
    for (int i = 0; i < 2 * TILES; i++) {
        int t = i / 2, e = i % 2;
        *(float4 *)(sums + (warp * 8 * TILES + t * 8 + 2 * q + e) * PITCH + 4 * g) =
            make_float4(acc[0][t][e], acc[0][t][e + 2], acc[1][t][e], acc[1][t][e + 2]);
    }
    add_up_warps<WARPS, TILES, COLUMNS>(sums, [&](int row, int part, float sum) {
        int image = first_image + row;
        if (image < batch) {
            m.dx2[(int64_t)(c * batch + image) * IN + column + part] = sum;
        }
    });
    __syncthreads(); /* sums may be overwritten */
}

constexpr int AT_ONCE = 32; /* images in shared memory at a time */

template <int ROWS> struct update_memory {
    float4 x2[AT_ONCE][COLUMNS / 4], dh[AT_ONCE][ROWS / 4];
};

/* Updates rows `row` to row + ROWS - 1 of the block's columns of fc1's weight, and their biases. A thread has 8 rows
 * and 4 columns. The gradient is never stored. */
template <int ROWS, bool MOMENTUM>
__device__ void update_fc1(const sh_fedavg_cnn_step &s, const sh_fedavg_cnn_memory &m, update_memory<ROWS> &shared,
                           int row, int c, int rows)
{
    constexpr int WIDE = COLUMNS / 4, HIGH = ROWS / 4, THREADS = ROWS; /* one thread per bias */
    int t = threadIdx.x, column = blockIdx.x * COLUMNS;
    int64_t at = c * s.stride + (int64_t)(row + t / WIDE * 8) * IN + column + t % WIDE * 4;
    sh_fedavg_cnn_old old[8];
    float4 acc[8] = {};
    float bias = 0;
#pragma unroll
    for (int i = 0; i < 8; i++) {
        old[i] = sh_fedavg_cnn_fetch4<MOMENTUM>(s, 4, at + i * IN);
    }
    for (int first = 0; first < rows; first += AT_ONCE) {
        int count = min(AT_ONCE, rows - first);
        int64_t n = c * s.batch + first;
        __syncthreads();
        for (int i = t; i < count * WIDE; i += THREADS) {
            shared.x2[i / WIDE][i % WIDE] = *(const float4 *)(m.x2 + (n + i / WIDE) * IN + column + i % WIDE * 4);
        }
        for (int i = t; i < count * HIGH; i += THREADS) {
            shared.dh[i / HIGH][i % HIGH] = *(const float4 *)(m.dh + (n + i / HIGH) * OUT + row + i % HIGH * 4);
        }
        __syncthreads();
#pragma unroll 2
        for (int k = 0; k < count; k++) {
            float4 x = shared.x2[k][t % WIDE], l = shared.dh[k][t / WIDE * 2], h = shared.dh[k][t / WIDE * 2 + 1];
            float d[8] = {l.x, l.y, l.z, l.w, h.x, h.y, h.z, h.w};
#pragma unroll
            for (int i = 0; i < 8; i++) {
                acc[i].x += d[i] * x.x, acc[i].y += d[i] * x.y, acc[i].z += d[i] * x.z, acc[i].w += d[i] * x.w;
            }
        }
        if (column == 0) {
            for (int k = 0; k < count; k++) {
                bias += ((const float *)shared.dh[k])[t];
            }
        }
    }
    static_assert(THREADS / WIDE * 8 == ROWS, "a thread has 8 rows");
#pragma unroll
    for (int i = 0; i < 8; i++) {
        sh_fedavg_cnn_change4<MOMENTUM>(s, 4, at + i * IN, acc[i], old[i]);
    }
    if (column == 0) {
        sh_fedavg_cnn_change(s, 5, c * s.stride + row + t, bias);
    }
}

/* Updates fc2, one thread per parameter. */
__device__ void update_fc2(const sh_fedavg_cnn_step &s, const sh_fedavg_cnn_memory &m, int p, int c, int rows)
{
    int64_t n = c * s.batch;
    float sum = 0;
    if (p < CLASSES * OUT) {
        const float *dz = m.dz + n * CLASSES + p / OUT, *h = m.h + n * OUT + p % OUT;
#pragma unroll 10
        for (int i = 0; i < rows; i++) {
            sum += dz[i * CLASSES] * h[i * OUT];
        }
        sh_fedavg_cnn_change(s, 6, c * s.stride + p, sum);
    } else if (p < CLASSES * OUT + CLASSES) {
        for (int i = 0; i < rows; i++) {
            sum += m.dz[(n + i) * CLASSES + p - CLASSES * OUT];
        }
        sh_fedavg_cnn_change(s, 7, c * s.stride + p - CLASSES * OUT, sum);
    }
}

template <int WARPS, int TILES> union back_memory {
    float sums[WARPS][8 * TILES][COLUMNS + 4];
    update_memory<32 * WARPS> update;
};

constexpr int BLOCKS1 = IN / COLUMNS;

/* Computes the gradient of x2, and updates fc1 and fc2. fc1's weight is read from memory only once: a block has all
 * rows of its columns, and finds them in the cache when it updates them. The clients run in the reverse order of
 * forward: what forward has read last is still in the cache, and what this kernel writes last is there for the next
 * step. */
template <int WARPS, int TILES, bool MOMENTUM, bool TF32>
__global__ void __launch_bounds__(32 * WARPS, 16 / WARPS)
    backward(const sh_fedavg_cnn_step s, const sh_fedavg_cnn_memory m)
{
    extern __shared__ float4 raw[];
    back_memory<WARPS, TILES> &shared = *(back_memory<WARPS, TILES> *)raw;
    int c = (int)gridDim.y - 1 - (int)blockIdx.y, rows = m.rows[c];
    if (blockIdx.x >= BLOCKS1) {
        if (rows > 0) {
            update_fc2(s, m, (blockIdx.x - BLOCKS1) * 32 * WARPS + (int)threadIdx.x, c, rows);
        }
        return;
    }
    for (int first = 0; first < (int)s.batch; first += 8 * TILES) {
        back_images<WARPS, TILES, TF32>(s, m, &shared.sums[0][0][0], c, first);
    }
    for (int row = 0; rows > 0 && row < OUT; row += 32 * WARPS) {
        update_fc1<32 * WARPS, MOMENTUM>(s, m, shared.update, row, c, rows);
    }
}

/* ---- launches ---- */

template <int TILES, bool TF32>
shoal_err launch_forward(sh_exec *exec, const sh_fedavg_cnn_step &s, const sh_fedavg_cnn_memory &m)
{
    constexpr int SHARED = WARPS * 8 * TILES * (ROWS + 4) * (int)sizeof(float);
    static_assert(SHARED <= SH_SHARED_EVERYWHERE, "every GPU has this much");
    static std::atomic<bool> allowed;
    shoal_err err = sh_allow_shared("fedavg_cnn fc1", fc1_forward<TILES, TF32>, SHARED, &allowed);
    if (err != SHOAL_OK) {
        return err;
    }
    const int groups = groups_of(s.batch);
    const dim3 grid(OUT / ROWS, (unsigned)splits_of(s.batch, s.clients), (unsigned)(s.clients * groups));
    fc1_forward<TILES, TF32><<<grid, THREADS, SHARED, sh_stream(exec)>>>(s, m, (float *)m.linear, groups);
    return sh_cuda_launched("fedavg_cnn fc1");
}

template <int WARPS, int TILES, bool MOMENTUM, bool TF32>
shoal_err launch_backward(sh_exec *exec, const sh_fedavg_cnn_step &s, const sh_fedavg_cnn_memory &m)
{
    constexpr int SHARED = (int)sizeof(back_memory<WARPS, TILES>);
    static_assert(SHARED <= SH_SHARED_EVERYWHERE, "every GPU has this much");
    constexpr int BLOCKS2 = (CLASSES * OUT + CLASSES + 32 * WARPS - 1) / (32 * WARPS);
    static std::atomic<bool> allowed;
    shoal_err err = sh_allow_shared("fedavg_cnn fc1", backward<WARPS, TILES, MOMENTUM, TF32>, SHARED, &allowed);
    if (err != SHOAL_OK) {
        return err;
    }
    const dim3 grid(BLOCKS1 + BLOCKS2, (unsigned)s.clients);
    backward<WARPS, TILES, MOMENTUM, TF32><<<grid, 32 * WARPS, SHARED, sh_stream(exec)>>>(s, m);
    return sh_cuda_launched("fedavg_cnn fc1 backward");
}

template <bool TF32> shoal_err forward(sh_exec *exec, const sh_fedavg_cnn_step &s, const sh_fedavg_cnn_memory &m)
{
    switch (tiles_of(s.batch)) {
    case 1: return launch_forward<1, TF32>(exec, s, m);
    case 2: return launch_forward<2, TF32>(exec, s, m);
    case 4: return launch_forward<4, TF32>(exec, s, m);
    default: return launch_forward<MOST_TILES, TF32>(exec, s, m);
    }
}

/* With one client, a multiprocessor runs one large block. With several, it runs two blocks, so that one loads while the
 * other computes. */
template <bool MOMENTUM, bool TF32>
shoal_err backward_of(sh_exec *exec, const sh_fedavg_cnn_step &s, const sh_fedavg_cnn_memory &m)
{
    switch (tiles_of(s.batch) + (s.clients > 1 ? 10 : 0)) {
    case 1:
    case 2: return launch_backward<16, 2, MOMENTUM, TF32>(exec, s, m);
    case 4:
    case MOST_TILES: return launch_backward<16, 4, MOMENTUM, TF32>(exec, s, m);
    case 11:
    case 12: return launch_backward<8, 2, MOMENTUM, TF32>(exec, s, m);
    default: return launch_backward<8, 4, MOMENTUM, TF32>(exec, s, m);
    }
}

} // namespace

shoal_err sh_fedavg_cnn_linear(sh_exec *exec, const sh_fedavg_cnn_step &s, const sh_fedavg_cnn_memory &m)
{
    shoal_err err = s.tf32 ? forward<true>(exec, s, m) : forward<false>(exec, s, m);
    if (err != SHOAL_OK) {
        return err;
    }
    const unsigned images = (unsigned)(s.batch * s.clients);
    fc2_and_loss<<<images, OUT, 0, sh_stream(exec)>>>(s, m, (const float *)m.linear, splits_of(s.batch, s.clients));
    return sh_cuda_launched("fedavg_cnn fc2");
}

shoal_err sh_fedavg_cnn_linear_backward(sh_exec *exec, const sh_fedavg_cnn_step &s, const sh_fedavg_cnn_memory &m)
{
    if (s.momentum[4] != nullptr) {
        return s.tf32 ? backward_of<true, true>(exec, s, m) : backward_of<true, false>(exec, s, m);
    }
    return s.tf32 ? backward_of<false, true>(exec, s, m) : backward_of<false, false>(exec, s, m);
}

size_t sh_fedavg_cnn_linear_size(int64_t batch, int clients)
{
    return (size_t)splits_of(batch, clients) * (size_t)batch * (size_t)clients * OUT * sizeof(float);
}
