/* Members in another pid namespace: their deaths are detected, and no living process is taken for dead (docs/world.md,
 * "Where it runs"). */
#include "base/clock.h"
#include "shm/block.h"
#include "shm/slot.h"
#include "tests/harness/children.h"

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>

/* Children that end in the middle of the test leave memory to the system, so LeakSanitizer must ignore it. */
int __lsan_is_turned_off(void);
int __lsan_is_turned_off(void)
{
    return 1;
}

typedef enum way { IS_KILLED, CLOSES_ALL, LOCKS_AFTER_HOME, WAYS } way;

/* Shared memory outside the world. Synchronisation: both sides write stage in turn. */
typedef struct board {
    sh_a32 stage;
    sh_a32 pid; /* of the process in the other namespace, as the test sees it */
} board;

static board *common;
static shoal_lock *lock;

static bool until_stage(uint32_t stage)
{
    int64_t deadline = sh_deadline(LIMIT);
    while (sh_load_acquire(&common->stage) < stage && !sh_passed(deadline)) {
        sched_yield();
    }
    return sh_load_acquire(&common->stage) >= stage;
}

/* Runs as pid 1 of its namespace. */
static int live_elsewhere(way how)
{
    if (getpid() != 1 || shoal_lock_lock(lock, LIMIT) != SHOAL_OK ||
        shoal_lock_owner_died(lock) != (how == LOCKS_AFTER_HOME) || shoal_lock_mark_consistent(lock) != SHOAL_OK) {
        fprintf(stderr, "elsewhere: pid %d, %s\n", (int)getpid(), shoal_last_error_text());
        return 1;
    }
    for (int fd = 3; how == CLOSES_ALL && fd < 200; fd++) {
        close(fd);
    }
    sh_store_release(&common->stage, 1);
    for (;;) {
        pause();
    }
}

/* Runs as the parent of a process in a new namespace. Exits with 77 if the system does not allow this. */
static int go_elsewhere(way how)
{
    if (unshare(getuid() == 0 ? CLONE_NEWPID : CLONE_NEWUSER | CLONE_NEWPID) != 0) {
        return 77;
    }
    pid_t pid = fork();
    if (pid == 0) {
        _exit(live_elsewhere(how));
    }
    sh_store_release(&common->pid, (uint32_t)pid);
    return waitpid(pid, NULL, 0) == pid ? 0 : 1;
}

/* Earlier, its lock was never released, because pid 1 of this namespace is alive. */
START_TEST(a_death_in_another_pid_namespace_is_seen)
{
    int status;
    common = mmap(NULL, sizeof *common, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ck_assert_ptr_ne(common, MAP_FAILED);
    ck_assert_ok(shoal_lock_create(&lock));
    if (_i == LOCKS_AFTER_HOME) { /* a death in this namespace, detected from the other */
        pid_t pid = fork();
        if (pid == 0) {
            _exit(shoal_lock_lock(lock, SHOAL_NOW));
        }
        ck_assert_int_eq(waitpid(pid, &status, 0), pid);
        ck_assert_int_eq(status, 0);
    }
    fflush(NULL);
    pid_t between = fork();
    if (between == 0) {
        _exit(go_elsewhere((way)_i));
    }
    while (sh_load_acquire(&common->stage) == 0 && waitpid(between, &status, WNOHANG) == 0) {
        sched_yield();
    }
    if (sh_load_acquire(&common->stage) != 0) {
        ck_assert(until_stage(1));
        ck_assert_ok(shoal_world_sweep(NULL));
        ck_assert_err(shoal_lock_lock(lock, SHOAL_MS(100)), SHOAL_ETIMEDOUT); /* the holder is alive */
        ck_assert_int_eq(kill((pid_t)sh_load_acquire(&common->pid), SIGKILL), 0);
        ck_assert_int_eq(waitpid(between, &status, 0), between);
        ck_assert_int_eq(status, 0);
        ck_assert_ok(shoal_lock_lock(lock, SH_PATIENCE));
        ck_assert(shoal_lock_owner_died(lock));
        ck_assert_ok(shoal_lock_unlock(lock));
    } else {
        ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == 77, "status %x", (unsigned)status);
        fprintf(stderr, "no pid namespaces here: nothing was tested\n");
    }
    shoal_release(lock);
    munmap(common, sizeof *common);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("pid_spaces");
    TCase *tc = children_case("pid_spaces");
    tcase_add_loop_test(tc, a_death_in_another_pid_namespace_is_seen, IS_KILLED, WAYS);
    suite_add_tcase(s, tc);
    return s;
}

SH_TEST_MAIN(suite)
