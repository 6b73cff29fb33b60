/* The serial method: one worker, as the baseline. It has rounds whose mean is of one model, and keeps momentum:
 * bit-identical to plain SGD. */
#include "train/rounds.h"

/* Batches in a round: a stop or a death loses no more than these. */
#define STEPS 100
#define STEPS_CARD 1000 /* some tens of milliseconds */

static shoal_err open(sh_job *job)
{
    bool card = job->o.device == SHOAL_CUDA;
    job->settings.reseed = card ? STEPS : 0;
    return sh_rounds_open(job, card ? STEPS_CARD : STEPS, SH_ROUNDS_KEEP);
}

const sh_method sh_method_serial = {.name = "serial",
                                    .alone = true,
                                    .shards = true,
                                    .open = open,
                                    .checkpoint = sh_rounds_checkpoint,
                                    SH_METHOD_ROUNDS};
