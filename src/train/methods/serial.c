/* The serial method: one worker, as the baseline. It has rounds whose mean is of one model, and keeps momentum:
 * bit-identical to plain SGD. */
#include "train/methods/rounds.h"

/* Batches in a round, times the engine's factor: a stop or a death loses no more than these. The random numbers do not
 * depend on the engine. */
#define STEPS 100

static shoal_err serial_open(sh_job *job)
{
    job->settings.reseed = STEPS;
    return sh_rounds_open(job, STEPS * sh_engine_of(job->o.device)->round_factor, SH_ROUNDS_KEEP);
}

const sh_method sh_method_serial = {.name = "serial",
                                    .alone = true,
                                    .shards = true,
                                    .open = serial_open,
                                    .checkpoint = sh_rounds_checkpoint,
                                    SH_METHOD_ROUNDS};
