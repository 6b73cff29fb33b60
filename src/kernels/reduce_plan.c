#include "kernels/reduce_plan.h"

#include "base/error.h"

static bool joins(const int64_t strides[], int32_t last, int64_t size, int64_t stride)
{
    return last >= 0 && strides[last] == stride * size;
}

static shoal_err plan_shapes(sh_reduce_plan *p, const sh_view *out, const sh_view *a)
{
    *p = (sh_reduce_plan){.results = 1, .each = 1};
    if (out->ndim != a->ndim) {
        return sh_fail(SHOAL_EINVAL, "cannot reduce %d dimensions to %d", (int)a->ndim, (int)out->ndim);
    }
    for (int32_t d = 0; d < a->ndim; d++) {
        int64_t size = a->shape[d];
        if (out->shape[d] == 1) {
            p->each *= size;
            if (joins(p->reduced_in, p->reduced - 1, size, a->strides[d])) {
                p->reduced_shape[p->reduced - 1] *= size;
                p->reduced_in[p->reduced - 1] = a->strides[d];
            } else if (size != 1) {
                p->reduced_shape[p->reduced] = size;
                p->reduced_in[p->reduced++] = a->strides[d];
            }
        } else if (out->shape[d] == size) {
            p->results *= size;
            if (joins(p->kept_in, p->kept - 1, size, a->strides[d]) &&
                joins(p->kept_out, p->kept - 1, size, out->strides[d])) {
                p->kept_shape[p->kept - 1] *= size;
                p->kept_in[p->kept - 1] = a->strides[d];
                p->kept_out[p->kept - 1] = out->strides[d];
            } else {
                p->kept_shape[p->kept] = size;
                p->kept_in[p->kept] = a->strides[d];
                p->kept_out[p->kept++] = out->strides[d];
            }
        } else {
            return sh_fail(SHOAL_EINVAL, "cannot reduce %lld elements of dimension %d to %lld", (long long)size, (int)d,
                           (long long)out->shape[d]);
        }
    }
    return SHOAL_OK;
}

shoal_err sh_reduce_plan_init(sh_reduce_plan *p, sh_reduce_op op, const sh_view *out, const sh_view *a)
{
    shoal_dtype in = a->dtype, wanted = in;
    bool is_float = sh_dtype_is_wide_float(in);
    bool possible = is_float || in == SHOAL_I64 || in == SHOAL_I32 || in == SHOAL_U8 || in == SHOAL_B8;
    switch (op) {
    case SH_REDUCE_SUM:
    case SH_REDUCE_PROD: wanted = is_float ? in : SHOAL_I64; break;
    case SH_REDUCE_MEAN:
    case SH_REDUCE_SUMSQ: possible = is_float; break;
    case SH_REDUCE_MAX:
    case SH_REDUCE_MIN: break;
    case SH_REDUCE_ARGMAX:
    case SH_REDUCE_ARGMIN: wanted = SHOAL_I64; break;
    case SH_REDUCE_ANY:
    case SH_REDUCE_ALL: wanted = SHOAL_B8; break;
    default: possible = false;
    }
    if (!possible || out->dtype != wanted) {
        return sh_fail(SHOAL_EINVAL, "reduction %d from %s to %s is not defined", (int)op, shoal_dtype_name(in),
                       shoal_dtype_name(out->dtype));
    }
    shoal_err err = plan_shapes(p, out, a);
    bool needs_one = op == SH_REDUCE_MAX || op == SH_REDUCE_MIN || op == SH_REDUCE_ARGMAX || op == SH_REDUCE_ARGMIN;
    if (!err && needs_one && p->each == 0 && p->results > 0) {
        return sh_fail(SHOAL_EINVAL, "a maximum or minimum needs at least one element");
    }
    return err;
}
