/* B41: recovery is killed at each of its points, and the recovery of that once more. B43: who is dead, and who is not. */
#include "base/clock.h"
#include "base/death.h"
#include "base/random.h"
#include "os/process.h"
#include "shm/slot.h"
#include "testing/kill.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#ifdef SHOAL_DEATH_POINTS

#define SURVIVORS 1 /* it rests while recovery is killed: else it would finish it */
#define TURNS 40
#define NOBODY (-1)

/* A way to die: the step and the point. */
typedef struct scenario {
    int step, point;
} scenario;

static sh_a64 *counts;

static void observe(const char *name)
{
    int point = kill_point_find(name);
    if (point >= 0) {
        sh_add_relaxed(&counts[point], 1);
    }
}

static bool is_usable(int step)
{
    return (kill_steps[step].flags & KILL_BY_HAND) == 0 || strcmp(kill_steps[step].name, "spans") == 0;
}

static void take_turns(kill_stage *stage, int step, uint64_t seed)
{
    int64_t deadline = sh_deadline(SHOAL_MS(100));
    sh_store_release(&stage->board->doing, (uint32_t)step + 1);
    for (int i = 0; i < TURNS && !sh_passed(deadline); i++) {
        kill_steps[step].run(stage, &seed);
    }
}

static pid_t fork_member(const char *name)
{
    pid_t pid = kill_fork(name);
    kill_require(pid >= 0, "fork: %s", shoal_last_error_text());
    return pid;
}

/* Which steps come to which points when they are alone. Messages for the gets are there. */
static void dry_run(kill_stage *stage)
{
    for (int step = 0; step < kill_step_count; step++) {
        if (!is_usable(step)) {
            continue;
        }
        pid_t pid = fork_member("dry");
        if (pid == 0) {
            counts = stage->board->reached[step];
            sh_death_observe(observe);
            take_turns(stage, step, stage->random);
            sh_death_observe(NULL);
            kill_exit(0);
        }
        ck_assert_int_eq(kill_reap(stage, pid), 0);
        kill_reap_orphans(stage);
        kill_check(stage, 0, kill_steps[step].name);
    }
}

/* Some step that comes to the point; NOBODY when none does. */
static int step_for(kill_stage *stage, int point)
{
    int found = NOBODY, seen = 0;
    for (int step = 0; step < kill_step_count; step++) {
        if (sh_load_relaxed(&stage->board->reached[step][point]) != 0 &&
            sh_random_below(&stage->random, (uint64_t)++seen) == 0) {
            found = step;
        }
    }
    return found;
}

static void fill_channels(kill_stage *stage)
{
    for (int i = 0; i < KILL_CHANNELS; i++) {
        for (int n = 0; n < 6; n++) {
            kill_put(stage, (kill_channel)i, &stage->random);
        }
    }
}

/* The first death. False when the step did not come to the point this time. */
static bool die(kill_stage *stage, scenario s)
{
    uint64_t seed = sh_random_next(&stage->random);
    fill_channels(stage);
    pid_t pid = fork_member("victim");
    if (pid == 0) {
        sh_death_arm(kill_point_name(s.point), 1);
        take_turns(stage, s.step, seed);
        kill_exit(0);
    }
    int status = kill_reap(stage, pid);
    return WIFSIGNALED(status) || (WIFEXITED(status) && WEXITSTATUS(status) == KILL_CHILD_DIED);
}

/* A recoverer that dies at the count-th time that it comes to the point, or finishes. NOBODY: it counts. True: it died. */
static bool recover_armed(kill_stage *stage, int point, int count, sh_a64 *out_counts)
{
    pid_t pid = fork_member("recoverer");
    if (pid == 0) {
        if (point != NOBODY) {
            sh_death_arm(kill_point_name(point), count);
        } else {
            counts = out_counts;
            sh_death_observe(observe);
        }
        (void)!shoal_world_sweep(NULL);
        sh_death_observe(NULL);
        kill_exit(0);
    }
    int status = kill_reap(stage, pid);
    kill_require(status == 0 || (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL), "recoverer: status 0x%x", status);
    return status != 0;
}

static void finish(kill_stage *stage, int deaths, const char *what)
{
    kill_recover(stage);
    kill_reap_orphans(stage);
    kill_recover(stage);
    kill_check(stage, deaths, what);
}

/* The death, then recoverers that die at the points, one after the other; a point of NOBODY ends the row. */
static bool die_and_recover(kill_stage *stage, scenario s, const int *points, int count)
{
    char what[256];
    snprintf(what, sizeof what, "%s killed at %s; recovery killed at %s (time %d)%s%s", kill_steps[s.step].name,
             kill_point_name(s.point), kill_point_name(points[0]), count, points[1] != NOBODY ? ", then at " : "",
             points[1] != NOBODY ? kill_point_name(points[1]) : "");
    if (!die(stage, s)) {
        finish(stage, 0, what);
        return false;
    }
    bool died = recover_armed(stage, points[0], count, NULL);
    if (points[1] != NOBODY) {
        recover_armed(stage, points[1], 1, NULL);
    }
    finish(stage, 2, what); /* the victim, and perhaps its child */
    return died;
}

/* All points that the recovery of this death comes to, each as the place where recovery dies; also two deep. */
static int visit(kill_stage *stage, scenario s, int *visited)
{
    static sh_a64 *reached; /* by recovery; shared with the recoverer */
    int died = 0;
    if (reached == NULL) {
        reached = stage->board->reached[KILL_STEPS_MAX - 1];
    }
    memset(reached, 0, sizeof stage->board->reached[0]);
    if (!die(stage, s)) {
        finish(stage, 0, "a dry run of recovery");
        return 0;
    }
    recover_armed(stage, NOBODY, 0, reached);
    finish(stage, 2, "a dry run of recovery");
    for (int point = 0; point < kill_point_count(); point++) {
        uint64_t times = sh_load_relaxed(&reached[point]);
        if (times == 0) {
            continue;
        }
        int count = times > 1 && sh_random_below(&stage->random, 2) == 0
                        ? 2 + (int)sh_random_below(&stage->random, times - 1)
                        : 1;
        int second = (int)sh_random_below(&stage->random, (uint64_t)kill_point_count());
        bool deep = sh_load_relaxed(&reached[second]) != 0;
        if (die_and_recover(stage, s, (const int[]){point, deep ? second : NOBODY}, count)) {
            visited[point]++;
            died++;
        }
    }
    return died;
}

static void report(const int *visited, int died)
{
    int missing = 0;
    char names[512] = "";
    for (int point = 0; point < kill_point_count(); point++) {
        if (visited[point] == 0 && strncmp(kill_point_name(point), "recovery.", 9) == 0) {
            missing++;
            snprintf(names + strlen(names), sizeof names - strlen(names), " %s", kill_point_name(point));
        }
    }
    printf("recovery was killed %d times\n", died);
    fflush(stdout);
    kill_require(missing == 0, "%d points of recovery were never died at:%s", missing, names);
}

START_TEST(recovery_killed_at_each_point)
{
    kill_stage stage;
    int visited[KILL_POINTS_MAX] = {0}, died = 0;
    kill_stage_begin(&stage, SURVIVORS, 0);
    kill_pause(&stage);
    fill_channels(&stage);
    dry_run(&stage);
    for (int point = 0; point < kill_point_count(); point++) {
        int step = step_for(&stage, point);
        if (step != NOBODY) {
            died += visit(&stage, (scenario){.step = step, .point = point}, visited);
        }
    }
    report(visited, died);
    kill_resume(&stage);
    kill_stage_end(&stage);
}
END_TEST

#else

START_TEST(points_are_compiled_out)
{
    printf(
        "the death points are compiled out of this build: recovery is swept in the builds with SHOAL_DEATH_POINTS\n");
}
END_TEST

#endif

/* ---- who is dead ---- */

static uint32_t slot_of(pid_t pid)
{
    uint32_t used = sh_load_acquire(&sh_the_world.header->slots_used);
    for (uint32_t i = 0; i < used; i++) {
        if ((pid_t)sh_load_acquire(&sh_slot_at(i)->pid) == pid) {
            return i;
        }
    }
    ck_abort_msg("process %d has no slot", (int)pid);
    return 0;
}

/* A member that holds the lock and sleeps, until it is killed or the event is set. */
static pid_t fork_holder(shoal_lock *lock, shoal_event *ready, shoal_event *end)
{
    shoal_event_clear(ready);
    pid_t pid = kill_fork("holder");
    kill_require(pid >= 0, "fork: %s", shoal_last_error_text());
    if (pid == 0) {
        shoal_err err = shoal_lock_lock(lock, SHOAL_SECONDS(20));
        if (err == SHOAL_OK) {
            shoal_event_set(ready);
            err = shoal_event_wait(end, SHOAL_SECONDS(60));
        }
        if (err == SHOAL_OK) {
            err = shoal_lock_unlock(lock);
        }
        kill_exit(err == SHOAL_OK ? 0 : 1);
    }
    ck_assert_ok(shoal_event_wait(ready, SHOAL_SECONDS(20)));
    return pid;
}

static uint32_t sweep(void)
{
    uint32_t n = 0;
    ck_assert_ok(shoal_world_sweep(&n));
    return n;
}

typedef struct things {
    shoal_lock *lock;
    shoal_event *ready, *end;
} things;

static things make_things(void)
{
    things t;
    ck_assert_ok(shoal_lock_create(&t.lock));
    ck_assert_ok(shoal_event_create(&t.ready));
    ck_assert_ok(shoal_event_create(&t.end));
    return t;
}

static void release_things(things t)
{
    shoal_release(t.lock);
    shoal_release(t.ready);
    shoal_release(t.end);
}

static void expect_exit(pid_t pid)
{
    int status;
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert_int_eq(status, 0);
}

/* The kernel has given the dead process's pid to another one, which runs: us. */
START_TEST(pid_of_the_dead_is_reused)
{
    things t = make_things();
    pid_t pid = fork_holder(t.lock, t.ready, t.end);
    sh_slot_shm *slot = sh_slot_at(slot_of(pid));
    uint64_t start = sh_load_relaxed(&slot->start);
    ck_assert_uint_eq(start, sh_process_start_time(pid));
    kill(pid, SIGKILL);
    ck_assert_int_eq(waitpid(pid, NULL, 0), pid);
    sh_store_release(&slot->pid, (uint32_t)getpid());
    sh_store_release(&slot->start, sh_process_start_time(getpid()) - 1);
    ck_assert_uint_eq(sweep(), 1);
    ck_assert_err(shoal_lock_lock(t.lock, SHOAL_SECONDS(1)), SHOAL_EOWNERDEAD);
    ck_assert_ok(shoal_lock_unlock(t.lock));
    release_things(t);
}
END_TEST

START_TEST(stopped_is_not_dead)
{
    things t = make_things();
    int status;
    pid_t pid = fork_holder(t.lock, t.ready, t.end);
    kill(pid, SIGSTOP);
    ck_assert_int_eq(waitpid(pid, &status, WUNTRACED), pid);
    ck_assert(WIFSTOPPED(status));
    for (int i = 0; i < 20; i++) {
        ck_assert_uint_eq(sweep(), 0);
    }
    ck_assert_err(shoal_lock_lock(t.lock, SHOAL_MS(200)), SHOAL_ETIMEDOUT);
    sh_assert_audit("beside a stopped process");
    kill(pid, SIGCONT);
    shoal_event_set(t.end);
    expect_exit(pid);
    ck_assert_ok(shoal_lock_lock(t.lock, SHOAL_SECONDS(1)));
    ck_assert_ok(shoal_lock_unlock(t.lock));
    release_things(t);
}
END_TEST

/* Closing any fd of the world's file drops a process's mark; then its pid and start time speak for it. */
START_TEST(unmarked_is_not_dead)
{
    things t = make_things();
    pid_t pid = fork_holder(t.lock, t.ready, t.end);
    uint32_t index = slot_of(pid);
    shoal_event_clear(t.ready);
    pid_t other = kill_fork("unmarked");
    ck_assert_int_ge(other, 0);
    if (other == 0) {
        close(dup(sh_the_world.fd));
        shoal_event_set(t.ready);
        kill_exit(shoal_event_wait(t.end, SHOAL_SECONDS(60)) == SHOAL_OK ? 0 : 1);
    }
    ck_assert_ok(shoal_event_wait(t.ready, SHOAL_SECONDS(20)));
    ck_assert(!sh_life_marked(sh_the_world.fd, slot_of(other)));
    ck_assert(sh_life_marked(sh_the_world.fd, index));
    ck_assert_uint_eq(sweep(), 0);
    shoal_event_set(t.end);
    expect_exit(pid);
    expect_exit(other);
    ck_assert_uint_eq(sweep(), 0);
    release_things(t);
}
END_TEST

/* Slots are used again, in lives that can be told apart: a lock word of an earlier life names nobody. */
START_TEST(lives_of_a_slot)
{
    things t = make_things();
    uint32_t first = 0;
    for (int i = 0; i < 20; i++) {
        pid_t pid = fork_holder(t.lock, t.ready, t.end);
        uint32_t index = slot_of(pid);
        first = i == 0 ? index : first;
        ck_assert_uint_eq(index, first);
        kill(pid, SIGKILL);
        ck_assert_int_eq(waitpid(pid, NULL, 0), pid);
        ck_assert_uint_eq(sweep(), 1);
        ck_assert_err(shoal_lock_lock(t.lock, SHOAL_NOW), SHOAL_EOWNERDEAD);
        ck_assert_ok(shoal_lock_unlock(t.lock));
    }
    release_things(t);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("kill_recovery");
    TCase *c = tcase_create("recovery");
    tcase_set_timeout(c, 3 * SH_TEST_SECONDS);
    tcase_add_checked_fixture(c, sh_leaks_begin, sh_leaks_end);
#ifdef SHOAL_DEATH_POINTS
    tcase_add_test(c, recovery_killed_at_each_point);
#else
    tcase_add_test(c, points_are_compiled_out);
#endif
    suite_add_tcase(s, c);
    TCase *dead = tcase_create("dead");
    tcase_set_timeout(dead, SH_TEST_SECONDS);
    tcase_add_checked_fixture(dead, sh_leaks_begin, sh_leaks_end);
    tcase_add_test(dead, pid_of_the_dead_is_reused);
    tcase_add_test(dead, stopped_is_not_dead);
    tcase_add_test(dead, unmarked_is_not_dead);
    tcase_add_test(dead, lives_of_a_slot);
    suite_add_tcase(s, dead);
    return s;
}

SH_TEST_MAIN(suite)
