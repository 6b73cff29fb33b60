/* Local SGD (Stich, "Local SGD converges fast and communicates little", 2019): like sync, but the workers average after
 * every `steps` batches, and each worker keeps its momentum. */
#include "train/methods/rounds.h"

#include "base/error.h"

static shoal_err local_open(sh_job *job)
{
    return sh_rounds_open(job, job->o.steps, SH_ROUNDS_KEEP);
}

static shoal_err checkpoint(sh_job *job, sh_checkpoint *c)
{
    SH_TRY(sh_checkpoint_setting_whole(c, "steps", job->o.steps));
    return sh_rounds_checkpoint(job, c);
}

const sh_method sh_method_local = {.name = "local",
                                   .shards = true,
                                   .open = local_open,
                                   .checkpoint = checkpoint,
                                   SH_METHOD_ROUNDS};
