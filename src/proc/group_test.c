#include "proc/process_test.h"

#include "base/clock.h"

#include <shoal/binding.h>

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static shoal_err square(int rank, const shoal_value *args)
{
    int64_t skip = sh_int_of(args);
    return rank == skip ? SHOAL_OK : shoal_return(shoal_value_int(rank * rank));
}

static shoal_process_options with(int method)
{
    return (shoal_process_options){.start = (shoal_start)method, .grace = SHOAL_MS(300), .rank = 55};
}

START_TEST(ranks_and_results)
{
    enum { N = 6 };
    shoal_process_options options = with(_i);
    for (int round = 0; round < 30; round++) {
        shoal_value *results[N];
        ck_assert_ok(shoal_spawn_with(square, N, shoal_value_int(3), &options, results));
        for (int i = 0; i < N; i++) {
            ck_assert_int_eq(results[i] == NULL, i == 3);
            ck_assert_int_eq(i == 3 ? 9 : sh_int_of(results[i]), i * i);
            shoal_value_destroy(results[i]);
        }
    }
    ck_assert_ok(shoal_spawn_with(square, 0, shoal_value_int(3), &options, NULL));
    ck_assert_err(shoal_spawn_with(square, -1, shoal_value_int(3), &options, NULL), SHOAL_EINVAL);
    ck_assert_err(shoal_fail(SHOAL_OK, "%s", ""), SHOAL_OK);
    ck_assert_err(shoal_spawn_with(NULL, 2, shoal_value_int(3), &options, NULL), SHOAL_EINVAL);
    ck_assert_str_eq(shoal_last_error_text(), "shoal_spawn_with: target is NULL");
    ck_assert_ok(shoal_spawn(square, 2, shoal_value_int(0)));
}
END_TEST

static shoal_err one_stays(int rank, const shoal_value *args)
{
    (void)args;
    while (rank == 1) {
        pause();
    }
    return SHOAL_OK;
}

/* The timeout is for all ranks together. Those that still run are ended, and none is left. */
START_TEST(the_timeout_ends_all_ranks)
{
    shoal_process_options options = with(_i);
    shoal_value *results[3];
    options.timeout = SHOAL_MS(50);
    ck_assert_err(shoal_spawn_with(one_stays, 3, shoal_value_null(), &options, results), SHOAL_ETIMEDOUT);
    ck_assert_ptr_nonnull(strstr(shoal_last_error_text(), "still ran when the timeout expired"));
    ck_assert_ptr_null(results[0]);
    options.timeout = -1;
    ck_assert_err(shoal_spawn_with(one_stays, 1, shoal_value_null(), &options, NULL), SHOAL_EINVAL);
    options.timeout = SHOAL_FOREVER;
    ck_assert_ok(shoal_spawn_with(one_stays, 1, shoal_value_null(), &options, NULL));
}
END_TEST

/* Not every call has every option. One that would do nothing is refused, and the text says which call has it. */
START_TEST(an_option_of_another_call_is_refused)
{
    static const int fds[] = {0};
    static char *const argv[] = {(char *)"true", NULL};
    const shoal_process_options late = {.timeout = SHOAL_MS(1)}, patient = {.grace = 1},
                                files = {.fds = fds, .fd_count = 1};
    const shoal_process_options none = {.fd_count = 1}, past = {.grace = -1};
    shoal_process *p;
    ck_assert_err(shoal_process_start(one_stays, shoal_value_null(), &late, &p), SHOAL_EINVAL);
    ck_assert_str_eq(shoal_last_error_text(), "shoal_process_start: timeout is an option of shoal_spawn_with only");
    ck_assert_err(shoal_process_start(one_stays, shoal_value_null(), &files, &p), SHOAL_EINVAL);
    ck_assert_str_eq(shoal_last_error_text(),
                     "shoal_process_start: fds is an option of shoal_process_start_program only");
    ck_assert_err(shoal_spawn_with(one_stays, 1, shoal_value_null(), &files, NULL), SHOAL_EINVAL);
    ck_assert_err(shoal_spawn_with(one_stays, 1, shoal_value_null(), &past, NULL), SHOAL_EINVAL);
    ck_assert_str_eq(shoal_last_error_text(), "shoal_spawn_with: grace is negative");
    ck_assert_err(shoal_process_start_program("/bin/true", argv, shoal_value_null(), &patient, &p), SHOAL_EINVAL);
    ck_assert_err(shoal_process_start_program("/bin/true", argv, shoal_value_null(), &none, &p), SHOAL_EINVAL);
    ck_assert_str_eq(shoal_last_error_text(), "shoal_process_start_program: fd_count is 1, but fds is NULL");
    ck_assert_err(shoal_fork(&(shoal_fork_options){.process = &patient}, &p), SHOAL_EINVAL);
    ck_assert_str_eq(shoal_last_error_text(), "shoal_fork: grace is an option of shoal_spawn_with only");
}
END_TEST

/* args: a block with an int for each rank, an event. */
typedef enum way { ABORT, FAIL, EXIT_9, EXIT_0 } way;

static int *notes;
static int my_rank;

static void note_term(int number)
{
    (void)number;
    notes[my_rank] = 1;
    _exit(3);
}

static shoal_err fail_or_wait(int rank, const shoal_value *args)
{
    notes = shoal_block_data(shoal_value_as_block(shoal_value_at(args, 0)));
    shoal_barrier *barrier = shoal_value_as_barrier(shoal_value_at(args, 1));
    way how = (way)sh_int_of(shoal_value_at(args, 2));
    uint32_t index;
    my_rank = rank;
    signal(SIGTERM, rank == 1 ? SIG_IGN : note_term);
    must(shoal_return(shoal_value_int(1)) == SHOAL_OK);
    must(shoal_barrier_wait(barrier, LIMIT, &index) == SHOAL_OK); /* all are up and have their handlers */
    if (rank == 2) {
        switch (how) {
        case ABORT: abort();
        case FAIL: return shoal_fail(SHOAL_ELIMIT, "too much");
        case EXIT_9: exit(9);
        case EXIT_0: exit(0);
        }
    }
    if (how == EXIT_0) {
        return SHOAL_OK;
    }
    for (;;) {
        pause();
    }
}

START_TEST(b31_one_failure_ends_all)
{
    enum { N = 4 };
    static const char *const wanted[] = {[ABORT] = "rank 2 ended by SIGABRT",
                                         [FAIL] = "rank 2 failed: SHOAL_ELIMIT: too much",
                                         [EXIT_9] = "rank 2 exited with 9"};
    shoal_process_options options = with(_i);
    for (int how = ABORT; how <= EXIT_0; how++) {
        shoal_block *block;
        shoal_barrier *barrier;
        shoal_value *results[N];
        ck_assert_ok(shoal_block_create_zeroed(N * sizeof(int), &block));
        ck_assert_ok(shoal_barrier_create(N, &barrier));
        int64_t begin = sh_now(), quiet = sh_quiet_now();
        shoal_err err = shoal_spawn_with(fail_or_wait, N, shoal_list(block, barrier, how), &options, results);
        int64_t took = sh_now() - begin, quiet_took = sh_quiet_now() - quiet;
        const int *seen = shoal_block_data(block);
        if (how == EXIT_0) { /* no failure */
            ck_assert_ok(err);
        } else {
            ck_assert_int_eq(err, SHOAL_ECHILD);
            ck_assert_str_eq(shoal_last_error_text(), wanted[how]);
            ck_assert_int_eq(seen[0] + seen[3], 2); /* their handlers ran */
            ck_assert_int_ge(took, SHOAL_MS(300));  /* rank 1 ignores SIGTERM */
            ck_assert_int_lt(quiet_took, SHOAL_SECONDS(5));
        }
        for (int i = 0; i < N; i++) {
            ck_assert_int_eq(results[i] != NULL, how == EXIT_0);
            shoal_value_destroy(results[i]);
        }
        shoal_release(block);
        shoal_release(barrier);
    }
}
END_TEST

/* Rank 0 is killed, which breaks the barrier, which makes the others fail: the cause is reported, not its
 * consequences. */
static shoal_err break_barrier(int rank, const shoal_value *args)
{
    shoal_barrier *barrier = shoal_value_as_barrier(args);
    uint32_t index;
    must(shoal_barrier_wait(barrier, LIMIT, &index) == SHOAL_OK);
    if (rank == 3) {
        kill(getpid(), SIGKILL);
    }
    return shoal_barrier_wait(barrier, LIMIT, &index);
}

START_TEST(b31_the_first_failure_is_reported)
{
    shoal_process_options options = with(_i);
    for (int i = 0; i < 10; i++) {
        shoal_barrier *barrier;
        ck_assert_ok(shoal_barrier_create(4, &barrier));
        ck_assert_err(shoal_spawn_with(break_barrier, 4, shoal_value_of(barrier), &options, NULL), SHOAL_ECHILD);
        ck_assert_str_eq(shoal_last_error_text(), "rank 3 ended by SIGKILL");
        shoal_release(barrier);
    }
}
END_TEST

START_TEST(arguments_that_cannot_be_sent)
{
    shoal_process_options options = with(_i);
    shoal_value *results[2] = {shoal_value_null(), NULL};
    shoal_value *garbage = results[0];
    ck_assert_err(shoal_spawn_with((shoal_target)(uintptr_t)&options, 2, shoal_value_null(), &options, results),
                  SHOAL_EINVAL);
    ck_assert_ptr_null(results[0]);
    results[0] = garbage;
    ck_assert_err(shoal_spawn_with(square, 2, NULL, &options, results),
                  SHOAL_EINVAL); /* as if a shoal_map had failed */
    ck_assert_ptr_null(results[0]);
    shoal_value_destroy(garbage);
}
END_TEST

/* Impossible requests fail before anything is started. */
START_TEST(u8_too_many_ranks_are_refused_at_once)
{
    shoal_world_info info;
    int64_t began = sh_quiet_now();
    ck_assert_err(shoal_spawn(square, 100000, shoal_value_int(0)), SHOAL_ELIMIT);
    ck_assert_int_lt(sh_quiet_now() - began, SHOAL_SECONDS(2));
    ck_assert_ptr_nonnull(strstr(shoal_last_error_text(), "100000 processes"));
    ck_assert_ok(shoal_world_info_get(&info));
    ck_assert_uint_eq(info.processes, 1);
}
END_TEST

/* Rank 0 fails; the others wait to be ended. */
static shoal_err first_fails(int rank, const shoal_value *args)
{
    (void)args;
    if (rank == 0) {
        return shoal_fail(SHOAL_EINVAL, "at once");
    }
    for (;;) {
        pause();
    }
}

static int forks;

/* Before each fork but the first: rank 0, the only one that ends by itself, has ended. */
static void await_an_end(void)
{
    siginfo_t info;
    if (forks++ > 0) {
        waitid(P_ALL, 0, &info, WEXITED | WNOWAIT);
    }
}

/* A failure is noticed while others are being started. */
START_TEST(u8_a_failure_stops_further_starts)
{
    enum { N = 100 };
    shoal_process_options options = {.start = SHOAL_START_FORK, .grace = SHOAL_MS(300)};
    signal(SIGTERM, SIG_DFL);
    ck_assert_int_eq(pthread_atfork(await_an_end, NULL, NULL), 0);
    ck_assert_err(shoal_spawn_with(first_fails, N, shoal_value_null(), &options, NULL), SHOAL_ECHILD);
    ck_assert_ptr_nonnull(strstr(shoal_last_error_text(), "at once"));
    ck_assert_int_ge(forks, 2); /* it starts several between two checks */
    ck_assert_int_lt(forks, 20);
}
END_TEST

/* A negative one would otherwise count as the default of 3 seconds. */
START_TEST(negative_times_are_refused)
{
    const shoal_process_options wrong[] = {{.grace = -1}, {.timeout = -1}};
    for (int i = 0; i < 2; i++) {
        ck_assert_err(shoal_spawn_with(first_fails, 1, shoal_value_null(), &wrong[i], NULL), SHOAL_EINVAL);
        ck_assert_ptr_nonnull(strstr(shoal_last_error_text(), i == 0 ? "grace" : "timeout"));
    }
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("group");
    TCase *tc = methods_case("group");
    add_for_methods(tc, ranks_and_results);
    add_for_methods(tc, the_timeout_ends_all_ranks);
    add_for_methods(tc, b31_one_failure_ends_all);
    add_for_methods(tc, b31_the_first_failure_is_reported);
    tcase_add_loop_test(tc, arguments_that_cannot_be_sent, SHOAL_START_SPAWN, SHOAL_START_SPAWN + 1);
    tcase_add_test(tc, an_option_of_another_call_is_refused);
    tcase_add_test(tc, u8_too_many_ranks_are_refused_at_once);
    tcase_add_test(tc, u8_a_failure_stops_further_starts);
    tcase_add_test(tc, negative_times_are_refused);
    suite_add_tcase(s, tc);
    return s;
}

SH_TEST_MAIN(suite)
