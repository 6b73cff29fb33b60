/* Takes the settings of a resumed job from its checkpoint. */
#ifndef CLI_TRAIN_RESUME_H
#define CLI_TRAIN_RESUME_H

#include "cli/train_options.h"

#include <shoal/file.h>

/* Sets the settings that neither the command line nor a config file gives from the checkpoint of --resume, and makes it
 * the file of --save. If the file cannot be read, is not a checkpoint, or is of another method than the call's, nothing
 * changes: the job will fail with an error. Returns false after printing what is wrong: exit with *out_status. */
bool cli_train_resume(cli_train_call *call, cli_exit *out_status);

/* Returns the value of an option in a checkpoint, NULL if it has none. */
const char *cli_checkpoint_text(const shoal_tensors *file, const char *option);

/* Checks whether a resumed job may have another value of this option. */
bool cli_option_may_change(const char *option);

#endif
