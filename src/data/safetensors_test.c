/* safetensors: sets of tensors written and read back, exchanged with another implementation (tests/safetensors), and
 * invalid files, for which the error names the file and the byte. */
#include "data/file_test.h"

#include <inttypes.h>
#include <stdlib.h>
#include <unistd.h>

/* Makes a file of a header and size zero bytes. */
static const char *file_with(const char *header, size_t size)
{
    static uint8_t bytes[4096];
    size_t length = strlen(header);
    ck_assert_uint_lt(8 + length + size, sizeof bytes);
    memset(bytes, 0, sizeof bytes);
    for (int i = 0; i < 8; i++) {
        bytes[i] = (uint8_t)((uint64_t)length >> 8 * i);
    }
    memcpy(bytes + 8, header, length);
    return file_of("file", bytes, 8 + length + size);
}

static const shoal_dtype dtypes[] = {SHOAL_I64,  SHOAL_F64, SHOAL_F32, SHOAL_I32,
                                     SHOAL_BF16, SHOAL_F16, SHOAL_U8,  SHOAL_B8};
#define DTYPES (sizeof dtypes / sizeof *dtypes)

static void add(shoal_tensors *set, const char *name, shoal_tensor *t)
{
    ck_assert_ptr_nonnull(t);
    ck_assert_ok(shoal_tensors_add(set, name, t));
}

/* Makes a set with a tensor of each dtype, a number, an empty tensor, a view, and texts. */
static shoal_tensors *some_tensors(void)
{
    shoal_tensors *set = shoal_tensors_create();
    char name[32];
    for (size_t i = DTYPES; i-- > 0;) {
        snprintf(name, sizeof name, "of.%s", shoal_dtype_name(dtypes[i]));
        add(set, name, shoal_scoped(shoal_arange(dtypes[i], 0, dtypes[i] == SHOAL_B8 ? 2 : 5, 1)));
    }
    add(set, "number", shoal_scoped(shoal_scalar(SHOAL_F32, 1.5)));
    add(set, "none", shoal_scoped(shoal_zeros(SHOAL_F32, SHOAL_SHAPE(3, 0))));
    shoal_tensor *m = shoal_view(shoal_scoped(shoal_arange(SHOAL_F32, 0, 6, 1)), SHOAL_SHAPE(2, 3));
    add(set, "turned \"\xc3\xbc\" \\", shoal_transpose(m, 0, 1));
    ck_assert_ok(shoal_tensors_set_text(set, "epoch", "2"));
    ck_assert_ok(shoal_tensors_set_text(set, "epoch", "3"));
    ck_assert_ok(shoal_tensors_set_text(set, "why", "l\xc3\xa4uft\n"));
    return set;
}

static void assert_same(const shoal_tensors *a, const shoal_tensors *b)
{
    ck_assert_msg(a != NULL && b != NULL, "%s", shoal_last_error_text());
    ck_assert_uint_eq(shoal_tensors_count(a), shoal_tensors_count(b));
    for (size_t i = 0; i < shoal_tensors_count(a); i++) {
        const char *name = shoal_tensors_name(a, i);
        ck_assert_msg(shoal_tensor_equal(shoal_tensors_at(a, i), shoal_tensors_find(b, name)), "%s differs", name);
    }
    ck_assert_uint_eq(shoal_tensors_text_count(a), shoal_tensors_text_count(b));
    for (size_t i = 0; i < shoal_tensors_text_count(a); i++) {
        const char *name = shoal_tensors_text_name(a, i);
        ck_assert_str_eq(shoal_tensors_text_name(b, i), name);
        ck_assert_str_eq(shoal_tensors_text(a, name), shoal_tensors_text(b, name));
    }
}

START_TEST(round_trip)
{
    uint8_t bytes[4096], again[4096];
    shoal_tensors *set = some_tensors();
    ck_assert_ok(shoal_safetensors_write(in_folder("a"), set));
    shoal_tensors *back = shoal_safetensors_read(in_folder("a"));
    assert_same(set, back);
    ck_assert_str_eq(shoal_tensors_name(back, 0), "of.i64"); /* wide ones first */
    ck_assert_str_eq(shoal_tensors_name(back, shoal_tensors_count(back) - 1), "of.bool");
    ck_assert_uint_eq(shoal_tensors_text_count(back), 2);
    ck_assert_str_eq(shoal_tensors_text_name(back, 1), "why");
    ck_assert(shoal_tensors_text_name(back, 2) == NULL && shoal_tensors_text_count(NULL) == 0);

    ck_assert_ok(shoal_safetensors_write(in_folder("b"), back));
    size_t size = bytes_of(in_folder("a"), bytes, sizeof bytes);
    ck_assert_uint_eq(bytes_of(in_folder("b"), again, sizeof again), size);
    ck_assert_mem_eq(bytes, again, size);
    ck_assert_uint_eq(bytes[0] % 8, 0); /* the data is aligned */
    refuse_other_lengths(read_safetensors, bytes, size);
    shoal_tensors_destroy(back);
    shoal_tensors_destroy(set);
    shoal_scope_release(0);
}
END_TEST

static int run_script(const char *what)
{
    char command[512];
    snprintf(command, sizeof command, "python3 tests/safetensors/files.py %s %s", what, folder);
    return system(command);
}

/* tests/safetensors/files.py is a separate reader and writer in plain Python. */
START_TEST(both_ways)
{
    shoal_tensors *set = some_tensors();
    ck_assert_ok(shoal_safetensors_write(in_folder("ours.safetensors"), set));
    ck_assert_int_eq(run_script("check"), 0);
    ck_assert_int_eq(run_script("write"), 0);
    shoal_tensors *theirs = shoal_safetensors_read(in_folder("theirs.safetensors"));
    assert_same(set, theirs);
    shoal_tensors_destroy(theirs);
    shoal_tensors_destroy(set);
    shoal_scope_release(0);
}
END_TEST

START_TEST(sets)
{
    shoal_tensors *set = shoal_tensors_create();
    shoal_tensor *t = shoal_zeros(SHOAL_F32, SHOAL_SHAPE(1));
    char name[32];
    for (int i = 0; i < 10000; i++) {
        snprintf(name, sizeof name, "layer.%d", i);
        ck_assert_ok(shoal_tensors_add(set, name, t));
    }
    ck_assert_uint_eq(shoal_tensors_count(set), 10000);
    ck_assert_ptr_eq(shoal_tensors_find(set, "layer.9999"), t);
    ck_assert_ptr_null(shoal_tensors_find(set, "layer.10000"));
    ck_assert_int_eq(shoal_last_error(), SHOAL_ENOENT);
    ck_assert_ptr_null(shoal_tensors_at(set, 10000));
    ck_assert_ptr_null(shoal_tensors_text(set, "none"));
    ck_assert_err(shoal_tensors_add(set, "layer.7", t), SHOAL_EINVAL);
    ck_assert_err(shoal_tensors_add(set, NULL, t), SHOAL_EINVAL);

    shoal_tensors_destroy(set);
    shoal_tensor_release(t);
}
END_TEST

/* If the format cannot hold something, the error names it and the file, and nothing is written. */
START_TEST(what_cannot_be_written)
{
    static const struct {
        const char *tensor, *text_name, *text, *words;
    } cases[] = {
        {"bias.\xff", "a", "b", "/x: the name of the tensor 'bias.\xff' is not UTF-8"},
        {"__metadata__", "a", "b", "/x: a tensor cannot be called '__metadata__'"},
        {"bias", "epoch\xff", "b", "/x: the name of the text 'epoch\xff' is not UTF-8"},
        {"bias", "epoch", "\xff", "/x: the text 'epoch' is not UTF-8"},
    };
    shoal_tensor *t = shoal_ones(SHOAL_U8, SHOAL_SHAPE(1));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        shoal_tensors *set = shoal_tensors_create();
        ck_assert_ok(shoal_tensors_add(set, "weight", t));
        ck_assert_ok(shoal_tensors_add(set, cases[i].tensor, t));
        ck_assert_ok(shoal_tensors_set_text(set, cases[i].text_name, cases[i].text));
        ck_assert_err(shoal_safetensors_write(in_folder("x"), set), SHOAL_EINVAL);
        ck_assert_msg(strstr(shoal_last_error_text(), cases[i].words) != NULL, "%s", shoal_last_error_text());
        ck_assert_err(shoal_safetensors_write(NULL, set), SHOAL_EINVAL);
        shoal_tensors_destroy(set);
    }
    ck_assert_int_eq(count_files(folder), 0);
    shoal_tensor_release(t);
}
END_TEST

#define T(dtype, shape, begin, end) "{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":[" begin "," end "]}"

START_TEST(wrong_headers)
{
    static const struct {
        const char *header;
        size_t data;
        shoal_err err;
        const char *words;
    } cases[] = {
        {"", 0, SHOAL_ECORRUPT, "byte 8: the header does not begin with '{'"},
        {" {}", 0, SHOAL_ECORRUPT, "byte 8: the header does not begin with '{'"},
        {"{", 0, SHOAL_ECORRUPT, "byte 9: the header is not valid JSON"},
        {"{}x", 0, SHOAL_ECORRUPT, "the header is not valid JSON"},
        {"{}", 1, SHOAL_ECORRUPT, "byte 10: bytes follow after the last tensor"},
        {"{\"a\":1}", 0, SHOAL_ECORRUPT, "byte 9: tensor 'a' is not described"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1]}}", 4, SHOAL_ECORRUPT, "is not described"},
        {"{\"a\":" T("F31", "[1]", "0", "4") "}", 4, SHOAL_ECORRUPT, "byte 9: tensor 'a': 'F31' is not a dtype"},
        {"{\"a\":" T("U16", "[2]", "0", "4") "}", 4, SHOAL_ETYPE, "byte 9: tensor 'a': the dtype U16 is not supported"},
        {"{\"a\":" T("F32", "1", "0", "4") "}", 4, SHOAL_ECORRUPT, "no shape"},
        {"{\"a\":" T("F32", "[1,1,1,1,1,1,1,1,1]", "0", "4") "}", 4, SHOAL_ECORRUPT, "no shape of at most 8"},
        {"{\"a\":" T("F32", "[-1]", "0", "4") "}", 4, SHOAL_ECORRUPT, "size 0 of its shape"},
        {"{\"a\":" T("F32", "[1.0]", "0", "4") "}", 4, SHOAL_ECORRUPT, "size 0 of its shape"},
        {"{\"a\":" T("F32", "[18446744073709551617]", "0", "4") "}", 4, SHOAL_ECORRUPT, "not valid JSON"},
        {"{\"a\":" T("F32", "[4294967296,4294967296]", "0", "0") "}", 0, SHOAL_ECORRUPT, "its shape does not match"},
        {"{\"a\":" T("U8", "[0,9223372036854775807,3]", "0", "0") "}", 0, SHOAL_ECORRUPT, "its shape does not match"},
        {"{\"a\":" T("F32", "[1]", "0", "8") "}", 8, SHOAL_ECORRUPT, "does not match the 8 bytes"},
        {"{\"a\":" T("F32", "[1]", "4", "0") "}", 4, SHOAL_ECORRUPT, "no data_offsets"},
        {"{\"a\":" T("F32", "[1]", "-4", "0") "}", 4, SHOAL_ECORRUPT, "no data_offsets"},
        {"{\"a\":" T("F32", "[1]", "9223372036854775803", "9223372036854775807") "}", 4, SHOAL_ECORRUPT,
         "ends at byte 9223372036854775807 of the data, which has 4 bytes"},
        {"{\"a\":" T("F32", "[1]", "0", "4") ",\"b\":" T("F32", "[1]", "2", "6") "}", 6, SHOAL_ECORRUPT,
         "'b' overlaps"},
        {"{\"a\":" T("F32", "[1]", "0", "4") ",\"b\":" T("F32", "[1]", "5", "9") "}", 9, SHOAL_ECORRUPT,
         "'b' leaves a hole"},
        {"{\"a\":" T("F32", "[1]", "0", "4") ",\"a\":" T("F32", "[1]", "4", "8") "}", 8, SHOAL_ECORRUPT,
         "not valid JSON: duplicate"},
        {"{\"__metadata__\":{\"x\":1}}", 0, SHOAL_ECORRUPT, "byte 25: __metadata__: 'x' is not a string"},
        {"{\"__metadata__\":[]}", 0, SHOAL_ECORRUPT, "byte 9: __metadata__ is not an object"},
        {"{\"a\\u0000b\":" T("F32", "[1]", "0", "4") "}", 4, SHOAL_ECORRUPT, "not valid JSON"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *path = file_with(cases[i].header, cases[i].data);
        ck_assert_msg(shoal_safetensors_read(path) == NULL, "case %zu was accepted, wanted '%s'", i, cases[i].words);
        assert_names_byte(path, cases[i].err, cases[i].words);
    }
}
END_TEST

START_TEST(wrong_lengths)
{
    static const wrong cases[] = {
        {BYTES("\x02\0\0\0\0\0\0\x80{}"), SHOAL_ECORRUPT, "byte 0: not a safetensors file"},
        {BYTES("\xff\xff\xff\xff\xff\xff\xff\xff{}"), SHOAL_ECORRUPT, "byte 0: not a safetensors file"},
        {BYTES("\x00\x00\x00\x40\0\0\0\0{}"), SHOAL_ECORRUPT, "byte 0: not a safetensors file"},
        {BYTES("\x03\0\0\0\0\0\0\0{}"), SHOAL_ECORRUPT, "byte 0: a header of 3 bytes, but 2 bytes follow"},
    };
    refuse_all(read_safetensors, cases, sizeof cases / sizeof *cases);

    /* The gigabyte is there, but it is a hole in the file: the format's limit applies, and nothing is read. */
    const char *path = file_of("sparse", BYTES("\x00\x00\x00\x40\0\0\0\0{}"));
    ck_assert_int_eq(truncate(path, (off_t)1 << 31), 0);
    ck_assert_ptr_null(shoal_safetensors_read(path));
    assert_names_byte(path, SHOAL_ECORRUPT, "would have more than 100000000 bytes");
}
END_TEST

START_TEST(wrong_bool)
{
    static const char header[] = "{\"a\":" T("BOOL", "[2]", "0", "2") "}";
    const char *path = file_with(header, 2);
    FILE *f = fopen(path, "r+e");
    ck_assert_int_eq(fseek(f, -1, SEEK_END), 0);
    fputc(7, f);
    fclose(f);
    ck_assert_ptr_null(shoal_safetensors_read(path));
    assert_names_byte(path, SHOAL_ECORRUPT, "7 is not a bool");
}
END_TEST

/* What shoal_weights_write writes, shoal_weights_read reads. */
START_TEST(weights_go_both_ways)
{
    char path[] = "/tmp/shoal-weights-XXXXXX";
    int fd = mkstemp(path);
    ck_assert_int_ge(fd, 0);
    close(fd);
    shoal_module *a = shoal_linear_create(3, 2, true), *b = shoal_linear_create(3, 2, true);
    ck_assert(!shoal_tensor_equal(shoal_module_get(a, "weight"), shoal_module_get(b, "weight")));
    ck_assert_ok(shoal_weights_write(path, a));
    ck_assert_ok(shoal_weights_read(path, b));
    ck_assert(shoal_tensor_equal(shoal_module_get(a, "weight"), shoal_module_get(b, "weight")));
    ck_assert(shoal_tensor_equal(shoal_module_get(a, "bias"), shoal_module_get(b, "bias")));
    ck_assert_err(shoal_weights_write("/nowhere/x", a), SHOAL_ENOENT);
    ck_assert_err(shoal_weights_write(path, NULL), SHOAL_EINVAL);
    unlink(path);
    shoal_module_destroy(a);
    shoal_module_destroy(b);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("safetensors");
    TCase *tc = folder_case("safetensors");
    tcase_add_test(tc, weights_go_both_ways);
    tcase_add_test(tc, round_trip);
    tcase_add_test(tc, both_ways);
    tcase_add_test(tc, sets);
    tcase_add_test(tc, what_cannot_be_written);
    tcase_add_test(tc, wrong_headers);
    tcase_add_test(tc, wrong_lengths);
    tcase_add_test(tc, wrong_bool);
    suite_add_tcase(s, tc);
    return s;
}

SH_TEST_MAIN(suite)
