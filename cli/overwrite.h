/* Whether --save may write where a file is already. */
#ifndef CLI_OVERWRITE_H
#define CLI_OVERWRITE_H

#include "cli/settings.h"

#include <stdint.h>

/* A job that is run again may write over what it wrote before: a checkpoint with these settings, and not of more epochs. Any other
 * file would be lost without a word, so it is refused. False: it was said what is there. */
bool cli_overwrite_allowed(const char *path, const cli_settings *settings, int64_t epochs);

#endif
