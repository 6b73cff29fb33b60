/* Arrays that grow. */
#include "base/grow.h"
#include "tests/harness/runner.h"

START_TEST(items_stay_where_they_are_in_the_array)
{
    int *items = NULL;
    size_t room = 0;
    for (int i = 0; i < 1000; i++) {
        ck_assert(sh_grow(&items, (size_t)i, &room, sizeof *items));
        ck_assert_uint_gt(room, (size_t)i);
        items[i] = i;
    }
    ck_assert_uint_lt(room, 2000);
    for (int i = 0; i < 1000; i++) {
        ck_assert_int_eq(items[i], i);
    }
    free(items);
}
END_TEST

START_TEST(no_memory_changes_nothing)
{
    char *items = NULL;
    size_t room = 0;
    ck_assert(sh_grow(&items, 0, &room, 1));
    char *before = items;
    size_t had = room;
    ck_assert(!sh_grow(&items, room, &room, SIZE_MAX / 2));
    ck_assert(items == before && room == had);
    free(items);
}
END_TEST

static Suite *suite(void)
{
    const TTest *const tests[] = {items_stay_where_they_are_in_the_array, no_memory_changes_nothing};
    return sh_test_suite("grow", tests, sizeof tests / sizeof tests[0]);
}

SH_TEST_MAIN(suite)
