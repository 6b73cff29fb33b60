/* A model with the weights of a file, for the commands that use one. */
#ifndef CLI_WEIGHTS_H
#define CLI_WEIGHTS_H

#include "cli/table.h"

#include <shoal/data.h>
#include <shoal/file.h>
#include <shoal/nn.h>

typedef struct cli_weights {
    shoal_module *module; /* in evaluation mode */
    const char *model;    /* its name */
    const char *data;     /* the set that it was trained on, as the file tells; "mnist" where it does not */
    shoal_tensors *file;
} cli_weights;

/* model NULL: the one that the file names. Tensors whose names begin with "shoal/" are other state of a checkpoint, and ignored.
 * False: it was said what is wrong, with the file and the tensor; end with *out_status. */
bool cli_weights_load(const cli_command *command, const char *path, const char *model, cli_weights *out_weights,
                      cli_exit *out_status);
void cli_weights_free(cli_weights *weights);

/* The two options that name them, for a struct with the fields load and model. */
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

/* The set to test with: by name, or a folder of such files. NULL: the last error. */
shoal_dataset *cli_test_set(const char *data);

#endif
