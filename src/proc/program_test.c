/* Tests other programs as children and as fork servers, and forks that return in the child. The other program is this
 * one, with --program. */
#include "proc/process_test.h"

#include "base/clock.h"
#include "os/pid.h"
#include "proc/child.h"

#include <shoal/binding.h>

#include <fcntl.h>
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

/* In the world: does what it is told to. */
static int be_child(const char *what, int rank, const shoal_value *args)
{
    const shoal_value *again;
    must(rank == 3 && shoal_rank() == 3);
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
    if (strcmp(what, "look") == 0) { /* its server, a variable, and the action of SIGINT */
        struct sigaction action;
        must(sigaction(SIGINT, NULL, &action) == 0 && action.sa_handler == SIG_DFL);
        must(shoal_return(shoal_list((int)getppid(), getenv("SHOAL_TEST_WORD"))) == SHOAL_OK);
        must(shoal_child_end(SHOAL_OK) == SHOAL_OK);
        return EXIT_SUCCESS;
    }
    if (strcmp(what, "go") == 0) {
        must(shoal_event_wait(shoal_value_as_event(shoal_value_find(args, "event")), LIMIT) == SHOAL_OK);
        must(shoal_child_end(SHOAL_OK) == SHOAL_OK);
        return EXIT_SUCCESS;
    }
    for (;;) {
        pause();
    }
}

static char order[8]; /* in which the hooks were called */

static void note(void *context, char what)
{
    must(context == order);
    order[strlen(order)] = what;
}

static void serve_before(void *context)
{
    memset(order, 0, sizeof order);
    note(context, 'b');
}

static void serve_parent(void *context)
{
    note(context, 'p');
}

static void serve_child(void *context)
{
    must(shoal_rank() == 3);
    note(context, 'c');
}

/* Serves; its children get what they do in their arguments. */
static int be_server(void)
{
    static const shoal_fork_options hooks = {
        .before = serve_before, .after_parent = serve_parent, .after_child = serve_child, .context = order};
    int rank = -1;
    const shoal_value *args = NULL;
    must(shoal_child_begin(NULL, NULL) == SHOAL_ENOENT);
    switch (shoal_fork_server_begin(&hooks, &rank, &args)) {
    case SHOAL_OK:
        must(strcmp(order, "bc") == 0 && shoal_fork_server_pid() == 0);
        must(shoal_fork_server_begin(NULL, NULL, NULL) == SHOAL_ENOENT);
        return be_child(shoal_value_as_string(shoal_value_find(args, "what")), rank, args);
    case SHOAL_END: must(strcmp(order, "bp") == 0 && shoal_rank() == -1); return EXIT_SUCCESS;
    default: return 98;
    }
}

static int program(const char *what)
{
    if (strncmp(what, "server", 6) == 0) {
        return be_server();
    }
    if (strcmp(what, "alone") == 0) {
        return 4;
    }
    if (strcmp(what, "alone for ever") == 0) {
        for (;;) {
            pause();
        }
    }
    int rank;
    const shoal_value *args;
    must(shoal_fork_server_begin(NULL, NULL, NULL) == SHOAL_ENOENT);
    must(shoal_child_begin(&rank, &args) == SHOAL_OK);
    return be_child(what, rank, args);
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
    } cases[] = {{"return", SHOAL_PROCESS_RETURNED, 0, "returned"},
                 {"fail", SHOAL_PROCESS_FAILED, 1, "SHOAL_ETYPE: a program's own words"},
                 {"exit", SHOAL_PROCESS_EXITED, 5, "exited with 5"},
                 {"alone", SHOAL_PROCESS_EXITED, 4, "exited with 4"}};
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
    ck_assert_int_eq(finish(p).end, SHOAL_PROCESS_KILLED);
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
    ck_assert_err(shoal_process_start_program("no-such-program-on-the-path", argv, shoal_value_null(), NULL, &p),
                  SHOAL_ENOENT);
    ck_assert_err(shoal_process_start_program("/etc/passwd", argv, shoal_value_null(), NULL, &p), SHOAL_EPERM);
    ck_assert_err(shoal_process_start_program(NULL, argv, shoal_value_int(1), NULL, &p), SHOAL_EINVAL);
    ck_assert_err(shoal_process_start_program("sh", none, shoal_value_null(), NULL, &p), SHOAL_EINVAL);
    ck_assert_err(shoal_process_start_program("sh", argv, shoal_value_null(),
                                              &(shoal_process_options){.start = SHOAL_START_FORK}, &p),
                  SHOAL_EINVAL);
    ck_assert_ptr_null(p);
    ck_assert_err(shoal_child_begin(NULL, NULL), SHOAL_ENOENT);
    ck_assert_err(shoal_child_end(SHOAL_OK), SHOAL_ESTATE);
}
END_TEST

/* The fd of the option, though it is close-on-exec, and no other. It stays close-on-exec here. */
START_TEST(inherits_the_fds_of_the_option)
{
    int fds[2];
    char command[80];
    shoal_process *p;
    ck_assert_int_eq(pipe2(fds, O_CLOEXEC), 0);
    snprintf(command, sizeof command, "test -e /proc/self/fd/%d && test ! -e /proc/self/fd/%d", fds[0], fds[1]);
    char *const argv[] = {"sh", "-c", command, NULL};
    for (size_t count = 0; count < 2; count++) {
        const shoal_process_options options = {.fds = count > 0 ? fds : NULL, .fd_count = count};
        ck_assert_ok(shoal_process_start_program("sh", argv, shoal_value_null(), &options, &p));
        ck_assert_int_eq(finish(p).code, count == 1 ? 0 : 1);
        shoal_process_destroy(p);
    }
    ck_assert_int_eq(fcntl(fds[0], F_GETFD), FD_CLOEXEC);
    close(fds[0]);
    close(fds[1]);
}
END_TEST

/* One without the other was a mistake that did nothing, or read from NULL. */
START_TEST(fds_and_their_count_come_together)
{
    const int fds[] = {0};
    char *const argv[] = {"true", NULL};
    const shoal_process_options half[] = {{.fds = fds}, {.fd_count = 1}};
    for (int i = 0; i < 2; i++) {
        shoal_process *p = NULL;
        ck_assert_err(shoal_process_start_program("true", argv, shoal_value_null(), &half[i], &p), SHOAL_EINVAL);
        ck_assert_ptr_null(p);
        ck_assert_ptr_nonnull(strstr(shoal_last_error_text(), "fd_count"));
    }
}
END_TEST

/* ---- a fork server of another program ---- */

/* server: "server" and anything else behind it. args: its child takes them, and "what" says what it does. */
static shoal_err try_served(const char *server, shoal_value *args, int death_signal, shoal_process **out_process)
{
    char path[256] = "";
    ssize_t n = readlink("/proc/self/exe", path, sizeof path - 1);
    path[n > 0 ? n : 0] = 0;
    char *const argv[] = {path, "--program", (char *)(uintptr_t)server, NULL};
    shoal_process_options options = {.start = SHOAL_START_FORKSERVER, .rank = 3, .death_signal = death_signal};
    return shoal_process_start_program(path, argv, args, &options, out_process);
}

static shoal_process *start_served(const char *server, const char *what, shoal_queue *queue)
{
    shoal_process *p = NULL;
    ck_assert_ok(try_served(server, shoal_map("what", what, "queue", queue), 0, &p));
    return p;
}

/* Starts a child that looks around. Returns the process that forked it, which is its parent. */
static int look(const char *server, shoal_queue *queue, const char *word)
{
    shoal_process *p = start_served(server, "look", queue);
    shoal_status status = finish(p);
    ck_assert_msg(status.end == SHOAL_PROCESS_RETURNED, "%s", status.text);
    const shoal_value *result = shoal_process_result(p);
    ck_assert_str_eq(shoal_value_as_string(shoal_value_at(result, 1)), word);
    int pid = (int)sh_int_of(shoal_value_at(result, 0));
    ck_assert_int_eq(pid, shoal_fork_server_pid());
    shoal_process_destroy(p);
    return pid;
}

START_TEST(a_server_forks_children)
{
    static const struct {
        const char *what;
        shoal_end end;
        int code;
    } cases[] = {
        {"return", SHOAL_PROCESS_RETURNED, 0}, {"fail", SHOAL_PROCESS_FAILED, 1}, {"exit", SHOAL_PROCESS_EXITED, 5}};
    shoal_queue *queue;
    ck_assert_ok(shoal_queue_create(0, &queue));
    ck_assert_int_eq(shoal_fork_server_pid(), 0);
    setenv("SHOAL_TEST_WORD", "then", 1);
    int server = look("server", queue, "then");
    setenv("SHOAL_TEST_WORD", "now", 1);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        shoal_process *p = start_served("server", cases[i].what, queue);
        shoal_status status = finish(p);
        ck_assert_msg(status.end == cases[i].end && status.code == cases[i].code, "%s", status.text);
        shoal_process_destroy(p);
    }
    shoal_process *p = start_served("server", "wait", queue);
    ck_assert_ok(shoal_process_kill(p));
    ck_assert_int_eq(finish(p).end, SHOAL_PROCESS_KILLED);
    shoal_process_destroy(p);
    ck_assert_int_eq(kill(server, SIGINT), 0); /* ignored */
    ck_assert_int_eq(look("server", queue, "then"), server);
    shoal_fork_server_stop();
    ck_assert_int_eq(shoal_fork_server_pid(), 0);
    ck_assert_int_ne(kill(server, 0), 0);
    ck_assert_int_ne(look("server", queue, "now"), server);
    shoal_release(queue);
}
END_TEST

/* Another program, or another server after a SIGKILL: the child of the first one goes on. */
START_TEST(a_server_is_replaced)
{
    shoal_queue *queue;
    shoal_event *event;
    shoal_process *p = NULL;
    ck_assert_ok(shoal_queue_create(0, &queue));
    ck_assert_ok(shoal_event_create(&event));
    setenv("SHOAL_TEST_WORD", "x", 1);
    ck_assert_ok(try_served("server", shoal_map("what", "go", "queue", queue, "event", event), 0, &p));
    await_up(queue);
    int first = shoal_fork_server_pid();
    if (_i == 1) {
        ck_assert_int_eq(kill(first, SIGKILL), 0);
    }
    int second = look(_i == 0 ? "server 2" : "server", queue, "x");
    ck_assert_int_ne(first, second);
    ck_assert_int_eq(look(_i == 0 ? "server 2" : "server", queue, "x"), second);
    ck_assert_err(shoal_process_join(p, SHOAL_MS(1), NULL), SHOAL_ETIMEDOUT);
    shoal_event_set(event);
    ck_assert_str_eq(finish(p).text, "rank 3 returned");
    shoal_process_destroy(p);
    shoal_release(event);
    shoal_release(queue);
}
END_TEST

/* Starts a child by a server, and waits to be killed; the server of rank 2 never serves. */
static shoal_err parent_of_served(int rank, const shoal_value *args)
{
    shoal_queue *queue = shoal_value_as_queue(shoal_value_find(args, "queue"));
    shoal_process *p = NULL;
    if (rank == 2) {
        (void)!try_served("alone for ever", shoal_value_null(), 0, &p);
        return shoal_fail(SHOAL_ESTATE, "it served");
    }
    must(try_served("server", shoal_map("what", "wait", "queue", queue), rank == 0 ? 0 : SIGUSR1, &p) == SHOAL_OK);
    int32_t pids[] = {shoal_process_pid(p), shoal_fork_server_pid()};
    must(shoal_queue_put_bytes(queue, pids, sizeof pids, LIMIT) == SHOAL_OK);
    for (;;) {
        pause();
    }
}

static void await_gone(int32_t pid, uint64_t began)
{
    for (int64_t deadline = sh_deadline(LIMIT); !sh_pid_gone(pid, began);) {
        ck_assert(!sh_passed(deadline));
        usleep(200);
    }
}

START_TEST(a_served_child_ends_with_its_requester)
{
    shoal_queue *queue;
    shoal_process *p;
    int32_t pids[2] = {0, 0};
    uint64_t began[2];
    size_t size = 0;
    ck_assert_ok(shoal_queue_create(0, &queue));
    ck_assert_ok(
        shoal_process_start(parent_of_served, shoal_map("queue", queue), &(shoal_process_options){.rank = _i}, &p));
    while (size != sizeof pids) { /* "up" comes too, in any order */
        ck_assert_ok(shoal_queue_get_bytes(queue, pids, sizeof pids, LIMIT, &size));
    }
    for (int i = 0; i < 2; i++) {
        began[i] = sh_pid_start_time(pids[i]);
        ck_assert(!sh_pid_gone(pids[i], began[i]));
    }
    ck_assert_ok(shoal_process_kill(p));
    finish(p);
    shoal_process_destroy(p);
    await_gone(pids[0], began[0]);
    await_gone(pids[1], began[1]);
    shoal_release(queue);
    sh_await_alone();
}
END_TEST

static int child_of(int32_t pid)
{
    char path[64];
    int child = 0;
    snprintf(path, sizeof path, "/proc/%d/task/%d/children", (int)pid, (int)pid);
    FILE *f = fopen(path, "re");
    if (f != NULL && fscanf(f, "%d", &child) != 1) {
        child = 0;
    }
    if (f != NULL) {
        fclose(f);
    }
    return child;
}

/* Such a program does not look at its socket: the lifeline ends it. */
START_TEST(a_server_that_never_serves_ends_with_its_requester)
{
    shoal_process *p;
    int server = 0;
    ck_assert_ok(shoal_process_start(parent_of_served, shoal_value_null(), &(shoal_process_options){.rank = 2}, &p));
    for (int64_t deadline = sh_deadline(LIMIT); server == 0 || !sleeps(server);) {
        ck_assert(!sh_passed(deadline));
        server = child_of(shoal_process_pid(p));
    }
    uint64_t began = sh_pid_start_time(server);
    ck_assert_ok(shoal_process_kill(p));
    finish(p);
    shoal_process_destroy(p);
    await_gone(server, began);
    sh_await_alone();
}
END_TEST

START_TEST(a_server_that_cannot_serve)
{
    shoal_process *p = NULL;
    char *const argv[] = {"nothing", NULL};
    shoal_process_options options = {.start = SHOAL_START_FORKSERVER};
    ck_assert_err(shoal_process_start_program("/no/such/program", argv, shoal_value_int(1), &options, &p),
                  SHOAL_ENOENT);
    ck_assert_int_eq(shoal_fork_server_pid(), 0);
    ck_assert_err(try_served("alone", shoal_value_int(1), 0, &p), SHOAL_EOS);
    ck_assert_str_eq(shoal_last_error_text(), "the fork server ended before it answered");
    ck_assert_int_eq(shoal_fork_server_pid(), 0);
    ck_assert_ptr_null(p);
}
END_TEST

/* ---- shoal_fork ---- */

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
    static const shoal_end ends[] = {SHOAL_PROCESS_RETURNED, SHOAL_PROCESS_FAILED, SHOAL_PROCESS_EXITED,
                                     SHOAL_PROCESS_KILLED};
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
    shoal_fork_options wrong = hooks;
    wrong.process = &(shoal_process_options){.death_signal = -1};
    ck_assert_err(shoal_fork(&wrong, &p), SHOAL_EINVAL);
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
    tcase_add_test(tc, inherits_the_fds_of_the_option);
    tcase_add_test(tc, fds_and_their_count_come_together);
    tcase_add_test(tc, a_server_forks_children);
    tcase_add_loop_test(tc, a_server_is_replaced, 0, 2);
    tcase_add_loop_test(tc, a_served_child_ends_with_its_requester, 0, 2);
    tcase_add_test(tc, a_server_that_never_serves_ends_with_its_requester);
    tcase_add_test(tc, a_server_that_cannot_serve);
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
