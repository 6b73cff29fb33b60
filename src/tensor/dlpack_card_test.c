/* DLPack with tensors of a card, and the order with streams of other libraries. */
#include "device/cuda_share.h"
#include "tensor/tensor.h"
#include "tests/harness/cuda_stub/stub.h"
#include "tests/harness/runner.h"

#include <shoal/dlpack.h>
#include <shoal/ops.h>

#include <pthread.h>
#include <string.h>
#include <unistd.h>

static const sh_stub *stub; /* NULL on a card */

static void open_card(void)
{
    sh_stub_use();
    ck_assert_msg(sh_device_get(SHOAL_CUDA) != NULL, "%s", shoal_last_error_text());
    stub = sh_stub_control();
}

static shoal_tensor *on_card(float first)
{
    const float values[4] = {first, first + 1, first + 2, first + 3};
    shoal_tensor *t = shoal_from_data_on(SHOAL_CUDA, SHOAL_F32, values, SHOAL_SHAPE(2, 2));
    ck_assert_msg(t != NULL, "%s", shoal_last_error_text());
    return t;
}

static float first_of(const shoal_tensor *t)
{
    float values[4];
    ck_assert_ok(shoal_tensor_read(t, values, sizeof values));
    return values[0];
}

static int deleted;

static void count_deletion(shoal_dlpack *pack)
{
    (void)pack;
    deleted++;
}

START_TEST(there_and_back)
{
    shoal_tensor *t = on_card(5);
    shoal_dlpack *pack;
    ck_assert_ok(shoal_tensor_to_dlpack(t, 0, &pack));
    ck_assert_int_eq(pack->tensor.device.type, SHOAL_DLPACK_CUDA);
    ck_assert_int_eq(pack->tensor.device.id, sh_cuda_the_card()->index);
    ck_assert_ptr_eq(pack->tensor.data, sh_tensor_ptr(t));

    shoal_dlpack other = *pack; /* as if another library had the memory */
    other.deleter = count_deletion;
    shoal_tensor *same = shoal_tensor_from_dlpack(&other);
    ck_assert_msg(same != NULL, "%s", shoal_last_error_text());
    ck_assert_int_eq(shoal_tensor_device(same), SHOAL_CUDA);
    ck_assert(first_of(same) == 5);
    ck_assert_ptr_null(shoal_tensor_data(same));
    shoal_tensor_release(same);
    ck_assert_int_eq(deleted, 1);

    other.flags = SHOAL_DLPACK_READ_ONLY;
    shoal_tensor *copy = shoal_tensor_from_dlpack(&other);
    ck_assert_int_eq(deleted, 2);
    ck_assert(sh_tensor_ptr(copy) != sh_tensor_ptr(t) && first_of(copy) == 5);
    shoal_tensor_release(copy);

    other.tensor.device.id = 7;
    ck_assert_ptr_null(shoal_tensor_from_dlpack(&other));
    ck_assert_msg(shoal_last_error() == SHOAL_EINVAL && strstr(shoal_last_error_text(), "is on GPU 7"), "%s",
                  shoal_last_error_text());
    pack->deleter(pack);
    shoal_tensor_release(t);
}
END_TEST

/* The stub's streams go on only when somebody looks at them, so the order shows. */
START_TEST(streams_in_order)
{
    if (!stub) {
        return;
    }
    shoal_tensor *a = on_card(1), *b = on_card(2), *c = on_card(3);
    sh_cu_stream theirs;
    void *ours = NULL;
    ck_assert_ok(shoal_cuda_stream(&ours));
    ck_assert_int_eq(sh_cu.cuStreamCreate(&theirs, 0), 0);
    uint64_t waits = stub->calls("cuStreamWaitEvent");
    ck_assert_ok(shoal_cuda_follow_stream(theirs)); /* idle: there is nothing to wait for */
    ck_assert_ok(shoal_cuda_precede_stream(theirs));
    ck_assert_uint_eq(stub->calls("cuStreamWaitEvent"), waits);

    stub->block();
    ck_assert_int_eq(
        sh_cu.cuMemcpyDtoDAsync((uintptr_t)sh_tensor_ptr(b), (uintptr_t)sh_tensor_ptr(a), sizeof(float), theirs), 0);
    ck_assert_ok(shoal_cuda_follow_stream(theirs));
    sh_cuda_touch();
    ck_assert_int_eq(
        sh_cu.cuMemcpyDtoDAsync((uintptr_t)sh_tensor_ptr(c), (uintptr_t)sh_tensor_ptr(b), sizeof(float), ours), 0);
    stub->unblock();
    ck_assert_int_eq(sh_cu.cuStreamQuery(ours), SH_CU_NOT_READY); /* theirs has not gone on */
    ck_assert_int_eq(sh_cu.cuStreamQuery(theirs), SH_CU_OK);
    ck_assert(first_of(c) == 1);

    stub->block();
    sh_cuda_touch();
    ck_assert_int_eq(
        sh_cu.cuMemcpyDtoDAsync((uintptr_t)sh_tensor_ptr(a), (uintptr_t)sh_tensor_ptr(c) + 4, sizeof(float), ours), 0);
    ck_assert_ok(shoal_cuda_precede_stream(theirs));
    stub->unblock();
    ck_assert_int_eq(sh_cu.cuStreamQuery(theirs), SH_CU_NOT_READY);
    ck_assert_int_eq(sh_cu.cuStreamQuery(ours), SH_CU_OK);
    ck_assert_int_eq(sh_cu.cuStreamQuery(theirs), SH_CU_OK);
    ck_assert(first_of(a) == 4);

    ck_assert_int_eq(sh_cu.cuStreamBeginCapture(theirs, SH_CU_CAPTURE_RELAXED), 0);
    ck_assert_err(shoal_cuda_follow_stream(theirs), SHOAL_ESTATE);
    ck_assert_err(shoal_cuda_precede_stream(theirs), SHOAL_ESTATE);
    sh_cu_graph graph;
    ck_assert_int_eq(sh_cu.cuStreamEndCapture(theirs, &graph), 0);
    ck_assert_int_eq(sh_cu.cuGraphDestroy(graph), 0);
    ck_assert_int_eq(sh_cu.cuStreamDestroy(theirs), 0);
    shoal_tensor_release(a);
    shoal_tensor_release(b);
    shoal_tensor_release(c);
}
END_TEST

static bool deleted_in_time;

static void check_deletion(shoal_dlpack *pack)
{
    (void)pack;
    deleted++;
    deleted_in_time = sh_cu.cuStreamQuery(sh_cuda_the_card()->stream) == SH_CU_OK;
}

static void *unblock_soon(void *unused)
{
    usleep(20000);
    stub->unblock();
    return unused;
}

/* Memory of another library is released in a capture, while earlier work uses it. */
START_TEST(given_back_in_a_capture)
{
    if (!stub) {
        return;
    }
    shoal_tensor *t = on_card(5), *pinned = shoal_empty_pinned(SHOAL_F32, SHOAL_SHAPE(2, 2));
    shoal_dlpack *pack;
    shoal_capture *c;
    pthread_t thread;
    ck_assert_ok(shoal_tensor_to_dlpack(t, 0, &pack));
    shoal_dlpack other = *pack; /* as if another library had the memory */
    other.deleter = check_deletion;
    shoal_tensor *same = shoal_tensor_from_dlpack(&other);
    ck_assert_ptr_nonnull(same);
    stub->block();
    ck_assert_ok(shoal_tensor_copy_async(same, pinned));
    ck_assert_ok(shoal_capture_begin(&c));
    ck_assert_int_eq(pthread_create(&thread, NULL, unblock_soon, NULL), 0);
    shoal_tensor_release(same);
    ck_assert_int_eq(deleted, 1);
    ck_assert(deleted_in_time);
    ck_assert_err(shoal_capture_end(c), SHOAL_ESTATE);
    ck_assert_ptr_nonnull(strstr(shoal_last_error_text(), "another library"));
    shoal_capture_destroy(c);
    ck_assert_int_eq(pthread_join(thread, NULL), 0);
    pack->deleter(pack);
    shoal_tensor_release(t);
    shoal_tensor_release(pinned);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("tensor/dlpack_card");
    TCase *tc = tcase_create("dlpack");
    tcase_set_timeout(tc, SH_TEST_SECONDS);
    tcase_add_checked_fixture(tc, open_card, NULL);
    tcase_add_test(tc, there_and_back);
    tcase_add_test(tc, streams_in_order);
    tcase_add_test(tc, given_back_in_a_capture);
    suite_add_tcase(s, tc);
    return s;
}

SH_TEST_MAIN(suite)
