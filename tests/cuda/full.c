/* A full card: a process that finds it full gets what others do not use, whatever they are blocked in. Over the stub
 * driver, with a card that all processes share. */
#include "device/cuda_share.h"
#include "tests/harness/cuda_stub/stub.h"

#include "tests/harness/talk.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#define IN_TIME SH_PATIENCE /* nobody waits for ever */
#define CARD 256            /* MiB */
#define MOST 200            /* of two tensors of this size there is room for one */
#define SEED 53u

static char used_file[] = "/tmp/shoal-stub-XXXXXX";

static void begin(void)
{
    sh_stub_use();
    setenv("SHOAL_TALK_DEVICE", "cuda", 1);
    setenv("SHOAL_STUB_MEMORY", "268435456", 1);
    int fd = mkstemp(used_file);
    ck_assert_int_ge(fd, 0);
    close(fd);
    setenv("SHOAL_STUB_USED", used_file, 1);
    sh_leaks_begin();
    ck_assert_msg(sh_device_get(SHOAL_CUDA) != NULL, "%s", shoal_last_error_text());
}

static void end(void)
{
    children_end();
    ck_assert(sh_cuda_memory_valid());
    unlink(used_file);
}

static shoal_tensor *make(int mib)
{
    return shoal_empty(SHOAL_U8, SHOAL_SHAPE((int64_t)mib << 20));
}

/* Takes card memory and lets it go: the process keeps it for later. */
static shoal_err keep_some(void)
{
    shoal_tensor *t = make(MOST);
    must(t != NULL);
    shoal_tensor_release(t);
    return SHOAL_OK;
}

static void expect_room(void)
{
    shoal_tensor *t = make(MOST);
    ck_assert_msg(t != NULL, "%s", shoal_last_error_text());
    shoal_tensor_release(t);
}

/* ---- blocked processes ---- */

static shoal_err sleep_on(int rank, const shoal_value *args)
{
    (void)rank;
    (void)args;
    pause();
    return SHOAL_OK;
}

enum { IN_GET, IN_LOCK, IN_BARRIER, IN_JOIN, IN_SYSTEM_CALL, BLOCKED };

/* Keeps memory, and is blocked until it is killed. */
static shoal_err keep_and_block(int rank, const shoal_value *args)
{
    shoal_value *never;
    shoal_process *child = NULL;
    must_ok(keep_some());
    if (rank == IN_JOIN) {
        must_ok(shoal_process_start(sleep_on, shoal_value_null(), NULL, &child));
    }
    must_ok(shoal_queue_put(ARG(queue, "out"), shoal_value_int(1), LIMIT));
    switch (rank) {
    case IN_GET: return shoal_queue_get(ARG(queue, "in"), SHOAL_FOREVER, &never);
    case IN_LOCK: return shoal_lock_lock(ARG(lock, "lock"), SHOAL_FOREVER);
    case IN_BARRIER: return shoal_barrier_wait(ARG(barrier, "barrier"), SHOAL_FOREVER, NULL);
    case IN_JOIN: return shoal_process_join(child, SHOAL_FOREVER, NULL);
    default: return sleep_on(0, args);
    }
}

/* The child of a child that was killed ends a moment later. */
static void until_alone(void)
{
    shoal_world_info info;
    int64_t deadline = clock_ns() + LIMIT;
    do {
        ck_assert(clock_ns() < deadline);
        ck_assert_ok(shoal_world_sweep(NULL));
        ck_assert_ok(shoal_world_info_get(&info));
    } while (info.processes > 1);
}

START_TEST(a_blocked_process_gives_back)
{
    shoal_queue *in, *out;
    shoal_lock *lock;
    shoal_barrier *barrier;
    ck_assert_ok(shoal_queue_create(0, &in));
    ck_assert_ok(shoal_queue_create(0, &out));
    ck_assert_ok(shoal_lock_create(&lock));
    ck_assert_ok(shoal_barrier_create(2, &barrier));
    ck_assert_ok(shoal_lock_lock(lock, LIMIT));
    shoal_process *p = talk_start(SHOAL_START_SPAWN, _i, keep_and_block,
                                  shoal_map("in", in, "out", out, "lock", lock, "barrier", barrier));
    until_told(out);
    if (_i != IN_JOIN && _i != IN_SYSTEM_CALL) {
        until_parked(p);
    }
    expect_room();
    ck_assert_ok(shoal_process_kill(p));
    finish_as(p, SHOAL_PROCESS_KILLED, SIGKILL);
    until_alone();
    ck_assert_ok(shoal_lock_unlock(lock));
    shoal_release(in);
    shoal_release(out);
    shoal_release(lock);
    shoal_release(barrier);
}
END_TEST

static shoal_err need_room(int rank, const shoal_value *args)
{
    (void)rank;
    (void)args;
    return keep_some();
}

/* This process has used the card before it was in a world, and not since. */
START_TEST(memory_from_before_the_world_is_given_back)
{
    expect_room();
    ck_assert(!sh_attached());
    for (int n = 0; n < 3; n++) {
        finish(talk_start(SHOAL_START_SPAWN, 0, need_room, shoal_value_null()));
        expect_room(); /* the child has ended */
        shoal_world_leave();
    }
}
END_TEST

/* Sends a large tensor, and is blocked. */
static shoal_err lend_and_block(int rank, const shoal_value *args)
{
    (void)rank;
    shoal_tensor *t = make(MOST);
    shoal_value *never;
    must_ok(shoal_queue_put_tensor(ARG(queue, "out"), t, LIMIT));
    shoal_tensor_release(t);
    return shoal_queue_get(ARG(queue, "in"), SHOAL_FOREVER, &never);
}

/* Only its receiver uses the tensor: when that has let go, the maker can give it back. */
START_TEST(what_was_lent_is_given_back)
{
    talk t;
    shoal_tensor *got;
    talk_begin(&t, SHOAL_START_SPAWN, lend_and_block);
    ck_assert_ok(shoal_queue_get_tensor(t.out, LIMIT, &got));
    ck_assert_ptr_nonnull(shoal_fill_(got, 1));
    ck_assert_ptr_null(make(MOST));
    ck_assert_int_eq(shoal_last_error(), SHOAL_ENOMEM);
    shoal_tensor_release(got);
    expect_room();
    ck_assert_ok(shoal_process_kill(t.process));
    finish_as(t.process, SHOAL_PROCESS_KILLED, SIGKILL);
    shoal_release(t.in);
    shoal_release(t.out);
}
END_TEST

/* A stopped process cannot give back. Others are told, and it does so when it continues. */
START_TEST(a_stopped_process_answers_later)
{
    shoal_queue *in, *out;
    ck_assert_ok(shoal_queue_create(0, &in));
    ck_assert_ok(shoal_queue_create(0, &out));
    shoal_process *p = talk_start(SHOAL_START_SPAWN, IN_GET, keep_and_block, shoal_map("in", in, "out", out));
    until_told(out);
    kill(shoal_process_pid(p), SIGSTOP);
    ck_assert_int_eq(waitpid(shoal_process_pid(p), NULL, WUNTRACED), shoal_process_pid(p));
    int64_t before = clock_ns();
    ck_assert_ptr_null(make(MOST));
    ck_assert_int_eq(shoal_last_error(), SHOAL_ENOMEM);
    ck_assert_int_lt(clock_ns() - before, IN_TIME);
    kill(shoal_process_pid(p), SIGCONT);
    expect_room();
    ck_assert_ok(shoal_process_kill(p));
    finish_as(p, SHOAL_PROCESS_KILLED, SIGKILL);
    shoal_release(in);
    shoal_release(out);
}
END_TEST

/* A process that asks is killed before it rings: its request is counted, but no service thread is woken. */
static void ask_without_ringing(void)
{
    (void)sh_add_acq_rel(&sh_the_world.header->store.wanted, 1);
}

START_TEST(a_killed_wake_does_not_matter)
{
    shoal_queue *in, *out;
    ck_assert_ok(shoal_queue_create(0, &in));
    ck_assert_ok(shoal_queue_create(0, &out));
    shoal_process *p = talk_start(SHOAL_START_SPAWN, IN_GET, keep_and_block, shoal_map("in", in, "out", out));
    until_told(out);
    until_parked(p);
    ask_without_ringing();
    expect_room();
    ck_assert_ok(shoal_process_kill(p));
    finish_as(p, SHOAL_PROCESS_KILLED, SIGKILL);
    shoal_release(in);
    shoal_release(out);
    until_alone();
    ask_without_ringing();
    shoal_world_leave(); /* wakes its own thread, too */
}
END_TEST

/* ---- many at a time ---- */

/* Takes and lets go, as fast as it can. Returns how often there was room. */
static int take_turns(unsigned seed, int rounds)
{
    int taken = 0;
    for (int i = 0; i < rounds; i++) {
        shoal_tensor *t = make(CARD / 4 + rand_r(&seed) % (CARD / 4));
        taken += t != NULL;
        if (!t && shoal_last_error() != SHOAL_ENOMEM) {
            return -1;
        }
        shoal_tensor_release(t);
    }
    return taken;
}

static shoal_err take_turns_with_others(int rank, const shoal_value *args)
{
    (void)args;
    must(take_turns(SEED + (unsigned)rank, SH_REPEAT(100)) > 0);
    must(sh_cuda_memory_valid());
    return SHOAL_OK;
}

/* All ask and answer at once; some end while others ask. */
START_TEST(many_ask_at_once)
{
    enum { OTHERS = 3 };
    shoal_process *p[OTHERS];
    for (int i = 0; i < OTHERS; i++) {
        p[i] = talk_start(SHOAL_START_SPAWN, i, take_turns_with_others, shoal_value_null());
    }
    int taken = take_turns(SEED + OTHERS, SH_REPEAT(100));
    ck_assert_msg(taken > 0, "seed %u: %d: %s", SEED, taken, shoal_last_error_text());
    for (int i = 0; i < OTHERS; i++) {
        finish(p[i]);
    }
    expect_room();
}
END_TEST

static shoal_err take_turns_for_ever(int rank, const shoal_value *args)
{
    (void)args;
    for (unsigned seed = SEED + (unsigned)rank;; seed += 7) {
        must(take_turns(seed, 10) >= 0);
    }
    return SHOAL_OK;
}

/* The stub counts what a killed process had made as used. */
static void forget_the_dead(void)
{
    size_t own = sh_stub_control()->held();
    FILE *file = fopen(used_file, "r+");
    ck_assert_ptr_nonnull(file);
    ck_assert_uint_eq(fwrite(&own, sizeof own, 1, file), 1);
    fclose(file);
}

/* Killed at any moment while they ask or answer, some of them while they are stopped: the others go on, and whoever
 * gets nothing is told so in time. */
START_TEST(killed_and_stopped_at_any_moment)
{
    enum { OTHERS = 3 };
    unsigned seed = SEED;
    for (int round = 0; round < 4; round++) {
        shoal_process *p[OTHERS];
        for (int i = 0; i < OTHERS; i++) {
            p[i] = talk_start(SHOAL_START_SPAWN, i, take_turns_for_ever, shoal_value_null());
        }
        usleep(20000);
        for (int i = 0; i < OTHERS; i++) {
            bool stops = i == OTHERS - 1 && round % 4 == 0;
            usleep((useconds_t)(rand_r(&seed) % 10000));
            kill(shoal_process_pid(p[i]), stops ? SIGSTOP : SIGKILL);
            int64_t before = clock_ns();
            shoal_tensor_release(make(MOST));
            ck_assert_msg(clock_ns() - before < IN_TIME, "seed %u, round %d: %lld ms", SEED, round,
                          (long long)((clock_ns() - before) / SHOAL_MS(1)));
        }
        for (int i = 0; i < OTHERS; i++) {
            (void)!shoal_process_kill(p[i]);
            finish_as(p[i], SHOAL_PROCESS_KILLED, SIGKILL);
        }
        until_alone();
        (void)shoal_cuda_trim();
        forget_the_dead();
        expect_room();
        sh_assert_audit("after kills");
    }
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("cuda/full");
    TCase *tc = tcase_create("full");
    tcase_add_checked_fixture(tc, begin, end);
    tcase_set_timeout(tc, SH_TEST_SECONDS);
    tcase_add_loop_test(tc, a_blocked_process_gives_back, 0, BLOCKED);
    tcase_add_test(tc, memory_from_before_the_world_is_given_back);
    tcase_add_test(tc, what_was_lent_is_given_back);
    tcase_add_test(tc, a_stopped_process_answers_later);
    tcase_add_test(tc, a_killed_wake_does_not_matter);
    tcase_add_test(tc, many_ask_at_once);
    tcase_add_test(tc, killed_and_stopped_at_any_moment);
    suite_add_tcase(s, tc);
    return s;
}

SH_TEST_MAIN(suite)
