/* Captures: what they record, what they keep, and what they refuse. Over the stub driver, whose kernels run during the
 * capture and are not recorded, only copies are replayed; on a card all is. */
#include "device/cuda_capture.h"
#include "device/cuda_share.h"
#include "tensor/tensor.h"
#include "tests/harness/cuda_stub/stub.h"
#include "tests/harness/runner.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static const sh_stub *stub;

static void open_card(void)
{
    sh_stub_use();
    ck_assert_msg(sh_device_get(SHOAL_CUDA) != NULL, "%s", shoal_last_error_text());
    stub = sh_stub_control();
}

static void close_card(void)
{
    ck_assert(sh_cuda_memory_valid());
    (void)shoal_cuda_trim();
    shoal_cuda_memory m;
    ck_assert_ok(shoal_cuda_memory_get(&m));
    ck_assert_uint_eq(m.asked, 0);
    ck_assert_uint_eq(m.held, 0);
}

/* A tensor of n floats on the card, which the caller owns. */
static shoal_tensor *on_card(int64_t n)
{
    sh_shape s;
    ck_assert_ok(sh_shape_init(&s, SHOAL_F32, SHOAL_SHAPE(n)));
    shoal_tensor *t = sh_tensor_new(sh_device_get(SHOAL_CUDA), &s);
    ck_assert_msg(t != NULL, "%s", shoal_last_error_text());
    return t;
}

static void write_floats(shoal_tensor *t, float first)
{
    float values[64];
    for (int i = 0; i < t->count; i++) {
        values[i] = first + (float)i;
    }
    ck_assert_ok(sh_device_cuda.write(sh_tensor_ptr(t), values, (size_t)t->count * sizeof(float)));
}

static float first_float(const shoal_tensor *t)
{
    float value = -1;
    ck_assert_ok(sh_device_cuda.read(&value, sh_tensor_ptr(t), sizeof value));
    return value;
}

/* What a kernel would do: copies a to b, in the stream of this thread. */
static void copy(shoal_tensor *to, const shoal_tensor *from)
{
    sh_cuda_touch();
    ck_assert_int_eq(sh_cu.cuMemcpyDtoDAsync((sh_cu_address)(uintptr_t)sh_tensor_ptr(to),
                                             (sh_cu_address)(uintptr_t)sh_tensor_ptr(from),
                                             (size_t)to->count * sizeof(float), sh_cuda_stream()),
                     SH_CU_OK);
}

START_TEST(replays_what_was_recorded)
{
    shoal_tensor *a = on_card(16), *b = on_card(16);
    write_floats(a, 1);
    write_floats(b, 100);
    shoal_capture *c;
    ck_assert_ok(shoal_capture_begin(&c));
    shoal_tensor *middle = on_card(16);
    copy(middle, a);
    copy(b, middle);
    shoal_tensor_release(middle);
    ck_assert_ok(shoal_capture_end(c));
    ck_assert_float_eq(first_float(b), 100); /* recorded, not run */
    for (int i = 0; i < 5; i++) {
        write_floats(a, (float)i);
        shoal_tensor *other = on_card(16); /* would have the memory of `middle`, if that were free */
        write_floats(other, -7);
        ck_assert_ok(shoal_capture_replay(c));
        ck_assert_float_eq(first_float(b), (float)i);
        ck_assert_float_eq(first_float(other), -7);
        shoal_tensor_release(other);
    }
    shoal_capture_destroy(c);
    shoal_tensor_release(a);
    shoal_tensor_release(b);
}
END_TEST

/* Memory that was freed in a capture is used again there, and by nobody else before the capture is destroyed. */
START_TEST(memory_of_a_capture)
{
    shoal_tensor *before = on_card(1 << 20), *result;
    shoal_cuda_memory m;
    shoal_capture *c;
    ck_assert_ok(shoal_capture_begin(&c));
    shoal_tensor *first = on_card(1 << 20);
    void *address = sh_tensor_ptr(first), *old = sh_tensor_ptr(before);
    shoal_tensor_release(first);
    shoal_tensor_release(before); /* the graph may have read it: kept, and not used again */
    result = on_card(1 << 20);
    ck_assert_ptr_eq(sh_tensor_ptr(result), address);
    ck_assert_ok(shoal_capture_end(c));
    shoal_tensor_release(result); /* still the graph's */
    ck_assert_ok(shoal_cuda_memory_get(&m));
    ck_assert_uint_lt(m.asked, 1 << 20);
    for (int i = 0; i < 20; i++) {
        shoal_tensor *t = on_card(1 << 20);
        ck_assert_ptr_ne(sh_tensor_ptr(t), address);
        ck_assert_ptr_ne(sh_tensor_ptr(t), old);
        shoal_tensor_release(t);
    }
    ck_assert(sh_cuda_memory_valid());
    shoal_capture_destroy(c);
}
END_TEST

static void refused(shoal_capture *c, shoal_err err, const char *words)
{
    ck_assert_int_eq(err, SHOAL_ESTATE);
    ck_assert_msg(strstr(shoal_last_error_text(), words) && strstr(shoal_last_error_text(), "cannot be captured"), "%s",
                  shoal_last_error_text());
    ck_assert_err(shoal_capture_end(c), SHOAL_ESTATE);
    ck_assert_msg(strstr(shoal_last_error_text(), words) != NULL, "%s", shoal_last_error_text());
    ck_assert_err(shoal_capture_replay(c), SHOAL_ESTATE);
    ck_assert_ok(shoal_cuda_wait()); /* and the card goes on */
    shoal_capture_destroy(c);
}

START_TEST(what_needs_the_host)
{
    shoal_tensor *t = on_card(16);
    shoal_capture *c;
    float bytes[16] = {0};
    sh_a64 work = {0};
    ck_assert_ok(shoal_capture_begin(&c));
    copy(t, t);
    refused(c, sh_device_cuda.read(bytes, sh_tensor_ptr(t), sizeof bytes), "reading elements on the host");
    ck_assert_ok(shoal_capture_begin(&c));
    refused(c, sh_device_cuda.write(sh_tensor_ptr(t), bytes, sizeof bytes), "writing elements from the host");
    ck_assert_ok(shoal_capture_begin(&c));
    refused(c, shoal_cuda_wait(), "waiting for the GPU");
    ck_assert_ok(shoal_capture_begin(&c));
    refused(c, sh_cuda_mark(&work), "sending a tensor to another process");
    write_floats(t, 3);
    ck_assert_float_eq(first_float(t), 3);
    shoal_tensor_release(t);
}
END_TEST

START_TEST(wrong_order)
{
    shoal_capture *c, *second;
    ck_assert_ok(shoal_capture_begin(&c));
    ck_assert_err(shoal_capture_begin(&second), SHOAL_ESTATE);
    ck_assert_ok(shoal_capture_end(c));
    ck_assert_err(shoal_capture_end(c), SHOAL_ESTATE);
    ck_assert_ok(shoal_capture_replay(c));
    shoal_capture_destroy(c);
    ck_assert_ok(shoal_capture_begin(&c));
    shoal_capture_destroy(c); /* not ended */
    shoal_capture_destroy(NULL);
    ck_assert_ok(shoal_cuda_wait());
}
END_TEST

/* B33. It inherits a capture that records, and calls nothing of the driver with it. */
START_TEST(child_of_fork)
{
    shoal_capture *recording, *ready, *more;
    ck_assert_ok(shoal_capture_begin(&ready));
    ck_assert_ok(shoal_capture_end(ready));
    ck_assert_ok(shoal_capture_begin(&recording));
    pid_t child = fork();
    if (child == 0) {
        uint64_t calls = stub ? stub->calls(NULL) : 0;
        bool refused = shoal_capture_begin(&more) == SHOAL_EFORK && shoal_capture_end(recording) == SHOAL_EFORK &&
                       shoal_capture_replay(ready) == SHOAL_EFORK && shoal_capture_begin(&more) == SHOAL_EFORK;
        shoal_capture_destroy(recording);
        shoal_capture_destroy(ready);
        _exit(!refused || (stub && stub->calls(NULL) != calls));
    }
    int status = -1;
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert_int_eq(status, 0);
    ck_assert_ok(shoal_capture_end(recording));
    ck_assert_ok(shoal_capture_replay(recording));
    shoal_capture_destroy(recording);
    shoal_capture_destroy(ready);
}
END_TEST

static void *begin_and_end_thread(void *out_capture)
{
    sh_exec *exec = sh_device_cuda.exec();
    if (!exec || !sh_cuda_scratch(exec, 4096) || shoal_capture_begin(out_capture) != SHOAL_OK ||
        !sh_cuda_scratch(exec, 8192)) {
        abort();
    }
    return NULL;
}

/* Its scratch, from before and of the capture, and its stream come back. */
START_TEST(thread_ends_first)
{
    shoal_capture *c = NULL;
    pthread_t thread;
    uint64_t made = stub ? stub->calls("cuStreamCreate") : 0, destroyed = stub ? stub->calls("cuStreamDestroy") : 0;
    ck_assert_int_eq(pthread_create(&thread, NULL, begin_and_end_thread, &c), 0);
    ck_assert_int_eq(pthread_join(thread, NULL), 0);
    ck_assert_err(shoal_capture_end(c), SHOAL_ESTATE);
    ck_assert_msg(strstr(shoal_last_error_text(), "exited before it ended") != NULL, "%s", shoal_last_error_text());
    ck_assert_err(shoal_capture_replay(c), SHOAL_ESTATE);
    shoal_capture_destroy(c);
    if (stub) {
        ck_assert_uint_eq(stub->calls("cuStreamDestroy") - destroyed, stub->calls("cuStreamCreate") - made);
    }
}
END_TEST

/* Each replay draws what the thread would draw now; the CPU draws the same from the same seed. */
START_TEST(random_numbers)
{
    shoal_tensor *drawn = on_card(16), *here = shoal_empty(SHOAL_F32, SHOAL_SHAPE(16));
    shoal_manual_seed(7);
    shoal_capture *c;
    ck_assert_ok(shoal_capture_begin(&c));
    ck_assert_ptr_nonnull(shoal_uniform_(drawn, 0, 1));
    ck_assert_ok(shoal_capture_end(c));
    ck_assert_uint_eq(sh_generator_get().offset, 0);
    for (int i = 0; i < 4; i++) {
        ck_assert_ok(shoal_capture_replay(c));
        sh_generator after = sh_generator_get();
        ck_assert_uint_eq(after.offset, (uint64_t)(i < 2 ? i + 1 : i + 2) * 4);
        if (!stub) {
            sh_generator_set((sh_generator){7, after.offset - 4});
            ck_assert_ptr_nonnull(shoal_uniform_(here, 0, 1));
            ck_assert_float_eq(first_float(drawn), *(float *)sh_tensor_ptr(here));
        }
        if (i == 1) {
            ck_assert_ptr_nonnull(shoal_uniform_(here, 0, 1)); /* the program draws in between */
        }
    }
    shoal_manual_seed(8);
    ck_assert_err(shoal_capture_replay(c), SHOAL_ESTATE);
    ck_assert_msg(strstr(shoal_last_error_text(), "the seed 7, and this thread's seed is 8"), "%s",
                  shoal_last_error_text());
    shoal_capture_destroy(c);
    shoal_tensor_release(drawn);
    shoal_tensor_release(here);
}
END_TEST

/* Whatever fails: an error, and no memory is lost. */
START_TEST(failing_driver)
{
    static const char *const calls[] = {"cuStreamCreate",     "cuStreamBeginCapture", "cuStreamEndCapture",
                                        "cuGraphInstantiate", "cuGraphUpload",        "cuGraphLaunch"};
    for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++) {
        shoal_capture *c = NULL;
        stub->fail_call(strcmp(calls[i], "cuGraphInstantiate") == 0 ? "cuGraphInstantiateWithFlags" : calls[i], 1, 1,
                        1);
        shoal_err err = shoal_capture_begin(&c);
        if (err == SHOAL_OK) {
            shoal_tensor *t = on_card(16);
            copy(t, t);
            shoal_tensor_release(t);
            err = shoal_capture_end(c);
            if (err == SHOAL_OK) {
                err = shoal_capture_replay(c);
            }
        }
        ck_assert_msg(err == SHOAL_EOS, "%s: %s", calls[i], shoal_err_name(err));
        shoal_capture_destroy(c);
        ck_assert_ok(shoal_cuda_wait());
    }
}
END_TEST

/* Pinned memory that a step makes (0), or releases (1), belongs to the capture like card memory: each replay copies
 * there. */
START_TEST(pinned_memory_of_a_step)
{
    enum { COUNT = 16 };
    shoal_tensor *t = on_card(COUNT), *pinned = NULL, *next;
    shoal_capture *c, *other;
    uint64_t freed = stub ? stub->calls("cuMemFreeHost") : 0;
    write_floats(t, 1);
    pinned = _i == 1 ? shoal_empty_pinned(SHOAL_F32, SHOAL_SHAPE(COUNT)) : NULL;
    ck_assert_ok(shoal_capture_begin(&c));
    pinned = _i == 0 ? shoal_empty_pinned(SHOAL_F32, SHOAL_SHAPE(COUNT)) : pinned;
    ck_assert_ptr_nonnull(pinned);
    ck_assert_ok(shoal_tensor_copy_async(pinned, t));
    if (_i == 1) {
        shoal_tensor_release(pinned);
    }
    ck_assert_ok(shoal_capture_end(c));
    if (_i == 0) {
        ck_assert_ok(shoal_capture_replay(c));
        ck_assert_ok(shoal_cuda_wait());
        ck_assert(*(const float *)shoal_tensor_data(pinned) == 1);
        shoal_tensor_release(pinned);
    }
    ck_assert_ok(shoal_capture_begin(&other)); /* has nothing to do with it */
    shoal_capture_destroy(other);
    ck_assert(!stub || stub->calls("cuMemFreeHost") == freed);
    next = shoal_empty_pinned(SHOAL_F32, SHOAL_SHAPE(COUNT));
    ck_assert_ptr_nonnull(next);
    float *values = shoal_tensor_data(next);
    values[0] = 77;
    ck_assert_ok(shoal_capture_replay(c));
    ck_assert_ok(shoal_cuda_wait());
    ck_assert(values[0] == 77);
    shoal_capture_destroy(c);
    ck_assert(!stub || stub->calls("cuMemFreeHost") == freed + 1);
    shoal_tensor_release(next);
    shoal_tensor_release(t);
}
END_TEST

/* What one capture made and another one released is free when both are destroyed, whichever is first: card memory (0,
 * 1), pinned memory (2, 3). */
START_TEST(memory_of_two_captures)
{
    enum { COUNT = 1 << 20 };
    bool is_pinned = _i >= 2;
    shoal_tensor *result = on_card(COUNT), *t;
    shoal_capture *makes, *releases;
    uint64_t freed = stub ? stub->calls("cuMemFreeHost") : 0;
    ck_assert_ok(shoal_capture_begin(&makes));
    t = is_pinned ? shoal_empty_pinned(SHOAL_F32, SHOAL_SHAPE(COUNT)) : on_card(COUNT);
    ck_assert_ok(shoal_capture_end(makes));
    void *address = sh_tensor_ptr(t);
    ck_assert_ok(shoal_capture_begin(&releases));
    if (is_pinned) {
        ck_assert_ok(shoal_tensor_copy_async(result, t));
    } else {
        copy(result, t);
    }
    shoal_tensor_release(t);
    ck_assert_ok(shoal_capture_end(releases));
    shoal_capture_destroy(_i % 2 == 0 ? makes : releases);
    ck_assert(!stub || stub->calls("cuMemFreeHost") == freed);
    t = on_card(COUNT);
    ck_assert_ptr_ne(sh_tensor_ptr(t), address);
    shoal_tensor_release(t);
    ck_assert_ok(shoal_capture_replay(_i % 2 == 0 ? releases : makes));
    shoal_capture_destroy(_i % 2 == 0 ? releases : makes);
    ck_assert(!stub || stub->calls("cuMemFreeHost") == freed + is_pinned);
    shoal_tensor_release(result);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("capture");
    TCase *tc = tcase_create("capture");
    tcase_add_checked_fixture(tc, open_card, NULL);
    tcase_add_checked_fixture(tc, sh_leaks_begin, sh_leaks_end);
    tcase_add_checked_fixture(tc, NULL, close_card);
    tcase_add_test(tc, replays_what_was_recorded);
    tcase_add_test(tc, memory_of_a_capture);
    tcase_add_test(tc, what_needs_the_host);
    tcase_add_test(tc, wrong_order);
    tcase_add_test(tc, child_of_fork);
    tcase_add_test(tc, thread_ends_first);
    tcase_add_test(tc, random_numbers);
    tcase_add_loop_test(tc, pinned_memory_of_a_step, 0, 2);
    tcase_add_loop_test(tc, memory_of_two_captures, 0, 4);
    if (!getenv("SHOAL_TEST_CARD")) {
        tcase_add_test(tc, failing_driver);
    }
    suite_add_tcase(s, tc);
    return s;
}

SH_TEST_MAIN(suite)
