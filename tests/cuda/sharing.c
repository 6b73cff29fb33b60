/* Tensors of a card between processes, beyond what holds for all tensors (tests/sharing*.c): many small ones, the order of
 * work, memory that is used again, deaths, and processes without a card. B11 (B50), B51 to B53. Over the stub driver, or on a card. */
#include "device/cuda_share.h"
#include "testing/cuda_stub/stub.h"

#include "tests/talk.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#define SMALL (getenv("SHOAL_TEST_CARD") ? 100000 : 3000)
#define AHEAD 256                                                     /* messages in a queue */
#define RECEIVED (getenv("SHOAL_TEST_CARD") ? 300 : SH_REPEAT(20000)) /* a card takes milliseconds for each */

static void begin(void)
{
    sh_stub_use();
    setenv("SHOAL_TALK_DEVICE", "cuda", 1);
    sh_leaks_begin();
    ck_assert_msg(sh_device_get(SHOAL_CUDA) != NULL, "%s", shoal_last_error_text());
}

static size_t used_now(void)
{
    sh_cuda_memory_numbers n;
    shoal_err err = shoal_world_sweep(NULL);
    (void)shoal_card_trim();
    return err == SHOAL_OK && sh_cuda_memory_numbers_now(&n) == SHOAL_OK ? n.used : SIZE_MAX;
}

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
    must_ok(shoal_card_wait());
    must(used_now() == 0); /* all of them are back */
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
    shoal_queue *first, *second, *back;
    ck_assert_ok(shoal_queue_create(AHEAD, &first));
    ck_assert_ok(shoal_queue_create(AHEAD, &second));
    ck_assert_ok(shoal_queue_create(0, &back));
    size_t used = used_now();
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
    ck_assert_ok(shoal_card_wait());
    sh_cuda_order_poll();
    finish(messenger); /* until it has ended it holds what it sent last */
    ck_assert_ok(shoal_queue_put(back, shoal_value_int(1), LIMIT));
    finish(maker);
    shoal_tensor_release(sum);
    ck_assert_uint_eq(used_now(), used);
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

static uint64_t blocks_now(void)
{
    shoal_world_info info;
    ck_assert_ok(shoal_world_info_get(&info));
    return info.blocks_live;
}

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
            blocks = blocks_now();
        }
    }
    ck_assert_ok(sh_cuda_memory_numbers_now(&end));
    ck_assert_uint_eq(end.held, warm.held);
    ck_assert_uint_le(blocks_now(), blocks + 64); /* the last ones may wait for a mark */
    shoal_tensor *sent = shoal_zeros(SHOAL_F32, SHOAL_SHAPE(100)), *back;
    for (int n = 0; n < WARM + MESSAGES; n++) { /* the same one, to and fro */
        hot_ok(shoal_queue_put_tensor(t.in, sent, LIMIT));
        hot_ok(shoal_queue_get_tensor(t.out, LIMIT, &back));
        hot(same_memory(back, sent));
        shoal_tensor_release(n % 2 == 0 ? sent : back); /* each continues as the other */
        sent = n % 2 == 0 ? back : sent;
        blocks = n == WARM ? blocks_now() : blocks;
    }
    ck_assert_uint_le(blocks_now(), blocks);
    shoal_tensor_release(sent);
    talk_end(&t);
}
END_TEST

/* ---- B53 ---- */

static shoal_err put_and_die(int rank, const shoal_value *args)
{
    shoal_tensor *t = counted(100, 100, rank);
    must_ok(shoal_card_wait());
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
        shoal_queue *q;
        ck_assert_ok(shoal_queue_create(0, &q));
        finish_as(talk_start(SHOAL_START_SPAWN, n, put_and_die, shoal_map("out", q)), SHOAL_KILLED, SIGKILL);
        ck_assert_ok(shoal_world_sweep(NULL));
        /* only the world has the memory now */
        finish(talk_start(SHOAL_START_SPAWN, n, check_received, shoal_map("out", q)));
        shoal_release(q);
    }
}
END_TEST

#define DEAD_WORK 4000

/* Puts work that is not done, and dies. */
static shoal_err put_unfinished(int rank, const shoal_value *args)
{
    (void)rank;
    shoal_tensor *t = shoal_zeros(SHOAL_F32, SHOAL_SHAPE(LONG_COUNT));
    must(t != NULL);
    must_ok(shoal_card_wait());
    if (sh_stub_control()) {
        sh_stub_control()->block();
    }
    for (int i = 0; i < DEAD_WORK; i++) {
        must(shoal_add_scalar_(t, 1) == t);
        if (sh_stub_control()) {
            break; /* its kernels do not wait; the mark does */
        }
    }
    must_ok(shoal_queue_put_tensor(ARG(queue, "out"), t, LIMIT));
    raise(SIGKILL);
    return SHOAL_OK;
}

/* Receives it, and computes with it. Returns the error; SHOAL_OK if the work is whole: under MPS it may go on without its
 * process. */
static shoal_err take_unfinished(shoal_queue *q)
{
    shoal_tensor *t = NULL;
    shoal_err err = shoal_queue_get_tensor(q, LIMIT, &t);
    if (err == SHOAL_OK) {
        ck_assert(shoal_add_scalar_(t, 1) == t);
        err = shoal_card_wait();
        ck_assert(err != SHOAL_OK || (!sh_stub_control() && AT(t, LONG_COUNT - 1) == DEAD_WORK + 1));
        shoal_tensor_release(t);
    }
    return err;
}

/* MPS may end the contexts of all its clients when a death cuts a kernel short (docs/cuda.md); this process's too. */
static bool mps_ended_all(shoal_err err)
{
    return err == SHOAL_ECARD && getenv("CUDA_MPS_PIPE_DIRECTORY");
}

START_TEST(b53_unfinished_work_of_the_dead_is_an_error)
{
    shoal_err err = SHOAL_OK;
    for (int n = 0; n < 3 && !mps_ended_all(err); n++) {
        shoal_queue *q;
        ck_assert_ok(shoal_queue_create(0, &q));
        shoal_process *p = talk_start(SHOAL_START_SPAWN, n, put_unfinished, shoal_map("out", q));
        if (n % 2 == 0) {
            finish_as(p, SHOAL_KILLED, SIGKILL); /* else it may be found pending */
        }
        ck_assert_ok(shoal_world_sweep(NULL));
        err = take_unfinished(q);
        ck_assert_msg(err == SHOAL_OK || err == SHOAL_EOWNERDEAD || mps_ended_all(err), "%s", shoal_last_error_text());
        if (n % 2 != 0) {
            finish_as(p, SHOAL_KILLED, SIGKILL);
        }
        err = shoal_card_wait(); /* the loss is said once */
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

/* Puts work that is not done, and loses its card; then it waits for a message. */
static shoal_err lose_the_card(int rank, const shoal_value *args)
{
    (void)rank;
    shoal_value *go = NULL;
    shoal_tensor *done = counted(3, 4, 5), *t = counted(3, 4, 6);
    must_ok(shoal_queue_put_tensor(ARG(queue, "out"), done, LIMIT));
    sh_stub_control()->block();
    must(shoal_add_scalar_(t, 1) == t);
    must_ok(shoal_queue_put(ARG(queue, "out"), shoal_map("t", t), LIMIT));
    must_ok(shoal_queue_get(ARG(queue, "in"), LIMIT, &go));
    shoal_value_destroy(go);
    sh_stub_control()->fail_call("cuStreamSynchronize", 1, 0, SH_CU_LAUNCH_FAILED);
    must_err(shoal_card_wait(), SHOAL_ECARD);
    must_ok(shoal_queue_put(ARG(queue, "out"), shoal_value_int(1), LIMIT));
    must_ok(shoal_queue_get(ARG(queue, "in"), LIMIT, &go));
    shoal_value_destroy(go);
    shoal_tensor_release(done);
    shoal_tensor_release(t);
    shoal_scope_release(0);
    return SHOAL_OK;
}

/* Another process loses its card and lives on, before this one looks at its work (0), or while this one's stream waits for it
 * (1). What that card has not done will never be done. */
START_TEST(a_lost_card_holds_up_nobody)
{
    talk with;
    shoal_tensor *t = NULL;
    shoal_value *v = NULL;
    talk_begin(&with, SHOAL_START_SPAWN, lose_the_card);
    ck_assert_ok(shoal_queue_get_tensor(with.out, LIMIT, &t));
    ck_assert(is_counted(t, 5));
    ck_assert_ok(shoal_queue_get(with.out, LIMIT, &v));
    if (_i == 1) {
        ck_assert(shoal_add_(t, shoal_value_as_tensor(shoal_value_find(v, "t"))) == t);
    }
    ck_assert_ok(shoal_queue_put(with.in, shoal_value_int(1), LIMIT));
    until_told(with.out);
    if (_i == 0) {
        ck_assert_ptr_null(shoal_value_as_tensor(shoal_value_find(v, "t")));
        ck_assert_err(shoal_last_error(), SHOAL_EOWNERDEAD);
    } else {
        ck_assert_err(shoal_card_wait(), SHOAL_EOWNERDEAD);
    }
    ck_assert_ok(shoal_card_wait());
    ck_assert_ok(shoal_queue_put(with.in, shoal_value_int(1), LIMIT));
    shoal_value_destroy(v);
    shoal_tensor_release(t);
    shoal_scope_release(0);
    talk_end(&with);
}
END_TEST

/* Uses tensors and releases them, and loses its card in between; then it waits for a message. */
static shoal_err release_without_a_card(int rank, const shoal_value *args)
{
    shoal_tensor *t[3], *pinned = shoal_empty_pinned(SHOAL_F32, SHOAL_SHAPE(3, 4));
    shoal_value *go = NULL;
    (void)rank;
    for (int i = 0; i < 3; i++) {
        must_ok(shoal_queue_get_tensor(ARG(queue, "in"), LIMIT, &t[i]));
    }
    sh_stub_control()->block();
    for (int i = 0; i < 3; i++) {
        must_ok(shoal_copy_later_(t[i], pinned));
    }
    shoal_tensor_release(t[0]);
    shoal_tensor_release(t[1]);
    sh_stub_control()->fail_call("cuStreamSynchronize", 1, 0, SH_CU_LAUNCH_FAILED);
    must_err(shoal_card_wait(), SHOAL_ECARD);
    shoal_tensor_release(t[2]);
    must_ok(shoal_queue_put(ARG(queue, "out"), shoal_value_int(1), LIMIT));
    must_ok(shoal_queue_get(ARG(queue, "in"), LIMIT, &go));
    shoal_value_destroy(go);
    _exit(0); /* the driver cannot free the pinned memory */
}

/* A card that is lost uses nothing any more, so what waited for it goes back to its makers. */
START_TEST(a_lost_card_keeps_nothing)
{
    shoal_queue *in, *out;
    size_t used = used_now();
    ck_assert_ok(shoal_queue_create(0, &in));
    ck_assert_ok(shoal_queue_create(0, &out));
    for (int i = 0; i < 3; i++) {
        shoal_tensor *t = counted(3, 4, i);
        ck_assert_ok(shoal_queue_put_tensor(in, t, LIMIT));
        shoal_tensor_release(t);
    }
    shoal_process *p = talk_start(SHOAL_START_SPAWN, 0, release_without_a_card, shoal_map("in", in, "out", out));
    until_told(out);
    size_t lent = used_now();
    ck_assert_ok(shoal_queue_put(in, shoal_value_int(1), LIMIT));
    finish_as(p, SHOAL_EXITED, 0);
    ck_assert_uint_eq(lent, used);
    shoal_release(in);
    shoal_release(out);
}
END_TEST

/* The end of a capture waits for the card, and has nobody to tell that work was lost: the next call that waits does. */
START_TEST(a_capture_does_not_swallow_a_loss)
{
    talk with;
    shoal_capture *c;
    shoal_tensor *t = NULL, *own = counted(3, 4, 0), *pinned = shoal_empty_pinned(SHOAL_F32, SHOAL_SHAPE(3, 4));
    shoal_value *v = NULL;
    ck_assert_ok(shoal_capture_begin(&c));
    ck_assert_ok(shoal_copy_later_(own, pinned));
    ck_assert_ok(shoal_capture_end(c));
    talk_begin(&with, SHOAL_START_SPAWN, lose_the_card);
    ck_assert_ok(shoal_queue_get_tensor(with.out, LIMIT, &t));
    ck_assert_ok(shoal_queue_get(with.out, LIMIT, &v));
    ck_assert(shoal_add_(own, shoal_value_as_tensor(shoal_value_find(v, "t"))) == own);
    ck_assert_ok(shoal_capture_replay(c));
    ck_assert_ok(shoal_queue_put(with.in, shoal_value_int(1), LIMIT));
    until_told(with.out);
    shoal_capture_destroy(c);
    ck_assert_err(shoal_card_wait(), SHOAL_EOWNERDEAD);
    ck_assert_ok(shoal_card_wait());
    ck_assert_ok(shoal_queue_put(with.in, shoal_value_int(1), LIMIT));
    shoal_value_destroy(v);
    shoal_tensor_release(t);
    shoal_tensor_release(own);
    shoal_tensor_release(pinned);
    shoal_scope_release(0);
    talk_end(&with);
}
END_TEST

static bool stops_last;

/* After the library's own destructor, with everything released that it releases. */
__attribute__((destructor(200))) static void stop_last(void)
{
    if (stops_last) {
        raise(SIGSTOP);
    }
}

/* Receives a tensor and returns while its card still uses the bytes. */
static shoal_err use_and_return(int rank, const shoal_value *args)
{
    shoal_tensor *t = NULL, *pinned = shoal_empty_pinned(SHOAL_F32, SHOAL_SHAPE(256, 256));
    must(pinned != NULL);
    must_ok(shoal_queue_get_tensor(ARG(queue, "in"), LIMIT, &t));
    if (rank == 1) {
        sh_stub_control()->block();
    }
    must_ok(shoal_copy_later_(t, pinned));
    shoal_tensor_release(t);
    shoal_tensor_release(pinned); /* the stub has its bytes */
    if (rank == 0) {
        must_ok(shoal_card_wait());
    }
    stops_last = true;
    return SHOAL_OK;
}

/* A process ends, and its card has done all its work (0), or still uses a tensor of this process (1), which must not use the
 * bytes again until that context is gone with its process. */
START_TEST(what_the_card_of_an_ending_process_uses_stays_lent)
{
    shoal_queue *q;
    siginfo_t info;
    size_t used = used_now();
    ck_assert_ok(shoal_queue_create(0, &q));
    shoal_tensor *t = counted(256, 256, 0);
    ck_assert_ok(shoal_queue_put_tensor(q, t, LIMIT));
    shoal_tensor_release(t);
    shoal_process *p = talk_start(SHOAL_START_SPAWN, _i, use_and_return, shoal_map("in", q));
    ck_assert_int_eq(waitid(P_PID, (id_t)shoal_process_pid(p), &info, WSTOPPED), 0);
    size_t lent = used_now();
    ck_assert_int_eq(kill(shoal_process_pid(p), SIGCONT), 0);
    finish(p);
    ck_assert_int_eq(lent > used, _i);
    ck_assert_uint_eq(used_now(), used);
    shoal_release(q);
}
END_TEST

static shoal_err take_all_and_die(int rank, const shoal_value *args)
{
    shoal_tensor *t[64];
    for (int i = 0; i < rank; i++) {
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
    enum { TENSORS = 40 };
    size_t used = used_now();
    for (int n = 0; n < 2; n++) {
        shoal_queue *in, *out;
        ck_assert_ok(shoal_queue_create(0, &in));
        ck_assert_ok(shoal_queue_create(0, &out));
        shoal_process *p = talk_start(SHOAL_START_SPAWN, TENSORS, take_all_and_die, shoal_map("in", in, "out", out));
        for (int i = 0; i < TENSORS; i++) {
            shoal_tensor *t = counted(256, 256, i);
            hot_ok(shoal_queue_put_tensor(in, t, LIMIT));
            shoal_tensor_release(t);
        }
        until_told(out);
        ck_assert_uint_ge(used_now(), used + TENSORS * 256 * 256 * sizeof(float)); /* they are lent */
        ck_assert_ok(shoal_queue_put(in, shoal_value_int(1), LIMIT));
        finish_as(p, SHOAL_KILLED, SIGKILL);
        ck_assert_uint_eq(used_now(), used);
        shoal_release(in);
        shoal_release(out);
    }
}
END_TEST

/* ---- threads ---- */

static sh_a32 receiving;

/* Asks for the whole card, again and again: each time, what is cached here goes back to the driver. */
static void *fill_the_card(void *unused)
{
    (void)unused;
    while (sh_load_relaxed(&receiving) != 0) {
        if (shoal_empty(SHOAL_U8, SHOAL_SHAPE((int64_t)sh_cuda_the_card()->total)) != NULL) {
            abort();
        }
    }
    return NULL;
}

START_TEST(a_full_card_does_not_stop_a_thread_that_receives)
{
    shoal_queue *q;
    pthread_t thread;
    ck_assert_ok(shoal_queue_create(0, &q));
    shoal_tensor *held = shoal_zeros(SHOAL_U8, SHOAL_SHAPE(40 << 20)); /* so the whole card is never free */
    ck_assert_ptr_nonnull(held);
    sh_store_relaxed(&receiving, 1);
    ck_assert_int_eq(pthread_create(&thread, NULL, fill_the_card, NULL), 0);
    for (int i = 0; i < RECEIVED; i++) {
        shoal_tensor *t = shoal_zeros(SHOAL_F32, SHOAL_SHAPE(4)), *back;
        hot_ok(shoal_queue_give_tensor(q, t, LIMIT));
        hot_ok(shoal_queue_get_tensor(q, LIMIT, &back)); /* finds the memory among this process's own */
        shoal_tensor_release(back);
    }
    sh_store_relaxed(&receiving, 0);
    ck_assert_int_eq(pthread_join(thread, NULL), 0);
    shoal_tensor_release(held);
    shoal_release(q);
}
END_TEST

/* Has the lock of the world's card memory, like a process that was stopped while it shared some. */
static shoal_err lock_the_store(int rank, const shoal_value *args)
{
    (void)rank;
    must_ok(sh_lock_lock(&sh_the_world.header->store.lock, SHOAL_NOW));
    must_ok(shoal_queue_put(ARG(queue, "out"), shoal_value_int(1), LIMIT));
    pause();
    return SHOAL_OK;
}

typedef struct putter {
    shoal_queue *queue;
    shoal_tensor *tensor;
    shoal_err err;
} putter;

static void *put_in_a_thread(void *argument)
{
    putter *p = argument;
    p->err = shoal_queue_put_tensor(p->queue, p->tensor, LIMIT);
    return NULL;
}

/* A thread waits for the store's lock, to share a first tensor. The others allocate and free meanwhile, and share tensors of
 * the CPU. */
START_TEST(a_locked_store_stops_only_those_who_share)
{
    shoal_queue *q;
    pthread_t thread;
    shoal_value *v = NULL;
    ck_assert_ok(shoal_queue_create(0, &q));
    shoal_process *locker = talk_start(SHOAL_START_SPAWN, 0, lock_the_store, shoal_map("out", q));
    ck_assert_ok(shoal_queue_get(q, LIMIT, &v));
    shoal_value_destroy(v);
    const sh_lock_shm *lock = &sh_the_world.header->store.lock;
    uint32_t held = sh_load_acquire(&lock->gate.word);
    putter p = {.queue = q, .tensor = counted(3, 4, 5)};
    shoal_scope_release(0);
    ck_assert_int_eq(pthread_create(&thread, NULL, put_in_a_thread, &p), 0);
    while (sh_load_acquire(&lock->gate.word) == held) { /* until it says that somebody waits */
        sh_pause();
    }
    shoal_tensor_release(shoal_zeros(SHOAL_F32, SHOAL_SHAPE(4)));
    shoal_tensor *here = shoal_full_on(SHOAL_CPU, SHOAL_F32, 1, SHOAL_SHAPE(4));
    ck_assert_ok(shoal_queue_put_tensor(q, here, LIMIT));
    shoal_tensor_release(here);
    ck_assert_ok(shoal_process_kill(locker)); /* in time: the put has not given up */
    finish_as(locker, SHOAL_KILLED, SIGKILL);
    ck_assert_int_eq(pthread_join(thread, NULL), 0);
    ck_assert_ok(p.err);
    shoal_tensor_release(p.tensor);
    shoal_release(q);
}
END_TEST

/* ---- captures ---- */

static shoal_err put_two(int rank, const shoal_value *args)
{
    (void)rank;
    for (int i = 0; i < 2; i++) {
        shoal_tensor *t = counted(3, 4, i);
        must_ok(shoal_card_wait()); /* so a receiver has nothing to wait for */
        must_ok(i == 0 ? shoal_queue_put_tensor(ARG(queue, "out"), t, LIMIT)
                       : shoal_queue_put(ARG(queue, "out"), shoal_map("t", t), LIMIT));
        shoal_tensor_release(t);
        shoal_scope_release(0);
    }
    return SHOAL_OK;
}

/* The call that returned err, inside of the capture, has ended it. */
static void expect_refused(shoal_capture *c, shoal_err err)
{
    ck_assert_err(err, SHOAL_ESTATE);
    ck_assert_ptr_nonnull(strstr(shoal_last_error_text(), "receiving a tensor from another process"));
    ck_assert_err(shoal_capture_end(c), SHOAL_ESTATE);
    shoal_capture_destroy(c);
}

/* Also if the sender's work is done. The tensor is not lost, and keeps its place. */
START_TEST(a_capture_receives_nothing)
{
    shoal_queue *q;
    shoal_capture *c;
    shoal_tensor *t = NULL;
    shoal_value *v = NULL;
    ck_assert_ok(shoal_queue_create(0, &q));
    finish(talk_start(SHOAL_START_SPAWN, 0, put_two, shoal_map("out", q)));
    ck_assert_ok(shoal_capture_begin(&c));
    expect_refused(c, shoal_queue_get_tensor(q, LIMIT, &t));
    ck_assert_ok(shoal_queue_get_tensor(q, LIMIT, &t));
    ck_assert(is_counted(t, 0));
    ck_assert_ok(shoal_queue_put_tensor(q, t, LIMIT));
    ck_assert_ok(shoal_capture_begin(&c));
    ck_assert_ok(shoal_queue_get(q, LIMIT, &v)); /* a value is read later */
    ck_assert_ptr_null(shoal_value_as_tensor(shoal_value_find(v, "t")));
    expect_refused(c, shoal_last_error());
    ck_assert(is_counted(shoal_value_as_tensor(shoal_value_find(v, "t")), 1));
    shoal_value_destroy(v);
    ck_assert_ok(shoal_capture_begin(&c));
    expect_refused(c, shoal_queue_get_tensor(q, LIMIT, &t)); /* one that this process has */
    shoal_tensor *again;
    ck_assert_ok(shoal_queue_get_tensor(q, LIMIT, &again));
    ck_assert(same_memory(t, again));
    shoal_tensor_release(again);
    shoal_tensor_release(t);
    shoal_scope_release(0);
    shoal_release(q);
}
END_TEST

/* ---- processes without a card ---- */

static shoal_err forward_blindly(int rank, const shoal_value *args)
{
    (void)rank;
    shoal_tensor *t = NULL;
    shoal_value *v = NULL;
    must_err(shoal_queue_get_tensor(ARG(queue, "in"), LIMIT, &t), SHOAL_ENOENT);
    must(t == NULL && shoal_last_error_text()[0] != '\0');
    must_ok(shoal_queue_put(ARG(queue, "out"), shoal_value_string(shoal_last_error_text()), LIMIT));
    must_ok(shoal_queue_get(ARG(queue, "back"), LIMIT, &v)); /* it may be sent on, unread */
    must(shoal_value_as_tensor(shoal_value_find(v, "t")) == NULL && shoal_last_error() == SHOAL_ENOENT);
    must_ok(shoal_queue_put(ARG(queue, "out"), v, LIMIT));
    return SHOAL_OK;
}

START_TEST(a_process_without_a_card_says_so_and_loses_nothing)
{
    shoal_queue *in, *out, *back;
    ck_assert_ok(shoal_queue_create(0, &in));
    ck_assert_ok(shoal_queue_create(0, &out));
    ck_assert_ok(shoal_queue_create(0, &back));
    char before[4096];
    snprintf(before, sizeof before, "%s", getenv("SHOAL_CUDA_DRIVER") ? getenv("SHOAL_CUDA_DRIVER") : "");
    setenv("SHOAL_CUDA_DRIVER", "/there/is/no/driver.so", 1);
    shoal_process *p = start(SHOAL_START_SPAWN, 0, forward_blindly, shoal_map("in", in, "out", out, "back", back));
    if (before[0]) {
        setenv("SHOAL_CUDA_DRIVER", before, 1);
    } else {
        unsetenv("SHOAL_CUDA_DRIVER");
    }
    shoal_tensor *t = counted(3, 4, 5), *got;
    ck_assert_ok(shoal_queue_put_tensor(in, t, LIMIT));
    ck_assert_ok(shoal_queue_put(back, shoal_map("t", t), LIMIT));
    shoal_value *v = NULL;
    ck_assert_ok(shoal_queue_get(out, LIMIT, &v));
    ck_assert_ptr_nonnull(strstr(shoal_value_as_string(v), "driver"));
    shoal_value_destroy(v);
    ck_assert_ok(shoal_queue_get_tensor(in, LIMIT, &got));
    ck_assert(same_memory(t, got) && is_counted(got, 5));
    shoal_tensor_release(got);
    ck_assert_ok(shoal_queue_get(out, LIMIT, &v));
    ck_assert(same_memory(t, shoal_value_as_tensor(shoal_value_find(v, "t"))));
    shoal_value_destroy(v);
    finish(p);
    shoal_tensor_release(t);
    shoal_release(in);
    shoal_release(out);
    shoal_release(back);
}
END_TEST

/* ---- tools ---- */

typedef struct listed {
    int32_t holder; /* the only one */
    int held, queued;
    uint64_t bytes;
} listed;

static bool note_row(const shoal_card_tensor *t, void *context)
{
    listed *l = context;
    ck_assert_int_eq(t->dtype, SHOAL_F32);
    ck_assert_int_eq(t->ndim, 2);
    ck_assert_int_eq(t->shape[0], 3);
    ck_assert_int_eq(strncmp(t->card, "GPU-", 4), 0);
    ck_assert(t->pid == 0 || t->pid == l->holder);
    l->held += t->pid != 0;
    l->queued += t->pid == 0;
    l->bytes += t->size;
    return true;
}

static void expect_two(const listed *l)
{
    ck_assert_int_eq(l->held, 1);
    ck_assert_int_eq(l->queued, 1);
    ck_assert_uint_eq(l->bytes, 3 * 4 * 4 + 3 * 5 * 4);
}

/* Lists from a process that is in no world. That this takes no slot is tested by tests/cli/tensors. */
static void list_from_outside(void)
{
    listed l = {.holder = getpid()};
    shoal_world_info info;
    int status = -1;
    ck_assert_ok(shoal_world_info_get(&info));
    pid_t child = fork();
    if (child == 0) {
        shoal_world_leave(); /* its parent's */
        ck_assert_err(shoal_card_tensors_list_of("none-of-this-name", note_row, &l), SHOAL_ENOENT);
        ck_assert_ok(shoal_card_tensors_list_of(info.name, note_row, &l));
        expect_two(&l);
        _exit(0);
    }
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert_int_eq(status, 0);
    ck_assert_ok(shoal_world_sweep(NULL)); /* what the child inherited */
}

/* `shoal ps --tensors`: one that this process has, two in a queue, of which one is the same. */
START_TEST(shared_tensors_are_listed)
{
    shoal_queue *q;
    listed l = {.holder = getpid()};
    ck_assert_ok(shoal_queue_create(0, &q));
    shoal_tensor *kept = shoal_full_on(SHOAL_CUDA, SHOAL_F32, 1, SHOAL_SHAPE(3, 4));
    shoal_tensor *gone = shoal_full_on(SHOAL_CUDA, SHOAL_F32, 1, SHOAL_SHAPE(3, 5));
    ck_assert_ok(shoal_card_tensors_list(note_row, &l));
    ck_assert_int_eq(l.held + l.queued, 0); /* none is shared */
    ck_assert_ok(shoal_queue_put_tensor(q, kept, LIMIT));
    ck_assert_ok(shoal_queue_put_tensor(q, gone, LIMIT));
    shoal_tensor_release(gone);
    ck_assert_ok(shoal_card_tensors_list(note_row, &l));
    expect_two(&l);
    list_from_outside();
    ck_assert_err(shoal_card_tensors_list_of("any", note_row, &l), SHOAL_ESTATE);
    shoal_tensor_release(kept);
    shoal_release(q);
}
END_TEST

/* The stream uses a received tensor, which is released in a capture; the capture fails, and is destroyed. This process holds the
 * tensor until its stream is done with it, so its maker cannot use the bytes before. */
START_TEST(a_failed_capture_gives_back_when_the_work_is_done)
{
    shoal_queue *q;
    shoal_capture *c;
    shoal_tensor *t = NULL;
    listed l = {.holder = getpid()}, later = l;
    ck_assert_ok(shoal_queue_create(0, &q));
    finish(talk_start(SHOAL_START_SPAWN, 0, put_two, shoal_map("out", q)));
    ck_assert_ok(shoal_queue_get_tensor(q, LIMIT, &t));
    sh_stub_control()->block();
    ck_assert(shoal_add_scalar_(t, 1) == t);
    ck_assert_ok(shoal_capture_begin(&c));
    shoal_tensor_release(t);
    shoal_scope_release(0);
    ck_assert_err(shoal_card_wait(), SHOAL_ESTATE);
    shoal_capture_destroy(c);
    ck_assert_ok(shoal_card_tensors_list(note_row, &l));
    ck_assert_int_eq(l.held, 1);
    sh_stub_control()->unblock();
    ck_assert_ok(shoal_card_wait());
    ck_assert_ok(shoal_card_tensors_list(note_row, &later));
    ck_assert_int_eq(later.held, 0);
    shoal_release(q);
}
END_TEST

/* It knows the tensor, which it inherited, but cannot use it: the message stays for others. */
START_TEST(a_child_of_fork_loses_nothing)
{
    shoal_queue *q;
    ck_assert_ok(shoal_queue_create(0, &q));
    shoal_tensor *t = counted(3, 4, 5), *got = NULL;
    ck_assert_ok(shoal_queue_put_tensor(q, t, LIMIT));
    pid_t child = fork();
    if (child == 0) {
        _exit(shoal_queue_get_tensor(q, SHOAL_NOW, &got) != SHOAL_EFORK || got != NULL);
    }
    int status = -1;
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert_int_eq(status, 0);
    ck_assert_ok(shoal_world_sweep(NULL)); /* what the child inherited */
    ck_assert_ok(shoal_queue_get_tensor(q, LIMIT, &got));
    ck_assert(same_memory(t, got) && is_counted(got, 5));
    shoal_tensor_release(got);
    shoal_tensor_release(t);
    shoal_release(q);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("cuda/sharing");
    TCase *tc = tcase_create("sharing");
    tcase_add_checked_fixture(tc, begin, children_end);
    tcase_set_timeout(tc, SH_TEST_SECONDS);
    tcase_add_test(tc, shared_tensors_are_listed);
    tcase_add_test(tc, b51_many_small_tensors_through_three_processes);
    tcase_add_test(tc, b52_work_before_a_put_is_seen_without_a_wait);
    tcase_add_test(tc, b52_a_value_made_before_the_work_waits_for_it);
    tcase_add_test(tc, b11_tensors_use_their_memory_again);
    tcase_add_test(tc, b53_finished_work_outlives_its_maker);
    tcase_add_test(tc, b53_unfinished_work_of_the_dead_is_an_error);
    tcase_add_test(tc, b53_memory_comes_back_from_a_dead_consumer);
    tcase_add_test(tc, a_full_card_does_not_stop_a_thread_that_receives);
    tcase_add_test(tc, a_locked_store_stops_only_those_who_share);
    tcase_add_test(tc, a_capture_receives_nothing);
    tcase_add_test(tc, a_process_without_a_card_says_so_and_loses_nothing);
    tcase_add_test(tc, a_child_of_fork_loses_nothing);
    if (!getenv("SHOAL_TEST_CARD")) {
        tcase_add_test(tc, a_failed_capture_gives_back_when_the_work_is_done);
        tcase_add_loop_test(tc, a_lost_card_holds_up_nobody, 0, 2);
        tcase_add_test(tc, a_lost_card_keeps_nothing);
        tcase_add_test(tc, a_capture_does_not_swallow_a_loss);
        tcase_add_loop_test(tc, what_the_card_of_an_ending_process_uses_stays_lent, 0, 2);
    }
    suite_add_tcase(s, tc);
    return s;
}

SH_TEST_MAIN(suite)
