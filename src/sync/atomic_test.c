/* Tests the compare-and-swap of two words between processes and between threads. */
#include "sync/atomic.h"

#include "sync/peers_test.h"

#include <pthread.h>

#define EACH 100000

typedef struct object {
    sh_a128 pair; /* the second word is always twice the first */
    sh_a32 here;  /* who has begun */
} object;

/* Adds to both words EACH times. A swap that others do not see as one step loses some. */
static void add(void *arg)
{
    object *o = arg;
    sh_add_acq_rel(&o->here, 1u);
    while (sh_load_acquire(&o->here) < 2) {
        sched_yield();
    }
    for (int done = 0; done < EACH;) {
        uint64_t lo = sh_load_acquire(&o->pair.lo), hi = sh_load_acquire(&o->pair.hi);
        done += sh_cas128(&o->pair, lo, hi, lo + 1, hi + 2);
    }
}

static void *add_in_thread(void *arg)
{
    add(arg);
    return NULL;
}

START_TEST(processes_swap_pairs)
{
    object *o = fake_begin(sizeof *o);
    pid_t a = fake_fork(add, o), b = fake_fork(add, o);
    fake_join(a);
    fake_join(b);
    ck_assert_uint_eq(sh_load_acquire(&o->pair.lo), 2 * EACH);
    ck_assert_uint_eq(sh_load_acquire(&o->pair.hi), 4 * EACH);
}
END_TEST

START_TEST(threads_swap_pairs)
{
    object *o = fake_begin(sizeof *o);
    pthread_t other;
    ck_assert_int_eq(pthread_create(&other, NULL, add_in_thread, o), 0);
    add(o);
    ck_assert_int_eq(pthread_join(other, NULL), 0);
    ck_assert_uint_eq(sh_load_acquire(&o->pair.lo), 2 * EACH);
    ck_assert_uint_eq(sh_load_acquire(&o->pair.hi), 4 * EACH);
}
END_TEST

/* What one thread wrote before a swap, the other may read after it saw the swap: ThreadSanitizer knows the order. */
typedef struct baton {
    sh_a128 pair;
    int64_t plain;
} baton;

static void *pass(void *arg)
{
    baton *b = arg;
    for (uint64_t turn = 0; turn < 1000; turn += 2) {
        while (!sh_cas128(&b->pair, turn, 1, turn + 1, 0)) {
            sched_yield();
        }
        b->plain++;
        while (!sh_cas128(&b->pair, turn + 1, 0, turn + 1, 1)) {
            sched_yield();
        }
    }
    return NULL;
}

START_TEST(a_swap_orders_plain_words)
{
    baton b = {.pair = {.hi = {1}}};
    pthread_t other;
    ck_assert_int_eq(pthread_create(&other, NULL, pass, &b), 0);
    for (uint64_t turn = 1; turn < 1001; turn += 2) {
        while (!sh_cas128(&b.pair, turn, 1, turn, 0)) {
            sched_yield();
        }
        b.plain++;
        while (!sh_cas128(&b.pair, turn, 0, turn + 1, 1)) {
            sched_yield();
        }
    }
    ck_assert_int_eq(pthread_join(other, NULL), 0);
    ck_assert_int_eq(b.plain, 1000);
}
END_TEST

int main(void)
{
    const TTest *const tests[] = {processes_swap_pairs, threads_swap_pairs, a_swap_orders_plain_words};
    return fake_run("sync/atomic", tests, sizeof tests / sizeof tests[0]);
}
