#include "ipc/value.h"

#include "base/error.h"
#include "tests/harness/runner.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void ck_format(shoal_value *value, const char *wanted)
{
    char text[512];
    size_t length = shoal_value_format(value, text, sizeof text);
    ck_assert_str_eq(text, wanted);
    ck_assert_uint_eq(length, strlen(wanted));
    shoal_value_destroy(value);
}

static shoal_value *nest(int depth)
{
    shoal_value *value = shoal_value_list();
    for (int i = 1; i < depth; i++) {
        value = i % 2 != 0 ? shoal_list_add(shoal_value_list(), value) : shoal_map_set(shoal_value_map(), "in", value);
    }
    return value;
}

static void forget_error(void)
{
    (void)sh_fail(SHOAL_OK, "none");
}

START_TEST(scalars_read_back)
{
    shoal_value *v = shoal_value_null();
    ck_assert_int_eq(shoal_value_type(v), SHOAL_TYPE_NULL);
    shoal_value_destroy(v);
    v = shoal_value_bool(true);
    ck_assert_int_eq(shoal_value_type(v), SHOAL_TYPE_BOOL);
    ck_assert(sh_bool_of(v));
    shoal_value_destroy(v);
    v = shoal_value_int(INT64_MIN);
    ck_assert_int_eq(sh_int_of(v), INT64_MIN);
    shoal_value_destroy(v);
    v = shoal_value_string("Grüße, 鱼 🐟");
    ck_assert_str_eq(shoal_value_as_string(v), "Grüße, 鱼 🐟");
    shoal_value_destroy(v);
    size_t size = 9;
    v = shoal_value_bytes("a\0b", 3);
    ck_assert_mem_eq(shoal_value_as_bytes(v, &size), "a\0b", 3);
    ck_assert_uint_eq(size, 3);
    shoal_value_destroy(v);
    v = shoal_value_bytes(NULL, 0);
    ck_assert_ptr_nonnull(shoal_value_as_bytes(v, &size));
    ck_assert_uint_eq(size, 0);
    shoal_value_destroy(v);
    shoal_value_destroy(NULL);
}
END_TEST

START_TEST(int_and_float_read_as_each_other_when_nothing_is_lost)
{
    static const struct {
        double number;
        bool fits;
        int64_t integer;
    } floats[] = {
        {3.0, true, 3},
        {-0.0, true, 0},
        {0x1p62, true, INT64_C(1) << 62},
        {-0x1p63, true, INT64_MIN},
        {3.5, false, 0},
        {NAN, false, 0},
        {INFINITY, false, 0},
        {-INFINITY, false, 0},
        {0x1p63, false, 0},
        {-1e300, false, 0},
    };
    for (size_t i = 0; i < sizeof floats / sizeof floats[0]; i++) {
        int64_t integer = 77;
        shoal_value *v = shoal_value_float(floats[i].number);
        ck_assert_err(shoal_value_as_int(v, &integer), floats[i].fits ? SHOAL_OK : SHOAL_ETYPE);
        ck_assert_int_eq(integer, floats[i].fits ? floats[i].integer : 77); /* untouched by a failure */
        shoal_value_destroy(v);
    }
    static const struct {
        int64_t integer;
        bool fits;
    } ints[] = {
        {-7, true},         {INT64_MIN, true},      {INT64_C(1) << 53, true}, {(INT64_C(1) << 53) + 1, false},
        {INT64_MAX, false}, {INT64_MIN + 1, false},
    };
    for (size_t i = 0; i < sizeof ints / sizeof ints[0]; i++) {
        double number = 77;
        shoal_value *v = shoal_value_int(ints[i].integer);
        ck_assert_err(shoal_value_as_float(v, &number), ints[i].fits ? SHOAL_OK : SHOAL_ETYPE);
        ck_assert_double_eq(number, ints[i].fits ? (double)ints[i].integer : 77);
        shoal_value_destroy(v);
    }
}
END_TEST

#define ck_refused(call, zero, err)                                                                                    \
    do {                                                                                                               \
        forget_error();                                                                                                \
        ck_assert((call) == (zero));                                                                                   \
        ck_assert_int_eq(shoal_last_error(), err);                                                                     \
    } while (0)

START_TEST(readers_refuse_other_types)
{
    shoal_value *values[] = {
        shoal_value_null(),   shoal_value_bool(true),  shoal_value_int(1),
        shoal_value_float(1), shoal_value_string("1"), shoal_value_bytes("1", 1),
        shoal_value_list(),   shoal_value_map(),       NULL,
    };
    for (size_t i = 0; i < sizeof values / sizeof values[0]; i++) {
        const shoal_value *v = values[i];
        int type = v != NULL ? (int)shoal_value_type(v) : -1;
        shoal_err wrong = v != NULL ? SHOAL_ETYPE : SHOAL_EINVAL;
        size_t size = 9;
        bool b = true;
        int64_t n = 77;
        uint64_t u = 77;
        double d = 77;
        if (type != SHOAL_TYPE_BOOL) {
            ck_refused(shoal_value_as_bool(v, &b), wrong, wrong);
        }
        if (type != SHOAL_TYPE_INT && type != SHOAL_TYPE_FLOAT) {
            ck_refused(shoal_value_as_int(v, &n), wrong, wrong);
            ck_refused(shoal_value_as_uint(v, &u), wrong, wrong);
            ck_refused(shoal_value_as_float(v, &d), wrong, wrong);
            ck_assert(b && n == 77 && u == 77 && d == 77);
        }
        if (type != SHOAL_TYPE_STRING) {
            ck_refused(shoal_value_as_string(v), NULL, wrong);
        }
        if (type != SHOAL_TYPE_BYTES) {
            ck_refused(shoal_value_as_bytes(v, &size), NULL, wrong);
            ck_assert_uint_eq(size, 0);
        }
        if (type != SHOAL_TYPE_LIST && type != SHOAL_TYPE_MAP) {
            ck_refused(shoal_value_count(v), 0, SHOAL_OK); /* not a failure */
            ck_refused(shoal_value_at(v, 0), NULL, wrong);
        }
        if (type != SHOAL_TYPE_MAP) {
            ck_refused(shoal_value_key_at(v, 0), NULL, wrong);
            ck_refused(shoal_value_find(v, "key"), NULL, wrong);
        }
        ck_refused(shoal_value_object_kind(v), SHOAL_KIND_NONE, SHOAL_OK);
        ck_refused(shoal_value_as_block(v), NULL, wrong);
        ck_refused(shoal_value_as_queue(v), NULL, wrong);
        ck_refused(shoal_value_as_barrier(v), NULL, wrong);
        shoal_value_destroy(values[i]);
    }
    ck_refused(shoal_value_type(NULL), SHOAL_TYPE_NULL, SHOAL_OK);
    shoal_value *v = shoal_value_string("one");
    int64_t n;
    ck_refused(shoal_value_as_int(v, &n), SHOAL_ETYPE, SHOAL_ETYPE);
    ck_assert_str_eq(shoal_last_error_text(), "expected int, but the value is string");
    ck_refused(shoal_value_as_int(NULL, &n), SHOAL_EINVAL, SHOAL_EINVAL);
    ck_assert_str_eq(shoal_last_error_text(), "shoal_value_as_int: the value is NULL");
    shoal_value_destroy(v);
}
END_TEST

/* A number beyond int64 stays itself, and never becomes -1. */
START_TEST(uint_is_what_int_cannot_hold)
{
    static const uint64_t all[] = {0, 1, INT64_MAX, (uint64_t)INT64_MAX + 1, UINT64_MAX - 1, UINT64_MAX};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        shoal_value *v = shoal_value_uint(all[i]), *copy = shoal_value_copy(v);
        bool large = all[i] > INT64_MAX;
        int64_t n = -5;
        uint64_t u = 5;
        ck_assert_int_eq(shoal_value_type(v), large ? SHOAL_TYPE_UINT : SHOAL_TYPE_INT);
        ck_assert_ok(shoal_value_as_uint(v, &u));
        ck_assert_uint_eq(u, all[i]);
        ck_assert_err(shoal_value_as_int(v, &n), large ? SHOAL_ETYPE : SHOAL_OK);
        ck_assert_int_eq(n, large ? -5 : (int64_t)all[i]);
        ck_assert(shoal_value_equal(v, copy));
        shoal_value_destroy(v);
        shoal_value_destroy(copy);
    }
    uint64_t u = 5;
    double d;
    shoal_value *v = shoal_value_int(-1);
    ck_refused(shoal_value_as_uint(v, &u), SHOAL_ETYPE, SHOAL_ETYPE);
    ck_assert_str_eq(shoal_last_error_text(), "expected uint, but the value is int -1");
    shoal_value_destroy(v);
    v = shoal_value_float(0x1p63);
    ck_assert_ok(shoal_value_as_uint(v, &u));
    ck_assert_uint_eq(u, UINT64_C(1) << 63);
    shoal_value_destroy(v);
    v = shoal_value_uint(UINT64_C(1) << 63);
    ck_assert_ok(shoal_value_as_float(v, &d));
    ck_assert_double_eq(d, 0x1p63);
    shoal_value_destroy(v);
    ck_format(shoal_list(UINT64_MAX, (unsigned long)7), "[18446744073709551615, 7]");
}
END_TEST

START_TEST(strings_must_be_utf8)
{
    static const char *const bad[] = {
        "\x80",         "a\xc3",        "\xc0\x80",         "\xc1\xbf",         "\xe0\x9f\xbf",
        "\xed\xa0\x80", "\xef\xbf",     "\xf0\x8f\xbf\xbf", "\xf4\x90\x80\x80", "\xf5\x80\x80\x80",
        "\xff",         "\xe2\x28\xa1", "12345678\xfe",     "\xf0\x9f\x90"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        ck_refused(shoal_value_string(bad[i]), NULL, SHOAL_EINVAL);
        ck_refused(shoal_map_set(shoal_value_map(), bad[i], shoal_value_int(1)), NULL, SHOAL_EINVAL);
    }
    static const char *const good[] = {"",
                                       "\x01\x7f",
                                       "\xc2\x80",
                                       "\xdf\xbf",
                                       "\xe0\xa0\x80",
                                       "\xed\x9f\xbf",
                                       "\xee\x80\x80",
                                       "\xef\xbf\xbf",
                                       "\xf0\x90\x80\x80",
                                       "\xf4\x8f\xbf\xbf",
                                       "12345678\xc3\xa9"};
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        shoal_value *v = shoal_value_string(good[i]);
        ck_assert_str_eq(shoal_value_as_string(v), good[i]);
        shoal_value_destroy(v);
    }
    ck_assert_uint_eq(sh_value_text_valid("1234567\0009", 9), 7);
    ck_assert_uint_eq(sh_value_text_valid("\0", 1), 0);
    ck_refused(shoal_value_string(NULL), NULL, SHOAL_EINVAL);
    ck_refused(shoal_value_bytes(NULL, 1), NULL, SHOAL_EINVAL);
    ck_refused(shoal_value_block(NULL), NULL, SHOAL_EINVAL);
    ck_refused(shoal_value_bytes("", SIZE_MAX), NULL, SHOAL_ENOMEM);
    ck_refused(shoal_value_bytes("", SIZE_MAX - 24), NULL, SHOAL_ENOMEM);
}
END_TEST

START_TEST(containers_hold_members_in_order)
{
    shoal_value *v = shoal_list(1, "two", 3.0, shoal_value_null(), shoal_map("k", (bool)true));
    ck_assert_uint_eq(shoal_value_count(v), 5);
    ck_assert_int_eq(sh_int_of(shoal_value_at(v, 0)), 1);
    ck_assert_str_eq(shoal_value_as_string(shoal_value_at(v, 1)), "two");
    ck_assert(sh_bool_of(shoal_value_find(shoal_value_at(v, 4), "k")));
    ck_refused(shoal_value_at(v, 5), NULL, SHOAL_EINVAL);
    ck_refused(shoal_value_at(v, SIZE_MAX), NULL, SHOAL_EINVAL);
    shoal_value_destroy(v);

    v = shoal_map("b", 1, "a", 2, "", 3);
    ck_assert_uint_eq(shoal_value_count(v), 3);
    ck_assert_str_eq(shoal_value_key_at(v, 0), "b");
    ck_assert_str_eq(shoal_value_key_at(v, 1), "a");
    ck_assert_int_eq(sh_int_of(shoal_value_at(v, 1)), 2);
    ck_assert_int_eq(sh_int_of(shoal_value_find(v, "")), 3);
    ck_refused(shoal_value_key_at(v, 3), NULL, SHOAL_EINVAL);
    ck_refused(shoal_value_find(v, "c"), NULL, SHOAL_ENOENT);
    ck_refused(shoal_value_find(v, NULL), NULL, SHOAL_EINVAL);
    ck_assert_str_eq(shoal_last_error_text(), "shoal_value_find: key is NULL");
    shoal_value_destroy(v);
}
END_TEST

START_TEST(a_key_set_twice_keeps_the_last)
{
    for (int count = 3; count <= 60; count += 19) { /* without and with an index */
        shoal_value *v = shoal_value_map();
        for (int round = 0; round < 2; round++) {
            for (int i = 0; i < count; i++) {
                char key[16];
                (void)snprintf(key, sizeof key, "k%d", i);
                v = shoal_map_set(v, key, round == 0 ? shoal_value_int(i) : shoal_value_string(key));
            }
        }
        ck_assert_uint_eq(shoal_value_count(v), (size_t)count);
        for (int i = 0; i < count; i++) {
            char key[16];
            (void)snprintf(key, sizeof key, "k%d", i);
            ck_assert_str_eq(shoal_value_key_at(v, (size_t)i), key);
            ck_assert_str_eq(shoal_value_as_string(shoal_value_at(v, (size_t)i)), key);
            ck_assert_ptr_eq(shoal_value_find(v, key), shoal_value_at(v, (size_t)i));
        }
        ck_refused(shoal_value_find(v, "k"), NULL, SHOAL_ENOENT);
        shoal_value_destroy(v);
    }
}
END_TEST

START_TEST(failed_makers_nest)
{
    ck_refused(shoal_list("fine", "\xff", 3), NULL, SHOAL_EINVAL);
    ck_refused(shoal_map("a", shoal_list("\xff"), "b", "fine"), NULL, SHOAL_EINVAL);
    ck_assert_str_eq(shoal_last_error_text(), "a string of 1 bytes is not UTF-8 at byte 0");
    ck_refused(shoal_list_add(NULL, shoal_value_int(1)), NULL, SHOAL_EINVAL);
    ck_refused(shoal_list_add(shoal_value_list(), NULL), NULL, SHOAL_EINVAL);
    ck_refused(shoal_list_add(NULL, NULL), NULL, SHOAL_EINVAL);
    ck_refused(shoal_map_set(shoal_value_map(), NULL, shoal_value_int(1)), NULL, SHOAL_EINVAL);
    ck_refused(shoal_list_add(shoal_value_map(), shoal_value_int(1)), NULL, SHOAL_ETYPE);
    ck_refused(shoal_map_set(shoal_value_list(), "k", shoal_value_int(1)), NULL, SHOAL_ETYPE);
    ck_refused(shoal_list_add(shoal_value_string("s"), shoal_value_int(1)), NULL, SHOAL_ETYPE);
}
END_TEST

/* No call consumes a kept value, not even one that rejects another argument. */
START_TEST(a_refused_key_leaves_what_is_kept)
{
    shoal_value *map = shoal_value_keep(shoal_map("a", 1)), *member = shoal_value_keep(shoal_value_string("kept"));
    ck_refused(shoal_map_set(map, NULL, member), NULL, SHOAL_EINVAL);
    ck_assert_str_eq(shoal_value_as_string(member), "kept");
    ck_assert_int_eq(sh_int_of(shoal_value_find(map, "a")), 1);
    ck_refused(shoal_map_set(map, NULL, (shoal_value *)shoal_value_at(map, 0)), NULL, SHOAL_EINVAL);
    ck_assert_uint_eq(shoal_value_count(map), 1);
    shoal_value_destroy(member);
    shoal_value_destroy(map);
}
END_TEST

START_TEST(a_member_stays_where_it_is)
{
    shoal_value *self = shoal_value_list();
    ck_refused(shoal_list_add(self, self), NULL, SHOAL_EINVAL);

    shoal_value *inner = shoal_value_list();
    shoal_value *outer = shoal_list(inner);
    ck_refused(shoal_list_add(inner, shoal_value_int(1)), NULL, SHOAL_EINVAL); /* inner and outer live on */
    ck_assert_uint_eq(shoal_value_count(inner), 0);
    ck_refused(shoal_list_add(shoal_value_list(), inner), NULL, SHOAL_EINVAL);
    ck_assert_uint_eq(shoal_value_count(outer), 1);
    ck_refused(shoal_list_add(inner, outer), NULL, SHOAL_EINVAL); /* ends outer, and inner with it */

    inner = shoal_value_int(1);
    outer = shoal_list(inner);
    ck_refused(shoal_list_add(outer, inner), NULL, SHOAL_EINVAL); /* ends outer */
}
END_TEST

START_TEST(depth_is_bounded)
{
    shoal_value *v = nest(SHOAL_VALUE_DEPTH);
    ck_assert_ptr_nonnull(v);
    shoal_value *copy = shoal_value_copy(v);
    ck_assert(shoal_value_equal(v, copy));
    shoal_value_destroy(copy);
    ck_refused(shoal_list_add(shoal_value_list(), v), NULL, SHOAL_EINVAL);
    ck_assert_str_eq(shoal_last_error_text(), "a value nested deeper than 64");
    ck_refused(nest(SHOAL_VALUE_DEPTH + 1), NULL, SHOAL_EINVAL);
    ck_refused(shoal_map_set(shoal_value_map(), "k", nest(SHOAL_VALUE_DEPTH)), NULL, SHOAL_EINVAL);
    v = shoal_list(nest(3), nest(SHOAL_VALUE_DEPTH - 1), 5);
    ck_assert_uint_eq(shoal_value_count(v), 3);
    shoal_value_destroy(v);
}
END_TEST

START_TEST(copies_are_equal_and_their_own)
{
    shoal_value *v =
        shoal_map("n", shoal_value_null(), "b", (bool)false, "i", 7, "f", NAN, "s", "text", "y",
                  shoal_value_bytes("\0", 1), "l", shoal_list(1, 2, shoal_value_list()), "m", shoal_value_map());
    shoal_value *copy = shoal_value_copy(v);
    ck_assert(shoal_value_equal(v, copy));
    ck_assert_ptr_ne(shoal_value_find(v, "s"), shoal_value_find(copy, "s"));
    copy = shoal_map_set(copy, "i", shoal_value_int(8));
    ck_assert(!shoal_value_equal(v, copy));
    shoal_value_destroy(v);
    ck_assert_str_eq(shoal_arg_string(copy, "s"), "text");
    shoal_value_destroy(copy);
    ck_assert_ptr_null(shoal_value_copy(NULL));
    ck_assert(shoal_value_equal(NULL, NULL));
}
END_TEST

START_TEST(equal_tells_values_apart)
{
    /* Each differs from every other. */
    shoal_value *values[] = {
        shoal_value_null(),      shoal_value_bool(false),   shoal_value_bool(true),
        shoal_value_int(0),      shoal_value_int(1),        shoal_value_float(0.0),
        shoal_value_float(-0.0), shoal_value_float(1),      shoal_value_float(NAN),
        shoal_value_string(""),  shoal_value_string("a"),   shoal_value_bytes("", 0),
        shoal_value_string("b"), shoal_value_bytes("a", 1), shoal_value_list(),
        shoal_value_map(),       shoal_list(1, 2),          shoal_list(2, 1),
        shoal_list(1),           shoal_map("a", 1),         shoal_map("a", 2),
        shoal_map("b", 1),       shoal_map("a", 1, "b", 2), NULL,
    };
    size_t count = sizeof values / sizeof values[0];
    for (size_t i = 0; i < count; i++) {
        for (size_t j = 0; j < count; j++) {
            ck_assert_msg(shoal_value_equal(values[i], values[j]) == (i == j), "%zu and %zu", i, j);
        }
    }
    for (size_t i = 0; i < count; i++) {
        shoal_value_destroy(values[i]);
    }
    shoal_value *one = shoal_map("a", 1, "b", 2);
    shoal_value *other = shoal_map("b", 2, "a", 1);
    ck_assert(shoal_value_equal(one, other)); /* the order does not matter */
    shoal_value_destroy(one);
    shoal_value_destroy(other);
}
END_TEST

START_TEST(format_is_for_people)
{
    ck_format(shoal_value_null(), "null");
    ck_format(shoal_value_bool(true), "true");
    ck_format(shoal_value_bool(false), "false");
    ck_format(shoal_value_int(INT64_MIN), "-9223372036854775808");
    ck_format(shoal_value_float(3), "3.0");
    ck_format(shoal_value_float(-0.0), "-0.0");
    ck_format(shoal_value_float(0.1), "0.1");
    ck_format(shoal_value_float(1.0 / 3), "0.3333333333333333");
    ck_format(shoal_value_float(0.1 + 0.2), "0.30000000000000004");
    ck_format(shoal_value_float(1e300), "1e+300");
    ck_format(shoal_value_float(NAN), "nan");
    ck_format(shoal_value_float(-INFINITY), "-inf");
    ck_format(shoal_value_string("a\"b\\c\n\t\r\x01\x7f é"), "\"a\\\"b\\\\c\\n\\t\\r\\u0001\\u007f é\"");
    ck_format(shoal_value_bytes("abc", 3), "<3 bytes>");
    ck_format(shoal_value_bytes("a", 1), "<1 byte>");
    ck_format(shoal_value_list(), "[]");
    ck_format(shoal_value_map(), "{}");
    ck_format(shoal_map("rank", 0, "data", shoal_list(1, 2.5, "x")), "{\"rank\": 0, \"data\": [1, 2.5, \"x\"]}");
}
END_TEST

START_TEST(format_cuts_to_the_capacity)
{
    shoal_value *v = shoal_list("é鱼🐟", 12345);
    char whole[64];
    size_t length = shoal_value_format(v, whole, sizeof whole);
    ck_assert_str_eq(whole, "[\"é鱼🐟\", 12345]");
    ck_assert_uint_eq(length, strlen(whole));
    ck_assert_uint_eq(shoal_value_format(v, NULL, 0), length);
    for (size_t capacity = 1; capacity <= length; capacity++) {
        char *text = malloc(capacity); /* the exact size, so that the sanitizer sees a write beyond it */
        ck_assert_ptr_nonnull(text);
        ck_assert_uint_eq(shoal_value_format(v, text, capacity), length);
        size_t got = strlen(text);
        ck_assert(got < capacity && got + 4 >= capacity);
        ck_assert_mem_eq(text, whole, got);
        ck_assert_uint_eq(sh_value_text_valid(text, got), got);
        free(text);
    }
    char none[4] = "abc";
    ck_refused(shoal_value_format(NULL, none, sizeof none), 0, SHOAL_OK);
    ck_assert_str_eq(none, "");
    shoal_value_destroy(v);
}
END_TEST

START_TEST(the_macros_choose_by_type)
{
    unsigned char small = 200;
    unsigned long big = 1ul << 40;
    const char *text = "t";
    shoal_value *v =
        shoal_list((char)'c', small, (short)-3, 4u, big, 5ll, 1.5f, text, (_Bool)1, 10, 11, 12, 13, 14, 15, 16);
    ck_format(v, "[99, 200, -3, 4, 1099511627776, 5, 1.5, \"t\", true, 10, 11, 12, 13, 14, 15, 16]");
    ck_format(shoal_map("1", 1, "2", 2, "3", 3, "4", 4, "5", 5, "6", 6, "7", 7, "8", 8, "9", 9, "10", 10, "11", 11,
                        "12", 12, "13", 13, "14", 14, "15", 15, "16", 16),
              "{\"1\": 1, \"2\": 2, \"3\": 3, \"4\": 4, \"5\": 5, \"6\": 6, \"7\": 7, \"8\": 8, \"9\": 9, \"10\": 10, "
              "\"11\": 11, "
              "\"12\": 12, \"13\": 13, \"14\": 14, \"15\": 15, \"16\": 16}");
}
END_TEST

static Suite *suite(void)
{
    const TTest *const tests[] = {
        scalars_read_back,
        int_and_float_read_as_each_other_when_nothing_is_lost,
        readers_refuse_other_types,
        uint_is_what_int_cannot_hold,
        strings_must_be_utf8,
        containers_hold_members_in_order,
        a_key_set_twice_keeps_the_last,
        failed_makers_nest,
        a_refused_key_leaves_what_is_kept,
        a_member_stays_where_it_is,
        depth_is_bounded,
        copies_are_equal_and_their_own,
        equal_tells_values_apart,
        format_is_for_people,
        format_cuts_to_the_capacity,
        the_macros_choose_by_type,
    };
    return sh_test_suite("value", tests, sizeof tests / sizeof tests[0]);
}

SH_TEST_MAIN(suite)
