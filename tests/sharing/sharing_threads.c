/* Tensors used by several threads, created by one and sent by another. Also run under ThreadSanitizer. */
#include "tests/harness/children.h"

#include "sync/atomic.h"
#include "tests/harness/talk.h"

#include <pthread.h>
#include <stdlib.h>

#define THREADS 4

/* For threads: libcheck's assertions work only in the test's own thread. */
#define must_in_thread(condition)                                                                                      \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            fprintf(stderr, "line %d: %s: %s\n", __LINE__, #condition, shoal_last_error_text());                       \
            abort();                                                                                                   \
        }                                                                                                              \
    } while (0)

typedef struct common {
    shoal_tensor *tensor;
    shoal_value *value;
    shoal_queue *queue;
    pthread_barrier_t barrier;
    int rounds;
    sh_a64 seen; /* the tensor that the first thread got */
    sh_a32 next; /* ranks */
} common;

static void run_threads(void *(*body)(void *), common *c)
{
    pthread_t threads[THREADS];
    ck_assert_int_eq(pthread_barrier_init(&c->barrier, NULL, THREADS), 0);
    for (int i = 0; i < THREADS; i++) {
        ck_assert_int_eq(pthread_create(&threads[i], NULL, body, c), 0);
    }
    for (int i = 0; i < THREADS; i++) {
        ck_assert_int_eq(pthread_join(threads[i], NULL), 0);
    }
    pthread_barrier_destroy(&c->barrier);
}

/* ---- one tensor ---- */

static void *retain_and_look(void *arg)
{
    common *c = arg;
    for (int i = 0; i < c->rounds; i++) {
        shoal_tensor *t = shoal_tensor_retain(c->tensor), *view = shoal_tensor_retain(shoal_select(t, 0, i % 3));
        must_in_thread(is_counted(t, 0) && is_counted(view, i % 3 * 4));
        shoal_scope_release(0);
        shoal_tensor_release(t);
        must_in_thread(is_counted(view, i % 3 * 4) && same_memory(view, c->tensor));
        shoal_tensor_release(view);
    }
    return NULL;
}

START_TEST(threads_retain_and_release_one_tensor)
{
    common c = {.tensor = counted(3, 4, 0), .rounds = SH_REPEAT(10000)};
    run_threads(retain_and_look, &c); /* private, then shared */
    ck_assert_ok(shoal_tensor_share(c.tensor));
    run_threads(retain_and_look, &c);
    ck_assert(is_counted(c.tensor, 0));
    shoal_tensor_release(c.tensor);
}
END_TEST

/* All threads put the same tensor at the same time, in the first round at the same moment, and get it back. */
static void *put_the_same(void *arg)
{
    common *c = arg;
    pthread_barrier_wait(&c->barrier);
    for (int i = 0; i < c->rounds; i++) {
        shoal_tensor *got;
        must_in_thread(shoal_queue_put_tensor(c->queue, c->tensor, LIMIT) == SHOAL_OK);
        must_in_thread(shoal_queue_get_tensor(c->queue, LIMIT, &got) == SHOAL_OK);
        must_in_thread(same_memory(got, c->tensor) && is_counted(got, 0));
        must_in_thread(shoal_tensor_requires_grad(got) && AT(shoal_tensor_grad(got), 1, 1) == 1);
        shoal_tensor_release(got);
    }
    return NULL;
}

START_TEST(threads_put_one_tensor_at_once)
{
    shoal_queue *q;
    ck_assert_ok(shoal_queue_create(0, &q));
    for (int n = 0; n < SH_REPEAT(200); n++) {
        common c = {.tensor = counted(3, 4, 0), .queue = q, .rounds = 5};
        ck_assert_ok(shoal_tensor_set_requires_grad(c.tensor, true));
        for (int changed = 0; changed < 2; changed++) { /* never sent before; then sent before, but changed since */
            shoal_tensor *grad = shoal_ones(SHOAL_F32, SHOAL_SHAPE(3, 4));
            ck_assert_ok(shoal_tensor_set_grad(c.tensor, grad));
            shoal_tensor_release(grad);
            ck_assert_ok(shoal_tensor_share(c.tensor));
            run_threads(put_the_same, &c);
        }
        shoal_tensor_release(c.tensor);
    }
    ck_assert_uint_eq(shoal_queue_size(q), 0);
    shoal_release(q);
}
END_TEST

/* The same storage is opened and released in all threads:
 * there is one object at any time, never one that is being freed. */
static void *come_and_go(void *arg)
{
    common *c = arg;
    for (int i = 0; i < c->rounds; i++) {
        shoal_tensor *t;
        must_in_thread(shoal_queue_get_tensor(c->queue, LIMIT, &t) == SHOAL_OK);
        must_in_thread(is_counted(t, 0) || is_counted(t, 4));
        if (i % 2 == 0) {
            must_in_thread(shoal_queue_give_tensor(c->queue, t, LIMIT) == SHOAL_OK);
            continue;
        }
        must_in_thread(shoal_queue_put_tensor(c->queue, t, LIMIT) == SHOAL_OK);
        shoal_tensor_release(t);
    }
    return NULL;
}

START_TEST(a_storage_comes_and_goes_in_all_threads)
{
    common c = {.rounds = SH_REPEAT(5000)};
    shoal_tensor *t = counted(3, 4, 0), *row = shoal_select(t, 0, 1);
    ck_assert_ok(shoal_queue_create(0, &c.queue));
    for (int i = 0; i < 3; i++) { /* two views of one storage: fewer than threads, so it is often released */
        ck_assert_ok(shoal_queue_put_tensor(c.queue, i % 2 == 0 ? t : row, LIMIT));
    }
    shoal_tensor_release(t);
    shoal_scope_release(0);
    run_threads(come_and_go, &c);
    ck_assert_uint_eq(shoal_queue_size(c.queue), 3);
    shoal_release(c.queue);
}
END_TEST

/* ---- one value ---- */

static void *read_value(void *arg)
{
    common *c = arg;
    pthread_barrier_wait(&c->barrier);
    shoal_tensor *t = shoal_value_as_tensor(shoal_value_at(c->value, 0));
    uint64_t first = 0;
    must_in_thread(is_counted(t, 7));
    must_in_thread(sh_cas_acq_rel(&c->seen, &first, (uintptr_t)t) || first == (uintptr_t)t);
    shoal_value *copy = shoal_value_copy(c->value);
    must_in_thread(shoal_value_equal(copy, c->value));
    must_in_thread(shoal_queue_put(c->queue, copy, LIMIT) == SHOAL_OK);
    return NULL;
}

START_TEST(threads_read_one_value_and_get_one_tensor)
{
    shoal_queue *q;
    ck_assert_ok(shoal_queue_create(0, &q));
    for (int n = 0; n < SH_REPEAT(300); n++) {
        shoal_tensor *t = counted(3, 4, 7);
        common c = {.value = shoal_list(t, "and words"), .queue = q};
        shoal_tensor_release(t);
        run_threads(read_value, &c);
        for (int i = 0; i < THREADS; i++) {
            until_told(q);
        }
        shoal_value_destroy(c.value);
    }
    shoal_release(q);
}
END_TEST

/* ---- to another process ---- */

/* Adds 1 to the first element and sends it back. */
static shoal_err add_one(int rank, const shoal_value *args)
{
    shoal_tensor *t;
    shoal_err err;
    (void)rank;
    while ((err = shoal_queue_get_tensor(ARG(queue, "in"), LIMIT, &t)) == SHOAL_OK) {
        ((float *)shoal_tensor_data(t))[0] += 1;
        must_ok(shoal_queue_put_tensor(ARG(queue, "out"), t, LIMIT));
        shoal_tensor_release(t);
    }
    must(err == SHOAL_ECLOSED);
    return SHOAL_OK;
}

/* Sends what the test's thread created, shares what it creates itself, and leaves what came back to others. */
static void *send_for_another(void *arg)
{
    common *c = arg;
    uint32_t rank = sh_add_relaxed(&c->next, 1);
    shoal_tensor *mine = counted(3, 4, 100.0 * rank);
    must_in_thread(shoal_queue_put_tensor(c->queue, ((shoal_tensor **)c->tensor)[rank], LIMIT) == SHOAL_OK);
    must_in_thread(shoal_queue_put_tensor(c->queue, mine, LIMIT) == SHOAL_OK);
    shoal_tensor_release(((shoal_tensor **)c->tensor)[rank]);
    shoal_tensor_release(mine);
    return NULL;
}

START_TEST(a_tensor_is_sent_by_another_thread_than_its_maker)
{
    talk t;
    talk_begin(&t, _i, add_one);
    for (int n = 0; n < 30; n++) {
        shoal_tensor *made[THREADS], *got;
        common c = {.tensor = (shoal_tensor *)(void *)made, .queue = t.in};
        double sum = 0, wanted = 2 * THREADS;
        for (int i = 0; i < THREADS; i++) {
            made[i] = counted(3, 4, 1000 + i);
            wanted += 1000 + i + 100.0 * i;
        }
        run_threads(send_for_another, &c); /* the threads that created half of them are gone afterwards */
        for (int i = 0; i < 2 * THREADS; i++) {
            hot_ok(shoal_queue_get_tensor(t.out, LIMIT, &got));
            sum += AT(got, 0, 0);
            hot(AT(got, 2, 3) == AT(got, 0, 1) + 10);
            shoal_tensor_release(got);
        }
        hot(sum == wanted);
    }
    talk_end(&t);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("sharing_threads");
    TCase *tc = children_case("threads");
    tcase_add_test(tc, threads_retain_and_release_one_tensor);
    tcase_add_test(tc, threads_put_one_tensor_at_once);
    tcase_add_test(tc, a_storage_comes_and_goes_in_all_threads);
    tcase_add_test(tc, threads_read_one_value_and_get_one_tensor);
    tcase_add_loop_test(tc, a_tensor_is_sent_by_another_thread_than_its_maker, SHOAL_START_SPAWN,
                        SHOAL_START_SPAWN + 1);
    tcase_add_loop_test(tc, a_tensor_is_sent_by_another_thread_than_its_maker, SHOAL_START_FORKSERVER,
                        SHOAL_START_FORKSERVER + 1);
#if !SH_SLOW /* ThreadSanitizer does not support fork */
    tcase_add_loop_test(tc, a_tensor_is_sent_by_another_thread_than_its_maker, SHOAL_START_FORK, SHOAL_START_FORK + 1);
#endif
    suite_add_tcase(s, tc);
    return s;
}

SH_TEST_MAIN(suite)
