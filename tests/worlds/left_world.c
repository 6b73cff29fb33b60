/* Handles of a world that was left are rejected by every call, and by the values that hold them. */
#include "shm/block.h"
#include "tests/harness/children.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static shoal_err wait_for_event(int rank, const shoal_value *args)
{
    (void)rank;
    return shoal_event_wait(ARG(event, "event"), LIMIT);
}

START_TEST(waiting_for_what_was_left_is_refused)
{
    shoal_queue *q, *fresh;
    shoal_pipe *a, *b;
    shoal_event *event;
    ck_assert_ok(shoal_queue_create(0, &q));
    ck_assert_ok(shoal_pipe_create(true, &a, &b));
    ck_assert_ok(shoal_event_create(&event));
    shoal_process *p = start(SHOAL_START_FORK, 0, wait_for_event, shoal_map("event", event));
    shoal_event_set(event);
    shoal_world_leave();
    ck_assert_ok(shoal_queue_create(0, &fresh));
    const shoal_waitable one[] = {{.queue = q}, {.pipe = a}, {.process = p}};
    for (int i = 0; i < 3; i++) {
        shoal_waitable things[] = {one[i], {.queue = fresh}};
        ck_assert_err(shoal_wait(things, 1, SHOAL_NOW), SHOAL_ESTATE);
        ck_assert_err(shoal_wait(things, 2, SOON), SHOAL_ESTATE);
    }
    ck_assert_ok(shoal_process_join(p, LIMIT, NULL)); /* it can still be joined */
    shoal_process_destroy(p);
    void *const all[] = {q, a, b, event, fresh};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        sh_block_release(all[i]);
    }
}
END_TEST

static shoal_err leave_and_count(int rank, const shoal_value *args)
{
    char line[512];
    int mappings = 0;
    (void)rank;
    (void)args;
    shoal_world_leave();
    FILE *f = fopen("/proc/self/maps", "re");
    while (f != NULL && fgets(line, sizeof line, f) != NULL) {
        mappings += strstr(line, "memfd:shoal") != NULL;
    }
    fclose(f);
    _exit(mappings); /* the record is lost: only the status can tell */
}

START_TEST(a_child_that_left_has_nothing_mapped)
{
    shoal_status status;
    shoal_process *p = start(_i, 0, leave_and_count, shoal_value_null());
    ck_assert_ok(shoal_process_join(p, LIMIT, &status));
    ck_assert_int_eq(status.code, 0);
    shoal_process_destroy(p);
}
END_TEST

START_TEST(a_value_of_what_was_left_cannot_be_put)
{
    shoal_queue *old, *q;
    shoal_pipe *a, *b;
    shoal_pool *unused = NULL;
    ck_assert_ok(shoal_queue_create(0, &old));
    shoal_value *const values[] = {shoal_value_of(old), shoal_list(1, old), shoal_map("deep", shoal_list("text", old))};
    shoal_world_leave();
    ck_assert_ok(shoal_queue_create(0, &q));
    ck_assert_ok(shoal_pipe_create(true, &a, &b));
    for (int i = 0; i < 3; i++) {
        shoal_value *v = shoal_value_keep(values[i]);
        ck_assert_err(shoal_queue_put(q, v, SHOAL_NOW), SHOAL_ESTATE);
        ck_assert_err(shoal_pipe_send(a, v, SHOAL_NOW), SHOAL_ESTATE);
        shoal_process *p;
        ck_assert_err(shoal_process_start(wait_for_event, v, &(shoal_process_options){.start = SHOAL_START_FORK}, &p),
                      SHOAL_ESTATE);
        ck_assert_err(shoal_pool_create(&(shoal_pool_options){.workers = 1, .init_args = v}, &unused), SHOAL_ESTATE);
        shoal_value_destroy(v);
    }
    ck_assert_uint_eq(shoal_queue_size(q), 0);
    sh_assert_audit("after values of another world");
    shoal_release(old);
    shoal_release(q);
    shoal_release(a);
    shoal_release(b);
}
END_TEST

static bool makes_no_world(void)
{
    return !sh_attached();
}

/* A call on an old handle does not make a world just to fail. */
START_TEST(a_refused_call_makes_no_world)
{
    shoal_queue *q;
    shoal_pipe *a, *b;
    shoal_condition *condition;
    shoal_value *value;
    char bytes[32] = {0};
    size_t size;
    int fd;
    ck_assert_ok(shoal_queue_create(0, &q));
    ck_assert_ok(shoal_pipe_create(true, &a, &b));
    ck_assert_ok(shoal_condition_create(&condition));
    shoal_world_leave();
    ck_assert_err(shoal_queue_put(q, shoal_value_int(1), SHOAL_NOW), SHOAL_ESTATE);
    ck_assert_err(shoal_queue_put(q, shoal_list(1, "a text that needs a message"), SHOAL_NOW), SHOAL_ESTATE);
    ck_assert_err(shoal_queue_put_bytes(q, bytes, sizeof bytes, SHOAL_NOW), SHOAL_ESTATE);
    ck_assert_err(shoal_queue_get(q, SHOAL_NOW, &value), SHOAL_ESTATE);
    ck_assert_err(shoal_queue_get_bytes(q, bytes, sizeof bytes, SHOAL_NOW, &size), SHOAL_ESTATE);
    ck_assert_err(shoal_queue_fd(q, &fd), SHOAL_ESTATE);
    ck_assert_uint_eq(shoal_queue_size(q), 0);
    ck_assert_err(shoal_pipe_send(a, shoal_value_int(1), SHOAL_NOW), SHOAL_ESTATE);
    ck_assert_err(shoal_pipe_recv(a, SHOAL_NOW, &value), SHOAL_ESTATE);
    ck_assert_err(shoal_condition_lock(condition, SHOAL_NOW), SHOAL_ESTATE);
    ck_assert(makes_no_world());
    void *const all[] = {q, a, b, condition};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        sh_block_release(all[i]);
    }
    ck_assert(makes_no_world());
}
END_TEST

/* The memory of an old tensor may belong to another object in the next world. */
START_TEST(a_tensor_of_a_world_that_was_left_is_refused)
{
    size_t mark = shoal_scope_mark();
    float numbers[1000];
    double number;
    int64_t at = 0;
    shoal_dlpack *pack;
    shoal_block *blocks[20];
    shoal_queue *q;
    shoal_tensor *old = shoal_empty_shared(SHOAL_F32, SHOAL_SHAPE(1000)),
                 *own = shoal_ones(SHOAL_F32, SHOAL_SHAPE(1000)), *sent = shoal_ones(SHOAL_F32, SHOAL_SHAPE(1000));
    ck_assert_ptr_nonnull(shoal_fill_(old, 1));
    ck_assert_ok(shoal_queue_create(0, &q));
    ck_assert_ok(shoal_queue_put_tensor(q, sent, SHOAL_NOW));
    shoal_release(q);
    shoal_world_leave();
    for (size_t i = 0; i < sizeof blocks / sizeof blocks[0]; i++) { /* one of them is where the tensor was */
        ck_assert_ok(shoal_block_create_zeroed(4000, &blocks[i]));
    }
    ck_assert_ok(shoal_queue_create(0, &q));
    ck_assert_ptr_null(shoal_fill_(old, 7));
    ck_assert_err(shoal_last_error(), SHOAL_ESTATE);
    ck_assert_ptr_null(shoal_add(own, old));
    ck_assert_err(shoal_last_error(), SHOAL_ESTATE);
    ck_assert_ptr_null(shoal_add_(old, own));
    ck_assert_err(shoal_last_error(), SHOAL_ESTATE);
    ck_assert_ptr_null(shoal_clone(old));
    ck_assert_err(shoal_last_error(), SHOAL_ESTATE);
    ck_assert_ptr_null(shoal_tensor_data(old));
    ck_assert_err(shoal_tensor_read(old, numbers, sizeof numbers), SHOAL_ESTATE);
    ck_assert_err(shoal_tensor_at(old, 1, &at, &number), SHOAL_ESTATE);
    ck_assert_err(shoal_tensor_share(old), SHOAL_ESTATE);
    ck_assert_err(shoal_queue_put_tensor(q, old, SHOAL_NOW), SHOAL_ESTATE);
    ck_assert_err(shoal_queue_put_tensor(q, sent, SHOAL_NOW), SHOAL_ESTATE);
    ck_assert_str_eq(shoal_last_error_text(), "this process has left the tensor's world");
    ck_assert_err(shoal_queue_give_tensor(q, sent, SHOAL_NOW), SHOAL_ESTATE);
    ck_assert_str_eq(shoal_last_error_text(), "this process has left the tensor's world");
    ck_assert_err(shoal_tensor_to_dlpack(old, 0, &pack), SHOAL_ESTATE);
    for (size_t i = 0; i < sizeof blocks / sizeof blocks[0]; i++) {
        const char *bytes = shoal_block_data(blocks[i]);
        for (size_t k = 0; k < 4000; k++) {
            ck_assert_int_eq(bytes[k], 0);
        }
        shoal_release(blocks[i]);
    }
    shoal_release(q);
    shoal_release(old);
    shoal_release(own);
    shoal_release(sent);
    shoal_scope_release(mark);
    sh_assert_audit("after a tensor of another world");
}
END_TEST

static shoal_err leave_and_return(int rank, const shoal_value *args)
{
    (void)rank;
    (void)args;
    shoal_world_leave();
    shoal_err err = shoal_return(shoal_value_int(1));
    return err == SHOAL_ESTATE ? SHOAL_OK : SHOAL_ECORRUPT;
}

START_TEST(a_target_may_leave)
{
    static const shoal_start starts[] = {SHOAL_START_SPAWN, SHOAL_START_FORK, SHOAL_START_FORKSERVER};
    shoal_status status;
    shoal_process *p = start(starts[_i], 0, leave_and_return, NULL);
    ck_assert_ok(shoal_process_join(p, LIMIT, &status));
    ck_assert_msg(status.end == SHOAL_PROCESS_EXITED && status.code == 0, "%s", status.text);
    shoal_process_destroy(p);
}
END_TEST

static shoal_err leave_in_task(const shoal_value *argument, shoal_value **out_result)
{
    bool leaves = false;
    shoal_err err = shoal_value_as_bool(argument, &leaves);
    if (leaves) {
        shoal_world_leave();
    }
    *out_result = shoal_value_int(1);
    return err;
}

START_TEST(a_task_that_leaves_costs_its_worker)
{
    shoal_pool *pool;
    shoal_value *result = NULL;
    ck_assert_ok(shoal_pool_create(&(shoal_pool_options){.workers = 1, .start = SHOAL_START_FORK}, &pool));
    ck_assert_err(shoal_pool_apply(pool, leave_in_task, shoal_value_bool(true), &result), SHOAL_ECHILD);
    ck_assert_ok(shoal_pool_apply(pool, leave_in_task, shoal_value_bool(false), &result));
    shoal_value_destroy(result);
    ck_assert_uint_eq(shoal_pool_losses(pool), 2); /* the pool tries it twice */
    shoal_pool_close(pool);
    ck_assert_ok(shoal_pool_join(pool, LIMIT));
    shoal_pool_destroy(pool);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("left_world");
    TCase *tc = children_case("left_world");
    tcase_add_test(tc, waiting_for_what_was_left_is_refused);
    tcase_add_test(tc, a_value_of_what_was_left_cannot_be_put);
    tcase_add_loop_test(tc, a_child_that_left_has_nothing_mapped, SHOAL_START_SPAWN, SHOAL_START_FORKSERVER + 1);
    tcase_add_test(tc, a_refused_call_makes_no_world);
    tcase_add_test(tc, a_tensor_of_a_world_that_was_left_is_refused);
    tcase_add_loop_test(tc, a_target_may_leave, 0, 3);
    tcase_add_test(tc, a_task_that_leaves_costs_its_worker);
    suite_add_tcase(s, tc);
    return s;
}

SH_TEST_MAIN(suite)
