/* Synchronous: contiguous parts of the set; each worker takes the common parameters and passes over its part once, then they become
 * the mean of all. */
#include "train/rounds.h"

static shoal_err open(sh_job *job)
{
    return sh_rounds_open(job, 0, false);
}

static shoal_err checkpoint(sh_job *job, sh_checkpoint *c)
{
    static const char *const names[] = {
        [SHOAL_AVERAGE_PARAMETERS] = "parameters", [SHOAL_AVERAGE_GRADIENTS] = "gradients"};
    shoal_err err = sh_checkpoint_setting(c, "average", names[job->o.average]);
    if (err == SHOAL_OK) {
        err = sh_checkpoint_setting_whole(c, "rounds", job->o.rounds > 1 ? job->o.rounds : 1);
    }
    return err == SHOAL_OK ? sh_rounds_checkpoint(job, c) : err;
}

const sh_method sh_method_sync = {.name = "sync",
                                  .shards = true,
                                  .open = open,
                                  .checkpoint = checkpoint,
                                  SH_METHOD_ROUNDS};
