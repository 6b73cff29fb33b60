/* B40: a process is killed at each death point, in each step that reaches it, while others work on the same objects. */
#include "base/clock.h"
#include "base/death.h"
#include "base/random.h"
#include "shm/block.h"
#include "sync/barrier.h"
#include "tests/harness/kill.h"

#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#ifdef SHOAL_DEATH_POINTS

#define SURVIVORS 2
#define TURNS 60 /* of one step, to reach its point */
#define TIME SHOAL_MS(600)
#define WORK 3        /* steps that each survivor finishes after a death */
#define LATER_MAX 40  /* a process may also die the n-th time that it reaches a point */
#define LATER_STEPS 6 /* in this many of the steps that reach it */
#define ROUNDS 6      /* for points that were missed */
#define FORKS 8       /* turns of a step that forks or trims: slow ones */
#define STARTS 2      /* turns of a step that starts processes, or takes much memory: the slowest */

/* Checks for points that are reached only after a death; kill_recovery visits them. */
static bool is_of_recovery(const char *name)
{
    return strncmp(name, "recovery.", 9) == 0 || strcmp(name, "sync.lock.repaired") == 0 ||
           strcmp(name, "store.settle.dropped") == 0;
}

static bool is_start(int step)
{
    return strncmp(kill_steps[step].name, "start_", 6) == 0;
}

/* Checks for a step in which the victim's child may die instead of the victim. */
static bool has_child(int step)
{
    return (kill_steps[step].flags & KILL_BY_VICTIM) != 0 || is_start(step);
}

static sh_a64 *counts; /* of the step in the dry run */

static void observe(const char *name)
{
    int point = kill_point_find(name);
    if (point >= 0) {
        sh_add_relaxed(&counts[point], 1);
    }
}

/* Chooses what survivors do most during a step: the other side of it. */
static void favour(kill_stage *stage, int step)
{
    char other[32];
    uint32_t found = (uint32_t)step;
    snprintf(other, sizeof other, "%s", kill_steps[step].name);
    if (strncmp(other, "put_", 4) == 0 || strncmp(other, "get_", 4) == 0) {
        memcpy(other, other[0] == 'p' ? "get_" : "put_", 4);
    } else if (strcmp(other, "condition_notify") == 0) {
        snprintf(other, sizeof other, "condition_wait");
    }
    for (int i = 0; i < kill_step_count; i++) {
        found = strcmp(kill_steps[i].name, other) == 0 ? (uint32_t)i : found;
    }
    bool slow = has_child(step) || strcmp(other, "trim") == 0 || (kill_steps[step].flags & KILL_BY_HAND) != 0;
    sh_store_release(&stage->board->favour, slow ? 0 : found + 1);
}

static int turns_of(int step)
{
    const char *name = kill_steps[step].name;
    return is_start(step) || strcmp(name, "block_hoard") == 0 ? STARTS
           : has_child(step) || strcmp(name, "trim") == 0     ? FORKS
                                                              : TURNS;
}

/* Longer for points that were missed: on a busy machine the victim may take few turns in that time. */
static int64_t patience = TIME;

static void take_turns(kill_stage *stage, int step, uint64_t seed)
{
    int64_t deadline = sh_deadline(patience);
    sh_store_release(&stage->board->doing, (uint32_t)step + 1);
    for (int i = 0; i < turns_of(step) && !sh_passed(deadline); i++) {
        kill_steps[step].run(stage, &seed);
    }
}

/* Forks the victim. Half of the time there is a free slot below its own, so that a slot it reserves comes before it. */
static pid_t fork_victim(kill_stage *stage)
{
    pid_t before = -1;
    sh_store_release(&stage->board->go, 0);
    if (sh_splitmix_below(&stage->random, 2) == 0) {
        before = kill_fork("placeholder");
        if (before == 0) {
            pause();
            _exit(0);
        }
    }
    pid_t pid = kill_fork("victim");
    if (pid == 0) {
        while (sh_load_acquire(&stage->board->go) == 0) {
            sched_yield();
        }
        return 0;
    }
    kill_require(pid > 0, "fork: %s", shoal_last_error_text());
    if (before > 0) {
        kill(before, SIGKILL);
        kill_reap(stage, before);
        kill_recover(stage);
    }
    sh_store_release(&stage->board->go, 1);
    return pid;
}

/* Counts which points each step reaches while survivors work. */
static void dry_run(kill_stage *stage, bool starts)
{
    for (int step = 0; step < kill_step_count; step++) {
        if (is_start(step) != starts || !kill_step_is_chosen(step)) {
            continue;
        }
        favour(stage, step);
        pid_t pid = fork_victim(stage);
        if (pid == 0) {
            counts = stage->board->reached[step];
            sh_death_observe(observe);
            take_turns(stage, step, stage->random);
            sh_death_observe(NULL);
            kill_exit(0);
        }
        int status = kill_reap(stage, pid);
        kill_require(status == 0, "dry run of %s: wait status 0x%x", kill_steps[step].name, status);
        kill_reap_orphans(stage);
        kill_pause(stage);
        kill_check(stage, 0, kill_steps[step].name);
        kill_resume(stage);
    }
}

static _Noreturn void be_victim(kill_stage *stage, int step, int point, int count, uint64_t seed)
{
    char at[96];
    snprintf(at, sizeof at, "%s:%d", kill_point_name(point), count);
    setenv("SHOAL_KILL_AT", at, 1); /* for children that are started by exec */
    sh_death_arm(kill_point_name(point), count);
    take_turns(stage, step, seed);
    kill_exit(0);
}

/* Kills one process, if the step reaches the point this time. */
static bool one_case(kill_stage *stage, int step, int point, int count)
{
    char what[160];
    uint64_t seed = sh_splitmix_next(&stage->random);
    snprintf(what, sizeof what, "%s killed at %s (time %d)", kill_steps[step].name, kill_point_name(point), count);
    favour(stage, step);
    pid_t pid = fork_victim(stage);
    if (pid == 0) {
        be_victim(stage, step, point, count, seed);
    }
    int status = kill_reap(stage, pid);
    bool died = (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) ||
                (WIFEXITED(status) && WEXITSTATUS(status) == KILL_CHILD_DIED);
    kill_require(died || status == 0, "%s: wait status 0x%x; %s", what, status, stage->board->failure);
    kill_recover(stage);
    kill_let_work(stage, WORK);
    kill_reap_orphans(stage);
    kill_recover(stage);
    kill_pause(stage);
    kill_check(stage, died ? 1 + has_child(step) : 0, what);
    kill_resume(stage);
    if (getenv("SHOAL_KILL_TIMES") != NULL) { /* prints how long each takes */
        fprintf(stderr, "%.3f %s %s\n", (double)sh_now() / 1e9, what, died ? "died" : "-");
    }
    return died;
}

/* ---- stops ---- */

static kill_stage *told_stage;

static void tell_stop(void)
{
    sh_store_release(&told_stage->board->stopped, (uint32_t)getpid());
}

/* Waits until a process stops at the point, or the victim ends. Returns true if one stopped. */
static bool await_stop(kill_stage *stage, pid_t victim)
{
    int64_t deadline = sh_deadline(SH_PATIENCE);
    siginfo_t info = {.si_pid = 0};
    while (sh_load_acquire(&stage->board->stopped) == 0 && info.si_pid == 0) {
        kill_require(!sh_passed(deadline), "the victim neither stops nor ends");
        ck_assert_int_eq(waitid(P_PID, (id_t)victim, &info, WEXITED | WNOHANG | WNOWAIT), 0);
        sched_yield();
    }
    return sh_load_acquire(&stage->board->stopped) != 0;
}

/* A waiter of the condition cannot return before it has the lock again, which the stopped process may hold. */
static bool is_waited_for(int step)
{
    return strncmp(kill_steps[step].name, "condition_", 10) == 0;
}

/* Continues all processes that stop from now on, until the victim has ended. */
static void let_go(kill_stage *stage, pid_t victim)
{
    enum { MOST = 16 };
    pid_t stopped[MOST] = {0}; /* the latest: the victim waits for one child before it starts the next */
    int count = 0;
    int64_t deadline = sh_deadline(SH_PATIENCE);
    siginfo_t info = {.si_pid = 0};
    while (info.si_pid == 0) {
        pid_t pid = (pid_t)sh_swap_acq_rel(&stage->board->stopped, 0);
        if (pid != 0) {
            stopped[count++ % MOST] = pid;
        }
        for (int i = 0; i < MOST; i++) {
            if (stopped[i] != 0) {
                kill(stopped[i], SIGCONT); /* repeatedly, because it may not have stopped yet */
            }
        }
        kill_require(!sh_passed(deadline), "the victim does not end");
        ck_assert_int_eq(waitid(P_PID, (id_t)victim, &info, WEXITED | WNOHANG | WNOWAIT), 0);
        sched_yield();
    }
}

/* The victim, or its child, stops at the point until the others have finished some steps each; then it continues.
 * Nothing is lost, nothing is counted twice, and no process is taken for dead. A helper of recovery is killed, and
 * replaced, by its maker. */
static bool one_stop(kill_stage *stage, int step, int point)
{
    char what[160];
    uint64_t seed = sh_splitmix_next(&stage->random);
    snprintf(what, sizeof what, "%s stopped at %s", kill_steps[step].name, kill_point_name(point));
    favour(stage, step);
    sh_store_release(&stage->board->stopped, 0);
    told_stage = stage;
    pid_t pid = fork_victim(stage);
    if (pid == 0) {
        sh_death_arm_stop(kill_point_name(point), 1, tell_stop);
        take_turns(stage, step, seed);
        kill_exit(0);
    }
    bool stopped = await_stop(stage, pid);
    if (stopped && !is_waited_for(step)) {
        kill_let_work(stage, WORK);
    }
    let_go(stage, pid);
    int status = kill_reap(stage, pid);
    kill_require(status == 0, "%s: wait status 0x%x; %s", what, status, stage->board->failure);
    kill_reap_orphans(stage);
    kill_recover(stage);
    kill_pause(stage);
    kill_check(stage, 0, what);
    kill_resume(stage);
    return stopped;
}

/* Checks for points that only processes started by exec reach, where nothing counts them. */
static bool is_beyond_exec(int step, int point)
{
    const char *name = kill_point_name(point), *how = kill_steps[step].name;
    return (strcmp(name, "proc.spawned.armed") == 0 &&
            (strcmp(how, "start_spawn") == 0 || strcmp(how, "start_server") == 0)) ||
           (strcmp(name, "proc.server.forked") == 0 &&
            (strcmp(how, "start_server") == 0 || strcmp(how, "start_served") == 0)) ||
           (strcmp(name, "proc.program.begun") == 0 &&
            (strcmp(how, "start_program") == 0 || strcmp(how, "start_served") == 0));
}

/* Checks whether the sweep has to reach the point: the points of starting processes, or all others. Training has
 * separate tests. */
static bool is_wanted(int point, bool starts)
{
    const char *name = kill_point_name(point);
    return !is_of_recovery(name) && strncmp(name, "train.", 6) != 0 &&
           (strncmp(name, "proc.", 5) == 0 || strncmp(name, "pool.", 5) == 0) == starts;
}

/* Checks for a step in which a process is always killed. */
static bool has_killer(int step)
{
    return strcmp(kill_steps[step].name, "start_pool") == 0;
}

/* Visits every pair that the dry run found: the first time that the step reaches the point, and in some steps a later
 * time. With only_missing, visits those whose point has not killed any process yet. At each point a process also stops,
 * once. Returns how many died. */
static int visit(kill_stage *stage, bool starts, bool only_missing, int *visited, int *stops)
{
    int died = 0;
    for (int step = 0; step < kill_step_count; step++) {
        for (int point = 0; is_start(step) == starts && kill_step_is_chosen(step) && point < kill_point_count();
             point++) {
            uint64_t times = sh_load_relaxed(&stage->board->reached[step][point]) + is_beyond_exec(step, point);
            if (times == 0 || is_of_recovery(kill_point_name(point)) || (only_missing && visited[point] > 0)) {
                continue;
            }
            bool hit = one_case(stage, step, point, 1);
            if (times > 1 && visited[point] < LATER_STEPS) {
                uint64_t latest = times < LATER_MAX ? times : LATER_MAX;
                hit |= one_case(stage, step, point, 2 + (int)sh_splitmix_below(&stage->random, latest - 1));
            }
            visited[point] += hit;
            died += hit;
            if (stops[point] == 0 && !has_killer(step)) {
                stops[point] += one_stop(stage, step, point);
            }
        }
    }
    return died;
}

/* Lists the points that have not killed any process yet. */
static int list_missing(const int *visited, bool starts, char *out_names, size_t room)
{
    int missing = 0;
    out_names[0] = 0;
    for (int point = 0; point < kill_point_count(); point++) {
        if (visited[point] == 0 && is_wanted(point, starts)) {
            size_t used = strlen(out_names);
            snprintf(out_names + used, room - used, " %s", kill_point_name(point));
            missing++;
        }
    }
    return missing;
}

static void sweep(bool starts)
{
    kill_stage stage;
    int visited[KILL_POINTS_MAX] = {0}, stops[KILL_POINTS_MAX] = {0}, stopped = 0;
    char names[1024];
    kill_stage_begin(&stage, SURVIVORS, 0);
    dry_run(&stage, starts);
    int died = visit(&stage, starts, false, visited, stops),
        missing = list_missing(visited, starts, names, sizeof names);
    for (int round = 0; missing > 0 && round < ROUNDS && kill_step_is_chosen(-1);
         round++) { /* some points need other processes to interleave */
        patience *= 2;
        dry_run(&stage, starts);
        died += visit(&stage, starts, true, visited, stops);
        missing = list_missing(visited, starts, names, sizeof names);
    }
    for (int point = 0; point < kill_point_count(); point++) {
        stopped += stops[point] > 0;
    }
    printf("%d pairs of step and point visited, %llu processes recovered; stops at %d points\n", died,
           (unsigned long long)stage.recovered, stopped);
    fflush(stdout);
    ck_assert_msg(missing == 0 || !kill_step_is_chosen(-1), "nothing died at %d points:%s", missing, names);
    kill_stage_end(&stage);
}

START_TEST(every_point)
{
    sweep(false);
}
END_TEST

START_TEST(every_point_of_starting)
{
    sweep(true);
}
END_TEST

#else

START_TEST(points_are_compiled_out)
{
    printf("the death points are compiled out of this build; builds with SHOAL_DEATH_POINTS run the sweep\n");
}
END_TEST

#endif

/* B26 and B27: processes that wait for a dead one learn of it soon. Measured a few times, because the machine may be
 * busy: the best counts. */
#define PARTIES 3
#define TELL_LIMIT SHOAL_MS(100)
#define TRIALS 5

/* Waits at a barrier together with a process that is killed there.
 * Returns how long it took until the death was reported. */
static int64_t wait_beside_the_dead(shoal_barrier *barrier)
{
    pid_t party = kill_fork("party");
    kill_require(party >= 0, "fork: %s", shoal_last_error_text());
    uint32_t index;
    if (party == 0) {
        (void)!shoal_barrier_wait(barrier, SHOAL_FOREVER, &index);
        _exit(1);
    }
    pid_t killer = fork(); /* not a member of the world, so the barrier does not count it */
    if (killer == 0) {
        while (sh_barrier_waiting((sh_barrier_shm *)((shoal_block *)barrier)->data) != PARTIES - 1) {
            sched_yield();
        }
        kill(party, SIGKILL);
        _exit(0);
    }
    shoal_err err = shoal_barrier_wait(barrier, SH_PATIENCE, &index);
    int64_t told = sh_quiet_now();
    kill_require(err == SHOAL_EBROKEN, "beside a dead party: %s", shoal_err_name(err));
    ck_assert_int_eq(waitpid(killer, NULL, 0), killer);
    ck_assert_int_eq(waitpid(party, NULL, 0), party);
    return told;
}

START_TEST(dead_party_breaks_the_barrier)
{
    shoal_barrier *barrier;
    int64_t best = INT64_MAX;
    for (int i = 0; i < TRIALS && best >= TELL_LIMIT; i++) {
        ck_assert_ok(shoal_barrier_create(PARTIES, &barrier));
        int64_t begin = sh_quiet_now(), took = wait_beside_the_dead(barrier) - begin;
        best = took < best ? took : best;
        shoal_release(barrier);
    }
    ck_assert_msg(best < TELL_LIMIT, "reported after %lld ms", (long long)(best / 1000000));
}
END_TEST

#ifdef SHOAL_DEATH_POINTS
/* A producer dies between its put and the wake-up: recovery wakes the waiter long
 * before the waiter would check again. */
static int64_t receive_from_the_dead(shoal_queue *q, shoal_semaphore *got)
{
    pid_t consumer = kill_fork("consumer");
    kill_require(consumer >= 0, "fork: %s", shoal_last_error_text());
    if (consumer == 0) {
        char byte;
        size_t size;
        shoal_err err = shoal_queue_get_bytes(q, &byte, 1, SHOAL_FOREVER, &size);
        kill_exit(err == SHOAL_OK ? shoal_semaphore_post(got, 1) != SHOAL_OK : 1);
    }
    shoal_err err = shoal_semaphore_wait(got, SHOAL_MS(700)); /* by now it checks only every 640 ms */
    kill_require(err == SHOAL_ETIMEDOUT, "a message arrived that nobody sent");
    pid_t producer = kill_fork("producer");
    kill_require(producer >= 0, "fork: %s", shoal_last_error_text());
    if (producer == 0) {
        sh_death_arm("queue.put.before_wake", 1);
        (void)!shoal_queue_put_bytes(q, "x", 1, SHOAL_NOW);
        _exit(1);
    }
    ck_assert_int_eq(waitpid(producer, NULL, 0), producer);
    int64_t begin = sh_quiet_now();
    ck_assert_ok(shoal_world_sweep(NULL));
    ck_assert_ok(shoal_semaphore_wait(got, SH_PATIENCE));
    int64_t took = sh_quiet_now() - begin;
    ck_assert_int_eq(waitpid(consumer, NULL, 0), consumer);
    return took;
}

START_TEST(message_of_the_dead_arrives)
{
    shoal_queue *q;
    shoal_semaphore *got;
    int64_t best = INT64_MAX;
    ck_assert_ok(shoal_queue_create(0, &q));
    ck_assert_ok(shoal_semaphore_create(0, 0, &got));
    for (int i = 0; i < TRIALS && best >= TELL_LIMIT; i++) {
        int64_t took = receive_from_the_dead(q, got);
        best = took < best ? took : best;
    }
    ck_assert_msg(best < TELL_LIMIT, "reported after %lld ms", (long long)(best / 1000000));
    shoal_release(q);
    shoal_release(got);
}
END_TEST
#endif

START_TEST(dead_holder_hands_the_lock_on)
{
    shoal_lock *lock;
    ck_assert_ok(shoal_lock_create(&lock));
    for (int i = 0; i < 5; i++) {
        shoal_event *ready;
        ck_assert_ok(shoal_event_create(&ready));
        pid_t pid = kill_fork("holder");
        ck_assert_int_ge(pid, 0);
        if (pid == 0) {
            shoal_err err = shoal_lock_lock(lock, SH_PATIENCE);
            if (err == SHOAL_OK) {
                shoal_event_set(ready);
                pause();
            }
            _exit(1);
        }
        ck_assert_ok(shoal_event_wait(ready, SH_PATIENCE));
        kill(pid, SIGKILL);
        ck_assert_ok(shoal_lock_lock(lock, SH_PATIENCE));
        ck_assert(shoal_lock_owner_died(lock));
        ck_assert_ok(shoal_lock_mark_consistent(lock));
        ck_assert_ok(shoal_lock_unlock(lock));
        ck_assert_ok(shoal_lock_lock_consistent(lock, SHOAL_NOW));
        ck_assert_ok(shoal_lock_unlock(lock));
        ck_assert_int_eq(waitpid(pid, NULL, 0), pid);
        ck_assert_ok(shoal_world_sweep(NULL));
        shoal_release(ready);
    }
    shoal_release(lock);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("kill_sweep");
    TCase *c = tcase_create("sweep");
    tcase_set_timeout(c, 2 * SH_TEST_SECONDS);
    tcase_add_checked_fixture(c, sh_leaks_begin, sh_leaks_end);
#ifdef SHOAL_DEATH_POINTS
    tcase_add_test(c, every_point);
    tcase_add_test(c, every_point_of_starting);
#else
    tcase_add_test(c, points_are_compiled_out);
#endif
    suite_add_tcase(s, c);
    TCase *told = tcase_create("told");
    tcase_set_timeout(told, SH_TEST_SECONDS);
    tcase_add_checked_fixture(told, sh_leaks_begin, sh_leaks_end);
    tcase_add_test(told, dead_party_breaks_the_barrier);
#ifdef SHOAL_DEATH_POINTS
    tcase_add_test(told, message_of_the_dead_arrives);
#endif
    tcase_add_test(told, dead_holder_hands_the_lock_on);
    suite_add_tcase(s, told);
    return s;
}

int main(int argc, char **argv)
{
    kill_arm_from_environment();
    kill_be_program();
    return sh_test_main(argc, argv, suite);
}
