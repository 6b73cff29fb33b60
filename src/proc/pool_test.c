#include "proc/process_test.h"

#include "base/clock.h"
#include "proc/pool.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static shoal_pool *make(int method, shoal_pool_options options)
{
    shoal_pool *pool;
    options.start = (shoal_start)method;
    options.workers = options.workers != 0 ? options.workers : 2;
    ck_assert_ok(shoal_pool_create(&options, &pool));
    return pool;
}

static shoal_value *numbers(int n)
{
    shoal_value *list = shoal_value_list();
    for (int i = 0; i < n; i++) {
        list = shoal_list_add(list, shoal_value_int(i));
    }
    return list;
}

static shoal_err square(const shoal_value *arg, shoal_value **out_result)
{
    int64_t x = sh_int_of(arg);
    *out_result = shoal_value_int(x * x);
    return SHOAL_OK;
}

/* ---- B28: the calls ---- */

START_TEST(apply_and_map)
{
    shoal_pool *pool = make(_i, (shoal_pool_options){.workers = 3});
    shoal_value *v;
    ck_assert_ok(shoal_pool_apply(pool, square, shoal_value_int(12), &v));
    ck_assert_int_eq(sh_int_of(v), 144);
    shoal_value_destroy(v);
    for (size_t chunk = 0; chunk < 130; chunk = chunk * 2 + 1) {
        for (int n = 0; n <= 100; n += 50) {
            ck_assert_ok(shoal_pool_map(pool, square, numbers(n), chunk, &v));
            ck_assert_uint_eq(shoal_value_count(v), (size_t)n);
            for (int i = 0; i < n; i++) {
                ck_assert_int_eq(sh_int_of(shoal_value_at(v, (size_t)i)), (int64_t)i * i);
            }
            shoal_value_destroy(v);
        }
    }
    shoal_pool_close(pool);
    ck_assert_err(shoal_pool_apply(pool, square, shoal_value_int(1), &v), SHOAL_ECLOSED);
    ck_assert_ok(shoal_pool_join(pool, LIMIT));
    ck_assert_ok(shoal_pool_join(pool, LIMIT));
    ck_assert_uint_eq(shoal_pool_losses(pool), 0);
    shoal_pool_destroy(pool);
}
END_TEST

static shoal_err add_up(const shoal_value *arg, shoal_value **out_result) /* starmap */
{
    int64_t sum = 0;
    for (size_t i = 0; i < shoal_value_count(arg); i++) {
        sum += sh_int_of(shoal_value_at(arg, i));
    }
    *out_result = shoal_list(sum, shoal_value_copy(arg));
    return SHOAL_OK;
}

/* One in three fails, one in three returns nothing. */
static shoal_err fail_or_null(const shoal_value *arg, shoal_value **out_result)
{
    int64_t x = sh_int_of(arg);
    if (x % 3 == 1) {
        return shoal_fail(SHOAL_ELIMIT, "%d is too much — für mich", (int)x);
    }
    *out_result = x % 3 == 2 ? NULL : shoal_value_int(x);
    return SHOAL_OK;
}

static shoal_err fail_silently(const shoal_value *arg, shoal_value **out_result)
{
    (void)arg;
    (void)out_result;
    return SHOAL_EBROKEN;
}

/* Error codes that next and get use themselves; the last is not an error code. */
static const shoal_err callers[] = {SHOAL_END, SHOAL_ETIMEDOUT, SHOAL_EINTR, (shoal_err)77};

static shoal_err return_callers_code(const shoal_value *arg, shoal_value **out_result)
{
    int64_t x = sh_int_of(arg);
    if (x % 2 == 1 && x < 8) {
        return x == 3 ? shoal_fail(callers[x / 2], "in words") : callers[x / 2];
    }
    *out_result = shoal_value_int(x);
    return SHOAL_OK;
}

/* A task's error code never looks like the end of the iteration, or like a timeout or a signal of the caller. */
START_TEST(task_codes_do_not_look_like_the_callers)
{
    static const char *const texts[] = {"the task returned SHOAL_END", "the task returned SHOAL_ETIMEDOUT: in words",
                                        "the task returned SHOAL_EINTR", "the task returned SHOAL_E?"};
    shoal_pool *pool = make(_i, (shoal_pool_options){.workers = 1});
    shoal_iterator *it;
    shoal_future *future;
    shoal_value *v;
    ck_assert_ok(shoal_pool_imap(pool, return_callers_code, numbers(10), true, &it));
    for (int i = 0; i < 10; i++) {
        shoal_err err = shoal_iterator_next(it, LIMIT, &v);
        if (i % 2 == 1 && i < 8) {
            ck_assert_err(err, SHOAL_ECHILD);
            ck_assert_str_eq(shoal_last_error_text(), texts[i / 2]);
        } else {
            ck_assert_ok(err);
            ck_assert_int_eq(sh_int_of(v), i);
            shoal_value_destroy(v);
        }
    }
    ck_assert_err(shoal_iterator_next(it, LIMIT, &v), SHOAL_END);
    shoal_iterator_destroy(it);
    for (int i = 1; i < 8; i += 2) {
        ck_assert_ok(shoal_pool_apply_async(pool, return_callers_code, shoal_value_int(i), &future));
        ck_assert_err(shoal_future_get(future, LIMIT, &v), SHOAL_ECHILD);
        ck_assert_str_eq(shoal_last_error_text(), texts[i / 2]);
        shoal_future_destroy(future);
    }
    shoal_pool_destroy(pool);
}
END_TEST

START_TEST(starmap_and_errors)
{
    shoal_pool *pool = make(_i, (shoal_pool_options){.workers = 2});
    shoal_value *v = NULL;
    shoal_value *arguments = shoal_list(shoal_list(1, 2), shoal_list(3, 4, 5), shoal_value_list());
    ck_assert_ok(shoal_pool_map(pool, add_up, arguments, 0, &v));
    ck_assert_int_eq(sh_int_of(shoal_value_at(shoal_value_at(v, 1), 0)), 12);
    ck_assert_int_eq(sh_int_of(shoal_value_at(shoal_value_at(shoal_value_at(v, 1), 1), 2)), 5);
    shoal_value_destroy(v);
    v = NULL;
    ck_assert_err(shoal_pool_map(pool, fail_or_null, numbers(20), 1, &v), SHOAL_ELIMIT);
    ck_assert_str_eq(shoal_last_error_text(), "1 is too much — für mich"); /* the first in order */
    ck_assert_err(shoal_pool_map(pool, fail_or_null, numbers(20), 7, &v), SHOAL_ELIMIT);
    ck_assert_str_eq(shoal_last_error_text(), "1 is too much — für mich");
    ck_assert_err(shoal_pool_apply(pool, fail_silently, shoal_value_null(), &v), SHOAL_EBROKEN);
    ck_assert_str_eq(shoal_last_error_text(), "the task returned SHOAL_EBROKEN");
    ck_assert_err(shoal_pool_apply(pool, NULL, shoal_value_null(), &v), SHOAL_EINVAL);
    ck_assert_err(shoal_pool_map(pool, square, shoal_value_int(1), 0, &v), SHOAL_ETYPE);
    ck_assert_int_ne(shoal_pool_map(pool, square, NULL, 0, &v), SHOAL_OK);
    ck_assert_ptr_null(v);
    ck_assert_ok(shoal_pool_apply(pool, fail_or_null, shoal_value_int(2), &v));
    ck_assert_int_eq(shoal_value_type(v), SHOAL_TYPE_NULL);
    shoal_value_destroy(v);
    ck_assert_err(shoal_pool_join(pool, LIMIT), SHOAL_ESTATE);
    shoal_pool_destroy(pool);
    ck_assert_err(shoal_pool_create(&(shoal_pool_options){.workers = -1, .init_args = shoal_value_int(1)}, &pool),
                  SHOAL_EINVAL);
    shoal_pool_destroy(NULL);
}
END_TEST

START_TEST(iterators)
{
    enum { N = 60 };
    shoal_pool *pool = make(_i, (shoal_pool_options){.workers = 3});
    for (int ordered = 0; ordered < 2; ordered++) {
        shoal_iterator *it;
        bool seen[N] = {false};
        int failures = 0;
        ck_assert_ok(shoal_pool_imap(pool, fail_or_null, numbers(N), ordered, &it));
        for (int i = 0; i < N; i++) {
            shoal_value *v;
            shoal_err err = shoal_iterator_next(it, LIMIT, &v);
            if (err == SHOAL_OK) {
                int64_t x = shoal_value_type(v) == SHOAL_TYPE_NULL ? -1 : sh_int_of(v);
                ck_assert(!ordered || x == (i % 3 == 0 ? i : -1));
                ck_assert(x < 0 || !seen[x]);
                seen[x < 0 ? 0 : x] |= x >= 0;
                shoal_value_destroy(v);
            } else {
                ck_assert_int_eq(err, SHOAL_ELIMIT);
                ck_assert(!ordered || i % 3 == 1);
                failures++;
            }
        }
        shoal_value *none = NULL;
        ck_assert_int_eq(failures, N / 3);
        ck_assert_int_eq(shoal_iterator_next(it, SHOAL_NOW, &none), SHOAL_END);
        shoal_iterator_destroy(it);
        ck_assert_ok(shoal_pool_imap(pool, square, numbers(N), ordered, &it));
        shoal_iterator_destroy(it); /* its tasks keep running */
    }
    shoal_pool_close(pool);
    ck_assert_ok(shoal_pool_join(pool, LIMIT));
    shoal_pool_destroy(pool);
}
END_TEST

static shoal_err wait_for(const shoal_value *arg, shoal_value **out_result)
{
    *out_result = shoal_value_int(getpid());
    return shoal_event_wait(shoal_value_as_event(arg), LIMIT);
}

START_TEST(futures)
{
    shoal_pool *pool = make(_i, (shoal_pool_options){.workers = 2});
    shoal_future *a, *b, *early;
    shoal_event *go;
    shoal_value *v = NULL;
    ck_assert_ok(shoal_event_create(&go));
    ck_assert_ok(shoal_pool_apply_async(pool, wait_for, shoal_value_of(go), &a));
    ck_assert_ok(shoal_pool_map_async(pool, square, numbers(10), 0, &b));
    ck_assert_ok(shoal_pool_apply_async(pool, square, shoal_value_int(3), &early));
    shoal_future_destroy(early);
    ck_assert_ok(shoal_future_get(b, LIMIT, &v)); /* one worker is busy, the other does it */
    ck_assert_uint_eq(shoal_value_count(v), 10);
    shoal_value_destroy(v);
    v = NULL;
    ck_assert_err(shoal_future_get(b, SHOAL_NOW, &v), SHOAL_ESTATE);
    ck_assert(!shoal_future_ready(a));
    int64_t begin = sh_now(), quiet = sh_quiet_now();
    ck_assert_err(shoal_future_get(a, SHOAL_MS(50), &v), SHOAL_ETIMEDOUT);
    ck_assert_int_ge(sh_now() - begin, SHOAL_MS(50));
    ck_assert_int_lt(sh_quiet_now() - quiet, SHOAL_MS(400));
    ck_assert_ptr_null(v);
    shoal_event_set(go);
    while (!shoal_future_ready(a)) {
        usleep(100);
    }
    ck_assert_ok(shoal_future_get(a, SHOAL_NOW, &v));
    shoal_value_destroy(v);
    shoal_pool_destroy(pool);
    shoal_future_destroy(a); /* a future may outlive its pool */
    shoal_future_destroy(b);
    shoal_future_destroy(NULL);
    shoal_release(go);
}
END_TEST

static shoal_err fill(const shoal_value *arg, shoal_value **out_result)
{
    shoal_block *block = shoal_value_as_block(shoal_value_at(arg, 0));
    (void)out_result;
    memset(shoal_block_data(block), (int)sh_int_of(shoal_value_at(arg, 1)), shoal_block_size(block));
    return SHOAL_OK;
}

START_TEST(buffers_are_filled)
{
    enum { N = 8, SIZE = 300000 };
    shoal_pool *pool = make(_i, (shoal_pool_options){.workers = 2});
    shoal_block *blocks[N];
    shoal_value *list = shoal_value_list(), *v;
    for (int i = 0; i < N; i++) {
        ck_assert_ok(shoal_block_create_zeroed(SIZE, &blocks[i]));
        list = shoal_list_add(list, shoal_list(blocks[i], i + 1));
    }
    ck_assert_ok(shoal_pool_map(pool, fill, list, 0, &v));
    shoal_value_destroy(v);
    for (int i = 0; i < N; i++) {
        const char *bytes = shoal_block_data(blocks[i]);
        ck_assert_int_eq(bytes[0], i + 1);
        ck_assert_mem_eq(bytes, bytes + 1, SIZE - 1);
        shoal_release(blocks[i]);
    }
    shoal_pool_destroy(pool);
}
END_TEST

/* ---- initializer, tasks per child ---- */

static int64_t base;

static shoal_err set_base(int rank, const shoal_value *args)
{
    base = sh_int_of(args) + rank * 0;
    return base < 0 ? shoal_fail(SHOAL_EINVAL, "base %d", (int)base) : SHOAL_OK;
}

static shoal_err add_base(const shoal_value *arg, shoal_value **out_result)
{
    *out_result = shoal_list(base + sh_int_of(arg), getpid());
    return SHOAL_OK;
}

/* Two counters in a block: workers that have begun, and workers whose exit handlers are through. */
static sh_a32 *lives;

static void exit_slowly(void)
{
    usleep(200000); /* that is what is tested: nothing may cut it short */
    sh_add_acq_rel(&lives[1], 1);
}

static shoal_err begin_life(int rank, const shoal_value *args)
{
    (void)rank;
    lives = shoal_block_data(shoal_value_as_block(args));
    must(lives != NULL && atexit(exit_slowly) == 0);
    sh_add_acq_rel(&lives[0], 1);
    return SHOAL_OK;
}

START_TEST(f7_workers_that_retire_run_their_exit_handlers)
{
    shoal_block *counters;
    shoal_value *v;
    ck_assert_ok(shoal_block_create_zeroed(2 * sizeof(sh_a32), &counters));
    shoal_pool *pool =
        make(SHOAL_START_SPAWN,
             (shoal_pool_options){
                 .workers = 2, .initializer = begin_life, .init_args = shoal_value_of(counters), .tasks_per_child = 1});
    ck_assert_ok(shoal_pool_map(pool, square, numbers(12), 1, &v));
    ck_assert_uint_eq(shoal_value_count(v), 12);
    shoal_value_destroy(v);
    shoal_pool_close(pool);
    ck_assert_ok(shoal_pool_join(pool, LIMIT));
    const sh_a32 *words = shoal_block_data(counters);
    ck_assert_uint_ge(sh_load_acquire(&words[0]), 12);
    ck_assert_uint_eq(sh_load_acquire(&words[1]), sh_load_acquire(&words[0]));
    ck_assert_uint_eq(shoal_pool_losses(pool), 0);
    shoal_pool_destroy(pool);
    shoal_release(counters);
}
END_TEST

START_TEST(initializer_and_tasks_per_child)
{
    enum { N = 30 };
    shoal_pool *pool =
        make(_i, (shoal_pool_options){
                     .workers = 2, .initializer = set_base, .init_args = shoal_value_int(1000), .tasks_per_child = 3});
    shoal_value *v;
    int pids[N], different = 0;
    ck_assert_ok(shoal_pool_map(pool, add_base, numbers(N), 0, &v));
    for (int i = 0; i < N; i++) {
        const shoal_value *pair = shoal_value_at(v, (size_t)i);
        ck_assert_int_eq(sh_int_of(shoal_value_at(pair, 0)), 1000 + i);
        pids[i] = (int)sh_int_of(shoal_value_at(pair, 1));
        bool is_new = true;
        for (int k = 0; k < i; k++) {
            is_new = is_new && pids[k] != pids[i];
        }
        different += is_new;
    }
    ck_assert_int_eq(different, N / 3);
    shoal_value_destroy(v);
    ck_assert_uint_eq(shoal_pool_losses(pool), 0);
    shoal_pool_close(pool);
    ck_assert_ok(shoal_pool_join(pool, LIMIT));
    shoal_pool_destroy(pool);
}
END_TEST

START_TEST(a_failing_initializer_is_reported)
{
    shoal_pool *pool =
        make(_i, (shoal_pool_options){.workers = 2, .initializer = set_base, .init_args = shoal_value_int(-5)});
    shoal_value *v = NULL;
    ck_assert_err(shoal_pool_apply(pool, square, shoal_value_int(1), &v), SHOAL_ECHILD);
    ck_assert_msg(strstr(shoal_last_error_text(), "initializer failed: rank") != NULL, "%s", shoal_last_error_text());
    ck_assert_msg(strstr(shoal_last_error_text(), "SHOAL_EINVAL: base -5") != NULL, "%s", shoal_last_error_text());
    ck_assert_err(shoal_pool_apply(pool, square, shoal_value_int(1), &v), SHOAL_ECHILD);
    shoal_pool_close(pool);
    ck_assert_ok(shoal_pool_join(pool, LIMIT));
    shoal_pool_destroy(pool);
}
END_TEST

static shoal_err crash_at_once(int rank, const shoal_value *args)
{
    (void)rank;
    (void)args;
    kill(getpid(), SIGKILL);
    return SHOAL_OK;
}

START_TEST(workers_that_never_come_up)
{
    shoal_pool *pool = make(_i, (shoal_pool_options){.workers = 2, .initializer = crash_at_once});
    shoal_value *v = NULL;
    ck_assert_err(shoal_pool_apply(pool, square, shoal_value_int(1), &v), SHOAL_ECHILD);
    ck_assert_msg(strstr(shoal_last_error_text(), "before they are ready: rank") != NULL, "%s",
                  shoal_last_error_text());
    shoal_pool_destroy(pool);
}
END_TEST

/* ---- death ---- */

/* Kills its worker the first few times that it runs. args: a block with a counter, and how often. */
static shoal_err die_first(const shoal_value *arg, shoal_value **out_result)
{
    int *count = shoal_block_data(shoal_value_as_block(shoal_value_at(arg, 0)));
    int64_t deaths = sh_int_of(shoal_value_at(arg, 1));
    if ((*count)++ < deaths) {
        kill(getpid(), SIGKILL);
    }
    *out_result = shoal_value_int(*count);
    return SHOAL_OK;
}

START_TEST(a_killed_worker_is_replaced)
{
    static const struct {
        int retries, deaths, losses;
        shoal_err err;
    } cases[] = {{0, 1, 1, SHOAL_OK},
                 {0, 2, 2, SHOAL_ECHILD},
                 {-1, 1, 1, SHOAL_ECHILD},
                 {3, 3, 3, SHOAL_OK},
                 {3, 4, 4, SHOAL_ECHILD}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        shoal_pool *pool = make(_i, (shoal_pool_options){.workers = 1, .retries = cases[i].retries});
        shoal_block *block;
        shoal_value *v = NULL;
        ck_assert_ok(shoal_block_create_zeroed(sizeof(int), &block));
        ck_assert_err(shoal_pool_apply(pool, die_first, shoal_list(block, cases[i].deaths), &v), cases[i].err);
        if (cases[i].err == SHOAL_OK) {
            ck_assert_int_eq(sh_int_of(v), cases[i].deaths + 1);
            shoal_value_destroy(v);
        } else {
            ck_assert_str_eq(shoal_last_error_text(), "the task's worker died: rank 0 (worker) ended by SIGKILL");
        }
        ck_assert_uint_eq(shoal_pool_losses(pool), (uint64_t)cases[i].losses);
        ck_assert_ok(shoal_pool_apply(pool, square, shoal_value_int(5), &v)); /* the pool still works */
        shoal_value_destroy(v);
        shoal_pool_close(pool);
        ck_assert_ok(shoal_pool_join(pool, LIMIT));
        shoal_pool_destroy(pool);
        shoal_release(block);
    }
}
END_TEST

/* Counts how often each member ran. Some members kill their worker, and one makes it exit. */
static shoal_err risky(const shoal_value *arg, shoal_value **out_result)
{
    int i = (int)sh_int_of(shoal_value_at(arg, 0));
    sh_a32 *runs = shoal_block_data(shoal_value_as_block(shoal_value_at(arg, 1)));
    uint32_t times = sh_add_relaxed(&runs[i], 1) + 1;
    if (i % 10 == 3 && times == 1) {
        kill(getpid(), SIGKILL);
    }
    if (i % 10 == 6 && times == 1) {
        exit(0);
    }
    *out_result = shoal_value_int(i * 7);
    return SHOAL_OK;
}

START_TEST(a_map_with_deaths_is_complete)
{
    enum { N = 60 };
    shoal_pool *pool = make(_i, (shoal_pool_options){.workers = 3, .retries = 5});
    for (size_t chunk = 1; chunk < 8; chunk += 3) {
        shoal_block *runs;
        shoal_value *list = shoal_value_list(), *v;
        ck_assert_ok(shoal_block_create_zeroed(N * sizeof(sh_a32), &runs));
        for (int i = 0; i < N; i++) {
            list = shoal_list_add(list, shoal_list(i, runs));
        }
        ck_assert_ok(shoal_pool_map(pool, risky, list, chunk, &v));
        ck_assert_uint_eq(shoal_value_count(v), N);
        for (int i = 0; i < N; i++) {
            ck_assert_int_eq(sh_int_of(shoal_value_at(v, (size_t)i)), i * 7);
            if (chunk == 1) {
                ck_assert_uint_eq(sh_load_relaxed((sh_a32 *)shoal_block_data(runs) + i),
                                  i % 10 == 3 || i % 10 == 6 ? 2 : 1);
            }
        }
        shoal_value_destroy(v);
        shoal_release(runs);
    }
    ck_assert_uint_eq(shoal_pool_losses(pool), 3 * 12);
    shoal_pool_close(pool);
    ck_assert_ok(shoal_pool_join(pool, LIMIT));
    shoal_pool_destroy(pool);
}
END_TEST

START_TEST(terminate_fails_unfinished_tasks)
{
    shoal_pool *pool = make(_i, (shoal_pool_options){.workers = 2});
    shoal_future *waiting[5];
    shoal_event *go;
    shoal_value *v = NULL;
    ck_assert_ok(shoal_event_create(&go));
    for (int i = 0; i < 5; i++) {
        ck_assert_ok(shoal_pool_apply_async(pool, wait_for, shoal_value_of(go), &waiting[i]));
    }
    int64_t begin = sh_quiet_now();
    shoal_pool_terminate(pool);
    ck_assert_int_lt(sh_quiet_now() - begin, SHOAL_SECONDS(5));
    for (int i = 0; i < 5; i++) {
        ck_assert_err(shoal_future_get(waiting[i], LIMIT, &v), SHOAL_ECLOSED);
        shoal_future_destroy(waiting[i]);
    }
    ck_assert_ok(shoal_pool_join(pool, LIMIT));
    shoal_pool_destroy(pool);
    shoal_release(go);
}
END_TEST

/* Handles that remain after this process left their world can be destroyed in any order, and no world is entered for
 * it. */
static shoal_err sleep_long(int rank, const shoal_value *args)
{
    (void)rank;
    (void)args;
    pause();
    return SHOAL_OK;
}

START_TEST(handles_are_destroyed_after_their_world)
{
    shoal_pool *pool = make(_i, (shoal_pool_options){.workers = 1}),
               *other = make(_i, (shoal_pool_options){.workers = 1});
    shoal_process *p = start(_i, sleep_long, NULL);
    shoal_future *waiting[2];
    shoal_event *go;
    shoal_pipe *a, *b;
    shoal_status status;
    shoal_value *v;
    ck_assert_ok(shoal_event_create(&go));
    ck_assert_ok(shoal_pipe_create(true, &a, &b));
    shoal_value *both = shoal_list(a, go);
    for (int i = 0; i < 2; i++) {
        ck_assert_ok(shoal_pool_apply_async(pool, wait_for, shoal_value_of(go), &waiting[i]));
    }
    shoal_world_leave();
    ck_assert_err(shoal_future_get(waiting[0], LIMIT, &v), SHOAL_ESTATE);
    shoal_future_destroy(waiting[0]);
    ck_assert_err(shoal_pool_apply(other, square, shoal_value_int(2), &v), SHOAL_ESTATE);
    shoal_pool_close(other);
    ck_assert_err(shoal_pool_join(other, LIMIT), SHOAL_ESTATE);
    shoal_pool_terminate(other);
    shoal_pool_destroy(other);
    shoal_pool_destroy(pool);
    shoal_future_destroy(waiting[1]);
    ck_assert_ok(shoal_process_kill(p));
    ck_assert_ok(shoal_process_join(p, LIMIT, &status));
    ck_assert_str_eq(status.text, "rank 0 ended by SIGKILL");
    shoal_process_destroy(p);
    ck_assert_err(shoal_event_wait(go, SHOAL_NOW), SHOAL_ESTATE);
    shoal_release(go);
    shoal_release(b);
    ck_assert_ok(shoal_world_create(NULL)); /* no call above made one */
    shoal_value_destroy(both);
    shoal_release(a);
}
END_TEST

/* Threads share a pool. */
static void *apply_many(void *arg)
{
    for (int i = 0; i < 100; i++) {
        shoal_value *v;
        ck_assert_ok(shoal_pool_apply(arg, square, shoal_value_int(i), &v));
        ck_assert_int_eq(sh_int_of(v), i * i);
        shoal_value_destroy(v);
    }
    return NULL;
}

START_TEST(threads_share_a_pool)
{
    shoal_pool *pool = make(_i, (shoal_pool_options){.workers = 2});
    pthread_t threads[3];
    for (int i = 0; i < 3; i++) {
        ck_assert_int_eq(pthread_create(&threads[i], NULL, apply_many, pool), 0);
    }
    for (int i = 0; i < 3; i++) {
        ck_assert_int_eq(pthread_join(threads[i], NULL), 0);
    }
    shoal_pool_destroy(pool);
}
END_TEST

/* ---- pools whose workers a binding starts ---- */

/* A binding's worker: squares small numbers, answers others with an error, and kills itself for 13. args: the
 * objects. */
static shoal_err serve(int rank, const shoal_value *args)
{
    shoal_pool_objects objects = {.tasks = shoal_value_as_queue(shoal_value_at(args, 0)),
                                  .answers = shoal_value_as_queue(shoal_value_at(args, 1)),
                                  .places = shoal_value_as_block(shoal_value_at(args, 2))};
    shoal_worker *worker;
    shoal_value *task;
    shoal_err err;
    must(shoal_worker_begin(&objects, rank, &worker) == SHOAL_OK);
    must(shoal_worker_answer(worker, SHOAL_OK, shoal_value_int(1)) == SHOAL_ESTATE);
    while ((err = shoal_worker_take(worker, LIMIT, &task)) == SHOAL_OK) {
        int64_t x = shoal_value_type(task) == SHOAL_TYPE_INT ? sh_int_of(task) : 0;
        shoal_value *other;
        must(shoal_worker_take(worker, SHOAL_NOW, &other) == SHOAL_ESTATE);
        if (x == 13) {
            kill(getpid(), SIGKILL);
        }
        must((shoal_value_type(task) != SHOAL_TYPE_INT ? shoal_worker_answer(worker, SHOAL_OK, shoal_value_copy(task))
              : x < 100                                ? shoal_worker_answer(worker, SHOAL_OK, shoal_value_int(x * x))
                        : shoal_worker_answer(worker, SHOAL_ELIMIT, shoal_list("too large", x))) == SHOAL_OK);
        shoal_value_destroy(task);
    }
    shoal_worker_end(worker);
    return err == SHOAL_ECLOSED ? SHOAL_OK : err;
}

static shoal_process *start_server(int method, const shoal_pool_objects *o)
{
    shoal_process *p;
    ck_assert_ok(shoal_process_start(serve, shoal_list(o->tasks, o->answers, o->places),
                                     &(shoal_process_options){.start = (shoal_start)method}, &p));
    return p;
}

static shoal_answer next(shoal_pool *pool)
{
    shoal_answer answer = {.job = 0};
    shoal_err err;
    do { /* what else is in the queue of answers ends a wait */
        err = shoal_pool_next(pool, LIMIT, &answer);
    } while (err == SHOAL_ETIMEDOUT);
    ck_assert_ok(err);
    return answer;
}

static void has_been_killed(shoal_process *p)
{
    shoal_status status = finish(p);
    ck_assert_int_eq(status.end, SHOAL_PROCESS_KILLED);
    shoal_process_destroy(p);
}

START_TEST(a_binding_starts_the_workers)
{
    enum { N = 2500, TEXT = 5000 }; /* more tasks than are queued at once */
    shoal_pool_objects o;
    shoal_pool *pool, *usual = make(_i, (shoal_pool_options){.workers = 1});
    shoal_answer a;
    shoal_value *v;
    bool seen[N] = {false};
    char text[TEXT + 1];
    memset(text, 'x', TEXT);
    text[TEXT] = 0;
    ck_assert_ok(shoal_queue_create(0, &o.tasks));
    ck_assert_ok(shoal_queue_create(0, &o.answers));
    ck_assert_ok(shoal_block_create_zeroed(sizeof(uint32_t), &o.places));
    ck_assert_ok(shoal_pool_create_on(&o, 1, &pool));
    ck_assert_err(shoal_pool_next(pool, SHOAL_NOW, &a), SHOAL_ETIMEDOUT);
    for (int i = 0; i < N; i++) {
        ck_assert_ok(shoal_pool_submit(pool, 7, (uint64_t)i, shoal_value_int(i % 13), i % 20 != 19));
    }
    shoal_process *p = start_server(_i, &o);
    for (int i = 0; i < N; i++) {
        a = next(pool);
        int64_t x = (int64_t)(a.index % 13);
        ck_assert(a.job == 7 && a.index < N && !seen[a.index]);
        seen[a.index] = true;
        ck_assert_int_eq(a.err, SHOAL_OK);
        ck_assert_int_eq(sh_int_of(a.value), x * x);
        shoal_value_destroy(a.value);
    }
    ck_assert_ok(shoal_pool_submit(pool, 8, 1, shoal_value_int(1000), true));
    shoal_pool_wake(pool);
    a = next(pool);
    ck_assert_int_eq(a.err, SHOAL_ELIMIT);
    ck_assert_int_eq(sh_int_of(shoal_value_at(a.value, 1)), 1000);
    shoal_value_destroy(a.value);
    ck_assert_ok(shoal_pool_submit(pool, 8, 2, shoal_value_string(text), false)); /* not in the task itself */
    a = next(pool);
    ck_assert_str_eq(shoal_value_as_string(a.value), text);
    shoal_value_destroy(a.value);
    ck_assert_ok(shoal_pool_submit(pool, 9, 3, shoal_value_int(13), false));
    has_been_killed(p);
    ck_assert_ok(shoal_pool_lost(pool, 0, shoal_value_string("the first"))); /* it is run again */
    p = start_server(_i, &o);
    has_been_killed(p);
    ck_assert_uint_ne(*(uint32_t *)shoal_block_data(o.places), 0);
    ck_assert_ok(shoal_pool_lost(pool, 0, shoal_value_string("the second")));
    ck_assert_uint_eq(*(uint32_t *)shoal_block_data(o.places), 0);
    a = next(pool);
    ck_assert(a.job == 9 && a.index == 3 && a.err == SHOAL_ECHILD);
    ck_assert_str_eq(shoal_value_as_string(a.value), "the second");
    shoal_value_destroy(a.value);

    ck_assert_err(shoal_pool_lost(pool, 1, NULL), SHOAL_EINVAL);
    ck_assert_err(shoal_pool_apply(pool, square, shoal_value_int(1), &v), SHOAL_EINVAL);
    ck_assert_err(shoal_pool_submit(usual, 1, 1, shoal_value_int(1), false), SHOAL_EINVAL);
    ck_assert_err(shoal_pool_submit(pool, 1, 1, NULL, false), SHOAL_EINVAL);
    ck_assert_err(shoal_pool_create_on(&o, -1, &pool), SHOAL_EINVAL);
    ck_assert_err(shoal_worker_begin(&o, 1, &(shoal_worker *){NULL}), SHOAL_EINVAL);
    ck_assert_uint_eq(shoal_pool_losses(pool), 0);
    p = start_server(_i, &o);
    shoal_pool_close(pool); /* nothing is left to do, so this closes the queue of tasks */
    ck_assert_err(shoal_pool_submit(pool, 1, 1, shoal_value_int(1), false), SHOAL_ECLOSED);
    ck_assert_err(shoal_pool_join(pool, LIMIT), SHOAL_EINVAL);
    ck_assert_int_eq(finish(p).end, SHOAL_PROCESS_RETURNED);
    ck_assert_ok(shoal_pool_lost(pool, 0, shoal_value_null()));
    ck_assert_err(shoal_pool_next(pool, SHOAL_NOW, &a), SHOAL_ETIMEDOUT);
    shoal_queue_close(o.answers);
    ck_assert_err(shoal_pool_next(pool, LIMIT, &a), SHOAL_ECLOSED);
    shoal_process_destroy(p);
    shoal_worker_end(NULL);
    shoal_pool_wake(NULL);
    shoal_pool_destroy(pool);
    shoal_pool_destroy(usual);
    shoal_release(o.tasks);
    shoal_release(o.answers);
    shoal_release(o.places);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("pool");
    TCase *tc = methods_case("pool");
    add_for_methods(tc, apply_and_map);
    add_for_methods(tc, starmap_and_errors);
    add_for_methods(tc, task_codes_do_not_look_like_the_callers);
    add_for_methods(tc, iterators);
    add_for_methods(tc, futures);
    add_for_methods(tc, buffers_are_filled);
    add_for_methods(tc, initializer_and_tasks_per_child);
    tcase_add_test(tc, f7_workers_that_retire_run_their_exit_handlers);
    add_for_methods(tc, a_failing_initializer_is_reported);
    add_for_methods(tc, workers_that_never_come_up);
    add_for_methods(tc, a_killed_worker_is_replaced);
    add_for_methods(tc, a_map_with_deaths_is_complete);
    add_for_methods(tc, terminate_fails_unfinished_tasks);
    add_for_methods(tc, handles_are_destroyed_after_their_world);
    add_for_methods(tc, threads_share_a_pool);
    add_for_methods(tc, a_binding_starts_the_workers);
    suite_add_tcase(s, tc);
    return s;
}

SH_TEST_MAIN(suite)
