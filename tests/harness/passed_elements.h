/* Elements, sums, products, indices and random numbers passed on; a part of passed_kernels.h, which includes it. */
#ifndef TESTING_PASSED_ELEMENTS_H
#define TESTING_PASSED_ELEMENTS_H

/* ---- elementwise ---- */

static shoal_err pass_unary(sh_exec *exec, sh_unary_op op, const sh_view *out, const sh_view *a)
{
    passage p = {0};
    add_view(&p, out, true);
    add_view(&p, a, false);
    return PASS(BEHIND(elementwise)->unary(EXEC, op, VIEW(out), VIEW(a)));
}

static shoal_err pass_scalar(sh_exec *exec, sh_scalar_op op, const sh_view *out, const sh_view *a, sh_scalar x,
                             sh_scalar y)
{
    passage p = {0};
    add_view(&p, out, true);
    add_view(&p, a, false);
    return PASS(BEHIND(elementwise)->scalar(EXEC, op, VIEW(out), VIEW(a), x, y));
}

static shoal_err pass_binary(sh_exec *exec, sh_binary_op op, const sh_view *out, const sh_view *a, const sh_view *b)
{
    passage p = {0};
    add_view(&p, out, true);
    add_view(&p, a, false);
    add_view(&p, b, false);
    return PASS(BEHIND(elementwise)->binary(EXEC, op, VIEW(out), VIEW(a), VIEW(b)));
}

static shoal_err pass_grad(sh_exec *exec, sh_grad_op op, const sh_view *out, const sh_view *g, const sh_view *saved,
                           double x, double y)
{
    passage p = {0};
    add_view(&p, out, true);
    add_view(&p, g, false);
    add_view(&p, saved, false);
    return PASS(BEHIND(elementwise)->grad(EXEC, op, VIEW(out), VIEW(g), VIEW(saved), x, y));
}

static shoal_err pass_where(sh_exec *exec, const sh_view *out, const sh_view *cond, const sh_view *a, const sh_view *b)
{
    passage p = {0};
    add_view(&p, out, true);
    add_view(&p, cond, false);
    add_view(&p, a, false);
    add_view(&p, b, false);
    return PASS(BEHIND(elementwise)->where(EXEC, VIEW(out), VIEW(cond), VIEW(a), VIEW(b)));
}

static shoal_err pass_axpy(sh_exec *exec, const sh_view *out, const sh_view *a, sh_scalar alpha)
{
    passage p = {0};
    add_view(&p, out, true);
    add_view(&p, a, false);
    return PASS(BEHIND(elementwise)->axpy(EXEC, VIEW(out), VIEW(a), alpha));
}

static shoal_err pass_fill(sh_exec *exec, const sh_view *out, sh_scalar x)
{
    passage p = {0};
    add_view(&p, out, true);
    return PASS(BEHIND(elementwise)->fill(EXEC, VIEW(out), x));
}

static shoal_err pass_copy(sh_exec *exec, const sh_view *out, const sh_view *a)
{
    passage p = {0};
    add_view(&p, out, true);
    add_view(&p, a, false);
    return PASS(BEHIND(elementwise)->copy(EXEC, VIEW(out), VIEW(a)));
}

/* ---- reduce, matmul ---- */

static shoal_err pass_reduce(sh_exec *exec, sh_reduce_op op, const sh_view *out, const sh_view *a)
{
    passage p = {0};
    add_view(&p, out, true);
    add_view(&p, a, false);
    return PASS(BEHIND(reduce)->reduce(EXEC, op, VIEW(out), VIEW(a)));
}

static shoal_err pass_logsumexp(sh_exec *exec, const sh_view *out, const sh_view *a)
{
    passage p = {0};
    add_view(&p, out, true);
    add_view(&p, a, false);
    return PASS(BEHIND(reduce)->logsumexp(EXEC, VIEW(out), VIEW(a)));
}

static void add_matrix(passage *p, const void *data, const sh_matmul_args *g, int64_t rows, int64_t columns,
                       int64_t row, int64_t column, int64_t batch, bool written)
{
    bool any = g->batch > 0 && rows > 0 && columns > 0;
    add_array(p, data, g->dtype, any ? (rows - 1) * row + (columns - 1) * column + (g->batch - 1) * batch + 1 : 0,
              written);
}

static shoal_err pass_matmul(sh_exec *exec, const sh_matmul_args *args)
{
    passage p = {0};
    sh_matmul_args g = *args;
    add_matrix(&p, g.c, args, g.m, g.n, g.c_row, 1, g.c_batch, true);
    add_matrix(&p, g.a, args, g.m, g.k, g.a_row, g.a_col, g.a_batch, false);
    add_matrix(&p, g.b, args, g.k, g.n, g.b_row, g.b_col, g.b_batch, false);
    add_array(&p, g.bias, g.dtype, g.n, false);
    return PASS((g.a = AT(args->a), g.b = AT(args->b), g.c = AT(args->c), g.bias = AT(args->bias),
                 BEHIND(matmul)->matmul(EXEC, &g)));
}

/* ---- index ---- */

static shoal_err pass_select(sh_exec *exec, const sh_index_shape *s, void *out, const void *table, const int64_t *index)
{
    passage p = {0};
    add_array(&p, out, s->dtype, s->outer * s->count * s->inner, true);
    add_array(&p, table, s->dtype, s->outer * s->rows * s->inner, false);
    add_array(&p, index, SHOAL_I64, s->count, false);
    return PASS(BEHIND(index)->select(EXEC, s, AT(out), AT(table), AT(index)));
}

static shoal_err pass_add(sh_exec *exec, const sh_index_shape *s, void *table, const void *in, const int64_t *index)
{
    passage p = {0};
    add_array(&p, table, s->dtype, s->outer * s->rows * s->inner, true);
    add_array(&p, in, s->dtype, s->outer * s->count * s->inner, false);
    add_array(&p, index, SHOAL_I64, s->count, false);
    return PASS(BEHIND(index)->add(EXEC, s, AT(table), AT(in), AT(index)));
}

static void add_three(passage *p, const sh_view *out, const sh_view *a, const sh_view *index)
{
    add_view(p, out, true);
    add_view(p, a, false);
    add_view(p, index, false);
}

static shoal_err pass_gather(sh_exec *exec, int32_t dim, const sh_view *out, const sh_view *a, const sh_view *index)
{
    passage p = {0};
    add_three(&p, out, a, index);
    return PASS(BEHIND(index)->gather(EXEC, dim, VIEW(out), VIEW(a), VIEW(index)));
}

static shoal_err pass_scatter(sh_exec *exec, int32_t dim, const sh_view *out, const sh_view *a, const sh_view *index)
{
    passage p = {0};
    add_three(&p, out, a, index);
    return PASS(BEHIND(index)->scatter(EXEC, dim, VIEW(out), VIEW(a), VIEW(index)));
}

static shoal_err pass_scatter_add(sh_exec *exec, int32_t dim, const sh_view *out, const sh_view *a,
                                  const sh_view *index)
{
    passage p = {0};
    add_three(&p, out, a, index);
    return PASS(BEHIND(index)->scatter_add(EXEC, dim, VIEW(out), VIEW(a), VIEW(index)));
}

static shoal_err pass_one_hot(sh_exec *exec, shoal_dtype dtype, void *out, const int64_t *index, int64_t count,
                              int64_t classes)
{
    passage p = {0};
    add_array(&p, out, dtype, count * classes, true);
    add_array(&p, index, SHOAL_I64, count, false);
    return PASS(BEHIND(index)->one_hot(EXEC, dtype, AT(out), AT(index), count, classes));
}

/* ---- random ---- */

static shoal_err pass_uniform(sh_exec *exec, sh_random_key key, shoal_dtype dtype, void *out, int64_t n, double low,
                              double high)
{
    passage p = {0};
    add_array(&p, out, dtype, n, true);
    return PASS(BEHIND(random)->uniform(EXEC, key, dtype, AT(out), n, low, high));
}

static shoal_err pass_normal(sh_exec *exec, sh_random_key key, shoal_dtype dtype, void *out, int64_t n, double mean,
                             double deviation)
{
    passage p = {0};
    add_array(&p, out, dtype, n, true);
    return PASS(BEHIND(random)->normal(EXEC, key, dtype, AT(out), n, mean, deviation));
}

static shoal_err pass_bernoulli(sh_exec *exec, sh_random_key key, shoal_dtype dtype, void *out, int64_t n,
                                double chance, double value)
{
    passage p = {0};
    add_array(&p, out, dtype, n, true);
    return PASS(BEHIND(random)->bernoulli(EXEC, key, dtype, AT(out), n, chance, value));
}

static shoal_err pass_integers(sh_exec *exec, sh_random_key key, int64_t *out, int64_t n, int64_t low, int64_t high)
{
    passage p = {0};
    add_array(&p, out, SHOAL_I64, n, true);
    return PASS(BEHIND(random)->integers(EXEC, key, AT(out), n, low, high));
}

static shoal_err pass_dropout(sh_exec *exec, sh_random_key key, shoal_dtype dtype, void *y, uint8_t *mask,
                              const void *x, int64_t n, double chance)
{
    passage p = {0};
    add_array(&p, y, dtype, n, true);
    add_array(&p, mask, SHOAL_U8, n, true);
    add_array(&p, x, dtype, n, false);
    return PASS(BEHIND(random)->dropout(EXEC, key, dtype, AT(y), AT(mask), AT(x), n, chance));
}

static shoal_err pass_dropout_backward(sh_exec *exec, shoal_dtype dtype, void *dx, const void *dy, const uint8_t *mask,
                                       int64_t n, double chance)
{
    passage p = {0};
    add_array(&p, dx, dtype, n, true);
    add_array(&p, dy, dtype, n, false);
    add_array(&p, mask, SHOAL_U8, n, false);
    return PASS(BEHIND(random)->dropout_backward(EXEC, dtype, AT(dx), AT(dy), AT(mask), n, chance));
}

#endif
