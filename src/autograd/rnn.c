/* One step of an LSTM: in = x, h, c, w_ih, w_hh, b_ih, b_hh; out = h, c.
 *
 * Two products with the weights fill one buffer of gates, then one pointwise kernel runs. Saved: x, h, c, w_ih, w_hh,
 * the gates after their functions, the new c. */
#include "autograd/matrix.h"

#include "base/error.h"

enum {
    IN_X,
    IN_H,
    IN_C,
    IN_W_IH,
    IN_W_HH,
    IN_B_IH,
    IN_B_HH,
    IN_COUNT,
};

enum {
    SAVED_ACTS = IN_W_HH + 1,
    SAVED_NEW_C,
};

static bool is_sized(const shoal_tensor *t, shoal_dtype dtype, int64_t rows, int64_t cols)
{
    return (shoal_dtype)t->dtype == dtype && t->ndim == 2 && t->shape[0] == rows && t->shape[1] == cols;
}

static bool is_bias(const shoal_tensor *t, shoal_dtype dtype, int64_t n)
{
    return !t || ((shoal_dtype)t->dtype == dtype && t->ndim == 1 && t->shape[0] == n);
}

static shoal_err lstm_refuse(const sh_call *c)
{
    sh_text t[5];
    for (int i = 0; i < 5; i++) {
        (void)sh_tensor_text(&t[i], c->in[i]);
    }
    return sh_fail(SHOAL_EINVAL,
                   "lstm_cell: x %s, h %s, c %s, w_ih %s, w_hh %s; x must be [N, in], h and c [N, H], w_ih [4H, in], "
                   "w_hh [4H, H], biases [4H] or NULL, all f32 or all f64",
                   t[0].text, t[1].text, t[2].text, t[3].text, t[4].text);
}

static shoal_err lstm_cell_shape(sh_call *c)
{
    const shoal_tensor *x = c->in[IN_X], *h = c->in[IN_H];
    shoal_dtype dtype = x->dtype;
    if ((dtype != SHOAL_F32 && dtype != SHOAL_F64) || x->ndim != 2 || h->ndim != 2) {
        return lstm_refuse(c);
    }
    int64_t n = x->shape[0], in = x->shape[1], hidden = h->shape[1];
    bool good = is_sized(h, dtype, n, hidden) && is_sized(c->in[IN_C], dtype, n, hidden) &&
                is_sized(c->in[IN_W_IH], dtype, 4 * hidden, in) &&
                is_sized(c->in[IN_W_HH], dtype, 4 * hidden, hidden) && is_bias(c->in[IN_B_IH], dtype, 4 * hidden) &&
                is_bias(c->in[IN_B_HH], dtype, 4 * hidden);
    if (!good) {
        return lstm_refuse(c);
    }
    c->out_count = 2;
    SH_TRY(sh_shape_init(&c->shape[0], dtype, 2, h->shape));
    return sh_shape_init(&c->shape[1], dtype, 2, h->shape);
}

/* gates = x·wᵀ + b, or += */
static shoal_err add_gates(const sh_call *c, const shoal_tensor *gates, int in, int weight, int bias, bool add)
{
    const shoal_tensor *x = c->in[in], *w = c->in[weight], *b = c->in[bias];
    sh_matmul_args args = {
        .dtype = x->dtype,
        .batch = 1,
        .m = x->shape[0],
        .n = w->shape[0],
        .k = x->shape[1],
        .a = sh_tensor_ptr(x),
        .a_row = x->strides[0],
        .a_col = x->strides[1],
        .b = sh_tensor_ptr(w),
        .b_row = w->strides[1],
        .b_col = w->strides[0],
        .c = sh_tensor_ptr(gates),
        .c_row = w->shape[0],
        .bias = b ? sh_tensor_ptr(b) : NULL,
        .alpha = 1,
        .accumulate = add,
    };
    return c->kernels->matmul->matmul(c->exec, &args);
}

static shoal_err lstm_cell_forward(sh_call *c)
{
    const shoal_tensor *h = c->in[IN_H];
    sh_lstm_shape shape = {.dtype = h->dtype, .n = h->shape[0], .hidden = h->shape[1]};
    for (int i = IN_X; i <= IN_W_HH; i++) {
        SH_TRY(sh_call_save_in(c, i));
    }
    shoal_tensor *gates = sh_call_scratch(c, shape.dtype, SHOAL_SHAPE(shape.n, 4 * shape.hidden));
    SH_TRY(gates ? add_gates(c, gates, IN_X, IN_W_IH, IN_B_IH, false) : shoal_last_error());
    SH_TRY(add_gates(c, gates, IN_H, IN_W_HH, IN_B_HH, true));
    SH_TRY(c->kernels->rnn->lstm(c->exec, &shape, sh_tensor_ptr(c->out[0]), sh_tensor_ptr(c->out[1]),
                                 sh_tensor_ptr(gates), sh_tensor_ptr(gates), sh_tensor_ptr(c->in[IN_C])));
    return sh_call_save_out(c, 1);
}

/* Gives the gradient of c and returns that of the gates, which the scope owns. Returns NULL after an error. */
static shoal_tensor *lstm_gates_back(sh_back *b)
{
    shoal_tensor *c_prev = sh_back_saved(b, IN_C), *acts = sh_back_saved(b, SAVED_ACTS);
    shoal_tensor *dh = sh_back_grad(b, 0), *dc = sh_back_grad(b, 1);
    dh = dh ? shoal_contiguous(dh) : sh_zeros_on(c_prev, c_prev->ndim, c_prev->shape);
    shoal_tensor *dgates = dh ? sh_scope_add(sh_tensor_new_like(acts)) : NULL;
    shoal_tensor *dc_prev = dgates ? sh_scope_add(sh_tensor_new_like(c_prev)) : NULL;
    if (!dc_prev || (dc && !(dc = shoal_contiguous(dc)))) {
        return NULL;
    }
    sh_lstm_shape shape = {.dtype = c_prev->dtype, .n = c_prev->shape[0], .hidden = c_prev->shape[1]};
    shoal_err err =
        sh_back_kernels(b)->rnn->lstm_backward(sh_back_exec(b), &shape, sh_tensor_ptr(dgates), sh_tensor_ptr(dc_prev),
                                               sh_tensor_ptr(dh), dc ? sh_tensor_ptr(dc) : NULL, sh_tensor_ptr(acts),
                                               sh_tensor_ptr(sh_back_saved(b, SAVED_NEW_C)), sh_tensor_ptr(c_prev));
    return err == SHOAL_OK && sh_back_give(b, IN_C, dc_prev) == SHOAL_OK ? dgates : NULL;
}

static shoal_err lstm_cell_backward(sh_back *b)
{
    static const int weight_of[] = {[IN_X] = IN_W_IH, [IN_H] = IN_W_HH};
    shoal_tensor *dgates = lstm_gates_back(b);
    if (!dgates) {
        return shoal_last_error();
    }
    sh_matrix g = sh_matrix_of(dgates);
    for (int in = IN_X; in <= IN_H; in++) {
        int weight = weight_of[in];
        if (sh_back_needs(b, in)) {
            SH_TRY(sh_back_give_product(b, in, g, sh_matrix_of(sh_back_saved(b, weight))));
        }
        if (sh_back_needs(b, weight)) {
            SH_TRY(sh_back_give_product(b, weight, sh_matrix_transposed(g), sh_matrix_of(sh_back_saved(b, in))));
        }
    }
    if (sh_back_needs(b, IN_B_IH) || sh_back_needs(b, IN_B_HH)) {
        shoal_tensor *sum = shoal_sum(dgates, 0, false);
        SH_TRY(sh_back_give(b, IN_B_IH, sum));
        SH_TRY(sh_back_give(b, IN_B_HH, sum));
    }
    return SHOAL_OK;
}

const sh_op sh_op_lstm_cell = {"lstm_cell", SH_OP_COMPUTES, lstm_cell_shape, lstm_cell_forward, lstm_cell_backward};

shoal_err shoal_lstm_cell(shoal_tensor *x, shoal_tensor *h, shoal_tensor *c, shoal_tensor *w_ih, shoal_tensor *w_hh,
                          shoal_tensor *b_ih, shoal_tensor *b_hh, shoal_tensor **out_h, shoal_tensor **out_c)
{
    SH_NEED_TENSOR(x);
    SH_NEED_TENSOR(h);
    SH_NEED_TENSOR(c);
    SH_NEED_TENSOR(w_ih);
    SH_NEED_TENSOR(w_hh);
    SH_NEED(out_h);
    SH_NEED(out_c);
    if (!sh_contiguous_if_given(__func__, &b_ih) || !sh_contiguous_if_given(__func__, &b_hh)) {
        return shoal_last_error();
    }
    sh_call call = {.in = {[IN_X] = x,
                           [IN_H] = h,
                           [IN_C] = shoal_contiguous(c),
                           [IN_W_IH] = w_ih,
                           [IN_W_HH] = w_hh,
                           [IN_B_IH] = b_ih,
                           [IN_B_HH] = b_hh},
                    .in_count = IN_COUNT};
    if (!sh_run(&sh_op_lstm_cell, &call, IN_W_HH + 1)) {
        return shoal_last_error();
    }
    *out_h = call.out[0];
    *out_c = call.out[1];
    return SHOAL_OK;
}
