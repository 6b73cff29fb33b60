/* Tests how long children live, and what a forked child inherits. */
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

/* Receives the log lines in the tests with threads. */
static int lines;
static char last_line[512];

static void count_line(const char *line, void *context)
{
    (void)context;
    lines++;
    snprintf(last_line, sizeof last_line, "%s", line);
}

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

static int get_pid(shoal_queue *pids)
{
    shoal_value *v;
    ck_assert_ok(shoal_queue_get(pids, LIMIT, &v));
    int pid = (int)sh_int_of(v);
    shoal_value_destroy(v);
    return pid;
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
    int64_t deadline = sh_deadline(SHOAL_SECONDS(1));
    for (int i = 0; i < MEMBERS; i++) {
        struct pollfd f = {.fd = fds[i], .events = POLLIN};
        ck_assert_msg(sh_poll(&f, 1, deadline) == 1, "member %d lives a second after the parent's death", i);
        close(fds[i]);
    }
    ck_assert_str_eq(finish(p).text, "rank 0 ended by SIGKILL");
    shoal_process_destroy(p);
    shoal_release(pids);
    /* The next process that sweeps recovers what the dead processes held, fork servers included: here sh_leaks_end
     * does. */
    shoal_world_info info = {.processes = 2};
    for (int64_t end = sh_deadline(SHOAL_SECONDS(2)); info.processes > 1 && !sh_passed(end);) {
        ck_assert_ok(shoal_world_sweep(NULL));
        ck_assert_ok(shoal_world_info_get(&info));
    }
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
    ck_assert_int_eq(finish(p).end, SHOAL_KILLED);
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
    ck_assert_int_eq(finish(p).end, SHOAL_KILLED);
    shoal_process_destroy(p);
    for (int64_t deadline = sh_deadline(LIMIT); !sh_pid_gone(pid, began);) {
        ck_assert(!sh_passed(deadline));
        usleep(200);
    }
    shoal_release(queue);
    ck_assert_ok(shoal_world_sweep(NULL));
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

static shoal_err daemon_target(int rank, const shoal_value *args)
{
    (void)rank;
    must(shoal_queue_put(shoal_value_as_queue(shoal_value_at(args, 0)), shoal_value_int(getpid()), LIMIT) == SHOAL_OK);
    return shoal_event_wait(shoal_value_as_event(shoal_value_at(args, 1)), LIMIT);
}

/* Starts a daemon and dies at once, mostly before the daemon is up. */
static shoal_err start_daemon(int rank, const shoal_value *args)
{
    shoal_process *p;
    shoal_process_options options = {.start = (shoal_start)sh_int_of(shoal_value_at(args, 2)), .outlive = true};
    must(shoal_process_start(daemon_target, shoal_value_copy(args), &options, &p) == SHOAL_OK);
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
    b->process = start(b->method, daemon_target, b->args);
    return NULL;
}

START_TEST(the_end_of_a_thread_is_not_the_end_of_the_parent)
{
    shoal_queue *pids;
    shoal_event *go;
    pthread_t thread;
    ck_assert_ok(shoal_queue_create(0, &pids));
    ck_assert_ok(shoal_event_create(&go));
    birth b = {.method = _i, .args = shoal_list(pids, go)};
    shoal_set_log(count_line, NULL);
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

static shoal_err no_op(int rank, const shoal_value *args)
{
    (void)rank;
    (void)args;
    return SHOAL_OK;
}

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

/* ---- B33: fork ---- */

START_TEST(a_forbidden_fork_says_what_to_do)
{
    shoal_process *p = NULL;
    sh_start_forbid_fork("CUDA is in use");
    ck_assert_err(
        shoal_process_start(no_op, shoal_value_null(), &(shoal_process_options){.start = SHOAL_START_FORK}, &p),
        SHOAL_ESTATE);
    ck_assert_str_eq(shoal_last_error_text(), "cannot fork: CUDA is in use; use spawn instead");
    ck_assert_ptr_null(p);
    p = start(SHOAL_START_SPAWN, no_op, NULL);
    finish(p);
    shoal_process_destroy(p);
    sh_start_forbid_fork(NULL);
}
END_TEST

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
    ck_assert_int_eq(end, SHOAL_RETURNED);
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
    shoal_process *p = start(_i, daemon_target, shoal_list(pids, go));
    ck_assert_int_eq(get_pid(pids), shoal_process_pid(p));
    int status;
    pid_t pid = fork();
    if (pid == 0) {
        shoal_block *block;
        must(shoal_process_join(p, LIMIT, NULL) == SHOAL_ESTATE && shoal_process_kill(p) == SHOAL_ESTATE);
        must(shoal_block_create(10, &block) == SHOAL_OK);
        must(shoal_process_start(no_op, shoal_value_null(), &(shoal_process_options){.start = (shoal_start)_i}, &p) ==
             SHOAL_OK);
        must(shoal_process_join(p, LIMIT, NULL) == SHOAL_OK && p->status.end == SHOAL_RETURNED);
        shoal_process_destroy(p);
        shoal_fork_server_stop();
        shoal_world_leave();
        must(shoal_process_start(no_op, shoal_value_null(), &(shoal_process_options){.start = (shoal_start)_i}, &p) ==
             SHOAL_OK);
        must(shoal_process_join(p, LIMIT, NULL) == SHOAL_OK && p->status.end == SHOAL_RETURNED);
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
    ck_assert_ptr_nonnull(f);
    ck_assert_int_eq(fscanf(f, "%d", &pid), 1);
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
        shoal_process *p = start(SHOAL_START_FORKSERVER, daemon_target, shoal_list(pids, go));
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
    tcase_add_test(tc, a_forbidden_fork_says_what_to_do);
    tcase_add_test(tc, warns_once_about_threads);
    tcase_add_test(tc, fork_beside_working_threads);
    add_for_methods(tc, a_child_gets_many_blocks);
    add_for_methods(tc, output_is_written_once);
    add_for_methods(tc, the_last_error_is_not_inherited);
    add_for_methods(tc, a_plain_fork_has_its_own_children);
    tcase_add_test(tc, a_dead_fork_server_is_replaced);
    tcase_add_test(tc, the_server_ignores_interrupts);
    tcase_add_test(tc, a_new_world_gets_a_new_server);
    suite_add_tcase(s, tc);
    return s;
}

SH_TEST_MAIN(suite)
