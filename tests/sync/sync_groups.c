/* Conditions and barriers between processes: B25, B26, B27, B36. */
#include "sync/atomic.h"
#include "tests/harness/children.h"

#include <poll.h>
#include <signal.h>

static int64_t get_int(shoal_queue *q)
{
    shoal_value *v = NULL;
    ck_assert_ok(shoal_queue_get(q, LIMIT, &v));
    int64_t i = sh_int_of(v);
    shoal_value_destroy(v);
    return i;
}

/* Waits until its death is visible, but before anybody has recovered it. */
static void until_ended(const shoal_process *p)
{
    struct pollfd fd = {.fd = shoal_process_sentinel(p), .events = POLLIN};
    ck_assert_int_eq(poll(&fd, 1, SH_TEST_SECONDS * 500), 1);
}

/* ---- conditions ---- */

/* Takes the lock, reports that, waits to be notified, reports its rank. */
static shoal_err wait_for_notice(int rank, const shoal_value *args)
{
    shoal_condition *c = ARG(condition, "condition");
    must_ok(shoal_condition_lock(c, LIMIT));
    must_ok(shoal_queue_put(ARG(queue, "here"), shoal_value_int(rank), LIMIT));
    shoal_err err = shoal_condition_wait(c, LIMIT);
    must_ok(shoal_queue_put(ARG(queue, "woken"), shoal_value_int(rank), LIMIT));
    must_ok(shoal_condition_unlock(c)); /* it held the lock again */
    return err;
}

/* Starts a waiter and returns when it waits: if it has reported that it has the lock,
 * and the lock is free again, it waits. */
static shoal_process *start_waiter(int method, int rank, shoal_condition *c, shoal_queue *here, shoal_queue *woken)
{
    shoal_process *p = start(method, rank, wait_for_notice, shoal_map("condition", c, "here", here, "woken", woken));
    ck_assert_int_eq(get_int(here), rank);
    ck_assert_ok(shoal_condition_lock(c, LIMIT));
    ck_assert_ok(shoal_condition_unlock(c));
    return p;
}

static void notify(shoal_condition *c, uint32_t count)
{
    ck_assert_ok(shoal_condition_lock(c, LIMIT));
    ck_assert_ok(count == UINT32_MAX ? shoal_condition_notify_all(c) : shoal_condition_notify(c, count));
    ck_assert_ok(shoal_condition_unlock(c));
}

START_TEST(b25_notify_wakes_exactly_so_many_of_the_oldest)
{
    enum { N = 6 };
    for (int round = 0; round < 6; round++) {
        shoal_queue *here = make_queue(0), *woken = make_queue(0);
        shoal_condition *c;
        shoal_process *p[N];
        shoal_value *v = NULL;
        int next = 0;
        ck_assert_ok(shoal_condition_create(&c));
        notify(c, 3); /* nobody waits: the notice is not kept */
        for (int i = 0; i < N; i++) {
            p[i] = start_waiter(_i, i, c, here, woken);
        }
        const uint32_t counts[] = {1, 2, 0, UINT32_MAX};
        for (int k = 0; k < 4; k++) {
            int more = counts[k] > (uint32_t)(N - next) ? N - next : (int)counts[k], seen = 0;
            notify(c, counts[k]);
            for (int i = 0; i < more; i++) { /* in any order */
                seen |= 1 << get_int(woken);
            }
            ck_assert_int_eq(seen, ((1 << more) - 1) << next);
            next += more;
            ck_assert_err(shoal_queue_get(woken, SHOAL_MS(3), &v), SHOAL_ETIMEDOUT);
        }
        for (int i = 0; i < N; i++) {
            finish(p[i]);
        }
        shoal_release(c);
        shoal_release(here);
        shoal_release(woken);
    }
}
END_TEST

START_TEST(b25_a_dead_waiter_does_not_use_up_a_notice)
{
    for (int round = 0; round < 12; round++) {
        shoal_queue *here = make_queue(0), *woken = make_queue(0);
        shoal_condition *c;
        shoal_process *p[4];
        ck_assert_ok(shoal_condition_create(&c));
        for (int i = 0; i < 4; i++) {
            p[i] = start_waiter(_i, i, c, here, woken);
        }
        for (int i = 0; i < 2; i++) { /* the two oldest die */
            ck_assert_ok(shoal_process_kill(p[i]));
            until_ended(p[i]);
        }
        if (round % 2 == 0) {
            finish_as(p[0], SHOAL_PROCESS_KILLED, SIGKILL);
        }
        notify(c, 1);
        ck_assert_int_eq(get_int(woken), 2);
        notify(c, 1);
        ck_assert_int_eq(get_int(woken), 3);
        for (int i = round % 2 == 0; i < 4; i++) {
            finish_as(p[i], i < 2 ? SHOAL_PROCESS_KILLED : SHOAL_PROCESS_RETURNED, SIGKILL);
        }
        shoal_release(c);
        shoal_release(here);
        shoal_release(woken);
    }
}
END_TEST

START_TEST(b25_condition_needs_its_lock_and_keeps_time)
{
    shoal_condition *c;
    ck_assert_ok(shoal_condition_create(&c));
    for (int i = 0; i < 40; i++) {
        ck_assert_err(shoal_condition_wait(c, SHOAL_NOW), SHOAL_EPERM);
        ck_assert_err(shoal_condition_notify(c, 1), SHOAL_EPERM);
        ck_assert_err(shoal_condition_notify_all(c), SHOAL_EPERM);
        ck_assert_err(shoal_condition_unlock(c), SHOAL_EPERM);
        for (int depth = 0; depth < 3; depth++) {
            ck_assert_ok(shoal_condition_lock(c, SHOAL_NOW));
        }
        int64_t begin = clock_ns();
        ck_assert_err(shoal_condition_wait(c, SHOAL_MS(1)), SHOAL_ETIMEDOUT);
        ck_assert_int_ge(clock_ns() - begin, SHOAL_MS(1));
        ck_assert_ok(shoal_condition_notify_all(c)); /* held again, as deep as before; nobody waits any more */
        for (int depth = 0; depth < 3; depth++) {
            ck_assert_ok(shoal_condition_unlock(c));
        }
    }
    shoal_release(c);
}
END_TEST

/* Takes the condition's lock while the other process waits, and dies with it. */
static shoal_err lock_and_die(int rank, const shoal_value *args)
{
    shoal_condition *c = ARG(condition, "condition");
    must_ok(shoal_condition_lock(c, LIMIT));
    if (rank == 1) {
        must_ok(shoal_condition_notify(c, 1));
    }
    kill(getpid(), SIGKILL);
    return SHOAL_OK;
}

static shoal_err wait_beside_a_death(int rank, const shoal_value *args)
{
    shoal_condition *c = ARG(condition, "condition");
    must_ok(shoal_condition_lock(c, LIMIT));
    must_ok(shoal_queue_put(ARG(queue, "here"), shoal_value_int(rank), LIMIT));
    must_ok(shoal_condition_lock_consistent(c, SHOAL_NOW)); /* twice: the wait keeps the depth */
    must_ok(shoal_condition_wait(c, LIMIT));
    uint32_t depth;
    must(shoal_condition_holder(c, &depth) == SHOAL_HOLDER_SELF && depth == 2);
    must(shoal_condition_owner_died(c));
    must_ok(shoal_condition_mark_consistent(c));
    must(!shoal_condition_owner_died(c));
    must_ok(shoal_condition_unlock(c));
    must_ok(shoal_condition_unlock(c));
    must_ok(shoal_condition_lock_consistent(c, LIMIT));
    must_ok(shoal_condition_unlock(c));
    return SHOAL_OK;
}

START_TEST(b27_a_conditions_lock_is_handed_on)
{
    for (int round = 0; round < 10; round++) {
        shoal_queue *here = make_queue(0);
        shoal_condition *c;
        ck_assert_ok(shoal_condition_create(&c));
        finish_as(start(_i, 0, lock_and_die, shoal_map("condition", c)), SHOAL_PROCESS_KILLED, SIGKILL);
        ck_assert_err(shoal_condition_lock_consistent(c, LIMIT), SHOAL_EOWNERDEAD);
        ck_assert_ok(shoal_condition_lock(c, LIMIT));
        ck_assert_err(shoal_condition_wait(c, SHOAL_MS(1)), SHOAL_ETIMEDOUT); /* the wait does not mark it */
        ck_assert(shoal_condition_owner_died(c));
        ck_assert_ok(shoal_condition_mark_consistent(c));
        ck_assert_ok(shoal_condition_unlock(c));
        shoal_process *p = start(_i, 0, wait_beside_a_death, shoal_map("condition", c, "here", here));
        until_told(here);
        finish_as(start(_i, 1, lock_and_die, shoal_map("condition", c)), SHOAL_PROCESS_KILLED, SIGKILL);
        finish(p);
        shoal_release(c);
        shoal_release(here);
    }
}
END_TEST

/* A box for one item, with a condition on each side: nothing is lost between many producers and consumers. */
static shoal_err pass_items(int rank, const shoal_value *args)
{
    shoal_condition *c = ARG(condition, "condition");
    sh_a64 *box = shoal_block_data(ARG(block, "box")); /* 0: whether it is full, 1: the item, 2: the sum */
    int64_t n = ARG_INT("count");
    for (int64_t i = 1; i <= n; i++) {
        uint64_t wanted = rank % 2 == 0 ? 0 : 1;
        must_ok(shoal_condition_lock(c, LIMIT));
        while (sh_load_relaxed(&box[0]) != wanted) {
            must_ok(shoal_condition_wait(c, LIMIT));
        }
        if (wanted == 0) {
            sh_store_relaxed(&box[1], (uint64_t)i);
        } else {
            sh_store_relaxed(&box[2], sh_load_relaxed(&box[2]) + sh_load_relaxed(&box[1]));
        }
        sh_store_relaxed(&box[0], 1 - wanted);
        must_ok(shoal_condition_notify_all(c));
        must_ok(shoal_condition_unlock(c));
    }
    return SHOAL_OK;
}

START_TEST(b25_producers_and_consumers_over_one_condition)
{
    enum { N = 4 };
    uint64_t n = SH_REPEAT(1000);
    shoal_condition *c;
    shoal_block *box;
    shoal_process *p[N];
    ck_assert_ok(shoal_condition_create(&c));
    ck_assert_ok(shoal_block_create_zeroed(24, &box));
    for (int i = 0; i < N; i++) {
        p[i] =
            start(i < 3 ? SHOAL_START_SPAWN + i : _i, i, pass_items, shoal_map("condition", c, "box", box, "count", n));
    }
    for (int i = 0; i < N; i++) {
        finish(p[i]);
    }
    ck_assert_uint_eq(sh_load_relaxed((sh_a64 *)shoal_block_data(box) + 2), N / 2 * n * (n + 1) / 2);
    shoal_release(c);
    shoal_release(box);
}
END_TEST

/* ---- barriers ---- */

static shoal_err meet(int rank, const shoal_value *args)
{
    shoal_barrier *b = ARG(barrier, "barrier");
    sh_a64 *words = shoal_block_data(ARG(block, "words")); /* arrivals; then the indices given in a round, as bits */
    int64_t n = ARG_INT("parties");
    (void)rank;
    for (int64_t i = 0; i < ARG_INT("rounds"); i++) {
        uint32_t index = 99;
        sh_add_acq_rel(&words[0], 1);
        must_ok(shoal_barrier_wait(b, LIMIT, &index));
        must(sh_load_acquire(&words[0]) >= (uint64_t)(n * (i + 1))); /* all had arrived */
        must(index < n);
        must((sh_or_seq_cst(&words[1 + i % 3], UINT64_C(1) << index) >> index & 1) == 0); /* a unique index */
        sh_store_relaxed(&words[1 + (i + 1) % 3], 0); /* unused: that round starts after all have left this one */
    }
    return SHOAL_OK;
}

START_TEST(b26_all_leave_together_and_one_is_the_last)
{
    for (uint32_t parties = 1; parties <= 5; parties += 2) {
        shoal_barrier *b;
        shoal_block *words;
        shoal_process *p[5];
        ck_assert_ok(shoal_barrier_create(parties, &b));
        ck_assert_ok(shoal_block_create_zeroed(32, &words));
        for (uint32_t i = 0; i < parties; i++) { /* several start methods at one barrier */
            p[i] = start(i < 3 ? SHOAL_START_SPAWN + (int)i : _i, (int)i, meet,
                         shoal_map("barrier", b, "words", words, "parties", parties, "rounds", SH_REPEAT(2000)));
        }
        for (uint32_t i = 0; i < parties; i++) {
            finish(p[i]);
        }
        ck_assert_uint_eq(shoal_barrier_waiting(b), 0);
        ck_assert(!shoal_barrier_is_broken(b));
        shoal_release(words);
        shoal_release(b);
    }
}
END_TEST

/* Waits once; returns the error and the time at which the wait ended. */
static shoal_err wait_once(int rank, const shoal_value *args)
{
    uint32_t index;
    (void)rank;
    must_ok(shoal_queue_put(ARG(queue, "here"), shoal_value_int(rank), LIMIT));
    shoal_err err = shoal_barrier_wait(ARG(barrier, "barrier"), LIMIT, &index);
    must_ok(shoal_return(shoal_list((int)err, sh_quiet_now())));
    return SHOAL_OK;
}

static shoal_process *start_party(int method, int rank, shoal_barrier *b, shoal_queue *here)
{
    shoal_process *p = start(method, rank, wait_once, shoal_map("barrier", b, "here", here));
    until_told(here);
    return p;
}

static void until_waiting(shoal_barrier *b, uint32_t n)
{
    int64_t deadline = clock_ns() + LIMIT;
    while (shoal_barrier_waiting(b) != n) {
        hot(clock_ns() < deadline);
        nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
    }
}

/* Checks that the party got `wanted`, and returns how long after `since`. */
static int64_t party_told(shoal_process *p, shoal_err wanted, int64_t since)
{
    ck_assert_ok(shoal_process_join(p, LIMIT, NULL));
    const shoal_value *result = shoal_process_result(p);
    ck_assert_ptr_nonnull(result);
    ck_assert_str_eq(shoal_err_name((shoal_err)sh_int_of(shoal_value_at(result, 0))), shoal_err_name(wanted));
    int64_t when = sh_int_of(shoal_value_at(result, 1));
    finish(p);
    return when - since;
}

START_TEST(b26_abort_reset_and_time_limits)
{
    enum { ABORT, RESET, TIMEOUT };
    for (int round = 0; round < 12; round++) {
        shoal_barrier *b;
        shoal_queue *here = make_queue(0);
        uint32_t index;
        int how = round % 3;
        ck_assert_ok(shoal_barrier_create(4, &b));
        shoal_process *p[2] = {start_party(_i, 0, b, here), start_party(_i, 1, b, here)};
        until_waiting(b, 2);
        int64_t begin = clock_ns();
        if (how == ABORT) {
            shoal_barrier_abort(b);
        } else if (how == RESET) {
            shoal_barrier_reset(b);
        } else {
            ck_assert_err(shoal_barrier_wait(b, SHOAL_MS(10), &index), SHOAL_ETIMEDOUT);
            ck_assert_int_ge(clock_ns() - begin, SHOAL_MS(10));
        }
        for (int i = 0; i < 2; i++) {
            party_told(p[i], SHOAL_EBROKEN, begin);
        }
        ck_assert(shoal_barrier_is_broken(b) == (how != RESET));
        if (how != RESET) { /* it stays broken until reset */
            ck_assert_err(shoal_barrier_wait(b, LIMIT, &index), SHOAL_EBROKEN);
            shoal_barrier_reset(b);
        }
        ck_assert(!shoal_barrier_is_broken(b));
        for (int i = 0; i < 2; i++) { /* and it works again */
            p[i] = start_party(_i, i, b, here);
        }
        shoal_process *third = start_party(_i, 2, b, here);
        ck_assert_ok(shoal_barrier_wait(b, LIMIT, &index));
        party_told(third, SHOAL_OK, begin);
        for (int i = 0; i < 2; i++) {
            party_told(p[i], SHOAL_OK, begin);
        }
        shoal_release(here);
        shoal_release(b);
    }
}
END_TEST

static shoal_err hold_barrier(int rank, const shoal_value *args)
{
    shoal_value *v = NULL;
    (void)rank;
    must(ARG(barrier, "barrier") != NULL);
    must_ok(shoal_queue_put(ARG(queue, "here"), shoal_value_int(rank), LIMIT));
    must_ok(shoal_queue_get(ARG(queue, "never"), LIMIT, &v));
    shoal_value_destroy(v);
    return SHOAL_OK;
}

START_TEST(b26_a_killed_party_breaks_it_for_the_others)
{
    int64_t longest = 0;
    for (int round = 0; round < 20; round++) {
        shoal_barrier *b;
        shoal_queue *here = make_queue(0), *never = make_queue(0);
        bool while_waiting = round % 2 == 0;
        ck_assert_ok(shoal_barrier_create(4, &b));
        shoal_process *victim = while_waiting
                                    ? start_party(_i, 9, b, here)
                                    : start(_i, 9, hold_barrier, shoal_map("barrier", b, "here", here, "never", never));
        if (!while_waiting) {
            until_told(here);
        }
        shoal_process *p[2] = {start_party(_i, 0, b, here), start_party(_i, 1, b, here)};
        until_waiting(b, while_waiting ? 3 : 2);
        int64_t killed = sh_quiet_now();
        ck_assert_ok(shoal_process_kill(victim));
        for (int i = 0; i < 2; i++) { /* nobody joins the victim: the waiters detect the death themselves */
            int64_t took = party_told(p[i], SHOAL_EBROKEN, killed);
            longest = took > longest ? took : longest;
        }
        ck_assert(shoal_barrier_is_broken(b));
        finish_as(victim, SHOAL_PROCESS_KILLED, SIGKILL);
        shoal_release(here);
        shoal_release(never);
        shoal_release(b);
    }
    printf("a dead party broke the barrier after at most %.1f ms\n", (double)longest / 1e6);
    ck_assert_int_lt(longest, SHOAL_SECONDS(1));
}
END_TEST

START_TEST(b36_a_stopped_party_is_not_dead)
{
    for (int round = 0; round < 2; round++) {
        shoal_barrier *b;
        shoal_queue *here = make_queue(0), *never = make_queue(0);
        uint32_t index, recovered = 9;
        ck_assert_ok(shoal_barrier_create(3, &b));
        shoal_process *stopped =
            round == 0 ? start_party(_i, 0, b, here)
                       : start(_i, 0, hold_barrier, shoal_map("barrier", b, "here", here, "never", never));
        if (round == 0) {
            until_waiting(b, 1);
        } else {
            until_told(here);
        }
        ck_assert_ok(shoal_process_signal(stopped, SIGSTOP));
        shoal_process *other = start_party(_i, 1, b, here);
        ck_assert_err(shoal_process_join(other, SHOAL_MS(300), NULL), SHOAL_ETIMEDOUT); /* it still waits */
        ck_assert_ok(shoal_world_sweep(&recovered));
        ck_assert_uint_eq(recovered, 0);
        ck_assert(!shoal_barrier_is_broken(b));
        ck_assert_ok(shoal_process_signal(stopped, SIGCONT));
        if (round == 0) {
            ck_assert_ok(shoal_barrier_wait(b, LIMIT, &index));
            party_told(stopped, SHOAL_OK, 0);
            party_told(other, SHOAL_OK, 0);
        } else {
            shoal_barrier_abort(b);
            party_told(other, SHOAL_EBROKEN, 0);
            ck_assert_ok(shoal_queue_put(never, shoal_value_int(1), LIMIT));
            finish(stopped);
        }
        shoal_release(here);
        shoal_release(never);
        shoal_release(b);
    }
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("sync_groups");
    TCase *tc = children_case("condition");
    add_for_methods(tc, b25_notify_wakes_exactly_so_many_of_the_oldest);
    add_for_methods(tc, b25_a_dead_waiter_does_not_use_up_a_notice);
    tcase_add_test(tc, b25_condition_needs_its_lock_and_keeps_time);
    add_for_methods(tc, b27_a_conditions_lock_is_handed_on);
    add_for_methods(tc, b25_producers_and_consumers_over_one_condition);
    suite_add_tcase(s, tc);
    tc = children_case("barrier");
    add_for_methods(tc, b26_all_leave_together_and_one_is_the_last);
    add_for_methods(tc, b26_abort_reset_and_time_limits);
    add_for_methods(tc, b26_a_killed_party_breaks_it_for_the_others);
    add_for_methods(tc, b36_a_stopped_party_is_not_dead);
    suite_add_tcase(s, tc);
    return s;
}

SH_TEST_MAIN(suite)
