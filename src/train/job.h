/* A job as the process that runs it sees it. */
#ifndef SH_TRAIN_JOB_H
#define SH_TRAIN_JOB_H

#include "train/checkpoint.h"
#include "train/past.h"
#include "train/worker.h"

#include <shoal/train.h>

typedef struct sh_job sh_job;

/* A method: what its workers run, and how the job goes on between their beginning and their end. */
typedef struct sh_method {
    const char *name;
    shoal_target target;
    bool alone;   /* one worker */
    bool shards;  /* each worker has its part of the set */
    bool no_data; /* no sets are opened: workers make their own samples, and the model is not tested */

    /* May be NULL: fills in what is not given (0, NULL) and has another default here than elsewhere. */
    void (*defaults)(shoal_train_options *o);

    /* May be NULL: checks what is the method's own, all defaults being filled in; the model's name too, when it makes models. */
    shoal_err (*check)(const shoal_train_options *o);

    /* May be NULL: makes the model that o->model names; else it is a ready one. */
    shoal_module *(*make_model)(const shoal_train_options *o);

    /* May be NULL: makes what the method needs beside the job's; freed by close. */
    shoal_err (*open)(sh_job *job);
    void (*close)(sh_job *job);

    /* May be NULL: the model that a worker trains; else it is the job's. */
    shoal_module *(*model)(sh_job *job, int rank);

    /* May be NULL: what a worker gets beside the common arguments, asked at each of its starts. NULL returned: the last error. */
    shoal_value *(*arguments)(sh_job *job, int rank);

    /* May be NULL: takes what workers have sent. Called before the end of a worker is dealt with, so that nothing it sent is
     * missed. */
    shoal_err (*gather)(sh_job *job);

    /* From the start of the workers until the job is done or stopped. Goes on from where checkpoint, if it was called to read, has
     * put the job. */
    shoal_err (*run)(sh_job *job);

    /* May be NULL: the method's own settings that must agree, its position and its state pass to a checkpoint or come from one, by
     * the calls of checkpoint.h, in the same order both ways.
     *
     * Writing happens in the job's process: before the workers start, after an epoch (between sh_job_epoch and its return), and at
     * the end, when no worker runs any more, also after a stop in the middle of anything. What is put there together with the
     * model must be a state from which run can go on: the parameters of job->model are written right after this returns, and they
     * must be those of the position. Tensors are borrowed until then.
     * Reading happens after open, before the model's parameters are read and workers start; the settings that all methods have,
     * and result.epochs, result.test_loss and result.test_accuracy have been read. It sets what the board says of each worker (sh_job_place). It may change
     * only what is the method's: a failure after it leaves the model as it was. */
    shoal_err (*checkpoint)(sh_job *job, sh_checkpoint *c);
} sh_method;

extern const sh_method sh_method_hogwild, sh_method_serial, sh_method_sync, sh_method_local, sh_method_fedavg,
    sh_method_a3c;

const sh_method *sh_method_of(shoal_train_method method); /* NULL: none */

struct sh_job {
    shoal_train_options o; /* with all defaults filled in */
    const sh_method *method;
    sh_settings settings;
    shoal_module *model;
    bool own_model;
    shoal_dataset *train_set, *test_set;
    shoal_value *packed; /* train_set */
    shoal_block *board_block;
    sh_board_shm *board;
    shoal_queue *answers;            /* of the method; NULL: none */
    struct sh_supervisor *workers;   /* NULL: not started */
    char (*died)[SHOAL_STATUS_TEXT]; /* for each rank a death that is not told of yet; "": none */
    shoal_train_worker *seen;        /* for the callback */
    void *own;                       /* the method's */
    int64_t images_total;
    int64_t begun, train_begun, next_tick;
    int64_t idle; /* nanoseconds since train_begun in which no worker trained */
    bool training;
    bool saved;            /* the file has the job's end already */
    sh_past past;          /* the epochs that were told */
    bool enough;           /* o.until is reached; in a checkpoint too, if a method finds so when it reads one */
    int64_t images_before; /* trained on by the job that this one resumes; part of result.images */
    shoal_train_result result;
};

/* The options with defaults filled in, and 0 where a negative number stands for none. */
shoal_train_options sh_job_defaults(const shoal_train_options *options);

/* job.c: what a job consists of. close takes a half-opened one. */
shoal_err sh_job_open(sh_job *job, const shoal_train_options *options);
void sh_job_close(sh_job *job);

/* Tells the callback; stops the job when it wants so. */
void sh_job_tell(sh_job *job, shoal_train_event_kind kind, int worker, const char *text);
void sh_job_stop(sh_job *job);

/* No more is to be done: it was stopped, or is good enough. */
static inline bool sh_job_over(const sh_job *job)
{
    return job->result.stopped || job->enough;
}

/* Tests the model. */
shoal_err sh_job_test(sh_job *job);

/* SHOAL_ENAN when a worker's loss, or that of the last test, is NaN or infinite, and that is not allowed. */
shoal_err sh_job_check_losses(const sh_job *job);

/* So many epochs are finished, more than before. Tests the model, saves, and tells the callback each epoch that it was not told yet. In
 * this order, so an epoch that was told is in the file, and who is killed and resumed does not tell it again. pause: the workers rest
 * meanwhile. When the model is good enough the job is over afterwards. */
shoal_err sh_job_epoch(sh_job *job, int64_t finished, bool pause);

/* The worker of that rank goes on with that batch of that epoch; what comes before is done. */
void sh_job_place(sh_job *job, int rank, int64_t epoch, int64_t batch);

/* crew.c: starts all members; waits for anything to happen, a twentieth of a second at most, and deals with ends: a member whose
 * target returned is done, one that died is started again. */
shoal_err sh_crew_start(sh_job *job);
shoal_err sh_crew_wait(sh_job *job);
bool sh_crew_done(const sh_job *job);

/* Methods whose workers only ring (job->answers): takes what they have put there. */
shoal_err sh_crew_hear(sh_job *job);

/* Asks the workers to stop, waits for them, and ends those that do not. */
void sh_crew_end(sh_job *job);

/* checkpoint.c: writes o.save, if it is wanted; reads o.resume. */
shoal_err sh_job_save(sh_job *job);
shoal_err sh_job_resume(sh_job *job);

#endif
