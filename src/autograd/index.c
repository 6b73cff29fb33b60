/* Ops that join and index. Kernels take i64 indices; i32 indices are converted. */
#include "autograd/op.h"

#include "base/error.h"

#include <stdlib.h>
#include <string.h>

shoal_tensor *sh_as_index(shoal_tensor *t, const char *op)
{
    if (!t) {
        return NULL;
    }
    if (t->dtype != SHOAL_I64 && t->dtype != SHOAL_I32) {
        (void)sh_fail(SHOAL_ETYPE, "%s: the index is %s, it must be i64 or i32", op, shoal_dtype_name(t->dtype));
        return NULL;
    }
    return shoal_contiguous(shoal_to_dtype(t, SHOAL_I64));
}

/* ---- cat: a.i = dim ---- */

static shoal_err cat_shape(sh_call *c)
{
    const shoal_tensor *first = c->in[0];
    int64_t dim = c->a.i[0], shape[SHOAL_MAX_DIMS];
    memcpy(shape, first->shape, sizeof shape);
    for (int i = 1; i < c->in_count; i++) {
        const shoal_tensor *t = c->in[i];
        bool fits = t->dtype == first->dtype && t->ndim == first->ndim;
        for (int d = 0; fits && d < t->ndim; d++) {
            fits = d == dim || t->shape[d] == first->shape[d];
        }
        if (!fits) {
            sh_text a, b;
            return sh_fail(SHOAL_EINVAL, "cat along dim %d: %s and %s do not match", (int)dim,
                           sh_tensor_text(&a, first), sh_tensor_text(&b, t));
        }
        shape[dim] += t->shape[dim];
    }
    return sh_shape_init(&c->shape[0], first->dtype, first->ndim, shape);
}

static shoal_err cat_forward(sh_call *c)
{
    sh_view part = sh_tensor_view(c->out[0]);
    int64_t dim = c->a.i[0];
    size_t step = (size_t)part.strides[dim] * shoal_dtype_size(part.dtype);
    for (int i = 0; i < c->in_count; i++) {
        sh_view in = sh_tensor_view(c->in[i]);
        part.shape[dim] = in.shape[dim];
        SH_TRY(c->kernels->elementwise->copy(c->exec, &part, &in));
        part.data = (char *)part.data + (size_t)in.shape[dim] * step;
    }
    return SHOAL_OK;
}

static shoal_err cat_backward(sh_back *b)
{
    int dim = (int)sh_back_attrs(b)->i[0], count = (int)sh_back_attrs(b)->i[1];
    int64_t at = 0;
    for (int i = 0; i < count; i++) {
        int64_t length = sh_back_attrs(b)->i[2 + i];
        if (sh_back_needs(b, i)) {
            SH_TRY(sh_back_give(b, i, shoal_narrow(sh_back_grad(b, 0), dim, at, length)));
        }
        at += length;
    }
    return SHOAL_OK;
}

const sh_op sh_op_cat = {"cat", SH_OP_COMPUTES, cat_shape, cat_forward, cat_backward};

/* Joins at most SH_OP_INPUTS tensors; shoal_cat joins more in rounds. */
static shoal_tensor *cat_some(shoal_tensor *const *parts, size_t count, int dim)
{
    sh_call c = {.in_count = (int)count, .a.i = {dim, (int64_t)count}};
    for (size_t i = 0; i < count; i++) {
        c.in[i] = parts[i];
        c.a.i[2 + i] = parts[i] ? parts[i]->shape[dim] : 0;
    }
    return sh_run(&sh_op_cat, &c, (int)count);
}

/* Checks all parts before the first new tensor can take the place of a released one. */
static bool any_released(const char *call, shoal_tensor *const *parts, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (parts[i] && !sh_tensor_exists(parts[i], call)) {
            return true;
        }
    }
    return false;
}

/* As in PyTorch, a tensor [0] can be joined with tensors of more dims, and adds nothing to them. */
static bool adds_nothing(const shoal_tensor *t, const shoal_tensor *other)
{
    return t && t->ndim == 1 && t->count == 0 && other && other->ndim > 1 && other->dtype == t->dtype;
}

/* Joins the parts without those that add nothing to parts[first]. */
static shoal_tensor *cat_others(shoal_tensor *const *parts, size_t count, size_t first, int dim)
{
    shoal_tensor **others = malloc(count * sizeof *others);
    if (!others) {
        (void)sh_fail(SHOAL_ENOMEM, "no memory for %zu parts of cat", count);
        return NULL;
    }
    size_t kept = 0;
    for (size_t i = 0; i < count; i++) {
        others[kept] = parts[i];
        kept += !adds_nothing(parts[i], parts[first]);
    }
    shoal_tensor *t = shoal_cat(others, kept, dim);
    free(others);
    return t;
}

shoal_tensor *shoal_cat(shoal_tensor *const *parts, size_t count, int dim)
{
    if (count > 0 && !parts) {
        return sh_not_given(__func__, "parts");
    }
    if (count == 0 || !parts) {
        (void)sh_fail(SHOAL_EINVAL, "cat needs at least one tensor");
        return NULL;
    }
    if (any_released(__func__, parts, count)) {
        return NULL;
    }
    for (size_t i = 1; i < count; i++) {
        if (adds_nothing(parts[i - 1], parts[i]) || adds_nothing(parts[i], parts[i - 1])) {
            return cat_others(parts, count, parts[i - 1] && parts[i - 1]->ndim > 1 ? i - 1 : i, dim);
        }
    }
    if (!parts[0] || sh_dim(&dim, parts[0]->ndim, "cat") != SHOAL_OK) {
        return NULL;
    }
    if (parts[0]->ndim == 0) {
        (void)sh_fail(SHOAL_EINVAL, "cat of 0-d tensors is not possible; use shoal_stack");
        return NULL;
    }
    if (count <= SH_OP_INPUTS) {
        return cat_some(parts, count, dim);
    }
    /* Divide into SH_OP_INPUTS runs of nearly equal length. */
    shoal_tensor *runs[SH_OP_INPUTS];
    for (size_t i = 0; i < SH_OP_INPUTS; i++) {
        size_t from = count * i / SH_OP_INPUTS, to = count * (i + 1) / SH_OP_INPUTS;
        runs[i] = shoal_cat(parts + from, to - from, dim);
        if (!runs[i]) {
            return NULL;
        }
    }
    return cat_some(runs, SH_OP_INPUTS, dim);
}

shoal_tensor *shoal_stack(shoal_tensor *const *parts, size_t count, int dim)
{
    if (count > 0 && !parts) {
        return sh_not_given(__func__, "parts");
    }
    if (count == 0 || !parts) {
        (void)sh_fail(SHOAL_EINVAL, "stack needs at least one tensor");
        return NULL;
    }
    if (any_released(__func__, parts, count)) {
        return NULL;
    }
    shoal_tensor *runs[SH_OP_INPUTS];
    size_t n = count < SH_OP_INPUTS ? count : SH_OP_INPUTS;
    for (size_t i = 0; i < n; i++) {
        size_t from = count * i / n, to = count * (i + 1) / n;
        runs[i] = to - from == 1 ? shoal_unsqueeze(parts[from], dim) : shoal_stack(parts + from, to - from, dim);
        if (!runs[i]) {
            return NULL;
        }
    }
    return shoal_cat(runs, n, dim < 0 ? dim + runs[0]->ndim : dim);
}

/* ---- index_select: in = a, index; a.i = dim ---- */

/* Returns the shape as [outer, rows, inner] around the dim. */
static sh_index_shape split_at_dim(const sh_shape *s, int64_t dim, int64_t count)
{
    sh_index_shape r = {.dtype = s->dtype, .outer = 1, .rows = s->shape[dim], .inner = 1, .count = count};
    for (int d = 0; d < s->ndim; d++) {
        r.outer *= d < dim ? s->shape[d] : 1;
        r.inner *= d > dim ? s->shape[d] : 1;
    }
    return r;
}

static shoal_err index_select_shape(sh_call *c)
{
    const shoal_tensor *a = c->in[0], *index = c->in[1];
    if (index->ndim != 1) {
        sh_text ta, ti;
        return sh_fail(SHOAL_EINVAL, "index_select of %s by %s: the index must be 1-d", sh_tensor_text(&ta, a),
                       sh_tensor_text(&ti, index));
    }
    int64_t shape[SHOAL_MAX_DIMS];
    memcpy(shape, a->shape, sizeof shape);
    shape[c->a.i[0]] = index->count;
    return sh_shape_init(&c->shape[0], a->dtype, a->ndim, shape);
}

static shoal_err index_select_forward(sh_call *c)
{
    sh_shape s;
    sh_tensor_shape_of(c->in[0], &s);
    sh_index_shape around_dim = split_at_dim(&s, c->a.i[0], c->in[1]->count);
    SH_TRY(sh_call_save_in(c, 1));
    return c->kernels->index->select(c->exec, &around_dim, sh_tensor_ptr(c->out[0]), sh_tensor_ptr(c->in[0]),
                                     sh_tensor_ptr(c->in[1]));
}

static shoal_err index_select_backward(sh_back *b)
{
    shoal_tensor *g = shoal_contiguous(sh_back_grad(b, 0)), *index = sh_back_saved(b, 0);
    shoal_tensor *da = g ? sh_back_target_zeroed(b, 0) : NULL;
    if (!da) {
        return shoal_last_error();
    }
    sh_shape s;
    sh_back_shape(b, 0, &s);
    sh_index_shape around_dim = split_at_dim(&s, sh_back_attrs(b)->i[0], index->count);
    SH_TRY(sh_back_kernels(b)->index->add(sh_back_exec(b), &around_dim, sh_tensor_ptr(da), sh_tensor_ptr(g),
                                          sh_tensor_ptr(index)));
    return sh_back_give(b, 0, da);
}

const sh_op sh_op_index_select = {"index_select", SH_OP_COMPUTES, index_select_shape, index_select_forward,
                                  index_select_backward};

shoal_tensor *shoal_index_select(shoal_tensor *a, int dim, shoal_tensor *index)
{
    SH_NEED_TENSOR_OR_NULL(a);
    SH_NEED_TENSOR_OR_NULL(index);
    if (!a || sh_dim(&dim, a->ndim, "index_select") != SHOAL_OK) {
        return NULL;
    }
    /* as in PyTorch, an index without dims counts as one of one, and a tensor without dims as one of one element */
    index = index->ndim == 0 ? shoal_reshape(index, SHOAL_SHAPE(1)) : index;
    if (a->ndim == 0) {
        if (index && index->count != 1) {
            (void)sh_fail(SHOAL_EINVAL, "index_select of a tensor without dims by %lld indices: it has one element",
                          (long long)index->count);
            return NULL;
        }
        return shoal_reshape(shoal_index_select(shoal_reshape(a, SHOAL_SHAPE(1)), 0, index), SHOAL_SCALAR);
    }
    return sh_run(
        &sh_op_index_select,
        &(sh_call){.in = {shoal_contiguous(a), sh_as_index(index, "index_select")}, .in_count = 2, .a.i = {dim}}, 2);
}

shoal_tensor *shoal_embedding(shoal_tensor *weight, shoal_tensor *index)
{
    SH_NEED_TENSOR_OR_NULL(weight);
    SH_NEED_TENSOR_OR_NULL(index);
    shoal_tensor *i = sh_as_index(index, "embedding");
    if (!weight || !i) {
        return NULL;
    }
    if (weight->ndim != 2 || i->ndim >= SHOAL_MAX_DIMS) {
        sh_text tw, ti;
        (void)sh_fail(SHOAL_EINVAL, "embedding of %s by %s: the weight must be 2-d", sh_tensor_text(&tw, weight),
                      sh_tensor_text(&ti, i));
        return NULL;
    }
    int64_t shape[SHOAL_MAX_DIMS];
    memcpy(shape, i->shape, sizeof shape);
    shape[i->ndim] = weight->shape[1];
    return shoal_reshape(shoal_index_select(weight, 0, shoal_flatten(i, 0)), i->ndim + 1, shape);
}

/* ---- gather: in = a, index; scatter_add: in = a, index, source; a.i = dim ---- */

static shoal_err check_around(const sh_call *c, const shoal_tensor *a, const shoal_tensor *index)
{
    bool fits = a->ndim == index->ndim;
    for (int d = 0; fits && d < a->ndim; d++) {
        fits = d == c->a.i[0] || index->shape[d] <= a->shape[d];
    }
    if (!fits) {
        sh_text ta, ti;
        return sh_fail(SHOAL_EINVAL, "%s along dim %d: %s and index %s do not match", c->op->name, (int)c->a.i[0],
                       sh_tensor_text(&ta, a), sh_tensor_text(&ti, index));
    }
    return SHOAL_OK;
}

static shoal_err gather_shape(sh_call *c)
{
    const shoal_tensor *index = c->in[1];
    SH_TRY(check_around(c, c->in[0], index));
    return sh_shape_init(&c->shape[0], c->in[0]->dtype, index->ndim, index->shape);
}

static shoal_err gather_forward(sh_call *c)
{
    sh_view out = sh_tensor_view(c->out[0]), a = sh_tensor_view(c->in[0]), index = sh_tensor_view(c->in[1]);
    SH_TRY(sh_call_save_in(c, 1));
    return c->kernels->index->gather(c->exec, (int32_t)c->a.i[0], &out, &a, &index);
}

static shoal_err gather_backward(sh_back *b)
{
    sh_shape s;
    sh_back_shape(b, 0, &s);
    shoal_tensor *g = sh_back_grad(b, 0);
    shoal_tensor *all = sh_zeros_on(g, s.ndim, s.shape);
    return sh_back_give(b, 0, shoal_scatter_add(all, (int)sh_back_attrs(b)->i[0], sh_back_saved(b, 0), g));
}

const sh_op sh_op_gather = {"gather", SH_OP_COMPUTES, gather_shape, gather_forward, gather_backward};

shoal_tensor *shoal_gather(shoal_tensor *a, int dim, shoal_tensor *index)
{
    SH_NEED_TENSOR_OR_NULL(a);
    SH_NEED_TENSOR_OR_NULL(index);
    if (!a || sh_dim(&dim, a->ndim, "gather") != SHOAL_OK) {
        return NULL;
    }
    return sh_run(&sh_op_gather, &(sh_call){.in = {a, sh_as_index(index, "gather")}, .in_count = 2, .a.i = {dim}}, 2);
}

static shoal_err scatter_add_shape(sh_call *c)
{
    const shoal_tensor *a = c->in[0], *index = c->in[1], *source = c->in[2];
    SH_TRY(check_around(c, a, index));
    if (!(a->dtype == SHOAL_F32 || a->dtype == SHOAL_F64 || a->dtype == SHOAL_I64 || a->dtype == SHOAL_I32)) {
        return sh_fail(SHOAL_ETYPE, "scatter_add supports f32, f64, i64 and i32, not %s", shoal_dtype_name(a->dtype));
    }
    if (source->dtype != a->dtype || source->ndim != index->ndim ||
        memcmp(source->shape, index->shape, sizeof index->shape[0] * (size_t)index->ndim) != 0) {
        sh_text ta, ts, ti;
        return sh_fail(SHOAL_EINVAL, "scatter_add into %s: source %s and index %s do not match", sh_tensor_text(&ta, a),
                       sh_tensor_text(&ts, source), sh_tensor_text(&ti, index));
    }
    return sh_shape_init(&c->shape[0], a->dtype, a->ndim, a->shape);
}

static shoal_err scatter_add_forward(sh_call *c)
{
    SH_TRY(sh_call_save_in(c, 1));
    SH_TRY(sh_tensor_copy_data(c->out[0], c->in[0]));
    sh_view out = sh_tensor_view(c->out[0]), index = sh_tensor_view(c->in[1]), source = sh_tensor_view(c->in[2]);
    return c->kernels->index->scatter_add(c->exec, (int32_t)c->a.i[0], &out, &source, &index);
}

static shoal_err scatter_add_backward(sh_back *b)
{
    shoal_tensor *g = sh_back_grad(b, 0);
    SH_TRY(sh_back_give(b, 0, g));
    return sh_back_needs(b, 2) ? sh_back_give(b, 2, shoal_gather(g, (int)sh_back_attrs(b)->i[0], sh_back_saved(b, 0)))
                               : SHOAL_OK;
}

const sh_op sh_op_scatter_add = {"scatter_add", SH_OP_COMPUTES, scatter_add_shape, scatter_add_forward,
                                 scatter_add_backward};

shoal_tensor *shoal_scatter_add(shoal_tensor *a, int dim, shoal_tensor *index, shoal_tensor *source)
{
    SH_NEED_TENSOR_OR_NULL(a);
    SH_NEED_TENSOR_OR_NULL(index);
    SH_NEED_TENSOR_OR_NULL(source);
    if (!a || sh_dim(&dim, a->ndim, "scatter_add") != SHOAL_OK) {
        return NULL;
    }
    /* as in PyTorch, a larger source is used from its beginning */
    for (int d = 0; d < index->ndim && source && source->ndim == index->ndim; d++) {
        source = source->shape[d] > index->shape[d] ? shoal_narrow(source, d, 0, index->shape[d]) : source;
    }
    return sh_run(&sh_op_scatter_add,
                  &(sh_call){.in = {a, sh_as_index(index, "scatter_add"), source}, .in_count = 3, .a.i = {dim}}, 3);
}

/* ---- one_hot: in = index; a.i = classes ---- */

static shoal_err one_hot_shape(sh_call *c)
{
    const shoal_tensor *index = c->in[0];
    if (index->ndim >= SHOAL_MAX_DIMS || c->a.i[0] < 1) {
        return sh_fail(SHOAL_EINVAL, "one_hot of a %d-d index with %lld classes is not possible", index->ndim,
                       (long long)c->a.i[0]);
    }
    int64_t shape[SHOAL_MAX_DIMS];
    memcpy(shape, index->shape, sizeof shape);
    shape[index->ndim] = c->a.i[0];
    return sh_shape_init(&c->shape[0], SHOAL_I64, index->ndim + 1, shape);
}

static shoal_err one_hot_forward(sh_call *c)
{
    return c->kernels->index->one_hot(c->exec, SHOAL_I64, sh_tensor_ptr(c->out[0]), sh_tensor_ptr(c->in[0]),
                                      c->in[0]->count, c->a.i[0]);
}

const sh_op sh_op_one_hot = {"one_hot", SH_OP_COMPUTES, one_hot_shape, one_hot_forward, NULL};

shoal_tensor *shoal_one_hot(shoal_tensor *index, int64_t classes)
{
    SH_NEED_TENSOR_OR_NULL(index);
    return sh_run(&sh_op_one_hot, &(sh_call){.in = {sh_as_index(index, "one_hot")}, .in_count = 1, .a.i = {classes}},
                  1);
}
