#include "sync/barrier.h"

#include "base/error.h"
#include "sync/peers_test.h"
#include "tests/harness/runner.h"

enum { PARTIES = 4, PHASES = 10000, THREAD_PHASES = 2000, ROUNDS = 1000 };

typedef struct object {
    sh_barrier_shm barrier;
    int64_t plain[PARTIES]; /* each written by one party between two phases, read by all after it */
    sh_a32 indexes[PHASES]; /* a bit for each index that was given out */
    sh_a32 results[SHOAL_EOS + 1];
    sh_a32 next_party;
    sh_a32 rounds_done;
} object;

static object *begin(uint32_t parties)
{
    object *o = fake_begin(sizeof *o);
    ck_assert_int_eq(sh_barrier_format(&o->barrier, parties), SHOAL_OK);
    return o;
}

static uint32_t result(object *o, shoal_err err)
{
    return sh_load_acquire(&o->results[err]);
}

static void await_waiting(object *o, uint32_t count)
{
    while (sh_barrier_waiting(&o->barrier) != count) {
        sched_yield();
    }
}

/* Waits once and counts the result. */
static void wait_once(void *arg)
{
    object *o = arg;
    uint32_t index = 77;
    shoal_err err = sh_barrier_wait(&o->barrier, SHOAL_FOREVER, &index);
    must(err == SHOAL_OK ? index < o->barrier.parties : index == 77);
    must(sh_barrier_valid(&o->barrier));
    sh_add_acq_rel(&o->results[err], 1u);
}

START_TEST(rules)
{
    object *o = begin(1);
    uint32_t index = 77;
    ck_assert_int_eq(sh_barrier_format(&o->barrier, 0), SHOAL_EINVAL);
    ck_assert_int_eq(sh_barrier_format(&o->barrier, SH_BARRIER_PARTIES_MAX + 1), SHOAL_EINVAL);
    ck_assert_int_eq(sh_barrier_wait(&o->barrier, SHOAL_NOW, &index), SHOAL_OK); /* the only party is the last */
    ck_assert_uint_eq(index, 0);

    ck_assert_int_eq(sh_barrier_format(&o->barrier, 2), SHOAL_OK);
    index = 77;
    ck_assert_int_eq(sh_barrier_wait(&o->barrier, SHOAL_NOW, &index), SHOAL_ETIMEDOUT);
    ck_assert_int_eq(shoal_last_error(), SHOAL_ETIMEDOUT);
    ck_assert_uint_eq(index, 77);
    ck_assert(sh_barrier_is_broken(&o->barrier));
    ck_assert_int_eq(sh_barrier_wait(&o->barrier, SHOAL_FOREVER, &index), SHOAL_EBROKEN);
    ck_assert_int_eq(shoal_last_error(), SHOAL_EBROKEN);
    sh_barrier_reset(&o->barrier);
    ck_assert(!sh_barrier_is_broken(&o->barrier));
    int64_t start = sh_now();
    ck_assert_int_eq(sh_barrier_wait(&o->barrier, SHOAL_MS(60), &index), SHOAL_ETIMEDOUT);
    ck_assert_int_ge(sh_now() - start, SHOAL_MS(60));
    sh_barrier_reset(&o->barrier);
    sh_barrier_reset(&o->barrier);
    sh_barrier_abort(&o->barrier);
    sh_barrier_abort(&o->barrier);
    ck_assert(sh_barrier_is_broken(&o->barrier));
    ck_assert_int_eq(sh_barrier_wait(&o->barrier, SHOAL_FOREVER, &index), SHOAL_EBROKEN);
    sh_barrier_reset(&o->barrier);
    ck_assert(!sh_barrier_is_broken(&o->barrier));
    ck_assert(sh_barrier_valid(&o->barrier));
}
END_TEST

START_TEST(valid_knows_the_states)
{
    object *o = begin(2);
    const struct {
        uint64_t word;
        bool valid;
    } states[] = {
        {0, true}, {1, true}, {2, false}, {1u << 16, true}, {(1u << 16) | 1, false}, {~UINT64_C(0) << 17, true}};
    for (size_t i = 0; i < sizeof states / sizeof states[0]; i++) {
        sh_store_relaxed(&o->barrier.state.lo, states[i].word);
        ck_assert_msg(sh_barrier_valid(&o->barrier) == states[i].valid, "state %zu", i);
    }
    sh_store_relaxed(&o->barrier.state.lo, 0);
    o->barrier.parties = 0;
    ck_assert(!sh_barrier_valid(&o->barrier));
}
END_TEST

static void gather(object *o, int64_t phases)
{
    uint32_t party = sh_add_relaxed(&o->next_party, 1u);
    for (int64_t phase = 0; phase < phases; phase++) {
        uint32_t index;
        o->plain[party] = phase + 1;
        must(sh_barrier_wait(&o->barrier, SHOAL_FOREVER, &index) == SHOAL_OK);
        must(index < PARTIES);
        must((sh_add_relaxed(&o->indexes[phase], 1u << (8 * index)) & (1u << (8 * index))) == 0);
        for (int i = 0; i < PARTIES; i++) {
            must(o->plain[i] == phase + 1); /* nobody leaves before all arrived, or arrives again before all left */
        }
        must(sh_barrier_wait(&o->barrier, SHOAL_FOREVER, &index) == SHOAL_OK);
    }
}

static void gather_process(void *arg)
{
    gather(arg, PHASES / 2);
}

static void *gather_thread(void *arg)
{
    gather(arg, THREAD_PHASES / 2);
    return NULL;
}

static void check_indexes(object *o, int64_t phases)
{
    for (int64_t phase = 0; phase < phases; phase++) {
        ck_assert_uint_eq(sh_load_relaxed(&o->indexes[phase]),
                          0x01010101u); /* each index once, so one party was the last */
    }
    ck_assert_uint_eq(sh_barrier_waiting(&o->barrier), 0);
    ck_assert(sh_barrier_valid(&o->barrier));
}

START_TEST(processes_leave_together)
{
    object *o = begin(PARTIES);
    pid_t pids[PARTIES];
    for (int i = 0; i < PARTIES; i++) {
        pids[i] = fake_fork(gather_process, o);
    }
    for (int i = 0; i < PARTIES; i++) {
        fake_join(pids[i]);
    }
    check_indexes(o, PHASES / 2);
}
END_TEST

START_TEST(threads_leave_together)
{
    object *o = begin(PARTIES);
    pthread_t threads[PARTIES];
    for (int i = 0; i < PARTIES; i++) {
        ck_assert_int_eq(pthread_create(&threads[i], NULL, gather_thread, o), 0);
    }
    for (int i = 0; i < PARTIES; i++) {
        pthread_join(threads[i], NULL);
    }
    check_indexes(o, THREAD_PHASES / 2);
}
END_TEST

static void timed_out(object *o)
{
    uint32_t index;
    ck_assert_int_eq(sh_barrier_wait(&o->barrier, SHOAL_MS(1), &index), SHOAL_ETIMEDOUT);
}

static void aborted(object *o)
{
    sh_barrier_abort(&o->barrier);
}

static void broken_by_recovery(object *o)
{
    sh_barrier_break(&o->barrier);
}

static void reset_it(object *o)
{
    sh_barrier_reset(&o->barrier);
}

/* The process that breaks the barrier wakes the parked waiters. They would also notice when their slice ends, but
 * later. */
START_TEST(breaking_wakes_the_parked)
{
    void (*const breakers[])(object *) = {timed_out, aborted, broken_by_recovery, reset_it};
    object *o = begin(PARTIES);
    sh_spin_set(0);
    int64_t waited = 0; /* a waiter that is not woken goes on when its slice ends */
    for (int round = 0; round < 40; round++) {
        void (*breaker)(object *) = breakers[round % 4];
        pid_t pids[2];
        for (uint32_t i = 0; i < 2; i++) {
            pids[i] = fake_fork(wait_once, o);
        }
        await_waiting(o, 2);
        fake_await_asleep(pids[0]);
        fake_await_asleep(pids[1]);
        waited -= sh_quiet_now();
        breaker(o);
        fake_join(pids[0]);
        fake_join(pids[1]);
        waited += sh_quiet_now();
        ck_assert_uint_eq(result(o, SHOAL_EBROKEN), 2u * (uint32_t)round + 2);
        ck_assert_uint_eq(sh_barrier_waiting(&o->barrier), 0);
        ck_assert_int_eq(sh_barrier_is_broken(&o->barrier), breaker != reset_it);
        sh_barrier_reset(&o->barrier);
    }
    ck_assert_int_lt(waited, 40 * SH_SLICE_SHORT / 2);
}
END_TEST

START_TEST(the_last_wakes_the_parked)
{
    object *o = begin(2);
    sh_spin_set(0);
    int64_t waited = 0; /* a waiter that is not woken goes on when its slice ends */
    for (int round = 0; round < 40; round++) {
        uint32_t index;
        pid_t pid = fake_fork(wait_once, o);
        await_waiting(o, 1);
        fake_await_asleep(pid);
        waited -= sh_quiet_now();
        ck_assert_int_eq(sh_barrier_wait(&o->barrier, SHOAL_FOREVER, &index), SHOAL_OK);
        ck_assert_uint_eq(index, 1);
        fake_join(pid);
        waited += sh_quiet_now();
    }
    ck_assert_uint_eq(result(o, SHOAL_OK), 40);
    ck_assert_int_lt(waited, 40 * SH_SLICE_SHORT / 2);
}
END_TEST

static void complete_a_phase(object *o)
{
    uint32_t index;
    pid_t pid = fake_fork(wait_once, o);
    ck_assert_int_eq(sh_barrier_wait(&o->barrier, SHOAL_FOREVER, &index), SHOAL_OK);
    fake_join(pid);
}

static void break_and_reset(object *o)
{
    sh_barrier_abort(&o->barrier);
    sh_barrier_reset(&o->barrier);
}

/* A waiter that sleeps while others continue learns how its own phase ended. c: completes, r: abort and reset. */
START_TEST(late_waiter_learns_its_own_end)
{
    const struct {
        const char *steps;
        shoal_err end;
    } cases[] = {
        {"c", SHOAL_OK},
        {"r", SHOAL_EBROKEN},
        {"cr", SHOAL_OK},
        {"rc", SHOAL_EBROKEN},
        {"crr", SHOAL_OK},
        {"rcc", SHOAL_EBROKEN},
        {"crcr", SHOAL_OK},
        {"rcrc", SHOAL_EBROKEN},
        {"crrrrrrr", SHOAL_OK}, /* 8, the whole history */
        {"rccccccc", SHOAL_EBROKEN},
        {"cccccccccccccccccccc", SHOAL_OK}, /* 20, without a reset */
        {"rccccccccccccccccccc", SHOAL_EBROKEN},
        {"ccccccccr", SHOAL_EBROKEN}, /* 9: no longer in the history, and taken for broken */
    };
    object *o = begin(2);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        pid_t late = fake_fork(wait_once, o);
        await_waiting(o, 1);
        fake_stop(late);
        const char *step = cases[i].steps;
        uint32_t before_ok = result(o, SHOAL_OK), before_broken = result(o, SHOAL_EBROKEN);
        if (*step == 'c') { /* the first party beside the late one */
            uint32_t index;
            ck_assert_int_eq(sh_barrier_wait(&o->barrier, SHOAL_FOREVER, &index), SHOAL_OK);
            step++;
        }
        for (; *step != 0; step++) {
            if (*step == 'c') {
                complete_a_phase(o);
                before_ok++;
            } else {
                break_and_reset(o);
            }
        }
        ck_assert_int_eq(kill(late, SIGCONT), 0);
        fake_join(late);
        ck_assert_msg(result(o, SHOAL_OK) - before_ok == (cases[i].end == SHOAL_OK), "%s", cases[i].steps);
        ck_assert_msg(result(o, SHOAL_EBROKEN) - before_broken == (cases[i].end != SHOAL_OK), "%s", cases[i].steps);
        ck_assert_uint_eq(sh_barrier_waiting(&o->barrier), 0);
    }
}
END_TEST

/* However many resets there are while a waiter is stopped, it never takes their number for none. The numbers of
 * bits that a count of them might have. */
START_TEST(f9_a_waiter_stopped_through_many_resets_finds_it_broken)
{
    object *o = begin(2);
    const uint32_t resets[] = {128, 256, 1u << 12, 1u << 16};
    for (size_t i = 0; i < sizeof resets / sizeof resets[0]; i++) {
        pid_t late = fake_fork(wait_once, o);
        await_waiting(o, 1);
        fake_stop(late);
        for (uint32_t n = 0; n < resets[i]; n++) {
            break_and_reset(o);
        }
        ck_assert_int_eq(kill(late, SIGCONT), 0);
        fake_join(late);
        ck_assert_uint_eq(result(o, SHOAL_OK), 0);
        ck_assert_uint_eq(result(o, SHOAL_EBROKEN), i + 1);
    }
}
END_TEST

/* Each field wraps without a carry into the next. */
START_TEST(counts_wrap)
{
    object *o = begin(1);
    uint32_t index;
    sh_store_relaxed(&o->barrier.state.lo, ~UINT64_C(0) << 17);
    sh_store_relaxed(&o->barrier.state.hi, ~UINT64_C(0));
    ck_assert_int_eq(sh_barrier_wait(&o->barrier, SHOAL_NOW, &index), SHOAL_OK);
    ck_assert_uint_eq(sh_load_relaxed(&o->barrier.state.lo), UINT64_C(0x1fe0000)); /* history full of ones, phase 0 */
    break_and_reset(o);
    ck_assert_uint_eq(sh_load_relaxed(&o->barrier.state.lo), UINT64_C(0x3fc0000)); /* phase 1 */
    ck_assert_uint_eq(sh_load_relaxed(&o->barrier.state.hi), 0);
    ck_assert(sh_barrier_valid(&o->barrier));
}
END_TEST

static void race_a_timeout(void *arg)
{
    object *o = arg;
    unsigned seed = fake_self();
    for (uint32_t round = 0; round < ROUNDS; round++) {
        uint32_t index;
        int64_t come = sh_now() + rand_r(&seed) % 200000; /* about when the timeouts of the others expire */
        while (sh_now() < come) {
        }
        shoal_err err = sh_barrier_wait(&o->barrier, 120000, &index);
        sh_add_acq_rel(&o->results[err], 1u);
        sh_add_acq_rel(&o->rounds_done, 1u);
        fake_await_step(round + 1);
    }
}

/* Each party arrives once a round: all get through, or one times out and the others find the barrier broken. */
START_TEST(a_timeout_breaks_for_all_or_none)
{
    object *o = begin(3);
    pid_t pids[3];
    uint32_t completed = 0;
    for (int i = 0; i < 3; i++) {
        pids[i] = fake_fork(race_a_timeout, o);
    }
    for (uint32_t round = 0; round < ROUNDS; round++) {
        while (sh_load_acquire(&o->rounds_done) != 3 * (round + 1)) {
            sched_yield();
        }
        uint32_t ok = result(o, SHOAL_OK), late = result(o, SHOAL_ETIMEDOUT), broken = result(o, SHOAL_EBROKEN);
        ck_assert_msg((ok == 3 && late == 0 && broken == 0) || (ok == 0 && late == 1 && broken == 2),
                      "round %u: %u ok, %u timed out, %u broken", round, ok, late, broken);
        completed += ok / 3;
        memset(o->results, 0, sizeof o->results);
        ck_assert_int_eq(sh_barrier_is_broken(&o->barrier), ok == 0);
        sh_barrier_reset(&o->barrier);
        fake_step(round + 1);
    }
    for (int i = 0; i < 3; i++) {
        fake_join(pids[i]);
    }
    ck_assert_uint_gt(completed, 0); /* both outcomes must occur, or this tests nothing */
    ck_assert_uint_lt(completed, ROUNDS);
}
END_TEST

static object *recovered; /* what the fake recovery breaks */

static void break_recovered(sh_owner dead)
{
    (void)dead;
    sh_barrier_break(&recovered->barrier);
}

START_TEST(a_dead_party_breaks_it)
{
    int64_t best = INT64_MAX;
    for (int i = 0; i < 5; i++) {
        object *o = recovered = begin(3);
        fake_recovery = break_recovered;
        pid_t victim = fake_fork(wait_once, o), other = fake_fork(wait_once, o);
        await_waiting(o, 2);
        int64_t start = sh_now();
        ck_assert_int_eq(kill(victim, SIGKILL), 0);
        fake_join(other);
        best = sh_now() - start < best ? sh_now() - start : best;
        fake_join_killed(victim);
        ck_assert_uint_eq(result(o, SHOAL_EBROKEN), 1);
        ck_assert(sh_barrier_is_broken(&o->barrier));
        ck_assert(sh_barrier_valid(&o->barrier));
        fake_recovery = NULL;
    }
    ck_assert_int_lt(best, SHOAL_MS(100)); /* the best of five: a busy machine may be late sometimes */
}
END_TEST

START_TEST(a_stopped_party_does_not_break_it)
{
    object *o = recovered = begin(3);
    uint32_t index;
    fake_recovery = break_recovered;
    pid_t stopped = fake_fork(wait_once, o), other = fake_fork(wait_once, o);
    await_waiting(o, 2);
    fake_stop(stopped);
    uint32_t sweeps = sh_load_acquire(&fake->sweeps);
    while (sh_load_acquire(&fake->sweeps) < sweeps + 4) { /* the other sweeps, and keeps waiting */
        sched_yield();
    }
    ck_assert(!sh_barrier_is_broken(&o->barrier));
    ck_assert_int_eq(sh_barrier_wait(&o->barrier, SHOAL_FOREVER, &index), SHOAL_OK);
    ck_assert_uint_eq(index, 2);
    fake_join(other);
    ck_assert_int_eq(kill(stopped, SIGCONT), 0);
    fake_join(stopped);
    ck_assert_uint_eq(result(o, SHOAL_OK), 2);
}
END_TEST

#ifdef SHOAL_DEATH_POINTS
static void die_arrived(void *arg)
{
    sh_death_arm("sync.barrier.arrived", 1);
    wait_once(arg);
}

static void die_completing(void *arg)
{
    sh_death_arm("sync.barrier.before_wake", 1);
    wait_once(arg);
}

static void die_aborting(void *arg)
{
    object *o = arg;
    sh_death_arm("sync.barrier.before_wake", 1);
    sh_barrier_abort(&o->barrier);
}

static void die_resetting(void *arg)
{
    object *o = arg;
    sh_death_arm("sync.barrier.before_wake", 1);
    sh_barrier_reset(&o->barrier);
}

/* One process waits, parked; another dies; the first returns `end`, although nobody woke it. */
static void check_end(object *o, void (*dies)(void *), shoal_err end)
{
    uint32_t before = result(o, end);
    pid_t waiter = fake_fork(wait_once, o);
    await_waiting(o, 1);
    fake_await_asleep(waiter);
    fake_join_killed(fake_fork(dies, o));
    ck_assert(sh_barrier_valid(&o->barrier));
    fake_join(waiter);
    ck_assert_uint_eq(result(o, end), before + 1);
}

START_TEST(death_points)
{
    object *o = recovered = begin(2);
    sh_spin_set(0);
    ck_assert_uint_eq(fake_points("sync.barrier."), 2);
    check_end(o, die_completing, SHOAL_OK);
    check_end(o, die_aborting, SHOAL_EBROKEN);
    ck_assert(sh_barrier_is_broken(&o->barrier));
    sh_barrier_reset(&o->barrier);
    check_end(o, die_resetting, SHOAL_EBROKEN);
    ck_assert(!sh_barrier_is_broken(&o->barrier));

    o = recovered = begin(3);
    fake_recovery = break_recovered;
    check_end(o, die_arrived, SHOAL_EBROKEN);
    ck_assert(sh_barrier_is_broken(&o->barrier));
}
END_TEST
#endif

int main(void)
{
    const TTest *const tests[] = {
        rules,
        valid_knows_the_states,
        processes_leave_together,
        threads_leave_together,
        breaking_wakes_the_parked,
        the_last_wakes_the_parked,
        late_waiter_learns_its_own_end,
        f9_a_waiter_stopped_through_many_resets_finds_it_broken,
        counts_wrap,
        a_timeout_breaks_for_all_or_none,
        a_dead_party_breaks_it,
        a_stopped_party_does_not_break_it,
#ifdef SHOAL_DEATH_POINTS
        death_points,
#endif
    };
    return fake_run("sync/barrier", tests, sizeof tests / sizeof tests[0]);
}
