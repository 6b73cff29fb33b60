/* Indexing as defined. */
#include "kernels/index.h"

#include "kernels/cpu/element.h"
#include "kernels/cpu/index_check.h"

#include <string.h>

/* to[i] += from[j]. */
static void add_element(shoal_dtype dtype, void *to, int64_t i, const void *from, int64_t j)
{
    if (shoal_dtype_is_float(dtype)) {
        sh_element_put(dtype, to, i, sh_get(dtype, to, i) + sh_get(dtype, from, j));
    } else {
        uint64_t sum = (uint64_t)sh_get_int(dtype, to, i) + (uint64_t)sh_get_int(dtype, from, j);
        sh_element_put_int(dtype, to, i, (int64_t)sum);
    }
}

static shoal_err check_add(shoal_dtype dtype)
{
    bool possible = dtype == SHOAL_F32 || dtype == SHOAL_F64 || dtype == SHOAL_I64 || dtype == SHOAL_I32;
    return possible ? SHOAL_OK : sh_fail(SHOAL_EINVAL, "adding by index does not support %s", shoal_dtype_name(dtype));
}

static shoal_err select_rows(sh_exec *exec, const sh_index_shape *s, void *out, const void *table, const int64_t *index)
{
    (void)exec;
    size_t bytes = (size_t)s->inner * shoal_dtype_size(s->dtype);
    shoal_err err = sh_index_check(index, s->count, s->rows);
    for (int64_t o = 0; !err && o < s->outer; o++) {
        for (int64_t i = 0; bytes > 0 && i < s->count; i++) {
            memcpy((char *)out + (size_t)(o * s->count + i) * bytes,
                   (const char *)table + (size_t)(o * s->rows + index[i]) * bytes, bytes);
        }
    }
    return err;
}

static shoal_err add_rows(sh_exec *exec, const sh_index_shape *s, void *table, const void *in, const int64_t *index)
{
    (void)exec;
    shoal_err err = check_add(s->dtype);
    err = err ? err : sh_index_check(index, s->count, s->rows);
    for (int64_t o = 0; !err && o < s->outer; o++) {
        for (int64_t i = 0; i < s->count; i++) {
            for (int64_t j = 0; j < s->inner; j++) {
                add_element(s->dtype, table, (o * s->rows + index[i]) * s->inner + j, in,
                            (o * s->count + i) * s->inner + j);
            }
        }
    }
    return err;
}

/* Iterates over index and two more views: straight is accessed at the same position, indexed at the position that the
 * index gives. */
typedef struct walk {
    const sh_view *index, *straight, *indexed;
    int32_t dim;
    int64_t at[SH_MAX_DIMS];
} walk;

static int64_t offset_of(const walk *w, const sh_view *v)
{
    int64_t offset = 0;
    for (int32_t d = 0; d < w->index->ndim; d++) {
        offset += w->at[d] * v->strides[d];
    }
    return offset;
}

static bool next(walk *w)
{
    for (int32_t d = w->index->ndim; d-- > 0;) {
        if (++w->at[d] < w->index->shape[d]) {
            return true;
        }
        w->at[d] = 0;
    }
    return false;
}

static shoal_err check_walk(walk *w)
{
    const sh_view *index = w->index;
    int32_t ndim = index->ndim;
    bool fits = index->dtype == SHOAL_I64 && w->dim >= 0 && w->dim < ndim && ndim == w->straight->ndim &&
                ndim == w->indexed->ndim && w->straight->dtype == w->indexed->dtype;
    for (int32_t d = 0; fits && d < ndim; d++) {
        fits = index->shape[d] == w->straight->shape[d] && (d == w->dim || index->shape[d] <= w->indexed->shape[d]);
    }
    if (!fits) {
        return sh_fail(SHOAL_EINVAL, "gather or scatter along dimension %d: dtypes or shapes do not match",
                       (int)w->dim);
    }
    if (sh_view_count(index) == 0) {
        return SHOAL_OK;
    }
    int64_t bound = w->indexed->shape[w->dim];
    do {
        shoal_err err = sh_index_check((const int64_t *)index->data + offset_of(w, index), 1, bound);
        if (err) {
            return err;
        }
    } while (next(w));
    return SHOAL_OK;
}

typedef enum move { MOVE_GATHER, MOVE_SCATTER, MOVE_ADD } move;

static void move_one(const walk *w, move what, size_t size)
{
    int64_t straight = offset_of(w, w->straight), stride = w->indexed->strides[w->dim];
    int64_t i = ((const int64_t *)w->index->data)[offset_of(w, w->index)];
    int64_t indexed = offset_of(w, w->indexed) + (i - w->at[w->dim]) * stride;
    char *s = (char *)w->straight->data + (size_t)straight * size,
         *x = (char *)w->indexed->data + (size_t)indexed * size;
    switch (what) {
    case MOVE_GATHER: memcpy(s, x, size); break;
    case MOVE_SCATTER: memcpy(x, s, size); break;
    case MOVE_ADD: add_element(w->indexed->dtype, w->indexed->data, indexed, w->straight->data, straight); break;
    }
}

static shoal_err move_all(move what, int32_t dim, const sh_view *indexed, const sh_view *straight, const sh_view *index)
{
    walk w = {.index = index, .straight = straight, .indexed = indexed, .dim = dim};
    shoal_err err = what == MOVE_ADD ? check_add(indexed->dtype) : SHOAL_OK;
    err = err ? err : check_walk(&w);
    if (err || sh_view_count(index) == 0) {
        return err;
    }
    size_t size = shoal_dtype_size(indexed->dtype);
    do {
        move_one(&w, what, size);
    } while (next(&w));
    return SHOAL_OK;
}

static shoal_err gather(sh_exec *exec, int32_t dim, const sh_view *out, const sh_view *a, const sh_view *index)
{
    (void)exec;
    return move_all(MOVE_GATHER, dim, a, out, index);
}

static shoal_err scatter(sh_exec *exec, int32_t dim, const sh_view *out, const sh_view *a, const sh_view *index)
{
    (void)exec;
    return move_all(MOVE_SCATTER, dim, out, a, index);
}

static shoal_err scatter_add(sh_exec *exec, int32_t dim, const sh_view *out, const sh_view *a, const sh_view *index)
{
    (void)exec;
    return move_all(MOVE_ADD, dim, out, a, index);
}

static shoal_err one_hot(sh_exec *exec, shoal_dtype dtype, void *out, const int64_t *index, int64_t count,
                         int64_t classes)
{
    (void)exec;
    if (dtype == SHOAL_BF16 || dtype == SHOAL_F16) {
        return sh_fail(SHOAL_EINVAL, "one_hot does not support %s", shoal_dtype_name(dtype));
    }
    shoal_err err = sh_index_check(index, count, classes);
    for (int64_t i = 0; !err && i < count * classes; i++) {
        bool hit = index[i / classes] == i % classes;
        if (shoal_dtype_is_float(dtype)) {
            sh_element_put(dtype, out, i, hit);
        } else {
            sh_element_put_int(dtype, out, i, hit);
        }
    }
    return err;
}

const sh_index_kernels sh_index_kernels_reference = {
    .select = select_rows,
    .add = add_rows,
    .gather = gather,
    .scatter = scatter,
    .scatter_add = scatter_add,
    .one_hot = one_hot,
};
