/* Tests how long children live, and when a process counts as dead. */
#include "proc/process_test.h"

#include "base/clock.h"
#include "os/pid.h"
#include "os/pidfd.h"
#include "proc/registry.h"

#include <shoal/binding.h>

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- B32: a parent's death ends its children and their children ---- */

/* args: the start method, how many generations to start below, a queue for the pids. */
static shoal_err dynasty(int rank, const shoal_value *args)
{
    int64_t method = sh_int_of(shoal_value_at(args, 0)), below = sh_int_of(shoal_value_at(args, 1));
    shoal_queue *pids = shoal_value_as_queue(shoal_value_at(args, 2));
    shoal_process *p;
    shoal_process_options options = {.start = (shoal_start)method, .rank = rank};
    for (int i = 0; below > 0 && i < 2; i++) {
        must(shoal_process_start(dynasty, shoal_list(method, below - 1, pids), &options, &p) == SHOAL_OK);
    }
    must(shoal_queue_put(pids, shoal_value_int(getpid()), LIMIT) == SHOAL_OK);
    for (;;) {
        pause();
    }
}

START_TEST(a_parents_death_ends_its_descendants)
{
    enum { GENERATIONS = 2, MEMBERS = 7 };
    shoal_queue *pids;
    int fds[MEMBERS];
    ck_assert_ok(shoal_queue_create(0, &pids));
    shoal_process *p = start(_i, dynasty, shoal_list(_i, GENERATIONS, pids));
    for (int i = 0; i < MEMBERS; i++) {
        fds[i] = sh_pidfd_open(get_pid(pids));
        ck_assert_int_ge(fds[i], 0);
    }
    ck_assert_ok(shoal_process_kill(p));
    int64_t begin = sh_quiet_now();
    for (int i = 0; i < MEMBERS; i++) {
        struct pollfd f = {.fd = fds[i], .events = POLLIN};
        ck_assert_msg(sh_poll(&f, 1, sh_deadline(LIMIT)) == 1, "member %d lives long after the parent's death", i);
        close(fds[i]);
    }
    ck_assert_int_lt(sh_quiet_now() - begin, SHOAL_SECONDS(1));
    ck_assert_str_eq(finish(p).text, "rank 0 ended by SIGKILL");
    shoal_process_destroy(p);
    shoal_release(pids);
    shoal_fork_server_stop(); /* this process's own */
    sh_await_alone();         /* sweeps recover what the dead processes held, their fork servers included */
}
END_TEST

/* ---- a killed process is recovered when the kernel has ended it ---- */

/* Has a file whose memory the kernel frees after it has dropped the locks of the process. args: a queue for the pid. */
static shoal_err hold_large_file(int rank, const shoal_value *args)
{
    (void)rank;
    int file = memfd_create("large", MFD_CLOEXEC);
    must(file >= 0 && posix_fallocate(file, 0, INT64_C(512) << 20) == 0);
    must(shoal_queue_put(shoal_value_as_queue(shoal_value_at(args, 0)), shoal_value_int(getpid()), LIMIT) == SHOAL_OK);
    for (;;) {
        pause();
    }
}

START_TEST(a_process_that_ends_is_not_dead_before_it_is_gone)
{
    shoal_queue *queue;
    uint32_t recovered = 0;
    ck_assert_ok(shoal_queue_create(0, &queue));
    shoal_process *p = start(SHOAL_START_SPAWN, hold_large_file, shoal_list(queue));
    int pid = get_pid(queue);
    uint64_t began = sh_pid_start_time(pid);
    ck_assert_int_eq(kill(pid, SIGKILL), 0);
    for (int64_t deadline = sh_deadline(LIMIT); recovered == 0;) {
        ck_assert(!sh_passed(deadline));
        ck_assert_ok(shoal_world_sweep(&recovered));
    }
    ck_assert(sh_pid_gone(pid, began));
    ck_assert_int_eq(finish(p).end, SHOAL_PROCESS_KILLED);
    shoal_process_destroy(p);
    shoal_release(queue);
}
END_TEST

/* Maps a file above thousands of other mappings, says so, and kills itself a little later. */
static void map_and_die(int file, int told, int moment)
{
    enum { MAPPINGS = 4000, PAGES = 4096 };
    void *low = mmap((void *)(uintptr_t)0x10000000, (size_t)MAPPINGS * PAGES, PROT_NONE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    bool good = low != MAP_FAILED && mmap(NULL, PAGES, PROT_READ, MAP_SHARED, file, 0) != MAP_FAILED;
    for (int i = 0; i < MAPPINGS; i += 2) {
        good = good && mprotect((char *)low + (size_t)i * PAGES, PAGES, PROT_READ) == 0;
    }
    good = good && write(told, "", 1) == 1;
    for (int i = 0; good && i < moment; i++) {
        (void)getppid();
    }
    raise(SIGKILL);
}

/* Who reads what a process maps does so in many steps, and the process may lose its memory in between. */
START_TEST(a_process_that_ends_maps_its_file_to_the_last)
{
    enum { TIMES = 40 };
    struct stat status;
    char byte;
    int ends[2], file = memfd_create("mapped", MFD_CLOEXEC);
    ck_assert_int_ge(file, 0);
    ck_assert_int_eq(ftruncate(file, 4096), 0);
    ck_assert_int_eq(fstat(file, &status), 0);
    ck_assert_int_eq(pipe(ends), 0);
    for (int i = 0; i < TIMES; i++) {
        pid_t pid = fork();
        if (pid == 0) {
            map_and_die(file, ends[1], 2000 * i);
        }
        uint64_t began = sh_pid_start_time(pid);
        ck_assert_int_eq(read(ends[0], &byte, 1), 1);
        while (!sh_pid_gone(pid, began)) {
            ck_assert(sh_pid_maps(pid, (uint64_t)status.st_ino));
        }
        ck_assert_int_eq(waitpid(pid, NULL, 0), pid);
    }
    close(ends[0]);
    close(ends[1]);
    close(file);
}
END_TEST

/* ---- a death signal of the parent's choice ---- */

/* Says that it waits for the signal, waits for it, and says that it came. args: the signal, a queue. */
static shoal_err await_signal(int rank, const shoal_value *args)
{
    shoal_queue *queue = shoal_value_as_queue(shoal_value_at(args, 1));
    int number = (int)sh_int_of(shoal_value_at(args, 0)), got = 0;
    sigset_t set;
    (void)rank;
    sigemptyset(&set);
    sigaddset(&set, number);
    must(sigprocmask(SIG_BLOCK, &set, NULL) == 0);
    must(shoal_queue_put(queue, shoal_value_int(getpid()), LIMIT) == SHOAL_OK);
    must(sigwait(&set, &got) == 0 && got == number);
    must(shoal_queue_put(queue, shoal_value_int(getpid()), LIMIT) == SHOAL_OK);
    return SHOAL_OK;
}

#define BY_SHOAL_FORK (SHOAL_START_FORKSERVER + 1)

/* Starts such a child with the method of its rank, and waits to be killed. */
static shoal_err parent_with_signal(int rank, const shoal_value *args)
{
    shoal_process *p = NULL;
    shoal_process_options options = {.death_signal = (int)sh_int_of(shoal_value_at(args, 0))};
    if (rank == BY_SHOAL_FORK) {
        must(shoal_fork(&(shoal_fork_options){.process = &options}, &p) == SHOAL_OK);
        if (p == NULL) {
            _exit((int)await_signal(rank, args));
        }
    } else {
        options.start = (shoal_start)rank;
        must(shoal_process_start(await_signal, shoal_value_copy(args), &options, &p) == SHOAL_OK);
    }
    for (;;) {
        pause();
    }
}

START_TEST(a_child_gets_its_death_signal)
{
    shoal_queue *queue;
    shoal_process *p;
    ck_assert_ok(shoal_queue_create(0, &queue));
    ck_assert_ok(shoal_process_start(parent_with_signal, shoal_list(SIGRTMIN + 5, queue),
                                     &(shoal_process_options){.rank = _i}, &p));
    int pid = get_pid(queue);
    uint64_t began = sh_pid_start_time(pid);
    ck_assert_ok(shoal_process_kill(p));
    ck_assert_int_eq(get_pid(queue), pid); /* the child lives: it works in the world after its parent's death */
    ck_assert_int_eq(finish(p).end, SHOAL_PROCESS_KILLED);
    shoal_process_destroy(p);
    for (int64_t deadline = sh_deadline(LIMIT); !sh_pid_gone(pid, began);) {
        ck_assert(!sh_passed(deadline));
        usleep(200);
    }
    shoal_release(queue);
    sh_await_alone(); /* the fork server that the killed parent had ends by itself, a moment later */
}
END_TEST

static sh_a32 signalled;

static void note_signal(int number)
{
    sh_store_relaxed(&signalled, (uint32_t)number);
}

START_TEST(a_parent_found_dead_is_signalled_at_once)
{
    int ends[2];
    ck_assert_int_eq(pipe(ends), 0);
    close(ends[1]);
    signal(SIGUSR2, note_signal);
    ck_assert_ok(sh_lifeline_arm(ends[0], SIGUSR2));
    ck_assert_int_eq(sh_load_relaxed(&signalled), SIGUSR2);
    sh_lifeline_adopt(-1); /* closes the armed end */
    close(ends[0]);
}
END_TEST

START_TEST(an_unknown_death_signal_is_refused)
{
    shoal_process *p = NULL;
    for (int i = 0; i < 2; i++) {
        shoal_process_options options = {.death_signal = i == 0 ? -1 : NSIG};
        ck_assert_err(shoal_process_start(await_signal, shoal_value_null(), &options, &p), SHOAL_EINVAL);
    }
    ck_assert_str_eq(shoal_last_error_text(), "unknown death signal 65");
    ck_assert_ptr_null(p);
}
END_TEST

/* Starts a daemon and dies at once, mostly before the daemon is up. */
static shoal_err start_daemon(int rank, const shoal_value *args)
{
    shoal_process *p;
    shoal_process_options options = {.start = (shoal_start)sh_int_of(shoal_value_at(args, 2)), .outlive = true};
    must(shoal_process_start(say_pid_and_wait, shoal_value_copy(args), &options, &p) == SHOAL_OK);
    if (rank == 0) {
        kill(getpid(), SIGKILL);
    } else if (rank == 1) {
        _exit(0);
    } else {
        shoal_process_destroy(p); /* does not end it */
    }
    return SHOAL_OK;
}

START_TEST(a_daemon_outlives_its_parent)
{
    shoal_queue *pids;
    shoal_event *go;
    ck_assert_int_eq(prctl(PR_SET_CHILD_SUBREAPER, 1),
                     0); /* the daemon becomes a child of this process, which can then see its end */
    ck_assert_ok(shoal_queue_create(0, &pids));
    ck_assert_ok(shoal_event_create(&go));
    for (int rank = 0; rank < 3; rank++) {
        shoal_process *p;
        shoal_event_clear(go);
        ck_assert_ok(shoal_process_start(start_daemon, shoal_list(pids, go, _i),
                                         &(shoal_process_options){.start = (shoal_start)_i, .rank = rank}, &p));
        finish(p);
        shoal_process_destroy(p);
        shoal_fork_server_stop();
        struct pollfd daemon = {.fd = sh_pidfd_open(get_pid(pids)), .events = POLLIN};
        ck_assert_int_ge(daemon.fd, 0);
        ck_assert_int_eq(sh_poll(&daemon, 1, sh_deadline(SHOAL_MS(50))), 0); /* it keeps running */
        shoal_event_set(go);
        ck_assert_int_eq(sh_poll(&daemon, 1, sh_deadline(LIMIT)), 1);
        close(daemon.fd);
        while (waitpid(-1, NULL, 0) > 0) { /* the daemon, and its fork server */
        }
    }
    shoal_release(pids);
    shoal_release(go);
}
END_TEST

typedef struct birth {
    int method;
    shoal_value *args;
    shoal_process *process;
} birth;

static void *give_birth(void *arg)
{
    birth *b = arg;
    b->process = start(b->method, say_pid_and_wait, b->args);
    return NULL;
}

/* Fork warns about threads. */
static void ignore_line(const char *line, void *context)
{
    (void)line;
    (void)context;
}

START_TEST(the_end_of_a_thread_is_not_the_end_of_the_parent)
{
    shoal_queue *pids;
    shoal_event *go;
    pthread_t thread;
    ck_assert_ok(shoal_queue_create(0, &pids));
    ck_assert_ok(shoal_event_create(&go));
    birth b = {.method = _i, .args = shoal_list(pids, go)};
    shoal_set_log(ignore_line, NULL);
    ck_assert_int_eq(pthread_create(&thread, NULL, give_birth, &b), 0);
    ck_assert_int_eq(pthread_join(thread, NULL), 0);
    ck_assert_int_eq(get_pid(pids), shoal_process_pid(b.process));
    ck_assert_err(shoal_process_join(b.process, SHOAL_MS(50), NULL), SHOAL_ETIMEDOUT);
    shoal_event_set(go);
    ck_assert_str_eq(finish(b.process).text, "rank 0 returned");
    shoal_process_destroy(b.process);
    shoal_release(pids);
    shoal_release(go);
}
END_TEST

/* ---- B34 ---- */

static shoal_err meet(int rank, const shoal_value *args)
{
    uint32_t index;
    (void)rank;
    return shoal_barrier_wait(shoal_value_as_barrier(args), LIMIT, &index);
}

START_TEST(children_start_side_by_side)
{
    enum { N = 4 };
    for (int round = 0; round < 30; round++) {
        shoal_barrier *barrier;
        shoal_process *p[N];
        uint32_t index;
        ck_assert_ok(shoal_barrier_create(N + 1, &barrier));
        for (int i = 0; i < N; i++) {
            p[i] = start(_i, meet, shoal_value_of(barrier)); /* none can end before all have been started */
        }
        ck_assert_ok(shoal_barrier_wait(barrier, LIMIT, &index));
        for (int i = 0; i < N; i++) {
            ck_assert_str_eq(finish(p[i]).text, "rank 0 returned");
            shoal_process_destroy(p[i]);
        }
        shoal_release(barrier);
    }
}
END_TEST

static shoal_err sweep_on(int rank, const shoal_value *args)
{
    (void)rank;
    while (!shoal_event_is_set(shoal_value_as_event(args))) {
        must(shoal_world_sweep(NULL) == SHOAL_OK);
    }
    return SHOAL_OK;
}

/* A child that is not up yet is not mistaken for a dead one. */
START_TEST(children_start_beside_a_sweeper)
{
    shoal_event *stop;
    ck_assert_ok(shoal_event_create(&stop));
    shoal_process *sweeper = start(_i, sweep_on, shoal_value_of(stop));
    for (int i = 0; i < 30; i++) {
        shoal_process *p = start(_i, no_op, NULL);
        ck_assert_str_eq(finish(p).text, "rank 0 returned");
        shoal_process_destroy(p);
    }
    shoal_event_set(stop);
    ck_assert_str_eq(finish(sweeper).text, "rank 0 returned");
    shoal_process_destroy(sweeper);
    shoal_release(stop);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("life");
    TCase *tc = methods_case("life");
    add_for_methods(tc, a_parents_death_ends_its_descendants);
    tcase_add_test(tc, a_process_that_ends_is_not_dead_before_it_is_gone);
    tcase_add_test(tc, a_process_that_ends_maps_its_file_to_the_last);
    tcase_add_loop_test(tc, a_child_gets_its_death_signal, SHOAL_START_SPAWN, BY_SHOAL_FORK + 1);
    tcase_add_test(tc, a_parent_found_dead_is_signalled_at_once);
    tcase_add_test(tc, an_unknown_death_signal_is_refused);
    add_for_methods(tc, a_daemon_outlives_its_parent);
    add_for_methods(tc, the_end_of_a_thread_is_not_the_end_of_the_parent);
    add_for_methods(tc, children_start_side_by_side);
    add_for_methods(tc, children_start_beside_a_sweeper);
    suite_add_tcase(s, tc);
    return s;
}

SH_TEST_MAIN(suite)
