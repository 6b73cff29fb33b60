/* Threads of one process use one heap, one queue, one lock. Also run with ThreadSanitizer. */
#include "base/random.h"
#include "shm/block.h"
#include "sync/atomic.h"
#include "tests/harness/children.h"

#include <pthread.h>
#include <stdlib.h>

#define SEED 99u
#define THREADS 4

/* For threads: only the test's own thread may use libcheck's assertions. */
#define must_in_thread(condition)                                                                                      \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            fprintf(stderr, "line %d: %s: %s (seed %u)\n", __LINE__, #condition, shoal_last_error_text(), SEED);       \
            abort();                                                                                                   \
        }                                                                                                              \
    } while (0)

typedef struct given {
    void *shared;
    int rank;
} given;

static void run_threads(void *(*body)(void *), void *what)
{
    pthread_t threads[THREADS];
    given args[THREADS];
    for (int i = 0; i < THREADS; i++) {
        args[i] = (given){.shared = what, .rank = i};
        ck_assert_int_eq(pthread_create(&threads[i], NULL, body, &args[i]), 0);
    }
    for (int i = 0; i < THREADS; i++) {
        ck_assert_int_eq(pthread_join(threads[i], NULL), 0);
    }
}

/* ---- the whole heap at once ---- */

typedef struct shared {
    shoal_queue *queue, *bounded;
    shoal_block *block;
    shoal_lock *lock;
    shoal_rlock *rlock;
    shoal_condition *condition;
    shoal_semaphore *semaphore;
    shoal_barrier *barrier;
    int64_t plain, guarded, turn; /* not atomic: the locks must protect them */
    int rounds;
} shared;

static void shared_begin(shared *s, int rounds)
{
    *s = (shared){.rounds = rounds};
    ck_assert_ok(shoal_queue_create(0, &s->queue));
    ck_assert_ok(shoal_queue_create(3, &s->bounded));
    ck_assert_ok(shoal_block_create_zeroed(4096, &s->block));
    ck_assert_ok(shoal_lock_create(&s->lock));
    ck_assert_ok(shoal_rlock_create(&s->rlock));
    ck_assert_ok(shoal_condition_create(&s->condition));
    ck_assert_ok(shoal_semaphore_create(2, 2, &s->semaphore));
    ck_assert_ok(shoal_barrier_create(THREADS, &s->barrier));
}

static void shared_end(shared *s)
{
    void *const all[] = {s->queue, s->bounded, s->block, s->lock, s->rlock, s->condition, s->semaphore, s->barrier};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        sh_block_release(all[i]);
    }
}

/* Makes a block of a random size that records its size and its fill byte. */
static shoal_block *random_block(uint64_t *state)
{
    shoal_block *b;
    uint64_t size = 16 + sh_splitmix_below(state, sh_splitmix_below(state, 50) == 0 ? 200000 : 500);
    must_in_thread(shoal_block_create(size, &b) == SHOAL_OK);
    uint64_t *words = shoal_block_data(b);
    words[0] = size;
    words[1] = sh_splitmix_next(state);
    memset(words + 2, (int)(words[1] & 0xff), size - 16);
    return b;
}

static void check_block(const shoal_block *b)
{
    const uint64_t *words = shoal_block_data(b);
    must_in_thread(words[0] == shoal_block_size(b));
    for (size_t i = 16; i < words[0]; i++) {
        must_in_thread(((const unsigned char *)words)[i] == (words[1] & 0xff));
    }
}

static void *hammer(void *arg)
{
    const given *g = arg;
    shared *s = g->shared;
    uint64_t state = SEED + (uint64_t)g->rank;
    for (int i = 0; i < s->rounds; i++) {
        shoal_block *mine = random_block(&state), *other = NULL;
        must_in_thread(shoal_queue_put_block(s->queue, mine, LIMIT) == SHOAL_OK);
        if (i % 2 == 0) {
            shoal_release(mine); /* another thread may be getting it, and then has the handle */
            must_in_thread(shoal_queue_get_block(s->queue, LIMIT, &other) == SHOAL_OK);
        } else {
            must_in_thread(shoal_queue_get_block(s->queue, LIMIT, &other) == SHOAL_OK);
            check_block(mine);
            shoal_release(mine);
        }
        check_block(other);
        shoal_release(other);
        shoal_release(shoal_retain(s->block));
        if (i % 64 == g->rank) { /* calls that only read */
            shoal_world_info info;
            must_in_thread(shoal_world_info_get(&info) == SHOAL_OK);
            must_in_thread(i % 256 != g->rank || shoal_world_trim() == SHOAL_OK);
            must_in_thread(shoal_world_sweep(NULL) == SHOAL_OK);
        }
    }
    return NULL;
}

START_TEST(threads_hammer_the_heap_and_a_queue)
{
    shared s;
    shared_begin(&s, SH_REPEAT(20000));
    run_threads(hammer, &s);
    ck_assert_uint_eq(shoal_queue_size(s.queue), 0);
    shared_end(&s);
}
END_TEST

/* ---- one block used by many threads ---- */

static void *hand_round(void *arg)
{
    const given *g = arg;
    shared *s = g->shared;
    for (int i = 0; i < s->rounds; i++) {
        shoal_value *v = NULL;
        must_in_thread(shoal_queue_put(s->queue, shoal_list(g->rank, s->block, s->lock), LIMIT) == SHOAL_OK);
        must_in_thread(shoal_queue_get(s->queue, LIMIT, &v) == SHOAL_OK);
        must_in_thread(shoal_value_as_block(shoal_value_at(v, 1)) == s->block);
        must_in_thread(shoal_value_as_lock(shoal_value_at(v, 2)) == s->lock);
        shoal_value_destroy(v);
    }
    return NULL;
}

START_TEST(threads_send_and_receive_the_same_objects)
{
    shared s;
    shared_begin(&s, SH_REPEAT(20000));
    run_threads(hand_round, &s);
    sh_assert_audit("after the threads");
    shared_end(&s);
}
END_TEST

/* ---- waiting ---- */

static void *put_or_get(void *arg)
{
    const given *g = arg;
    shared *s = g->shared;
    int64_t sum = 0;
    for (int i = 0; i < s->rounds; i++) {
        shoal_value *v = NULL;
        if (g->rank % 2 == 0) {
            must_in_thread(shoal_queue_put(s->bounded, i % 2 == 0 ? shoal_value_int(i) : shoal_list(i), LIMIT) ==
                           SHOAL_OK);
            continue;
        }
        must_in_thread(shoal_queue_get(s->bounded, LIMIT, &v) == SHOAL_OK);
        sum += sh_int_of(shoal_value_type(v) == SHOAL_TYPE_LIST ? shoal_value_at(v, 0) : v);
        shoal_value_destroy(v);
        must_in_thread(shoal_queue_task_done(s->bounded) == SHOAL_OK);
    }
    must_in_thread(shoal_queue_join(s->bounded, LIMIT) == SHOAL_OK || g->rank % 2 == 1);
    sh_add_relaxed((sh_a64 *)shoal_block_data(s->block), (uint64_t)sum);
    return NULL;
}

START_TEST(b21_threads_wait_for_each_other_at_a_bounded_queue)
{
    shared s;
    shared_begin(&s, SH_REPEAT(10000));
    run_threads(put_or_get, &s);
    ck_assert_uint_eq(sh_load_relaxed((sh_a64 *)shoal_block_data(s.block)),
                      (uint64_t)s.rounds * (uint64_t)(s.rounds - 1));
    ck_assert_uint_eq(shoal_queue_size(s.bounded), 0);
    shared_end(&s);
}
END_TEST

static void *use_locks(void *arg)
{
    const given *g = arg;
    shared *s = g->shared;
    for (int i = 0; i < s->rounds; i++) {
        uint32_t index;
        must_in_thread(shoal_lock_lock(s->lock, LIMIT) == SHOAL_OK);
        s->plain++;
        must_in_thread(shoal_lock_unlock(s->lock) == SHOAL_OK);
        must_in_thread(shoal_rlock_lock(s->rlock, LIMIT) == SHOAL_OK && shoal_rlock_lock(s->rlock, LIMIT) == SHOAL_OK);
        s->guarded++;
        must_in_thread(shoal_rlock_unlock(s->rlock) == SHOAL_OK && shoal_rlock_unlock(s->rlock) == SHOAL_OK);
        must_in_thread(shoal_rlock_unlock(s->rlock) == SHOAL_EPERM);
        must_in_thread(shoal_semaphore_wait(s->semaphore, LIMIT) == SHOAL_OK);
        must_in_thread(shoal_semaphore_post(s->semaphore, 1) == SHOAL_OK);
        must_in_thread(i % 16 != 0 || shoal_barrier_wait(s->barrier, LIMIT, &index) == SHOAL_OK);
        if (i % 8 == 0) { /* one after the other */
            must_in_thread(shoal_condition_lock(s->condition, LIMIT) == SHOAL_OK);
            while (s->turn % THREADS != g->rank) {
                must_in_thread(shoal_condition_wait(s->condition, LIMIT) == SHOAL_OK);
            }
            s->turn++;
            must_in_thread(shoal_condition_notify_all(s->condition) == SHOAL_OK);
            must_in_thread(shoal_condition_unlock(s->condition) == SHOAL_OK);
        }
    }
    return NULL;
}

START_TEST(b25_threads_exclude_each_other_by_every_lock)
{
    shared s;
    shared_begin(&s, SH_REPEAT(2000) / 16 * 16);
    run_threads(use_locks, &s);
    ck_assert_int_eq(s.plain, (int64_t)THREADS * s.rounds);
    ck_assert_int_eq(s.guarded, (int64_t)THREADS * s.rounds);
    ck_assert_int_eq(s.turn, (int64_t)THREADS * s.rounds / 8);
    shared_end(&s);
}
END_TEST

/* ---- several threads make the first call at once: there is one world ---- */

static void *first_call(void *arg)
{
    const given *g = arg;
    shoal_block **blocks = g->shared;
    must_in_thread(shoal_block_create(64, &blocks[g->rank]) == SHOAL_OK);
    return NULL;
}

START_TEST(threads_that_begin_together_make_one_world)
{
    for (int i = 0; i < 30; i++) {
        shoal_block *blocks[THREADS];
        shoal_world_info info;
        run_threads(first_call, blocks);
        ck_assert_ok(shoal_world_info_get(&info));
        ck_assert_uint_eq(info.blocks_live, THREADS);
        for (int k = 0; k < THREADS; k++) {
            shoal_release(blocks[k]);
        }
        shoal_world_leave();
    }
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("threads");
    TCase *tc = children_case("threads");
    tcase_add_test(tc, threads_hammer_the_heap_and_a_queue);
    tcase_add_test(tc, threads_send_and_receive_the_same_objects);
    tcase_add_test(tc, b21_threads_wait_for_each_other_at_a_bounded_queue);
    tcase_add_test(tc, b25_threads_exclude_each_other_by_every_lock);
    tcase_add_test(tc, threads_that_begin_together_make_one_world);
    suite_add_tcase(s, tc);
    return s;
}

SH_TEST_MAIN(suite)
