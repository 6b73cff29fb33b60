/* The options of `shoal train`: their table (cli/table.h), and how they are read. */
#ifndef CLI_TRAIN_OPTIONS_H
#define CLI_TRAIN_OPTIONS_H

#include "cli/settings.h"
#include "cli/table.h"
#include "cli/train_show.h"

#include <shoal/train.h>

typedef struct cli_train_call {
    shoal_train_options job; /* the first field; zero where nothing is given */
    cli_show_options show;
    const char *config;
    bool print_config;
    bool overwrite; /* --save may replace any file */
    cli_given given;
} cli_train_call;

extern const cli_table cli_train_table;

/* Reads the command line and the config file. Returns false if the command is finished, with its message printed: exit
 * with *out_status. Call cli_train_free in any case. */
bool cli_train_read(int argc, char **argv, cli_train_call *call, cli_exit *out_status);
void cli_train_free(cli_train_call *call);

/* Lists the settings of a job as --print-config does, without those of the output. Returns false if there is no
 * memory. */
bool cli_settings_of(const shoal_train_options *job, cli_settings *out_settings);
void cli_settings_free(cli_settings *settings);

#endif
