#include "ipc/value_codec.h"

#include "base/error.h"
#include "ipc/value.h"

#include "tests/harness/runner.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

static shoal_value *encode_decode(const shoal_value *value)
{
    sh_encoding e;
    ck_assert_int_eq(sh_encoding_init(&e, value), SHOAL_OK);
    ck_assert_uint_eq(e.object_count, 0);
    shoal_value *back = NULL;
    ck_assert_int_eq(sh_value_decode(e.bytes, e.size, NULL, 0, &back), SHOAL_OK);
    sh_encoding_fini(&e);
    return back;
}

static void ck_round_trip(shoal_value *value)
{
    ck_assert_ptr_nonnull(value);
    shoal_value *back = encode_decode(value);
    ck_assert(shoal_value_equal(value, back));
    shoal_value_destroy(back);
    shoal_value_destroy(value);
}

/* Decodes in memory of exactly that size, so that the sanitizer sees a read beyond it. */
static shoal_err decode(const void *bytes, size_t size, shoal_value **out_value)
{
    char *exact = malloc(size + (size == 0));
    ck_assert_ptr_nonnull(exact);
    memcpy(exact, bytes, size);
    shoal_err err = sh_value_decode(exact, size, NULL, 0, out_value);
    free(exact);
    return err;
}

/* Decoding fails, out_value is untouched, and the error text has the byte. */
static void ck_corrupt(const void *bytes, size_t size, const char *reason, size_t where)
{
    char wanted[128];
    (void)snprintf(wanted, sizeof wanted, "message of %zu bytes: %s, at byte %zu", size, reason, where);
    shoal_value *untouched = NULL;
    ck_assert_int_eq(decode(bytes, size, &untouched), SHOAL_ECORRUPT);
    ck_assert_ptr_null(untouched);
    ck_assert_str_eq(shoal_last_error_text(), wanted);
}

#define ck_corrupt_text(text, reason, where) ck_corrupt(text, sizeof(text) - 1, reason, where)

/* Makes a value with every type, in the short and the long forms that small values can have. */
static shoal_value *sample(void)
{
    char text[300];
    memset(text, 'x', sizeof text - 1);
    text[sizeof text - 1] = 0;
    shoal_value *ints = shoal_list(0, 127, 128, 255, 256, 65535, 65536, INT64_C(4294967296), -1, -32, -33, -128, -129,
                                   -32769, INT64_MIN, INT64_MAX);
    shoal_value *twenty = shoal_value_map();
    for (int i = 0; i < 20; i++) {
        char key[16];
        (void)snprintf(key, sizeof key, "k%d", i);
        twenty = shoal_map_set(twenty, key, shoal_value_int(i));
    }
    return shoal_map("null", shoal_value_null(), "bool", (bool)true, "ints", ints, "float", 0.1, "string", "Grüße, 鱼",
                     "long", (const char *)text, "bytes", shoal_value_bytes("\0\xff", 2), "empty",
                     shoal_list("", shoal_value_bytes("", 0), shoal_value_list(), shoal_value_map()), "map", twenty);
}

START_TEST(every_type_comes_back)
{
    ck_round_trip(shoal_value_null());
    ck_round_trip(shoal_value_foreign(0, NULL, 0));
    ck_round_trip(shoal_value_foreign(UINT32_MAX, "a\0b", 3));
    ck_round_trip(shoal_value_bool(true));
    ck_round_trip(shoal_value_bool(false));
    for (int shift = 0; shift < 64; shift++) {
        int64_t power = (int64_t)(UINT64_C(1) << shift);
        ck_round_trip(shoal_value_int(power));
        ck_round_trip(shoal_value_int((int64_t)((uint64_t)power - 1)));
        ck_round_trip(shoal_value_int((int64_t)(0 - (uint64_t)power)));
        ck_round_trip(shoal_value_int((int64_t)(0 - (uint64_t)power - 1)));
    }
    ck_round_trip(shoal_value_string(""));
    ck_round_trip(shoal_value_bytes("", 0));
    ck_round_trip(shoal_value_list());
    ck_round_trip(shoal_value_map());
    ck_round_trip(shoal_map("", shoal_value_null()));
    ck_round_trip(sample());
}
END_TEST

START_TEST(floats_come_back_bit_for_bit)
{
    static const uint64_t bits[] = {
        0,
        UINT64_C(0x8000000000000000), /* -0.0 */
        UINT64_C(0x3ff0000000000000), /* 1.0 */
        UINT64_C(1),                  /* the smallest */
        UINT64_C(0x7fefffffffffffff), /* the largest */
        UINT64_C(0x7ff0000000000000), /* inf */
        UINT64_C(0xfff0000000000000), /* -inf */
        UINT64_C(0x7ff8000000000000), /* NaN */
        UINT64_C(0xfff8dead0000beef), /* NaN with a payload */
    };
    for (size_t i = 0; i < sizeof bits / sizeof bits[0]; i++) {
        double d = 0;
        memcpy(&d, &bits[i], sizeof d);
        shoal_value *value = shoal_value_float(d);
        shoal_value *back = encode_decode(value);
        d = sh_float_of(back);
        ck_assert_mem_eq(&d, &bits[i], sizeof d);
        shoal_value_destroy(value);
        shoal_value_destroy(back);
    }
}
END_TEST

START_TEST(long_strings_and_lists_come_back)
{
    static const size_t sizes[] = {31, 32, 255, 256, 500, 512, 1023, 1024, 1025, 65535, 65536, 1u << 20};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        char *text = malloc(sizes[i] + 1);
        ck_assert_ptr_nonnull(text);
        memset(text, 'a', sizes[i]);
        text[sizes[i]] = 0;
        ck_round_trip(shoal_value_string(text));
        ck_round_trip(shoal_value_bytes(text, sizes[i]));
        free(text);
        shoal_value *list = shoal_value_list();
        for (size_t j = 0; j < sizes[i]; j++) {
            list = shoal_list_add(list, shoal_value_int((int64_t)j));
        }
        ck_round_trip(list);
    }
}
END_TEST

START_TEST(other_writers_forms_are_read)
{
    static const struct {
        const char *bytes;
        size_t size;
        const char *text;
    } forms[] = {
        {"\xcc\x07", 2, "7"},
        {"\xcd\x00\x07", 3, "7"},
        {"\xce\x00\x00\x00\x07", 5, "7"},
        {"\xcf\x7f\xff\xff\xff\xff\xff\xff\xff", 9, "9223372036854775807"},
        {"\xd0\xff", 2, "-1"},
        {"\xd1\xff\xff", 3, "-1"},
        {"\xd2\xff\xff\xff\xff", 5, "-1"},
        {"\xd3\xff\xff\xff\xff\xff\xff\xff\xff", 9, "-1"},
        {"\xca\x3f\xc0\x00\x00", 5, "1.5"},
        {"\xd9\x01z", 3, "\"z\""},
        {"\xda\x00\x01z", 4, "\"z\""},
        {"\xdb\x00\x00\x00\x00", 5, "\"\""},
        {"\xc6\x00\x00\x00\x01z", 6, "<1 byte>"},
        {"\xdc\x00\x01\x07", 4, "[7]"},
        {"\xdd\x00\x00\x00\x00", 5, "[]"},
        {"\xdf\x00\x00\x00\x01\xa1k\x07", 8, "{\"k\": 7}"},
        {"\x82\xa1k\x01\xa1k\x02", 7, "{\"k\": 2}"}, /* the last one counts */
    };
    for (size_t i = 0; i < sizeof forms / sizeof forms[0]; i++) {
        shoal_value *value = NULL;
        ck_assert_int_eq(decode(forms[i].bytes, forms[i].size, &value), SHOAL_OK);
        char text[64];
        (void)shoal_value_format(value, text, sizeof text);
        ck_assert_str_eq(text, forms[i].text);
        shoal_value_destroy(value);
    }
}
END_TEST

/* Writes `count` containers around a null: lists, or maps with the key "k". */
static size_t nest(char *bytes, size_t count, bool maps)
{
    size_t size = 0;
    for (size_t i = 0; i < count; i++) {
        memcpy(bytes + size, maps ? "\x81\xa1k" : "\x91", maps ? 3 : 1);
        size += maps ? 3 : 1;
    }
    bytes[size++] = (char)0xc0;
    return size;
}

START_TEST(nesting_is_bounded)
{
    char *bytes = malloc(1u << 20);
    ck_assert_ptr_nonnull(bytes);
    for (int maps = 0; maps < 2; maps++) {
        shoal_value *value = NULL;
        size_t size = nest(bytes, SHOAL_VALUE_DEPTH, maps != 0);
        ck_assert_int_eq(decode(bytes, size, &value), SHOAL_OK);
        ck_round_trip(value);
        size_t step = maps ? 3 : 1;
        size = nest(bytes, SHOAL_VALUE_DEPTH + 1, maps != 0);
        ck_corrupt(bytes, size, "a value nested too deep", SHOAL_VALUE_DEPTH * step);
        size = nest(bytes, 300000, maps != 0);
        ck_corrupt(bytes, size, "a value nested too deep", SHOAL_VALUE_DEPTH * step);
        size = nest(bytes, SHOAL_VALUE_DEPTH, maps != 0);
        bytes[size - 1] = (char)0x90; /* an empty list is a level too */
        ck_corrupt(bytes, size, "a value nested too deep", SHOAL_VALUE_DEPTH * step);
    }
    free(bytes);
}
END_TEST

START_TEST(errors_name_the_reason_and_the_byte)
{
    static const char early[] = "truncated";
    ck_corrupt_text("", early, 0);
    ck_corrupt_text("\xa5hell", early, 1);
    ck_corrupt_text("\x92\xcc\x01", early, 3);
    ck_corrupt_text("\xc1", "a byte that no value starts with", 0);
    ck_corrupt_text("\x91\xc1", "a byte that no value starts with", 1);
    ck_corrupt_text("\xc0\xc0", "extra bytes after the value", 1);
    ck_corrupt_text("\x91\x01\x02", "extra bytes after the value", 2);
    ck_corrupt_text("\x81\x01\x02", "a key that is not a string", 2);
    ck_corrupt_text("\x81\xc4\x01k\x02", "a key that is not a string", 4);
    ck_corrupt_text("\x81\x91\xa1k\x02", "a key that is not a string", 4);
    ck_corrupt_text("\x92\x01\xa3"
                    "a\xff"
                    "b",
                    "a string that is not UTF-8", 4);
    ck_corrupt_text("\x81\xa2\xc3\x28\x02", "a string that is not UTF-8", 2);
    ck_corrupt_text("\xa3"
                    "a\0b",
                    "a NUL in a string", 2);
}
END_TEST

START_TEST(objects_must_be_there)
{
    ck_corrupt_text("\xc7\x05\x01\x01\0\0\0\0", "an index without a shared object", 7);
    ck_corrupt_text("\xc7\x05\x01\x01\xff\xff\xff\xff", "an index without a shared object", 7);
    ck_corrupt_text("\x92\x01\xc7\x05\x01\x01\0\0\0\0", "an index without a shared object", 9);
    ck_corrupt_text("\xc7\x05\x03\x01\0\0\0\0", "an unknown extension", 7);
    ck_corrupt_text("\xc7\x03\x02\x01\0\0", "an unknown extension", 5); /* a foreign value without its tag */
    ck_corrupt_text("\xc7\x05\xff\x01\0\0\0\0", "an unknown extension", 7);
    ck_corrupt_text("\xc7\x04\x01\x01\0\0\0", "an unknown extension", 6);
    ck_corrupt_text("\xc7\x06\x01\x01\0\0\0\0\0", "an unknown extension", 8);
    ck_corrupt_text("\xc7\x00\x01", "an unknown extension", 2);
    ck_corrupt_text("\xd4\x01\x01", "an unknown extension", 2);
    ck_corrupt_text("\xd6\xff\0\0\0\0", "an unknown extension", 5); /* a MessagePack timestamp */
    ck_corrupt_text("\xc9\xff\xff\xff\xff", "an unknown extension", 4);
    ck_corrupt_text("\xc9\xff\xff\xff\xff\x01\x01\0\0\0\0", "an unknown extension", 4);
    shoal_block *const none[1] = {NULL};
    shoal_value *untouched = NULL;
    ck_assert_int_eq(sh_value_decode("\xc7\x05\x01\x01\0\0\0\0", 8, none, 1, &untouched), SHOAL_ECORRUPT);
    ck_assert_ptr_null(untouched);
}
END_TEST

START_TEST(truncation_anywhere_is_an_error)
{
    shoal_value *value = sample();
    sh_encoding e;
    ck_assert_int_eq(sh_encoding_init(&e, value), SHOAL_OK);
    for (size_t size = 0; size < e.size; size++) {
        shoal_value *untouched = NULL;
        ck_assert_int_eq(decode(e.bytes, size, &untouched), SHOAL_ECORRUPT);
        ck_assert_ptr_null(untouched);
    }
    sh_encoding_fini(&e);
    shoal_value_destroy(value);
}
END_TEST

START_TEST(mutations_do_no_harm)
{
    shoal_value *value = sample();
    sh_encoding e;
    ck_assert_int_eq(sh_encoding_init(&e, value), SHOAL_OK);
    size_t decoded = 0;
    for (size_t i = 0; i < e.size; i++) {
        uint8_t old = e.bytes[i];
        for (int byte = 0; byte < 256; byte++) {
            e.bytes[i] = (uint8_t)byte;
            shoal_value *other = NULL;
            shoal_err err = decode(e.bytes, e.size, &other);
            ck_assert(err == SHOAL_OK ? other != NULL : err == SHOAL_ECORRUPT && other == NULL);
            ck_assert(byte != old || shoal_value_equal(value, other));
            decoded += err == SHOAL_OK;
            shoal_value_destroy(other);
        }
        e.bytes[i] = old;
    }
    ck_assert_uint_gt(decoded, e.size); /* most changes to a character or number give valid values */
    sh_encoding_fini(&e);
    shoal_value_destroy(value);
}
END_TEST

/* An attempt to allocate what these headers claim would hit the limit and give SHOAL_ENOMEM. */
START_TEST(gigabyte_headers_allocate_nothing)
{
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) /* these reserve more than any limit */
    struct rlimit limit;
    ck_assert_int_eq(getrlimit(RLIMIT_AS, &limit), 0);
    limit.rlim_cur = (rlim_t)1 << 30;
    ck_assert_int_eq(setrlimit(RLIMIT_AS, &limit), 0);
    ck_assert_ptr_null(malloc((size_t)1 << 31));
#endif
    static const char list[] = "a list with more members than bytes are left";
    static const char map[] = "a map with more members than bytes are left";
    static const char early[] = "truncated";
    ck_corrupt_text("\xdd\xff\xff\xff\xff", list, 4);
    ck_corrupt_text("\xdf\xff\xff\xff\xff", map, 4);
    ck_corrupt_text("\xdf\x80\0\0\0", map, 4);
    ck_corrupt_text("\xdc\xff\xff\x01\x02", list, 2);
    ck_corrupt_text("\xde\xff\xff\x01\x02", map, 2);
    ck_corrupt_text("\x9f", list, 0);
    ck_corrupt_text("\x91\x91\xdd\xff\xff\xff\xff", list, 6);
    ck_corrupt_text("\x94\x93\x93\x93\x01\x02\x03", list, 1); /* each one fits, all together do not */
    ck_corrupt_text("\xdb\xff\xff\xff\xff", early, 5);
    ck_corrupt_text("\xc6\xff\xff\xff\xff", early, 5);
    ck_corrupt_text("\xc9\xff\xff\xff\xfe\x01", early, 5);
}
END_TEST

START_TEST(a_hundred_thousand_keys_decode_fast)
{
    enum { KEYS = 100000 };
    shoal_value *map = shoal_value_map();
    for (int i = 0; i < KEYS; i++) {
        char key[32];
        (void)snprintf(key, sizeof key, "layer.%d.weight", i);
        map = shoal_map_set(map, key, shoal_value_int(i));
    }
    sh_encoding e;
    ck_assert_int_eq(sh_encoding_init(&e, map), SHOAL_OK);
    struct timespec begin;
    struct timespec end;
    (void)clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &begin);
    shoal_value *back = NULL;
    ck_assert_int_eq(sh_value_decode(e.bytes, e.size, NULL, 0, &back), SHOAL_OK);
    (void)clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &end);
    double seconds = (double)(end.tv_sec - begin.tv_sec) + (double)(end.tv_nsec - begin.tv_nsec) * 1e-9;
    ck_assert_msg(seconds < 2, "%.2f s; a quadratic search takes 20", seconds);
    ck_assert(shoal_value_equal(map, back));
    ck_assert_int_eq(sh_int_of(shoal_value_find(back, "layer.77777.weight")), 77777);
    ck_assert_str_eq(shoal_value_key_at(back, KEYS - 1), "layer.99999.weight");
    shoal_value_destroy(back);
    shoal_value_destroy(map);
    sh_encoding_fini(&e);
}
END_TEST

START_TEST(a_failed_constructor_is_reported)
{
    sh_encoding e;
    shoal_value *none = shoal_list(1, "\xff");
    ck_assert_ptr_null(none);
    ck_assert_int_eq(sh_encoding_init(&e, none), SHOAL_EINVAL);
    ck_assert_str_eq(shoal_last_error_text(),
                     "a message: the value is NULL, after SHOAL_EINVAL: a string of 1 bytes is not UTF-8 at byte 0");
}
END_TEST

static Suite *suite(void)
{
    const TTest *const tests[] = {
        every_type_comes_back,
        floats_come_back_bit_for_bit,
        long_strings_and_lists_come_back,
        other_writers_forms_are_read,
        nesting_is_bounded,
        errors_name_the_reason_and_the_byte,
        objects_must_be_there,
        truncation_anywhere_is_an_error,
        mutations_do_no_harm,
        gigabyte_headers_allocate_nothing,
        a_hundred_thousand_keys_decode_fast,
        a_failed_constructor_is_reported,
    };
    return sh_test_suite("value_codec", tests, sizeof tests / sizeof tests[0]);
}

SH_TEST_MAIN(suite)
