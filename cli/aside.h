/* Writes a file aside and then puts it in place of another file in one step, so that a reader sees either the old file or the whole new one. */
#ifndef CLI_ASIDE_H
#define CLI_ASIDE_H

#include <limits.h>
#include <stdbool.h>
#include <stdio.h>

typedef struct cli_aside {
    FILE *file;             /* to write to */
    char target[PATH_MAX];  /* the file to replace */
    char another[PATH_MAX]; /* a random name in the same folder */
    bool named;             /* the new file has this name; otherwise it has none and vanishes with the process */
} cli_aside;

/* Creates the new file, with the mode of target if that exists. Returns false and sets errno on failure. */
bool cli_aside_begin(cli_aside *aside, const char *target);

/* Puts the new file in place and closes it. sync: it then survives a crash of the machine. good false: drops the file instead. Returns false
 * and sets errno on failure, also if a write to file failed; the target is then unchanged. */
bool cli_aside_end(cli_aside *aside, bool sync, bool good);

#endif
