/* A table of calls for the tests that hold for every op: gradient_test.c, device_test.c.
 *
 * A case is a call and its inputs. An input is written "kind:dims", with one letter for each dim: A to Z are sizes from
 * 1 to 4, the same for the same letter in a case; a to z are sizes from 5 to 7; digits stand for themselves. Kinds:
 *
 *     n  normal         p  positive, 0.5 to 2      u  between 0.05 and 0.95      d  all different, none near 0
 *     b  bool           i  indices: "i:AB<C" are below the size C                c  as n, but needs no gradient */
#ifndef SH_AUTOGRAD_CASES_TEST_H
#define SH_AUTOGRAD_CASES_TEST_H

#include "autograd/op.h"
#include "base/random.h"
#include "tests/harness/runner.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct op_case {
    const char *op; /* its name in the table of ops */
    const char *call;
    const char *in[SH_OP_INPUTS];
} op_case;

/* ---- calls that are not a single expression ---- */

static shoal_tensor *run_cat(shoal_tensor **in)
{
    return shoal_cat(in, 3, 1);
}

/* More parts than one op accepts. */
static shoal_tensor *run_cat_many(shoal_tensor **in)
{
    shoal_tensor *parts[11];
    for (int i = 0; i < 11; i++) {
        parts[i] = in[i % 3];
    }
    return shoal_cat(parts, 11, -1);
}

static shoal_tensor *run_stack(shoal_tensor **in)
{
    shoal_tensor *parts[9];
    for (int i = 0; i < 9; i++) {
        parts[i] = in[i % 2];
    }
    return shoal_stack(parts, 9, -1);
}

/* Both outputs contribute, c less than h. */
static shoal_tensor *run_lstm(shoal_tensor **in)
{
    shoal_tensor *h, *c;
    return shoal_lstm_cell(in[0], in[1], in[2], in[3], in[4], in[5], in[6], &h, &c) == SHOAL_OK
               ? shoal_add(h, shoal_mul_scalar(c, 0.5))
               : NULL;
}

static shoal_tensor *run_lstm_h(shoal_tensor **in)
{
    shoal_tensor *h, *c;
    return shoal_lstm_cell(in[0], in[1], in[2], in[3], in[4], NULL, NULL, &h, &c) == SHOAL_OK ? h : NULL;
}

static shoal_tensor *run_lstm_c(shoal_tensor **in)
{
    shoal_tensor *h, *c;
    return shoal_lstm_cell(in[0], in[1], in[2], in[3], in[4], in[5], NULL, &h, &c) == SHOAL_OK ? c : NULL;
}

/* ---- the table: op, call, inputs; x, y and z are the first three ---- */

/* clang-format off */
#define CALLS(X) \
    X(abs, shoal_abs(x), "d:AB") \
    X(square, shoal_square(x), "n:AB") \
    X(sqrt, shoal_sqrt(x), "p:AB") \
    X(rsqrt, shoal_rsqrt(x), "p:AB") \
    X(reciprocal, shoal_reciprocal(x), "p:AB") \
    X(exp, shoal_exp(x), "n:AB") \
    X(log, shoal_log(x), "p:AB") \
    X(sin, shoal_sin(x), "n:ABC") \
    X(cos, shoal_cos(x), "n:AB") \
    X(sigmoid, shoal_sigmoid(x), "n:AB") \
    X(tanh, shoal_tanh(x), "n:AB") \
    X(relu, shoal_relu(x), "d:ABC") \
    X(relu, shoal_relu_(shoal_add_scalar(x, 0)), "d:AB") \
    X(gelu, shoal_gelu(x), "n:AB") \
    X(neg, shoal_neg(x), "n:AB") \
    X(sign, shoal_sign(x), "d:AB") \
    X(add_scalar, shoal_add_scalar(x, 1.5), "n:AB") \
    X(add_scalar, shoal_add_scalar_(shoal_clone(x), 1.5), "n:AB") \
    X(mul_scalar, shoal_mul_scalar(x, -1.5), "n:AB") \
    X(mul_scalar, shoal_mul_scalar_(shoal_clone(x), -1.5), "n:AB") \
    X(pow_scalar, shoal_pow_scalar(x, 2.5), "p:AB") \
    X(pow_scalar, shoal_pow_scalar(x, 0), "p:AB") \
    X(leaky_relu, shoal_leaky_relu(x, 0.1), "d:AB") \
    X(clamp, shoal_clamp(x, -1.01, 1.01), "d:AB") \
    X(add, shoal_add(x, y), "n:AB", "n:B") \
    X(add, shoal_add(x, y), "n:A1", "n:1B") \
    X(add, shoal_add(x, x), "n:AB") \
    X(add, shoal_add_(shoal_clone(x), y), "n:AB", "n:B") \
    X(sub, shoal_sub(x, y), "n:AB", "n:CAB") \
    X(sub, shoal_sub(x, y), "n:", "n:AB") \
    X(sub, shoal_sub_(shoal_clone(x), y), "n:AB", "n:A1") \
    X(add_scaled, shoal_add_scaled_(shoal_clone(x), y, 0.3), "n:AB", "n:B") \
    X(mul, shoal_mul(x, y), "n:AB", "n:1B") \
    X(mul, shoal_mul(x, x), "n:AB") \
    X(mul, shoal_mul(x, y), "n:", "n:") \
    X(div, shoal_div(x, y), "n:AB", "p:A1") \
    X(div, shoal_div(x, y), "n:B", "p:AB") \
    X(pow, shoal_pow(x, y), "p:AB", "n:B") \
    X(maximum, shoal_maximum(x, y), "d:AB", "u:AB") \
    X(minimum, shoal_minimum(x, y), "d:AB", "u:AB") \
    X(where, shoal_where(x, y, z), "b:AB", "n:B", "n:A1") \
    X(where, shoal_masked_fill(x, y, 2), "n:AB", "b:AB") \
    X(view, shoal_reshape(x, SHOAL_SHAPE(-1)), "n:ABC") \
    X(view, shoal_flatten(x, 1), "n:ABC") \
    X(view, shoal_mul(shoal_unsqueeze(x, 0), shoal_squeeze(y, 1)), "n:AB", "n:A1B") \
    X(permute, shoal_permute(x, SHOAL_SHAPE(2, 0, 1)), "n:ABC") \
    X(permute, shoal_matmul(shoal_transpose(x, 0, 1), x), "n:AB") \
    X(expand, shoal_mul(shoal_expand(x, SHOAL_SHAPE(3, 2, -1)), y), "n:1B", "n:32B") \
    X(slice, shoal_slice(x, 1, 1, 100, 2), "n:Ab") \
    X(slice, shoal_narrow(x, 0, 1, 3), "n:aB") \
    X(slice, shoal_mul(shoal_select(x, -1, 2), shoal_select(x, -1, -1)), "n:Ab") \
    X(clone, shoal_clone(x), "n:AB") \
    X(clone, shoal_mul(shoal_contiguous(x), x), "n:AB") \
    X(copy_, shoal_copy_(shoal_clone(x), y), "n:AB", "n:B") \
    X(fill_, shoal_add(shoal_fill_(shoal_clone(x), 2), x), "n:AB") \
    X(sum, shoal_sum(x, SHOAL_ALL_DIMS, false), "n:ABC") \
    X(sum, shoal_sum(x, 1, false), "n:ABC") \
    X(sum, shoal_sum(x, -1, true), "n:ABC") \
    X(sum, shoal_sum(x, 0, false), "n:") \
    X(mean, shoal_mean(x, SHOAL_ALL_DIMS, true), "n:ABC") \
    X(mean, shoal_mean(x, 0, false), "n:ABC") \
    X(prod, shoal_prod(x, 1, false), "n:ABC") \
    X(prod, shoal_prod(x, SHOAL_ALL_DIMS, false), "n:AB") \
    X(max, shoal_max(x, 1, false), "d:ABC") \
    X(max, shoal_max(x, SHOAL_ALL_DIMS, false), "d:AB") \
    X(min, shoal_min(x, 0, true), "d:AB") \
    X(min, shoal_min(x, SHOAL_ALL_DIMS, true), "d:AB") \
    X(logsumexp, shoal_logsumexp(x, 1, false), "n:ABC") \
    X(logsumexp, shoal_logsumexp(x, SHOAL_ALL_DIMS, true), "n:AB") \
    X(norm, shoal_norm(x), "n:AB") \
    X(matmul, shoal_matmul(x, y), "n:AB", "n:BC") \
    X(matmul, shoal_matmul(x, y), "n:2AB", "n:32BC") \
    X(matmul, shoal_matmul(x, y), "n:D1AB", "n:EBC") \
    X(matmul, shoal_matmul(x, x), "n:33") \
    X(linear, shoal_linear(x, y, z), "n:DAB", "n:CB", "n:C") \
    X(linear, shoal_linear(x, y, NULL), "n:AB", "n:CB") \
    X(linear, shoal_linear(x, x, NULL), "n:33") \
    X(linear, shoal_linear_relu(x, y, z), "d:AB", "p:CB", "n:C") \
    X(index_select, shoal_index_select(x, 1, y), "n:ABC", "i:D<B") \
    X(index_select, shoal_embedding(x, y), "n:AB", "i:CD<A") \
    X(gather, shoal_gather(x, 1, y), "n:ABC", "i:A3C<B") \
    X(scatter_add, shoal_scatter_add(x, 0, y, z), "n:AB", "i:3B<A", "n:3B") \
    X(conv2d, shoal_conv2d(x, y, z, NULL), "n:NChw", "n:DC23", "n:D") \
    X(conv2d, shoal_conv2d(x, y, NULL, &(shoal_conv2d_options){.stride = {2, 1}, .padding = {1, 2}}), "n:NChw", "n:DC32") \
    X(conv2d, shoal_conv2d(x, y, z, &(shoal_conv2d_options){.dilation = {1, 2}, .groups = 2, .padding = {1, 0}}), "n:N4hw", "n:6223", "n:6") \
    X(conv2d_pool_relu, shoal_conv2d_pool_relu(x, y, z, 0, 0), "d:NChw", "n:DC23", "n:D") \
    X(conv2d_pool_relu, shoal_conv2d_pool_relu(x, y, z, 1, 0.5), "d:NChw", "n:4C33", "n:4") \
    X(conv2d_pool_relu, shoal_conv2d_pool_relu(x, y, NULL, 2, 0), "d:N188", "n:D155") \
    X(max_pool2d, shoal_max_pool2d(x, 2), "d:NChw") \
    X(max_pool2d, shoal_max_pool2d_with(x, &(shoal_pool2d_options){{3, 2}, {2, 1}, {1, 1}}), "d:NChw") \
    X(avg_pool2d, shoal_avg_pool2d_with(x, &(shoal_pool2d_options){.size = {2, 3}}), "n:NChw") \
    X(avg_pool2d, shoal_avg_pool2d_with(x, &(shoal_pool2d_options){{3, 2}, {1, 2}, {1, 0}}), "n:NChw") \
    X(softmax, shoal_softmax(x, 1), "n:ABC") \
    X(softmax, shoal_softmax(x, -1), "n:AB") \
    X(log_softmax, shoal_log_softmax(x, 0), "n:ABC") \
    X(log_softmax, shoal_nll_loss(shoal_log_softmax(x, 1), y), "n:NC", "i:N<C") \
    X(nll_loss, shoal_nll_loss(x, y), "n:NC", "i:N<C") \
    X(nll_loss, shoal_nll_loss_with(x, y, z, SHOAL_REDUCTION_MEAN), "n:NC", "i:N<C", "c:C") \
    X(nll_loss, shoal_nll_loss_with(x, y, NULL, SHOAL_REDUCTION_NONE), "n:NC", "i:N<C") \
    X(nll_loss, shoal_nll_loss_with(x, y, NULL, SHOAL_REDUCTION_SUM), "n:NCD", "i:ND<C") \
    X(cross_entropy, shoal_cross_entropy(x, y), "n:NC", "i:N<C") \
    X(cross_entropy, shoal_cross_entropy_with(x, y, SHOAL_REDUCTION_NONE), "n:NC", "i:N<C") \
    X(cross_entropy, shoal_cross_entropy_with(x, y, SHOAL_REDUCTION_SUM), "n:NC", "i:N<C") \
    X(mse_loss, shoal_mse_loss(x, y, SHOAL_REDUCTION_MEAN), "n:AB", "n:AB") \
    X(mse_loss, shoal_mse_loss(x, y, SHOAL_REDUCTION_NONE), "n:AB", "n:AB") \
    X(l1_loss, shoal_l1_loss(x, y, SHOAL_REDUCTION_SUM), "d:AB", "u:AB") \
    X(smooth_l1_loss, shoal_smooth_l1_loss(x, y, SHOAL_REDUCTION_MEAN), "d:AB", "u:AB") \
    X(bce_with_logits, shoal_bce_with_logits(x, y, SHOAL_REDUCTION_MEAN), "d:AB", "u:AB") \
    X(bce_with_logits, shoal_bce_with_logits(x, y, SHOAL_REDUCTION_NONE), "d:AB", "u:AB") \
    X(dropout, shoal_dropout(x, 0.4), "n:ABC") \
    X(dropout2d, shoal_dropout2d(x, 0.4), "n:ABCD") \
    X(dropout2d, shoal_dropout2d(x, 0.4), "n:AB") \
    X(layer_norm, shoal_layer_norm(x, y, z, 1, 1e-5), "n:Aa", "n:a", "n:a") \
    X(layer_norm, shoal_layer_norm(x, y, NULL, 2, 1e-3), "n:ABa", "n:Ba") \
    X(layer_norm, shoal_layer_norm(x, NULL, y, 1, 1e-5), "n:Aa", "n:a") \
    X(layer_norm, shoal_layer_norm(x, y, y, 1, 1e-5), "n:Aa", "n:a") \
    X(cat, run_cat(in), "n:ABC", "n:A2C", "n:A1C") \
    X(cat, run_cat_many(in), "n:AB", "n:A2", "n:A1") \
    X(cat, run_stack(in), "n:AB", "n:AB") \
    X(lstm_cell, run_lstm(in), "n:NI", "n:NH", "n:NH", "n:TI", "n:TH", "n:T", "n:T") \
    X(lstm_cell, run_lstm_h(in), "n:NI", "n:NH", "n:NH", "n:TI", "n:TH") \
    X(lstm_cell, run_lstm_c(in), "n:NI", "n:NH", "n:NH", "n:TI", "n:TH", "n:T")
/* clang-format on */

static const op_case cases[] = {
#define ROW(op, call, ...) {#op, #call, {__VA_ARGS__}},
    CALLS(ROW)
#undef ROW
};

enum {
    CASES = sizeof cases / sizeof cases[0],
};

static shoal_tensor *case_run(int number, shoal_tensor **in)
{
    shoal_tensor *x = in[0], *y = in[1], *z = in[2];
    int i = 0;
#define RUN(op, call, ...)                                                                                             \
    if (i++ == number) {                                                                                               \
        return call;                                                                                                   \
    }
    CALLS(RUN)
#undef RUN
    return NULL;
}

/* ---- inputs ---- */

/* How an input is laid out in memory: it is a view of a leaf. */
typedef enum layout {
    LAYOUT_PLAIN,
    LAYOUT_TRANSPOSED, /* the dims in reverse order */
    LAYOUT_SLICED,     /* every second element of the last dim */
    LAYOUT_EXPANDED,   /* the first dim repeats one element */
    LAYOUTS,
} layout;

typedef struct case_inputs {
    shoal_tensor *leaf[SH_OP_INPUTS]; /* owned */
    layout how[SH_OP_INPUTS];
    int64_t shape[SH_OP_INPUTS][SHOAL_MAX_DIMS];
    int ndim[SH_OP_INPUTS];
    int count;
} case_inputs;

static int64_t between(uint64_t *seed, int64_t low, int64_t high)
{
    return low + (int64_t)sh_splitmix_below(seed, (uint64_t)(high - low + 1));
}

static double fraction(uint64_t *seed)
{
    return (double)sh_splitmix_below(seed, 1u << 30) / (1u << 30);
}

static int64_t size_of(char letter, const int64_t *sizes)
{
    return isdigit((unsigned char)letter) ? letter - '0' : letter == 'T' ? 4 * sizes['H'] : sizes[(int)letter];
}

/* Returns the shape of the leaf for an input's shape. */
static void leaf_shape(layout how, int ndim, const int64_t *shape, int64_t *out)
{
    for (int d = 0; d < ndim; d++) {
        out[d] = how == LAYOUT_TRANSPOSED ? shape[ndim - 1 - d] : shape[d];
    }
    if (ndim > 0 && how == LAYOUT_SLICED) {
        out[ndim - 1] = 2 * shape[ndim - 1] + 1;
    }
    if (ndim > 0 && how == LAYOUT_EXPANDED) {
        out[0] = 1;
    }
}

static double value_of(char kind, uint64_t *seed, int64_t place, int64_t below)
{
    switch (kind) {
    case 'p': return 0.5 + 1.5 * fraction(seed);
    case 'u': return 0.05 + 0.9 * fraction(seed);
    case 'b': return (double)sh_splitmix_below(seed, 2);
    case 'i': return (double)sh_splitmix_below(seed, (uint64_t)below);
    case 'd': return (sh_splitmix_below(seed, 2) ? 1 : -1) * (0.2 + 0.07 * (double)place);
    default: return 4 * fraction(seed) - 2;
    }
}

static void fill_values(shoal_tensor *t, char kind, uint64_t *seed, int64_t below)
{
    int64_t count = t->count;
    size_t size = (size_t)count * shoal_dtype_size(t->dtype);
    void *data = malloc(size + 1);
    int64_t *order = calloc((size_t)count + 1, sizeof *order);
    for (int64_t i = 0; i < count; i++) {
        int64_t j = between(seed, 0, i);
        order[i] = order[j];
        order[j] = i;
    }
    for (int64_t i = 0; i < count; i++) {
        double v = value_of(kind, seed, order[i], below);
        switch ((shoal_dtype)t->dtype) {
        case SHOAL_F64: ((double *)data)[i] = v; break;
        case SHOAL_F32: ((float *)data)[i] = (float)v; break;
        case SHOAL_I64: ((int64_t *)data)[i] = (int64_t)v; break;
        default: ((uint8_t *)data)[i] = (uint8_t)v; break;
        }
    }
    ck_assert_ok(sh_tensor_device_of(t)->write(sh_tensor_ptr(t), data, size));
    free(order);
    free(data);
}

static bool wants_gradient(char kind)
{
    return kind != 'b' && kind != 'i' && kind != 'c';
}

/* Makes leaves for the case's inputs on the device; float inputs get the dtype.
 * Inputs that cannot have the layout are plain. */
static case_inputs case_make(const op_case *c, const sh_device *device, shoal_dtype dtype, layout how, uint64_t seed)
{
    case_inputs made = {0};
    int64_t sizes[128] = {0};
    for (int letter = 0; letter < 128; letter++) {
        sizes[letter] = islower(letter) ? between(&seed, 5, 7) : between(&seed, 1, 4);
    }
    for (int i = 0; i < SH_OP_INPUTS && c->in[i]; i++, made.count++) {
        char kind = c->in[i][0];
        const char *dims = c->in[i] + 2;
        int ndim = (int)strcspn(dims, "<");
        int64_t below = dims[ndim] ? size_of(dims[ndim + 1], sizes) : 0;
        for (int d = 0; d < ndim; d++) {
            made.shape[i][d] = size_of(dims[d], sizes);
        }
        made.ndim[i] = ndim;
        bool repeatable = kind != 'd' && kind != 'i';
        made.how[i] = ndim == 0 || kind == 'i' || (how == LAYOUT_EXPANDED && !repeatable) ? LAYOUT_PLAIN : how;
        int64_t shape[SHOAL_MAX_DIMS];
        leaf_shape(made.how[i], ndim, made.shape[i], shape);
        sh_shape s;
        ck_assert_ok(sh_shape_init(&s, kind == 'i' ? SHOAL_I64 : kind == 'b' ? SHOAL_B8 : dtype, ndim, shape));
        made.leaf[i] = sh_tensor_new(device, &s);
        ck_assert_ptr_nonnull(made.leaf[i]);
        fill_values(made.leaf[i], kind, &seed, below);
        ck_assert_ok(shoal_tensor_set_requires_grad(made.leaf[i], wants_gradient(kind)));
    }
    return made;
}

/* Returns the inputs as the call gets them; the scope owns them. */
static void case_views(const case_inputs *made, shoal_tensor **in)
{
    for (int i = 0; i < made->count; i++) {
        int ndim = made->ndim[i];
        int64_t reversed[SHOAL_MAX_DIMS];
        for (int d = 0; d < ndim; d++) {
            reversed[d] = ndim - 1 - d;
        }
        shoal_tensor *t = made->leaf[i];
        switch (made->how[i]) {
        case LAYOUT_TRANSPOSED: in[i] = shoal_permute(t, ndim, reversed); break;
        case LAYOUT_SLICED: in[i] = shoal_slice(t, -1, 1, 2 * made->shape[i][ndim - 1] + 1, 2); break;
        case LAYOUT_EXPANDED: in[i] = shoal_expand(t, ndim, made->shape[i]); break;
        default: in[i] = t; break;
        }
        ck_assert_ptr_nonnull(in[i]);
    }
}

static void case_release(case_inputs *made)
{
    for (int i = 0; i < made->count; i++) {
        shoal_tensor_release(made->leaf[i]);
    }
}

/* Reduces the result of the call to one number: Σ result · w, with weights w that are the same each time. */
static shoal_tensor *case_loss(int number, const case_inputs *made, shoal_tensor **out_result)
{
    shoal_tensor *in[SH_OP_INPUTS] = {0};
    case_views(made, in);
    shoal_manual_seed(7);
    shoal_tensor *result = case_run(number, in);
    ck_assert_msg(result != NULL, "%s: %s", cases[number].call, shoal_last_error_text());
    sh_shape s;
    ck_assert_ok(sh_shape_init(&s, result->dtype, result->ndim, result->shape));
    shoal_tensor *weights = sh_scope_add(sh_tensor_new(sh_tensor_device_of(result), &s));
    uint64_t seed = 99;
    fill_values(weights, 'n', &seed, 0);
    if (out_result) {
        *out_result = result;
    }
    shoal_tensor *loss = shoal_sum(shoal_mul(result, weights), SHOAL_ALL_DIMS, false);
    ck_assert_ptr_nonnull(loss);
    return loss;
}

#endif
