/* Tensors of a card between processes, beyond what holds for all tensors (tests/sharing*.c): many small ones, the order
 * of work, memory that is used again, and deaths. B11 (B50), B51 to B53. Over the stub driver, or on a card. */
#include "tests/cuda/card.h"

#include <signal.h>

#define SMALL (getenv("SHOAL_TEST_CARD") ? 100000 : 3000)
#define AHEAD 256 /* messages in a queue */

/* ---- B51 ---- */

static shoal_err make_small(int rank, const shoal_value *args)
{
    (void)rank;
    for (int64_t i = 0; i < ARG_INT("count"); i++) {
        shoal_tensor *t = shoal_full(SHOAL_F64, (double)i, SHOAL_SHAPE(2));
        must(t != NULL);
        must_ok(shoal_queue_put_tensor(ARG(queue, "first"), t, LIMIT));
        shoal_tensor_release(t);
    }
    shoal_value *done = NULL;
    must_ok(shoal_queue_get(ARG(queue, "back"), LIMIT, &done));
    shoal_value_destroy(done);
    must_ok(shoal_cuda_wait());
    must(card_used() == 0); /* all of them are back */
    return SHOAL_OK;
}

static shoal_err pass_small(int rank, const shoal_value *args)
{
    (void)rank;
    shoal_tensor *t;
    for (int64_t i = 0; i < ARG_INT("count"); i++) {
        must_ok(shoal_queue_get_tensor(ARG(queue, "first"), LIMIT, &t));
        must(shoal_add_scalar_(t, 1) == t);
        must_ok(shoal_queue_give_tensor(ARG(queue, "second"), t, LIMIT));
        shoal_scope_release(0);
    }
    return SHOAL_OK;
}

START_TEST(b51_many_small_tensors_through_three_processes)
{
    shoal_queue *first = make_queue(AHEAD), *second = make_queue(AHEAD), *back = make_queue(0);
    size_t used = card_used();
    const double count = SMALL;
    shoal_value *args =
        shoal_value_keep(shoal_map("first", first, "second", second, "back", back, "count", (int64_t)count));
    shoal_process *maker = talk_start(SHOAL_START_SPAWN, 0, make_small, args);
    shoal_process *messenger = talk_start(SHOAL_START_SPAWN, 1, pass_small, args);
    shoal_value_destroy(args);
    shoal_tensor *sum = shoal_zeros(SHOAL_F64, SHOAL_SHAPE(2)), *t;
    for (int64_t i = 0; i < (int64_t)count; i++) {
        shoal_err err = shoal_queue_get_tensor(second, LIMIT, &t);
        ck_assert_msg(err == SHOAL_OK, "tensor %lld: %s", (long long)i, shoal_last_error_text());
        hot(shoal_add_(sum, t) == sum);
        shoal_tensor_release(t);
        shoal_scope_release(0);
    }
    ck_assert_double_eq(AT(sum, 1), count * (count - 1) / 2 + count);
    ck_assert_ok(shoal_cuda_wait());
    sh_cuda_order_poll();
    finish(messenger); /* until it has ended it holds what it sent last */
    ck_assert_ok(shoal_queue_put(back, shoal_value_int(1), LIMIT));
    finish(maker);
    shoal_tensor_release(sum);
    ck_assert_uint_eq(card_used(), used);
    shoal_release(first);
    shoal_release(second);
    shoal_release(back);
}
END_TEST

/* ---- B52 ---- */

#define LONG_WORK 400
#define LONG_COUNT (1 << 22)

/* Enqueues some milliseconds of work that count from 0 to LONG_WORK, in every element. */
static shoal_tensor *begin_long_work(void)
{
    shoal_tensor *t = shoal_zeros(SHOAL_F32, SHOAL_SHAPE(getenv("SHOAL_TEST_CARD") ? LONG_COUNT : 64));
    for (int i = 0; t != NULL && i < LONG_WORK; i++) {
        t = shoal_add_scalar_(t, 1);
    }
    shoal_scope_release(0);
    return t;
}

static shoal_err reflect_twice(int rank, const shoal_value *args)
{
    (void)rank;
    shoal_tensor *t;
    shoal_err err;
    while ((err = shoal_queue_get_tensor(ARG(queue, "in"), LIMIT, &t)) == SHOAL_OK) {
        must(shoal_add_(t, t) == t); /* in this process's stream, after the work of the other */
        must_ok(shoal_queue_give_tensor(ARG(queue, "out"), t, LIMIT));
        shoal_scope_release(0);
    }
    must(err == SHOAL_ECLOSED);
    return SHOAL_OK;
}

START_TEST(b52_work_before_a_put_is_seen_without_a_wait)
{
    talk t;
    int pending = 0; /* puts that returned before the work was done */
    talk_begin(&t, SHOAL_START_SPAWN, reflect_twice);
    for (int n = 0; n < 5; n++) {
        shoal_tensor *sent = begin_long_work(), *back;
        ck_assert_ptr_nonnull(sent);
        ck_assert_ok(shoal_queue_put_tensor(t.in, sent, LIMIT));
        pending += sh_cu.cuStreamQuery(sh_cuda_the_card()->stream) == SH_CU_NOT_READY;
        ck_assert_ok(shoal_queue_get_tensor(t.out, LIMIT, &back));
        ck_assert(same_memory(sent, back));
        ck_assert_double_eq(AT(back, 0), 2 * LONG_WORK);
        ck_assert_double_eq(AT(back, shoal_tensor_count(back) - 1), 2 * LONG_WORK);
        shoal_tensor_release(sent);
        shoal_tensor_release(back);
    }
    if (getenv("SHOAL_TEST_CARD")) { /* a put that waits for the work never leaves any */
        ck_assert_int_gt(pending, 0);
    }
    talk_end(&t);
}
END_TEST

/* A value that was made before the work, and is put after it, has the work too. */
START_TEST(b52_a_value_made_before_the_work_waits_for_it)
{
    talk t;
    talk_begin(&t, SHOAL_START_SPAWN, reflect_twice);
    shoal_tensor *sent = shoal_zeros(SHOAL_F32, SHOAL_SHAPE(1000)), *back;
    shoal_value *v = shoal_value_tensor(sent);
    for (int i = 0; i < LONG_WORK; i++) {
        hot(shoal_add_scalar_(sent, 1) == sent);
    }
    ck_assert_ok(shoal_queue_put(t.in, v, LIMIT));
    ck_assert_ok(shoal_queue_get_tensor(t.out, LIMIT, &back));
    ck_assert_double_eq(AT(back, 999), 2 * LONG_WORK);
    shoal_tensor_release(sent);
    shoal_tensor_release(back);
    shoal_scope_release(0);
    talk_end(&t);
}
END_TEST

/* ---- B11 ---- */

START_TEST(b11_tensors_use_their_memory_again)
{
    enum { WARM = 100, MESSAGES = 1000, COUNT = 25000 };
    talk t;
    sh_cuda_memory_numbers warm = {0}, end;
    uint64_t blocks = 0;
    talk_begin(&t, SHOAL_START_SPAWN, reflect_twice);
    for (int n = 0; n < WARM + MESSAGES; n++) { /* a fresh one each time */
        shoal_tensor *sent = shoal_full(SHOAL_F32, n, SHOAL_SHAPE(COUNT)), *back;
        hot_ok(shoal_queue_put_tensor(t.in, sent, LIMIT));
        shoal_tensor_release(sent);
        hot_ok(shoal_queue_get_tensor(t.out, LIMIT, &back));
        hot(n % 100 != 0 || AT(back, COUNT - 1) == 2 * n);
        shoal_tensor_release(back);
        if (n == WARM) {
            hot_ok(sh_cuda_memory_numbers_now(&warm));
            blocks = sh_test_world().blocks_live;
        }
    }
    ck_assert_ok(sh_cuda_memory_numbers_now(&end));
    ck_assert_uint_eq(end.held, warm.held);
    ck_assert_uint_le(sh_test_world().blocks_live, blocks + 64); /* the last ones may wait for a mark */
    shoal_tensor *sent = shoal_zeros(SHOAL_F32, SHOAL_SHAPE(100)), *back;
    for (int n = 0; n < WARM + MESSAGES; n++) { /* the same one, to and fro */
        hot_ok(shoal_queue_put_tensor(t.in, sent, LIMIT));
        hot_ok(shoal_queue_get_tensor(t.out, LIMIT, &back));
        hot(same_memory(back, sent));
        shoal_tensor_release(n % 2 == 0 ? sent : back); /* each continues as the other */
        sent = n % 2 == 0 ? back : sent;
        blocks = n == WARM ? sh_test_world().blocks_live : blocks;
    }
    ck_assert_uint_le(sh_test_world().blocks_live, blocks);
    shoal_tensor_release(sent);
    talk_end(&t);
}
END_TEST

/* ---- B53 ---- */

static shoal_err put_and_die(int rank, const shoal_value *args)
{
    shoal_tensor *t = counted(100, 100, rank);
    must_ok(shoal_cuda_wait());
    must_ok(shoal_queue_put_tensor(ARG(queue, "out"), t, LIMIT));
    must_ok(shoal_queue_put(ARG(queue, "out"), shoal_map("model", t, "row", shoal_select(t, 0, 3)), LIMIT));
    raise(SIGKILL);
    return SHOAL_OK;
}

static shoal_err check_received(int rank, const shoal_value *args)
{
    shoal_tensor *t;
    shoal_value *v;
    must_ok(shoal_queue_get_tensor(ARG(queue, "out"), LIMIT, &t));
    must_ok(shoal_queue_get(ARG(queue, "out"), LIMIT, &v));
    must(is_counted(t, rank) && is_counted(shoal_value_as_tensor(shoal_value_find(v, "row")), rank + 300));
    must(same_memory(t, shoal_value_as_tensor(shoal_value_find(v, "model"))));
    must(shoal_add_scalar_(t, 1) == t && is_counted(t, rank + 1));
    shoal_value_destroy(v);
    shoal_tensor_release(t);
    shoal_scope_release(0);
    return SHOAL_OK;
}

START_TEST(b53_finished_work_outlives_its_maker)
{
    for (int n = 0; n < 3; n++) {
        shoal_queue *q = make_queue(0);
        finish_as(talk_start(SHOAL_START_SPAWN, n, put_and_die, shoal_map("out", q)), SHOAL_PROCESS_KILLED, SIGKILL);
        ck_assert_ok(shoal_world_sweep(NULL));
        /* only the world has the memory now */
        finish(talk_start(SHOAL_START_SPAWN, n, check_received, shoal_map("out", q)));
        shoal_release(q);
    }
}
END_TEST

#define DEAD_WORK 4000

/* Puts a tensor whose work is not done. */
static shoal_err put_pending(shoal_queue *out)
{
    shoal_tensor *t = shoal_zeros(SHOAL_F32, SHOAL_SHAPE(LONG_COUNT));
    must(t != NULL);
    must_ok(shoal_cuda_wait());
    if (sh_stub_control()) {
        sh_stub_control()->block();
    }
    for (int i = 0; i < DEAD_WORK; i++) {
        must(shoal_add_scalar_(t, 1) == t);
        if (sh_stub_control()) {
            break; /* its kernels do not wait; the mark does */
        }
    }
    return shoal_queue_put_tensor(out, t, LIMIT);
}

static shoal_err put_unfinished(int rank, const shoal_value *args)
{
    (void)rank;
    must_ok(put_pending(ARG(queue, "out")));
    raise(SIGKILL);
    return SHOAL_OK;
}

/* Receives it, and computes with it. Returns the error; SHOAL_OK if the work is whole: under MPS it may go on without
 * its process. */
static shoal_err take_unfinished(shoal_queue *q)
{
    shoal_tensor *t = NULL;
    shoal_err err = shoal_queue_get_tensor(q, LIMIT, &t);
    if (err == SHOAL_OK) {
        ck_assert(shoal_add_scalar_(t, 1) == t);
        err = shoal_cuda_wait();
        ck_assert(err != SHOAL_OK || (!sh_stub_control() && AT(t, LONG_COUNT - 1) == DEAD_WORK + 1));
        shoal_tensor_release(t);
    }
    return err;
}

/* MPS may end the contexts of all its clients when a death cuts a kernel short (docs/cuda.md); this process's too. */
static bool mps_ended_all(shoal_err err)
{
    return err == SHOAL_ECUDA && getenv("CUDA_MPS_PIPE_DIRECTORY");
}

START_TEST(b53_unfinished_work_of_the_dead_is_an_error)
{
    shoal_err err = SHOAL_OK;
    for (int n = 0; n < 3 && !mps_ended_all(err); n++) {
        shoal_queue *q = make_queue(0);
        shoal_process *p = talk_start(SHOAL_START_SPAWN, n, put_unfinished, shoal_map("out", q));
        if (n % 2 == 0) {
            finish_as(p, SHOAL_PROCESS_KILLED, SIGKILL); /* else it may be found pending */
        }
        ck_assert_ok(shoal_world_sweep(NULL));
        err = take_unfinished(q);
        ck_assert_msg(err == SHOAL_OK || err == SHOAL_ELOST || mps_ended_all(err), "%s", shoal_last_error_text());
        if (n % 2 != 0) {
            finish_as(p, SHOAL_PROCESS_KILLED, SIGKILL);
        }
        err = shoal_cuda_wait(); /* the loss is said once */
        ck_assert_msg(err == SHOAL_OK || mps_ended_all(err), "%s", shoal_last_error_text());
        if (err == SHOAL_OK) { /* this process goes on */
            shoal_tensor *t = counted(3, 3, n);
            ck_assert(is_counted(t, n));
            shoal_tensor_release(t);
        }
        shoal_scope_release(0);
        shoal_release(q);
    }
}
END_TEST

static shoal_err put_and_wait(int rank, const shoal_value *args)
{
    (void)rank;
    must_ok(put_pending(ARG(queue, "in")));
    pause();
    return SHOAL_OK;
}

/* Sends on what it computes from a tensor whose work is not done. When it has been told of the loss, by a wait (rank 0)
 * or a put (1), what it sends is good. */
static shoal_err derive(int rank, const shoal_value *args)
{
    shoal_tensor *t = NULL;
    shoal_value *go = NULL;
    must_ok(shoal_queue_get_tensor(ARG(queue, "in"), LIMIT, &t));
    must_ok(shoal_queue_put_tensor(ARG(queue, "out"), shoal_add_scalar(t, 1), LIMIT));
    must_ok(shoal_queue_put(ARG(queue, "told"), shoal_value_int(1), LIMIT));
    must_ok(shoal_queue_get(ARG(queue, "in"), LIMIT, &go));
    shoal_err err = rank == 0 ? shoal_cuda_wait() : shoal_queue_put_tensor(ARG(queue, "out"), shoal_neg(t), LIMIT);
    must_ok(shoal_queue_put(ARG(queue, "told"), shoal_value_int(err), LIMIT));
    must_ok(shoal_cuda_wait());
    shoal_tensor *good = counted(100, 100, 7);
    must_ok(shoal_queue_give_tensor(ARG(queue, "out"), good, LIMIT));
    shoal_value_destroy(go);
    must_ok(shoal_queue_get(ARG(queue, "in"), LIMIT, &go)); /* it lives until the last one is received */
    shoal_value_destroy(go);
    shoal_tensor_release(t);
    shoal_scope_release(0);
    return SHOAL_OK;
}

static shoal_err get_told(shoal_queue *told)
{
    shoal_value *v = NULL;
    ck_assert_ok(shoal_queue_get(told, LIMIT, &v));
    shoal_err err = (shoal_err)sh_int_of(v);
    shoal_value_destroy(v);
    return err;
}

/* The first maker dies before (0, 2) or after (1, 3) the last process has received what the one in the middle
 * computed. */
START_TEST(b53_what_was_computed_from_lost_work_is_lost)
{
    shoal_queue *in = make_queue(0), *out = make_queue(0), *told = make_queue(0);
    shoal_tensor *t = NULL;
    shoal_process *middle =
        talk_start(SHOAL_START_SPAWN, _i / 2, derive, shoal_map("in", in, "out", out, "told", told));
    shoal_process *maker = talk_start(SHOAL_START_SPAWN, 0, put_and_wait, shoal_map("in", in));
    (void)get_told(told);
    shoal_err err = _i % 2 == 1 ? shoal_queue_get_tensor(out, LIMIT, &t) : SHOAL_OK;
    ck_assert_ok(err);
    ck_assert_ok(shoal_process_kill(maker));
    finish_as(maker, SHOAL_PROCESS_KILLED, SIGKILL);
    ck_assert_ok(shoal_world_sweep(NULL));
    err = _i % 2 == 0 ? shoal_queue_get_tensor(out, LIMIT, &t) : SHOAL_OK;
    err = err == SHOAL_OK ? shoal_cuda_wait() : err;
    ck_assert_msg(err == SHOAL_ELOST || (err == SHOAL_OK && !sh_stub_control()) || mps_ended_all(err), "%s",
                  shoal_last_error_text());
    if (err == SHOAL_OK) { /* the card was faster than the kill */
        ck_assert_double_eq(AT(t, LONG_COUNT - 1), DEAD_WORK + 1);
    }
    ck_assert_ok(shoal_queue_put(in, shoal_value_int(1), LIMIT));
    shoal_err middle_err = get_told(told);
    if (mps_ended_all(err) || mps_ended_all(middle_err)) {
        return;
    }
    ck_assert_int_eq(middle_err, err);
    shoal_tensor *next = NULL;
    if (err == SHOAL_OK && _i / 2 == 1) {
        ck_assert_ok(shoal_queue_get_tensor(out, LIMIT, &next));
        shoal_tensor_release(next);
    }
    ck_assert_ok(shoal_queue_get_tensor(out, LIMIT, &next));
    ck_assert(is_counted(next, 7));
    ck_assert_ok(shoal_queue_put(in, shoal_value_int(1), LIMIT));
    finish(middle);
    shoal_tensor_release(next);
    shoal_tensor_release(t);
    shoal_release(in);
    shoal_release(out);
    shoal_release(told);
}
END_TEST

enum { LENT = 40 };

static shoal_err take_all_and_die(int rank, const shoal_value *args)
{
    (void)rank;
    shoal_tensor *t[LENT];
    for (int i = 0; i < LENT; i++) {
        must_ok(shoal_queue_get_tensor(ARG(queue, "in"), LIMIT, &t[i]));
        must(shoal_add_scalar_(t[i], 1) == t[i]);
    }
    must_ok(shoal_queue_put(ARG(queue, "out"), shoal_value_int(1), LIMIT));
    shoal_value *go = NULL;
    must_ok(shoal_queue_get(ARG(queue, "in"), LIMIT, &go));
    raise(SIGKILL);
    return SHOAL_OK;
}

START_TEST(b53_memory_comes_back_from_a_dead_consumer)
{
    size_t used = card_used();
    for (int n = 0; n < 2; n++) {
        talk t;
        talk_begin(&t, SHOAL_START_SPAWN, take_all_and_die);
        for (int i = 0; i < LENT; i++) {
            shoal_tensor *sent = counted(256, 256, i);
            hot_ok(shoal_queue_put_tensor(t.in, sent, LIMIT));
            shoal_tensor_release(sent);
        }
        until_told(t.out);
        ck_assert_uint_ge(card_used(), used + LENT * 256 * 256 * sizeof(float)); /* they are lent */
        ck_assert_ok(shoal_queue_put(t.in, shoal_value_int(1), LIMIT));
        finish_as(t.process, SHOAL_PROCESS_KILLED, SIGKILL);
        ck_assert_uint_eq(card_used(), used);
        talk_release(&t);
    }
}
END_TEST

#define WRITTEN (getenv("SHOAL_TEST_CARD") ? 1 << 24 : 1 << 16)

/* Writes into a tensor again and again, until it is killed. Many launches wait on the card at any time. */
static shoal_err write_for_ever(int rank, const shoal_value *args)
{
    (void)rank;
    shoal_tensor *t = NULL;
    must_ok(shoal_queue_get_tensor(ARG(queue, "in"), LIMIT, &t));
    for (int i = 0;; i++) {
        must(shoal_add_scalar_(t, 1) == t);
        if (i == 300) {
            must_ok(shoal_queue_put(ARG(queue, "out"), shoal_value_int(1), LIMIT));
        }
    }
}

/* The driver ends the work of a killed process some milliseconds after the process has lost its locks. */
START_TEST(b53_work_of_a_dead_consumer_writes_to_no_new_tensor)
{
    for (int n = 0; n < 3; n++) {
        talk t;
        talk_begin(&t, SHOAL_START_SPAWN, write_for_ever);
        shoal_tensor *sent = shoal_zeros(SHOAL_F32, SHOAL_SHAPE(WRITTEN));
        ck_assert_ok(shoal_queue_put_tensor(t.in, sent, LIMIT));
        shoal_tensor_release(sent);
        until_told(t.out);
        ck_assert_ok(shoal_process_kill(t.process));
        for (int64_t end = sh_deadline(SHOAL_MS(200)); !sh_passed(end);) {
            ck_assert_ok(shoal_world_sweep(NULL));
            shoal_tensor *next = shoal_zeros(SHOAL_F32, SHOAL_SHAPE(WRITTEN));
            shoal_err err = next ? shoal_cuda_wait() : shoal_last_error();
            if (mps_ended_all(err)) {
                return;
            }
            ck_assert_msg(err == SHOAL_OK, "%s", shoal_last_error_text());
            usleep(3000);
            ck_assert_double_eq(AT(next, WRITTEN - 1), 0);
            shoal_tensor_release(next);
        }
        finish_as(t.process, SHOAL_PROCESS_KILLED, SIGKILL);
        talk_release(&t);
    }
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("cuda/sharing");
    TCase *tc = card_case("sharing");
    tcase_add_test(tc, b51_many_small_tensors_through_three_processes);
    tcase_add_test(tc, b52_work_before_a_put_is_seen_without_a_wait);
    tcase_add_test(tc, b52_a_value_made_before_the_work_waits_for_it);
    tcase_add_test(tc, b11_tensors_use_their_memory_again);
    tcase_add_test(tc, b53_finished_work_outlives_its_maker);
    tcase_add_test(tc, b53_unfinished_work_of_the_dead_is_an_error);
    tcase_add_loop_test(tc, b53_what_was_computed_from_lost_work_is_lost, 0, 4);
    tcase_add_test(tc, b53_memory_comes_back_from_a_dead_consumer);
    tcase_add_test(tc, b53_work_of_a_dead_consumer_writes_to_no_new_tensor);
    suite_add_tcase(s, tc);
    return s;
}

SH_TEST_MAIN(suite)
