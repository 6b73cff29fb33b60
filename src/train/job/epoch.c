/* The end of an epoch: tests the model, saves, and reports. */
#include "train/job/scoring.h"

#include "base/clock.h"
#include "base/error.h"

shoal_err sh_job_test(sh_job *job)
{
    shoal_train_result *r = &job->result;
    if (job->test_set == NULL) {
        return SHOAL_OK;
    }
    SH_TRY(sh_scoring_run(job, &r->test_loss, &r->test_accuracy));
    r->tested_epoch = r->epochs;
    return SHOAL_OK;
}

bool sh_job_good_enough(const sh_job *job)
{
    return job->enough || (job->o.until > 0 && job->result.test_accuracy >= job->o.until);
}

/* Tests the model after `finished` epochs, decides whether it is good enough, and writes the file, including the epochs
 * from first on. */
static shoal_err finish(sh_job *job, int64_t first, int64_t finished, bool pause, double *out_loss)
{
    int64_t begun = sh_now();
    shoal_err err = sh_job_check_losses(job);
    job->result.epochs = finished;
    SH_TRY(err);
    SH_TRY(sh_job_test(job));
    SH_TRY(sh_job_check_losses(job));
    if (sh_job_good_enough(job)) {
        job->enough = true;
        job->result.reached_epoch = finished;
        sh_store_relaxed(&job->board->stop, 1);
    }
    job->idle += pause ? sh_now() - begun : 0;
    *out_loss = sh_job_update(job);
    for (int64_t epoch = first; epoch <= finished; epoch++) {
        sh_past_add(&job->past, &job->result, epoch, *out_loss);
    }
    begun = sh_now();
    err = sh_job_save(job);
    job->idle += pause ? sh_now() - begun : 0;
    return err;
}

shoal_err sh_job_epoch(sh_job *job, int64_t finished, bool pause)
{
    int64_t first = job->result.epochs + 1;
    double loss;
    SH_TRY(finish(job, first, finished, pause, &loss));
    for (job->result.epochs = first; job->result.epochs <= finished; job->result.epochs++) {
        sh_job_tell_result(job, SHOAL_TRAIN_EPOCH, loss);
    }
    job->result.epochs = finished;
    bool last = finished >= job->o.epochs || job->enough;
    job->saved = last && pause;
    if (!last && !job->result.stopped && job->o.save != NULL) {
        sh_job_tell(job, SHOAL_TRAIN_SAVE, -1, job->o.save);
    }
    return SHOAL_OK;
}
