/* Opening a card, and every way in which that or a later call fails, over the stub driver. */
#include "device/cuda_memory.h"
#include "tests/harness/cuda_stub/stub.h"
#include "tests/harness/runner.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* B54. Asserts that there is no card, with this code and a text that contains this. */
static void no_card(shoal_err code, const char *words)
{
    ck_assert_ptr_null(sh_device_get(SHOAL_CUDA));
    ck_assert_msg(shoal_last_error() == code && strstr(shoal_last_error_text(), words), "%s: %s, wanted %s",
                  shoal_err_name(shoal_last_error()), shoal_last_error_text(), words);
}

START_TEST(no_driver)
{
    setenv("SHOAL_CUDA_DRIVER", "/nowhere/libcuda.so", 1);
    no_card(SHOAL_ENOENT, "cannot load the CUDA driver: ");
}
END_TEST

START_TEST(no_library)
{
    setenv("SHOAL_CUDA_LIBRARY", "/nowhere/libshoal_cuda.so", 1);
    no_card(SHOAL_ELAYOUT, "cannot load /nowhere/libshoal_cuda.so");
}
END_TEST

START_TEST(library_of_another_build)
{
    setenv("SHOAL_CUDA_LIBRARY", getenv("SHOAL_CUDA_DRIVER"), 1); /* a library, but not that one */
    no_card(SHOAL_ELAYOUT, "is from another build of Shoal");
}
END_TEST

START_TEST(no_driver_at_all)
{
    setenv("SHOAL_CUDA_DRIVER", getenv("SHOAL_CUDA_LIBRARY"), 1);
    no_card(SHOAL_ELAYOUT, "is not a CUDA driver");
}
END_TEST

START_TEST(old_driver)
{
    setenv("SHOAL_STUB_VERSION", "11080", 1);
    no_card(SHOAL_ELAYOUT, "too old: it has CUDA 11.8, and Shoal needs CUDA 12.0");
}
END_TEST

START_TEST(no_version)
{
    setenv("SHOAL_STUB_FAIL", "cuDriverGetVersion:1:3", 1);
    no_card(SHOAL_EOS, "the CUDA driver cannot report its version: error 3");
}
END_TEST

START_TEST(no_cards)
{
    setenv("SHOAL_STUB_CARDS", "0", 1);
    no_card(SHOAL_ENOENT, "no CUDA GPU found: the driver (CUDA 13.0) sees none");
}
END_TEST

START_TEST(wrong_card)
{
    setenv("SHOAL_CUDA_DEVICE", "1", 1);
    no_card(SHOAL_ENOENT, "SHOAL_CUDA_DEVICE is 1, but this process sees 1 GPU, numbered from 0");
    setenv("SHOAL_CUDA_DEVICE", "first", 1);
    no_card(SHOAL_EINVAL, "SHOAL_CUDA_DEVICE is \"first\"");
    setenv("SHOAL_CARD", "2", 1); /* the name in 0.2, which the new one overrides */
    no_card(SHOAL_EINVAL, "SHOAL_CUDA_DEVICE is \"first\"");
    unsetenv("SHOAL_CUDA_DEVICE");
    no_card(SHOAL_ENOENT, "SHOAL_CARD is 2, but this process sees 1 GPU"); /* the name in 0.2 */
    setenv("SHOAL_CUDA_DEVICE", "1", 1);
    setenv("SHOAL_STUB_CARDS", "2", 1);
    ck_assert_msg(sh_device_get(SHOAL_CUDA) != NULL, "%s", shoal_last_error_text());
    ck_assert_str_eq(sh_cuda_get()->name, "Stub 1");
}
END_TEST

/* Whatever fails while the card is opened: one sentence, and the next try works. */
START_TEST(failing_start)
{
    static const char *const calls[] = {
        "cuInit",           "cuDeviceGetCount",         "cuDeviceGet",     "cuDeviceGetName", "cuDeviceGetUuid",
        "cuDeviceTotalMem", "cuDevicePrimaryCtxRetain", "cuCtxSetCurrent", "cuStreamCreate"};
    const sh_stub *stub = sh_stub_control();
    for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++) {
        stub->fail_call(calls[i], 1, 1, SH_CU_INVALID_VALUE);
        no_card(SHOAL_EOS, "an error of the stub (1: STUB_ERROR_1)");
    }
    ck_assert_ptr_nonnull(sh_device_get(SHOAL_CUDA));
}
END_TEST

/* Every later call says what ended the context. */
START_TEST(lost_context)
{
    const sh_device *device = sh_device_get(SHOAL_CUDA);
    const sh_stub *stub = sh_stub_control();
    void *p = device->alloc(64);
    char bytes[64] = "";
    stub->fail_call("cuStreamSynchronize", 1, 1, SH_CU_ILLEGAL_ADDRESS);
    ck_assert_err(device->wait(), SHOAL_ECUDA);
    uint64_t calls = stub->calls(NULL);
    ck_assert_err(device->wait(), SHOAL_ECUDA);
    ck_assert_err(device->write(p, bytes, 64), SHOAL_ECUDA);
    ck_assert_err(device->read(bytes, p, 64), SHOAL_ECUDA);
    ck_assert_ptr_null(device->alloc(64));
    ck_assert_int_eq(shoal_last_error(), SHOAL_ECUDA);
    ck_assert_ptr_null(device->exec());
    no_card(SHOAL_ECUDA, "the first failure was: cannot wait for the GPU: an error of the stub (700: STUB_ERROR_700)");
    ck_assert_uint_eq(stub->calls(NULL), calls);
    device->free(p, 64);
}
END_TEST

/* B33. A child of a plain fork cannot use the card, and says so; releasing what it inherited does no harm. */
START_TEST(child_of_fork)
{
    const sh_device *device = sh_device_get(SHOAL_CUDA);
    void *p = device->alloc(64);
    pid_t child = fork();
    if (child == 0) {
        bool refused = sh_device_get(SHOAL_CUDA) == NULL && shoal_last_error() == SHOAL_EFORK &&
                       strstr(shoal_last_error_text(), "start it with spawn") && device->alloc(64) == NULL &&
                       device->exec() == NULL && device->wait() == SHOAL_EFORK;
        device->free(p, 64);
        _exit(refused ? EXIT_SUCCESS : EXIT_FAILURE);
    }
    int status = 0;
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert(WIFEXITED(status) && WEXITSTATUS(status) == EXIT_SUCCESS);
    ck_assert_ok(device->wait());
    device->free(p, 64);
}
END_TEST

/* B33. Counting the cards starts the driver, which is enough to be told. */
static shoal_err count_cards(int rank, const shoal_value *args)
{
    (void)rank;
    (void)args;
    int count = 0;
    return shoal_cuda_count(&count);
}

START_TEST(fork_after_counting)
{
    int count = 0;
    ck_assert_ok(shoal_cuda_count(&count));
    ck_assert_int_eq(count, 1);
    for (shoal_start method = SHOAL_START_SPAWN; method <= SHOAL_START_FORK; method++) {
        shoal_process *p = NULL;
        shoal_status status;
        ck_assert_ok(
            shoal_process_start(count_cards, shoal_value_null(), &(shoal_process_options){.start = method}, &p));
        ck_assert_ok(shoal_process_join(p, SH_PATIENCE, &status));
        if (method == SHOAL_START_SPAWN) {
            ck_assert_msg(status.end == SHOAL_PROCESS_RETURNED, "%s", status.text);
        } else {
            ck_assert_msg(status.end == SHOAL_PROCESS_FAILED && status.err == SHOAL_EFORK, "%s", status.text);
            ck_assert_msg(strstr(status.text, "start it with spawn") != NULL, "%s", status.text);
        }
        shoal_process_destroy(p);
    }
}
END_TEST

START_TEST(describe_cards)
{
    shoal_cuda_info info;
    shoal_cuda_memory m;
    setenv("SHOAL_STUB_CARDS", "2", 1);
    ck_assert_ok(shoal_cuda_info_get(1, &info));
    ck_assert_str_eq(info.name, "Stub 1");
    ck_assert_str_eq(info.uuid, "GPU-51515151-5151-5151-5151-515151515151");
    ck_assert_int_eq(info.driver, 13000);
    ck_assert_err(shoal_cuda_info_get(2, &info), SHOAL_EINVAL);
    ck_assert_ok(shoal_cuda_wait()); /* nothing was done */
    ck_assert_uint_eq(shoal_cuda_trim(), 0);
    ck_assert_uint_eq(sh_stub_control()->calls("cuDevicePrimaryCtxRetain"), 0);
    ck_assert_ok(shoal_cuda_memory_get(&m));
    ck_assert_uint_eq(m.total, info.memory);
    ck_assert_uint_eq(m.held, 0);
    void *p = sh_device_cuda.alloc(1000);
    ck_assert_ok(shoal_cuda_memory_get(&m));
    ck_assert_uint_eq(m.asked, 1000);
    ck_assert_uint_eq(m.free, m.total - m.held);
    sh_device_cuda.free(p, 1000);
    ck_assert_uint_eq(shoal_cuda_trim(), m.held);
}
END_TEST

static void *use_card(void *unused)
{
    (void)unused;
    const sh_device *device = sh_device_get(SHOAL_CUDA);
    sh_exec *exec = device ? device->exec() : NULL;
    for (int i = 0; exec && i < 200; i++) {
        void *p = device->alloc((size_t)i * 1000);
        if (!p || !sh_cuda_scratch(exec, (size_t)i * 500) || device->write(p, &i, i > 0 ? sizeof i : 0) != SHOAL_OK) {
            return NULL;
        }
        device->free(p, (size_t)i * 1000);
    }
    return exec;
}

START_TEST(threads_open_at_once)
{
    pthread_t threads[4];
    void *execs[4];
    for (int i = 0; i < 4; i++) {
        ck_assert_int_eq(pthread_create(&threads[i], NULL, use_card, NULL), 0);
    }
    for (int i = 0; i < 4; i++) {
        pthread_join(threads[i], &execs[i]);
        ck_assert_ptr_nonnull(execs[i]);
    }
    ck_assert(sh_cuda_memory_valid());
    sh_cuda_memory_numbers n;
    ck_assert_ok(sh_cuda_memory_numbers_now(&n));
    ck_assert_uint_eq(n.asked, 0); /* the threads' scratch, too */
    ck_assert_uint_eq(sh_stub_control()->calls("cuStreamCreate"), 1);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("cuda");
    TCase *tc = tcase_create("card");
    tcase_add_checked_fixture(tc, sh_stub_use, NULL);
    tcase_add_test(tc, no_driver);
    tcase_add_test(tc, no_library);
    tcase_add_test(tc, library_of_another_build);
    tcase_add_test(tc, no_driver_at_all);
    tcase_add_test(tc, old_driver);
    tcase_add_test(tc, no_version);
    tcase_add_test(tc, no_cards);
    tcase_add_test(tc, wrong_card);
    tcase_add_test(tc, failing_start);
    tcase_add_test(tc, lost_context);
    tcase_add_test(tc, child_of_fork);
    tcase_add_test(tc, fork_after_counting);
    tcase_add_test(tc, describe_cards);
    tcase_add_test(tc, threads_open_at_once);
    suite_add_tcase(s, tc);
    return s;
}

SH_TEST_MAIN(suite)
