/* Views: other shapes and strides over the same storage. The gradient of a view goes back through the same view of a
 * tensor of zeros, or is reshaped. */
#include "autograd/op.h"

#include "base/error.h"

#include <string.h>

#define RUN(op, t, ...) sh_run(&op, &(sh_call){.in = {t}, .in_count = 1, .a.i = {__VA_ARGS__}}, 1)

static void start(sh_call *c)
{
    sh_tensor_shape_of(c->in[0], &c->shape[0]);
}

/* ---- reshape: a.i = ndim, shape… ---- */

/* Replaces the -1 in shape by the matching size. */
static shoal_err fill_in(const shoal_tensor *t, const char *op, int64_t ndim, int64_t *shape)
{
    int64_t known = 1, open = -1;
    bool good = ndim >= 0 && ndim <= SHOAL_MAX_DIMS;
    for (int64_t d = 0; good && d < ndim; d++) {
        if (shape[d] == -1 && open < 0) {
            open = d;
        } else {
            good = shape[d] >= 0 && !__builtin_mul_overflow(known, shape[d], &known);
        }
    }
    if (good && open >= 0) {
        good = known > 0 && t->count % known == 0;
        shape[open] = good ? t->count / known : -1;
    } else if (good) {
        good = known == t->count;
    }
    if (!good) {
        sh_text own, wanted;
        return sh_fail(SHOAL_EINVAL, "%s of %s to %s", op, sh_tensor_text(&own, t),
                       sh_shape_text(&wanted, ndim >= 0 && ndim <= SHOAL_MAX_DIMS ? (int)ndim : 0, shape));
    }
    return SHOAL_OK;
}

/* Finds strides for the new shape over the same elements. Returns false if there are none. It goes through both shapes
 * from the last dim, and takes a run of old dims that are adjacent in memory at a time. */
static bool restride(const shoal_tensor *t, int ndim, const int64_t *shape, int64_t *strides)
{
    int old = t->ndim - 1, d = ndim - 1;
    if (t->count == 0) {
        int64_t next = 1;
        for (; d >= 0; d--) {
            strides[d] = next;
            next *= shape[d] > 0 ? shape[d] : 1;
        }
        return true;
    }
    while (old >= 0) {
        int64_t run = t->shape[old], unit = t->strides[old];
        while (old > 0 && (t->shape[old - 1] == 1 || run == 1 || t->strides[old - 1] == run * unit)) {
            if (run == 1) {
                unit = t->strides[old - 1];
            }
            old--;
            run *= t->shape[old];
        }
        int64_t taken = 1;
        while (d >= 0 && (taken < run || shape[d] == 1)) {
            strides[d] = unit * taken;
            taken *= shape[d--];
        }
        if (taken != run) {
            return false;
        }
        old--;
    }
    for (; d >= 0; d--) {
        strides[d] = 1;
    }
    return true;
}

static shoal_err reshape_shape(sh_call *c)
{
    const shoal_tensor *t = c->in[0];
    int ndim = (int)c->a.i[0];
    c->shape[0] = (sh_shape){.ndim = ndim, .dtype = t->dtype, .offset = t->offset};
    memcpy(c->shape[0].shape, &c->a.i[1], (size_t)ndim * sizeof(int64_t));
    if (!restride(t, ndim, c->shape[0].shape, c->shape[0].strides)) {
        sh_text own, wanted;
        return sh_fail(SHOAL_EINVAL, "view of %s as %s: its strides do not allow it without a copy; use shoal_reshape",
                       sh_tensor_text(&own, t), sh_shape_text(&wanted, ndim, c->shape[0].shape));
    }
    return SHOAL_OK;
}

static shoal_err reshape_backward(sh_back *b)
{
    sh_shape s;
    sh_back_shape(b, 0, &s);
    return sh_back_give(b, 0, shoal_reshape(sh_back_grad(b, 0), s.ndim, s.shape));
}

const sh_op sh_op_view = {"view", SH_OP_VIEWS, reshape_shape, NULL, reshape_backward};

static shoal_tensor *reshaped(shoal_tensor *t, const char *op, int ndim, const int64_t *shape, bool may_copy)
{
    sh_call c = {.in = {t}, .in_count = 1, .a.i = {ndim}};
    if (!t) {
        return NULL;
    }
    if (ndim > 0 && ndim <= SHOAL_MAX_DIMS) {
        memcpy(&c.a.i[1], shape, (size_t)ndim * sizeof *shape);
    }
    if (fill_in(t, op, ndim, &c.a.i[1]) != SHOAL_OK) {
        return NULL;
    }
    int64_t strides[SHOAL_MAX_DIMS];
    if (may_copy && !t->contiguous && !restride(t, ndim, &c.a.i[1], strides)) {
        c.in[0] = shoal_clone(t);
    }
    return sh_run(&sh_op_view, &c, 1);
}

shoal_tensor *shoal_reshape(shoal_tensor *t, int ndim, const int64_t *shape)
{
    SH_NEED_TENSOR_OR_NULL(t);
    if (ndim > 0 && !shape) {
        return sh_not_given(__func__, "shape");
    }
    return reshaped(t, "reshape", ndim, shape, true);
}

shoal_tensor *shoal_view(shoal_tensor *t, int ndim, const int64_t *shape)
{
    SH_NEED_TENSOR_OR_NULL(t);
    if (ndim > 0 && !shape) {
        return sh_not_given(__func__, "shape");
    }
    return reshaped(t, "view", ndim, shape, false);
}

shoal_tensor *shoal_flatten(shoal_tensor *t, int first_dim)
{
    SH_NEED_TENSOR_OR_NULL(t);
    if (!t || sh_dim(&first_dim, t->ndim, "flatten") != SHOAL_OK) {
        return NULL;
    }
    int64_t shape[SHOAL_MAX_DIMS];
    memcpy(shape, t->shape, sizeof shape);
    int64_t rest = 1;
    for (int d = first_dim; d < t->ndim; d++) {
        rest *= t->shape[d];
    }
    shape[first_dim] = rest;
    return shoal_reshape(t, first_dim + 1, shape);
}

/* ---- permute: a.i[d] = the old dim that becomes dim d ---- */

static shoal_err permute_shape(sh_call *c)
{
    const shoal_tensor *t = c->in[0];
    start(c);
    unsigned seen = 0;
    for (int d = 0; d < t->ndim; d++) {
        int64_t from = c->a.i[d];
        if (from < 0 || from >= t->ndim || (seen & (1u << from))) {
            sh_text own, dims;
            return sh_fail(SHOAL_EINVAL, "permute of %s by %s: each dim must be named once", sh_tensor_text(&own, t),
                           sh_shape_text(&dims, t->ndim, c->a.i));
        }
        seen |= 1u << from;
        c->shape[0].shape[d] = t->shape[from];
        c->shape[0].strides[d] = t->strides[from];
    }
    return SHOAL_OK;
}

static shoal_err permute_backward(sh_back *b)
{
    const shoal_tensor *g = sh_back_grad(b, 0);
    int64_t back[SHOAL_MAX_DIMS] = {0};
    for (int d = 0; d < g->ndim; d++) {
        back[sh_back_attrs(b)->i[d]] = d;
    }
    return sh_back_give(b, 0, shoal_permute(sh_back_grad(b, 0), g->ndim, back));
}

const sh_op sh_op_permute = {"permute", SH_OP_VIEWS, permute_shape, NULL, permute_backward};

shoal_tensor *shoal_permute(shoal_tensor *t, int ndim, const int64_t *dims)
{
    SH_NEED_TENSOR_OR_NULL(t);
    if (ndim > 0 && !dims) {
        return sh_not_given(__func__, "dims");
    }
    sh_call c = {.in = {t}, .in_count = 1};
    if (!t) {
        return NULL;
    }
    if (ndim != t->ndim) {
        (void)sh_fail(SHOAL_EINVAL, "permute: %d dims given for a tensor of %d dims", ndim, t->ndim);
        return NULL;
    }
    for (int d = 0; d < ndim; d++) {
        c.a.i[d] = dims[d] < 0 ? dims[d] + ndim : dims[d];
    }
    return sh_run(&sh_op_permute, &c, 1);
}

shoal_tensor *shoal_transpose(shoal_tensor *t, int a, int b)
{
    SH_NEED_TENSOR_OR_NULL(t);
    if (!t || sh_dim(&a, t->ndim, "transpose") != SHOAL_OK || sh_dim(&b, t->ndim, "transpose") != SHOAL_OK) {
        return NULL;
    }
    int64_t dims[SHOAL_MAX_DIMS];
    for (int d = 0; d < t->ndim; d++) {
        dims[d] = d == a ? b : d == b ? a : d;
    }
    return shoal_permute(t, t->ndim, dims);
}

/* ---- squeeze and unsqueeze ---- */

shoal_tensor *shoal_squeeze(shoal_tensor *t, int dim)
{
    SH_NEED_TENSOR_OR_NULL(t);
    if (!t || sh_dim(&dim, t->ndim, "squeeze") != SHOAL_OK) {
        return NULL;
    }
    int64_t shape[SHOAL_MAX_DIMS];
    int ndim = 0;
    for (int d = 0; d < t->ndim; d++) {
        if (d != dim || t->shape[d] != 1) {
            shape[ndim++] = t->shape[d];
        }
    }
    return shoal_reshape(t, ndim, shape);
}

shoal_tensor *shoal_unsqueeze(shoal_tensor *t, int dim)
{
    SH_NEED_TENSOR_OR_NULL(t);
    int at = dim < 0 ? dim + t->ndim + 1 : dim;
    if (at < 0 || at > t->ndim || t->ndim == SHOAL_MAX_DIMS) {
        (void)sh_fail(SHOAL_EINVAL, "unsqueeze: dim %d is out of range for a tensor of %d dims", dim, t->ndim);
        return NULL;
    }
    int64_t shape[SHOAL_MAX_DIMS];
    memcpy(shape, t->shape, (size_t)at * sizeof shape[0]);
    shape[at] = 1;
    memcpy(shape + at + 1, t->shape + at, (size_t)(t->ndim - at) * sizeof shape[0]);
    return shoal_reshape(t, t->ndim + 1, shape);
}

/* ---- expand: a.i = ndim, shape… ---- */

static shoal_err expand_shape(sh_call *c)
{
    const shoal_tensor *t = c->in[0];
    int ndim = (int)c->a.i[0], extra = ndim - t->ndim;
    bool good = ndim <= SHOAL_MAX_DIMS && extra >= 0;
    c->shape[0] = (sh_shape){.ndim = ndim, .dtype = t->dtype, .offset = t->offset};
    for (int d = 0; good && d < ndim; d++) {
        int64_t wanted = c->a.i[1 + d], own = d < extra ? 1 : t->shape[d - extra];
        if (wanted == -1 && d >= extra) {
            wanted = own;
        }
        good = wanted >= 0 && (own == wanted || own == 1);
        c->shape[0].shape[d] = wanted;
        c->shape[0].strides[d] = d < extra || own == 1 ? 0 : t->strides[d - extra];
    }
    if (!good || sh_shape_count(&c->shape[0]) < 0) {
        sh_text own, wanted;
        return sh_fail(SHOAL_EINVAL, "expand of %s to %s", sh_tensor_text(&own, t),
                       sh_shape_text(&wanted, ndim <= SHOAL_MAX_DIMS ? ndim : 0, &c->a.i[1]));
    }
    return SHOAL_OK;
}

static shoal_err expand_backward(sh_back *b)
{
    return sh_back_give(b, 0, sh_back_grad(b, 0));
}

const sh_op sh_op_expand = {"expand", SH_OP_VIEWS, expand_shape, NULL, expand_backward};

shoal_tensor *shoal_expand(shoal_tensor *t, int ndim, const int64_t *shape)
{
    if (ndim > 0 && !shape) {
        return sh_not_given(__func__, "shape");
    }
    sh_call c = {.in = {t}, .in_count = 1, .a.i = {ndim}};
    if (ndim > 0 && ndim <= SHOAL_MAX_DIMS) {
        memcpy(&c.a.i[1], shape, (size_t)ndim * sizeof *shape);
    }
    return sh_run(&sh_op_expand, &c, 1);
}

/* ---- slice: a.i = dim, start, length, step; and select, a slice of length one without its dim ---- */

static shoal_err slice_shape(sh_call *c)
{
    start(c);
    int64_t dim = c->a.i[0], length = c->a.i[2];
    c->shape[0].shape[dim] = length;
    c->shape[0].offset += length > 0 ? c->a.i[1] * c->in[0]->strides[dim] : 0;
    c->shape[0].strides[dim] *= c->a.i[3];
    return SHOAL_OK;
}

static shoal_err slice_backward(sh_back *b)
{
    const sh_attrs *a = sh_back_attrs(b);
    sh_shape s;
    sh_back_shape(b, 0, &s);
    shoal_tensor *all = sh_zeros_on(sh_back_grad(b, 0), s.ndim, s.shape);
    shoal_tensor *part = all ? RUN(sh_op_slice, all, a->i[0], a->i[1], a->i[2], a->i[3]) : NULL;
    SH_TRY(part ? sh_tensor_copy_data(part, sh_back_grad(b, 0)) : shoal_last_error());
    return sh_back_give(b, 0, all);
}

const sh_op sh_op_slice = {"slice", SH_OP_VIEWS, slice_shape, NULL, slice_backward};

/* Returns a position in a dim as Python defines it: a negative one counts from the end, and is clamped to the ends. */
static int64_t clamped(int64_t at, int64_t size)
{
    at = at < 0 ? at + size : at;
    return at < 0 ? 0 : at > size ? size : at;
}

shoal_tensor *shoal_slice(shoal_tensor *t, int dim, int64_t from, int64_t to, int64_t step)
{
    SH_NEED_TENSOR_OR_NULL(t);
    if (!t || sh_dim(&dim, t->ndim, "slice") != SHOAL_OK) {
        return NULL;
    }
    if (t->ndim == 0) {
        (void)sh_fail(SHOAL_EINVAL, "a 0-d tensor cannot be sliced");
        return NULL;
    }
    if (step < 1) {
        sh_text own;
        (void)sh_fail(SHOAL_EINVAL, "slice of %s: dim %d in steps of %lld; the step must be at least 1",
                      sh_tensor_text(&own, t), dim, (long long)step);
        return NULL;
    }
    int64_t size = t->shape[dim];
    from = clamped(from, size);
    to = clamped(to, size);
    step = step > size ? (size > 0 ? size : 1) : step; /* the same elements, without overflow */
    int64_t length = to > from ? (to - from + step - 1) / step : 0;
    return RUN(sh_op_slice, t, dim, from, length, step);
}

shoal_tensor *shoal_narrow(shoal_tensor *t, int dim, int64_t from, int64_t length)
{
    SH_NEED_TENSOR_OR_NULL(t);
    if (!t || sh_dim(&dim, t->ndim, "narrow") != SHOAL_OK) {
        return NULL;
    }
    if (t->ndim == 0 || from < 0 || length < 0 || from > t->shape[dim] - length) {
        sh_text own;
        (void)sh_fail(SHOAL_EINVAL, "narrow of %s: dim %d from %lld, length %lld is out of range",
                      sh_tensor_text(&own, t), dim, (long long)from, (long long)length);
        return NULL;
    }
    return RUN(sh_op_slice, t, dim, from, length, 1);
}

shoal_tensor *shoal_select(shoal_tensor *t, int dim, int64_t index)
{
    SH_NEED_TENSOR_OR_NULL(t);
    if (!t || sh_dim(&dim, t->ndim, "select") != SHOAL_OK) {
        return NULL;
    }
    int64_t at = t->ndim > 0 && index < 0 ? index + t->shape[dim] : index;
    if (t->ndim == 0 || at < 0 || at >= t->shape[dim]) {
        sh_text own;
        (void)sh_fail(SHOAL_EINVAL, "select of %s: index %lld is out of range in dim %d", sh_tensor_text(&own, t),
                      (long long)index, dim);
        return NULL;
    }
    return shoal_squeeze(RUN(sh_op_slice, t, dim, at, 1, 1), dim);
}

/* ---- as_strided: a.i = shape… (8), strides… (8), offset, ndim ---- */

static shoal_err as_strided_shape(sh_call *c)
{
    const shoal_tensor *t = c->in[0];
    sh_shape *s = &c->shape[0];
    *s = (sh_shape){.ndim = (int)c->a.i[17], .dtype = t->dtype, .offset = c->a.i[16]};
    memcpy(s->shape, c->a.i, sizeof s->shape);
    memcpy(s->strides, c->a.i + SHOAL_MAX_DIMS, sizeof s->strides);
    int64_t reach = sh_shape_reach(s);
    if (reach < 0 || (size_t)reach > t->storage->size || sh_shape_count(s) < 0) {
        sh_text shape, strides;
        return sh_fail(SHOAL_EINVAL, "as_strided: shape %s with strides %s from %lld does not fit into %zu bytes",
                       sh_shape_text(&shape, s->ndim, s->shape), sh_shape_text(&strides, s->ndim, s->strides),
                       (long long)s->offset, t->storage->size);
    }
    return SHOAL_OK;
}

const sh_op sh_op_as_strided = {"as_strided", SH_OP_VIEWS, as_strided_shape, NULL, NULL};

shoal_tensor *shoal_as_strided(shoal_tensor *t, int ndim, const int64_t *shape, const int64_t *strides, int64_t offset)
{
    SH_NEED_TENSOR_OR_NULL(t);
    if (ndim > 0 && !shape) {
        return sh_not_given(__func__, "shape");
    }
    if (ndim > 0 && !strides) {
        return sh_not_given(__func__, "strides");
    }
    sh_call c = {.in = {t}, .in_count = 1};
    if (!t) {
        return NULL;
    }
    if (ndim < 0 || ndim > SHOAL_MAX_DIMS) {
        (void)sh_fail(SHOAL_EINVAL, "as_strided: %d dims; a tensor has 0 to %d", ndim, SHOAL_MAX_DIMS);
        return NULL;
    }
    if (t->requires_grad && shoal_grad_enabled()) {
        (void)sh_fail(SHOAL_ESTATE, "as_strided has no gradient; use shoal_detach first");
        return NULL;
    }
    for (int d = 0; d < ndim; d++) {
        c.a.i[d] = shape[d];
        c.a.i[SHOAL_MAX_DIMS + d] = strides[d];
    }
    c.a.i[16] = offset;
    c.a.i[17] = ndim;
    return sh_run(&sh_op_as_strided, &c, 1);
}
