/* The steps: every shared operation of the library, in pieces small enough to be killed in. */
#include "tests/harness/kill_steps.h"

#include "base/clock.h"
#include "base/random.h"
#include "shm/block.h"
#include "shm/heap.h"
#include "shm/slot.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define WAIT_SHORT (SHOAL_MS(1) / 4)
#define WAIT_LOCK SHOAL_MS(2)

void kill_must(kill_stage *stage, shoal_err err, const char *what)
{
    if (err != SHOAL_OK && !kill_is_tight(stage, err)) {
        kill_fail(stage, "%s: %s: %s", what, shoal_err_name(err), shoal_last_error_text());
    }
}

/* ---- blocks ---- */

shoal_block *kill_make_block(kill_stage *stage, size_t size, uint64_t id)
{
    shoal_block *b = NULL;
    kill_must(stage, shoal_block_create(size, &b), "block_create");
    if (b != NULL) {
        char *data = shoal_block_data(b);
        memcpy(data, &id, sizeof id);
        memcpy(data + size - sizeof id, &id, sizeof id);
    }
    return b;
}

static uint64_t read_block(kill_stage *stage, const shoal_block *b)
{
    uint64_t first, last;
    memcpy(&first, shoal_block_data(b), sizeof first);
    memcpy(&last, (char *)shoal_block_data(b) + shoal_block_size(b) - sizeof last, sizeof last);
    if (first != last) {
        kill_fail(stage, "a block of %zu bytes begins with %llu and ends with %llu", shoal_block_size(b),
                  (unsigned long long)first, (unsigned long long)last);
    }
    return first;
}

void kill_hold_blocks(kill_stage *stage, uint64_t *random, size_t size, int count)
{
    shoal_block *held[700];
    uint64_t id = sh_splitmix_next(random);
    for (int i = 0; i < count; i++) {
        held[i] = kill_make_block(stage, size, id);
    }
    for (int i = 0; i < count; i++) {
        if (held[i] != NULL && read_block(stage, held[i]) != id) {
            kill_fail(stage, "a block of %zu bytes holds data of another process", size);
        }
        shoal_release(held[i]);
    }
}

static void block_small(kill_stage *stage, uint64_t *random)
{
    kill_hold_blocks(stage, random, 16 + sh_splitmix_below(random, 30000), 1);
}

static void block_64k(kill_stage *stage, uint64_t *random)
{
    kill_hold_blocks(stage, random, 65536, 2);
}

/* A private view, which does not outlast the block: the next user of the memory shares it again. */
static void block_private(kill_stage *stage, uint64_t *random)
{
    uint64_t id = sh_splitmix_next(random), other = 0;
    shoal_block *b = kill_make_block(stage, 65536, id);
    if (b != NULL) {
        kill_must(stage, shoal_block_make_private(b), "make_private");
        memcpy(shoal_block_data(b), &other, sizeof other);
        shoal_release(b);
    }
    kill_hold_blocks(stage, random, 65536, 2);
}

/* Four blocks to a span. */
static void block_300k(kill_stage *stage, uint64_t *random)
{
    kill_hold_blocks(stage, random, 300000, 1);
}

static void block_5m(kill_stage *stage, uint64_t *random)
{
    kill_hold_blocks(stage, random, 5 << 20, 1);
}

/* More than the heap keeps for reuse, so some of it is returned to the system. */
static void block_hoard(kill_stage *stage, uint64_t *random)
{
    kill_hold_blocks(stage, random, 5 << 20, 5);
}

/* More blocks than a slot has cells. */
static void cells(kill_stage *stage, uint64_t *random)
{
    kill_hold_blocks(stage, random, 16 + sh_splitmix_below(random, 100), sh_splitmix_below(random, 8) == 0 ? 700 : 90);
}

/* Makes a span, as an allocation does when no span of its class has a free block. It calls the function directly,
 * because otherwise it would have to hold all of those blocks. Uses a class with one block to a span, which needs one
 * page and is audited quickly. */
static void spans(kill_stage *stage, uint64_t *random)
{
    size_t size = (1 << 20) + 1;
    (void)random;
    sh_ctx *c = sh_enter();
    if (c == NULL) {
        kill_fail(stage, "enter: %s", shoal_last_error_text());
        return;
    }
    shoal_err err = sh_span_make(c, sh_class_of(size), size);
    sh_leave();
    kill_must(stage, err, "span_make");
}

/* Trims. There is always something to trim: a span of blocks that few use, whose only block was just released. */
static void trim(kill_stage *stage, uint64_t *random)
{
    kill_hold_blocks(stage, random, 28000, 1);
    kill_must(stage, shoal_world_trim(), "trim");
}

/* Does what an allocation does when there are no more addresses. */
static void uncover(kill_stage *stage, uint64_t *random)
{
    shoal_block *b = kill_make_block(stage, 64, 1);
    shoal_release(b); /* something for the other processes to find */
    sh_ctx *c = sh_enter();
    if (c == NULL) {
        kill_fail(stage, "enter: %s", shoal_last_error_text());
        return;
    }
    sh_heap_uncover(c, sh_class_of(64 << sh_splitmix_below(random, 4)));
    sh_leave();
}

/* Receives a block whose cell has already gathered more than it may keep. */
static void gather(kill_stage *stage, uint64_t *random)
{
    shoal_queue *q = NULL;
    shoal_block *b = kill_make_block(stage, 64, 1), *again = NULL;
    (void)random;
    kill_must(stage, shoal_queue_create(0, &q), "queue_create");
    shoal_err err = b != NULL && q != NULL ? shoal_queue_put_block(q, b, SHOAL_NOW) : SHOAL_ENOMEM;
    sh_ctx *c = err == SHOAL_OK ? sh_enter() : NULL;
    if (c != NULL) {
        kill_must(stage, sh_heap_draw(c, b->id, b->cell), "draw");
        sh_leave();
        kill_must(stage, shoal_queue_get_block(q, SHOAL_NOW, &again), "get from a private queue");
    }
    shoal_release(again);
    shoal_release(b);
    shoal_release(q);
}

/* ---- private queues and pipes ---- */

static bool is_late(shoal_err err)
{
    return err == SHOAL_ETIMEDOUT;
}

static shoal_err put_to_own(kill_stage *stage, shoal_queue *q, int n)
{
    shoal_block *b = n % 50 == 7 ? kill_make_block(stage, 100, 1) : NULL;
    shoal_err err =
        b != NULL ? shoal_queue_put_block(q, b, SHOAL_NOW) : shoal_queue_put(q, shoal_value_int(n), SHOAL_NOW);
    shoal_release(b);
    return err;
}

/* Uses an unbounded queue that grows twice and is destroyed with messages in it. */
static void grow(kill_stage *stage, uint64_t *random)
{
    shoal_queue *q;
    int n = 0;
    shoal_err err = shoal_queue_create(0, &q);
    if (err != SHOAL_OK) {
        kill_must(stage, err, "queue_create");
        return;
    }
    while (n < 200 && (err = put_to_own(stage, q, n)) == SHOAL_OK) {
        n++;
    }
    kill_must(stage, err, "put to a private queue");
    int takes = (int)sh_splitmix_below(random, (uint64_t)n + 1);
    for (int i = 0; i < takes; i++) {
        shoal_value *v = NULL;
        kill_must(stage, shoal_queue_get(q, SHOAL_NOW, &v), "get from a private queue");
        if (v != NULL && shoal_value_type(v) == SHOAL_TYPE_INT && sh_int_of(v) != i && !stage->tight) {
            kill_fail(stage, "message %d of a private queue is %lld", i, (long long)sh_int_of(v));
        }
        shoal_value_destroy(v);
    }
    shoal_release(q);
}

static shoal_err get_one(shoal_queue *q, shoal_delivery *out_delivery)
{
    shoal_value *v = NULL;
    shoal_err err = shoal_queue_get_delivery(q, SHOAL_NOW, &v, out_delivery);
    if (err == SHOAL_OK) {
        shoal_value_destroy(v);
    }
    return err;
}

/* Uses private acknowledged queues: a message over its delivery limit is rejected, the table grows, and both queues are
 * destroyed with unacknowledged messages. */
static void reject(kill_stage *stage, uint64_t *random)
{
    enum { OUT = 40 };
    shoal_queue *rejects = NULL, *q = NULL;
    shoal_delivery d[OUT];
    int n = 0;
    shoal_err err = shoal_queue_create(1, &rejects);
    if (err == SHOAL_OK && sh_splitmix_below(random, 2) == 0) {
        err = put_to_own(stage, rejects, 0); /* it is full: the rejected message stays */
    }
    if (err == SHOAL_OK) {
        err = shoal_queue_create_with(&(shoal_queue_options){.acknowledge = true,
                                                             .lease = SHOAL_SECONDS(100),
                                                             .deliveries = 1,
                                                             .rejects = sh_splitmix_below(random, 4) ? rejects : NULL},
                                      &q);
    }
    for (int i = 0; err == SHOAL_OK && i <= OUT; i++) {
        err = put_to_own(stage, q, i);
    }
    if (err == SHOAL_OK && (err = get_one(q, &d[0])) == SHOAL_OK && (err = shoal_delivery_return(&d[0])) == SHOAL_OK) {
        while (n < OUT &&
               (err = get_one(q, &d[n])) == SHOAL_OK) { /* the first of these gets rejects the returned message */
            n++;
        }
    }
    if (err == SHOAL_OK) {
        err = shoal_delivery_extend(&d[n - 1], SHOAL_SECONDS(1));
    }
    kill_must(stage, err, "a private acknowledged queue");
    while (n > 0) {
        shoal_release(d[--n].queue);
    }
    shoal_release(q);
    shoal_release(rejects);
}

/* a sends a value and bytes and is closed; b receives both, and then the end. */
static shoal_err use_pipe(kill_stage *stage, shoal_pipe *a, shoal_pipe *b)
{
    shoal_value *v = NULL;
    char text[8];
    size_t size = 0;
    shoal_err err = shoal_pipe_send(a, shoal_map("x", 1, "y", "two"), SHOAL_NOW);
    if (err != SHOAL_OK) {
        shoal_release(a);
        return err;
    }
    err = shoal_pipe_send_bytes(a, "abc", 3, SHOAL_NOW);
    shoal_release(a);
    if (err == SHOAL_OK) {
        err = shoal_pipe_recv(b, SHOAL_NOW, &v);
    }
    shoal_value_destroy(v);
    if (err == SHOAL_OK) {
        err = shoal_pipe_recv_bytes(b, text, sizeof text, SHOAL_NOW, &size);
    }
    if (err == SHOAL_OK && shoal_pipe_recv_bytes(b, text, sizeof text, WAIT_SHORT, &size) != SHOAL_ECLOSED) {
        kill_fail(stage, "recv at the end of a pipe: %s", shoal_err_name(shoal_last_error()));
    }
    return err;
}

static void pipe_step(kill_stage *stage, uint64_t *random)
{
    shoal_pipe *a, *b;
    shoal_err err = shoal_pipe_create(sh_splitmix_below(random, 2) == 0, &b, &a); /* one-way: a sends */
    if (err == SHOAL_OK) {
        err = use_pipe(stage, a, b);
        shoal_release(b);
    }
    kill_must(stage, err, "pipe");
}

/* ---- locks ---- */

static bool enter_guard(kill_stage *stage, kill_guard *guard, shoal_err err, const char *what)
{
    if (is_late(err)) {
        return false;
    }
    if (err != SHOAL_OK) {
        kill_must(stage, err, what);
        return false;
    }
    if (kill_guard_died(stage, guard)) {
        sh_store_relaxed(&guard->inside, 0);
    }
    kill_must(stage, kill_guard_mark(stage, guard), what); /* a death from here on is another one */
    uint32_t other = sh_swap_acq_rel(&guard->inside, (uint32_t)getpid());
    if (other != 0) {
        kill_fail(stage, "%s: process %u is inside as well, or died there and this was not reported", what, other);
    }
    return true;
}

static void leave_guard(kill_stage *stage, kill_guard *guard, const char *what)
{
    uint32_t me = sh_swap_acq_rel(&guard->inside, 0);
    if (me != (uint32_t)getpid()) {
        kill_fail(stage, "%s: process %u came inside as well", what, me);
    }
}

/* Sometimes waits long enough for other processes to park. */
static void linger(uint64_t *random)
{
    int64_t until = sh_now() + (sh_splitmix_below(random, 4) == 0 ? SHOAL_MS(1) / 10 : 0);
    while (sh_now() < until) {
        sh_pause();
    }
}

static void lock(kill_stage *stage, uint64_t *random)
{
    kill_guard *guard = &stage->board->lock;
    if (enter_guard(stage, guard, shoal_lock_lock(stage->lock, WAIT_LOCK), "lock")) {
        linger(random);
        leave_guard(stage, guard, "lock");
        kill_must(stage, shoal_lock_unlock(stage->lock), "unlock");
    }
}

/* Holds a lock until another process is parked at it, for at most a millisecond. */
static void until_awaited(shoal_lock *held)
{
    sh_lock_shm *shm = (sh_lock_shm *)((shoal_block *)held)->data;
    int64_t until = sh_now() + SHOAL_MS(1);
    while (sh_load_relaxed(&shm->gate.word) >> 31 == 0 && sh_now() < until) {
        sh_pause();
    }
}

/* Takes a lock whose owner has died, or is refused because it wants a consistent one. */
static void unmarked_lock(kill_stage *stage, uint64_t *random)
{
    kill_guard *guard = &stage->board->unmarked;
    if (sh_splitmix_below(random, 2) == 0) {
        shoal_err err = shoal_lock_lock_consistent(stage->unmarked, WAIT_LOCK);
        if (err != SHOAL_EOWNERDEAD && !is_late(err)) {
            kill_fail(stage, "a lock that nobody marked is consistent: %s", shoal_err_name(err));
        }
    } else if (enter_guard(stage, guard, shoal_lock_lock(stage->unmarked, WAIT_LOCK), "unmarked lock")) {
        until_awaited(stage->unmarked);
        leave_guard(stage, guard, "unmarked lock");
        kill_must(stage, shoal_lock_unlock(stage->unmarked), "unlock");
    }
}

static void rlock(kill_stage *stage, uint64_t *random)
{
    (void)random;
    kill_guard *guard = &stage->board->rlock;
    if (enter_guard(stage, guard, shoal_rlock_lock(stage->rlock, WAIT_LOCK), "rlock")) {
        kill_must(stage, shoal_rlock_lock(stage->rlock, SHOAL_NOW), "rlock again");
        kill_must(stage, shoal_rlock_unlock(stage->rlock), "unlock of an rlock");
        leave_guard(stage, guard, "rlock");
        kill_must(stage, shoal_rlock_unlock(stage->rlock), "last unlock of an rlock");
    }
}

/* Takes all of the semaphore, or as much as it gets in time. */
static void semaphore(kill_stage *stage, uint64_t *random)
{
    uint32_t want = 1 + (uint32_t)sh_splitmix_below(random, KILL_SEMAPHORE), have = 0;
    shoal_err err = SHOAL_OK;
    while (have < want && (err = shoal_semaphore_wait(stage->semaphore, WAIT_SHORT)) == SHOAL_OK) {
        have++;
    }
    if (err != SHOAL_OK && !is_late(err)) {
        kill_must(stage, err, "semaphore_wait");
    }
    linger(random);
    kill_must(stage, shoal_semaphore_post(stage->semaphore, have), "semaphore_post");
}

static void event(kill_stage *stage, uint64_t *random)
{
    switch (sh_splitmix_below(random, 3)) {
    case 0: shoal_event_set(stage->event); break;
    case 1: shoal_event_clear(stage->event); break;
    default: {
        shoal_err err = shoal_event_wait(stage->event, WAIT_SHORT);
        if (!is_late(err)) {
            kill_must(stage, err, "event_wait");
        }
    }
    }
}

/* Waits a few times. Enough of the waits time out for the queue of waiters to be purged. */
static void condition_wait(kill_stage *stage, uint64_t *random)
{
    kill_guard *guard = &stage->board->condition;
    if (!enter_guard(stage, guard, shoal_condition_lock(stage->condition, WAIT_LOCK), "condition_lock")) {
        return;
    }
    uint64_t n = 1 + sh_splitmix_below(random, 20);
    for (uint64_t i = 0; i < n; i++) {
        leave_guard(stage, guard, "condition");
        shoal_err err = shoal_condition_wait(stage->condition, n > 4 ? 1000 : WAIT_SHORT);
        bool held =
            is_late(err) || kill_is_tight(stage, err); /* the lock is held: if it had no memory, it did not wait */
        if (!enter_guard(stage, guard, held ? SHOAL_OK : err, "condition_wait")) {
            return;
        }
    }
    leave_guard(stage, guard, "condition");
    kill_must(stage, shoal_condition_unlock(stage->condition), "condition_unlock");
}

static void condition_notify(kill_stage *stage, uint64_t *random)
{
    kill_guard *guard = &stage->board->condition;
    shoal_queue *waiters = (shoal_queue *)((shoal_block *)stage->condition)->parts[1];
    for (int i = 0; i < 50 && shoal_queue_size(waiters) == 0; i++) { /* notifying has no effect without a waiter */
        sched_yield();
    }
    if (enter_guard(stage, guard, shoal_condition_lock(stage->condition, WAIT_LOCK), "condition_lock")) {
        shoal_err err = sh_splitmix_below(random, 3) == 0 ? shoal_condition_notify_all(stage->condition)
                                                          : shoal_condition_notify(stage->condition, 1);
        kill_must(stage, err, "notify");
        leave_guard(stage, guard, "condition");
        kill_must(stage, shoal_condition_unlock(stage->condition), "condition_unlock");
    }
}

static void barrier(kill_stage *stage, uint64_t *random)
{
    uint32_t index;
    (void)random;
    shoal_err err = shoal_barrier_wait(stage->barrier, WAIT_SHORT, &index);
    if (err != SHOAL_OK && err != SHOAL_EBROKEN && !is_late(err)) {
        kill_must(stage, err, "barrier_wait");
    }
    if (err != SHOAL_OK) {
        shoal_barrier_reset(stage->barrier);
    }
}

/* ---- the channels ---- */

#define CHANNEL_STEPS(name, channel)                                                                                   \
    static void put_##name(kill_stage *stage, uint64_t *random)                                                        \
    {                                                                                                                  \
        kill_put(stage, channel, random);                                                                              \
    }                                                                                                                  \
    static void get_##name(kill_stage *stage, uint64_t *random)                                                        \
    {                                                                                                                  \
        (void)random;                                                                                                  \
        kill_get(stage, channel);                                                                                      \
    }

CHANNEL_STEPS(words, KILL_WORDS)
CHANNEL_STEPS(bytes, KILL_BYTES)
CHANNEL_STEPS(blocks, KILL_BLOCKS)
CHANNEL_STEPS(values, KILL_VALUES)
CHANNEL_STEPS(bounded, KILL_BOUNDED)
CHANNEL_STEPS(objects, KILL_OBJECTS)
CHANNEL_STEPS(tasks, KILL_TASKS)
CHANNEL_STEPS(deliveries, KILL_DELIVERIES)
CHANNEL_STEPS(tensors, KILL_TENSORS)
CHANNEL_STEPS(pieces, KILL_PIECES)
CHANNEL_STEPS(leases, KILL_LEASES)

static void get_leases_rejected(kill_stage *stage, uint64_t *random)
{
    (void)random;
    kill_get(stage, KILL_REJECTS);
}

const kill_step kill_steps[] = {
    {"block_small", block_small, KILL_BY_ALL},
    {"block_64k", block_64k, KILL_BY_ALL},
    {"block_private", block_private, KILL_BY_ALL},
    {"block_300k", block_300k, KILL_BY_ALL},
    {"block_5m", block_5m, KILL_BY_VICTIM},
    {"block_hoard", block_hoard, KILL_BY_HAND},
    {"cells", cells, KILL_BY_ALL},
    {"spans", spans, KILL_BY_HAND},
    {"trim", trim, KILL_BY_ALL},
    {"uncover", uncover, KILL_BY_ALL},
    {"gather", gather, KILL_BY_ALL},
    {"put_words", put_words, KILL_BY_ALL},
    {"get_words", get_words, KILL_BY_ALL},
    {"put_bytes", put_bytes, KILL_BY_ALL},
    {"get_bytes", get_bytes, KILL_BY_ALL},
    {"put_blocks", put_blocks, KILL_BY_ALL},
    {"get_blocks", get_blocks, KILL_BY_ALL},
    {"put_values", put_values, KILL_BY_ALL},
    {"get_values", get_values, KILL_BY_ALL},
    {"put_bounded", put_bounded, KILL_BY_ALL},
    {"get_bounded", get_bounded, KILL_BY_ALL},
    {"put_objects", put_objects, KILL_BY_ALL},
    {"get_objects", get_objects, KILL_BY_ALL},
    {"put_tasks", put_tasks, KILL_BY_ALL},
    {"get_tasks", get_tasks, KILL_BY_ALL},
    {"put_tensors", put_tensors, KILL_BY_ALL},
    {"get_tensors", get_tensors, KILL_BY_ALL},
    {"put_deliveries", put_deliveries, KILL_BY_ALL},
    {"get_deliveries", get_deliveries, KILL_BY_ALL},
    {"put_leases", put_leases, KILL_BY_ALL},
    {"get_leases", get_leases, KILL_BY_ALL},
    {"get_leases_rejected", get_leases_rejected, KILL_BY_ALL},
    {"reject", reject, KILL_BY_ALL},
    {"put_pieces", put_pieces, KILL_BY_ALL},
    {"get_pieces", get_pieces, KILL_BY_ALL},
    {"granule", kill_granule_step, KILL_BY_ALL},
    {"timeline", kill_timeline_step, KILL_BY_ALL},
    {"tensor", kill_tensor_step, KILL_BY_ALL},
    {"grow", grow, KILL_BY_ALL},
    {"pipe", pipe_step, KILL_BY_ALL},
    {"lock", lock, KILL_BY_ALL},
    {"unmarked_lock", unmarked_lock, KILL_BY_ALL},
    {"rlock", rlock, KILL_BY_ALL},
    {"semaphore", semaphore, KILL_BY_ALL},
    {"event", event, KILL_BY_ALL},
    {"condition_wait", condition_wait, KILL_BY_ALL},
    {"condition_notify", condition_notify, KILL_BY_ALL},
    {"barrier", barrier, KILL_BY_ALL},
    {"fork", kill_fork_step, KILL_BY_VICTIM},
    {"fork_plain", kill_fork_plain_step, KILL_BY_VICTIM},
    {"join", kill_join_step, KILL_BY_VICTIM},
    {"cancel", kill_cancel_step, KILL_BY_VICTIM},
    {"start_fork", kill_start_fork_step, KILL_BY_HAND},
    {"start_spawn", kill_start_spawn_step, KILL_BY_HAND},
    {"start_server", kill_start_server_step, KILL_BY_HAND},
    {"start_program", kill_start_program_step, KILL_BY_HAND},
    {"start_served", kill_start_served_step, KILL_BY_HAND},
    {"start_pool", kill_start_pool_step, KILL_BY_HAND},
};

const int kill_step_count = sizeof kill_steps / sizeof kill_steps[0];
_Static_assert(sizeof kill_steps / sizeof kill_steps[0] <= KILL_STEPS_MAX, "the board has a row for each step");
