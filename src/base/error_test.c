/* Errors that are kept over further calls. */
#include "base/error.h"
#include "tests/harness/runner.h"

#include <string.h>

START_TEST(a_saved_error_comes_back)
{
    sh_error saved;
    sh_error_save(&saved, sh_fail(SHOAL_ELIMIT, "no room for %d", 7));
    (void)sh_fail(SHOAL_EOS, "close: failed too");
    uint64_t mark = sh_callback_mark();
    ck_assert_int_eq(sh_error_restore(&saved), SHOAL_ELIMIT);
    ck_assert_int_eq(shoal_last_error(), SHOAL_ELIMIT);
    ck_assert_str_eq(shoal_last_error_text(), "no room for 7");
    ck_assert_int_eq(sh_callback_err(mark, SHOAL_ELIMIT, "a set", "open"), SHOAL_ELIMIT); /* counts as told */
    ck_assert_str_eq(shoal_last_error_text(), "no room for 7");
}
END_TEST

START_TEST(success_restores_nothing)
{
    (void)sh_fail(SHOAL_ELIMIT, "before");
    sh_error saved;
    sh_error_save(&saved, SHOAL_OK);
    (void)sh_fail(SHOAL_EOS, "between");
    ck_assert_int_eq(sh_error_restore(&saved), SHOAL_OK);
    ck_assert_int_eq(shoal_last_error(), SHOAL_EOS);
    ck_assert_str_eq(shoal_last_error_text(), "between");
}
END_TEST

START_TEST(the_longest_text_is_kept_whole)
{
    char text[SH_ERROR_TEXT + 100];
    memset(text, 'x', sizeof text - 1);
    text[sizeof text - 1] = 0;
    sh_error saved;
    sh_error_save(&saved, sh_fail(SHOAL_EINVAL, "%s", text));
    (void)sh_fail(SHOAL_EOS, "between");
    ck_assert_int_eq(sh_error_restore(&saved), SHOAL_EINVAL);
    ck_assert_uint_eq(strlen(shoal_last_error_text()), SH_ERROR_TEXT - 1);
}
END_TEST

START_TEST(a_text_may_contain_the_last_one)
{
    (void)sh_fail(SHOAL_EINVAL, "the cause");
    ck_assert_int_eq(sh_fail(SHOAL_EOS, "before; %s; after", shoal_last_error_text()), SHOAL_EOS);
    ck_assert_str_eq(shoal_last_error_text(), "before; the cause; after");
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("error");
    TCase *tc = tcase_create("saved");
    tcase_add_test(tc, a_saved_error_comes_back);
    tcase_add_test(tc, success_restores_nothing);
    tcase_add_test(tc, the_longest_text_is_kept_whole);
    tcase_add_test(tc, a_text_may_contain_the_last_one);
    suite_add_tcase(s, tc);
    return s;
}

SH_TEST_MAIN(suite)
