/* The fds that the library keeps: none of them becomes a standard stream, and if the program closes one, the library
 * does not mistake another file for the world. */
#include "shm/world.h"
#include "tests/harness/children.h"

#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>

/* Runs the body in a separate process, because it changes its fds.
 * The exit status is the line number of a failed check. */
static void run_apart(int (*body)(int), int argument)
{
    int status;
    pid_t pid = fork();
    ck_assert_int_ge(pid, 0);
    if (pid == 0) {
        _exit(body(argument));
    }
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert_msg(status == 0, "wait status %x: line %d does not hold", (unsigned)status, WEXITSTATUS(status));
}

#define holds(condition)                                                                                               \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            return __LINE__;                                                                                           \
        }                                                                                                              \
    } while (0)

/* ---- without standard streams ---- */

static bool are_closed(void)
{
    return fcntl(0, F_GETFD) < 0 && fcntl(1, F_GETFD) < 0 && fcntl(2, F_GETFD) < 0;
}

static shoal_err look_at_streams(int rank, const shoal_value *args)
{
    (void)rank;
    (void)args;
    must(are_closed());
    return SHOAL_OK;
}

/* The world, the lifeline, pidfds and the fork server's socket, and the same in the child. */
static int start_without_streams(int method)
{
    shoal_process *p;
    shoal_status status;
    shoal_block *block;
    close(0);
    close(1);
    close(2);
    holds(shoal_block_create(100, &block) == SHOAL_OK);
    holds(are_closed());
    holds(shoal_process_start(look_at_streams, shoal_value_null(),
                              &(shoal_process_options){.start = (shoal_start)method}, &p) == SHOAL_OK);
    holds(are_closed());
    holds(shoal_process_join(p, LIMIT, &status) == SHOAL_OK && status.end == SHOAL_PROCESS_RETURNED);
    shoal_process_destroy(p);
    shoal_release(block);
    shoal_fork_server_stop();
    shoal_world_leave();
    holds(are_closed());
    return 0;
}

START_TEST(no_fd_of_ours_is_a_standard_stream)
{
    run_apart(start_without_streams, _i);
}
END_TEST

/* ---- without a free fd ---- */

/* A child that holds a lock is stopped, then killed, and nobody has reaped it. Its parent can open no file of /proc. */
static int wait_without_fds(int unused)
{
    (void)unused;
    shoal_lock *lock;
    siginfo_t end;
    holds(shoal_lock_create(&lock) == SHOAL_OK);
    pid_t pid = fork();
    holds(pid >= 0);
    if (pid == 0) {
        holds(shoal_lock_lock(lock, LIMIT) == SHOAL_OK);
        raise(SIGSTOP);
        return 0;
    }
    holds(waitid(P_PID, (id_t)pid, &end, WSTOPPED) == 0 && shoal_lock_holder(lock) == SHOAL_HOLDER_OTHER);
    holds(setrlimit(RLIMIT_NOFILE, &(struct rlimit){.rlim_cur = 64, .rlim_max = 64}) == 0);
    while (open("/dev/null", O_RDONLY | O_CLOEXEC) >= 0) {
    }
    holds(shoal_lock_lock(lock, SHOAL_MS(100)) == SHOAL_ETIMEDOUT);
    holds(kill(pid, SIGKILL) == 0 && waitid(P_PID, (id_t)pid, &end, WEXITED | WNOWAIT) == 0);
    holds(shoal_lock_lock(lock, SH_PATIENCE) == SHOAL_OK && shoal_lock_owner_died(lock));
    holds(waitpid(pid, NULL, 0) == pid);
    return 0;
}

START_TEST(a_process_without_fds_sees_its_child_die)
{
    run_apart(wait_without_fds, 0);
}
END_TEST

/* ---- the program closes the world's file ---- */

enum { BYTES = 1 << 20 };

/* Opens a file of the program under the fd number that the world had. */
static int open_own(char *bytes)
{
    char path[] = "/tmp/shoal-fds-XXXXXX";
    int world = sh_the_world.fd;
    close(world);
    int fd = mkstemp(path);
    unlink(path);
    memset(bytes, 'P', BYTES);
    return fd == world && write(fd, bytes, BYTES) == BYTES ? fd : -1;
}

static shoal_err stay(int rank, const shoal_value *args)
{
    (void)rank;
    shoal_event_set(ARG(event, "up"));
    must_ok(shoal_event_wait(ARG(event, "go"), LIMIT));
    return SHOAL_OK;
}

/* Existing objects still work; new memory and new processes fail with an error text; the program's file stays unchanged
 * and open. */
static int close_world(int method)
{
    static char bytes[BYTES];
    shoal_event *up, *go;
    shoal_block *large, *other = NULL;
    shoal_process *p, *second;
    shoal_status status;
    uint32_t recovered = 9;
    shoal_process_options options = {.start = (shoal_start)method};
    holds(shoal_event_create(&up) == SHOAL_OK && shoal_event_create(&go) == SHOAL_OK);
    holds(shoal_block_create_zeroed(BYTES, &large) == SHOAL_OK);
    holds(shoal_process_start(stay, shoal_map("up", up, "go", go), &options, &p) == SHOAL_OK);
    holds(shoal_event_wait(up, LIMIT) == SHOAL_OK);
    int fd = open_own(bytes);
    holds(fd >= 0);
    shoal_release(large);
    holds(shoal_world_trim() == SHOAL_OK);
    holds(shoal_block_create(BYTES, &other) == SHOAL_EOS && strstr(shoal_last_error_text(), "closed") != NULL);
    holds(shoal_process_start(stay, shoal_value_null(), &options, &second) == SHOAL_EOS);
    holds(shoal_world_sweep(&recovered) == SHOAL_OK && recovered == 0); /* the child is alive */
    shoal_event_set(go);
    holds(shoal_process_join(p, LIMIT, &status) == SHOAL_OK && status.end == SHOAL_PROCESS_RETURNED);
    shoal_process_destroy(p);
    shoal_fork_server_stop();
    shoal_world_leave();
    struct stat st;
    holds(fstat(fd, &st) == 0 && st.st_size == BYTES && st.st_blocks * 512 >= BYTES);
    holds(pread(fd, bytes, BYTES, 0) == BYTES);
    for (int i = 0; i < BYTES; i++) {
        holds(bytes[i] == 'P');
    }
    return 0;
}

START_TEST(a_file_with_the_number_of_the_worlds_is_left_alone)
{
    run_apart(close_world, _i);
}
END_TEST

_Static_assert(__LINE__ < 256, "a line number must fit into an exit status");

static Suite *suite(void)
{
    Suite *s = suite_create("fds");
    TCase *tc = children_case("fds");
    add_for_methods(tc, no_fd_of_ours_is_a_standard_stream);
    tcase_add_test(tc, a_process_without_fds_sees_its_child_die);
    add_for_methods(tc, a_file_with_the_number_of_the_worlds_is_left_alone);
    suite_add_tcase(s, tc);
    return s;
}

SH_TEST_MAIN(suite)
