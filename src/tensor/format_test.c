/* Tensors as text. */
#include "tests/harness/runner.h"

#include <math.h>
#include <string.h>

static void expect(shoal_tensor *t, const char *wanted)
{
    char text[4096];
    size_t length = shoal_tensor_format(t, text, sizeof text);
    ck_assert_str_eq(text, wanted);
    ck_assert_uint_eq(length, strlen(wanted));
}

static void expect_owned(shoal_tensor *t, const char *wanted)
{
    expect(t, wanted);
    shoal_tensor_release(t);
}

#define FLOATS(...) shoal_from_data(SHOAL_F32, (const float[]){__VA_ARGS__}, 1, (const int64_t[]){COUNT(__VA_ARGS__)})
#define COUNT(...) ((int64_t)(sizeof((const float[]){__VA_ARGS__}) / sizeof(float)))

START_TEST(numbers)
{
    expect_owned(FLOATS(1, 2, 3), "[1., 2., 3.]");
    expect_owned(FLOATS(1.5F, -2, 30), "[ 1.5000, -2.0000, 30.0000]");
    expect_owned(FLOATS(1e-8F, 1), "[1.0000e-08, 1.0000e+00]");
    expect_owned(FLOATS(1, 1e6F), "[1.0000e+00, 1.0000e+06]");
    expect_owned(FLOATS(0, 0), "[0., 0.]");
    expect_owned(FLOATS(1, NAN, -INFINITY), "[  1.,  nan, -inf]");
    expect_owned(shoal_scalar(SHOAL_F32, 0.1), "0.1000");
    expect_owned(shoal_scalar(SHOAL_F64, 3), "3., f64 []");
    expect_owned(shoal_arange(SHOAL_I64, -1, 3, 1), "[-1,  0,  1,  2], i64 [4]");
    expect_owned(shoal_full(SHOAL_U8, 255, SHOAL_SHAPE(2)), "[255, 255], u8 [2]");
    expect_owned(shoal_full(SHOAL_I32, -7, SHOAL_SCALAR), "-7, i32 []");
    expect_owned(shoal_full(SHOAL_BF16, 1.5, SHOAL_SHAPE(1)), "[1.5000], bf16 [1]");
    expect_owned(shoal_full(SHOAL_F16, -0.25, SHOAL_SHAPE(1)), "[-0.2500], f16 [1]");
    const int64_t large[] = {INT64_MIN, INT64_MAX};
    expect_owned(shoal_from_data(SHOAL_I64, large, SHOAL_SHAPE(2)),
                 "[-9223372036854775808,  9223372036854775807], i64 [2]");
    expect(NULL, "NULL");
}
END_TEST

START_TEST(shapes)
{
    expect_owned(shoal_eye(SHOAL_B8, 2), "[[ True, False],\n [False,  True]], bool [2, 2]");
    expect_owned(shoal_zeros(SHOAL_F32, SHOAL_SHAPE(0)), "[], f32 [0]");
    expect_owned(shoal_zeros(SHOAL_F32, SHOAL_SHAPE(2, 0, 3)), "[], f32 [2, 0, 3]");
    expect_owned(shoal_ones(SHOAL_F32, SHOAL_SHAPE(2, 2, 1)), "[[[1.],\n  [1.]],\n\n [[1.],\n  [1.]]]");
    shoal_tensor *t = shoal_arange(SHOAL_I32, 0, 6, 1);
    expect(shoal_transpose(shoal_reshape(t, SHOAL_SHAPE(2, 3)), 0, 1), "[[0, 3],\n [1, 4],\n [2, 5]], i32 [3, 2]");
    shoal_tensor_release(t);
    shoal_scope_release(0);
}
END_TEST

START_TEST(lines)
{
    expect_owned(shoal_full(SHOAL_I64, 1234567890, SHOAL_SHAPE(8)),
                 "[1234567890, 1234567890, 1234567890, 1234567890, 1234567890, 1234567890,\n 1234567890, 1234567890], "
                 "i64 [8]");
}
END_TEST

START_TEST(shortened)
{
    expect_owned(shoal_arange(SHOAL_I64, 0, 1001, 1), "[   0,    1,    2, …,  998,  999, 1000], i64 [1001]");
    shoal_tensor *t = shoal_arange(SHOAL_I32, 0, 1200, 1);
    expect(shoal_reshape(t, SHOAL_SHAPE(300, 4)),
           "[[   0,    1,    2,    3],\n [   4,    5,    6,    7],\n [   8,    9,   10,   11],\n …,\n"
           " [1188, 1189, 1190, 1191],\n [1192, 1193, 1194, 1195],\n [1196, 1197, 1198, 1199]], i32 [300, 4]");
    shoal_tensor_release(t);
    shoal_scope_release(0);
}
END_TEST

/* With any capacity the text ends with a NUL and is never cut in the middle of a character. */
START_TEST(capacities)
{
    shoal_tensor *t = shoal_arange(SHOAL_I64, 0, 2000, 1);
    char whole[200], part[200];
    size_t length = shoal_tensor_format(t, whole, sizeof whole);
    ck_assert_uint_eq(shoal_tensor_format(t, NULL, 0), length);
    for (size_t capacity = 1; capacity <= length + 1; capacity++) {
        memset(part, 'x', sizeof part);
        ck_assert_uint_eq(shoal_tensor_format(t, part, capacity), length);
        size_t got = strlen(part);
        ck_assert(got < capacity && got + 3 >= (capacity <= length ? capacity : length));
        ck_assert_int_eq(memcmp(part, whole, got), 0);
        ck_assert(((unsigned char)whole[got] & 0xc0) != 0x80);
        ck_assert_int_eq(part[capacity], 'x');
    }
    shoal_tensor_release(t);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("tensor/format");
    TCase *tc = tcase_create("format");
    tcase_set_timeout(tc, SH_TEST_SECONDS);
    tcase_add_checked_fixture(tc, sh_leaks_begin, sh_leaks_end);
    tcase_add_test(tc, numbers);
    tcase_add_test(tc, shapes);
    tcase_add_test(tc, lines);
    tcase_add_test(tc, shortened);
    tcase_add_test(tc, capacities);
    suite_add_tcase(s, tc);
    return s;
}

SH_TEST_MAIN(suite)
