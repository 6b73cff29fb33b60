/* Matrix products of f32 with few rows or columns, as in the linear layers of small networks.
 *
 * A block computes 16 x 16 elements of C. It loads its rows of A and columns of B at once, for all of k or for one part
 * of k. So it waits for memory once, and not in each step of a loop. A warp has 4 x 8 elements. 8 lanes share 4 x 2 of
 * these, each with another eighth of k, and exchange their sums so that each lane ends with one element. */
#include "kernels/cuda/matmul.cuh"

namespace
{

constexpr int SIDE = 16, THREADS = 256;
constexpr int MOST_K = 512; /* the largest k of one part */
constexpr int STEP = 8 * 4; /* elements of k per step of a warp: 8 lanes with 4 each */

/* How many elements of k a part has, and the pitch of rows in shared memory. */
struct plan {
    int parts, part, pitch;
};

/* to[row][k] = from[row * row_step + k * k_step] for 16 rows and `depth` elements of k. Rows beyond `rows`, and
 * elements up to the next STEP, become zero. One of the steps is 1. */
__device__ void load(const float *from, int64_t row_step, int64_t k_step, int rows, int depth, int pitch, float *to)
{
    const int filled = (depth + STEP - 1) / STEP * STEP;
    if (k_step == 1 && row_step % 4 == 0 && depth % 4 == 0 && (uintptr_t)from % 16 == 0) {
        /* Each warp has two rows. Four loads of 16 bytes are in flight together. */
        const int lane = threadIdx.x % 32, quads = filled / 4;
        for (int row = threadIdx.x / 32; row < SIDE; row += THREADS / 32) {
#pragma unroll 4
            for (int q = lane; q < quads; q += 32) {
                const bool inside = row < rows && q * 4 < depth;
                *(float4 *)(to + row * pitch + q * 4) =
                    inside ? *(const float4 *)(from + row * row_step + q * 4) : make_float4(0, 0, 0, 0);
            }
        }
    } else if (k_step == 1) {
        const int lane = threadIdx.x % 32;
        for (int row = threadIdx.x / 32; row < SIDE; row += THREADS / 32) {
#pragma unroll 4
            for (int k = lane; k < filled; k += 32) {
                to[row * pitch + k] = row < rows && k < depth ? from[row * row_step + k] : 0;
            }
        }
    } else {
        const int row = threadIdx.x % SIDE;
#pragma unroll 8
        for (int k = threadIdx.x / SIDE; k < filled; k += THREADS / SIDE) {
            to[row * pitch + k] = row < rows && k < depth ? from[row * row_step + k * k_step] : 0;
        }
    }
}

/* Adds up the sums of 8 lanes in a fixed order. Lane l of them returns element l. */
__device__ inline float exchange(float (&sum)[8], int lane)
{
#pragma unroll
    for (int half = 4; half > 0; half /= 2) {
        const bool upper = lane & half;
#pragma unroll
        for (int i = 0; i < half; i++) {
            const float mine = upper ? sum[i + half] : sum[i], other = upper ? sum[i] : sum[i + half];
            sum[i] = mine + __shfl_xor_sync(~0u, other, half);
        }
    }
    return sum[0];
}

/* Returns this thread's element: row `top` + the lane's row of 4, column `left` + the lane's column of 2. */
__device__ float dot(const float *a, const float *b, int steps, int pitch, int lane)
{
    float sum[8] = {};
    a += lane % 8 * 4;
    b += lane % 8 * 4;
#pragma unroll 2
    for (int s = 0; s < steps; s++, a += STEP, b += STEP) {
        float4 u[4], v[2];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            u[i] = *(const float4 *)(a + i * pitch);
        }
#pragma unroll
        for (int j = 0; j < 2; j++) {
            v[j] = *(const float4 *)(b + j * pitch);
        }
#pragma unroll
        for (int e = 0; e < 8; e++) {
            float &to = sum[e];
            to = fmaf(u[e / 2].x, v[e % 2].x, to);
            to = fmaf(u[e / 2].y, v[e % 2].y, to);
            to = fmaf(u[e / 2].z, v[e % 2].z, to);
            to = fmaf(u[e / 2].w, v[e % 2].w, to);
        }
    }
    return exchange(sum, lane);
}

/* blockIdx.x: the columns; blockIdx.y: the rows; blockIdx.z: the part of k if sums is not NULL, else the batch. */
__global__ void __launch_bounds__(THREADS) small(sh_matmul_args g, plan p, float *sums)
{
    extern __shared__ __align__(16) float room[];
    float *const a_rows = room, *const b_columns = room + SIDE * p.pitch;
    const int64_t z = blockIdx.z, top = (int64_t)blockIdx.y * SIDE, left = (int64_t)blockIdx.x * SIDE;
    const int64_t from = sums ? z * p.part : 0, batch = sums ? 0 : z;
    const int depth = (int)min((int64_t)p.part, g.k - from);
    const float *a = (const float *)g.a + batch * g.a_batch + top * g.a_row + from * g.a_col;
    const float *b = (const float *)g.b + batch * g.b_batch + left * g.b_col + from * g.b_row;
    load(a, g.a_row, g.a_col, (int)min((int64_t)SIDE, g.m - top), depth, p.pitch, a_rows);
    load(b, g.b_col, g.b_row, (int)min((int64_t)SIDE, g.n - left), depth, p.pitch, b_columns);
    __syncthreads();
    /* Warp w has rows w / 2 * 4 + 0..3 and columns w % 2 * 8 + 0..7. Its lanes 8j to 8j + 7 have columns 2j and 2j + 1
     * of these. */
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int row = warp / 2 * 4, column = warp % 2 * 8 + lane / 8 * 2;
    const float sum =
        dot(a_rows + row * p.pitch, b_columns + column * p.pitch, (depth + STEP - 1) / STEP, p.pitch, lane);
    const int64_t i = top + row + lane % 8 / 2, j = left + column + lane % 2;
    if (i >= g.m || j >= g.n) {
        return;
    }
    if (sums) {
        sums[(z * g.m + i) * g.n + j] = sum;
    } else {
        float *to = (float *)g.c + batch * g.c_batch + i * g.c_row + j;
        *to = sh_matmul_finished(g, sum, j, g.accumulate ? *to : 0.0F);
    }
}

__global__ void add_parts(sh_matmul_args g, const float *sums, int parts)
{
    const int64_t all = g.m * g.n;
    for (int64_t e = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; e < all; e += (int64_t)gridDim.x * blockDim.x) {
        float sum = 0;
#pragma unroll 8
        for (int p = 0; p < parts; p++) {
            sum += sums[p * all + e];
        }
        float *to = (float *)g.c + e / g.n * g.c_row + e % g.n;
        *to = sh_matmul_finished(g, sum, e % g.n, g.accumulate ? *to : 0.0F);
    }
}

/* Divides k where it is too long for shared memory, or where few blocks would do all the work. */
plan plan_of(const sh_matmul_args *g)
{
    const int64_t tiles = (g->m + SIDE - 1) / SIDE * ((g->n + SIDE - 1) / SIDE);
    int64_t parts = (g->k + MOST_K - 1) / MOST_K;
    if (g->batch == 1 && parts > 1) {
        const int64_t wanted = 256 / tiles;
        parts = wanted > parts ? wanted : parts;
    }
    plan p;
    p.part = (int)((g->k + parts - 1) / (parts > 0 ? parts : 1) + STEP - 1) / STEP * STEP;
    p.parts = p.part > 0 ? (int)((g->k + p.part - 1) / p.part) : 1;
    p.pitch = p.part + 4;
    return p;
}

} // namespace

shoal_err sh_matmul_add_parts(sh_exec *exec, const sh_matmul_args *g, const float *sums, int parts)
{
    add_parts<<<sh_blocks(g->m * g->n, 128, 1u << 16), 128, 0, sh_stream(exec)>>>(*g, sums, parts);
    return sh_cuda_launched("matmul");
}

bool sh_matmul_small_fits(const sh_matmul_args *g)
{
    return g->dtype == SHOAL_F32 && (g->a_row == 1 || g->a_col == 1) && (g->b_row == 1 || g->b_col == 1) &&
           (g->batch == 1 ? g->k <= 64 * MOST_K : g->k <= MOST_K && g->batch <= 65535) && g->m <= 16 * 65535;
}

shoal_err sh_matmul_small(sh_exec *exec, const sh_matmul_args *g)
{
    static std::atomic<bool> allowed;
    shoal_err err = sh_allow_shared("matmul", small, sizeof(float) * 2 * SIDE * (MOST_K + 4), &allowed);
    if (err) {
        return err;
    }
    const plan p = plan_of(g);
    float *sums = nullptr;
    if (p.parts > 1) {
        sums = (float *)sh_cuda_the_host->scratch(exec, sizeof(float) * (size_t)(g->m * g->n * p.parts));
        if (!sums) {
            return SHOAL_ENOMEM;
        }
    }
    const dim3 grid((unsigned)((g->n + SIDE - 1) / SIDE), (unsigned)((g->m + SIDE - 1) / SIDE),
                    (unsigned)(sums ? p.parts : g->batch));
    small<<<grid, THREADS, sizeof(float) * 2 * SIDE * p.pitch, sh_stream(exec)>>>(*g, p, sums);
    return sums ? sh_matmul_add_parts(exec, g, sums, p.parts) : sh_cuda_launched("matmul");
}
