/* The rules of the interface, as the head of shoal.h says them: who owns values, handles and errors. */
#include "tests/children.h"

#include <stdlib.h>

static shoal_queue *make_queue(uint64_t bound)
{
    shoal_queue *q = NULL;
    ck_assert_ok(shoal_queue_create(bound, &q));
    return q;
}

static uint64_t blocks_live(void)
{
    shoal_world_info info;
    ck_assert_ok(shoal_world_info_get(&info));
    return info.blocks_live;
}

/* ---- rule 1: a call that takes a value consumes it (U10) ---- */

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

/* Every call that takes a value, each of them failing. The values hold the only reference to a block: whoever leaks the value
 * leaks the block, and the heap knows. */
START_TEST(u10_a_failed_call_consumes_its_value)
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
    uint64_t before = blocks_live();
    for (int call = 0; call < 14; call++) {
        shoal_block *block;
        ck_assert_ok(shoal_block_create(100, &block));
        shoal_value *v = call % 2 == 0 ? shoal_value_object(block) : shoal_list(1, block);
        shoal_release(block);
        switch (call / 2) {
        case 0: ck_assert_err(shoal_queue_put(full, v, SHOAL_NOW), SHOAL_ETIMEDOUT); break;
        case 1: ck_assert_err(shoal_pipe_send(a, v, SHOAL_NOW), SHOAL_EINVAL); break; /* a only receives */
        case 2: ck_assert_err(shoal_process_start(NULL, v, NULL, &p), SHOAL_EINVAL); break;
        case 3: ck_assert_err(shoal_spawn(nothing, -1, v), SHOAL_EINVAL); break;
        case 4: ck_assert_err(shoal_return(v), SHOAL_ESTATE); break;
        case 5:
            ck_assert_int_ne(call % 2 == 0 ? shoal_pool_apply_async(pool, give_back, v, &future)
                                           : shoal_pool_imap(pool, give_back, v, true, &iterator),
                             SHOAL_OK);
            break;
        default: ck_assert_int_ne(shoal_pool_map(pool, give_back, v, 0, &got), SHOAL_OK); break;
        }
        ck_assert_msg(blocks_live() == before, "call %d leaks its value", call / 2);
    }
    shoal_pool_destroy(pool);
    shoal_release(a);
    shoal_release(b);
    shoal_release(full);
}
END_TEST

START_TEST(u10_a_kept_value_can_be_put_again)
{
    shoal_queue *q = make_queue(1);
    shoal_block *block;
    ck_assert_ok(shoal_block_create(100, &block));
    shoal_value *all[] = {shoal_value_int(7), shoal_value_string("text"), shoal_value_object(block),
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

START_TEST(u10_a_container_gets_a_copy_of_a_kept_value)
{
    shoal_value *inner = shoal_value_keep(shoal_list(1, 2));
    shoal_value *list = shoal_list(inner, inner), *map = shoal_map("a", inner, "b", 3);
    inner = shoal_list_add(inner, shoal_value_int(3)); /* a kept list still grows */
    ck_assert_uint_eq(shoal_value_count(inner), 3);
    ck_assert_uint_eq(shoal_value_count(shoal_value_at(list, 1)), 2);
    ck_assert_uint_eq(shoal_value_count(shoal_value_find(map, "a")), 2);
    ck_assert_ptr_null(shoal_list_add(inner, NULL)); /* fails, and the kept list stays */
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

static shoal_value *constant; /* what the tasks of this worker answer */

static shoal_err give_constant(const shoal_value *arg, shoal_value **out_result)
{
    (void)arg;
    constant = constant != NULL ? constant : shoal_value_keep(shoal_list("always", "this"));
    *out_result = constant;
    return SHOAL_OK;
}

START_TEST(u10_every_call_reads_a_kept_value)
{
    shoal_value *v = shoal_value_keep(shoal_list(1, 2, 3)), *got, *results[2];
    shoal_process *p;
    shoal_pool *pool;
    ck_assert_ok(shoal_pool_create(&(shoal_pool_options){.workers = 1, .initializer = nothing, .init_args = v}, &pool));
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

static Suite *suite(void)
{
    Suite *s = suite_create("interface");
    TCase *tc = children_case("values");
    tcase_add_test(tc, u10_a_failed_call_consumes_its_value);
    tcase_add_test(tc, u10_a_kept_value_can_be_put_again);
    tcase_add_test(tc, u10_a_container_gets_a_copy_of_a_kept_value);
    tcase_add_test(tc, u10_every_call_reads_a_kept_value);
    suite_add_tcase(s, tc);
    return s;
}

SH_TEST_MAIN(suite)
