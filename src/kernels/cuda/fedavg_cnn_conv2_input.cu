/* The gradient of conv2's input in fedavg-cnn; see fedavg_cnn_conv2.cuh. Of the 4 outputs of a window at most one has a
 * gradient: the pool's winner. The others are zeros in the patch. */
#include "kernels/cuda/fedavg_cnn_conv2.cuh"

namespace
{

struct input_args {
    const float *dx2;
    const uint8_t *winners;
    const sh_conv2_weights *weights;
    float *dx1;
    int batch;
};

/* Fills the patch of the windows first to last with the gradients of the winners. Images are numbered from the client's
 * first one. */
template <typename T>
__device__ void load_winners(const float *dx2, const uint8_t *winners, int first, int last, float *patch)
{
    constexpr int TURNS = (sh_conv2_most_rows(T::WINDOWS) / 2 * 7 + 31) / 32, EACH = T::C / T::WARPS;
    const int low = sh_conv2_row(first), rows = sh_conv2_row(last) + 6 - low;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    float gradient[TURNS][EACH];
    int winner[TURNS][EACH]; /* all loads are in flight while the patch is filled with zeros */
#pragma unroll
    for (int turn = 0; turn < TURNS; turn++) {
        /* A row of windows is two rows of an image's 18, not counting the first two and the last two. */
        const int e = turn * 32 + lane, pair = low / 2 + e / 7, y = pair % 9 - 1;
        const bool there = e < rows / 2 * 7 && y >= 0 && y < 7;
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            const int64_t from = ((int64_t)(pair / 9) * T::C + warp + i * T::WARPS) * SH_CONV2_WINDOWS + y * 7 + e % 7;
            gradient[turn][i] = there ? dx2[from] : 0;
            winner[turn][i] = there ? winners[from] : SH_CLOSED;
        }
    }
    for (int i = threadIdx.x; i < rows * SH_CONV2_PITCH * T::PIXEL / 4; i += T::THREADS) {
        ((float4 *)patch)[i] = make_float4(0, 0, 0, 0);
    }
    __syncthreads();
#pragma unroll
    for (int turn = 0; turn < TURNS; turn++) {
        const int e = turn * 32 + lane;
        float *const to = patch + (e / 7 * 2 * SH_CONV2_PITCH + 2 + e % 7 * 2) * T::PIXEL + warp;
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            const int w = winner[turn][i];
            if (w != SH_CLOSED) {
                float *const at = to + (w / 2 * SH_CONV2_PITCH + w % 2) * T::PIXEL + i * T::WARPS;
                const sh_tf32_pair pair = sh_conv2_split<T::TF32>(gradient[turn][i]);
                *at = T::TF32 || T::HALVES ? __uint_as_float(pair.high) : gradient[turn][i];
                if (!T::TF32 && T::HALVES) {
                    at[T::C] = __uint_as_float(pair.low);
                }
            }
        }
    }
    __syncthreads();
}

/* [SUMMING_WARPS][positions][CHANNELS]. Lanes write 8 positions by 4 pairs of channels, which are in different
 * banks. */
template <typename T> constexpr int CHANNELS = T::OUTS + 8;

template <typename T>
constexpr int ROOM = sh_conv2_greater(T::PATCH, sh_conv2_greater(T::ADDED, T::SUMMING_WARPS *T::MT * 16 * CHANNELS<T>));

/* Adds up the sums of the warps, and writes them. */
template <typename T>
__device__ void finish(float *dx1, int first, int last, float *room, float (&sum)[T::MT][T::NT][4])
{
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    sh_conv2_add_upper<T>(room, sum);
    if (warp < T::SUMMING_WARPS) {
#pragma unroll
        for (int i = 0; i < T::MT * T::NT * 2; i++) {
            const int m = i / 2 / T::NT, n = i / 2 % T::NT, e = i % 2;
            const int at = (warp * T::MT * 16 + m * 16 + e * 8 + lane / 4) * CHANNELS<T> + n * 8 + lane % 4 * 2;
            *(float2 *)(room + at) = make_float2(sum[m][n][2 * e], sum[m][n][2 * e + 1]);
        }
    }
    __syncthreads();
    constexpr int PIECES = T::OUTS / 4;
    for (int i = threadIdx.x; i < T::MT * 16 * PIECES; i += T::THREADS) {
        const int at = i / PIECES, piece = i % PIECES, window = first + at / 16 * 4 + at % 8 / 2;
        float4 v = make_float4(0, 0, 0, 0);
#pragma unroll
        for (int k = 0; k < T::SUMMING_WARPS; k++) {
            const float4 w = *(const float4 *)(room + (k * T::MT * 16 + at) * CHANNELS<T> + piece * 4);
            v.x += w.x, v.y += w.y, v.z += w.z, v.w += w.w;
        }
        if (window <= last) {
            const int row = window / SH_CONV2_WINDOWS * 14 + window % SH_CONV2_WINDOWS / 7 * 2 + at % 16 / 8;
            const int64_t pixel = (int64_t)row * 14 + window % 7 * 2 + at % 2;
            *(float4 *)(dx1 + pixel * 32 + blockIdx.y * T::OUTS + piece * 4) = v;
        }
    }
}

/* blockIdx.x: the tile of windows; y: the tile of input channels; z: the client. */
template <typename T> __global__ void __launch_bounds__(T::THREADS, 1) input_gradient(input_args a)
{
    extern __shared__ __align__(16) float room[];
    sh_conv2_begin_next();
    const int64_t images = (int64_t)blockIdx.z * a.batch;
    const int first = blockIdx.x * T::WINDOWS, last = min(first + T::WINDOWS, a.batch * SH_CONV2_WINDOWS) - 1;
    const int64_t outputs = images * 64 * SH_CONV2_WINDOWS;
    sh_conv2_share<T> share(a.weights[blockIdx.z].backward + blockIdx.y * T::NT * 32, 4);
    load_winners<T>(a.dx2 + outputs, a.winners + outputs, first, last, room);
    float sum[T::MT][T::NT][4] = {};
    sh_conv2_multiply<T>(room, first, last, share, sum);
    finish<T>(a.dx1 + images * 196 * 32, first, last, room, sum);
}

template <typename T> shoal_err run(sh_exec *exec, const input_args &a, int clients)
{
    constexpr size_t bytes = sizeof(float) * ROOM<T>;
    static std::atomic<bool> allowed;
    shoal_err err = sh_allow_shared("fedavg_cnn_conv2_backward", input_gradient<T>, bytes, &allowed);
    if (err) {
        return err;
    }
    const int tiles = (a.batch * SH_CONV2_WINDOWS + T::WINDOWS - 1) / T::WINDOWS;
    const dim3 grid((unsigned)tiles, 32 / T::OUTS, (unsigned)clients);
    input_gradient<T><<<grid, T::THREADS, bytes, sh_stream(exec)>>>(a);
    return sh_cuda_launched("fedavg_cnn_conv2_backward");
}

constexpr int FEW = 80; /* blocks of the large tile; with fewer blocks, small tiles are faster */

template <bool TF32, bool HALVES> using large = sh_conv2_tile<TF32, 64, 5, 4, 8, HALVES>;
template <bool TF32, bool HALVES> using small = sh_conv2_tile<TF32, 64, 2, 2, 8, HALVES>;

template <bool TF32, bool HALVES> shoal_err run_either(sh_exec *exec, const input_args &a, int clients)
{
    const int64_t tiles =
        ((int64_t)a.batch * SH_CONV2_WINDOWS + large<TF32, HALVES>::WINDOWS - 1) / large<TF32, HALVES>::WINDOWS;
    return tiles * clients < FEW ? run<small<TF32, HALVES>>(exec, a, clients)
                                 : run<large<TF32, HALVES>>(exec, a, clients);
}

} // namespace

shoal_err sh_conv2_input_gradient(sh_exec *exec, const sh_fedavg_cnn_step &s, const sh_fedavg_cnn_memory &m)
{
    const input_args a = {m.dx2, m.winners2, (const sh_conv2_weights *)m.conv2, m.dx1, (int)s.batch};
    if (s.tf32) {
        return run_either<true, true>(exec, a, s.clients);
    }
    static_assert(sizeof(float) * ROOM<large<false, false>> <= SH_SHARED_EVERYWHERE &&
                      sizeof(float) * ROOM<large<true, true>> <= SH_SHARED_EVERYWHERE,
                  "every GPU has this much; small tiles need less");
    const bool room = (size_t)sh_conv2_shared_most() >= sizeof(float) * ROOM<large<false, true>>;
    return room ? run_either<false, true>(exec, a, s.clients) : run_either<false, false>(exec, a, s.clients);
}
