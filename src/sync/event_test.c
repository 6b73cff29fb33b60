#include "sync/event.h"

#include "base/error.h"
#include "sync/peers_test.h"
#include "tests/harness/runner.h"

typedef struct object {
    sh_event_shm event;
    sh_event_shm other;
    sh_a32 left;
    int64_t plain; /* passed between the two threads by the two events */
} object;

START_TEST(rules)
{
    object *o = fake_begin(sizeof *o);
    sh_event_format(&o->event);
    ck_assert(!sh_event_is_set(&o->event));
    ck_assert_int_eq(sh_event_wait(&o->event, SHOAL_NOW), SHOAL_ETIMEDOUT);
    ck_assert_int_eq(shoal_last_error(), SHOAL_ETIMEDOUT);
    int64_t start = sh_now();
    ck_assert_int_eq(sh_event_wait(&o->event, SHOAL_MS(50)), SHOAL_ETIMEDOUT);
    ck_assert_int_ge(sh_now() - start, SHOAL_MS(50));
    sh_event_set(&o->event);
    sh_event_set(&o->event);
    ck_assert(sh_event_is_set(&o->event));
    ck_assert_int_eq(sh_event_wait(&o->event, SHOAL_NOW), SHOAL_OK);
    ck_assert_int_eq(sh_event_wait(&o->event, SHOAL_FOREVER), SHOAL_OK); /* waiting does not clear it */
    sh_event_clear(&o->event);
    sh_event_clear(&o->event);
    ck_assert(!sh_event_is_set(&o->event));
    ck_assert_int_eq(sh_event_wait(&o->event, SHOAL_NOW), SHOAL_ETIMEDOUT);
}
END_TEST

/* A wait that still spins keeps its timeout, and SHOAL_SPIN_NS has an upper limit. Before, the first wait took 3 s. */
START_TEST(spinning_keeps_the_timeout)
{
    object *o = fake_begin(sizeof *o);
    sh_event_format(&o->event);
    sh_spin_set(SHOAL_SECONDS(3));
    int64_t start = sh_quiet_now();
    ck_assert_int_eq(sh_event_wait(&o->event, SHOAL_MS(5)), SHOAL_ETIMEDOUT);
    ck_assert_int_eq(sh_event_wait(&o->event, SHOAL_NOW), SHOAL_ETIMEDOUT);
    ck_assert_int_lt(sh_quiet_now() - start, SHOAL_SECONDS(2));
    setenv("SHOAL_SPIN_NS", "1000000000000", 1);
    ck_assert_int_le(sh_spin_read(), SHOAL_MS(100));
    setenv("SHOAL_SPIN_NS", "1234", 1);
    ck_assert_int_le(sh_spin_read(), 1234); /* 0 on one core */
    unsetenv("SHOAL_SPIN_NS");
}
END_TEST

static void wait_and_leave(void *arg)
{
    object *o = arg;
    must(sh_event_wait(&o->event, SHOAL_FOREVER) == SHOAL_OK);
    sh_add_acq_rel(&o->left, 1u);
}

/* The event is cleared before they could look: those who waited when it was set still return, and nobody later does. */
START_TEST(set_releases_waiters_although_it_is_cleared)
{
    object *o = fake_begin(sizeof *o);
    sh_spin_set(0);
    pid_t pids[4];
    for (int i = 0; i < 4; i++) {
        pids[i] = fake_fork(wait_and_leave, o);
    }
    for (int i = 0; i < 4; i++) {
        fake_await_asleep(pids[i]);
        fake_stop(pids[i]);
    }
    sh_event_set(&o->event);
    sh_event_clear(&o->event);
    for (int i = 0; i < 4; i++) {
        ck_assert_int_eq(kill(pids[i], SIGCONT), 0);
        fake_join(pids[i]);
    }
    ck_assert_uint_eq(sh_load_relaxed(&o->left), 4);
    ck_assert_int_eq(sh_event_wait(&o->event, SHOAL_NOW), SHOAL_ETIMEDOUT);
}
END_TEST

/* The end of a slice would release them, too, but later. */
START_TEST(set_wakes_all)
{
    enum { TIMES = 20 };
    object *o = fake_begin(sizeof *o);
    sh_spin_set(0);
    int64_t waited = 0; /* a waiter that is not woken goes on when its slice ends */
    for (int i = 0; i < TIMES; i++) {
        pid_t pids[3];
        for (int k = 0; k < 3; k++) {
            pids[k] = fake_fork(wait_and_leave, o);
        }
        for (int k = 0; k < 3; k++) {
            fake_await_asleep(pids[k]);
        }
        waited -= sh_quiet_now();
        sh_event_set(&o->event);
        for (int k = 0; k < 3; k++) {
            fake_join(pids[k]);
        }
        waited += sh_quiet_now();
        sh_event_clear(&o->event);
    }
    ck_assert_int_lt(waited, TIMES * SH_SLICE_SHORT / 2);
}
END_TEST

enum { HANDOVERS = 100 };

static void answer_each(void *arg)
{
    object *o = arg;
    for (int i = 0; i < HANDOVERS; i++) {
        must(sh_event_wait(&o->event, SHOAL_FOREVER) == SHOAL_OK);
        sh_event_clear(&o->event);
        sh_event_set(&o->other);
    }
}

START_TEST(set_wakes_the_parked)
{
    object *o = fake_begin(sizeof *o);
    sh_spin_set(0);
    pid_t pid = fake_fork(answer_each, o);
    int64_t waited = 0; /* a waiter that is not woken goes on when its slice ends */
    for (int i = 0; i < HANDOVERS; i++) {
        while (!(sh_load_acquire(&o->event.gate.word) & 1)) {
            sched_yield();
        }
        fake_await_asleep(pid);
        waited -= sh_quiet_now();
        sh_event_set(&o->event);
        ck_assert_int_eq(sh_event_wait(&o->other, SHOAL_FOREVER), SHOAL_OK);
        waited += sh_quiet_now();
        sh_event_clear(&o->other);
    }
    fake_join(pid);
    ck_assert_int_lt(waited, HANDOVERS * SH_SLICE_SHORT / 2);
}
END_TEST

enum { TURNS = 20000 };

static void take_turns(sh_event_shm *mine, sh_event_shm *other, int64_t *plain)
{
    for (int i = 0; i < TURNS; i++) {
        must(sh_event_wait(mine, SHOAL_FOREVER) == SHOAL_OK);
        sh_event_clear(mine);
        ++*plain;
        sh_event_set(other);
    }
}

static void *second_thread(void *arg)
{
    object *o = arg;
    take_turns(&o->other, &o->event, &o->plain);
    return NULL;
}

static void second_process(void *arg)
{
    second_thread(arg);
}

START_TEST(threads_take_turns)
{
    object *o = fake_begin(sizeof *o);
    pthread_t thread;
    ck_assert_int_eq(pthread_create(&thread, NULL, second_thread, o), 0);
    sh_event_set(&o->event);
    take_turns(&o->event, &o->other, &o->plain);
    pthread_join(thread, NULL);
    ck_assert_int_eq(o->plain, INT64_C(2) * TURNS);
}
END_TEST

START_TEST(processes_take_turns)
{
    object *o = fake_begin(sizeof *o);
    pid_t pid = fake_fork(second_process, o);
    sh_event_set(&o->event);
    take_turns(&o->event, &o->other, &o->plain);
    fake_join(pid);
    ck_assert_int_eq(o->plain, INT64_C(2) * TURNS);
}
END_TEST

#ifdef SHOAL_DEATH_POINTS
static void die_setting(void *arg)
{
    object *o = arg;
    sh_death_arm("sync.event.before_wake", 1);
    sh_event_set(&o->event);
}

START_TEST(death_points)
{
    object *o = fake_begin(sizeof *o);
    sh_spin_set(0);
    ck_assert_uint_eq(fake_points("sync.event."), 1);
    pid_t waiter = fake_fork(wait_and_leave, o);
    fake_await_asleep(waiter);
    fake_join_killed(fake_fork(die_setting, o));
    ck_assert(sh_event_is_set(&o->event));
    fake_join(waiter); /* nobody woke it */
}
END_TEST
#endif

int main(void)
{
    const TTest *const tests[] = {
        rules,
        spinning_keeps_the_timeout,
        set_releases_waiters_although_it_is_cleared,
        set_wakes_all,
        set_wakes_the_parked,
        threads_take_turns,
        processes_take_turns,
#ifdef SHOAL_DEATH_POINTS
        death_points,
#endif
    };
    return fake_run("sync/event", tests, sizeof tests / sizeof tests[0]);
}
