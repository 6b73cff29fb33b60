/* Synchronous: contiguous parts of the set; each worker takes the common parameters and passes over its part once, then they become
 * the mean of all. */
#include "train/rounds.h"

static shoal_err open(sh_job *job)
{
    return sh_rounds_open(job, 0, false);
}

const sh_method sh_method_sync = {.name = "sync", .shards = true, .open = open, SH_METHOD_ROUNDS};
