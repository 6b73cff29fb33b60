#include "proc/process_test.h"
#include "proc/supervisor.h"

#include "base/clock.h"
#include "os/pid.h"
#include "os/pidfd.h"

#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

/* The owner of a crew, and what the supervisor asked and reported. */
typedef struct crew {
    sh_supervisor *s;
    shoal_queue *queue; /* members put their pids here */
    sh_verdict verdict;
    int starts, ends;
    shoal_status last;
} crew;

static shoal_value *arguments(void *owner, int rank)
{
    crew *c = owner;
    (void)rank;
    c->starts++;
    return shoal_list(c->queue, c->starts);
}

static sh_verdict ended(void *owner, int rank, const shoal_process *process)
{
    crew *c = owner;
    ck_assert(!sh_supervisor_runs(c->s, rank));
    c->ends++;
    c->last = process->status;
    return c->verdict == SH_VERDICT_FAIL ? (sh_fail(SHOAL_EINVAL, "the owner says so"), c->verdict) : c->verdict;
}

/* Puts its pid into the queue, and waits. */
static shoal_err wait_for_the_end(int rank, const shoal_value *args)
{
    (void)rank;
    must(shoal_queue_put(shoal_value_as_queue(shoal_value_at(args, 0)), shoal_value_int(getpid()), LIMIT) == SHOAL_OK);
    for (;;) {
        pause();
    }
}

static shoal_err die_at_once(int rank, const shoal_value *args)
{
    (void)rank;
    (void)args;
    kill(getpid(), SIGKILL);
    return SHOAL_OK;
}

/* Fails the first time, then returns. */
static shoal_err fail_once(int rank, const shoal_value *args)
{
    (void)rank;
    return sh_int_of(shoal_value_at(args, 1)) == 1 ? SHOAL_EINVAL : SHOAL_OK;
}

static crew begin(int method, shoal_target target, int count, const sh_supervisor_rules *more)
{
    crew c = {.s = NULL};
    sh_supervisor_rules rules = *more;
    ck_assert_ok(shoal_queue_create(0, &c.queue));
    rules.target = target;
    rules.options = (shoal_process_options){.start = (shoal_start)method, .name = "member"};
    rules.waits_for = SH_WAITS_ANY;
    rules.arguments = arguments;
    rules.ended = ended;
    ck_assert_ok(sh_supervisor_create(&rules, count, &c.s));
    return c;
}

/* The supervisor's rules point to the owner, whose address is final only now. */
#define begin_crew(c, method, target, count, ...)                                                                      \
    crew c;                                                                                                            \
    c = begin(method, target, count, &(sh_supervisor_rules){.owner = &c, __VA_ARGS__});                                \
    ck_assert_ok(sh_supervisor_start(c.s))

static void finish_crew(crew *c)
{
    sh_supervisor_end(c->s, SHOAL_NOW, SH_PATIENCE);
    sh_supervisor_destroy(c->s);
    shoal_release(c->queue);
}

static pid_t next_pid(const crew *c)
{
    shoal_value *v;
    ck_assert_ok(shoal_queue_get(c->queue, LIMIT, &v));
    pid_t pid = (pid_t)sh_int_of(v);
    shoal_value_destroy(v);
    return pid;
}

/* Tends the crew until it has seen that many ends. */
static void await_ends(crew *c, int ends)
{
    while (c->ends < ends) {
        sh_supervisor_wait(c->s, c->queue, NULL, sh_now() + LIMIT);
        ck_assert_ok(sh_supervisor_tend(c->s));
    }
}

START_TEST(a_killed_member_is_replaced)
{
    begin_crew(c, _i, wait_for_the_end, 3);
    pid_t pids[3];
    for (int i = 0; i < 3; i++) {
        pids[i] = next_pid(&c);
    }
    for (int i = 0; i < 3; i++) {
        kill(pids[i], SIGKILL);
        await_ends(&c, i + 1);
        ck_assert_int_eq(c.last.end, SHOAL_PROCESS_KILLED);
        pid_t fresh = next_pid(&c);
        ck_assert_int_eq(kill(fresh, 0), 0);
        ck_assert_int_ne(fresh, pids[i]);
    }
    ck_assert_int_eq(c.starts, 6);
    ck_assert_uint_eq(sh_supervisor_deaths(c.s), 3);
    ck_assert_int_eq(sh_supervisor_running(c.s), 3);
    finish_crew(&c);
}
END_TEST

/* One that hangs in its exit handlers is ended also if the owner only waits for the end of all. */
START_TEST(f7_a_join_ends_a_member_that_retires_for_ever)
{
    begin_crew(c, _i, wait_for_the_end, 1, .retire_limit = SHOAL_MS(50));
    (void)next_pid(&c);
    sh_supervisor_retire(c.s, 0);
    sh_supervisor_close(c.s);
    ck_assert(sh_supervisor_join(c.s, sh_deadline(LIMIT)));
    ck_assert_int_eq(c.starts, 1);
    finish_crew(&c);
}
END_TEST

START_TEST(the_owner_decides_about_a_failed_target)
{
    begin_crew(c, _i, fail_once, 1);
    await_ends(&c, 1);
    ck_assert_int_eq(c.last.end, SHOAL_PROCESS_FAILED);
    ck_assert_int_eq(sh_supervisor_running(c.s), 1);
    c.verdict = SH_VERDICT_DONE;
    await_ends(&c, 2);
    ck_assert_int_eq(c.last.end, SHOAL_PROCESS_RETURNED);
    ck_assert_int_eq(sh_supervisor_running(c.s), 0);
    ck_assert_int_eq(c.starts, 2);
    ck_assert_uint_eq(sh_supervisor_deaths(c.s), 1);
    ck_assert_int_eq(sh_supervisor_process(c.s, 0)->status.end, SHOAL_PROCESS_RETURNED);
    finish_crew(&c);

    begin_crew(d, _i, fail_once, 1);
    d.verdict = SH_VERDICT_FAIL;
    shoal_err err = SHOAL_OK;
    while (err == SHOAL_OK) {
        sh_supervisor_wait(d.s, d.queue, NULL, sh_now() + LIMIT);
        err = sh_supervisor_tend(d.s);
    }
    ck_assert_err(err, SHOAL_EINVAL);
    ck_assert_str_eq(shoal_last_error_text(), "the owner says so");
    ck_assert_ok(sh_supervisor_tend(d.s)); /* once */
    ck_assert_int_eq(d.starts, 1);
    finish_crew(&d);
}
END_TEST

static bool never_ready(void *owner, int rank)
{
    (void)owner;
    (void)rank;
    return false;
}

START_TEST(gives_up_after_failed_starts)
{
    begin_crew(c, _i, die_at_once, 1, .is_ready = never_ready, .failed_starts = 3);
    shoal_err err = SHOAL_OK;
    while (err == SHOAL_OK) {
        sh_supervisor_wait(c.s, c.queue, NULL, sh_now() + LIMIT);
        err = sh_supervisor_tend(c.s);
    }
    ck_assert_err(err, SHOAL_ECHILD);
    ck_assert_int_eq(c.starts, 4);
    ck_assert_ptr_nonnull(strstr(shoal_last_error_text(), "SIGKILL"));
    finish_crew(&c);
}
END_TEST

/* args: a pid to kill, or 0, and the queue to put into then. */
static shoal_err act_when_the_parent_sleeps(int rank, const shoal_value *args)
{
    pid_t pid = (pid_t)sh_int_of(shoal_value_at(args, 0));
    (void)rank;
    while (!sleeps(getppid())) {
        usleep(1000);
    }
    if (pid != 0) {
        must(kill(pid, SIGKILL) == 0);
        return SHOAL_OK;
    }
    return shoal_queue_put(shoal_value_as_queue(shoal_value_at(args, 1)), shoal_value_int(1), LIMIT);
}

static long switches(void)
{
    struct rusage usage;
    getrusage(RUSAGE_THREAD, &usage);
    return usage.ru_nvcsw;
}

/* A sleep lasts up to a second. It is not cut into slices, and it ends when something happens. */
START_TEST(an_end_and_a_message_wake_at_once)
{
    begin_crew(c, _i, wait_for_the_end, 2);
    pid_t pid = next_pid(&c);
    next_pid(&c);
    long before = switches();
    for (int64_t until = sh_now() + SHOAL_MS(300); !sh_passed(until);) {
        sh_supervisor_wait(c.s, c.queue, NULL, until);
    }
    ck_assert_int_lt(switches() - before, 8);
    for (int kills = 0; kills < 2; kills++) {
        shoal_process *actor =
            start(SHOAL_START_FORK, act_when_the_parent_sleeps, shoal_list(kills ? (int)pid : 0, c.queue));
        int64_t begin = sh_quiet_now();
        int ends = c.ends;
        while (kills ? c.ends == ends : !sh_queue_ready(c.queue)) {
            sh_supervisor_wait(c.s, c.queue, NULL, sh_now() + LIMIT);
            ck_assert_ok(sh_supervisor_tend(c.s));
        }
        ck_assert_int_lt(sh_quiet_now() - begin, SHOAL_MS(SH_SLOW ? 950 : 600));
        finish(actor);
        shoal_process_destroy(actor);
        next_pid(&c); /* the message; then the pid of the new member */
    }
    finish_crew(&c);
}
END_TEST

static shoal_err ignore_sigterm(int rank, const shoal_value *args)
{
    signal(SIGTERM, SIG_IGN);
    return wait_for_the_end(rank, args);
}

/* Neither stopped members nor members that ignore SIGTERM delay the end, however many there are. */
START_TEST(end_of_stopped_members)
{
    enum { N = 6 };
    begin_crew(c, _i, ignore_sigterm, N);
    for (int i = 0; i < N; i++) {
        pid_t pid = next_pid(&c);
        if (i % 2 == 0) {
            kill(pid, SIGSTOP);
        }
    }
    int64_t begin = sh_now(), quiet = sh_quiet_now();
    sh_supervisor_end(c.s, SHOAL_MS(50), SHOAL_MS(100));
    ck_assert_int_ge(sh_now() - begin, SHOAL_MS(150));
    ck_assert_int_lt(sh_quiet_now() - quiet, SHOAL_SECONDS(SH_SLOW ? 5 : 2));
    ck_assert_int_eq(sh_supervisor_running(c.s), 0);
    ck_assert_int_eq(c.ends, 0);
    ck_assert_int_eq(waitpid(-1, NULL, WNOHANG), _i == SHOAL_START_FORKSERVER ? 0 : -1);
    sh_supervisor_destroy(c.s);
    shoal_release(c.queue);
}
END_TEST

/* A fork of the owner can neither wait for the members nor end them. */
START_TEST(a_fork_of_the_owner)
{
    begin_crew(c, _i, wait_for_the_end, 2);
    pid_t members[] = {next_pid(&c), next_pid(&c)};
    pid_t child = fork();
    ck_assert_int_ge(child, 0);
    if (child == 0) {
        must(!sh_supervisor_is_ours(c.s));
        sh_supervisor_wait(c.s, c.queue, NULL, sh_now() + LIMIT);
        must(sh_supervisor_tend(c.s) == SHOAL_EFORK);
        sh_supervisor_end(c.s, SHOAL_NOW, SH_PATIENCE);
        sh_supervisor_destroy(c.s);
        _exit(0);
    }
    int status;
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    ck_assert_ok(sh_supervisor_tend(c.s));
    ck_assert_int_eq(c.ends, 0);
    ck_assert(kill(members[0], 0) == 0 && kill(members[1], 0) == 0);
    finish_crew(&c);
}
END_TEST

/* rank: the start method of its members. */
static shoal_err own_and_wait(int rank, const shoal_value *args)
{
    begin_crew(c, rank, wait_for_the_end, 2);
    for (int i = 0; i < 2; i++) {
        must(shoal_queue_put(shoal_value_as_queue(args), shoal_value_int(next_pid(&c)), LIMIT) == SHOAL_OK);
    }
    for (;;) {
        pause();
    }
}

/* The members end with their owner, whatever ends it. */
START_TEST(a_killed_owner)
{
    crew c = {.starts = 0};
    ck_assert_ok(shoal_queue_create(0, &c.queue));
    shoal_process *owner;
    ck_assert_ok(shoal_process_start(own_and_wait, shoal_value_of(c.queue),
                                     &(shoal_process_options){.start = SHOAL_START_FORK, .rank = _i}, &owner));
    int members[] = {sh_pidfd_open(next_pid(&c)), sh_pidfd_open(next_pid(&c))};
    ck_assert_ok(shoal_process_kill(owner));
    finish(owner);
    for (int i = 0; i < 2; i++) {
        ck_assert_int_eq(sh_poll(&(struct pollfd){.fd = members[i], .events = POLLIN}, 1, sh_now() + LIMIT), 1);
        close(members[i]);
    }
    shoal_process_destroy(owner);
    shoal_release(c.queue);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("supervisor");
    TCase *tc = methods_case("supervisor");
    add_for_methods(tc, a_killed_member_is_replaced);
    add_for_methods(tc, f7_a_join_ends_a_member_that_retires_for_ever);
    add_for_methods(tc, the_owner_decides_about_a_failed_target);
    add_for_methods(tc, gives_up_after_failed_starts);
    add_for_methods(tc, an_end_and_a_message_wake_at_once);
    add_for_methods(tc, end_of_stopped_members);
    add_for_methods(tc, a_fork_of_the_owner);
    add_for_methods(tc, a_killed_owner);
    suite_add_tcase(s, tc);
    return s;
}

SH_TEST_MAIN(suite)
