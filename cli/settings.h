/* The settings of a job as names and texts, including defaults. */
#ifndef CLI_SETTINGS_H
#define CLI_SETTINGS_H

#include "cli/table.h"

typedef struct cli_setting {
    const char *name; /* of the option */
    char *text;       /* freed by cli_settings_free */
} cli_setting;

typedef struct cli_settings {
    cli_setting all[CLI_OPTIONS];
    size_t count;
} cli_settings;

#endif
