/* Ends and forks at each death point, and at random: every end of a process is at least as safe as SIGKILL, and a child
 * that is forked anywhere harms nobody. SHOAL_SOAK_ENDS and SHOAL_SOAK_FORKS set how often, SHOAL_SEED sets the
 * seed. */
#include "base/clock.h"
#include "base/death.h"
#include "base/random.h"
#include "shm/world.h"
#include "tests/harness/kill.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define SURVIVORS 1
#define TURNS 25
#define TIME SHOAL_MS(60) /* for all turns of one step */
#define ENDED 44          /* the exit status of a process that ended at its point */
#define DELAY_MAX SHOAL_MS(2)

/* LeakSanitizer must ignore the private memory of a process that ends in the middle of a call. */
int __lsan_is_turned_off(void);
int __lsan_is_turned_off(void)
{
    return 1;
}

typedef enum end {
    EXIT_IN_HANDLER,
    EXIT,
    QUICK_EXIT,
    UNDERSCORE_EXIT,
    END_OF_TARGET,           /* what proc/child.c does after a forked target has returned */
    EXIT_BESIDE_THREAD,      /* in a handler, while a thread waits */
    FAIL_BESIDE_BUSY_THREAD, /* while a thread works until the process is gone */
    ENDS,
} end;

static const char *const end_names[ENDS] = {"exit in a handler",
                                            "exit",
                                            "quick_exit",
                                            "_exit",
                                            "the end of a target",
                                            "exit in a handler beside a thread",
                                            "an end beside a busy thread"};

static void exit_now(int number)
{
    (void)number;
    exit(ENDED);
}

static _Noreturn void end_now(end how)
{
    switch (how) {
    case EXIT_IN_HANDLER:
    case EXIT_BESIDE_THREAD: raise(SIGTERM); break;
    case EXIT: exit(ENDED);
    case QUICK_EXIT: quick_exit(ENDED);
    case END_OF_TARGET:
    case FAIL_BESIDE_BUSY_THREAD: sh_world_end(); break;
    default: break;
    }
    _exit(ENDED);
}

/* ---- threads of the victim ---- */

/* Sends blocks to itself until the calls fail because the process ends. */
static void *be_busy(void *queue)
{
    shoal_block *b = NULL;
    while (queue != NULL && shoal_block_create(500, &b) == SHOAL_OK &&
           shoal_queue_give_block(queue, b, SHOAL_NOW) == SHOAL_OK &&
           shoal_queue_get_block(queue, SHOAL_NOW, &b) == SHOAL_OK) {
        shoal_block_release(b);
    }
    for (;;) {
        pause();
    }
    return NULL;
}

/* Starts the threads with signals blocked: signals are for the first thread. */
static void start_threads(end how)
{
    pthread_t thread;
    sigset_t all, before;
    shoal_queue *queue = NULL;
    if (how != EXIT_BESIDE_THREAD && how != FAIL_BESIDE_BUSY_THREAD) {
        return;
    }
    if (how == FAIL_BESIDE_BUSY_THREAD && shoal_queue_create(0, &queue) != SHOAL_OK) {
        _exit(1);
    }
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &before);
    if (pthread_create(&thread, NULL, be_busy, queue) != 0) {
        _exit(1);
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

/* ---- after an end ---- */

static void look_after(kill_stage *stage, int deaths, const char *what)
{
    kill_recover(stage);
    kill_reap_orphans(stage);
    kill_recover(stage);
    kill_pause(stage);
    stage->in_order = true;
    kill_check(stage, deaths, what);
    kill_resume(stage);
}

static uint64_t how_many(const char *variable, uint64_t usual)
{
    const char *text = getenv(variable);
    return text != NULL ? strtoull(text, NULL, 10) : usual;
}

#ifdef SHOAL_DEATH_POINTS

/* ---- at each point ---- */

static bool starts_processes(int step)
{
    return (kill_steps[step].flags & KILL_BY_VICTIM) != 0 || strncmp(kill_steps[step].name, "start_", 6) == 0;
}

static const char *armed;
static int left;
static end how_to_end;
static bool to_fork;

static void act(void)
{
    if (!to_fork) {
        end_now(how_to_end);
    }
    /* As a signal handler might that interrupts the library here. The child does not return from it. */
    pid_t pid = fork();
    if (pid == 0) {
        static const end ends[] = {EXIT, QUICK_EXIT, UNDERSCORE_EXIT, END_OF_TARGET};
        end_now(ends[(unsigned)how_to_end % 4]);
    }
    int status;
    while (pid > 0 && waitpid(pid, &status, 0) != pid) {
    }
}

/* Called by the thread that runs the steps. A busy thread beside it would end the process in the middle of them, and
 * they would fail. */
static void reached(const char *name)
{
    if (gettid() == getpid() && armed != NULL && strcmp(armed, name) == 0 && --left == 0) {
        armed = NULL; /* the end reaches points, too */
        act();
    }
}

static sh_a64 *counts;

static void count(const char *name)
{
    int point = kill_point_find(name);
    if (point >= 0) {
        sh_add_relaxed(&counts[point], 1);
    }
}

static void take_turns(kill_stage *stage, int step, uint64_t seed)
{
    int64_t deadline = sh_deadline(TIME);
    sh_store_release(&stage->board->doing, (uint32_t)step + 1);
    for (int i = 0; i < TURNS && !sh_passed(deadline); i++) {
        kill_steps[step].run(stage, &seed);
    }
}

static pid_t fork_victim(void)
{
    fflush(NULL);
    pid_t pid = kill_fork("victim");
    kill_require(pid >= 0, "fork: %s", shoal_last_error_text());
    if (pid == 0) {
        signal(SIGTERM, exit_now);
    }
    return pid;
}

/* Finds out which steps reach which points. Omits the slow steps, which start processes; the random ends cover them. */
static void dry_run(kill_stage *stage)
{
    for (int step = 0; step < kill_step_count; step++) {
        if (starts_processes(step)) {
            continue;
        }
        pid_t pid = fork_victim();
        if (pid == 0) {
            counts = stage->board->reached[step];
            sh_death_observe(count);
            take_turns(stage, step, stage->random);
            sh_death_observe(NULL);
            kill_exit(0);
        }
        int status = kill_reap(stage, pid);
        kill_require(status == 0, "dry run of %s: wait status 0x%x", kill_steps[step].name, status);
    }
}

/* Returns a step that reaches the point; -1 if none does. */
static int step_for(kill_stage *stage, int point)
{
    int found = -1, seen = 0;
    for (int step = 0; step < kill_step_count; step++) {
        if (sh_load_relaxed(&stage->board->reached[step][point]) != 0 &&
            sh_splitmix_below(&stage->random, (uint64_t)++seen) == 0) {
            found = step;
        }
    }
    return found;
}

static bool one_case(kill_stage *stage, int step, int point, end how, bool forks)
{
    char what[200];
    uint64_t seed = sh_splitmix_next(&stage->random);
    snprintf(what, sizeof what, "%s: %s at %s", kill_steps[step].name, forks ? "fork" : end_names[how],
             kill_point_name(point));
    pid_t pid = fork_victim();
    if (pid == 0) {
        armed = kill_point_name(point);
        left = 1;
        how_to_end = how;
        to_fork = forks;
        /* Forks: if there is a second thread, calls take the locks that fork takes. */
        start_threads(!forks ? how : point % 2 == 0 ? EXIT : EXIT_BESIDE_THREAD);
        sh_death_observe(reached);
        take_turns(stage, step, seed);
        sh_death_observe(NULL);
        if (!forks && how == FAIL_BESIDE_BUSY_THREAD) {
            sh_world_end(); /* kill_exit unmaps the world, which the busy thread still uses */
            _exit(0);
        }
        kill_exit(armed == NULL ? ENDED : 0);
    }
    int status = kill_reap(stage, pid);
    kill_require(WIFEXITED(status) && (WEXITSTATUS(status) == ENDED || WEXITSTATUS(status) == 0),
                 "%s: wait status 0x%x; %s", what, (unsigned)status, stage->board->failure);
    look_after(stage, forks ? 0 : 1, what);
    return WEXITSTATUS(status) == ENDED;
}

static void at_each_point(bool forks)
{
    kill_stage stage;
    int visited = 0, points = 0;
    kill_stage_begin(&stage, SURVIVORS, 0);
    dry_run(&stage);
    for (int point = 0; point < kill_point_count(); point++) {
        int step = step_for(&stage, point);
        if (step >= 0) {
            bool hit = one_case(&stage, step, point, (end)(forks ? point : point % ENDS), forks);
            if (!forks) {
                hit |= one_case(&stage, step, point, EXIT_IN_HANDLER, false);
            }
            visited += hit;
            points++;
        }
    }
    printf("%d of %d points %s\n", visited, points, forks ? "forked at" : "ended at");
    fflush(stdout);
    ck_assert_msg(points > 50 && visited >= points * 2 / 3, "only %d of %d points", visited, points);
    kill_stage_end(&stage);
}

START_TEST(every_end_at_every_point)
{
    at_each_point(false);
}
END_TEST

START_TEST(a_fork_at_every_point)
{
    at_each_point(true);
}
END_TEST

#endif

/* ---- at random ---- */

static void run_steps(kill_stage *stage, uint64_t *random, uint64_t steps, bool all)
{
    for (uint64_t i = 0; i < steps;) {
        uint32_t n = (uint32_t)sh_splitmix_below(random, (uint64_t)kill_step_count);
        if (kill_steps[n].flags == KILL_BY_ALL || (all && (kill_steps[n].flags & KILL_BY_HAND) == 0)) {
            sh_store_release(&stage->board->doing, n + 1);
            kill_steps[n].run(stage, random);
            i++;
        }
    }
}

static void wait_busily(int64_t ns)
{
    int64_t until = sh_now() + ns;
    while (sh_now() < until) {
        sh_pause();
    }
}

/* A process that gets a signal at any moment, and exits in the handler. */
START_TEST(random_ends)
{
    kill_stage stage;
    uint64_t ends = how_many("SHOAL_SOAK_ENDS", SH_REPEAT(300));
    kill_stage_begin(&stage, 2, 0);
    for (uint64_t n = 0; n < ends; n++) {
        char what[120];
        uint64_t seed = sh_splitmix_next(&stage.random);
        end how = sh_splitmix_below(&stage.random, 4) == 0 ? EXIT_BESIDE_THREAD : EXIT_IN_HANDLER;
        sh_store_release(&stage.board->doing, 0);
        fflush(NULL);
        pid_t pid = kill_fork("victim");
        kill_require(pid >= 0, "fork: %s", shoal_last_error_text());
        if (pid == 0) {
            signal(SIGTERM, exit_now);
            start_threads(how);
            run_steps(&stage, &seed, UINT64_MAX, how == EXIT_IN_HANDLER);
        }
        int64_t deadline = sh_deadline(SH_PATIENCE);
        while (sh_load_acquire(&stage.board->doing) == 0 && !sh_passed(deadline)) {
            sh_pause();
        }
        wait_busily((int64_t)sh_splitmix_below(&stage.random, DELAY_MAX));
        kill(pid, SIGTERM);
        int status = kill_reap(&stage, pid);
        uint32_t doing = sh_load_acquire(&stage.board->doing);
        snprintf(what, sizeof what, "end %llu, %s, in step %s", (unsigned long long)n, end_names[how],
                 doing == 0 ? "none" : kill_steps[doing - 1].name);
        kill_require(WIFEXITED(status), "%s: wait status 0x%x", what, (unsigned)status);
        look_after(&stage, 1, what);
    }
    printf("%llu ends\n", (unsigned long long)ends);
    kill_stage_end(&stage);
}
END_TEST

/* A member that forks without telling the library, with or without a working thread. Its children work too, and end in
 * all ways. */
static _Noreturn void be_parent(kill_stage *stage, uint64_t seed)
{
    uint64_t random = seed;
    signal(SIGTERM, exit_now);
    /* A fork may find a lock of the sanitizer's malloc taken by another thread, and the child waits for it for ever. */
    start_threads(sh_splitmix_below(&random, 2) != 0 ? EXIT : SH_SLOW ? EXIT_BESIDE_THREAD : FAIL_BESIDE_BUSY_THREAD);
    run_steps(stage, &random, 1 + sh_splitmix_below(&random, 4), false);
    uint64_t way = sh_splitmix_below(&random, ENDS + 2);
    pid_t pid = fork();
    if (pid == 0) {
        run_steps(stage, &random, sh_splitmix_below(&random, 6), false);
        if (way == ENDS) {
            execl("/bin/true", "true", (char *)NULL);
        } else if (way == ENDS + 1) {
            raise(SIGKILL);
        }
        end_now((end)(way % EXIT_BESIDE_THREAD));
    }
    run_steps(stage, &random, sh_splitmix_below(&random, 6), false);
    int status;
    while (pid > 0 && waitpid(pid, &status, 0) != pid) {
    }
    sh_world_end();
    _exit(ENDED);
}

START_TEST(random_forks)
{
    kill_stage stage;
    uint64_t forks = how_many("SHOAL_SOAK_FORKS", SH_REPEAT(300));
    kill_stage_begin(&stage, 2, 0);
    for (uint64_t n = 0; n < forks; n++) {
        char what[80];
        uint64_t seed = sh_splitmix_next(&stage.random);
        fflush(NULL);
        pid_t pid = kill_fork("parent");
        kill_require(pid >= 0, "fork: %s", shoal_last_error_text());
        if (pid == 0) {
            be_parent(&stage, seed);
        }
        int status = kill_reap(&stage, pid);
        snprintf(what, sizeof what, "fork %llu", (unsigned long long)n);
        kill_require(WIFEXITED(status) && WEXITSTATUS(status) == ENDED, "%s: wait status 0x%x", what, (unsigned)status);
        look_after(&stage, 1, what); /* sometimes a child is killed between two steps; the semaphore may be low then */
    }
    printf("%llu forks\n", (unsigned long long)forks);
    kill_stage_end(&stage);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("kill_ends");
    TCase *c = tcase_create("ends");
    bool soaks = getenv("SHOAL_SOAK_ENDS") != NULL || getenv("SHOAL_SOAK_FORKS") != NULL;
    tcase_set_timeout(c, soaks ? 86400 : SH_TEST_SECONDS);
    tcase_add_checked_fixture(c, sh_leaks_begin, sh_leaks_end);
#ifdef SHOAL_DEATH_POINTS
    tcase_add_test(c, every_end_at_every_point);
    tcase_add_test(c, a_fork_at_every_point);
#endif
    tcase_add_test(c, random_ends);
    tcase_add_test(c, random_forks);
    suite_add_tcase(s, c);
    return s;
}

SH_TEST_MAIN(suite)
