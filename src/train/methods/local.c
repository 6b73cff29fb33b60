/* Local SGD (Stich, "Local SGD converges fast and communicates little", 2019): like sync, but the workers average after
 * every `steps` batches, and each worker keeps its momentum. */
#include "train/methods/rounds.h"

#include "base/error.h"

#define STEPS 16
#define STEPS_MOST INT64_C(1000000)

static void defaults(shoal_train_options *o)
{
    o->local.steps = o->local.steps != 0 ? o->local.steps : STEPS;
}

static shoal_err check(const shoal_train_options *o)
{
    return o->local.steps >= 1 && o->local.steps <= STEPS_MOST
               ? SHOAL_OK
               : sh_fail(SHOAL_EINVAL, "%lld batches between two means; the range is 1 to %lld",
                         (long long)o->local.steps, (long long)STEPS_MOST);
}

static shoal_err local_open(sh_job *job)
{
    return sh_rounds_open(job, job->o.local.steps, SH_ROUNDS_KEEP);
}

static shoal_err checkpoint(sh_job *job, sh_checkpoint *c)
{
    SH_TRY(sh_checkpoint_setting_whole(c, "steps", job->o.local.steps));
    return sh_rounds_checkpoint(job, c);
}

const sh_method sh_method_local = {.name = "local",
                                   .shards = true,
                                   .defaults = defaults,
                                   .check = check,
                                   .open = local_open,
                                   .checkpoint = checkpoint,
                                   SH_METHOD_ROUNDS};
