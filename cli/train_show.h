/* What `shoal train` shows: lines, one line that changes on a terminal, a table at the end, JSON. */
#ifndef CLI_TRAIN_SHOW_H
#define CLI_TRAIN_SHOW_H

#include "cli/cli.h"

#include <shoal/train.h>

typedef struct cli_show {
    const shoal_train_options *job;
    cli_output output;     /* standard output */
    FILE *json;            /* output's, or a file of its own; NULL: none */
    const char *json_path; /* of that file; NULL: none */
    bool plain;            /* lines for people */
    bool terminal;         /* one of them changes */
    bool line;             /* such a line stands there */
} cli_show;

/* json: NULL, "-" or a path. False: it was said why not. */
bool cli_show_begin(cli_show *show, const shoal_train_options *job, const char *json, bool quiet);

/* False: it cannot be written, and that was said. */
bool cli_show_event(cli_show *show, const shoal_train_event *event);
cli_exit cli_show_end(cli_show *show, bool failed);

#endif
