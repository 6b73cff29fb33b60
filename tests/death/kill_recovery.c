/* B41: recovery is killed or stopped at each of its points, and so is the recovery of that recovery. */
#include "base/clock.h"
#include "base/death.h"
#include "base/random.h"
#include "os/pid.h"
#include "shm/block.h"
#include "shm/slot.h"
#include "sync/barrier.h"
#include "tests/death/kill_judgement.h"
#include "tests/harness/kill.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#ifdef SHOAL_DEATH_POINTS

#define SURVIVORS 1 /* it pauses while recovery is killed; otherwise it would finish the recovery */
#define TURNS 40
#define NOBODY (-1)
#define ROUNDS 4 /* over all points, if some are missed */

/* How the victim dies: the step and the point. */
typedef struct scenario {
    int step, point;
} scenario;

static sh_a64 *counts;
#define BY_ITSELF (UINT64_C(1) << 32) /* added to a count: not in a helper of recovery */

static void observe(const char *name)
{
    int point = kill_point_find(name);
    if (point >= 0) {
        sh_add_relaxed(&counts[point], sh_recovery_is_helper() ? 1 : 1 + BY_ITSELF);
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

/* Finds out which steps reach which points when they run alone. The gets find messages. */
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

/* Returns a step that reaches the point; NOBODY if none does. */
static int step_for(kill_stage *stage, int point)
{
    int found = NOBODY, seen = 0;
    for (int step = 0; step < kill_step_count; step++) {
        if (sh_load_relaxed(&stage->board->reached[step][point]) != 0 &&
            sh_splitmix_below(&stage->random, (uint64_t)++seen) == 0) {
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

/* The first death. Returns false if the step did not reach the point this time. */
static bool die(kill_stage *stage, scenario s)
{
    uint64_t seed = sh_splitmix_next(&stage->random);
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

/* What happens to a recoverer at a point. */
typedef enum fate {
    DIES_ITSELF,  /* if the system cannot make helpers: the recovering process dies, and another one continues */
    HELPER_DIES,  /* its maker continues */
    HELPER_STOPS, /* its maker kills it and continues */
    FATES,
} fate;

/* In a recoverer: sweeps. No dead process remains, even if a helper was lost on the way. */
static _Noreturn void sweep_on(void)
{
    int64_t begin = sh_quiet_now();
    bool swept = shoal_world_sweep(NULL) == SHOAL_OK;
    sh_death_observe(NULL);
    kill_disarm();
    /* Waiting for a stopped helper would take forever. */
    bool late = sh_quiet_now() - begin > SHOAL_SECONDS(SH_SLOW ? 20 : 5);
    kill_exit(!swept || late ? 1 : sh_recovery_lost > 0 ? KILL_CHILD_DIED : 0);
}

/* Runs a recoverer that meets its fate when it reaches the point for the count-th time, or finishes. NOBODY as point
 * only counts. Returns whether it met its fate. */
static bool recover_armed(kill_stage *stage, int point, int count, fate how, sh_a64 *out_counts)
{
    pid_t pid = fork_member("recoverer");
    if (pid == 0) {
        sh_recovery_is_own = how == DIES_ITSELF;
        if (point == NOBODY) {
            counts = out_counts;
            sh_death_observe(observe);
        } else if (how == HELPER_STOPS) {
            sh_death_arm_stop(kill_point_name(point), count, NULL);
        } else {
            sh_death_arm(kill_point_name(point), count);
        }
        sweep_on();
    }
    int status = kill_reap(stage, pid);
    bool died = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
    bool lost = WIFEXITED(status) && WEXITSTATUS(status) == KILL_CHILD_DIED;
    kill_require(status == 0 || (how == DIES_ITSELF ? died : lost), "recoverer (%d): status 0x%x", (int)how, status);
    return status != 0;
}

static void finish(kill_stage *stage, int deaths, const char *what)
{
    kill_recover(stage);
    kill_reap_orphans(stage);
    kill_recover(stage);
    kill_check(stage, deaths, what);
}

/* Kills the victim, then recoverers at the points, one after the other; a point of NOBODY ends the list. */
static bool die_and_recover(kill_stage *stage, scenario s, const int *points, int count, fate how)
{
    static const char *const names[FATES] = {"recovery killed", "helper killed", "helper stopped"};
    char what[256];
    snprintf(what, sizeof what, "%s killed at %s; %s at %s (time %d)%s%s", kill_steps[s.step].name,
             kill_point_name(s.point), names[how], kill_point_name(points[0]), count,
             points[1] != NOBODY ? ", then at " : "", points[1] != NOBODY ? kill_point_name(points[1]) : "");
    if (!die(stage, s)) {
        finish(stage, 0, what);
        return false;
    }
    bool died = recover_armed(stage, points[0], count, how, NULL);
    if (points[1] != NOBODY) {
        recover_armed(stage, points[1], 1, how, NULL);
    }
    finish(stage, 2, what); /* the victim, and possibly its child */
    return died;
}

/* Kills recovery at every point that the recovery of this death reaches; also two deep. */
static int visit(kill_stage *stage, scenario s, int (*visited)[FATES])
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
    recover_armed(stage, NOBODY, 0, HELPER_DIES, reached);
    finish(stage, 2, "a dry run of recovery");
    for (int point = 0; point < kill_point_count(); point++) {
        uint64_t times = (uint32_t)sh_load_relaxed(&reached[point]);
        bool by_helper = sh_load_relaxed(&reached[point]) < BY_ITSELF;
        if (times == 0) {
            continue;
        }
        int count = times > 1 && sh_splitmix_below(&stage->random, 2) == 0
                        ? 2 + (int)sh_splitmix_below(&stage->random, times - 1)
                        : 1;
        int second = (int)sh_splitmix_below(&stage->random, (uint64_t)kill_point_count());
        bool deep = sh_load_relaxed(&reached[second]) != 0 && sh_load_relaxed(&reached[second]) < BY_ITSELF;
        fate how = visited[point][DIES_ITSELF] == 0    ? DIES_ITSELF
                   : !by_helper                        ? DIES_ITSELF /* it tidies the store after recovery */
                   : visited[point][HELPER_DIES] == 0  ? HELPER_DIES
                   : visited[point][HELPER_STOPS] == 0 ? HELPER_STOPS
                                                       : (fate)sh_splitmix_below(&stage->random, FATES);
        if (die_and_recover(stage, s, (const int[]){point, deep ? second : NOBODY}, count, how)) {
            visited[point][how]++;
            died++;
        }
    }
    return died;
}

static bool is_missing(int (*visited)[FATES], int point)
{
    const char *name = kill_point_name(point);
    return (strncmp(name, "recovery.", 9) == 0 &&
            (visited[point][DIES_ITSELF] == 0 || visited[point][HELPER_DIES] == 0 ||
             visited[point][HELPER_STOPS] == 0)) ||
           (strcmp(name, "store.settle.dropped") == 0 && visited[point][DIES_ITSELF] == 0);
}

static int missing(int (*visited)[FATES], char *names, size_t size)
{
    int count = 0;
    names[0] = 0;
    for (int point = 0; point < kill_point_count(); point++) {
        if (is_missing(visited, point)) {
            count++;
            snprintf(names + strlen(names), size - strlen(names), " %s", kill_point_name(point));
        }
    }
    return count;
}

static void report(int (*visited)[FATES], int died)
{
    char names[512];
    int count = missing(visited, names, sizeof names);
    printf("recovery was killed or stopped %d times\n", died);
    fflush(stdout);
    kill_require(count == 0, "recovery was never killed at %d points:%s", count, names);
}

START_TEST(recovery_killed_at_each_point)
{
    kill_stage stage;
    int visited[KILL_POINTS_MAX][FATES] = {{0}}, died = 0;
    char names[512];
    kill_stage_begin(&stage, SURVIVORS, 0);
    kill_pause(&stage);
    fill_channels(&stage);
    dry_run(&stage);
    for (int n = 0; n < ROUNDS * kill_point_count(); n++) { /* other steps, while a point is missing */
        int point = n % kill_point_count(), step = step_for(&stage, point);
        if (n >= kill_point_count() && missing(visited, names, sizeof names) == 0) {
            break;
        }
        if (step != NOBODY) {
            died += visit(&stage, (scenario){.step = step, .point = point}, visited);
        }
    }
    report(visited, died);
    kill_resume(&stage);
    kill_stage_end(&stage);
}
END_TEST

/* The helper is stopped, and so is its maker, which could have killed it. Then a process that waits for something of
 * the dead process kills the helper. */
static void stop_maker(void)
{
    kill(getppid(), SIGSTOP);
}

static pid_t fork_stopped_recoverer(kill_stage *stage, const char *point)
{
    int status;
    pid_t pid = fork_member("recoverer");
    if (pid == 0) {
        sh_death_arm_stop(point, 1, stop_maker);
        sweep_on();
    }
    ck_assert_int_eq(waitpid(pid, &status, WUNTRACED), pid);
    kill_require(WIFSTOPPED(status), "%s: the recoverer has status 0x%x", point, status);
    (void)stage;
    return pid;
}

/* Forks a member that holds an end of a pipe, waits at a barrier, and dies there. */
static void die_with(shoal_pipe *end, shoal_barrier *barrier)
{
    pid_t pid = fork_member("victim");
    if (pid == 0) {
        uint32_t index;
        (void)!shoal_barrier_wait(barrier, SHOAL_FOREVER, &index);
        _exit(shoal_pipe_send_bytes(end, "x", 1, SHOAL_NOW) == SHOAL_OK);
    }
    while (sh_barrier_waiting((sh_barrier_shm *)((shoal_block *)barrier)->data) == 0) {
        sched_yield();
    }
    kill(pid, SIGKILL);
    ck_assert_int_eq(waitpid(pid, NULL, 0), pid);
}

static void wait_beside_a_stopped_recoverer(kill_stage *stage, const char *point)
{
    shoal_pipe *ours, *theirs;
    shoal_barrier *barrier;
    char byte;
    size_t size;
    uint32_t index;
    int status;
    ck_assert_ok(shoal_pipe_create(true, &ours, &theirs));
    ck_assert_ok(shoal_barrier_create(2, &barrier));
    die_with(theirs, barrier);
    shoal_release(theirs);
    pid_t recoverer = fork_stopped_recoverer(stage, point);
    int64_t begin = sh_quiet_now();
    kill_require(shoal_pipe_recv_bytes(ours, &byte, 1, SH_PATIENCE, &size) == SHOAL_ECLOSED, "%s: recv: %s", point,
                 shoal_last_error_text());
    kill_require(shoal_barrier_wait(barrier, SH_PATIENCE, &index) == SHOAL_EBROKEN, "%s: the barrier", point);
    int64_t took = sh_quiet_now() - begin;
    kill_require(took < SHOAL_SECONDS(SH_SLOW ? 20 : 5), "%s: it took %lld ms", point, (long long)(took / 1000000));
    kill(recoverer, SIGCONT);
    ck_assert_int_eq(waitpid(recoverer, &status, 0), recoverer);
    kill_require(WIFEXITED(status) && (WEXITSTATUS(status) == 0 || WEXITSTATUS(status) == KILL_CHILD_DIED),
                 "%s: the recoverer ended with 0x%x", point, status);
    kill_recover(stage);
    sh_assert_audit(point);
    shoal_release(ours);
    shoal_release(barrier);
}

START_TEST(a_stopped_recoverer_is_replaced)
{
    static const char *const points[] = {"recovery.right.taken", "recovery.marked", "recovery.drained",
                                         "recovery.holders.told", "recovery.released"};
    kill_stage stage;
    kill_stage_begin(&stage, 0, 0);
    for (size_t i = 0; i < sizeof points / sizeof points[0]; i++) {
        wait_beside_a_stopped_recoverer(&stage, points[i]);
    }
    kill_stage_end(&stage);
}
END_TEST

/* A helper has several dead processes to recover, and is killed at the third. The next helper recovers that one and the
 * rest. */
START_TEST(a_killed_helper_leaves_the_rest_to_the_next)
{
    enum { DEAD = 5 };
    kill_stage stage;
    uint32_t lost = sh_recovery_lost;
    kill_stage_begin(&stage, 0, 0);
    for (int i = 0; i < DEAD; i++) {
        pid_t victim = fork_member("victim");
        if (victim == 0) {
            raise(SIGKILL);
        }
        ck_assert_int_eq(waitpid(victim, NULL, 0), victim);
    }
    sh_death_arm("recovery.drained", 3); /* a helper shares this process's memory */
    uint32_t recovered = 0;
    ck_assert_ok(shoal_world_sweep(&recovered));
    sh_death_arm(NULL, 0);
    ck_assert_uint_eq(recovered, DEAD);
    ck_assert_uint_eq(sh_recovery_lost - lost, 1);
    sh_assert_audit("after the second helper");
    kill_stage_end(&stage);
}
END_TEST

static sh_a32 *halted; /* 0: nobody has come to halt; 1: a helper waits there; 2: it may go on */

static void halt(const char *name)
{
    if (strcmp(name, "recovery.drained") == 0 && sh_load_acquire(halted) == 0) {
        sh_store_release(halted, 1u);
        while (sh_load_acquire(halted) != 2) {
            sched_yield();
        }
    }
}

/* A recoverer that cannot open files does not know its own start time. Others must see all the same that it lives. */
START_TEST(a_recoverer_without_a_start_time_is_alone)
{
    kill_stage stage;
    int status;
    uint32_t recovered = 0;
    halted = mmap(NULL, sizeof *halted, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ck_assert_ptr_ne(halted, MAP_FAILED);
    kill_stage_begin(&stage, 0, 0);
    pid_t victim = fork_member("victim");
    if (victim == 0) {
        raise(SIGKILL);
    }
    ck_assert_int_eq(waitpid(victim, NULL, 0), victim);
    pid_t recoverer = fork_member("recoverer");
    if (recoverer == 0) {
        struct rlimit none = {.rlim_cur = STDERR_FILENO + 1, .rlim_max = STDERR_FILENO + 1};
        sh_death_observe(halt);
        kill_exit(setrlimit(RLIMIT_NOFILE, &none) == 0 && shoal_world_sweep(&recovered) == SHOAL_OK ? (int)recovered
                                                                                                    : 9);
    }
    while (sh_load_acquire(halted) != 1) {
        sched_yield();
    }
    ck_assert_ok(shoal_world_sweep(&recovered));
    ck_assert_uint_eq(recovered, 0);
    sh_store_release(halted, 2u);
    ck_assert_int_eq(waitpid(recoverer, &status, 0), recoverer);
    kill_require(WIFEXITED(status) && WEXITSTATUS(status) == 1, "the recoverer ended with 0x%x", status);
    kill_recover(&stage);
    kill_stage_end(&stage);
    munmap(halted, sizeof *halted);
}
END_TEST

/* A process is killed while its helper is stopped. The helper must not keep the files of its maker open: a card ends
 * the work of a process when the last of its files is closed, and for the others the maker is dead as soon as it has
 * ended. */
START_TEST(a_helper_keeps_no_file_of_its_maker)
{
    kill_stage stage;
    int ends[2];
    kill_stage_begin(&stage, 0, 0);
    pid_t victim = fork_member("victim");
    if (victim == 0) {
        raise(SIGKILL);
    }
    ck_assert_int_eq(waitpid(victim, NULL, 0), victim);
    ck_assert_int_eq(pipe2(ends, O_CLOEXEC), 0);
    pid_t recoverer = fork_stopped_recoverer(&stage, "recovery.right.taken");
    close(ends[1]);
    kill(recoverer, SIGKILL);
    ck_assert_int_eq(waitpid(recoverer, NULL, 0), recoverer);
    struct pollfd far = {.fd = ends[0]};
    kill_require(poll(&far, 1, 0) == 1 && (far.revents & POLLHUP) != 0, "the helper has its maker's end of the pipe");
    close(ends[0]);
    kill_recover(&stage); /* kills the helper, which is this process's child now */
    ck_assert_int_gt(waitpid(-1, NULL, __WALL), 0);
    kill_stage_end(&stage);
}
END_TEST

/* Acts as a process that looks for a slot and is stopped before it has one: it holds the claim bytes of all slots that
 * might be free. */
static void claim_and_stop(int fd)
{
    for (uint32_t i = 0; i < 16; i++) {
        (void)!sh_life_mark(fd, SH_SLOTS + i);
    }
    raise(SIGSTOP);
}

static uint64_t heap_used(void)
{
    shoal_world_info info;
    ck_assert_ok(shoal_world_trim());
    ck_assert_ok(shoal_world_info_get(&info));
    return info.heap_used;
}

/* A process is stopped before it puts memory behind a new span. When it continues, the addresses belong to a span of
 * another class, whose blocks are free and have no memory. */
START_TEST(a_span_that_comes_too_late_leaves_no_memory)
{
    enum { SMALL = 20000, LARGE = 40000, FEW = 65536 };
    shoal_block *b, *small;
    int status;
    ck_assert_ok(shoal_block_create(100, &b)); /* makes the world */
    pid_t pid = fork_member("late");
    if (pid == 0) {
        sh_death_arm_stop("span.make.looked", 1, NULL);
        shoal_err err = shoal_block_create(SMALL, &small); /* its span has 16 such blocks, all with memory */
        shoal_release(small);
        kill_exit(err == SHOAL_OK ? 0 : 1);
    }
    ck_assert_int_eq(waitpid(pid, &status, WUNTRACED), pid);
    ck_assert(WIFSTOPPED(status));
    shoal_block *large;
    ck_assert_ok(shoal_block_create(LARGE, &large)); /* the span, with memory behind one block of 16 */
    shoal_release(large);
    uint64_t before = heap_used();
    kill(pid, SIGCONT);
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert_int_eq(status, 0);
    uint64_t after = heap_used();
    kill_require(after <= before + FEW, "%llu KiB before, %llu KiB after", (unsigned long long)before / 1024,
                 (unsigned long long)after / 1024);
    shoal_release(b);
}
END_TEST

static pid_t fork_waiter(shoal_condition *condition, shoal_queue *here)
{
    shoal_value *v;
    pid_t pid = fork_member("waiter");
    if (pid == 0) {
        shoal_err err = shoal_condition_lock(condition, SH_PATIENCE);
        err = err == SHOAL_OK ? shoal_queue_put(here, shoal_value_int(1), SH_PATIENCE) : err;
        err = err == SHOAL_OK ? shoal_condition_wait(condition, SH_PATIENCE) : err;
        kill_exit(err == SHOAL_OK && shoal_condition_unlock(condition) == SHOAL_OK ? 0 : 1);
    }
    ck_assert_ok(shoal_queue_get(here, SH_PATIENCE, &v));
    shoal_value_destroy(v);
    ck_assert_ok(shoal_condition_lock(condition, SH_PATIENCE)); /* the lock is free, so it waits */
    ck_assert_ok(shoal_condition_unlock(condition));
    return pid;
}

/* The notifier has found a waiter and is stopped before it marks it. Meanwhile the waiter dies and is recovered. */
START_TEST(a_notice_for_a_waiter_that_died_goes_to_the_next)
{
    shoal_condition *condition;
    shoal_queue *here;
    uint32_t recovered;
    int status;
    ck_assert_ok(shoal_condition_create(&condition));
    ck_assert_ok(shoal_queue_create(0, &here));
    pid_t first = fork_waiter(condition, here), second = fork_waiter(condition, here);
    pid_t notifier = fork_member("notifier");
    if (notifier == 0) {
        sh_death_arm_stop("condition.notify.looked", 1, NULL);
        bool fine = shoal_condition_lock(condition, SH_PATIENCE) == SHOAL_OK &&
                    shoal_condition_notify(condition, 1) == SHOAL_OK && shoal_condition_unlock(condition) == SHOAL_OK;
        kill_exit(fine ? 0 : 1);
    }
    ck_assert_int_eq(waitpid(notifier, &status, WUNTRACED), notifier);
    ck_assert(WIFSTOPPED(status));
    kill(first, SIGKILL);
    ck_assert_int_eq(waitpid(first, &status, 0), first);
    ck_assert_ok(shoal_world_sweep(&recovered));
    ck_assert_uint_eq(recovered, 1);
    kill(notifier, SIGCONT);
    ck_assert_int_eq(waitpid(notifier, &status, 0), notifier);
    ck_assert_int_eq(status, 0);
    ck_assert_int_eq(waitpid(second, &status, 0), second);
    kill_require(status == 0, "the second waiter was not woken: status 0x%x", status);
    shoal_release(condition);
    shoal_release(here);
}
END_TEST

static shoal_block *block_of(int byte)
{
    shoal_block *b = NULL;
    ck_assert_ok(shoal_block_create(1000, &b));
    memset(shoal_block_data(b), byte, 1000);
    return b;
}

/* Gets a message with a block full of ones, and is stopped before it decodes it. */
static _Noreturn void receive_late(shoal_queue *q)
{
    shoal_value *v = NULL;
    shoal_delivery d;
    sh_death_arm_stop("delivery.out", 1, NULL);
    shoal_err err = shoal_queue_get_delivery(q, SH_PATIENCE, &v, &d);
    const char *bytes = err == SHOAL_OK ? shoal_block_data(shoal_value_as_block(shoal_value_at(v, 0))) : NULL;
    bool fine = bytes != NULL && bytes[0] == 1 && bytes[999] == 1 && shoal_delivery_done(&d) == SHOAL_ESTATE;
    shoal_value_destroy(v);
    kill_exit(fine ? 0 : err == SHOAL_OK ? 2 : 3);
}

/* Fault F1: a receiver is stopped before it decodes its message. Meanwhile its lease ends, the message is rejected and
 * got from the queue for rejects, and its block is released. The receiver still gets the block that it was sent. */
START_TEST(a_late_receiver_gets_the_block_that_it_was_sent)
{
    shoal_queue *rejects = NULL, *q = NULL;
    shoal_value *v = NULL;
    shoal_delivery d;
    int status;
    ck_assert_ok(shoal_queue_create(0, &rejects));
    ck_assert_ok(shoal_queue_create_with(
        &(shoal_queue_options){.acknowledge = true, .lease = SHOAL_MS(1), .deliveries = 1, .rejects = rejects}, &q));
    shoal_block *b = block_of(1), *others[64];
    ck_assert_ok(shoal_queue_put(q, shoal_list(b, 5), SHOAL_NOW));
    shoal_release(b);
    pid_t pid = fork_member("late");
    if (pid == 0) {
        receive_late(q);
    }
    ck_assert_int_eq(waitpid(pid, &status, WUNTRACED), pid);
    ck_assert(WIFSTOPPED(status));
    ck_assert_err(shoal_queue_get_delivery(q, SHOAL_MS(20), &v, &d), SHOAL_ETIMEDOUT);
    ck_assert_ok(shoal_queue_get(rejects, SHOAL_NOW, &v));
    shoal_value_destroy(v);
    for (int i = 0; i < 64; i++) { /* of another process: they take the id, if it is free */
        others[i] = block_of(2);
    }
    kill(pid, SIGCONT);
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    kill_require(status == 0, "the receiver ended with 0x%x", status);
    for (int i = 0; i < 64; i++) {
        shoal_release(others[i]);
    }
    shoal_release(q);
    shoal_release(rejects);
    sh_assert_audit("after a late receiver");
}
END_TEST

/* A process is stopped while it claims a slot, or leaves it.
 * The next child gets that slot, or another one, and starts. */
START_TEST(a_stopped_claimant_costs_nobody_a_child)
{
    static const char *const points[] = {NULL, "slot.claim.alive", "slot.claim.marked", "slot.vacate.unmarked",
                                         "slot.vacate.nameless"};
    shoal_lock *lock;
    int status;
    ck_assert_ok(shoal_lock_create(&lock)); /* makes the world */
    for (size_t i = 0; i < sizeof points / sizeof points[0]; i++) {
        pid_t pid = fork();
        if (pid == 0) {
            int fd = dup(sh_the_world.fd);
            shoal_world_leave();
            if (points[i] == NULL) {
                claim_and_stop(fd);
                _exit(0);
            }
            sh_death_arm_stop(points[i], 1, NULL);
            kill_exit(sh_world_attach(fd, SH_SLOT_NEW, "claimant") == SHOAL_OK && (sh_world_detach(), true) ? 0 : 1);
        }
        ck_assert_int_eq(waitpid(pid, &status, WUNTRACED), pid);
        kill_require(WIFSTOPPED(status), "claimant %zu: status 0x%x", i, status);
        int64_t begin = sh_quiet_now();
        for (int n = 0; n < 3; n++) {
            pid_t child = kill_fork("child");
            kill_require(child >= 0, "fork: %s", shoal_last_error_text());
            if (child == 0) {
                kill_exit(0);
            }
            ck_assert_int_eq(waitpid(child, &status, 0), child);
            kill_require(status == 0, "beside claimant %zu a child ends with 0x%x", i, status);
        }
        kill_require(sh_quiet_now() - begin < SHOAL_SECONDS(4), "claimant %zu: too late", i);
        ck_assert_ok(shoal_world_sweep(NULL));
        kill(pid, SIGCONT);
        ck_assert_int_eq(waitpid(pid, &status, 0), pid);
        kill_require(status == 0, "claimant %zu ended with 0x%x", i, status);
    }
    shoal_release(lock);
}
END_TEST

#else

START_TEST(points_are_compiled_out)
{
    printf("the death points are compiled out of this build; builds with SHOAL_DEATH_POINTS sweep recovery\n");
}
END_TEST

#endif

static Suite *suite(void)
{
    Suite *s = suite_create("kill_recovery");
    TCase *c = tcase_create("recovery");
    tcase_set_timeout(c, 2 * SH_TEST_SECONDS);
    tcase_add_checked_fixture(c, sh_leaks_begin, sh_leaks_end);
#ifdef SHOAL_DEATH_POINTS
    tcase_add_test(c, recovery_killed_at_each_point);
    tcase_add_test(c, a_stopped_recoverer_is_replaced);
    tcase_add_test(c, a_killed_helper_leaves_the_rest_to_the_next);
    tcase_add_test(c, a_recoverer_without_a_start_time_is_alone);
    tcase_add_test(c, a_helper_keeps_no_file_of_its_maker);
    tcase_add_test(c, a_stopped_claimant_costs_nobody_a_child);
    tcase_add_test(c, a_late_receiver_gets_the_block_that_it_was_sent);
    tcase_add_test(c, a_notice_for_a_waiter_that_died_goes_to_the_next);
    tcase_add_test(c, a_span_that_comes_too_late_leaves_no_memory);
#else
    tcase_add_test(c, points_are_compiled_out);
#endif
    suite_add_tcase(s, c);
    suite_add_tcase(s, kill_judgement_case());
    return s;
}

SH_TEST_MAIN(suite)
