/* Waits that end on a signal, if this is enabled: every call that blocks, within 100 ms. */
#include "base/clock.h"
#include "tests/harness/runner.h"

#include <shoal/binding.h>

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#define LIMIT SH_PATIENCE
#define BOUND SHOAL_MS(SH_SLOW ? 1000 : 100) /* the guarantee; a sanitizer build on a busy machine needs longer */

static volatile sig_atomic_t signalled; /* set by the handler for this thread */
static int64_t signalled_at;

static void handler(int number)
{
    (void)number;
    signalled = 1;
}

static bool check(void *context)
{
    ck_assert(context == (void *)(uintptr_t)&signalled);
    return signalled != 0;
}

/* ---- everything that can be waited for ---- */

static shoal_queue *empty, *full, *undone;
static shoal_pipe *pipe_a, *pipe_b;
static shoal_lock *lock;
static shoal_rlock *rlock;
static shoal_semaphore *semaphore;
static shoal_event *event;
static shoal_condition *condition;
static shoal_barrier *barrier;
static shoal_process *process;
static shoal_pool *pool;

static shoal_err sleeper(int rank, const shoal_value *args)
{
    (void)rank;
    (void)args;
    for (;;) {
        pause();
    }
    return SHOAL_OK;
}

static shoal_err slow_task(const shoal_value *arg, shoal_value **out_result)
{
    (void)arg;
    (void)out_result;
    for (;;) {
        pause();
    }
    return SHOAL_OK;
}

static shoal_err wait_queue(int64_t t)
{
    shoal_value *v;
    return shoal_queue_get(empty, t, &v);
}

static shoal_err wait_put(int64_t t)
{
    return shoal_queue_put(full, shoal_value_int(1), t);
}

static shoal_err wait_done(int64_t t)
{
    return shoal_queue_join(undone, t);
}

static shoal_err wait_pipe(int64_t t)
{
    return shoal_pipe_poll(pipe_a, t);
}

static shoal_err wait_lock(int64_t t)
{
    return shoal_lock_lock(lock, t);
}

static shoal_err wait_semaphore(int64_t t)
{
    return shoal_semaphore_wait(semaphore, t);
}

static shoal_err wait_event(int64_t t)
{
    return shoal_event_wait(event, t);
}

static shoal_err wait_condition(int64_t t)
{
    shoal_err err = shoal_condition_lock(condition, t);
    if (err == SHOAL_OK) {
        err = shoal_condition_wait(condition, t);
        ck_assert_ok(shoal_condition_unlock(condition)); /* this thread holds it again */
    }
    return err;
}

static shoal_err wait_barrier(int64_t t)
{
    shoal_err err = shoal_barrier_wait(barrier, t, NULL);
    ck_assert(shoal_barrier_is_broken(barrier));
    return err;
}

static shoal_err wait_join(int64_t t)
{
    return shoal_process_join(process, t, NULL);
}

static shoal_err wait_processes(int64_t t)
{
    return shoal_wait(&(shoal_waitable){.process = process}, 1, t);
}

static shoal_err wait_several(int64_t t)
{
    shoal_waitable things[] = {{.process = process}, {.queue = empty}};
    return shoal_wait(things, 2, t);
}

static shoal_err wait_pool(int64_t t)
{
    shoal_future *future;
    shoal_value *v;
    shoal_err err = shoal_pool_apply_async(pool, slow_task, shoal_value_null(), &future);
    if (err == SHOAL_OK) {
        err = shoal_future_get(future, t, &v);
        shoal_future_destroy(future);
    }
    return err;
}

static shoal_err wait_spawn(int64_t t)
{
    (void)t;
    return shoal_spawn(sleeper, 2, shoal_value_null());
}

typedef shoal_err (*waiter)(int64_t timeout);
static const waiter waiters[] = {wait_queue,     wait_put,     wait_done,      wait_pipe,    wait_lock,
                                 wait_semaphore, wait_event,   wait_condition, wait_barrier, wait_join,
                                 wait_processes, wait_several, wait_pool,      wait_spawn};
#define WAITERS ((int)(sizeof waiters / sizeof waiters[0]))

static void begin(void)
{
    signal(SIGTERM, SIG_DFL);
    sh_leaks_begin();
    ck_assert_ok(shoal_queue_create(0, &empty));
    ck_assert_ok(shoal_queue_create(1, &full));
    ck_assert_ok(shoal_queue_put(full, shoal_value_int(0), SHOAL_NOW));
    ck_assert_ok(shoal_queue_create(0, &undone));
    ck_assert_ok(shoal_queue_put(undone, shoal_value_int(0), SHOAL_NOW));
    ck_assert_ok(shoal_pipe_create(true, &pipe_a, &pipe_b));
    ck_assert_ok(shoal_lock_create(&lock));
    ck_assert_ok(shoal_lock_lock(lock, SHOAL_NOW));
    ck_assert_ok(shoal_rlock_create(&rlock));
    ck_assert_ok(shoal_semaphore_create(0, 0, &semaphore));
    ck_assert_ok(shoal_event_create(&event));
    ck_assert_ok(shoal_condition_create(&condition));
    ck_assert_ok(shoal_barrier_create(2, &barrier));
    sigaction(SIGUSR1, &(struct sigaction){.sa_handler = handler}, NULL);
    signalled = 0;
}

static void end(void)
{
    shoal_set_interrupt(NULL, NULL);
    shoal_process_destroy(process);
    shoal_pool_destroy(pool);
    shoal_release(empty);
    shoal_release(full);
    shoal_release(undone);
    shoal_release(pipe_a);
    shoal_release(pipe_b);
    shoal_release(lock);
    shoal_release(rlock);
    shoal_release(semaphore);
    shoal_release(event);
    shoal_release(condition);
    shoal_release(barrier);
    sh_leaks_end();
}

static void start_what_is_waited_for(waiter w)
{
    if (w == wait_join || w == wait_processes || w == wait_several) {
        ck_assert_ok(shoal_process_start(sleeper, shoal_value_null(), NULL, &process));
    }
    if (w == wait_pool) {
        ck_assert_ok(shoal_pool_create(&(shoal_pool_options){.workers = 1}, &pool));
    }
}

typedef struct sender {
    pthread_t to;
    int times;
} sender;

/* Sends a signal to the waiting thread some time after it began, and again,
 * because the first may arrive before the wait. */
static void *send_signal(void *context)
{
    const sender *s = context;
    usleep(20000);
    signalled_at = sh_quiet_now();
    pthread_kill(s->to, SIGUSR1);
    return NULL;
}

static shoal_err with_signal(waiter w, int64_t timeout)
{
    pthread_t thread;
    sender s = {.to = pthread_self()};
    ck_assert_int_eq(pthread_create(&thread, NULL, send_signal, &s), 0);
    shoal_err err = w(timeout);
    ck_assert_int_eq(pthread_join(thread, NULL), 0);
    return err;
}

START_TEST(ends_with_eintr)
{
    start_what_is_waited_for(waiters[_i]);
    shoal_set_interrupt(check, (void *)(uintptr_t)&signalled);
    ck_assert_err(with_signal(waiters[_i], LIMIT), SHOAL_EINTR);
    int64_t took = sh_quiet_now() - signalled_at;
    ck_assert_msg(took < BOUND || waiters[_i] == wait_spawn, "%lld ns", (long long)took);
    signalled = 0; /* enabled, but no signal arrives: the wait times out as usual */
    if (waiters[_i] != wait_spawn && waiters[_i] != wait_barrier) {
        ck_assert_err(waiters[_i](SHOAL_MS(1)), SHOAL_ETIMEDOUT);
    }
}
END_TEST

START_TEST(goes_on_when_not_asked)
{
    if (waiters[_i] != wait_spawn) {
        start_what_is_waited_for(waiters[_i]);
        ck_assert_err(with_signal(waiters[_i], SHOAL_MS(60)), SHOAL_ETIMEDOUT);
    }
}
END_TEST

/* A handler that ran before the wait began counts too. */
START_TEST(a_signal_before_the_wait)
{
    shoal_value *v;
    shoal_set_interrupt(check, (void *)(uintptr_t)&signalled);
    raise(SIGUSR1);
    int64_t began = sh_quiet_now();
    ck_assert_err(shoal_queue_get(empty, LIMIT, &v), SHOAL_EINTR);
    ck_assert_int_lt(sh_quiet_now() - began, BOUND);
    ck_assert_err(shoal_queue_get(empty, SHOAL_NOW, &v), SHOAL_ETIMEDOUT); /* this call does not wait */
    ck_assert_ok(shoal_queue_put(empty, shoal_value_int(1), SHOAL_NOW));
    ck_assert_ok(shoal_queue_get(empty, LIMIT, &v)); /* nor does this one */
    shoal_value_destroy(v);
}
END_TEST

/* A timeout that expired before the call must not become an endless wait. With a timeout beyond the end of time only
 * the signal ends it. */
START_TEST(a_negative_limit_has_passed)
{
    static const int64_t negative[] = {-1, SHOAL_SECONDS(-0.5), INT64_MIN};
    if (waiters[_i] == wait_spawn) {
        return;
    }
    start_what_is_waited_for(waiters[_i]);
    for (size_t i = 0; i < 3; i++) {
        if (waiters[_i] == wait_barrier) {
            shoal_barrier_reset(barrier);
        }
        ck_assert_err(waiters[_i](negative[i]), SHOAL_ETIMEDOUT);
    }
    shoal_set_interrupt(check, (void *)(uintptr_t)&signalled);
    if (waiters[_i] == wait_barrier) {
        shoal_barrier_reset(barrier);
    }
    ck_assert_err(with_signal(waiters[_i], SHOAL_FOREVER - (_i & 1)), SHOAL_EINTR);
}
END_TEST

START_TEST(fractions_of_time)
{
    ck_assert_int_eq(SHOAL_MS(0.5), 500000);
    ck_assert_int_eq(SHOAL_MS(3), 3000000);
    ck_assert_int_eq(SHOAL_SECONDS(-0.5), -500000000);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("interrupts");
    TCase *tc = tcase_create("interrupts");
    tcase_add_checked_fixture(tc, begin, end);
    tcase_set_timeout(tc, SH_TEST_SECONDS);
    tcase_add_loop_test(tc, ends_with_eintr, 0, WAITERS);
    tcase_add_loop_test(tc, goes_on_when_not_asked, 0, WAITERS);
    tcase_add_test(tc, a_signal_before_the_wait);
    tcase_add_loop_test(tc, a_negative_limit_has_passed, 0, WAITERS);
    tcase_add_test(tc, fractions_of_time);
    suite_add_tcase(s, tc);
    return s;
}

SH_TEST_MAIN(suite)
