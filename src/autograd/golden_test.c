/* Compares every op with PyTorch's results and gradients, which are in tests/golden/ops.bin (see the README there). */
#include "autograd/op.h"
#include "tests/harness/numbers.h"
#include "tests/harness/runner.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PATH "tests/golden/ops.bin"

/* ---- calls: op, name in the file, expression ---- */

static shoal_tensor *lstm(shoal_tensor **in)
{
    shoal_tensor *h, *c;
    return shoal_lstm_cell(in[0], in[1], in[2], in[3], in[4], in[5], in[6], &h, &c) == SHOAL_OK
               ? shoal_add(h, shoal_mul_scalar(c, 0.5))
               : NULL;
}

/* clang-format off */
#define CALLS(X) \
    X(abs, "abs", shoal_abs(x)) \
    X(square, "square", shoal_square(x)) \
    X(sqrt, "sqrt", shoal_sqrt(x)) \
    X(rsqrt, "rsqrt", shoal_rsqrt(x)) \
    X(reciprocal, "reciprocal", shoal_reciprocal(x)) \
    X(exp, "exp", shoal_exp(x)) \
    X(log, "log", shoal_log(x)) \
    X(sin, "sin", shoal_sin(x)) \
    X(cos, "cos", shoal_cos(x)) \
    X(sigmoid, "sigmoid", shoal_sigmoid(x)) \
    X(tanh, "tanh", shoal_tanh(x)) \
    X(relu, "relu", shoal_relu(x)) \
    X(gelu, "gelu", shoal_gelu(x)) \
    X(neg, "neg", shoal_neg(x)) \
    X(sign, "sign", shoal_sign(x)) \
    X(logical_not, "logical_not", shoal_logical_not(x)) \
    X(add_scalar, "add_scalar", shoal_add_scalar(x, 1.5)) \
    X(mul_scalar, "mul_scalar", shoal_mul_scalar(x, -2.5)) \
    X(pow_scalar, "pow_scalar", shoal_pow_scalar(x, 2.5)) \
    X(pow_scalar, "pow_scalar.2", shoal_pow_scalar(x, 2)) \
    X(pow_scalar, "pow_scalar.3", shoal_pow_scalar(x, 3)) \
    X(leaky_relu, "leaky_relu", shoal_leaky_relu(x, 0.1)) \
    X(clamp, "clamp", shoal_clamp(x, -1, 1)) \
    X(clamp, "clamp.nan", shoal_clamp(x, NAN, 1)) \
    X(clamp, "clamp.above", shoal_clamp(x, 0, INFINITY)) \
    X(clamp, "clamp.byte", shoal_clamp(x, 0, 255)) \
    X(relu, "relu_", shoal_relu_(shoal_clone(x))) \
    X(clamp, "clamp_", shoal_clamp_(shoal_clone(x), -1, 1)) \
    X(mul_scalar, "mul_scalar_", shoal_mul_scalar_(shoal_clone(x), -2.5)) \
    X(clone, "clone", shoal_clone(x)) \
    X(fill_, "fill_", shoal_fill_(shoal_clone(x), 2)) \
    X(add, "add", shoal_add(x, y)) \
    X(sub, "sub", shoal_sub(x, y)) \
    X(add_scaled, "add_scaled", shoal_add_scaled_(shoal_clone(x), y, 0.3)) \
    X(mul, "mul", shoal_mul(x, y)) \
    X(div, "div", shoal_div(x, y)) \
    X(mul, "mul_", shoal_mul_(shoal_clone(x), y)) \
    X(div, "div_", shoal_div_(shoal_clone(x), y)) \
    X(pow, "pow", shoal_pow(x, y)) \
    X(maximum, "maximum", shoal_maximum(x, y)) \
    X(minimum, "minimum", shoal_minimum(x, y)) \
    X(where, "where", shoal_where(x, y, z)) \
    X(where, "masked_fill", shoal_masked_fill(x, y, 2)) \
    X(eq, "eq", shoal_eq(x, y)) \
    X(ne, "ne", shoal_ne(x, y)) \
    X(lt, "lt", shoal_lt(x, y)) \
    X(le, "le", shoal_le(x, y)) \
    X(gt, "gt", shoal_gt(x, y)) \
    X(ge, "ge", shoal_ge(x, y)) \
    X(logical_and, "logical_and", shoal_logical_and(x, y)) \
    X(logical_or, "logical_or", shoal_logical_or(x, y)) \
    X(copy_, "copy_", shoal_copy_(shoal_clone(x), y)) \
    X(view, "view", shoal_reshape(x, SHOAL_SHAPE(2, -1))) \
    X(permute, "permute", shoal_permute(x, SHOAL_SHAPE(2, 0, 1))) \
    X(expand, "expand", shoal_expand(x, SHOAL_SHAPE(3, 2, -1))) \
    X(slice, "slice", shoal_slice(x, 1, 1, 6, 2)) \
    X(slice, "select", shoal_select(x, 1, -1)) \
    X(to, "to", shoal_to_dtype(x, SHOAL_F64)) \
    X(sum, "sum", shoal_sum(x, SHOAL_ALL_DIMS, false)) \
    X(sum, "sum.0", shoal_sum(x, 0, false)) \
    X(sum, "sum.1.keep", shoal_sum(x, 1, true)) \
    X(mean, "mean", shoal_mean(x, SHOAL_ALL_DIMS, false)) \
    X(mean, "mean.0", shoal_mean(x, 0, false)) \
    X(mean, "mean.1.keep", shoal_mean(x, 1, true)) \
    X(prod, "prod", shoal_prod(x, SHOAL_ALL_DIMS, false)) \
    X(prod, "prod.0", shoal_prod(x, 0, false)) \
    X(prod, "prod.1.keep", shoal_prod(x, 1, true)) \
    X(max, "max", shoal_max(x, SHOAL_ALL_DIMS, false)) \
    X(max, "max.1.keep", shoal_max(x, 1, true)) \
    X(min, "min", shoal_min(x, SHOAL_ALL_DIMS, false)) \
    X(min, "min.1.keep", shoal_min(x, 1, true)) \
    X(argmax, "argmax", shoal_argmax(x, SHOAL_ALL_DIMS, false)) \
    X(argmax, "argmax.1.keep", shoal_argmax(x, 1, true)) \
    X(argmin, "argmin", shoal_argmin(x, SHOAL_ALL_DIMS, false)) \
    X(argmin, "argmin.1.keep", shoal_argmin(x, 1, true)) \
    X(any, "any.1.keep", shoal_any(x, 1, true)) \
    X(all, "all.1.keep", shoal_all(x, 1, true)) \
    X(logsumexp, "logsumexp", shoal_logsumexp(x, SHOAL_ALL_DIMS, false)) \
    X(logsumexp, "logsumexp.1.keep", shoal_logsumexp(x, 1, true)) \
    X(norm, "norm", shoal_norm(x)) \
    X(matmul, "matmul", shoal_matmul(x, y)) \
    X(linear, "linear", shoal_linear(x, y, z)) \
    X(linear, "linear_relu", shoal_linear_relu(x, y, z)) \
    X(cat, "cat", shoal_cat(in, 3, 1)) \
    X(cat, "stack", shoal_stack(in, 2, 1)) \
    X(index_select, "index_select", shoal_index_select(x, 1, y)) \
    X(index_select, "index_select.0", shoal_index_select(x, 0, y)) \
    X(index_select, "embedding", shoal_embedding(x, y)) \
    X(gather, "gather", shoal_gather(x, 1, y)) \
    X(scatter_add, "scatter_add", shoal_scatter_add(x, 0, y, z)) \
    X(one_hot, "one_hot", shoal_one_hot(x, 5)) \
    X(conv2d, "conv2d", shoal_conv2d(x, y, z, NULL)) \
    X(conv2d, "conv2d.options", shoal_conv2d(x, y, z, &(shoal_conv2d_options){{2, 1}, {1, 2}, {1, 2}, 2})) \
    X(conv2d_pool_relu, "conv2d_pool_relu", shoal_conv2d_pool_relu(x, y, z, 1, 0)) \
    X(max_pool2d, "max_pool2d", shoal_max_pool2d(x, 2)) \
    X(max_pool2d, "max_pool2d.options", shoal_max_pool2d_with(x, &(shoal_pool2d_options){{3, 2}, {2, 1}, {1, 1}})) \
    X(avg_pool2d, "avg_pool2d", shoal_avg_pool2d(x, 2)) \
    X(avg_pool2d, "avg_pool2d.options", shoal_avg_pool2d_with(x, &(shoal_pool2d_options){{3, 2}, {2, 1}, {1, 1}})) \
    X(softmax, "softmax.1", shoal_softmax(x, 1)) \
    X(softmax, "softmax.0", shoal_softmax(x, 0)) \
    X(log_softmax, "log_softmax.1", shoal_log_softmax(x, 1)) \
    X(log_softmax, "log_softmax.0", shoal_log_softmax(x, 0)) \
    X(nll_loss, "nll_loss", shoal_nll_loss(x, y)) \
    X(nll_loss, "nll_loss.weight", shoal_nll_loss_with(x, y, z, SHOAL_REDUCTION_MEAN)) \
    X(nll_loss, "nll_loss.none", shoal_nll_loss_with(x, y, NULL, SHOAL_REDUCTION_NONE)) \
    X(nll_loss, "nll_loss.sum", shoal_nll_loss_with(x, y, NULL, SHOAL_REDUCTION_SUM)) \
    X(cross_entropy, "cross_entropy", shoal_cross_entropy(x, y)) \
    X(cross_entropy, "cross_entropy.none", shoal_cross_entropy_with(x, y, SHOAL_REDUCTION_NONE)) \
    X(cross_entropy, "cross_entropy.sum", shoal_cross_entropy_with(x, y, SHOAL_REDUCTION_SUM)) \
    X(mse_loss, "mse_loss.mean", shoal_mse_loss(x, y, SHOAL_REDUCTION_MEAN)) \
    X(mse_loss, "mse_loss.sum", shoal_mse_loss(x, y, SHOAL_REDUCTION_SUM)) \
    X(mse_loss, "mse_loss.none", shoal_mse_loss(x, y, SHOAL_REDUCTION_NONE)) \
    X(l1_loss, "l1_loss.mean", shoal_l1_loss(x, y, SHOAL_REDUCTION_MEAN)) \
    X(l1_loss, "l1_loss.sum", shoal_l1_loss(x, y, SHOAL_REDUCTION_SUM)) \
    X(l1_loss, "l1_loss.none", shoal_l1_loss(x, y, SHOAL_REDUCTION_NONE)) \
    X(smooth_l1_loss, "smooth_l1_loss.mean", shoal_smooth_l1_loss(x, y, SHOAL_REDUCTION_MEAN)) \
    X(smooth_l1_loss, "smooth_l1_loss.sum", shoal_smooth_l1_loss(x, y, SHOAL_REDUCTION_SUM)) \
    X(smooth_l1_loss, "smooth_l1_loss.none", shoal_smooth_l1_loss(x, y, SHOAL_REDUCTION_NONE)) \
    X(bce_with_logits, "bce_with_logits.mean", shoal_bce_with_logits(x, y, SHOAL_REDUCTION_MEAN)) \
    X(bce_with_logits, "bce_with_logits.sum", shoal_bce_with_logits(x, y, SHOAL_REDUCTION_SUM)) \
    X(bce_with_logits, "bce_with_logits.none", shoal_bce_with_logits(x, y, SHOAL_REDUCTION_NONE)) \
    X(layer_norm, "layer_norm", shoal_layer_norm(x, y, z, 1, 1e-5)) \
    X(layer_norm, "layer_norm.2", shoal_layer_norm(x, y, z, 2, 1e-5)) \
    X(layer_norm, "layer_norm.plain", shoal_layer_norm(x, NULL, NULL, 1, 1e-3)) \
    X(lstm_cell, "lstm_cell", lstm(in))
/* clang-format on */

static const struct {
    const char *op, *name;
} calls[] = {
#define ROW(op, name, call) {#op, name},
    CALLS(ROW)
#undef ROW
};

enum {
    COUNT = sizeof calls / sizeof calls[0],
};

static bool seen[COUNT];

static shoal_tensor *run(const char *wanted, shoal_tensor **in)
{
    shoal_tensor *x = in[0], *y = in[1], *z = in[2];
    int i = 0;
#define RUN(op, name, call)                                                                                            \
    if (strcmp(name, wanted) == 0) {                                                                                   \
        seen[i] = true;                                                                                                \
        return call;                                                                                                   \
    }                                                                                                                  \
    i++;
    CALLS(RUN)
#undef RUN
    ck_abort_msg("%s is in the file but has no call here", wanted);
    return NULL;
}

/* ---- the file ---- */

typedef struct record {
    char role;
    shoal_tensor *t; /* owned */
} record;

typedef struct entry {
    char name[256];
    record records[32];
    int count;
} entry;

static void take(FILE *file, void *out, size_t size)
{
    ck_assert_msg(fread(out, 1, size, file) == size, PATH ": file is truncated");
}

static record read_record(FILE *file)
{
    uint8_t head[4];
    int64_t shape[SHOAL_MAX_DIMS];
    take(file, head, sizeof head);
    ck_assert(head[1] < SHOAL_DTYPES && head[2] <= SHOAL_MAX_DIMS);
    take(file, shape, head[2] * sizeof shape[0]);
    shoal_tensor *t = shoal_empty((shoal_dtype)head[1], head[2], shape);
    ck_assert_ptr_nonnull(t);
    take(file, shoal_tensor_data(t), shoal_tensor_storage_size(t));
    return (record){(char)head[0], t};
}

static entry read_entry(FILE *file)
{
    entry e = {0};
    uint8_t head[2];
    take(file, head, sizeof head);
    take(file, e.name, head[0]);
    ck_assert(head[1] <= 32);
    for (; e.count < head[1]; e.count++) {
        e.records[e.count] = read_record(file);
    }
    return e;
}

/* ---- comparison ---- */

/* Compares with the values in the file; if summed is set, with the sum of their rows. */
static void expect(const entry *e, const char *what, const shoal_tensor *got, shoal_tensor *stored, bool summed)
{
    shoal_tensor *wanted = summed ? shoal_sum(stored, 0, true) : stored;
    ck_assert_msg(got != NULL, "%s, %s: %s", e->name, what, shoal_last_error_text());
    sh_text a, b;
    ck_assert_msg(got->dtype == wanted->dtype && got->ndim == wanted->ndim &&
                      memcmp(got->shape, wanted->shape, sizeof got->shape[0] * (size_t)got->ndim) == 0,
                  "%s, %s: %s, not %s", e->name, what, sh_tensor_text(&a, got), sh_tensor_text(&b, wanted));
    double limit = got->dtype == SHOAL_F32 ? 1e-5 : got->dtype == SHOAL_F64 ? 1e-10 : 0, greatest = 0;
    shoal_no_grad_begin();
    shoal_tensor *g = shoal_contiguous(shoal_to_dtype(shoal_detach((shoal_tensor *)(uintptr_t)got), SHOAL_F64));
    shoal_tensor *w = shoal_to_dtype(shoal_detach((shoal_tensor *)(uintptr_t)wanted), SHOAL_F64);
    shoal_no_grad_end();
    const double *pg = shoal_tensor_data(g), *pw = shoal_tensor_data(w);
    shoal_tensor *all = shoal_to_dtype(stored, SHOAL_F64);
    const double *terms = shoal_tensor_data(all);
    for (int64_t i = 0; i < all->count; i++) {
        greatest = isfinite(terms[i]) && fabs(terms[i]) > greatest ? fabs(terms[i]) : greatest;
    }
    for (int64_t i = 0; i < w->count; i++) {
        bool same = pg[i] == pw[i] || (isnan(pg[i]) && isnan(pw[i])) ||
                    fabs(pg[i] - pw[i]) <= limit * (fabs(pw[i]) + 0.1 * greatest);
        ck_assert_msg(same, "%s, %s of %s at %lld: %.17g, not %.17g", e->name, what, sh_tensor_text(&a, wanted),
                      (long long)i, pg[i], pw[i]);
    }
}

typedef enum layout {
    LAYOUT_PLAIN,
    LAYOUT_TRANSPOSED,
    LAYOUT_SLICED,
    LAYOUT_EXPANDED, /* if all rows are equal: one row, repeated with stride 0; otherwise plain */
    LAYOUTS,
} layout;

static bool is_repeated(const shoal_tensor *t)
{
    if (t->ndim == 0 || t->shape[0] < 2 || t->count == 0) {
        return false;
    }
    size_t row = (size_t)(t->count / t->shape[0]) * shoal_dtype_size(t->dtype);
    const char *data = shoal_tensor_data(t);
    for (int64_t i = 1; i < t->shape[0]; i++) {
        if (memcmp(data, data + (size_t)i * row, row) != 0) {
            return false;
        }
    }
    return true;
}

/* Returns the input, a view that holds the record's values, and in *out_leaf the leaf that it views,
 * which the caller owns. */
static shoal_tensor *lay_out(shoal_tensor *t, layout how, shoal_tensor **out_leaf)
{
    int ndim = t->ndim;
    int64_t dims[SHOAL_MAX_DIMS], shape[SHOAL_MAX_DIMS];
    for (int d = 0; d < ndim; d++) {
        dims[d] = ndim - 1 - d;
        shape[d] = how == LAYOUT_TRANSPOSED ? t->shape[dims[d]] : t->shape[d];
    }
    if (how == LAYOUT_SLICED && ndim > 0) {
        shape[ndim - 1] = 2 * shape[ndim - 1];
    }
    bool repeated = how == LAYOUT_EXPANDED && is_repeated(t);
    shape[0] = repeated ? 1 : shape[0];
    shoal_tensor *leaf = shoal_zeros(t->dtype, ndim, shape);
    bool is_float = t->dtype == SHOAL_F32 || t->dtype == SHOAL_F64;
    shoal_tensor *view = leaf;
    for (int pass = 0; pass < 2; pass++) { /* first to write the values, then to record the view */
        if (pass == 1) {
            ck_assert_ok(shoal_tensor_set_requires_grad(leaf, is_float));
        }
        view = ndim == 0                  ? leaf
               : how == LAYOUT_TRANSPOSED ? shoal_permute(leaf, ndim, dims)
               : how == LAYOUT_SLICED     ? shoal_slice(leaf, -1, 1, INT64_MAX, 2)
               : repeated && pass == 1    ? shoal_expand(leaf, ndim, t->shape)
                                          : leaf;
        if (pass == 0) {
            ck_assert_ptr_nonnull(shoal_copy_(view, repeated ? shoal_narrow(t, 0, 0, 1) : t));
        }
    }
    *out_leaf = leaf;
    return view;
}

/* Returns the leaf's gradient through the same view as the input. */
static shoal_tensor *grad_of(const shoal_tensor *leaf, layout how)
{
    shoal_tensor *g = shoal_tensor_grad(leaf);
    int64_t dims[SHOAL_MAX_DIMS];
    for (int d = 0; d < leaf->ndim; d++) {
        dims[d] = leaf->ndim - 1 - d;
    }
    return leaf->ndim == 0            ? g
           : how == LAYOUT_TRANSPOSED ? shoal_permute(g, leaf->ndim, dims)
           : how == LAYOUT_SLICED     ? shoal_slice(g, -1, 1, INT64_MAX, 2)
                                      : g;
}

static void check(const entry *e, layout how)
{
    shoal_tensor *in[SH_OP_INPUTS] = {0}, *leaves[SH_OP_INPUTS] = {0}, *result = NULL;
    int inputs = 0, next = 0;
    for (int i = 0; i < e->count; i++) {
        shoal_tensor *t = e->records[i].t;
        switch (e->records[i].role) {
        case 'i':
            in[inputs] = lay_out(t, how, &leaves[inputs]);
            inputs++;
            break;
        case 'o':
            result = run(e->name, in);
            expect(e, "result", result, t, false);
            break;
        case 'w':
            ck_assert_msg(shoal_backward_with(result, t, false) == SHOAL_OK, "%s: %s", e->name,
                          shoal_last_error_text());
            break;
        case 'g':
            while (!leaves[next]->requires_grad) {
                next++;
            }
            if (shoal_tensor_grad(leaves[next]) || item_of(shoal_norm(t)) != 0) { /* no gradient counts as zeros */
                bool one_row =
                    how == LAYOUT_EXPANDED && leaves[next]->ndim > 0 && leaves[next]->shape[0] != t->shape[0];
                expect(e, "gradient", grad_of(leaves[next], how), t, one_row);
            }
            next++;
            break;
        default: ck_abort_msg("role %c", e->records[i].role);
        }
    }
    for (int i = 0; i < inputs; i++) {
        shoal_tensor_release(leaves[i]);
    }
    shoal_scope_release(0);
}

START_TEST(as_pytorch_has_it)
{
    FILE *file = fopen(PATH, "rb");
    ck_assert_msg(file != NULL, "no " PATH);
    char magic[8];
    uint32_t runs;
    take(file, magic, sizeof magic);
    ck_assert_int_eq(memcmp(magic, "SHOALGLD", sizeof magic), 0);
    take(file, &runs, sizeof runs);
    for (uint32_t i = 0; i < runs; i++) {
        entry e = read_entry(file);
        for (layout how = LAYOUT_PLAIN; how < LAYOUTS; how++) {
            check(&e, how);
        }
        for (int k = 0; k < e.count; k++) {
            shoal_tensor_release(e.records[k].t);
        }
    }
    ck_assert_int_eq(fgetc(file), EOF);
    (void)fclose(file);
    for (int i = 0; i < COUNT; i++) {
        ck_assert_msg(seen[i], "%s is not in the file", calls[i].name);
    }
}
END_TEST

/* Leaves out random ops, the copy to a card, and the view without a gradient, which has no counterpart in PyTorch. */
START_TEST(every_op_has_golden_values)
{
    static const sh_op *const left_out[] = {&sh_op_dropout, &sh_op_dropout2d, &sh_op_as_strided, &sh_op_tensor_to};
    for (const sh_op *const *op = sh_ops; *op; op++) {
        bool found = false;
        for (int i = 0; i < COUNT; i++) {
            found |= strcmp(calls[i].op, (*op)->name) == 0;
        }
        for (size_t i = 0; i < sizeof left_out / sizeof left_out[0]; i++) {
            found |= *op == left_out[i];
        }
        ck_assert_msg(found, "%s has no golden values", (*op)->name);
    }
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("autograd/golden");
    TCase *tc = tcase_create("golden");
    tcase_set_timeout(tc, SH_TEST_SECONDS);
    tcase_add_checked_fixture(tc, sh_leaks_begin, sh_leaks_end);
    tcase_add_test(tc, as_pytorch_has_it);
    tcase_add_test(tc, every_op_has_golden_values);
    suite_add_tcase(s, tc);
    return s;
}

SH_TEST_MAIN(suite)
