/* The sync method. Each worker has a contiguous part of the set. In a round it copies the common parameters and trains
 * on its part, or on the round's share of it; then the common parameters become the mean of all workers' parameters.
 * With averaged gradients each worker computes the gradient of a batch instead, and the job takes one step by their
 * mean. */
#include "train/methods/rounds.h"

#include "base/error.h"

#define ROUNDS_MOST INT64_C(1000000)

static void defaults(shoal_train_options *o)
{
    o->sync.rounds = o->sync.rounds != 0 ? o->sync.rounds : o->rounds != 0 ? o->rounds : 1;
    o->rounds = o->rounds != 0 ? o->rounds : o->sync.rounds;
}

static shoal_err check(const shoal_train_options *o)
{
    if (o->rounds != o->sync.rounds) {
        return sh_fail(SHOAL_EINVAL, "%lld rounds (the old name) and %lld sync.rounds were given", (long long)o->rounds,
                       (long long)o->sync.rounds);
    }
    if (o->sync.rounds < 1 || o->sync.rounds > ROUNDS_MOST) {
        return sh_fail(SHOAL_EINVAL, "%lld rounds in an epoch; the range is 1 to %lld", (long long)o->sync.rounds,
                       (long long)ROUNDS_MOST);
    }
    if (o->sync.average != SHOAL_AVERAGE_PARAMETERS && o->sync.average != SHOAL_AVERAGE_GRADIENTS) {
        return sh_fail(SHOAL_EINVAL, "unknown average %d", (int)o->sync.average);
    }
    if (o->sync.average == SHOAL_AVERAGE_GRADIENTS && o->sync.rounds > 1) {
        return sh_fail(SHOAL_EINVAL, "%lld rounds per epoch were given, but gradients are averaged after each batch",
                       (long long)o->sync.rounds);
    }
    return SHOAL_OK;
}

static shoal_err sync_open(sh_job *job)
{
    if (job->o.sync.average == SHOAL_AVERAGE_GRADIENTS) {
        return sh_rounds_open(job, 1, SH_ROUNDS_GRADIENTS);
    }
    int64_t batches = sh_rounds_batches(job);
    if (job->o.sync.rounds > batches) {
        return sh_fail(SHOAL_EINVAL, "%lld rounds per epoch were given, but an epoch has %lld batches",
                       (long long)job->o.sync.rounds, (long long)batches);
    }
    return sh_rounds_open(job, (batches + job->o.sync.rounds - 1) / job->o.sync.rounds, SH_ROUNDS_ANEW);
}

static shoal_err checkpoint(sh_job *job, sh_checkpoint *c)
{
    static const char *const names[] = {
        [SHOAL_AVERAGE_PARAMETERS] = "parameters", [SHOAL_AVERAGE_GRADIENTS] = "gradients"};
    SH_TRY(sh_checkpoint_setting(c, "average", names[job->o.sync.average]));
    SH_TRY(sh_checkpoint_setting_whole(c, "rounds", job->o.sync.rounds > 1 ? job->o.sync.rounds : 1));
    return sh_rounds_checkpoint(job, c);
}

const sh_method sh_method_sync = {.name = "sync",
                                  .shards = true,
                                  .defaults = defaults,
                                  .check = check,
                                  .open = sync_open,
                                  .checkpoint = checkpoint,
                                  SH_METHOD_ROUNDS};
