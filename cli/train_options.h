/* The options of `shoal train`: one table (cli/table.h), and how it is read. */
#ifndef CLI_TRAIN_OPTIONS_H
#define CLI_TRAIN_OPTIONS_H

#include "cli/settings.h"
#include "cli/table.h"
#include "cli/train_show.h"

#include <shoal/train.h>

typedef enum cli_device { CLI_CPU, CLI_CUDA } cli_device;

typedef struct cli_train_call {
    shoal_train_options job; /* first; as asked for: zero where nothing was */
    cli_device device;
    cli_show_options show;
    const char *config;
    bool print_config;
    bool overwrite; /* --save may replace any file */
    cli_given given;
} cli_train_call;

extern const cli_table cli_train_table;

/* Reads command line and config file. True: run the job. False: all is said and done; end with *out_status. Either way, give it
 * to cli_train_free. */
bool cli_train_read(int argc, char **argv, cli_train_call *call, cli_exit *out_status);
void cli_train_free(cli_train_call *call);

/* The settings of a job as --print-config has them, without those of its output. False: no memory. */
bool cli_settings_of(const shoal_train_options *job, cli_settings *out_settings);
void cli_settings_free(cli_settings *settings);

#endif
