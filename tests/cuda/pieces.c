/* Card memory between processes: lent, opened, given back, in order, and after deaths. Over the stub driver, or on a
 * card. */
#include "device/cuda_share.h"
#include "testing/cuda_stub/stub.h"
#include "tests/children.h"

#include <sched.h>
#include <signal.h>
#include <stdlib.h>

#define BYTES 4096
#define SEED 53u

static const sh_device *device;
static const sh_stub *stub;

static void open_card(void)
{
    sh_stub_use();
    device = sh_device_get(SHOAL_CUDA);
    ck_assert_msg(device != NULL, "%s", shoal_last_error_text());
    stub = sh_stub_control();
}

static void close_card(void)
{
    sh_cuda_order_poll();
    ck_assert(sh_cuda_memory_valid());
    (void)sh_cuda_memory_trim();
    sh_cuda_memory_numbers n;
    ck_assert_ok(sh_cuda_memory_numbers_now(&n));
    ck_assert_msg(n.used == 0, "%zu bytes are not back", n.used);
}

/* ---- what both sides do ---- */

typedef struct lent {
    void *data;
    shoal_block *piece;
} lent;

static shoal_err make(lent *l, int fill)
{
    char bytes[BYTES];
    memset(bytes, fill, sizeof bytes);
    const sh_device *d = sh_device_get(SHOAL_CUDA);
    must(d != NULL);
    l->data = d->alloc(BYTES);
    must(l->data != NULL);
    must_ok(d->write(l->data, bytes, BYTES));
    must_ok(sh_cuda_share(l->data, BYTES, &l->piece));
    return SHOAL_OK;
}

static shoal_err send(const lent *l, shoal_queue *q)
{
    sh_piece piece;
    must_ok(sh_piece_read(l->piece, &piece));
    must_ok(sh_cuda_mark(piece.work));
    must_ok(shoal_queue_put_block(q, l->piece, LIMIT));
    return SHOAL_OK;
}

static void drop(lent *l)
{
    sh_device_get(SHOAL_CUDA)->free(l->data, BYTES);
    sh_block_release(l->piece);
}

/* Receives a piece. What await says is returned. */
static shoal_err receive(shoal_queue *q, lent *l)
{
    sh_piece piece;
    must_ok(shoal_queue_get_block(q, LIMIT, &l->piece));
    must_ok(sh_piece_read(l->piece, &piece));
    must_ok(sh_cuda_open(&piece, &l->data));
    return sh_cuda_await(sh_load_acquire(piece.work));
}

static shoal_err check(const lent *l, int fill)
{
    char bytes[BYTES] = "";
    must_ok(sh_device_get(SHOAL_CUDA)->read(bytes, l->data, BYTES));
    for (int i = 0; i < BYTES; i++) {
        must(bytes[i] == (char)fill);
    }
    return SHOAL_OK;
}

/* Enqueues: wait for the word, then copy one piece to another. */
static shoal_err copy_when(uint64_t *word, const lent *to, const lent *from)
{
    sh_cu_stream stream = sh_cuda_the_card()->stream;
    sh_cuda_touch();
    must(sh_cu.cuStreamWaitValue64(stream, (sh_cu_address)(uintptr_t)word, 1, SH_CU_WAIT_VALUE_GEQ) == SH_CU_OK);
    must(sh_cu.cuMemcpyDtoDAsync((sh_cu_address)(uintptr_t)to->data, (sh_cu_address)(uintptr_t)from->data, BYTES,
                                 stream) == SH_CU_OK);
    return SHOAL_OK;
}

static uint64_t *make_word(void)
{
    void *word = NULL;
    if (sh_cu.cuMemAllocHost(&word, sizeof(uint64_t)) != SH_CU_OK) {
        return NULL;
    }
    memset(word, 0, sizeof(uint64_t));
    return word;
}

/* Waits until nobody else holds what this process has freed. */
static void until_back(void)
{
    sh_cuda_memory_numbers n;
    int64_t deadline = clock_ns() + LIMIT;
    do {
        ck_assert(clock_ns() < deadline);
        ck_assert_ok(shoal_world_sweep(NULL));
        (void)sh_cuda_memory_trim();
        ck_assert_ok(sh_cuda_memory_numbers_now(&n));
    } while (n.used > 0);
}

static shoal_value *two_queues(shoal_queue *there, shoal_queue *back)
{
    return shoal_map("there", shoal_value_queue(there), "back", shoal_value_queue(back));
}

/* ---- tests ---- */

/* Receives, checks, and sends it back. */
static shoal_err echo(int rank, const shoal_value *args)
{
    lent l;
    for (int i = 0; i < 3; i++) {
        must_ok(receive(ARG(queue, "there"), &l));
        must_ok(check(&l, 'a' + i));
        must_ok(send(&l, ARG(queue, "back")));
        sh_cuda_close(l.piece);
    }
    (void)rank;
    return SHOAL_OK;
}

START_TEST(there_and_back)
{
    shoal_queue *there, *back;
    ck_assert_ok(shoal_queue_create(0, &there));
    ck_assert_ok(shoal_queue_create(0, &back));
    shoal_process *p = start(SHOAL_START_SPAWN, 0, echo, two_queues(there, back));
    for (int i = 0; i < 3; i++) {
        lent l, again;
        ck_assert_ok(make(&l, 'a' + i));
        ck_assert_ok(send(&l, there));
        drop(&l); /* it lives on in the message */
        ck_assert_ok(receive(back, &again));
        ck_assert_ptr_eq(again.data, l.data);
        ck_assert_ok(check(&again, 'a' + i));
        sh_cuda_close(again.piece);
    }
    finish(p);
    until_back();
    shoal_queue_release(there);
    shoal_queue_release(back);
}
END_TEST

static shoal_err make_and_die(int rank, const shoal_value *args)
{
    lent l;
    must_ok(make(&l, 'd'));
    must_ok(send(&l, ARG(queue, "back")));
    (void)rank;
    raise(SIGKILL);
    return SHOAL_OK;
}

/* B53. The maker is dead before anybody maps its memory. */
START_TEST(maker_killed)
{
    shoal_queue *back;
    ck_assert_ok(shoal_queue_create(0, &back));
    shoal_process *p = start(SHOAL_START_SPAWN, 0, make_and_die, two_queues(back, back));
    finish_as(p, SHOAL_KILLED, SIGKILL);
    lent l;
    ck_assert_ok(receive(back, &l));
    ck_assert_ok(check(&l, 'd'));
    sh_cuda_close(l.piece);
    sh_piece none = {0};
    void *at;
    ck_assert_int_ne(sh_cuda_open(&none, &at), SHOAL_OK); /* notices that the granule is gone, and unmaps it */
    if (stub) {
        ck_assert_uint_eq(stub->held(), 0);
    }
    shoal_queue_release(back);
}
END_TEST

static shoal_err receive_and_wait(int rank, const shoal_value *args)
{
    lent l;
    must_ok(receive(ARG(queue, "there"), &l));
    must_ok(check(&l, 'k'));
    must_ok(shoal_queue_put(ARG(queue, "back"), shoal_value_int(rank), LIMIT));
    shoal_value *never = NULL;
    must_ok(shoal_queue_get(ARG(queue, "there"), LIMIT, &never)); /* nobody sends one */
    return SHOAL_OK;
}

/* B53. A killed consumer's memory comes back. */
START_TEST(consumer_killed)
{
    shoal_queue *there, *back;
    ck_assert_ok(shoal_queue_create(0, &there));
    ck_assert_ok(shoal_queue_create(0, &back));
    shoal_process *p = start(SHOAL_START_SPAWN, 0, receive_and_wait, two_queues(there, back));
    lent l;
    ck_assert_ok(make(&l, 'k'));
    ck_assert_ok(send(&l, there));
    drop(&l);
    until_told(back);
    sh_cuda_memory_numbers n;
    (void)sh_cuda_memory_trim();
    ck_assert_ok(sh_cuda_memory_numbers_now(&n));
    ck_assert_uint_gt(n.used, 0);
    ck_assert_ok(shoal_process_kill(p));
    finish_as(p, SHOAL_KILLED, SIGKILL);
    until_back();
    shoal_queue_release(there);
    shoal_queue_release(back);
}
END_TEST

static shoal_err receive_early(int rank, const shoal_value *args)
{
    lent l;
    must_ok(receive(ARG(queue, "there"), &l)); /* its work is not done: the stream waits, this call does not */
    must_ok(shoal_queue_put(ARG(queue, "back"), shoal_value_int(rank), LIMIT));
    must_ok(check(&l, 'w'));
    sh_cuda_close(l.piece);
    return SHOAL_OK;
}

/* B52. What was enqueued before the put is seen by the receiver's stream, and no host waits. */
START_TEST(work_before_a_put)
{
    shoal_queue *there, *back;
    ck_assert_ok(shoal_queue_create(0, &there));
    ck_assert_ok(shoal_queue_create(0, &back));
    shoal_process *p = start(SHOAL_START_SPAWN, 0, receive_early, two_queues(there, back));
    lent from, to;
    uint64_t *word = make_word();
    ck_assert_ok(make(&from, 'w'));
    ck_assert_ok(make(&to, '-'));
    ck_assert_ok(copy_when(word, &to, &from));
    ck_assert_ok(send(&to, there));
    drop(&from);
    drop(&to);
    until_told(back);
    __atomic_store_n(word, 1, __ATOMIC_SEQ_CST);
    ck_assert_ok(device->wait());
    finish(p);
    until_back();
    ck_assert_int_eq(sh_cu.cuMemFreeHost(word), SH_CU_OK);
    shoal_queue_release(there);
    shoal_queue_release(back);
}
END_TEST

/* A piece that two processes work on: whoever sends it names work that comes after both. */
START_TEST(work_of_two)
{
    lent from, to;
    sh_piece piece;
    uint64_t *word = make_word();
    uint32_t other;
    ck_assert_ok(make(&from, 't'));
    ck_assert_ok(make(&to, '-'));
    ck_assert_ok(sh_piece_read(to.piece, &piece));
    ck_assert_ok(sh_timeline_claim(&other)); /* stands for the other process */
    sh_work theirs = sh_work_make(other, sh_timeline_issue(other));
    sh_store_release(piece.work, theirs);
    ck_assert_ok(sh_cuda_mark(piece.work)); /* this process has nothing to add */
    ck_assert_uint_eq(sh_load_acquire(piece.work), theirs);
    ck_assert_ok(copy_when(word, &to, &from));
    ck_assert_ok(sh_cuda_mark(piece.work));
    sh_work both = sh_load_acquire(piece.work);
    ck_assert_uint_ne(sh_work_timeline(both), other);
    __atomic_store_n(word, 1, __ATOMIC_SEQ_CST);
    ck_assert_int_ne(sh_cu.cuStreamQuery(sh_cuda_the_card()->stream), SH_CU_OK); /* waits for the other one */
    ck_assert_int_eq(sh_work_look(both), SH_WORK_PENDING);
    sh_store_release(sh_timeline_done_word(other), sh_work_number(theirs));
    ck_assert_ok(device->wait());
    ck_assert_int_eq(sh_work_look(both), SH_WORK_DONE);
    ck_assert_ok(check(&to, 't'));
    sh_timeline_release(other);
    ck_assert_int_eq(sh_cu.cuMemFreeHost(word), SH_CU_OK);
    drop(&from);
    drop(&to);
    until_back();
}
END_TEST

static shoal_err die_with_work(int rank, const shoal_value *args)
{
    lent from, to;
    must_ok(make(&from, 'x'));
    must_ok(make(&to, '-'));
    uint64_t *word = make_word();
    must(word != NULL);
    must_ok(copy_when(word, &to, &from));
    must_ok(send(&to, ARG(queue, "back")));
    shoal_value *go = NULL;
    must_ok(shoal_queue_get(ARG(queue, "there"), LIMIT, &go));
    (void)rank;
    raise(SIGKILL);
    return SHOAL_OK;
}

/* The owner of the work dies before a receiver looks (0), or while the receiver's stream waits for it (1). */
START_TEST(work_lost)
{
    shoal_queue *there, *back;
    ck_assert_ok(shoal_queue_create(0, &there));
    ck_assert_ok(shoal_queue_create(0, &back));
    shoal_process *p = start(SHOAL_START_SPAWN, 0, die_with_work, two_queues(there, back));
    lent l;
    if (_i == 1) {
        ck_assert_ok(receive(back, &l));
    }
    ck_assert_ok(shoal_queue_put(there, shoal_value_int(0), LIMIT));
    finish_as(p, SHOAL_KILLED, SIGKILL);
    ck_assert_ok(shoal_world_sweep(NULL));
    if (_i == 0) {
        ck_assert_err(receive(back, &l), SHOAL_EOWNERDEAD);
    } else {
        sh_piece piece;
        ck_assert_ok(sh_piece_read(l.piece, &piece));
        sh_work lost = sh_load_acquire(piece.work);
        ck_assert_ok(sh_cuda_mark(piece.work)); /* sent on before this process was told: the next one is told, too */
        ck_assert_uint_eq(sh_load_acquire(piece.work), lost);
        ck_assert_err(device->wait(), SHOAL_EOWNERDEAD);
        ck_assert_ok(device->wait());           /* said once */
        ck_assert_ok(sh_cuda_mark(piece.work)); /* this process knows, and may have written the elements anew */
        ck_assert_uint_eq(sh_load_acquire(piece.work), 0);
    }
    sh_cuda_close(l.piece);
    shoal_queue_release(there);
    shoal_queue_release(back);
}
END_TEST

/* The owner of the work dies while this process reads: the driver's copy waits for the stream, and knows nothing of
 * processes. */
START_TEST(work_lost_while_reading)
{
    shoal_queue *there, *back;
    ck_assert_ok(shoal_queue_create(0, &there));
    ck_assert_ok(shoal_queue_create(0, &back));
    shoal_process *p = start(SHOAL_START_SPAWN, 0, die_with_work, two_queues(there, back));
    lent l;
    char bytes[BYTES];
    ck_assert_ok(receive(back, &l));
    ck_assert_ok(shoal_queue_put(there, shoal_value_int(0), LIMIT));
    ck_assert_err(device->read(bytes, l.data, BYTES), SHOAL_EOWNERDEAD);
    ck_assert_ok(device->read(bytes, l.data, BYTES)); /* said once */
    finish_as(p, SHOAL_KILLED, SIGKILL);
    sh_cuda_close(l.piece);
    shoal_queue_release(there);
    shoal_queue_release(back);
}
END_TEST

/* The owner of the work dies while a put waits in the driver, because the stream has no room for its mark. */
START_TEST(work_lost_while_marking)
{
    shoal_queue *there, *back;
    ck_assert_ok(shoal_queue_create(0, &there));
    ck_assert_ok(shoal_queue_create(0, &back));
    shoal_process *p = start(SHOAL_START_SPAWN, 0, die_with_work, two_queues(there, back));
    lent l, own;
    ck_assert_ok(make(&own, 'o'));
    ck_assert_ok(receive(back, &l));
    ck_assert_ok(sh_cuda_follow());
    if (stub) {
        stub->room(1);
    }
    ck_assert_ok(shoal_queue_put(there, shoal_value_int(0), LIMIT));
    ck_assert_ok(send(&own, there));
    if (stub) {
        stub->room(0);
    }
    ck_assert_err(device->wait(), SHOAL_EOWNERDEAD);
    finish_as(p, SHOAL_KILLED, SIGKILL);
    sh_cuda_close(l.piece);
    drop(&own);
    shoal_queue_release(there);
    shoal_queue_release(back);
}
END_TEST

/* The owner of the work dies while another library waits for its own stream, which waits for this process's. */
START_TEST(work_lost_while_others_wait)
{
    shoal_queue *there, *back;
    ck_assert_ok(shoal_queue_create(0, &there));
    ck_assert_ok(shoal_queue_create(0, &back));
    shoal_process *p = start(SHOAL_START_SPAWN, 0, die_with_work, two_queues(there, back));
    lent l;
    sh_cu_stream theirs;
    ck_assert_int_eq(sh_cu.cuStreamCreate(&theirs, SH_CU_STREAM_NON_BLOCKING), SH_CU_OK);
    ck_assert_ok(receive(back, &l));
    ck_assert_ok(shoal_card_precede_stream(theirs));
    ck_assert_int_eq(sh_cu.cuStreamQuery(theirs), SH_CU_NOT_READY);
    ck_assert_ok(shoal_queue_put(there, shoal_value_int(0), LIMIT));
    while (sh_cu.cuStreamQuery(theirs) == SH_CU_NOT_READY) {
        (void)sh_cu.cuStreamQuery(sh_cuda_the_card()->stream); /* the stub's streams go on when they are asked */
        sched_yield();
    }
    ck_assert_err(device->wait(), SHOAL_EOWNERDEAD);
    ck_assert_ok(device->wait());
    finish_as(p, SHOAL_KILLED, SIGKILL);
    sh_cuda_close(l.piece);
    ck_assert_int_eq(sh_cu.cuStreamDestroy(theirs), SH_CU_OK);
    shoal_queue_release(there);
    shoal_queue_release(back);
}
END_TEST

/* With idle streams, a piece is lent, received and given back without a call of the driver. */
START_TEST(no_driver_call)
{
    shoal_queue *q;
    ck_assert_ok(shoal_queue_create(0, &q));
    lent l, again;
    uint64_t calls = 0;
    for (int i = 0; i < 10; i++) {
        if (i == 1) {
            calls = stub->calls(NULL);
        }
        l.data = device->alloc(BYTES);
        ck_assert_ok(sh_cuda_share(l.data, BYTES, &l.piece));
        ck_assert_ok(send(&l, q));
        ck_assert_ok(receive(q, &again));
        drop(&l);
        sh_cuda_close(again.piece);
    }
    ck_assert_uint_eq(stub->calls(NULL), calls);
    until_back();
    shoal_queue_release(q);
}
END_TEST

/* Who sends a tensor on does not wait for its work, and who uses two waits once. */
START_TEST(waits_are_noted)
{
    lent l;
    sh_piece piece;
    uint32_t other;
    ck_assert_ok(make(&l, 'n'));
    ck_assert_ok(sh_piece_read(l.piece, &piece));
    ck_assert_ok(sh_timeline_claim(&other)); /* stands for the other process */
    sh_work first = sh_work_make(other, sh_timeline_issue(other)),
            second = sh_work_make(other, sh_timeline_issue(other));
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
    sh_store_release(sh_timeline_done_word(other), sh_work_number(second));
    ck_assert_ok(check(&l, 'n'));
    sh_timeline_release(other);
    drop(&l);
    until_back();
}
END_TEST

/* A driver that cannot register the world's memory: a put waits on the host instead. */
START_TEST(without_words)
{
    stub->fail_call("cuMemHostRegister", 1, 0, SH_CU_NOT_SUPPORTED);
    setenv("SHOAL_STUB_FAIL", "cuMemHostRegister:1:801", 1);
    shoal_queue *there, *back;
    ck_assert_ok(shoal_queue_create(0, &there));
    ck_assert_ok(shoal_queue_create(0, &back));
    shoal_process *p = start(SHOAL_START_SPAWN, 0, echo, two_queues(there, back));
    for (int i = 0; i < 3; i++) {
        lent from, l, again;
        uint64_t *word = make_word();
        *word = 1;
        ck_assert_ok(make(&from, 'a' + i));
        ck_assert_ok(make(&l, '-'));
        ck_assert_ok(copy_when(word, &l, &from));
        ck_assert_ok(send(&l, there));
        ck_assert_ok(receive(back, &again));
        ck_assert_ok(check(&again, 'a' + i));
        drop(&from);
        drop(&l);
        sh_cuda_close(again.piece);
        ck_assert_int_eq(sh_cu.cuMemFreeHost(word), SH_CU_OK);
    }
    finish(p);
    until_back();
    shoal_queue_release(there);
    shoal_queue_release(back);
    unsetenv("SHOAL_STUB_FAIL");
}
END_TEST

static shoal_err refuse_other_card(int rank, const shoal_value *args)
{
    lent l;
    sh_piece piece;
    must_ok(shoal_queue_get_block(ARG(queue, "there"), LIMIT, &l.piece));
    must_ok(sh_piece_read(l.piece, &piece));
    must_err(sh_cuda_open(&piece, &l.data), SHOAL_EINVAL);
    must(strstr(shoal_last_error_text(), "on card GPU-50505050-5050-5050-5050-505050505050, but this process uses "
                                         "card GPU-51515151-5151-5151-5151-515151515151 (Stub 1)"));
    sh_block_release(l.piece);
    (void)rank;
    return SHOAL_OK;
}

START_TEST(another_card)
{
    shoal_queue *there;
    ck_assert_ok(shoal_queue_create(0, &there));
    setenv("SHOAL_STUB_CARDS", "2", 1);
    setenv("SHOAL_CARD", "1", 1);
    shoal_process *p = start(SHOAL_START_SPAWN, 0, refuse_other_card, two_queues(there, there));
    lent l;
    ck_assert_ok(make(&l, 'o'));
    ck_assert_ok(send(&l, there));
    drop(&l);
    finish(p);
    until_back();
    shoal_queue_release(there);
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
        must_ok(send(&to, ARG(queue, "back")));
        drop(&from);
        drop(&to);
        shoal_err err = receive(ARG(queue, "there"), &theirs);
        must(err == SHOAL_OK);
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
        ck_assert_msg(err == SHOAL_OK || err == SHOAL_EOWNERDEAD, "%s", shoal_last_error_text());
        err = device->wait();
        ck_assert_msg(err == SHOAL_OK || err == SHOAL_EOWNERDEAD, "%s", shoal_last_error_text());
        sh_cuda_close(b);
    }
    return taken;
}

/* B53. Killed at a random moment, again and again: all memory comes back, and what had arrived can be read. */
START_TEST(killed_again_and_again)
{
    shoal_queue *there, *back;
    ck_assert_ok(shoal_queue_create(0, &there));
    ck_assert_ok(shoal_queue_create(0, &back));
    srand(SEED);
    for (int round = 0; round < (stub ? 20 : 5); round++) {
        shoal_process *p = start(SHOAL_START_SPAWN, 0, exchange, two_queues(there, back));
        lent l;
        ck_assert_ok(receive(back, &l));
        ck_assert_ok(check(&l, 'c'));
        sh_cuda_close(l.piece);
        int64_t until = clock_ns() + rand() % 3000000;
        while (clock_ns() < until) {
            ck_assert_ok(make(&l, 'p'));
            ck_assert_ok(send(&l, there));
            drop(&l);
            (void)take_all(back);
        }
        ck_assert_ok(shoal_process_kill(p));
        finish_as(p, SHOAL_KILLED, SIGKILL);
        ck_assert_ok(shoal_world_sweep(NULL));
        (void)take_all(back);
        (void)take_all(there);
        until_back();
        sh_assert_audit("after a kill");
    }
    sh_piece none = {0};
    void *at;
    ck_assert_int_ne(sh_cuda_open(&none, &at), SHOAL_OK); /* unmaps what the dead had made */
    if (stub) {
        ck_assert_uint_eq(stub->held(), 0);
    }
    shoal_queue_release(there);
    shoal_queue_release(back);
}
END_TEST

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
    void *large = device->alloc(64 << 20);
    ck_assert_ptr_nonnull(large);
    device->free(large, 64 << 20);
    sh_cuda_memory_numbers before, after;
    ck_assert_ok(sh_cuda_memory_numbers_now(&before));
    finish(start(SHOAL_START_SPAWN, 0, ask, NULL));
    ck_assert_ok(sh_cuda_memory_numbers_now(&after));
    ck_assert_uint_ge(before.held, after.held + (64 << 20));
    drop(&l);
    until_back();
}
END_TEST

/* What is given back may have to wait for the card. Meanwhile this process allocates and frees. */
START_TEST(asked_for_while_the_card_works)
{
    lent from, to;
    uint64_t *word = make_word();
    ck_assert_ok(make(&from, 'f'));
    ck_assert_ok(make(&to, '-'));
    void *large = device->alloc(64 << 20);
    ck_assert_ptr_nonnull(large);
    ck_assert_ok(copy_when(word, &to, &from));
    device->free(large, 64 << 20);
    uint64_t waits = stub->calls("cuStreamSynchronize");
    shoal_process *p = start(SHOAL_START_SPAWN, 0, ask, NULL);
    for (int64_t deadline = clock_ns() + LIMIT; stub->calls("cuStreamSynchronize") == waits; sched_yield()) {
        ck_assert(clock_ns() < deadline);
    }
    void *small = device->alloc(BYTES);
    ck_assert_ptr_nonnull(small);
    device->free(small, BYTES);
    __atomic_store_n(word, 1, __ATOMIC_SEQ_CST);
    finish(p);
    ck_assert_ok(check(&to, 'f'));
    drop(&from);
    drop(&to);
    until_back();
    ck_assert_int_eq(sh_cu.cuMemFreeHost(word), SH_CU_OK);
}
END_TEST

/* What others may hold when this process leaves the world is never used again; the rest is. */
START_TEST(leave_the_world)
{
    lent l;
    ck_assert_ok(make(&l, 'l'));
    shoal_queue *q;
    ck_assert_ok(shoal_queue_create(0, &q));
    ck_assert_ok(send(&l, q));
    drop(&l);
    shoal_queue_release(q);
    until_back();
    void *own = device->alloc(BYTES);
    ck_assert_ptr_nonnull(own);
    ck_assert_ok(make(&l, 'l'));
    shoal_world_leave();
    sh_block_release(l.piece);
    ck_assert(sh_cuda_memory_valid());
    for (int i = 0; i < 100; i++) {
        ck_assert_ptr_ne(device->alloc(BYTES), l.data);
    }
    ck_assert_ok(device->write(own, "x", 1));
    ck_assert_ok(make(&l, 'm')); /* in a new world */
    sh_block_release(l.piece);
    ck_assert(sh_cuda_memory_valid());
}
END_TEST

/* Another library has the memory when this process leaves the world, and hands it back in the next one: what others may hold
 * since the first world stays theirs, whether it is freed in the second (0) or after it (1). */
START_TEST(shared_again_in_another_world)
{
    lent l;
    shoal_queue *q;
    ck_assert_ok(make(&l, 's'));
    ck_assert_ok(shoal_queue_create(0, &q));
    ck_assert_ok(send(&l, q));
    shoal_world_leave();
    sh_block_release(l.piece);
    shoal_queue_release(q);
    ck_assert_ok(sh_cuda_share(l.data, BYTES, &l.piece));
    sh_block_release(l.piece);
    if (_i == 1) {
        shoal_world_leave();
    }
    device->free(l.data, BYTES);
    ck_assert(sh_cuda_memory_valid());
    for (int i = 0; i < 100; i++) {
        ck_assert_ptr_ne(device->alloc(BYTES), l.data);
    }
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("cuda_pieces");
    TCase *tc = tcase_create("share");
    tcase_set_timeout(tc, SH_TEST_SECONDS);
    tcase_add_checked_fixture(tc, open_card, NULL);
    tcase_add_checked_fixture(tc, sh_leaks_begin, sh_leaks_end);
    tcase_add_checked_fixture(tc, NULL, close_card);
    tcase_add_test(tc, there_and_back);
    tcase_add_test(tc, maker_killed);
    tcase_add_test(tc, consumer_killed);
    tcase_add_test(tc, work_before_a_put);
    tcase_add_test(tc, work_of_two);
    tcase_add_loop_test(tc, work_lost, 0, 2);
    tcase_add_test(tc, work_lost_while_reading);
    tcase_add_test(tc, work_lost_while_marking);
    tcase_add_test(tc, work_lost_while_others_wait);
    tcase_add_test(tc, asked_for_by_others);
    tcase_add_test(tc, killed_again_and_again);
    if (!getenv("SHOAL_TEST_CARD")) {
        tcase_add_test(tc, asked_for_while_the_card_works);
        tcase_add_test(tc, no_driver_call);
        tcase_add_test(tc, waits_are_noted);
        tcase_add_test(tc, without_words);
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
