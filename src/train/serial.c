/* One worker: the yardstick. Rounds whose mean is of one model, momentum kept: plain SGD, to the bit. */
#include "train/rounds.h"

/* Batches in a round: a stop, or a death, loses no more. */
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
