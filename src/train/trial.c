/* Trials: the job's side, and a worker's. */
#include "train/trial.h"
#include "train/card.h"

#include "base/clock.h"
#include "base/death.h"
#include "base/error.h"
#include "proc/supervisor.h"

#include <shoal/share.h>

#include <stdlib.h>

/* ---- the job ---- */

shoal_err sh_trial_open(sh_job *job)
{
    job->packed_test = job->test_set != NULL ? shoal_value_dataset(job->test_set) : NULL;
    if (job->packed_test == NULL) {
        return SHOAL_OK;
    }
    size_t batches = (size_t)sh_evaluate_batches(job->test_set);
    return shoal_block_create_zeroed(batches * sizeof(sh_trial_part_shm), &job->trial_block);
}

void sh_trial_close(sh_job *job)
{
    shoal_release(job->trial_block);
    shoal_value_destroy(job->packed_test);
}

static bool is_tested(const sh_job *job, int64_t batch)
{
    const sh_trial_part_shm *parts = shoal_block_data(job->trial_block);
    return sh_load_acquire(&parts[batch].trial) == job->trial; /* pairs with the worker's store: the sums are there */
}

/* Returns whether a worker still has to test batches. */
static bool is_running(const sh_job *job)
{
    for (int64_t i = 0; i < sh_evaluate_batches(job->test_set); i++) {
        if (!is_tested(job, i) && sh_supervisor_runs(job->workers, (int)(i % job->o.workers))) {
            return true;
        }
    }
    return false;
}

/* Adds up the scores in order. The job tests what nobody has: after a stop, a worker that died is not replaced. */
static shoal_err add_up(sh_job *job, double *out_loss, double *out_accuracy)
{
    const sh_trial_part_shm *parts = shoal_block_data(job->trial_block);
    sh_evaluator e = {.set = job->test_set};
    double loss = 0, right = 0;
    shoal_err err = SHOAL_OK;
    for (int64_t i = 0; err == SHOAL_OK && i < sh_evaluate_batches(job->test_set); i++) {
        sh_score s;
        if (is_tested(job, i)) {
            s = (sh_score){.loss = parts[i].loss, .right = parts[i].right};
        } else {
            err = sh_evaluate_batch(&e, job->model, i, &s);
        }
        loss += err == SHOAL_OK ? s.loss : 0;
        right += err == SHOAL_OK ? s.right : 0;
    }
    sh_evaluator_fini(&e);
    if (err == SHOAL_OK) {
        *out_loss = loss / (double)shoal_dataset_length(job->test_set);
        *out_accuracy = right / (double)shoal_dataset_length(job->test_set);
    }
    return err;
}

/* After a stop of the job, does not wait for ever for a worker that is itself stopped. The job tests what it has not. */
static shoal_err wait_for_workers(sh_job *job)
{
    shoal_err err = SHOAL_OK;
    int64_t limit = SH_NO_DEADLINE;
    while (err == SHOAL_OK && is_running(job)) {
        err = sh_crew_wait(job);
        if (job->result.stopped && limit == SH_NO_DEADLINE) {
            limit = sh_deadline(sh_crew_grace);
        }
        if (sh_passed(limit)) {
            sh_crew_put_down(job);
        }
    }
    return err;
}

shoal_err sh_trial_run(sh_job *job, double *out_loss, double *out_accuracy)
{
    if (job->trial_block == NULL || job->workers == NULL || sh_crew_done(job)) {
        return shoal_evaluate(job->model, job->test_set, out_loss, out_accuracy);
    }
    shoal_err err = SHOAL_OK;
    sh_store_release(&job->board->trial, ++job->trial); /* a worker that sees it sees the parameters to test */
    for (int i = 0; i < job->o.workers && err == SHOAL_OK; i++) {
        err = sh_crew_give(job, i, SH_TASK_TRIAL);
    }
    if (err == SHOAL_OK) {
        err = wait_for_workers(job);
    }
    return err == SHOAL_OK ? add_up(job, out_loss, out_accuracy) : err;
}

/* ---- a worker ---- */

static void publish(sh_trial_part_shm *part, sh_score s, uint64_t trial)
{
    part->loss = s.loss;
    part->right = s.right;
    SH_DEATH("train.trial.scored"); /* death: the batch is tested again */
    sh_store_release(&part->trial, trial);
}

/* Publishes the score of a batch that was started. */
static shoal_err publish_sums(sh_trial_part_shm *part, const sh_batch *sums, uint64_t trial)
{
    sh_score s;
    shoal_err err = sh_evaluate_read(sums, &s);
    if (err == SHOAL_OK) {
        publish(part, s, trial);
    }
    return err;
}

/* Tests this rank's batches by kernels that the card has for this model. *out_done: false if it has none. */
static shoal_err test_by_card(sh_worker *w, int64_t batches, uint64_t trial, bool *out_done)
{
    sh_score *scores = calloc((size_t)batches, sizeof *scores);
    shoal_err err = scores ? sh_card_score(w, scores, out_done)
                           : sh_fail(SHOAL_ENOMEM, "no memory to test %lld batches", (long long)batches);
    for (int64_t i = w->rank; i < batches && err == SHOAL_OK && *out_done; i += w->settings.workers) {
        if (sh_load_relaxed(&w->parts[i].trial) != trial) {
            publish(&w->parts[i], scores[i], trial);
        }
    }
    free(scores);
    return err;
}

/* Tests this rank's batches: all are started before the first score is read, so that a card does not wait in between.
 * sums has room for all batches. Those that a dead process of this rank has tested are left out. */
static shoal_err test_batches(sh_worker *w, int64_t batches, uint64_t trial, sh_batch *sums)
{
    shoal_module *module = w->card ? sh_card_module(w->card) : w->global;
    bool done = false;
    shoal_err err = w->card ? test_by_card(w, batches, trial, &done) : SHOAL_OK;
    if (err != SHOAL_OK || done) {
        return err;
    }
    for (int64_t i = w->rank; i < batches && err == SHOAL_OK; i += w->settings.workers) {
        if (sh_load_relaxed(&w->parts[i].trial) != trial) {
            err = sh_evaluate_start(&w->evaluator, module, i, &sums[i]);
        }
    }
    for (int64_t i = w->rank; i < batches; i += w->settings.workers) {
        err = err == SHOAL_OK && sums[i].x ? publish_sums(&w->parts[i], &sums[i], trial) : err;
        sh_batch_release(&sums[i]);
    }
    return err;
}

/* Brings what is tested and what the job has together. */
static shoal_err agree(sh_worker *w)
{
    if (w->card && w->model_is_apart) {
        return sh_card_take_common(w->card, w->global);
    }
    return w->card && w->rank == 0 ? sh_card_give(w->card, w->model) : SHOAL_OK; /* what the job saves */
}

shoal_err sh_worker_test(sh_worker *w)
{
    uint64_t trial = sh_load_acquire(&w->board->trial);
    int64_t batches = w->test_set != NULL ? sh_evaluate_batches(w->test_set) : 0;
    sh_batch *sums = calloc((size_t)batches + 1, sizeof *sums);
    shoal_err err = sums ? SHOAL_OK : sh_fail(SHOAL_ENOMEM, "no memory to test %lld batches", (long long)batches);
    if (err == SHOAL_OK && w->rank < batches) {
        err = agree(w);
        err = err == SHOAL_OK ? test_batches(w, batches, trial, sums) : err;
    }
    free(sums);
    w->trial = trial;
    return err == SHOAL_OK ? sh_worker_ring(w, SH_TASK_TRIAL) : err;
}
