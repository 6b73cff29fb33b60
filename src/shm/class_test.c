/* Size classes and the geometry of spans. */
#include "shm/class.h"
#include "tests/harness/runner.h"

START_TEST(every_size_has_the_smallest_class_that_holds_it)
{
    for (uint64_t size = 0; size < 300000; size++) {
        uint32_t k = sh_class_of(size);
        ck_assert_uint_ge(sh_class_size(k), size);
        ck_assert(k == 1 || sh_class_size(k - 1) < size);
    }
    ck_assert_uint_eq(sh_class_of(SH_SIZE_MAX), SH_CLASSES - 1);
    ck_assert_uint_eq(sh_class_size(SH_CLASSES - 1), SH_SIZE_MAX);
}
END_TEST

START_TEST(no_class_wastes_more_than_a_quarter)
{
    for (uint32_t k = 6; k < SH_CLASSES; k++) {
        ck_assert_uint_eq(sh_class_of(sh_class_size(k)), k);
        ck_assert_uint_le(sh_class_size(k), sh_class_size(k - 1) + sh_class_size(k - 1) / 4);
    }
}
END_TEST

START_TEST(the_parts_of_a_span_do_not_overlap)
{
    for (uint32_t k = 0; k < SH_CLASSES; k++) {
        uint64_t blocks = sh_class_blocks(k);
        ck_assert_uint_le(blocks, 1u << SH_INDEX_BITS);
        ck_assert_uint_ge(sh_span_meta_at(k), sh_class_map_words(k) * 8u);
        ck_assert_uint_ge(sh_span_committed_at(k), sh_span_meta_at(k) + blocks * sh_class_meta_stride(k));
        ck_assert_uint_ge(sh_span_data_at(k), sh_span_committed_at(k) + (sh_class_is_large(k) ? blocks * 8 : 0));
        ck_assert_uint_ge(sh_span_bytes(k), sh_span_data_at(k) + blocks * sh_class_size(k));
        ck_assert_uint_eq(sh_span_bytes(k) % SH_UNIT, 0);
        ck_assert_uint_eq(sh_span_data_at(k) % 64, 0);
        if (sh_class_is_large(k)) { /* memory is committed and given back in pages */
            ck_assert_uint_eq(sh_span_data_at(k) % SH_PAGE, 0);
            ck_assert_uint_eq(sh_class_size(k) % SH_PAGE, 0);
        }
    }
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("class");
    TCase *tc = tcase_create("class");
    tcase_add_test(tc, every_size_has_the_smallest_class_that_holds_it);
    tcase_add_test(tc, no_class_wastes_more_than_a_quarter);
    tcase_add_test(tc, the_parts_of_a_span_do_not_overlap);
    suite_add_tcase(s, tc);
    return s;
}

SH_TEST_MAIN(suite)
