/* The job's side of a test, and a worker's. */
#include "train/job/scoring.h"
#include "train/job/crew.h"

#include "base/clock.h"
#include "base/death.h"
#include "base/error.h"
#include "proc/supervisor.h"

#include <shoal/share.h>

#include <stdlib.h>

/* ---- the job ---- */

shoal_err sh_scoring_open(sh_job *job)
{
    job->packed_test = job->test_set != NULL ? shoal_value_dataset(job->test_set) : NULL;
    if (job->packed_test == NULL) {
        return SHOAL_OK;
    }
    size_t batches = (size_t)sh_evaluate_batches(job->test_set);
    return shoal_block_create_zeroed(batches * sizeof(sh_score_shm), &job->scores_block);
}

void sh_scoring_close(sh_job *job)
{
    shoal_release(job->scores_block);
    shoal_value_destroy(job->packed_test);
}

static bool is_tested(const sh_job *job, int64_t batch)
{
    const sh_score_shm *scores = shoal_block_data(job->scores_block);
    return sh_load_acquire(&scores[batch].test) == job->test; /* pairs with the worker's store: the sums are there */
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

/* Adds up the scores in order. The job tests what no worker has: after a stop, a worker that died is not replaced. */
static shoal_err sum_scores(sh_job *job, sh_evaluator *e, sh_score *out_sum)
{
    const sh_score_shm *scores = shoal_block_data(job->scores_block);
    *out_sum = (sh_score){0, 0};
    for (int64_t i = 0; i < sh_evaluate_batches(job->test_set); i++) {
        sh_score s;
        if (is_tested(job, i)) {
            s = (sh_score){.loss = scores[i].loss, .right = scores[i].right};
        } else {
            SH_TRY(sh_evaluate_batch(e, job->model, i, &s));
        }
        out_sum->loss += s.loss;
        out_sum->right += s.right;
    }
    return SHOAL_OK;
}

static shoal_err add_up(sh_job *job, double *out_loss, double *out_accuracy)
{
    sh_evaluator e = {.set = job->test_set};
    double samples = (double)shoal_dataset_length(job->test_set);
    sh_score sum;
    shoal_err err = sum_scores(job, &e, &sum);
    sh_evaluator_fini(&e);
    SH_TRY(err);
    *out_loss = sum.loss / samples;
    *out_accuracy = sum.right / samples;
    return SHOAL_OK;
}

/* After a stop of the job, does not wait for ever for a worker that is itself stopped. The job tests what it has
 * not. */
static shoal_err wait_for_workers(sh_job *job)
{
    int64_t limit = SH_NO_DEADLINE;
    while (is_running(job)) {
        SH_TRY(sh_crew_wait(job));
        if (job->result.stopped && limit == SH_NO_DEADLINE) {
            limit = sh_deadline(sh_crew_grace);
        }
        if (sh_passed(limit)) {
            sh_crew_kill(job);
        }
    }
    return SHOAL_OK;
}

shoal_err sh_scoring_run(sh_job *job, double *out_loss, double *out_accuracy)
{
    if (job->scores_block == NULL || job->workers == NULL || sh_crew_done(job)) {
        return shoal_evaluate(job->model, job->test_set, out_loss, out_accuracy);
    }
    sh_store_release(&job->board->test, ++job->test); /* a worker that sees it sees the parameters to test */
    for (int i = 0; i < job->o.workers; i++) {
        SH_TRY(sh_crew_send(job, i, SH_TASK_TEST));
    }
    SH_TRY(wait_for_workers(job));
    return add_up(job, out_loss, out_accuracy);
}

/* ---- a worker ---- */

static void publish(sh_score_shm *to, sh_score s, uint64_t test)
{
    to->loss = s.loss;
    to->right = s.right;
    SH_DEATH("train.scored"); /* death: the batch is tested again */
    sh_store_release(&to->test, test);
}

/* Tests this rank's batches, except those that a dead process of this rank has tested. numbers and scores have room for
 * all batches. */
static shoal_err test_batches(sh_worker *w, uint64_t test, int64_t *numbers, sh_score *scores)
{
    int64_t count = 0, batches = sh_evaluate_batches(w->test_set);
    for (int64_t i = w->rank; i < batches; i += w->settings.workers) {
        if (sh_load_relaxed(&w->scores[i].test) != test) {
            numbers[count++] = i;
        }
    }
    SH_TRY(w->engine->type->test(w->engine, w->model_is_apart ? w->global : NULL, numbers, count, scores));
    for (int64_t i = 0; i < count; i++) {
        publish(&w->scores[numbers[i]], scores[i], test);
    }
    return SHOAL_OK;
}

/* Tests this rank's batches. If the workers share parameters, the first one stores those that are tested: the job saves
 * them. */
static shoal_err do_part(sh_worker *w, uint64_t test)
{
    size_t batches = (size_t)sh_evaluate_batches(w->test_set);
    int64_t *numbers = calloc(batches, sizeof *numbers);
    sh_score *scores = calloc(batches, sizeof *scores);
    shoal_err err =
        numbers != NULL && scores != NULL ? SHOAL_OK : sh_fail(SHOAL_ENOMEM, "no memory to test %zu batches", batches);
    if (err == SHOAL_OK && !w->model_is_apart && w->rank == 0) {
        err = w->engine->type->store(w->engine, w->model);
    }
    if (err == SHOAL_OK) {
        err = test_batches(w, test, numbers, scores);
    }
    free(numbers);
    free(scores);
    return err;
}

shoal_err sh_worker_test(sh_worker *w)
{
    uint64_t test = sh_load_acquire(&w->board->test);
    if (w->test_set != NULL && w->rank < sh_evaluate_batches(w->test_set)) {
        SH_TRY(do_part(w, test));
    }
    w->test = test;
    return sh_worker_ring(w, SH_TASK_TEST);
}
