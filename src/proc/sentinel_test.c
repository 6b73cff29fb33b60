/* Starts, waits for and ends processes where the system has no pidfds. */
#include "proc/process_test.h"

#include "base/clock.h"
#include "proc/sentinel.h"

#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <stddef.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef SYS_pidfd_getfd
#define SYS_pidfd_getfd 438
#endif

/* Makes the kernel refuse pidfds in this process and its children from now on. It does so as sandboxes do, so it needs
 * no privilege. */
static void forbid_pidfds(uint32_t why)
{
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_pidfd_open, 2, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_pidfd_send_signal, 1, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_pidfd_getfd, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | why),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {.len = sizeof code / sizeof code[0], .filter = code};
    ck_assert_int_eq(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
    ck_assert_int_eq(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program), 0);
    ck_assert_int_eq(syscall(SYS_pidfd_open, getpid(), 0), -1);
}

static void begin_sandboxed(void)
{
    forbid_pidfds(ENOSYS);
    proc_begin();
}

static shoal_err twice(int rank, const shoal_value *args)
{
    (void)args;
    return rank == 9 ? shoal_fail(SHOAL_EINVAL, "nine") : shoal_return(shoal_value_int(2 * rank));
}

static shoal_err until_told(int rank, const shoal_value *args)
{
    (void)rank;
    shoal_value *word = NULL;
    (void)shoal_event_set(shoal_value_as_event(shoal_value_at(args, 0)));
    shoal_err err = shoal_queue_get(shoal_value_as_queue(shoal_value_at(args, 1)), LIMIT, &word);
    shoal_value_destroy(word);
    return err;
}

typedef struct talk {
    shoal_event *up;
    shoal_queue *queue;
} talk;

static talk begin_talk(void)
{
    talk t;
    ck_assert_ok(shoal_event_create(&t.up));
    ck_assert_ok(shoal_queue_create(0, &t.queue));
    return t;
}

static void end_talk(const talk *t)
{
    shoal_release(t->up);
    shoal_release(t->queue);
}

START_TEST(returns_and_fails)
{
    shoal_process *p;
    for (int rank = 8; rank <= 9; rank++) {
        ck_assert_ok(shoal_process_start(twice, shoal_value_null(),
                                         &(shoal_process_options){.start = (shoal_start)_i, .rank = rank}, &p));
        ck_assert(p->by_pipe);
        shoal_status status = finish(p);
        ck_assert_int_eq(status.end, rank == 8 ? SHOAL_PROCESS_RETURNED : SHOAL_PROCESS_FAILED);
        ck_assert(rank == 9 || shoal_process_result(p) != NULL);
        ck_assert(rank == 8 || strstr(status.text, "nine") != NULL);
        shoal_process_destroy(p);
    }
}
END_TEST

START_TEST(is_waited_for_and_killed)
{
    talk t = begin_talk();
    shoal_process *p = start(_i, until_told, shoal_list(t.up, t.queue));
    ck_assert_ok(shoal_event_wait(t.up, LIMIT));
    shoal_waitable thing = {.process = p};
    struct pollfd fd = {.fd = shoal_process_sentinel(p), .events = POLLIN};
    ck_assert_err(shoal_process_join(p, SHOAL_MS(5), NULL), SHOAL_ETIMEDOUT);
    ck_assert_err(shoal_wait(&thing, 1, SHOAL_MS(5)), SHOAL_ETIMEDOUT);
    ck_assert_int_eq(poll(&fd, 1, 0), 0);
    ck_assert_ok(shoal_process_kill(p));
    ck_assert_ok(shoal_wait(&thing, 1, LIMIT));
    ck_assert(thing.ready);
    ck_assert_int_eq(poll(&fd, 1, 20000), 1);
    ck_assert_int_eq(finish(p).end, SHOAL_PROCESS_KILLED);
    ck_assert_err(shoal_process_signal(p, SIGTERM), SHOAL_ESTATE);
    shoal_process_destroy(p);
    end_talk(&t);
}
END_TEST

/* A child that closes all unknown fds still counts as running, and its end is noticed. */
static shoal_err closes_all(int rank, const shoal_value *args)
{
    shoal_queue *q = shoal_value_as_queue(shoal_value_at(args, 1));
    must(syscall(SYS_close_range, 3, ~0u, 0) == 0);
    shoal_queue_put_bytes(q, "x", 1, LIMIT) == SHOAL_OK ? (void)0 : _exit(98);
    usleep(30000); /* longer than a slice: the parent must check the process, not the fd */
    (void)rank;
    return SHOAL_OK;
}

START_TEST(a_closed_sentinel_is_not_an_end)
{
    char byte;
    size_t size;
    talk t = begin_talk();
    shoal_process *p = start(_i, closes_all, shoal_list(t.up, t.queue));
    ck_assert_ok(shoal_queue_get_bytes(t.queue, &byte, 1, LIMIT, &size));
    ck_assert_err(shoal_process_join(p, SHOAL_NOW, NULL), SHOAL_ETIMEDOUT);
    ck_assert_int_ne(finish(p).end, SHOAL_PROCESS_RUNNING);
    shoal_process_destroy(p);
    end_talk(&t);
}
END_TEST

START_TEST(groups_and_pools)
{
    shoal_value *results[3];
    shoal_process_options options = {.start = (shoal_start)_i};
    ck_assert_ok(shoal_spawn_with(twice, 3, shoal_value_null(), &options, results));
    for (int i = 0; i < 3; i++) {
        ck_assert_ptr_nonnull(results[i]);
        shoal_value_destroy(results[i]);
    }
    ck_assert_err(shoal_spawn_with(twice, 10, shoal_value_null(), &options, NULL), SHOAL_ECHILD);
    ck_assert_ptr_nonnull(strstr(shoal_last_error_text(), "nine"));
}
END_TEST

/* A sibling that is forked later does not hold the sentinel of an earlier one open. */
START_TEST(siblings_do_not_hide_an_end)
{
    talk t = begin_talk();
    shoal_process *first = start(_i, until_told, shoal_list(t.up, t.queue));
    ck_assert_ok(shoal_event_wait(t.up, LIMIT));
    shoal_process *second = start(_i, until_told, shoal_list(t.up, t.queue));
    ck_assert_ok(shoal_process_kill(first));
    struct pollfd fd = {.fd = shoal_process_sentinel(first), .events = POLLIN};
    ck_assert_int_eq(poll(&fd, 1, 20000), 1);
    ck_assert_ok(shoal_queue_put(t.queue, shoal_value_null(), LIMIT));
    ck_assert_int_eq(finish(first).end, SHOAL_PROCESS_KILLED);
    ck_assert_int_eq(finish(second).end, SHOAL_PROCESS_RETURNED);
    shoal_process_destroy(first);
    shoal_process_destroy(second);
    end_talk(&t);
}
END_TEST

START_TEST(refused_with_eperm)
{
    forbid_pidfds(EPERM);
    shoal_process *p = start(_i, twice, NULL);
    ck_assert_int_eq(finish(p).end, SHOAL_PROCESS_RETURNED);
    shoal_process_destroy(p);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("sentinel");
    TCase *tc = tcase_create("without pidfds");
    tcase_add_checked_fixture(tc, begin_sandboxed, proc_end);
    tcase_set_timeout(tc, SH_TEST_SECONDS);
    add_for_methods(tc, returns_and_fails);
    add_for_methods(tc, is_waited_for_and_killed);
    add_for_methods(tc, a_closed_sentinel_is_not_an_end);
    add_for_methods(tc, groups_and_pools);
    add_for_methods(tc, siblings_do_not_hide_an_end);
    suite_add_tcase(s, tc);
    tc = methods_case("forbidden pidfds");
    add_for_methods(tc, refused_with_eperm);
    suite_add_tcase(s, tc);
    return s;
}

SH_TEST_MAIN(suite)
