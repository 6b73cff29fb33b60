/* A training job, in the process that runs it. Calls go one way: job.c calls the method; methods call epoch.c and
 * crew.c; epoch.c calls scoring.c and checkpoint.c; scoring.c calls crew.c; all of them call report.c. */
#ifndef SH_TRAIN_JOB_H
#define SH_TRAIN_JOB_H

#include "train/job/method.h"
#include "train/job/past.h"
#include "train/job/worker.h"

struct sh_job {
    shoal_train_options o; /* with all defaults filled in */
    const sh_method *method;
    sh_settings settings;
    sh_service *service; /* of the workers' engines; NULL: they need none */
    shoal_module *model;
    bool own_model;
    shoal_dataset *train_set, *test_set;
    shoal_value *packed, *packed_test; /* the sets; packed_test: NULL if the workers cannot test */
    shoal_block *board_block;
    sh_board_shm *board;
    shoal_queue *answers;            /* from all workers */
    shoal_queue **tasks;             /* to each worker: of the current process of the rank */
    shoal_block *scores_block;       /* sh_score_shm (scoring.h) for each batch of the test set; NULL: none */
    uint64_t test;                   /* the number of the last test by the workers */
    struct sh_supervisor *workers;   /* NULL: not started */
    char (*died)[SHOAL_STATUS_TEXT]; /* for each rank a death that is not reported yet; "": none */
    bool *killed;             /* for each rank: the job has killed its process, which does not count as a death */
    shoal_train_worker *seen; /* for the callback */
    struct {                  /* since when no worker has made progress (crew.c) */
        uint64_t sum;
        int64_t since; /* sh_now; 0: not checked yet */
        int replaced;  /* how often the service and the workers were replaced since then */
        bool began;    /* a worker has made progress before */
    } stall;
    void *own; /* the method's own state */
    int64_t images_total;
    int64_t begun, train_begun, next_tick;
    int64_t idle; /* nanoseconds since train_begun in which no worker trained */
    bool training;
    bool saved;            /* the file already has the end of the job */
    sh_past past;          /* the epochs that were reported */
    bool enough;           /* o.until is reached; a method may set it when it reads a checkpoint */
    int64_t images_before; /* images of the job that this one resumes; part of result.images */
    shoal_train_result result;
};

/* options.c: returns the options with defaults filled in, and 0 where a negative number means none. */
shoal_train_options sh_job_defaults(const shoal_train_options *options);

/* Returns whether the job is over: it was stopped, or the model is good enough. */
static inline bool sh_job_over(const sh_job *job)
{
    return job->result.stopped || job->enough;
}

/* ---- report.c: what the job knows of its workers, and its events */

/* update reads the board and the clock into job->seen and job->result, and returns the mean loss; update_clock reads
 * the clock only. tell updates, then calls the callback with an event, which may stop the job. tell_result calls it
 * with job->result as it is. */
double sh_job_update(sh_job *job);
void sh_job_update_clock(sh_job *job);
void sh_job_tell(sh_job *job, shoal_train_event_kind kind, int worker, const char *text);
void sh_job_tell_result(sh_job *job, shoal_train_event_kind kind, double loss);
void sh_job_stop(sh_job *job);

/* Reports what the service has to say, once. */
void sh_job_tell_note(sh_job *job);

/* Returns SHOAL_ENAN if a worker's loss, or the last test loss, is NaN or infinite, and the options do not allow
 * that. */
shoal_err sh_job_check_losses(const sh_job *job);

/* Sets the position from which the worker of that rank continues; everything before it is done. */
void sh_job_place(sh_job *job, int rank, int64_t epoch, int64_t batch);

/* ---- checkpoint.c: save writes o.save, if it is set; resume reads o.resume. */
shoal_err sh_job_save(sh_job *job);
shoal_err sh_job_resume(sh_job *job);

/* Checks, when a checkpoint is read, that the job is long enough for the epochs that are finished or begun. Errors:
 * SHOAL_EINVAL. */
shoal_err sh_checkpoint_check_epochs(const sh_job *job, const sh_checkpoint *c, int64_t begun);

/* ---- epoch.c */

/* Tests the model. */
shoal_err sh_job_test(sh_job *job);

/* Returns whether the model has reached o.until. */
bool sh_job_good_enough(const sh_job *job);

/* Called when more epochs are finished; finished is their total. Tests the model, saves, and reports each new epoch to
 * the callback. In this order, so that a reported epoch is in the file, and a job that is killed and resumed does not
 * report it again. pause: the workers rest meanwhile. If the model is good enough, the job is over afterwards. */
shoal_err sh_job_epoch(sh_job *job, int64_t finished, bool pause);

#endif
