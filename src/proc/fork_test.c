/* Tests what a forked child inherits, fork beside threads, and the fork server. */
#include "proc/process_test.h"

#include "proc/registry.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/wait.h>

/* Receives the log lines in the tests with threads. */
static int lines;
static char last_line[512];

static void count_line(const char *line, void *context)
{
    (void)context;
    lines++;
    snprintf(last_line, sizeof last_line, "%s", line);
}

/* ---- B33: fork ---- */

static void *sit(void *arg)
{
    return (void *)(intptr_t)shoal_event_wait(arg, LIMIT);
}

START_TEST(warns_once_about_threads)
{
    shoal_event *go;
    pthread_t thread;
    shoal_set_log(count_line, NULL);
    ck_assert_ok(shoal_event_create(&go));
    for (int i = 0; i < 3; i++) {
        if (i == 1) {
            ck_assert_int_eq(lines, 0);
            ck_assert_int_eq(pthread_create(&thread, NULL, sit, go), 0);
        }
        shoal_process *p = start(SHOAL_START_FORK, no_op, NULL);
        ck_assert_str_eq(finish(p).text, "rank 0 returned");
        shoal_process_destroy(p);
    }
    ck_assert_int_eq(lines, 1);
    ck_assert_ptr_nonnull(strstr(last_line, "2 threads"));
    ck_assert_ptr_nonnull(strstr(last_line, "spawn"));
    shoal_event_set(go);
    ck_assert_int_eq(pthread_join(thread, NULL), 0);
    shoal_release(go);
    shoal_set_log(NULL, NULL);
}
END_TEST

/* Threads put and get while another forks: the children see a consistent table of handles. */
static void *churn(void *arg)
{
    shoal_event *stop = arg;
    while (!shoal_event_is_set(stop)) {
        shoal_block *blocks[20];
        for (int i = 0; i < 20; i++) {
            ck_assert_ok(shoal_block_create(64, &blocks[i]));
        }
        for (int i = 0; i < 20; i++) {
            shoal_release(blocks[i]);
        }
    }
    return NULL;
}

static shoal_err use_the_heap(int rank, const shoal_value *args)
{
    shoal_block *block, *given = shoal_value_as_block(args);
    (void)rank;
    must(((char *)shoal_block_data(given))[5] == 'x');
    must(shoal_block_create(1000, &block) == SHOAL_OK);
    shoal_release(block);
    return SHOAL_OK;
}

START_TEST(fork_beside_working_threads)
{
    shoal_event *stop;
    shoal_block *block;
    pthread_t thread;
    shoal_set_log(count_line, NULL);
    ck_assert_ok(shoal_event_create(&stop));
    ck_assert_ok(shoal_block_create(10, &block));
    memset(shoal_block_data(block), 'x', 10);
    ck_assert_int_eq(pthread_create(&thread, NULL, churn, stop), 0);
    for (int i = 0; i < 30; i++) {
        shoal_process *p = start(SHOAL_START_FORK, use_the_heap, shoal_value_of(block));
        ck_assert_str_eq(finish(p).text, "rank 0 returned");
        shoal_process_destroy(p);
    }
    shoal_event_set(stop);
    ck_assert_int_eq(pthread_join(thread, NULL), 0);
    shoal_release(stop);
    shoal_release(block);
    shoal_set_log(NULL, NULL);
}
END_TEST

static shoal_err check_many(int rank, const shoal_value *args)
{
    (void)rank;
    for (size_t i = 0; i < shoal_value_count(args); i++) {
        must(*(size_t *)shoal_block_data(shoal_value_as_block(shoal_value_at(args, i))) == i);
    }
    return SHOAL_OK;
}

START_TEST(a_child_gets_many_blocks)
{
    enum { N = 3000 };
    shoal_value *list = shoal_value_list();
    for (size_t i = 0; i < N; i++) {
        shoal_block *block;
        ck_assert_ok(shoal_block_create(64, &block));
        *(size_t *)shoal_block_data(block) = i;
        list = shoal_list_add(list, shoal_value_of(block));
        shoal_release(block);
    }
    shoal_process *p = start(_i, check_many, list);
    ck_assert_str_eq(finish(p).text, "rank 0 returned");
    shoal_process_destroy(p);
}
END_TEST

static shoal_err print_y(int rank, const shoal_value *args)
{
    (void)rank;
    (void)args;
    printf("y");
    return SHOAL_OK;
}

static bool quiet;

static void print_z(void)
{
    printf("%s", quiet ? "" : "z");
}

/* Also B33: nothing is printed twice, and a forked child does not run its parent's exit handlers. */
START_TEST(output_is_written_once)
{
    char text[16] = "";
    FILE *file = tmpfile();
    fflush(stdout);
    int saved = fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 0);
    ck_assert_ptr_nonnull(file);
    ck_assert_int_eq(dup2(fileno(file), STDOUT_FILENO), STDOUT_FILENO);
    ck_assert_int_eq(atexit(print_z), 0);
    printf("x");
    shoal_process *p = start(_i, print_y, NULL);
    shoal_end end = finish(p).end;
    shoal_process_destroy(p);
    quiet = true;
    fflush(stdout);
    ck_assert_int_eq(dup2(saved, STDOUT_FILENO), STDOUT_FILENO);
    close(saved);
    rewind(file);
    size_t n = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    ck_assert_int_eq(end, SHOAL_PROCESS_RETURNED);
    ck_assert_uint_eq(n, 2);
    ck_assert_str_eq(text, _i == SHOAL_START_FORK ? "xy" : "yx");
}
END_TEST

/* A child begins without a last error, also after fork. */
static shoal_err look_at_error(int rank, const shoal_value *args)
{
    (void)rank;
    (void)args;
    must(shoal_last_error() == SHOAL_OK && shoal_last_error_text()[0] == 0);
    return SHOAL_OK;
}

START_TEST(the_last_error_is_not_inherited)
{
    ck_assert_err(shoal_world_join(""), SHOAL_EINVAL);
    shoal_process *p = start(_i, look_at_error, NULL);
    ck_assert_str_eq(finish(p).text, "rank 0 returned");
    shoal_process_destroy(p);
}
END_TEST

START_TEST(a_plain_fork_has_its_own_children)
{
    shoal_queue *pids;
    shoal_event *go;
    ck_assert_ok(shoal_queue_create(0, &pids));
    ck_assert_ok(shoal_event_create(&go));
    shoal_process *p = start(_i, say_pid_and_wait, shoal_list(pids, go));
    ck_assert_int_eq(get_pid(pids), shoal_process_pid(p));
    int status;
    pid_t pid = fork();
    if (pid == 0) {
        shoal_block *block;
        must(shoal_process_join(p, LIMIT, NULL) == SHOAL_ESTATE && shoal_process_kill(p) == SHOAL_ESTATE);
        must(shoal_block_create(10, &block) == SHOAL_OK);
        must(shoal_process_start(no_op, shoal_value_null(), &(shoal_process_options){.start = (shoal_start)_i}, &p) ==
             SHOAL_OK);
        must(shoal_process_join(p, LIMIT, NULL) == SHOAL_OK && p->status.end == SHOAL_PROCESS_RETURNED);
        shoal_process_destroy(p);
        shoal_fork_server_stop();
        shoal_world_leave();
        must(shoal_process_start(no_op, shoal_value_null(), &(shoal_process_options){.start = (shoal_start)_i}, &p) ==
             SHOAL_OK);
        must(shoal_process_join(p, LIMIT, NULL) == SHOAL_OK && p->status.end == SHOAL_PROCESS_RETURNED);
        shoal_process_destroy(p);
        shoal_fork_server_stop();
        _exit(0);
    }
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert_int_eq(status, 0);
    ck_assert_err(shoal_process_join(p, SHOAL_NOW, NULL),
                  SHOAL_ETIMEDOUT); /* the fork did not touch its parent's child */
    shoal_event_set(go);
    ck_assert_str_eq(finish(p).text, "rank 0 returned");
    shoal_process_destroy(p);
    shoal_release(pids);
    shoal_release(go);
}
END_TEST

/* ---- the fork server ---- */

static int first_child(void)
{
    char path[64];
    int pid = 0;
    snprintf(path, sizeof path, "/proc/self/task/%d/children", (int)getpid());
    FILE *f = fopen(path, "re");
    must(f != NULL && fscanf(f, "%d", &pid) == 1);
    fclose(f);
    return pid;
}

START_TEST(a_dead_fork_server_is_replaced)
{
    shoal_queue *pids;
    shoal_event *go;
    ck_assert_ok(shoal_queue_create(0, &pids));
    ck_assert_ok(shoal_event_create(&go));
    for (int i = 0; i < 5; i++) {
        shoal_event_clear(go);
        shoal_process *p = start(SHOAL_START_FORKSERVER, say_pid_and_wait, shoal_list(pids, go));
        get_pid(pids);
        ck_assert_int_eq(kill(first_child(), SIGKILL), 0);
        shoal_process *q = start(SHOAL_START_FORKSERVER, no_op, NULL);
        ck_assert_str_eq(finish(q).text, "rank 0 returned");
        shoal_process_destroy(q);
        shoal_event_set(go);
        ck_assert_str_eq(finish(p).text,
                         "rank 0 returned"); /* its status died with its server; its record still says it */
        shoal_process_destroy(p);
    }
    shoal_release(pids);
    shoal_release(go);
}
END_TEST

START_TEST(the_server_ignores_interrupts)
{
    shoal_process *p = start(SHOAL_START_FORKSERVER, no_op, NULL);
    finish(p);
    shoal_process_destroy(p);
    int server = first_child();
    ck_assert_int_eq(kill(server, SIGINT), 0);
    p = start(SHOAL_START_FORKSERVER, no_op, NULL);
    finish(p);
    shoal_process_destroy(p);
    ck_assert_int_eq(first_child(), server);
}
END_TEST

START_TEST(a_new_world_gets_a_new_server)
{
    for (int i = 0; i < 3; i++) {
        shoal_process *p = start(SHOAL_START_FORKSERVER, no_op, NULL);
        ck_assert_str_eq(finish(p).text, "rank 0 returned");
        shoal_process_destroy(p);
        shoal_world_leave();
    }
}
END_TEST

/* Stops its fork server, which is traced, and reports that; then reaps it when it is not traced any more. args: a queue
 * for the server's pid and for the report, two events. */
static shoal_err stop_a_traced_server(int rank, const shoal_value *args)
{
    shoal_queue *told = shoal_value_as_queue(shoal_value_at(args, 0));
    shoal_event *traced = shoal_value_as_event(shoal_value_at(args, 1));
    shoal_event *released = shoal_value_as_event(shoal_value_at(args, 2));
    int before = sh_count_children();
    for (int i = 0; i < 2; i++) {
        shoal_process *p;
        shoal_process_options options = {.start = i == 0 ? SHOAL_START_FORKSERVER : SHOAL_START_SPAWN, .rank = rank};
        must(shoal_process_start(no_op, shoal_value_null(), &options, &p) == SHOAL_OK);
        must(shoal_process_join(p, LIMIT, NULL) == SHOAL_OK);
        shoal_process_destroy(p);
        if (i == 0) {
            must(sh_count_children() == before + 1);
            must(shoal_queue_put(told, shoal_value_int(first_child()), LIMIT) == SHOAL_OK);
            must(shoal_event_wait(traced, LIMIT) == SHOAL_OK);
            shoal_fork_server_stop();
            must(sh_count_children() == before + 1); /* the tracer has not seen its end yet */
            must(shoal_queue_put(told, shoal_value_int(0), LIMIT) == SHOAL_OK);
            must(shoal_event_wait(released, LIMIT) == SHOAL_OK);
        }
    }
    return sh_count_children() == before ? SHOAL_OK : SHOAL_ESTATE;
}

START_TEST(a_traced_server_is_reaped)
{
    shoal_queue *told;
    shoal_event *traced, *released;
    int status = 0;
    ck_assert_ok(shoal_queue_create(0, &told));
    ck_assert_ok(shoal_event_create(&traced));
    ck_assert_ok(shoal_event_create(&released));
    shoal_process *p = start(SHOAL_START_SPAWN, stop_a_traced_server, shoal_list(told, traced, released));
    int server = get_pid(told);
    ck_assert_msg(ptrace(PTRACE_SEIZE, server, NULL, NULL) == 0, "ptrace: %s", strerror(errno));
    shoal_event_set(traced);
    ck_assert_int_eq(get_pid(told), 0);
    do {
        ck_assert_int_eq(waitpid(server, &status, __WALL), server);
    } while (WIFSTOPPED(status));
    shoal_event_set(released);
    ck_assert_str_eq(finish(p).text, "rank 0 returned");
    shoal_process_destroy(p);
    shoal_release(told);
    shoal_release(traced);
    shoal_release(released);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("fork");
    TCase *tc = methods_case("fork");
    tcase_add_test(tc, warns_once_about_threads);
    tcase_add_test(tc, fork_beside_working_threads);
    add_for_methods(tc, a_child_gets_many_blocks);
    add_for_methods(tc, output_is_written_once);
    add_for_methods(tc, the_last_error_is_not_inherited);
    add_for_methods(tc, a_plain_fork_has_its_own_children);
    tcase_add_test(tc, a_dead_fork_server_is_replaced);
    tcase_add_test(tc, the_server_ignores_interrupts);
    tcase_add_test(tc, a_new_world_gets_a_new_server);
    tcase_add_test(tc, a_traced_server_is_reaped);
    suite_add_tcase(s, tc);
    return s;
}

SH_TEST_MAIN(suite)
