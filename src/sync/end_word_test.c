/* Tests what happens to the word of a process that goes on after it left its world. tests/sync/waits.c shows that the
 * word ends sleeps. */
#include "sync/end_word.h"

#include "os/memory.h"
#include "tests/harness/runner.h"

#include <pthread.h>
#include <string.h>
#include <unistd.h>

#define FILE_SIZE UINT64_C(65536)
#define AT UINT64_C(4064) /* it lies in two pages */

static int file;

static void *drop(void *unused)
{
    sh_end_word_drop(file);
    return unused;
}

static void drop_elsewhere(void)
{
    pthread_t thread;
    ck_assert_int_eq(pthread_create(&thread, NULL, drop, NULL), 0);
    ck_assert_int_eq(pthread_join(thread, NULL), 0);
}

/* Uses the C library's list of robust mutexes, which the word is on. */
static void lock_a_robust_mutex(void)
{
    pthread_mutex_t mutex;
    pthread_mutexattr_t robust;
    pthread_mutexattr_init(&robust);
    pthread_mutexattr_setrobust(&robust, PTHREAD_MUTEX_ROBUST);
    ck_assert_int_eq(pthread_mutex_init(&mutex, &robust), 0);
    ck_assert_int_eq(pthread_mutex_lock(&mutex), 0);
    ck_assert_int_eq(pthread_mutex_unlock(&mutex), 0);
    pthread_mutex_destroy(&mutex);
    pthread_mutexattr_destroy(&robust);
}

START_TEST(the_memory_can_be_reused)
{
    void *base;
    char used[sizeof(sh_end_word_shm)];
    ck_assert_ok(sh_memory_create("end-word-test", FILE_SIZE, &file));
    ck_assert_ok(sh_memory_map(file, FILE_SIZE, &base));
    ck_assert(sh_end_word_hold(file, AT));
    uint32_t value;
    ck_assert_int_eq(sh_end_word_read((sh_end_word_shm *)((char *)base + AT), &value), SH_END_HELD);
    if (_i == 0) {
        sh_end_word_drop(file);
        ck_assert_int_eq(sh_end_word_read((sh_end_word_shm *)((char *)base + AT), &value), SH_END_UNKNOWN);
    } else {
        drop_elsewhere();
    }
    memset(used, 7, sizeof used);
    memcpy((char *)base + AT, used, sizeof used);
    lock_a_robust_mutex();
    ck_assert_mem_eq((char *)base + AT, used, sizeof used);
    sh_memory_unmap(base, FILE_SIZE);
    close(file);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("end word");
    TCase *tc = tcase_create("end word");
    tcase_add_loop_test(tc, the_memory_can_be_reused, 0, 2);
    suite_add_tcase(s, tc);
    return s;
}

SH_TEST_MAIN(suite)
