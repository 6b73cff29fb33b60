/* The output of `shoal train`: lines, rows that change on a terminal, tables at the end, JSON, event files and a
 * report. */
#ifndef CLI_TRAIN_SHOW_H
#define CLI_TRAIN_SHOW_H

#include "cli/cli.h"
#include "cli/history.h"
#include "cli/progress.h"
#include "cli/settings.h"
#include "cli/tensorboard.h"

#include <shoal/train.h>

/* The output options. A path is NULL if that output is not asked for. */
typedef struct cli_show_options {
    const char *json;        /* "-": standard output, which then has no lines for people */
    const char *report;      /* an HTML file, written repeatedly while the job runs, and at its end */
    const char *tensorboard; /* a folder for event files */
    bool quiet;
} cli_show_options;

typedef struct cli_show {
    const shoal_train_options *job;
    const cli_settings *settings; /* of the job */
    cli_output output;            /* standard output */
    FILE *json;                   /* the file of output, or another file; NULL: no JSON */
    const char *json_path;        /* of that file; NULL: none */
    const char *report_path;      /* NULL: none */
    bool report_due;              /* something happened that the report does not show yet */
    int64_t next_report;          /* the earliest time of the next one, in nanoseconds of the monotonic clock */
    bool plain;                   /* lines for people */
    bool terminal;                /* and rows that change */
    unsigned epoch_columns;       /* the columns of the table of epochs; 0: it has no heading yet */
    shoal_train_result past;      /* the result of a resumed job before this call; zeros if it is not resumed */
    bool saved;                   /* a checkpoint was written */
    cli_progress progress;
    cli_history history; /* for the report */
    cli_tensorboard events;
} cli_show;

/* Returns false after printing why the output cannot be opened. */
bool cli_show_begin(cli_show *show, const shoal_train_options *job, const cli_settings *settings,
                    const cli_show_options *options);

/* Returns false after printing what cannot be written. */
bool cli_show_event(cli_show *show, const shoal_train_event *event);

/* Ends the output. failed: the job failed, and the last error says why; this call prints it. */
cli_exit cli_show_end(cli_show *show, bool failed);

/* train_print.c: the lines for people. columns is the width of the terminal; 0: no limit. */

/* Prints the row of an epoch, below a heading if its columns are not those in `before`. Returns its columns, which are
 * never 0. */
unsigned cli_print_epoch(FILE *file, const shoal_train_options *job, const shoal_train_event *event, int columns,
                         unsigned before);
void cli_print_summary(FILE *file, const cli_show *show, const shoal_train_event *event, int columns);

#endif
