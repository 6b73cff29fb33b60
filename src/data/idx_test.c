/* IDX and gzip: valid files are read; for invalid ones the error names the file and the byte. */
#include "data/file_test.h"
#include "tests/harness/numbers.h"

#include <zlib.h>

static const char *gzip_of(const char *name, const void *bytes, size_t size, const char *mode)
{
    const char *path = in_folder(name);
    gzFile f = gzopen(path, mode);
    ck_assert_ptr_nonnull(f);
    ck_assert_int_eq(gzwrite(f, bytes, (unsigned)size), (int)size);
    ck_assert_int_eq(gzclose(f), Z_OK);
    return path;
}

static const char u8_bytes[] = "\0\0\x08\x02\0\0\0\x02\0\0\0\x03"
                               "abcdef";

static void check_u8(shoal_tensor *t)
{
    ck_assert_msg(t != NULL, "%s", shoal_last_error_text());
    ck_assert_int_eq(shoal_tensor_dtype(t), SHOAL_U8);
    ck_assert_int_eq(shoal_tensor_ndim(t), 2);
    ck_assert_int_eq(shoal_tensor_size(t, 0), 2);
    ck_assert_int_eq(shoal_tensor_size(t, 1), 3);
    ck_assert_mem_eq(shoal_tensor_data(t), "abcdef", 6);
    shoal_tensor_release(t);
}

START_TEST(plain_and_gzipped)
{
    check_u8(shoal_idx_read(file_of("plain", u8_bytes, sizeof u8_bytes - 1)));
    check_u8(shoal_idx_read(gzip_of("packed", u8_bytes, sizeof u8_bytes - 1, "wb9")));

    /* Two members in a row are one stream. */
    (void)gzip_of("two", u8_bytes, 10, "wb");
    check_u8(shoal_idx_read(gzip_of("two", u8_bytes + 10, sizeof u8_bytes - 1 - 10, "ab")));
}
END_TEST

START_TEST(every_dtype)
{
    static const struct {
        wrong file;
        shoal_dtype dtype;
        double values[2];
    } cases[] = {
        {{BYTES("\0\0\x0c\x01\0\0\0\x02\x01\x02\x03\x04\xff\xff\xff\xfe"), 0, NULL}, SHOAL_I32, {16909060, -2}},
        {{BYTES("\0\0\x0d\x01\0\0\0\x02\x3f\x80\0\0\xc0\0\0\0"), 0, NULL}, SHOAL_F32, {1, -2}},
        {{BYTES("\0\0\x0e\x01\0\0\0\x02\x3f\xf0\0\0\0\0\0\0\xc0\0\0\0\0\0\0\0"), 0, NULL}, SHOAL_F64, {1, -2}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        shoal_tensor *t = shoal_idx_read(file_of("typed", cases[i].file.bytes, cases[i].file.size));
        ck_assert_msg(t != NULL, "%s", shoal_last_error_text());
        ck_assert_int_eq(shoal_tensor_dtype(t), cases[i].dtype);
        ck_assert_double_eq(item_at(t, SHOAL_SHAPE(0)), cases[i].values[0]);
        ck_assert_double_eq(item_at(t, SHOAL_SHAPE(1)), cases[i].values[1]);
        shoal_tensor_release(t);
    }
    shoal_tensor *none = shoal_idx_read(file_of("none", BYTES("\0\0\x08\x02\0\0\0\0\xff\xff\xff\xff")));
    ck_assert_int_eq(shoal_tensor_count(none), 0);
    shoal_tensor_release(none);
}
END_TEST

START_TEST(other_lengths)
{
    uint8_t packed[256];
    refuse_other_lengths(read_idx, (const uint8_t *)u8_bytes, sizeof u8_bytes - 1);
    size_t size = bytes_of(gzip_of("packed", u8_bytes, sizeof u8_bytes - 1, "wb"), packed, sizeof packed);
    refuse_other_lengths(read_idx, packed, size);
}
END_TEST

START_TEST(wrong_bytes)
{
    static const wrong cases[] = {
        {BYTES("\x50\x4b\x08\x01\0\0\0\x01a"), SHOAL_ECORRUPT, "byte 0: not an IDX file"},
        {BYTES("\0\0\x0a\x01\0\0\0\x01"), SHOAL_ECORRUPT, "byte 2: 0x0a is not a type"},
        {BYTES("\0\0\x0b\x01\0\0\0\x01\0\0"), SHOAL_ETYPE, "byte 2: elements of type 0x0b (i16)"},
        {BYTES("\0\0\x08\0\0\0\0\x01"), SHOAL_ECORRUPT, "byte 3: 0 dims"},
        {BYTES("\0\0\x08\xff\0\0\0\x01"), SHOAL_ECORRUPT, "byte 3: 255 dims"},
        {BYTES("\0\0\x0e\x02\xff\xff\xff\xff\xff\xff\xff\xff"), SHOAL_ECORRUPT, "byte 4: the sizes need"},
        {BYTES("\0\0\x0e\x08\x80\0\0\0\x80\0\0\0\x80\0\0\0\x80\0\0\0\x80\0\0\0\x80\0\0\0\x80\0\0\0\x80\0\0\0a"),
         SHOAL_ECORRUPT, "byte 4: the sizes need"},
        {BYTES("\x1f\x8b\x07\0\0\0\0\0\0\0"), SHOAL_ECORRUPT, "gzip: "},
        {BYTES("\x1f\x8b\x08\0\0\0\0\0\0\x03\xff\xff"), SHOAL_ECORRUPT, "gzip: "},
    };
    refuse_all(read_idx, cases, sizeof cases / sizeof *cases);
}
END_TEST

/* A megabyte of zeros after a header that claims four bytes, and a header that claims more than gzip could have
 * packed. */
START_TEST(bombs)
{
    static char zeros[1 << 20];
    static const char small[] = "\0\0\x08\x01\0\0\0\x04", large[] = "\0\0\x08\x02\0\x10\0\0\0\0\x10\0";
    const char *path = gzip_of("bomb", small, 8, "wb");
    (void)gzip_of("bomb", zeros, sizeof zeros, "ab");
    ck_assert_ptr_null(shoal_idx_read(path));
    assert_names_byte(path, SHOAL_ECORRUPT, "byte 12: (unpacked) bytes follow");

    path = gzip_of("promise", large, 12, "wb");
    (void)gzip_of("promise", zeros, sizeof zeros, "ab");
    ck_assert_ptr_null(shoal_idx_read(path));
    assert_names_byte(path, SHOAL_ECORRUPT, "byte 4: (unpacked) the sizes need");
}
END_TEST

START_TEST(wrong_checksum)
{
    uint8_t packed[256];
    size_t size = bytes_of(gzip_of("packed", u8_bytes, sizeof u8_bytes - 1, "wb"), packed, sizeof packed);
    packed[size - 5] ^= 1; /* in the CRC32, which is followed by the length; both have four bytes */
    const char *path = file_of("bent", packed, size);
    ck_assert_ptr_null(shoal_idx_read(path));
    assert_names_byte(path, SHOAL_ECORRUPT, "incorrect data check");
}
END_TEST

START_TEST(no_file)
{
    ck_assert_ptr_null(shoal_idx_read(in_folder("absent")));
    ck_assert_int_eq(shoal_last_error(), SHOAL_ENOENT);
    ck_assert_ptr_null(shoal_idx_read(folder));
    ck_assert_int_eq(shoal_last_error(), SHOAL_EINVAL);
    ck_assert_ptr_null(shoal_idx_read(NULL));
    ck_assert_int_eq(shoal_last_error(), SHOAL_EINVAL);
    ck_assert_int_eq(mkfifo(in_folder("pipe"), 0600), 0);
    ck_assert_ptr_null(shoal_idx_read(in_folder("pipe"))); /* and does not wait for a writer */
    ck_assert_int_eq(shoal_last_error(), SHOAL_EINVAL);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("idx");
    TCase *tc = folder_case("idx");
    tcase_add_test(tc, plain_and_gzipped);
    tcase_add_test(tc, every_dtype);
    tcase_add_test(tc, other_lengths);
    tcase_add_test(tc, wrong_bytes);
    tcase_add_test(tc, bombs);
    tcase_add_test(tc, wrong_checksum);
    tcase_add_test(tc, no_file);
    suite_add_tcase(s, tc);
    return s;
}

SH_TEST_MAIN(suite)
