/* The methods with rounds. Each worker trains from the same parameters, and the job makes the next ones of what they give: their mean, or
 * what the method's own reduce makes (sh_rounds_reduce).
 *
 * Each worker has a model of its own in shared memory. A round: the job puts the round's number on each worker's queue; a worker
 * copies the job's parameters into its own, trains on its batches of the round and answers; with all answers there the job's
 * parameters become the mean, in the order of ranks. What a round begins with (the job's parameters, and the momentum as the round
 * before left it) is changed by nobody during the round, so a worker that died is started again and its round repeated, and the
 * result is the same to the bit. */
#ifndef SH_TRAIN_ROUNDS_H
#define SH_TRAIN_ROUNDS_H

#include "train/job.h"

typedef enum sh_rounds_kind {
    SH_ROUNDS_ANEW,      /* momentum begins anew with each round */
    SH_ROUNDS_KEEP,      /* each worker's momentum goes on from round to round */
    SH_ROUNDS_GRADIENTS, /* workers give gradients instead of parameters: rounds of one batch, one momentum */
} sh_rounds_kind;

/* What rounds are, the same for all workers; travels as bytes. */
typedef struct sh_rounds_plan {
    int64_t steps;  /* batches in a round */
    int64_t rounds; /* in an epoch */
    sh_rounds_kind kind;
} sh_rounds_plan;

/* Makes the job's parameters of what the workers gave in a round. */
typedef shoal_err (*sh_rounds_reduce)(sh_job *job, int64_t round);

/* steps: batches in a round, 0 for all of an epoch. with: the same for a method that has more: its own state, which sh_rounds_own gives
 * back and the method frees, and its own way to reduce. When open_with fails, sh_rounds_own gives it all the same. */
shoal_err sh_rounds_open(sh_job *job, int64_t steps, sh_rounds_kind kind);
shoal_err sh_rounds_open_with(sh_job *job, int64_t steps, sh_rounds_kind kind, void *own, sh_rounds_reduce reduce);
void *sh_rounds_own(const sh_job *job); /* NULL: not open */

/* Batches in an epoch of the worker that has most. */
int64_t sh_rounds_batches(const sh_job *job);
void sh_rounds_close(sh_job *job);
shoal_module *sh_rounds_model(sh_job *job, int rank);
shoal_value *sh_rounds_arguments(sh_job *job, int rank);
shoal_err sh_rounds_gather(sh_job *job);
shoal_err sh_rounds_run(sh_job *job);
shoal_err sh_rounds_checkpoint(sh_job *job,
                               sh_checkpoint *c); /* what all of them have: the round, and momentum that goes on */

shoal_err sh_rounds_work(int rank, const shoal_value *args);

/* A worker's loop: takes the rounds from its queue (own: its arguments of that name) and answers each that it has trained, until the
 * job ends. */
shoal_err sh_rounds_serve(sh_worker *w, const shoal_value *own, shoal_err (*train)(sh_worker *w, int64_t round));

/* The slots of a method that are the same for all of them. */
#define SH_METHOD_ROUNDS                                                                                               \
    .target = sh_rounds_work, .close = sh_rounds_close, .model = sh_rounds_model, .arguments = sh_rounds_arguments,    \
    .gather = sh_rounds_gather, .run = sh_rounds_run

/* Answers: a round and a rank in one number. */
static inline int64_t sh_answer(int64_t round, int rank)
{
    return round * SHOAL_TRAIN_WORKERS + rank;
}

#endif
