/* Pipes: both directions, polling, and what happens when the other side is gone. */
#include "tests/harness/children.h"

#include <sched.h>
#include <signal.h>

static void make_pipe(bool duplex, shoal_pipe **a, shoal_pipe **b)
{
    *a = *b = NULL;
    ck_assert_ok(shoal_pipe_create(duplex, a, b));
    ck_assert(*a != NULL && *b != NULL && *a != *b);
}

static void ck_recv_int(shoal_pipe *end, int64_t wanted)
{
    shoal_value *v = NULL;
    ck_assert_ok(shoal_pipe_recv(end, LIMIT, &v));
    ck_assert_int_eq(sh_int_of(v), wanted);
    shoal_value_destroy(v);
}

/* ---- one process ---- */

START_TEST(a_duplex_pipe_goes_both_ways)
{
    shoal_pipe *a, *b;
    char buffer[32];
    size_t size;
    make_pipe(true, &a, &b);
    for (int i = 0; i < 100; i++) {
        ck_assert_ok(shoal_pipe_send(a, shoal_value_int(i), SHOAL_NOW));
        ck_assert_ok(shoal_pipe_send(b, shoal_value_int(-i), SHOAL_NOW));
        ck_recv_int(a, -i);
        ck_recv_int(b, i);
        ck_assert_ok(shoal_pipe_send_bytes(a, "through a pipe", 14, SHOAL_NOW));
        ck_assert_err(shoal_pipe_recv_bytes(b, buffer, 13, LIMIT, &size), SHOAL_EINVAL);
        ck_assert_uint_eq(size, 14);
        ck_assert_ok(shoal_pipe_recv_bytes(b, buffer, sizeof buffer, LIMIT, &size));
        ck_assert(size == 14 && memcmp(buffer, "through a pipe", 14) == 0);
    }
    ck_assert_ok(shoal_pipe_send(a, shoal_list(1), SHOAL_NOW));
    ck_assert_err(shoal_pipe_recv_bytes(b, buffer, sizeof buffer, LIMIT, &size), SHOAL_ETYPE);
    shoal_release(a);
    shoal_release(b);
}
END_TEST

START_TEST(a_one_way_pipe_goes_from_b_to_a)
{
    shoal_pipe *a, *b;
    shoal_value *v = shoal_value_keep(shoal_value_int(1)), *got = NULL;
    make_pipe(false, &a, &b);
    ck_assert_err(shoal_pipe_send(a, v, SHOAL_NOW), SHOAL_EINVAL);
    ck_assert_err(shoal_pipe_send_bytes(a, "x", 1, SHOAL_NOW), SHOAL_EINVAL);
    ck_assert_err(shoal_pipe_recv(b, SHOAL_NOW, &got), SHOAL_EINVAL);
    ck_assert_err(shoal_pipe_poll(b, SHOAL_NOW), SHOAL_EINVAL);
    ck_assert_ok(shoal_pipe_send(b, v, SHOAL_NOW));
    shoal_value_destroy(v);
    ck_recv_int(a, 1);
    shoal_release(b);
    ck_assert_err(shoal_pipe_recv(a, LIMIT, &got), SHOAL_ECLOSED);
    ck_assert_str_eq(shoal_last_error_text(), "the other end of the pipe is closed");
    shoal_release(a);
}
END_TEST

START_TEST(poll_tells_whether_recv_would_block)
{
    shoal_pipe *a, *b;
    shoal_value *v = NULL;
    make_pipe(true, &a, &b);
    for (int i = 0; i < 30; i++) {
        int64_t begin = clock_ns();
        ck_assert_err(shoal_pipe_poll(a, SHOAL_NOW), SHOAL_ETIMEDOUT);
        ck_assert_err(shoal_pipe_poll(a, SHOAL_MS(2)), SHOAL_ETIMEDOUT);
        ck_assert_int_ge(clock_ns() - begin, SHOAL_MS(2));
        ck_assert_ok(shoal_pipe_send(b, shoal_value_int(i), SHOAL_NOW));
        ck_assert_ok(shoal_pipe_poll(a, SHOAL_NOW));
        ck_assert_ok(shoal_pipe_poll(a, SHOAL_FOREVER));
        ck_assert_err(shoal_pipe_poll(b, SHOAL_NOW), SHOAL_ETIMEDOUT);
        ck_recv_int(a, i);
    }
    ck_assert_err(shoal_pipe_recv(a, SOON, &v), SHOAL_ETIMEDOUT);
    shoal_release(b);
    ck_assert_ok(shoal_pipe_poll(a, SHOAL_NOW)); /* the end of the data counts, too */
    ck_assert_err(shoal_pipe_recv(a, SHOAL_NOW, &v), SHOAL_ECLOSED);
    shoal_release(a);
}
END_TEST

START_TEST(the_last_release_of_an_end_closes_both_ways)
{
    for (int i = 0; i < 30; i++) {
        shoal_pipe *a, *b;
        shoal_value *v = NULL, *mine = shoal_value_keep(shoal_value_int(1));
        make_pipe(true, &a, &b);
        shoal_retain(b);
        ck_assert_ok(shoal_pipe_send(b, shoal_value_int(i), SHOAL_NOW));
        ck_assert_ok(shoal_pipe_send(a, shoal_list("never read"), SHOAL_NOW));
        shoal_release(b);
        ck_assert_ok(shoal_pipe_send(a, shoal_value_int(0), SHOAL_NOW)); /* one reference to the end is left */
        shoal_release(b);
        ck_assert_err(shoal_pipe_send(a, mine, LIMIT), SHOAL_ECLOSED);
        ck_assert_int_eq(sh_int_of(mine), 1);
        shoal_value_destroy(mine);
        ck_recv_int(a, i); /* sent messages arrive first */
        ck_assert_err(shoal_pipe_recv(a, LIMIT, &v), SHOAL_ECLOSED);
        shoal_release(a);
    }
}
END_TEST

/* ---- two processes ---- */

/* A forked child holds all that its parent held, so also the end that is not meant for it. As with fds, it releases
 * that first. Set before the start; other children are new images and find NULL. */
static shoal_pipe *inherited;

static shoal_err echo(int rank, const shoal_value *args)
{
    shoal_pipe *end = ARG(pipe, "end");
    (void)rank;
    shoal_release(inherited);
    for (;;) {
        shoal_value *v = NULL;
        must_ok(shoal_pipe_poll(end, LIMIT));
        shoal_err err = shoal_pipe_recv(end, SHOAL_NOW, &v);
        if (err == SHOAL_ECLOSED) {
            return SHOAL_OK;
        }
        must_ok(err);
        must_ok(shoal_pipe_send(end, v, LIMIT));
    }
}

START_TEST(b25_values_come_back_from_another_process)
{
    shoal_pipe *a, *b;
    shoal_block *block;
    make_pipe(true, &a, &b);
    ck_assert_ok(shoal_block_create_zeroed(100, &block));
    inherited = a;
    shoal_process *p = start(_i, 0, echo, shoal_map("end", b));
    shoal_release(b); /* now only the child has it */
    for (int i = 0; i < 300; i++) {
        shoal_value *v = shoal_list(i, "text", block), *copy = shoal_value_copy(v), *back = NULL;
        hot_ok(shoal_pipe_send(a, v, LIMIT));
        hot_ok(shoal_pipe_recv(a, LIMIT, &back));
        hot(shoal_value_equal(back, copy));
        shoal_value_destroy(copy);
        shoal_value_destroy(back);
    }
    shoal_release(a);
    finish(p);
    shoal_release(block);
}
END_TEST

enum { LEAVE_RELEASE, LEAVE_RETURN, LEAVE_EXIT, LEAVE_KILLED, LEAVES };

/* Sends the rank and exits, or waits to be killed. */
static shoal_err send_and_go(int rank, const shoal_value *args)
{
    shoal_pipe *end = ARG(pipe, "end");
    shoal_value *v = NULL;
    must_ok(shoal_pipe_send(end, shoal_value_int(rank), LIMIT));
    if (rank == LEAVE_EXIT) {
        _exit(3);
    }
    if (rank == LEAVE_KILLED) {
        must_ok(shoal_pipe_recv(end, LIMIT, &v));
    }
    return SHOAL_OK;
}

START_TEST(recv_ends_when_the_holders_of_the_other_end_are_gone)
{
    for (int round = 0; round < 9; round++) {
        for (int how = LEAVE_RETURN; how < LEAVES; how++) {
            shoal_pipe *a, *b;
            shoal_value *v = NULL;
            make_pipe(true, &a, &b);
            shoal_process *p = start(_i, how, send_and_go, shoal_map("end", b));
            shoal_release(b);
            ck_recv_int(a, how);
            if (how == LEAVE_KILLED) {
                until_parked(p);
                ck_assert_ok(shoal_process_kill(p));
            }
            ck_assert_err(shoal_pipe_recv(a, LIMIT, &v),
                          SHOAL_ECLOSED); /* nobody has joined it yet: the waiter finds out by itself */
            ck_assert_ok(shoal_pipe_poll(a, SHOAL_NOW));
            ck_assert_err(shoal_pipe_send_bytes(a, "x", 1, LIMIT), SHOAL_ECLOSED);
            finish_as(p,
                      how == LEAVE_RETURN ? SHOAL_PROCESS_RETURNED
                      : how == LEAVE_EXIT ? SHOAL_PROCESS_EXITED
                                          : SHOAL_PROCESS_KILLED,
                      how == LEAVE_EXIT ? 3 : SIGKILL);
            shoal_release(a);
        }
    }
}
END_TEST

/* Waits at the other end, and gets ECLOSED at last. */
static shoal_err wait_for_end(int rank, const shoal_value *args)
{
    shoal_value *v = NULL;
    if (rank == 0) {
        shoal_release(inherited);
    }
    must_err(shoal_pipe_recv(ARG(pipe, "end"), LIMIT, &v), SHOAL_ECLOSED);
    must_err(shoal_pipe_poll(ARG(pipe, "end"), LIMIT), SHOAL_OK);
    return SHOAL_OK;
}

START_TEST(a_parked_receiver_wakes_when_the_last_of_several_holders_goes)
{
    for (int round = 0; round < 10; round++) {
        shoal_pipe *a, *b;
        make_pipe(round % 2 == 0, &a, &b);
        inherited = b;
        shoal_process *waiter = start(_i, 0, wait_for_end, shoal_map("end", a));
        shoal_process *holders[2];
        shoal_queue *hold;
        ck_assert_ok(shoal_queue_create(0, &hold));
        until_parked(waiter);
        for (int i = 0; i < 2; i++) { /* b is in a queue, in two processes, and here */
            holders[i] = start(_i, i + 1, wait_for_end, shoal_map("end", a, "other", b));
            until_parked(holders[i]);
        }
        ck_assert_ok(shoal_queue_put(hold, shoal_map("b", b), LIMIT));
        shoal_release(b);
        ck_assert_ok(shoal_process_kill(holders[0]));
        finish_as(holders[0], SHOAL_PROCESS_KILLED, SIGKILL);
        ck_assert_err(shoal_process_join(waiter, SOON, NULL), SHOAL_ETIMEDOUT);
        ck_assert_ok(shoal_process_signal(holders[1], SIGUSR1)); /* in forked children libcheck catches SIGTERM */
        finish_as(holders[1], SHOAL_PROCESS_KILLED, SIGUSR1);
        ck_assert_err(shoal_process_join(waiter, SOON, NULL), SHOAL_ETIMEDOUT); /* the queue still holds the end */
        shoal_release(hold);
        finish(waiter);
        shoal_release(a);
    }
}
END_TEST

/* ---- a full pipe ---- */

/* Sends until the pipe is full, and returns how many messages it holds. */
static int fill(shoal_pipe *end, const void *bytes, size_t size)
{
    int count = 0;
    shoal_err err;
    while ((err = shoal_pipe_send_bytes(end, bytes, size, SHOAL_NOW)) == SHOAL_OK) {
        ck_assert_int_lt(++count, 1000000);
    }
    ck_assert_int_eq(err, SHOAL_ETIMEDOUT);
    return count;
}

/* A pipe holds its bound in bytes and one message more; more fits once somebody has received. */
START_TEST(y7_a_pipe_holds_so_many_bytes)
{
    static char bytes[4 << 20];
    const size_t sizes[] = {0, 8, 9, 1000, 100000, sizeof bytes};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        shoal_pipe *a, *b;
        size_t size;
        make_pipe(false, &a, &b);
        int count = fill(b, bytes, sizes[i]);
        size_t cost = sizes[i] <= 8 ? 16 : sizes[i] + 16;
        ck_assert_int_ge(count, (int)(SHOAL_PIPE_BYTES / (cost + 112)));
        ck_assert_int_le(count, (int)((SHOAL_PIPE_BYTES + 32768) / cost + 1));
        ck_assert_err(shoal_pipe_send(b, shoal_value_int(1), SHOAL_MS(1)), SHOAL_ETIMEDOUT);
        ck_assert_ptr_nonnull(strstr(shoal_last_error_text(), "the pipe stayed full"));
        for (int n = 0; n < count; n++) {
            ck_assert_ok(shoal_pipe_recv_bytes(a, bytes, sizeof bytes, SHOAL_NOW, &size));
            ck_assert_uint_eq(size, sizes[i]);
        }
        ck_assert_err(shoal_pipe_poll(a, SHOAL_NOW), SHOAL_ETIMEDOUT);
        ck_assert_int_ge(fill(b, bytes, sizes[i]) + 16384 / (int)cost + 1, count);
        shoal_release(a);
        shoal_release(b);
    }
}
END_TEST

/* A block that its sender keeps is only a handle, so many large ones fit. */
START_TEST(y7_a_kept_block_counts_as_a_handle)
{
    shoal_pipe *a, *b;
    shoal_block *block;
    make_pipe(false, &a, &b);
    ck_assert_ok(shoal_block_create(8 << 20, &block));
    for (int i = 0; i < 1000; i++) {
        ck_assert_ok(shoal_pipe_send(b, shoal_map("block", block, "no", i), SHOAL_NOW));
    }
    shoal_release(block);
    shoal_release(a);
    shoal_release(b);
}
END_TEST

/* Sends numbered messages until the other end is closed. */
static shoal_err send_for_ever(int rank, const shoal_value *args)
{
    char bytes[1000] = {0};
    shoal_err err = SHOAL_OK;
    if (inherited != NULL) {
        shoal_release(inherited);
    }
    for (int i = 0; err == SHOAL_OK; i++) {
        memcpy(bytes, &i, sizeof i);
        err = shoal_pipe_send_bytes(ARG(pipe, "end"), bytes, rank == 0 ? sizeof i : sizeof bytes, LIMIT);
    }
    must_err(err, SHOAL_ECLOSED);
    return SHOAL_OK;
}

/* A parked sender goes on when there is room, in order, and ends when the last receiver does. */
START_TEST(y7_a_full_pipe_makes_its_sender_wait)
{
    for (int rank = 0; rank < 2; rank++) {
        shoal_pipe *a, *b;
        char bytes[1000];
        size_t size;
        make_pipe(false, &a, &b);
        inherited = _i == 0 ? NULL : a;
        shoal_process *p = start(_i, rank, send_for_ever, shoal_map("end", b));
        shoal_release(b);
        for (int i = 0; i < (rank == 0 ? 300000 : 5000); i++) {
            int number = -1;
            if (i % 65536 == 1000) {
                until_parked(p);
            }
            ck_assert_ok(shoal_pipe_recv_bytes(a, bytes, sizeof bytes, LIMIT, &size));
            memcpy(&number, bytes, sizeof number);
            ck_assert_int_eq(number, i);
        }
        until_parked(p);
        shoal_release(a);
        finish(p);
    }
}
END_TEST

static shoal_err receive_one(int rank, const shoal_value *args)
{
    char bytes[10000];
    size_t size;
    (void)rank;
    must_ok(shoal_queue_get_bytes(ARG(queue, "queue"), bytes, sizeof bytes, LIMIT, &size));
    return SHOAL_OK;
}

/* What a receiver took, and did not count before it ended, seems to be in the queue still. A sender that never waits
 * found it full for ever. */
START_TEST(receivers_that_end_leave_room)
{
    static const char bytes[10000];
    const int64_t timeouts[] = {SHOAL_NOW, SHOAL_MS(1)};
    for (size_t i = 0; i < 2; i++) {
        shoal_queue *q;
        ck_assert_ok(shoal_queue_create_with(&(shoal_queue_options){.bytes = 20000}, &q));
        for (int n = 0; n < 4; n++) {
            int64_t deadline = clock_ns() + LIMIT;
            shoal_err err;
            while ((err = shoal_queue_put_bytes(q, bytes, sizeof bytes, timeouts[i])) == SHOAL_ETIMEDOUT) {
                ck_assert_int_lt(clock_ns(), deadline);
                sched_yield();
            }
            ck_assert_ok(err);
            finish(start(SHOAL_START_FORK, n, receive_one, shoal_map("queue", q)));
        }
        shoal_release(q);
    }
}
END_TEST

/* ---- ends sent through queues ---- */

/* Gets ends from a queue and answers on each. */
static shoal_err answer_ends(int rank, const shoal_value *args)
{
    shoal_queue *in = ARG(queue, "in");
    shoal_value *v = NULL;
    shoal_err err;
    while ((err = shoal_queue_get(in, LIMIT, &v)) == SHOAL_OK) {
        const shoal_value *end = shoal_value_type(v) == SHOAL_TYPE_MAP ? shoal_value_find(v, "end") : v;
        must(shoal_value_object_kind(end) == SHOAL_KIND_PIPE);
        must_ok(shoal_pipe_send(shoal_value_as_pipe(end), shoal_value_int(rank), LIMIT));
        shoal_value_destroy(v); /* this was the last holder, so the end closes */
    }
    must_err(err, SHOAL_ECLOSED);
    return SHOAL_OK;
}

START_TEST(b23_ends_are_sent_through_queues)
{
    shoal_queue *in;
    ck_assert_ok(shoal_queue_create(0, &in));
    shoal_process *p = start(_i, 8, answer_ends, shoal_map("in", in));
    for (int i = 0; i < 60; i++) {
        shoal_pipe *a, *b;
        shoal_value *v = NULL;
        make_pipe(i % 2 == 0, &a, &b);
        ck_assert_ok(shoal_queue_put(in, i % 3 == 0 ? shoal_value_of(b) : shoal_map("no", i, "end", b), LIMIT));
        shoal_release(b);
        ck_recv_int(a, 8);
        ck_assert_err(shoal_pipe_recv(a, LIMIT, &v), SHOAL_ECLOSED);
        shoal_release(a);
    }
    shoal_queue_close(in);
    finish(p);
    shoal_release(in);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("pipes");
    TCase *tc = children_case("pipes");
    tcase_add_test(tc, a_duplex_pipe_goes_both_ways);
    tcase_add_test(tc, a_one_way_pipe_goes_from_b_to_a);
    tcase_add_test(tc, poll_tells_whether_recv_would_block);
    tcase_add_test(tc, the_last_release_of_an_end_closes_both_ways);
    tcase_add_test(tc, y7_a_pipe_holds_so_many_bytes);
    tcase_add_test(tc, y7_a_kept_block_counts_as_a_handle);
    add_for_methods(tc, y7_a_full_pipe_makes_its_sender_wait);
    tcase_add_test(tc, receivers_that_end_leave_room);
    add_for_methods(tc, b25_values_come_back_from_another_process);
    add_for_methods(tc, recv_ends_when_the_holders_of_the_other_end_are_gone);
    add_for_methods(tc, a_parked_receiver_wakes_when_the_last_of_several_holders_goes);
    add_for_methods(tc, b23_ends_are_sent_through_queues);
    suite_add_tcase(s, tc);
    return s;
}

SH_TEST_MAIN(suite)
