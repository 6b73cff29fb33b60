/* Softmax and its losses with vectors. The loops along the last dimension are in softmax_template.h, those along other
 * dimensions in softmax_columns_fast.c. Losses whose classes are not the last dimension compute the gradient as the
 * reference does. */
#include "kernels/softmax.h"

#include "kernels/cpu/element.h"
#include "kernels/cpu/loop.h"
#include "kernels/cpu/math_fast.h"
#include "kernels/cpu/softmax_check.h"
#include "kernels/cpu/softmax_columns.h"
#include "kernels/isa.h"

#define TEMPLATE "kernels/cpu/softmax_template.h"
#include "kernels/cpu/f32_f64.h"

/* Returns how many rows are computed together. */
static int64_t rows_of(const sh_softmax_shape *s)
{
    int64_t rows = s->n > 0 ? 1024 / s->n : 1;
    return rows > 0 ? rows : 1;
}

static bool needs_reference(const sh_softmax_shape *s)
{
    return s->inner != 1 || s->n == 0 || (s->dtype != SHOAL_F32 && s->dtype != SHOAL_F64);
}

/* Checks whether to work on many columns at a time; if there are few, vectors would be mostly empty. */
static bool is_columns(const sh_softmax_shape *s)
{
    return s->inner >= 4 && s->n > 0 && sh_dtype_is_wide_float(s->dtype);
}

static shoal_err forward(sh_exec *exec, sh_softmax_op op, const sh_softmax_shape *s, void *y, const void *x)
{
    if (is_columns(s)) {
        SH_ISA_NAME(sh_softmax_by_columns)(op, s, y, x, NULL);
        return SHOAL_OK;
    }
    if (needs_reference(s)) {
        return sh_softmax_kernels_reference.forward(exec, op, s, y, x);
    }
    int64_t step = rows_of(s), n = s->n;
    void *scratch = sh_exec_scratch(exec, (size_t)(step * n) * sizeof(double));
    if (!scratch) {
        return SHOAL_ENOMEM;
    }
    for (int64_t r = 0; r < s->outer; r += step) {
        int64_t rows = s->outer - r < step ? s->outer - r : step;
        if (s->dtype == SHOAL_F32) {
            f32_forward_rows(op, rows, n, (float *)y + r * n, (const float *)x + r * n, scratch);
        } else {
            f64_forward_rows(op, rows, n, (double *)y + r * n, (const double *)x + r * n, scratch);
        }
    }
    return SHOAL_OK;
}

static shoal_err backward(sh_exec *exec, sh_softmax_op op, const sh_softmax_shape *s, void *dx, const void *dy,
                          const void *y)
{
    if (is_columns(s)) {
        SH_ISA_NAME(sh_softmax_by_columns)(op, s, dx, y, dy);
        return SHOAL_OK;
    }
    if (needs_reference(s)) {
        return sh_softmax_kernels_reference.backward(exec, op, s, dx, dy, y);
    }
    int64_t step = rows_of(s), n = s->n;
    void *scratch = sh_exec_scratch(exec, (size_t)(step * n) * sizeof(double));
    if (!scratch) {
        return SHOAL_ENOMEM;
    }
    for (int64_t r = 0; r < s->outer; r += step) {
        int64_t rows = s->outer - r < step ? s->outer - r : step, at = r * n;
        if (s->dtype == SHOAL_F32) {
            f32_backward_rows(op, rows, n, (float *)dx + at, (const float *)dy + at, (const float *)y + at, scratch);
        } else {
            f64_backward_rows(op, rows, n, (double *)dx + at, (const double *)dy + at, (const double *)y + at, scratch);
        }
    }
    return SHOAL_OK;
}

static shoal_err gradient(const sh_nll_args *args, void *dx, const void *dloss, const void *total,
                          const void *log_probs)
{
    const sh_softmax_shape *s = &args->shape;
    shoal_err err = sh_nll_check(args);
    int64_t step = rows_of(s);
    for (int64_t r = 0; !err && r < s->outer; r += step) {
        int64_t rows = s->outer - r < step ? s->outer - r : step, at = r * s->n;
        if (s->dtype == SHOAL_F32) {
            f32_gradient_rows(args, r, rows, (float *)dx + at, dloss, total,
                              log_probs ? (const float *)log_probs + at : NULL);
        } else {
            f64_gradient_rows(args, r, rows, (double *)dx + at, dloss, total,
                              log_probs ? (const double *)log_probs + at : NULL);
        }
    }
    return err;
}

/* Sums one number per row, so vectors would gain nothing. */
static shoal_err nll(sh_exec *exec, const sh_nll_args *args, void *loss, void *total, const void *log_probs)
{
    return sh_softmax_kernels_reference.nll(exec, args, loss, total, log_probs);
}

static shoal_err nll_backward(sh_exec *exec, const sh_nll_args *args, void *dx, const void *dloss, const void *total)
{
    if (needs_reference(&args->shape)) {
        return sh_softmax_kernels_reference.nll_backward(exec, args, dx, dloss, total);
    }
    return gradient(args, dx, dloss, total, NULL);
}

static shoal_err cross_entropy(sh_exec *exec, const sh_nll_args *args, void *loss, void *total, void *log_probs,
                               const void *x)
{
    shoal_err err = sh_nll_check(args);
    if (!err) {
        err = forward(exec, SH_LOG_SOFTMAX, &args->shape, log_probs, x);
    }
    return err ? err : nll(exec, args, loss, total, log_probs);
}

static shoal_err cross_entropy_backward(sh_exec *exec, const sh_nll_args *args, void *dx, const void *dloss,
                                        const void *total, const void *log_probs)
{
    if (needs_reference(&args->shape)) {
        return sh_softmax_kernels_reference.cross_entropy_backward(exec, args, dx, dloss, total, log_probs);
    }
    return gradient(args, dx, dloss, total, log_probs);
}

const sh_softmax_kernels SH_ISA_NAME(sh_softmax_kernels) = {
    .forward = forward,
    .backward = backward,
    .nll = nll,
    .nll_backward = nll_backward,
    .cross_entropy = cross_entropy,
    .cross_entropy_backward = cross_entropy_backward,
};
