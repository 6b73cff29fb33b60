/* A training job, in the process that runs it. */
#ifndef SH_TRAIN_JOB_H
#define SH_TRAIN_JOB_H

#include "train/checkpoint.h"
#include "train/mps.h"
#include "train/past.h"
#include "train/worker.h"

#include <shoal/train.h>

typedef struct sh_job sh_job;

/* A training method: what its workers run, and what the job does while they run. */
typedef struct sh_method {
    const char *name;
    shoal_target target;
    bool alone;   /* it has exactly one worker */
    bool shards;  /* each worker has its own part of the set */
    bool no_data; /* opens no sets: workers make their own samples, and the model is not tested */

    /* Fills in options that were not given (0, NULL) and whose default differs from that of other methods. May be
     * NULL. */
    void (*defaults)(shoal_train_options *o);

    /* Checks the method's own options, with all defaults filled in, and the model's name if the method makes models.
     * May be NULL. */
    shoal_err (*check)(const shoal_train_options *o);

    /* Makes the model that o->model names. If NULL, o->model names a built-in model. */
    shoal_module *(*make_model)(const shoal_train_options *o);

    /* Makes the method's own state, which close frees. May be NULL. */
    shoal_err (*open)(sh_job *job);
    void (*close)(sh_job *job);

    /* Returns the model that a worker trains. If NULL, it is the job's model. */
    shoal_module *(*model)(sh_job *job, int rank);

    /* Returns a worker's arguments beside the common ones; called at each of its starts. If it returns NULL, the start
     * fails with the last error. May be NULL. */
    shoal_value *(*arguments)(sh_job *job, int rank);

    /* Receives what workers have sent. Called before the end of a worker is handled, so that nothing it sent is missed.
     * May be NULL. */
    shoal_err (*gather)(sh_job *job);

    /* Runs the job from the start of the workers until it is done or stopped. If checkpoint has read a file, it
     * continues from that position. */
    shoal_err (*run)(sh_job *job);

    /* Writes to a checkpoint, or reads from it, the method's own settings that must agree, its position and its state.
     * It uses the calls of checkpoint.h, in the same order both ways. May be NULL.
     *
     * The job's process writes: before the workers start, after an epoch (inside sh_job_epoch), and at the end, when no
     * worker runs any more, also after a stop at any moment. What it writes, together with the model, must be a state
     * from which run can continue: the parameters of job->model are written right after this returns, and must belong
     * to the position. Tensors are borrowed until then.
     * Reading happens after open, before the model's parameters are read and workers start. The settings that all
     * methods have, and result.epochs, result.test_loss and result.test_accuracy have already been read. It sets each
     * worker's entry on the board (sh_job_place). It may change only the method's own state, so that a later failure
     * leaves the model unchanged. */
    shoal_err (*checkpoint)(sh_job *job, sh_checkpoint *c);
} sh_method;

extern const sh_method sh_method_hogwild, sh_method_serial, sh_method_sync, sh_method_local, sh_method_fedavg,
    sh_method_a3c;

const sh_method *sh_method_of(shoal_train_method method); /* NULL: none */

struct sh_job {
    shoal_train_options o; /* with all defaults filled in */
    const sh_method *method;
    sh_settings settings;
    sh_mps mps;
    shoal_module *model;
    bool own_model;
    shoal_dataset *train_set, *test_set;
    shoal_value *packed, *packed_test; /* the sets; packed_test: NULL if the workers cannot test */
    shoal_block *board_block;
    sh_board_shm *board;
    shoal_queue *answers;            /* from all workers */
    shoal_queue **tasks;             /* to each worker: of the current process of the rank */
    shoal_block *trial_block;        /* sh_trial_part_shm (trial.h) for each batch of the test set; NULL: none */
    uint64_t trial;                  /* the number of the last trial */
    shoal_process *probe;            /* NULL: none */
    struct sh_supervisor *workers;   /* NULL: not started */
    char (*died)[SHOAL_STATUS_TEXT]; /* for each rank a death that is not reported yet; "": none */
    bool *put_down;                  /* for each rank: the job has killed its process, which is no death */
    shoal_train_worker *seen;        /* for the callback */
    struct {                         /* since when no worker has gone on (crew.c) */
        uint64_t sum;
        int64_t since; /* sh_now; 0: nobody has looked yet */
        int replaced;  /* how often MPS and the workers were, since then */
        bool began;    /* a worker has gone on before */
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

/* Returns the options with defaults filled in, and 0 where a negative number means none. */
shoal_train_options sh_job_defaults(const shoal_train_options *options);

/* job.c: open and close a job. close accepts a half-opened one. */
shoal_err sh_job_open(sh_job *job, const shoal_train_options *options);
void sh_job_close(sh_job *job);

/* tell reports an event to the callback, and stops the job if the callback asks for it. */
void sh_job_tell(sh_job *job, shoal_train_event_kind kind, int worker, const char *text);
void sh_job_stop(sh_job *job);

/* Reports what there is to say about MPS, once. */
void sh_job_tell_mps(sh_job *job);

/* Returns whether the job is over: it was stopped, or the model is good enough. */
static inline bool sh_job_over(const sh_job *job)
{
    return job->result.stopped || job->enough;
}

/* Tests the model. */
shoal_err sh_job_test(sh_job *job);

/* Returns SHOAL_ENAN if a worker's loss, or the last test loss, is NaN or infinite, and the options do not allow
 * that. */
shoal_err sh_job_check_losses(const sh_job *job);

/* Called when more epochs are finished; finished is their total. Tests the model, saves, and reports each new epoch to
 * the callback. In this order, so that a reported epoch is in the file, and a job that is killed and resumed does not
 * report it again. pause: the workers rest meanwhile. If the model is good enough, the job is over afterwards. */
shoal_err sh_job_epoch(sh_job *job, int64_t finished, bool pause);

/* Sets the position from which the worker of that rank continues; everything before it is done. */
void sh_job_place(sh_job *job, int rank, int64_t epoch, int64_t batch);

/* probe.c: finds out whether there is a card, if the job needs one. start returns while it is looked for; end waits for
 * the answer. Errors: as for sh_device_get. */
shoal_err sh_probe_start(sh_job *job);
shoal_err sh_probe_end(sh_job *job);

/* crew.c: note_mps lets the workers that are started from now on know about MPS. start starts all members. wait waits for
 * any event, at most a twentieth of a second, and handles members that ended: one whose target returned is done, one that
 * died is restarted. */
extern int64_t sh_crew_stall; /* how long nobody goes on before MPS and the workers are replaced; less in tests */
void sh_crew_note_mps(sh_job *job);
shoal_err sh_crew_start(sh_job *job);
shoal_err sh_crew_wait(sh_job *job);
bool sh_crew_done(const sh_job *job);

/* give puts a task on a worker's queue. close closes these queues: the workers end when they wait for a task. take
 * receives a number from a worker; SHOAL_ETIMEDOUT if there is none. hear takes all, for methods whose workers only
 * ring. */
shoal_err sh_crew_give(sh_job *job, int rank, int64_t task);
void sh_crew_close(sh_job *job);
shoal_err sh_crew_take(sh_job *job, int64_t *out_number);
shoal_err sh_crew_hear(sh_job *job);

/* Kills all workers that run. These are no deaths: the workers are replaced, unless the job is over. */
void sh_crew_put_down(sh_job *job);

/* Asks the workers to stop, waits for them, and ends those that do not. */
extern int64_t sh_crew_grace; /* how long it waits for the step in progress; less in tests */
void sh_crew_end(sh_job *job);

/* checkpoint.c: save writes o.save, if it is set; resume reads o.resume. */
shoal_err sh_job_save(sh_job *job);
shoal_err sh_job_resume(sh_job *job);

/* Checks, when a checkpoint is read, that the job is long enough for the epochs that are finished or begun. Errors:
 * SHOAL_EINVAL. */
shoal_err sh_checkpoint_check_epochs(const sh_job *job, const sh_checkpoint *c, int64_t begun);

#endif
