/* Hogwild (Niu et al., "Hogwild!: a lock-free approach to parallelizing stochastic gradient descent", 2011): all workers change the
 * same parameters, all the time, without locks; an update may be lost, and that is on purpose.
 *
 * Nobody waits for anybody. A worker that died goes on where its position stands, with new momentum. */
#include "train/job.h"

#include "base/error.h"

static shoal_err work(int rank, const shoal_value *args)
{
    sh_worker w;
    shoal_err err = sh_worker_open(&w, rank, args);
    uint64_t position = err == SHOAL_OK ? sh_racy_load(&w.progress->position) : 0;
    int64_t epoch = (int64_t)(position >> 32), batch = (int64_t)(position & UINT32_MAX);
    while (err == SHOAL_OK && epoch < w.settings.epochs && !sh_worker_stopped(&w)) {
        err = sh_worker_train(&w, epoch, batch, INT64_MAX);
        if (err == SHOAL_OK && !sh_worker_stopped(&w)) {
            sh_racy_store(&w.progress->position, sh_position(++epoch, 0));
            batch = 0;
        }
    }
    sh_worker_close(&w);
    return err;
}

/* Epochs that every worker has finished. */
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
    while (err == SHOAL_OK && !sh_crew_done(job) && !job->result.stopped) {
        err = sh_crew_wait(job);
        int64_t epochs = finished(job);
        if (err == SHOAL_OK && epochs > job->result.epochs && epochs < job->o.epochs && !sh_job_over(job)) {
            err = sh_job_epoch(job, epochs, false); /* while they go on */
        }
    }
    if (err != SHOAL_OK || job->result.stopped) {
        return err;
    }
    return job->enough ? sh_job_test(job) : sh_job_epoch(job, job->o.epochs, true); /* again: they had gone on */
}

/* ---- checkpoints ---- */

static shoal_err take_position(sh_job *job, const sh_checkpoint *c, int rank, int64_t epoch, int64_t batch)
{
    int64_t batches = sh_shard_batches(&job->settings, shoal_dataset_length(job->train_set), rank);
    if (epoch < 0 || batch < 0 || batch > batches) {
        return sh_fail(SHOAL_ECORRUPT, "%s: a broken checkpoint: worker %d is at batch %lld of epoch %lld", c->path,
                       rank, (long long)batch, (long long)epoch);
    }
    if (epoch > job->o.epochs || (epoch == job->o.epochs && batch > 0)) {
        return sh_fail(SHOAL_EINVAL,
                       "%s: worker %d has finished %lld epochs there and is at batch %lld; %lld are asked for", c->path,
                       rank, (long long)epoch, (long long)batch, (long long)job->o.epochs);
    }
    sh_job_place(job, rank, epoch, batch);
    return SHOAL_OK;
}

/* Where each worker is: epoch and batch. They are noted before the parameters, which go on changing while they are written: what a
 * worker does in between is done again by the job that is resumed. */
static shoal_err pass_positions(sh_job *job, sh_checkpoint *c, shoal_tensor *positions)
{
    int64_t *at = shoal_tensor_data(positions);
    for (int i = 0; i < job->o.workers && c->writing; i++) {
        uint64_t position = sh_racy_load(&job->board->workers[i].position);
        at[2 * i] = (int64_t)(position >> 32);
        at[2 * i + 1] = (int64_t)(position & UINT32_MAX);
    }
    shoal_err err = sh_checkpoint_tensor(c, "positions", positions);
    for (int i = 0; i < job->o.workers && !c->writing && err == SHOAL_OK; i++) {
        err = take_position(job, c, i, at[2 * i], at[2 * i + 1]);
    }
    if (err == SHOAL_OK && !c->writing) {
        job->result.epochs = finished(job);
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
    return err;
}

const sh_method sh_method_hogwild = {.name = "hogwild", .target = work, .run = run, .checkpoint = checkpoint};
