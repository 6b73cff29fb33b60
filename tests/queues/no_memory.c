/* If a get has no memory for its message, the message stays in the queue. The n-th allocation after arming fails, for
 * every n until the get succeeds. Linked with --wrap: the object files of the library call the functions below. */
#include "base/clock.h"
#include "ipc/queue.h"
#include "shm/kind.h"
#include "tests/harness/children.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>

void *__real_malloc(size_t size);
void *__real_calloc(size_t count, size_t size);
void *__real_realloc(void *p, size_t size);
void *__real_aligned_alloc(size_t alignment, size_t size);
void *__wrap_aligned_alloc(size_t alignment, size_t size);
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t count, size_t size);
void *__wrap_realloc(void *p, size_t size);

static int fails_at; /* 0 if not armed; 1 if the next allocation fails, and all that follow */

static bool is_refused(void)
{
    if (fails_at == 0) {
        return false;
    }
    fails_at -= fails_at > 1;
    return fails_at == 1;
}

void *__wrap_malloc(size_t size)
{
    return is_refused() ? NULL : __real_malloc(size);
}

void *__wrap_calloc(size_t count, size_t size)
{
    return is_refused() ? NULL : __real_calloc(count, size);
}

void *__wrap_realloc(void *p, size_t size)
{
    return is_refused() ? NULL : __real_realloc(p, size);
}

void *__wrap_aligned_alloc(size_t alignment, size_t size)
{
    return is_refused() ? NULL : __real_aligned_alloc(alignment, size);
}

/* Calls get with the 1st, 2nd, ... allocation failing until it succeeds. Returns how often it failed. */
typedef shoal_err (*getter)(void *from, shoal_value **out_value);

static int get_at_last(getter get, void *from, shoal_value **out_value)
{
    for (int n = 2;; n++) { /* is_refused counts down to 1 */
        fails_at = n;
        shoal_err err = get(from, out_value);
        fails_at = 0;
        if (err == SHOAL_OK) {
            return n - 2;
        }
        ck_assert_err(err, SHOAL_ENOMEM);
        ck_assert_int_lt(n, 200);
    }
}

static shoal_err get_queue(void *from, shoal_value **out_value)
{
    return shoal_queue_get(from, SHOAL_NOW, out_value);
}

static shoal_err recv_pipe(void *from, shoal_value **out_value)
{
    return shoal_pipe_recv(from, SHOAL_NOW, out_value);
}

/* Puts every kind of message, each with a number that gives its position. */
static void put_all(shoal_queue *q, shoal_block *block, shoal_lock *lock)
{
    ck_assert_ok(shoal_queue_put(q, shoal_value_int(0), SHOAL_NOW));
    ck_assert_ok(shoal_queue_put(q, shoal_value_float(1), SHOAL_NOW));
    ck_assert_ok(shoal_queue_put_bytes(q, "2", 2, SHOAL_NOW));
    ck_assert_ok(shoal_queue_put_bytes(q, "a longer message", 17, SHOAL_NOW));
    ck_assert_ok(shoal_queue_put_block(q, block, SHOAL_NOW));
    ck_assert_ok(
        shoal_queue_put(q, shoal_map("list", shoal_list(block, block, lock), "text", "five", "n", 5), SHOAL_NOW));
    ck_assert_ok(shoal_queue_put(q, shoal_value_int(6), SHOAL_NOW));
}

static void check_all(getter get, void *from, const shoal_block *block, const shoal_lock *lock)
{
    int least[] = {1, 1, 1, 1, 1, 5, 1};
    for (int i = 0; i < 7; i++) {
        shoal_value *v = NULL;
        ck_assert_int_ge(get_at_last(get, from, &v), least[i]);
        if (i == 3) {
            ck_assert_uint_eq(shoal_value_type(v), SHOAL_TYPE_BYTES);
        } else if (i == 4) {
            ck_assert_ptr_eq(shoal_value_as_block(v), block);
        } else if (i == 5) {
            const shoal_value *list = shoal_value_find(v, "list");
            ck_assert_uint_eq(shoal_value_count(list), 3);
            ck_assert_ptr_eq(shoal_value_as_block(shoal_value_at(list, 1)), block);
            ck_assert_ptr_eq(shoal_value_as_lock(shoal_value_at(list, 2)), lock);
        }
        shoal_value_destroy(v);
        sh_assert_audit("after a get without memory");
    }
}

START_TEST(a_get_without_memory_leaves_the_message)
{
    shoal_queue *q = make_queue(0);
    shoal_block *block = NULL;
    shoal_lock *lock = NULL;
    shoal_value *v = NULL;
    ck_assert_ok(shoal_block_create_zeroed(64, &block));
    ck_assert_ok(shoal_lock_create(&lock));
    put_all(q, block, lock);
    check_all(get_queue, q, block, lock);
    ck_assert_err(shoal_queue_get(q, SHOAL_NOW, &v), SHOAL_ETIMEDOUT);
    shoal_release(block);
    shoal_release(lock);
    shoal_release(q);
}
END_TEST

START_TEST(a_receive_without_memory_leaves_the_message)
{
    shoal_pipe *a = NULL, *b = NULL;
    shoal_block *block = NULL;
    shoal_value *v = NULL;
    ck_assert_ok(shoal_pipe_create(true, &a, &b));
    ck_assert_ok(shoal_block_create_zeroed(64, &block));
    ck_assert_ok(shoal_pipe_send(a, shoal_list(1, block), SHOAL_NOW));
    shoal_release(a); /* now the pipe is closed, but not empty */
    ck_assert_int_ge(get_at_last(recv_pipe, b, &v), 3);
    ck_assert_ptr_eq(shoal_value_as_block(shoal_value_at(v, 1)), block);
    shoal_value_destroy(v);
    ck_assert_err(shoal_pipe_recv(b, SHOAL_NOW, &v), SHOAL_ECLOSED);
    shoal_release(block);
    shoal_release(b);
}
END_TEST

static shoal_err get_acknowledged(void *from, shoal_value **out_value)
{
    shoal_delivery d;
    shoal_err err = shoal_queue_get_delivery(from, SHOAL_NOW, out_value, &d);
    if (err == SHOAL_OK) {
        fails_at = 0;
        ck_assert_uint_eq(d.deliveries, 1); /* the attempts that failed do not count */
        ck_assert_ok(shoal_delivery_done(&d));
    }
    return err;
}

/* Fault F2: lack of memory uses up no delivery. */
START_TEST(a_delivery_without_memory_does_not_count)
{
    shoal_queue *q = NULL;
    shoal_block *block = NULL;
    shoal_lock *lock = NULL;
    ck_assert_ok(shoal_queue_create_with(&(shoal_queue_options){.acknowledge = true, .deliveries = 1}, &q));
    ck_assert_ok(shoal_block_create_zeroed(64, &block));
    ck_assert_ok(shoal_lock_create(&lock));
    put_all(q, block, lock);
    check_all(get_acknowledged, q, block, lock);
    ck_assert_uint_eq(shoal_queue_dropped(q), 0);
    ck_assert_ok(shoal_queue_join(q, SHOAL_NOW));
    shoal_release(block);
    shoal_release(lock);
    shoal_release(q);
}
END_TEST

/* Tries to get one message without memory for it. */
static void fail_to_get(shoal_queue *q)
{
    shoal_value *v = NULL;
    fails_at = 2;
    shoal_err err = shoal_queue_get(q, SHOAL_NOW, &v);
    fails_at = 0;
    ck_assert_err(err, SHOAL_ENOMEM);
}

/* For this process it counts as a message in the queue, has the right type, and other gets find it. */
START_TEST(a_pending_message_is_the_oldest)
{
    shoal_queue *q = make_queue(0);
    uint64_t word = 7;
    size_t size = 0;
    shoal_block *block = NULL;
    ck_assert_ok(shoal_queue_put_bytes(q, &word, 8, SHOAL_NOW));
    ck_assert_ok(shoal_queue_put(q, shoal_value_int(2), SHOAL_NOW));
    fail_to_get(q);
    ck_assert_uint_eq(shoal_queue_size(q), 2);
    ck_assert_err(shoal_queue_get_block(q, SHOAL_NOW, &block), SHOAL_ETYPE);
    ck_assert_err(shoal_queue_get_bytes(q, &word, 4, SHOAL_NOW, &size), SHOAL_EINVAL);
    ck_assert_uint_eq(size, 8);
    word = 0;
    ck_assert_ok(shoal_queue_get_bytes(q, &word, 8, SHOAL_NOW, &size));
    ck_assert_uint_eq(word, 7);
    until_told(q);
    ck_assert_uint_eq(shoal_queue_size(q), 0);
    shoal_release(q);
}
END_TEST

static shoal_err see_nothing(int rank, const shoal_value *args)
{
    shoal_value *v = NULL;
    (void)rank;
    must_err(shoal_queue_get(ARG(queue, "queue"), SHOAL_NOW, &v), SHOAL_ETIMEDOUT);
    return SHOAL_OK;
}

/* Only this process has it, not its child, which has a copy of the handle.
 * Releasing the handle releases it; nothing leaks. */
START_TEST(a_pending_message_belongs_to_its_process)
{
    shoal_queue *q = make_queue(0);
    shoal_block *block = NULL;
    ck_assert_ok(shoal_block_create_zeroed(64, &block));
    ck_assert_ok(shoal_queue_put_block(q, block, SHOAL_NOW));
    fail_to_get(q);
    finish(start(SHOAL_START_FORK, 0, see_nothing, shoal_map("queue", q)));
    sh_assert_audit("after the child");
    ck_assert_uint_eq(shoal_queue_size(q), 1);
    shoal_release(q);
    shoal_release(block);
}
END_TEST

/* Runs in a separate process: one that knows the tensor already needs no memory to receive it. */
static shoal_err get_tensor_at_last(int rank, const shoal_value *args)
{
    shoal_tensor *got = NULL;
    int failures = 0;
    (void)rank;
    for (int n = 2; got == NULL; n++) {
        fails_at = n;
        shoal_err err = shoal_queue_get_tensor(ARG(queue, "queue"), SHOAL_NOW, &got);
        fails_at = 0;
        failures += err == SHOAL_ENOMEM;
        must(err == SHOAL_OK || err == SHOAL_ENOMEM);
    }
    must(failures > 1);
    shoal_tensor_release(got);
    return SHOAL_OK;
}

START_TEST(a_tensor_without_memory_stays)
{
    shoal_queue *q = make_queue(0);
    shoal_tensor *t = shoal_zeros(SHOAL_F32, SHOAL_SHAPE(4));
    ck_assert_ok(shoal_queue_put_tensor(q, t, SHOAL_NOW));
    finish(start(SHOAL_START_SPAWN, 0, get_tensor_at_last, shoal_map("queue", q)));
    shoal_tensor_release(t);
    shoal_release(q);
}
END_TEST

static shoal_err wait_at(int rank, const shoal_value *args)
{
    (void)rank;
    shoal_condition *c = ARG(condition, "condition");
    must_ok(shoal_condition_lock(c, LIMIT));
    must_ok(shoal_queue_put(ARG(queue, "here"), shoal_value_int(1), LIMIT));
    must_ok(shoal_condition_wait(c, LIMIT));
    must_ok(shoal_condition_unlock(c));
    return SHOAL_OK;
}

static shoal_process *start_waiter(shoal_condition *c, shoal_queue *here)
{
    shoal_process *p = start(SHOAL_START_SPAWN, 0, wait_at, shoal_map("condition", c, "here", here));
    until_told(here);
    ck_assert_ok(shoal_condition_lock(c, LIMIT)); /* when it waits */
    return p;
}

/* While the other thread waits, and has no memory: waits until it has passed a notice on. */
static void *see_the_lock_free(void *arg)
{
    shoal_block *c = arg;
    sh_found f = {0};
    int64_t deadline = sh_deadline(LIMIT);
    while (shoal_queue_size((shoal_queue *)c->parts[1]) < 2 && !sh_passed(deadline)) {
        sched_yield();
    }
    fails_at = 1;
    while (!(sh_queue_peek_block((shoal_queue *)c->parts[1], &f) &&
             sh_load_acquire(&((sh_waiter_shm *)f.data)->state) == SH_WAITER_NOTIFIED) &&
           !sh_passed(deadline)) {
        sched_yield();
    }
    shoal_err err = shoal_condition_lock((shoal_condition *)c, SHOAL_SECONDS(5));
    fails_at = 0;
    if (err == SHOAL_OK) {
        err = shoal_condition_notify_all((shoal_condition *)c);
    }
    return err == SHOAL_OK && shoal_condition_unlock((shoal_condition *)c) == SHOAL_OK ? arg : NULL;
}

/* A waiter was notified and killed. Another waiter passes the notice on to a third one, which stands before it in the
 * queue, and has no memory to take that out. It does not keep the condition's lock. */
START_TEST(a_notice_passed_on_without_memory_leaves_the_lock_free)
{
    shoal_queue *here = make_queue(0);
    shoal_condition *c;
    pthread_t thread;
    void *free;
    ck_assert_ok(shoal_condition_create(&c));
    shoal_process *killed = start_waiter(c, here);
    ck_assert_ok(shoal_condition_unlock(c));
    shoal_process *stopped = start_waiter(c, here);
    ck_assert_ok(shoal_process_signal(stopped, SIGSTOP));
    ck_assert_ok(shoal_condition_notify(c, 1));
    ck_assert_ok(shoal_process_kill(killed));
    finish_as(killed, SHOAL_PROCESS_KILLED, SIGKILL);
    ck_assert_int_eq(pthread_create(&thread, NULL, see_the_lock_free, c), 0);
    ck_assert_ok(shoal_condition_wait(c, LIMIT));
    ck_assert_ok(shoal_condition_unlock(c));
    ck_assert_int_eq(pthread_join(thread, &free), 0);
    ck_assert_ptr_nonnull(free);
    ck_assert_ok(shoal_process_signal(stopped, SIGCONT));
    finish(stopped);
    shoal_release(c);
    shoal_release(here);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("no_memory");
    TCase *tc = children_case("get");
    tcase_add_test(tc, a_get_without_memory_leaves_the_message);
    tcase_add_test(tc, a_receive_without_memory_leaves_the_message);
    tcase_add_test(tc, a_delivery_without_memory_does_not_count);
    tcase_add_test(tc, a_pending_message_is_the_oldest);
    tcase_add_test(tc, a_pending_message_belongs_to_its_process);
    tcase_add_test(tc, a_tensor_without_memory_stays);
    tcase_add_test(tc, a_notice_passed_on_without_memory_leaves_the_lock_free);
    suite_add_tcase(s, tc);
    return s;
}

SH_TEST_MAIN(suite)
