/* The gradient of conv2's weights in fedavg-cnn, in parts. Each sum of products runs over the positions of all images,
 * 4 windows at a time. Of the 4 outputs of a window at most one has a gradient: the pool's winner. So of the 2 outputs
 * in a row of a window at most one is not 0. The tensor cores need just that to multiply twice as many windows in the
 * same time. */
#include "kernels/cuda/fedavg_cnn_conv2.cuh"

#include <cuda_pipeline.h>

namespace
{

/* A block computes the weights of 32 output by 8 input channels. Its 15 warps are the 5 rows of taps times 3 groups,
 * and each group has some of the windows. */
constexpr int OUTS = 32, INS = 8, GROUPS = 3, WARPS = 5 * GROUPS, THREADS = 32 * WARPS;
constexpr int SPLIT = 4 * GROUPS;                   /* the number of windows is a multiple of this */
constexpr int LONG = 14 * SPLIT, SHORT = 7 * SPLIT; /* windows in shared memory at a time */
constexpr int ROW_PITCH = OUTS + 4;                 /* 4 rows by 4 pairs are in different banks */

template <int CHUNK> struct chunk_memory {
    /* [window][row of the window][output channel]: high and low half; zeros where no winner is. */
    float2 gradients[2 * CHUNK * ROW_PITCH];
    float4 x[sh_conv2_most_rows(CHUNK) * SH_CONV2_ROWS * INS / 4]; /* [row][column][input channel] */
    int4 places[CHUNK / 4];                                        /* the places in x of 4 windows each */
    /* [window / 2][m][g][g + 8][window % 2]: `which` of sh_tf32_mma_sparse. 8 bits per window, whose winner is in one
     * column. */
    uint8_t which[CHUNK / 2][OUTS / 16][8][2][2];
};

template <int CHUNK> union weights_memory {
    chunk_memory<CHUNK> chunk;
    float sums[GROUPS - 1][5][40][32];       /* of the groups after the first */
    float result[OUTS][INS * SH_CONV2_TAPS]; /* in the order of the parameters */
};

struct weights_args {
    const float *x1, *dx2;
    const uint8_t *winners;
    float *parts;
    int batch, part; /* part: windows per part, a multiple of SPLIT */
};

/* Writes the gradient of window `at` of the chunk. */
template <bool TF32, int CHUNK>
__device__ inline void put_gradient(chunk_memory<CHUNK> &m, int at, int o, float gradient, int winner)
{
    const sh_tf32_pair pair = sh_conv2_split<TF32>(gradient);
    const float2 both = make_float2(__uint_as_float(pair.high), __uint_as_float(pair.low)), none = make_float2(0, 0);
    m.gradients[2 * at * ROW_PITCH + o] = winner / 2 == 0 ? both : none;
    m.gradients[(2 * at + 1) * ROW_PITCH + o] = winner / 2 == 1 ? both : none;
    m.which[at / 2][o / 16][o % 8][o / 8 % 2][at % 2] =
        (uint8_t)(0x11 * (winner % 2 == 1 ? SH_SPARSE_RIGHT : SH_SPARSE_LEFT));
}

/* Loads the gradients of `count` windows from `first` on. Those after `last` have none. Each warp has 32 windows of one
 * channel at a time. */
template <bool TF32, int CHUNK>
__device__ void load_gradients(chunk_memory<CHUNK> &m, const float *dx2, const uint8_t *winners, int first, int last,
                               int count)
{
    constexpr int AT_ONCE = 6;
    const int lane = threadIdx.x % 32, across = (count + 31) / 32;
    for (int begin = threadIdx.x / 32; begin < OUTS * across; begin += AT_ONCE * WARPS) {
        float gradient[AT_ONCE];
        int winner[AT_ONCE];
#pragma unroll
        for (int k = 0; k < AT_ONCE; k++) {
            const int i = begin + k * WARPS, o = i / across, window = first + i % across * 32 + lane;
            const bool there = i < OUTS * across && window <= last;
            const int64_t from =
                ((int64_t)(window / SH_CONV2_WINDOWS) * 64 + o) * SH_CONV2_WINDOWS + window % SH_CONV2_WINDOWS;
            gradient[k] = there ? dx2[from] : 0;
            winner[k] = there ? winners[from] : SH_CLOSED;
        }
#pragma unroll
        for (int k = 0; k < AT_ONCE; k++) {
            const int i = begin + k * WARPS, at = i % across * 32 + lane;
            if (i < OUTS * across && at < count) {
                put_gradient<TF32>(m, at, i / across, gradient[k], winner[k]);
            }
        }
    }
}

/* Loads `count` windows from `first` on; first <= last. Those after `last` have no gradient. All pointers are those of
 * this block's client and channels. Each thread rounds what it has copied. */
template <bool TF32, int CHUNK>
__device__ void load_chunk(chunk_memory<CHUNK> &m, const float *x1, const float *dx2, const uint8_t *winners, int first,
                           int last, int count)
{
    const int low = sh_conv2_row(first), rows = sh_conv2_row(min(first + count - 1, last)) + 6 - low;
    x1 += (int64_t)low * SH_CONV2_ROWS * 32;
    for (int i = threadIdx.x; i < rows * SH_CONV2_ROWS * 2; i += THREADS) {
        __pipeline_memcpy_async(m.x + i, x1 + i / 2 * 32 + i % 2 * 4, 16);
    }
    __pipeline_commit();
    for (int i = threadIdx.x; i < count; i += THREADS) {
        const int window = min(first + i, last);
        ((int *)m.places)[i] = ((sh_conv2_row(window) - low) * SH_CONV2_ROWS + window % 7 * 2) * INS;
    }
    load_gradients<TF32>(m, dx2, winners, first, last, count);
    __pipeline_wait_prior(0);
    for (int i = threadIdx.x; TF32 && i < rows * SH_CONV2_ROWS * 2; i += THREADS) {
        const float4 v = m.x[i];
        m.x[i] = make_float4(__uint_as_float(sh_tf32(v.x)), __uint_as_float(sh_tf32(v.y)),
                             __uint_as_float(sh_tf32(v.z)), __uint_as_float(sh_tf32(v.w)));
    }
    __syncthreads();
}

/* sum += a * b, as sh_conv2_products does. */
template <bool TF32, int PAIR>
__device__ inline void sparse_product(float sum[4], const uint32_t a_high[4], const uint32_t a_low[4],
                                      const uint32_t b_high[4], const uint32_t b_low[4], uint32_t which)
{
    if constexpr (TF32) {
        sh_tf32_mma_sparse<PAIR>(sum, a_high, b_high, which);
    } else {
        float product[4];
        sh_tf32_mma_sparse_first<PAIR>(product, a_low, b_high, which);
        sh_tf32_mma_sparse<PAIR>(product, a_high, b_low, which);
        sh_tf32_mma_sparse<PAIR>(product, a_high, b_high, which);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            sum[i] += product[i];
        }
    }
}

/* sum[m][tap of the row] += the products of 4 windows with this warp's row of taps. */
template <bool TF32, int CHUNK>
__device__ inline void add_windows(const chunk_memory<CHUNK> &m, int four, int row, float (&sum)[2][5][4])
{
    const int lane = threadIdx.x % 32, g = lane / 4, q = lane % 4;
    const int4 at = m.places[four];
    const uint32_t which = *(const uint32_t *)m.which[2 * four + q % 2][q / 2][g];
    uint32_t high[2][4], low[2][4];
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const float2 v = m.gradients[(8 * four + i % 4 / 2 * 4 + q) * ROW_PITCH + i / 4 * 16 + i % 2 * 8 + g];
        high[i / 4][i % 4] = __float_as_uint(v.x), low[i / 4][i % 4] = __float_as_uint(v.y);
    }
    const float *const x = (const float *)m.x + ((q / 2 + row) * SH_CONV2_ROWS + q % 2) * INS + g;
#pragma unroll
    for (int t = 0; t < 5; t++) {
        const float v[4] = {x[at.x + t * INS], x[at.y + t * INS], x[at.z + t * INS], x[at.w + t * INS]};
        uint32_t b_high[4], b_low[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            if constexpr (TF32) {
                b_high[i] = __float_as_uint(v[i]);
            } else {
                const sh_tf32_pair pair = sh_tf32_split(v[i]);
                b_high[i] = pair.high, b_low[i] = pair.low;
            }
        }
        sparse_product<TF32, 0>(sum[0][t], high[0], low[0], b_high, b_low, which);
        sparse_product<TF32, 1>(sum[1][t], high[1], low[1], b_high, b_low, which);
    }
}

/* Adds up the sums of the groups in their order. Group 0 gets the result. */
template <int CHUNK> __device__ void add_groups(weights_memory<CHUNK> &m, int group, int row, float (&sum)[2][5][4])
{
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; group > 0 && i < 40; i++) {
        m.sums[group - 1][row][i][lane] = sum[i / 20][i / 4 % 5][i % 4];
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; group == 0 && i < 40; i++) {
#pragma unroll
        for (int k = 0; k < GROUPS - 1; k++) {
            sum[i / 20][i / 4 % 5][i % 4] += m.sums[k][row][i][lane];
        }
    }
    __syncthreads();
}

/* Adds up the gradient of the bias: first the windows of a warp, then the warps. bias is that of this lane's output
 * channel. */
template <int CHUNK> __device__ float add_bias(const chunk_memory<CHUNK> &m, int count, float bias)
{
    for (int i = threadIdx.x / 32; i < 2 * count; i += WARPS) {
        const float2 v = m.gradients[i * ROW_PITCH + threadIdx.x % 32];
        bias += v.x + v.y;
    }
    return bias;
}

/* blockIdx.x = output channels / OUTS * 4 + input channels / INS; y: the part; z: the client. */
template <bool TF32, int CHUNK> __global__ void __launch_bounds__(THREADS, 1) weights_gradient(weights_args a)
{
    extern __shared__ __align__(16) float room[];
    __shared__ float biases[WARPS][OUTS];
    weights_memory<CHUNK> &m = *(weights_memory<CHUNK> *)room;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, row = warp % 5, group = warp / 5;
    const int outs = blockIdx.x / 4 * OUTS, ins = blockIdx.x % 4 * INS;
    const int64_t images = (int64_t)blockIdx.z * a.batch, outputs = (images * 64 + outs) * SH_CONV2_WINDOWS;
    const int begin = blockIdx.y * a.part, end = min(begin + a.part, a.batch * SH_CONV2_WINDOWS);
    const int length = max(end - begin, 0), chunks = (length + CHUNK - 1) / CHUNK;
    const int chunk = chunks == 0 ? 0 : (length + SPLIT * chunks - 1) / (SPLIT * chunks) * SPLIT;
    float sum[2][5][4] = {}, bias = 0;
    for (int first = begin; first < end; first += chunk) {
        load_chunk<TF32>(m.chunk, a.x1 + images * SH_CONV2_ROWS * SH_CONV2_ROWS * 32 + ins, a.dx2 + outputs,
                         a.winners + outputs, first, end - 1, chunk);
        for (int four = group; four < chunk / 4; four += GROUPS) {
            add_windows<TF32>(m.chunk, four, row, sum);
        }
        if (ins == 0) {
            bias = add_bias(m.chunk, chunk, bias);
        }
        __syncthreads(); /* the buffer may be overwritten */
    }
    float *const part = a.parts + ((int64_t)blockIdx.z * gridDim.y + blockIdx.y) * (SH_W2 + 64);
    biases[warp][lane] = bias;
    add_groups(m, group, row, sum);
#pragma unroll
    for (int i = 0; group == 0 && i < 40; i++) {
        m.result[i / 20 * 16 + i % 4 / 2 * 8 + lane / 4][(lane % 4 * 2 + i % 2) * SH_CONV2_TAPS + row * 5 + i / 4 % 5] =
            sum[i / 20][i / 4 % 5][i % 4];
    }
    __syncthreads();
    for (int i = threadIdx.x; i < OUTS * INS * SH_CONV2_TAPS; i += THREADS) {
        const int o = i / (INS * SH_CONV2_TAPS), at = i % (INS * SH_CONV2_TAPS);
        part[(outs + o) * 32 * SH_CONV2_TAPS + ins * SH_CONV2_TAPS + at] = m.result[o][at];
    }
    if (ins == 0 && warp == 0) {
        float all = 0;
        for (int i = 0; i < WARPS; i++) {
            all += biases[i][lane];
        }
        part[SH_W2 + outs + lane] = all;
    }
    sh_conv2_await(); /* waits for the gradient of the input, which this kernel does not use */
}

template <bool TF32, int CHUNK> shoal_err run(sh_exec *exec, const weights_args &a, int parts, int clients)
{
    static std::atomic<bool> allowed;
    shoal_err err = sh_allow_shared("fedavg_cnn_conv2_backward", weights_gradient<TF32, CHUNK>,
                                    sizeof(weights_memory<CHUNK>), &allowed);
    if (err) {
        return err;
    }
    const dim3 grid(64 / OUTS * (32 / INS), (unsigned)parts, (unsigned)clients);
    sh_conv2_launch_early(exec, weights_gradient<TF32, CHUNK>, grid, THREADS, sizeof(weights_memory<CHUNK>), a);
    return sh_cuda_launched("fedavg_cnn_conv2_backward");
}

} // namespace

/* Returns the number of parts. With more parts the blocks fill the GPU better, but writing and adding up the parts
 * takes longer. */
int sh_fedavg_cnn_conv2_parts(int64_t batch, int clients)
{
    const int64_t blocks = (int64_t)clients * (64 / OUTS) * (32 / INS), windows = batch * SH_CONV2_WINDOWS;
    const double window_us = 0.07, part_us = 0.14; /* the time of a window in a block, and of a part for a client */
    int best = 1;
    double least = 1e30;
    for (int parts = 1; parts <= 16 && (parts - 1) * SPLIT < windows; parts++) {
        /* One block at a time per multiprocessor. */
        const int64_t rounds = (blocks * parts + SH_MULTIPROCESSORS - 1) / SH_MULTIPROCESSORS;
        const double us = (double)(rounds * ((windows + parts - 1) / parts)) * window_us + parts * clients * part_us;
        if (us < least) {
            best = parts, least = us;
        }
    }
    return best;
}

shoal_err sh_conv2_weights_gradient(sh_exec *exec, const sh_fedavg_cnn_step &s, const sh_fedavg_cnn_memory &m)
{
    const int windows = (int)s.batch * SH_CONV2_WINDOWS, parts = m.parts2_count;
    const int part = (windows + parts * SPLIT - 1) / (parts * SPLIT) * SPLIT;
    const weights_args a = {m.x1, m.dx2, m.winners2, m.parts2, (int)s.batch, part};
    static_assert(sizeof(weights_memory<SHORT>) + 4096 <= SH_SHARED_EVERYWHERE, "every GPU has this much");
    if ((size_t)sh_conv2_shared_most() < sizeof(weights_memory<LONG>) + 4096) { /* 4096: what the kernel has besides */
        return s.tf32 ? run<true, SHORT>(exec, a, parts, s.clients) : run<false, SHORT>(exec, a, parts, s.clients);
    }
    return s.tf32 ? run<true, LONG>(exec, a, parts, s.clients) : run<false, LONG>(exec, a, parts, s.clients);
}
