/* The sync method. Each worker has a contiguous part of the set. In a round it copies the common parameters and trains
 * on its part, or on the round's share of it; then the common parameters become the mean of all workers' parameters.
 * With averaged gradients each worker computes the gradient of a batch instead, and the job takes one step by their
 * mean. */
#include "train/methods/rounds.h"

#include "base/error.h"

static shoal_err check(const shoal_train_options *o)
{
    if (o->average == SHOAL_AVERAGE_GRADIENTS && o->rounds > 1) {
        return sh_fail(SHOAL_EINVAL, "rounds-per-epoch is %lld, but gradients are averaged after each batch",
                       (long long)o->rounds);
    }
    return SHOAL_OK;
}

static shoal_err sync_open(sh_job *job)
{
    if (job->o.average == SHOAL_AVERAGE_GRADIENTS) {
        return sh_rounds_open(job, 1, SH_ROUNDS_GRADIENTS);
    }
    int64_t batches = sh_rounds_batches(job);
    if (job->o.rounds > batches) {
        return sh_fail(SHOAL_EINVAL, "rounds-per-epoch is %lld, but an epoch has %lld batches",
                       (long long)job->o.rounds, (long long)batches);
    }
    return sh_rounds_open(job, (batches + job->o.rounds - 1) / job->o.rounds, SH_ROUNDS_ANEW);
}

static shoal_err checkpoint(sh_job *job, sh_checkpoint *c)
{
    static const char *const names[] = {
        [SHOAL_AVERAGE_PARAMETERS] = "parameters", [SHOAL_AVERAGE_GRADIENTS] = "gradients"};
    SH_TRY(sh_checkpoint_setting(c, "average", names[job->o.average]));
    SH_TRY(sh_checkpoint_setting_whole(c, "rounds", job->o.rounds > 1 ? job->o.rounds : 1));
    return sh_rounds_checkpoint(job, c);
}

const sh_method sh_method_sync =
    {.name = "sync", .shards = true, .check = check, .open = sync_open, .checkpoint = checkpoint, SH_METHOD_ROUNDS};
