/* One worker: the yardstick. Rounds of an epoch whose mean is of one model, momentum kept: plain SGD, to the bit. */
#include "train/rounds.h"

static shoal_err open(sh_job *job)
{
    return sh_rounds_open(job, 0, SH_ROUNDS_KEEP);
}

const sh_method sh_method_serial = {.name = "serial", .alone = true, .shards = true, .open = open, SH_METHOD_ROUNDS};
