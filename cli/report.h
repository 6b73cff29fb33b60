/* Writes the report of a job: one HTML page that needs no other file. */
#ifndef CLI_REPORT_H
#define CLI_REPORT_H

#include "cli/history.h"
#include "cli/settings.h"

#include <shoal/train.h>

#include <stdbool.h>
#include <stdio.h>

/* Returns the reason why a report cannot be written to path, or NULL if it can. The text is valid until the next call
 * of strerror. */
const char *cli_report_obstacle(const char *path);

/* Writes the page to a temporary file and renames it, so that the file is a complete page whenever the program is
 * killed. A link stays, and the file that it points to is replaced. why is the reason why the job failed, or NULL. If
 * there is neither a reason nor a summary in the history, the job is running: the page says so and reloads itself.
 * Returns false, sets errno and leaves the file unchanged on failure. */
bool cli_report_write(const char *path, const shoal_train_options *job, const cli_settings *settings,
                      const cli_history *history, const char *why);

/* Writes the page to an open file. Returns false if there is no memory. */
bool cli_report_put(FILE *file, const shoal_train_options *job, const cli_settings *settings,
                    const cli_history *history, const char *why);

#endif
