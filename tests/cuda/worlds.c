/* Tensors of a card in several worlds: memory that was shared in a world that this process has left, and worlds whose
 * creator has ended. Over the stub driver, or on a card. */
#include "tests/cuda/card.h"

#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- leaving a world ---- */

static size_t held_now(void)
{
    shoal_cuda_memory m;
    ck_assert_ok(shoal_cuda_memory_get(&m));
    return m.held;
}

/* Holds a tensor until its parent has left the world, and says with a signal that it has. */
static shoal_err hold(int rank, const shoal_value *args)
{
    shoal_tensor *t;
    sigset_t left;
    int unused;
    sigemptyset(&left);
    sigaddset(&left, SIGUSR1);
    must(sigprocmask(SIG_BLOCK, &left, NULL) == 0);
    must_ok(shoal_queue_get_tensor(ARG(queue, "in"), LIMIT, &t));
    must_ok(shoal_queue_put(ARG(queue, "out"), shoal_value_int(1), LIMIT));
    must(sigwait(&left, &unused) == 0);
    _exit(is_counted(t, rank) ? 0 : 1); /* the record is lost: only the status can tell */
}

#define MIB ((size_t)1 << 20)

/* A process leaves one world after the other. Each time another process holds a tensor of it (0), or nobody does (1).
 * Its memory goes back to the driver when this process has released the tensor, before or after it left. */
START_TEST(memory_of_a_world_that_was_left_is_used_again)
{
    size_t before = held_now();
    for (int n = 0; n < 4; n++) {
        shoal_queue *in, *out;
        shoal_process *p = NULL;
        ck_assert_ok(shoal_queue_create(0, &in));
        ck_assert_ok(shoal_queue_create(0, &out));
        shoal_tensor *small = counted(2, 2, 0), *large = counted(4096, 2100, n);
        ck_assert_ok(shoal_queue_put_tensor(in, large, LIMIT));
        ck_assert_ok(shoal_queue_put_tensor(in, small, LIMIT));
        if (_i == 0) {
            p = talk_start(SHOAL_START_SPAWN, n, hold, shoal_map("in", in, "out", out));
            until_told(out);
        }
        if (n % 2 == 0) {
            shoal_tensor_release(large);
        }
        shoal_scope_release(0);
        ck_assert_uint_ge(held_now(), before + 32 * MIB);
        shoal_world_leave();
        if (n % 2 != 0) {
            ck_assert_uint_ge(held_now(), before + 32 * MIB); /* another library may still use it */
            shoal_tensor_release(large);
        }
        shoal_tensor_release(small);
        (void)shoal_cuda_trim();
        ck_assert(sh_cuda_memory_valid());
        ck_assert_uint_eq(held_now(), before);
        if (p) {
            shoal_status status;
            ck_assert_int_eq(kill(shoal_process_pid(p), SIGUSR1), 0);
            ck_assert_ok(shoal_process_join(p, LIMIT, &status));
            ck_assert_int_eq(status.code, 0); /* it has the tensor */
            shoal_process_destroy(p);
        }
        shoal_release(in);
        shoal_release(out);
    }
}
END_TEST

static shoal_err put_one(int rank, const shoal_value *args)
{
    shoal_tensor *t = counted(3, 4, rank);
    must_ok(shoal_cuda_wait());
    must_ok(shoal_queue_put_tensor(ARG(queue, "out"), t, LIMIT));
    shoal_tensor_release(t);
    return SHOAL_OK;
}

/* Captures a step that writes to a tensor. */
static shoal_capture *capture(shoal_tensor *to, shoal_tensor *from_pinned)
{
    shoal_capture *c;
    ck_assert_ok(shoal_capture_begin(&c));
    ck_assert_ok(shoal_tensor_copy_async(to, from_pinned));
    ck_assert_ok(shoal_capture_end(c));
    ck_assert_ok(shoal_capture_replay(c));
    return c;
}

/* A graph keeps the addresses of its tensors, and after the leave nothing is at those of received ones. A capture from
 * before this process had received any goes on. */
START_TEST(a_capture_with_tensors_of_others_ends_with_the_world)
{
    shoal_queue *q;
    shoal_tensor *received, *own = counted(3, 4, 1), *pinned = shoal_empty_pinned(SHOAL_F32, SHOAL_SHAPE(3, 4));
    shoal_capture *before = capture(own, pinned), *open;
    ck_assert_ok(shoal_queue_create(0, &q));
    finish(talk_start(SHOAL_START_SPAWN, 0, put_one, shoal_map("out", q)));
    ck_assert_ok(shoal_queue_get_tensor(q, LIMIT, &received));
    shoal_capture *with = capture(received, pinned);
    ck_assert_ok(shoal_capture_begin(&open));
    ck_assert_ok(shoal_tensor_copy_async(received, pinned));
    shoal_world_leave();
    ck_assert_ok(shoal_capture_end(open));
    ck_assert_err(shoal_capture_replay(open), SHOAL_ESTATE);
    ck_assert_err(shoal_capture_replay(with), SHOAL_ESTATE);
    ck_assert_ptr_nonnull(strstr(shoal_last_error_text(), "has left their world"));
    ck_assert_ok(shoal_capture_replay(before));
    ck_assert_ok(shoal_cuda_wait());
    shoal_capture_destroy(open);
    shoal_capture_destroy(with);
    shoal_capture_destroy(before);
    shoal_tensor_release(received);
    shoal_tensor_release(own);
    shoal_tensor_release(pinned);
    shoal_scope_release(0);
    shoal_release(q);
}
END_TEST

/* Memory that was received in one world after the other goes back when its maker has ended, also if as many granules
 * have died in each of these worlds. */
START_TEST(memory_of_the_dead_goes_back_in_each_world)
{
    for (int n = 0; n < 3; n++) {
        shoal_queue *q;
        shoal_tensor *t;
        ck_assert_ok(shoal_queue_create(0, &q));
        finish(talk_start(SHOAL_START_SPAWN, n, put_one, shoal_map("out", q)));
        ck_assert_ok(shoal_queue_get_tensor(q, LIMIT, &t));
        ck_assert(sh_cuda_imports_exist());
        shoal_tensor_release(t);
        ck_assert_ok(shoal_world_sweep(NULL));
        (void)shoal_cuda_trim();
        ck_assert(!sh_cuda_imports_exist());
        shoal_release(q);
        shoal_world_leave();
    }
}
END_TEST

/* ---- leaving while another thread needs memory ---- */

static sh_a32 has_left;
static sh_a32 step; /* ARMED: the next thread that starts the service stops in the middle, until it MAY_GO_ON */
enum { OFF, ARMED, STARTING, MAY_GO_ON };

int __real_pthread_setname_np(pthread_t thread, const char *name);
int __wrap_pthread_setname_np(pthread_t thread, const char *name);
int __wrap_pthread_setname_np(pthread_t thread, const char *name)
{
    uint32_t armed = ARMED;
    if (strcmp(name, "shoal-cuda") == 0 && sh_cas_acq_rel(&step, &armed, STARTING)) {
        while (sh_load_acquire(&step) == STARTING) {
            sched_yield();
        }
    }
    return __real_pthread_setname_np(thread, name);
}

static void *allocate(void *unused)
{
    void *data = sh_device_cuda.alloc(1000);
    sh_device_cuda.free(data, 1000);
    return data != NULL ? data : unused;
}

static void *leave(void *unused)
{
    shoal_world_leave();
    sh_store_release(&has_left, 1);
    return unused;
}

/* The service thread sleeps in the world's memory, so a leave waits until it is gone, also if it is only about to
 * begin. The next world has a service, too. */
START_TEST(a_leave_waits_for_a_service_that_is_being_started)
{
    pthread_t starter, leaver;
    void *data = NULL;
    ck_assert_ok(shoal_world_create(NULL)); /* before the GPU is opened: its first allocation starts the service */
    ck_assert_ptr_nonnull(sh_device_get(SHOAL_CUDA));
    sh_store_release(&step, ARMED);
    ck_assert_int_eq(pthread_create(&starter, NULL, allocate, NULL), 0);
    while (sh_load_acquire(&step) != STARTING) {
        sched_yield();
    }
    ck_assert_int_eq(pthread_create(&leaver, NULL, leave, NULL), 0);
    for (int64_t end = clock_ns() + 200 * 1000000LL; clock_ns() < end && sh_load_acquire(&has_left) == 0;) {
        sched_yield();
    }
    ck_assert_msg(sh_load_acquire(&has_left) == 0, "the leave did not wait");
    sh_store_release(&step, MAY_GO_ON);
    pthread_join(starter, &data);
    pthread_join(leaver, NULL);
    ck_assert_ptr_nonnull(data);
    ck_assert_ok(shoal_world_create(NULL));
    uint64_t request = sh_granules_ask();
    ck_assert_uint_ne(sh_load_acquire(&sh_the_world.self.slot->card_answered), 0);
    ck_assert(sh_granules_await_answers(request, LIMIT));
    shoal_world_leave();
}
END_TEST

/* ---- joining a world ---- */

static shoal_err double_it(int rank, const shoal_value *args)
{
    (void)rank;
    shoal_tensor *t;
    must_ok(shoal_queue_get_tensor(ARG(queue, "in"), LIMIT, &t));
    must(shoal_add_(t, t) == t);
    must_ok(shoal_queue_put_tensor(ARG(queue, "out"), t, LIMIT));
    shoal_tensor_release(t);
    return SHOAL_OK;
}

/* The creator of the world ends; a process that had joined by name goes on to share. */
START_TEST(a_joiner_shares_after_the_creator_has_ended)
{
    char name[SHOAL_NAME_MAX], byte;
    int ready[2];
    ck_assert_int_eq(pipe2(ready, O_CLOEXEC), 0);
    snprintf(name, sizeof name, "survived-%d", (int)getpid());
    pid_t pid = fork();
    if (pid == 0) {
        if (shoal_world_create(&(shoal_world_options){.name = name}) == SHOAL_OK && write(ready[1], "x", 1) == 1) {
            pause();
        }
        _exit(1);
    }
    ck_assert_int_eq(read(ready[0], &byte, 1), 1);
    ck_assert_ok(shoal_world_join(name));
    kill(pid, SIGKILL);
    ck_assert_int_eq(waitpid(pid, NULL, 0), pid);
    close(ready[0]);
    close(ready[1]);
    talk t;
    talk_begin(&t, SHOAL_START_SPAWN, double_it);
    shoal_tensor *sent = counted(1, 2, 1), *back;
    ck_assert_ok(shoal_queue_put_tensor(t.in, sent, LIMIT));
    ck_assert_ok(shoal_queue_get_tensor(t.out, LIMIT, &back));
    ck_assert_double_eq(AT(back, 0, 1), 4);
    shoal_tensor_release(sent);
    shoal_tensor_release(back);
    talk_end(&t);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("cuda/worlds");
    TCase *tc = tcase_create("worlds");
    tcase_add_checked_fixture(tc, card_open, NULL);
    tcase_set_timeout(tc, SH_TEST_SECONDS);
    tcase_add_loop_test(tc, memory_of_a_world_that_was_left_is_used_again, 0, 2);
    tcase_add_test(tc, a_capture_with_tensors_of_others_ends_with_the_world);
    tcase_add_test(tc, memory_of_the_dead_goes_back_in_each_world);
    tcase_add_test(tc, a_joiner_shares_after_the_creator_has_ended);
    suite_add_tcase(s, tc);
    TCase *late = tcase_create("GPU opened in a world");
    tcase_add_checked_fixture(late, sh_stub_use, NULL);
    tcase_set_timeout(late, SH_TEST_SECONDS);
    tcase_add_test(late, a_leave_waits_for_a_service_that_is_being_started);
    suite_add_tcase(s, late);
    return s;
}

SH_TEST_MAIN(suite)
