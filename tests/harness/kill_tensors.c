/* Tensors in the kill harness: they are shared, described, sent and released while a process dies. */
#include "base/random.h"
#include "tests/harness/kill_steps.h"

#include <string.h>

/* ---- an id as a tensor ---- */

static const int64_t counts[] = {1, 8, 100, 3000, 40000};

/* Makes a tensor with the id in its first and its last element. */
static shoal_tensor *make_tensor(uint64_t id, uint64_t *random)
{
    int64_t n = counts[sh_splitmix_below(random, sh_splitmix_below(random, 8) == 0 ? 5 : 3)];
    bool born = sh_splitmix_below(random, 2) == 0;
    shoal_tensor *t =
        born ? shoal_empty_shared(SHOAL_I64, SHOAL_SHAPE(2, n)) : shoal_empty(SHOAL_I64, SHOAL_SHAPE(2, n));
    if (t != NULL) {
        int64_t *data = shoal_tensor_data(t);
        data[0] = data[2 * n - 1] = (int64_t)id;
    }
    return t;
}

static uint64_t id_of_tensor(const shoal_tensor *t)
{
    const int64_t *data = shoal_tensor_data(t);
    return data != NULL && shoal_tensor_is_contiguous(t) && data[0] == data[shoal_tensor_count(t) - 1]
               ? (uint64_t)data[0]
               : 0;
}

/* Makes a value from the tensor: the tensor alone, or a map with it, a view of it, the tensor again, a parameter with
 * its grad, and a sparse tensor. */
static shoal_value *make_value(shoal_tensor *t, uint64_t id)
{
    shoal_tensor *w = shoal_ones(SHOAL_F32, SHOAL_SHAPE(3)), *grad = shoal_ones(SHOAL_F32, SHOAL_SHAPE(3));
    shoal_tensor *eye = shoal_eye(SHOAL_F32, 3);
    shoal_sparse *s = shoal_sparse_from_dense(eye, id % 2 == 0 ? SHOAL_LAYOUT_COO : SHOAL_LAYOUT_CSR);
    shoal_value *v = NULL;
    if (shoal_tensor_set_requires_grad(w, true) == SHOAL_OK && shoal_tensor_set_grad(w, grad) == SHOAL_OK) {
        v = shoal_map("id", id, "list", shoal_list(t, shoal_select(t, 0, 1), t), "w", w, "sparse", s);
    }
    shoal_sparse_destroy(s);
    shoal_tensor_release(eye);
    shoal_tensor_release(grad);
    shoal_tensor_release(w);
    return v;
}

shoal_err kill_put_tensor(shoal_queue *q, kill_count *count, uint64_t id, uint64_t *random)
{
    size_t mark = shoal_scope_mark();
    shoal_tensor *t = make_tensor(id, random);
    shoal_err err = t == NULL ? shoal_last_error() : SHOAL_OK;
    uint64_t way = sh_splitmix_below(random, 4);
    if (err == SHOAL_OK && way == 0) {
        err = shoal_queue_put_tensor(q, t, SHOAL_NOW);
    } else if (err == SHOAL_OK && way == 1) {
        err = shoal_queue_give_tensor(q, t, SHOAL_NOW);
        t = err == SHOAL_OK ? NULL : t;
    } else if (err == SHOAL_OK) {
        shoal_value *v = make_value(t, id); /* NULL in a tight heap, which put would report as SHOAL_EINVAL */
        err = v == NULL ? shoal_last_error() : shoal_queue_put(q, v, SHOAL_NOW);
    }
    if (err == SHOAL_OK) {
        sh_add_relaxed(&count->put, 1);
    }
    shoal_tensor_release(t);
    shoal_scope_release(mark);
    return err;
}

/* ---- and back ---- */

static uint64_t id_of_map(const shoal_value *v)
{
    uint64_t id = (uint64_t)sh_int_of(shoal_value_find(v, "id"));
    const shoal_value *list = shoal_value_find(v, "list");
    const shoal_tensor *t = shoal_value_as_tensor(shoal_value_at(list, 0)),
                       *row = shoal_value_as_tensor(shoal_value_at(list, 1));
    const shoal_tensor *again = shoal_value_as_tensor(shoal_value_at(list, 2));
    const shoal_tensor *w = shoal_arg_tensor(v, "w");
    const shoal_sparse *s = shoal_arg_sparse(v, "sparse");
    if (t == NULL || row == NULL || again == NULL || w == NULL || s == NULL) {
        return 0;
    }
    int64_t n = shoal_tensor_count(row);
    bool whole = id_of_tensor(t) == id && shoal_tensor_data(again) == shoal_tensor_data(t) &&
                 (int64_t *)shoal_tensor_data(row) - (int64_t *)shoal_tensor_data(t) == n &&
                 shoal_tensor_requires_grad(w) && shoal_tensor_grad(w) != NULL &&
                 shoal_tensor_equal(w, shoal_tensor_grad(w)) && shoal_tensor_count(shoal_sparse_values(s)) == 3;
    return whole ? id : 0;
}

shoal_err kill_get_tensor(shoal_queue *q, kill_count *count, uint64_t *out_id)
{
    shoal_tensor *t = NULL;
    shoal_value *v = NULL;
    shoal_err err = shoal_queue_get_tensor(q, SHOAL_NOW, &t);
    if (err == SHOAL_ETYPE) {
        err = shoal_queue_get(q, SHOAL_NOW, &v);
    }
    if (err != SHOAL_OK) {
        return err;
    }
    sh_add_relaxed(&count->got, 1);
    if (v == NULL) {
        *out_id = id_of_tensor(t);
    } else if (shoal_value_type(v) == SHOAL_TYPE_MAP) {
        *out_id = id_of_map(v);
    } else {
        *out_id = id_of_tensor(shoal_value_as_tensor(v)); /* another process was faster with the map */
    }
    shoal_tensor_release(t);
    shoal_value_destroy(v);
    return SHOAL_OK;
}

/* ---- the step ---- */

void kill_tensor_step(kill_stage *stage, uint64_t *random)
{
    size_t mark = shoal_scope_mark();
    uint64_t id = sh_splitmix_next(random) >> 1;
    shoal_value *v = NULL;
    shoal_tensor *t = make_tensor(id, random), *view = shoal_select(t, 0, 1), *grad = shoal_zeros_like(t);
    shoal_err err = t == NULL || view == NULL || grad == NULL ? shoal_last_error() : shoal_tensor_set_grad(t, grad);
    if (err == SHOAL_OK) {
        err = shoal_tensor_share(sh_splitmix_below(random, 2) == 0 ? t : view);
    }
    if (err == SHOAL_OK) {
        v = shoal_list(t, view, grad);
        err = v == NULL ? shoal_last_error() : SHOAL_OK;
    }
    const shoal_tensor *same = v != NULL ? shoal_value_as_tensor(shoal_value_at(v, 0)) : NULL;
    if (v != NULL && same == NULL) {
        err = shoal_last_error();
    }
    bool good = same == NULL || (id_of_tensor(same) == id && shoal_tensor_data(same) == shoal_tensor_data(t));
    if (!good || (err != SHOAL_OK && !kill_is_tight(stage, err))) {
        kill_fail(stage, "tensor: %s: %s", shoal_err_name(err),
                  good ? shoal_last_error_text() : "bytes of another process");
    }
    shoal_value_destroy(v);
    shoal_tensor_release(grad);
    shoal_tensor_release(t);
    shoal_scope_release(mark);
}
