/* For children of tests that report how many fds and mappings they have. */
#ifndef TESTS_COUNTS_H
#define TESTS_COUNTS_H

#include "tests/harness/children.h"

#include <dirent.h>
#include <stdio.h>
#include <string.h>

typedef struct counts {
    int fds, mappings;
} counts;

/* Counts the process's fds, and its mappings of worlds. Like sh_count_fds and sh_count_mappings, which only a test may
 * call. */
static inline counts count_here(void)
{
    counts c = {.fds = -3}; /* ".", ".." and the directory itself */
    char line[512];
    DIR *d = opendir("/proc/self/fd");
    while (d != NULL && readdir(d) != NULL) {
        c.fds++;
    }
    closedir(d);
    FILE *f = fopen("/proc/self/maps", "re");
    while (f != NULL && fgets(line, sizeof line, f) != NULL) {
        c.mappings += strstr(line, "memfd:shoal") != NULL;
    }
    fclose(f);
    return c;
}

/* Waits for the end of a child that returns its counts, as a list. */
static inline counts finish_counted(shoal_process *p)
{
    shoal_status status;
    ck_assert_ok(shoal_process_join(p, LIMIT, &status));
    ck_assert_msg(status.end == SHOAL_PROCESS_RETURNED, "%s", status.text);
    const shoal_value *r = shoal_process_result(p);
    counts c = {.fds = (int)sh_int_of(shoal_value_at(r, 0)), .mappings = (int)sh_int_of(shoal_value_at(r, 1))};
    finish(p);
    return c;
}

/* The counts with 10 live things and with 10,000, here and in a child. */
static inline void expect_same_counts(const char *things, counts few, counts many, counts few_child, counts many_child)
{
    printf("10 and 10,000 live %s: fds %d and %d, in the child %d and %d; mappings %d and %d, %d and %d\n", things,
           few.fds, many.fds, few_child.fds, many_child.fds, few.mappings, many.mappings, few_child.mappings,
           many_child.mappings);
    ck_assert(few.fds == many.fds && few_child.fds == many_child.fds);
    /* a child has the world, and the page with the word that tells of its end (sync/end_word.h) */
    ck_assert(few.mappings == 1 && many.mappings == 1 && few_child.mappings == 2 && many_child.mappings == 2);
}

/* Asserts that the last error text names the size asked for, and what is left of the heap. */
static inline void ck_words(size_t asked)
{
    char number[32];
    const char *text = shoal_last_error_text();
    snprintf(number, sizeof number, "%zu", asked);
    ck_assert_msg(strstr(text, number) != NULL, "the size asked, %s, is not in '%s'", number, text);
    shoal_world_info i = sh_test_world();
    snprintf(number, sizeof number, "%llu", (unsigned long long)(i.heap_limit - i.heap_used));
    ck_assert_msg(strstr(text, number) != NULL, "the size left, %s, is not in '%s'", number, text);
}

#endif
