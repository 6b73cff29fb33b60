/* Writes a new file beside its target and then renames it over the target in one step, so that a reader sees either the
 * old file or the whole new one. */
#ifndef CLI_ATOMIC_FILE_H
#define CLI_ATOMIC_FILE_H

#include <limits.h>
#include <stdbool.h>
#include <stdio.h>

typedef struct cli_atomic_file {
    FILE *file;             /* to write to */
    char target[PATH_MAX];  /* the file to replace */
    char another[PATH_MAX]; /* a random name in the same folder */
    bool named;             /* the new file has this name; otherwise it has none and vanishes with the process */
} cli_atomic_file;

/* Creates the new file, with the mode of target if that exists. Returns false and sets errno on failure. */
bool cli_atomic_file_begin(cli_atomic_file *file, const char *target);

/* Puts the new file in place and closes it. sync: it then survives a crash of the machine. good false: drops the file
 * instead. Returns false and sets errno on failure, also if a write to file failed; the target is then unchanged. */
bool cli_atomic_file_end(cli_atomic_file *file, bool sync, bool good);

#endif
