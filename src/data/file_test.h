/* What the file tests share: a temporary folder, files with given bytes, and checks of the errors that readers must
 * set. */
#ifndef SH_DATA_FILE_TEST_H
#define SH_DATA_FILE_TEST_H

#include "tests/harness/runner.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char folder[64];

static inline void folder_begin(void)
{
    sh_leaks_begin();
    snprintf(folder, sizeof folder, "/tmp/shoal_file_test.XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(folder));
}

static inline int count_files(const char *path)
{
    int n = 0;
    DIR *d = opendir(path);
    ck_assert_ptr_nonnull(d);
    for (struct dirent *e; (e = readdir(d)) != NULL;) {
        n += strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0;
    }
    closedir(d);
    return n;
}

static inline void folder_end(void)
{
    char path[400];
    DIR *d = opendir(folder);
    ck_assert_ptr_nonnull(d);
    for (struct dirent *e; (e = readdir(d)) != NULL;) {
        snprintf(path, sizeof path, "%s/%s", folder, e->d_name);
        (void)unlink(path);
    }
    closedir(d);
    ck_assert_int_eq(rmdir(folder), 0);
    sh_leaks_end();
}

/* Returns a path in the folder, which is valid until the eighth call after it. */
static inline const char *in_folder(const char *name)
{
    static char paths[8][200];
    static int next;
    char *path = paths[next++ % 8];
    snprintf(path, sizeof paths[0], "%s/%s", folder, name);
    return path;
}

static inline const char *file_of(const char *name, const void *bytes, size_t size)
{
    const char *path = in_folder(name);
    FILE *f = fopen(path, "we");
    ck_assert_ptr_nonnull(f);
    ck_assert_uint_eq(fwrite(bytes, 1, size, f), size);
    ck_assert_int_eq(fclose(f), 0);
    return path;
}

static inline size_t bytes_of(const char *path, uint8_t *buffer, size_t capacity)
{
    FILE *f = fopen(path, "re");
    ck_assert_ptr_nonnull(f);
    size_t size = fread(buffer, 1, capacity, f);
    ck_assert_uint_lt(size, capacity);
    fclose(f);
    return size;
}

/* Checks that the last error is err, and that its text names the file and a byte and contains `words`. */
static inline void assert_names_byte(const char *path, shoal_err err, const char *words)
{
    char wanted[256];
    snprintf(wanted, sizeof wanted, "%s: byte ", path);
    ck_assert_msg(shoal_last_error() == err, "%s, wanted %s: %s", shoal_err_name(shoal_last_error()),
                  shoal_err_name(err), shoal_last_error_text());
    ck_assert_msg(strncmp(shoal_last_error_text(), wanted, strlen(wanted)) == 0, "no byte: %s",
                  shoal_last_error_text());
    ck_assert_msg(words == NULL || strstr(shoal_last_error_text(), words) != NULL, "no '%s': %s", words,
                  shoal_last_error_text());
}

typedef void *(*reader)(const char *path);

static inline void *read_safetensors(const char *path)
{
    return shoal_safetensors_read(path);
}

static inline void *read_npy(const char *path)
{
    return shoal_npy_read(path);
}

static inline void *read_idx(const char *path)
{
    return shoal_idx_read(path);
}

/* Checks that the reader rejects the file cut at every length, and with a byte more. */
static inline void refuse_other_lengths(reader read, const uint8_t *bytes, size_t size)
{
    uint8_t longer[4096];
    ck_assert_uint_lt(size, sizeof longer);
    memcpy(longer, bytes, size);
    longer[size] = 0;
    for (size_t n = 0; n < size; n++) {
        const char *path = file_of("cut", bytes, n);
        (void)!shoal_fail(SHOAL_OK, "nothing");
        ck_assert_msg(read(path) == NULL, "%zu of %zu bytes were accepted", n, size);
        assert_names_byte(path, SHOAL_ECORRUPT, NULL);
    }
    const char *path = file_of("long", longer, size + 1);
    ck_assert_ptr_null(read(path));
    assert_names_byte(path, SHOAL_ECORRUPT, NULL);
}

#define BYTES(text) text, sizeof(text) - 1

typedef struct wrong {
    const char *bytes;
    size_t size;
    shoal_err err;
    const char *words;
} wrong;

static inline void refuse_all(reader read, const wrong *cases, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        const char *path = file_of("wrong", cases[i].bytes, cases[i].size);
        ck_assert_msg(read(path) == NULL, "case %zu was accepted, wanted '%s'", i, cases[i].words);
        assert_names_byte(path, cases[i].err, cases[i].words);
    }
}

static inline TCase *folder_case(const char *name)
{
    TCase *tc = tcase_create(name);
    tcase_add_checked_fixture(tc, folder_begin, folder_end);
    tcase_set_timeout(tc, SH_TEST_SECONDS);
    return tc;
}

#endif
