/* Softmax along a dimension other than the last, of one dtype. softmax_columns_fast.c includes it with T and NAME(x)
 * defined. It works on w columns, at most COLUMNS, of n elements that are step apart. */

static void NAME(forward_columns)(sh_softmax_op op, int64_t w, int64_t n, int64_t step, T *y, const T *x)
{
    T greatest[COLUMNS];
    double sums[COLUMNS];
    for (int64_t j = 0; j < w; j++) {
        greatest[j] = x[j];
        sums[j] = 0;
    }
    for (int64_t i = 1; i < n; i++) {
        const T *row = x + i * step;
        for (int64_t j = 0; j < w; j++) {
            greatest[j] = ((row[j] > greatest[j]) | (row[j] != row[j])) ? row[j] : greatest[j];
        }
    }
    for (int64_t i = 0; i < n; i++) {
        const T *from = x + i * step;
        T *to = y + i * step, e[COLUMNS];
        SH_INDEPENDENT for (int64_t j = 0; j < w; j++)
        {
            T shifted = from[j] - greatest[j];
            e[j] = SH_EXP(shifted);
            to[j] = op == SH_SOFTMAX ? e[j] : shifted;
        }
        for (int64_t j = 0; j < w; j++) {
            sums[j] += (double)e[j];
        }
    }
    for (int64_t j = 0; j < w; j++) {
        T sum = (T)sums[j];
        greatest[j] = op == SH_SOFTMAX ? 1 / sum : SH_LOG(sum);
    }
    for (int64_t i = 0; i < n; i++) {
        T *to = y + i * step;
        for (int64_t j = 0; j < w; j++) {
            to[j] = op == SH_SOFTMAX ? to[j] * greatest[j] : to[j] - greatest[j];
        }
    }
}

static void NAME(backward_columns)(sh_softmax_op op, int64_t w, int64_t n, int64_t step, T *dx, const T *dy, const T *y)
{
    double sums[COLUMNS] = {0};
    T sum[COLUMNS];
    for (int64_t i = 0; i < n; i++) {
        const T *g = dy + i * step, *v = y + i * step;
        for (int64_t j = 0; j < w; j++) {
            sums[j] += (double)(op == SH_SOFTMAX ? g[j] * v[j] : g[j]);
        }
    }
    for (int64_t j = 0; j < w; j++) {
        sum[j] = (T)sums[j];
    }
    for (int64_t i = 0; i < n; i++) {
        const T *g = dy + i * step, *v = y + i * step;
        T *to = dx + i * step;
        SH_INDEPENDENT for (int64_t j = 0; j < w; j++)
        {
            to[j] = op == SH_SOFTMAX ? v[j] * (g[j] - sum[j]) : g[j] - SH_EXP(v[j]) * sum[j];
        }
    }
}
