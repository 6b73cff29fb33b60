/* The interface of a training method: what its workers run, and what the job does while they run.
 *
 * A method is one sh_method, and a line in options.c. It computes through its worker's engine (engines/engine.h) and
 * never knows which one that is. The job calls the method; a method calls the job (job.h, crew.h), mostly
 * from `run`. */
#ifndef SH_TRAIN_METHOD_H
#define SH_TRAIN_METHOD_H

#include "train/job/checkpoint.h"

#include <shoal/train.h>

typedef struct sh_job sh_job;

#define SH_NO_TASK INT64_C(-1)

struct sh_method {
    const char *name;
    shoal_target target; /* what a worker runs (worker.h) */
    bool alone;          /* it has exactly one worker */
    bool shards;         /* each worker has its own part of the set */
    bool no_data;        /* opens no sets: workers make their own samples, and the model is not tested */

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

    /* Called at each start of a worker. arguments returns its arguments beside the common ones; if it returns NULL, the
     * start fails with the last error. task returns the first task on its queue, or SH_NO_TASK; everything that the
     * process before has sent was heard by then. Both may be NULL. */
    shoal_value *(*arguments)(sh_job *job, int rank);
    int64_t (*task)(sh_job *job, int rank);

    /* hear gets each number that a worker sends to the job (sh_worker_ring). gather receives what workers put on queues
     * of the method. Called before the end of a worker is handled, so that nothing it sent is missed. Both may be
     * NULL. */
    void (*hear)(sh_job *job, int64_t number);
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
};

typedef struct sh_method sh_method;

extern const sh_method sh_method_hogwild, sh_method_serial, sh_method_sync, sh_method_local, sh_method_fedavg,
    sh_method_a3c;

const sh_method *sh_method_of(shoal_train_method method); /* NULL: none */

#endif
