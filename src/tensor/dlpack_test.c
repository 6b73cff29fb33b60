/* DLPack: round trips of every dtype and of strided views, ownership, and what is rejected. */
#include "tensor/tensor.h"
#include "tests/harness/numbers.h"
#include "tests/harness/runner.h"

#include <shoal/autograd.h>
#include <shoal/dlpack.h>
#include <shoal/ops.h>

#include <pthread.h>
#include <string.h>

START_TEST(round_trip)
{
    shoal_dtype dtype = (shoal_dtype)_i;
    shoal_tensor *t = shoal_ones(dtype, SHOAL_SHAPE(3, 4));
    shoal_tensor *view = shoal_slice(shoal_transpose(t, 0, 1), 0, 1, 4, 2); /* [2, 3], offset 1, strides 2, 4 */
    shoal_dlpack *pack;
    ck_assert_ok(shoal_tensor_to_dlpack(view, 0, &pack));
    ck_assert_uint_eq(pack->version.major, 1);
    ck_assert_int_eq(pack->tensor.device.type, SHOAL_DLPACK_CPU);
    ck_assert_int_eq(pack->tensor.dtype.bits, 8 * shoal_dtype_size(dtype));
    ck_assert_int_eq(pack->tensor.dtype.lanes, 1);
    ck_assert_int_eq(pack->tensor.ndim, 2);
    ck_assert(pack->tensor.shape[0] == 2 && pack->tensor.shape[1] == 3);
    ck_assert(pack->tensor.strides[0] == 2 && pack->tensor.strides[1] == 4);
    ck_assert_uint_eq(pack->tensor.byte_offset, shoal_dtype_size(dtype));
    shoal_tensor *back = shoal_tensor_from_dlpack(pack);
    ck_assert_msg(back != NULL, "%s", shoal_last_error_text());
    ck_assert_int_eq(shoal_tensor_dtype(back), dtype);
    ck_assert_ptr_eq(shoal_tensor_data(back), shoal_tensor_data(view));
    ck_assert(shoal_tensor_equal(back, view));
    /* Both use the same memory, which lives as long as either of them. */
    ck_assert_ptr_nonnull(shoal_zero_(back));
    ck_assert(item_at(t, SHOAL_SHAPE(0, 1)) == 0 && item_at(t, SHOAL_SHAPE(0, 0)) == 1);
    shoal_tensor_release(t);
    shoal_scope_release(0);
    ck_assert(item_at(back, SHOAL_SHAPE(1, 2)) == 0);
    shoal_tensor_release(back);
}
END_TEST

START_TEST(other_shapes)
{
    const int64_t eight[] = {1, 2, 1, 2, 1, 1, 3, 1};
    shoal_tensor *all[] = {shoal_scalar(SHOAL_F64, 7), shoal_zeros(SHOAL_I32, SHOAL_SHAPE(2, 0)),
                           shoal_ones(SHOAL_F32, 8, eight)};
    for (int i = 0; i < 3; i++) {
        shoal_dlpack *pack;
        ck_assert_ok(shoal_tensor_to_dlpack(all[i], 0, &pack));
        shoal_tensor *back = shoal_tensor_from_dlpack(pack);
        ck_assert(shoal_tensor_equal(back, all[i]));
        shoal_tensor_release(back);
        shoal_tensor_release(all[i]);
    }
}
END_TEST

START_TEST(flags)
{
    shoal_tensor *t = shoal_ones(SHOAL_F32, SHOAL_SHAPE(2, 2));
    shoal_dlpack *copy, *fixed;
    ck_assert_ok(shoal_tensor_to_dlpack(shoal_transpose(t, 0, 1), SHOAL_DLPACK_COPIED, &copy));
    ck_assert_uint_eq(copy->flags, SHOAL_DLPACK_COPIED);
    ck_assert(copy->tensor.data != shoal_tensor_data(t) && copy->tensor.strides[1] == 1);
    copy->deleter(copy);

    ck_assert_ok(shoal_tensor_to_dlpack(t, SHOAL_DLPACK_READ_ONLY, &fixed));
    ck_assert_uint_eq(fixed->flags, SHOAL_DLPACK_READ_ONLY);
    shoal_tensor *own = shoal_tensor_from_dlpack(fixed); /* a copy, so it may be written */
    ck_assert_ptr_nonnull(shoal_fill_(own, 5));
    ck_assert(item_at(t, SHOAL_SHAPE(0, 0)) == 1);
    shoal_tensor_release(own);

    ck_assert_err(shoal_tensor_to_dlpack(t, 4, &copy), SHOAL_EINVAL);
    ck_assert_ok(shoal_tensor_set_requires_grad(t, true));
    ck_assert_err(shoal_tensor_to_dlpack(t, 0, &copy), SHOAL_ESTATE);
    ck_assert_ok(shoal_tensor_to_dlpack(shoal_detach(t), 0, &copy));
    copy->deleter(copy);
    shoal_tensor_release(t);
    shoal_scope_release(0);
}
END_TEST

/* Memory that another library holds does not move. */
START_TEST(pinned)
{
    shoal_tensor *t = shoal_ones(SHOAL_F32, SHOAL_SHAPE(4));
    shoal_dlpack *pack;
    ck_assert_ok(shoal_tensor_to_dlpack(t, 0, &pack));
    ck_assert_err(sh_storage_share(t->storage), SHOAL_ESTATE);
    pack->deleter(pack);
    ck_assert_ok(sh_storage_share(t->storage));
    ck_assert_ok(shoal_tensor_to_dlpack(t, 0, &pack));
    pack->deleter(pack);
    shoal_tensor_release(t);
}
END_TEST

static void *delete_there(void *pack)
{
    shoal_dlpack *p = pack;
    p->deleter(p);
    return NULL;
}

START_TEST(deleted_by_another_thread)
{
    shoal_tensor *t = shoal_ones(SHOAL_F32, SHOAL_SHAPE(4));
    shoal_dlpack *pack;
    pthread_t thread;
    ck_assert_ok(shoal_tensor_to_dlpack(t, 0, &pack));
    shoal_tensor_release(t);
    ck_assert_int_eq(pthread_create(&thread, NULL, delete_there, pack), 0);
    ck_assert_int_eq(pthread_join(thread, NULL), 0);
}
END_TEST

/* ---- packs from other libraries ---- */

static int deleted;

static void count_deletion(shoal_dlpack *self)
{
    (void)self;
    deleted++;
}

static float memory[24];
static int64_t shape[SHOAL_MAX_DIMS + 1] = {2, 3}, strides[SHOAL_MAX_DIMS + 1] = {3, 1};

static shoal_dlpack foreign(void)
{
    shoal_dlpack p = {.deleter = count_deletion};
    p.version.major = 1;
    p.version.minor = 3;
    p.tensor.data = memory;
    p.tensor.device.type = SHOAL_DLPACK_CPU;
    p.tensor.ndim = 2;
    p.tensor.dtype = (shoal_dlpack_dtype){SHOAL_DLPACK_FLOAT, 32, 1};
    p.tensor.shape = shape;
    p.tensor.strides = strides;
    return p;
}

START_TEST(of_others)
{
    for (int i = 0; i < 24; i++) {
        memory[i] = (float)i;
    }
    shoal_dlpack p = foreign();
    p.tensor.byte_offset = 8;
    strides[0] = 6;
    strides[1] = 2;
    shoal_tensor *t = shoal_tensor_from_dlpack(&p);
    ck_assert_msg(t != NULL, "%s", shoal_last_error_text());
    ck_assert(item_at(t, SHOAL_SHAPE(1, 2)) == 2 + 6 + 4);
    shoal_tensor *row = shoal_tensor_retain(shoal_select(t, 0, 1));
    shoal_tensor_release(t);
    shoal_scope_release(0);
    ck_assert_int_eq(deleted, 0);
    shoal_tensor_release(row);
    ck_assert_int_eq(deleted, 1);

    p = foreign();
    p.tensor.strides = NULL; /* contiguous */
    p.deleter = NULL;
    t = shoal_tensor_from_dlpack(&p);
    ck_assert(shoal_tensor_is_contiguous(t) && item_at(t, SHOAL_SHAPE(1, 2)) == 5);
    shoal_tensor_release(t);
    ck_assert_int_eq(deleted, 1);
}
END_TEST

START_TEST(refused)
{
    shoal_dlpack p;
#define REFUSED(change, err, words)                                                                                    \
    do {                                                                                                               \
        p = foreign();                                                                                                 \
        shape[0] = 2;                                                                                                  \
        strides[0] = 3;                                                                                                \
        change;                                                                                                        \
        ck_assert_ptr_null(shoal_tensor_from_dlpack(&p));                                                              \
        ck_assert_msg(shoal_last_error() == (err) && strstr(shoal_last_error_text(), words), "%s: %s", #change,        \
                      shoal_last_error_text());                                                                        \
    } while (0)
    REFUSED(strides[0] = -3, SHOAL_EINVAL, "stride -3 of dim 0");
    REFUSED(shape[0] = -2, SHOAL_EINVAL, "-2");
    REFUSED(p.tensor.dtype.lanes = 4, SHOAL_EINVAL, "4 lanes");
    REFUSED(p.tensor.dtype.bits = 24, SHOAL_ETYPE, "24 bits");
    REFUSED(p.tensor.dtype.code = 5, SHOAL_ETYPE, "code 5");
    REFUSED(p.tensor.device.type = 7, SHOAL_EINVAL, "type 7");
    REFUSED(p.tensor.ndim = 9, SHOAL_EINVAL, "not 9");
    REFUSED(p.tensor.ndim = -1, SHOAL_EINVAL, "not -1");
    REFUSED(p.tensor.shape = NULL, SHOAL_EINVAL, "dims");
    REFUSED(p.tensor.byte_offset = 2, SHOAL_EINVAL, "not aligned to f32");
    REFUSED(p.tensor.data = NULL, SHOAL_EINVAL, "the data pointer is NULL");
    REFUSED(p.version.major = 2, SHOAL_EINVAL, "version is 2.3");
    REFUSED((shape[0] = INT64_MAX / 16, strides[0] = INT64_MAX / 2), SHOAL_EINVAL, "address space");
    REFUSED((shape[0] = INT64_MAX / 2), SHOAL_EINVAL, "address space");
    ck_assert_int_eq(deleted, 0);
}
END_TEST

START_TEST(nothing)
{
    ck_assert_ptr_null(shoal_tensor_from_dlpack(NULL));
    ck_assert_int_eq(shoal_last_error(), SHOAL_EINVAL);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("tensor/dlpack");
    TCase *tc = tcase_create("dlpack");
    tcase_set_timeout(tc, SH_TEST_SECONDS);
    tcase_add_checked_fixture(tc, sh_leaks_begin, sh_leaks_end);
    tcase_add_loop_test(tc, round_trip, 0, SHOAL_DTYPES);
    tcase_add_test(tc, other_shapes);
    tcase_add_test(tc, flags);
    tcase_add_test(tc, pinned);
    tcase_add_test(tc, deleted_by_another_thread);
    tcase_add_test(tc, of_others);
    tcase_add_test(tc, refused);
    tcase_add_test(tc, nothing);
    suite_add_tcase(s, tc);
    return s;
}

SH_TEST_MAIN(suite)
