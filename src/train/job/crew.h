/* The workers of a job: the crew. Starts, watches and restarts them, and passes messages. Calls only those functions of
 * the method that method.h says. */
#ifndef SH_TRAIN_CREW_H
#define SH_TRAIN_CREW_H

#include "train/job/job.h"

/* Starts all workers. */
shoal_err sh_crew_start(sh_job *job);

/* Waits for any event, at most a twentieth of a second. Hands what the workers sent to the method, reports ticks and
 * deaths, and handles workers that ended: one whose target returned is done, one that died is started again. Errors:
 * SHOAL_ECHILD if a worker failed or died too often; those of sh_job_check_losses. */
extern int64_t sh_crew_stall; /* how long no worker makes progress before all are replaced; less in tests */
shoal_err sh_crew_wait(sh_job *job);

/* Returns whether no worker runs any more. */
bool sh_crew_done(const sh_job *job);

/* send puts a task on a worker's queue. close closes these queues: the workers end when they wait for a task. */
shoal_err sh_crew_send(sh_job *job, int rank, int64_t task);
void sh_crew_close(sh_job *job);

/* Kills all workers that run. This does not count as deaths: the workers are replaced, unless the job is over. */
void sh_crew_kill(sh_job *job);

/* Asks the workers to stop, waits for them, and ends those that do not. */
extern int64_t sh_crew_grace; /* how long it waits for the step in progress; less in tests */
void sh_crew_end(sh_job *job);

#endif
