/* --resume: the settings of the job that wrote a checkpoint. */
#ifndef CLI_TRAIN_RESUME_H
#define CLI_TRAIN_RESUME_H

#include "cli/train_options.h"

#include <shoal/file.h>

/* Fills in the settings that neither the command line nor a config file gives from the checkpoint of --resume, and makes it the file of
 * --save. A file that cannot be read, is not a checkpoint, or is one of another method than asked for changes nothing: the job
 * fails and says so. False: it was said what is wrong; end with *out_status. */
bool cli_train_resume(cli_train_call *call, cli_exit *out_status);

/* The text of an option's setting in a checkpoint; NULL: it has none. */
const char *cli_checkpoint_text(const shoal_tensors *file, const char *option);

/* Whether a job may go on with another value of this option. */
bool cli_option_may_change(const char *option);

#endif
