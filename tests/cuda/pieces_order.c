/* The order of work on card memory between processes (B52), and work whose owner dies (B53). Over the stub driver, or
 * on a card. */
#include "tests/cuda/pieces.h"

#include <pthread.h>

/* ---- work that is done ---- */

static shoal_err receive_early(int rank, const shoal_value *args)
{
    lent l;
    must_ok(receive(ARG(queue, "in"), &l)); /* its work is not done: the stream waits, this call does not */
    must_ok(shoal_queue_put(ARG(queue, "out"), shoal_value_int(rank), LIMIT));
    must_ok(check(&l, 'w'));
    sh_cuda_close(l.piece);
    return SHOAL_OK;
}

/* B52. What was enqueued before the put is seen by the receiver's stream, and no host waits. */
START_TEST(work_before_a_put)
{
    talk t;
    late l;
    talk_begin(&t, SHOAL_START_SPAWN, receive_early);
    ck_assert_ok(late_begin(&l, 'w'));
    ck_assert_ok(send_piece(&l.to, t.in));
    late_drop(&l);
    until_told(t.out);
    late_go(&l);
    ck_assert_ok(device->wait());
    finish(t.process);
    until_back();
    late_free_word(&l);
    talk_release(&t);
}
END_TEST

/* The timeline of a process that is not there. */
static uint32_t claim_timeline(void)
{
    uint32_t other;
    ck_assert_ok(sh_timeline_claim(&other));
    return other;
}

static sh_work issue_work(uint32_t timeline)
{
    return sh_work_make(timeline, sh_timeline_issue(timeline));
}

static void finish_work(sh_work work)
{
    sh_store_release(sh_timeline_done_word(sh_work_timeline(work)), sh_work_number(work));
}

/* A piece that two processes work on: whoever sends it names work that comes after both. */
START_TEST(work_of_two)
{
    late l;
    sh_piece piece;
    ck_assert_ok(late_make(&l, 't'));
    ck_assert_ok(sh_piece_read(l.to.piece, &piece));
    uint32_t other = claim_timeline();
    sh_work theirs = issue_work(other);
    sh_store_release(piece.work, theirs);
    ck_assert_ok(sh_cuda_mark(piece.work)); /* this process has nothing to add */
    ck_assert_uint_eq(sh_load_acquire(piece.work), theirs);
    ck_assert_ok(late_copy(&l));
    ck_assert_ok(sh_cuda_mark(piece.work));
    sh_work both = sh_load_acquire(piece.work);
    ck_assert_uint_ne(sh_work_timeline(both), other);
    late_go(&l);
    ck_assert_int_ne(sh_cu.cuStreamQuery(sh_cuda_the_card()->stream), SH_CU_OK); /* waits for the other one */
    ck_assert_int_eq(sh_work_look(both), SH_WORK_PENDING);
    finish_work(theirs);
    ck_assert_ok(device->wait());
    ck_assert_int_eq(sh_work_look(both), SH_WORK_DONE);
    ck_assert_ok(check(&l.to, 't'));
    sh_timeline_release(other);
    late_free_word(&l);
    late_drop(&l);
    until_back();
}
END_TEST

/* Who sends a tensor on does not wait for its work, and who uses two waits once. */
START_TEST(waits_are_recorded)
{
    lent l;
    sh_piece piece;
    ck_assert_ok(make(&l, 'n'));
    ck_assert_ok(sh_piece_read(l.piece, &piece));
    uint32_t other = claim_timeline();
    sh_work first = issue_work(other), second = issue_work(other);
    sh_store_release(piece.work, second);
    ck_assert_ok(device->wait());
    uint64_t calls = stub->calls(NULL);
    ck_assert_ok(sh_cuda_await(first));
    ck_assert_ok(sh_cuda_await(second));
    ck_assert_ok(sh_cuda_mark(piece.work));
    ck_assert_uint_eq(sh_load_acquire(piece.work), second);
    ck_assert_uint_eq(stub->calls(NULL), calls);
    ck_assert_ptr_nonnull(device->exec());
    ck_assert_ptr_nonnull(device->exec());
    ck_assert_uint_eq(stub->calls(NULL), calls + 1);
    ck_assert_int_ne(sh_cu.cuStreamQuery(sh_cuda_the_card()->stream), SH_CU_OK);
    finish_work(second);
    ck_assert_ok(check(&l, 'n'));
    sh_timeline_release(other);
    drop(&l);
    until_back();
}
END_TEST

/* With idle streams, a piece is lent, received and given back without a call of the driver. */
START_TEST(no_driver_call)
{
    shoal_queue *q = make_queue(0);
    lent l, again;
    uint64_t calls = 0;
    for (int i = 0; i < 10; i++) {
        if (i == 1) {
            calls = stub->calls(NULL);
        }
        l.data = device->alloc(BYTES);
        ck_assert_ok(sh_cuda_share(l.data, BYTES, &l.piece));
        ck_assert_ok(send_piece(&l, q));
        ck_assert_ok(receive(q, &again));
        drop(&l);
        sh_cuda_close(again.piece);
    }
    ck_assert_uint_eq(stub->calls(NULL), calls);
    until_back();
    shoal_queue_release(q);
}
END_TEST

/* A driver that cannot register the world's memory: a put waits on the host instead. */
START_TEST(without_words)
{
    talk t;
    stub->fail_call("cuMemHostRegister", 1, 0, SH_CU_NOT_SUPPORTED);
    setenv("SHOAL_STUB_FAIL", "cuMemHostRegister:1:801", 1);
    talk_begin(&t, SHOAL_START_SPAWN, echo);
    for (int i = 0; i < 3; i++) {
        late l;
        lent again;
        ck_assert_ok(late_make(&l, 'a' + i));
        late_go(&l);
        ck_assert_ok(late_copy(&l));
        ck_assert_ok(send_piece(&l.to, t.in));
        ck_assert_ok(receive(t.out, &again));
        ck_assert_ok(check(&again, 'a' + i));
        late_drop(&l);
        sh_cuda_close(again.piece);
        late_free_word(&l);
    }
    finish(t.process);
    until_back();
    talk_release(&t);
    unsetenv("SHOAL_STUB_FAIL");
}
END_TEST

/* ---- given back ---- */

static void *wait_on(void *unused)
{
    (void)unused;
    ck_assert_ok(device->wait());
    return NULL;
}

/* This process gives a piece back while another thread waits for the card, and then enqueues nothing more. */
START_TEST(given_back_while_a_thread_waits)
{
    shoal_queue *q = make_queue(0);
    late l;
    lent again;
    pthread_t thread;
    ck_assert_ok(late_make(&l, 'g'));
    ck_assert_ok(send_piece(&l.from, q));
    ck_assert_ok(receive(q, &again));
    ck_assert_ok(late_copy(&l));
    uint64_t calls = stub->calls("cuStreamSynchronize");
    ck_assert_int_eq(pthread_create(&thread, NULL, wait_on, NULL), 0);
    while (stub->calls("cuStreamSynchronize") == calls) {
        sched_yield();
    }
    sh_cuda_close(again.piece);
    late_go(&l);
    ck_assert_int_eq(pthread_join(thread, NULL), 0);
    late_free_word(&l);
    late_drop(&l);
    sh_cuda_order_poll(); /* what a process does that is asked for memory */
    until_back();
    shoal_queue_release(q);
}
END_TEST

/* ---- work that is lost ---- */

/* Sends a piece whose work is never done, and dies when it is told to. */
static shoal_err die_with_work(int rank, const shoal_value *args)
{
    late l;
    must_ok(late_begin(&l, 'x'));
    must_ok(send_piece(&l.to, ARG(queue, "out")));
    shoal_value *go = NULL;
    must_ok(shoal_queue_get(ARG(queue, "in"), LIMIT, &go));
    (void)rank;
    raise(SIGKILL);
    return SHOAL_OK;
}

static void let_die(talk *t)
{
    ck_assert_ok(shoal_queue_put(t->in, shoal_value_int(0), LIMIT));
}

/* The owner of the work dies before a receiver looks (0), or while the receiver's stream waits for it (1). */
START_TEST(work_lost)
{
    talk t;
    lent l;
    talk_begin(&t, SHOAL_START_SPAWN, die_with_work);
    if (_i == 1) {
        ck_assert_ok(receive(t.out, &l));
    }
    let_die(&t);
    finish_as(t.process, SHOAL_PROCESS_KILLED, SIGKILL);
    ck_assert_ok(shoal_world_sweep(NULL));
    if (_i == 0) {
        ck_assert_err(receive(t.out, &l), SHOAL_ELOST);
    } else {
        sh_piece piece;
        ck_assert_ok(sh_piece_read(l.piece, &piece));
        sh_work lost = sh_load_acquire(piece.work);
        ck_assert_ok(sh_cuda_mark(piece.work)); /* sent on before this process was told: the next one is told, too */
        ck_assert_uint_eq(sh_load_acquire(piece.work), lost);
        ck_assert_err(device->wait(), SHOAL_ELOST);
        ck_assert_ok(device->wait());           /* said once */
        ck_assert_ok(sh_cuda_mark(piece.work)); /* this process knows, and may have written the elements anew */
        ck_assert_uint_eq(sh_load_acquire(piece.work), 0);
    }
    sh_cuda_close(l.piece);
    talk_release(&t);
}
END_TEST

/* In the tests below the child dies while the stream waits for its work. */

static void begin_to_wait(talk *t, lent *l)
{
    talk_begin(t, SHOAL_START_SPAWN, die_with_work);
    ck_assert_ok(receive(t->out, l));
}

static void end_after_death(talk *t, lent *l)
{
    finish_as(t->process, SHOAL_PROCESS_KILLED, SIGKILL);
    sh_cuda_close(l->piece);
    talk_release(t);
}

/* The owner of the work dies while this process reads: the driver's copy waits for the stream, and knows nothing of
 * processes. */
START_TEST(work_lost_while_reading)
{
    talk t;
    lent l;
    char bytes[BYTES];
    begin_to_wait(&t, &l);
    let_die(&t);
    ck_assert_err(device->read(bytes, l.data, BYTES), SHOAL_ELOST);
    ck_assert_ok(device->read(bytes, l.data, BYTES)); /* said once */
    end_after_death(&t, &l);
}
END_TEST

/* The owner of the work dies while a put waits in the driver, because the stream has no room for its mark. */
START_TEST(work_lost_while_marking)
{
    talk t;
    lent l, own;
    ck_assert_ok(make(&own, 'o'));
    begin_to_wait(&t, &l);
    ck_assert_ok(sh_cuda_follow());
    if (stub) {
        stub->room(1);
    }
    let_die(&t);
    sh_piece piece;
    ck_assert_ok(sh_piece_read(own.piece, &piece));
    shoal_err err = sh_cuda_mark(piece.work); /* a card has room: the mark does not wait for the death */
    if (stub) {
        stub->room(0);
    }
    ck_assert_err(err == SHOAL_OK ? device->wait() : err, SHOAL_ELOST);
    ck_assert_ok(device->wait()); /* said once */
    ck_assert_ok(sh_cuda_mark(piece.work));
    ck_assert_uint_eq(sh_load_acquire(piece.work), 0);
    end_after_death(&t, &l);
    drop(&own);
}
END_TEST

/* This process has computed with the work of a dead one, and makes no mark before a host wait that tells nobody: a
 * graph, or memory of another library, ends. The next put tells. */
START_TEST(work_lost_before_a_wait_that_does_not_tell)
{
    talk t;
    lent l, own;
    sh_piece piece;
    ck_assert_ok(make(&own, 'o'));
    ck_assert_ok(sh_piece_read(own.piece, &piece));
    begin_to_wait(&t, &l);
    ck_assert_ok(sh_cuda_follow());
    let_die(&t);
    sh_cuda_order_finish();
    ck_assert_err(sh_cuda_mark(piece.work), SHOAL_ELOST);
    ck_assert_ok(sh_cuda_mark(piece.work)); /* said once */
    ck_assert_uint_eq(sh_load_acquire(piece.work), 0);
    end_after_death(&t, &l);
    drop(&own);
}
END_TEST

/* The owner of the work dies while another library waits for its own stream, which waits for this process's. */
START_TEST(work_lost_while_others_wait)
{
    talk t;
    lent l;
    sh_cu_stream theirs;
    ck_assert_int_eq(sh_cu.cuStreamCreate(&theirs, SH_CU_STREAM_NON_BLOCKING), SH_CU_OK);
    begin_to_wait(&t, &l);
    ck_assert_ok(shoal_cuda_precede_stream(theirs));
    ck_assert_int_eq(sh_cu.cuStreamQuery(theirs), SH_CU_NOT_READY);
    let_die(&t);
    while (sh_cu.cuStreamQuery(theirs) == SH_CU_NOT_READY) {
        (void)sh_cu.cuStreamQuery(sh_cuda_the_card()->stream); /* the stub's streams go on when they are asked */
        sched_yield();
    }
    ck_assert_err(device->wait(), SHOAL_ELOST);
    ck_assert_ok(device->wait());
    end_after_death(&t, &l);
    ck_assert_int_eq(sh_cu.cuStreamDestroy(theirs), SH_CU_OK);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("cuda_pieces_order");
    TCase *tc = pieces_case();
    tcase_add_test(tc, work_before_a_put);
    tcase_add_test(tc, work_of_two);
    tcase_add_loop_test(tc, work_lost, 0, 2);
    tcase_add_test(tc, work_lost_while_reading);
    tcase_add_test(tc, work_lost_while_marking);
    tcase_add_test(tc, work_lost_before_a_wait_that_does_not_tell);
    tcase_add_test(tc, work_lost_while_others_wait);
    if (!getenv("SHOAL_TEST_CARD")) {
        tcase_add_test(tc, no_driver_call);
        tcase_add_test(tc, waits_are_recorded);
        tcase_add_test(tc, without_words);
        tcase_add_test(tc, given_back_while_a_thread_waits);
    }
    suite_add_tcase(s, tc);
    return s;
}

SH_TEST_MAIN(suite)
