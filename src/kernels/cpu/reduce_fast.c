/* Reductions with vectors: sums and extremes of f32 and f64, along contiguous memory or across it, and of integers
 * along it. All other cases use the reference. */
#include "kernels/isa.h"
#include "kernels/reduce_plan.h"

#define COLUMNS 256

#define TEMPLATE "kernels/cpu/reduce_template.h"
#include "kernels/cpu/f32_f64.h"

/* For integers: sums are i64 and wrap around; VALUE is the number to add for an element. */
#define INT_BY_ROWS(name, A, VALUE)                                                                                    \
    static void name##_by_rows(const sh_reduce_plan *p, sh_reduce_op op, void *out, const A *a)                        \
    {                                                                                                                  \
        int64_t in_at[SH_MAX_DIMS] = {0}, out_at[SH_MAX_DIMS] = {0}, from = 0, to = 0;                                 \
        int32_t outer = p->reduced - 1;                                                                                \
        int64_t n = p->reduced_shape[outer];                                                                           \
        for (int64_t r = 0; r < p->results; r++) {                                                                     \
            int64_t at[SH_MAX_DIMS] = {0}, offset = from;                                                              \
            uint64_t sum = 0;                                                                                          \
            A best = a[from];                                                                                          \
            do {                                                                                                       \
                const A *row = a + offset;                                                                             \
                for (int64_t j = 0; op == SH_REDUCE_SUM && j < n; j++) {                                               \
                    sum += (uint64_t)VALUE(row[j]);                                                                    \
                }                                                                                                      \
                for (int64_t j = 0; op == SH_REDUCE_MAX && j < n; j++) {                                               \
                    best = row[j] > best ? row[j] : best;                                                              \
                }                                                                                                      \
                for (int64_t j = 0; op == SH_REDUCE_MIN && j < n; j++) {                                               \
                    best = row[j] < best ? row[j] : best;                                                              \
                }                                                                                                      \
            } while (sh_reduce_next(outer, p->reduced_shape, p->reduced_in, at, &offset));                             \
            if (op == SH_REDUCE_SUM) {                                                                                 \
                ((int64_t *)out)[to] = (int64_t)sum;                                                                   \
            } else {                                                                                                   \
                ((A *)out)[to] = best;                                                                                 \
            }                                                                                                          \
            (void)sh_reduce_next(p->kept, p->kept_shape, p->kept_in, in_at, &from);                                    \
            (void)sh_reduce_next(p->kept, p->kept_shape, p->kept_out, out_at, &to);                                    \
        }                                                                                                              \
    }
#define SAME(x) (x)
#define TRUTH(x) ((x) != 0)
INT_BY_ROWS(i64, int64_t, SAME)
INT_BY_ROWS(i32, int32_t, SAME)
INT_BY_ROWS(u8, uint8_t, SAME)
INT_BY_ROWS(b8, uint8_t, TRUTH)

/* Returns whether it has done the reduction. */
static bool integers_by_rows(const sh_reduce_plan *p, sh_reduce_op op, const sh_view *out, const sh_view *a)
{
    bool rows = p->each > 0 && p->results > 0 && p->reduced > 0 && p->reduced_in[p->reduced - 1] == 1;
    bool extreme = op == SH_REDUCE_MAX || op == SH_REDUCE_MIN;
    if (!rows || !(op == SH_REDUCE_SUM || (extreme && a->dtype != SHOAL_B8))) {
        return false;
    }
    switch (a->dtype) {
    case SHOAL_I64: i64_by_rows(p, op, out->data, a->data); return true;
    case SHOAL_I32: i32_by_rows(p, op, out->data, a->data); return true;
    case SHOAL_U8: u8_by_rows(p, op, out->data, a->data); return true;
    case SHOAL_B8: b8_by_rows(p, op, out->data, a->data); return true;
    default: return false;
    }
}

static bool is_fast(sh_reduce_op op, const sh_view *a)
{
    bool known = op == SH_REDUCE_SUM || op == SH_REDUCE_MEAN || op == SH_REDUCE_SUMSQ || op == SH_REDUCE_MAX ||
                 op == SH_REDUCE_MIN;
    return known && sh_dtype_is_wide_float(a->dtype);
}

static shoal_err reduce(sh_exec *exec, sh_reduce_op op, const sh_view *out, const sh_view *a)
{
    sh_reduce_plan p;
    shoal_err err = sh_reduce_plan_init(&p, op, out, a);
    if (err) {
        return err;
    }
    bool fast = is_fast(op, a) && p.each > 0 && p.results > 0;
    if (fast && p.reduced > 0 && p.reduced_in[p.reduced - 1] == 1) {
        if (a->dtype == SHOAL_F32) {
            f32_by_rows(&p, op, out->data, a->data);
        } else {
            f64_by_rows(&p, op, out->data, a->data);
        }
    } else if (fast && p.kept > 0 && p.kept_in[p.kept - 1] == 1) {
        if (a->dtype == SHOAL_F32) {
            f32_by_columns(&p, op, out->data, a->data);
        } else {
            f64_by_columns(&p, op, out->data, a->data);
        }
    } else if (!integers_by_rows(&p, op, out, a)) {
        return sh_reduce_kernels_reference.reduce(exec, op, out, a);
    }
    return SHOAL_OK;
}

static shoal_err logsumexp(sh_exec *exec, const sh_view *out, const sh_view *a)
{
    return sh_reduce_kernels_reference.logsumexp(exec, out, a);
}

const sh_reduce_kernels SH_ISA_NAME(sh_reduce_kernels) = {.reduce = reduce, .logsumexp = logsumexp};
