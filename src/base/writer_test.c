/* Texts that do not fit into their buffers. */
#include "base/writer.h"
#include "tests/harness/runner.h"

#include <string.h>

/* Writes the text in two pieces into a buffer of each size, and compares what is kept. */
static void expect_cuts(const char *text, const size_t *kept, size_t sizes)
{
    for (size_t capacity = 0; capacity < sizes; capacity++) {
        char buffer[16];
        memset(buffer, 'x', sizeof buffer);
        sh_writer w = {.buffer = capacity > 0 ? buffer : NULL, .capacity = capacity};
        sh_writer_put_bytes(&w, text, 2);
        sh_writer_put(&w, text + 2);
        ck_assert_uint_eq(sh_writer_end(&w), strlen(text));
        ck_assert_int_eq(buffer[capacity], 'x');
        if (capacity > 0) {
            ck_assert_uint_eq(strlen(buffer), kept[capacity]);
            ck_assert_mem_eq(buffer, text, kept[capacity]);
        }
    }
}

START_TEST(what_fits_is_kept_and_all_is_counted)
{
    expect_cuts("abcd", (size_t[]){0, 0, 1, 2, 3, 4, 4}, 7);
}
END_TEST

START_TEST(no_character_is_cut)
{
    expect_cuts("a\xc3\xa9z", (size_t[]){0, 0, 1, 1, 3, 4}, 6);                     /* two bytes */
    expect_cuts("a\xe2\x80\xa6z", (size_t[]){0, 0, 1, 1, 1, 4, 5}, 7);              /* three */
    expect_cuts("\xf0\x9f\x90\x9f\xc3\xa9", (size_t[]){0, 0, 0, 0, 0, 4, 4, 6}, 8); /* four, then two */
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("writer");
    TCase *tc = tcase_create("cuts");
    tcase_add_test(tc, what_fits_is_kept_and_all_is_counted);
    tcase_add_test(tc, no_character_is_cut);
    suite_add_tcase(s, tc);
    return s;
}

SH_TEST_MAIN(suite)
