/* Hogwild (Niu et al., "Hogwild!: a lock-free approach to parallelizing stochastic gradient descent", 2011): all
 * workers change the same parameters all the time, without locks. An update may be lost, on purpose.
 *
 * The workers never wait for each other. A worker that has finished an epoch rings, so that the job checks at once; if
 * it dies before it rings, the job sees the epoch at its next check, a twentieth of a second later. A restarted worker
 * continues at its position, with new momentum, or with the shared momentum. */
#include "train/job.h"
#include "train/state.h"

#include <shoal/share.h>

#include "base/error.h"

static shoal_err work(int rank, const shoal_value *args)
{
    sh_worker w;
    shoal_err err = sh_worker_open(&w, rank, args);
    const shoal_value *own = shoal_value_find(args, "own");
    if (err == SHOAL_OK) {
        err = sh_state_adopt(w.sgd, shoal_value_find(own, "state")); /* without "state" it has its own */
    }
    uint64_t position = err == SHOAL_OK ? sh_racy_load(&w.progress->position) : 0;
    int64_t epoch = (int64_t)(position >> 32), batch = (int64_t)(position & UINT32_MAX);
    while (err == SHOAL_OK && epoch < w.settings.epochs && !sh_worker_stopped(&w)) {
        err = sh_worker_train(&w, epoch, batch, INT64_MAX);
        if (err == SHOAL_OK && !sh_worker_stopped(&w)) {
            sh_racy_store(&w.progress->position, sh_position(++epoch, 0));
            batch = 0;
            err = sh_worker_ring(&w, epoch);
        }
    }
    if (err == SHOAL_OK) {
        err = sh_worker_next(&w, &epoch); /* trials, until the job ends: there are no other tasks */
    }
    sh_worker_close(&w);
    return err == SHOAL_ECLOSED ? SHOAL_OK : err;
}

/* Makes one momentum for all workers. They all change it without locks, like the parameters. */
static shoal_err open(sh_job *job)
{
    if (!job->o.shared_state) {
        return SHOAL_OK;
    }
    shoal_optimizer *sgd = shoal_sgd_create(job->model, .lr = job->o.lr, .momentum = job->o.momentum);
    shoal_err err = sgd ? shoal_optimizer_prepare(sgd) : shoal_last_error();
    if (err == SHOAL_OK) {
        job->own = sh_state_zeros(sgd);
        err = job->own ? SHOAL_OK : shoal_last_error();
    }
    shoal_optimizer_destroy(sgd);
    return err;
}

static void close(sh_job *job)
{
    shoal_value_destroy(job->own);
}

static shoal_value *arguments(sh_job *job, int rank)
{
    (void)rank;
    return shoal_map("state", job->own ? shoal_value_copy(job->own) : shoal_value_null());
}

/* Returns the number of epochs that every worker has finished. */
static int64_t finished(const sh_job *job)
{
    int64_t least = job->o.epochs;
    for (int i = 0; i < job->o.workers; i++) {
        int64_t epoch = (int64_t)(sh_racy_load(&job->board->workers[i].position) >> 32);
        least = epoch < least ? epoch : least;
    }
    return least;
}

static shoal_err run(sh_job *job)
{
    shoal_err err = SHOAL_OK;
    int64_t epochs = 0;
    while (err == SHOAL_OK && !sh_crew_done(job) && epochs < job->o.epochs && !job->result.stopped) {
        err = sh_crew_wait(job);
        epochs = finished(job);
        if (err == SHOAL_OK && epochs > job->result.epochs && epochs < job->o.epochs && !sh_job_over(job)) {
            err = sh_job_epoch(job, epochs, false); /* while the workers train */
            if (job->enough) {
                sh_crew_close(job);
            }
        }
    }
    if (err != SHOAL_OK || job->result.stopped) {
        return err;
    }
    return job->enough ? sh_job_test(job)
                       : sh_job_epoch(job, job->o.epochs, true); /* again: the workers have trained since */
}

/* ---- checkpoints ---- */

static shoal_err take_position(sh_job *job, const sh_checkpoint *c, int rank, int64_t epoch, int64_t batch)
{
    int64_t batches = sh_shard_batches(&job->settings, shoal_dataset_length(job->train_set), rank);
    if (epoch < 0 || batch < 0 || batch > batches) {
        return sh_fail(SHOAL_ECORRUPT, "%s: the checkpoint is broken: worker %d is at batch %lld of epoch %lld",
                       c->path, rank, (long long)batch, (long long)epoch);
    }
    sh_job_place(job, rank, epoch, batch);
    return SHOAL_OK;
}

/* Passes each worker's position: epoch and batch. Positions are taken before the parameters, which keep changing while
 * they are written: a resumed job repeats what a worker did in between. */
static shoal_err pass_positions(sh_job *job, sh_checkpoint *c, shoal_tensor *positions)
{
    int64_t *at = shoal_tensor_data(positions);
    for (int i = 0; i < job->o.workers && c->writing; i++) {
        uint64_t position = sh_racy_load(&job->board->workers[i].position);
        at[2 * i] = (int64_t)(position >> 32);
        at[2 * i + 1] = (int64_t)(position & UINT32_MAX);
    }
    shoal_err err = sh_checkpoint_tensor(c, "positions", positions);
    int64_t begun = 0;
    for (int i = 0; i < job->o.workers && err == SHOAL_OK; i++) {
        int64_t epochs = at[2 * i] + (at[2 * i + 1] > 0 && at[2 * i] < INT64_MAX);
        begun = epochs > begun ? epochs : begun;
    }
    if (err == SHOAL_OK) {
        err = sh_checkpoint_check_epochs(job, c, begun);
    }
    for (int i = 0; i < job->o.workers && !c->writing && err == SHOAL_OK; i++) {
        err = take_position(job, c, i, at[2 * i], at[2 * i + 1]);
    }
    return err;
}

static shoal_err checkpoint(sh_job *job, sh_checkpoint *c)
{
    shoal_err err = sh_checkpoint_setting(c, "shard", job->o.shard ? "true" : "false");
    if (err == SHOAL_OK) {
        err = sh_checkpoint_setting(c, "shared_state", job->o.shared_state ? "true" : "false");
    }
    if (err == SHOAL_OK) {
        shoal_tensor *positions = shoal_empty(SHOAL_I64, SHOAL_SHAPE(job->o.workers, 2));
        err = positions != NULL ? pass_positions(job, c, positions) : shoal_last_error();
        shoal_tensor_release(positions);
    }
    return err == SHOAL_OK && job->own != NULL ? sh_checkpoint_map(c, "momentum", job->own) : err;
}

const sh_method sh_method_hogwild = {.name = "hogwild",
                                     .target = work,
                                     .open = open,
                                     .close = close,
                                     .arguments = arguments,
                                     .gather = sh_crew_hear,
                                     .run = run,
                                     .checkpoint = checkpoint};
