/* The CUDA twin of cpu/matmul_reference.c; the contract is kernels/matmul.h. */
#include "kernels/cuda/matmul.cuh"

namespace
{

constexpr int SIDE = 16;               /* a block computes SIDE x SIDE elements of C, one per thread */
constexpr int64_t MOST_BLOCKS = 65535; /* the limit of a grid's y and z dimensions */

/* Integers wrap around. In the language only unsigned ones do. */
template <typename T> struct sum_of {
    typedef T type;
};
template <> struct sum_of<int64_t> {
    typedef uint64_t type;
};
template <> struct sum_of<int32_t> {
    typedef uint32_t type;
};

__device__ inline uint64_t sh_matmul_finished(const sh_matmul_args &g, uint64_t sum, int64_t column, uint64_t before)
{
    return sum + before;
}

__device__ inline uint32_t sh_matmul_finished(const sh_matmul_args &g, uint32_t sum, int64_t column, uint32_t before)
{
    return sum + before;
}

/* Any strides. Tiles of A and B go through shared memory. */
template <typename T> __global__ void __launch_bounds__(SIDE *SIDE) general(sh_matmul_args g)
{
    typedef typename sum_of<T>::type S;
    __shared__ S a_tile[SIDE][SIDE + 1], b_tile[SIDE][SIDE + 1];
    const int x = threadIdx.x, y = threadIdx.y;
    const int64_t column = (int64_t)blockIdx.x * SIDE + x;
    for (int64_t z = blockIdx.z; z < g.batch; z += gridDim.z) {
        const S *a = (const S *)g.a + z * g.a_batch, *b = (const S *)g.b + z * g.b_batch;
        S *c = (S *)g.c + z * g.c_batch;
        for (int64_t top = (int64_t)blockIdx.y * SIDE; top < g.m; top += (int64_t)gridDim.y * SIDE) {
            const int64_t row = top + y;
            S sum = 0;
            for (int64_t from = 0; from < g.k; from += SIDE) {
                a_tile[y][x] = row < g.m && from + x < g.k ? a[row * g.a_row + (from + x) * g.a_col] : 0;
                b_tile[y][x] = column < g.n && from + y < g.k ? b[(from + y) * g.b_row + column * g.b_col] : 0;
                __syncthreads();
                for (int p = 0; p < SIDE; p++) {
                    sum += a_tile[y][p] * b_tile[p][x];
                }
                __syncthreads();
            }
            if (row < g.m && column < g.n) {
                S *to = c + row * g.c_row + column;
                *to = sh_matmul_finished(g, sum, column, g.accumulate ? *to : (S)0);
            }
        }
    }
}

template <typename T> shoal_err run_general(sh_exec *exec, const sh_matmul_args *g)
{
    const int64_t rows = (g->m + SIDE - 1) / SIDE;
    const dim3 grid((unsigned)((g->n + SIDE - 1) / SIDE), (unsigned)(rows < MOST_BLOCKS ? rows : MOST_BLOCKS),
                    (unsigned)(g->batch < MOST_BLOCKS ? g->batch : MOST_BLOCKS));
    general<T><<<grid, dim3(SIDE, SIDE), 0, sh_stream(exec)>>>(*g);
    return sh_cuda_launched("matmul");
}

shoal_err matmul(sh_exec *exec, const sh_matmul_args *g)
{
    const bool is_float = sh_dtype_is_wide_float(g->dtype);
    if (!is_float && g->dtype != SHOAL_I64 && g->dtype != SHOAL_I32) {
        return sh_cuda_the_host->fail(SHOAL_EINVAL, "matmul does not support %s", shoal_dtype_name(g->dtype));
    }
    if (!is_float && (g->bias || g->relu || g->alpha != 1)) {
        return sh_cuda_the_host->fail(SHOAL_EINVAL, "matmul of %s supports neither bias nor relu nor alpha",
                                      shoal_dtype_name(g->dtype));
    }
    if (g->batch < 1 || g->m < 1 || g->n < 1) {
        return SHOAL_OK;
    }
    if (sh_matmul_tiles_fit(g)) {
        return sh_matmul_tiles(exec, g);
    }
    if (sh_matmul_small_fits(g)) {
        return sh_matmul_small(exec, g);
    }
    switch (g->dtype) {
    case SHOAL_F32: return run_general<float>(exec, g);
    case SHOAL_F64: return run_general<double>(exec, g);
    case SHOAL_I64: return run_general<int64_t>(exec, g);
    default: return run_general<int32_t>(exec, g);
    }
}

} // namespace

extern "C" const sh_matmul_kernels sh_matmul_kernels_cuda = {matmul};
