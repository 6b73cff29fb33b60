/* Queues: what may be put, where a queue may come from, join, kinds of message, bounds and growth: B16, B22 to B24. */
#include "sync/atomic.h"
#include "tests/harness/children.h"

#include <signal.h>
#include <stdlib.h>
#include <sys/time.h>

static void ck_get_int(shoal_queue *q, int64_t wanted)
{
    shoal_value *v = NULL;
    hot_ok(shoal_queue_get(q, LIMIT, &v));
    hot(shoal_value_type(v) == SHOAL_TYPE_INT && sh_int_of(v) == wanted);
    shoal_value_destroy(v);
}

/* ---- B22: what cannot be put ---- */

START_TEST(b22_a_value_that_cannot_be_made_is_an_error_of_put)
{
    shoal_queue *q = make_queue(0);
    shoal_value *deep = shoal_value_list();
    for (int i = 1; i < SHOAL_VALUE_DEPTH + 1 && deep != NULL; i++) {
        deep = shoal_list_add(shoal_value_list(), deep);
    }
    ck_assert_ptr_null(deep);
    ck_assert_err(shoal_queue_put(q, deep, LIMIT), SHOAL_EINVAL);
    ck_assert_err(shoal_queue_put(q, shoal_value_string("\xff\xfe"), LIMIT), SHOAL_EINVAL);
    ck_assert_err(shoal_queue_put(q, shoal_list(1, shoal_map("a", (char *)NULL), 2), LIMIT), SHOAL_EINVAL);
    ck_assert_err(shoal_queue_put_block(q, NULL, LIMIT), SHOAL_EINVAL);
    ck_assert_uint_eq(shoal_queue_size(q), 0);
    ck_assert_uint_eq(shoal_queue_bound(q), 0);
    shoal_queue *five = make_queue(5);
    ck_assert_uint_eq(shoal_queue_bound(five), 5);
    shoal_release(five);
    shoal_queue *none = NULL;
    ck_assert_err(shoal_queue_create((UINT64_C(1) << 30) + 1, &none), SHOAL_EINVAL);
    ck_assert_ptr_null(none);
    shoal_release(q);
}
END_TEST

START_TEST(b22_what_the_heap_has_no_room_for_stays_with_its_owner)
{
    enum { LARGE = 5 << 20 };
    ck_assert_ok(shoal_world_create(&(shoal_world_options){.heap_limit = 4u << 20}));
    shoal_queue *q = make_queue(0);
    char *bytes = calloc(1, LARGE);
    shoal_value *v, *got = NULL;
    size_t size;
    ck_assert_ok(shoal_queue_put(q, shoal_list(1, "before"), LIMIT));
    for (int i = 0; i < 30; i++) {
        shoal_block *b;
        shoal_world_info before, after;
        ck_assert_ok(shoal_block_create(10, &b));
        v = shoal_value_keep(shoal_map("large", shoal_value_bytes(bytes, LARGE), "block", b));
        ck_assert_ok(shoal_world_info_get(&before));
        ck_assert_err(shoal_queue_put(q, v, LIMIT), SHOAL_ENOMEM);
        ck_assert_err(shoal_queue_put_bytes(q, bytes, LARGE, LIMIT), SHOAL_ENOMEM);
        ck_assert_ok(shoal_world_info_get(&after));
        ck_assert_uint_eq(after.blocks_live, before.blocks_live);
        ck_assert_ptr_eq(shoal_value_as_block(shoal_value_find(v, "block")), b); /* still ours, and complete */
        ck_assert_ptr_nonnull(shoal_value_as_bytes(shoal_value_find(v, "large"), &size));
        ck_assert_uint_eq(size, LARGE);
        shoal_value_destroy(v);
        shoal_release(b);
        ck_assert_uint_eq(shoal_queue_size(q), 1);
        sh_assert_audit("after a put that failed");
    }
    free(bytes);
    ck_assert_ok(shoal_queue_get(q, LIMIT, &got));
    ck_assert_str_eq(shoal_value_as_string(shoal_value_at(got, 1)), "before");
    shoal_value_destroy(got);
    shoal_release(q);
}
END_TEST

START_TEST(b22_full_and_closed_leave_the_value_with_its_owner)
{
    shoal_queue *q = make_queue(1);
    shoal_block *b;
    ck_assert_ok(shoal_block_create(8, &b));
    ck_assert_ok(shoal_queue_put(q, shoal_value_int(0), LIMIT));
    for (int closed = 0; closed < 2; closed++) {
        shoal_value *values[] = {shoal_value_int(5), shoal_value_float(0.5), shoal_value_of(b), shoal_list(1, b)};
        for (int i = 0; i < 4; i++) {
            shoal_value *copy = shoal_value_copy(shoal_value_keep(values[i]));
            ck_assert_err(shoal_queue_put(q, values[i], SOON), closed ? SHOAL_ECLOSED : SHOAL_ETIMEDOUT);
            ck_assert(shoal_value_equal(values[i], copy));
            shoal_value_destroy(copy);
            shoal_value_destroy(values[i]);
        }
        ck_assert_err(shoal_queue_put_block(q, b, SOON), closed ? SHOAL_ECLOSED : SHOAL_ETIMEDOUT);
        ck_assert_err(shoal_queue_put_bytes(q, "a longer text", 13, SOON), closed ? SHOAL_ECLOSED : SHOAL_ETIMEDOUT);
        ck_assert_uint_eq(shoal_queue_size(q), 1);
        sh_assert_audit("after puts that failed");
        shoal_queue_close(q);
    }
    shoal_release(b);
    ck_get_int(q, 0);
    shoal_release(q);
}
END_TEST

/* ---- B23: where a queue may come from ---- */

/* Gets queues, however they are nested, and puts the rank on each; ends when the first one is closed. */
static shoal_err b23_answer(int rank, const shoal_value *args)
{
    shoal_queue *in = ARG(queue, "in");
    shoal_value *v = NULL;
    shoal_err err;
    while ((err = shoal_queue_get(in, LIMIT, &v)) == SHOAL_OK) {
        const shoal_value *inner = v;
        while (shoal_value_count(inner) > 0) {
            inner = shoal_value_at(inner, 0);
        }
        must(shoal_value_as_queue(inner) != NULL);
        must_ok(shoal_queue_put(shoal_value_as_queue(inner), shoal_value_int(rank), LIMIT));
        shoal_value_destroy(v);
    }
    must_err(err, SHOAL_ECLOSED);
    return SHOAL_OK;
}

START_TEST(b23_queue_made_before_or_after_and_sent_through_another)
{
    shoal_queue *in = make_queue(0), *first = make_queue(0);
    shoal_process *p = start(_i, 5, b23_answer, shoal_map("in", in)); /* created before, passed as an argument */
    for (int i = 0; i < 40; i++) {
        shoal_queue *q = i % 4 == 0 ? shoal_retain(first) : make_queue(i % 3 == 0 ? 1 : 0); /* created after */
        shoal_value *v = shoal_value_of(q);
        for (int depth = 0; depth < i % 5; depth++) {
            v = depth % 2 == 0 ? shoal_list_add(shoal_value_list(), v) : shoal_map_set(shoal_value_map(), "q", v);
        }
        ck_assert_ok(shoal_queue_put(in, v, LIMIT));
        ck_get_int(q, 5);
        shoal_release(q);
    }
    shoal_queue_close(in);
    finish(p);
    shoal_release(first);
    shoal_release(in);
}
END_TEST

/* ---- B24: join ---- */

static shoal_err b24_worker(int rank, const shoal_value *args)
{
    shoal_queue *q = ARG(queue, "queue");
    sh_a64 *done = shoal_block_data(ARG(block, "done"));
    (void)rank;
    shoal_value *v = NULL;
    shoal_err err;
    while ((err = shoal_queue_get(q, LIMIT, &v)) == SHOAL_OK) {
        shoal_value_destroy(v);
        sh_add_acq_rel(done, 1);
        must_ok(shoal_queue_task_done(q));
    }
    must_err(err, SHOAL_ECLOSED);
    return SHOAL_OK;
}

START_TEST(b24_join_returns_when_every_item_is_done)
{
    shoal_queue *q = make_queue(0);
    shoal_block *b;
    shoal_process *p[3];
    ck_assert_ok(shoal_block_create_zeroed(8, &b));
    sh_a64 *done = shoal_block_data(b);
    uint64_t put = 0;
    for (int i = 0; i < 3; i++) {
        p[i] = start(_i, i, b24_worker, shoal_map("queue", q, "done", b));
    }
    for (uint64_t round = 0; round < 200; round++) {
        for (uint64_t i = 0; i < round % 50; i++) {
            hot_ok(shoal_queue_put(q, i % 2 == 0 ? shoal_value_int(1) : shoal_list(1, "x"), LIMIT));
            put++;
        }
        hot_ok(shoal_queue_join(q, LIMIT));
        hot(sh_load_acquire(done) == put);
    }
    ck_assert_err(shoal_queue_task_done(q), SHOAL_ESTATE);
    shoal_queue_close(q);
    for (int i = 0; i < 3; i++) {
        finish(p[i]);
    }
    shoal_release(b);
    shoal_release(q);
}
END_TEST

START_TEST(b24_task_done_too_often_is_an_error)
{
    shoal_queue *q = make_queue(0);
    ck_assert_ok(shoal_queue_join(q, SHOAL_NOW)); /* nothing was put */
    ck_assert_err(shoal_queue_task_done(q), SHOAL_ESTATE);
    for (int round = 0; round < 30; round++) {
        for (int i = 0; i < 3; i++) {
            ck_assert_ok(shoal_queue_put(q, shoal_value_int(i), LIMIT));
        }
        for (int i = 0; i < 3; i++) {
            ck_get_int(q, i);
            int64_t begin = clock_ns();
            ck_assert_err(shoal_queue_join(q, i == 0 ? SHOAL_NOW : SHOAL_MS(2)), SHOAL_ETIMEDOUT);
            ck_assert_int_ge(clock_ns() - begin, i == 0 ? 0 : SHOAL_MS(2));
            ck_assert_ok(shoal_queue_task_done(q));
        }
        ck_assert_ok(shoal_queue_join(q, SHOAL_NOW));
        ck_assert_err(shoal_queue_task_done(q), SHOAL_ESTATE);
        ck_assert_ok(shoal_queue_join(q, SHOAL_NOW));
    }
    shoal_release(q);
}
END_TEST

/* ---- kinds of messages ---- */

/* Puts message number n of eight different ones. */
static void put_kind(shoal_queue *q, int n, shoal_block *b, shoal_lock *lock)
{
    shoal_value *values[8] = {
        [2] = shoal_value_int(INT64_MIN),
        [3] = shoal_value_float(-0.0),
        [4] = shoal_list(1, b),
        [6] = shoal_value_of(lock),
        [7] = shoal_value_bytes("0123456789", 10),
    };
    ck_assert_ok(n == 0   ? shoal_queue_put_bytes(q, "12345678", 8, LIMIT)
                 : n == 1 ? shoal_queue_put_bytes(q, "0123456789", 10, LIMIT)
                 : n == 5 ? shoal_queue_put_block(q, b, LIMIT)
                          : shoal_queue_put(q, shoal_value_copy(values[n]), LIMIT));
    for (int i = 0; i < 8; i++) {
        shoal_value_destroy(values[i]);
    }
}

START_TEST(get_of_another_kind_leaves_the_message)
{
    shoal_queue *q = make_queue(0);
    shoal_block *b, *got = NULL;
    shoal_lock *lock;
    char buffer[16];
    ck_assert_ok(shoal_block_create(8, &b));
    ck_assert_ok(shoal_lock_create(&lock));
    for (int n = 0; n < 8 * 4; n++) {
        int kind = n % 8;
        size_t size = 99;
        shoal_value *v = NULL;
        put_kind(q, kind, b, lock);
        bool is_bytes = kind <= 1;
        for (int again = 0; again < 3; again++) {
            if (is_bytes) {
                ck_assert_err(shoal_queue_get_bytes(q, buffer, kind == 0 ? 7 : 9, LIMIT, &size), SHOAL_EINVAL);
                ck_assert_uint_eq(size, kind == 0 ? 8 : 10);
                ck_assert_err(shoal_queue_get_bytes(q, NULL, 0, LIMIT, &size), SHOAL_EINVAL);
            } else {
                ck_assert_err(shoal_queue_get_bytes(q, buffer, sizeof buffer, LIMIT, &size), SHOAL_ETYPE);
            }
            if (kind != 5) {
                ck_assert_err(shoal_queue_get_block(q, LIMIT, &got), SHOAL_ETYPE);
                ck_assert_ptr_null(got);
            }
            ck_assert_uint_eq(shoal_queue_size(q), 1);
        }
        if (is_bytes) {
            ck_assert_ok(shoal_queue_get_bytes(q, buffer, kind == 0 ? 8 : 10, LIMIT, &size));
            ck_assert_mem_eq(buffer, kind == 0 ? "12345678" : "0123456789", size);
        } else {
            ck_assert_ok(shoal_queue_get(q, LIMIT, &v));
            shoal_value_destroy(v);
        }
        ck_assert_uint_eq(shoal_queue_size(q), 0);
    }
    shoal_release(lock);
    shoal_release(b);
    shoal_release(q);
}
END_TEST

static shoal_err give_back(int rank, const shoal_value *args)
{
    shoal_block *b = NULL;
    (void)rank;
    for (int64_t i = 0; i < ARG_INT("count"); i++) {
        must_ok(shoal_queue_get_block(ARG(queue, "in"), LIMIT, &b));
        must(*(int64_t *)shoal_block_data(b) == i);
        must_ok(shoal_queue_give_block(ARG(queue, "out"), b, LIMIT));
    }
    return SHOAL_OK;
}

START_TEST(b16_a_block_given_away_is_the_receivers)
{
    enum { N = 300 };
    shoal_queue *in = make_queue(0), *out = make_queue(1);
    shoal_process *p = start(_i, 0, give_back, shoal_map("in", in, "out", out, "count", (int)N));
    shoal_block *b, *back = NULL;
    ck_assert_err(shoal_queue_give_block(in, NULL, LIMIT), SHOAL_EINVAL);
    for (int64_t i = 0; i < N; i++) {
        shoal_world_info info;
        bool keep = i % 3 == 0;
        hot_ok(shoal_block_create(8, &b));
        *(int64_t *)shoal_block_data(b) = i;
        uint64_t id = shoal_block_id(b);
        b = keep ? shoal_retain(b) : b;
        hot_ok(shoal_queue_give_block(in, b, LIMIT)); /* one reference goes into the queue, one may stay */
        hot_ok(shoal_queue_get_block(out, LIMIT, &back));
        hot(shoal_block_id(back) == id && *(int64_t *)shoal_block_data(back) == i);
        hot(!keep || back == b);
        if (keep) {
            shoal_release(b);
        }
        shoal_release(back);
        hot_ok(shoal_world_info_get(&info));
        hot(info.bytes_live < 8192); /* none of the blocks is left */
    }
    finish(p);
    /* If the call fails, the caller keeps the block. */
    ck_assert_ok(shoal_block_create(8, &b));
    ck_assert_ok(shoal_queue_put(out, shoal_value_int(1), LIMIT));
    ck_assert_err(shoal_queue_give_block(out, b, SOON), SHOAL_ETIMEDOUT);
    shoal_queue_close(out);
    ck_assert_err(shoal_queue_give_block(out, b, LIMIT), SHOAL_ECLOSED);
    ck_assert_uint_eq(shoal_block_size(b), 8);
    sh_assert_audit("after failed gifts");
    shoal_release(b);
    shoal_release(in);
    shoal_release(out);
}
END_TEST

/* A waiter that is woken for a message it does not want must wake another: the others get it at once, because the
 * timeout of this test is long. */
static shoal_err one_byte_getter(int rank, const shoal_value *args)
{
    char byte;
    size_t size;
    (void)rank;
    must_err(shoal_queue_get_bytes(ARG(queue, "queue"), &byte, 1, LIMIT, &size), SHOAL_EINVAL);
    return SHOAL_OK;
}

static shoal_err any_getter(int rank, const shoal_value *args)
{
    shoal_value *v = NULL;
    (void)rank;
    must_ok(shoal_queue_get(ARG(queue, "queue"), LIMIT, &v));
    must_ok(shoal_return(v));
    return SHOAL_OK;
}

START_TEST(a_message_left_by_one_waiter_is_got_by_the_next)
{
    for (int round = 0; round < 10; round++) {
        shoal_queue *q = make_queue(0);
        shoal_process *a = start(_i, 0, one_byte_getter, shoal_map("queue", q));
        until_parked(a); /* it is first in line */
        shoal_process *b = start(_i, 1, any_getter, shoal_map("queue", q));
        until_parked(b);
        ck_assert_ok(shoal_queue_put_bytes(q, "two", 3, LIMIT));
        finish(b);
        /* Whichever was woken first, the other one still waits or is done: a second message ends it. */
        ck_assert_ok(shoal_queue_put_bytes(q, "two", 3, LIMIT));
        finish(a);
        shoal_release(q);
    }
}
END_TEST

/* Signals arrive and are handled; the wait continues to its end. */
static void ignore(int number)
{
    (void)number;
}

START_TEST(b21_signals_do_not_cut_a_wait_short)
{
    struct itimerval each = {.it_interval = {.tv_usec = 500}, .it_value = {.tv_usec = 500}}, never = {.it_value = {0}};
    struct sigaction action = {.sa_handler = ignore};
    shoal_queue *q = make_queue(1);
    shoal_event *event;
    shoal_value *v = NULL;
    ck_assert_ok(shoal_event_create(&event));
    shoal_process *p = start(_i, 0, any_getter, shoal_map("queue", q));
    ck_assert_int_eq(sigaction(SIGALRM, &action, NULL), 0);
    ck_assert_int_eq(setitimer(ITIMER_REAL, &each, NULL), 0);
    int64_t begin = clock_ns();
    ck_assert_err(shoal_event_wait(event, SOON), SHOAL_ETIMEDOUT);
    ck_assert_err(shoal_process_join(p, SOON, NULL), SHOAL_ETIMEDOUT);
    ck_assert_int_ge(clock_ns() - begin, 2 * SOON);
    ck_assert_ok(shoal_queue_put(q, shoal_value_int(7), LIMIT));
    ck_assert_ok(shoal_process_join(p, LIMIT, NULL));
    begin = clock_ns();
    ck_assert_err(shoal_queue_get(q, SOON, &v), SHOAL_ETIMEDOUT);
    ck_assert_ok(shoal_queue_put(q, shoal_value_int(8), LIMIT));
    ck_assert_err(shoal_queue_put_bytes(q, "x", 1, SOON), SHOAL_ETIMEDOUT);
    ck_assert_int_ge(clock_ns() - begin, 2 * SOON);
    ck_assert_int_eq(setitimer(ITIMER_REAL, &never, NULL), 0);
    finish(p);
    shoal_release(event);
    shoal_release(q);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("queue_rules");
    TCase *tc = children_case("rules");
    tcase_add_test(tc, b22_a_value_that_cannot_be_made_is_an_error_of_put);
    tcase_add_test(tc, b22_what_the_heap_has_no_room_for_stays_with_its_owner);
    tcase_add_test(tc, b22_full_and_closed_leave_the_value_with_its_owner);
    add_for_methods(tc, b23_queue_made_before_or_after_and_sent_through_another);
    add_for_methods(tc, b24_join_returns_when_every_item_is_done);
    tcase_add_test(tc, b24_task_done_too_often_is_an_error);
    tcase_add_test(tc, get_of_another_kind_leaves_the_message);
    add_for_methods(tc, b16_a_block_given_away_is_the_receivers);
    add_for_methods(tc, a_message_left_by_one_waiter_is_got_by_the_next);
    add_for_methods(tc, b21_signals_do_not_cut_a_wait_short);
    suite_add_tcase(s, tc);
    return s;
}

SH_TEST_MAIN(suite)
