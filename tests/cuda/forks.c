/* B33: a process that has used the card forks. The child is told in one sentence if it uses the card in any way, calls
 * nothing of the driver, and keeps no card memory from its owner. Over the stub driver, which ends a process that calls
 * it after a fork, or on a card. */
#include "tests/cuda/card.h"

#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

/* Under AddressSanitizer, a fork may find a lock of its malloc taken by another thread, and the child waits for it for
 * ever. */
#if defined(__SANITIZE_ADDRESS__)
#define FORKS_SAFELY false
#else
#define FORKS_SAFELY true
#endif

/* What a child inherits. */
static struct {
    shoal_tensor *mine;     /* on the card, never shared */
    shoal_tensor *shared;   /* on the card, in the ledger */
    shoal_tensor *received; /* of another process */
    shoal_tensor *host;     /* on the CPU, not shared yet */
    shoal_value *value;     /* refers to `shared` */
    shoal_capture *capture;
    shoal_queue *queue; /* has `shared` */
    shoal_queue *plain;
} had;

static shoal_err put_one(int rank, const shoal_value *args)
{
    shoal_tensor *t = counted(3, 4, rank);
    must(t != NULL);
    must_ok(shoal_queue_put_tensor(ARG(queue, "out"), t, LIMIT));
    must_ok(shoal_event_wait(ARG(event, "go"), LIMIT)); /* it is the owner */
    shoal_tensor_release(t);
    must_ok(shoal_cuda_wait());
    must(card_used() == 0); /* nobody else keeps it */
    return SHOAL_OK;
}

static void have_all(void)
{
    had.queue = make_queue(0);
    had.plain = make_queue(0);
    had.mine = counted(3, 4, 1);
    had.shared = counted(3, 4, 2);
    had.host = shoal_full_on(SHOAL_CPU, SHOAL_F32, 7, SHOAL_SHAPE(5));
    ck_assert_ok(shoal_queue_put_tensor(had.queue, had.shared, LIMIT));
    had.value = shoal_value_tensor(had.shared);
    ck_assert_ptr_nonnull(had.value);
    ck_assert_ok(shoal_capture_begin(&had.capture));
    ck_assert_ok(shoal_capture_end(had.capture));
}

static void have_none(void)
{
    shoal_capture_destroy(had.capture);
    shoal_value_destroy(had.value);
    shoal_tensor_release(had.mine);
    shoal_tensor_release(had.shared);
    shoal_tensor_release(had.received);
    shoal_tensor_release(had.host);
    shoal_release(had.queue);
    shoal_release(had.plain);
    shoal_scope_release(0);
}

#define must_be_told(failed)                                                                                           \
    do {                                                                                                               \
        must(failed);                                                                                                  \
        if (shoal_last_error() != SHOAL_EFORK || !strstr(shoal_last_error_text(), "start it with spawn")) {            \
            char text_[300];                                                                                           \
            snprintf(text_, sizeof text_, "%s", shoal_last_error_text());                                              \
            return shoal_fail(SHOAL_ESTATE, "line %d: %s: %s", __LINE__, #failed, text_);                              \
        }                                                                                                              \
    } while (0)

static shoal_err use_tensor(shoal_tensor *t)
{
    float numbers[12];
    shoal_dlpack *pack;
    must_be_told(shoal_tensor_to_dlpack(t, 0, &pack) != SHOAL_OK);
    must_be_told(shoal_add(t, t) == NULL);
    must_be_told(shoal_add_scalar_(t, 1) == NULL);
    must_be_told(shoal_to_device(t, SHOAL_CPU) == NULL);
    must_be_told(shoal_tensor_read(t, numbers, sizeof numbers) != SHOAL_OK);
    must_be_told(shoal_queue_put_tensor(had.plain, t, SHOAL_NOW) != SHOAL_OK);
    must_be_told(shoal_value_tensor(t) == NULL);
    must_be_told(shoal_tensor_share(t) != SHOAL_OK);
    return SHOAL_OK;
}

static shoal_err use_card(void)
{
    int count;
    void *stream;
    shoal_cuda_info info;
    shoal_cuda_memory memory;
    shoal_capture *capture;
    must_be_told(shoal_cuda_count(&count) != SHOAL_OK);
    must_be_told(shoal_cuda_info_get(0, &info) != SHOAL_OK);
    must_be_told(shoal_cuda_memory_get(&memory) != SHOAL_OK);
    must_be_told(shoal_cuda_wait() != SHOAL_OK);
    must_be_told(shoal_cuda_stream(&stream) != SHOAL_OK);
    must_be_told(shoal_cuda_follow_stream(NULL) != SHOAL_OK);
    must_be_told(shoal_capture_begin(&capture) != SHOAL_OK);
    must_be_told(shoal_capture_replay(had.capture) != SHOAL_OK);
    must_be_told(shoal_zeros(SHOAL_F32, SHOAL_SHAPE(2)) == NULL);
    must_be_told(shoal_to_device(had.host, SHOAL_CUDA) == NULL);
    must(shoal_cuda_trim() == 0);
    return SHOAL_OK;
}

/* All that a child may try. It inherits all of `had`, and ends with it. */
static shoal_err use_all(int rank, const shoal_value *args)
{
    shoal_tensor *got = NULL;
    (void)rank;
    (void)args;
    must_ok(use_card());
    must_ok(use_tensor(had.mine));
    must_ok(use_tensor(had.shared));
    must_ok(had.received != NULL ? use_tensor(had.received) : SHOAL_OK);
    must_be_told(shoal_value_as_tensor(had.value) == NULL);
    must_be_told(shoal_queue_get_tensor(had.queue, SHOAL_NOW, &got) != SHOAL_OK); /* the message stays for others */
    /* What has nothing to do with the card works, also a tensor whose first process is this one. */
    must_ok(shoal_queue_put_tensor(had.plain, had.host, LIMIT));
    must_ok(shoal_queue_get_tensor(had.plain, LIMIT, &got));
    must_ok(shoal_queue_put_tensor(had.plain, got, LIMIT));
    shoal_tensor_release(got);
    shoal_scope_release(0);
    return SHOAL_OK;
}

static shoal_err use_all_and_release(int rank, const shoal_value *args)
{
    must_ok(use_all(rank, args));
    have_none();
    return SHOAL_OK;
}

/* Runs the target in a child, by shoal_process_start or by a plain fork, which ends with exit. */
static void run_forked(shoal_target target, bool plain)
{
    int status = -1;
    if (!plain) {
        finish(start(SHOAL_START_FORK, 0, target, NULL));
        return;
    }
    pid_t pid = fork();
    ck_assert_int_ge(pid, 0);
    if (pid == 0) {
        shoal_err err = target(0, NULL);
        if (err != SHOAL_OK) {
            fprintf(stderr, "plain child: %s\n", shoal_last_error_text());
        }
        if (!FORKS_SAFELY) {
            _exit(err !=
                  SHOAL_OK); /* its check for leaks stops the threads, and takes the parent's for this process's */
        }
        exit(err != SHOAL_OK);
    }
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert_int_eq(status, 0);
    ck_assert_ok(shoal_world_sweep(NULL));
}

START_TEST(f18_the_child_is_told_and_the_parent_goes_on)
{
    shoal_tensor *got = NULL;
    shoal_queue *from = make_queue(0);
    shoal_event *go = NULL;
    ck_assert_ok(shoal_event_create(&go));
    shoal_process *owner = start(SHOAL_START_SPAWN, 5, put_one, shoal_map("out", from, "go", go));
    have_all();
    ck_assert_ok(shoal_queue_get_tensor(from, LIMIT, &had.received));
    run_forked(_i < 2 ? use_all : use_all_and_release, _i % 2 == 0);
    ck_assert_ok(shoal_queue_get_tensor(had.plain, LIMIT, &got));
    ck_assert(!sh_storage_is_shared(had.host->storage)); /* the child moved its own copy */
    shoal_tensor_release(got);
    ck_assert_ok(shoal_queue_get_tensor(had.queue, LIMIT, &got));
    ck_assert(is_counted(got, 2) && is_counted(had.mine, 1) && is_counted(had.received, 5));
    shoal_tensor_release(got);
    have_none();
    shoal_event_set(go);
    finish(owner);
    shoal_release(from);
    shoal_release(go);
    ck_assert_ok(shoal_cuda_wait());
    ck_assert_uint_eq(card_used(), 0);
}
END_TEST

/* ---- memory ---- */

static shoal_err wait_for_go(int rank, const shoal_value *args)
{
    (void)rank;
    shoal_event_set(ARG(event, "up"));
    return shoal_event_wait(ARG(event, "go"), LIMIT);
}

/* A child that lives keeps no card memory: neither the parent's nor that of a process that the parent received it
 * from. */
START_TEST(f18_a_child_that_lives_keeps_no_card_memory)
{
    shoal_event *up = NULL, *go = NULL, *look = NULL;
    shoal_queue *from = make_queue(0);
    ck_assert_ok(shoal_event_create(&up));
    ck_assert_ok(shoal_event_create(&go));
    ck_assert_ok(shoal_event_create(&look));
    shoal_process *owner = start(SHOAL_START_SPAWN, 5, put_one, shoal_map("out", from, "go", look));
    have_all();
    ck_assert_ok(shoal_queue_get_tensor(from, LIMIT, &had.received));
    shoal_process *p = start(SHOAL_START_FORK, 0, wait_for_go, shoal_map("up", up, "go", go));
    ck_assert_ok(shoal_event_wait(up, LIMIT));
    shoal_tensor *got = NULL;
    ck_assert_ok(shoal_queue_get_tensor(had.queue, LIMIT, &got));
    shoal_tensor_release(got);
    have_none();
    ck_assert_ok(shoal_cuda_wait());
    ck_assert_uint_eq(card_used(), 0);
    shoal_event_set(look);
    finish(owner);
    shoal_event_set(go);
    finish(p);
    shoal_release(look);
    shoal_release(from);
    shoal_release(up);
    shoal_release(go);
}
END_TEST

/* Killed or not, nothing of it stays. */
START_TEST(f18_a_killed_child_leaves_nothing)
{
    shoal_event *up = NULL, *go = NULL;
    ck_assert_ok(shoal_event_create(&up));
    ck_assert_ok(shoal_event_create(&go));
    have_all();
    shoal_process *p = start(SHOAL_START_FORK, 0, wait_for_go, shoal_map("up", up, "go", go));
    ck_assert_ok(shoal_event_wait(up, LIMIT));
    ck_assert_ok(shoal_process_kill(p));
    finish_as(p, SHOAL_PROCESS_KILLED, SIGKILL);
    ck_assert(is_counted(had.mine, 1) && is_counted(had.shared, 2));
    shoal_tensor *got = NULL;
    ck_assert_ok(shoal_queue_get_tensor(had.queue, LIMIT, &got));
    shoal_tensor_release(got);
    have_none();
    ck_assert_ok(shoal_cuda_wait());
    ck_assert_uint_eq(card_used(), 0);
    shoal_release(up);
    shoal_release(go);
}
END_TEST

/* ---- children of the child ---- */

static shoal_err start_and_finish(shoal_start method, shoal_target target, shoal_value *args)
{
    shoal_process *p = NULL;
    shoal_status status;
    must_ok(shoal_process_start(target, args, &(shoal_process_options){.start = method, .rank = 9}, &p));
    must_ok(shoal_process_join(p, LIMIT, &status));
    shoal_process_destroy(p);
    return status.end == SHOAL_PROCESS_RETURNED ? SHOAL_OK : shoal_fail(SHOAL_ESTATE, "%s", status.text);
}

/* A spawned grandchild may use the card; a forked one may not. */
static shoal_err start_both(int rank, const shoal_value *args)
{
    (void)rank;
    must_ok(start_and_finish(SHOAL_START_SPAWN, put_one, shoal_map("out", ARG(queue, "out"), "go", ARG(event, "go"))));
    return start_and_finish(SHOAL_START_FORK, use_all, shoal_value_null());
}

START_TEST(f18_a_spawned_grandchild_uses_the_card)
{
    shoal_tensor *got = NULL;
    shoal_event *go = NULL;
    shoal_queue *from = make_queue(0);
    ck_assert_ok(shoal_event_create(&go));
    have_all();
    shoal_process *p = start(SHOAL_START_FORK, 0, start_both, shoal_map("out", from, "go", go));
    ck_assert_ok(shoal_queue_get_tensor(from, LIMIT, &got));
    ck_assert(is_counted(got, 9));
    shoal_tensor_release(got);
    shoal_event_set(go);
    finish(p);
    have_none();
    shoal_release(from);
    shoal_release(go);
}
END_TEST

/* ---- threads of the parent ---- */

static sh_a32 working;

/* Is inside the card's calls, and has their locks, most of the time. */
static void *work(void *queue)
{
    shoal_err err = SHOAL_OK;
    while (err == SHOAL_OK && sh_load_relaxed(&working) != 0) {
        shoal_tensor *t = shoal_zeros(SHOAL_F32, SHOAL_SHAPE(400)), *back = NULL;
        err = t != NULL ? shoal_queue_put_tensor(queue, t, LIMIT) : shoal_last_error();
        err = err == SHOAL_OK ? shoal_queue_get_tensor(queue, LIMIT, &back) : err;
        err = err == SHOAL_OK ? shoal_cuda_wait() : err;
        shoal_tensor_release(back);
        shoal_tensor_release(t);
        (void)shoal_cuda_trim();
    }
    return (void *)(intptr_t)err;
}

START_TEST(f18_fork_while_threads_use_the_card)
{
    pthread_t threads[2];
    shoal_queue *queues[2] = {make_queue(0), make_queue(0)};
    have_all();
    sh_store_relaxed(&working, 1);
    for (int i = 0; i < 2; i++) {
        ck_assert_int_eq(pthread_create(&threads[i], NULL, work, queues[i]), 0);
    }
    for (int i = 0; FORKS_SAFELY && i < (SH_SLOW ? 3 : 30); i++) {
        run_forked(use_all_and_release, i % 2 == 0);
        shoal_tensor *got = NULL;
        ck_assert_ok(shoal_queue_get_tensor(had.plain, LIMIT, &got));
        shoal_tensor_release(got);
    }
    sh_store_relaxed(&working, 0);
    for (int i = 0; i < 2; i++) {
        void *err;
        pthread_join(threads[i], &err);
        ck_assert_int_eq((intptr_t)err, SHOAL_OK);
        shoal_release(queues[i]);
    }
    have_none();
    ck_assert_ok(shoal_cuda_wait());
}
END_TEST

/* ---- a pool and a loader of forked workers in a process that uses the card ---- */

static shoal_err add_one(const shoal_value *args, shoal_value **out_result)
{
    *out_result = shoal_value_int(sh_int_of(args) + 1);
    return SHOAL_OK;
}

START_TEST(f18_a_pool_of_forked_workers)
{
    shoal_pool *pool = NULL;
    have_all();
    ck_assert_ok(shoal_pool_create(&(shoal_pool_options){.workers = 2, .start = SHOAL_START_FORK}, &pool));
    for (int i = 0; i < 20; i++) {
        shoal_value *v = NULL;
        ck_assert_ok(shoal_pool_apply(pool, add_one, shoal_value_int(i), &v));
        ck_assert_int_eq(sh_int_of(v), i + 1);
        shoal_value_destroy(v);
        ck_assert(shoal_add_scalar_(had.mine, 1) == had.mine);
    }
    shoal_pool_close(pool);
    ck_assert_ok(shoal_pool_join(pool, LIMIT));
    shoal_pool_destroy(pool);
    have_none();
    ck_assert_ok(shoal_cuda_wait());
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("cuda/forks");
    TCase *tc = card_case("forks");
    tcase_add_loop_test(tc, f18_the_child_is_told_and_the_parent_goes_on, 0, 4);
    tcase_add_test(tc, f18_a_child_that_lives_keeps_no_card_memory);
    tcase_add_test(tc, f18_a_killed_child_leaves_nothing);
    tcase_add_test(tc, f18_a_spawned_grandchild_uses_the_card);
    tcase_add_test(tc, f18_fork_while_threads_use_the_card);
    tcase_add_test(tc, f18_a_pool_of_forked_workers);
    suite_add_tcase(s, tc);
    return s;
}

SH_TEST_MAIN(suite)
