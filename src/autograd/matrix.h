/* Matrix products that backward writes directly into a gradient. */
#ifndef SH_AUTOGRAD_MATRIX_H
#define SH_AUTOGRAD_MATRIX_H

#include "autograd/op.h"

/* The elements of a tensor as a matrix; row and col are the strides from one row, and one column, to the next. */
typedef struct sh_matrix {
    const void *data;
    int64_t rows, cols;
    int64_t row, col;
} sh_matrix;

/* Returns a 2-d tensor as a matrix. */
sh_matrix sh_matrix_of(const shoal_tensor *t);

static inline sh_matrix sh_matrix_transposed(sh_matrix m)
{
    return (sh_matrix){m.data, m.cols, m.rows, m.col, m.row};
}

/* Sets the gradient of an input to a·b. */
shoal_err sh_back_give_product(sh_back *back, int input, sh_matrix a, sh_matrix b);

#endif
