/* The report of a job: one HTML page that needs nothing beside itself. */
#ifndef CLI_REPORT_H
#define CLI_REPORT_H

#include "cli/history.h"
#include "cli/settings.h"

#include <shoal/train.h>

#include <stdbool.h>

/* Whether a report can be written there when the job ends. False: errno says why not. */
bool cli_report_possible(const char *path);

/* Writes aside, and renames; a link stays, and the file that it leads to is the report. why: the job failed, for this reason; NULL: it did not. False: errno says why not, and what was there
 * before is there still. */
bool cli_report_write(const char *path, const shoal_train_options *job, const cli_settings *settings,
                      const cli_history *history, const char *why);

#endif
