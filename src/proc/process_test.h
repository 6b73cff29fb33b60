/* Shared by the tests of this layer: each test runs with the three start methods, and leaves nothing behind. */
#ifndef SH_PROC_PROCESS_TEST_H
#define SH_PROC_PROCESS_TEST_H

#include "proc/process.h"
#include "tests/harness/runner.h"

#include <signal.h>
#include <stdio.h>
#include <unistd.h>

#define LIMIT SH_PATIENCE /* nothing here waits that long unless it is broken */

/* In a child: ends the process with status 99 unless the condition holds. */
#define must(condition)                                                                                                \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            _exit(99);                                                                                                 \
        }                                                                                                              \
    } while (0)

static inline void proc_begin(void)
{
    signal(SIGTERM, SIG_DFL); /* a forked child would run the handler of libcheck */
    sh_leaks_begin();
}

static inline void proc_end(void)
{
    shoal_fork_server_stop();
    sh_leaks_end();
}

static inline TCase *methods_case(const char *name)
{
    TCase *tc = tcase_create(name);
    tcase_add_checked_fixture(tc, proc_begin, proc_end);
    tcase_set_timeout(tc, SH_TEST_SECONDS);
    return tc;
}

/* Adds a test that runs with the three start methods: _i is the method. */
#define add_for_methods(tc, test) tcase_add_loop_test(tc, test, SHOAL_START_SPAWN, SHOAL_START_FORKSERVER + 1)

/* args NULL: none. */
static inline shoal_process *start(int method, shoal_target target, shoal_value *args)
{
    shoal_process *p = NULL;
    args = args != NULL ? args : shoal_value_null();
    ck_assert_ok(shoal_process_start(target, args, &(shoal_process_options){.start = (shoal_start)method}, &p));
    ck_assert_ptr_nonnull(p);
    return p;
}

static inline shoal_status finish(shoal_process *p)
{
    shoal_status status;
    ck_assert_ok(shoal_process_join(p, LIMIT, &status));
    return status;
}

/* Checks whether the process's first thread sleeps. */
static inline bool sleeps(pid_t pid)
{
    char path[64], state = 0;
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    FILE *f = fopen(path, "r");
    must(f != NULL && fscanf(f, "%*d (%*[^)]) %c", &state) == 1);
    fclose(f);
    return state == 'S';
}

static inline shoal_err no_op(int rank, const shoal_value *args)
{
    (void)rank;
    (void)args;
    return SHOAL_OK;
}

/* Says its pid, and waits. args: a queue, an event. */
static inline shoal_err say_pid_and_wait(int rank, const shoal_value *args)
{
    (void)rank;
    must(shoal_queue_put(shoal_value_as_queue(shoal_value_at(args, 0)), shoal_value_int(getpid()), LIMIT) == SHOAL_OK);
    return shoal_event_wait(shoal_value_as_event(shoal_value_at(args, 1)), LIMIT);
}

static inline int get_pid(shoal_queue *pids)
{
    shoal_value *v;
    ck_assert_ok(shoal_queue_get(pids, LIMIT, &v));
    int pid = (int)sh_int_of(v);
    shoal_value_destroy(v);
    return pid;
}

#endif
