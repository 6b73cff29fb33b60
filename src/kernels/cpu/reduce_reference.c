/* Reductions as defined, in f64 and i64. */
#include "base/error.h"
#include "kernels/cpu/element.h"
#include "kernels/reduce_plan.h"

#include <math.h>

/* The result so far, of floats and of integers. */
typedef struct state {
    double sum, product, squares, greatest, least;
    uint64_t int_sum, int_product;
    int64_t int_greatest, int_least;
    int64_t argmax, argmin;
    bool any, all;
} state;

static void see_float(state *s, double x, int64_t i)
{
    s->sum += x;
    s->product *= x;
    s->squares += x * x;
    if (i == 0 || x > s->greatest || (isnan(x) && !isnan(s->greatest))) {
        s->greatest = x;
        s->argmax = i;
    }
    if (i == 0 || x < s->least || (isnan(x) && !isnan(s->least))) {
        s->least = x;
        s->argmin = i;
    }
    s->any |= x != 0;
    s->all &= x != 0;
}

static void see_int(state *s, int64_t x, int64_t i)
{
    s->int_sum += (uint64_t)x;
    s->int_product *= (uint64_t)x;
    if (i == 0 || x > s->int_greatest) {
        s->int_greatest = x;
        s->argmax = i;
    }
    if (i == 0 || x < s->int_least) {
        s->int_least = x;
        s->argmin = i;
    }
    s->any |= x != 0;
    s->all &= x != 0;
}

static void put_result(sh_reduce_op op, const sh_view *out, int64_t at, const state *s, bool is_float, int64_t each)
{
    double f = 0;
    int64_t i = 0;
    switch (op) {
    case SH_REDUCE_SUM: f = s->sum, i = (int64_t)s->int_sum; break;
    case SH_REDUCE_PROD: f = s->product, i = (int64_t)s->int_product; break;
    case SH_REDUCE_MEAN: f = s->sum / (double)each; break;
    case SH_REDUCE_SUMSQ: f = s->squares; break;
    case SH_REDUCE_MAX: f = s->greatest, i = s->int_greatest; break;
    case SH_REDUCE_MIN: f = s->least, i = s->int_least; break;
    case SH_REDUCE_ARGMAX: i = s->argmax, is_float = false; break;
    case SH_REDUCE_ARGMIN: i = s->argmin, is_float = false; break;
    case SH_REDUCE_ANY: i = s->any, is_float = false; break;
    default: i = s->all, is_float = false; break;
    }
    if (is_float) {
        sh_element_put(out->dtype, out->data, at, f);
    } else {
        sh_element_put_int(out->dtype, out->data, at, i);
    }
}

static state see_all(const sh_reduce_plan *p, const sh_view *a, bool is_float, int64_t offset)
{
    state s = {.product = 1, .int_product = 1, .all = true};
    int64_t at[SH_MAX_DIMS] = {0};
    for (int64_t i = 0; i < p->each; i++) {
        if (is_float) {
            see_float(&s, sh_get(a->dtype, a->data, offset), i);
        } else {
            see_int(&s, sh_get_int(a->dtype, a->data, offset), i);
        }
        (void)sh_reduce_next(p->reduced, p->reduced_shape, p->reduced_in, at, &offset);
    }
    return s;
}

static shoal_err reduce(sh_exec *exec, sh_reduce_op op, const sh_view *out, const sh_view *a)
{
    (void)exec;
    sh_reduce_plan p;
    shoal_err err = sh_reduce_plan_init(&p, op, out, a);
    bool is_float = sh_dtype_is_wide_float(a->dtype);
    int64_t in_at[SH_MAX_DIMS] = {0}, out_at[SH_MAX_DIMS] = {0}, from = 0, to = 0;
    for (int64_t r = 0; !err && r < p.results; r++) {
        state s = see_all(&p, a, is_float, from);
        put_result(op, out, to, &s, is_float, p.each);
        (void)sh_reduce_next(p.kept, p.kept_shape, p.kept_in, in_at, &from);
        (void)sh_reduce_next(p.kept, p.kept_shape, p.kept_out, out_at, &to);
    }
    return err;
}

static double log_sum_exp(const sh_reduce_plan *p, const sh_view *a, int64_t offset)
{
    double greatest = see_all(p, a, true, offset).greatest, sum = 0;
    if (p->each == 0) {
        return -INFINITY;
    }
    double shift = isinf(greatest) ? 0 : greatest;
    int64_t at[SH_MAX_DIMS] = {0};
    for (int64_t i = 0; i < p->each; i++) {
        sum += exp(sh_get(a->dtype, a->data, offset) - shift);
        (void)sh_reduce_next(p->reduced, p->reduced_shape, p->reduced_in, at, &offset);
    }
    return log(sum) + shift;
}

static shoal_err logsumexp(sh_exec *exec, const sh_view *out, const sh_view *a)
{
    (void)exec;
    sh_reduce_plan p;
    shoal_err err = sh_reduce_plan_init(&p, SH_REDUCE_SUMSQ, out, a);
    int64_t in_at[SH_MAX_DIMS] = {0}, out_at[SH_MAX_DIMS] = {0}, from = 0, to = 0;
    for (int64_t r = 0; !err && r < p.results; r++) {
        sh_element_put(out->dtype, out->data, to, log_sum_exp(&p, a, from));
        (void)sh_reduce_next(p.kept, p.kept_shape, p.kept_in, in_at, &from);
        (void)sh_reduce_next(p.kept, p.kept_shape, p.kept_out, out_at, &to);
    }
    return err;
}

const sh_reduce_kernels sh_reduce_kernels_reference = {.reduce = reduce, .logsumexp = logsumexp};
