/* The job's side of a step of sync with averaged gradients.
 *
 * A round is one batch of each worker. Each worker leaves its gradients in a model whose values are gradients. The job
 * averages them, weighted by samples, so the mean is the gradient of all the batches together. Then it takes the step,
 * which makes the parameters of the next round. Only the job has momentum. */
#ifndef SH_TRAIN_GRADIENTS_H
#define SH_TRAIN_GRADIENTS_H

#include "train/job/job.h"

typedef struct sh_gradients sh_gradients;

shoal_err sh_gradients_open(sh_job *job, sh_gradients **out_gradients);
void sh_gradients_close(sh_gradients *g);

/* Returns the model in which the worker of that rank leaves its gradients. */
shoal_module *sh_gradients_of(const sh_gradients *g, int rank);

/* Changes the job's model, when all workers have left their gradients of that round. rounds: how many an epoch has. */
shoal_err sh_gradients_step(sh_gradients *g, sh_job *job, int64_t round, int64_t rounds);

/* Writes the momentum to a checkpoint, or reads it. */
shoal_err sh_gradients_checkpoint(sh_gradients *g, sh_checkpoint *c);

#endif
