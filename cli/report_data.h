/* What a report shows: the numbers of its curves, the settings of the job, and how the page's script gets them. */
#ifndef CLI_REPORT_DATA_H
#define CLI_REPORT_DATA_H

#include "cli/history.h"
#include "cli/settings.h"
#include "cli/train_text.h"

#include <shoal/train.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

/* Most workers that have a curve of their own; of more, the least, the median and the most are shown. */
enum { CLI_REPORT_WORKERS = 8 };

/* Columns, as curves need them; NaN where there is no value, infinite where it is not a finite number. */
typedef struct cli_report_data {
    const shoal_train_options *job;
    const cli_settings *settings;
    const cli_history *history;
    const cli_terms *terms;
    const char *why; /* the job failed; NULL: it did not */
    bool running;
    const char *outcome; /* "running", "completed", "stopped" or "failed" */
    double end;          /* seconds */
    size_t samples, epochs, bins;
    double *seconds, *images, *loss;                                /* samples */
    double *epoch_seconds, *epoch_images, *epoch_test_loss, *score; /* epochs */
    double *bin_seconds;                                            /* middles of bins of time */
    size_t rates_count;
    double *rates[CLI_REPORT_WORKERS]; /* of each worker; or least, median and most of all of them */
    bool spread;                       /* the latter */
    double *numbers;                   /* all of the above lie here */
} cli_report_data;

/* False: no memory. */
bool cli_report_data_init(cli_report_data *data, const shoal_train_options *job, const cli_settings *settings,
                          const cli_history *history, const char *why);
void cli_report_data_fini(cli_report_data *data);

/* As JSON that can stand in a script element. */
void cli_report_data_json(FILE *file, const cli_report_data *data);

/* report_tables.c: the parts of the page that are text. */
void cli_report_summary(FILE *file, const cli_report_data *data);
void cli_report_tables(FILE *file, const cli_report_data *data);

#endif
