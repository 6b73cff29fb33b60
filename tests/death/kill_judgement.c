/* B43: which process is dead, and which is not. */
#include "tests/death/kill_judgement.h"

#include "os/pid.h"
#include "shm/block.h"
#include "shm/slot.h"
#include "tests/harness/kill.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

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

/* Forks a member that holds the lock and sleeps until it is killed or the event is set. */
static pid_t fork_holder(shoal_lock *lock, shoal_event *ready, shoal_event *end)
{
    shoal_event_clear(ready);
    pid_t pid = kill_fork("holder");
    kill_require(pid >= 0, "fork: %s", shoal_last_error_text());
    if (pid == 0) {
        shoal_err err = shoal_lock_lock(lock, SH_PATIENCE);
        if (err == SHOAL_OK) {
            shoal_event_set(ready);
            err = shoal_event_wait(end, SH_PATIENCE);
        }
        if (err == SHOAL_OK) {
            err = shoal_lock_unlock(lock);
        }
        kill_exit(err == SHOAL_OK ? 0 : 1);
    }
    ck_assert_ok(shoal_event_wait(ready, SH_PATIENCE));
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

/* The holder, which lived all along, ends in good order and leaves the lock free. */
static void expect_handed_on(things t, pid_t holder)
{
    shoal_event_set(t.end);
    expect_exit(holder);
    ck_assert_ok(shoal_lock_lock(t.lock, SH_PATIENCE));
    ck_assert_ok(shoal_lock_unlock(t.lock));
    release_things(t);
}

/* The kernel has given the pid of the dead process to a running one: this process. */
START_TEST(pid_of_the_dead_is_reused)
{
    things t = make_things();
    pid_t pid = fork_holder(t.lock, t.ready, t.end);
    sh_slot_shm *slot = sh_slot_at(slot_of(pid));
    uint64_t start = sh_load_relaxed(&slot->start);
    ck_assert_uint_eq(start, sh_pid_start_time(pid));
    kill(pid, SIGKILL);
    ck_assert_int_eq(waitpid(pid, NULL, 0), pid);
    sh_store_release(&slot->pid, (uint32_t)getpid());
    sh_store_release(&slot->start, sh_pid_start_time(getpid()) - 1);
    ck_assert_uint_eq(sweep(), 1);
    ck_assert_ok(shoal_lock_lock(t.lock, SH_PATIENCE));
    ck_assert(shoal_lock_owner_died(t.lock));
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
    expect_handed_on(t, pid);
}
END_TEST

/* If a process closes any fd of the world's file, its mark is gone; then its pid and start time decide. */
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
        kill_exit(shoal_event_wait(t.end, SH_PATIENCE) == SHOAL_OK ? 0 : 1);
    }
    ck_assert_ok(shoal_event_wait(t.ready, SH_PATIENCE));
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

/* AddressSanitizer cannot join the main thread. */
static char main_state(void)
{
    char state = '?';
    FILE *f = fopen("/proc/self/stat", "re");
    if (f != NULL) {
        (void)!fscanf(f, "%*d %*s %c", &state);
        fclose(f);
    }
    return state;
}

static void *hold_on(void *argument)
{
    const things *t = argument;
    while (main_state() != 'Z') {
        sched_yield();
    }
    shoal_event_set(t->ready);
    shoal_err err = shoal_event_wait(t->end, SH_PATIENCE);
    err = err == SHOAL_OK ? shoal_lock_unlock(t->lock) : err;
    kill_exit(err == SHOAL_OK ? 0 : 1);
}

/* Its state is zombie and it has no mark, but one of its threads runs. */
START_TEST(without_its_main_thread_a_process_is_not_dead)
{
    things t = make_things();
    pid_t pid = kill_fork("headless");
    ck_assert_int_ge(pid, 0);
    if (pid == 0) {
        static things kept; /* static, because the stack of the main thread vanishes with it */
        pthread_t thread;
        kept = t;
        close(dup(sh_the_world.fd));
        if (shoal_lock_lock(t.lock, SH_PATIENCE) == SHOAL_OK && pthread_create(&thread, NULL, hold_on, &kept) == 0) {
            pthread_exit(NULL);
        }
        _exit(1);
    }
    ck_assert_ok(shoal_event_wait(t.ready, SH_PATIENCE));
    ck_assert(!sh_life_marked(sh_the_world.fd, slot_of(pid)));
    ck_assert_uint_eq(sweep(), 0);
    ck_assert_err(shoal_lock_lock(t.lock, SHOAL_MS(100)), SHOAL_ETIMEDOUT);
    expect_handed_on(t, pid);
}
END_TEST

/* A process that closed the world's fd cannot query marks. */
START_TEST(without_the_file_a_lock_is_handed_on)
{
    things t = make_things();
    pid_t holder = fork_holder(t.lock, t.ready, t.end);
    pid_t pid = kill_fork("without file");
    ck_assert_int_ge(pid, 0);
    if (pid == 0) {
        close(sh_the_world.fd);
        shoal_err early = shoal_lock_lock(t.lock, SHOAL_MS(50)); /* the holder is alive */
        shoal_event_set(t.ready);
        shoal_err err = shoal_lock_lock(t.lock, SH_PATIENCE);
        _exit(early == SHOAL_ETIMEDOUT && err == SHOAL_OK && shoal_lock_owner_died(t.lock) ? 0 : 1);
    }
    shoal_event_clear(t.ready);
    ck_assert_ok(shoal_event_wait(t.ready, SH_PATIENCE));
    kill(holder, SIGKILL);
    ck_assert_int_eq(waitpid(holder, NULL, 0), holder);
    expect_exit(pid);
    ck_assert_uint_ge(sweep(), 1);
    release_things(t);
}
END_TEST

/* Slots are reused, and their lives are distinguishable: a lock word of an earlier life names no process. */
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
        ck_assert_ok(shoal_lock_lock(t.lock, SHOAL_NOW));
        ck_assert(shoal_lock_owner_died(t.lock));
        ck_assert_ok(shoal_lock_mark_consistent(t.lock));
        ck_assert_ok(shoal_lock_unlock(t.lock));
    }
    release_things(t);
}
END_TEST

TCase *kill_judgement_case(void)
{
    TCase *dead = tcase_create("dead");
    tcase_set_timeout(dead, SH_TEST_SECONDS);
    tcase_add_checked_fixture(dead, sh_leaks_begin, sh_leaks_end);
    tcase_add_test(dead, pid_of_the_dead_is_reused);
    tcase_add_test(dead, stopped_is_not_dead);
    tcase_add_test(dead, unmarked_is_not_dead);
    tcase_add_test(dead, without_its_main_thread_a_process_is_not_dead);
    tcase_add_test(dead, without_the_file_a_lock_is_handed_on);
    tcase_add_test(dead, lives_of_a_slot);
    return dead;
}
