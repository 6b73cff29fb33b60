/* What is sent with a tensor, what is rejected, and which forms a tensor may have in a value: B6 to B9. */
#include "base/random.h"
#include "tests/harness/talk.h"

#include <stdlib.h>

#define ROUNDS (talk_is_card() ? 3 : 30)
#define SEED 4711u

static shoal_tensor *parameter(double first)
{
    shoal_tensor *t = counted(3, 4, first);
    ck_assert_ok(shoal_tensor_set_requires_grad(t, true));
    return t;
}

/* ---- B6 ---- */

/* Reports what arrived. Doubles a grad that arrived; otherwise makes one with backward. */
static shoal_err answer_grad(const shoal_value *asked, shoal_value **out)
{
    shoal_tensor *w = ASKED(tensor, "w");
    must(w != NULL && shoal_tensor_is_leaf(w));
    shoal_tensor *grad = shoal_tensor_grad(w);
    *out = shoal_map("needs", shoal_value_bool(shoal_tensor_requires_grad(w)), "grad",
                     grad != NULL ? shoal_value_tensor(grad) : shoal_value_null());
    if (grad != NULL) {
        must(shoal_tensor_is_shared(grad) && shoal_mul_scalar_(grad, 2) == grad);
    } else if (shoal_tensor_requires_grad(w)) {
        must_ok(shoal_backward(shoal_sum(shoal_square(w), SHOAL_ALL_DIMS, false)));
        grad = shoal_tensor_grad(w);
        must(grad != NULL && !shoal_tensor_is_shared(grad) && AT(grad, 1, 1) == 2 * AT(w, 1, 1));
    }
    must(*out != NULL);
    return SHOAL_OK;
}
TALK_TARGET(grad_target, answer_grad)

static bool needs_there(const shoal_value *answer)
{
    return sh_bool_of(shoal_value_find(answer, "needs"));
}

START_TEST(b6_requires_grad_is_kept_and_an_absent_grad_stays_absent)
{
    talk t;
    talk_begin(&t, _i, grad_target);
    for (int n = 0; n < ROUNDS; n++) {
        shoal_tensor *w = parameter(n), *plain = counted(3, 4, n);
        for (int again = 0; again < 3; again++) {
            shoal_value *v = talk_ask(&t, shoal_map("w", w));
            hot(needs_there(v) && shoal_value_type(shoal_value_find(v, "grad")) == SHOAL_TYPE_NULL);
            hot(shoal_tensor_grad(w) == NULL &&
                is_counted(w, n)); /* the grad that the child made stays with the child */
            shoal_value_destroy(v);
            v = talk_ask(&t, shoal_map("w", plain));
            hot(!needs_there(v) && shoal_tensor_grad(plain) == NULL);
            shoal_value_destroy(v);
        }
        hot_ok(shoal_backward(shoal_sum(w, SHOAL_ALL_DIMS, false))); /* and this one stays here */
        hot(!shoal_tensor_is_shared(shoal_tensor_grad(w)) && AT(shoal_tensor_grad(w), 2, 3) == 1);
        shoal_scope_release(0);
        shoal_tensor_release(w);
        shoal_tensor_release(plain);
    }
    talk_end(&t);
}
END_TEST

START_TEST(b6_a_grad_is_shared_both_ways)
{
    talk t;
    talk_begin(&t, _i, grad_target);
    for (int n = 0; n < ROUNDS; n++) {
        shoal_tensor *w = parameter(n);
        hot_ok(shoal_backward(shoal_sum(w, SHOAL_ALL_DIMS, false)));
        shoal_tensor *grad = shoal_tensor_grad(w);
        if (n % 2 == 0) {
            hot_ok(shoal_tensor_share(w));
            hot(shoal_tensor_is_shared(grad) && shoal_tensor_grad(w) == grad);
        }
        shoal_value *v = talk_ask(&t, shoal_map("w", w));
        shoal_tensor *theirs = shoal_value_as_tensor(shoal_value_find(v, "grad"));
        hot(needs_there(v) && shoal_tensor_grad(w) == grad && same_memory(theirs, grad));
        hot(AT(grad, 0, 0) == 2 && AT(grad, 2, 3) == 2); /* the child doubled it */
        shoal_value_destroy(v);
        hot_ok(shoal_backward(shoal_sum(w, SHOAL_ALL_DIMS, false))); /* writes to the same memory */
        v = talk_ask(&t, shoal_map("w", w));
        /* What is done here now comes after the child's work. */
        theirs = shoal_value_as_tensor(shoal_value_find(v, "grad"));
        hot(same_memory(theirs, grad) && shoal_tensor_grad(w) == grad && AT(grad, 1, 2) == 6);
        shoal_value_destroy(v);
        shoal_scope_release(0);
        shoal_tensor_release(w);
    }
    talk_end(&t);
}
END_TEST

/* A tensor that was sent before and has changed is sent as it is now. */
START_TEST(b6_the_description_of_a_grad_is_never_stale)
{
    talk t;
    talk_begin(&t, _i, grad_target);
    for (int n = 0; n < ROUNDS; n++) {
        shoal_tensor *w = parameter(n), *grads = shoal_ones(SHOAL_F32, SHOAL_SHAPE(2, 3, 4)), *v_grad;
        shoal_value *v;
        talk_tell(&t, shoal_map("w", w));
        for (int k = 0; k < 4; k++) { /* one flat buffer, as programs that average gradients use it */
            hot_ok(shoal_tensor_set_grad(w, shoal_select(grads, 0, k % 2)));
            v = talk_ask(&t, shoal_map("w", w));
            v_grad = shoal_value_as_tensor(shoal_value_find(v, "grad"));
            hot(same_memory(v_grad, grads) && shoal_tensor_offset(v_grad) == k % 2 * 12);
            shoal_value_destroy(v);
            hot(AT(grads, 0, 0, 0) == (1 << (k / 2 + 1)) && AT(grads, 1, 0, 0) == (1 << ((k + 1) / 2)));
        }
        hot_ok(shoal_tensor_set_grad(w, NULL));
        v = talk_ask(&t, shoal_map("w", w));
        hot(needs_there(v) && shoal_value_type(shoal_value_find(v, "grad")) == SHOAL_TYPE_NULL);
        shoal_value_destroy(v);
        hot_ok(shoal_tensor_set_requires_grad(w, false));
        v = talk_ask(&t, shoal_map("w", w));
        hot(!needs_there(v) && shoal_value_type(shoal_value_find(v, "grad")) == SHOAL_TYPE_NULL);
        shoal_value_destroy(v);
        shoal_scope_release(0);
        shoal_tensor_release(grads);
        shoal_tensor_release(w);
    }
    talk_end(&t);
}
END_TEST

/* ---- B7 ---- */

static void ck_detach(void)
{
    hot(strstr(shoal_last_error_text(), "SHOAL_ESTATE") != NULL || shoal_last_error() == SHOAL_ESTATE);
    hot(strstr(shoal_last_error_text(), "detach") != NULL);
}

static void refuse(shoal_queue *q, shoal_tensor *t)
{
    shoal_value *kept = shoal_value_int(1);
    bool before = shoal_tensor_is_shared(t);
    hot(t != NULL && !shoal_tensor_is_leaf(t) && shoal_tensor_requires_grad(t));
    hot(shoal_queue_put_tensor(q, t, SHOAL_NOW) == SHOAL_ESTATE);
    ck_detach();
    hot(shoal_queue_put(q, shoal_value_tensor(t), SHOAL_NOW) == SHOAL_EINVAL); /* for NULL, after SHOAL_ESTATE */
    ck_detach();
    hot(shoal_queue_put(q, shoal_map("a", 1, "b", shoal_list(kept, t)), SHOAL_NOW) == SHOAL_EINVAL);
    ck_detach();
    hot(shoal_tensor_share(t) == SHOAL_ESTATE);
    ck_detach();
    hot(shoal_queue_size(q) == 0 && shoal_tensor_is_shared(t) == before);
}

/* The same in the child, where the leaf came from another process. */
static shoal_err answer_refused(const shoal_value *asked, shoal_value **out)
{
    shoal_tensor *y = shoal_mul_scalar(ASKED(tensor, "w"), 2);
    must(y != NULL && shoal_tensor_requires_grad(y));
    must_err(shoal_queue_put_tensor(ASKED(queue, "q"), y, SHOAL_NOW), SHOAL_ESTATE);
    must(strstr(shoal_last_error_text(), "detach") != NULL);
    must(shoal_return(shoal_value_tensor(y)) != SHOAL_OK);
    must_ok(shoal_queue_put_tensor(ASKED(queue, "q"), shoal_detach(y), SHOAL_NOW));
    (void)out;
    return SHOAL_OK;
}
TALK_TARGET(refused_target, answer_refused)

START_TEST(b7_a_result_that_needs_a_gradient_is_refused_and_nothing_is_put)
{
    talk t;
    shoal_queue *q;
    ck_assert_ok(shoal_queue_create(0, &q));
    talk_begin(&t, _i, refused_target);
    for (int n = 0; n < ROUNDS; n++) {
        shoal_tensor *w = parameter(n), *y = shoal_mul_scalar(w, 2), *back;
        refuse(q, y);
        refuse(q, shoal_select(w, 0, 1)); /* a view is the result of an op too */
        refuse(q, shoal_add(w, w));
        hot_ok(shoal_queue_put_tensor(q, shoal_detach(y), SHOAL_NOW));
        hot_ok(shoal_queue_get_tensor(q, SHOAL_NOW, &back));
        hot(!shoal_tensor_requires_grad(back) && AT(back, 1, 1) == 2.0 * (n + 5));
        shoal_tensor_release(back);
        /* The leaf itself may be sent, and the record is still valid. */
        hot_ok(shoal_queue_put_tensor(q, w, SHOAL_NOW));
        hot_ok(shoal_queue_get_tensor(q, SHOAL_NOW, &back));
        hot(shoal_tensor_requires_grad(back) && shoal_tensor_grad(back) == NULL);
        shoal_tensor_release(back);
        hot_ok(shoal_backward(shoal_sum(y, SHOAL_ALL_DIMS, false)));
        hot(AT(shoal_tensor_grad(w), 0, 0) == 2);
        hot_ok(shoal_tensor_set_grad(w, NULL));
        talk_tell(&t, shoal_map("w", w, "q", q));
        hot_ok(shoal_queue_get_tensor(q, SHOAL_NOW, &back));
        hot(AT(back, 0, 0) == 2.0 * n && shoal_queue_size(q) == 0);
        shoal_tensor_release(back);
        shoal_scope_release(0);
        shoal_tensor_release(w);
    }
    talk_end(&t);
    shoal_release(q);
}
END_TEST

/* ---- B8 ---- */

/* Reports all that it sees of a tensor, and sends it back. */
static shoal_err answer_form(const shoal_value *asked, shoal_value **out)
{
    shoal_tensor *t = shoal_value_as_tensor(asked);
    must(t != NULL);
    size_t size = (size_t)shoal_tensor_count(t) * shoal_dtype_size(shoal_tensor_dtype(t));
    void *bytes = malloc(size + 1);
    must(bytes != NULL);
    must_ok(shoal_tensor_read(t, bytes, size));
    shoal_value *shape = shoal_value_list(), *strides = shoal_value_list();
    for (int d = 0; d < shoal_tensor_ndim(t); d++) {
        shape = shoal_list_add(shape, shoal_value_int(shoal_tensor_size(t, d)));
        strides = shoal_list_add(strides, shoal_value_int(shoal_tensor_stride(t, d)));
    }
    *out =
        shoal_map("bytes", shoal_value_bytes(bytes, size), "shape", shape, "strides", strides, "dtype",
                  (int)shoal_tensor_dtype(t), "offset", shoal_tensor_offset(t), "storage", shoal_tensor_storage_size(t),
                  "contiguous", shoal_value_bool(shoal_tensor_is_contiguous(t)), "t", t);
    free(bytes);
    return SHOAL_OK;
}
TALK_TARGET(form_target, answer_form)

static void there_and_back(talk *with, shoal_tensor *t)
{
    hot(t != NULL);
    size_t size = (size_t)shoal_tensor_count(t) * shoal_dtype_size(shoal_tensor_dtype(t)), there = 0;
    void *bytes = malloc(size + 1);
    hot_ok(shoal_tensor_read(t, bytes, size)); /* before it moves */
    shoal_value *v = talk_ask(with, shoal_value_tensor(t));
    const shoal_value *shape = shoal_value_find(v, "shape"), *strides = shoal_value_find(v, "strides");
    hot((int)shoal_value_count(shape) == shoal_tensor_ndim(t));
    for (size_t d = 0; d < shoal_value_count(shape); d++) {
        hot(sh_int_of(shoal_value_at(shape, d)) == shoal_tensor_size(t, (int)d));
        hot(sh_int_of(shoal_value_at(strides, d)) == shoal_tensor_stride(t, (int)d));
    }
    hot(sh_int_of(shoal_value_find(v, "dtype")) == (int64_t)shoal_tensor_dtype(t));
    hot(sh_int_of(shoal_value_find(v, "offset")) == shoal_tensor_offset(t));
    hot((size_t)sh_int_of(shoal_value_find(v, "storage")) == shoal_tensor_storage_size(t));
    hot(sh_bool_of(shoal_value_find(v, "contiguous")) == shoal_tensor_is_contiguous(t));
    const void *theirs = shoal_value_as_bytes(shoal_value_find(v, "bytes"), &there);
    hot(there == size && memcmp(theirs, bytes, size) == 0);
    shoal_tensor *back = shoal_value_as_tensor(shoal_value_find(v, "t"));
    hot(shoal_tensor_equal(back, t) && address_of(back) == address_of(t));
    shoal_value_destroy(v);
    free(bytes);
}

static const shoal_dtype dtypes[] = {SHOAL_F32, SHOAL_F64, SHOAL_BF16, SHOAL_F16,
                                     SHOAL_I64, SHOAL_I32, SHOAL_U8,   SHOAL_B8};

/* Any bits that the dtype allows, including NaNs of all kinds. */
static shoal_tensor *random_tensor(uint64_t *state, shoal_dtype dtype, int ndim, const int64_t *shape)
{
    size_t size = shoal_dtype_size(dtype);
    for (int d = 0; d < ndim; d++) {
        size *= (size_t)shape[d];
    }
    unsigned char *bytes = malloc(size + 1);
    hot(bytes != NULL);
    for (size_t i = 0; i < size; i++) {
        bytes[i] = (unsigned char)(dtype == SHOAL_B8 ? sh_splitmix_below(state, 2) : sh_splitmix_below(state, 256));
    }
    shoal_tensor *t = shoal_from_data(dtype, bytes, ndim, shape);
    free(bytes);
    hot(t != NULL);
    return t;
}

START_TEST(b8_every_dtype_in_every_form_arrives_equal)
{
    talk t;
    uint64_t state = SEED;
    talk_begin(&t, _i, form_target);
    for (int round = 0; round < ROUNDS; round++) {
        for (size_t i = 0; i < sizeof dtypes / sizeof dtypes[0]; i++) {
            shoal_tensor *a = shoal_scoped(random_tensor(&state, dtypes[i], SHOAL_SHAPE(4, 6, 5)));
            shoal_tensor *eight = shoal_scoped(random_tensor(&state, dtypes[i], SHOAL_SHAPE(2, 1, 3, 2, 1, 2, 2, 3)));
            shoal_tensor *one = shoal_scoped(random_tensor(&state, dtypes[i], SHOAL_SCALAR));
            there_and_back(&t, round % 2 == 0 ? a : shoal_narrow(a, 1, 2, 3));
            there_and_back(&t, eight);
            there_and_back(&t, shoal_permute(eight, 8, (const int64_t[]){7, 0, 6, 1, 5, 2, 4, 3}));
            there_and_back(&t, one);
            there_and_back(&t, shoal_expand(one, SHOAL_SHAPE(3, 4))); /* strides of 0 */
            there_and_back(&t, shoal_expand(shoal_narrow(a, 1, 3, 1), SHOAL_SHAPE(2, 4, 9, 5)));
            there_and_back(&t, shoal_transpose(a, 0, 2));
            there_and_back(&t, shoal_slice(a, 1, 1, 6, 2));
            there_and_back(&t, shoal_select(shoal_select(a, 0, 3), 1, 4)); /* to the last element */
            there_and_back(&t, shoal_select(shoal_select(shoal_select(a, 0, 3), 0, 5), 0, 4));
            there_and_back(&t, shoal_as_strided(a, SHOAL_SHAPE(10, 10), (const int64_t[]){3, 8}, 11));
            there_and_back(&t, shoal_narrow(a, 0, 4, 0));
            shoal_scope_release(0);
        }
    }
    talk_end(&t);
}
END_TEST

/* Sizes whose product does not overflow only because one of them is 0, and sizes close to those of blocks. */
START_TEST(b8_odd_sizes_arrive_equal)
{
    talk t;
    uint64_t state = SEED;
    talk_begin(&t, _i, form_target);
    for (int64_t n = 1; n < 3000000; n = n * 7 / 2 + 1) {
        for (int64_t d = -1; d <= 1; d++) {
            there_and_back(&t, shoal_scoped(random_tensor(&state, SHOAL_U8, SHOAL_SHAPE(n + d))));
        }
        shoal_scope_release(0);
    }
    const int64_t huge = INT64_C(1) << 40;
    const int64_t shapes[][3] = {{0, huge, huge}, {huge, 0, huge}, {huge, huge, 0}, {1, 0, INT64_MAX}};
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        shoal_tensor *odd = shoal_scoped(shoal_empty(SHOAL_F64, 3, shapes[i]));
        if (odd != NULL) { /* what can be created can be sent */
            there_and_back(&t, odd);
        }
    }
    shoal_scope_release(0);
    talk_end(&t);
}
END_TEST

/* ---- B9 ---- */

static shoal_err answer_sparse(const shoal_value *asked, shoal_value **out)
{
    shoal_sparse *s = ASKED(sparse, "s");
    must(s != NULL && s == ASKED(sparse, "s"));
    shoal_tensor *dense = shoal_sparse_to_dense(s), *values = shoal_sparse_values(s);
    must(dense != NULL && shoal_tensor_is_shared(values) && shoal_tensor_is_shared(shoal_sparse_indices(s)));
    must(shoal_tensor_equal(dense, ASKED(tensor, "dense")));
    must((shoal_sparse_starts(s) != NULL) == (shoal_sparse_layout(s) == SHOAL_LAYOUT_CSR));
    must(shoal_sparse_is_coalesced(s) == sh_bool_of(shoal_value_find(asked, "coalesced")));
    must(shoal_tensor_count(values) == 0 || shoal_mul_scalar_(values, 2) == values);
    shoal_tensor_release(dense);
    *out = shoal_map("s", s);
    return SHOAL_OK;
}
TALK_TARGET(sparse_target, answer_sparse)

/* Sends it, together with its dense form; the child doubles its values. */
static void send_sparse(talk *t, shoal_sparse *s)
{
    hot(s != NULL);
    shoal_tensor *dense = shoal_sparse_to_dense(s), *values = shoal_sparse_values(s),
                 *indices = shoal_sparse_indices(s);
    shoal_tensor *twice = shoal_mul_scalar(dense, 2);
    bool coalesced = shoal_sparse_is_coalesced(s);
    shoal_value *v = talk_ask(t, shoal_map("s", s, "dense", dense, "coalesced", shoal_value_bool(coalesced)));
    shoal_sparse *back = shoal_value_as_sparse(shoal_value_find(v, "s"));
    hot(back != NULL && shoal_sparse_layout(back) == shoal_sparse_layout(s));
    hot(shoal_sparse_ndim(back) == shoal_sparse_ndim(s) && shoal_sparse_is_coalesced(back) == coalesced);
    for (int d = 0; d < shoal_sparse_ndim(s); d++) {
        hot(shoal_sparse_shape(back)[d] == shoal_sparse_shape(s)[d]);
    }
    hot(shoal_tensor_is_shared(values) && shoal_tensor_is_shared(indices));
    hot(same_memory(shoal_sparse_values(back), values) && same_memory(shoal_sparse_indices(back), indices));
    if (shoal_sparse_layout(s) == SHOAL_LAYOUT_CSR) {
        hot(same_memory(shoal_sparse_starts(back), shoal_sparse_starts(s)));
    }
    shoal_tensor *now = shoal_sparse_to_dense(s); /* doubled in this process too */
    hot(shoal_tensor_equal(now, twice));
    shoal_value_destroy(v);
    shoal_tensor_release(now);
    shoal_tensor_release(dense);
    shoal_sparse_destroy(s);
    shoal_scope_release(0);
}

START_TEST(b9_sparse_tensors_arrive_equal_and_their_parts_are_shared)
{
    talk t;
    talk_begin(&t, _i, sparse_target);
    for (int n = 0; n < ROUNDS; n++) {
        shoal_dtype dtype = (const shoal_dtype[]){SHOAL_F32, SHOAL_F64, SHOAL_I64, SHOAL_I32}[n % 4];
        int64_t places[2][4] = {{0, 2, 2, 0}, {1, 0, 3, 1}}; /* the first and the last are the same */
        shoal_tensor *indices = shoal_from_data(SHOAL_I64, places, SHOAL_SHAPE(2, 4));
        shoal_tensor *values = shoal_arange(dtype, 1 + n, 5 + n, 1), *rows = shoal_ones(dtype, SHOAL_SHAPE(4, 3));
        send_sparse(&t, shoal_sparse_coo(indices, values, SHOAL_SHAPE(3, 4), false));
        send_sparse(&t, shoal_sparse_coo(indices, rows, SHOAL_SHAPE(3, 4, 3), false)); /* values that are rows */
        shoal_tensor *three = shoal_narrow(indices, 1, 0, 3);                          /* views as parts */
        send_sparse(&t, shoal_sparse_coo(three, shoal_narrow(values, 0, 0, 3), SHOAL_SHAPE(3, 4), true));
        shoal_tensor *starts = shoal_from_data(SHOAL_I64, (const int64_t[]){0, 2, 2, 4}, SHOAL_SHAPE(4));
        shoal_tensor *columns = shoal_from_data(SHOAL_I64, (const int64_t[]){0, 3, 1, 2}, SHOAL_SHAPE(4));
        send_sparse(&t, shoal_sparse_csr(starts, columns, values, 3, 4));
        shoal_tensor *eye = shoal_eye(dtype, 5), *none = shoal_zeros(dtype, SHOAL_SHAPE(3, 2));
        send_sparse(&t, shoal_sparse_from_dense(eye, SHOAL_LAYOUT_COO));
        send_sparse(&t, shoal_sparse_from_dense(eye, SHOAL_LAYOUT_CSR));
        send_sparse(&t, shoal_sparse_from_dense(none, SHOAL_LAYOUT_COO));
        send_sparse(&t, shoal_sparse_from_dense(none, SHOAL_LAYOUT_CSR));
        shoal_tensor *const all[] = {indices, values, rows, starts, columns, eye, none};
        for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
            shoal_tensor_release(all[i]);
        }
    }
    talk_end(&t);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("sharing_rules");
    TCase *tc = children_case("grad");
    add_for_methods(tc, b6_requires_grad_is_kept_and_an_absent_grad_stays_absent);
    add_for_methods(tc, b6_a_grad_is_shared_both_ways);
    add_for_methods(tc, b6_the_description_of_a_grad_is_never_stale);
    add_for_methods(tc, b7_a_result_that_needs_a_gradient_is_refused_and_nothing_is_put);
    suite_add_tcase(s, tc);
    tc = children_case("forms");
    add_for_methods(tc, b8_every_dtype_in_every_form_arrives_equal);
    add_for_methods(tc, b8_odd_sizes_arrive_equal);
    add_for_methods(tc, b9_sparse_tensors_arrive_equal_and_their_parts_are_shared);
    suite_add_tcase(s, tc);
    return s;
}

SH_TEST_MAIN(suite)
