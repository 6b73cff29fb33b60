#include "proc/process_test.h"

#include "base/clock.h"
#include "os/futex.h"

#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

typedef enum deed { PUT, SEND, RETURN, DIE, CLOSE, DEEDS } deed;

/* args: an event to wait for, what to do, a queue, a pipe end. */
static shoal_err act(int rank, const shoal_value *args)
{
    shoal_queue *queue = shoal_value_as_queue(shoal_value_at(args, 2));
    (void)rank;
    must(shoal_event_wait(shoal_value_as_event(shoal_value_at(args, 0)), LIMIT) == SHOAL_OK);
    usleep(20000); /* by then the other side is probably asleep; the test also holds if it is not */
    switch ((deed)sh_int_of(shoal_value_at(args, 1))) {
    case PUT: must(shoal_queue_put(queue, shoal_value_int(1), LIMIT) == SHOAL_OK); break;
    case SEND:
        must(shoal_pipe_send(shoal_value_as_pipe(shoal_value_at(args, 3)), shoal_value_int(1), LIMIT) == SHOAL_OK);
        break;
    case DIE: kill(getpid(), SIGKILL); break;
    case CLOSE: shoal_queue_close(queue); break;
    default: return SHOAL_OK;
    }
    for (;;) {
        pause();
    }
}

START_TEST(the_first_of_several)
{
    enum { QUEUE, PIPE, PROCESS, THINGS };
    static const int wanted[DEEDS] = {
        [PUT] = QUEUE, [SEND] = PIPE, [RETURN] = PROCESS, [DIE] = PROCESS, [CLOSE] = QUEUE};
    for (int what = 0; what < DEEDS; what++) {
        shoal_queue *queue;
        shoal_pipe *here, *there;
        shoal_event *go;
        ck_assert_ok(shoal_queue_create(0, &queue));
        ck_assert_ok(shoal_pipe_create(true, &here, &there));
        ck_assert_ok(shoal_event_create(&go));
        shoal_process *p = start(_i, act, shoal_list(go, what, queue, there));
        shoal_waitable things[THINGS] = {
            {.queue = queue, .ready = true}, {.pipe = here, .ready = true}, {.process = p, .ready = true}};
        ck_assert_err(shoal_wait(things, THINGS, SHOAL_NOW), SHOAL_ETIMEDOUT);
        for (int i = 0; i < THINGS; i++) {
            ck_assert(!things[i].ready);
        }
        int64_t begin = sh_now();
        ck_assert_err(shoal_wait(things, THINGS, SHOAL_MS(70)), SHOAL_ETIMEDOUT);
        ck_assert_int_ge(sh_now() - begin, SHOAL_MS(70));
        shoal_event_set(go);
        begin = sh_quiet_now();
        ck_assert_ok(shoal_wait(things, THINGS, LIMIT));
        ck_assert_int_lt(sh_quiet_now() - begin, SHOAL_MS(SH_SLOW ? 2000 : 500));
        for (int i = 0; i < THINGS; i++) {
            ck_assert_msg(things[i].ready == (i == wanted[what]), "deed %d: thing %d", what, i);
        }
        if (things[PROCESS].ready) {
            ck_assert_ok(shoal_process_join(p, SHOAL_NOW, NULL));
        } else {
            ck_assert_ok(shoal_process_kill(p));
        }
        shoal_process_destroy(p);
        shoal_release(queue);
        shoal_release(here);
        shoal_release(there);
        shoal_release(go);
    }
}
END_TEST

static shoal_err wait_for(int rank, const shoal_value *args)
{
    return rank == 2 ? shoal_event_wait(shoal_value_as_event(args), LIMIT)
                     : shoal_event_wait(shoal_value_as_event(args), SHOAL_FOREVER);
}

START_TEST(only_processes)
{
    shoal_event *go[3];
    shoal_waitable things[3] = {{.ready = true}};
    for (int i = 0; i < 3; i++) {
        ck_assert_ok(shoal_event_create(&go[i]));
        things[i].process = start(_i, wait_for, shoal_value_of(go[i]));
    }
    ck_assert_err(shoal_wait(things, 3, SHOAL_MS(20)), SHOAL_ETIMEDOUT);
    shoal_event_set(go[1]);
    ck_assert_ok(shoal_wait(things, 3, LIMIT));
    ck_assert(!things[0].ready && things[1].ready && !things[2].ready);
    ck_assert_ok(shoal_process_kill(things[2].process));
    finish(things[2].process);
    ck_assert_ok(shoal_wait(things, 3, SHOAL_NOW));
    ck_assert(!things[0].ready && things[1].ready && things[2].ready);
    shoal_event_set(go[0]);
    for (int i = 0; i < 3; i++) {
        finish(things[i].process);
        shoal_process_destroy(things[i].process);
        shoal_release(go[i]);
    }
}
END_TEST

static shoal_err say_so_and_pause(int rank, const shoal_value *args)
{
    (void)rank;
    must(shoal_queue_put(shoal_value_as_queue(args), shoal_value_int(1), LIMIT) == SHOAL_OK);
    for (;;) {
        pause();
    }
}

/* Kills a process (its pid) as soon as the parent sleeps. */
static shoal_err kill_when_the_parent_sleeps(int rank, const shoal_value *args)
{
    (void)rank;
    while (!sleeps(getppid())) {
        usleep(1000);
    }
    must(kill((pid_t)sh_int_of(args), SIGKILL) == 0);
    return SHOAL_OK;
}

/* The wait neither polls nor oversleeps: its slices are a second long. */
START_TEST(a_kill_wakes_a_wait_at_once)
{
    shoal_queue *queue;
    shoal_value *v;
    struct rusage before, after;
    ck_assert_ok(shoal_queue_create(0, &queue));
    shoal_process *p = start(_i, say_so_and_pause, shoal_value_of(queue));
    ck_assert_ok(shoal_queue_get(queue, LIMIT, &v));
    shoal_value_destroy(v);
    shoal_waitable things[2] = {{.queue = queue}, {.process = p}};
    getrusage(RUSAGE_THREAD, &before);
    ck_assert_err(shoal_wait(things, 2, SHOAL_MS(300)), SHOAL_ETIMEDOUT);
    getrusage(RUSAGE_THREAD, &after);
    ck_assert_int_lt(after.ru_nvcsw - before.ru_nvcsw, 8);
    shoal_process *killer = start(SHOAL_START_FORK, kill_when_the_parent_sleeps, shoal_value_int(shoal_process_pid(p)));
    int64_t begin = sh_quiet_now();
    ck_assert_ok(shoal_wait(things, 2, LIMIT));
    ck_assert_int_lt(sh_quiet_now() - begin, SHOAL_MS(SH_SLOW ? 900 : 500));
    ck_assert(things[1].ready && !things[0].ready);
    finish(killer);
    shoal_process_destroy(killer);
    shoal_process_destroy(p);
    shoal_release(queue);
}
END_TEST

static shoal_err put_into_last(int rank, const shoal_value *args)
{
    (void)rank;
    usleep(20000);
    return shoal_queue_put(shoal_value_as_queue(args), shoal_value_int(5), LIMIT);
}

START_TEST(more_things_than_the_kernel_takes)
{
    enum { N = SH_FUTEX_MANY + 40 };
    shoal_waitable things[N];
    memset(things, 0, sizeof things);
    for (int i = 0; i < N; i++) {
        ck_assert_ok(shoal_queue_create(4, &things[i].queue));
    }
    for (int last = 0; last < N; last += N - 1) {
        shoal_process *p = start(_i, put_into_last, shoal_value_of(things[last].queue));
        shoal_value *v;
        ck_assert_ok(shoal_wait(things, N, LIMIT));
        for (int i = 0; i < N; i++) {
            ck_assert_int_eq(things[i].ready, i == last);
        }
        ck_assert_ok(shoal_queue_get(things[last].queue, SHOAL_NOW, &v));
        shoal_value_destroy(v);
        finish(p);
        shoal_process_destroy(p);
    }
    for (int i = 0; i < N; i++) {
        shoal_release(things[i].queue);
    }
}
END_TEST

START_TEST(wrong_calls_are_refused)
{
    shoal_pipe *in, *out;
    ck_assert_ok(shoal_pipe_create(false, &in, &out));
    ck_assert_err(shoal_wait(&(shoal_waitable){.pipe = NULL}, 1, SHOAL_NOW), SHOAL_EINVAL);
    ck_assert_err(shoal_wait(&(shoal_waitable){.pipe = in, .queue = (shoal_queue *)in}, 1, SHOAL_NOW), SHOAL_EINVAL);
    ck_assert_err(shoal_wait(&(shoal_waitable){.pipe = out}, 1, SHOAL_NOW), SHOAL_EINVAL);
    ck_assert_err(shoal_wait(&(shoal_waitable){.pipe = in}, 1, SHOAL_NOW), SHOAL_ETIMEDOUT);
    ck_assert_err(shoal_wait(NULL, 0, SHOAL_MS(1)), SHOAL_ETIMEDOUT);
    shoal_release(out); /* the end of the pipe is something to receive */
    ck_assert_ok(shoal_wait(&(shoal_waitable){.pipe = in}, 1, SHOAL_NOW));
    shoal_release(in);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("wait");
    TCase *tc = methods_case("wait");
    add_for_methods(tc, the_first_of_several);
    add_for_methods(tc, only_processes);
    add_for_methods(tc, a_kill_wakes_a_wait_at_once);
    tcase_add_loop_test(tc, more_things_than_the_kernel_takes, SHOAL_START_SPAWN, SHOAL_START_FORK + 1);
    tcase_add_test(tc, wrong_calls_are_refused);
    suite_add_tcase(s, tc);
    return s;
}

SH_TEST_MAIN(suite)
