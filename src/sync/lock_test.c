#include "sync/lock.h"

#include "base/error.h"
#include "sync/peers_test.h"
#include "tests/harness/runner.h"

#define WAITERS (UINT32_C(1) << 31)

typedef struct object {
    sh_lock_shm lock;
    int64_t count; /* written under the lock */
    sh_a64 first;  /* also written under the lock, first before second */
    sh_a64 second;
    sh_a32 died;    /* how often a holder saw that an owner had died */
    sh_a32 refused; /* the number of SHOAL_EOWNERDEAD */
} object;

static void take_and_stay(void *arg)
{
    object *o = arg;
    must(sh_lock_lock(&o->lock, SHOAL_FOREVER) == SHOAL_OK);
    fake_step(1);
    fake_await_step(2);
    must(sh_lock_unlock(&o->lock) == SHOAL_OK);
}

static void unlock_it(void *arg)
{
    object *o = arg;
    must(sh_lock_unlock(&o->lock) == SHOAL_OK);
}

START_TEST(rules)
{
    object *o = fake_begin(sizeof *o);
    sh_lock_format(&o->lock);
    ck_assert_int_eq(sh_lock_unlock(&o->lock), SHOAL_ESTATE);
    ck_assert_int_eq(shoal_last_error(), SHOAL_ESTATE);
    ck_assert_uint_eq(sh_lock_owner(&o->lock), 0);
    ck_assert_int_eq(sh_lock_lock(&o->lock, SHOAL_NOW), SHOAL_OK);
    ck_assert_uint_eq(sh_lock_owner(&o->lock), fake_self());
    ck_assert_int_eq(sh_lock_lock(&o->lock, SHOAL_NOW), SHOAL_ETIMEDOUT);
    ck_assert_int_eq(shoal_last_error(), SHOAL_ETIMEDOUT);
    int64_t begin = sh_now();
    ck_assert_int_eq(sh_lock_lock(&o->lock, SHOAL_MS(60)), SHOAL_ETIMEDOUT);
    ck_assert_int_ge(sh_now() - begin, SHOAL_MS(60));
    fake_join(fake_fork(unlock_it, o)); /* any process may unlock */
    ck_assert_uint_eq(sh_lock_owner(&o->lock), 0);
    ck_assert_int_eq(sh_lock_lock(&o->lock, SHOAL_FOREVER), SHOAL_OK);
    ck_assert_int_eq(sh_lock_unlock(&o->lock), SHOAL_OK);
    ck_assert(sh_lock_valid(&o->lock));
}
END_TEST

START_TEST(valid_knows_the_states)
{
    object *o = fake_begin(sizeof *o);
    const uint32_t died = UINT32_C(1) << 30;
    const struct {
        uint32_t word;
        bool valid;
    } states[] = {{0, true},        {died, true},
                  {7, true},        {7 | WAITERS, true},
                  {WAITERS, false}, {died | WAITERS, false},
                  {7 | died, true}, {7 | died | WAITERS, true}};
    for (size_t i = 0; i < sizeof states / sizeof states[0]; i++) {
        sh_store_relaxed(&o->lock.gate.word, states[i].word);
        ck_assert_msg(sh_lock_valid(&o->lock) == states[i].valid, "word 0x%x", states[i].word);
    }
}
END_TEST

static void count_up(void *arg)
{
    object *o = arg;
    for (int i = 0; i < 100000; i++) {
        must(sh_lock_lock(&o->lock, SHOAL_FOREVER) == SHOAL_OK);
        o->count++;
        must(sh_lock_unlock(&o->lock) == SHOAL_OK);
    }
}

START_TEST(processes_exclude_each_other)
{
    object *o = fake_begin(sizeof *o);
    pid_t pids[4];
    for (int i = 0; i < 4; i++) {
        pids[i] = fake_fork(count_up, o);
    }
    for (int i = 0; i < 4; i++) {
        fake_join(pids[i]);
    }
    ck_assert_int_eq(o->count, 400000);
    ck_assert_uint_eq(sh_load_relaxed(&o->lock.gate.word), 0);
}
END_TEST

static void *count_up_thread(void *arg)
{
    count_up(arg);
    return NULL;
}

START_TEST(threads_exclude_each_other)
{
    object *o = fake_begin(sizeof *o);
    pthread_t threads[4];
    for (int i = 0; i < 4; i++) {
        ck_assert_int_eq(pthread_create(&threads[i], NULL, count_up_thread, o), 0);
    }
    for (int i = 0; i < 4; i++) {
        pthread_join(threads[i], NULL);
    }
    ck_assert_int_eq(o->count, 400000);
}
END_TEST

enum { HANDOVERS = 100 };

static void take_when_told(void *arg)
{
    object *o = arg;
    for (uint32_t i = 0; i < HANDOVERS; i++) {
        fake_await_step(2 * i + 1);
        must(sh_lock_lock(&o->lock, SHOAL_FOREVER) == SHOAL_OK);
        must(sh_lock_unlock(&o->lock) == SHOAL_OK);
        fake_step(2 * i + 2);
    }
}

/* The end of a slice would also let it take the lock, but later. */
START_TEST(unlock_wakes_the_parked)
{
    object *o = fake_begin(sizeof *o);
    sh_spin_set(0);
    pid_t pid = fake_fork(take_when_told, o);
    int64_t waited = 0; /* a waiter that is not woken goes on when its slice ends */
    for (uint32_t i = 0; i < HANDOVERS; i++) {
        ck_assert_int_eq(sh_lock_lock(&o->lock, SHOAL_FOREVER), SHOAL_OK);
        fake_step(2 * i + 1);
        while (!(sh_load_acquire(&o->lock.gate.word) & WAITERS)) {
            sched_yield();
        }
        fake_await_asleep(pid);
        waited -= sh_quiet_now();
        ck_assert_int_eq(sh_lock_unlock(&o->lock), SHOAL_OK);
        fake_await_step(2 * i + 2);
        waited += sh_quiet_now();
    }
    fake_join(pid);
    ck_assert_int_lt(waited, HANDOVERS * SH_SLICE_SHORT / 2);
}
END_TEST

/* A child takes the lock and is killed. */
static void die_with_it(object *o)
{
    fake_step(0);
    pid_t pid = fake_fork(take_and_stay, o);
    fake_await_step(1);
    fake_kill(pid);
}

START_TEST(a_death_is_remembered_until_it_is_marked)
{
    object *o = fake_begin(sizeof *o);
    int64_t best = INT64_MAX;
    for (int i = 0; i < 5; i++) {
        die_with_it(o);
        int64_t begin = sh_now();
        ck_assert_int_eq(sh_lock_lock(&o->lock, SHOAL_FOREVER), SHOAL_OK);
        best = sh_now() - begin < best ? sh_now() - begin : best;
        for (int holder = 0; holder < 3; holder++) {
            ck_assert_uint_eq(sh_lock_owner(&o->lock), fake_self());
            ck_assert(sh_lock_owner_died(&o->lock) && sh_lock_valid(&o->lock));
            ck_assert_int_eq(sh_lock_unlock(&o->lock), SHOAL_OK);
            ck_assert(sh_lock_owner_died(&o->lock) && sh_lock_valid(&o->lock));
            ck_assert_int_eq(sh_lock_lock(&o->lock, SHOAL_NOW), SHOAL_OK);
        }
        ck_assert_int_eq(sh_lock_mark_consistent(&o->lock), SHOAL_OK);
        ck_assert(!sh_lock_owner_died(&o->lock));
        ck_assert_int_eq(sh_lock_mark_consistent(&o->lock), SHOAL_OK); /* nothing is left to mark */
        ck_assert_int_eq(sh_lock_unlock(&o->lock), SHOAL_OK);
        ck_assert_int_eq(sh_lock_lock(&o->lock, SHOAL_FOREVER), SHOAL_OK);
        ck_assert(!sh_lock_owner_died(&o->lock));
        ck_assert_int_eq(sh_lock_unlock(&o->lock), SHOAL_OK);
    }
    ck_assert_int_lt(best, SHOAL_MS(100)); /* the best of five: a busy machine may be late sometimes */
}
END_TEST

static void mark_is_refused(void *arg)
{
    object *o = arg;
    must(sh_lock_mark_consistent(&o->lock) == SHOAL_EPERM && shoal_last_error() == SHOAL_EPERM);
    must(sh_lock_owner_died(&o->lock));
}

START_TEST(only_the_owner_marks)
{
    object *o = fake_begin(sizeof *o);
    ck_assert_int_eq(sh_lock_mark_consistent(&o->lock), SHOAL_EPERM); /* nobody holds it */
    die_with_it(o);
    ck_assert_int_eq(sh_lock_mark_consistent(&o->lock), SHOAL_EPERM); /* the dead process does */
    ck_assert_int_eq(sh_lock_lock(&o->lock, SHOAL_NOW), SHOAL_OK);
    fake_join(fake_fork(mark_is_refused, o));
    ck_assert_int_eq(sh_lock_unlock(&o->lock), SHOAL_OK);
    mark_is_refused(o); /* it is free */
    ck_assert_int_eq(sh_lock_lock(&o->lock, SHOAL_NOW), SHOAL_OK);
    fake_join(fake_fork(unlock_it, o)); /* any process may unlock, and that marks nothing */
    ck_assert(sh_lock_owner_died(&o->lock));
}
END_TEST

static void mark_and_stay(void *arg)
{
    object *o = arg;
    must(sh_lock_lock(&o->lock, SHOAL_FOREVER) == SHOAL_OK && sh_lock_owner_died(&o->lock));
    must(sh_lock_mark_consistent(&o->lock) == SHOAL_OK && !sh_lock_owner_died(&o->lock));
    fake_step(1);
    fake_await_step(2);
}

START_TEST(a_second_death_before_or_after_the_mark)
{
    object *o = fake_begin(sizeof *o);
    die_with_it(o);
    die_with_it(o);
    ck_assert_int_eq(sh_lock_lock(&o->lock, SHOAL_NOW), SHOAL_OK);
    ck_assert(sh_lock_owner_died(&o->lock));
    ck_assert_int_eq(sh_lock_unlock(&o->lock), SHOAL_OK);
    fake_step(0);
    pid_t pid = fake_fork(mark_and_stay, o);
    fake_await_step(1);
    ck_assert(!sh_lock_owner_died(&o->lock)); /* others see the mark before the lock is free */
    fake_kill(pid);
    ck_assert_int_eq(sh_lock_lock(&o->lock, SHOAL_NOW), SHOAL_OK);
    ck_assert(sh_lock_owner_died(&o->lock));
    ck_assert_int_eq(sh_lock_mark_consistent(&o->lock), SHOAL_OK);
    ck_assert_int_eq(sh_lock_unlock(&o->lock), SHOAL_OK);
    ck_assert_uint_eq(sh_load_relaxed(&o->lock.gate.word), 0);
}
END_TEST

START_TEST(a_consistent_lock_is_refused_after_a_death)
{
    object *o = fake_begin(sizeof *o);
    ck_assert_int_eq(sh_lock_lock_consistent(&o->lock, SHOAL_NOW), SHOAL_OK);
    ck_assert_int_eq(sh_lock_lock_consistent(&o->lock, SHOAL_NOW), SHOAL_ETIMEDOUT);
    ck_assert_int_eq(sh_lock_unlock(&o->lock), SHOAL_OK);
    die_with_it(o);
    for (int i = 0; i < 2; i++) { /* with the dead owner, and free */
        ck_assert_int_eq(sh_lock_lock_consistent(&o->lock, i == 0 ? SHOAL_NOW : SHOAL_FOREVER), SHOAL_EOWNERDEAD);
        ck_assert_int_eq(shoal_last_error(), SHOAL_EOWNERDEAD);
        ck_assert_uint_eq(sh_lock_owner(&o->lock), 0);
    }
    die_with_it(o);
    ck_assert_int_eq(sh_lock_lock_consistent(&o->lock, SHOAL_FOREVER), SHOAL_EOWNERDEAD); /* it waits for a slice */
    ck_assert_int_eq(sh_lock_lock(&o->lock, SHOAL_NOW), SHOAL_OK);
    ck_assert_int_eq(sh_lock_lock_consistent(&o->lock, SHOAL_MS(1)), SHOAL_ETIMEDOUT); /* its holder may mark it */
    ck_assert_int_eq(sh_lock_mark_consistent(&o->lock), SHOAL_OK);
    ck_assert_int_eq(sh_lock_unlock(&o->lock), SHOAL_OK);
    ck_assert_int_eq(sh_lock_lock_consistent(&o->lock, SHOAL_NOW), SHOAL_OK);
}
END_TEST

START_TEST(a_try_notices_death_too)
{
    object *o = fake_begin(sizeof *o);
    pid_t pid = fake_fork(take_and_stay, o);
    fake_await_step(1);
    ck_assert_int_eq(sh_lock_lock(&o->lock, SHOAL_NOW), SHOAL_ETIMEDOUT);
    ck_assert_uint_eq(sh_load_relaxed(&o->lock.gate.word) & WAITERS, 0); /* a mere try leaves no trace */
    fake_kill(pid);
    ck_assert_int_eq(sh_lock_lock(&o->lock, SHOAL_NOW), SHOAL_OK);
    ck_assert(sh_lock_owner_died(&o->lock));
    ck_assert_int_eq(sh_lock_unlock(&o->lock), SHOAL_OK);
}
END_TEST

static void wait_for_it(void *arg)
{
    object *o = arg;
    must(sh_lock_lock(&o->lock, SHOAL_FOREVER) == SHOAL_OK);
    sh_add_relaxed(&o->died, sh_lock_owner_died(&o->lock));
    must(sh_lock_unlock(&o->lock) == SHOAL_OK);
}

static void wait_and_mark(void *arg)
{
    object *o = arg;
    must(sh_lock_lock(&o->lock, SHOAL_FOREVER) == SHOAL_OK);
    sh_add_relaxed(&o->died, sh_lock_owner_died(&o->lock));
    must(sh_lock_mark_consistent(&o->lock) == SHOAL_OK);
    must(sh_lock_unlock(&o->lock) == SHOAL_OK);
}

static void wait_for_a_consistent_one(void *arg)
{
    object *o = arg;
    shoal_err err = sh_lock_lock_consistent(&o->lock, SHOAL_FOREVER);
    sh_add_relaxed(&o->refused, err == SHOAL_EOWNERDEAD);
    must(err == SHOAL_EOWNERDEAD || (err == SHOAL_OK && sh_lock_unlock(&o->lock) == SHOAL_OK));
}

static object *kill_the_holder_of_four_waiters(void (*waiter)(void *))
{
    object *o = fake_begin(sizeof *o);
    sh_spin_set(0);
    pid_t holder = fake_fork(take_and_stay, o);
    fake_await_step(1);
    pid_t waiters[4];
    for (int i = 0; i < 4; i++) {
        waiters[i] = fake_fork(waiter, o);
    }
    for (int i = 0; i < 4; i++) {
        fake_await_asleep(waiters[i]);
    }
    fake_kill(holder);
    for (int i = 0; i < 4; i++) {
        fake_join(waiters[i]);
    }
    ck_assert_uint_eq(sh_lock_owner(&o->lock), 0);
    return o;
}

START_TEST(all_waiters_see_a_death_that_nobody_marks)
{
    object *o = kill_the_holder_of_four_waiters(wait_for_it);
    ck_assert_uint_eq(sh_load_relaxed(&o->died), 4);
    ck_assert(sh_lock_owner_died(&o->lock));
}
END_TEST

START_TEST(one_waiter_sees_a_death_that_it_marks)
{
    object *o = kill_the_holder_of_four_waiters(wait_and_mark);
    ck_assert_uint_eq(sh_load_relaxed(&o->died), 1);
    ck_assert(!sh_lock_owner_died(&o->lock));
}
END_TEST

START_TEST(all_waiters_for_a_consistent_one_are_refused)
{
    object *o = kill_the_holder_of_four_waiters(wait_for_a_consistent_one);
    ck_assert_uint_eq(sh_load_relaxed(&o->refused), 4);
    ck_assert(sh_lock_owner_died(&o->lock));
}
END_TEST

/* Unlocks, and returns the time until these waiters have ended. One that is not woken goes on when its slice ends. */
static int64_t unlock_and_join(object *o, const pid_t *waiters, int count)
{
    int64_t begin = sh_quiet_now();
    ck_assert_int_eq(sh_lock_unlock(&o->lock), SHOAL_OK);
    for (int k = 0; k < count; k++) {
        fake_join(waiters[k]);
    }
    return sh_quiet_now() - begin;
}

/* The waiter that unlock wakes wakes the next, and so on. */
START_TEST(all_the_parked_are_woken_in_turn)
{
    enum { TIMES = 20 };
    object *o = fake_begin(sizeof *o);
    sh_spin_set(0);
    int64_t waited = 0;
    for (int i = 0; i < TIMES; i++) {
        pid_t waiters[3];
        ck_assert_int_eq(sh_lock_lock(&o->lock, SHOAL_FOREVER), SHOAL_OK);
        for (int k = 0; k < 3; k++) {
            waiters[k] = fake_fork(wait_for_it, o);
        }
        for (int k = 0; k < 3; k++) {
            fake_await_asleep(waiters[k]);
        }
        waited += unlock_and_join(o, waiters, 3);
    }
    ck_assert_int_lt(waited, TIMES * SH_SLICE_SHORT / 2);
}
END_TEST

/* A waiter that refuses the lock wakes the next one instead, whether that takes it or not. */
START_TEST(the_refused_wake_the_others)
{
    enum { TIMES = 20 };
    object *o = fake_begin(sizeof *o);
    sh_spin_set(0);
    die_with_it(o);
    ck_assert_int_eq(sh_lock_lock(&o->lock, SHOAL_NOW), SHOAL_OK);
    int64_t waited = 0;
    for (int i = 0; i < TIMES; i++) {
        pid_t waiters[4];
        for (int k = 0; k < 4; k++) { /* one after the other: the first that is woken refuses */
            waiters[k] = fake_fork(k < 2 ? wait_for_a_consistent_one : wait_for_it, o);
            fake_await_asleep(waiters[k]);
        }
        waited += unlock_and_join(o, waiters, 4);
        ck_assert_int_eq(sh_lock_lock(&o->lock, SHOAL_NOW), SHOAL_OK);
    }
    ck_assert_uint_eq(sh_load_relaxed(&o->refused), 2 * TIMES);
    ck_assert_uint_eq(sh_load_relaxed(&o->died), 2 * TIMES);
    ck_assert_int_lt(waited, TIMES * SH_SLICE_SHORT / 8);
}
END_TEST

/* The mark keeps the flag of waiters, so that unlock wakes them. */
START_TEST(the_mark_loses_no_waiter)
{
    enum { TIMES = 20 };
    object *o = fake_begin(sizeof *o);
    sh_spin_set(0);
    int64_t waited = 0;
    for (int i = 0; i < TIMES; i++) {
        die_with_it(o);
        ck_assert_int_eq(sh_lock_lock(&o->lock, SHOAL_NOW), SHOAL_OK);
        pid_t waiter = fake_fork(i % 2 == 0 ? wait_for_a_consistent_one : wait_for_it, o);
        fake_await_asleep(waiter);
        ck_assert_int_eq(sh_lock_mark_consistent(&o->lock), SHOAL_OK);
        waited += unlock_and_join(o, &waiter, 1);
    }
    ck_assert_int_lt(waited, TIMES * SH_SLICE_SHORT / 2);
    ck_assert_uint_eq(sh_load_relaxed(&o->refused), 0);
    ck_assert_uint_eq(sh_load_relaxed(&o->died), 0);
}
END_TEST

START_TEST(stopped_is_not_dead)
{
    object *o = fake_begin(sizeof *o);
    pid_t pid = fake_fork(take_and_stay, o);
    fake_await_step(1);
    fake_stop(pid);
    ck_assert_int_eq(sh_lock_lock(&o->lock, SHOAL_NOW), SHOAL_ETIMEDOUT);
    ck_assert_int_eq(sh_lock_lock(&o->lock, 4 * SH_SLICE_SHORT), SHOAL_ETIMEDOUT);
    ck_assert_uint_ge(sh_load_relaxed(&fake->sweeps), 1); /* it looked, and found the holder alive */
    ck_assert_int_eq(kill(pid, SIGCONT), 0);
    fake_step(2);
    ck_assert_int_eq(sh_lock_lock(&o->lock, SHOAL_FOREVER), SHOAL_OK);
    fake_join(pid);
}
END_TEST

START_TEST(repair_is_for_the_owner_only)
{
    object *o = fake_begin(sizeof *o);
    ck_assert(!sh_lock_repair(&o->lock, 0));
    ck_assert(!sh_lock_repair(&o->lock, fake_self()));
    ck_assert_int_eq(sh_lock_lock(&o->lock, SHOAL_NOW), SHOAL_OK);
    ck_assert(!sh_lock_repair(&o->lock, fake_self() + 1));
    ck_assert(sh_lock_repair(&o->lock, fake_self()));
    ck_assert(!sh_lock_repair(&o->lock, fake_self()));
    ck_assert(sh_lock_valid(&o->lock));
    ck_assert_int_eq(sh_lock_unlock(&o->lock), SHOAL_ESTATE); /* free, and DIED stays */
    ck_assert_int_eq(sh_lock_lock(&o->lock, SHOAL_NOW), SHOAL_OK);
    ck_assert(sh_lock_owner_died(&o->lock));
}
END_TEST

/* Every second turn asks for a consistent lock first. */
static void work_until_told(void *arg)
{
    object *o = arg;
    for (int turn = 0; sh_load_acquire(&fake->step) == 0; turn++) {
        shoal_err err = turn % 2 == 0 ? SHOAL_EOWNERDEAD : sh_lock_lock_consistent(&o->lock, SHOAL_FOREVER);
        must(err == SHOAL_OK || err == SHOAL_EOWNERDEAD);
        must(err == SHOAL_OK ? !sh_lock_owner_died(&o->lock) : sh_lock_lock(&o->lock, SHOAL_FOREVER) == SHOAL_OK);
        uint64_t first = sh_load_relaxed(&o->first), second = sh_load_relaxed(&o->second);
        if (sh_lock_owner_died(&o->lock)) {
            must(first == second || first == second + 1);
            second = first;
            sh_store_relaxed(&o->second, second);
            must(sh_lock_mark_consistent(&o->lock) == SHOAL_OK);
            sh_add_relaxed(&o->died, 1u);
        }
        must(first == second); /* a death between the two stores was reported */
        sh_store_relaxed(&o->first, first + 1);
        sh_store_release(&o->second, second + 1);
        must(sh_lock_unlock(&o->lock) == SHOAL_OK);
    }
}

/* Kills at random instructions. The number of times that the lock is taken between two kills serves as the clock. */
START_TEST(killed_anywhere)
{
    enum { WORKERS = 3, KILLS = 100 };
    object *o = fake_begin(sizeof *o);
    pid_t pids[WORKERS];
    unsigned seed = 1;
    for (int i = 0; i < WORKERS; i++) {
        pids[i] = fake_fork(work_until_told, o);
    }
    for (int kills = 0; kills < KILLS; kills++) {
        uint64_t until = sh_load_relaxed(&o->second) + (uint64_t)rand_r(&seed) % 2000;
        while (sh_load_relaxed(&o->second) < until) {
            sched_yield();
        }
        int victim = rand_r(&seed) % WORKERS;
        fake_kill(pids[victim]);
        pids[victim] = fake_fork(work_until_told, o);
    }
    fake_step(1);
    for (int i = 0; i < WORKERS; i++) {
        fake_join(pids[i]);
    }
    /* The last one killed may have held the lock, and the others may have ended before they met it. */
    ck_assert_int_eq(sh_lock_lock(&o->lock, SHOAL_FOREVER), SHOAL_OK);
    uint64_t first = sh_load_relaxed(&o->first), second = sh_load_relaxed(&o->second);
    ck_assert(first == second || (sh_lock_owner_died(&o->lock) && first == second + 1));
    ck_assert_int_eq(sh_lock_unlock(&o->lock), SHOAL_OK);
    ck_assert(sh_lock_valid(&o->lock));
    ck_assert_uint_eq(sh_lock_owner(&o->lock), 0);
    ck_assert_uint_le(sh_load_relaxed(&o->died), KILLS);
}
END_TEST

#ifdef SHOAL_DEATH_POINTS
static void die_taking(void *arg)
{
    sh_death_arm("sync.lock.taken", 1);
    take_and_stay(arg);
}

static void die_waiting(void *arg)
{
    sh_death_arm("sync.lock.waiting", 1);
    wait_for_it(arg);
}

static void die_unlocking(void *arg)
{
    sh_death_arm("sync.lock.before_wake", 1);
    take_and_stay(arg);
}

static void die_repairing(void *arg)
{
    sh_death_arm("sync.lock.repaired", 1);
    wait_for_it(arg);
}

static void die_marking(void *arg)
{
    sh_death_arm("sync.lock.marked", 1);
    wait_and_mark(arg);
}

static void die_refusing(void *arg)
{
    sh_death_arm("sync.lock.refused", 1);
    wait_for_a_consistent_one(arg);
}

START_TEST(death_points)
{
    object *o = fake_begin(sizeof *o);
    sh_spin_set(0);
    ck_assert_uint_eq(fake_points("sync.lock."), 6);

    fake_join_killed(fake_fork(die_taking, o));
    ck_assert_int_eq(sh_lock_lock(&o->lock, SHOAL_FOREVER), SHOAL_OK);
    ck_assert(sh_lock_owner_died(&o->lock));

    fake_join_killed(fake_fork(die_waiting, o));
    ck_assert(sh_lock_valid(&o->lock));
    ck_assert(sh_lock_owner_died(&o->lock));
    ck_assert_int_eq(sh_lock_mark_consistent(&o->lock), SHOAL_OK);
    ck_assert_int_eq(sh_lock_unlock(&o->lock), SHOAL_OK);
    ck_assert_uint_eq(sh_load_relaxed(&o->lock.gate.word), 0);

    pid_t pid = fake_fork(die_unlocking, o);
    fake_await_step(1);
    pid_t waiter = fake_fork(wait_for_it, o);
    fake_await_asleep(waiter);
    fake_step(2);
    fake_join_killed(pid);
    fake_join(waiter); /* nobody woke it */
    ck_assert_uint_eq(sh_load_relaxed(&o->died), 0);

    die_with_it(o);
    fake_join_killed(fake_fork(die_repairing, o));
    ck_assert_int_eq(sh_lock_lock(&o->lock, SHOAL_FOREVER), SHOAL_OK);
    ck_assert(sh_lock_owner_died(&o->lock));
    ck_assert_int_eq(sh_lock_unlock(&o->lock), SHOAL_OK);

    fake_join_killed(fake_fork(die_marking, o));
    ck_assert_int_eq(sh_lock_lock(&o->lock, SHOAL_FOREVER), SHOAL_OK);
    ck_assert(sh_lock_owner_died(&o->lock));

    pid = fake_fork(die_refusing, o);
    fake_await_asleep(pid);
    waiter = fake_fork(wait_for_it, o);
    fake_await_asleep(waiter);
    ck_assert_int_eq(sh_lock_unlock(&o->lock), SHOAL_OK);
    fake_join_killed(pid);
    fake_join(waiter); /* the dead process did not wake it */
    ck_assert(sh_lock_valid(&o->lock) && sh_lock_owner_died(&o->lock));
}
END_TEST
#endif

int main(void)
{
    const TTest *const tests[] = {
        rules,
        valid_knows_the_states,
        processes_exclude_each_other,
        threads_exclude_each_other,
        unlock_wakes_the_parked,
        a_death_is_remembered_until_it_is_marked,
        only_the_owner_marks,
        a_second_death_before_or_after_the_mark,
        a_consistent_lock_is_refused_after_a_death,
        a_try_notices_death_too,
        all_waiters_see_a_death_that_nobody_marks,
        one_waiter_sees_a_death_that_it_marks,
        all_waiters_for_a_consistent_one_are_refused,
        all_the_parked_are_woken_in_turn,
        the_refused_wake_the_others,
        the_mark_loses_no_waiter,
        stopped_is_not_dead,
        repair_is_for_the_owner_only,
        killed_anywhere,
#ifdef SHOAL_DEATH_POINTS
        death_points,
#endif
    };
    return fake_run("sync/lock", tests, sizeof tests / sizeof tests[0]);
}
