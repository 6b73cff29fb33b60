/* For the tests of this folder: processes that know each other, without a world.
 *
 * All processes of a test share a page with their lives, a step counter for handshakes, and the object under test. A
 * life is dead if the system says that its process is gone or a zombie; a stopped process is alive.
 */
#ifndef SH_SYNC_PEERS_TEST_H
#define SH_SYNC_PEERS_TEST_H

#include "base/clock.h"
#include "base/death.h"
#include "os/pid.h"
#include "sync/atomic.h"
#include "sync/park.h"
#include "sync/peers.h"

#include <check.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define FAKE_LIVES 512
#define FAKE_SECONDS 300 /* the time limit of one test, which ends what hangs */

typedef struct fake_page {
    sh_a32 lives; /* the number given out, from 1 */
    sh_a32 step;
    sh_a32 sweeps;
    sh_a32 pid[FAKE_LIVES];
    sh_a64 start_time[FAKE_LIVES];
} fake_page;

static fake_page *fake;
static sh_owner fake_life;
static void (*fake_recovery)(sh_owner dead); /* what sweep does for a dead life */

/* For children, where ck_assert would not reach the report. Exits with status 1, which fake_join sees. */
#define must(condition)                                                                                                \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            (void)fprintf(stderr, "%s:%d: process %d: %s\n", __FILE__, __LINE__, (int)getpid(), #condition);           \
            _exit(1);                                                                                                  \
        }                                                                                                              \
    } while (0)

static inline sh_owner fake_self(void)
{
    return fake_life;
}

static inline bool fake_is_dead(sh_owner life)
{
    return sh_pid_gone((int32_t)sh_load_acquire(&fake->pid[life]), sh_load_acquire(&fake->start_time[life]));
}

static inline uint32_t fake_sweep(int64_t age)
{
    (void)age;
    sh_add_relaxed(&fake->sweeps, 1u);
    uint32_t lives = sh_load_acquire(&fake->lives);
    for (sh_owner life = 1; fake_recovery != NULL && life <= lives; life++) {
        if (sh_load_acquire(&fake->pid[life]) != 0 && fake_is_dead(life)) {
            fake_recovery(life);
        }
    }
    return 1;
}

static inline void fake_be(sh_owner life)
{
    static const sh_peers peers = {.self = fake_self, .is_dead = fake_is_dead, .sweep = fake_sweep};
    sh_peers_set(&peers, life);
    fake_life = life;
    sh_store_release(&fake->start_time[life], sh_pid_start_time(getpid()));
    sh_store_release(&fake->pid[life], (uint32_t)getpid());
}

static inline void *fake_map(size_t bytes)
{
    void *page = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    must(page != MAP_FAILED);
    return page;
}

/* Called first in every test: the calling process becomes life 1. Returns zeroed shared memory. */
static inline void *fake_begin(size_t bytes)
{
    fake = fake_map(sizeof *fake);
    fake_be(sh_add_relaxed(&fake->lives, 1u) + 1);
    return fake_map(bytes);
}

/* Runs body in a new process with its own life. */
static inline pid_t fake_fork(void (*body)(void *), void *object)
{
    sh_owner life = sh_add_relaxed(&fake->lives, 1u) + 1;
    must(life < FAKE_LIVES);
    pid_t pid = fork();
    must(pid >= 0);
    if (pid == 0) {
        fake_be(life);
        body(object);
        _exit(0);
    }
    return pid;
}

/* Waits until the process has exited with status 0. */
static inline void fake_join(pid_t pid)
{
    int status;
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == 0, "a child ended with status 0x%x", (unsigned)status);
}

/* Waits until the process was killed, by itself or by another process. */
static inline void fake_join_killed(pid_t pid)
{
    int status;
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert_msg(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL, "a child ended with status 0x%x",
                  (unsigned)status);
}

static inline void fake_kill(pid_t pid)
{
    ck_assert_int_eq(kill(pid, SIGKILL), 0);
    fake_join_killed(pid);
}

static inline void fake_stop(pid_t pid)
{
    int status;
    ck_assert_int_eq(kill(pid, SIGSTOP), 0);
    ck_assert_int_eq(waitpid(pid, &status, WUNTRACED), pid);
    ck_assert(WIFSTOPPED(status));
}

/* Handshakes. */
static inline void fake_step(uint32_t step)
{
    sh_store_release(&fake->step, step);
}

static inline void fake_await_step(uint32_t step)
{
    while (sh_load_acquire(&fake->step) < step) {
        sched_yield();
    }
}

static inline char fake_state(pid_t pid)
{
    char path[64], text[512] = "";
    (void)snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    FILE *file = fopen(path, "r");
    must(file != NULL);
    size_t n = fread(text, 1, sizeof text - 1, file);
    (void)fclose(file);
    text[n] = 0;
    char *end = strrchr(text, ')');
    must(end != NULL && end[1] == ' ');
    return end[2];
}

/* Waits until the process sleeps in the kernel. The caller knows that it can sleep only because it is parked. */
static inline void fake_await_asleep(pid_t pid)
{
    while (fake_state(pid) != 'S') {
        sched_yield();
    }
}

/* Returns the number of death points with that prefix. A test that visits each of them compares its list with it. */
static inline size_t fake_points(const char *prefix)
{
    size_t found = 0;
#ifdef SHOAL_DEATH_POINTS
    const char *const *names;
    size_t count = sh_death_points(&names);
    for (size_t i = 0; i < count; i++) {
        found += strncmp(names[i], prefix, strlen(prefix)) == 0;
    }
#else
    (void)prefix;
#endif
    return found;
}

static inline int fake_run(const char *name, const TTest *const *tests, size_t count)
{
    Suite *suite = suite_create(name);
    for (size_t i = 0; i < count; i++) {
        TCase *tcase = tcase_create(tests[i]->name);
        tcase_add_test(tcase, tests[i]);
        tcase_set_timeout(tcase, FAKE_SECONDS);
        suite_add_tcase(suite, tcase);
    }
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

#endif
