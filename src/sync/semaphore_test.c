#include "sync/semaphore.h"

#include "base/error.h"
#include "os/futex.h"
#include "sync/peers_test.h"
#include "tests/harness/runner.h"

#include <limits.h>

typedef struct object {
    sh_semaphore_shm semaphore;
    sh_semaphore_shm answer;
    sh_a64 given; /* what producers wrote before they posted */
    sh_a32 woken;
    int64_t plain; /* guarded by the semaphore of value 1 */
} object;

static object *begin(uint32_t value, uint32_t bound)
{
    object *o = fake_begin(sizeof *o);
    ck_assert_int_eq(sh_semaphore_format(&o->semaphore, value, bound), SHOAL_OK);
    ck_assert_int_eq(sh_semaphore_format(&o->answer, 0, 0), SHOAL_OK);
    return o;
}

START_TEST(rules)
{
    object *o = begin(2, 0);
    ck_assert_uint_eq(sh_semaphore_value(&o->semaphore), 2);
    ck_assert_int_eq(sh_semaphore_wait(&o->semaphore, SHOAL_NOW), SHOAL_OK);
    ck_assert_int_eq(sh_semaphore_wait(&o->semaphore, SHOAL_FOREVER), SHOAL_OK);
    ck_assert_int_eq(sh_semaphore_wait(&o->semaphore, SHOAL_NOW), SHOAL_ETIMEDOUT);
    ck_assert_int_eq(shoal_last_error(), SHOAL_ETIMEDOUT);
    int64_t start = sh_now();
    ck_assert_int_eq(sh_semaphore_wait(&o->semaphore, SHOAL_MS(50)), SHOAL_ETIMEDOUT);
    ck_assert_int_ge(sh_now() - start, SHOAL_MS(50));
    ck_assert_int_eq(sh_semaphore_post(&o->semaphore, 0), SHOAL_OK);
    ck_assert_uint_eq(sh_semaphore_value(&o->semaphore), 0);
    ck_assert_int_eq(sh_semaphore_post(&o->semaphore, 3), SHOAL_OK); /* more than its first value: there is no bound */
    ck_assert_uint_eq(sh_semaphore_value(&o->semaphore), 3);
}
END_TEST

START_TEST(limits)
{
    object *o = begin(1, 2);
    ck_assert_int_eq(sh_semaphore_post(&o->semaphore, 2), SHOAL_ESTATE);
    ck_assert_int_eq(shoal_last_error(), SHOAL_ESTATE);
    ck_assert_uint_eq(sh_semaphore_value(&o->semaphore), 1);
    ck_assert_int_eq(sh_semaphore_post(&o->semaphore, UINT32_MAX), SHOAL_ESTATE);
    ck_assert_int_eq(sh_semaphore_post(&o->semaphore, 1), SHOAL_OK);
    ck_assert_int_eq(sh_semaphore_post(&o->semaphore, 1), SHOAL_ESTATE);
    ck_assert(sh_semaphore_valid(&o->semaphore));

    ck_assert_int_eq(sh_semaphore_format(&o->semaphore, SH_SEMAPHORE_MAX - 1, 0), SHOAL_OK);
    ck_assert_int_eq(sh_semaphore_post(&o->semaphore, 2), SHOAL_ESTATE);
    ck_assert_int_eq(sh_semaphore_post(&o->semaphore, 1), SHOAL_OK);
    ck_assert_int_eq(sh_semaphore_post(&o->semaphore, UINT32_MAX), SHOAL_ESTATE);
    ck_assert_uint_eq(sh_semaphore_value(&o->semaphore), SH_SEMAPHORE_MAX);

    ck_assert_int_eq(sh_semaphore_format(&o->semaphore, 3, 2), SHOAL_EINVAL);
    ck_assert_int_eq(sh_semaphore_format(&o->semaphore, SH_SEMAPHORE_MAX + 1, 0), SHOAL_EINVAL);
    ck_assert_int_eq(sh_semaphore_format(&o->semaphore, 0, SH_SEMAPHORE_MAX + 1), SHOAL_EINVAL);
    ck_assert_uint_eq(sh_semaphore_value(&o->semaphore), SH_SEMAPHORE_MAX); /* refused: unchanged */
    sh_store_relaxed(&o->semaphore.value, SH_SEMAPHORE_MAX + 1);
    ck_assert(!sh_semaphore_valid(&o->semaphore));
}
END_TEST

enum { MESSAGES = 60000 };

static void produce(void *arg)
{
    object *o = arg;
    for (uint32_t i = 0; i < MESSAGES; i += 3) {
        sh_add_relaxed(&o->given, 3u);
        must(sh_semaphore_post(&o->semaphore, 3) == SHOAL_OK);
    }
}

static void consume(void *arg)
{
    object *o = arg;
    for (uint32_t i = 1; i <= MESSAGES; i++) {
        must(sh_semaphore_wait(&o->semaphore, SHOAL_FOREVER) == SHOAL_OK);
        must(sh_load_relaxed(&o->given) >= i); /* written before the post that this wait took */
    }
}

START_TEST(nothing_is_lost_between_processes)
{
    object *o = begin(0, 0);
    pid_t pids[4];
    for (int i = 0; i < 4; i++) {
        pids[i] = fake_fork(i < 2 ? produce : consume, o);
    }
    for (int i = 0; i < 4; i++) {
        fake_join(pids[i]);
    }
    ck_assert_uint_eq(sh_semaphore_value(&o->semaphore), 0);
    ck_assert_uint_eq(sh_load_relaxed(&o->given), UINT64_C(2) * MESSAGES);
}
END_TEST

static void *exclude(void *arg)
{
    object *o = arg;
    for (int i = 0; i < 20000; i++) {
        must(sh_semaphore_wait(&o->semaphore, SHOAL_FOREVER) == SHOAL_OK);
        o->plain++;
        must(sh_semaphore_post(&o->semaphore, 1) == SHOAL_OK);
    }
    return NULL;
}

START_TEST(threads_exclude_each_other)
{
    object *o = begin(1, 1);
    pthread_t threads[4];
    for (int i = 0; i < 4; i++) {
        ck_assert_int_eq(pthread_create(&threads[i], NULL, exclude, o), 0);
    }
    for (int i = 0; i < 4; i++) {
        pthread_join(threads[i], NULL);
    }
    ck_assert_int_eq(o->plain, 80000);
    ck_assert_uint_eq(sh_semaphore_value(&o->semaphore), 1);
}
END_TEST

enum { HANDOVERS = 100 };

static void answer_each(void *arg)
{
    object *o = arg;
    for (int i = 0; i < HANDOVERS; i++) {
        must(sh_semaphore_wait(&o->semaphore, SHOAL_FOREVER) == SHOAL_OK);
        must(sh_semaphore_post(&o->answer, 1) == SHOAL_OK);
    }
}

/* The end of a slice would also let it continue, but later. */
START_TEST(post_wakes_the_parked)
{
    object *o = begin(0, 0);
    sh_spin_set(0);
    pid_t pid = fake_fork(answer_each, o);
    int64_t waited = 0; /* a waiter that is not woken goes on when its slice ends */
    for (int i = 0; i < HANDOVERS; i++) {
        while (!(sh_load_acquire(&o->semaphore.gate.word) & 1)) {
            sched_yield();
        }
        fake_await_asleep(pid);
        waited -= sh_quiet_now();
        ck_assert_int_eq(sh_semaphore_post(&o->semaphore, 1), SHOAL_OK);
        ck_assert_int_eq(sh_semaphore_wait(&o->answer, SHOAL_FOREVER), SHOAL_OK);
        waited += sh_quiet_now();
    }
    fake_join(pid);
    ck_assert_int_lt(waited, HANDOVERS * SH_SLICE_SHORT / 2);
}
END_TEST

/* Sleeps on the gate without looking at the value: a process that stays asleep was not woken. */
static void sleep_on_gate(void *arg)
{
    object *o = arg;
    uint32_t prepared = sh_gate_prepare(&o->semaphore.gate);
    must(sh_futex_wait(&o->semaphore.gate.word, prepared, SH_NO_DEADLINE));
    sh_add_acq_rel(&o->woken, 1u);
}

START_TEST(post_wakes_no_more_than_it_gives)
{
    object *o = begin(0, 0);
    pid_t pids[5];
    for (int i = 0; i < 5; i++) {
        pids[i] = fake_fork(sleep_on_gate, o);
    }
    for (int i = 0; i < 5; i++) {
        fake_await_asleep(pids[i]);
    }
    ck_assert_int_eq(sh_semaphore_post(&o->semaphore, 2), SHOAL_OK);
    while (sh_load_acquire(&o->woken) < 2) {
        sched_yield();
    }
    ck_assert_int_eq(sh_futex_wake(&o->semaphore.gate.word, INT_MAX), 3);
    for (int i = 0; i < 5; i++) {
        fake_join(pids[i]);
    }
}
END_TEST

#ifdef SHOAL_DEATH_POINTS
static void wait_for_one(void *arg)
{
    object *o = arg;
    must(sh_semaphore_wait(&o->semaphore, SHOAL_FOREVER) == SHOAL_OK);
}

static void die_taking(void *arg)
{
    sh_death_arm("sync.semaphore.taken", 1);
    wait_for_one(arg);
}

static void die_waiting(void *arg)
{
    sh_death_arm("sync.semaphore.waiting", 1);
    wait_for_one(arg);
}

static void die_posting(void *arg)
{
    object *o = arg;
    sh_death_arm("sync.semaphore.before_wake", 1);
    must(sh_semaphore_post(&o->semaphore, 1) == SHOAL_OK);
}

START_TEST(death_points)
{
    object *o = begin(2, 0);
    sh_spin_set(0);
    ck_assert_uint_eq(fake_points("sync.semaphore."), 3);

    fake_join_killed(fake_fork(die_taking, o));
    ck_assert_uint_eq(sh_semaphore_value(&o->semaphore), 1); /* taken for good */
    ck_assert_int_eq(sh_semaphore_wait(&o->semaphore, SHOAL_NOW), SHOAL_OK);

    fake_join_killed(fake_fork(die_waiting, o));
    ck_assert_uint_eq(sh_semaphore_value(&o->semaphore), 0);

    pid_t waiter = fake_fork(wait_for_one, o);
    fake_await_asleep(waiter);
    fake_join_killed(fake_fork(die_posting, o));
    fake_join(waiter); /* nobody woke it */
    ck_assert_uint_eq(sh_semaphore_value(&o->semaphore), 0);
    ck_assert(sh_semaphore_valid(&o->semaphore));
}
END_TEST
#endif

int main(void)
{
    const TTest *const tests[] = {
        rules,
        limits,
        nothing_is_lost_between_processes,
        threads_exclude_each_other,
        post_wakes_the_parked,
        post_wakes_no_more_than_it_gives,
#ifdef SHOAL_DEATH_POINTS
        death_points,
#endif
    };
    return fake_run("sync/semaphore", tests, sizeof tests / sizeof tests[0]);
}
