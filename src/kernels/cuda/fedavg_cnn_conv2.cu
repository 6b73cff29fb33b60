/* conv2 of fedavg-cnn, with pool and relu; see fedavg_cnn_conv2.cuh. */
#include "kernels/cuda/conv2d_fused.cuh"
#include "kernels/cuda/fedavg_cnn_conv2.cuh"

namespace
{

/* Writes the weights of 8 by 8 channels in both orders. blockIdx.x = output channels / 8 * 4 + input channels / 8;
 * blockIdx.y: the client. */
__global__ void __launch_bounds__(256) order_weights(const float *w, int64_t stride, bool tf32, sh_conv2_weights *out)
{
    __shared__ float tile[8][8 * SH_CONV2_TAPS + 1];
    const int outs = blockIdx.x / 4, ins = blockIdx.x % 4;
    sh_conv2_begin_next();
    w += blockIdx.y * stride + outs * 8 * 800 + ins * 8 * SH_CONV2_TAPS;
    for (int i = threadIdx.x; i < 8 * 8 * SH_CONV2_TAPS; i += 256) {
        const float v = w[i / 200 * 800 + i % 200];
        tile[i / 200][i % 200] = tf32 ? __uint_as_float(sh_tf32(v)) : v;
    }
    __syncthreads();
    for (int i = threadIdx.x; i < SH_CONV2_TAPS * 32; i += 256) {
        const int tap = i / 32, lane = i % 32, g = lane / 4, q = lane % 4, back = SH_CONV2_TAPS - 1 - tap;
        out[blockIdx.y].forward[((tap * 4 + ins) * 8 + outs) * 32 + lane] =
            make_float2(tile[g][q * SH_CONV2_TAPS + tap], tile[g][(q + 4) * SH_CONV2_TAPS + tap]);
        out[blockIdx.y].backward[((back * 8 + outs) * 4 + ins) * 32 + lane] =
            make_float2(tile[q][g * SH_CONV2_TAPS + tap], tile[q + 4][g * SH_CONV2_TAPS + tap]);
    }
}

struct forward_args {
    const float *x1;
    const sh_conv2_weights *weights;
    const float *bias;
    int64_t stride;
    float *x2;
    uint8_t *winners;
    int batch;
};

/* Loads the patch of the windows first to last. Each thread splits what it has copied. */
template <typename T> __device__ void load_patch(const float *x, int first, int last, float *patch)
{
    constexpr int PIECES = T::C / 4;
    const int low = sh_conv2_row(first), count = (sh_conv2_row(last) + 6 - low) * SH_CONV2_ROWS * PIECES;
    const auto place = [=](int i) {
        const int pixel = i / PIECES, at = pixel / SH_CONV2_ROWS * SH_CONV2_PITCH + pixel % SH_CONV2_ROWS;
        return (float4 *)(patch + at * T::PIXEL + i % PIECES * 4);
    };
    x += (int64_t)low * SH_CONV2_ROWS * T::C;
    for (int i = threadIdx.x; i < count; i += T::THREADS) {
        __pipeline_memcpy_async(place(i), x + i * 4, 16);
    }
    __pipeline_commit();
    __pipeline_wait_prior(0);
#pragma unroll 4
    for (int i = threadIdx.x; i < count; i += T::THREADS) {
        float4 *const to = place(i);
        const sh_tf32_pair p[4] = {sh_conv2_split<T::TF32>(to->x), sh_conv2_split<T::TF32>(to->y),
                                   sh_conv2_split<T::TF32>(to->z), sh_conv2_split<T::TF32>(to->w)};
        *to = make_float4(__uint_as_float(p[0].high), __uint_as_float(p[1].high), __uint_as_float(p[2].high),
                          __uint_as_float(p[3].high));
        if (!T::TF32) {
            to[T::C / 4] = make_float4(__uint_as_float(p[0].low), __uint_as_float(p[1].low), __uint_as_float(p[2].low),
                                       __uint_as_float(p[3].low));
        }
    }
}

/* [SUMMING_WARPS][OUTS][POSITIONS]. Lanes write 4 channels by 8 positions, which are in different banks. */
template <typename T> constexpr int POSITIONS = T::MT * 16 + 4;

template <typename T>
constexpr int ROOM = sh_conv2_greater(T::PATCH, sh_conv2_greater(T::ADDED, T::SUMMING_WARPS *T::OUTS *POSITIONS<T>));

/* Adds up the sums of the warps, and writes the result of pool and relu. */
template <typename T>
__device__ void finish(const forward_args &a, int client, int first, int last, float *room,
                       float (&sum)[T::MT][T::NT][4])
{
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    sh_conv2_add_upper<T>(room, sum);
    if (warp < T::SUMMING_WARPS) {
#pragma unroll
        for (int i = 0; i < T::MT * T::NT * 4; i++) {
            const int m = i / 4 / T::NT, n = i / 4 % T::NT, e = i % 4;
            room[(warp * T::OUTS + n * 8 + lane % 4 * 2 + e % 2) * POSITIONS<T> + m * 16 + e / 2 * 8 + lane / 4] =
                sum[m][n][e];
        }
    }
    __syncthreads();
    for (int i = threadIdx.x; i < T::OUTS * T::WINDOWS; i += T::THREADS) {
        const int n = i / T::WINDOWS, q = i % T::WINDOWS, o = blockIdx.y * T::OUTS + n;
        const float bias = a.bias[client * a.stride + o];
        float v[4] = {};
#pragma unroll
        for (int k = 0; k < T::SUMMING_WARPS; k++) {
            const float *const from = room + (k * T::OUTS + n) * POSITIONS<T> + q / 4 * 16 + q % 4 * 2;
            const float2 upper = *(const float2 *)from, lower = *(const float2 *)(from + 8);
            v[0] += upper.x, v[1] += upper.y, v[2] += lower.x, v[3] += lower.y;
        }
        const sh_pooled<float> best = sh_pool_relu(v[0] + bias, v[1] + bias, v[2] + bias, v[3] + bias);
        const int window = first + q;
        if (window <= last) {
            const int64_t image = (int64_t)client * a.batch + window / SH_CONV2_WINDOWS;
            const int64_t to = (image * 64 + o) * SH_CONV2_WINDOWS + window % SH_CONV2_WINDOWS;
            a.x2[to] = best.y;
            a.winners[to] = best.winner;
        }
    }
}

/* blockIdx.x: the tile of windows; y: the tile of output channels; z: the client. */
template <typename T> __global__ void __launch_bounds__(T::THREADS, T::WARPS == 4 ? 2 : 1) forward(forward_args a)
{
    extern __shared__ __align__(16) float room[];
    const int client = blockIdx.z, first = blockIdx.x * T::WINDOWS;
    const int last = min(first + T::WINDOWS, a.batch * SH_CONV2_WINDOWS) - 1;
    load_patch<T>(a.x1 + (int64_t)client * a.batch * SH_CONV2_ROWS * SH_CONV2_ROWS * T::C, first, last, room);
    sh_conv2_await();
    sh_conv2_share<T> share(a.weights[client].forward + blockIdx.y * T::NT * 32, 8);
    float sum[T::MT][T::NT][4] = {};
    __syncthreads();
    sh_conv2_multiply<T>(room, first, last, share, sum);
    finish<T>(a, client, first, last, room, sum);
}

template <typename T> shoal_err run(sh_exec *exec, const forward_args &a, int clients)
{
    constexpr size_t bytes = sizeof(float) * ROOM<T>;
    static_assert(bytes <= SH_SHARED_EVERYWHERE, "every GPU has this much");
    static std::atomic<bool> allowed;
    shoal_err err = sh_allow_shared("fedavg_cnn_conv2", forward<T>, bytes, &allowed);
    if (err) {
        return err;
    }
    const int tiles = (a.batch * SH_CONV2_WINDOWS + T::WINDOWS - 1) / T::WINDOWS;
    const dim3 grid((unsigned)tiles, 64 / T::OUTS, (unsigned)clients);
    sh_conv2_launch_early(exec, forward<T>, grid, T::THREADS, bytes, a);
    return sh_cuda_launched("fedavg_cnn_conv2");
}

template <bool TF32> using large = sh_conv2_tile<TF32, 32, 5, 4, 4>;
template <bool TF32> using small = sh_conv2_tile<TF32, 32, 4, 2, 16>;

} // namespace

static_assert(SH_CLOSED == SH_WINNER_DEAD, "winners are those of kernels/conv2d.h");

bool sh_conv2_begins_early()
{
    static const bool early = [] {
        cudaFuncAttributes of = {};
        return cudaFuncGetAttributes(&of, order_weights) == cudaSuccess && of.ptxVersion >= 90;
    }();
    return early;
}

int sh_conv2_shared_most()
{
    static const int most = [] {
        int card = 0, bytes = 0;
        const bool known = cudaGetDevice(&card) == cudaSuccess &&
                           cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, card) == cudaSuccess;
        return known ? bytes : (int)SH_SHARED_MOST;
    }();
    return most;
}

size_t sh_fedavg_cnn_conv2_size(int64_t batch, int clients)
{
    (void)batch;
    return sizeof(sh_conv2_weights) * (size_t)clients;
}

shoal_err sh_conv2_order_weights(sh_exec *exec, const sh_fedavg_cnn_step &s, const sh_fedavg_cnn_memory &m)
{
    const dim3 grid(32, (unsigned)s.clients);
    order_weights<<<grid, 256, 0, sh_stream(exec)>>>(s.param[2], s.stride, s.tf32, (sh_conv2_weights *)m.conv2);
    return sh_cuda_launched("fedavg_cnn_conv2");
}

shoal_err sh_conv2_output(sh_exec *exec, const sh_fedavg_cnn_step &s, const sh_fedavg_cnn_memory &m)
{
    const forward_args a = {m.x1,        (const sh_conv2_weights *)m.conv2, s.param[3], s.stride, m.x2, m.winners2,
                            (int)s.batch};
    const int64_t tiles = (s.batch * SH_CONV2_WINDOWS + large<false>::WINDOWS - 1) / large<false>::WINDOWS;
    if (tiles * (64 / large<false>::OUTS) * s.clients < SH_MULTIPROCESSORS) { /* then small tiles are faster */
        return s.tf32 ? run<small<true>>(exec, a, s.clients) : run<small<false>>(exec, a, s.clients);
    }
    return s.tf32 ? run<large<true>>(exec, a, s.clients) : run<large<false>>(exec, a, s.clients);
}

shoal_err sh_fedavg_cnn_conv2(sh_exec *exec, const sh_fedavg_cnn_step &s, const sh_fedavg_cnn_memory &m)
{
    shoal_err err = sh_conv2_order_weights(exec, s, m);
    return err != SHOAL_OK ? err : sh_conv2_output(exec, s, m);
}

shoal_err sh_fedavg_cnn_conv2_backward(sh_exec *exec, const sh_fedavg_cnn_step &s, const sh_fedavg_cnn_memory &m)
{
    shoal_err err = sh_conv2_input_gradient(exec, s, m);
    return err != SHOAL_OK ? err : sh_conv2_weights_gradient(exec, s, m);
}
