/* Local SGD (Stich, "Local SGD converges fast and communicates little", 2019): like sync, but the workers average after
 * every `steps` batches, and each worker keeps its momentum. */
#include "train/rounds.h"

static shoal_err open(sh_job *job)
{
    return sh_rounds_open(job, job->o.steps, SH_ROUNDS_KEEP);
}

static shoal_err checkpoint(sh_job *job, sh_checkpoint *c)
{
    shoal_err err = sh_checkpoint_setting_whole(c, "steps", job->o.steps);
    return err == SHOAL_OK ? sh_rounds_checkpoint(job, c) : err;
}

const sh_method sh_method_local = {.name = "local",
                                   .shards = true,
                                   .open = open,
                                   .checkpoint = checkpoint,
                                   SH_METHOD_ROUNDS};
