/* Shared by the tests of card memory between processes, below tensors: pieces that are made, sent, received and
 * checked, and work of the card that waits for a word. Over the stub driver, or on a card. */
#ifndef TESTS_CUDA_PIECES_H
#define TESTS_CUDA_PIECES_H

#include "device/cuda_share.h"
#include "tests/harness/cuda_stub/stub.h"
#include "tests/harness/talk.h"

#include <sched.h>
#include <signal.h>

#define BYTES 4096

static const sh_device *device;
static const sh_stub *stub;

static inline void open_card(void)
{
    sh_stub_use();
    device = sh_device_get(SHOAL_CUDA);
    ck_assert_msg(device != NULL, "%s", shoal_last_error_text());
    stub = sh_stub_control();
}

static inline void close_card(void)
{
    sh_cuda_order_poll();
    ck_assert(sh_cuda_memory_valid());
    (void)sh_cuda_memory_trim();
    sh_cuda_memory_numbers n;
    ck_assert_ok(sh_cuda_memory_numbers_now(&n));
    ck_assert_msg(n.used == 0, "%zu bytes are not back", n.used);
}

static inline TCase *pieces_case(void)
{
    TCase *tc = tcase_create("share");
    tcase_set_timeout(tc, SH_TEST_SECONDS);
    tcase_add_checked_fixture(tc, open_card, NULL);
    tcase_add_checked_fixture(tc, sh_leaks_begin, sh_leaks_end);
    tcase_add_checked_fixture(tc, NULL, close_card);
    return tc;
}

/* ---- pieces, in both processes ---- */

typedef struct lent {
    void *data;
    shoal_block *piece;
} lent;

static inline shoal_err make(lent *l, int fill)
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

static inline shoal_err send_piece(const lent *l, shoal_queue *q)
{
    sh_piece piece;
    must_ok(sh_piece_read(l->piece, &piece));
    must_ok(sh_cuda_mark(piece.work));
    must_ok(shoal_queue_put_block(q, l->piece, LIMIT));
    return SHOAL_OK;
}

static inline void drop(lent *l)
{
    sh_device_get(SHOAL_CUDA)->free(l->data, BYTES);
    sh_block_release(l->piece);
}

/* Receives a piece. What await says is returned. */
static inline shoal_err receive(shoal_queue *q, lent *l)
{
    sh_piece piece;
    must_ok(shoal_queue_get_block(q, LIMIT, &l->piece));
    must_ok(sh_piece_read(l->piece, &piece));
    must_ok(sh_cuda_open(&piece, &l->data));
    return sh_cuda_await(sh_load_acquire(piece.work));
}

static inline shoal_err check(const lent *l, int fill)
{
    char bytes[BYTES] = "";
    must_ok(sh_device_get(SHOAL_CUDA)->read(bytes, l->data, BYTES));
    for (int i = 0; i < BYTES; i++) {
        must(bytes[i] == (char)fill);
    }
    return SHOAL_OK;
}

/* ---- work of the card, in both processes ---- */

/* One piece is copied to another as soon as the word is 1. */
typedef struct late {
    lent from, to;
    uint64_t *word;
} late;

static inline shoal_err late_make(late *l, int fill)
{
    void *word = NULL;
    must_ok(make(&l->from, fill)); /* opens the card */
    must_ok(make(&l->to, '-'));
    must(sh_cu.cuMemAllocHost(&word, sizeof *l->word) == SH_CU_OK);
    l->word = memset(word, 0, sizeof *l->word);
    return SHOAL_OK;
}

/* Enqueues the copy. */
static inline shoal_err late_copy(const late *l)
{
    sh_cu_stream stream = sh_cuda_the_card()->stream;
    sh_cuda_touch();
    must(sh_cu.cuStreamWaitValue64(stream, (sh_cu_address)(uintptr_t)l->word, 1, SH_CU_WAIT_VALUE_GEQ) == SH_CU_OK);
    must(sh_cu.cuMemcpyDtoDAsync((sh_cu_address)(uintptr_t)l->to.data, (sh_cu_address)(uintptr_t)l->from.data, BYTES,
                                 stream) == SH_CU_OK);
    return SHOAL_OK;
}

static inline shoal_err late_begin(late *l, int fill)
{
    must_ok(late_make(l, fill));
    return late_copy(l);
}

static inline void late_go(late *l)
{
    __atomic_store_n(l->word, 1, __ATOMIC_SEQ_CST);
}

static inline void late_drop(late *l)
{
    drop(&l->from);
    drop(&l->to);
}

/* The stream must have passed the word. */
static inline void late_free_word(late *l)
{
    ck_assert_int_eq(sh_cu.cuMemFreeHost(l->word), SH_CU_OK);
}

/* ---- for the test ---- */

/* Waits until nobody else holds what this process has freed. */
static inline void until_back(void)
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

/* ---- a child ---- */

/* Receives, checks, and sends it back. */
static inline shoal_err echo(int rank, const shoal_value *args)
{
    lent l;
    for (int i = 0; i < 3; i++) {
        must_ok(receive(ARG(queue, "in"), &l));
        must_ok(check(&l, 'a' + i));
        must_ok(send_piece(&l, ARG(queue, "out")));
        sh_cuda_close(l.piece);
    }
    (void)rank;
    return SHOAL_OK;
}

#endif
