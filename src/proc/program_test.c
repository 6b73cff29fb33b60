/* Tests other programs as children, and forks that return in the child. The other program is this one, with
 * --program. */
#include "proc/process_test.h"

#include "base/clock.h"
#include "os/pid.h"
#include "proc/child.h"

#include <shoal/binding.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- the program ---- */

/* A grandchild inherits neither the variable nor an fd of the library. */
static bool grandchild_is_clean(void)
{
    char *const argv[] = {
        "sh", "-c", "test -z \"$" SH_PROGRAM_VARIABLE "\" && test -z \"$(ls -l /proc/self/fd | grep memfd:shoal)\"",
        NULL};
    pid_t pid = fork();
    if (pid == 0) {
        execv("/bin/sh", argv);
        _exit(99);
    }
    int status;
    return waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

/* Joins the world, and does what its arguments say. */
static int joined(const char *what)
{
    int rank;
    const shoal_value *args, *again;
    must(shoal_child_begin(&rank, &args) == SHOAL_OK && rank == 3 && shoal_rank() == 3);
    must(shoal_child_begin(NULL, &again) == SHOAL_OK && again == args);
    shoal_queue *queue = shoal_value_as_queue(shoal_value_find(args, "queue"));
    must(queue != NULL && shoal_queue_put_bytes(queue, "up", 2, LIMIT) == SHOAL_OK);
    if (strcmp(what, "return") == 0) {
        must(grandchild_is_clean());
        must(shoal_return(shoal_value_string("from another program")) == SHOAL_OK);
        must(shoal_child_end(SHOAL_OK) == SHOAL_OK);
        return EXIT_SUCCESS;
    }
    if (strcmp(what, "fail") == 0) {
        must(shoal_child_end(shoal_fail(SHOAL_ETYPE, "a program's own words")) == SHOAL_OK);
        return EXIT_FAILURE;
    }
    if (strcmp(what, "exit") == 0) {
        return 5;
    }
    for (;;) {
        pause();
    }
}

static int program(const char *what)
{
    if (strcmp(what, "alone") == 0) {
        return 4;
    }
    if (strcmp(what, "alone for ever") == 0) {
        for (;;) {
            pause();
        }
    }
    return joined(what);
}

/* ---- starting it ---- */

static shoal_err try_program(const char *what, shoal_queue *queue, const shoal_process_options *options,
                             shoal_process **out_process)
{
    char path[256] = "";
    ssize_t n = readlink("/proc/self/exe", path, sizeof path - 1);
    path[n > 0 ? n : 0] = 0;
    char *const argv[] = {path, "--program", (char *)(uintptr_t)what, NULL};
    return shoal_process_start_program(path, argv, shoal_map("queue", queue), options, out_process);
}

static shoal_process *start_program(const char *what, shoal_queue *queue)
{
    shoal_process *p = NULL;
    ck_assert_ok(try_program(what, queue, &(shoal_process_options){.rank = 3}, &p));
    return p;
}

static void await_up(shoal_queue *queue)
{
    char word[8];
    size_t size;
    ck_assert_ok(shoal_queue_get_bytes(queue, word, sizeof word, LIMIT, &size));
}

START_TEST(joins_and_returns)
{
    static const struct {
        const char *what;
        shoal_end end;
        int code;
        const char *text;
    } cases[] = {{"return", SHOAL_RETURNED, 0, "returned"},
                 {"fail", SHOAL_FAILED, 1, "SHOAL_ETYPE: a program's own words"},
                 {"exit", SHOAL_EXITED, 5, "exited with 5"},
                 {"alone", SHOAL_EXITED, 4, "exited with 4"}};
    shoal_queue *queue;
    ck_assert_ok(shoal_queue_create(0, &queue));
    shoal_process *p = start_program(cases[_i].what, queue);
    shoal_status status = finish(p);
    ck_assert_msg(status.end == cases[_i].end && status.code == cases[_i].code, "%s", status.text);
    ck_assert_ptr_nonnull(strstr(status.text, cases[_i].text));
    ck_assert(_i != 0 || strcmp(shoal_value_as_string(shoal_process_result(p)), "from another program") == 0);
    shoal_process_destroy(p);
    shoal_release(queue);
}
END_TEST

START_TEST(is_killed_before_and_after_it_joined)
{
    shoal_queue *queue;
    ck_assert_ok(shoal_queue_create(0, &queue));
    shoal_process *p = start_program(_i == 0 ? "alone for ever" : "wait", queue);
    if (_i == 1) {
        await_up(queue);
    }
    ck_assert_err(shoal_process_join(p, SHOAL_MS(1), NULL), SHOAL_ETIMEDOUT);
    ck_assert_ok(shoal_process_kill(p));
    ck_assert_int_eq(finish(p).end, SHOAL_KILLED);
    shoal_process_destroy(p);
    shoal_release(queue);
}
END_TEST

/* Starts a program and waits to be killed. Its default death signal ends the program, and so does another one without a
 * handler, before the program joins and after. */
static shoal_err parent_of_program(int rank, const shoal_value *args)
{
    shoal_queue *queue = shoal_value_as_queue(shoal_value_find(args, "queue"));
    shoal_process *p = NULL;
    shoal_process_options options = {.rank = 3, .death_signal = rank < 2 ? 0 : SIGUSR1};
    must(try_program(rank % 2 == 0 ? "alone for ever" : "wait", queue, &options, &p) == SHOAL_OK);
    int32_t pid = shoal_process_pid(p);
    must(shoal_queue_put_bytes(queue, &pid, sizeof pid, LIMIT) == SHOAL_OK);
    for (;;) {
        pause();
    }
}

START_TEST(ends_with_its_parent)
{
    shoal_queue *queue;
    int32_t pid = 0;
    size_t size;
    shoal_process *p;
    ck_assert_ok(shoal_queue_create(0, &queue));
    ck_assert_ok(
        shoal_process_start(parent_of_program, shoal_map("queue", queue), &(shoal_process_options){.rank = _i}, &p));
    for (int i = 0; i <= _i % 2; i++) { /* the pid, and "up" from a program that joins, in any order */
        int32_t word;
        ck_assert_ok(shoal_queue_get_bytes(queue, &word, sizeof word, LIMIT, &size));
        pid = size == sizeof pid ? word : pid;
    }
    uint64_t began = sh_pid_start_time(pid);
    ck_assert(!sh_pid_gone(pid, began));
    ck_assert_ok(shoal_process_kill(p));
    finish(p);
    shoal_process_destroy(p);
    int64_t deadline = sh_deadline(LIMIT);
    while (!sh_pid_gone(pid, began)) {
        ck_assert(!sh_passed(deadline));
        usleep(200);
    }
    shoal_release(queue);
    ck_assert_ok(shoal_world_sweep(NULL));
}
END_TEST

START_TEST(refusals)
{
    shoal_process *p = NULL;
    char *const argv[] = {"nothing", NULL}, *const none[] = {NULL};
    ck_assert_err(shoal_process_start_program("/no/such/program", argv, shoal_value_int(1), NULL, &p), SHOAL_ENOENT);
    ck_assert_err(shoal_process_start_program("no-such-program-on-the-path", argv, NULL, NULL, &p), SHOAL_ENOENT);
    ck_assert_err(shoal_process_start_program("/etc/passwd", argv, NULL, NULL, &p), SHOAL_EPERM);
    ck_assert_err(shoal_process_start_program(NULL, argv, shoal_value_int(1), NULL, &p), SHOAL_EINVAL);
    ck_assert_err(shoal_process_start_program("sh", none, NULL, NULL, &p), SHOAL_EINVAL);
    ck_assert_err(
        shoal_process_start_program("sh", argv, NULL, &(shoal_process_options){.start = SHOAL_START_FORK}, &p),
        SHOAL_EINVAL);
    ck_assert_ptr_null(p);
    ck_assert_err(shoal_child_begin(NULL, NULL), SHOAL_ENOENT);
    ck_assert_err(shoal_child_end(SHOAL_OK), SHOAL_ESTATE);
}
END_TEST

/* ---- shoal_fork ---- */

static char order[8];

static void note(void *context, char what)
{
    must(context == order);
    order[strlen(order)] = what;
}

static void before(void *context)
{
    note(context, 'b');
}

static void after_parent(void *context)
{
    note(context, 'p');
}

static void after_child(void *context)
{
    must(shoal_rank() == 6); /* the library works here */
    note(context, 'c');
}

static const shoal_process_options sixth = {.rank = 6, .name = "sixth"};
static const shoal_fork_options hooks = {.before = before,
                                         .after_parent = after_parent,
                                         .after_child = after_child,
                                         .context = order,
                                         .process = &sixth};

static _Noreturn void in_child(shoal_queue *queue, int how)
{
    must(strcmp(order, "bc") == 0);
    must(shoal_queue_put_bytes(queue, "up", 2, LIMIT) == SHOAL_OK); /* what the parent held */
    switch (how) {
    case 0:
        must(shoal_return(shoal_value_int(66)) == SHOAL_OK && shoal_child_end(SHOAL_OK) == SHOAL_OK);
        _exit(EXIT_SUCCESS);
    case 1: must(shoal_child_end(shoal_fail(SHOAL_ETYPE, "six")) == SHOAL_OK); _exit(EXIT_FAILURE);
    case 2: _exit(7);
    default: abort();
    }
}

START_TEST(forks_and_continues)
{
    static const shoal_end ends[] = {SHOAL_RETURNED, SHOAL_FAILED, SHOAL_EXITED, SHOAL_KILLED};
    shoal_queue *queue;
    shoal_process *p = NULL;
    ck_assert_ok(shoal_queue_create(0, &queue));
    memset(order, 0, sizeof order);
    ck_assert_ok(shoal_fork(&hooks, &p));
    if (p == NULL) {
        in_child(queue, _i);
    }
    ck_assert_str_eq(order, "bp");
    ck_assert_int_eq(finish(p).end, ends[_i]);
    ck_assert(_i != 0 || shoal_process_result(p) != NULL);
    await_up(queue);
    shoal_process_destroy(p);
    shoal_release(queue);
}
END_TEST

START_TEST(a_fork_that_fails_calls_the_hooks_too)
{
    shoal_process *p = NULL;
    memset(order, 0, sizeof order);
    sh_start_forbid_fork("this test forbids it");
    ck_assert_err(shoal_fork(&hooks, &p), SHOAL_ESTATE);
    sh_start_forbid_fork(NULL);
    ck_assert_str_eq(order, "bp");
    ck_assert_ptr_null(p);
    ck_assert_err(shoal_fork(NULL, NULL), SHOAL_EINVAL);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("program");
    TCase *tc = methods_case("program");
    tcase_add_loop_test(tc, joins_and_returns, 0, 4);
    tcase_add_loop_test(tc, is_killed_before_and_after_it_joined, 0, 2);
    tcase_add_loop_test(tc, ends_with_its_parent, 0, 4);
    tcase_add_test(tc, refusals);
    tcase_add_loop_test(tc, forks_and_continues, 0, 4);
    tcase_add_test(tc, a_fork_that_fails_calls_the_hooks_too);
    suite_add_tcase(s, tc);
    return s;
}

int main(int argc, char **argv)
{
    if (argc == 3 && strcmp(argv[1], "--program") == 0) {
        return program(argv[2]);
    }
    return sh_test_main(argc, argv, suite);
}
