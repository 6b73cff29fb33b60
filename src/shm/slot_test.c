/* Slots from the inside: what a sweep asks the system, whom recovery wakes, and a child beside a slow maker. */
#include "shm/slot.h"

#include "os/pid.h"
#include "shm/block.h"
#include "shm/kind.h"
#include "sync/event.h"
#include "sync/semaphore.h"
#include "tests/harness/runner.h"

#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define MANY 1100u

static uint32_t reserved[MANY];

static uint64_t generation_of(uint32_t index)
{
    return sh_slot_state_generation(sh_load_acquire(&sh_slot_at(index)->state));
}

/* Reserves slots, as if this very process were the child that each of them is for: its pid runs. */
static void reserve_many(void)
{
    sh_ctx *c = sh_enter();
    ck_assert_ptr_nonnull(c);
    for (uint32_t i = 0; i < MANY; i++) {
        ck_assert_ok(sh_slot_reserve(c, "one of many", &reserved[i]));
        sh_slot_expect(reserved[i], (int32_t)getpid());
    }
    sh_leave();
}

static void cancel_many(void)
{
    ck_assert_ptr_nonnull(sh_enter());
    for (uint32_t i = 0; i < MANY; i++) {
        sh_slot_cancel(reserved[i], generation_of(reserved[i]));
    }
    sh_leave();
}

/* To ask for a life mark takes the kernel a walk over all of them. So the number of such questions must not grow with
 * the number of processes, or a sweep costs its square. */
START_TEST(f8_a_sweep_asks_for_few_life_marks)
{
    uint32_t recovered = 0;
    reserve_many();
    uint64_t before = sh_life_asked;
    ck_assert_ok(shoal_world_sweep(&recovered));
    ck_assert_uint_eq(recovered, 0);
    ck_assert_uint_lt(sh_life_asked - before, MANY / 4);
    cancel_many();
}
END_TEST

/* Waiters look less often in a crowd, and as often as before when it has left. */
START_TEST(f8_waiters_look_less_often_while_there_is_a_crowd)
{
    reserve_many();
    ck_assert_uint_eq(sh_peers_now->sweep(1), 2);
    cancel_many();
    ck_assert_uint_eq(sh_peers_now->sweep(1), 1);
}
END_TEST

static pid_t fork_member(void)
{
    pid_t pid = fork();
    ck_assert_int_ge(pid, 0);
    if (pid == 0) {
        shoal_world_info info;
        if (shoal_world_info_get(&info) != SHOAL_OK) { /* from now on it has a slot */
            _exit(1);
        }
        for (;;) {
            pause();
        }
    }
    return pid;
}

static uint32_t slot_of(pid_t pid)
{
    for (;;) {
        for (uint32_t i = 0; i < sh_load_acquire(&sh_the_world.header->slots_used); i++) {
            if (sh_load_acquire(&sh_slot_at(i)->pid) == (uint32_t)pid &&
                sh_slot_state_phase(sh_load_acquire(&sh_slot_at(i)->state)) == SH_PHASE_ALIVE) {
                return i;
            }
        }
        usleep(100);
    }
}

/* Among many, a stopped process is alive, a killed one is found by the first sweep though nobody has reaped it, and one
 * whose pid was reused by one of the next. */
START_TEST(f8_a_sweep_finds_the_dead_among_many)
{
    uint32_t recovered = 0;
    int status;
    reserve_many();
    pid_t killed = fork_member(), reused = fork_member();
    uint32_t slot = slot_of(reused);
    (void)slot_of(killed);
    ck_assert_int_eq(kill(killed, SIGSTOP), 0);
    ck_assert_int_eq(waitpid(killed, &status, WUNTRACED), killed);
    ck_assert_ok(shoal_world_sweep(&recovered));
    ck_assert_uint_eq(recovered, 0);

    siginfo_t info;
    ck_assert_int_eq(kill(killed, SIGKILL), 0);
    ck_assert_int_eq(waitid(P_PID, (id_t)killed, &info, WEXITED | WNOWAIT), 0);
    ck_assert_ok(shoal_world_sweep(&recovered));
    ck_assert_uint_eq(recovered, 1);
    ck_assert_int_eq(waitpid(killed, &status, 0), killed);

    ck_assert_int_eq(kill(reused, SIGKILL), 0);
    ck_assert_int_eq(waitpid(reused, &status, 0), reused);
    sh_store_release(&sh_slot_at(slot)->pid, (uint32_t)getpid()); /* as if this process had got its pid */
    sh_store_release(&sh_slot_at(slot)->start, 1);
    uint32_t sweeps = 0;
    for (recovered = 0; recovered == 0 && sweeps <= MANY / 64 + 2; sweeps++) {
        ck_assert_ok(shoal_world_sweep(&recovered));
    }
    ck_assert_uint_eq(recovered, 1);
    cancel_many();
}
END_TEST

/* One sweep recovers all that it finds, also those beyond one helper's share, and asks for the life mark of each
 * once. */
START_TEST(f8_many_deaths_are_recovered_together)
{
    enum { DEAD = SH_DEAD_MAX + 8 };
    pid_t members[DEAD];
    uint32_t recovered = 0;
    reserve_many();
    for (int i = 0; i < DEAD; i++) {
        members[i] = fork_member();
    }
    for (int i = 0; i < DEAD; i++) {
        (void)slot_of(members[i]);
        ck_assert_int_eq(kill(members[i], SIGKILL), 0);
        ck_assert_int_eq(waitpid(members[i], NULL, 0), members[i]);
    }
    uint64_t before = sh_life_asked;
    ck_assert_ok(shoal_world_sweep(&recovered));
    ck_assert_uint_eq(recovered, DEAD);
    ck_assert_uint_le(sh_life_asked - before, DEAD + 64); /* and of 64 others in turn */
    cancel_many();
}
END_TEST

/* Each of many deaths among many waiters would otherwise wake all of them. */
START_TEST(f8_recovery_wakes_only_who_has_something_to_do)
{
    shoal_semaphore *semaphore;
    shoal_event *event;
    sh_found f, g;
    ck_assert_ok(shoal_semaphore_create(0, 0, &semaphore));
    ck_assert_ok(shoal_event_create(&event));
    ck_assert(sh_heap_find(((shoal_block *)semaphore)->id, &f) && sh_heap_find(((shoal_block *)event)->id, &g));
    sh_gate *gates[] = {&((sh_semaphore_shm *)f.data)->gate, &((sh_event_shm *)g.data)->gate};
    uint32_t parked[2];
    for (int i = 0; i < 2; i++) {
        parked[i] = sh_gate_prepare(gates[i]); /* as a waiter does before it parks */
    }
    sh_kind_wake(&f);
    sh_kind_wake(&g);
    ck_assert_uint_eq(sh_load_acquire(&gates[0]->word), parked[0]);
    ck_assert_uint_eq(sh_load_acquire(&gates[1]->word), parked[1]);
    sh_store_release(&((sh_semaphore_shm *)f.data)->value, 1); /* as a process does that dies before its wake-up */
    sh_store_release(&((sh_event_shm *)g.data)->word, 3);
    sh_kind_wake(&f);
    sh_kind_wake(&g);
    ck_assert_uint_ne(sh_load_acquire(&gates[0]->word), parked[0]);
    ck_assert_uint_ne(sh_load_acquire(&gates[1]->word), parked[1]);
    shoal_semaphore_release(semaphore);
    shoal_event_release(event);
}
END_TEST

static shoal_lock *the_lock;
static const sh_peers *real_peers;
static uint32_t lock_slot;
static pid_t living;

static pid_t fork_holder(void)
{
    pid_t pid = fork();
    ck_assert_int_ge(pid, 0);
    if (pid == 0) {
        for (shoal_err err = shoal_lock_lock(the_lock, SHOAL_FOREVER); err == SHOAL_OK;) {
            pause();
        }
        _exit(1);
    }
    while (shoal_lock_holder(the_lock) != SHOAL_HOLDER_OTHER) {
        usleep(100);
    }
    return pid;
}

/* Finds the owner dead, and does all that may happen while the waiter that asks is stopped: the dead process is
 * recovered, its slot has 2^18 - 1 other lives, and the next life, whose owner number is the same, takes the lock. */
static bool is_dead_and_stop(sh_owner owner)
{
    bool dead = real_peers->is_dead(owner);
    if (dead && living == -1) {
        lock_slot = sh_owner_slot(owner);
        ck_assert_ok(shoal_world_sweep(NULL));
        sh_slot_shm *slot = sh_slot_at(lock_slot);
        uint64_t state = sh_load_acquire(&slot->state);
        ck_assert_int_eq(sh_slot_state_phase(state), SH_PHASE_FREE);
        uint64_t generation = sh_slot_state_generation(state) + (1u << 18) - 1;
        sh_store_release(&slot->state, sh_slot_state_make(SH_PHASE_FREE, 0, generation));
        living = fork_holder();
        ck_assert_uint_eq(sh_slot_owner(lock_slot, sh_load_acquire(&slot->state)), owner);
    }
    return dead;
}

START_TEST(f10_a_stopped_waiter_takes_no_lock_from_a_later_life)
{
    int status;
    living = -1;
    ck_assert_ok(shoal_lock_create(&the_lock));
    pid_t dead = fork_holder();
    ck_assert_int_eq(kill(dead, SIGKILL), 0);
    ck_assert_int_eq(waitpid(dead, &status, 0), dead);
    real_peers = sh_peers_now;
    sh_peers hooked = *real_peers;
    hooked.is_dead = is_dead_and_stop;
    sh_peers_set(&hooked, sh_life_now);
    shoal_err err = shoal_lock_lock(the_lock, SHOAL_NOW);
    sh_peers_set(real_peers, sh_life_now);
    ck_assert_int_gt(living, 0);
    ck_assert_int_eq(err, SHOAL_ETIMEDOUT);
    ck_assert_int_eq(shoal_lock_holder(the_lock), SHOAL_HOLDER_OTHER);
    ck_assert_int_eq(kill(living, SIGKILL), 0);
    ck_assert_int_eq(waitpid(living, &status, 0), living);
    ck_assert_ok(shoal_lock_lock(the_lock, SHOAL_FOREVER));
    ck_assert(shoal_lock_owner_died(the_lock));
    ck_assert_ok(shoal_lock_unlock(the_lock));
    shoal_lock_release(the_lock);
}
END_TEST

typedef struct child {
    uint32_t slot;
    shoal_err err;
    sh_a32 over;
} child;

static void *adopt(void *context)
{
    child *c = context;
    c->err = sh_slot_adopt(c->slot);
    sh_store_release(&c->over, 1u);
    return NULL;
}

/* The maker has stored the child's start time, and is stopped before it stores the pid. */
START_TEST(f11_a_child_waits_for_a_maker_that_is_stopped)
{
    child c = {.err = SHOAL_OK};
    pthread_t thread;
    sh_ctx *maker = sh_enter();
    ck_assert_ptr_nonnull(maker);
    ck_assert_ok(sh_slot_reserve(maker, "child", &c.slot));
    sh_leave();
    sh_slot_shm *slot = sh_slot_at(c.slot);
    sh_store_relaxed(&slot->start, sh_pid_start_time((int32_t)getpid()));
    ck_assert_int_eq(pthread_create(&thread, NULL, adopt, &c), 0);
    for (int i = 0; i < 100 && sh_load_acquire(&c.over) == 0; i++) {
        nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL); /* it asks about its maker about every 20 ms */
    }
    sh_slot_expect(c.slot, (int32_t)getpid());
    ck_assert_int_eq(pthread_join(thread, NULL), 0);
    ck_assert_int_eq(c.err, SHOAL_OK);
    sh_slot_vacate(c.slot);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("slot");
    TCase *tc = tcase_create("slot");
    tcase_add_checked_fixture(tc, sh_leaks_begin, sh_leaks_end);
    tcase_add_test(tc, f8_a_sweep_asks_for_few_life_marks);
    tcase_add_test(tc, f8_waiters_look_less_often_while_there_is_a_crowd);
    tcase_add_test(tc, f8_a_sweep_finds_the_dead_among_many);
    tcase_add_test(tc, f8_many_deaths_are_recovered_together);
    tcase_add_test(tc, f8_recovery_wakes_only_who_has_something_to_do);
    tcase_add_test(tc, f10_a_stopped_waiter_takes_no_lock_from_a_later_life);
    tcase_add_test(tc, f11_a_child_waits_for_a_maker_that_is_stopped);
    suite_add_tcase(s, tc);
    return s;
}

SH_TEST_MAIN(suite)
