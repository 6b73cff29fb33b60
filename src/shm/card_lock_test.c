/* The locks of the card: the order that debug builds check. */
#include "shm/card_lock.h"

#include "tests/harness/runner.h"

#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* Takes two locks in a child, or calls the driver under the first (SH_CARD_LOCKS), and returns how the child ended.
 * Copies what it wrote to stderr. */
static int take_both(sh_cardlock_rank first, sh_cardlock_rank second, char *text, size_t size)
{
    int ends[2], status = 0;
    ck_assert_int_eq(pipe(ends), 0);
    pid_t child = fork();
    ck_assert_int_ge(child, 0);
    if (child == 0) {
        dup2(ends[1], STDERR_FILENO);
        sh_cardlock_lock(first);
        if (second == SH_CARD_LOCKS) {
            sh_cardlock_check_call();
        } else {
            sh_cardlock_lock(second);
        }
        _exit(0);
    }
    close(ends[1]);
    size_t n = 0;
    for (ssize_t got; n + 1 < size && (got = read(ends[0], text + n, size - 1 - n)) > 0;) {
        n += (size_t)got;
    }
    text[n] = 0;
    close(ends[0]);
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    return status;
}

START_TEST(right_order_passes)
{
    char text[512];
    int status = take_both(SH_CARD_LOCK_DRIVER, SH_CARD_LOCK_STATE, text, sizeof text);
    ck_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    sh_cardlock_lock(SH_CARD_LOCK_DRIVER);
    sh_cardlock_lock(SH_CARD_LOCK_STATE);
    sh_cardlock_unlock(SH_CARD_LOCK_STATE);
    sh_cardlock_check_call();
    sh_cardlock_unlock(SH_CARD_LOCK_DRIVER);
    sh_cardlock_lock(SH_CARD_LOCK_OPEN); /* the thread holds none any more */
    sh_cardlock_unlock(SH_CARD_LOCK_OPEN);
}
END_TEST

/* A release build does not check, so that it costs nothing there. */
START_TEST(wrong_order_ends_a_debug_build)
{
    char text[512];
    int status = take_both(SH_CARD_LOCK_STATE, SH_CARD_LOCK_DRIVER, text, sizeof text);
#ifdef NDEBUG
    ck_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0);
#else
    ck_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
    ck_assert_ptr_nonnull(strstr(text, "\"driver\" is taken under \"state\""));
#endif
}
END_TEST

/* The state's lock is what the thread that notices deaths takes: a driver call under it could wait for the dead. */
START_TEST(a_driver_call_under_the_state_ends_a_debug_build)
{
    char text[512];
    int status = take_both(SH_CARD_LOCK_STATE, SH_CARD_LOCKS, text, sizeof text);
#ifdef NDEBUG
    ck_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0);
#else
    ck_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
    ck_assert_ptr_nonnull(strstr(text, "the driver is called under \"state\""));
#endif
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("card_lock");
    TCase *tc = tcase_create("card_lock");
    tcase_add_checked_fixture(tc, sh_leaks_begin, sh_leaks_end);
    tcase_add_test(tc, right_order_passes);
    tcase_add_test(tc, wrong_order_ends_a_debug_build);
    tcase_add_test(tc, a_driver_call_under_the_state_ends_a_debug_build);
    suite_add_tcase(s, tc);
    return s;
}

SH_TEST_MAIN(suite)
