/* Tensors of a card between processes, in special situations: threads, captures, forks, processes without a card, and
 * tools that list them. Over the stub driver, or on a card. */
#include "tests/cuda/card.h"

#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#define RECEIVED (getenv("SHOAL_TEST_CARD") ? 300 : SH_REPEAT(20000)) /* a card takes milliseconds for each */

/* ---- threads ---- */

static sh_a32 receiving;

/* Asks for the whole card, again and again: each time, what is cached here goes back to the driver. */
static void *fill_the_card(void *unused)
{
    (void)unused;
    while (sh_load_relaxed(&receiving) != 0) {
        if (shoal_empty(SHOAL_U8, SHOAL_SHAPE((int64_t)sh_cuda_the_card()->total)) != NULL) {
            abort();
        }
    }
    return NULL;
}

START_TEST(a_full_card_does_not_stop_a_thread_that_receives)
{
    shoal_queue *q = make_queue(0);
    pthread_t thread;
    shoal_tensor *held = shoal_zeros(SHOAL_U8, SHOAL_SHAPE(40 << 20)); /* so the whole card is never free */
    ck_assert_ptr_nonnull(held);
    sh_store_relaxed(&receiving, 1);
    ck_assert_int_eq(pthread_create(&thread, NULL, fill_the_card, NULL), 0);
    for (int i = 0; i < RECEIVED; i++) {
        shoal_tensor *t = shoal_zeros(SHOAL_F32, SHOAL_SHAPE(4)), *back;
        hot_ok(shoal_queue_give_tensor(q, t, LIMIT));
        hot_ok(shoal_queue_get_tensor(q, LIMIT, &back)); /* finds the memory among this process's own */
        shoal_tensor_release(back);
    }
    sh_store_relaxed(&receiving, 0);
    ck_assert_int_eq(pthread_join(thread, NULL), 0);
    shoal_tensor_release(held);
    shoal_release(q);
}
END_TEST

/* Has the lock of the world's card memory, like a process that was stopped while it shared some. */
static shoal_err lock_the_store(int rank, const shoal_value *args)
{
    (void)rank;
    must_ok(sh_lock_lock(&sh_the_world.header->store.lock, SHOAL_NOW));
    must_ok(shoal_queue_put(ARG(queue, "out"), shoal_value_int(1), LIMIT));
    pause();
    return SHOAL_OK;
}

typedef struct putter {
    shoal_queue *queue;
    shoal_tensor *tensor;
    shoal_err err;
} putter;

static void *put_in_a_thread(void *argument)
{
    putter *p = argument;
    p->err = shoal_queue_put_tensor(p->queue, p->tensor, LIMIT);
    return NULL;
}

/* A thread waits for the store's lock, to share a first tensor. The others allocate and free meanwhile, and share
 * tensors of the CPU. */
START_TEST(a_locked_store_stops_only_those_who_share)
{
    shoal_queue *q = make_queue(0);
    pthread_t thread;
    shoal_process *locker = talk_start(SHOAL_START_SPAWN, 0, lock_the_store, shoal_map("out", q));
    until_told(q);
    const sh_lock_shm *lock = &sh_the_world.header->store.lock;
    uint32_t held = sh_load_acquire(&lock->gate.word);
    putter p = {.queue = q, .tensor = counted(3, 4, 5)};
    shoal_scope_release(0);
    ck_assert_int_eq(pthread_create(&thread, NULL, put_in_a_thread, &p), 0);
    while (sh_load_acquire(&lock->gate.word) == held) { /* until it says that somebody waits */
        sh_pause();
    }
    shoal_tensor_release(shoal_zeros(SHOAL_F32, SHOAL_SHAPE(4)));
    shoal_tensor *here = shoal_full_on(SHOAL_CPU, SHOAL_F32, 1, SHOAL_SHAPE(4));
    ck_assert_ok(shoal_queue_put_tensor(q, here, LIMIT));
    shoal_tensor_release(here);
    ck_assert_ok(shoal_process_kill(locker)); /* in time: the put has not given up */
    finish_as(locker, SHOAL_PROCESS_KILLED, SIGKILL);
    ck_assert_int_eq(pthread_join(thread, NULL), 0);
    ck_assert_ok(p.err);
    shoal_tensor_release(p.tensor);
    shoal_release(q);
}
END_TEST

/* ---- processes without a card ---- */

static shoal_err forward_blindly(int rank, const shoal_value *args)
{
    (void)rank;
    shoal_tensor *t = NULL;
    shoal_value *v = NULL;
    must_err(shoal_queue_get_tensor(ARG(queue, "in"), LIMIT, &t), SHOAL_ENOENT);
    must(t == NULL && shoal_last_error_text()[0] != '\0');
    must_ok(shoal_queue_put(ARG(queue, "out"), shoal_value_string(shoal_last_error_text()), LIMIT));
    must_ok(shoal_queue_get(ARG(queue, "back"), LIMIT, &v)); /* it may be sent on, unread */
    must(shoal_value_as_tensor(shoal_value_find(v, "t")) == NULL && shoal_last_error() == SHOAL_ENOENT);
    must_ok(shoal_queue_put(ARG(queue, "out"), v, LIMIT));
    return SHOAL_OK;
}

START_TEST(a_process_without_a_card_says_so_and_loses_nothing)
{
    shoal_queue *in = make_queue(0), *out = make_queue(0), *back = make_queue(0);
    char before[4096];
    snprintf(before, sizeof before, "%s", getenv("SHOAL_CUDA_DRIVER") ? getenv("SHOAL_CUDA_DRIVER") : "");
    setenv("SHOAL_CUDA_DRIVER", "/there/is/no/driver.so", 1);
    shoal_process *p = start(SHOAL_START_SPAWN, 0, forward_blindly, shoal_map("in", in, "out", out, "back", back));
    if (before[0]) {
        setenv("SHOAL_CUDA_DRIVER", before, 1);
    } else {
        unsetenv("SHOAL_CUDA_DRIVER");
    }
    shoal_tensor *t = counted(3, 4, 5), *got;
    ck_assert_ok(shoal_queue_put_tensor(in, t, LIMIT));
    ck_assert_ok(shoal_queue_put(back, shoal_map("t", t), LIMIT));
    shoal_value *v = NULL;
    ck_assert_ok(shoal_queue_get(out, LIMIT, &v));
    ck_assert_ptr_nonnull(strstr(shoal_value_as_string(v), "driver"));
    shoal_value_destroy(v);
    ck_assert_ok(shoal_queue_get_tensor(in, LIMIT, &got));
    ck_assert(same_memory(t, got) && is_counted(got, 5));
    shoal_tensor_release(got);
    ck_assert_ok(shoal_queue_get(out, LIMIT, &v));
    ck_assert(same_memory(t, shoal_value_as_tensor(shoal_value_find(v, "t"))));
    shoal_value_destroy(v);
    finish(p);
    shoal_tensor_release(t);
    shoal_release(in);
    shoal_release(out);
    shoal_release(back);
}
END_TEST

/* ---- children of fork ---- */

/* Waits for a child of fork, which exits with 0. */
static void finish_forked(pid_t child)
{
    int status = -1;
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert_int_eq(status, 0);
    ck_assert_ok(shoal_world_sweep(NULL)); /* what the child inherited */
}

/* It knows the tensor, which it inherited, but cannot use it: the message stays for others. */
START_TEST(a_child_of_fork_loses_nothing)
{
    shoal_queue *q = make_queue(0);
    shoal_tensor *t = counted(3, 4, 5), *got = NULL;
    ck_assert_ok(shoal_queue_put_tensor(q, t, LIMIT));
    pid_t child = fork();
    if (child == 0) {
        _exit(shoal_queue_get_tensor(q, SHOAL_NOW, &got) != SHOAL_EFORK || got != NULL);
    }
    finish_forked(child);
    ck_assert_ok(shoal_queue_get_tensor(q, LIMIT, &got));
    ck_assert(same_memory(t, got) && is_counted(got, 5));
    shoal_tensor_release(got);
    shoal_tensor_release(t);
    shoal_release(q);
}
END_TEST

/* ---- tools ---- */

typedef struct listed {
    int32_t holder; /* the only one */
    int held, queued;
    uint64_t bytes;
} listed;

static bool note_row(const shoal_cuda_tensor *t, void *context)
{
    listed *l = context;
    ck_assert_int_eq(t->dtype, SHOAL_F32);
    ck_assert_int_eq(t->ndim, 2);
    ck_assert_int_eq(t->shape[0], 3);
    ck_assert_int_eq(strncmp(t->card, "GPU-", 4), 0);
    ck_assert(t->pid == 0 || t->pid == l->holder);
    l->held += t->pid != 0;
    l->queued += t->pid == 0;
    l->bytes += t->size;
    return true;
}

static void expect_two(const listed *l)
{
    ck_assert_int_eq(l->held, 1);
    ck_assert_int_eq(l->queued, 1);
    ck_assert_uint_eq(l->bytes, 3 * 4 * 4 + 3 * 5 * 4);
}

/* Lists from a process that is in no world. That this takes no slot is tested by tests/cli/tensors. */
static void list_from_outside(void)
{
    listed l = {.holder = getpid()};
    shoal_world_info info = sh_test_world();
    pid_t child = fork();
    if (child == 0) {
        shoal_world_leave(); /* its parent's */
        ck_assert_err(shoal_cuda_tensors_list_of("none-of-this-name", note_row, &l), SHOAL_ENOENT);
        ck_assert_ok(shoal_cuda_tensors_list_of(info.name, note_row, &l));
        expect_two(&l);
        _exit(0);
    }
    finish_forked(child);
}

/* `shoal ps --tensors`: one that this process has, two in a queue, of which one is the same. */
START_TEST(shared_tensors_are_listed)
{
    shoal_queue *q = make_queue(0);
    listed l = {.holder = getpid()};
    shoal_tensor *kept = shoal_full_on(SHOAL_CUDA, SHOAL_F32, 1, SHOAL_SHAPE(3, 4));
    shoal_tensor *gone = shoal_full_on(SHOAL_CUDA, SHOAL_F32, 1, SHOAL_SHAPE(3, 5));
    ck_assert_ok(shoal_cuda_tensors_list(note_row, &l));
    ck_assert_int_eq(l.held + l.queued, 0); /* none is shared */
    ck_assert_ok(shoal_queue_put_tensor(q, kept, LIMIT));
    ck_assert_ok(shoal_queue_put_tensor(q, gone, LIMIT));
    shoal_tensor_release(gone);
    ck_assert_ok(shoal_cuda_tensors_list(note_row, &l));
    expect_two(&l);
    list_from_outside();
    ck_assert_err(shoal_cuda_tensors_list_of("any", note_row, &l), SHOAL_ESTATE);
    shoal_tensor_release(kept);
    shoal_release(q);
}
END_TEST

/* ---- captures ---- */

static shoal_err put_two(int rank, const shoal_value *args)
{
    (void)rank;
    for (int i = 0; i < 2; i++) {
        shoal_tensor *t = counted(3, 4, i);
        must_ok(shoal_cuda_wait()); /* so a receiver has nothing to wait for */
        must_ok(i == 0 ? shoal_queue_put_tensor(ARG(queue, "out"), t, LIMIT)
                       : shoal_queue_put(ARG(queue, "out"), shoal_map("t", t), LIMIT));
        shoal_tensor_release(t);
        shoal_scope_release(0);
    }
    return SHOAL_OK;
}

/* The call that returned err, inside of the capture, has ended it. */
static void expect_refused(shoal_capture *c, shoal_err err)
{
    ck_assert_err(err, SHOAL_ESTATE);
    ck_assert_ptr_nonnull(strstr(shoal_last_error_text(), "receiving a tensor from another process"));
    ck_assert_err(shoal_capture_end(c), SHOAL_ESTATE);
    shoal_capture_destroy(c);
}

/* Also if the sender's work is done. The tensor is not lost, and keeps its place. */
START_TEST(a_capture_receives_nothing)
{
    shoal_queue *q = make_queue(0);
    shoal_capture *c;
    shoal_tensor *t = NULL;
    shoal_value *v = NULL;
    finish(talk_start(SHOAL_START_SPAWN, 0, put_two, shoal_map("out", q)));
    ck_assert_ok(shoal_capture_begin(&c));
    expect_refused(c, shoal_queue_get_tensor(q, LIMIT, &t));
    ck_assert_ok(shoal_queue_get_tensor(q, LIMIT, &t));
    ck_assert(is_counted(t, 0));
    ck_assert_ok(shoal_queue_put_tensor(q, t, LIMIT));
    ck_assert_ok(shoal_capture_begin(&c));
    ck_assert_ok(shoal_queue_get(q, LIMIT, &v)); /* a value is read later */
    ck_assert_ptr_null(shoal_value_as_tensor(shoal_value_find(v, "t")));
    expect_refused(c, shoal_last_error());
    ck_assert(is_counted(shoal_value_as_tensor(shoal_value_find(v, "t")), 1));
    shoal_value_destroy(v);
    ck_assert_ok(shoal_capture_begin(&c));
    expect_refused(c, shoal_queue_get_tensor(q, LIMIT, &t)); /* one that this process has */
    shoal_tensor *again;
    ck_assert_ok(shoal_queue_get_tensor(q, LIMIT, &again));
    ck_assert(same_memory(t, again));
    shoal_tensor_release(again);
    shoal_tensor_release(t);
    shoal_scope_release(0);
    shoal_release(q);
}
END_TEST

static bool count_own(const shoal_cuda_tensor *t, void *count)
{
    *(int *)count += t->pid == getpid();
    return true;
}

/* A child of fork holds no card memory of its parent, also in the middle of a capture. */
START_TEST(a_child_of_fork_gives_back_what_its_parent_captures)
{
    shoal_queue *q = make_queue(0);
    shoal_capture *c;
    shoal_tensor *t = NULL;
    finish(talk_start(SHOAL_START_SPAWN, 0, put_two, shoal_map("out", q)));
    ck_assert_ok(shoal_queue_get_tensor(q, LIMIT, &t));
    ck_assert_ok(shoal_capture_begin(&c));
    pid_t child = fork();
    if (child == 0) {
        int before = 0, after = 0;
        bool told = shoal_cuda_tensors_list(count_own, &before) == SHOAL_OK;
        shoal_tensor_release(t);
        told = told && shoal_cuda_tensors_list(count_own, &after) == SHOAL_OK;
        _exit(!told || before != 0 || after != 0);
    }
    finish_forked(child);
    ck_assert_ok(shoal_capture_end(c));
    shoal_capture_destroy(c);
    shoal_tensor_release(t);
    shoal_release(q);
}
END_TEST

/* The stream uses a received tensor, which is released in a capture; the capture fails, and is destroyed. This process
 * holds the tensor until its stream is done with it, so its maker cannot use the bytes before. */
START_TEST(a_failed_capture_gives_back_when_the_work_is_done)
{
    shoal_queue *q = make_queue(0);
    shoal_capture *c;
    shoal_tensor *t = NULL;
    listed l = {.holder = getpid()}, later = l;
    finish(talk_start(SHOAL_START_SPAWN, 0, put_two, shoal_map("out", q)));
    ck_assert_ok(shoal_queue_get_tensor(q, LIMIT, &t));
    sh_stub_control()->block();
    ck_assert(shoal_add_scalar_(t, 1) == t);
    ck_assert_ok(shoal_capture_begin(&c));
    shoal_tensor_release(t);
    shoal_scope_release(0);
    ck_assert_err(shoal_cuda_wait(), SHOAL_ESTATE);
    shoal_capture_destroy(c);
    ck_assert_ok(shoal_cuda_tensors_list(note_row, &l));
    ck_assert_int_eq(l.held, 1);
    sh_stub_control()->unblock();
    ck_assert_ok(shoal_cuda_wait());
    ck_assert_ok(shoal_cuda_tensors_list(note_row, &later));
    ck_assert_int_eq(later.held, 0);
    shoal_release(q);
}
END_TEST

/* Another library captures, in a thread of its own: all that this process does with its tensors goes on beside that. */
START_TEST(a_capture_of_another_library_stops_nobody)
{
    const sh_stub *stub = sh_stub_control();
    shoal_queue *q = make_queue(0);
    shoal_tensor *t = NULL, *own = NULL;
    shoal_value *v = NULL;
    sh_cu_stream theirs;
    ck_assert_int_eq(sh_cu.cuStreamCreate(&theirs, SH_CU_STREAM_NON_BLOCKING), SH_CU_OK);
    finish(talk_start(SHOAL_START_SPAWN, 0, put_two, shoal_map("out", q)));
    stub->forbid(true);
    ck_assert_msg(shoal_queue_get_tensor(q, LIMIT, &t) == SHOAL_OK, "%s", shoal_last_error_text());
    ck_assert_ok(shoal_queue_get(q, LIMIT, &v));
    ck_assert(is_counted(t, 0));
    own = counted(3, 4, 7);
    ck_assert_ok(shoal_cuda_follow_stream(theirs));
    ck_assert_ok(shoal_queue_put_tensor(q, own, LIMIT));
    ck_assert_ok(shoal_cuda_precede_stream(theirs));
    shoal_tensor_release(own);
    ck_assert_ok(shoal_queue_get_tensor(q, LIMIT, &own));
    ck_assert(is_counted(own, 7));
    shoal_tensor_release(own);
    shoal_tensor_release(t);
    shoal_value_destroy(v);
    shoal_scope_release(0);
    ck_assert_ok(shoal_cuda_wait());
    ck_assert_uint_eq(card_used(), 0);
    ck_assert_uint_eq(stub->held(), 0); /* also nothing of the other process */
    stub->forbid(false);
    ck_assert_int_eq(sh_cu.cuStreamDestroy(theirs), SH_CU_OK);
    shoal_release(q);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("cuda/sharing_edges");
    TCase *tc = card_case("edges");
    tcase_add_test(tc, a_full_card_does_not_stop_a_thread_that_receives);
    tcase_add_test(tc, a_locked_store_stops_only_those_who_share);
    tcase_add_test(tc, a_process_without_a_card_says_so_and_loses_nothing);
    tcase_add_test(tc, a_child_of_fork_loses_nothing);
    tcase_add_test(tc, shared_tensors_are_listed);
    tcase_add_test(tc, a_capture_receives_nothing);
    tcase_add_test(tc, a_child_of_fork_gives_back_what_its_parent_captures);
    if (!getenv("SHOAL_TEST_CARD")) {
        tcase_add_test(tc, a_failed_capture_gives_back_when_the_work_is_done);
        tcase_add_test(tc, a_capture_of_another_library_stops_nobody);
    }
    suite_add_tcase(s, tc);
    return s;
}

SH_TEST_MAIN(suite)
