/* Forks without telling the library: the child is a member like any other,
 * and harms nobody (docs/world.md, "Forks"). */
#include "base/clock.h"
#include "base/log.h"
#include "shm/block.h"
#include "shm/slot.h"
#include "sync/atomic.h"
#include "tests/harness/children.h"

#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>

/* Children that end in the middle of the test leave memory to the system, so LeakSanitizer must ignore it. */
int __lsan_is_turned_off(void);
int __lsan_is_turned_off(void)
{
    return 1;
}

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

/* Asserts that everything is as things_make left it. */
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
        sh_block_release(all[i]);
    }
}

/* In the child: prints wrong results and counts them. */
static int wrong;

static void expect(const char *what, shoal_err err, shoal_err wanted)
{
    if (err != wanted) {
        fprintf(stderr, "in a forked child: %s: %s, not %s (%s)\n", what, shoal_err_name(err), shoal_err_name(wanted),
                shoal_last_error_text());
        wrong++;
    }
}

#define works(call) expect(#call, call, SHOAL_OK)
#define gives(call, wanted) expect(#call, call, wanted)

static shoal_err nothing(int rank, const shoal_value *args)
{
    (void)rank;
    (void)args;
    return SHOAL_OK;
}

static void try_objects(things *t)
{
    uint32_t value = shoal_semaphore_value(t->semaphore);
    works(shoal_lock_lock(t->lock, SHOAL_NOW));
    works(shoal_lock_unlock(t->lock));
    works(shoal_rlock_lock(t->rlock, SHOAL_NOW));
    works(shoal_rlock_unlock(t->rlock));
    works(shoal_semaphore_wait(t->semaphore, SHOAL_NOW));
    works(shoal_semaphore_post(t->semaphore, 1));
    gives(value == 1 ? SHOAL_OK : SHOAL_ESTATE, SHOAL_OK);
    works(shoal_condition_lock(t->condition, SHOAL_NOW));
    works(shoal_condition_notify_all(t->condition));
    works(shoal_condition_unlock(t->condition));
    shoal_event_set(t->event);
    works(shoal_event_wait(t->event, SHOAL_NOW));
    shoal_event_clear(t->event);
    gives(shoal_barrier_wait(t->barrier, SHOAL_NOW, NULL), SHOAL_ETIMEDOUT);
    shoal_barrier_reset(t->barrier);
}

static void try_queues(things *t)
{
    shoal_block *b;
    shoal_value *got;
    char bytes[32];
    size_t size;
    works(shoal_queue_get_bytes(t->queue, bytes, sizeof bytes, SHOAL_NOW, &size));
    works(shoal_queue_put_block(t->queue, t->block, SHOAL_NOW));
    works(shoal_queue_get_block(t->queue, SHOAL_NOW, &b));
    shoal_release(b);
    works(shoal_queue_put(t->queue, shoal_map("block", t->block, "lock", t->lock), SHOAL_NOW));
    works(shoal_queue_get(t->queue, SHOAL_NOW, &got));
    shoal_value_destroy(got);
    works(shoal_queue_put_bytes(t->queue, "a message that stays", 20, SHOAL_NOW));
    works(shoal_wait(&(shoal_waitable){.queue = t->queue}, 1, SHOAL_NOW));
    gives(shoal_pipe_send(t->a, shoal_value_int(1), SHOAL_NOW), SHOAL_EFORK); /* the parent keeps the ends of pipes */
    gives(shoal_pipe_recv(t->a, SHOAL_NOW, &got), SHOAL_EFORK);
    gives(shoal_pipe_poll(t->b, SHOAL_NOW), SHOAL_EFORK);
    gives(shoal_wait(&(shoal_waitable){.pipe = t->a}, 1, SHOAL_NOW), SHOAL_EFORK);
    gives(shoal_value_of(t->a) == NULL ? shoal_last_error() : SHOAL_OK, SHOAL_EFORK);
    shoal_release(t->a);
}

static void try_world(void)
{
    shoal_world_info info;
    shoal_audit audit;
    shoal_block *b;
    shoal_process *p;
    works(shoal_block_create(100000, &b));
    works(shoal_world_info_get(&info));
    gives(info.processes >= 2 ? SHOAL_OK : SHOAL_ESTATE, SHOAL_OK);
    works(shoal_world_sweep(NULL));
    works(shoal_world_trim());
    works(shoal_world_audit(&audit));
    shoal_release(b);
    works(shoal_process_start(nothing, shoal_value_null(), &(shoal_process_options){.start = SHOAL_START_FORK}, &p));
    works(shoal_process_join(p, LIMIT, NULL));
    shoal_process_destroy(p);
}

/* Makes a new world, after the parent's world was left. */
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

static void reap(pid_t pid)
{
    int status;
    ck_assert_int_gt(pid, 0);
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == 0, "the child ended with status %x: see above",
                  (unsigned)status);
}

START_TEST(a_plain_forked_child_is_a_member_and_harms_nobody)
{
    for (int round = 0; round < 12; round++) {
        things t;
        things_make(&t);
        fflush(NULL);
        pid_t pid = fork();
        if (pid == 0) {
            if (round % 3 != 2) {
                try_objects(&t);
                try_queues(&t);
                try_world();
            }
            if (round % 3 == 1) {
                begin_anew();
                shoal_world_leave();
            }
            switch (round % 4) {
            case 0: _exit(wrong);
            case 1: quick_exit(wrong);
            default: exit(wrong);
            }
        }
        reap(pid);
        ck_assert_ok(shoal_world_sweep(NULL));
        ck_assert(!shoal_barrier_is_broken(t.barrier) ||
                  (round % 4 == 0 && round % 3 != 2)); /* a child called _exit after it had waited there */
        shoal_barrier_reset(t.barrier);
        things_check(&t);
        things_release(&t);
    }
}
END_TEST

/* ---- memory that the parent released while a plain child still has a pointer to it ---- */

/* Shared memory outside the world. Synchronisation: both sides write stage in turn. */
typedef struct board {
    sh_a32 stage;
    sh_a32 bad;
} board;

static board *make_board(void)
{
    board *b = mmap(NULL, sizeof *b, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ck_assert_ptr_ne(b, MAP_FAILED);
    return b;
}

static void until_stage(board *b, uint32_t stage)
{
    int64_t deadline = sh_deadline(LIMIT);
    while (sh_load_acquire(&b->stage) < stage && !sh_passed(deadline)) {
        sched_yield();
    }
}

/* The parent releases a block and makes others of that size, while the child reads and writes through its pointer. */
START_TEST(no_block_changes_under_a_plain_child)
{
    enum { COUNT = 40 };
    board *common = make_board();
    shoal_block *block, *others[COUNT];
    ck_assert_ok(shoal_block_create_zeroed(100, &block));
    char *data = shoal_block_data(block);
    pid_t pid = fork();
    if (pid == 0) {
        until_stage(common, 1);
        bool changed = data[0] != 0;
        memset(data, 0xcc, 100);
        sh_store_release(&common->stage, 2);
        _exit(changed);
    }
    shoal_release(block);
    for (int i = 0; i < COUNT; i++) {
        ck_assert_ok(shoal_block_create(100, &others[i]));
        memset(shoal_block_data(others[i]), 0xaa, 100);
    }
    sh_store_release(&common->stage, 1);
    until_stage(common, 2);
    for (int i = 0; i < COUNT; i++) {
        ck_assert_msg(*(unsigned char *)shoal_block_data(others[i]) == 0xaa, "the child wrote into another object");
        shoal_release(others[i]);
    }
    reap(pid);
    ck_assert_ok(shoal_world_sweep(NULL));
    munmap(common, sizeof *common);
}
END_TEST

/* Its slot cannot be marked, because the file is closed. Then the child has no heap at all. */
START_TEST(a_plain_child_without_a_slot_has_no_heap)
{
    shoal_block *block;
    shoal_queue *q;
    ck_assert_ok(shoal_block_create_zeroed(100, &block));
    ck_assert_ok(shoal_queue_create(0, &q));
    char *data = shoal_block_data(block);
    int kept = dup(sh_the_world.fd), fd = sh_the_world.fd;
    close(fd);
    for (int i = 0; i < 2; i++) {
        pid_t pid = fork();
        int status;
        if (pid == 0 && i == 0) {
            gives(shoal_queue_put_bytes(q, "x", 1, SHOAL_NOW), SHOAL_EFORK);
            shoal_release(q);
            begin_anew();
            shoal_world_leave();
            _exit(wrong);
        }
        if (pid == 0) {
            signal(SIGSEGV, SIG_DFL);
            data[0] = 1;
            _exit(1);
        }
        ck_assert_int_eq(waitpid(pid, &status, 0), pid);
        ck_assert_msg(i == 0 ? status == 0 : WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV, "status %x",
                      (unsigned)status);
    }
    ck_assert_int_eq(dup3(kept, fd, O_CLOEXEC), fd);
    close(kept);
    ck_assert_int_eq(data[0], 0);
    sh_fork_adopt_limit = 0; /* no child takes these slots any more */
    ck_assert_ok(shoal_world_sweep(NULL));
    shoal_release(block);
    shoal_release(q);
}
END_TEST

/* A fork that failed has no child. Without fds only a timeout reveals that (see also fork_slots.c). */
START_TEST(a_slot_that_no_child_comes_to_is_given_up)
{
    shoal_world_info info;
    shoal_block *block;
    ck_assert_ok(shoal_block_create_zeroed(100, &block));
    struct rlimit limit, none = {0};
    ck_assert_int_eq(getrlimit(RLIMIT_NOFILE, &limit), 0);
    none.rlim_max = limit.rlim_max;
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &none), 0);
    sh_world_fork_prepare();
    sh_world_fork_parent();
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
    ck_assert_ok(shoal_world_sweep(NULL));
    ck_assert_ok(shoal_world_info_get(&info));
    uint32_t slot = 1; /* this process has 0 */
    ck_assert_int_eq(sh_slot_state_phase(sh_load_acquire(&sh_slot_at(slot)->state)), SH_PHASE_RESERVED);
    uint64_t generation = sh_slot_state_generation(sh_load_acquire(&sh_slot_at(slot)->state));
    sh_fork_adopt_limit = 0;
    ck_assert_ok(shoal_world_sweep(NULL));
    ck_assert_int_eq(sh_slot_state_phase(sh_load_acquire(&sh_slot_at(slot)->state)), SH_PHASE_FREE);
    ck_assert(!sh_slot_adopt_forked(slot, generation, 0)); /* as a late child would */
    shoal_release(block);
}
END_TEST

/* A child that execs another program holds nothing any more, and no death is reported. */
START_TEST(a_child_that_execs_is_gone)
{
    shoal_block *block;
    shoal_barrier *barrier;
    shoal_world_info info;
    int ends[2];
    ck_assert_ok(shoal_block_create(100, &block));
    ck_assert_ok(shoal_barrier_create(2, &barrier));
    ck_assert_int_eq(pipe2(ends, O_CLOEXEC), 0);
    pid_t pid = fork();
    if (pid == 0) {
        dup2(ends[0], STDIN_FILENO);
        execl("/bin/cat", "cat", (char *)NULL);
        _exit(1);
    }
    int64_t deadline = sh_deadline(LIMIT);
    do {
        ck_assert_ok(shoal_world_sweep(NULL));
        ck_assert_ok(shoal_world_info_get(&info));
        ck_assert(!sh_passed(deadline));
    } while (info.processes != 1);
    close(ends[0]);
    close(ends[1]);
    reap(pid);
    ck_assert(!shoal_barrier_is_broken(barrier));
    shoal_release(block);
    ck_assert_ok(shoal_world_info_get(&info));
    ck_assert_uint_eq(info.blocks_live, 1); /* the barrier */
    shoal_release(barrier);
}
END_TEST

/* As daemons are made: the parent ends at once, and the forked child continues. */
START_TEST(a_child_outlives_a_parent_that_exits_at_once)
{
    shoal_queue *q;
    char byte;
    size_t size;
    ck_assert_ok(shoal_queue_create(0, &q));
    for (int i = 0; i < 30; i++) {
        fflush(NULL);
        pid_t pid = fork();
        if (pid == 0) {
            if (fork() == 0) {
                works(shoal_queue_put_bytes(q, "x", 1, SHOAL_NOW));
            }
            exit(wrong);
        }
        reap(pid);
        ck_assert_ok(shoal_queue_get_bytes(q, &byte, 1, LIMIT, &size));
    }
    shoal_world_info info;
    int64_t deadline = sh_deadline(LIMIT);
    do {
        ck_assert_ok(shoal_world_sweep(NULL));
        ck_assert_ok(shoal_world_info_get(&info));
        ck_assert(!sh_passed(deadline));
    } while (info.processes != 1);
    shoal_release(q);
}
END_TEST

/* Forks while threads hold the lock of the heap, or of the log, most of the time. */
static sh_a32 stop;

static void *hammer(void *queue)
{
    while (sh_load_acquire(&stop) == 0) {
        shoal_block *b = NULL;
        hot_ok(shoal_block_create(200, &b));
        hot_ok(shoal_queue_put_block(queue, b, SHOAL_NOW));
        shoal_release(b);
        hot_ok(shoal_queue_get_block(queue, SHOAL_NOW, &b));
        shoal_release(b);
    }
    return NULL;
}

static void *hammer_log(void *nothing_at_all)
{
    while (sh_load_acquire(&stop) == 0) {
        sh_log("hammering");
    }
    return nothing_at_all;
}

static void swallow(const char *line, void *context)
{
    (void)line;
    (void)context;
}

START_TEST(fork_beside_threads)
{
    shoal_queue *q, *mine;
    pthread_t threads[2];
    ck_assert_ok(shoal_queue_create(0, &q));
    ck_assert_ok(shoal_queue_create(0, &mine));
    shoal_set_log(swallow, NULL);
    ck_assert_int_eq(pthread_create(&threads[0], NULL, hammer, q), 0);
    ck_assert_int_eq(pthread_create(&threads[1], NULL, hammer_log, NULL), 0);
    for (int i = 0; i < SH_REPEAT(400); i++) {
        pid_t pid = fork();
        if (pid == 0) {
            shoal_block *b = NULL;
            alarm(20);
            sh_log("a child");
            works(shoal_block_create(200, &b));
            works(shoal_queue_put_block(mine, b, SHOAL_NOW));
            works(shoal_queue_get_block(mine, SHOAL_NOW, &b));
            _exit(wrong);
        }
        reap(pid);
    }
    sh_store_release(&stop, 1);
    pthread_join(threads[0], NULL);
    pthread_join(threads[1], NULL);
    shoal_set_log(NULL, NULL);
    ck_assert_ok(shoal_world_sweep(NULL));
    sh_assert_audit("after forks beside threads");
    shoal_release(q);
    shoal_release(mine);
}
END_TEST

/* ---- which process is a party of a barrier ---- */

static shoal_barrier *inherited_barrier;

typedef enum role { INHERITS, IS_GIVEN, GETS_BY_MESSAGE, WAITS, ROLES } role;

static shoal_err die_as(int rank, const shoal_value *args)
{
    shoal_queue *in = ARG(queue, "in");
    shoal_value *got = NULL;
    if (rank == GETS_BY_MESSAGE) {
        must_ok(shoal_queue_get(in, LIMIT, &got));
    } else if (rank == WAITS) {
        must_err(shoal_barrier_wait(inherited_barrier, SHOAL_NOW, NULL), SHOAL_ETIMEDOUT);
        shoal_barrier_reset(inherited_barrier);
    }
    raise(SIGKILL);
    return SHOAL_ESTATE;
}

START_TEST(only_a_party_breaks_a_barrier)
{
    for (role r = INHERITS; r < ROLES; r++) {
        shoal_queue *in;
        ck_assert_ok(shoal_queue_create(0, &in));
        ck_assert_ok(shoal_barrier_create(2, &inherited_barrier));
        if (r == GETS_BY_MESSAGE) {
            ck_assert_ok(shoal_queue_put(in, shoal_value_of(inherited_barrier), LIMIT));
        }
        shoal_process *p =
            start(SHOAL_START_FORK, (int)r, die_as,
                  r == IS_GIVEN ? shoal_map("in", in, "barrier", inherited_barrier) : shoal_map("in", in));
        finish_as(p, SHOAL_PROCESS_KILLED, SIGKILL);
        ck_assert_msg(shoal_barrier_is_broken(inherited_barrier) == (r != INHERITS), "role %d", (int)r);
        shoal_release(inherited_barrier);
        shoal_release(in);
    }
}
END_TEST

START_TEST(a_pool_by_fork_breaks_no_barrier)
{
    shoal_barrier *barrier;
    shoal_pool *pool;
    signal(SIGTERM, SIG_DFL); /* libcheck's handler would end the whole test */
    ck_assert_ok(shoal_barrier_create(2, &barrier));
    ck_assert_ok(shoal_pool_create(&(shoal_pool_options){.workers = 2, .start = SHOAL_START_FORK}, &pool));
    shoal_pool_destroy(pool);
    ck_assert(!shoal_barrier_is_broken(barrier));
    shoal_release(barrier);
}
END_TEST

/* Forks of both kinds, alternating. */
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
            _exit(shoal_world_sweep(NULL) == SHOAL_OK ? 0 : 1);
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

/* ---- a pool belongs to the process that made it ---- */

static shoal_err echo(const shoal_value *arg, shoal_value **out_result)
{
    *out_result = shoal_value_copy(arg);
    return *out_result != NULL ? SHOAL_OK : shoal_last_error();
}

static void try_pool(shoal_pool *pool, shoal_future *future, shoal_iterator *iterator)
{
    shoal_future *f;
    shoal_iterator *it;
    shoal_value *v;
    gives(shoal_pool_apply(pool, echo, shoal_value_int(1), &v), SHOAL_EFORK);
    gives(shoal_pool_apply_async(pool, echo, shoal_value_int(1), &f), SHOAL_EFORK);
    gives(shoal_pool_map(pool, echo, shoal_list(1, 2), 1, &v), SHOAL_EFORK);
    gives(shoal_pool_map_async(pool, echo, shoal_list(1, 2), 1, &f), SHOAL_EFORK);
    gives(shoal_pool_imap(pool, echo, shoal_list(1, 2), true, &it), SHOAL_EFORK);
    gives(shoal_future_get(future, SHOAL_NOW, &v), SHOAL_EFORK);
    gives(shoal_iterator_next(iterator, SHOAL_NOW, &v), SHOAL_EFORK);
    gives(shoal_pool_join(pool, SHOAL_NOW), SHOAL_EFORK);
    shoal_pool_close(pool);
    shoal_pool_terminate(pool);
    shoal_future_destroy(future);
    shoal_iterator_destroy(iterator);
    shoal_pool_destroy(pool);
}

static struct {
    shoal_pool *pool;
    shoal_future *future;
    shoal_iterator *iterator;
} theirs;

static shoal_err use_parents_pool(int rank, const shoal_value *args)
{
    (void)rank;
    (void)args;
    try_pool(theirs.pool, theirs.future, theirs.iterator);
    must(wrong == 0);
    return SHOAL_OK;
}

/* If _i is 0, a plain fork; if 1, a fork by the library. */
START_TEST(a_forked_child_leaves_its_parents_pool_alone)
{
    signal(SIGTERM, SIG_DFL); /* libcheck's handler would end the whole test */
    ck_assert_ok(shoal_pool_create(&(shoal_pool_options){.workers = 2, .start = SHOAL_START_FORK}, &theirs.pool));
    for (int i = 0; i < 10; i++) {
        shoal_value *v;
        ck_assert_ok(shoal_pool_apply_async(theirs.pool, echo, shoal_value_int(i), &theirs.future));
        ck_assert_ok(shoal_pool_imap(theirs.pool, echo, shoal_list(1, 2), true, &theirs.iterator));
        if (_i == 1) {
            finish(start(SHOAL_START_FORK, 0, use_parents_pool, NULL));
        } else {
            pid_t pid = fork();
            if (pid == 0) {
                _exit(use_parents_pool(0, NULL) != SHOAL_OK);
            }
            reap(pid);
        }
        ck_assert_ok(shoal_future_get(theirs.future, LIMIT, &v));
        shoal_value_destroy(v);
        for (int k = 0; k < 2; k++) {
            ck_assert_ok(shoal_iterator_next(theirs.iterator, LIMIT, &v));
            shoal_value_destroy(v);
        }
        shoal_future_destroy(theirs.future);
        shoal_iterator_destroy(theirs.iterator);
    }
    ck_assert_uint_eq(shoal_pool_losses(theirs.pool), 0);
    shoal_pool_destroy(theirs.pool);
}
END_TEST

/* Only this process can recover a plain child that was killed; the audit does so before it checks. */
START_TEST(the_audit_recovers_the_dead)
{
    shoal_queue *queue;
    shoal_audit audit;
    shoal_world_info info;
    ck_assert_ok(shoal_queue_create(0, &queue));
    pid_t pid = fork();
    if (pid == 0) {
        raise(SIGKILL);
    }
    ck_assert_int_eq(waitpid(pid, NULL, 0), pid);
    ck_assert_ok(shoal_world_audit(&audit));
    ck_assert_ok(shoal_world_info_get(&info));
    ck_assert_uint_eq(info.recovered, 1);
    shoal_release(queue);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("raw_fork");
    TCase *tc = children_case("raw_fork");
    tcase_add_test(tc, a_plain_forked_child_is_a_member_and_harms_nobody);
    tcase_add_test(tc, no_block_changes_under_a_plain_child);
    tcase_add_test(tc, a_plain_child_without_a_slot_has_no_heap);
    tcase_add_test(tc, a_slot_that_no_child_comes_to_is_given_up);
    tcase_add_test(tc, a_child_that_execs_is_gone);
    tcase_add_test(tc, a_child_outlives_a_parent_that_exits_at_once);
    tcase_add_test(tc, fork_beside_threads);
    tcase_add_test(tc, only_a_party_breaks_a_barrier);
    tcase_add_test(tc, a_pool_by_fork_breaks_no_barrier);
    tcase_add_test(tc, the_audit_recovers_the_dead);
    tcase_add_loop_test(tc, a_forked_child_leaves_its_parents_pool_alone, 0, 2);
    add_for_methods(tc, a_raw_fork_between_two_starts_changes_nothing);
    suite_add_tcase(s, tc);
    return s;
}

SH_TEST_MAIN(suite)
