/* Matrix products of f32 of medium and large size.
 *
 * A block computes 64 x 64 elements of C, a thread 4 x 4 of them. (With 8 x 8 a thread would load fewer words from
 * shared memory per product. But the products in our models are so small that more threads matter more.) Tiles of A and
 * B, 32 elements of k deep, go through shared memory. While one tile is in use, the next one is being loaded into
 * registers. If there are few tiles, k is divided among blocks. */
#include "kernels/cuda/matmul.cuh"

namespace
{

constexpr int SIDE = 64, DEPTH = 32, SOME = 8;
constexpr int QUADS = 1; /* rows per thread, in groups of four */
constexpr int THREADS = SIDE * SIDE / (16 * QUADS), APART = SIDE / QUADS;
constexpr int PITCH = SIDE + 4; /* of an element of k in shared memory */
constexpr int LOADS = SIDE * DEPTH / 4 / THREADS;

/* An operand. Element (row, k) is at data[row * row_step + k * k_step], and one of the steps is 1. */
struct operand {
    const float *data;
    int64_t row_step, k_step;
    int64_t rows, depth; /* rows and elements of k that remain from here on; beyond them are zeros */
    bool aligned;        /* four elements along the step of 1 can be loaded at once */
};

/* Loads four adjacent elements, or the `left` that remain. */
__device__ inline float4 load_four(const float *from, int64_t left, bool aligned)
{
    if (aligned && left >= 4) {
        return *(const float4 *)from;
    }
    return make_float4(left > 0 ? from[0] : 0, left > 1 ? from[1] : 0, left > 2 ? from[2] : 0, left > 3 ? from[3] : 0);
}

/* Loads this thread's part of the tile that begins at element k. ALONG_K: the step of k is 1. */
template <bool ALONG_K> __device__ inline void fetch(const operand &o, int64_t k, float4 (&to)[LOADS])
{
#pragma unroll
    for (int i = 0; i < LOADS; i++) {
        const int at = threadIdx.x + i * THREADS;
        if (ALONG_K) {
            const int64_t row = at / (DEPTH / 4), from = k + at % (DEPTH / 4) * 4;
            to[i] = load_four(o.data + row * o.row_step + from, row < o.rows ? o.depth - from : 0, o.aligned);
        } else {
            const int64_t row = at % (SIDE / 4) * 4, from = k + at / (SIDE / 4);
            to[i] = load_four(o.data + from * o.k_step + row, from < o.depth ? o.rows - row : 0, o.aligned);
        }
    }
}

template <bool ALONG_K> __device__ inline void store(const float4 (&from)[LOADS], float (&to)[DEPTH][PITCH])
{
#pragma unroll
    for (int i = 0; i < LOADS; i++) {
        const int at = threadIdx.x + i * THREADS;
        if (ALONG_K) {
            const int row = at / (DEPTH / 4), k = at % (DEPTH / 4) * 4;
            to[k][row] = from[i].x, to[k + 1][row] = from[i].y, to[k + 2][row] = from[i].z, to[k + 3][row] = from[i].w;
        } else {
            *(float4 *)&to[at / (SIDE / 4)][at % (SIDE / 4) * 4] = from[i];
        }
    }
}

/* depth: elements of k, rounded up to SOME; beyond them the tiles have zeros. */
__device__ inline void multiply(const float (&a)[DEPTH][PITCH], const float (&b)[DEPTH][PITCH], int row, int column,
                                int depth, float (&sum)[4 * QUADS][4])
{
    for (int first = 0; first < depth; first += SOME) {
#pragma unroll
        for (int k = first; k < first + SOME; k++) {
            const float4 v = *(const float4 *)&b[k][column];
#pragma unroll
            for (int i = 0; i < 4 * QUADS; i += 4) {
                const float4 u = *(const float4 *)&a[k][row + i / 4 * APART];
                const float left[4] = {u.x, u.y, u.z, u.w}, right[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
                for (int e = 0; e < 16; e++) {
                    sum[i + e / 4][e % 4] = fmaf(left[e / 4], right[e % 4], sum[i + e / 4][e % 4]);
                }
            }
        }
    }
}

/* Writes four elements of a row: to the sums of a part of k, or to C. */
__device__ inline void finish(const sh_matmul_args &g, const float *sum, int64_t i, int64_t j, float *part, float *c)
{
    float *const to = part ? part + i * g.n + j : c + i * g.c_row + j;
    const bool whole = j + 4 <= g.n && (uintptr_t)to % 16 == 0;
    float4 before = make_float4(0, 0, 0, 0);
    if (!part && g.accumulate) {
        before = load_four(to, g.n - j, whole);
    }
    const float old[4] = {before.x, before.y, before.z, before.w};
    float out[4];
#pragma unroll
    for (int e = 0; e < 4; e++) {
        out[e] = part || j + e >= g.n ? sum[e] : sh_matmul_finished(g, sum[e], j + e, old[e]);
    }
    if (whole) {
        *(float4 *)to = make_float4(out[0], out[1], out[2], out[3]);
        return;
    }
#pragma unroll
    for (int e = 0; e < 4; e++) {
        if (j + e < g.n) {
            to[e] = out[e];
        }
    }
}

/* blockIdx.x: the columns; blockIdx.y: the rows; blockIdx.z: the part of k if sums is not NULL, else the batch. */
template <bool A_ALONG, bool B_ALONG>
__global__ void __launch_bounds__(THREADS)
    tiles(sh_matmul_args g, int64_t part, bool a_aligned, bool b_aligned, float *sums)
{
    __shared__ __align__(16) float a_tile[2][DEPTH][PITCH], b_tile[2][DEPTH][PITCH];
    const int64_t z = blockIdx.z, top = (int64_t)blockIdx.y * SIDE, left = (int64_t)blockIdx.x * SIDE;
    const int64_t from = sums ? z * part : 0, batch = sums ? 0 : z, depth = min(part, g.k - from);
    const operand a = {(const float *)g.a + batch * g.a_batch + top * g.a_row + from * g.a_col,
                       g.a_row,
                       g.a_col,
                       g.m - top,
                       depth,
                       a_aligned};
    const operand b = {(const float *)g.b + batch * g.b_batch + left * g.b_col + from * g.b_row,
                       g.b_col,
                       g.b_row,
                       g.n - left,
                       depth,
                       b_aligned};
    /* The lanes of a warp are 4 x 8 threads: 16 rows, 32 columns. */
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int row = warp / 2 * 16 + lane / 8 * 4, column = warp % 2 * 32 + lane % 8 * 4;
    float sum[4 * QUADS][4] = {};
    float4 a_next[LOADS], b_next[LOADS];
    fetch<A_ALONG>(a, 0, a_next);
    fetch<B_ALONG>(b, 0, b_next);
    int turn = 0;
    for (int64_t k = 0; k < depth; k += DEPTH, turn ^= 1) {
        store<A_ALONG>(a_next, a_tile[turn]);
        store<B_ALONG>(b_next, b_tile[turn]);
        __syncthreads(); /* the tile is complete, and no thread reads the one that the next turn overwrites */
        if (k + DEPTH < depth) {
            fetch<A_ALONG>(a, k + DEPTH, a_next);
            fetch<B_ALONG>(b, k + DEPTH, b_next);
        }
        multiply(a_tile[turn], b_tile[turn], row, column, (int)min((int64_t)DEPTH, depth - k), sum);
    }
    float *const sums_here = sums ? sums + z * g.m * g.n : nullptr, *const c = (float *)g.c + batch * g.c_batch;
#pragma unroll
    for (int i = 0; i < 4 * QUADS; i++) {
        const int64_t y = top + row + i % 4 + i / 4 * APART, x = left + column;
        if (y < g.m && x < g.n) {
            finish(g, sum[i], y, x, sums_here, c);
        }
    }
}

/* Returns whether four elements along the step of 1 can be loaded at once, in every row and batch. */
bool aligned(const void *data, int64_t step, int64_t batch_step)
{
    return (uintptr_t)data % 16 == 0 && step % 4 == 0 && batch_step % 4 == 0;
}

} // namespace

bool sh_matmul_tiles_fit(const sh_matmul_args *g)
{
    return g->dtype == SHOAL_F32 && (g->a_row == 1 || g->a_col == 1) && (g->b_row == 1 || g->b_col == 1) && g->k > 0 &&
           g->m >= 24 && g->n >= 24 && g->m * g->n * g->k >= 2000000 && g->batch <= 65535 && g->m <= SIDE * 65535;
}

shoal_err sh_matmul_tiles(sh_exec *exec, const sh_matmul_args *g)
{
    const int64_t rows = sh_ceil_div(g->m, SIDE), columns = sh_ceil_div(g->n, SIDE);
    const int64_t wanted = g->batch > 1 ? 1 : 2 * SH_MULTIPROCESSORS / (rows * columns), most = g->k / (2 * DEPTH);
    int64_t parts = wanted < most ? wanted : most;
    const int64_t part = parts > 1 ? sh_ceil_div(sh_ceil_div(g->k, parts), DEPTH) * DEPTH : g->k;
    parts = sh_ceil_div(g->k, part);
    float *sums = nullptr;
    if (parts > 1) {
        sums = (float *)sh_cuda_the_host->scratch(exec, sizeof(float) * (size_t)(g->m * g->n * parts));
        if (!sums) {
            return SHOAL_ENOMEM;
        }
    }
    const bool a_along = g->a_col == 1, b_along = g->b_row == 1;
    const bool a_aligned = aligned(g->a, a_along ? g->a_row : g->a_col, g->a_batch);
    const bool b_aligned = aligned(g->b, b_along ? g->b_col : g->b_row, g->b_batch);
    const dim3 grid((unsigned)columns, (unsigned)rows, (unsigned)(parts > 1 ? parts : g->batch));
    auto *const kernel = a_along ? (b_along ? tiles<true, true> : tiles<true, false>)
                                 : (b_along ? tiles<false, true> : tiles<false, false>);
    kernel<<<grid, THREADS, 0, sh_stream(exec)>>>(*g, part, a_aligned, b_aligned, sums);
    return sums ? sh_matmul_add_parts(exec, g, sums, (int)parts) : sh_cuda_launched("matmul");
}
