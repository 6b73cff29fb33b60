/* Matrix products of f32 of middling and large size.
 *
 * A block computes 64 x 64 elements of C, a thread 8 x 8 of them: fewer would need more words from shared memory than it
 * can give. Tiles of A and B, 16 elements of k deep, go through shared memory; while one is used the next is on its way,
 * in registers. Where there are few tiles, k is divided among blocks. */
#include "kernels/cuda/matmul.cuh"

namespace
{

constexpr int SIDE = 64, DEPTH = 16, THREADS = 64, HALF = SIDE / 2;
constexpr int PITCH = SIDE + 4; /* of an element of k in shared memory */
constexpr int LOADS = SIDE * DEPTH / 4 / THREADS;

/* One operand: element (row, k) is at data[row * row_step + k * k_step], and one of the steps is 1. */
struct operand {
    const float *data;
    int64_t row_step, k_step;
    int64_t rows, depth; /* what there is of it from here on; beyond are zeros */
    bool aligned;        /* four elements along the step of 1 can be loaded as one */
};

/* Up to four elements, `step` of which are 1 apart. */
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

/* Four elements from `at` on, and four from HALF behind these. */
__device__ inline void load_eight(const float (&row)[PITCH], int at, float (&to)[8])
{
    const float4 u = *(const float4 *)&row[at], v = *(const float4 *)&row[at + HALF];
    to[0] = u.x, to[1] = u.y, to[2] = u.z, to[3] = u.w, to[4] = v.x, to[5] = v.y, to[6] = v.z, to[7] = v.w;
}

__device__ inline void multiply(const float (&a)[DEPTH][PITCH], const float (&b)[DEPTH][PITCH], int row, int column,
                                float (&sum)[8][8])
{
#pragma unroll
    for (int k = 0; k < DEPTH; k++) {
        float left[8], right[8];
        load_eight(a[k], row, left);
        load_eight(b[k], column, right);
#pragma unroll
        for (int i = 0; i < 8; i++) {
#pragma unroll
            for (int j = 0; j < 8; j++) {
                sum[i][j] = fmaf(left[i], right[j], sum[i][j]);
            }
        }
    }
}

/* Writes four elements of a row: the sums of a part of k, or C itself. */
__device__ inline void finish(const sh_matmul_args &g, const float *sum, int64_t i, int64_t j, float *part, float *c)
{
    float *const to = part ? part + i * g.n + j : c + i * g.c_row + j;
    float out[4];
#pragma unroll
    for (int e = 0; e < 4; e++) {
        out[e] = part || j + e >= g.n ? sum[e] : sh_matmul_finished(g, sum[e], j + e, g.accumulate ? to[e] : 0.0F);
    }
    if (j + 4 <= g.n && (uintptr_t)to % 16 == 0) {
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

/* blockIdx.x: columns; blockIdx.y: rows; blockIdx.z: the part of k if sums is not NULL, else the batch. */
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
    /* The lanes of a warp are 4 x 8 threads. Rows and columns of a thread: four, and four more HALF behind these. */
    const int row = threadIdx.x / 8 * 4, column = threadIdx.x % 8 * 4;
    float sum[8][8] = {};
    float4 a_next[LOADS], b_next[LOADS];
    fetch<A_ALONG>(a, 0, a_next);
    fetch<B_ALONG>(b, 0, b_next);
    int turn = 0;
    for (int64_t k = 0; k < depth; k += DEPTH, turn ^= 1) {
        store<A_ALONG>(a_next, a_tile[turn]);
        store<B_ALONG>(b_next, b_tile[turn]);
        __syncthreads(); /* also: all have left the tile that the next turn overwrites */
        if (k + DEPTH < depth) {
            fetch<A_ALONG>(a, k + DEPTH, a_next);
            fetch<B_ALONG>(b, k + DEPTH, b_next);
        }
        multiply(a_tile[turn], b_tile[turn], row, column, sum);
    }
    float *const sums_here = sums ? sums + z * g.m * g.n : nullptr, *const c = (float *)g.c + batch * g.c_batch;
#pragma unroll
    for (int i = 0; i < 8; i++) {
#pragma unroll
        for (int j = 0; j < 8; j += 4) {
            const int64_t y = top + row + i % 4 + i / 4 * HALF, x = left + column + j / 4 * HALF;
            if (y < g.m && x < g.n) {
                finish(g, &sum[i][j], y, x, sums_here, c);
            }
        }
    }
}

int64_t divided(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

/* Whether four elements along the step of 1 can be loaded as one, in every row and batch. */
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
    const int64_t rows = divided(g->m, SIDE), columns = divided(g->n, SIDE);
    const int64_t wanted = g->batch > 1 ? 1 : 528 / (rows * columns), most = g->k / (4 * DEPTH);
    int64_t parts = wanted < most ? wanted : most;
    const int64_t part = parts > 1 ? divided(divided(g->k, parts), DEPTH) * DEPTH : g->k;
    parts = divided(g->k, part);
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
