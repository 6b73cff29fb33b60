/* Matrix products.
 *
 *     C = act(alpha · A·B + bias)          accumulate false
 *     C = act(C + alpha · A·B + bias)      accumulate true
 *
 * for each of batch problems: A is m x k, B is k x n, C is m x n, bias is a row of n, added to every row of C. Strides count
 * elements; a transposed operand is one with its strides exchanged, and a batch stride of 0 repeats an operand. C has column
 * stride 1, may not overlap A, B or bias, and its batches may not overlap each other. k = 0 is a product of zeros.
 *
 * f32 and f64 in the dtype itself, with fused multiply-add where the CPU has it: the order of summation depends on the sizes and on
 * the instruction set. i64 and i32 wrap around; they know neither bias nor relu nor an alpha other than 1 and are never fast. */
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
