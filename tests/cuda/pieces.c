/* Card memory between processes: lent, opened, given back, and after deaths. Over the stub driver, or on a card. */
#include "tests/cuda/pieces.h"

#define SEED 53u
#define LARGE ((size_t)64 << 20)

/* Looks for pieces that are gone, and unmaps them: nothing is mapped then. */
static void expect_none_mapped(void)
{
    sh_piece none = {0};
    void *at;
    ck_assert_int_ne(sh_cuda_open(&none, &at), SHOAL_OK);
    if (stub) {
        ck_assert_uint_eq(stub->held(), 0);
    }
}

/* ---- there and back ---- */

START_TEST(there_and_back)
{
    talk t;
    talk_begin(&t, SHOAL_START_SPAWN, echo);
    for (int i = 0; i < 3; i++) {
        lent l, again;
        ck_assert_ok(make(&l, 'a' + i));
        ck_assert_ok(send_piece(&l, t.in));
        drop(&l); /* it lives on in the message */
        ck_assert_ok(receive(t.out, &again));
        ck_assert_ptr_eq(again.data, l.data);
        ck_assert_ok(check(&again, 'a' + i));
        sh_cuda_close(again.piece);
    }
    finish(t.process);
    until_back();
    talk_release(&t);
}
END_TEST

static shoal_err refuse_other_card(int rank, const shoal_value *args)
{
    lent l;
    sh_piece piece;
    must_ok(shoal_queue_get_block(ARG(queue, "in"), LIMIT, &l.piece));
    must_ok(sh_piece_read(l.piece, &piece));
    must_err(sh_cuda_open(&piece, &l.data), SHOAL_EINVAL);
    must(strstr(shoal_last_error_text(), "on GPU GPU-50505050-5050-5050-5050-505050505050, but this process uses "
                                         "GPU GPU-51515151-5151-5151-5151-515151515151 (Stub 1)"));
    sh_block_release(l.piece);
    (void)rank;
    return SHOAL_OK;
}

START_TEST(another_card)
{
    talk t;
    lent l;
    setenv("SHOAL_STUB_CARDS", "2", 1);
    setenv("SHOAL_CUDA_DEVICE", "1", 1);
    talk_begin(&t, SHOAL_START_SPAWN, refuse_other_card);
    ck_assert_ok(make(&l, 'o'));
    ck_assert_ok(send_piece(&l, t.in));
    drop(&l);
    finish(t.process);
    until_back();
    talk_release(&t);
}
END_TEST

/* ---- deaths ---- */

static shoal_err make_and_die(int rank, const shoal_value *args)
{
    lent l;
    must_ok(make(&l, 'd'));
    must_ok(send_piece(&l, ARG(queue, "out")));
    (void)rank;
    raise(SIGKILL);
    return SHOAL_OK;
}

/* B53. The maker is dead before anybody maps its memory. */
START_TEST(maker_killed)
{
    talk t;
    lent l;
    talk_begin(&t, SHOAL_START_SPAWN, make_and_die);
    finish_as(t.process, SHOAL_PROCESS_KILLED, SIGKILL);
    ck_assert_ok(receive(t.out, &l));
    ck_assert_ok(check(&l, 'd'));
    sh_cuda_close(l.piece);
    expect_none_mapped();
    talk_release(&t);
}
END_TEST

static shoal_err receive_and_wait(int rank, const shoal_value *args)
{
    lent l;
    must_ok(receive(ARG(queue, "in"), &l));
    must_ok(check(&l, 'k'));
    must_ok(shoal_queue_put(ARG(queue, "out"), shoal_value_int(rank), LIMIT));
    shoal_value *never = NULL;
    must_ok(shoal_queue_get(ARG(queue, "in"), LIMIT, &never)); /* nobody sends one */
    return SHOAL_OK;
}

/* B53. A killed consumer's memory comes back. */
START_TEST(consumer_killed)
{
    talk t;
    lent l;
    talk_begin(&t, SHOAL_START_SPAWN, receive_and_wait);
    ck_assert_ok(make(&l, 'k'));
    ck_assert_ok(send_piece(&l, t.in));
    drop(&l);
    until_told(t.out);
    sh_cuda_memory_numbers n;
    (void)sh_cuda_memory_trim();
    ck_assert_ok(sh_cuda_memory_numbers_now(&n));
    ck_assert_uint_gt(n.used, 0);
    ck_assert_ok(shoal_process_kill(t.process));
    finish_as(t.process, SHOAL_PROCESS_KILLED, SIGKILL);
    until_back();
    talk_release(&t);
}
END_TEST

/* Sends card memory and gives back what it gets, until it is killed. */
static shoal_err exchange(int rank, const shoal_value *args)
{
    for (unsigned i = 0;; i++) {
        lent from, to, theirs;
        must_ok(make(&from, 'c'));
        must_ok(make(&to, '-'));
        must(sh_cu.cuMemcpyDtoDAsync((sh_cu_address)(uintptr_t)to.data, (sh_cu_address)(uintptr_t)from.data, BYTES,
                                     sh_cuda_the_card()->stream) == SH_CU_OK);
        sh_cuda_touch();
        must_ok(send_piece(&to, ARG(queue, "out")));
        drop(&from);
        drop(&to);
        must_ok(receive(ARG(queue, "in"), &theirs));
        must_ok(check(&theirs, 'p'));
        sh_cuda_close(theirs.piece);
    }
    (void)rank;
    return SHOAL_OK;
}

/* Takes what is in the queue, which a dead process may have sent. Returns how much that was. */
static int take_all(shoal_queue *q)
{
    int taken = 0;
    for (shoal_block *b; shoal_queue_get_block(q, SHOAL_NOW, &b) == SHOAL_OK; taken++) {
        sh_piece piece;
        lent l = {.piece = b};
        ck_assert_ok(sh_piece_read(b, &piece));
        ck_assert_ok(sh_cuda_open(&piece, &l.data));
        shoal_err err = sh_cuda_await(sh_load_acquire(piece.work));
        ck_assert_msg(err == SHOAL_OK || err == SHOAL_ELOST, "%s", shoal_last_error_text());
        err = device->wait();
        ck_assert_msg(err == SHOAL_OK || err == SHOAL_ELOST, "%s", shoal_last_error_text());
        sh_cuda_close(b);
    }
    return taken;
}

/* B53. Killed at a random moment, again and again: all memory comes back, and what had arrived can be read. */
START_TEST(killed_again_and_again)
{
    shoal_queue *in = make_queue(0), *out = make_queue(0);
    srand(SEED);
    for (int round = 0; round < (stub ? 20 : 5); round++) {
        shoal_process *p = start(SHOAL_START_SPAWN, 0, exchange, shoal_map("in", in, "out", out));
        lent l;
        ck_assert_ok(receive(out, &l));
        ck_assert_ok(check(&l, 'c'));
        sh_cuda_close(l.piece);
        int64_t until = clock_ns() + rand() % 3000000;
        while (clock_ns() < until) {
            ck_assert_ok(make(&l, 'p'));
            ck_assert_ok(send_piece(&l, in));
            drop(&l);
            (void)take_all(out);
        }
        ck_assert_ok(shoal_process_kill(p));
        finish_as(p, SHOAL_PROCESS_KILLED, SIGKILL);
        ck_assert_ok(shoal_world_sweep(NULL));
        (void)take_all(out);
        (void)take_all(in);
        until_back();
        sh_assert_audit("after a kill");
    }
    expect_none_mapped(); /* also what the dead had made */
    shoal_release(in);
    shoal_release(out);
}
END_TEST

/* ---- memory that others ask for ---- */

static shoal_err ask(int rank, const shoal_value *args)
{
    (void)rank;
    (void)args;
    uint64_t request = sh_granules_ask();
    must(request != 0);
    must(sh_granules_await_answers(request, LIMIT));
    return SHOAL_OK;
}

/* A process that finds the card full gets what others only keep for later, whatever they do: this one joins it. */
START_TEST(asked_for_by_others)
{
    lent l;
    ck_assert_ok(make(&l, 'n'));
    void *large = device->alloc(LARGE);
    ck_assert_ptr_nonnull(large);
    device->free(large, LARGE);
    sh_cuda_memory_numbers before, after;
    ck_assert_ok(sh_cuda_memory_numbers_now(&before));
    finish(start(SHOAL_START_SPAWN, 0, ask, NULL));
    ck_assert_ok(sh_cuda_memory_numbers_now(&after));
    ck_assert_uint_ge(before.held, after.held + LARGE);
    drop(&l);
    until_back();
}
END_TEST

/* What is given back may have to wait for the card. Meanwhile this process allocates and frees. */
START_TEST(asked_for_while_the_card_works)
{
    late l;
    ck_assert_ok(late_make(&l, 'f'));
    void *large = device->alloc(LARGE);
    ck_assert_ptr_nonnull(large);
    ck_assert_ok(late_copy(&l));
    device->free(large, LARGE);
    uint64_t waits = stub->calls("cuStreamSynchronize");
    shoal_process *p = start(SHOAL_START_SPAWN, 0, ask, NULL);
    for (int64_t deadline = clock_ns() + LIMIT; stub->calls("cuStreamSynchronize") == waits; sched_yield()) {
        ck_assert(clock_ns() < deadline);
    }
    void *small = device->alloc(BYTES);
    ck_assert_ptr_nonnull(small);
    device->free(small, BYTES);
    late_go(&l);
    finish(p);
    ck_assert_ok(check(&l.to, 'f'));
    late_drop(&l);
    until_back();
    late_free_word(&l);
}
END_TEST

/* The card has just done what used a piece of a dead process, and nothing is marked yet. One request is enough to get
 * that process's memory back. */
START_TEST(asked_for_what_the_card_has_used)
{
    talk t;
    late l;
    lent received;
    talk_begin(&t, SHOAL_START_SPAWN, make_and_die);
    finish_as(t.process, SHOAL_PROCESS_KILLED, SIGKILL);
    ck_assert_ok(late_make(&l, 'u'));
    size_t own = stub->held();
    ck_assert_ok(receive(t.out, &received));
    ck_assert_uint_gt(stub->held(), own);
    ck_assert_ok(late_copy(&l));
    sh_cuda_close(received.piece);
    sh_cuda_mark_limit = LIMIT;
    uint64_t marks = stub->calls("cuStreamWriteValue64");
    shoal_process *p = start(SHOAL_START_SPAWN, 0, ask, NULL);
    for (int64_t deadline = clock_ns() + LIMIT; stub->calls("cuStreamWriteValue64") == marks; sched_yield()) {
        ck_assert(clock_ns() < deadline);
    }
    late_go(&l);
    ck_assert_int_eq(sh_cu.cuStreamSynchronize(sh_cuda_the_card()->stream), SH_CU_OK);
    finish(p);
    ck_assert_uint_eq(stub->held(), own);
    late_drop(&l);
    until_back();
    late_free_word(&l);
    talk_release(&t);
}
END_TEST

/* ---- leaving the world ---- */

static void expect_never_again(const void *data)
{
    ck_assert(sh_cuda_memory_valid());
    for (int i = 0; i < 100; i++) {
        ck_assert_ptr_ne(device->alloc(BYTES), data);
    }
}

/* What others may hold when this process leaves the world is never used again; the rest is. */
START_TEST(leave_the_world)
{
    lent l;
    shoal_queue *q = make_queue(0);
    ck_assert_ok(make(&l, 'l'));
    ck_assert_ok(send_piece(&l, q));
    drop(&l);
    shoal_queue_release(q);
    until_back();
    void *own = device->alloc(BYTES);
    ck_assert_ptr_nonnull(own);
    ck_assert_ok(make(&l, 'l'));
    shoal_world_leave();
    sh_block_release(l.piece);
    expect_never_again(l.data);
    ck_assert_ok(device->write(own, "x", 1));
    ck_assert_ok(make(&l, 'm')); /* in a new world */
    sh_block_release(l.piece);
    ck_assert(sh_cuda_memory_valid());
}
END_TEST

/* Another library has the memory when this process leaves the world, and hands it back in the next one: what others may
 * hold since the first world stays theirs, whether it is freed in the second (0) or after it (1). */
START_TEST(shared_again_in_another_world)
{
    lent l;
    shoal_queue *q = make_queue(0);
    ck_assert_ok(make(&l, 's'));
    ck_assert_ok(send_piece(&l, q));
    shoal_world_leave();
    sh_block_release(l.piece);
    shoal_queue_release(q);
    ck_assert_ok(sh_cuda_share(l.data, BYTES, &l.piece));
    sh_block_release(l.piece);
    if (_i == 1) {
        shoal_world_leave();
    }
    device->free(l.data, BYTES);
    expect_never_again(l.data);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("cuda_pieces");
    TCase *tc = pieces_case();
    tcase_add_test(tc, there_and_back);
    tcase_add_test(tc, maker_killed);
    tcase_add_test(tc, consumer_killed);
    tcase_add_test(tc, asked_for_by_others);
    tcase_add_test(tc, killed_again_and_again);
    if (!getenv("SHOAL_TEST_CARD")) {
        tcase_add_test(tc, asked_for_while_the_card_works);
        tcase_add_test(tc, asked_for_what_the_card_has_used);
        tcase_add_test(tc, another_card);
    }
    suite_add_tcase(s, tc);
    TCase *left = tcase_create("leave");
    tcase_add_checked_fixture(left, open_card, NULL);
    tcase_add_test(left, leave_the_world);
    tcase_add_loop_test(left, shared_again_in_another_world, 0, 2);
    suite_add_tcase(s, left);
    return s;
}

SH_TEST_MAIN(suite)
