/* What people see of `shoal train`: lines, rows that change on a terminal, a table at the end; JSON, event files and a report. */
#ifndef CLI_TRAIN_SHOW_H
#define CLI_TRAIN_SHOW_H

#include "cli/cli.h"
#include "cli/history.h"
#include "cli/progress.h"
#include "cli/settings.h"
#include "cli/tensorboard.h"

#include <shoal/train.h>

/* What is wanted. Paths may be NULL: none. */
typedef struct cli_show_options {
    const char *json;        /* "-": standard output, and then no lines for people */
    const char *report;      /* an HTML file, written again and again while the job runs, and when it ends */
    const char *tensorboard; /* a folder for event files */
    bool quiet;
} cli_show_options;

typedef struct cli_show {
    const shoal_train_options *job;
    const cli_settings *settings; /* of the job */
    cli_output output;            /* standard output */
    FILE *json;                   /* output's, or a file of its own; NULL: none */
    const char *json_path;        /* of that file; NULL: none */
    const char *report_path;      /* NULL: none */
    bool report_due;              /* something happened that it does not show yet */
    int64_t next_report;          /* when it is worth its cost again, in nanoseconds of the monotonic clock */
    bool plain;                   /* lines for people */
    bool terminal;                /* and rows that change */
    unsigned epoch_columns;       /* of the table of epochs; 0: it has no head yet */
    shoal_train_result past;      /* what a resumed job did before; zeros: it is not one */
    bool saved;                   /* there is a checkpoint */
    cli_progress progress;
    cli_history history; /* for the report */
    cli_tensorboard events;
} cli_show;

/* False: it was said why not. */
bool cli_show_begin(cli_show *show, const shoal_train_options *job, const cli_settings *settings,
                    const cli_show_options *options);

/* False: something cannot be written, and that was said. */
bool cli_show_event(cli_show *show, const shoal_train_event *event);

/* failed: the job did, and the last error says why, which is passed on here. */
cli_exit cli_show_end(cli_show *show, bool failed);

/* train_print.c: what is written for people. columns: of the terminal; 0: there is no limit. */

/* The row of an epoch, with the head above it when its columns are not those `before`. Returns its columns, which are not 0. */
unsigned cli_print_epoch(FILE *file, const shoal_train_options *job, const shoal_train_event *event, int columns,
                         unsigned before);
void cli_print_summary(FILE *file, const cli_show *show, const shoal_train_event *event, int columns);

#endif
