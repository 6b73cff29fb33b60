/* The methods with rounds. In a round all workers train from the same parameters, and the job makes the next parameters
 * from their results: the mean, or what the method's own reduce makes (sh_rounds_reduce).
 *
 * Each worker has its own model in shared memory. A round: the job puts the round's number on each worker's queue. A
 * worker copies the job's parameters into its model, trains on its batches of the round and answers. When all answers
 * are there, the job's parameters become the mean, added in the order of ranks. Nothing changes the state that a round
 * begins with (the job's parameters, and the momentum of the round before) during the round. So a worker that died is
 * restarted and repeats its round, and the result is bit-identical. */
#ifndef SH_TRAIN_ROUNDS_H
#define SH_TRAIN_ROUNDS_H

#include "train/job/job.h"

typedef enum sh_rounds_kind {
    SH_ROUNDS_ANEW,      /* momentum starts at zero in each round */
    SH_ROUNDS_KEEP,      /* each worker keeps its momentum from round to round */
    SH_ROUNDS_GRADIENTS, /* workers send gradients instead of parameters: rounds of one batch, one momentum */
} sh_rounds_kind;

/* The plan of the rounds, the same for all workers; sent as bytes. */
typedef struct sh_rounds_plan {
    int64_t steps;  /* batches in a round */
    int64_t rounds; /* in an epoch */
    sh_rounds_kind kind;
} sh_rounds_plan;

/* Makes the job's next parameters from the workers' results of a round. */
typedef shoal_err (*sh_rounds_reduce)(sh_job *job, int64_t round);

/* Opens the rounds of a job. steps: batches in a round, 0 for a whole epoch. open_with is for a method with its own
 * state, which sh_rounds_own returns and the method frees, and its own reduce. Even if open_with fails, sh_rounds_own
 * returns the state. */
shoal_err sh_rounds_open(sh_job *job, int64_t steps, sh_rounds_kind kind);
shoal_err sh_rounds_open_with(sh_job *job, int64_t steps, sh_rounds_kind kind, void *own, sh_rounds_reduce reduce);
void *sh_rounds_own(const sh_job *job); /* NULL: not open */

/* Returns the number of batches in an epoch of the worker that has the most. */
int64_t sh_rounds_batches(const sh_job *job);
void sh_rounds_close(sh_job *job);
shoal_module *sh_rounds_model(sh_job *job, int rank);
shoal_value *sh_rounds_arguments(sh_job *job, int rank);
int64_t sh_rounds_task(sh_job *job, int rank);
void sh_rounds_hear(sh_job *job, int64_t number);
shoal_err sh_rounds_run(sh_job *job);
shoal_err sh_rounds_checkpoint(sh_job *job, sh_checkpoint *c); /* the common part: the round, and kept momentum */

shoal_err sh_rounds_work(int rank, const shoal_value *args);

/* Runs a worker's loop: takes rounds from its queue, trains each and answers it, until the job ends. */
shoal_err sh_rounds_serve(sh_worker *w, shoal_err (*train)(sh_worker *w, int64_t round));

/* The fields of sh_method that are the same for all methods with rounds. */
#define SH_METHOD_ROUNDS                                                                                               \
    .target = sh_rounds_work, .close = sh_rounds_close, .model = sh_rounds_model, .arguments = sh_rounds_arguments,    \
    .task = sh_rounds_task, .hear = sh_rounds_hear, .run = sh_rounds_run

/* An answer: a round and a rank in one number. */
static inline int64_t sh_answer(int64_t round, int rank)
{
    return round * SHOAL_TRAIN_WORKERS + rank;
}

#endif
