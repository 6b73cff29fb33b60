/* Matrix products. */
#include "autograd/matrix.h"

#include "base/error.h"

#include <string.h>

/* ---- matmul ---- */

/* Returns the batch dims of the result: those of a and b before the last two, broadcast. */
static shoal_err batch_shape(const sh_call *c, sh_shape *out)
{
    shoal_tensor a = {.dtype = c->in[0]->dtype, .ndim = (int8_t)(c->in[0]->ndim - 2)};
    shoal_tensor b = {.dtype = c->in[1]->dtype, .ndim = (int8_t)(c->in[1]->ndim - 2)};
    memcpy(a.shape, c->in[0]->shape, sizeof a.shape);
    memcpy(b.shape, c->in[1]->shape, sizeof b.shape);
    return sh_shape_broadcast(out, "matmul (batch dims)", &a, &b);
}

static shoal_err matmul_shape(sh_call *c)
{
    const shoal_tensor *a = c->in[0], *b = c->in[1];
    bool known = a->dtype == SHOAL_F32 || a->dtype == SHOAL_F64 || a->dtype == SHOAL_I64 || a->dtype == SHOAL_I32;
    sh_text ta, tb;
    if (a->dtype != b->dtype || !known) {
        return sh_fail(SHOAL_ETYPE, "matmul of %s and %s: both must be f32, f64, i64 or i32", sh_tensor_text(&ta, a),
                       sh_tensor_text(&tb, b));
    }
    if (a->ndim < 2 || b->ndim < 2 || a->shape[a->ndim - 1] != b->shape[b->ndim - 2]) {
        return sh_fail(SHOAL_EINVAL, "matmul of %s and %s: the shapes must be […, m, k] and […, k, n]",
                       sh_tensor_text(&ta, a), sh_tensor_text(&tb, b));
    }
    sh_shape batch;
    SH_TRY(batch_shape(c, &batch));
    int64_t shape[SHOAL_MAX_DIMS];
    memcpy(shape, batch.shape, sizeof shape);
    shape[batch.ndim] = a->shape[a->ndim - 2];
    shape[batch.ndim + 1] = b->shape[b->ndim - 1];
    return sh_shape_init(&c->shape[0], a->dtype, batch.ndim + 2, shape);
}

/* Finds the stride from one matrix of an operand to the next over all batch dims of the result. Returns false if it is
 * not constant. */
static bool batch_step(const shoal_tensor *t, int batch_dims, const int64_t *batch, int64_t *out_step)
{
    int64_t step = 0, run = 1;
    for (int d = batch_dims; d-- > 0;) {
        int own = d - (batch_dims - (t->ndim - 2));
        int64_t stride = own < 0 || t->shape[own] == 1 ? 0 : t->strides[own];
        if (batch[d] == 1) {
            continue;
        }
        if (run == 1) {
            step = stride;
        } else if (stride != step * run) {
            return false;
        }
        run *= batch[d];
    }
    *out_step = step;
    return true;
}

static shoal_err matmul_forward(sh_call *c)
{
    shoal_err err = sh_call_save_in(c, 0);
    if (err == SHOAL_OK) {
        err = sh_call_save_in(c, 1);
    }
    if (err != SHOAL_OK) {
        return err;
    }
    const shoal_tensor *out = c->out[0];
    int batch_dims = out->ndim - 2;
    shoal_tensor *t[2] = {c->in[0], c->in[1]};
    int64_t step[2];
    for (int i = 0; i < 2; i++) {
        if (!batch_step(t[i], batch_dims, out->shape, &step[i])) {
            /* Repeated in some batch dims and not in others: copy it with the repetition. */
            int64_t shape[SHOAL_MAX_DIMS];
            memcpy(shape, out->shape, sizeof shape);
            shape[batch_dims] = t[i]->shape[t[i]->ndim - 2];
            shape[batch_dims + 1] = t[i]->shape[t[i]->ndim - 1];
            shoal_no_grad_begin();
            t[i] = shoal_clone(shoal_expand(t[i], out->ndim, shape));
            shoal_no_grad_end();
            if (!t[i] || !batch_step(t[i], batch_dims, out->shape, &step[i])) {
                return shoal_last_error();
            }
        }
    }
    const shoal_tensor *a = t[0], *b = t[1];
    int64_t m = out->shape[batch_dims], n = out->shape[batch_dims + 1];
    sh_matmul_args args = {
        .dtype = out->dtype,
        .batch = m * n > 0 ? out->count / (m * n) : 0,
        .m = m,
        .n = n,
        .k = a->shape[a->ndim - 1],
        .a = sh_tensor_ptr(a),
        .a_row = a->strides[a->ndim - 2],
        .a_col = a->strides[a->ndim - 1],
        .a_batch = step[0],
        .b = sh_tensor_ptr(b),
        .b_row = b->strides[b->ndim - 2],
        .b_col = b->strides[b->ndim - 1],
        .b_batch = step[1],
        .c = sh_tensor_ptr(out),
        .c_row = n,
        .c_batch = m * n,
        .alpha = 1,
    };
    return c->kernels->matmul->matmul(c->exec, &args);
}

static shoal_err matmul_backward(sh_back *b)
{
    shoal_tensor *g = sh_back_grad(b, 0), *x = sh_back_saved(b, 0), *y = sh_back_saved(b, 1);
    if (sh_back_needs(b, 0)) {
        SH_TRY(sh_back_give(b, 0, shoal_matmul(g, shoal_transpose(y, -1, -2))));
    }
    if (sh_back_needs(b, 1)) {
        SH_TRY(sh_back_give(b, 1, shoal_matmul(shoal_transpose(x, -1, -2), g)));
    }
    return SHOAL_OK;
}

const sh_op sh_op_matmul = {"matmul", SH_OP_COMPUTES, matmul_shape, matmul_forward, matmul_backward};

shoal_tensor *shoal_matmul(shoal_tensor *a, shoal_tensor *b)
{
    return sh_run(&sh_op_matmul, &(sh_call){.in = {a, b}, .in_count = 2}, 2);
}

/* ---- products into gradients ---- */

sh_matrix sh_matrix_of(const shoal_tensor *t)
{
    return (sh_matrix){sh_tensor_ptr(t), t->shape[0], t->shape[1], t->strides[0], t->strides[1]};
}

shoal_err sh_back_give_product(sh_back *back, int input, sh_matrix a, sh_matrix b)
{
    bool add;
    shoal_tensor *target = sh_back_target(back, input, &add);
    if (!target) {
        return shoal_last_error();
    }
    sh_matmul_args args = {
        .dtype = target->dtype,
        .batch = 1,
        .m = a.rows,
        .n = b.cols,
        .k = a.cols,
        .a = a.data,
        .a_row = a.row,
        .a_col = a.col,
        .b = b.data,
        .b_row = b.row,
        .b_col = b.col,
        .c = sh_tensor_ptr(target),
        .c_row = b.cols,
        .alpha = 1,
        .accumulate = add,
    };
    SH_TRY(sh_back_kernels(back)->matmul->matmul(sh_back_exec(back), &args));
    return sh_back_give(back, input, target);
}

/* ---- linear: in = x, w, b; x is contiguous; a.i[0]: relu ---- */

static shoal_err linear_shape(sh_call *c)
{
    const shoal_tensor *x = c->in[0], *w = c->in[1], *b = c->in[2];
    bool good = sh_dtype_is_wide_float(x->dtype) && w->dtype == x->dtype && x->ndim >= 1 && w->ndim == 2 &&
                x->shape[x->ndim - 1] == w->shape[1] &&
                (!b || (b->dtype == x->dtype && b->ndim == 1 && b->shape[0] == w->shape[0]));
    if (!good) {
        sh_text tx, tw, tb;
        return sh_fail(SHOAL_EINVAL, "linear: x %s, w %s, b %s; w must be [out, in], and all f32 or all f64",
                       sh_tensor_text(&tx, x), sh_tensor_text(&tw, w), b ? sh_tensor_text(&tb, b) : "none");
    }
    int64_t shape[SHOAL_MAX_DIMS];
    memcpy(shape, x->shape, sizeof shape);
    shape[x->ndim - 1] = w->shape[0];
    return sh_shape_init(&c->shape[0], x->dtype, x->ndim, shape);
}

/* Returns the number of rows of x: all dims but the last together. */
static int64_t rows_of(const shoal_tensor *x)
{
    int64_t rows = 1;
    for (int d = 0; d < x->ndim - 1; d++) {
        rows *= x->shape[d];
    }
    return rows;
}

static shoal_err linear_forward(sh_call *c)
{
    const shoal_tensor *x = c->in[0], *w = c->in[1], *b = c->in[2], *y = c->out[0];
    bool relu = c->a.i[0] != 0;
    shoal_err err = sh_call_save_in(c, 0);
    if (err == SHOAL_OK) {
        err = sh_call_save_in(c, 1);
    }
    if (err != SHOAL_OK) {
        return err;
    }
    int64_t out = w->shape[0];
    sh_matmul_args args = {
        .dtype = x->dtype,
        .batch = 1,
        .m = rows_of(x),
        .n = out,
        .k = w->shape[1],
        .a = sh_tensor_ptr(x),
        .a_row = w->shape[1],
        .a_col = 1,
        .b = sh_tensor_ptr(w),
        .b_row = w->strides[1],
        .b_col = w->strides[0],
        .c = sh_tensor_ptr(y),
        .c_row = out,
        .bias = b ? sh_tensor_ptr(b) : NULL,
        .alpha = 1,
        .relu = relu,
    };
    SH_TRY(c->kernels->matmul->matmul(c->exec, &args));
    return relu ? sh_call_save_out(c, 0) : SHOAL_OK;
}

/* Returns a contiguous tensor as a matrix of rows. */
static sh_matrix rows_matrix(const shoal_tensor *t, int64_t width)
{
    return (sh_matrix){sh_tensor_ptr(t), rows_of(t), width, width, 1};
}

/* The sum of the rows of g, written into the leaf's grad if it holds nothing yet. */
static shoal_err linear_db(sh_back *b, shoal_tensor *g)
{
    int64_t out = g->shape[g->ndim - 1];
    bool add;
    shoal_tensor *to = sh_back_target(b, 2, &add);
    if (!to) {
        return shoal_last_error();
    }
    if (add) {
        return sh_back_give(b, 2, shoal_sum(shoal_reshape(g, SHOAL_SHAPE(rows_of(g), out)), 0, false));
    }
    sh_view rows = {.data = sh_tensor_ptr(g), .ndim = 2, .dtype = g->dtype}, sum = rows;
    rows.shape[0] = rows_of(g);
    rows.shape[1] = rows.strides[0] = out;
    rows.strides[1] = 1;
    sum.data = sh_tensor_ptr(to);
    sum.shape[0] = 1;
    sum.shape[1] = sum.strides[0] = out;
    sum.strides[1] = 1;
    SH_TRY(sh_back_kernels(b)->reduce->reduce(sh_back_exec(b), SH_REDUCE_SUM, &sum, &rows));
    return sh_back_give(b, 2, to);
}

static shoal_err linear_backward(sh_back *b)
{
    shoal_tensor *g = shoal_contiguous(sh_back_grad(b, 0));
    if (g && sh_back_attrs(b)->i[0]) {
        shoal_tensor *cut = sh_scope_add(sh_tensor_new_like(g));
        if (!cut) {
            return shoal_last_error();
        }
        sh_view out = sh_tensor_view(cut), gv = sh_tensor_view(g), y = sh_tensor_view(sh_back_saved(b, 2));
        SH_TRY(sh_back_kernels(b)->elementwise->grad(sh_back_exec(b), SH_GRAD_RELU, &out, &gv, &y, 0, 0));
        g = cut;
    }
    if (!g) {
        return shoal_last_error();
    }
    const shoal_tensor *x = sh_back_saved(b, 0), *w = sh_back_saved(b, 1);
    sh_matrix gm = rows_matrix(g, w->shape[0]);
    if (sh_back_needs(b, 0)) {
        SH_TRY(sh_back_give_product(b, 0, gm, sh_matrix_of(w)));
    }
    if (sh_back_needs(b, 1)) {
        SH_TRY(sh_back_give_product(b, 1, sh_matrix_transposed(gm), rows_matrix(x, w->shape[1])));
    }
    return sh_back_needs(b, 2) ? linear_db(b, g) : SHOAL_OK;
}

const sh_op sh_op_linear = {"linear", SH_OP_COMPUTES, linear_shape, linear_forward, linear_backward};

/* b is contiguous. */
static shoal_tensor *linear(shoal_tensor *x, shoal_tensor *w, shoal_tensor *b, bool relu)
{
    return sh_run(&sh_op_linear, &(sh_call){.in = {shoal_contiguous(x), w, b}, .in_count = 3, .a.i = {relu}}, 2);
}

shoal_tensor *shoal_linear(shoal_tensor *x, shoal_tensor *w, shoal_tensor *b)
{
    SH_NEED_TENSOR_OR_NULL(x);
    SH_NEED_TENSOR_OR_NULL(w);
    return sh_contiguous_if_given(__func__, &b) ? linear(x, w, b, false) : NULL;
}

shoal_tensor *shoal_linear_relu(shoal_tensor *x, shoal_tensor *w, shoal_tensor *b)
{
    SH_NEED_TENSOR_OR_NULL(x);
    SH_NEED_TENSOR_OR_NULL(w);
    return sh_contiguous_if_given(__func__, &b) ? linear(x, w, b, true) : NULL;
}
