/* Decides whether --save may replace an existing file. */
#ifndef CLI_OVERWRITE_H
#define CLI_OVERWRITE_H

#include "cli/settings.h"

#include <stdint.h>

/* Checks whether a job may write its checkpoint to path. It may replace its own: a checkpoint with the same settings
 * and no more epochs. Any other file would be lost without a warning. Returns false after printing what the file is. */
bool cli_overwrite_allowed(const char *path, const cli_settings *settings, int64_t epochs);

#endif
