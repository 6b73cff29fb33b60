/* sync with gradients averaged: the job's side of a step.
 *
 * A round is a batch of each worker. The workers leave their gradients in models of their own, whose values are gradients; the job
 * makes one gradient of them, weighted by samples, so it is that of the batches put together; takes the step; and the parameters that
 * the next round begins with are there. Momentum is the job's alone. */
#ifndef SH_TRAIN_GRADIENTS_H
#define SH_TRAIN_GRADIENTS_H

#include "train/job.h"

typedef struct sh_gradients sh_gradients;

shoal_err sh_gradients_open(sh_job *job, sh_gradients **out_gradients);
void sh_gradients_close(sh_gradients *g);

/* Where the worker of that rank leaves its gradients. */
shoal_module *sh_gradients_of(const sh_gradients *g, int rank);

/* All workers have left theirs of that round, of so many in an epoch: changes the job's model. */
shoal_err sh_gradients_step(sh_gradients *g, sh_job *job, int64_t round, int64_t rounds);

/* The momentum. */
shoal_err sh_gradients_checkpoint(sh_gradients *g, sh_checkpoint *c);

/* Worker: copies the gradients of a model, and its buffers, into one that holds gradients. */
shoal_err sh_gradients_leave(shoal_module *gradients, shoal_module *model);

#endif
