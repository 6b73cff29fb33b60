/* The limits of memory cgroups, read from files that look like the kernel's. */
#include "os/memory.h"

#include "tests/harness/runner.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define NONE UINT64_MAX

static char folder[] = "/tmp/shoal-groups-XXXXXX";

static void make_folder(void)
{
    ck_assert_ptr_nonnull(mkdtemp(folder));
}

static void remove_folder(void)
{
    char command[64];
    snprintf(command, sizeof command, "rm -r %s", folder);
    ck_assert_int_eq(system(command), 0);
}

/* Writes a file below the folder, and the folders on its way. */
static void put(const char *path, const char *text)
{
    char full[256];
    int n = snprintf(full, sizeof full, "%s/%s", folder, path);
    for (char *slash = full + strlen(folder) + 1; (slash = strchr(slash, '/')) != NULL; slash++) {
        *slash = 0;
        (void)mkdir(full, 0755);
        *slash = '/';
    }
    FILE *f = fopen(full, "w");
    ck_assert_msg(f != NULL && n > 0, "%s", full);
    ck_assert_int_ge(fputs(text, f), 0);
    ck_assert_int_eq(fclose(f), 0);
}

static uint64_t limit_of(const char *list)
{
    char path[64];
    put("list", list);
    snprintf(path, sizeof path, "%s/list", folder);
    return sh_memory_group_limit(path, folder);
}

START_TEST(f17_the_lowest_limit_of_all_groups_counts)
{
    put("a/b/c/memory.max", "max\n");
    ck_assert_uint_eq(limit_of("0::/a/b/c\n"), NONE);
    put("a/memory.max", "5000000\n"); /* a group that it is part of */
    ck_assert_uint_eq(limit_of("0::/a/b/c\n"), 5000000);
    put("a/b/c/memory.max", "7000000\n");
    ck_assert_uint_eq(limit_of("0::/a/b/c\n"), 5000000);
    put("a/b/memory.max", "3000000\n");
    ck_assert_uint_eq(limit_of("0::/a/b/c\n"), 3000000);
    put("memory.max", "2000000\n"); /* of a container, whose own group is the root there */
    ck_assert_uint_eq(limit_of("0::/\n"), 2000000);
    ck_assert_uint_eq(limit_of("0::/not/mounted/here\n"), 2000000);
}
END_TEST

START_TEST(f17_version_1)
{
    put("memory/a/b/memory.limit_in_bytes", "9223372036854771712\n"); /* no limit */
    put("memory/a/memory.limit_in_bytes", "4000000\n");
    put("cpu/a/memory.limit_in_bytes", "1\n");
    ck_assert_uint_eq(limit_of("5:cpu:/a\n4:memory:/a/b\n0::/\n"), 4000000);
    ck_assert_uint_eq(limit_of("4:hugetlb,memory:/a/b\n"), 4000000);
    ck_assert_uint_eq(limit_of("4:memory_other:/a/b\n5:cpu:/a\n"), NONE);
    ck_assert_uint_eq(limit_of("1:name=systemd:/a\nnonsense\n\n"), NONE);
    put("memory.max", "1000000\n"); /* both versions, as they can be mounted together */
    ck_assert_uint_eq(limit_of("4:memory:/a/b\n0::/\n"), 1000000);
}
END_TEST

START_TEST(no_groups)
{
    ck_assert_uint_eq(sh_memory_group_limit("/not/there", folder), NONE);
    ck_assert_uint_eq(limit_of(""), NONE);
    ck_assert_uint_gt(sh_memory_of_machine(), 0);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("memory");
    TCase *tc = tcase_create("groups");
    tcase_add_checked_fixture(tc, make_folder, remove_folder);
    tcase_add_test(tc, f17_the_lowest_limit_of_all_groups_counts);
    tcase_add_test(tc, f17_version_1);
    tcase_add_test(tc, no_groups);
    suite_add_tcase(s, tc);
    return s;
}

SH_TEST_MAIN(suite)
