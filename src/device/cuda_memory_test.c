/* The allocator of card memory, over the stub driver or on a card. */
#include "device/cuda_memory.h"
#include "tests/harness/cuda_stub/stub.h"
#include "tests/harness/runner.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MIB ((size_t)1 << 20)
#define SEED 20260u

static const sh_device *device;
static const sh_stub *stub;

static void open_card(void)
{
    sh_stub_use();
    device = sh_device_get(SHOAL_CUDA);
    ck_assert_msg(device != NULL, "%s", shoal_last_error_text());
    stub = sh_stub_control();
}

static void close_card(void)
{
    ck_assert(sh_cuda_memory_valid());
    (void)sh_cuda_memory_trim();
}

static sh_cuda_memory_numbers numbers(void)
{
    sh_cuda_memory_numbers n;
    ck_assert_ok(sh_cuda_memory_numbers_now(&n));
    return n;
}

static uint64_t driver_calls(void)
{
    return stub ? stub->calls(NULL) : 0;
}

START_TEST(bytes_arrive)
{
    char text[64] = "to the GPU and back", back[64] = "";
    void *p = device->alloc(sizeof text);
    ck_assert_ptr_nonnull(p);
    ck_assert_ok(device->write(p, text, sizeof text));
    ck_assert_ok(device->read(back, p, sizeof back));
    ck_assert_str_eq(back, text);
    device->free(p, sizeof text);
}
END_TEST

START_TEST(sizes_and_alignment)
{
    static const size_t sizes[] = {0,     1,      256,    257,    1000,    1025,     4096,
                                   65536, 200000, 262144, 262145, 3 * MIB, 33 * MIB, 70 * MIB};
    void *p[sizeof sizes / sizeof sizes[0]];
    size_t asked = 0;
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        p[i] = device->alloc(sizes[i]);
        ck_assert_msg(p[i] != NULL, "%zu: %s", sizes[i], shoal_last_error_text());
        ck_assert_uint_eq((uintptr_t)p[i] % (sizes[i] > 256 << 10 ? 16384 : 256), 0);
        asked += sizes[i];
    }
    ck_assert_uint_eq(numbers().asked, asked);
    ck_assert_uint_ge(numbers().used, asked);
    ck_assert_uint_ge(numbers().held, numbers().used);
    ck_assert(sh_cuda_memory_valid());
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        device->free(p[i], sizes[i]);
    }
    ck_assert_uint_eq(numbers().asked, 0);
}
END_TEST

/* Each live piece starts with its own address; nobody else may write there. */
START_TEST(random_sizes)
{
    enum { LIVE = 64 };
    struct {
        void *data;
        size_t size;
    } live[LIVE] = {0};
    srand(SEED);
    for (int round = 0; round < SH_REPEAT(20000); round++) {
        unsigned i = (unsigned)rand() % LIVE;
        if (live[i].data) {
            void *mark = NULL;
            ck_assert_ok(device->read(&mark, live[i].data, sizeof mark));
            ck_assert_msg(mark == live[i].data, "seed %u round %d", SEED, round);
            device->free(live[i].data, live[i].size);
        }
        live[i].size = 8 + (size_t)rand() % ((size_t)8 << (rand() % 21));
        live[i].data = device->alloc(live[i].size);
        ck_assert_ptr_nonnull(live[i].data);
        ck_assert_ok(device->write(live[i].data, &live[i].data, sizeof(void *)));
        if (round % 500 == 0) {
            (void)sh_cuda_memory_trim(); /* joins free neighbours, small ones, too */
        }
        ck_assert_msg(round % 1000 != 0 || sh_cuda_memory_valid(), "seed %u round %d", SEED, round);
    }
    for (int i = 0; i < LIVE; i++) {
        device->free(live[i].data, live[i].size);
    }
    ck_assert(sh_cuda_memory_valid());
    ck_assert_uint_eq(numbers().asked, 0);
    (void)sh_cuda_memory_trim();
    ck_assert_uint_eq(numbers().held, 0);
    ck_assert_uint_eq(stub ? stub->held() : 0, 0);
}
END_TEST

START_TEST(neighbours_become_one)
{
    void *p[8];
    for (int i = 0; i < 8; i++) {
        p[i] = device->alloc(4 * MIB);
        ck_assert_ptr_nonnull(p[i]);
    }
    size_t held = numbers().held;
    for (int i = 0; i < 8; i += 2) {
        device->free(p[i], 4 * MIB);
    }
    for (int i = 1; i < 8; i += 2) {
        device->free(p[i], 4 * MIB);
    }
    ck_assert(sh_cuda_memory_valid());
    void *all = device->alloc(32 * MIB);
    ck_assert_ptr_nonnull(all);
    ck_assert_uint_eq(numbers().held, held);
    device->free(all, 32 * MIB);
}
END_TEST

/* Small pieces that were freed become a large one before the driver is asked for more. */
START_TEST(small_pieces_become_one)
{
    enum { COUNT = 100 };
    void *p[COUNT];
    for (int i = 0; i < COUNT; i++) {
        p[i] = device->alloc(200 << 10);
        ck_assert_ptr_nonnull(p[i]);
    }
    size_t held = numbers().held;
    for (int i = 0; i < COUNT; i++) {
        device->free(p[(i * 37) % COUNT], 200 << 10);
    }
    ck_assert(sh_cuda_memory_valid());
    ck_assert_uint_eq(numbers().used, 0);
    void *all = device->alloc(30 * MIB);
    ck_assert_ptr_nonnull(all);
    ck_assert_uint_eq(numbers().held, held);
    ck_assert(sh_cuda_memory_valid());
    device->free(all, 30 * MIB);
}
END_TEST

/* A small piece in use does not keep a large one from what is free behind it, after free pieces were joined. */
START_TEST(small_piece_leaves_room_for_large)
{
    void *small = device->alloc(100);
    ck_assert_ptr_nonnull(small);
    size_t held = numbers().held;
    (void)sh_cuda_memory_trim(); /* joins free neighbours */
    ck_assert_uint_eq(numbers().held, held);
    void *large = device->alloc(held - MIB);
    ck_assert_ptr_nonnull(large);
    ck_assert_uint_eq((uintptr_t)large % 16384, 0);
    ck_assert_uint_eq(numbers().held, held);
    ck_assert(sh_cuda_memory_valid());
    device->free(small, 100);
    device->free(large, held - MIB);
}
END_TEST

/* A step in steady state asks the driver for nothing. */
START_TEST(steady_state)
{
    static const size_t sizes[] = {64, 5000, 31360, 128, 700000, 12 * MIB, 40, 262144, 3000000};
    void *p[sizeof sizes / sizeof sizes[0]];
    uint64_t before = 0;
    for (int step = 0; step < 50; step++) {
        for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
            p[i] = device->alloc(sizes[i]);
            ck_assert_ptr_nonnull(p[i]);
        }
        for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
            size_t k = (i * 5) % (sizeof sizes / sizeof sizes[0]);
            device->free(p[k], sizes[k]);
        }
        if (step == 0) {
            before = driver_calls();
        }
    }
    ck_assert_uint_eq(driver_calls(), before);
}
END_TEST

START_TEST(trim_gives_back)
{
    void *small = device->alloc(100), *large = device->alloc(100 * MIB);
    ck_assert(small && large);
    size_t held = numbers().held;
    device->free(large, 100 * MIB);
    ck_assert_uint_eq(numbers().held, held);
    ck_assert_uint_ge(sh_cuda_memory_trim(), 100 * MIB);
    ck_assert_uint_lt(numbers().held, held);
    device->free(small, 100);
    (void)sh_cuda_memory_trim();
    ck_assert_uint_eq(numbers().held, 0);
}
END_TEST

/* What the kernels of a thread use in between stays for the next kernel, until the process asks for all. */
START_TEST(trim_gives_scratch_back)
{
    sh_exec *exec = device->exec();
    ck_assert(exec && sh_cuda_scratch(exec, 100) != NULL);
    ck_assert_uint_gt(numbers().held, 0);
    ck_assert_uint_gt(shoal_cuda_trim(), 0);
    ck_assert_uint_eq(numbers().held, 0);
    ck_assert_ptr_nonnull(sh_cuda_scratch(exec, 100)); /* and is there again when it is needed */
    (void)shoal_cuda_trim();
}
END_TEST

/* What a kernel needs may be more than half of the card. */
START_TEST(scratch_grows_without_room_for_both)
{
    if (!stub) { /* other tests use the card at the same time */
        return;
    }
    sh_exec *exec = device->exec();
    size_t total = numbers().total;
    ck_assert(exec && sh_cuda_scratch(exec, total / 10 * 6) != NULL);
    ck_assert_msg(sh_cuda_scratch(exec, total / 10 * 7) != NULL, "%s", shoal_last_error_text());
    ck_assert_ptr_null(sh_cuda_scratch(exec, total * 2));
    ck_assert_ptr_nonnull(sh_cuda_scratch(exec, 100)); /* it is not taken for larger than it is */
    ck_assert_uint_gt(shoal_cuda_trim(), 0);
}
END_TEST

START_TEST(out_of_memory)
{
    size_t most = numbers().total;
    ck_assert_ptr_null(device->alloc(2 * most));
    ck_assert_int_eq(shoal_last_error(), SHOAL_ENOMEM);
    char wanted[64];
    snprintf(wanted, sizeof wanted, "asked for %zu bytes", 2 * most);
    ck_assert_msg(strstr(shoal_last_error_text(), wanted) != NULL, "%s", shoal_last_error_text());
    ck_assert_ptr_null(device->alloc(SIZE_MAX));
    ck_assert_int_eq(shoal_last_error(), SHOAL_ENOMEM);
    void *p = device->alloc(MIB); /* and it goes on */
    ck_assert_ptr_nonnull(p);
    device->free(p, MIB);
    size_t cached = numbers().held;
    ck_assert_uint_gt(cached, 0);
    ck_assert_ptr_null(device->alloc(most + 1)); /* more than the card has: costs nobody what is cached */
    ck_assert_uint_eq(numbers().held, cached);
}
END_TEST

/* Memory that is only cached here makes room for a larger request. */
START_TEST(cached_memory_makes_room)
{
    setenv("SHOAL_STUB_MEMORY", "268435456", 1);
    void *p[6];
    for (int i = 0; i < 6; i++) {
        p[i] = device->alloc(32 * MIB);
        ck_assert_ptr_nonnull(p[i]);
    }
    for (int i = 0; i < 6; i++) {
        device->free(p[i], 32 * MIB);
    }
    void *all = device->alloc(200 * MIB);
    ck_assert_msg(all != NULL, "%s", shoal_last_error_text());
    device->free(all, 200 * MIB);
    unsetenv("SHOAL_STUB_MEMORY");
}
END_TEST

/* Each call that makes a granule fails once; nothing is left behind. */
START_TEST(failing_driver)
{
    static const char *const calls[] = {"cuMemCreate", "cuMemAddressReserve", "cuMemMap", "cuMemSetAccess",
                                        "cuMemGetAllocationGranularity"};
    for (size_t i = sizeof calls / sizeof calls[0]; i-- > 0;) {
        stub->fail_call(calls[i], 1, 2, 1);
        ck_assert_msg(device->alloc(MIB) == NULL, "%s", calls[i]);
        ck_assert_int_eq(shoal_last_error(), SHOAL_EOS);
        ck_assert_msg(strstr(shoal_last_error_text(), "(1: STUB_ERROR_1)"), "%s", shoal_last_error_text());
        stub->fail_call(NULL, 0, 0, 0);
        ck_assert_uint_eq(stub->held(), 0);
        ck_assert(sh_cuda_memory_valid());
    }
    /* The card has room: the text says what has none. */
    stub->fail_call("cuMemAddressReserve", 1, 0, SH_CU_OUT_OF_MEMORY);
    ck_assert_ptr_null(device->alloc(MIB));
    ck_assert_int_eq(shoal_last_error(), SHOAL_ENOMEM);
    ck_assert_msg(strstr(shoal_last_error_text(), "reserve addresses for GPU memory"), "%s", shoal_last_error_text());
    stub->fail_call(NULL, 0, 0, 0);
    void *p = device->alloc(MIB);
    ck_assert_ptr_nonnull(p);
    device->free(p, MIB);
}
END_TEST

START_TEST(no_pinned_memory)
{
    ck_assert_ptr_null(device->alloc_pinned((size_t)1 << 52));
    ck_assert_int_eq(shoal_last_error(), SHOAL_ENOMEM);
    ck_assert_msg(strstr(shoal_last_error_text(), "pin host memory"), "%s", shoal_last_error_text());
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("cuda_memory");
    TCase *tc = tcase_create("memory");
    tcase_add_checked_fixture(tc, open_card, NULL);
    tcase_add_checked_fixture(tc, sh_leaks_begin, sh_leaks_end);
    tcase_add_checked_fixture(tc, NULL, close_card);
    tcase_add_test(tc, bytes_arrive);
    tcase_add_test(tc, sizes_and_alignment);
    tcase_add_test(tc, random_sizes);
    tcase_add_test(tc, neighbours_become_one);
    tcase_add_test(tc, small_pieces_become_one);
    tcase_add_test(tc, small_piece_leaves_room_for_large);
    tcase_add_test(tc, steady_state);
    tcase_add_test(tc, trim_gives_back);
    tcase_add_test(tc, trim_gives_scratch_back);
    tcase_add_test(tc, scratch_grows_without_room_for_both);
    tcase_add_test(tc, out_of_memory);
    if (!getenv("SHOAL_TEST_CARD")) {
        tcase_add_test(tc, cached_memory_makes_room);
        tcase_add_test(tc, failing_driver);
        tcase_add_test(tc, no_pinned_memory);
    }
    suite_add_tcase(s, tc);
    return s;
}

SH_TEST_MAIN(suite)
