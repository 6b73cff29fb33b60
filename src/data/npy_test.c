/* NPY: files from NumPy are read, written files are read back, and for invalid ones the error names the file and the
 * byte. */
#include "data/file_test.h"
#include "tests/harness/numbers.h"

static void round_trip(shoal_tensor *t)
{
    const char *path = in_folder("round");
    ck_assert_ok(shoal_npy_write(path, t));
    shoal_tensor *back = shoal_npy_read(path);
    ck_assert_msg(back != NULL, "%s", shoal_last_error_text());
    ck_assert(shoal_tensor_equal(t, back));
    shoal_tensor_release(back);
}

START_TEST(round_trips)
{
    static const shoal_dtype dtypes[] = {SHOAL_F32, SHOAL_F64, SHOAL_F16, SHOAL_I64, SHOAL_I32, SHOAL_U8, SHOAL_B8};
    size_t mark = shoal_scope_mark();
    for (size_t i = 0; i < sizeof dtypes / sizeof *dtypes; i++) {
        shoal_tensor *t = shoal_scoped(shoal_full(dtypes[i], 1, SHOAL_SHAPE(3, 2)));
        round_trip(t);
        round_trip(shoal_transpose(t, 0, 1));
        round_trip(shoal_scoped(shoal_zeros(dtypes[i], SHOAL_SCALAR)));
        round_trip(shoal_scoped(shoal_ones(dtypes[i], SHOAL_SHAPE(5))));
        round_trip(shoal_scoped(shoal_ones(dtypes[i], SHOAL_SHAPE(4, 0))));
    }
    round_trip(shoal_transpose(shoal_view(shoal_scoped(shoal_arange(SHOAL_F32, 0, 6, 1)), SHOAL_SHAPE(2, 3)), 0, 1));
    shoal_scope_release(mark);

    shoal_tensor *half = shoal_zeros(SHOAL_BF16, SHOAL_SHAPE(1));
    ck_assert_err(shoal_npy_write(in_folder("bf16"), half), SHOAL_ETYPE);
    ck_assert_err(shoal_npy_write(in_folder("none"), NULL), SHOAL_EINVAL);
    shoal_tensor_release(half);
}
END_TEST

/* As NumPy writes it: version 1.0, the same text, blanks and a newline up to 128 bytes. */
START_TEST(as_numpy_writes)
{
    static const char wanted[] = "\x93NUMPY\x01\0v\0{'descr': '<i4', 'fortran_order': False, 'shape': (3,), }    ";
    uint8_t bytes[256];
    shoal_tensor *t = shoal_arange(SHOAL_I32, 0, 3, 1);
    ck_assert_ok(shoal_npy_write(in_folder("ours"), t));
    ck_assert_uint_eq(bytes_of(in_folder("ours"), bytes, sizeof bytes), 128 + 12);
    ck_assert_mem_eq(bytes, wanted, sizeof wanted - 1);
    ck_assert_mem_eq(bytes + 126, " \n\0\0\0\0\x01\0\0\0\x02\0\0\0", 14);
    shoal_tensor_release(t);
}
END_TEST

static void check_file(const char *bytes, size_t size, shoal_dtype dtype, double at01, double at10)
{
    shoal_tensor *t = shoal_npy_read(file_of("theirs", bytes, size));
    ck_assert_msg(t != NULL, "%s", shoal_last_error_text());
    ck_assert_int_eq(shoal_tensor_dtype(t), dtype);
    ck_assert_int_eq(shoal_tensor_size(t, 0), 2);
    ck_assert_int_eq(shoal_tensor_size(t, 1), 3);
    ck_assert_double_eq(item_at(t, SHOAL_SHAPE(0, 1)), at01);
    ck_assert_double_eq(item_at(t, SHOAL_SHAPE(1, 0)), at10);
    shoal_tensor_release(t);
}

#define ROWS "{'descr': '|u1', 'fortran_order': False, 'shape': (2, 3), }  \n"      /* 62 bytes */
#define COLUMNS "{'descr': '|u1', 'fortran_order': True, 'shape': (2, 3), }   \n"   /* 62 bytes */
#define BIG "{\"shape\":(2,3,),\"descr\":\">i4\",\"fortran_order\":False}         " /* 61 bytes */

START_TEST(orders_and_versions)
{
    check_file(BYTES("\x93NUMPY\x01\0\x3e\0" ROWS "\x0\x1\x2\x3\x4\x5"), SHOAL_U8, 1, 3);
    check_file(BYTES("\x93NUMPY\x02\0\x3e\0\0\0" ROWS "\x0\x1\x2\x3\x4\x5"), SHOAL_U8, 1, 3);
    check_file(BYTES("\x93NUMPY\x03\0\x3e\0\0\0" COLUMNS "\x0\x1\x2\x3\x4\x5"), SHOAL_U8, 2, 1);
    check_file(BYTES("\x93NUMPY\x01\0\x3d\0" BIG "\0\0\0\0\0\0\0\1\0\0\0\2\0\0\0\3\0\0\0\4\0\0\0\5"), SHOAL_I32, 1, 3);
}
END_TEST

START_TEST(other_lengths)
{
    static const char file[] = "\x93NUMPY\x01\0\x3e\0" ROWS "\x0\x1\x2\x3\x4\x5";
    refuse_other_lengths(read_npy, (const uint8_t *)file, sizeof file - 1);
}
END_TEST

/* A file of version 1.0 with a header of the given length. */
#define V1(length, text) BYTES("\x93NUMPY\x01\0" length "\0" text)

START_TEST(wrong_bytes)
{
    static const wrong cases[] = {
        {BYTES("\x93NUMPX\x01\0\x02\0{}"), SHOAL_ECORRUPT, "byte 0: not an NPY file"},
        {BYTES("\x93NUMPY\x04\0\x02\0{}"), SHOAL_ECORRUPT, "byte 6: version 4.0"},
        {BYTES("\x93NUMPY\x01\x01\x02\0{}"), SHOAL_ECORRUPT, "byte 6: version 1.1"},
        {BYTES("\x93NUMPY\x02\0\xff\xff\xff\xff{}"), SHOAL_ECORRUPT, "byte 8: a header of 4294967295 bytes"},
        {BYTES("\x93NUMPY\x01\0\x03\0{}"), SHOAL_ECORRUPT, "byte 8: a header of 3 bytes"},
        {V1("\x02", "{}"), SHOAL_ECORRUPT, "byte 12: descr, fortran_order or shape is missing"},
        {V1("\x02", "[]"), SHOAL_ECORRUPT, "byte 10: expected '{'"},
        {V1("\x03", "{}x"), SHOAL_ECORRUPT, "byte 12: text follows"},
        {V1("\x09", "{'what':1"), SHOAL_ECORRUPT, "byte 11: the key 'what' is unknown"},
        {V1("\x0e", "{'shape':(),'s"), SHOAL_ECORRUPT, "byte 24: the string in the header does not end"},
        {V1("\x17", "{'shape':(),'shape':()}"), SHOAL_ECORRUPT, "byte 22: the key 'shape' is there twice"},
        {V1("\x0d", "{'shape':(-1,"), SHOAL_ECORRUPT, "byte 20: expected a size"},
        {V1("\x0c", "{'shape':(1)"), SHOAL_ECORRUPT, "(n) is not a tuple"},
        {V1("\x0e", "{'shape':(1 2)"), SHOAL_ECORRUPT, "expected ',' or ')'"},
        {V1("\x1d", "{'shape':(9223372036854775808"), SHOAL_ECORRUPT, "byte 38: a size of the shape is too large"},
        {V1("\x1c", "{'shape':(1,1,1,1,1,1,1,1,1)"), SHOAL_ECORRUPT, "more than 8 dims"},
        {V1("\x15", "{'fortran_order':true"), SHOAL_ECORRUPT, "True or False"},
        {V1("\x0d", "{'descr':'<f3"), SHOAL_ECORRUPT, "does not end"},
        {V1("\x0e", "{'descr':'<c8'"), SHOAL_ETYPE, "byte 19: elements of type '<c8'"},
        {V1("\x0e", "{'descr':'<U9'"), SHOAL_ETYPE, "byte 19: elements of type '<U9'"},
        {V1("\x0e", "{'descr':'|O8'"), SHOAL_ETYPE, "byte 19: elements of type '|O8'"},
        {V1("\x0b", "{'descr':[("), SHOAL_ETYPE, "byte 19: records"},
        {V1("\x4b", "{'descr':'<f8','fortran_order':False,'shape':(4294967296,4294967296,9,9,)} "), SHOAL_ECORRUPT,
         "byte 85: the shape does not match"},
        {V1("\x37", "{'descr':'|b1','fortran_order':False,'shape':(2,),}    \1\2"), SHOAL_ECORRUPT,
         "byte 66: 2 is not a bool"},
    };
    refuse_all(read_npy, cases, sizeof cases / sizeof *cases);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("npy");
    TCase *tc = folder_case("npy");
    tcase_add_test(tc, round_trips);
    tcase_add_test(tc, as_numpy_writes);
    tcase_add_test(tc, orders_and_versions);
    tcase_add_test(tc, other_lengths);
    tcase_add_test(tc, wrong_bytes);
    suite_add_tcase(s, tc);
    return s;
}

SH_TEST_MAIN(suite)
