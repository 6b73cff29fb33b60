/* The data of a report: the numbers of its curves, the settings of the job, and their JSON for the page's script. */
#ifndef CLI_REPORT_DATA_H
#define CLI_REPORT_DATA_H

#include "cli/history.h"
#include "cli/settings.h"
#include "cli/train_text.h"

#include <shoal/train.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

/* The most workers that have their own curves. For more workers, the minimum, median and maximum are shown. */
enum { CLI_REPORT_WORKERS = 8 };

/* Columns of numbers for curves. NaN: there is no value. Infinite: the value is NaN or infinite. */
typedef struct cli_report_data {
    const shoal_train_options *job;
    const cli_settings *settings;
    const cli_history *history;
    const cli_terms *terms;
    const char *why; /* why the job failed; NULL if it did not */
    bool running;
    const char *outcome; /* "running", "completed", "stopped" or "failed" */
    double end;          /* seconds */
    size_t samples, epochs, bins;
    double *seconds, *images, *loss;                                /* samples */
    double *epoch_seconds, *epoch_images, *epoch_test_loss, *score; /* epochs */
    double *bin_seconds;                                            /* middles of bins of time */
    size_t rates_count;
    double *rates[CLI_REPORT_WORKERS]; /* of each worker; or the minimum, median and maximum of all workers */
    bool spread;                       /* the latter */
    double *numbers;                   /* the memory of all the above */
} cli_report_data;

/* False: no memory. */
bool cli_report_data_init(cli_report_data *data, const shoal_train_options *job, const cli_settings *settings,
                          const cli_history *history, const char *why);
void cli_report_data_fini(cli_report_data *data);

/* Writes the data as JSON that is safe inside a script element. */
void cli_report_data_json(FILE *file, const cli_report_data *data);

/* report_tables.c: the parts of the page that are text. */
void cli_report_summary(FILE *file, const cli_report_data *data);
void cli_report_tables(FILE *file, const cli_report_data *data);

#endif
