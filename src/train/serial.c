/* The serial method: one worker, as the baseline. It has rounds whose mean is of one model, and keeps momentum:
 * bit-identical to plain SGD. */
#include "train/rounds.h"

/* Batches in a round: a stop or a death loses no more than these. */
#define STEPS 100

static shoal_err open(sh_job *job)
{
    return sh_rounds_open(job, STEPS, SH_ROUNDS_KEEP);
}

const sh_method sh_method_serial = {.name = "serial",
                                    .alone = true,
                                    .shards = true,
                                    .open = open,
                                    .checkpoint = sh_rounds_checkpoint,
                                    SH_METHOD_ROUNDS};
