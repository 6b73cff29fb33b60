/* Plain forks that fail, or whose child is killed or stopped before it has its slot; and signals in the middle of a
 * fork (docs/world.md, "Forks"). */
#include "base/clock.h"
#include "shm/block.h"
#include "shm/slot.h"
#include "tests/harness/children.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>

/* Children that end in the middle of the test leave memory to the system, so LeakSanitizer must ignore it. */
int __lsan_is_turned_off(void);
int __lsan_is_turned_off(void)
{
    return 1;
}

/* ---- between the library's own handlers and the fork ---- */

/* These handlers are registered before the library's: prepare runs after the library's, the other two run before. */
static int signal_in_prepare, signal_in_parent, signal_in_child; /* 0: none */
static bool in_fork;
static int handled, handled_in_fork;

static void in_prepare(void)
{
    in_fork = true;
    if (signal_in_prepare != 0) {
        raise(signal_in_prepare);
    }
}

static void in_parent(void)
{
    if (signal_in_parent != 0) {
        raise(signal_in_parent);
    }
    in_fork = false;
}

static void in_child(void)
{
    if (signal_in_child != 0) {
        raise(signal_in_child);
    }
    in_fork = false;
}

__attribute__((no_sanitize("address", "thread"))) static void register_first(void)
{
    pthread_atfork(in_prepare, in_parent, in_child);
}

/* Runs before all constructors, also those of shared libraries. */
__attribute__((section(".preinit_array"), used)) static void (*const first)(void) = register_first;

/* ---- helpers ---- */

static void assert_alone(void)
{
    ck_assert_ok(shoal_world_sweep(NULL));
    ck_assert_uint_eq(sh_test_world().processes, 1);
    ck_assert_int_eq(sh_slot_state_phase(sh_load_acquire(&sh_the_world.self.slot->state)), SH_PHASE_ALIVE);
    sh_assert_audit("after the forks");
}

static void assert_status(pid_t pid, int wanted)
{
    int status;
    ck_assert_int_gt(pid, 0);
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert_msg(status == wanted, "status %x, not %x", (unsigned)status, (unsigned)wanted);
}

/* Also makes a world if there is none. */
static int is_member(void)
{
    shoal_block *b = NULL;
    shoal_err err = shoal_block_create(100, &b);
    if (err != SHOAL_OK) {
        fprintf(stderr, "in a forked child: %s\n", shoal_last_error_text());
    }
    shoal_release(b);
    return err;
}

static int count_fds(void)
{
    DIR *dir = opendir("/proc/self/fd");
    int n = 0;
    while (dir != NULL && readdir(dir) != NULL) {
        n++;
    }
    if (dir != NULL) {
        closedir(dir);
    }
    return n;
}

/* ---- forks without a child ---- */

/* Runs in a process that may not have children: the system counts those of a user, unless the user is root. Returns 0
 * if all is well. */
static int fork_in_vain(int times)
{
    struct rlimit limit, none = {0};
    if (getuid() == 0 && (setgid(65533) != 0 || setuid(65533) != 0)) {
        return 0; /* root in a namespace without other users: nothing can be tested */
    }
    getrlimit(RLIMIT_NPROC, &limit);
    none.rlim_max = limit.rlim_max;
    setrlimit(RLIMIT_NPROC, &none);
    for (int i = 0; i < times; i++) {
        pid_t pid = fork();
        if (pid >= 0 || errno != EAGAIN) {
            fprintf(stderr, "fork: %d, %s\n", (int)pid, strerror(errno));
            return 1;
        }
    }
    setrlimit(RLIMIT_NPROC, &limit);
    shoal_world_info info = {0};
    int fds = count_fds();
    pid_t pid = fork();
    if (pid == 0) {
        _exit(is_member());
    }
    int status = -1;
    waitpid(pid, &status, 0);
    if (status != 0 || shoal_world_sweep(NULL) != SHOAL_OK || shoal_world_info_get(&info) != SHOAL_OK ||
        info.processes != 2 || count_fds() != fds) {
        fprintf(stderr, "status %x, %u processes\n", (unsigned)status, info.processes);
        return 2;
    }
    return 0;
}

/* Earlier, each kept its slot for 5 s, and after 256 no further child became a member. */
START_TEST(a_fork_that_fails_keeps_no_slot)
{
    shoal_block *b;
    ck_assert_ok(shoal_block_create(1000, &b));
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        _exit(fork_in_vain(300));
    }
    assert_status(pid, 0);
    assert_alone();
    shoal_release(b);
}
END_TEST

/* ---- children that do not start ---- */

/* Earlier, these kept their slots and references for 5 s, and after 256 no further child became a member. */
START_TEST(a_child_that_is_killed_before_it_has_its_slot)
{
    shoal_block *b;
    shoal_world_info info;
    ck_assert_ok(shoal_block_create(1 << 20, &b));
    int fds = count_fds();
    signal_in_child = SIGKILL;
    for (int i = 0; i < 300; i++) {
        pid_t pid = fork();
        hot(pid > 0 && waitpid(pid, NULL, 0) == pid);
    }
    signal_in_child = 0;
    assert_alone();
    ck_assert_int_eq(count_fds(), fds);
    pid_t pid = fork();
    if (pid == 0) {
        _exit(is_member());
    }
    assert_status(pid, 0);
    shoal_release(b);
    assert_alone();
    ck_assert_ok(shoal_world_info_get(&info));
    ck_assert_uint_eq(info.blocks_live, 0);
}
END_TEST

/* Earlier, the parent's exit waited a second for it. */
START_TEST(exit_does_not_wait_for_a_killed_child)
{
    fflush(NULL);
    is_member();
    int64_t start = sh_quiet_now();
    pid_t pid = fork();
    if (pid == 0) {
        signal_in_child = SIGKILL;
        pid_t child = fork();
        waitpid(child, NULL, 0);
        exit(0);
    }
    assert_status(pid, 0);
    ck_assert_int_lt(sh_quiet_now() - start, SHOAL_MS(900));
    assert_alone();
}
END_TEST

/* A stopped child is never too late. If rude is set, the parent has meanwhile closed all fds it found, except the
 * world's, and has opened others in their place: then a timeout decides, and none of the program's fds is closed. */
static int outwait_a_stopped_child(bool rude)
{
    int null = open("/dev/null", O_RDONLY | O_CLOEXEC), status;
    signal_in_child = SIGSTOP;
    pid_t pid = fork();
    signal_in_child = 0;
    if (pid == 0) {
        _exit(is_member());
    }
    waitpid(pid, &status, WUNTRACED);
    for (int fd = 3; rude && fd < 200; fd++) {
        if (fd != sh_the_world.fd && fd != null) {
            dup3(null, fd, O_CLOEXEC);
        }
    }
    sh_fork_adopt_limit = rude ? SHOAL_SECONDS(5) : 0; /* as if much time had passed */
    for (int i = 0; i < 20; i++) {
        shoal_err err = shoal_world_sweep(NULL);
        if (err != SHOAL_OK) {
            return 1;
        }
    }
    kill(pid, SIGCONT);
    waitpid(pid, &status, 0);
    if (status != 0 || shoal_world_sweep(NULL) != SHOAL_OK) {
        return 2;
    }
    for (int fd = 3; rude && fd < 200; fd++) {
        if (fcntl(fd, F_GETFD) < 0) {
            return 3;
        }
    }
    return 0;
}

START_TEST(a_child_that_is_stopped_before_it_has_its_slot)
{
    fflush(NULL);
    is_member();
    pid_t pid = fork();
    if (pid == 0) {
        _exit(outwait_a_stopped_child(_i == 1));
    }
    assert_status(pid, 0);
    assert_alone();
}
END_TEST

/* If no fd is available, and with the fds of other children. */
START_TEST(forks_keep_no_fds)
{
    struct rlimit limit, none = {0};
    is_member();
    int fds = count_fds();
    ck_assert_int_eq(getrlimit(RLIMIT_NOFILE, &limit), 0);
    none.rlim_max = limit.rlim_max;
    for (int i = 0; i < 20; i++) {
        ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, i % 2 == 0 ? &limit : &none), 0);
        pid_t pid = fork();
        if (pid == 0) {
            setrlimit(RLIMIT_NOFILE, &limit);
            _exit(is_member() != SHOAL_OK || count_fds() != fds);
        }
        assert_status(pid, 0);
    }
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
    assert_alone();
    ck_assert_int_eq(count_fds(), fds);
}
END_TEST

/* ---- signals in the middle of a fork ---- */

static void count_signal(int number)
{
    (void)number;
    handled++;
    handled_in_fork += in_fork;
}

static void exit_well(int number)
{
    (void)number;
    exit(EXIT_SUCCESS);
}

static shoal_err nothing(int rank, const shoal_value *args)
{
    (void)rank;
    (void)args;
    return SHOAL_OK;
}

/* No handler runs while the fork holds the locks of the library or of the C library: exit would wait for itself. If _i
 * is 1, the library forks. */
START_TEST(signals_wait_until_the_fork_is_over)
{
    sigset_t mask;
    signal(SIGUSR1, count_signal);
    is_member();
    signal_in_prepare = signal_in_parent = SIGUSR1;
    if (_i == 1) {
        signal_in_parent = 0; /* one signal is left for after the fork */
        finish(start(SHOAL_START_FORK, 0, nothing, NULL));
    } else {
        pid_t pid = fork();
        if (pid == 0) {
            _exit(0);
        }
        assert_status(pid, 0);
    }
    signal_in_prepare = signal_in_parent = 0;
    ck_assert_int_ge(handled, 1);
    ck_assert_int_eq(handled_in_fork, 0);
    ck_assert_int_eq(pthread_sigmask(SIG_SETMASK, NULL, &mask), 0);
    ck_assert_int_eq(sigismember(&mask, SIGUSR1), 0); /* and the mask is as before */
    assert_alone();
    signal(SIGUSR1, SIG_DFL);
}
END_TEST

/* A signal to the whole group reaches a child that is not set up yet. Earlier, the child ended in the name of its
 * parent, which then had no slot. */
START_TEST(a_child_that_exits_at_once_leaves_its_parent_alone)
{
    shoal_queue *q;
    ck_assert_ok(shoal_queue_create(0, &q));
    signal(SIGUSR1, exit_well);
    signal_in_child = SIGUSR1;
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        _exit(1); /* the handler ran first */
    }
    signal_in_child = 0;
    assert_status(pid, 0);
    assert_alone();
    ck_assert_ok(shoal_queue_put_bytes(q, "x", 1, SHOAL_NOW));
    signal(SIGUSR1, SIG_DFL);
    shoal_release(q);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("fork_slots");
    TCase *tc = children_case("fork_slots");
    tcase_add_test(tc, a_fork_that_fails_keeps_no_slot);
    tcase_add_test(tc, a_child_that_is_killed_before_it_has_its_slot);
    tcase_add_test(tc, exit_does_not_wait_for_a_killed_child);
    tcase_add_loop_test(tc, a_child_that_is_stopped_before_it_has_its_slot, 0, 2);
    tcase_add_test(tc, forks_keep_no_fds);
    tcase_add_loop_test(tc, signals_wait_until_the_fork_is_over, 0, 2);
    tcase_add_test(tc, a_child_that_exits_at_once_leaves_its_parent_alone);
    suite_add_tcase(s, tc);
    return s;
}

SH_TEST_MAIN(suite)
