/* A process with a card ends, forks or leaves its world at any moment, while another one asks for card memory: the
 * library's threads are in its way nowhere, and the request is answered in time. Over the stub driver. */
#include "device/cuda_share.h"
#include "tests/harness/children.h"
#include "tests/harness/cuda_stub/stub.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/time.h>
#include <sys/wait.h>

#define LARGE ((size_t)64 << 20)

/* Processes that end in the middle of a call leave memory to the system, so LeakSanitizer must ignore it. */
int __lsan_is_turned_off(void);
int __lsan_is_turned_off(void)
{
    return 1;
}

static void begin(void)
{
    sh_stub_use();
    sh_leaks_begin();
    ck_assert_msg(sh_device_get(SHOAL_CUDA) != NULL, "%s", shoal_last_error_text());
}

/* ---- the process that ends ---- */

/* Takes card memory and lets it go. What it keeps for later is asked for all the time. */
static shoal_err take_one(void)
{
    const sh_device *device = sh_device_get(SHOAL_CUDA);
    must(device != NULL);
    void *data = device->alloc(LARGE);
    must(data != NULL);
    device->free(data, LARGE);
    return SHOAL_OK;
}

static shoal_err take_many(int count)
{
    for (int i = 0; i != count; i++) {
        must_ok(take_one());
    }
    return SHOAL_OK;
}

static void *exit_soon(void *unused)
{
    usleep(5000);
    exit(0);
    return unused;
}

static void *take_in_a_thread(void *unused)
{
    (void)!take_many(50);
    return unused;
}

static void exit_now(int signal)
{
    (void)signal;
    exit(0);
}

static shoal_err exit_in_a_thread(void)
{
    pthread_t other;
    must(pthread_create(&other, NULL, exit_soon, NULL) == 0);
    return take_many(-1);
}

static shoal_err exit_in_a_handler(void)
{
    struct itimerval soon = {.it_value.tv_usec = 5000};
    signal(SIGALRM, exit_now);
    must(setitimer(ITIMER_REAL, &soon, NULL) == 0);
    return take_many(-1);
}

/* Under AddressSanitizer, a fork may find a lock of its malloc taken by another thread, and the child waits for it for
 * ever. */
#if defined(__SANITIZE_ADDRESS__)
#define FORKS_SAFELY false
#else
#define FORKS_SAFELY true
#endif

/* Forks while another thread allocates. */
static shoal_err fork_often(void)
{
    pthread_t other;
    must(pthread_create(&other, NULL, take_in_a_thread, NULL) == 0);
    for (int i = 0; FORKS_SAFELY && i < (SH_SLOW ? 2 : 10); i++) { /* under ThreadSanitizer each end takes a second */
        int status = -1;
        pid_t pid = fork();
        if (pid == 0) {
            exit(sh_device_get(SHOAL_CUDA) != NULL || shoal_last_error() != SHOAL_EFORK);
        }
        must(waitpid(pid, &status, 0) == pid);
        must(status == 0);
    }
    must(pthread_join(other, NULL) == 0);
    return SHOAL_OK;
}

static shoal_err open_pipes(void)
{
    for (int i = 0; i < 5; i++) {
        FILE *pipe = popen("true", "r");
        must(pipe != NULL);
        must_ok(take_one());
        must(pclose(pipe) == 0);
    }
    return SHOAL_OK;
}

static shoal_err leave_often(void)
{
    for (int i = 0; i < 10; i++) {
        shoal_queue *q;
        shoal_world_leave();
        must_ok(take_one());
        must_ok(shoal_queue_create(0, &q));
        must_ok(take_one());
        shoal_queue_release(q);
    }
    return SHOAL_OK;
}

enum { RETURNS, EXITS_IN_A_THREAD, EXITS_IN_A_HANDLER, EXITS_QUICKLY, EXECUTES, FORKS, OPENS_PIPES, LEAVES, WAYS };

static shoal_err end_somehow(int way, const shoal_value *args)
{
    must_ok(take_one());
    must_ok(shoal_queue_put(ARG(queue, "out"), shoal_value_int(1), LIMIT));
    must_ok(take_many(5));
    switch (way) {
    case EXITS_IN_A_THREAD: return exit_in_a_thread();
    case EXITS_IN_A_HANDLER: return exit_in_a_handler();
    case EXITS_QUICKLY: quick_exit(0);
    case EXECUTES: execl("/bin/true", "true", NULL); return SHOAL_EOS;
    case FORKS: return fork_often();
    case OPENS_PIPES: return open_pipes();
    case LEAVES: return leave_often();
    default: return SHOAL_OK;
    }
}

/* ---- the one that asks ---- */

START_TEST(a_process_ends_while_another_asks)
{
    shoal_queue *out;
    shoal_status status;
    shoal_world_info info;
    ck_assert_ok(shoal_queue_create(0, &out));
    for (int round = 0; round < (SH_SLOW ? 1 : 3); round++) {
        shoal_process *p = start(SHOAL_START_SPAWN, _i, end_somehow, shoal_map("out", out));
        until_told(out);
        int64_t deadline = clock_ns() + LIMIT;
        do {
            ck_assert(clock_ns() < deadline);
            ck_assert(sh_granules_await_answers(sh_granules_ask(), SHOAL_SECONDS(2)));
        } while (shoal_process_join(p, SHOAL_MS(1), &status) == SHOAL_ETIMEDOUT);
        ck_assert_msg(status.end == SHOAL_PROCESS_RETURNED || (status.end == SHOAL_PROCESS_EXITED && status.code == 0),
                      "%s", status.text);
        shoal_process_destroy(p);
        do {
            ck_assert(clock_ns() < deadline);
            ck_assert_ok(shoal_world_sweep(NULL));
            ck_assert_ok(shoal_world_info_get(&info));
        } while (info.processes > 1);
        sh_assert_audit("after its end");
    }
    shoal_queue_release(out);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("cuda/ends");
    TCase *tc = tcase_create("ends");
    tcase_add_checked_fixture(tc, begin, children_end);
    tcase_set_timeout(tc, SH_TEST_SECONDS);
    tcase_add_loop_test(tc, a_process_ends_while_another_asks, 0, WAYS);
    suite_add_tcase(s, tc);
    return s;
}

SH_TEST_MAIN(suite)
