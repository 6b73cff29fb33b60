/* The report of a job: one HTML page that needs nothing beside itself. */
#ifndef CLI_REPORT_H
#define CLI_REPORT_H

#include "cli/history.h"
#include "cli/settings.h"

#include <shoal/train.h>

#include <stdbool.h>
#include <stdio.h>

/* Whether a report can be written there. False: errno says why not. */
bool cli_report_possible(const char *path);

/* Writes the page under another name and renames it, so the file is a whole page whenever the program is killed. A link stays, and the file
 * that it leads to is the report. why: the job failed, for this reason; NULL: it did not fail. Without a reason and a summary in the
 * history the job is running: the page says so and reloads itself. False: errno says why not, and the file is as it was before. */
bool cli_report_write(const char *path, const shoal_train_options *job, const cli_settings *settings,
                      const cli_history *history, const char *why);

/* Writes it to an open file. False: no memory. */
bool cli_report_put(FILE *file, const shoal_train_options *job, const cli_settings *settings,
                    const cli_history *history, const char *why);

#endif
