/* Compares views with brute force: looks up every element of a random view by hand. */
#include "autograd/op.h"
#include "base/random.h"
#include "tests/harness/numbers.h"
#include "tests/harness/runner.h"

#include <string.h>

enum {
    ROUNDS = SH_SLOW ? 300 : 3000,
    STEPS = 5,
};

static uint64_t seed;

static int64_t between(int64_t low, int64_t high)
{
    return low + (int64_t)sh_splitmix_below(&seed, (uint64_t)(high - low + 1));
}

/* A tensor modelled by hand: its elements in order. */
typedef struct model {
    int ndim;
    int64_t shape[SHOAL_MAX_DIMS];
    int64_t count;
    int32_t values[4096];
} model;

static int64_t product(int ndim, const int64_t *shape)
{
    int64_t n = 1;
    for (int d = 0; d < ndim; d++) {
        n *= shape[d];
    }
    return n;
}

/* Returns the index of element number at of a shape. */
static void unflatten(int64_t at, int ndim, const int64_t *shape, int64_t *index)
{
    for (int d = ndim; d-- > 0;) {
        index[d] = at % shape[d];
        at /= shape[d];
    }
}

static int64_t flatten(int ndim, const int64_t *shape, const int64_t *index)
{
    int64_t at = 0;
    for (int d = 0; d < ndim; d++) {
        at = at * shape[d] + index[d];
    }
    return at;
}

/* Gives the model a new shape; the caller's function maps each new index to an old one. */
static void model_set(model *m, int ndim, const int64_t *shape, void (*map)(const int64_t *, int64_t *, const void *),
                      const void *context)
{
    static model old;
    old = *m;
    m->ndim = ndim;
    memcpy(m->shape, shape, sizeof m->shape[0] * (size_t)ndim);
    m->count = product(ndim, shape);
    ck_assert(m->count <= 4096);
    for (int64_t i = 0; i < m->count; i++) {
        int64_t index[SHOAL_MAX_DIMS] = {0}, from[SHOAL_MAX_DIMS] = {0};
        unflatten(i, ndim, shape, index);
        map(index, from, context);
        m->values[i] = old.values[flatten(old.ndim, old.shape, from)];
    }
}

static void compare(const model *m, const shoal_tensor *t, const char *step)
{
    ck_assert_msg(t != NULL, "%s: %s", step, shoal_last_error_text());
    ck_assert_int_eq(t->ndim, m->ndim);
    ck_assert_int_eq(t->count, m->count);
    const int32_t *data = shoal_tensor_data(t);
    int64_t next = 1;
    bool contiguous = true;
    for (int d = t->ndim; d-- > 0;) {
        ck_assert_int_eq(t->shape[d], m->shape[d]);
        contiguous &= t->shape[d] == 1 || t->strides[d] == next;
        next *= t->shape[d];
    }
    ck_assert_msg(t->contiguous == (contiguous || t->count == 0), "%s: contiguous is %d", step, t->contiguous);
    int32_t packed[4096];
    ck_assert_ok(shoal_tensor_read(t, packed, (size_t)t->count * sizeof packed[0]));
    for (int64_t i = 0; i < m->count; i++) {
        int64_t index[SHOAL_MAX_DIMS], at = 0;
        unflatten(i, m->ndim, m->shape, index);
        for (int d = 0; d < m->ndim; d++) {
            at += index[d] * t->strides[d];
        }
        ck_assert_msg(data[at] == m->values[i] && packed[i] == m->values[i], "%s: element %lld is %d, not %d", step,
                      (long long)i, data[at], m->values[i]);
    }
    if (m->count > 0) {
        int64_t index[SHOAL_MAX_DIMS] = {0}, at = between(0, m->count - 1);
        unflatten(at, m->ndim, m->shape, index);
        ck_assert(item_at(t, m->ndim, index) == m->values[at]);
    }
}

/* ---- the steps ---- */

static void map_permute(const int64_t *index, int64_t *from, const void *dims)
{
    for (int d = 0; d < SHOAL_MAX_DIMS; d++) {
        from[((const int64_t *)dims)[d]] = index[d];
    }
}

static shoal_tensor *step_permute(model *m, shoal_tensor *t)
{
    int64_t dims[SHOAL_MAX_DIMS], shape[SHOAL_MAX_DIMS], given[SHOAL_MAX_DIMS];
    for (int d = 0; d < SHOAL_MAX_DIMS; d++) {
        int64_t j = d < m->ndim ? between(0, d) : d;
        dims[d] = dims[j];
        dims[j] = d;
    }
    for (int d = 0; d < m->ndim; d++) {
        shape[d] = m->shape[dims[d]];
        given[d] = between(0, 1) ? dims[d] : dims[d] - m->ndim;
    }
    model_set(m, m->ndim, shape, map_permute, dims);
    return shoal_permute(t, m->ndim, given);
}

typedef struct cut {
    int dim;
    int64_t start, step;
} cut;

static void map_slice(const int64_t *index, int64_t *from, const void *context)
{
    const cut *c = context;
    memcpy(from, index, sizeof(int64_t) * SHOAL_MAX_DIMS);
    from[c->dim] = c->start + index[c->dim] * c->step;
}

static shoal_tensor *step_slice(model *m, shoal_tensor *t)
{
    if (m->ndim == 0) {
        return t;
    }
    cut c = {.dim = (int)between(0, m->ndim - 1), .step = between(1, 3)};
    int64_t size = m->shape[c.dim], shape[SHOAL_MAX_DIMS];
    c.start = between(0, size);
    int64_t end = between(0, size);
    memcpy(shape, m->shape, sizeof shape);
    shape[c.dim] = end > c.start ? (end - c.start + c.step - 1) / c.step : 0;
    model_set(m, m->ndim, shape, map_slice, &c);
    bool from_end = between(0, 1) && c.start < size && size > 0 && end > 0 && end < size;
    return shoal_slice(t, c.dim, from_end ? c.start - size : c.start, from_end ? end - size : end, c.step);
}

static void map_select(const int64_t *index, int64_t *from, const void *context)
{
    const cut *c = context;
    for (int d = 0, own = 0; d < SHOAL_MAX_DIMS; d++) {
        from[d] = d == c->dim ? c->start : index[own++];
    }
}

static shoal_tensor *step_select(model *m, shoal_tensor *t)
{
    cut c = {.dim = m->ndim > 0 ? (int)between(0, m->ndim - 1) : 0};
    if (m->ndim == 0 || m->shape[c.dim] == 0) {
        return t;
    }
    int64_t size = m->shape[c.dim], shape[SHOAL_MAX_DIMS] = {0};
    c.start = between(0, size - 1);
    for (int d = 0, own = 0; d < m->ndim; d++) {
        if (d != c.dim) {
            shape[own++] = m->shape[d];
        }
    }
    model_set(m, m->ndim - 1, shape, map_select, &c);
    return shoal_select(t, c.dim, between(0, 1) ? c.start : c.start - size);
}

typedef struct spread {
    int extra;
    bool repeated[SHOAL_MAX_DIMS];
} spread;

static void map_expand(const int64_t *index, int64_t *from, const void *context)
{
    const spread *s = context;
    for (int d = s->extra; d < SHOAL_MAX_DIMS; d++) {
        from[d - s->extra] = s->repeated[d] ? 0 : index[d];
    }
}

static shoal_tensor *step_expand(model *m, shoal_tensor *t)
{
    spread s = {.extra = m->ndim < SHOAL_MAX_DIMS && m->count < 200 ? (int)between(0, 1) : 0};
    int64_t shape[SHOAL_MAX_DIMS] = {0}, given[SHOAL_MAX_DIMS];
    int ndim = m->ndim + s.extra;
    for (int d = 0; d < ndim; d++) {
        int64_t own = d < s.extra ? 1 : m->shape[d - s.extra];
        s.repeated[d] = d >= s.extra && own == 1;
        shape[d] = own == 1 && m->count < 200 ? between(1, 2) : own;
        given[d] = d >= s.extra && own == shape[d] && between(0, 1) ? -1 : shape[d];
    }
    model_set(m, ndim, shape, map_expand, &s);
    return shoal_expand(t, ndim, given);
}

/* Reshapes to a random shape of the same element count. */
static shoal_tensor *step_reshape(model *m, shoal_tensor *t)
{
    int64_t shape[SHOAL_MAX_DIMS], rest = m->count;
    int ndim = (int)between(1, 4);
    for (int d = 0; d < ndim - 1; d++) {
        shape[d] = 1;
        for (int64_t f = 2; rest > 1 && f <= 7; f++) {
            if (rest % f == 0 && between(0, 1)) {
                shape[d] *= f;
                rest /= f;
            }
        }
    }
    shape[ndim - 1] = rest;
    m->ndim = ndim;
    memcpy(m->shape, shape, sizeof shape[0] * (size_t)ndim);
    shoal_tensor *view = shoal_view(t, ndim, shape);
    bool copies = view == NULL;
    if (m->count > 0 && between(0, 1)) {
        shape[between(0, ndim - 1)] = -1;
    }
    shoal_tensor *made = shoal_reshape(t, ndim, shape);
    ck_assert_ptr_nonnull(made);
    ck_assert_msg((made->storage != t->storage) == copies, "reshape copied %d, view refused %d",
                  made->storage != t->storage, copies);
    ck_assert(!copies || !t->contiguous);
    if (view) {
        compare(m, view, "view");
    }
    return made;
}

static shoal_tensor *step_unsqueeze(model *m, shoal_tensor *t)
{
    if (m->ndim == SHOAL_MAX_DIMS) {
        ck_assert_ptr_null(shoal_unsqueeze(t, 0));
        return t;
    }
    int at = (int)between(0, m->ndim);
    memmove(&m->shape[at + 1], &m->shape[at], sizeof m->shape[0] * (size_t)(m->ndim - at));
    m->shape[at] = 1;
    m->ndim++;
    shoal_tensor *made = shoal_unsqueeze(t, between(0, 1) ? at : at - m->ndim);
    ck_assert_ptr_nonnull(made);
    ck_assert_ptr_eq(made->storage, t->storage);
    shoal_tensor *back = shoal_squeeze(made, at);
    ck_assert_int_eq(back->ndim, t->ndim);
    return made;
}

START_TEST(random_views)
{
    static shoal_tensor *(*const steps[])(model *, shoal_tensor *) = {step_permute, step_slice,   step_select,
                                                                      step_expand,  step_reshape, step_unsqueeze};
    static const char *const names[] = {"permute", "slice", "select", "expand", "reshape", "unsqueeze"};
    static model m;
    seed = (uint64_t)_i + 1;
    for (int round = 0; round < ROUNDS; round++) {
        m = (model){.ndim = (int)between(0, 4)};
        for (int d = 0; d < m.ndim; d++) {
            m.shape[d] = between(0, 15) == 0 ? 0 : between(1, 5);
        }
        m.count = product(m.ndim, m.shape);
        shoal_tensor *base = shoal_empty(SHOAL_I32, m.ndim, m.shape);
        for (int64_t i = 0; i < m.count; i++) {
            ((int32_t *)shoal_tensor_data(base))[i] = m.values[i] = (int32_t)sh_splitmix_next(&seed);
        }
        shoal_tensor *t = base;
        for (int i = 0; i < STEPS; i++) {
            int kind = (int)between(0, 5);
            t = steps[kind](&m, t);
            compare(&m, t, names[kind]);
        }
        shoal_tensor_release(base);
        shoal_scope_release(0);
    }
}
END_TEST

START_TEST(as_strided)
{
    shoal_tensor *t = shoal_arange(SHOAL_I32, 0, 12, 1);
    const int64_t shape[] = {3, 2}, strides[] = {4, 0}, huge[] = {INT64_MAX, 2}, back[] = {-1, 1};
    shoal_tensor *v = shoal_as_strided(t, 2, shape, strides, 3);
    ck_assert(item_at(v, SHOAL_SHAPE(2, 1)) == 11);
    ck_assert_ptr_null(shoal_as_strided(t, 2, shape, strides, 4));
    ck_assert_ptr_null(shoal_as_strided(t, 2, shape, huge, 0));
    ck_assert_ptr_null(shoal_as_strided(t, 2, shape, back, 5));
    ck_assert_ptr_null(shoal_as_strided(t, 9, shape, strides, 0));
    ck_assert_ptr_null(shoal_as_strided(t, 2, shape, strides, -1));
    const int64_t many[] = {(int64_t)1 << 40, (int64_t)1 << 40}, none[] = {0, 0};
    ck_assert_ptr_null(shoal_as_strided(t, 2, many, none, 0));
    ck_assert_int_eq(shoal_last_error(), SHOAL_EINVAL);
    shoal_tensor_release(t);
    shoal_scope_release(0);
}
END_TEST

START_TEST(refused)
{
    shoal_tensor *t = shoal_zeros(SHOAL_F32, SHOAL_SHAPE(2, 3));
    ck_assert_ptr_null(shoal_reshape(t, SHOAL_SHAPE(4, 2)));
    ck_assert_ptr_nonnull(strstr(shoal_last_error_text(), "f32 [2, 3] to [4, 2]"));
    ck_assert_ptr_null(shoal_reshape(t, SHOAL_SHAPE(4, -1)));
    ck_assert_ptr_nonnull(strstr(shoal_last_error_text(), "f32 [2, 3] to [4, -1]")); /* as the caller gave it */
    ck_assert_ptr_null(shoal_reshape(t, SHOAL_SHAPE(-1, -1)));
    ck_assert_ptr_null(shoal_reshape(t, SHOAL_SHAPE(-1, 0)));
    ck_assert_ptr_null(shoal_reshape(t, SHOAL_SHAPE(INT64_MAX, INT64_MAX)));
    ck_assert_ptr_null(shoal_view(shoal_transpose(t, 0, 1), SHOAL_SHAPE(6)));
    ck_assert_ptr_null(shoal_permute(t, SHOAL_SHAPE(0, 0)));
    ck_assert_ptr_null(shoal_permute(t, SHOAL_SHAPE(0)));
    ck_assert_ptr_null(shoal_transpose(t, 0, 2));
    ck_assert_ptr_null(shoal_expand(t, SHOAL_SHAPE(2, 4)));
    ck_assert_ptr_null(shoal_expand(t, SHOAL_SHAPE(3)));
    ck_assert_ptr_null(shoal_narrow(t, 0, 1, 2));
    ck_assert_ptr_null(shoal_narrow(t, 0, INT64_MAX, 1));
    ck_assert_ptr_null(shoal_slice(t, 0, 0, 2, 0));
    ck_assert_ptr_nonnull(strstr(shoal_last_error_text(), "steps of 0; the step must be at least 1"));
    ck_assert_ptr_null(shoal_select(t, 1, 3));
    ck_assert_ptr_null(shoal_select(t, 1, -4));
    ck_assert_ptr_nonnull(strstr(shoal_last_error_text(), "select of f32 [2, 3]: index -4 is out of range in dim 1"));
    ck_assert_int_eq(shoal_tensor_size(shoal_slice(t, 1, 0, INT64_MAX, INT64_MAX), 1), 1);
    shoal_tensor_release(t);
    shoal_scope_release(0);
}
END_TEST

/* A start or end beyond the tensor is clamped to its ends, as in Python. */
START_TEST(slices_are_clamped)
{
    static const struct {
        int64_t from, to, first, count;
    } cases[] = {
        {0, 99, 0, 6},  {6, 99, 6, 0},  {7, 9, 6, 0},           {INT64_MAX, INT64_MAX, 6, 0},
        {-99, 2, 0, 2}, {4, -99, 4, 0}, {-99, INT64_MAX, 0, 6}, {INT64_MIN, 1, 0, 1},
        {-2, 99, 4, 2}, {99, -1, 6, 0},
    };
    shoal_tensor *t = shoal_arange(SHOAL_I32, 0, 6, 1);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        shoal_tensor *v = shoal_slice(t, 0, cases[i].from, cases[i].to, 1);
        ck_assert_msg(v != NULL, "%s", shoal_last_error_text());
        ck_assert_int_eq(shoal_tensor_size(v, 0), cases[i].count);
        ck_assert(cases[i].count == 0 || (int64_t)item_at(v, SHOAL_SHAPE(0)) == cases[i].first);
    }
    shoal_tensor_release(t);
    shoal_scope_release(0);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("autograd/view");
    TCase *tc = tcase_create("view");
    tcase_set_timeout(tc, SH_TEST_SECONDS);
    tcase_add_checked_fixture(tc, sh_leaks_begin, sh_leaks_end);
    tcase_add_loop_test(tc, random_views, 0, 4);
    tcase_add_test(tc, as_strided);
    tcase_add_test(tc, refused);
    tcase_add_test(tc, slices_are_clamped);
    suite_add_tcase(s, tc);
    return s;
}

SH_TEST_MAIN(suite)
