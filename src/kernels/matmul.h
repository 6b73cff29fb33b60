/* The contract of the matrix product.
 *
 *     C = act(alpha · A·B + bias)          accumulate false
 *     C = act(C + alpha · A·B + bias)      accumulate true
 *
 * This is computed for each of `batch` problems. A is m x k, B is k x n, C is m x n; bias has n elements and is added
 * to every row of C. Strides count elements: swap the two strides to transpose an operand, and use batch stride 0 to
 * repeat it. C has column stride 1, may not overlap A, B or bias, and its batches may not overlap each other. If k is
 * 0, A·B is zero.
 *
 * f32 and f64 are computed in their own precision, with fused multiply-add if the CPU has it. The order of summation
 * depends on the sizes and on the instruction set. i64 and i32 wrap around, support no bias, no relu and no alpha other
 * than 1, and have no fast version. */
#ifndef SH_KERNELS_MATMUL_H
#define SH_KERNELS_MATMUL_H

#include "kernels/view.h"

typedef struct sh_matmul_args {
    shoal_dtype dtype; /* of all operands */
    int64_t batch, m, n, k;
    const void *a;
    int64_t a_row, a_col, a_batch;
    const void *b;
    int64_t b_row, b_col, b_batch;
    void *c;
    int64_t c_row, c_batch;
    const void *bias; /* n elements, contiguous, the same for all batches; or NULL */
    double alpha;
    bool accumulate;
    bool relu; /* act is relu; else the identity */
} sh_matmul_args;

typedef struct sh_matmul_kernels {
    shoal_err (*matmul)(sh_exec *exec, const sh_matmul_args *args);
} sh_matmul_kernels;

extern const sh_matmul_kernels sh_matmul_kernels_reference;
extern const sh_matmul_kernels sh_matmul_kernels_avx2;
extern const sh_matmul_kernels sh_matmul_kernels_avx512;

#endif
