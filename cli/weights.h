/* Loads a saved model, for the commands that use one. */
#ifndef CLI_WEIGHTS_H
#define CLI_WEIGHTS_H

#include "cli/table.h"

#include <shoal/data.h>
#include <shoal/file.h>
#include <shoal/nn.h>

typedef struct cli_weights {
    shoal_module *module; /* in evaluation mode */
    const char *model;    /* its name */
    const char *data;     /* the data set that it was trained on; "mnist" if the file does not name it */
    shoal_tensors *file;
} cli_weights;

/* Loads the weights of a file into a new model. If model is NULL, the file names it. Tensors whose names begin with
 * "shoal/" are other state of a checkpoint and are ignored. Returns false after printing what is wrong, with the file
 * and the tensor: exit with *out_status. Call cli_weights_free in any case. */
bool cli_weights_load(const cli_command *command, const char *path, const char *model, cli_weights *out_weights,
                      cli_exit *out_status);
void cli_weights_free(cli_weights *weights);

/* The options --load and --model, for a call with the fields load and model. */
#define CLI_WEIGHTS_OPTIONS(call)                                                                                      \
    {.name = "load",                                                                                                   \
     .value = "FILE",                                                                                                  \
     .kind = CLI_FILE,                                                                                                 \
     .help = "the model to load, as written by shoal train --save",                                                    \
     CLI_FIELD(call, load)},                                                                                           \
    {                                                                                                                  \
        .name = "model", .value = "NAME", .kind = CLI_WORD, .help = "its model, if the file does not name it",         \
        .words = cli_model_word, CLI_FIELD(call, model)                                                                \
    }
const char *cli_model_word(size_t i);

/* Returns the test set of a data set by its name or folder. NULL: see shoal_last_error. */
shoal_dataset *cli_test_set(const char *data);

#endif
