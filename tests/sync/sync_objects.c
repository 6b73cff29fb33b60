/* Locks, semaphores and events between processes: B25, B27, B36. For conditions and barriers see sync_groups.c. */
#include "ipc/value.h"
#include "shm/block.h"
#include "sync/atomic.h"
#include "tests/harness/children.h"

#include <pthread.h>
#include <signal.h>

/* The three locks behind one interface. */
enum { LOCK, RLOCK, CONDITION, LOCK_KINDS };

static shoal_err make_lock(int kind, void **out)
{
    return kind == LOCK    ? shoal_lock_create((shoal_lock **)out)
           : kind == RLOCK ? shoal_rlock_create((shoal_rlock **)out)
                           : shoal_condition_create((shoal_condition **)out);
}

static shoal_err take(int kind, void *lock, int64_t timeout)
{
    return kind == LOCK    ? shoal_lock_lock(lock, timeout)
           : kind == RLOCK ? shoal_rlock_lock(lock, timeout)
                           : shoal_condition_lock(lock, timeout);
}

static shoal_err give(int kind, void *lock)
{
    return kind == LOCK    ? shoal_lock_unlock(lock)
           : kind == RLOCK ? shoal_rlock_unlock(lock)
                           : shoal_condition_unlock(lock);
}

static shoal_err take_consistent(int kind, void *lock, int64_t timeout)
{
    return kind == LOCK    ? shoal_lock_lock_consistent(lock, timeout)
           : kind == RLOCK ? shoal_rlock_lock_consistent(lock, timeout)
                           : shoal_condition_lock_consistent(lock, timeout);
}

static bool owner_died(int kind, void *lock)
{
    return kind == LOCK    ? shoal_lock_owner_died(lock)
           : kind == RLOCK ? shoal_rlock_owner_died(lock)
                           : shoal_condition_owner_died(lock);
}

static shoal_err mark_consistent(int kind, void *lock)
{
    return kind == LOCK    ? shoal_lock_mark_consistent(lock)
           : kind == RLOCK ? shoal_rlock_mark_consistent(lock)
                           : shoal_condition_mark_consistent(lock);
}

static void *lock_of(const shoal_value *args)
{
    const shoal_value *v = shoal_value_find(args, "lock");
    return shoal_value_object_kind(v) == SHOAL_KIND_LOCK    ? (void *)shoal_value_as_lock(v)
           : shoal_value_object_kind(v) == SHOAL_KIND_RLOCK ? (void *)shoal_value_as_rlock(v)
                                                            : (void *)shoal_value_as_condition(v);
}

/* ---- B25: rules ---- */

static void *other_thread(void *arg)
{
    return (void *)(uintptr_t)shoal_rlock_unlock(arg);
}

static shoal_err unlock_it(int rank, const shoal_value *args)
{
    (void)rank;
    must_err(give((int)ARG_INT("kind"), lock_of(args)), ARG_INT("kind") == LOCK ? SHOAL_OK : SHOAL_EPERM);
    return SHOAL_OK;
}

START_TEST(b25_rules_of_the_locks)
{
    for (int kind = 0; kind < LOCK_KINDS; kind++) {
        void *lock = NULL, *result;
        pthread_t thread;
        ck_assert_ok(make_lock(kind, &lock));
        ck_assert_err(give(kind, lock), kind == LOCK ? SHOAL_ESTATE : SHOAL_EPERM);
        ck_assert_ok(take(kind, lock, SHOAL_NOW));
        if (kind == LOCK) { /* not recursive */
            int64_t begin = clock_ns();
            ck_assert_err(take(kind, lock, SHOAL_NOW), SHOAL_ETIMEDOUT);
            ck_assert_err(take(kind, lock, SOON), SHOAL_ETIMEDOUT);
            ck_assert_int_ge(clock_ns() - begin, SOON);
        } else {
            ck_assert_ok(take(kind, lock, SHOAL_NOW));
            ck_assert_ok(give(kind, lock));
        }
        if (kind == RLOCK) {
            ck_assert_int_eq(pthread_create(&thread, NULL, other_thread, lock), 0);
            ck_assert_int_eq(pthread_join(thread, &result), 0);
            ck_assert_int_eq((shoal_err)(uintptr_t)result, SHOAL_EPERM);
        }
        /* Another process may unlock a lock, as in Python, and nothing else. */
        finish(start(_i, 0, unlock_it, shoal_map("kind", kind, "lock", sh_value_object(lock))));
        ck_assert_err(give(kind, lock), kind == LOCK ? SHOAL_ESTATE : SHOAL_OK);
        ck_assert_ok(take(kind, lock, SHOAL_NOW));
        ck_assert_ok(give(kind, lock));
        sh_block_release(lock);
    }
}
END_TEST

static shoal_holder holder(int kind, void *lock, uint32_t *out_depth)
{
    *out_depth = 0;
    return kind == LOCK    ? shoal_lock_holder(lock)
           : kind == RLOCK ? shoal_rlock_holder(lock, out_depth)
                           : shoal_condition_holder(lock, out_depth);
}

static void *look_from_thread(void *arg)
{
    uint32_t depth = 1;
    shoal_holder seen = shoal_rlock_holder(arg, &depth);
    return (void *)(uintptr_t)(seen == SHOAL_HOLDER_SELF && depth == 0);
}

static shoal_err hold_it(int rank, const shoal_value *args)
{
    uint32_t depth;
    int kind = (int)ARG_INT("kind");
    (void)rank;
    must(holder(kind, lock_of(args), &depth) == SHOAL_HOLDER_OTHER && depth == 0);
    must_ok(shoal_queue_put(ARG(queue, "out"), shoal_value_int(1), LIMIT));
    must_ok(take(kind, lock_of(args), LIMIT));
    return SHOAL_OK; /* it ends with the lock */
}

START_TEST(b25_who_holds_a_lock)
{
    for (int kind = 0; kind < LOCK_KINDS; kind++) {
        void *lock = NULL, *result;
        uint32_t depth;
        pthread_t thread;
        ck_assert_ok(make_lock(kind, &lock));
        ck_assert_int_eq(holder(kind, lock, &depth), SHOAL_HOLDER_NONE);
        for (uint32_t times = 1; times <= (kind == LOCK ? 1 : 2); times++) {
            ck_assert_ok(take(kind, lock, SHOAL_NOW));
            ck_assert_int_eq(holder(kind, lock, &depth), SHOAL_HOLDER_SELF);
            ck_assert_uint_eq(depth, kind == LOCK ? 0 : times);
        }
        if (kind == RLOCK) {
            ck_assert_int_eq(pthread_create(&thread, NULL, look_from_thread, lock), 0);
            ck_assert_int_eq(pthread_join(thread, &result), 0);
            ck_assert(result != NULL);
        }
        shoal_queue *out = make_queue(0);
        shoal_process *p = start(_i, 0, hold_it,
                                 shoal_map("kind", kind, "lock", sh_value_object(lock), "out", shoal_value_queue(out)));
        shoal_value *seen = NULL;
        ck_assert_ok(shoal_queue_get(out, LIMIT, &seen));
        shoal_value_destroy(seen);
        for (int times = 0; times < (kind == LOCK ? 1 : 2); times++) {
            ck_assert_ok(give(kind, lock));
        }
        finish(p);
        ck_assert_ok(take(kind, lock, LIMIT));
        ck_assert(owner_died(kind, lock));
        ck_assert_int_eq(holder(kind, lock, &depth), SHOAL_HOLDER_SELF);
        ck_assert_ok(give(kind, lock));
        sh_block_release(lock);
        shoal_queue_release(out);
    }
    uint32_t depth = 1;
    ck_assert(shoal_lock_holder(NULL) == SHOAL_HOLDER_NONE && shoal_rlock_holder(NULL, &depth) == SHOAL_HOLDER_NONE);
    ck_assert(depth == 0 && shoal_condition_holder(NULL, NULL) == SHOAL_HOLDER_NONE);
}
END_TEST

/* ---- B25: exclusion ---- */

static shoal_err increment(int rank, const shoal_value *args)
{
    int kind = (int)ARG_INT("kind");
    void *lock = lock_of(args);
    sh_a64 *count = shoal_block_data(ARG(block, "count"));
    (void)rank;
    for (int64_t i = 0; i < ARG_INT("rounds"); i++) {
        int depth = kind == LOCK ? 1 : (int)(i % 3) + 1;
        for (int d = 0; d < depth; d++) {
            must_ok(take(kind, lock, LIMIT));
        }
        uint64_t seen = sh_load_relaxed(count); /* deliberately two steps: only the lock makes them one */
        must(sh_load_relaxed(count + 1) == seen);
        sh_store_relaxed(count, seen + 1);
        sh_store_relaxed(count + 1, seen + 1);
        for (int d = 0; d < depth; d++) {
            must_ok(give(kind, lock));
        }
    }
    return SHOAL_OK;
}

/* A child creates the lock under its start method, the others get it from a queue. */
static shoal_err make_and_send(int rank, const shoal_value *args)
{
    void *lock = NULL;
    must_ok(make_lock(rank, &lock));
    must_ok(shoal_queue_put(ARG(queue, "out"), sh_value_object(lock), LIMIT));
    sh_block_release(lock);
    return SHOAL_OK;
}

START_TEST(b25_a_lock_made_under_one_start_method_works_under_the_others)
{
    enum { N = 4 };
    int64_t rounds = SH_REPEAT(20000);
    for (int kind = 0; kind < LOCK_KINDS; kind++) {
        shoal_queue *q = make_queue(0);
        shoal_process *p[N];
        shoal_block *count;
        shoal_value *lock = NULL;
        ck_assert_ok(shoal_block_create_zeroed(16, &count));
        finish(start(_i, kind, make_and_send, shoal_map("out", q)));
        ck_assert_ok(shoal_queue_get(q, LIMIT, &lock));
        for (int i = 0; i < N; i++) { /* each method once, the creator's twice */
            p[i] = start(i < 3 ? SHOAL_START_SPAWN + i : _i, i, increment,
                         shoal_map("kind", kind, "lock", shoal_value_copy(lock), "count", count, "rounds", rounds));
        }
        for (int i = 0; i < N; i++) {
            finish(p[i]);
        }
        ck_assert_uint_eq(sh_load_relaxed((sh_a64 *)shoal_block_data(count)), (uint64_t)(N * rounds));
        shoal_value_destroy(lock);
        shoal_release(count);
        shoal_release(q);
    }
}
END_TEST

/* ---- B27: the holder dies ---- */

/* Takes the lock (depth times), reports that, and waits to be killed; or returns while it holds the lock. */
static shoal_err hold(int rank, const shoal_value *args)
{
    shoal_value *v = NULL;
    int kind = (int)ARG_INT("kind");
    for (int d = 0; d < (kind == LOCK ? 1 : 3); d++) {
        must_ok(take(kind, lock_of(args), LIMIT));
    }
    must_ok(shoal_queue_put(ARG(queue, "told"), shoal_value_int(rank), LIMIT));
    if (rank == 1) {
        return SHOAL_OK;
    }
    must_ok(shoal_queue_get(ARG(queue, "never"), LIMIT, &v));
    shoal_value_destroy(v);
    return SHOAL_OK;
}

/* Locks, and tells whether an owner died. If it marks the lock, no other process sees that; rank 0 asks for a
 * consistent lock first. */
static shoal_err lock_and_tell(int rank, const shoal_value *args)
{
    int kind = (int)ARG_INT("kind");
    shoal_err err = rank == 0 ? take_consistent(kind, lock_of(args), LIMIT) : take(kind, lock_of(args), LIMIT);
    if (rank == 0 && err == SHOAL_EOWNERDEAD) {
        must_err(give(kind, lock_of(args)), kind == LOCK ? SHOAL_ESTATE : SHOAL_EPERM); /* it does not hold it */
        err = take(kind, lock_of(args), LIMIT);
    }
    must_ok(err);
    bool died = owner_died(kind, lock_of(args));
    if (ARG_INT("marks")) {
        must_ok(mark_consistent(kind, lock_of(args)));
        must(!owner_died(kind, lock_of(args)));
    }
    must_ok(give(kind, lock_of(args)));
    must_ok(shoal_queue_put(ARG(queue, "told"), shoal_value_int(died), LIMIT));
    return SHOAL_OK;
}

static void b27_run(int method, int kind, bool killed, bool join_first, bool marks)
{
    enum { N = 3 };
    void *lock = NULL;
    shoal_queue *told = make_queue(0), *never = make_queue(0);
    shoal_process *w[N];
    int dead = 0;
    ck_assert_ok(make_lock(kind, &lock));
    uint64_t repaired = sh_test_world().locks_repaired;
    shoal_process *p = start(method, killed ? 0 : 1, hold,
                             shoal_map("kind", kind, "lock", sh_value_object(lock), "told", told, "never", never));
    until_told(told);
    for (int i = 0; i < N; i++) {
        w[i] = start(method, i, lock_and_tell,
                     shoal_map("kind", kind, "lock", sh_value_object(lock), "told", told, "marks", (int)marks));
        if (killed) {
            until_parked(w[i]);
        }
    }
    if (killed) {
        ck_assert_ok(shoal_process_kill(p));
    }
    if (join_first) {
        finish_as(p, killed ? SHOAL_PROCESS_KILLED : SHOAL_PROCESS_RETURNED, SIGKILL);
    }
    for (int i = 0; i < N; i++) { /* they detect the death themselves */
        shoal_value *v = NULL;
        ck_assert_ok(shoal_queue_get(told, LIMIT, &v));
        dead += (int)sh_int_of(v);
        shoal_value_destroy(v);
        finish(w[i]);
    }
    ck_assert_int_eq(dead, marks ? 1 : N);
    ck_assert(owner_died(kind, lock) == !marks);
    ck_assert_err(mark_consistent(kind, lock), SHOAL_EPERM);
    ck_assert_err(take_consistent(kind, lock, LIMIT), marks ? SHOAL_OK : SHOAL_EOWNERDEAD);
    ck_assert_ok(marks ? give(kind, lock) : SHOAL_OK);
    if (!join_first) {
        finish_as(p, killed ? SHOAL_PROCESS_KILLED : SHOAL_PROCESS_RETURNED, SIGKILL);
    }
    if (killed) {
        ck_assert_uint_eq(sh_test_world().locks_repaired, repaired + 1);
    }
    sh_block_release(lock);
    shoal_release(told);
    shoal_release(never);
}

START_TEST(b27_a_killed_holders_lock_is_handed_on)
{
    for (int round = 0; round < 12; round++) {
        b27_run(_i, round % LOCK_KINDS, true, round % 2 == 0, round < 6);
    }
}
END_TEST

/* What a program writes that does not know of dead owners: it must not leave with the first lock held. */
static shoal_err lock_both(void *first, void *second, int kind)
{
    return take(kind, first, LIMIT) || take(kind, second, LIMIT) ? shoal_last_error() : SHOAL_OK;
}

START_TEST(b27_calls_joined_by_or_leave_no_lock_held)
{
    for (int kind = 0; kind < LOCK_KINDS; kind++) {
        void *first = NULL, *second = NULL;
        uint32_t depth;
        shoal_queue *told = make_queue(0);
        ck_assert_ok(make_lock(kind, &first));
        ck_assert_ok(make_lock(kind, &second));
        finish(start(_i, 1, hold, shoal_map("kind", kind, "lock", sh_value_object(first), "told", told)));
        ck_assert_ok(lock_both(first, second, kind));
        ck_assert(owner_died(kind, first) && !owner_died(kind, second));
        ck_assert_ok(give(kind, second));
        ck_assert_ok(give(kind, first));
        ck_assert_int_eq(holder(kind, first, &depth), SHOAL_HOLDER_NONE);
        sh_block_release(first);
        sh_block_release(second);
        shoal_release(told);
    }
    ck_assert(!shoal_lock_owner_died(NULL) && !shoal_rlock_owner_died(NULL) && !shoal_condition_owner_died(NULL));
}
END_TEST

START_TEST(b27_a_lock_held_at_the_end_of_its_process_is_handed_on)
{
    for (int round = 0; round < 6; round++) {
        b27_run(_i, round % LOCK_KINDS, false, round % 2 == 0, round < 3);
    }
}
END_TEST

/* ---- B36: stopped is not dead ---- */

START_TEST(b36_a_stopped_holder_keeps_its_lock)
{
    for (int kind = 0; kind < LOCK_KINDS; kind++) {
        void *lock = NULL;
        uint32_t recovered = 9;
        shoal_queue *told = make_queue(0), *never = make_queue(0);
        ck_assert_ok(make_lock(kind, &lock));
        shoal_process *p =
            start(_i, 0, hold, shoal_map("kind", kind, "lock", sh_value_object(lock), "told", told, "never", never));
        until_told(told);
        ck_assert_ok(shoal_process_signal(p, SIGSTOP));
        ck_assert_err(take(kind, lock, SHOAL_MS(300)), SHOAL_ETIMEDOUT); /* checks the owner several times */
        ck_assert_ok(shoal_world_sweep(&recovered));
        ck_assert_uint_eq(recovered, 0);
        ck_assert_ok(shoal_process_signal(p, SIGCONT));
        ck_assert_ok(shoal_queue_put(never, shoal_value_int(1), LIMIT)); /* it continues, and exits with the lock */
        finish(p);
        ck_assert_ok(take(kind, lock, LIMIT));
        ck_assert(owner_died(kind, lock));
        ck_assert_ok(give(kind, lock));
        sh_block_release(lock);
        shoal_release(told);
        shoal_release(never);
    }
}
END_TEST

/* ---- B25: semaphores and events ---- */

static shoal_err wait_and_post(int rank, const shoal_value *args)
{
    shoal_semaphore *s = ARG(semaphore, "semaphore");
    sh_a64 *inside = shoal_block_data(ARG(block, "inside"));
    (void)rank;
    for (int64_t i = 0; i < ARG_INT("rounds"); i++) {
        must_ok(shoal_semaphore_wait(s, LIMIT));
        must(sh_add_acq_rel(inside, 1) < 2); /* at most two at a time */
        sh_sub_acq_rel(inside, 1);
        must_ok(shoal_semaphore_post(s, 1));
    }
    return SHOAL_OK;
}

START_TEST(b25_a_semaphore_lets_so_many_in)
{
    enum { N = 4 };
    shoal_semaphore *s;
    shoal_block *inside;
    shoal_process *p[N];
    ck_assert_ok(shoal_semaphore_create(2, 2, &s));
    ck_assert_ok(shoal_block_create_zeroed(8, &inside));
    ck_assert_err(shoal_semaphore_post(s, 1), SHOAL_ESTATE);
    for (int i = 0; i < N; i++) {
        p[i] = start(i < 3 ? SHOAL_START_SPAWN + i : _i, i, wait_and_post,
                     shoal_map("semaphore", s, "inside", inside, "rounds", SH_REPEAT(10000)));
    }
    for (int i = 0; i < N; i++) {
        finish(p[i]);
    }
    ck_assert_uint_eq(shoal_semaphore_value(s), 2);
    for (int i = 0; i < 2; i++) {
        ck_assert_ok(shoal_semaphore_wait(s, SHOAL_NOW));
    }
    int64_t begin = clock_ns();
    ck_assert_err(shoal_semaphore_wait(s, SHOAL_NOW), SHOAL_ETIMEDOUT);
    ck_assert_err(shoal_semaphore_wait(s, SOON), SHOAL_ETIMEDOUT);
    ck_assert_int_ge(clock_ns() - begin, SOON);
    ck_assert_err(shoal_semaphore_post(s, 3), SHOAL_ESTATE); /* all or nothing */
    ck_assert_uint_eq(shoal_semaphore_value(s), 0);
    ck_assert_ok(shoal_semaphore_post(s, 2));
    shoal_release(s);
    shoal_release(inside);
}
END_TEST

static shoal_err take_one(int rank, const shoal_value *args)
{
    (void)rank;
    must_ok(shoal_semaphore_wait(ARG(semaphore, "semaphore"), LIMIT));
    must_ok(shoal_queue_put(ARG(queue, "told"), shoal_value_int(1), LIMIT));
    return SHOAL_OK;
}

START_TEST(b25_post_wakes_as_many_as_it_gives)
{
    enum { N = 4 };
    shoal_semaphore *s;
    shoal_queue *told = make_queue(0);
    shoal_value *v = NULL;
    ck_assert_ok(shoal_semaphore_create(0, 0, &s));
    for (int round = 0; round < 8; round++) {
        shoal_process *p[N];
        for (int i = 0; i < N; i++) {
            p[i] = start(_i, i, take_one, shoal_map("semaphore", s, "told", told));
        }
        for (int i = 0; i < N; i++) {
            until_parked(p[i]);
        }
        ck_assert_ok(shoal_semaphore_post(s, 3));
        for (int i = 0; i < 3; i++) {
            until_told(told);
        }
        ck_assert_err(shoal_queue_get(told, SHOAL_MS(5), &v), SHOAL_ETIMEDOUT);
        ck_assert_ok(shoal_semaphore_post(s, 1));
        for (int i = 0; i < N; i++) {
            finish(p[i]);
        }
        until_told(told);
        ck_assert_uint_eq(shoal_semaphore_value(s), 0);
    }
    shoal_release(s);
    shoal_release(told);
}
END_TEST

static shoal_err take_one_and_die(int rank, const shoal_value *args)
{
    (void)rank;
    must_ok(shoal_semaphore_wait(ARG(semaphore, "semaphore"), LIMIT));
    kill(getpid(), SIGKILL);
    return SHOAL_OK;
}

START_TEST(b25_what_the_killed_took_of_a_semaphore_stays_taken)
{
    shoal_semaphore *s;
    ck_assert_ok(shoal_semaphore_create(30, 30, &s));
    for (uint32_t left = 30; left > 0; left--) {
        finish_as(start(_i, 0, take_one_and_die, shoal_map("semaphore", s)), SHOAL_PROCESS_KILLED, SIGKILL);
        ck_assert_uint_eq(shoal_semaphore_value(s), left - 1);
    }
    ck_assert_err(shoal_semaphore_wait(s, SHOAL_NOW), SHOAL_ETIMEDOUT);
    shoal_release(s);
}
END_TEST

static shoal_err wait_for_event(int rank, const shoal_value *args)
{
    (void)rank;
    must_ok(shoal_event_wait(ARG(event, "event"), LIMIT));
    must_ok(shoal_event_wait(ARG(event, "again"), LIMIT));
    return SHOAL_OK;
}

START_TEST(b25_an_event_wakes_all_and_stays_set)
{
    enum { N = 3 };
    for (int round = 0; round < 10; round++) {
        shoal_event *event, *again;
        shoal_process *p[N];
        ck_assert_ok(shoal_event_create(&event));
        ck_assert_ok(shoal_event_create(&again));
        ck_assert_err(shoal_event_wait(event, SHOAL_NOW), SHOAL_ETIMEDOUT);
        int64_t begin = clock_ns();
        ck_assert_err(shoal_event_wait(event, SHOAL_MS(2)), SHOAL_ETIMEDOUT);
        ck_assert_int_ge(clock_ns() - begin, SHOAL_MS(2));
        for (int i = 0; i < N; i++) { /* one with each method */
            p[i] =
                start(SHOAL_START_SPAWN + (_i + i) % 3, i, wait_for_event, shoal_map("event", event, "again", again));
        }
        for (int i = 0; i < N; i++) {
            until_parked(p[i]);
        }
        shoal_event_set(event);
        shoal_event_set(event);
        ck_assert(shoal_event_is_set(event));
        ck_assert_ok(shoal_event_wait(event, SHOAL_NOW));
        shoal_event_set(again);
        for (int i = 0; i < N; i++) {
            finish(p[i]);
        }
        shoal_event_clear(event);
        ck_assert(!shoal_event_is_set(event));
        ck_assert_err(shoal_event_wait(event, SHOAL_NOW), SHOAL_ETIMEDOUT);
        shoal_release(event);
        shoal_release(again);
    }
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("sync_objects");
    TCase *tc = children_case("sync");
    add_for_methods(tc, b25_rules_of_the_locks);
    add_for_methods(tc, b25_who_holds_a_lock);
    add_for_methods(tc, b25_a_lock_made_under_one_start_method_works_under_the_others);
    add_for_methods(tc, b27_a_killed_holders_lock_is_handed_on);
    add_for_methods(tc, b27_calls_joined_by_or_leave_no_lock_held);
    add_for_methods(tc, b27_a_lock_held_at_the_end_of_its_process_is_handed_on);
    add_for_methods(tc, b36_a_stopped_holder_keeps_its_lock);
    add_for_methods(tc, b25_a_semaphore_lets_so_many_in);
    add_for_methods(tc, b25_post_wakes_as_many_as_it_gives);
    add_for_methods(tc, b25_what_the_killed_took_of_a_semaphore_stays_taken);
    add_for_methods(tc, b25_an_event_wakes_all_and_stays_set);
    suite_add_tcase(s, tc);
    return s;
}

SH_TEST_MAIN(suite)
