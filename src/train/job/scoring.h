/* Scoring: one test of the job's model, by all workers. Batch i of the test set belongs to the worker of rank i %
 * workers. The job adds up the scores of all batches in order, so the sums do not depend on the number of workers, nor
 * on deaths.
 *
 * The job writes the number of the test on the board and puts SH_TASK_TEST on the workers' queues, to wake those that
 * wait. A worker that trains sees the number before its next step. */
#ifndef SH_TRAIN_SCORING_H
#define SH_TRAIN_SCORING_H

#include "train/job/job.h"

/* The score of a batch.
 *
 *   test              means
 *   an earlier one    the batch is not tested yet in this test
 *   this one          the sums are those of this test
 *
 * Synchronisation: the worker of the batch's rank writes; the job, and the next process of that rank, read.
 *   test   stored (release) after the sums; loaded (acquire) by the job, which then sees the sums
 * death: before the store the batch counts as not tested: the next process of that rank tests it, or the job if there
 * is none. */
typedef struct sh_score_shm {
    sh_a64 test;
    double loss, right;
} sh_score_shm;

/* Makes the memory for scores, if the workers can open the test set. Otherwise, and while no workers run, the job tests
 * the model alone. */
shoal_err sh_scoring_open(sh_job *job);
void sh_scoring_close(sh_job *job);

/* Tests the job's model. Reports ticks and deaths meanwhile. */
shoal_err sh_scoring_run(sh_job *job, double *out_loss, double *out_accuracy);

#endif
