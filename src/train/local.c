/* Local SGD (Stich, "Local SGD converges fast and communicates little", 2019): as sync, but the mean is taken every so many batches,
 * and each worker's momentum goes on. */
#include "train/rounds.h"

static shoal_err open(sh_job *job)
{
    return sh_rounds_open(job, job->o.steps, SH_ROUNDS_KEEP);
}

const sh_method sh_method_local = {.name = "local", .shards = true, .open = open, SH_METHOD_ROUNDS};
