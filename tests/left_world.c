/* Handles of a world that was left are refused by every call, and by the values that hold them (F12). */
#include "shm/block.h"
#include "tests/children.h"

#include <stdlib.h>

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
    ck_assert_ok(shoal_process_join(p, LIMIT, NULL)); /* it can still be seen out */
    shoal_process_destroy(p);
    void *const all[] = {q, a, b, event, fresh};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        sh_block_release(all[i]);
    }
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

static Suite *suite(void)
{
    Suite *s = suite_create("left_world");
    TCase *tc = children_case("left_world");
    tcase_add_test(tc, waiting_for_what_was_left_is_refused);
    tcase_add_test(tc, a_value_of_what_was_left_cannot_be_put);
    suite_add_tcase(s, tc);
    return s;
}

SH_TEST_MAIN(suite)
