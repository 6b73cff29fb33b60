/* Matrices for backward: products that go straight into a gradient. */
#ifndef SH_AUTOGRAD_MATRIX_H
#define SH_AUTOGRAD_MATRIX_H

#include "autograd/op.h"

/* Elements of a tensor as a matrix; row and col are the steps from one row, and one column, to the next. */
typedef struct sh_matrix {
    const void *data;
    int64_t rows, cols;
    int64_t row, col;
} sh_matrix;

/* A 2-d tensor. */
sh_matrix sh_matrix_of(const shoal_tensor *t);

static inline sh_matrix sh_matrix_transposed(sh_matrix m)
{
    return (sh_matrix){m.data, m.cols, m.rows, m.col, m.row};
}

/* The gradient of an input is a·b. */
shoal_err sh_back_give_product(sh_back *back, int input, sh_matrix a, sh_matrix b);

#endif
