/* For children of tests that report how many fds and mappings they have. */
#ifndef TESTS_COUNTS_H
#define TESTS_COUNTS_H

#include <dirent.h>
#include <stdio.h>
#include <string.h>

typedef struct counts {
    int fds, mappings;
} counts;

/* Counts the process's fds, and its mappings of worlds. Like sh_count_fds and sh_count_mappings, which only a test may call. */
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

#endif
