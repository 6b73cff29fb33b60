/* Shared by the matrix products of f32:
 *
 *   matmul.cu        every size, stride and type: the plain kernel; chooses among these
 *   matmul_small.cu  few rows or columns: all of k in shared memory at once
 *   matmul_tiles.cu  the rest, if one stride of each operand is 1 */
#ifndef SH_KERNELS_CUDA_MATMUL_CUH
#define SH_KERNELS_CUDA_MATMUL_CUH

#include "kernels/cuda/launch.cuh"

/* Returns alpha · sum + bias + C, then relu, for one element of C. */
template <typename T> __device__ inline T sh_matmul_finished(const sh_matmul_args &g, T sum, int64_t column, T before)
{
    sum *= (T)g.alpha;
    sum += g.bias ? ((const T *)g.bias)[column] : 0;
    sum += before;
    return sum < 0 && g.relu ? 0 : sum;
}

/* Computes C from the sums of `parts` parts of k, each [m][n] in scratch memory, added up in their order. batch is
 * 1. */
shoal_err sh_matmul_add_parts(sh_exec *exec, const sh_matmul_args *g, const float *sums, int parts);

/* Returns whether the kernel for few rows or columns serves g: any sizes, if one stride of each operand is 1. */
bool sh_matmul_small_fits(const sh_matmul_args *g);
shoal_err sh_matmul_small(sh_exec *exec, const sh_matmul_args *g);

bool sh_matmul_tiles_fit(const sh_matmul_args *g);
shoal_err sh_matmul_tiles(sh_exec *exec, const sh_matmul_args *g);

#endif
