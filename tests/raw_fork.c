/* A fork behind Shoal's back: the child holds nothing and is told so, the parent is unharmed, and the child may begin anew. */
#include "sync/atomic.h"
#include "tests/children.h"

#include <stdlib.h>
#include <sys/wait.h>

typedef struct things {
    shoal_queue *queue;
    shoal_block *block;
    shoal_pipe *a, *b;
    shoal_lock *lock;
    shoal_rlock *rlock;
    shoal_semaphore *semaphore;
    shoal_condition *condition;
    shoal_event *event;
    shoal_barrier *barrier;
} things;

static void things_make(things *t)
{
    ck_assert_ok(shoal_queue_create(2, &t->queue));
    ck_assert_ok(shoal_block_create_zeroed(100, &t->block));
    ck_assert_ok(shoal_pipe_create(true, &t->a, &t->b));
    ck_assert_ok(shoal_lock_create(&t->lock));
    ck_assert_ok(shoal_rlock_create(&t->rlock));
    ck_assert_ok(shoal_semaphore_create(1, 2, &t->semaphore));
    ck_assert_ok(shoal_condition_create(&t->condition));
    ck_assert_ok(shoal_event_create(&t->event));
    ck_assert_ok(shoal_barrier_create(2, &t->barrier));
    ck_assert_ok(shoal_queue_put_bytes(t->queue, "a message that stays", 20, LIMIT));
    memcpy(shoal_block_data(t->block), "bytes that stay", 16);
}

/* All is as things_make left it. */
static void things_check(things *t)
{
    char buffer[32];
    size_t size = 0;
    ck_assert_uint_eq(shoal_queue_size(t->queue), 1);
    ck_assert_ok(shoal_queue_get_bytes(t->queue, buffer, sizeof buffer, SHOAL_NOW, &size));
    ck_assert_mem_eq(buffer, "a message that stays", 20);
    ck_assert_ok(shoal_queue_put_bytes(t->queue, "not closed", 10, SHOAL_NOW));
    ck_assert_str_eq(shoal_block_data(t->block), "bytes that stay");
    ck_assert_err(shoal_pipe_poll(t->a, SHOAL_NOW), SHOAL_ETIMEDOUT);
    ck_assert_ok(shoal_lock_lock(t->lock, SHOAL_NOW));
    ck_assert_ok(shoal_lock_unlock(t->lock));
    ck_assert_ok(shoal_rlock_lock(t->rlock, SHOAL_NOW));
    ck_assert_ok(shoal_rlock_unlock(t->rlock));
    ck_assert_uint_eq(shoal_semaphore_value(t->semaphore), 1);
    ck_assert_ok(shoal_condition_lock(t->condition, SHOAL_NOW));
    ck_assert_ok(shoal_condition_unlock(t->condition));
    ck_assert(!shoal_event_is_set(t->event));
    ck_assert(!shoal_barrier_is_broken(t->barrier));
    ck_assert_uint_eq(shoal_barrier_waiting(t->barrier), 0);
    sh_assert_audit("after the fork");
}

static void things_release(things *t)
{
    void *const all[] = {t->queue, t->block,     t->a,         t->b,     t->lock,
                         t->rlock, t->semaphore, t->condition, t->event, t->barrier};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        shoal_release(all[i]);
    }
}

/* In the child: a wrong answer in words, and the number of them. */
static int wrong;

static void expect(const char *what, shoal_err err)
{
    if (err != SHOAL_EFORK) {
        fprintf(stderr, "in a forked child: %s: %s, not SHOAL_EFORK\n", what, shoal_err_name(err));
        wrong++;
    }
}

#define refused(call) expect(#call, call)

static shoal_err nothing(int rank, const shoal_value *args)
{
    (void)rank;
    (void)args;
    return SHOAL_OK;
}

static void try_everything(things *t)
{
    shoal_block *b;
    shoal_queue *q;
    shoal_lock *lock;
    shoal_process *p;
    shoal_value *v = shoal_value_keep(shoal_value_int(1)), *got;
    shoal_world_info info;
    shoal_audit audit;
    char byte;
    size_t size;
    uint32_t index;
    refused(shoal_block_create(10, &b));
    refused(shoal_queue_create(0, &q));
    refused(shoal_lock_create(&lock));
    refused(shoal_queue_put(t->queue, v, SHOAL_NOW));
    refused(shoal_queue_put_bytes(t->queue, "a longer message", 16, SHOAL_NOW));
    refused(shoal_queue_put_block(t->queue, t->block, SHOAL_NOW));
    refused(shoal_queue_get(t->queue, SHOAL_NOW, &got));
    refused(shoal_queue_get_bytes(t->queue, &byte, 1, SHOAL_NOW, &size));
    refused(shoal_queue_get_block(t->queue, SHOAL_NOW, &b));
    refused(shoal_pipe_send(t->a, v, SHOAL_NOW));
    refused(shoal_pipe_recv(t->a, SHOAL_NOW, &got));
    refused(shoal_pipe_poll(t->a, SHOAL_NOW));
    refused(shoal_lock_lock(t->lock, SHOAL_NOW));
    refused(shoal_rlock_lock(t->rlock, SHOAL_NOW));
    refused(shoal_semaphore_wait(t->semaphore, SHOAL_NOW));
    refused(shoal_semaphore_post(t->semaphore, 1));
    refused(shoal_condition_lock(t->condition, SHOAL_NOW));
    refused(shoal_event_wait(t->event, SHOAL_NOW));
    refused(shoal_barrier_wait(t->barrier, SHOAL_NOW, &index));
    refused(shoal_world_info_get(&info));
    refused(shoal_world_sweep(NULL));
    refused(shoal_world_trim());
    refused(shoal_world_audit(&audit));
    refused(shoal_process_start(nothing, NULL, NULL, &p));
    refused(shoal_wait(&(shoal_waitable){.queue = t->queue}, 1, SHOAL_NOW));
    refused(shoal_wait(&(shoal_waitable){.pipe = t->a}, 1, SHOAL_NOW));
    refused(shoal_value_object(t->queue) == NULL ? shoal_last_error() : SHOAL_OK);
    shoal_event_set(t->event); /* these cannot say no, but they do nothing */
    shoal_barrier_abort(t->barrier);
    shoal_queue_close(t->queue);
    shoal_release(t->block);
    shoal_release(t->queue);
    shoal_value_destroy(v);
}

/* A world of its own, after the parent's was let go. */
static void begin_anew(void)
{
    shoal_block *b = NULL;
    shoal_world_info info;
    shoal_world_leave();
    if (shoal_block_create(100, &b) != SHOAL_OK || shoal_world_info_get(&info) != SHOAL_OK || info.processes != 1) {
        fprintf(stderr, "begin anew: %s\n", shoal_last_error_text());
        wrong++;
    }
    shoal_release(b);
}

START_TEST(a_raw_forked_child_is_refused_and_harms_nobody)
{
    for (int round = 0; round < 30; round++) {
        things t;
        int status;
        things_make(&t);
        pid_t pid = fork();
        ck_assert_int_ge(pid, 0);
        if (pid == 0) {
            if (round % 3 != 2) {
                try_everything(&t);
            }
            if (round % 3 == 1) {
                begin_anew();
                shoal_world_leave();
            }
            if (round % 2 == 0) {
                _exit(wrong);
            }
            quick_exit(wrong);
        }
        ck_assert_int_eq(waitpid(pid, &status, 0), pid);
        ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == 0, "the child ended with status %x: see above",
                      (unsigned)status);
        things_check(&t);
        things_release(&t);
    }
}
END_TEST

/* It ends by exit, with the handlers that the library left: they are the parent's affair. */
START_TEST(a_raw_forked_child_that_exits_leaves_the_parent_in_its_world)
{
    things t;
    int status;
    things_make(&t);
    fflush(NULL);
    pid_t pid = fork();
    ck_assert_int_ge(pid, 0);
    if (pid == 0) {
        exit(0);
    }
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert_int_eq(status, 0);
    uint32_t recovered = 9;
    ck_assert_ok(shoal_world_sweep(&recovered));
    ck_assert_uint_eq(recovered, 0);
    things_check(&t);
    things_release(&t);
}
END_TEST

/* Our children by fork are no such strangers, even when a thread of ours forks by itself meanwhile. */
static shoal_err use_block(int rank, const shoal_value *args)
{
    sh_add_relaxed((sh_a64 *)shoal_block_data(ARG(block, "block")), (uint64_t)rank);
    return SHOAL_OK;
}

START_TEST(a_raw_fork_between_two_starts_changes_nothing)
{
    shoal_block *b;
    ck_assert_ok(shoal_block_create_zeroed(8, &b));
    for (int i = 1; i <= 10; i++) {
        shoal_process *p = start(_i, i, use_block, shoal_map("block", b));
        pid_t pid = fork();
        if (pid == 0) {
            _exit(shoal_world_sweep(NULL) == SHOAL_EFORK ? 0 : 1);
        }
        int status;
        ck_assert_int_eq(waitpid(pid, &status, 0), pid);
        ck_assert_int_eq(status, 0);
        finish(p);
    }
    ck_assert_uint_eq(sh_load_relaxed((sh_a64 *)shoal_block_data(b)), 55);
    shoal_release(b);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("raw_fork");
    TCase *tc = children_case("raw_fork");
    tcase_add_test(tc, a_raw_forked_child_is_refused_and_harms_nobody);
    tcase_add_test(tc, a_raw_forked_child_that_exits_leaves_the_parent_in_its_world);
    add_for_methods(tc, a_raw_fork_between_two_starts_changes_nothing);
    suite_add_tcase(s, tc);
    return s;
}

SH_TEST_MAIN(suite)
