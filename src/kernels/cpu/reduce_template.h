/* Reductions of one float dtype. reduce_fast.c includes it with T and NAME(x) defined. */
#include "kernels/cpu/rows_template.h"

/* ---- the innermost reduced dimension is contiguous: row by row ---- */

static void NAME(by_rows)(const sh_reduce_plan *p, sh_reduce_op op, T *out, const T *a)
{
    int64_t in_at[SH_MAX_DIMS] = {0}, out_at[SH_MAX_DIMS] = {0}, from = 0, to = 0;
    int32_t outer = p->reduced - 1;
    int64_t n = p->reduced_shape[outer];
    for (int64_t r = 0; r < p->results; r++) {
        int64_t at[SH_MAX_DIMS] = {0}, offset = from;
        double sum = 0;
        T best = a[from];
        do {
            const T *row = a + offset;
            T one;
            switch (op) {
            case SH_REDUCE_SUMSQ: sum += NAME(row_sumsq)(row, NULL, n); break;
            case SH_REDUCE_MAX:
                one = NAME(row_max)(row, n);
                best = ((one > best) | (one != one)) ? one : best;
                break;
            case SH_REDUCE_MIN:
                one = NAME(row_min)(row, n);
                best = ((one < best) | (one != one)) ? one : best;
                break;
            default: sum += NAME(row_sum)(row, NULL, n); break;
            }
        } while (sh_reduce_next(outer, p->reduced_shape, p->reduced_in, at, &offset));
        sum = op == SH_REDUCE_MEAN ? sum / (double)p->each : sum;
        out[to] = op == SH_REDUCE_MAX || op == SH_REDUCE_MIN ? best : (T)sum;
        (void)sh_reduce_next(p->kept, p->kept_shape, p->kept_in, in_at, &from);
        (void)sh_reduce_next(p->kept, p->kept_shape, p->kept_out, out_at, &to);
    }
}

/* ---- the innermost kept dimension is contiguous: many columns at once ---- */

/* sums[j] += row[j], or sums[j] = the greater or the smaller of the two. */
static inline void NAME(take_row)(sh_reduce_op op, T *restrict sums, const T *restrict row, int64_t n)
{
    switch (op) {
    case SH_REDUCE_SUMSQ:
        for (int64_t j = 0; j < n; j++) {
            sums[j] += row[j] * row[j];
        }
        break;
    case SH_REDUCE_MAX:
        for (int64_t j = 0; j < n; j++) {
            sums[j] = ((row[j] > sums[j]) | (row[j] != row[j])) ? row[j] : sums[j];
        }
        break;
    case SH_REDUCE_MIN:
        for (int64_t j = 0; j < n; j++) {
            sums[j] = ((row[j] < sums[j]) | (row[j] != row[j])) ? row[j] : sums[j];
        }
        break;
    default:
        for (int64_t j = 0; j < n; j++) {
            sums[j] += row[j];
        }
    }
}

/* Reduces n columns, at most COLUMNS. */
static void NAME(columns)(const sh_reduce_plan *p, sh_reduce_op op, T *out, int64_t out_step, const T *a, int64_t n)
{
    T sums[COLUMNS];
    double totals[COLUMNS];
    int64_t at[SH_MAX_DIMS] = {0}, offset = 0;
    bool extreme = op == SH_REDUCE_MAX || op == SH_REDUCE_MIN;
    for (int64_t j = 0; j < n; j++) {
        sums[j] = extreme ? a[j] : 0;
        totals[j] = 0;
    }
    for (int64_t i = 0; i < p->each; i++) {
        NAME(take_row)(op, sums, a + offset, n);
        if (!extreme && (i % 64 == 63 || i + 1 == p->each)) {
            for (int64_t j = 0; j < n; j++) {
                totals[j] += (double)sums[j];
                sums[j] = 0;
            }
        }
        (void)sh_reduce_next(p->reduced, p->reduced_shape, p->reduced_in, at, &offset);
    }
    for (int64_t j = 0; j < n; j++) {
        double total = op == SH_REDUCE_MEAN ? totals[j] / (double)p->each : totals[j];
        out[j * out_step] = extreme ? sums[j] : (T)total;
    }
}

static void NAME(by_columns)(const sh_reduce_plan *p, sh_reduce_op op, T *out, const T *a)
{
    int64_t in_at[SH_MAX_DIMS] = {0}, out_at[SH_MAX_DIMS] = {0}, from = 0, to = 0;
    int32_t outer = p->kept - 1;
    int64_t width = p->kept_shape[outer], step = p->kept_out[outer];
    do {
        for (int64_t j = 0; j < width; j += COLUMNS) {
            int64_t n = width - j < COLUMNS ? width - j : COLUMNS;
            NAME(columns)(p, op, out + to + j * step, step, a + from + j, n);
        }
        (void)sh_reduce_next(outer, p->kept_shape, p->kept_out, out_at, &to);
    } while (sh_reduce_next(outer, p->kept_shape, p->kept_in, in_at, &from));
}
