/* Shared by the files of conv2 (fedavg_cnn.cuh):
 *
 *   fedavg_cnn_conv2.cu         forward
 *   fedavg_cnn_conv2_input.cu   the gradient of its input
 *   fedavg_cnn_conv2_weights.cu the gradient of its weights and bias
 *
 * The first two multiply patches of images with 25 taps of weights. A block computes the products of some windows of
 * the pool, 4 positions each, with some output channels. The windows of a client are numbered through its images: 49
 * per image, 7 per row.
 *
 * The images of a client lie one above the other, 18 rows each with their borders. So the rows that consecutive windows
 * need are consecutive too: they are the patch, which is loaded once into shared memory. The warps of a block divide
 * the sum: each takes some input channels or taps. So no two warps of a block need the same weights. They are loaded
 * straight from the L2 cache into registers, in the order in which the tensor cores take them. */
#ifndef SH_KERNELS_CUDA_FEDAVG_CNN_CONV2_CUH
#define SH_KERNELS_CUDA_FEDAVG_CNN_CONV2_CUH

#include "kernels/cuda/fedavg_cnn.cuh"

constexpr int SH_CONV2_TAPS = 25, SH_CONV2_WINDOWS = 49, SH_CONV2_ROWS = 18;

/* Pixels per row of a patch. A pixel has 4 * odd floats, and rows are 3 mod 4 pixels apart. So the 8 pixels in one row
 * of any 4 consecutive windows of an image are in different banks of shared memory. */
constexpr int SH_CONV2_PITCH = 19;

/* Returns the first row that window w needs, among all rows of the client's images. */
static __device__ inline int sh_conv2_row(int w)
{
    return w / SH_CONV2_WINDOWS * SH_CONV2_ROWS + w % SH_CONV2_WINDOWS / 7 * 2;
}

/* Returns how many rows that many consecutive windows need at most: they begin with the last window of a row, and an
 * image has 4 more rows. */
constexpr int sh_conv2_most_rows(int windows)
{
    const int rows = (windows + 5) / 7 + 1;
    return 2 * rows + 4 * (1 + (rows + 5) / 7);
}

constexpr int sh_conv2_greater(int a, int b)
{
    return a > b ? a : b;
}

/* The weights of a client, in the order of b in tensor_core.cuh. forward: [tap][input channel / 8][output channel /
 * 8][lane], for products over input channels. backward: [24 - tap][output channel / 8][input channel / 8][lane], for
 * products over output channels. */
struct sh_conv2_weights {
    float2 forward[SH_W2 / 2], backward[SH_W2 / 2];
};

/* The launches of sh_fedavg_cnn_conv2 and sh_fedavg_cnn_conv2_backward. The first one writes m.conv2, which the others
 * read. */
shoal_err sh_conv2_order_weights(sh_exec *exec, const sh_fedavg_cnn_step &s, const sh_fedavg_cnn_memory &m);
shoal_err sh_conv2_output(sh_exec *exec, const sh_fedavg_cnn_step &s, const sh_fedavg_cnn_memory &m);
shoal_err sh_conv2_input_gradient(sh_exec *exec, const sh_fedavg_cnn_step &s, const sh_fedavg_cnn_memory &m);
shoal_err sh_conv2_weights_gradient(sh_exec *exec, const sh_fedavg_cnn_step &s, const sh_fedavg_cnn_memory &m);

/* Returns whether the code that runs on this GPU was compiled for compute capability 9.0 or later. */
bool sh_conv2_begins_early();

/* Launches a kernel that begins while the last blocks of the launch before it still run, if sh_conv2_begins_early:
 * other code does not wait in sh_conv2_await, and other GPUs need not know the attribute. It may read what earlier
 * launches have written, but what the launch just before it writes only after sh_conv2_await. Each of its threads calls
 * sh_conv2_await, so that the launch after it also follows the one before it. */
template <typename... P>
static inline void sh_conv2_launch_early(sh_exec *exec, void (*kernel)(P...), dim3 grid, unsigned threads,
                                         size_t shared, P... args)
{
    cudaLaunchAttribute early = {};
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = grid;
    config.blockDim = dim3(threads);
    config.dynamicSmemBytes = shared;
    config.stream = sh_stream(exec);
    config.attrs = &early;
    config.numAttrs = sh_conv2_begins_early() ? 1 : 0;
    (void)cudaLaunchKernelEx(&config, kernel, args...); /* sh_cuda_launched reports an error */
}

static __device__ inline void sh_conv2_await()
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/* Lets the next launch begin early, as soon as all blocks have called this. */
static __device__ inline void sh_conv2_begin_next()
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/* Returns the bytes of shared memory that a block may have. GPUs of compute capability 8.6 and 8.9 have less than
 * others. */
int sh_conv2_shared_most();

/* What a block computes: MT times 16 positions (MT times 4 windows) by NT times 8 output channels, out of C input
 * channels. A pixel of its patch has the high halves of all channels, then the low ones, which TF32 does not need; if
 * !HALVES, it has the whole numbers. */
template <bool TF32_, int C_, int MT_, int NT_, int WARPS_, bool HALVES_ = true> struct sh_conv2_tile {
    static constexpr bool TF32 = TF32_, HALVES = HALVES_;
    static constexpr int C = C_, MT = MT_, NT = NT_, WARPS = WARPS_;
    static constexpr int WINDOWS = 4 * MT, OUTS = 8 * NT, THREADS = 32 * WARPS;
    static constexpr int PIXEL = (!TF32 && HALVES ? 2 * C : C) + 4; /* floats */
    static constexpr int PATCH = sh_conv2_most_rows(WINDOWS) * SH_CONV2_PITCH * PIXEL;
    static constexpr int SUMMING_WARPS = 4; /* warps that have sums at the end */
    static constexpr int ADDED = WARPS > SUMMING_WARPS ? SUMMING_WARPS *MT *NT * 4 * 32 : 0;
};

/* x as the tensor cores take it. TF32 has no low half. */
template <bool TF32> __device__ inline sh_tf32_pair sh_conv2_split(float x)
{
    if constexpr (TF32) {
        return {sh_tf32(x), 0};
    } else {
        return sh_tf32_split(x);
    }
}

/* This warp's part of the sums: the taps group, group + GROUPS, ..., and 8 input channels of each. */
template <typename T> struct sh_conv2_share {
    static constexpr int STEPS = T::C / 8, GROUPS = T::WARPS / STEPS, AHEAD = GROUPS == 1 ? 5 : 3;
    static_assert(T::WARPS % STEPS == 0, "all warps have something to do");
    const float2 *weights; /* of these channels and this lane */
    int tiles, group, step;
    float2 ahead[AHEAD][T::NT]; /* the weights of the next taps */

    /* Begins to load. weights: those of the block's output channels, out of tiles * 8 channels. */
    __device__ sh_conv2_share(const float2 *weights, int tiles)
        : tiles(tiles), group(threadIdx.x / 32 / STEPS), step(threadIdx.x / 32 % STEPS)
    {
        this->weights = weights + step * tiles * 32 + threadIdx.x % 32;
#pragma unroll
        for (int d = 0; d < AHEAD; d++) {
            load(d, group + d * GROUPS);
        }
    }
    /* A tap beyond the last is loaded as the last. */
    __device__ void load(int d, int tap)
    {
#pragma unroll
        for (int n = 0; n < T::NT; n++) {
            ahead[d][n] = weights[(min(tap, SH_CONV2_TAPS - 1) * STEPS * tiles + n) * 32];
        }
    }
    /* Returns the weights of the next TAPS taps, from `tap` on, and begins to load those AHEAD taps later. */
    template <int TAPS> __device__ void take(float2 (&out)[TAPS][T::NT], int tap)
    {
#pragma unroll
        for (int i = 0; i < TAPS * T::NT; i++) {
            out[i / T::NT][i % T::NT] = ahead[i / T::NT][i % T::NT];
        }
#pragma unroll
        for (int i = TAPS * T::NT; i < AHEAD * T::NT; i++) {
            ahead[i / T::NT - TAPS][i % T::NT] = ahead[i / T::NT][i % T::NT];
        }
#pragma unroll
        for (int d = 0; d < TAPS; d++) {
            load(AHEAD - TAPS + d, tap + (AHEAD + d) * GROUPS);
        }
    }
};

/* sum[n] += the products of TAPS taps. The tensor cores truncate what does not fit into a sum. So in f32 the products
 * of a few taps are added up from zero, and then added to the sum in ordinary float arithmetic. */
template <bool TF32, int TAPS, int N>
__device__ inline void sh_conv2_products(float (&sum)[N][4], const uint32_t (&a_high)[TAPS][4],
                                         const uint32_t (&a_low)[TAPS][4], const uint32_t (&b_high)[TAPS][N][2],
                                         const uint32_t (&b_low)[TAPS][N][2])
{
    if constexpr (TF32) {
#pragma unroll
        for (int i = 0; i < TAPS * N; i++) {
            sh_tf32_mma(sum[i % N], a_high[i / N], b_high[i / N][i % N]);
        }
    } else {
        float product[N][4];
#pragma unroll
        for (int n = 0; n < N; n++) {
            sh_tf32_mma_first(product[n], a_low[0], b_high[0][n]);
        }
#pragma unroll
        for (int i = N; i < TAPS * N; i++) {
            sh_tf32_mma(product[i % N], a_low[i / N], b_high[i / N][i % N]);
        }
#pragma unroll
        for (int i = 0; i < TAPS * N; i++) {
            sh_tf32_mma(product[i % N], a_high[i / N], b_low[i / N][i % N]);
        }
#pragma unroll
        for (int i = 0; i < TAPS * N; i++) {
            sh_tf32_mma(product[i % N], a_high[i / N], b_high[i / N][i % N]);
        }
#pragma unroll
        for (int i = 0; i < 4 * N; i++) {
            sum[i / 4][i % 4] += product[i / 4][i % 4];
        }
    }
}

/* sum[m][n] += the products of TAPS adjacent taps. The first is at from[m] + away, as sh_tf32_load_a takes it. */
template <int TAPS, typename T>
__device__ inline void sh_conv2_taps(const uint32_t (&from)[T::MT], int away, const float2 (*weights)[T::NT],
                                     float (&sum)[T::MT][T::NT][4])
{
    uint32_t high[TAPS][T::NT][2], low[TAPS][T::NT][2];
#pragma unroll
    for (int i = 0; i < TAPS * T::NT; i++) {
        const int tap = i / T::NT, n = i % T::NT;
        const float2 w = weights[tap][n];
        if constexpr (T::TF32) { /* they are rounded already */
            high[tap][n][0] = __float_as_uint(w.x), high[tap][n][1] = __float_as_uint(w.y);
        } else {
            const sh_tf32_pair one = sh_tf32_split(w.x), two = sh_tf32_split(w.y);
            high[tap][n][0] = one.high, high[tap][n][1] = two.high, low[tap][n][0] = one.low, low[tap][n][1] = two.low;
        }
    }
#pragma unroll
    for (int m = 0; m < T::MT; m++) {
        uint32_t a_high[TAPS][4], a_low[TAPS][4];
#pragma unroll
        for (int tap = 0; tap < TAPS; tap++) {
            const uint32_t at = from[m] + away + tap * T::PIXEL * (int)sizeof(float);
            sh_tf32_load_a(a_high[tap], at);
            if constexpr (!T::TF32 && T::HALVES) {
                sh_tf32_load_a(a_low[tap], at + T::C * (int)sizeof(float));
            } else if constexpr (!T::TF32) {
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    const sh_tf32_pair pair = sh_tf32_split(__uint_as_float(a_high[tap][i]));
                    a_high[tap][i] = pair.high, a_low[tap][i] = pair.low;
                }
            }
        }
        sh_conv2_products<T::TF32>(sum[m], a_high, a_low, high, low);
    }
}

/* sum[m][n] += the products of the block's positions and channels, for this warp's share of the sums. Row r of the 16
 * positions of m is row r / 8 and column r % 2 of window first + 4 * m + r % 8 / 2. Windows after `last` are computed
 * as `last`. */
template <typename T>
__device__ inline void sh_conv2_multiply(const float *patch, int first, int last, sh_conv2_share<T> &share,
                                         float (&sum)[T::MT][T::NT][4])
{
    using S = sh_conv2_share<T>;
    const int lane = threadIdx.x % 32;
    uint32_t from[T::MT];
#pragma unroll
    for (int m = 0; m < T::MT; m++) {
        const int row = lane % 16, window = min(first + 4 * m + row % 8 / 2, last);
        const int pixel =
            (sh_conv2_row(window) - sh_conv2_row(first) + row / 8) * SH_CONV2_PITCH + window % 7 * 2 + row % 2;
        from[m] = sh_shared_address(patch + pixel * T::PIXEL + share.step * 8 + lane / 16 * 4);
    }
    constexpr int PIXEL = T::PIXEL * (int)sizeof(float), ROW = SH_CONV2_PITCH * PIXEL;
    if constexpr (S::GROUPS == 1) {
#pragma unroll 1
        for (int row = 0; row < 5; row++) {
            float2 weights[5][T::NT];
            share.take(weights, row * 5);
            sh_conv2_taps<2, T>(from, 0, weights, sum);
            sh_conv2_taps<3, T>(from, 2 * PIXEL, weights + 2, sum);
#pragma unroll
            for (int m = 0; m < T::MT; m++) {
                from[m] += ROW;
            }
        }
    } else {
#pragma unroll 1
        for (int tap = share.group; tap < SH_CONV2_TAPS; tap += S::GROUPS) {
            float2 weights[1][T::NT];
            share.take(weights, tap);
            sh_conv2_taps<1, T>(from, tap / 5 * ROW + tap % 5 * PIXEL, weights, sum);
        }
    }
}

/* Adds the sums of the upper half of the warps to those of the lower half through shared memory, until SUMMING_WARPS
 * warps have them. All threads call it. */
template <typename T> __device__ inline void sh_conv2_add_upper(float *room, float (&sum)[T::MT][T::NT][4])
{
    constexpr int SUMS = T::MT * T::NT * 4;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    __syncthreads();
#pragma unroll
    for (int half = T::WARPS / 2; half >= T::SUMMING_WARPS; half /= 2) {
        float *const mine = room + warp % half * SUMS * 32 + lane;
#pragma unroll
        for (int i = 0; warp >= half && warp < 2 * half && i < SUMS; i++) {
            mine[i * 32] = sum[i / 4 / T::NT][i / 4 % T::NT][i % 4];
        }
        __syncthreads();
#pragma unroll
        for (int i = 0; warp < half && i < SUMS; i++) {
            sum[i / 4 / T::NT][i / 4 % T::NT][i % 4] += mine[i * 32];
        }
        __syncthreads();
    }
}

#endif
