/* Sparse tensors: parts that are ordinary tensors, and a shape. */
#include "share/sparse.h"

#include "autograd/op.h"
#include "base/error.h"

#include <stdlib.h>
#include <string.h>

static shoal_sparse *make(shoal_sparse from)
{
    shoal_sparse *s = malloc(sizeof *s);
    if (!s) {
        (void)sh_fail(SHOAL_ENOMEM, "no memory for a sparse tensor");
        return NULL;
    }
    *s = from;
    (void)shoal_tensor_retain(s->indices);
    (void)shoal_tensor_retain(s->starts);
    (void)shoal_tensor_retain(s->values);
    return s;
}

shoal_sparse *shoal_sparse_coo(shoal_tensor *indices, shoal_tensor *values, int ndim, const int64_t *shape,
                               bool coalesced)
{
    SH_NEED_TENSOR_OR_NULL(indices);
    SH_NEED_TENSOR_OR_NULL(values);
    if (ndim > 0 && !shape) {
        return sh_not_given(__func__, "shape");
    }
    if (!indices || !values) {
        return NULL;
    }
    /* Values may have dense dims after the first. */
    bool fits = ndim >= 0 && ndim <= SHOAL_MAX_DIMS && indices->dtype == SHOAL_I64 && indices->ndim == 2 &&
                values->ndim >= 1 && indices->shape[1] == values->shape[0] &&
                indices->shape[0] + values->ndim - 1 == ndim;
    for (int d = 1; fits && d < values->ndim; d++) {
        fits = values->shape[d] == shape[indices->shape[0] + d - 1];
    }
    for (int d = 0; fits && d < ndim; d++) {
        fits = shape[d] >= 0;
    }
    if (!fits) {
        sh_text ti, tv;
        (void)sh_fail(SHOAL_EINVAL,
                      "sparse COO of %d dims from indices %s and values %s: indices must be i64 [sparse dims, n]", ndim,
                      sh_tensor_text(&ti, indices), sh_tensor_text(&tv, values));
        return NULL;
    }
    shoal_sparse s = {
        .layout = SHOAL_LAYOUT_COO, .coalesced = coalesced, .ndim = ndim, .indices = indices, .values = values};
    memcpy(s.shape, shape, (size_t)ndim * sizeof *shape);
    return make(s);
}

shoal_sparse *shoal_sparse_csr(shoal_tensor *starts, shoal_tensor *columns, shoal_tensor *values, int64_t rows,
                               int64_t columns_count)
{
    SH_NEED_TENSOR_OR_NULL(starts);
    SH_NEED_TENSOR_OR_NULL(columns);
    SH_NEED_TENSOR_OR_NULL(values);
    if (!starts || !columns || !values) {
        return NULL;
    }
    bool fits = rows >= 0 && columns_count >= 0 && starts->dtype == SHOAL_I64 && columns->dtype == SHOAL_I64 &&
                starts->ndim == 1 && starts->shape[0] == rows + 1 && columns->ndim == 1 && values->ndim == 1 &&
                columns->shape[0] == values->shape[0];
    if (!fits) {
        sh_text ts, tc, tv;
        (void)sh_fail(SHOAL_EINVAL, "sparse CSR of %lld rows from starts %s, columns %s and values %s: they do not fit",
                      (long long)rows, sh_tensor_text(&ts, starts), sh_tensor_text(&tc, columns),
                      sh_tensor_text(&tv, values));
        return NULL;
    }
    return make((shoal_sparse){.layout = SHOAL_LAYOUT_CSR,
                               .coalesced = true,
                               .ndim = 2,
                               .shape = {rows, columns_count},
                               .starts = starts,
                               .indices = columns,
                               .values = values});
}

void shoal_sparse_destroy(shoal_sparse *s)
{
    if (s) {
        shoal_tensor_release(s->indices);
        shoal_tensor_release(s->starts);
        shoal_tensor_release(s->values);
        free(s);
    }
}

shoal_layout shoal_sparse_layout(const shoal_sparse *s)
{
    if (!s) {
        return (shoal_layout)0;
    }
    return s->layout;
}

int shoal_sparse_ndim(const shoal_sparse *s)
{
    if (!s) {
        return 0;
    }
    return s->ndim;
}

const int64_t *shoal_sparse_shape(const shoal_sparse *s)
{
    if (!s) {
        return NULL;
    }
    return s->shape;
}

bool shoal_sparse_is_coalesced(const shoal_sparse *s)
{
    if (!s) {
        return false;
    }
    return s->coalesced;
}

shoal_tensor *shoal_sparse_indices(const shoal_sparse *s)
{
    SH_NEED_OR_NULL(s);
    return s->indices;
}

shoal_tensor *shoal_sparse_starts(const shoal_sparse *s)
{
    SH_NEED_OR_NULL(s);
    return s->starts;
}

shoal_tensor *shoal_sparse_values(const shoal_sparse *s)
{
    SH_NEED_OR_NULL(s);
    return s->values;
}

/* ---- to and from dense, on the host ---- */

/* Returns all elements of the part as i64, in order. The caller calls free() on the result. */
static int64_t *read_indices(const shoal_tensor *t)
{
    size_t size = (size_t)t->count * sizeof(int64_t);
    int64_t *out = malloc(size > 0 ? size : 1);
    if (!out) {
        (void)sh_fail(SHOAL_ENOMEM, "no memory for %zu bytes", size);
    } else if (shoal_tensor_read(t, out, size) != SHOAL_OK) {
        free(out);
        out = NULL;
    }
    return out;
}

/* Finds the row of an entry, for CSR. */
static shoal_err csr_row(const shoal_sparse *s, const int64_t *starts, int64_t entry, int64_t *out_row)
{
    int64_t low = 0, high = s->shape[0]; /* the last row that starts at or before the entry */
    while (high - low > 1) {
        int64_t middle = low + (high - low) / 2;
        if (starts[middle] <= entry) {
            low = middle;
        } else {
            high = middle;
        }
    }
    *out_row = low;
    return high > 0 && starts[low] <= entry && entry < starts[low + 1]
               ? SHOAL_OK
               : sh_fail(SHOAL_EINVAL, "sparse CSR: the row starts are not in order");
}

/* Adds entry e of values to its place in the dense tensor. */
static shoal_err add_entry(const shoal_sparse *s, shoal_tensor *dense, const int64_t *at, int sparse_dims, int64_t e)
{
    shoal_tensor *place = dense;
    for (int d = 0; place && d < sparse_dims; d++) {
        if (at[d] < 0 || at[d] >= s->shape[d]) { /* shoal_select would count from the end */
            return sh_fail(SHOAL_EINVAL, "sparse: index %lld of entry %lld is not from 0 to %lld", (long long)at[d],
                           (long long)e, (long long)s->shape[d] - 1);
        }
        place = shoal_select(place, 0, at[d]);
    }
    return shoal_add_(place, shoal_select(s->values, 0, e)) ? SHOAL_OK : shoal_last_error();
}

static shoal_err fill_dense(const shoal_sparse *s, shoal_tensor *dense, const int64_t *indices, const int64_t *starts)
{
    int64_t n = s->values->shape[0];
    int sparse_dims = s->layout == SHOAL_LAYOUT_COO ? (int)s->indices->shape[0] : 2;
    for (int64_t e = 0; e < n; e++) {
        int64_t at[SHOAL_MAX_DIMS];
        if (s->layout == SHOAL_LAYOUT_COO) {
            for (int d = 0; d < sparse_dims; d++) {
                at[d] = indices[d * n + e];
            }
        } else {
            at[1] = indices[e];
            SH_TRY(csr_row(s, starts, e, &at[0]));
        }
        size_t mark = shoal_scope_mark();
        shoal_err err = add_entry(s, dense, at, sparse_dims, e);
        shoal_scope_release(mark);
        SH_TRY(err);
    }
    return SHOAL_OK;
}

shoal_tensor *shoal_sparse_to_dense(const shoal_sparse *s)
{
    SH_NEED_OR_NULL(s);
    size_t mark = shoal_scope_mark();
    shoal_tensor *dense = shoal_tensor_retain(sh_zeros_on(s->values, s->ndim, s->shape));
    shoal_scope_release(mark);
    int64_t *indices = dense ? read_indices(s->indices) : NULL;
    int64_t *starts = indices && s->starts ? read_indices(s->starts) : NULL;
    shoal_no_grad_begin();
    bool good = indices && (!s->starts || starts) && fill_dense(s, dense, indices, starts) == SHOAL_OK;
    shoal_no_grad_end();
    free(indices);
    free(starts);
    if (!good) {
        shoal_tensor_release(dense);
        dense = NULL;
    }
    return dense;
}

/* Returns the positions of the elements that are not 0, in order; *out_count is their number. The caller calls free()
 * on the result. */
static int64_t *places(shoal_tensor *t, int64_t *out_count)
{
    size_t mark = shoal_scope_mark();
    shoal_tensor *zero = sh_op_scalar_on(t, 0);
    shoal_tensor *flags = shoal_contiguous(shoal_ne(t, zero));
    uint8_t *set = flags ? malloc((size_t)flags->count + 1) : NULL;
    int64_t *out = set ? malloc(((size_t)flags->count + 1) * sizeof *out) : NULL;
    int64_t n = 0;
    if (flags && !out) {
        (void)sh_fail(SHOAL_ENOMEM, "no memory for the positions of %lld elements", (long long)flags->count);
    }
    if (out && shoal_tensor_read(flags, set, (size_t)flags->count) == SHOAL_OK) {
        for (int64_t i = 0; i < flags->count; i++) {
            if (set[i]) {
                out[n++] = i;
            }
        }
    } else {
        free(out);
        out = NULL;
    }
    free(set);
    shoal_scope_release(mark);
    *out_count = n;
    return out;
}

static shoal_sparse *coo_of_places(shoal_tensor *t, const int64_t *at, int64_t n, shoal_tensor *values)
{
    shoal_tensor *indices = shoal_empty(SHOAL_I64, SHOAL_SHAPE(t->ndim, n));
    if (!indices) {
        return NULL;
    }
    int64_t *to = shoal_tensor_data(indices);
    for (int64_t e = 0; e < n; e++) {
        int64_t rest = at[e];
        for (int d = t->ndim; d-- > 0;) {
            to[d * n + e] = rest % t->shape[d];
            rest /= t->shape[d];
        }
    }
    shoal_sparse *s = shoal_sparse_coo(indices, values, t->ndim, t->shape, true);
    shoal_tensor_release(indices);
    return s;
}

static shoal_sparse *csr_of_places(shoal_tensor *t, const int64_t *at, int64_t n, shoal_tensor *values)
{
    shoal_tensor *starts = shoal_zeros(SHOAL_I64, SHOAL_SHAPE(t->shape[0] + 1));
    shoal_tensor *columns = shoal_empty(SHOAL_I64, SHOAL_SHAPE(n));
    shoal_sparse *s = NULL;
    if (starts && columns) {
        int64_t *first = shoal_tensor_data(starts), *column = shoal_tensor_data(columns);
        for (int64_t e = 0; e < n; e++) {
            column[e] = at[e] % t->shape[1];
            first[at[e] / t->shape[1] + 1]++;
        }
        for (int64_t r = 0; r < t->shape[0]; r++) {
            first[r + 1] += first[r];
        }
        s = shoal_sparse_csr(starts, columns, values, t->shape[0], t->shape[1]);
    }
    shoal_tensor_release(starts);
    shoal_tensor_release(columns);
    return s;
}

shoal_sparse *shoal_sparse_from_dense(shoal_tensor *t, shoal_layout layout)
{
    SH_NEED_TENSOR_OR_NULL(t);
    if (t->ndim == 0 || (layout == SHOAL_LAYOUT_CSR && t->ndim != 2)) {
        sh_text text;
        (void)sh_fail(SHOAL_EINVAL, "%s cannot be made a sparse %s tensor", sh_tensor_text(&text, t),
                      layout == SHOAL_LAYOUT_CSR ? "CSR" : "COO");
        return NULL;
    }
    shoal_no_grad_begin();
    size_t mark = shoal_scope_mark();
    int64_t n;
    int64_t *at = places(t, &n);
    shoal_sparse *s = NULL;
    if (at) {
        shoal_tensor *index =
            sh_op_to_device(shoal_scoped(shoal_from_data(SHOAL_I64, at, SHOAL_SHAPE(n))), sh_tensor_device_of(t));
        shoal_tensor *values = shoal_index_select(shoal_reshape(t, SHOAL_SHAPE(-1)), 0, index);
        if (values) {
            s = layout == SHOAL_LAYOUT_COO ? coo_of_places(t, at, n, values) : csr_of_places(t, at, n, values);
        }
    }
    free(at);
    shoal_scope_release(mark);
    shoal_no_grad_end();
    return s;
}

/* ---- sharing ---- */

shoal_err shoal_sparse_share(shoal_sparse *s)
{
    if (!s) {
        return sh_null_error("shoal_sparse_share", "s");
    }
    SH_TRY(shoal_tensor_share(s->indices));
    if (s->starts) {
        SH_TRY(shoal_tensor_share(s->starts));
    }
    return shoal_tensor_share(s->values);
}

/* The bytes of a record of SH_KIND_SPARSE. It refers to values, indices and, for CSR, starts. */
typedef struct description {
    uint8_t layout, coalesced, ndim, unused[5];
    int64_t shape[SHOAL_MAX_DIMS];
} description;

shoal_err sh_sparse_describe(shoal_sparse *s, shoal_block **out_record)
{
    shoal_tensor *parts[] = {s->values, s->indices, s->starts};
    shoal_block *objects[3];
    size_t count = s->starts ? 3 : 2;
    for (size_t i = 0; i < count; i++) {
        SH_TRY(sh_share_describe_tensor(parts[i], &objects[i]));
    }
    description d = {.layout = (uint8_t)s->layout, .coalesced = s->coalesced, .ndim = (uint8_t)s->ndim};
    memcpy(d.shape, s->shape, sizeof d.shape);
    return sh_record_create(SH_KIND_SPARSE, objects, count, &d, sizeof d, out_record);
}

shoal_sparse *sh_sparse_of_record(shoal_block *record)
{
    sh_record r;
    description d;
    bool good = record->kind == SH_KIND_SPARSE && sh_record_read(record, &r) && r.size == sizeof d;
    if (good) {
        memcpy(&d, r.bytes, sizeof d);
        good = d.layout <= SHOAL_LAYOUT_CSR && d.ndim <= SHOAL_MAX_DIMS &&
               r.count == (d.layout == SHOAL_LAYOUT_CSR ? 3u : 2u);
    }
    if (!good) {
        (void)sh_fail(SHOAL_ECORRUPT, "block %llu does not describe a sparse tensor", (unsigned long long)record->id);
        return NULL;
    }
    shoal_tensor *values = sh_share_tensor_at(&r, 0), *indices = values ? sh_share_tensor_at(&r, 1) : NULL;
    shoal_tensor *starts = indices && d.layout == SHOAL_LAYOUT_CSR ? sh_share_tensor_at(&r, 2) : NULL;
    shoal_sparse *s = d.layout == SHOAL_LAYOUT_CSR ? shoal_sparse_csr(starts, indices, values, d.shape[0], d.shape[1])
                                                   : shoal_sparse_coo(indices, values, d.ndim, d.shape, d.coalesced);
    shoal_tensor_release(values);
    shoal_tensor_release(indices);
    shoal_tensor_release(starts);
    return s;
}
