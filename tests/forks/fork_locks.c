/* A thread holds one of the library's private locks at the moment of a fork. Fork waits until the lock is free, or
 * initialises it again in the child. Either way the lock is free in the child, and the call that takes it works there.
 * One test for each lock of base/fork.h. */
#include "base/fork.h"
#include "base/log.h"
#include "ipc/queue.h"
#include "nn/module.h"
#include "sync/atomic.h"
#include "tests/harness/children.h"

#include <shoal/device.h>
#include <shoal/env.h>
#include <shoal/ops.h>
#include <shoal/share.h>

#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- in the child: the call that takes the lock ---- */

static shoal_err return_at_once(int rank, const shoal_value *args)
{
    (void)rank;
    (void)args;
    return SHOAL_OK;
}

static shoal_err start_and_join(shoal_start method)
{
    shoal_process *p;
    must_ok(shoal_process_start(return_at_once, shoal_value_null(), &(shoal_process_options){.start = method}, &p));
    must_ok(shoal_process_join(p, LIMIT, NULL));
    shoal_process_destroy(p);
    return SHOAL_OK;
}

static shoal_err by_server(void)
{
    must_ok(start_and_join(SHOAL_START_FORKSERVER));
    shoal_fork_server_stop();
    return SHOAL_OK;
}

static shoal_err by_fork(void)
{
    return start_and_join(SHOAL_START_FORK);
}

static shoal_err send_a_tensor(void)
{
    shoal_queue *q;
    shoal_tensor *t = shoal_zeros(SHOAL_F32, SHOAL_SHAPE(3)), *got;
    must(t != NULL);
    must_ok(shoal_queue_create(0, &q));
    must_ok(shoal_queue_put_tensor(q, t, SHOAL_NOW));
    must_ok(shoal_queue_get_tensor(q, SHOAL_NOW, &got));
    shoal_release(got);
    shoal_release(t);
    shoal_release(q);
    return SHOAL_OK;
}

static shoal_err find_a_module(void)
{
    return sh_module_type_find("Linear") != NULL ? SHOAL_OK : shoal_last_error();
}

static shoal_err find_an_env(void)
{
    return shoal_env_find("cartpole") != NULL ? SHOAL_OK : shoal_last_error();
}

static shoal_err make_a_block(void)
{
    shoal_block *b;
    must_ok(shoal_block_create(200, &b));
    shoal_release(b);
    return SHOAL_OK;
}

static shoal_err watch_a_queue(void)
{
    shoal_queue *q;
    int fd;
    must_ok(shoal_queue_create(0, &q));
    must_ok(shoal_queue_fd(q, &fd));
    shoal_release(q);
    return SHOAL_OK;
}

static shoal_err end_a_delivery(void)
{
    shoal_queue *q;
    shoal_value *value;
    shoal_delivery delivery;
    const shoal_queue_options options = {.acknowledge = true};
    must_ok(shoal_queue_create_with(&options, &q));
    must_ok(shoal_queue_put(q, shoal_value_int(1), SHOAL_NOW));
    must_ok(shoal_queue_get_delivery(q, SHOAL_NOW, &value, &delivery));
    must_ok(shoal_delivery_done(&delivery));
    shoal_value_destroy(value);
    shoal_release(q);
    return SHOAL_OK;
}

static shoal_err log_a_line(void)
{
    sh_log("a child");
    return SHOAL_OK;
}

static shoal_err count_cards(void)
{
    int count;
    (void)!shoal_cuda_count(&count); /* there may be none; and with one, a child of fork cannot use it */
    return SHOAL_OK;
}

static shoal_err nothing(void) /* if there are pidfds, nobody takes that lock */
{
    return SHOAL_OK;
}

static shoal_err (*const calls[SH_FORK_RANKS])(void) = {
    [SH_FORK_SERVER] = by_server,        [SH_FORK_BIRTH] = nothing,         [SH_FORK_DESCRIPTIONS] = send_a_tensor,
    [SH_FORK_STORAGES] = send_a_tensor,  [SH_FORK_MODULES] = find_a_module, [SH_FORK_ENVS] = find_an_env,
    [SH_FORK_WORLD] = make_a_block,      [SH_FORK_WATCHES] = watch_a_queue, [SH_FORK_CHILDREN] = by_fork,
    [SH_FORK_CARD] = count_cards,        [SH_FORK_LOG] = log_a_line,        [SH_FORK_CARD_DESCRIPTIONS] = send_a_tensor,
    [SH_FORK_RECEIPTS] = end_a_delivery,
};

/* ---- the thread that holds the lock ---- */

static struct {
    pthread_mutex_t *lock;
    int forker; /* its tid */
    sh_a32 held, forked;
    bool waited; /* the thread has seen the fork wait for the lock */
} stage;

/* Checks whether the forking thread sleeps on this lock.
 * Takes no lock of the C library, because fork takes those too. */
static bool forker_waits(void)
{
    char path[64], text[64] = "";
    snprintf(path, sizeof path, "/proc/self/task/%d/syscall", stage.forker);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd >= 0 ? read(fd, text, sizeof text - 1) : 0;
    close(fd);
    long number = -1;
    unsigned long long word = 0;
    return n > 0 && sscanf(text, "%ld %llx", &number, &word) == 2 && number == SYS_futex &&
           word == (uintptr_t)stage.lock;
}

static void *hold(void *unused)
{
    pthread_mutex_lock(stage.lock);
    sh_store_release(&stage.held, 1);
    while (!stage.waited && sh_load_acquire(&stage.forked) == 0) {
        stage.waited = forker_waits();
    }
    pthread_mutex_unlock(stage.lock);
    return unused;
}

static _Noreturn void be_the_child(int rank)
{
    alarm(10);
    if (pthread_mutex_trylock(stage.lock) != 0) {
        fprintf(stderr, "in the child lock %d is held\n", rank);
        _exit(2);
    }
    pthread_mutex_unlock(stage.lock);
    shoal_err err = calls[rank]();
    if (err != SHOAL_OK) {
        fprintf(stderr, "in the child: %s: %s\n", shoal_err_name(err), shoal_last_error_text());
    }
    _exit(err != SHOAL_OK);
}

static void swallow(const char *line, void *context)
{
    (void)line;
    (void)context;
}

START_TEST(a_lock_that_another_thread_has)
{
    const sh_fork_part *part = sh_fork_part_of((sh_fork_rank)_i);
    ck_assert_msg(part != NULL && part->lock != NULL, "lock %d is not registered", _i);
    ck_assert_ok(calls[_i]()); /* so that the data it protects exists */
    shoal_set_log(swallow, NULL);
    stage.lock = part->lock;
    stage.forker = (int)gettid();
    pthread_t holder;
    ck_assert_int_eq(pthread_create(&holder, NULL, hold, NULL), 0);
    while (sh_load_acquire(&stage.held) == 0) {
    }
    pid_t pid = fork();
    if (pid == 0) {
        be_the_child(_i);
    }
    sh_store_release(&stage.forked, 1);
    pthread_join(holder, NULL);
    int status;
    ck_assert_int_gt(pid, 0);
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == 0, "lock %d: the child ended with status %x", _i,
                  (unsigned)status);
    ck_assert_msg(stage.waited == !part->only_anew, "lock %d: fork %s for it", _i,
                  stage.waited ? "waited" : "did not wait");
    shoal_set_log(NULL, NULL);
}
END_TEST

/* ---- a lock of the sanitizer's runtime (tests/harness/asan_fork.c) ---- */

static void *end_at_once(void *unused)
{
    return unused;
}

static void start_a_thread(void)
{
    pthread_t thread;
    if (pthread_create(&thread, NULL, end_at_once, NULL) == 0) {
        pthread_join(thread, NULL);
    }
}

static sh_a32 enough;

static void *start_threads(void *unused)
{
    while (sh_load_relaxed(&enough) == 0) {
        start_a_thread();
    }
    return unused;
}

START_TEST(children_of_a_busy_process_start_threads)
{
    enum { CHILDREN = 100, PATIENCE = 20 };
    pthread_t busy;
    sh_store_relaxed(&enough, 0);
    ck_assert_int_eq(pthread_create(&busy, NULL, start_threads, NULL), 0);
    for (int i = 0; i < CHILDREN; i++) {
        int status;
        pid_t pid = fork();
        if (pid == 0) {
            alarm(PATIENCE);
            start_a_thread();
            _exit(0);
        }
        ck_assert_int_gt(pid, 0);
        ck_assert_int_eq(waitpid(pid, &status, 0), pid);
        ck_assert_msg(status == 0, "child %d ended with status 0x%x", i, (unsigned)status);
    }
    sh_store_relaxed(&enough, 1);
    pthread_join(busy, NULL);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("fork_locks");
    TCase *tc = children_case("fork_locks");
    tcase_add_loop_test(tc, a_lock_that_another_thread_has, 0, SH_FORK_RANKS);
    tcase_add_test(tc, children_of_a_busy_process_start_threads);
    suite_add_tcase(s, tc);
    return s;
}

SH_TEST_MAIN(suite)
