/* Several processes use one small heap at once: no process gets a block that another holds, whatever is freed, sent,
 * trimmed or refused. */
#include "base/random.h"
#include "sync/atomic.h"
#include "tests/harness/children.h"

#include <signal.h>
#include <stdlib.h>

#define SEED 600613u
#define HELD 40

/* Every byte of a block depends on who filled it and when; its first words record both. */
typedef struct stamp {
    uint64_t size, salt;
} stamp;

static unsigned char byte_of(uint64_t salt, size_t i)
{
    return (unsigned char)(salt >> (i % 8 * 8));
}

static void fill(shoal_block *b, uint64_t salt)
{
    size_t size = shoal_block_size(b);
    unsigned char *data = shoal_block_data(b);
    *(stamp *)(void *)data = (stamp){.size = size, .salt = salt};
    for (size_t i = sizeof(stamp); i < size; i++) {
        data[i] = byte_of(salt, i);
    }
}

static bool is_filled(const shoal_block *b)
{
    const unsigned char *data = shoal_block_data(b);
    stamp s = *(const stamp *)(const void *)data;
    if (s.size != shoal_block_size(b)) {
        return false;
    }
    for (size_t i = sizeof(stamp); i < s.size; i++) {
        if (data[i] != byte_of(s.salt, i)) {
            return false;
        }
    }
    return true;
}

static size_t random_size(uint64_t *state)
{
    static const size_t limits[] = {64, 300, 300, 3000, 3000, 40000, 40000, 300000, 3u << 20};
    uint64_t k = sh_splitmix_below(state, 9);
    return sizeof(stamp) + sh_splitmix_below(state, k == 8 && sh_splitmix_below(state, 8) != 0 ? 300 : limits[k]);
}

typedef struct holdings {
    shoal_block *held[HELD];
    uint64_t random, refused;
} holdings;

static shoal_err drop(holdings *k, size_t i)
{
    must(k->held[i] == NULL || is_filled(k->held[i]));
    shoal_release(k->held[i]);
    k->held[i] = NULL;
    return SHOAL_OK;
}

static shoal_err step(holdings *k, shoal_queue *q, uint64_t rank)
{
    size_t i = sh_splitmix_below(&k->random, HELD);
    shoal_block *b = NULL;
    shoal_err err;
    switch (sh_splitmix_below(&k->random, 8)) {
    case 0:
    case 1:
    case 2: /* another block replaces it */
        must_ok(drop(k, i));
        err = shoal_block_create(random_size(&k->random), &b);
        if (err == SHOAL_ENOMEM) {
            k->refused++;
            for (size_t n = 0; n < HELD; n += 2) {
                must_ok(drop(k, n));
            }
            return SHOAL_OK;
        }
        must_ok(err);
        fill(b, sh_splitmix_next(&k->random) << 8 | rank);
        k->held[i] = b;
        return SHOAL_OK;
    case 3: return drop(k, i);
    case 4:
    case 5: /* one goes to the others, alone or in a message; if the queue is full or there is no memory, it stays */
        if (k->held[i] != NULL && sh_splitmix_below(&k->random, 2) == 0) {
            err = shoal_queue_put_block(q, k->held[i], SHOAL_NOW);
            must(err == SHOAL_OK || err == SHOAL_ETIMEDOUT || err == SHOAL_ENOMEM);
        } else if (k->held[i] != NULL) {
            err = shoal_queue_put(q, shoal_list("block", k->held[i]), SHOAL_NOW);
            must(err == SHOAL_OK || err == SHOAL_ETIMEDOUT || err == SHOAL_ENOMEM);
        }
        return SHOAL_OK;
    case 6: { /* one arrives from the others */
        shoal_value *v = NULL;
        err = shoal_queue_get(q, SHOAL_NOW, &v);
        must(err == SHOAL_OK || err == SHOAL_ETIMEDOUT);
        if (err == SHOAL_OK) {
            must_ok(drop(k, i));
            const shoal_value *object = shoal_value_type(v) == SHOAL_TYPE_LIST ? shoal_value_at(v, 1) : v;
            k->held[i] = shoal_retain(shoal_value_as_block(object));
            must(k->held[i] != NULL && is_filled(k->held[i]));
            shoal_value_destroy(v);
        }
        return SHOAL_OK;
    }
    default:
        if (sh_splitmix_below(&k->random, 200) == 0) {
            must_ok(shoal_world_trim());
        }
        return SHOAL_OK;
    }
}

static shoal_err work(int rank, const shoal_value *args)
{
    holdings k = {.random = SEED + (uint64_t)rank};
    shoal_queue *q = ARG(queue, "queue");
    for (int64_t i = 0; i < ARG_INT("steps"); i++) {
        must_ok(step(&k, q, (uint64_t)rank));
    }
    for (size_t i = 0; i < HELD; i++) {
        must_ok(drop(&k, i));
    }
    must_ok(shoal_return(shoal_value_int((int64_t)k.refused)));
    return SHOAL_OK;
}

static void drain(shoal_queue *q)
{
    shoal_value *v = NULL;
    while (shoal_queue_get(q, SHOAL_NOW, &v) == SHOAL_OK) {
        const shoal_value *object = shoal_value_type(v) == SHOAL_TYPE_LIST ? shoal_value_at(v, 1) : v;
        hot(is_filled(shoal_value_as_block(object)));
        shoal_value_destroy(v);
    }
}

START_TEST(b14_processes_share_a_heap_that_is_too_small)
{
    enum { N = 4 };
    shoal_queue *q;
    shoal_process *p[N];
    int64_t refused = 0;
    ck_assert_ok(shoal_world_create(&(shoal_world_options){.heap_limit = 8u << 20}));
    ck_assert_ok(shoal_queue_create(100, &q));
    for (int i = 0; i < N; i++) {
        p[i] = start(i < 3 ? SHOAL_START_SPAWN + i : _i, i, work, shoal_map("queue", q, "steps", SH_REPEAT(6000)));
    }
    for (int i = 0; i < N; i++) {
        shoal_status status;
        ck_assert_ok(shoal_process_join(p[i], LIMIT, &status));
        ck_assert_msg(status.end == SHOAL_PROCESS_RETURNED, "seed %u: %s", SEED, status.text);
        refused += sh_int_of(shoal_process_result(p[i]));
        finish(p[i]);
    }
    sh_assert_audit("after the work");
    drain(q);
    printf("%lld requests were refused\n", (long long)refused);
    ck_assert_int_gt(refused, 0);
    shoal_release(q);
}
END_TEST

/* The same in a heap that is large enough, while workers are killed and replaced. */
START_TEST(b27_processes_at_one_heap_die_at_any_moment)
{
    enum { N = 3, KILLS = 30 };
    shoal_queue *q;
    shoal_process *p[N];
    uint64_t random = SEED;
    ck_assert_ok(shoal_queue_create(100, &q));
    for (int i = 0; i < N; i++) {
        p[i] = start(_i, i, work, shoal_map("queue", q, "steps", INT64_MAX));
    }
    for (int i = 0; i < KILLS; i++) {
        int k = i % N;
        shoal_value *v = NULL;
        /* Once it has put something it is working; then wait a random time. */
        ck_assert_ok(shoal_queue_get(q, LIMIT, &v));
        shoal_value_destroy(v);
        nanosleep(&(struct timespec){.tv_nsec = (long)sh_splitmix_below(&random, 3000000)}, NULL);
        ck_assert_ok(shoal_process_kill(p[k]));
        finish_as(p[k], SHOAL_PROCESS_KILLED, SIGKILL);
        p[k] = i + N < KILLS ? start(_i, i, work, shoal_map("queue", q, "steps", INT64_MAX)) : NULL;
    }
    ck_assert_ok(shoal_world_sweep(NULL));
    sh_assert_audit("after the last death");
    drain(q);
    shoal_release(q);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("heap_stress");
    TCase *tc = children_case("stress");
    add_for_methods(tc, b14_processes_share_a_heap_that_is_too_small);
    add_for_methods(tc, b27_processes_at_one_heap_die_at_any_moment);
    suite_add_tcase(s, tc);
    return s;
}

SH_TEST_MAIN(suite)
