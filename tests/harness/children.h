/* Shared by the tests with several processes: children by every start method, their failures as text,
 * and handshakes. */
#ifndef TESTS_CHILDREN_H
#define TESTS_CHILDREN_H

#include "proc/process.h"
#include "tests/harness/runner.h"

#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define LIMIT SH_PATIENCE /* nothing waits that long unless it is broken */
#define SOON SHOAL_MS(20) /* a timeout that is meant to expire */

/* ---- for targets: a condition that does not hold becomes the returned error, whose text the parent reports ---- */

#define must(condition)                                                                                                \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            return shoal_fail(SHOAL_ESTATE, "line %d: %s", __LINE__, #condition);                                      \
        }                                                                                                              \
    } while (0)

#define must_err(expression, wanted)                                                                                   \
    do {                                                                                                               \
        shoal_err err_ = (expression);                                                                                 \
        if (err_ != (wanted)) {                                                                                        \
            char text_[200];                                                                                           \
            snprintf(text_, sizeof text_, "%s", shoal_last_error_text());                                              \
            return shoal_fail(SHOAL_ESTATE, "line %d: %s: %s, not %s (%s)", __LINE__, #expression,                     \
                              shoal_err_name(err_), shoal_err_name(wanted), text_);                                    \
        }                                                                                                              \
    } while (0)

#define must_ok(expression) must_err(expression, SHOAL_OK)

/* A shared object among the arguments: ARG(queue, "in"). */
#define ARG(kind, name) shoal_arg_##kind(args, name)
#define ARG_INT(name) sh_int_of(shoal_value_find(args, name))

/* ---- for tests ---- */

/* ck_assert for loops: each libcheck assertion that holds costs a system call. */
#define hot(condition)                                                                                                 \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            ck_abort_msg("line %d: %s (%s)", __LINE__, #condition, shoal_last_error_text());                           \
        }                                                                                                              \
    } while (0)
#define hot_ok(expression) hot((expression) == SHOAL_OK)

static inline void children_end(void)
{
    shoal_fork_server_stop();
    sh_leaks_end();
}

static inline TCase *children_case(const char *name)
{
    TCase *tc = tcase_create(name);
    tcase_add_checked_fixture(tc, sh_leaks_begin, children_end);
    tcase_set_timeout(tc, SH_TEST_SECONDS);
    return tc;
}

/* Adds a test that runs for the three start methods: _i is the method. */
#define add_for_methods(tc, test) tcase_add_loop_test(tc, test, SHOAL_START_SPAWN, SHOAL_START_FORKSERVER + 1)

static inline shoal_queue *make_queue(uint64_t bound)
{
    shoal_queue *q = NULL;
    ck_assert_ok(shoal_queue_create(bound, &q));
    return q;
}

/* args NULL: none. */
static inline shoal_process *start(int method, int rank, shoal_target target, shoal_value *args)
{
    shoal_process *p = NULL;
    args = args != NULL ? args : shoal_value_null();
    shoal_process_options options = {.start = (shoal_start)method, .rank = rank};
    ck_assert_ok(shoal_process_start(target, args, &options, &p));
    return p;
}

/* Waits for the end of the process and destroys the handle. */
static inline void finish_as(shoal_process *p, shoal_end end, int code)
{
    shoal_status status;
    ck_assert_ok(shoal_process_join(p, LIMIT, &status));
    ck_assert_msg(status.end == end && (end == SHOAL_PROCESS_RETURNED || status.code == code), "%s", status.text);
    shoal_process_destroy(p);
}

static inline void finish(shoal_process *p)
{
    finish_as(p, SHOAL_PROCESS_RETURNED, 0);
}

static inline int64_t clock_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* Checks whether the main thread of the process is parked in a futex now. */
static inline bool is_parked(int32_t pid)
{
    char path[64];
    long number = -1;
    snprintf(path, sizeof path, "/proc/%d/syscall", (int)pid);
    FILE *f = fopen(path, "re");
    ck_assert_ptr_nonnull(f);
    int n = fscanf(f, "%ld", &number);
    fclose(f);
    return n == 1 && number == SYS_futex;
}

/* Waits until the process, which has nothing else to wait for, is parked. */
static inline void until_parked(const shoal_process *p)
{
    int64_t deadline = clock_ns() + LIMIT;
    while (!is_parked(shoal_process_pid(p))) {
        ck_assert_msg(clock_ns() < deadline, "process %d does not wait", (int)shoal_process_pid(p));
        nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
    }
}

/* Waits until a child reports that it has reached a point: any message on the queue. */
static inline void until_told(shoal_queue *queue)
{
    shoal_value *value = NULL;
    ck_assert_ok(shoal_queue_get(queue, LIMIT, &value));
    shoal_value_destroy(value);
}

#endif
