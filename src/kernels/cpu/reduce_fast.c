/* Reductions with vectors: sums and extremes of f32 and f64, along contiguous memory or across it. Whatever else: the plain
 * version. */
#include "kernels/cpu/reduce_plan.h"
#include "kernels/isa.h"

#define COLUMNS 256

#define T float
#define NAME(x) f32_##x
#include "kernels/cpu/reduce_template.h"
#undef T
#undef NAME
#define T double
#define NAME(x) f64_##x
#include "kernels/cpu/reduce_template.h"
#undef T
#undef NAME

static bool is_fast(sh_reduce_op op, const sh_view *a)
{
    bool known = op == SH_REDUCE_SUM || op == SH_REDUCE_MEAN || op == SH_REDUCE_SUMSQ || op == SH_REDUCE_MAX ||
                 op == SH_REDUCE_MIN;
    return known && (a->dtype == SHOAL_F32 || a->dtype == SHOAL_F64);
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
    } else {
        return sh_reduce_kernels_reference.reduce(exec, op, out, a);
    }
    return SHOAL_OK;
}

static shoal_err logsumexp(sh_exec *exec, const sh_view *out, const sh_view *a)
{
    return sh_reduce_kernels_reference.logsumexp(exec, out, a);
}

const sh_reduce_kernels SH_ISA_NAME(sh_reduce_kernels) = {.reduce = reduce, .logsumexp = logsumexp};
