/* Acknowledged queues: a message that was received belongs to the queue until its receiver is done with it. */
#include "shm/deliveries.h"
#include "shm/block.h"
#include "tests/harness/children.h"

#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>

static shoal_queue *make(const shoal_queue_options *options)
{
    shoal_queue *q = NULL;
    ck_assert_ok(shoal_queue_create_with(options, &q));
    return q;
}

static shoal_queue *make_acknowledged(void)
{
    return make(&(shoal_queue_options){.acknowledge = true});
}

static void put(shoal_queue *q, int64_t n)
{
    ck_assert_ok(shoal_queue_put(q, shoal_value_int(n), SHOAL_NOW));
}

/* Gets message n, which must have been delivered that many times. */
static shoal_delivery get(shoal_queue *q, int64_t n, uint32_t deliveries, int64_t timeout)
{
    shoal_value *v = NULL;
    shoal_delivery d;
    ck_assert_ok(shoal_queue_get_delivery(q, timeout, &v, &d));
    ck_assert_int_eq(sh_int_of(v), n);
    ck_assert_uint_eq(d.deliveries, deliveries);
    shoal_value_destroy(v);
    return d;
}

static shoal_err try_get(shoal_queue *q, int64_t timeout)
{
    shoal_value *v = NULL;
    shoal_delivery d;
    return shoal_queue_get_delivery(q, timeout, &v, &d);
}

START_TEST(a_message_is_the_queue_s_until_it_is_done)
{
    shoal_queue *q = make_acknowledged();
    shoal_value *v = NULL;
    put(q, 1);
    put(q, 2);
    ck_assert_uint_eq(shoal_queue_size(q), 2);
    shoal_delivery a = get(q, 1, 1, SHOAL_NOW), copy = a;
    ck_assert_uint_eq(shoal_queue_size(q), 2);
    shoal_delivery b = get(q, 2, 1, SHOAL_NOW);
    ck_assert_err(try_get(q, SHOAL_NOW), SHOAL_ETIMEDOUT);
    ck_assert_ok(shoal_delivery_return(&a));
    ck_assert_ok(shoal_delivery_done(&b));
    ck_assert_uint_eq(shoal_queue_size(q), 1);
    ck_assert_err(shoal_queue_join(q, SHOAL_NOW), SHOAL_ETIMEDOUT);
    put(q, 3);
    a = get(q, 1, 2, SHOAL_NOW); /* before the newer one, and marked as delivered before */
    ck_assert_err(shoal_delivery_done(&b), SHOAL_ESTATE);
    ck_assert_err(shoal_delivery_done(&copy), SHOAL_ESTATE); /* a delivery that has ended */
    ck_assert_ptr_null(copy.queue);
    ck_assert_ok(shoal_delivery_done(&a));
    shoal_delivery c = get(q, 3, 1, SHOAL_NOW);
    ck_assert_ok(shoal_delivery_done(&c));
    ck_assert_ok(shoal_queue_join(q, SHOAL_NOW));
    ck_assert_uint_eq(shoal_queue_size(q), 0);
    ck_assert_err(shoal_queue_get(q, SHOAL_NOW, &v), SHOAL_EINVAL);
    ck_assert_err(shoal_queue_task_done(q), SHOAL_EINVAL);
    sh_assert_audit("at the end");
    shoal_release(q);
}
END_TEST

/* Words, bytes, blocks and values with objects in them; the queue dies while some of them are out. */
START_TEST(every_kind_of_message)
{
    shoal_queue *q = make_acknowledged();
    shoal_block *block = NULL;
    shoal_tensor *t = shoal_zeros(SHOAL_F32, SHOAL_SHAPE(3));
    shoal_delivery d[8], last;
    ck_assert_ok(shoal_block_create_zeroed(100, &block));
    for (int round = 0; round < 2; round++) {
        ck_assert_ok(shoal_queue_put_bytes(q, "", 0, SHOAL_NOW));
        ck_assert_ok(shoal_queue_put_bytes(q, "abc", 3, SHOAL_NOW));
        ck_assert_ok(shoal_queue_put_bytes(q, "0123456789", 10, SHOAL_NOW));
        ck_assert_ok(shoal_queue_put_block(q, block, SHOAL_NOW));
        ck_assert_ok(shoal_queue_put(q, shoal_value_float(0.5), SHOAL_NOW));
        ck_assert_ok(shoal_queue_put(q, shoal_map("block", block, "text", "words"), SHOAL_NOW));
        ck_assert_ok(shoal_queue_put_tensor(q, t, SHOAL_NOW));
        put(q, 7);
        for (int i = 0; i < 8; i++) {
            shoal_value *v = NULL;
            ck_assert_ok(shoal_queue_get_delivery(q, SHOAL_NOW, &v, &d[i]));
            if (i < 3) {
                size_t size = 99;
                ck_assert_ptr_nonnull(shoal_value_as_bytes(v, &size));
                ck_assert_uint_eq(size, i == 0 ? 0 : i == 1 ? 3 : 10);
            } else if (i == 3) {
                ck_assert_ptr_eq(shoal_value_as_block(v), block);
            } else if (i == 5) {
                ck_assert_ptr_eq(shoal_value_as_block(shoal_value_find(v, "block")), block);
            } else if (i == 6) {
                ck_assert_ptr_nonnull(shoal_value_as_tensor(v));
            }
            shoal_value_destroy(v);
        }
        sh_assert_audit("all are unacknowledged");
        for (int i = 0; i < 8; i++) {
            ck_assert_ok(round == 0 ? shoal_delivery_done(&d[i]) : shoal_delivery_return(&d[i]));
        }
    }
    ck_assert_uint_eq(shoal_queue_size(q), 8);
    shoal_value *v = NULL;
    ck_assert_ok(shoal_queue_get_delivery(q, SHOAL_NOW, &v, &last));
    shoal_value_destroy(v);
    sh_assert_audit("one is unacknowledged, seven were returned");
    shoal_release(q);
    shoal_release(last.queue); /* gives the delivery up with its queue */
    shoal_release(block);
    shoal_tensor_release(t);
}
END_TEST

/* The table grows as far as necessary. */
START_TEST(thousands_are_out)
{
    enum { COUNT = 3000 };
    static shoal_delivery d[COUNT];
    shoal_queue *q = make_acknowledged();
    for (int i = 0; i < COUNT; i++) {
        hot_ok(shoal_queue_put(q, shoal_value_int(i), SHOAL_NOW));
        shoal_value *v = NULL;
        hot_ok(shoal_queue_get_delivery(q, SHOAL_NOW, &v, &d[i]));
        shoal_value_destroy(v);
    }
    ck_assert_uint_eq(shoal_queue_size(q), COUNT);
    sh_assert_audit("thousands are unacknowledged");
    for (int i = 0; i < COUNT; i++) {
        hot_ok(i % 2 == 0 ? shoal_delivery_done(&d[i]) : shoal_delivery_return(&d[i]));
    }
    ck_assert_uint_eq(shoal_queue_size(q), COUNT / 2);
    for (int i = 0; i < COUNT / 2; i++) {
        shoal_value *v = NULL;
        hot_ok(shoal_queue_get_delivery(q, SHOAL_NOW, &v, &d[0]));
        hot(d[0].deliveries == 2);
        shoal_value_destroy(v);
        hot_ok(shoal_delivery_done(&d[0]));
    }
    ck_assert_ok(shoal_queue_join(q, SHOAL_NOW));
    shoal_release(q);
}
END_TEST

/* Rank 0 is killed with two messages, 1 returns with them, 2 calls exit() with them;
 * 3 waits to be killed or stopped. */
static shoal_err take_two(int rank, const shoal_value *args)
{
    shoal_queue *q = ARG(queue, "queue"), *told = ARG(queue, "told");
    for (int i = 0; i < 2; i++) {
        shoal_value *v = NULL;
        shoal_delivery d;
        must_ok(shoal_queue_get_delivery(q, LIMIT, &v, &d));
        shoal_value_destroy(v);
    }
    must_ok(shoal_queue_put(told, shoal_value_int(rank), LIMIT));
    if (rank == 0) {
        raise(SIGKILL);
    } else if (rank == 2) {
        exit(0);
    } else if (rank == 3) {
        for (;;) {
            pause();
        }
    }
    return SHOAL_OK;
}

/* However the receiver ends, its messages go to the next receiver, first and marked; a waiting one is woken. */
START_TEST(a_receiver_that_ends_gives_its_messages_back)
{
    for (int rank = 0; rank < 3; rank++) {
        shoal_queue *q = make_acknowledged(), *told = make(NULL);
        put(q, 0);
        put(q, 1);
        shoal_process *p = start(_i, rank, take_two, shoal_map("queue", q, "told", told));
        until_told(told);
        shoal_delivery a = get(q, 0, 2, LIMIT); /* waits for the end of the receiver */
        shoal_status status;
        ck_assert_ok(shoal_process_join(p, LIMIT, &status)); /* now the other message is back too */
        put(q, 2);
        shoal_delivery b = get(q, 1, 2, LIMIT), third = get(q, 2, 1, LIMIT);
        ck_assert_ok(shoal_delivery_done(&third));
        ck_assert_ok(shoal_delivery_done(&a));
        ck_assert_ok(shoal_delivery_done(&b));
        ck_assert_ok(shoal_queue_join(q, LIMIT));
        shoal_process_destroy(p);
        sh_assert_audit("after the end of the receiver");
        shoal_release(q);
        shoal_release(told);
    }
}
END_TEST

/* A lease beyond the end of time never expires. */
START_TEST(a_lease_without_end)
{
    shoal_queue *q = make(&(shoal_queue_options){.acknowledge = true, .lease = SHOAL_FOREVER});
    put(q, 5);
    shoal_delivery first = get(q, 5, 1, SHOAL_NOW);
    ck_assert_err(try_get(q, SHOAL_MS(2)), SHOAL_ETIMEDOUT);
    ck_assert_ok(shoal_delivery_extend(&first, SHOAL_FOREVER));
    ck_assert_err(try_get(q, SHOAL_NOW), SHOAL_ETIMEDOUT);
    ck_assert_ok(shoal_delivery_done(&first));
    shoal_release(q);
}
END_TEST

/* A receiver that is only stopped keeps its messages. With a lease it does not, and its done reports that. */
START_TEST(a_stopped_receiver_keeps_its_messages_without_a_lease)
{
    shoal_queue *q = make_acknowledged(), *told = make(NULL);
    put(q, 0);
    put(q, 1);
    shoal_process *p = start(SHOAL_START_FORK, 3, take_two, shoal_map("queue", q, "told", told));
    until_told(told);
    kill(shoal_process_pid(p), SIGSTOP);
    ck_assert_err(try_get(q, SOON), SHOAL_ETIMEDOUT);
    ck_assert_uint_eq(shoal_queue_size(q), 2);
    kill(shoal_process_pid(p), SIGKILL);
    shoal_delivery a = get(q, 0, 2, LIMIT);
    ck_assert_ok(shoal_delivery_done(&a));
    finish_as(p, SHOAL_PROCESS_KILLED, SIGKILL);
    shoal_release(q);
    shoal_release(told);
}
END_TEST

START_TEST(a_lease_passes)
{
    shoal_queue *q = make(&(shoal_queue_options){.acknowledge = true, .lease = SHOAL_MS(30)});
    put(q, 5);
    shoal_delivery first = get(q, 5, 1, SHOAL_NOW);
    ck_assert_ok(shoal_delivery_extend(&first, SHOAL_MS(1)));
    shoal_delivery second = get(q, 5, 2, LIMIT); /* waits for the lease to expire */
    ck_assert_err(shoal_delivery_done(&first), SHOAL_ESTATE);
    ck_assert_err(shoal_delivery_done(&first), SHOAL_ESTATE);
    ck_assert_ok(shoal_delivery_extend(&second, SHOAL_SECONDS(1000)));
    ck_assert_err(try_get(q, SHOAL_MS(40)), SHOAL_ETIMEDOUT);
    ck_assert_ok(shoal_delivery_done(&second));
    ck_assert_ok(shoal_queue_join(q, SHOAL_NOW));
    shoal_release(q);
}
END_TEST

START_TEST(a_message_over_the_limit_is_rejected)
{
    shoal_queue *rejects = make(NULL);
    for (int with = 0; with < 2; with++) {
        shoal_queue *q =
            make(&(shoal_queue_options){.acknowledge = true, .deliveries = 2, .rejects = with ? rejects : NULL});
        shoal_value *v = NULL;
        put(q, 8);
        put(q, 9);
        for (uint32_t i = 1; i <= 2; i++) {
            shoal_delivery d = get(q, 8, i, SHOAL_NOW);
            ck_assert_ok(shoal_delivery_return(&d));
        }
        shoal_delivery d = get(q, 9, 1, SHOAL_NOW);
        ck_assert_uint_eq(shoal_queue_dropped(q), !with);
        ck_assert_uint_eq(shoal_queue_size(rejects), with);
        ck_assert_ok(shoal_delivery_done(&d));
        ck_assert_ok(shoal_queue_join(q, SHOAL_NOW));
        if (with) {
            ck_assert_ok(shoal_queue_get(rejects, SHOAL_NOW, &v));
            ck_assert_int_eq(sh_int_of(v), 8);
            shoal_value_destroy(v);
        }
        sh_assert_audit("after a rejection");
        shoal_release(q);
    }
    shoal_release(rejects);
}
END_TEST

/* Raw bytes of any size, none included, can be read from the queue for rejects in every way. */
START_TEST(rejected_bytes)
{
    shoal_queue *rejects = make(NULL);
    shoal_queue *q = make(&(shoal_queue_options){.acknowledge = true, .deliveries = 1, .rejects = rejects});
    for (size_t size = 0; size < 12; size++) {
        shoal_value *v = NULL;
        shoal_delivery d;
        size_t got = 99;
        ck_assert_ok(shoal_queue_put_bytes(q, "some raw bytes", size, SHOAL_NOW));
        ck_assert_ok(shoal_queue_get_delivery(q, SHOAL_NOW, &v, &d));
        shoal_value_destroy(v);
        ck_assert_ok(shoal_delivery_return(&d));
        ck_assert_err(try_get(q, SHOAL_NOW), SHOAL_ETIMEDOUT);
        ck_assert_ok(size % 2 == 0 ? shoal_queue_get_packed(rejects, SHOAL_NOW, &v)
                                   : shoal_queue_get(rejects, SHOAL_NOW, &v));
        ck_assert_ptr_nonnull(shoal_value_as_bytes(v, &got));
        ck_assert_uint_eq(got, size);
        shoal_value_destroy(v);
    }
    shoal_release(q);
    shoal_release(rejects);
}
END_TEST

/* Gets messages until the queue has ended; returns how many. */
static shoal_err work(int rank, const shoal_value *args)
{
    shoal_queue *q = ARG(queue, "queue"), *told = ARG(queue, "told");
    shoal_value *v = NULL;
    shoal_delivery d;
    shoal_err err;
    (void)rank;
    while ((err = shoal_queue_get_delivery(q, LIMIT, &v, &d)) == SHOAL_OK) {
        shoal_value_destroy(v);
        must_ok(shoal_delivery_done(&d));
    }
    must(err == SHOAL_ECLOSED);
    must_ok(shoal_queue_put(told, shoal_value_int(1), LIMIT));
    return SHOAL_OK;
}

/* A closed queue ends when nothing is out, and those who wait for that are woken. */
START_TEST(a_closed_queue_waits_for_what_is_out)
{
    shoal_queue *q = make_acknowledged(), *told = make(NULL);
    put(q, 1);
    shoal_delivery d = get(q, 1, 1, SHOAL_NOW);
    shoal_process *p[2];
    shoal_queue_close(q);
    for (int i = 0; i < 2; i++) {
        p[i] = start(_i, i, work, shoal_map("queue", q, "told", told));
        until_parked(p[i]);
    }
    ck_assert_err(try_get(q, SHOAL_NOW), SHOAL_ETIMEDOUT);
    ck_assert_uint_eq(shoal_queue_size(told), 0);
    ck_assert_ok(shoal_delivery_return(&d)); /* one of them gets it, and both see the end */
    for (int i = 0; i < 2; i++) {
        finish(p[i]);
    }
    ck_assert_err(try_get(q, SHOAL_NOW), SHOAL_ECLOSED);
    shoal_release(q);
    shoal_release(told);
}
END_TEST

/* Fault F16: a delivery ends once, whichever copy of the struct ends it. */
START_TEST(two_copies_of_a_delivery)
{
    shoal_queue *q = make(&(shoal_queue_options){.acknowledge = true, .lease = SHOAL_MS(1)});
    put(q, 1);
    shoal_delivery a = get(q, 1, 1, SHOAL_NOW), b = a, c = a;
    ck_assert_ok(shoal_delivery_done(&a));
    ck_assert_err(shoal_delivery_done(&b), SHOAL_ESTATE);
    ck_assert_ptr_null(b.queue);
    ck_assert_uint_eq(sh_load_relaxed(&((shoal_block *)q)->refs), 1);
    put(q, 2);
    a = get(q, 2, 1, SHOAL_NOW);
    b = a;
    shoal_delivery other = get(q, 2, 2, LIMIT); /* a has lost it by its lease */
    ck_assert_err(shoal_delivery_extend(&a, SHOAL_MS(1)), SHOAL_ESTATE);
    ck_assert_err(shoal_delivery_return(&a), SHOAL_ESTATE);
    ck_assert_err(shoal_delivery_return(&b), SHOAL_ESTATE);
    ck_assert_uint_eq(sh_load_relaxed(&((shoal_block *)q)->refs), 2);
    shoal_release(q);
    ck_assert_ok(shoal_delivery_done(&other)); /* the last reference to the queue */
    ck_assert_err(shoal_delivery_return(&c), SHOAL_ESTATE);
}
END_TEST

/* A receiver was stopped after it had returned a message and before it lowered the bounds. Others find the message,
 * however short their timeouts are. */
START_TEST(a_message_below_bounds_that_are_too_late)
{
    shoal_queue *q = make_acknowledged();
    put(q, 1);
    shoal_delivery d = get(q, 1, 1, SHOAL_NOW);
    sh_queue_shm *shm = shoal_block_data((shoal_block *)q);
    sh_found f;
    sh_delivery_table table;
    ck_assert(sh_heap_find(sh_ref_id(sh_load_acquire(&shm->deliveries)), &f) && sh_delivery_table_open(&f, &table));
    ck_assert_uint_le(table.count, 64); /* so there is one bound */
    ck_assert_ok(shoal_delivery_return(&d));
    for (int i = 0; i < 2; i++) {
        shoal_value *v = NULL;
        int64_t deadline = clock_ns() + LIMIT;
        sh_store_seq_cst((sh_a64 *)&table.shm->entries[table.count], SH_DUE_FAR);
        sh_store_seq_cst(&shm->due, SH_DUE_FAR);
        while (shoal_queue_get_delivery(q, i == 0 ? SHOAL_NOW : SHOAL_MS(10), &v, &d) == SHOAL_ETIMEDOUT) {
            ck_assert_int_lt(clock_ns(), deadline);
        }
        ck_assert_int_eq(sh_int_of(v), 1);
        shoal_value_destroy(v);
        ck_assert_ok(i == 0 ? shoal_delivery_return(&d) : shoal_delivery_done(&d));
    }
    shoal_release(q);
}
END_TEST

/* The delivery that a thread extends as long as it has not ended. */
typedef struct heartbeat {
    shoal_delivery delivery; /* of message `message`, which is written last */
    sh_a64 message, extended;
} heartbeat;

#define BEATS 500u

static void *beat(void *context)
{
    heartbeat *h = context;
    for (uint64_t n = 1; n <= BEATS; n++) {
        while (sh_load_acquire(&h->message) < n) {
            sched_yield();
        }
        shoal_delivery copy = h->delivery;
        while (shoal_delivery_extend(&copy, LIMIT) == SHOAL_OK) {
            sh_store_release(&h->extended, n);
        }
    }
    return NULL;
}

/* A thread extended the lease while another one was done: to the second one the delivery seemed to have ended, and the
 * message came back. */
START_TEST(a_lease_is_extended_while_its_delivery_ends)
{
    shoal_queue *q = make(&(shoal_queue_options){.acknowledge = true, .lease = LIMIT});
    heartbeat h = {.message = {0}, .extended = {0}};
    pthread_t thread;
    ck_assert_int_eq(pthread_create(&thread, NULL, beat, &h), 0);
    for (uint64_t n = 1; n <= BEATS; n++) {
        put(q, (int64_t)n);
        shoal_delivery d = h.delivery = get(q, (int64_t)n, 1, SHOAL_NOW);
        sh_store_release(&h.message, n);
        while (sh_load_acquire(&h.extended) < n) {
            sched_yield();
        }
        ck_assert_ok(n % 2 == 0 ? shoal_delivery_done(&d) : shoal_delivery_return(&d));
        if (n % 2 != 0) {
            d = get(q, (int64_t)n, 2, SHOAL_NOW);
            ck_assert_ok(shoal_delivery_done(&d));
        }
    }
    ck_assert_int_eq(pthread_join(thread, NULL), 0);
    ck_assert_uint_eq(shoal_queue_size(q), 0);
    ck_assert_uint_eq(sh_load_relaxed(&((shoal_block *)q)->refs), 1);
    shoal_release(q);
}
END_TEST

/* Takes 40 messages, which needs a second table, and keeps the last ten of them. */
static shoal_err take_forty(int rank, const shoal_value *args)
{
    shoal_queue *q = ARG(queue, "queue"), *told = ARG(queue, "told");
    shoal_delivery d[40];
    (void)rank;
    for (int i = 0; i < 40; i++) {
        shoal_value *v = NULL;
        must_ok(shoal_queue_get_delivery(q, LIMIT, &v, &d[i]));
        shoal_value_destroy(v);
    }
    for (int i = 0; i < 30; i++) {
        must_ok(shoal_delivery_done(&d[i]));
    }
    if (ARG_INT("returns") != 0) {
        for (int i = 30; i < 40; i++) {
            must_ok(shoal_delivery_return(&d[i]));
        }
    }
    must_ok(shoal_queue_put(told, shoal_value_int(rank), LIMIT));
    for (;;) {
        pause();
    }
}

/* Fault F4: leases that end, and messages that come back, in a table that another process made. Each is seen by a poll
 * of the queue's fd and by shoal_wait. */
START_TEST(every_waiter_sees_every_table)
{
    for (int way = 0; way < 4; way++) {
        bool by_fd = way % 2 == 0, returns = way / 2 != 0;
        shoal_queue *told = make(NULL),
                    *q = make(&(shoal_queue_options){.acknowledge = true, .lease = returns ? 0 : SHOAL_MS(50)});
        struct pollfd fd = {.events = POLLIN};
        shoal_waitable thing = {.queue = q};
        ck_assert_err(shoal_wait(&thing, 1, SHOAL_NOW), SHOAL_ETIMEDOUT); /* this process knows the first table */
        for (int i = 0; i < 40; i++) {
            put(q, i);
        }
        shoal_process *p =
            start(SHOAL_START_SPAWN, 0, take_forty, shoal_map("queue", q, "told", told, "returns", (int64_t)returns));
        until_told(told);
        if (by_fd) {
            ck_assert_ok(shoal_queue_fd(q, &fd.fd));
            ck_assert_int_eq(poll(&fd, 1, 5000), 1);
        } else {
            ck_assert_ok(shoal_wait(&thing, 1, SH_PATIENCE));
        }
        shoal_value *v = NULL;
        shoal_delivery d;
        ck_assert_ok(shoal_queue_get_delivery(q, SHOAL_NOW, &v, &d));
        ck_assert_int_ge(sh_int_of(v), 30);
        shoal_value_destroy(v);
        ck_assert_ok(shoal_delivery_done(&d));
        kill(shoal_process_pid(p), SIGKILL);
        finish_as(p, SHOAL_PROCESS_KILLED, SIGKILL);
        shoal_release(q);
        shoal_release(told);
    }
}
END_TEST

/* Uses up the heap, and returns the last block of a list. */
static shoal_block *fill_heap(void)
{
    shoal_block *last = NULL, *b = NULL;
    for (uint64_t size = UINT64_C(1) << 20; size >= 64; size /= 2) {
        while (shoal_block_create(size, &b) == SHOAL_OK) {
            memcpy(shoal_block_data(b), &last, sizeof last);
            last = b;
        }
    }
    return last;
}

static void empty_heap(shoal_block *last)
{
    while (last != NULL) {
        shoal_block *b = last;
        memcpy(&last, shoal_block_data(b), sizeof last);
        shoal_release(b);
    }
}

/* Fault F5: a queue for rejects that has no memory to grow loses nothing: the messages wait in their queue. */
START_TEST(dead_letters_survive_a_full_heap)
{
    enum { COUNT = 200 };
    static shoal_delivery d[COUNT];
    ck_assert_ok(shoal_world_create(&(shoal_world_options){.heap_limit = 16u << 20}));
    shoal_queue *rejects = make(NULL);
    shoal_queue *q = make(&(shoal_queue_options){.acknowledge = true, .deliveries = 1, .rejects = rejects});
    shoal_value *v = NULL;
    for (int i = 0; i < COUNT; i++) {
        put(q, i);
        d[i] = get(q, i, 1, SHOAL_NOW);
    }
    shoal_block *blocks = fill_heap();
    for (int i = 0; i < COUNT; i++) {
        ck_assert_ok(shoal_delivery_return(&d[i]));
    }
    ck_assert_err(try_get(q, SHOAL_NOW), SHOAL_ETIMEDOUT);
    ck_assert_uint_gt(shoal_queue_size(q), 0); /* the rejects have no room for all */
    ck_assert_uint_eq(shoal_queue_size(q) + shoal_queue_size(rejects), COUNT);
    ck_assert_err(try_get(q, SHOAL_MS(30)), SHOAL_ETIMEDOUT);
    empty_heap(blocks);
    while (shoal_queue_size(q) > 0) { /* the next get moves them, a little later */
        ck_assert_err(try_get(q, SHOAL_MS(20)), SHOAL_ETIMEDOUT);
    }
    ck_assert_ok(shoal_queue_join(q, SHOAL_NOW));
    ck_assert_uint_eq(shoal_queue_dropped(q), 0);
    ck_assert_uint_eq(shoal_queue_size(rejects), COUNT);
    for (int i = 0; i < COUNT; i++) {
        hot_ok(shoal_queue_get(rejects, SHOAL_NOW, &v));
        shoal_value_destroy(v);
    }
    sh_assert_audit("after the rejections");
    shoal_release(q);
    shoal_release(rejects);
}
END_TEST

/* Fault F5: the same for a queue that is full. It delays no other message, and the fd of the queue tells when to try
 * again. If the queue for rejects is closed, the messages are dropped. */
START_TEST(dead_letters_wait_for_room)
{
    shoal_queue *rejects = make_queue(1);
    shoal_queue *q = make(&(shoal_queue_options){.acknowledge = true, .deliveries = 1, .rejects = rejects});
    shoal_value *v = NULL;
    struct pollfd fd = {.events = POLLIN};
    ck_assert_ok(shoal_queue_fd(q, &fd.fd));
    for (int i = 0; i < 3; i++) {
        put(q, i);
        shoal_delivery d = get(q, i, 1, SHOAL_NOW);
        ck_assert_ok(shoal_delivery_return(&d));
        ck_assert_err(try_get(q, SHOAL_NOW), SHOAL_ETIMEDOUT);
    }
    ck_assert_uint_eq(shoal_queue_size(q), 2);
    ck_assert_err(shoal_queue_join(q, SHOAL_NOW), SHOAL_ETIMEDOUT);
    put(q, 9);
    shoal_delivery d = get(q, 9, 1, SHOAL_NOW);
    ck_assert_ok(shoal_delivery_done(&d));
    shoal_queue_close(q);
    until_told(rejects);
    while (shoal_queue_size(rejects) == 0) {
        ck_assert_int_eq(poll(&fd, 1, 5000), 1);
        ck_assert_err(try_get(q, SHOAL_NOW), SHOAL_ETIMEDOUT);
    }
    ck_assert_uint_eq(shoal_queue_size(q), 1);
    ck_assert_uint_eq(shoal_queue_dropped(q), 0);
    shoal_queue_close(rejects);
    ck_assert_err(try_get(q, LIMIT), SHOAL_ECLOSED); /* waits until the last one is dropped */
    ck_assert_uint_eq(shoal_queue_dropped(q), 1);
    ck_assert_ok(shoal_queue_get(rejects, SHOAL_NOW, &v));
    shoal_value_destroy(v);
    shoal_release(q);
    shoal_release(rejects);
}
END_TEST

/* The best time of a put, get and done, in ns. */
static int64_t one_message(shoal_queue *q)
{
    enum { ROUNDS = 50, EACH = 20 };
    int64_t best = INT64_MAX;
    for (int round = 0; round < ROUNDS; round++) {
        int64_t begin = clock_ns();
        for (int i = 0; i < EACH; i++) {
            shoal_value *v = NULL;
            shoal_delivery d;
            hot_ok(shoal_queue_put(q, shoal_value_int(i), SHOAL_NOW));
            hot_ok(shoal_queue_get_delivery(q, SHOAL_NOW, &v, &d));
            shoal_value_destroy(v);
            hot_ok(shoal_delivery_done(&d));
        }
        int64_t time = (clock_ns() - begin) / EACH;
        best = time < best ? time : best;
    }
    return best;
}

/* Fault F6: what a message costs does not depend on how many are out, or ever were. */
START_TEST(a_lease_costs_little_for_ever)
{
    enum { COUNT = 100000 / (SH_SLOW ? 5 : 1) };
    shoal_delivery *d = calloc(COUNT, sizeof *d);
    shoal_queue *q = make(&(shoal_queue_options){.acknowledge = true, .lease = SHOAL_SECONDS(1000)});
    int64_t before = one_message(q);
    for (int i = 0; i < COUNT; i++) {
        shoal_value *v = NULL;
        hot_ok(shoal_queue_put(q, shoal_value_int(i), SHOAL_NOW));
        hot_ok(shoal_queue_get_delivery(q, SHOAL_NOW, &v, &d[i]));
        shoal_value_destroy(v);
    }
    int64_t during = one_message(q);
    ck_assert_uint_eq(shoal_queue_size(q), COUNT);
    for (int i = 0; i < COUNT; i++) {
        hot_ok(shoal_delivery_extend(&d[i], i)); /* all are due now, and the others soon */
        hot_ok(shoal_delivery_done(&d[i]));
    }
    int64_t after = one_message(q);
    printf("put, get and done: %lld ns; while %d are out %lld ns; afterwards %lld ns\n", (long long)before, COUNT,
           (long long)during, (long long)after);
    ck_assert_int_lt(during, 10 * before);
    ck_assert_int_lt(after, 10 * before);
    ck_assert_uint_eq(shoal_queue_size(q), 0);
    free(d);
    shoal_release(q);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("deliveries");
    TCase *tc = children_case("deliveries");
    tcase_add_test(tc, a_message_is_the_queue_s_until_it_is_done);
    tcase_add_test(tc, every_kind_of_message);
    tcase_add_test(tc, thousands_are_out);
    add_for_methods(tc, a_receiver_that_ends_gives_its_messages_back);
    tcase_add_test(tc, a_lease_without_end);
    tcase_add_test(tc, a_stopped_receiver_keeps_its_messages_without_a_lease);
    tcase_add_test(tc, a_lease_passes);
    tcase_add_test(tc, a_message_over_the_limit_is_rejected);
    tcase_add_test(tc, rejected_bytes);
    add_for_methods(tc, a_closed_queue_waits_for_what_is_out);
    tcase_add_test(tc, two_copies_of_a_delivery);
    tcase_add_test(tc, a_message_below_bounds_that_are_too_late);
    tcase_add_test(tc, a_lease_is_extended_while_its_delivery_ends);
    tcase_add_test(tc, every_waiter_sees_every_table);
    tcase_add_test(tc, dead_letters_survive_a_full_heap);
    tcase_add_test(tc, dead_letters_wait_for_room);
    tcase_add_test(tc, a_lease_costs_little_for_ever);
    suite_add_tcase(s, tc);
    return s;
}

SH_TEST_MAIN(suite)
