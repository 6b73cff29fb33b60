/* The rules of the interface in the head of shoal.h: who owns values, handles and errors. */
#include "tests/harness/children.h"

#include <shoal/binding.h>

#include <pthread.h>
#include <stdlib.h>

/* ---- rule 1: a call that takes a value consumes it ---- */

static shoal_err give_back(const shoal_value *arg, shoal_value **out_result)
{
    *out_result = shoal_value_copy(arg);
    return SHOAL_OK;
}

static shoal_err nothing(int rank, const shoal_value *args)
{
    (void)rank;
    (void)args;
    return SHOAL_OK;
}

/* Every call that takes a value, each of them failing. The values hold the only reference to a block, so a call that
 * leaks its value leaks the block, and the heap reports it. */
START_TEST(a_failed_call_consumes_its_value)
{
    shoal_queue *full = make_queue(1);
    shoal_pipe *a, *b;
    shoal_process *p;
    shoal_pool *pool;
    shoal_future *future;
    shoal_iterator *iterator;
    shoal_value *got;
    ck_assert_ok(shoal_pipe_create(false, &a, &b));
    ck_assert_ok(shoal_queue_put(full, shoal_value_int(0), LIMIT));
    ck_assert_ok(shoal_pool_create(&(shoal_pool_options){.workers = 1}, &pool));
    shoal_pool_close(pool);
    ck_assert_ok(shoal_pool_join(pool, LIMIT));
    uint64_t before = sh_test_world().blocks_live;
    for (int call = 0; call < 14; call++) {
        shoal_block *block;
        ck_assert_ok(shoal_block_create(100, &block));
        shoal_value *v = call % 2 == 0 ? shoal_value_of(block) : shoal_list(1, block);
        shoal_release(block);
        switch (call / 2) {
        case 0: ck_assert_err(shoal_queue_put(full, v, SHOAL_NOW), SHOAL_ETIMEDOUT); break;
        case 1: ck_assert_err(shoal_pipe_send(a, v, SHOAL_NOW), SHOAL_EINVAL); break; /* a only receives */
        case 2: ck_assert_err(shoal_process_start(NULL, v, NULL, &p), SHOAL_EINVAL); break;
        case 3: ck_assert_err(shoal_spawn(nothing, -1, v), SHOAL_EINVAL); break;
        case 4: ck_assert_err(shoal_return(v), SHOAL_ESTATE); break;
        case 5:
            ck_assert_err(call % 2 == 0 ? shoal_pool_apply_async(pool, give_back, v, &future)
                                        : shoal_pool_imap(pool, give_back, v, true, &iterator),
                          SHOAL_ECLOSED);
            break;
        default:
            ck_assert_err(shoal_pool_map(pool, give_back, v, 0, &got), call % 2 == 0 ? SHOAL_ETYPE : SHOAL_ECLOSED);
            break;
        }
        ck_assert_msg(sh_test_world().blocks_live == before, "call %d leaks its value", call / 2);
    }
    shoal_pool_destroy(pool);
    shoal_release(a);
    shoal_release(b);
    shoal_release(full);
}
END_TEST

START_TEST(a_kept_value_can_be_put_again)
{
    shoal_queue *q = make_queue(1);
    shoal_block *block;
    ck_assert_ok(shoal_block_create(100, &block));
    shoal_value *all[] = {shoal_value_int(7), shoal_value_string("text"), shoal_value_of(block),
                          shoal_list(1, "two", block)};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        shoal_value *v = shoal_value_keep(all[i]), *got = NULL;
        ck_assert_ptr_eq(v, all[i]);
        ck_assert_ok(shoal_queue_put(q, shoal_value_null(), SHOAL_NOW));
        for (int times = 0; times < 3; times++) {
            ck_assert_err(shoal_queue_put(q, v, SHOAL_NOW), SHOAL_ETIMEDOUT);
        }
        until_told(q);
        for (int times = 0; times < 2; times++) {
            ck_assert_ok(shoal_queue_put(q, v, SHOAL_NOW));
            ck_assert_ok(shoal_queue_get(q, SHOAL_NOW, &got));
            ck_assert(shoal_value_equal(got, v));
            shoal_value_destroy(got);
        }
        shoal_value_destroy(v);
    }
    shoal_release(block);
    shoal_release(q);
}
END_TEST

START_TEST(a_container_gets_a_copy_of_a_kept_value)
{
    shoal_value *inner = shoal_value_keep(shoal_list(1, 2));
    shoal_value *list = shoal_list(inner, inner), *map = shoal_map("a", inner, "b", 3);
    inner = shoal_list_add(inner, shoal_value_int(3)); /* a list that its owner keeps can still grow */
    ck_assert_uint_eq(shoal_value_count(inner), 3);
    ck_assert_uint_eq(shoal_value_count(shoal_value_at(list, 1)), 2);
    ck_assert_uint_eq(shoal_value_count(shoal_value_find(map, "a")), 2);
    ck_assert_ptr_null(shoal_list_add(inner, NULL)); /* fails, and the list stays */
    ck_assert_ptr_null(shoal_map_set(inner, "key", shoal_value_int(1)));
    ck_assert_uint_eq(shoal_value_count(inner), 3);
    ck_assert_ptr_null(shoal_value_keep(NULL));
    ck_assert_ptr_null(shoal_value_keep((shoal_value *)(uintptr_t)shoal_value_at(list, 0)));
    ck_assert_err(shoal_last_error(), SHOAL_EINVAL);
    shoal_value_destroy(list);
    shoal_value_destroy(map);
    shoal_value_destroy(inner);
}
END_TEST

static shoal_value *constant; /* the answer of this worker's tasks */

static shoal_err give_constant(const shoal_value *arg, shoal_value **out_result)
{
    (void)arg;
    constant = constant != NULL ? constant : shoal_value_keep(shoal_list("always", "this"));
    *out_result = constant;
    return SHOAL_OK;
}

START_TEST(every_call_reads_a_kept_value)
{
    shoal_value *v = shoal_value_keep(shoal_list(1, 2, 3)), *got, *results[2];
    shoal_process *p;
    shoal_pool *pool;
    ck_assert_ok(shoal_pool_create(&(shoal_pool_options){.workers = 1, .initializer = nothing, .init_args = v}, &pool));
    /* Also a call that fails at once: it destroys no value that has another owner, and leaks none that has not. */
    ck_assert_err(shoal_process_start(NULL, v, NULL, &p), SHOAL_EINVAL);
    ck_assert_err(shoal_spawn(NULL, 2, v), SHOAL_EINVAL);
    ck_assert_err(shoal_pool_apply(pool, NULL, v, &got), SHOAL_EINVAL);
    ck_assert_err(shoal_pool_map(pool, NULL, v, 0, &got), SHOAL_EINVAL);
    ck_assert_err(shoal_pool_create(&(shoal_pool_options){.init_args = shoal_list(1)}, NULL), SHOAL_EINVAL);
    for (int times = 0; times < 2; times++) {
        ck_assert_ok(shoal_process_start(nothing, v, NULL, &p));
        finish(p);
        ck_assert_ok(shoal_spawn_with(nothing, 2, v, NULL, results));
        ck_assert_ok(shoal_pool_apply(pool, give_back, v, &got));
        ck_assert(shoal_value_equal(got, v));
        shoal_value_destroy(got);
        ck_assert_ok(shoal_pool_map(pool, give_constant, v, times == 0 ? 1 : 3, &got));
        ck_assert_uint_eq(shoal_value_count(got), 3);
        ck_assert_str_eq(shoal_value_as_string(shoal_value_at(shoal_value_at(got, 2), 1)), "this");
        shoal_value_destroy(got);
    }
    shoal_pool_destroy(pool);
    shoal_value_destroy(v);
}
END_TEST

/* ---- arguments are read as briefly as they are passed ---- */

/* Reads everything that a map can hold by key, in another process. */
static shoal_err read_all(int rank, const shoal_value *args)
{
    bool flag = false;
    int64_t n = 0;
    uint64_t u = 0;
    double d = 0;
    size_t size = 0;
    must_ok(shoal_arg_bool(args, "bool", &flag));
    must_ok(shoal_arg_int(args, "int", &n));
    must_ok(shoal_arg_uint(args, "uint", &u));
    must_ok(shoal_arg_float(args, "float", &d));
    must(flag && n == -3 && u == UINT64_MAX && d == 0.5 && rank == 0);
    must(strcmp(shoal_arg_string(args, "string"), "text") == 0);
    must(memcmp(shoal_arg_bytes(args, "bytes", &size), "by", 2) == 0 && size == 2);
    must(shoal_arg_bytes(args, "absent", &size) == NULL && size == 0);
    must(shoal_block_size(shoal_arg_block(args, "block")) == 100);
    must(shoal_arg_pipe(args, "pipe") != NULL);
    must_ok(shoal_lock_lock(shoal_arg_lock(args, "lock"), LIMIT));
    must_ok(shoal_lock_unlock(shoal_arg_lock(args, "lock")));
    must(shoal_arg_rlock(args, "rlock") != NULL && shoal_arg_condition(args, "condition") != NULL);
    must(shoal_semaphore_value(shoal_arg_semaphore(args, "semaphore")) == 4);
    must(shoal_arg_event(args, "event") != NULL && shoal_arg_barrier(args, "barrier") != NULL);
    must(shoal_tensor_count(shoal_arg_tensor(args, "tensor")) == 6);
    must(shoal_arg_module(args, "module") != NULL && shoal_arg_sparse(args, "sparse") != NULL);
    shoal_dataset *set = shoal_arg_dataset(args, "dataset");
    must(shoal_dataset_length(set) == 3 && shoal_arg_dataset(args, "dataset") == set); /* opened once */
    return shoal_queue_put(shoal_arg_queue(args, "queue"), shoal_value_uint(u), LIMIT);
}

START_TEST(what_a_map_takes_comes_out_by_key)
{
    shoal_queue *queue = make_queue(0);
    shoal_block *block;
    shoal_pipe *a, *b;
    shoal_lock *lock;
    shoal_rlock *rlock;
    shoal_semaphore *semaphore;
    shoal_condition *condition;
    shoal_event *event;
    shoal_barrier *barrier;
    ck_assert_ok(shoal_block_create(100, &block));
    ck_assert_ok(shoal_pipe_create(true, &a, &b));
    ck_assert_ok(shoal_lock_create(&lock));
    ck_assert_ok(shoal_rlock_create(&rlock));
    ck_assert_ok(shoal_semaphore_create(4, 0, &semaphore));
    ck_assert_ok(shoal_condition_create(&condition));
    ck_assert_ok(shoal_event_create(&event));
    ck_assert_ok(shoal_barrier_create(2, &barrier));
    shoal_tensor *x = shoal_zeros(SHOAL_F32, SHOAL_SHAPE(3, 2)), *y = shoal_zeros(SHOAL_I64, SHOAL_SHAPE(3));
    shoal_module *module = shoal_linear_create(2, 2, true);
    shoal_sparse *sparse = shoal_sparse_from_dense(x, SHOAL_LAYOUT_COO);
    shoal_dataset *set = shoal_tensor_dataset(x, y);
    shoal_value *args = shoal_map("bool", shoal_value_bool(true), "int", -3, "uint", UINT64_MAX, "float", 0.5, "string",
                                  "text", "bytes", shoal_value_bytes("by", 2), "block", block, "queue", queue, "pipe",
                                  a, "lock", lock, "rlock", rlock, "semaphore", semaphore, "condition", condition,
                                  "event", event, "barrier", barrier, "tensor", x);
    args = shoal_map_set(args, "module", shoal_value_module(module));
    args = shoal_map_set(args, "sparse", shoal_value_sparse(sparse));
    args = shoal_map_set(args, "dataset", shoal_value_of(set));
    finish(start(_i, 0, read_all, args));
    uint64_t u = 0;
    shoal_value *got;
    ck_assert_ok(shoal_queue_get(queue, LIMIT, &got)); /* not -1 */
    ck_assert_ok(shoal_value_as_uint(got, &u));
    ck_assert(u == UINT64_MAX);
    shoal_value_destroy(got);
    shoal_dataset_release(set);
    shoal_sparse_destroy(sparse);
    shoal_module_destroy(module);
    shoal_tensor_release(x);
    shoal_tensor_release(y);
    shoal_release(barrier);
    shoal_release(event);
    shoal_release(condition);
    shoal_release(semaphore);
    shoal_release(rlock);
    shoal_release(lock);
    shoal_release(a);
    shoal_release(b);
    shoal_release(block);
    shoal_release(queue);
}
END_TEST

#define ck_says(text)                                                                                                  \
    ck_assert_msg(strstr(shoal_last_error_text(), text) != NULL, "\"%s\" is not in \"%s\"", text,                      \
                  shoal_last_error_text())

START_TEST(errors_name_the_key_and_both_types)
{
    int64_t n = 77;
    double d = 77;
    shoal_value *args = shoal_map("n", 1, "text", "one", "large", UINT64_MAX, "map", shoal_map("a", 1));
    ck_assert_ptr_null(shoal_arg_queue(args, "in"));
    ck_assert_err(shoal_last_error(), SHOAL_ENOENT);
    ck_says("\"in\"");
    ck_assert_ptr_null(shoal_arg_queue(args, "n"));
    ck_assert_err(shoal_last_error(), SHOAL_ETYPE);
    ck_says("argument \"n\": expected queue, but the value is int");
    ck_assert_ptr_null(shoal_arg_tensor(args, "text"));
    ck_says("argument \"text\": expected tensor, but the value is string");
    ck_assert_ptr_null(shoal_arg_module(args, "n"));
    ck_says("argument \"n\": expected module, but the value is int");
    ck_assert_ptr_null(shoal_arg_dataset(args, "n"));
    ck_says("argument \"n\": expected data set, but the value is int");
    ck_assert_ptr_null(shoal_arg_dataset(args, "map"));
    ck_says("argument \"map\"");
    ck_assert_ptr_null(shoal_arg_string(args, "n"));
    ck_says("argument \"n\": expected string, but the value is int");
    ck_assert_err(shoal_arg_int(args, "large", &n), SHOAL_ETYPE);
    ck_says("argument \"large\": expected int, but the value is uint 18446744073709551615");
    ck_assert_err(shoal_arg_float(args, "text", &d), SHOAL_ETYPE);
    ck_assert_err(shoal_arg_int(args, "none", &n), SHOAL_ENOENT);
    ck_assert_err(shoal_arg_int(NULL, "n", &n), SHOAL_EINVAL);
    ck_says("shoal_arg_int: args is NULL, after SHOAL_ENOENT");
    ck_assert_err(shoal_arg_int(args, NULL, &n), SHOAL_EINVAL);
    ck_assert_err(shoal_arg_int(shoal_value_find(args, "n"), "n", &n), SHOAL_ETYPE);
    ck_assert(n == 77 && d == 77);
    shoal_value_destroy(args);
}
END_TEST

/* ---- rule 2: references by type ---- */

static int lines;

static void count_line(const char *line, void *context)
{
    (void)context;
    lines += strstr(line, "is not a handle of this type") != NULL;
}

/* Wrong objects that no compiler can detect, because of a cast.
 * Each is rejected with a log line, and the object stays intact. */
START_TEST(a_wrong_object_is_refused_and_whole)
{
    shoal_queue *q = make_queue(0);
    shoal_block *b;
    ck_assert_ok(shoal_block_create(100, &b));
    shoal_tensor *t = shoal_ones(SHOAL_F32, SHOAL_SHAPE(3, 2));
    shoal_module *m = shoal_linear_create(2, 2, true);
    shoal_value *v = shoal_list(1, 2), *number = shoal_value_int(7);
    void *wrong[] = {t, m, v, number, q};
    shoal_set_log(count_line, NULL);
    ck_assert_err(shoal_fail(SHOAL_ELIMIT, "mine"), SHOAL_ELIMIT);
    for (int i = 0; i < 5; i++) {
        shoal_release((shoal_block *)wrong[i]);
        ck_assert_int_eq(lines, 4 * i + 1);
        shoal_release((shoal_event *)wrong[i]);
        ck_assert_err(shoal_last_error(), SHOAL_ELIMIT); /* clean-up does not change the last error */
        ck_assert_ptr_null(shoal_retain((shoal_block *)wrong[i]));
        ck_assert_ptr_null(shoal_retain((shoal_lock *)wrong[i]));
        ck_assert_err(shoal_last_error(), SHOAL_EINVAL);
        ck_assert_err(shoal_fail(SHOAL_ELIMIT, "mine"), SHOAL_ELIMIT);
        ck_assert_err(shoal_lock_lock((shoal_lock *)wrong[i], SHOAL_NOW), i < 4 ? SHOAL_EINVAL : SHOAL_ETYPE);
        ck_assert_err(shoal_fail(SHOAL_ELIMIT, "mine"), SHOAL_ELIMIT);
    }
    shoal_release((shoal_queue *)b); /* a handle, but of another kind */
    ck_assert_int_eq(lines, 21);
    shoal_set_log(NULL, NULL);
    ck_assert_uint_eq(shoal_value_count(v), 2);
    ck_assert_int_eq(sh_int_of(number), 7);
    ck_assert_int_eq(shoal_tensor_count(t), 6);
    shoal_release(shoal_retain(b)); /* all are intact: each has the one reference whose release destroys it */
    shoal_release(b);
    shoal_release(shoal_retain(q));
    shoal_release(q);
    shoal_release(shoal_retain(t));
    shoal_release(t);
    shoal_module_destroy(m);
    shoal_value_destroy(v);
    shoal_value_destroy(number);
    shoal_block_release(NULL);
    ck_assert_ptr_null(shoal_queue_retain(NULL));
}
END_TEST

/* ---- rules 3 and 5: NULL, and clean-up ---- */

/* A retry loop that passes NULL ends: the code is never that of an earlier failure. Each call names itself and the
 * argument, and its text ends with the earlier failure. */
#define ck_null(call, expression, argument)                                                                            \
    do {                                                                                                               \
        ck_assert_err(shoal_fail(SHOAL_ETIMEDOUT, "an earlier failure"), SHOAL_ETIMEDOUT);                             \
        ck_assert_err(expression, SHOAL_EINVAL);                                                                       \
        ck_says(call ": " argument " is NULL, after SHOAL_ETIMEDOUT: an earlier failure");                             \
    } while (0)

static void *fail_without_words(void *said)
{
    (void)shoal_fail(SHOAL_EBROKEN, "%s", "");
    *(bool *)said = shoal_last_error() != SHOAL_EBROKEN || shoal_last_error_text()[0] != 0;
    return NULL;
}

/* An error code without a text has an empty text, even if it is a thread's first failure. */
START_TEST(a_failure_may_have_no_words)
{
    pthread_t thread;
    bool said = true;
    ck_assert_int_eq(pthread_create(&thread, NULL, fail_without_words, &said), 0);
    ck_assert_int_eq(pthread_join(thread, NULL), 0);
    ck_assert(!said);
}
END_TEST

START_TEST(null_is_an_error_of_its_own)
{
    shoal_queue *q = make_queue(0);
    shoal_value *v = NULL;
    shoal_block *b = NULL;
    shoal_pool *pool;
    shoal_process *p = NULL;
    char byte, program[] = "true", *argv[] = {program, NULL};
    size_t size;
    ck_assert_ok(shoal_pool_create(&(shoal_pool_options){.workers = 1}, &pool));
    ck_null("shoal_queue_put", shoal_queue_put(q, NULL, SHOAL_NOW), "the value");
    ck_null("shoal_queue_put", shoal_queue_put(NULL, shoal_value_int(1), SHOAL_NOW), "the queue");
    ck_null("shoal_queue_get", shoal_queue_get(NULL, SHOAL_NOW, &v), "the queue");
    ck_null("shoal_queue_get", shoal_queue_get(q, SHOAL_NOW, NULL), "out_value");
    ck_null("shoal_queue_put_bytes", shoal_queue_put_bytes(q, NULL, 3, SHOAL_NOW), "bytes");
    ck_null("shoal_queue_put_block", shoal_queue_put_block(q, NULL, SHOAL_NOW), "the block");
    ck_null("shoal_queue_get_bytes", shoal_queue_get_bytes(q, &byte, 1, SHOAL_NOW, NULL), "out_size");
    ck_null("shoal_queue_task_done", shoal_queue_task_done(NULL), "the queue");
    ck_null("shoal_queue_join", shoal_queue_join(NULL, SHOAL_NOW), "the queue");
    ck_null("shoal_queue_create", shoal_queue_create(0, NULL), "out_queue");
    ck_null("shoal_pipe_send", shoal_pipe_send(NULL, shoal_value_int(1), SHOAL_NOW), "the end of the pipe");
    ck_null("shoal_pipe_recv", shoal_pipe_recv(NULL, SHOAL_NOW, &v), "the end of the pipe");
    ck_null("shoal_pipe_poll", shoal_pipe_poll(NULL, SHOAL_NOW), "the end of the pipe");
    ck_null("shoal_lock_lock", shoal_lock_lock(NULL, SHOAL_NOW), "the lock");
    ck_null("shoal_lock_lock_consistent", shoal_lock_lock_consistent(NULL, SHOAL_NOW), "the lock");
    ck_null("shoal_rlock_unlock", shoal_rlock_unlock(NULL), "the rlock");
    ck_null("shoal_semaphore_post", shoal_semaphore_post(NULL, 1), "the semaphore");
    ck_null("shoal_condition_wait", shoal_condition_wait(NULL, SHOAL_NOW), "the condition");
    ck_null("shoal_event_wait", shoal_event_wait(NULL, SHOAL_NOW), "the event");
    ck_null("shoal_barrier_wait", shoal_barrier_wait(NULL, SHOAL_NOW, NULL), "the barrier");
    ck_null("shoal_process_join", shoal_process_join(NULL, SHOAL_NOW, NULL), "the process");
    ck_null("shoal_process_start", shoal_process_start(nothing, NULL, NULL, &p), "args");
    ck_null("shoal_process_start_program", shoal_process_start_program("true", argv, NULL, NULL, &p), "args");
    ck_null("shoal_spawn", shoal_spawn(nothing, 2, NULL), "args");
    ck_null("shoal_spawn_with", shoal_spawn_with(nothing, 2, NULL, NULL, NULL), "args");
    ck_null("shoal_return", shoal_return(NULL), "the result");
    ck_null("shoal_wait", shoal_wait(NULL, 1, SHOAL_NOW), "things");
    ck_null("shoal_pool_apply", shoal_pool_apply(NULL, give_back, shoal_value_int(1), &v), "pool");
    ck_null("shoal_pool_apply", shoal_pool_apply(pool, give_back, NULL, &v), "arg");
    ck_null("shoal_pool_map", shoal_pool_map(NULL, give_back, shoal_list(1), 0, &v), "pool");
    ck_null("shoal_pool_join", shoal_pool_join(NULL, SHOAL_NOW), "the pool");
    ck_null("shoal_future_get", shoal_future_get(NULL, SHOAL_NOW, &v), "future");
    ck_null("shoal_block_create", shoal_block_create(1, NULL), "out_block");
    ck_null("shoal_value_as_int", shoal_value_as_int(NULL, NULL), "out_int");
    ck_assert_err(shoal_queue_put(q, shoal_list(1, shoal_map("a", (char *)NULL)), SHOAL_NOW), SHOAL_EINVAL);
    ck_says("shoal_queue_put: the value is NULL, after ");
    ck_assert_err(shoal_spawn(nothing, 2, shoal_map("a", (char *)NULL)), SHOAL_EINVAL);
    ck_says("shoal_spawn: args is NULL, after ");
    (void)size;
    (void)b;
    shoal_pool_destroy(pool);
    shoal_release(q);
}
END_TEST

/* A call that cannot fail returns zero for NULL and does not change the last error;
 * neither does NULL in a chain of expressions. */
START_TEST(accessors_leave_the_last_error)
{
    ck_assert_err(shoal_fail(SHOAL_ELIMIT, "the first"), SHOAL_ELIMIT);
    ck_assert(shoal_block_data(NULL) == NULL && shoal_block_size(NULL) == 0 && shoal_block_id(NULL) == 0);
    ck_assert(shoal_queue_size(NULL) == 0 && shoal_semaphore_value(NULL) == 0 && !shoal_event_is_set(NULL));
    ck_assert(shoal_process_pid(NULL) == 0 && shoal_process_sentinel(NULL) == -1 && shoal_process_result(NULL) == NULL);
    ck_assert(shoal_pool_losses(NULL) == 0 && !shoal_future_ready(NULL) && shoal_value_count(NULL) == 0);
    ck_assert(shoal_value_type(NULL) == SHOAL_TYPE_NULL && shoal_value_as_queue(shoal_value_find(NULL, "x")) == NULL);
    ck_assert(shoal_add(NULL, NULL) == NULL && shoal_list_add(shoal_list_add(NULL, NULL), NULL) == NULL);
    ck_assert_err(shoal_last_error(), SHOAL_ELIMIT);
    ck_assert_str_eq(shoal_last_error_text(), "the first");
}
END_TEST

/* A NULL that no call of the library returned is not the result of an earlier failure.
 * tests/rules tries this for all calls. */
START_TEST(null_that_nobody_made)
{
#define F5_REFUSED(expression, text)                                                                                   \
    do {                                                                                                               \
        ck_assert_err(shoal_fail(SHOAL_ETIMEDOUT, "the first"), SHOAL_ETIMEDOUT);                                      \
        ck_assert((expression) == NULL);                                                                               \
        ck_assert_err(shoal_last_error(), SHOAL_EINVAL);                                                               \
        ck_assert_str_eq(shoal_last_error_text(), text);                                                               \
    } while (0)
    F5_REFUSED(shoal_value_string(NULL), "shoal_value_string: text is NULL");
    F5_REFUSED(shoal_zeros(SHOAL_F32, 2, NULL), "shoal_zeros: shape is NULL");
    F5_REFUSED(shoal_arg_tensor(NULL, "x"), "shoal_arg_tensor: args is NULL");
    F5_REFUSED(shoal_safetensors_read(NULL), "shoal_safetensors_read: path is NULL");
    F5_REFUSED(shoal_model_create(NULL), "shoal_model_create: name is NULL");
    F5_REFUSED(shoal_map_set(shoal_value_map(), NULL, shoal_value_int(1)), "shoal_map_set: key is NULL");
}
END_TEST

static shoal_err stay(int rank, const shoal_value *args)
{
    (void)rank;
    return shoal_event_wait(shoal_arg_event(args, "event"), LIMIT);
}

START_TEST(clean_up_leaves_the_last_error)
{
    shoal_process *p = NULL;
    shoal_pool *pool = NULL;
    shoal_future *future = NULL;
    shoal_status status;
    shoal_event *event = NULL;
    shoal_queue *q = make_queue(0);
    ck_assert_ok(shoal_event_create(&event));
    ck_assert_ok(shoal_process_start(stay, shoal_map("event", event), NULL, &p));
    ck_assert_ok(shoal_pool_create(&(shoal_pool_options){.workers = 1}, &pool));
    ck_assert_ok(shoal_pool_apply_async(pool, give_back, shoal_value_int(1), &future));
    ck_assert_err(shoal_fail(SHOAL_ELIMIT, "the cause"), SHOAL_ELIMIT);
    shoal_process_destroy(p); /* it still runs, so the join inside fails */
    shoal_future_destroy(future);
    shoal_pool_close(pool);
    shoal_pool_terminate(pool);
    shoal_pool_destroy(pool);
    shoal_queue_close(q);
    shoal_queue_close(NULL);
    shoal_pool_close(NULL);
    shoal_pool_terminate(NULL);
    shoal_release(q);
    ck_assert_err(shoal_last_error(), SHOAL_ELIMIT);
    ck_assert_str_eq(shoal_last_error_text(), "the cause");
    /* The text of a status outlives its process. */
    ck_assert_ok(shoal_process_start(nothing, shoal_value_null(), NULL, &p));
    ck_assert_ok(shoal_process_join(p, LIMIT, &status));
    shoal_process_destroy(p);
    ck_assert_str_eq(status.text, "rank 0 returned");
    shoal_release(event);
}
END_TEST

/* ---- shoal_wait supports events and semaphores ---- */

static shoal_err set_or_post(int rank, const shoal_value *args)
{
    if (rank == 0) {
        shoal_event_set(shoal_arg_event(args, "event"));
        return SHOAL_OK;
    }
    return shoal_semaphore_post(shoal_arg_semaphore(args, "semaphore"), 1);
}

START_TEST(wait_for_an_event_or_a_semaphore)
{
    shoal_queue *q = make_queue(0);
    shoal_event *event;
    shoal_semaphore *semaphore;
    ck_assert_ok(shoal_event_create(&event));
    ck_assert_ok(shoal_semaphore_create(0, 0, &semaphore));
    for (int rank = 0; rank < 2; rank++) {
        shoal_waitable things[] = {{.queue = q}, {.event = event}, {.semaphore = semaphore}};
        ck_assert_err(shoal_wait(things, 3, SHOAL_MS(1)), SHOAL_ETIMEDOUT);
        shoal_process *p = start(_i, rank, set_or_post, shoal_map("event", event, "semaphore", semaphore));
        ck_assert_ok(shoal_wait(things, 3, LIMIT));
        ck_assert(!things[0].ready && things[1].ready == (rank == 0) && things[2].ready == (rank == 1));
        finish(p);
        shoal_event_clear(event);
    }
    ck_assert_ok(shoal_semaphore_wait(semaphore, SHOAL_NOW)); /* shoal_wait took nothing from it */
    shoal_release(semaphore);
    shoal_release(event);
    shoal_release(q);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("interface");
    TCase *tc = children_case("values");
    tcase_add_test(tc, a_failed_call_consumes_its_value);
    tcase_add_test(tc, a_kept_value_can_be_put_again);
    tcase_add_test(tc, a_container_gets_a_copy_of_a_kept_value);
    tcase_add_test(tc, every_call_reads_a_kept_value);
    add_for_methods(tc, what_a_map_takes_comes_out_by_key);
    tcase_add_test(tc, errors_name_the_key_and_both_types);
    tcase_add_test(tc, a_wrong_object_is_refused_and_whole);
    tcase_add_test(tc, a_failure_may_have_no_words);
    tcase_add_test(tc, null_is_an_error_of_its_own);
    tcase_add_test(tc, accessors_leave_the_last_error);
    tcase_add_test(tc, null_that_nobody_made);
    tcase_add_test(tc, clean_up_leaves_the_last_error);
    add_for_methods(tc, wait_for_an_event_or_a_semaphore);
    suite_add_tcase(s, tc);
    return s;
}

SH_TEST_MAIN(suite)
