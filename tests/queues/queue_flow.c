/* Blocks and messages between processes: identity, a third process, growth, exact bounds, closing under load: B2, B16,
 * B20, B21. */
#include "ipc/queue.h"
#include "sync/atomic.h"
#include "tests/harness/children.h"

#include <sched.h>
#include <signal.h>
#include <stdlib.h>

/* ---- B2: the same block is the same handle ---- */

/* Gets each block twice, checks that both are the same, and sends it back. */
static shoal_err b2_echo(int rank, const shoal_value *args)
{
    shoal_queue *in = ARG(queue, "in"), *out = ARG(queue, "out");
    shoal_block *held = NULL;
    (void)rank;
    for (;;) {
        shoal_block *a = NULL, *b = NULL;
        shoal_err err = shoal_queue_get_block(in, LIMIT, &a);
        if (err == SHOAL_ECLOSED) {
            shoal_release(held);
            return SHOAL_OK;
        }
        must_ok(err);
        must_ok(shoal_queue_get_block(in, LIMIT, &b));
        must(a == b);
        sh_a64 *count = shoal_block_data(a);
        sh_add_relaxed(count, 1);
        must(shoal_block_id(a) == sh_load_relaxed(count + 1));
        must_ok(shoal_queue_put_block(out, a, LIMIT));
        shoal_release(b);
        shoal_release(held); /* one is kept during the round: the block arrives again while it is held */
        held = a;
    }
}

START_TEST(b2_a_block_received_twice_or_back_is_the_same_handle)
{
    shoal_queue *in = make_queue(0), *out = make_queue(0);
    shoal_block *blocks[2], *back = NULL;
    shoal_process *p = start(_i, 0, b2_echo, shoal_map("in", in, "out", out));
    for (int i = 0; i < 2; i++) {
        ck_assert_ok(shoal_block_create_zeroed(4096, &blocks[i]));
        sh_store_relaxed((sh_a64 *)shoal_block_data(blocks[i]) + 1, shoal_block_id(blocks[i]));
    }
    for (int i = 0; i < 1000; i++) {
        shoal_block *b = blocks[(i / 3) % 2];
        hot_ok(shoal_queue_put_block(in, b, LIMIT));
        hot_ok(shoal_queue_put_block(in, b, LIMIT));
        hot_ok(shoal_queue_get_block(out, LIMIT, &back));
        hot(back == b);
        shoal_release(back);
    }
    for (int i = 0; i < 2; i++) { /* the child's writes are visible at once, at this address */
        ck_assert_uint_ge(sh_load_relaxed((sh_a64 *)shoal_block_data(blocks[i])), 498);
        shoal_release(blocks[i]);
    }
    shoal_queue_close(in);
    finish(p);
    shoal_release(in);
    shoal_release(out);
}
END_TEST

/* ---- B16: forwarded to a third process ---- */

#define B16_SIZE 300000u

/* Rank 0 creates the block, the others forward it. Each ends in a different way. */
static shoal_err b16_link(int rank, const shoal_value *args)
{
    shoal_block *b;
    if (rank == 0) {
        must_ok(shoal_block_create(B16_SIZE, &b));
        memset(shoal_block_data(b), 0x5a, B16_SIZE);
    } else {
        must_ok(shoal_queue_get_block(ARG(queue, "in"), LIMIT, &b));
    }
    ((char *)shoal_block_data(b))[rank] = (char)rank;
    must_ok(shoal_queue_put_block(ARG(queue, "out"), b, LIMIT));
    if (ARG_INT("killed") != 0) {
        kill(getpid(), SIGKILL);
    }
    return SHOAL_OK; /* its reference goes with the process */
}

START_TEST(b16_a_block_sent_on_outlives_the_others)
{
    enum { LINKS = 3 };
    for (int round = 0; round < 12; round++) {
        shoal_queue *q[LINKS];
        shoal_block *b = NULL;
        for (int i = 0; i < LINKS; i++) {
            q[i] = make_queue(0);
            bool killed = round % 2 == 1;
            shoal_process *p =
                start(_i, i, b16_link, shoal_map("in", q[i > 0 ? i - 1 : 0], "out", q[i], "killed", (int)killed));
            finish_as(p, killed ? SHOAL_PROCESS_KILLED : SHOAL_PROCESS_RETURNED, SIGKILL);
            ck_assert_ok(shoal_world_sweep(NULL));
            sh_assert_audit("after a link of the chain has ended");
        }
        ck_assert_ok(shoal_queue_get_block(q[LINKS - 1], LIMIT, &b));
        const char *data = shoal_block_data(b);
        ck_assert_uint_eq(shoal_block_size(b), B16_SIZE);
        for (unsigned i = 0; i < B16_SIZE; i++) {
            hot(data[i] == (i < LINKS ? (char)i : 0x5a));
        }
        shoal_release(b);
        for (int i = 0; i < LINKS; i++) {
            shoal_release(q[i]);
        }
    }
}
END_TEST

/* ---- growth ---- */

static shoal_err drain(int rank, const shoal_value *args)
{
    shoal_queue *q = ARG(queue, "queue");
    int64_t n = ARG_INT("count");
    (void)rank;
    for (int64_t i = 0; i < n; i++) {
        shoal_value *v = NULL;
        must_ok(shoal_queue_get(q, LIMIT, &v));
        must(sh_int_of(v) == i);
        shoal_value_destroy(v);
    }
    return SHOAL_OK;
}

START_TEST(b20_an_unbounded_queue_takes_a_million_and_gives_them_back)
{
    int64_t n = SH_REPEAT(1000000);
    shoal_queue *q = make_queue(0);
    for (int64_t i = 0; i < n; i++) {
        hot_ok(shoal_queue_put(q, shoal_value_int(i), SHOAL_NOW));
    }
    ck_assert_uint_eq(shoal_queue_size(q), (uint64_t)n);
    finish(start(_i, 0, drain, shoal_map("queue", q, "count", n)));
    ck_assert_uint_eq(shoal_queue_size(q), 0);
    for (int64_t i = 0; i < 1000; i++) { /* and continues to work */
        shoal_value *v = NULL;
        hot_ok(shoal_queue_put(q, shoal_value_int(i), SHOAL_NOW));
        hot_ok(shoal_queue_get(q, SHOAL_NOW, &v));
        hot(sh_int_of(v) == i);
        shoal_value_destroy(v);
    }
    shoal_release(q);
}
END_TEST

/* ---- exact bounds ---- */

enum { PUTTERS = 4 };

/* In each round: puts until the queue is full, reports how many puts succeeded, waits for the others. */
static shoal_err stuff(int rank, const shoal_value *args)
{
    shoal_queue *q = ARG(queue, "queue"), *told = ARG(queue, "told");
    shoal_barrier *barrier = ARG(barrier, "barrier");
    int64_t rounds = ARG_INT("rounds");
    uint32_t index;
    for (int64_t i = 0; i < rounds; i++) {
        int64_t n = 0;
        shoal_err err = SHOAL_OK;
        must_ok(shoal_barrier_wait(barrier, LIMIT, &index));
        for (; err == SHOAL_OK; n++) {
            err = n % 2 == 0 ? shoal_queue_put_bytes(q, &n, 8, SHOAL_NOW)
                             : shoal_queue_put_bytes(q, "a long message", 14, SHOAL_NOW);
        }
        must_err(err, SHOAL_ETIMEDOUT);
        must_ok(shoal_queue_put(told, shoal_value_int(n - 1), LIMIT));
        (void)rank;
    }
    return SHOAL_OK;
}

START_TEST(b21_a_bound_is_exact_for_four_producers)
{
    static const uint64_t bounds[] = {1, 2, 3, 5, 7, 16, 17, 33, 100, 1000};
    enum { ROUNDS = 40 };
    for (size_t n = 0; n < sizeof bounds / sizeof bounds[0]; n++) {
        shoal_queue *q = make_queue(bounds[n]), *told = make_queue(0);
        shoal_barrier *barrier;
        shoal_process *p[PUTTERS];
        uint32_t index;
        uint64_t room = bounds[n];
        ck_assert_ok(shoal_barrier_create(PUTTERS + 1, &barrier));
        for (int i = 0; i < PUTTERS; i++) {
            p[i] = start(_i, i, stuff, shoal_map("queue", q, "told", told, "barrier", barrier, "rounds", (int)ROUNDS));
        }
        for (int i = 0; i < ROUNDS; i++) {
            uint64_t got_in = 0;
            ck_assert_ok(shoal_barrier_wait(barrier, LIMIT, &index));
            for (int k = 0; k < PUTTERS; k++) {
                shoal_value *v = NULL;
                ck_assert_ok(shoal_queue_get(told, LIMIT, &v));
                got_in += (uint64_t)sh_int_of(v);
                shoal_value_destroy(v);
            }
            ck_assert_uint_eq(got_in, room);
            ck_assert_uint_eq(shoal_queue_size(q), bounds[n]);
            room = (uint64_t)i * 7 % bounds[n] + 1;
            for (uint64_t k = 0; k < room; k++) {
                shoal_value *v = NULL;
                hot_ok(shoal_queue_get(q, SHOAL_NOW, &v));
                shoal_value_destroy(v);
            }
        }
        for (int i = 0; i < PUTTERS; i++) {
            finish(p[i]);
        }
        shoal_release(barrier);
        shoal_release(told);
        shoal_release(q);
    }
}
END_TEST

/* ---- rings of the smallest size, with many users ---- */

static shoal_err crowd(int rank, const shoal_value *args)
{
    shoal_queue *q = ARG(queue, "queue");
    int64_t n = ARG_INT("count"), last[PUTTERS] = {-1, -1, -1, -1}, sum = 0;
    for (int64_t i = 0; rank < PUTTERS && i < n; i++) {
        uint64_t word = (uint64_t)rank << 32 | (uint64_t)i;
        must_ok(shoal_queue_put_bytes(q, &word, 8, LIMIT));
    }
    for (int64_t i = 0; rank >= PUTTERS && i < n; i++) {
        uint64_t word;
        size_t size;
        must_ok(shoal_queue_get_bytes(q, &word, 8, LIMIT, &size));
        must(size == 8 && word >> 32 < PUTTERS);
        must((int64_t)(uint32_t)word > last[word >> 32]);
        last[word >> 32] = (int64_t)(uint32_t)word;
        sum += (int64_t)(uint32_t)word;
    }
    must_ok(shoal_return(shoal_value_int(sum)));
    return SHOAL_OK;
}

START_TEST(b20_small_bounds_hold_a_crowd)
{
    static const uint64_t bounds[] = {1, 2, 5, 16};
    int64_t n = SH_REPEAT(5000), sum;
    for (size_t b = 0; b < sizeof bounds / sizeof bounds[0]; b++) {
        shoal_queue *q = make_queue(bounds[b]);
        shoal_process *p[2 * PUTTERS];
        sum = 0;
        for (int i = 0; i < 2 * PUTTERS; i++) {
            p[i] = start(_i, i, crowd, shoal_map("queue", q, "count", n));
        }
        while (shoal_process_join(p[0], SHOAL_NOW, NULL) == SHOAL_ETIMEDOUT) { /* one more that only looks */
            (void)shoal_queue_size(q);
            sched_yield();
        }
        for (int i = 0; i < 2 * PUTTERS; i++) {
            shoal_status status;
            ck_assert_ok(shoal_process_join(p[i], LIMIT, &status));
            ck_assert_msg(status.end == SHOAL_PROCESS_RETURNED, "bound %d: %s", (int)bounds[b], status.text);
            sum += sh_int_of(shoal_process_result(p[i]));
            finish(p[i]);
        }
        ck_assert_int_eq(sum, PUTTERS * n * (n - 1) / 2);
        ck_assert_uint_eq(shoal_queue_size(q), 0);
        shoal_release(q);
    }
}
END_TEST

/* ---- closing under load: those who get until the end receive every put that succeeded ---- */

/* For each queue that arrives: puts (even rank) or gets (odd rank) until it is closed, then reports how many. */
static shoal_err until_closed(int rank, const shoal_value *args)
{
    shoal_queue *in = ARG(queue, "in"), *out = ARG(queue, "out");
    for (;;) {
        shoal_value *message = NULL, *v = NULL;
        int64_t n = 0;
        shoal_err err = shoal_queue_get(in, LIMIT, &message);
        if (err == SHOAL_ECLOSED) {
            return SHOAL_OK;
        }
        must_ok(err);
        shoal_queue *q = shoal_value_as_queue(message);
        do {
            err = rank % 2 == 0 ? shoal_queue_put_bytes(q, &n, 8, LIMIT) : shoal_queue_get(q, LIMIT, &v);
            if (err == SHOAL_OK) {
                n++;
                shoal_value_destroy(v);
                v = NULL;
            }
        } while (err == SHOAL_OK);
        must_err(err, SHOAL_ECLOSED);
        shoal_value_destroy(message);
        must_ok(shoal_queue_put(out, shoal_value_int(rank % 2 == 0 ? n : -n), LIMIT));
    }
}

START_TEST(b21_close_under_load_loses_nothing)
{
    enum { N = 4 };
    shoal_queue *in[N], *out = make_queue(0);
    shoal_process *p[N];
    for (int i = 0; i < N; i++) {
        in[i] = make_queue(0);
        p[i] = start(_i, i, until_closed, shoal_map("in", in[i], "out", out));
    }
    for (int round = 0; round < SH_REPEAT(600); round++) {
        shoal_queue *q = make_queue(round % 10 == 0 ? 0 : 20);
        int64_t sum = 0;
        for (int i = 0; i < N; i++) {
            hot_ok(shoal_queue_put(in[i], shoal_value_of(q), LIMIT));
        }
        while (sh_queue_puts(q) < (uint64_t)(round % 50)) { /* until they are busy */
            sched_yield();
        }
        shoal_queue_close(q);
        for (int i = 0; i < N; i++) {
            shoal_value *v = NULL;
            hot_ok(shoal_queue_get(out, LIMIT, &v));
            sum += sh_int_of(v);
            shoal_value_destroy(v);
        }
        if (sum != 0 || shoal_queue_size(q) != 0) {
            ck_abort_msg("round %d: %lld puts more than gets, %llu left in the closed queue", round, (long long)sum,
                         (unsigned long long)shoal_queue_size(q));
        }
        shoal_release(q);
    }
    for (int i = 0; i < N; i++) {
        shoal_queue_close(in[i]);
        finish(p[i]);
        shoal_release(in[i]);
    }
    shoal_release(out);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("queue_flow");
    TCase *tc = children_case("flow");
    add_for_methods(tc, b2_a_block_received_twice_or_back_is_the_same_handle);
    add_for_methods(tc, b16_a_block_sent_on_outlives_the_others);
    add_for_methods(tc, b20_an_unbounded_queue_takes_a_million_and_gives_them_back);
    add_for_methods(tc, b21_a_bound_is_exact_for_four_producers);
    add_for_methods(tc, b20_small_bounds_hold_a_crowd);
    suite_add_tcase(s, tc);
    tc = children_case("close");
    add_for_methods(tc, b21_close_under_load_loses_nothing);
    suite_add_tcase(s, tc);
    return s;
}

SH_TEST_MAIN(suite)
