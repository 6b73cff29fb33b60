/* Queues between processes, for every start method: B15, B20 to B24. */
#include "base/random.h"
#include "sync/atomic.h"
#include "tests/harness/children.h"

#include <signal.h>
#include <stdlib.h>

#define SEED 4711u

static void fill(void *bytes, size_t size, uint64_t seed)
{
    for (size_t i = 0; i < size; i++) {
        ((unsigned char *)bytes)[i] = (unsigned char)(seed + i * 7 + (i >> 8));
    }
}

static bool is_filled(const void *bytes, size_t size, uint64_t seed)
{
    for (size_t i = 0; i < size; i++) {
        if (((const unsigned char *)bytes)[i] != (unsigned char)(seed + i * 7 + (i >> 8))) {
            return false;
        }
    }
    return true;
}

/* ---- B15: the sender is gone before anybody gets the message ---- */

enum { LEAVE_RETURN, LEAVE_EXIT, LEAVE_KILLED, LEAVES };
#define B15_BYTES 100001u

static shoal_err b15_sender(int rank, const shoal_value *args)
{
    shoal_queue *q = ARG(queue, "queue");
    uint64_t seed = (uint64_t)ARG_INT("seed");
    char *bytes = malloc(B15_BYTES);
    shoal_block *b;
    must(bytes != NULL);
    fill(bytes, B15_BYTES, seed);
    must_ok(shoal_queue_put_bytes(q, bytes, B15_BYTES, LIMIT));
    must_ok(shoal_queue_put_bytes(q, bytes, 5, LIMIT));
    must_ok(shoal_block_create(B15_BYTES, &b));
    fill(shoal_block_data(b), B15_BYTES, seed + 1);
    must_ok(shoal_queue_put_block(q, b, LIMIT));
    must_ok(shoal_queue_put(q, shoal_map("seed", seed, "block", b, "in", shoal_list(1, "two", 3.5, shoal_value_null())),
                            LIMIT));
    shoal_release(b);
    free(bytes);
    if (rank == LEAVE_EXIT) {
        _exit(7);
    }
    if (rank == LEAVE_KILLED) {
        kill(getpid(), SIGKILL);
    }
    return SHOAL_OK;
}

static void b15_receive(shoal_queue *q, uint64_t seed)
{
    shoal_value *v = NULL, *inner;
    shoal_block *b = NULL;
    char *bytes = malloc(B15_BYTES);
    size_t size = 0;
    ck_assert_ok(shoal_queue_get_bytes(q, bytes, B15_BYTES, LIMIT, &size));
    ck_assert(size == B15_BYTES && is_filled(bytes, size, seed));
    ck_assert_ok(shoal_queue_get_bytes(q, bytes, B15_BYTES, LIMIT, &size));
    ck_assert(size == 5 && is_filled(bytes, size, seed));
    ck_assert_ok(shoal_queue_get_block(q, LIMIT, &b));
    ck_assert(shoal_block_size(b) == B15_BYTES && is_filled(shoal_block_data(b), B15_BYTES, seed + 1));
    ck_assert_ok(shoal_queue_get(q, LIMIT, &v));
    ck_assert_int_eq(sh_int_of(shoal_value_find(v, "seed")), (int64_t)seed);
    ck_assert_ptr_eq(shoal_value_as_block(shoal_value_find(v, "block")), b);
    inner = shoal_list(1, "two", 3.5, shoal_value_null());
    ck_assert(shoal_value_equal(shoal_value_find(v, "in"), inner));
    shoal_value_destroy(inner);
    shoal_value_destroy(v);
    ck_assert_uint_eq(shoal_queue_size(q), 0);
    shoal_release(b);
    free(bytes);
}

START_TEST(b15_sender_is_gone_before_the_message_is_got)
{
    for (uint64_t round = 0; round < 12; round++) {
        for (int how = 0; how < LEAVES; how++) {
            shoal_queue *q = make_queue(round % 2 == 0 ? 0 : 4);
            shoal_process *p = start(_i, how, b15_sender, shoal_map("queue", q, "seed", SEED + round));
            bool at_once = round % 3 == 2; /* while the sender may still exist */
            if (at_once) {
                b15_receive(q, SEED + round);
            }
            finish_as(p,
                      how == LEAVE_RETURN ? SHOAL_PROCESS_RETURNED
                      : how == LEAVE_EXIT ? SHOAL_PROCESS_EXITED
                                          : SHOAL_PROCESS_KILLED,
                      how == LEAVE_EXIT ? 7 : SIGKILL);
            if (!at_once) {
                ck_assert_ok(shoal_world_sweep(NULL));
                sh_assert_audit("with the messages of dead senders");
                b15_receive(q, SEED + round);
            }
            shoal_release(q);
        }
    }
}
END_TEST

/* ---- B20: four producers, four consumers, a million messages ---- */

enum { PRODUCERS = 4, CONSUMERS = 4 };
#define B20_EACH (SH_REPEAT(1000000) / PRODUCERS)
#define B20_BIG (64u << 20)

/* In a shared block. got has one bit per message, set by the consumer that gets it. */
typedef struct tally {
    sh_a64 empty_put, empty_got, taken;
    sh_a32 got[PRODUCERS][1000000 / PRODUCERS / 32 + 1];
} tally;

typedef struct header {
    uint32_t producer, number;
    uint64_t size;
} header;

/* Returns the size of a message by its number: mostly small, sometimes large, once 64 MiB. */
static size_t b20_size(uint32_t producer, uint32_t number, uint64_t *random)
{
    if (number == (uint32_t)B20_EACH / 2) {
        return B20_BIG >> (2 * producer);
    }
    if (number % 2000 == 999) {
        return sizeof(header) + sh_splitmix_below(random, 1u << 20);
    }
    return sizeof(header) + sh_splitmix_below(random, 600);
}

static shoal_err b20_put(shoal_queue *q, tally *t, const header *h, char *bytes)
{
    uint64_t word = (uint64_t)h->producer << 32 | h->number;
    shoal_block *b;
    switch (h->number % 8) {
    case 0: sh_add_relaxed(&t->empty_put, 1); return shoal_queue_put_bytes(q, NULL, 0, LIMIT);
    case 1:
    case 2: return shoal_queue_put_bytes(q, &word, 8, LIMIT);
    case 3: return shoal_queue_put(q, shoal_value_int((int64_t)word), LIMIT);
    case 4: return shoal_queue_put(q, shoal_list(word, "padding", h->number), LIMIT);
    case 5:
        must_ok(shoal_block_create(h->size, &b));
        memcpy(shoal_block_data(b), h, sizeof *h);
        fill((char *)shoal_block_data(b) + sizeof *h, h->size - sizeof *h, word);
        shoal_err err = shoal_queue_put_block(q, b, LIMIT);
        shoal_release(b);
        return err;
    default:
        memcpy(bytes, h, sizeof *h);
        fill(bytes + sizeof *h, h->size - sizeof *h, word);
        return shoal_queue_put_bytes(q, bytes, h->size, LIMIT);
    }
}

static shoal_err b20_producer(int rank, const shoal_value *args)
{
    shoal_queue *q = ARG(queue, "queue");
    tally *t = shoal_block_data(ARG(block, "tally"));
    uint64_t random = SEED + (uint64_t)rank;
    char *bytes = malloc(B20_BIG);
    must(bytes != NULL);
    for (uint32_t i = 0; i < (uint32_t)B20_EACH; i++) {
        header h = {.producer = (uint32_t)rank, .number = i, .size = b20_size((uint32_t)rank, i, &random)};
        must_ok(b20_put(q, t, &h, bytes));
    }
    free(bytes);
    return SHOAL_OK;
}

/* Finds out which message this is. Returns false if its bytes are not what was put. */
static bool b20_identify(const shoal_value *v, uint64_t *out_word)
{
    size_t size = 0;
    const char *bytes;
    if (shoal_value_type(v) == SHOAL_TYPE_INT || shoal_value_type(v) == SHOAL_TYPE_LIST) {
        *out_word = (uint64_t)sh_int_of(shoal_value_type(v) == SHOAL_TYPE_INT ? v : shoal_value_at(v, 0));
        return shoal_value_type(v) == SHOAL_TYPE_INT || sh_int_of(shoal_value_at(v, 2)) == (uint32_t)*out_word;
    }
    if (shoal_value_type(v) == SHOAL_TYPE_OBJECT) {
        bytes = shoal_block_data(shoal_value_as_block(v));
        size = shoal_block_size(shoal_value_as_block(v));
    } else {
        bytes = shoal_value_as_bytes(v, &size);
    }
    if (size == 8) {
        memcpy(out_word, bytes, 8);
        return true;
    }
    header h;
    if (size < sizeof h) {
        return false;
    }
    memcpy(&h, bytes, sizeof h);
    *out_word = (uint64_t)h.producer << 32 | h.number;
    return h.size == size && is_filled(bytes + sizeof h, size - sizeof h, *out_word);
}

static shoal_err b20_consumer(int rank, const shoal_value *args)
{
    shoal_queue *q = ARG(queue, "queue");
    tally *t = shoal_block_data(ARG(block, "tally"));
    int64_t last[PRODUCERS] = {-1, -1, -1, -1};
    (void)rank;
    shoal_value *v = NULL;
    shoal_err err;
    while ((err = shoal_queue_get(q, LIMIT, &v)) == SHOAL_OK) {
        size_t size = 1;
        uint64_t word = 0;
        sh_add_relaxed(&t->taken, 1);
        if (shoal_value_type(v) == SHOAL_TYPE_BYTES && (shoal_value_as_bytes(v, &size), size == 0)) {
            sh_add_relaxed(&t->empty_got, 1);
            shoal_value_destroy(v);
            continue;
        }
        must(b20_identify(v, &word));
        shoal_value_destroy(v);
        uint32_t producer = (uint32_t)(word >> 32), number = (uint32_t)word;
        must(producer < PRODUCERS && number < (uint32_t)B20_EACH);
        must(number > last[producer]); /* in order */
        last[producer] = number;
        uint32_t bit = 1u << (number % 32);
        must((sh_or_seq_cst(&t->got[producer][number / 32], bit) & bit) == 0); /* no duplicates */
    }
    must_err(err, SHOAL_ECLOSED);
    return SHOAL_OK;
}

static void b20_run(int method, uint64_t bound)
{
    shoal_block *b;
    shoal_process *p[PRODUCERS], *c[CONSUMERS];
    shoal_queue *q = make_queue(bound);
    ck_assert_ok(shoal_block_create_zeroed(sizeof(tally), &b));
    tally *t = shoal_block_data(b);
    for (int i = 0; i < CONSUMERS; i++) {
        c[i] = start(method, i, b20_consumer, shoal_map("queue", q, "tally", b));
    }
    for (int i = 0; i < PRODUCERS; i++) {
        p[i] = start(method, i, b20_producer, shoal_map("queue", q, "tally", b));
    }
    for (int i = 0; i < PRODUCERS; i++) {
        finish(p[i]);
    }
    shoal_queue_close(q);
    for (int i = 0; i < CONSUMERS; i++) {
        finish(c[i]);
    }
    for (int i = 0; i < PRODUCERS; i++) { /* none is lost */
        for (uint32_t n = 0; n < (uint32_t)B20_EACH; n++) {
            hot(((sh_load_relaxed(&t->got[i][n / 32]) >> (n % 32)) & 1) == (n % 8 != 0));
        }
    }
    ck_assert_uint_eq(sh_load_relaxed(&t->empty_got), sh_load_relaxed(&t->empty_put));
    ck_assert_uint_eq(sh_load_relaxed(&t->taken), (uint64_t)PRODUCERS * (uint64_t)B20_EACH);
    ck_assert_uint_eq(shoal_queue_size(q), 0);
    shoal_release(b);
    shoal_release(q);
}

START_TEST(b20_million_messages_bounded)
{
    b20_run(_i, 100);
}
END_TEST

START_TEST(b20_million_messages_unbounded)
{
    b20_run(_i, 0);
}
END_TEST

/* ---- B21: waiting, timeouts, closing ---- */

static shoal_err b21_putter(int rank, const shoal_value *args)
{
    shoal_err err = shoal_queue_put(ARG(queue, "queue"), shoal_value_int(rank), LIMIT);
    must_err(err, (shoal_err)ARG_INT("wanted"));
    return SHOAL_OK;
}

static shoal_err b21_getter(int rank, const shoal_value *args)
{
    shoal_value *v = NULL;
    shoal_err err = shoal_queue_get(ARG(queue, "queue"), LIMIT, &v);
    must_err(err, (shoal_err)ARG_INT("wanted"));
    must(err != SHOAL_OK || sh_int_of(v) == rank);
    shoal_value_destroy(v);
    return SHOAL_OK;
}

/* Checks that the timeout has passed: not too early, and not much too late. */
static void ck_times_out(shoal_queue *q, bool is_put)
{
    shoal_value *v = NULL;
    shoal_block *b = NULL;
    char byte;
    size_t size;
    for (int kind = 0; kind < 2; kind++) {
        int64_t begin = clock_ns();
        ck_assert_err(is_put      ? shoal_queue_put_bytes(q, "x", kind == 0 ? 1 : 2, SOON)
                      : kind == 0 ? shoal_queue_get(q, SOON, &v)
                                  : shoal_queue_get_bytes(q, &byte, 1, SOON, &size),
                      SHOAL_ETIMEDOUT);
        ck_assert_int_ge(clock_ns() - begin, SOON);
        ck_assert_int_lt(clock_ns() - begin, LIMIT / 2);
        ck_assert_err(is_put ? shoal_queue_put_bytes(q, "x", 1, SHOAL_NOW) : shoal_queue_get_block(q, SHOAL_NOW, &b),
                      SHOAL_ETIMEDOUT);
    }
    ck_assert(v == NULL && b == NULL);
}

START_TEST(b21_put_blocks_times_out_and_wakes)
{
    shoal_queue *q = make_queue(3);
    shoal_value *v = NULL;
    for (int i = 0; i < 3; i++) {
        ck_assert_ok(shoal_queue_put(q, shoal_value_int(i), SHOAL_NOW));
    }
    ck_times_out(q, true);
    ck_assert_uint_eq(shoal_queue_size(q), 3);
    for (int i = 3; i < 33; i++) {
        shoal_process *p = start(_i, i, b21_putter, shoal_map("queue", q, "wanted", SHOAL_OK));
        until_parked(p);
        ck_assert_err(shoal_process_join(p, SHOAL_NOW, NULL), SHOAL_ETIMEDOUT);
        ck_assert_ok(shoal_queue_get(q, LIMIT, &v));
        ck_assert_int_eq(sh_int_of(v), i - 3);
        shoal_value_destroy(v);
        finish(p);
        ck_assert_uint_eq(shoal_queue_size(q), 3);
    }
    shoal_release(q);
}
END_TEST

START_TEST(b21_get_blocks_times_out_and_wakes)
{
    shoal_queue *q = make_queue(_i == SHOAL_START_FORK ? 0 : 2);
    ck_times_out(q, false);
    for (int i = 0; i < 30; i++) {
        shoal_process *p = start(_i, i, b21_getter, shoal_map("queue", q, "wanted", SHOAL_OK));
        until_parked(p);
        ck_assert_err(shoal_process_join(p, SHOAL_NOW, NULL), SHOAL_ETIMEDOUT);
        ck_assert_ok(shoal_queue_put(q, shoal_value_int(i), SHOAL_NOW));
        finish(p);
    }
    shoal_release(q);
}
END_TEST

START_TEST(b21_close_wakes_all_waiters)
{
    enum { N = 4 };
    for (int round = 0; round < 8; round++) {
        shoal_queue *full = make_queue(1), *empty = make_queue(0);
        shoal_process *p[N], *g[N];
        shoal_value *v = NULL;
        ck_assert_ok(shoal_queue_put(full, shoal_value_int(77), SHOAL_NOW));
        for (int i = 0; i < N; i++) {
            p[i] = start(_i, i, b21_putter, shoal_map("queue", full, "wanted", SHOAL_ECLOSED));
            g[i] = start(_i, i, b21_getter, shoal_map("queue", empty, "wanted", SHOAL_ECLOSED));
        }
        for (int i = 0; i < N; i++) {
            until_parked(p[i]);
            until_parked(g[i]);
        }
        shoal_queue_close(full);
        shoal_queue_close(full);
        shoal_queue_close(empty);
        for (int i = 0; i < N; i++) {
            finish(p[i]);
            finish(g[i]);
        }
        ck_assert_ok(shoal_queue_get(full, SHOAL_NOW, &v)); /* its messages come out first */
        ck_assert_int_eq(sh_int_of(v), 77);
        shoal_value_destroy(v);
        ck_assert_err(shoal_queue_get(full, LIMIT, &v), SHOAL_ECLOSED);
        ck_assert_err(shoal_queue_put_bytes(full, "x", 1, LIMIT), SHOAL_ECLOSED);
        shoal_release(full);
        shoal_release(empty);
    }
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("queues");
    TCase *tc = children_case("queues");
    add_for_methods(tc, b15_sender_is_gone_before_the_message_is_got);
    add_for_methods(tc, b21_put_blocks_times_out_and_wakes);
    add_for_methods(tc, b21_get_blocks_times_out_and_wakes);
    add_for_methods(tc, b21_close_wakes_all_waiters);
    suite_add_tcase(s, tc);
    tc = children_case("million");
    add_for_methods(tc, b20_million_messages_bounded);
    add_for_methods(tc, b20_million_messages_unbounded);
    suite_add_tcase(s, tc);
    return s;
}

SH_TEST_MAIN(suite)
