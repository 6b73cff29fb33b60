/* Tensors and sparse tensors that a hostile member of the world describes:
 * an error, or a tensor within its block: B62. */
#include "base/random.h"
#include "ipc/value.h"
#include "share/description.h"
#include "tests/harness/talk.h"

#include <shoal/share.h>

#include <stddef.h>
#include <stdlib.h>

#define SEED 62062u
#define HEAD offsetof(sh_description, shape_and_strides)

static shoal_queue *queue;

static void begin(void)
{
    sh_leaks_begin();
    ck_assert_ok(shoal_queue_create(0, &queue));
}

static void end(void)
{
    shoal_release(queue);
    sh_leaks_end(); /* no reference is forged here, so the audit must add up */
}

/* Makes a record of that kind, as any process of the world could write it. */
static shoal_block *record(sh_kind kind, shoal_block *const *objects, size_t count, const void *bytes, size_t size)
{
    shoal_block *r = NULL;
    hot_ok(sh_record_create(kind, objects, count, bytes, size, &r));
    return r;
}

/* Checks that every element is in the block of the storage by reading them. */
static void ck_inside(const shoal_tensor *t)
{
    if (shoal_tensor_count(t) == 0) {
        return;
    }
    int64_t last = shoal_tensor_offset(t);
    hot(last >= 0);
    for (int d = 0; d < shoal_tensor_ndim(t); d++) {
        int64_t more;
        hot(shoal_tensor_size(t, d) > 0 && shoal_tensor_stride(t, d) >= 0);
        hot(!__builtin_mul_overflow(shoal_tensor_size(t, d) - 1, shoal_tensor_stride(t, d), &more));
        hot(!__builtin_add_overflow(last, more, &last));
    }
    hot((uint64_t)last < shoal_tensor_storage_size(t) / shoal_dtype_size(shoal_tensor_dtype(t)));
    size_t size = (size_t)shoal_tensor_count(t) * shoal_dtype_size(shoal_tensor_dtype(t));
    if (shoal_tensor_count(t) < 100000) {
        void *bytes = malloc(size);
        hot_ok(shoal_tensor_read(t, bytes, size));
        free(bytes);
    }
}

/* Sends the description by itself and in a value, and takes the reference.
 * Returns whether it was accepted as a tensor. */
static bool send_description(shoal_block *description)
{
    shoal_tensor *t = NULL;
    shoal_value *v = NULL;
    hot_ok(shoal_queue_put_block(queue, description, SHOAL_NOW));
    shoal_err err = shoal_queue_get_tensor(queue, SHOAL_NOW, &t);
    hot((err == SHOAL_OK && t != NULL) || (err == SHOAL_ECORRUPT && t == NULL));
    hot_ok(shoal_queue_put(queue, shoal_list(sh_value_object(description)), SHOAL_NOW));
    hot_ok(shoal_queue_get(queue, SHOAL_NOW, &v));
    shoal_tensor *again = shoal_value_as_tensor(shoal_value_at(v, 0));
    /* By itself it may be taken for the tensor that has its stamp: then that tensor arrives, not this one. */
    hot((again == NULL || t != NULL) && (again != NULL || shoal_last_error() == SHOAL_ECORRUPT));
    if (t != NULL) {
        ck_inside(t);
        if (shoal_tensor_grad(t) != NULL) {
            ck_inside(shoal_tensor_grad(t));
        }
        hot_ok(shoal_queue_put_tensor(queue, t, SHOAL_NOW)); /* and is usable */
        until_told(queue);
    }
    shoal_value_destroy(v);
    shoal_tensor_release(t);
    sh_block_release(description);
    hot(shoal_queue_size(queue) == 0);
    return t != NULL;
}

/* f32 [4, 6] over a block of 96 bytes, in which the tests change one number. */
static sh_description good(void)
{
    return (sh_description){.dtype = SHOAL_F32, .ndim = 2, .shape_and_strides = {4, 6, 6, 1}};
}

static bool send_over(shoal_block *data, const sh_description *d)
{
    return send_description(record(SH_KIND_TENSOR, &data, 1, d, HEAD + sizeof(int64_t) * 4));
}

/* A description with the stamp of an earlier one: it may be taken for that one,
 * and reaches no further than that did. */
START_TEST(b62_a_forged_stamp_reaches_no_further)
{
    shoal_block *data, *less;
    ck_assert_ok(shoal_block_create_zeroed(96, &data));
    for (int round = 0; round < 30; round++) {
        sh_description d = good();
        d.stamp = 77;
        hot(send_over(data, &d));
        ck_assert_ok(shoal_block_create_zeroed(64, &less));
        d.shape_and_strides[0] = 4000;
        shoal_block *forged[2] = {
            record(SH_KIND_TENSOR, &data, 1, &d, HEAD + sizeof(int64_t) * 4),
            record(SH_KIND_TENSOR, &less, 1, &d, HEAD + sizeof(int64_t) * 4),
        };
        for (int i = 0; i < 2; i++) {
            shoal_tensor *t = NULL;
            hot_ok(shoal_queue_put_block(queue, forged[i], SHOAL_NOW));
            if (shoal_queue_get_tensor(queue, SHOAL_NOW, &t) == SHOAL_OK) {
                hot(i == 0 && shoal_tensor_size(t, 0) == 4);
                ck_inside(t);
                shoal_tensor_release(t);
            }
            sh_block_release(forged[i]);
        }
        shoal_release(less);
    }
    shoal_release(data);
}
END_TEST

START_TEST(b62_shapes_that_reach_beyond_their_block)
{
    static const int64_t bad[] = {
        -1, -6, 5, 7, 96, INT64_MAX, INT64_MIN, INT64_MAX / 4, INT64_C(1) << 61, INT64_C(1) << 32};
    shoal_block *data;
    ck_assert_ok(shoal_block_create_zeroed(96, &data));
    for (int round = 0; round < 30; round++) {
        sh_description d = good();
        hot(send_over(data, &d));
        for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
            for (int field = 0; field < 5; field++) {
                d = good();
                int64_t *number = field == 4 ? &d.offset : &d.shape_and_strides[field];
                if (*number >= bad[i] && bad[i] >= 0) {
                    continue; /* a smaller number fits */
                }
                *number = bad[i];
                bool taken = send_over(data, &d);
                hot(!taken || (field == 3 && bad[i] <= 1));
            }
        }
        d = (sh_description){.dtype = SHOAL_F32, .ndim = 2, .shape_and_strides = {INT64_MAX, 3, 0, 0}};
        hot(!send_over(data, &d)); /* too many elements to count */
        d.shape_and_strides[0] = INT64_C(1) << 62;
        hot(!send_over(data, &d));
        d = (sh_description){.dtype = SHOAL_F32, .ndim = 2, .shape_and_strides = {1, 1, INT64_MAX, INT64_MAX}};
        (void)send_over(data, &d); /* strides that are never used */
        d = (sh_description){.dtype = SHOAL_F32, .ndim = 2, .offset = INT64_MAX, .shape_and_strides = {0, 6, 6, 1}};
        (void)send_over(data, &d);
        d = (sh_description){.dtype = SHOAL_F32, .ndim = 2, .shape_and_strides = {-4, -6, 6, 1}};
        hot(!send_over(data, &d));
        d = (sh_description){.dtype = SHOAL_F64, .ndim = 2, .shape_and_strides = {4, 6, 6, 1}};
        hot(!send_over(data, &d)); /* fits only as f32 */
    }
    shoal_release(data);
}
END_TEST

START_TEST(b62_heads_that_are_not_tensors)
{
    shoal_block *data, *objects[3];
    shoal_lock *lock;
    ck_assert_ok(shoal_block_create_zeroed(96, &data));
    ck_assert_ok(shoal_lock_create(&lock));
    for (int round = 0; round < 30; round++) {
        for (int n = 0; n < 256; n++) {
            sh_description d = good();
            d.dtype = (uint8_t)n;
            bool taken = send_over(data, &d);
            hot(!taken || shoal_dtype_size((shoal_dtype)n) > 0);
            d = good();
            d.ndim = (uint8_t)n;
            hot(send_over(data, &d) == (n == 2)); /* the size of the bytes allows only 2 */
        }
        sh_description d = good();
        for (size_t size = 0; size <= sizeof d; size++) {
            hot(send_description(record(SH_KIND_TENSOR, &data, 1, &d, size)) == (size == HEAD + 32));
        }
        objects[0] = objects[1] = objects[2] = data;
        for (size_t count = 0; count <= 3; count++) { /* no reference, and too many */
            hot(send_description(record(SH_KIND_TENSOR, objects, count, &d, HEAD + 32)) == (count == 1));
        }
        d.has_grad = 1;
        hot(!send_description(record(SH_KIND_TENSOR, objects, 1, &d, HEAD + 32))); /* a grad that does not exist */
        hot(!send_description(record(SH_KIND_TENSOR, objects, 2, &d, HEAD + 32))); /* or is plain bytes */
        d = good();
        objects[0] = (shoal_block *)lock;
        hot(!send_description(record(SH_KIND_TENSOR, objects, 1, &d, HEAD + 32))); /* the storage is a lock */
        objects[0] = (shoal_block *)queue;
        hot(!send_description(record(SH_KIND_TENSOR, objects, 1, &d, HEAD + 32)));
        objects[0] = record(SH_KIND_TENSOR, &data, 1, &d, HEAD + 32);
        /* A storage that is another description. */
        hot(!send_description(record(SH_KIND_TENSOR, objects, 1, &d, HEAD + 32)));
        sh_block_release(objects[0]);
    }
    shoal_release(lock);
    shoal_release(data);
}
END_TEST

START_TEST(b62_grads_that_do_not_fit)
{
    shoal_block *data;
    ck_assert_ok(shoal_block_create_zeroed(192, &data));
    for (int round = 0; round < 30; round++) {
        sh_description with = good(), d = good();
        with.has_grad = with.requires_grad = 1;
        shoal_block *objects[2] = {data, record(SH_KIND_TENSOR, &data, 1, &d, HEAD + 32)};
        shoal_block *fits = record(SH_KIND_TENSOR, objects, 2, &with, HEAD + 32);
        shoal_block *nested[2] = {data, fits};
        (void)send_description(record(SH_KIND_TENSOR, nested, 2, &with, HEAD + 32)); /* a grad with a grad */
        hot(send_description(fits));
        sh_block_release(objects[1]);
        for (int wrong = 0; wrong < 4; wrong++) {
            d = good();
            d.dtype = wrong == 0 ? SHOAL_I32 : wrong == 1 ? SHOAL_F64 : SHOAL_F32;
            d.shape_and_strides[0] = wrong == 2 ? 3 : wrong == 3 ? 1000 : 4;
            objects[1] = record(SH_KIND_TENSOR, &data, 1, &d, HEAD + 32);
            hot(!send_description(record(SH_KIND_TENSOR, objects, 2, &with, HEAD + 32)));
            sh_block_release(objects[1]);
        }
    }
    shoal_release(data);
}
END_TEST

/* ---- random damage ---- */

static void damage(uint64_t *state, char *bytes, size_t size)
{
    uint64_t times = 1 + sh_splitmix_below(state, 3);
    for (uint64_t i = 0; i < times; i++) {
        uint64_t r = sh_splitmix_next(state);
        size_t at = sh_splitmix_below(state, size);
        bytes[at] = sh_splitmix_below(state, 2) == 0 ? (char)(bytes[at] ^ 1 << (r & 7)) : (char)r;
    }
}

START_TEST(b62_random_damage_to_descriptions)
{
    uint64_t state = SEED;
    int refused = 0, n = SH_REPEAT(50000);
    for (int i = 0; i < n; i++) {
        shoal_tensor *t = shoal_scoped(counted(4, 6, 0)), *view = i % 2 == 0 ? t : shoal_slice(t, 1, 1, 6, 2);
        shoal_block *right = NULL;
        sh_record r;
        if (i % 3 == 0) {
            hot_ok(shoal_tensor_set_grad(view, shoal_scoped(shoal_zeros_like(view))));
        }
        hot_ok(sh_share_describe_tensor(view, &right));
        hot(sh_record_read(right, &r));
        char *bytes = right->data + sizeof(sh_message_shm) + r.count * sizeof(sh_a64);
        damage(&state, bytes, r.size); /* in place: the tensor that it belongs to is not used any more */
        refused += !send_description(sh_block_retain(right));
        shoal_scope_release(0);
    }
    printf("%d of %d damaged descriptions were refused (seed %u)\n", refused, n, SEED);
    ck_assert_int_gt(refused, 0);
}
END_TEST

/* Whether it is accepted or rejected, nothing outside is touched: to_dense gives what it says, or an error. */
static bool use_sparse(shoal_value *v)
{
    shoal_value *got = NULL;
    hot_ok(shoal_queue_put(queue, v, SHOAL_NOW));
    hot_ok(shoal_queue_get(queue, SHOAL_NOW, &got));
    shoal_sparse *s = shoal_value_as_sparse(got);
    int64_t count = 1;
    for (int d = 0; s != NULL && d < shoal_sparse_ndim(s); d++) {
        hot(shoal_sparse_shape(s)[d] >= 0);
        count = __builtin_mul_overflow(count, shoal_sparse_shape(s)[d], &count) ? INT64_MAX : count;
    }
    shoal_tensor *dense = s != NULL && count < 1000000 ? shoal_sparse_to_dense(s) : NULL;
    bool good = dense != NULL;
    shoal_tensor_release(dense);
    shoal_value_destroy(got);
    return good;
}

START_TEST(b62_random_damage_to_sparse_descriptions)
{
    uint64_t state = SEED;
    int refused = 0, n = SH_REPEAT(20000);
    for (int i = 0; i < n; i++) {
        shoal_tensor *eye = shoal_scoped(shoal_eye(SHOAL_F32, 5));
        shoal_sparse *s = shoal_sparse_from_dense(eye, i % 2 == 0 ? SHOAL_LAYOUT_COO : SHOAL_LAYOUT_CSR);
        shoal_value *v = shoal_value_sparse(s), *copy = shoal_value_copy(v);
        shoal_block *right = ((shoal_value *)copy)->as.object; /* the copy keeps it while it is damaged */
        sh_record r;
        hot(right != NULL && sh_record_read(right, &r));
        damage(&state, right->data + sizeof(sh_message_shm) + r.count * sizeof(sh_a64), r.size);
        refused += !use_sparse(v);
        shoal_value_destroy(copy);
        shoal_sparse_destroy(s);
        shoal_scope_release(0);
    }
    printf("%d of %d damaged sparse descriptions were refused (seed %u)\n", refused, n, SEED);
    ck_assert_int_gt(refused, 0);
}
END_TEST

/* The parts are shared memory: what was valid when it arrived may be garbage when it is used. */
START_TEST(b62_indices_that_lie)
{
    static const int64_t bad[] = {-1, -5, 5, 6, 1000, INT64_MAX, INT64_MIN, INT64_C(1) << 40};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        for (int layout = SHOAL_LAYOUT_COO; layout <= SHOAL_LAYOUT_CSR; layout++) {
            shoal_tensor *eye = shoal_eye(SHOAL_F32, 5);
            shoal_sparse *s = shoal_sparse_from_dense(eye, (shoal_layout)layout);
            int64_t *indices = shoal_tensor_data(shoal_sparse_indices(s));
            int64_t *starts = layout == SHOAL_LAYOUT_CSR ? shoal_tensor_data(shoal_sparse_starts(s)) : NULL;
            for (int64_t k = 0; k < shoal_tensor_count(shoal_sparse_indices(s)); k++) {
                int64_t right = indices[k];
                indices[k] = bad[i];
                hot(shoal_sparse_to_dense(s) == NULL && shoal_last_error() == SHOAL_EINVAL);
                indices[k] = right;
            }
            for (int k = 0; starts != NULL && k < 6; k++) {
                int64_t right = starts[k];
                starts[k] = bad[i];
                shoal_tensor *dense = shoal_sparse_to_dense(s);
                hot(dense != NULL || shoal_last_error() == SHOAL_EINVAL);
                shoal_tensor_release(dense);
                starts[k] = right;
            }
            shoal_tensor *dense = shoal_sparse_to_dense(s);
            hot(shoal_tensor_equal(dense, eye));
            shoal_tensor_release(dense);
            shoal_sparse_destroy(s);
            shoal_tensor_release(eye);
        }
    }
}
END_TEST

/* Parts whose shapes do not match: rejected when the sparse tensor is created, or harmless. */
START_TEST(b62_sparse_parts_that_do_not_fit)
{
    shoal_tensor *three = shoal_zeros(SHOAL_F32, SHOAL_SHAPE(3)), *scalar = shoal_zeros(SHOAL_F32, SHOAL_SCALAR);
    shoal_tensor *starts = shoal_zeros(SHOAL_I64, SHOAL_SHAPE(1)), *columns = shoal_zeros(SHOAL_I64, SHOAL_SHAPE(3));
    shoal_tensor *pairs = shoal_zeros(SHOAL_I64, SHOAL_SHAPE(2, 3)), *nine = shoal_zeros(SHOAL_I64, SHOAL_SHAPE(9, 3));
    shoal_sparse *const made[] = {
        shoal_sparse_csr(starts, columns, three, 0, 4),
        shoal_sparse_csr(starts, columns, three, 0, 0),
        shoal_sparse_csr(starts, columns, three, -1, 4),
        shoal_sparse_csr(starts, columns, scalar, 0, 4),
        shoal_sparse_csr(pairs, columns, three, 1, 4),
        shoal_sparse_csr(NULL, columns, three, 1, 4),
        shoal_sparse_coo(nine, three, SHOAL_SHAPE(1, 1, 1, 1, 1, 1, 1, 1), false),
        shoal_sparse_coo(pairs, three, SHOAL_SHAPE(4), false),
        shoal_sparse_coo(pairs, three, SHOAL_SHAPE(4, 4, 4), false),
        shoal_sparse_coo(pairs, three, SHOAL_SHAPE(-4, -4), false),
        shoal_sparse_coo(pairs, scalar, SHOAL_SHAPE(4, 4), false),
        shoal_sparse_coo(columns, three, SHOAL_SHAPE(4), false),
        shoal_sparse_coo(three, three, SHOAL_SHAPE(4), false),
        shoal_sparse_coo(pairs, NULL, SHOAL_SHAPE(4, 4), false),
        shoal_sparse_coo(pairs, three, SHOAL_SCALAR, false),
    };
    for (size_t i = 0; i < sizeof made / sizeof made[0]; i++) {
        shoal_tensor *dense = shoal_sparse_to_dense(made[i]);
        ck_assert_msg(dense == NULL, "sparse tensor %zu", i);
        shoal_sparse_destroy(made[i]);
    }
    shoal_sparse *fits = shoal_sparse_coo(pairs, three, SHOAL_SHAPE(4, 4), false);
    ck_assert_ptr_nonnull(fits);
    shoal_sparse_destroy(fits);
    shoal_tensor *const all[] = {three, scalar, starts, columns, pairs, nine};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        shoal_tensor_release(all[i]);
    }
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("forged_tensors");
    TCase *tc = tcase_create("forged");
    tcase_add_checked_fixture(tc, begin, end);
    tcase_set_timeout(tc, SH_TEST_SECONDS);
    tcase_add_test(tc, b62_shapes_that_reach_beyond_their_block);
    tcase_add_test(tc, b62_a_forged_stamp_reaches_no_further);
    tcase_add_test(tc, b62_heads_that_are_not_tensors);
    tcase_add_test(tc, b62_grads_that_do_not_fit);
    tcase_add_test(tc, b62_random_damage_to_descriptions);
    tcase_add_test(tc, b62_random_damage_to_sparse_descriptions);
    tcase_add_test(tc, b62_indices_that_lie);
    tcase_add_test(tc, b62_sparse_parts_that_do_not_fit);
    suite_add_tcase(s, tc);
    return s;
}

SH_TEST_MAIN(suite)
