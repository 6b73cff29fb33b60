/* Every end of a process is at least as safe as SIGKILL (docs/world.md, "Ends"). */
#include "base/clock.h"
#include "base/random.h"
#include "shm/block.h"
#include "sync/atomic.h"
#include "tests/harness/children.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>

/* LeakSanitizer must ignore what a process leaks that exits in the middle of a call. */
int __lsan_is_turned_off(void);
int __lsan_is_turned_off(void)
{
    return 1;
}

/* ---- exit in a signal handler ---- */

static sh_a32 waits;

static void exit_at_once(int number)
{
    (void)number;
    exit(EXIT_SUCCESS);
}

/* The signal must go to the thread that works. */
static void *wait_for_ever(void *nothing)
{
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, NULL);
    sh_store_release(&waits, 1);
    for (;;) {
        pause();
    }
    return nothing;
}

/* Sends blocks and messages to itself until the signal arrives. */
static shoal_err work_until_told(int rank, const shoal_value *args)
{
    shoal_queue *q = ARG(queue, "queue");
    pthread_t thread;
    must(rank == 0 || pthread_create(&thread, NULL, wait_for_ever, NULL) == 0);
    must(signal(SIGTERM, exit_at_once) != SIG_ERR);
    while (rank != 0 && sh_load_acquire(&waits) == 0) {
    }
    must_ok(shoal_queue_put_bytes(ARG(queue, "ready"), "x", 1, LIMIT));
    for (;;) {
        shoal_block *kept, *b;
        char bytes[100] = "bytes", got[100];
        size_t size;
        must_ok(shoal_block_create(300, &kept));
        must_ok(shoal_queue_put_block(q, kept, LIMIT));
        must_ok(shoal_queue_put_bytes(q, bytes, sizeof bytes, LIMIT));
        must_ok(shoal_queue_get_block(q, LIMIT, &b));
        must_ok(shoal_queue_get_bytes(q, got, sizeof got, LIMIT, &size));
        shoal_release(kept);
        shoal_release(b);
    }
}

/* exit() from a signal handler in the middle of an operation. If _i is 1, a second thread keeps what is held until the
 * process is gone. */
START_TEST(exit_in_a_handler_leaves_nothing_half_done)
{
    uint64_t random = 7;
    shoal_queue *ready;
    ck_assert_ok(shoal_queue_create(0, &ready));
    for (int i = 0; i < SH_REPEAT(100); i++) {
        shoal_queue *q;
        shoal_world_info info;
        ck_assert_ok(shoal_queue_create(0, &q));
        shoal_process *p = start(SHOAL_START_FORK, _i, work_until_told, shoal_map("queue", q, "ready", ready));
        until_told(ready);
        int64_t until = sh_now() + (int64_t)sh_splitmix_below(&random, 100000);
        while (sh_now() < until) {
        }
        ck_assert_ok(shoal_process_terminate(p));
        finish_as(p, SHOAL_PROCESS_EXITED, 0);
        sh_assert_audit("after an exit in a handler");
        shoal_release(q);
        ck_assert_ok(shoal_world_info_get(&info));
        ck_assert_msg(info.blocks_live == 2, "%llu blocks are left, not a queue and its ring",
                      (unsigned long long)info.blocks_live);
    }
    shoal_release(ready);
}
END_TEST

/* ---- calls after the end has begun ---- */

/* Shared memory outside the world. Synchronisation: both sides write stage in turn. */
typedef struct board {
    sh_a32 stage;
    char failure[300];
} board;

static board *common;

static struct {
    shoal_queue *queue;
    shoal_pipe *pipe;
    shoal_block *block;
    shoal_lock *lock;
    shoal_rlock *rlock;
    shoal_semaphore *semaphore;
    shoal_event *event;
    shoal_condition *condition;
    shoal_barrier *barrier;
} late;

static void until_stage(uint32_t stage)
{
    int64_t deadline = sh_deadline(LIMIT);
    while (sh_load_acquire(&common->stage) < stage && !sh_passed(deadline)) {
        sched_yield();
    }
}

static void expect_refusal(const char *what, shoal_err err)
{
    if (err != SHOAL_ESTATE && common->failure[0] == 0) {
        snprintf(common->failure, sizeof common->failure, "%s: %s, not SHOAL_ESTATE", what, shoal_err_name(err));
    }
}

#define refused(call) expect_refusal(#call, call)

static shoal_err nothing(int rank, const shoal_value *args)
{
    (void)rank;
    (void)args;
    return SHOAL_OK;
}

static void call_everything(void)
{
    shoal_block *b;
    shoal_queue *q;
    shoal_lock *lock;
    shoal_pipe *a, *c;
    shoal_process *p;
    shoal_value *got;
    shoal_world_info info;
    shoal_audit audit;
    char bytes[32] = "a longer message";
    size_t size;
    refused(shoal_block_create(10, &b));
    refused(shoal_queue_create(0, &q));
    refused(shoal_pipe_create(true, &a, &c));
    refused(shoal_lock_create(&lock));
    refused(shoal_queue_put(late.queue, shoal_value_int(1), SHOAL_NOW));
    refused(shoal_queue_put(late.queue, shoal_value_string("text"), SHOAL_NOW));
    refused(shoal_queue_put_bytes(late.queue, "x", 1, SHOAL_NOW));
    refused(shoal_queue_put_bytes(late.queue, bytes, sizeof bytes, SHOAL_NOW));
    refused(shoal_queue_put_block(late.queue, late.block, SHOAL_NOW));
    refused(shoal_queue_give_block(late.queue, late.block, SHOAL_NOW));
    refused(shoal_queue_get(late.queue, SHOAL_NOW, &got));
    refused(shoal_queue_get_bytes(late.queue, bytes, sizeof bytes, SHOAL_NOW, &size));
    refused(shoal_queue_get_block(late.queue, SHOAL_NOW, &b));
    refused(shoal_queue_task_done(late.queue));
    refused(shoal_queue_join(late.queue, SHOAL_NOW));
    refused(shoal_pipe_send(late.pipe, shoal_value_int(1), SHOAL_NOW));
    refused(shoal_pipe_recv(late.pipe, SHOAL_NOW, &got));
    refused(shoal_pipe_poll(late.pipe, SHOAL_NOW));
    refused(shoal_lock_lock(late.lock, SHOAL_NOW));
    refused(shoal_lock_unlock(late.lock));
    refused(shoal_rlock_lock(late.rlock, SHOAL_NOW));
    refused(shoal_rlock_unlock(late.rlock));
    refused(shoal_semaphore_wait(late.semaphore, SHOAL_NOW));
    refused(shoal_semaphore_post(late.semaphore, 1));
    refused(shoal_event_wait(late.event, SHOAL_NOW));
    refused(shoal_condition_lock(late.condition, SHOAL_NOW));
    refused(shoal_barrier_wait(late.barrier, SHOAL_NOW, NULL));
    refused(shoal_wait(&(shoal_waitable){.queue = late.queue}, 1, SHOAL_NOW));
    refused(shoal_world_create(NULL));
    refused(shoal_world_info_get(&info));
    refused(shoal_world_sweep(NULL));
    refused(shoal_world_trim());
    refused(shoal_world_audit(&audit));
    refused(shoal_process_start(nothing, shoal_value_null(), NULL, &p));
    refused(shoal_value_of(late.queue) == NULL ? shoal_last_error() : SHOAL_OK);
    shoal_event_set(late.event); /* these calls cannot fail, but they do nothing */
    shoal_event_clear(late.event);
    shoal_barrier_abort(late.barrier);
    shoal_queue_close(late.queue);
    shoal_release(late.queue);
    shoal_world_leave();
}

/* Registered before main in all processes of this program, so it runs after the library's handlers. */
static void call_late(void)
{
    if (common != NULL && late.block != NULL) {
        call_everything();
        sh_store_release(&common->stage, 1);
        until_stage(2); /* by then the parent has taken all blocks of this size */
        memset(shoal_block_data(late.block), 0xee, 100);
        sh_store_release(&common->stage, 3);
    }
}

__attribute__((constructor)) static void register_early(void)
{
    atexit(call_late);
}

/* Runs when a C++ static would be destroyed. */
static void call_as_static(void)
{
    if (late.block != NULL) {
        refused(shoal_semaphore_post(late.semaphore, 1));
    }
}

static shoal_err end_with_late_calls(int rank, const shoal_value *args)
{
    late.queue = shoal_retain(ARG(queue, "queue"));
    late.pipe = shoal_retain(ARG(pipe, "pipe"));
    late.lock = shoal_retain(ARG(lock, "lock"));
    late.rlock = shoal_retain(ARG(rlock, "rlock"));
    late.semaphore = shoal_retain(ARG(semaphore, "semaphore"));
    late.event = shoal_retain(ARG(event, "event"));
    late.condition = shoal_retain(ARG(condition, "condition"));
    late.barrier = shoal_retain(ARG(barrier, "barrier"));
    must_ok(shoal_block_create(100, &late.block));
    (void)rank;
    exit(EXIT_SUCCESS);
}

/* An atexit handler that was registered before the first call, and code that runs even later. */
START_TEST(calls_after_the_end_are_refused_and_touch_nothing)
{
    enum { COUNT = 40 };
    shoal_block *mine[COUNT];
    shoal_queue *q;
    shoal_pipe *a, *b;
    shoal_lock *lock;
    shoal_rlock *rlock;
    shoal_semaphore *semaphore;
    shoal_event *event;
    shoal_condition *condition;
    shoal_barrier *barrier;
    atexit(call_as_static);
    common = mmap(NULL, sizeof *common, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ck_assert_ptr_ne(common, MAP_FAILED);
    ck_assert_ok(shoal_queue_create(0, &q));
    ck_assert_ok(shoal_pipe_create(true, &a, &b));
    ck_assert_ok(shoal_lock_create(&lock));
    ck_assert_ok(shoal_rlock_create(&rlock));
    ck_assert_ok(shoal_semaphore_create(1, 5, &semaphore));
    ck_assert_ok(shoal_event_create(&event));
    ck_assert_ok(shoal_condition_create(&condition));
    ck_assert_ok(shoal_barrier_create(2, &barrier));
    shoal_process *p = start(SHOAL_START_FORK, 0, end_with_late_calls,
                             shoal_map("queue", q, "pipe", b, "lock", lock, "rlock", rlock, "semaphore", semaphore,
                                       "event", event, "condition", condition, "barrier", barrier));
    until_stage(1);
    for (int i = 0; i < COUNT; i++) {
        ck_assert_ok(shoal_block_create_zeroed(100, &mine[i]));
    }
    sh_store_release(&common->stage, 2);
    until_stage(3);
    for (int i = 0; i < COUNT; i++) {
        const char *data = shoal_block_data(mine[i]);
        for (int k = 0; k < 100; k++) {
            ck_assert_msg(data[k] == 0, "a process that was ending wrote into a block of another");
        }
        shoal_release(mine[i]);
    }
    finish_as(p, SHOAL_PROCESS_EXITED, 0);
    ck_assert_msg(common->failure[0] == 0, "%s", common->failure);
    ck_assert_uint_eq(shoal_semaphore_value(semaphore), 1);
    ck_assert_ok(shoal_lock_lock(lock, SHOAL_NOW)); /* nobody held it */
    ck_assert_ok(shoal_lock_unlock(lock));
    ck_assert_uint_eq(shoal_queue_size(q), 0);
    ck_assert_ok(shoal_queue_put_bytes(q, "x", 1, SHOAL_NOW)); /* it is not closed */
    void *const all[] = {q, a, b, lock, rlock, semaphore, event, condition, barrier};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        sh_block_release(all[i]);
    }
    munmap(common, sizeof *common);
    common = NULL;
}
END_TEST

/* ---- a target that returns while a thread runs ---- */

static void *write_for_ever(void *data)
{
    for (;;) {
        sh_racy_store((sh_a64 *)data, 1);
    }
    return NULL;
}

static sh_a64 *written;

/* Replaces the C library's function, for the library too.
 * At this last moment of a forked target the thread still writes. */
void _exit(int status)
{
    if (written != NULL) {
        sh_racy_store(written, 0);
        while (sh_racy_load(written) == 0) {
            sched_yield();
        }
    }
    syscall(SYS_exit_group, status);
    __builtin_unreachable();
}

static shoal_err return_beside_a_writer(int rank, const shoal_value *args)
{
    pthread_t thread;
    void *data = shoal_block_data(ARG(block, "block"));
    must(pthread_create(&thread, NULL, write_for_ever, data) == 0);
    written = data;
    return rank == 0 ? SHOAL_OK : shoal_fail(SHOAL_EINVAL, "as requested");
}

/* With every start method, a target that returned is not reported as killed. */
START_TEST(a_target_may_return_while_a_thread_writes)
{
    for (int i = 0; i < 10; i++) {
        shoal_block *b;
        ck_assert_ok(shoal_block_create_zeroed(8, &b));
        shoal_process *p = start(_i, i % 2, return_beside_a_writer, shoal_map("block", b));
        if (i % 2 == 0) {
            finish(p);
        } else {
            finish_as(p, SHOAL_PROCESS_FAILED, EXIT_FAILURE);
        }
        shoal_release(b);
    }
}
END_TEST

/* ---- exit in the middle of leaving ---- */

static enum { NOWHERE, BEFORE_UNMAP, AFTER_UNMAP } exit_where;
static bool exits_quickly;

static void exit_somehow(void)
{
    exit_where = NOWHERE;
    if (exits_quickly) {
        quick_exit(EXIT_SUCCESS);
    }
    exit(EXIT_SUCCESS);
}

/* Replaces the C library's function, for the library too. When the world is unmapped, its slot is already free. */
int munmap(void *at, size_t size)
{
    bool is_world = size >= (size_t)1 << 29;
    if (is_world && exit_where == BEFORE_UNMAP) {
        exit_somehow();
    }
    int result = (int)syscall(SYS_munmap, at, size);
    if (is_world && exit_where == AFTER_UNMAP) {
        exit_somehow();
    }
    return result;
}

static void *hold_a_thread(void *nothing_at_all)
{
    return nothing_at_all;
}

/* Does what a signal handler would that interrupts shoal_world_leave. Earlier, the second case ended by SIGSEGV in
 * sh_slot_end. Bit 0 of _i says where, bit 1 how. */
START_TEST(exit_in_the_middle_of_leaving)
{
    shoal_queue *q;
    ck_assert_ok(shoal_queue_create(0, &q));
    for (int threads = 0; threads < 2; threads++) {
        fflush(NULL);
        pid_t pid = fork();
        if (pid == 0) {
            pthread_t thread;
            shoal_block *b;
            alarm(20);
            signal(SIGSEGV, SIG_DFL);
            if (shoal_block_create(1000, &b) != SHOAL_OK ||
                (threads > 0 &&
                 (pthread_create(&thread, NULL, hold_a_thread, NULL) != 0 || pthread_join(thread, NULL) != 0))) {
                _exit(2);
            }
            exits_quickly = (_i & 2) != 0;
            exit_where = (_i & 1) == 0 ? BEFORE_UNMAP : AFTER_UNMAP;
            shoal_world_leave();
            _exit(3);
        }
        int status;
        ck_assert_int_eq(waitpid(pid, &status, 0), pid);
        ck_assert_msg(status == 0, "status %x", (unsigned)status);
    }
    ck_assert_ok(shoal_queue_put_bytes(q, "x", 1, SHOAL_NOW));
    ck_assert_ok(shoal_world_sweep(NULL));
    sh_assert_audit("after exits in the middle of leaving");
    shoal_release(q);
}
END_TEST

/* ---- the table of docs/world.md ---- */

typedef enum way { RETURN, FAIL, EXIT, EXIT_IN_HANDLER, QUICK_EXIT, UNDERSCORE_EXIT, KILL, WAYS } way;

static shoal_err end_this_way(int rank, const shoal_value *args)
{
    shoal_block *b;
    must_ok(shoal_block_create(5000, &b));
    must_ok(shoal_lock_lock(ARG(lock, "lock"), LIMIT));
    switch ((way)rank) {
    case RETURN: return SHOAL_OK;
    case FAIL: return shoal_fail(SHOAL_EINVAL, "as requested");
    case EXIT: exit(EXIT_SUCCESS);
    case EXIT_IN_HANDLER:
        signal(SIGTERM, exit_at_once);
        raise(SIGTERM);
        break;
    case QUICK_EXIT: quick_exit(EXIT_SUCCESS);
    case UNDERSCORE_EXIT: _exit(EXIT_SUCCESS);
    default: raise(SIGKILL); break;
    }
    return SHOAL_ESTATE;
}

START_TEST(what_others_are_told_of_each_end)
{
    for (int method = SHOAL_START_SPAWN; method <= SHOAL_START_FORKSERVER; method++) {
        static const shoal_end ends[WAYS] = {
            [RETURN] = SHOAL_PROCESS_RETURNED, [FAIL] = SHOAL_PROCESS_FAILED, [KILL] = SHOAL_PROCESS_KILLED};
        bool is_death = _i == UNDERSCORE_EXIT || _i == KILL;
        shoal_lock *lock;
        shoal_barrier *barrier;
        shoal_pipe *a, *b;
        shoal_value *got;
        ck_assert_ok(shoal_lock_create(&lock));
        ck_assert_ok(shoal_barrier_create(2, &barrier));
        ck_assert_ok(shoal_pipe_create(true, &a, &b));
        shoal_process *p = start(method, _i, end_this_way, shoal_map("lock", lock, "barrier", barrier, "pipe", b));
        shoal_release(b);
        /* Before the join: the end alone informs them. */
        ck_assert_err(shoal_pipe_recv(a, LIMIT, &got), SHOAL_ECLOSED);
        ck_assert_ok(shoal_lock_lock(lock, LIMIT));
        ck_assert(shoal_lock_owner_died(lock));
        ck_assert_ok(shoal_lock_unlock(lock));
        finish_as(p, _i == RETURN || _i == FAIL || _i == KILL ? ends[_i] : SHOAL_PROCESS_EXITED,
                  _i == FAIL   ? EXIT_FAILURE
                  : _i == KILL ? SIGKILL
                               : EXIT_SUCCESS);
        ck_assert_int_eq(shoal_barrier_is_broken(barrier), is_death);
        sh_assert_audit("after an end");
        shoal_release(lock);
        shoal_release(barrier);
        shoal_release(a);
    }
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("ends");
    TCase *tc = children_case("ends");
    tcase_add_loop_test(tc, exit_in_a_handler_leaves_nothing_half_done, 0, 2);
    tcase_add_test(tc, calls_after_the_end_are_refused_and_touch_nothing);
    add_for_methods(tc, a_target_may_return_while_a_thread_writes);
    tcase_add_loop_test(tc, exit_in_the_middle_of_leaving, 0, 4);
    tcase_add_loop_test(tc, what_others_are_told_of_each_end, RETURN, WAYS);
    suite_add_tcase(s, tc);
    return s;
}

SH_TEST_MAIN(suite)
