/* Softmax along the last dimension (inner = 1), of one dtype. softmax_fast.c includes it with T and NAME(x) defined.
 *
 * Rows of class scores are short, so several are computed together: exp then runs over long arrays. */
#include "kernels/cpu/rows_template.h"

/* y = x - max of the row, for rows of n. */
static void NAME(shift)(int64_t rows, int64_t n, T *y, const T *x)
{
    for (int64_t r = 0; r < rows; r++, x += n, y += n) {
        T m = NAME(row_max)(x, n);
        SH_INDEPENDENT for (int64_t j = 0; j < n; j++)
        {
            y[j] = x[j] - m;
        }
    }
}

static void NAME(exponentials)(T *to, const T *from, int64_t n)
{
    SH_INDEPENDENT for (int64_t i = 0; i < n; i++)
    {
        to[i] = SH_EXP(from[i]);
    }
}

static void NAME(forward_rows)(sh_softmax_op op, int64_t rows, int64_t n, T *y, const T *x, T *scratch)
{
    NAME(shift)(rows, n, y, x);
    T *e = op == SH_SOFTMAX ? y : scratch;
    NAME(exponentials)(e, y, rows * n);
    for (int64_t r = 0; r < rows; r++, y += n, e += n) {
        T sum = (T)NAME(row_sum)(e, NULL, n);
        T factor = 1 / sum, shift = SH_LOG(sum);
        SH_INDEPENDENT for (int64_t j = 0; j < n; j++)
        {
            y[j] = op == SH_SOFTMAX ? y[j] * factor : y[j] - shift;
        }
    }
}

static void NAME(backward_rows)(sh_softmax_op op, int64_t rows, int64_t n, T *dx, const T *dy, const T *y, T *scratch)
{
    if (op == SH_LOG_SOFTMAX) {
        NAME(exponentials)(scratch, y, rows * n);
    }
    for (int64_t r = 0; r < rows; r++, dx += n, dy += n, y += n, scratch += n) {
        T sum = (T)(op == SH_SOFTMAX ? NAME(row_dot)(dy, y, n) : NAME(row_sum)(dy, NULL, n));
        SH_INDEPENDENT for (int64_t j = 0; j < n; j++)
        {
            dx[j] = op == SH_SOFTMAX ? y[j] * (dy[j] - sum) : dy[j] - scratch[j] * sum;
        }
    }
}

/* dx = scale · (softmax - onehot), with a separate scale for each row. If log_probs is NULL, softmax counts as 0. */
static void NAME(gradient_rows)(const sh_nll_args *args, int64_t first, int64_t rows, T *dx, const T *dloss,
                                const T *total, const T *log_probs)
{
    int64_t n = args->shape.n;
    const T *weight = args->weight;
    if (log_probs) {
        NAME(exponentials)(dx, log_probs, rows * n);
    } else {
        memset(dx, 0, (size_t)(rows * n) * sizeof(T));
    }
    for (int64_t r = 0; r < rows; r++, dx += n) {
        int64_t t = args->target[first + r];
        if (t == args->ignore_index) {
            memset(dx, 0, (size_t)n * sizeof(T));
            continue;
        }
        T scale = dloss[args->reduction == SHOAL_REDUCTION_NONE ? first + r : 0] * (weight ? weight[t] : 1);
        scale = args->reduction == SHOAL_REDUCTION_MEAN ? scale / *total : scale;
        for (int64_t j = 0; j < n; j++) {
            dx[j] *= scale;
        }
        dx[t] -= scale;
    }
}
