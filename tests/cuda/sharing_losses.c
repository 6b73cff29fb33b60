/* Tensors of a card between processes of which one loses its card, or ends while the card still works. Only on the stub
 * driver, which can be made to fail and to wait. */
#include "tests/cuda/card.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

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
    must_err(shoal_cuda_wait(), SHOAL_ECUDA);
    must_ok(shoal_queue_put(ARG(queue, "out"), shoal_value_int(1), LIMIT));
    must_ok(shoal_queue_get(ARG(queue, "in"), LIMIT, &go));
    shoal_value_destroy(go);
    shoal_tensor_release(done);
    shoal_tensor_release(t);
    shoal_scope_release(0);
    return SHOAL_OK;
}

/* Another process loses its card and lives on, before this one looks at its work (0), or while this one's stream waits
 * for it (1). What that card has not done will never be done. */
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
        ck_assert_err(shoal_last_error(), SHOAL_ELOST);
    } else {
        ck_assert_err(shoal_cuda_wait(), SHOAL_ELOST);
    }
    ck_assert_ok(shoal_cuda_wait());
    ck_assert_ok(shoal_queue_put(with.in, shoal_value_int(1), LIMIT));
    shoal_value_destroy(v);
    shoal_tensor_release(t);
    shoal_scope_release(0);
    talk_end(&with);
}
END_TEST

/* Puts work that will never be done, because its card fails, and waits for a message: it does not call the driver
 * again. */
static shoal_err fail_unseen(int rank, const shoal_value *args)
{
    (void)rank;
    shoal_value *go = NULL;
    shoal_tensor *t = counted(3, 4, 6);
    sh_stub_control()->block();
    must(shoal_add_scalar_(t, 1) == t);
    must_ok(shoal_queue_put_tensor(ARG(queue, "out"), t, LIMIT));
    sh_stub_control()->fail_call("cuStreamQuery", 1, 0, SH_CU_LAUNCH_FAILED);
    must_ok(shoal_queue_get(ARG(queue, "in"), LIMIT, &go));
    shoal_value_destroy(go);
    must_err(shoal_cuda_wait(), SHOAL_ECUDA);
    shoal_tensor_release(t);
    shoal_scope_release(0);
    return SHOAL_OK;
}

/* This process waits for that work in a call of Shoal's (0), or of the driver's (1). */
START_TEST(a_card_that_fails_unseen_holds_up_nobody)
{
    talk with;
    shoal_tensor *t = NULL;
    talk_begin(&with, SHOAL_START_SPAWN, fail_unseen);
    ck_assert_ok(shoal_queue_get_tensor(with.out, LIMIT, &t));
    ck_assert(shoal_add_scalar_(t, 1) == t);
    if (_i == 1) {
        ck_assert_int_eq(sh_cu.cuStreamSynchronize(sh_cuda_the_card()->stream), SH_CU_OK);
    }
    ck_assert_err(shoal_cuda_wait(), SHOAL_ELOST);
    ck_assert_ok(shoal_cuda_wait());
    ck_assert_ok(shoal_queue_put(with.in, shoal_value_int(1), LIMIT));
    shoal_tensor_release(t);
    shoal_scope_release(0);
    talk_end(&with);
}
END_TEST

/* Uses tensors and releases them, and loses its card in between, which has stopped (0) or not (1); then it waits for a
 * message. */
static shoal_err release_without_a_card(int rank, const shoal_value *args)
{
    shoal_tensor *t[3], *pinned = shoal_empty_pinned(SHOAL_F32, SHOAL_SHAPE(3, 4));
    shoal_value *go = NULL;
    for (int i = 0; i < 3; i++) {
        must_ok(shoal_queue_get_tensor(ARG(queue, "in"), LIMIT, &t[i]));
    }
    sh_stub_control()->block();
    for (int i = 0; i < 3; i++) {
        must_ok(shoal_tensor_copy_async(t[i], pinned));
    }
    shoal_tensor_release(t[0]);
    shoal_tensor_release(t[1]);
    sh_stub_control()->fail_call("cuStreamSynchronize", 1, 0, SH_CU_LAUNCH_FAILED);
    must_err(shoal_cuda_wait(), SHOAL_ECUDA);
    if (rank == 0) {
        sh_stub_control()->fail_call("cuStreamQuery", 1, 0, SH_CU_LAUNCH_FAILED);
    }
    shoal_tensor_release(t[2]);
    must_ok(shoal_queue_put(ARG(queue, "out"), shoal_value_int(1), LIMIT));
    must_ok(shoal_queue_get(ARG(queue, "in"), LIMIT, &go));
    shoal_value_destroy(go);
    _exit(0); /* the driver cannot free the pinned memory */
}

/* A lost card that has stopped (0) uses nothing any more, so what waited for it goes back to its makers. After some
 * errors it may work on (1). */
START_TEST(a_lost_card_keeps_what_it_may_use)
{
    shoal_queue *in = make_queue(0), *out = make_queue(0);
    size_t used = card_used();
    for (int i = 0; i < 3; i++) {
        shoal_tensor *t = counted(3, 4, i);
        ck_assert_ok(shoal_queue_put_tensor(in, t, LIMIT));
        shoal_tensor_release(t);
    }
    shoal_process *p = talk_start(SHOAL_START_SPAWN, _i, release_without_a_card, shoal_map("in", in, "out", out));
    until_told(out);
    size_t lent = card_used();
    ck_assert_ok(shoal_queue_put(in, shoal_value_int(1), LIMIT));
    finish_as(p, SHOAL_PROCESS_EXITED, 0);
    ck_assert_int_eq(lent > used, _i);
    ck_assert_uint_eq(card_used(), used);
    shoal_release(in);
    shoal_release(out);
}
END_TEST

static sh_a32 has_left;

/* Lets the stream go on when the driver was asked a few times what it does. Returns NULL if nobody asked before this
 * process had left its world. */
static void *unblock_when_asked(void *asked)
{
    const sh_stub *stub = sh_stub_control();
    while (stub->calls("cuStreamQuery") < *(uint64_t *)asked + 3 && sh_load_acquire(&has_left) == 0) {
        sched_yield();
    }
    bool in_time = sh_load_acquire(&has_left) == 0;
    stub->unblock();
    return in_time ? asked : NULL;
}

/* Loses its card while that uses a tensor of another process, and leaves the world. */
static shoal_err leave_without_a_card(int rank, const shoal_value *args)
{
    shoal_tensor *t = NULL, *pinned = shoal_empty_pinned(SHOAL_F32, SHOAL_SHAPE(3, 4));
    pthread_t thread;
    void *in_time = NULL;
    (void)rank;
    must_ok(shoal_queue_get_tensor(ARG(queue, "in"), LIMIT, &t));
    sh_stub_control()->block();
    must_ok(shoal_tensor_copy_async(t, pinned));
    sh_stub_control()->fail_call("cuStreamSynchronize", 1, 0, SH_CU_LAUNCH_FAILED);
    must_err(shoal_cuda_wait(), SHOAL_ECUDA);
    uint64_t asked = sh_stub_control()->calls("cuStreamQuery");
    must(pthread_create(&thread, NULL, unblock_when_asked, &asked) == 0);
    shoal_world_leave();
    sh_store_release(&has_left, 1);
    must(pthread_join(thread, &in_time) == 0);
    _exit(in_time ? 0 : 1);
}

/* Who leaves the world gives back what its lost card uses when that has stopped. */
START_TEST(a_process_leaves_when_its_lost_card_has_stopped)
{
    shoal_queue *in = make_queue(0);
    shoal_tensor *t = counted(3, 4, 1);
    ck_assert_ok(shoal_queue_put_tensor(in, t, LIMIT));
    shoal_tensor_release(t);
    finish_as(talk_start(SHOAL_START_SPAWN, 0, leave_without_a_card, shoal_map("in", in)), SHOAL_PROCESS_EXITED, 0);
    shoal_release(in);
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
    ck_assert_ok(shoal_tensor_copy_async(own, pinned));
    ck_assert_ok(shoal_capture_end(c));
    talk_begin(&with, SHOAL_START_SPAWN, lose_the_card);
    ck_assert_ok(shoal_queue_get_tensor(with.out, LIMIT, &t));
    ck_assert_ok(shoal_queue_get(with.out, LIMIT, &v));
    ck_assert(shoal_add_(own, shoal_value_as_tensor(shoal_value_find(v, "t"))) == own);
    ck_assert_ok(shoal_capture_replay(c));
    ck_assert_ok(shoal_queue_put(with.in, shoal_value_int(1), LIMIT));
    until_told(with.out);
    shoal_capture_destroy(c);
    ck_assert_err(shoal_cuda_wait(), SHOAL_ELOST);
    ck_assert_ok(shoal_cuda_wait());
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
    must_ok(shoal_tensor_copy_async(t, pinned));
    shoal_tensor_release(t);
    shoal_tensor_release(pinned); /* the stub has its bytes */
    if (rank == 0) {
        must_ok(shoal_cuda_wait());
    }
    stops_last = true;
    return SHOAL_OK;
}

/* A process ends, and its card has done all its work (0), or still uses a tensor of this process (1), which must not
 * use the bytes again until that context is gone with its process. */
START_TEST(what_the_card_of_an_ending_process_uses_stays_lent)
{
    shoal_queue *q = make_queue(0);
    siginfo_t info;
    size_t used = card_used();
    shoal_tensor *t = counted(256, 256, 0);
    ck_assert_ok(shoal_queue_put_tensor(q, t, LIMIT));
    shoal_tensor_release(t);
    shoal_process *p = talk_start(SHOAL_START_SPAWN, _i, use_and_return, shoal_map("in", q));
    ck_assert_int_eq(waitid(P_PID, (id_t)shoal_process_pid(p), &info, WSTOPPED), 0);
    size_t lent = card_used();
    ck_assert_int_eq(kill(shoal_process_pid(p), SIGCONT), 0);
    finish(p);
    ck_assert_int_eq(lent > used, _i);
    ck_assert_uint_eq(card_used(), used);
    shoal_release(q);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("cuda/sharing_losses");
    TCase *tc = card_case("losses");
    tcase_add_loop_test(tc, a_lost_card_holds_up_nobody, 0, 2);
    tcase_add_loop_test(tc, a_card_that_fails_unseen_holds_up_nobody, 0, 2);
    tcase_add_loop_test(tc, a_lost_card_keeps_what_it_may_use, 0, 2);
    tcase_add_test(tc, a_process_leaves_when_its_lost_card_has_stopped);
    tcase_add_test(tc, a_capture_does_not_swallow_a_loss);
    tcase_add_loop_test(tc, what_the_card_of_an_ending_process_uses_stays_lent, 0, 2);
    suite_add_tcase(s, tc);
    return s;
}

SH_TEST_MAIN(suite)
