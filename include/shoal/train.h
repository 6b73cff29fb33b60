/* Training by several processes: a job is described, run, and watched through one callback.
 *
 *     shoal_train_result r;
 *     shoal_train_options options = {.workers = 4, .epochs = 1};
 *     shoal_err err = shoal_train_run(&options, &r);
 *
 * Workers are processes that share the parameters (Hogwild) or give theirs to be averaged; the calling process starts them,
 * watches them and tests the model. A worker that dies is started again and goes on, and is counted.
 */
#ifndef SHOAL_TRAIN_H
#define SHOAL_TRAIN_H

#include <shoal/data.h>
#include <shoal/nn.h>
#include <shoal/process.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Most workers of a job. */
#define SHOAL_TRAIN_WORKERS 1024

/* What is shared, and when.
 *
 *   hogwild   the parameters, all the time, without locks; each worker its own momentum. Every worker passes over the whole set in
 *             an order of its own, so an epoch is as many passes as there are workers; or, with shard, over its part.
 *   serial    nothing: one worker.
 *   sync      each worker takes the common parameters, passes once over its contiguous part of the set, and the parameters
 *             become the mean of all. Momentum begins anew with each pass. With average = SHOAL_AVERAGE_GRADIENTS instead: one
 *             step a batch, by the mean of the workers' gradients.
 *   local     the mean of parameters every `steps` batches; each worker keeps its momentum.
 *   fedavg    federated averaging (McMahan et al. 2017). The set is split among `clients`. A round draws a fraction of them; each
 *             takes the common parameters and passes `local_epochs` times over its samples; then the parameters become the
 *             mean of theirs, weighted by numbers of samples. The workers are the drawn clients in turn: memory does not grow
 *             with clients. An epoch of the job is a round. Its defaults are those of the paper: model "fedavg-cnn", 20
 *             rounds, batch 10, no momentum.
 *   a3c       parameters and RMSprop's averages, all the time, without locks. The workers are actors, each in an environment of its
 *             own; there are no data sets (Mnih et al. 2016). See "a3c" below.
 *
 * serial, sync, local and fedavg give the same bits for the same seed and number of workers, whoever dies in between.
 *
 * Each epoch is reported once, whatever the method. The workers of hogwild and a3c train on while the model is tested: when several
 * epochs end during one test, their events come together, with the figures of the next test (tested_epoch says which). */
typedef enum shoal_train_method {
    SHOAL_METHOD_HOGWILD,
    SHOAL_METHOD_SERIAL,
    SHOAL_METHOD_SYNC,
    SHOAL_METHOD_LOCAL,
    SHOAL_METHOD_FEDAVG,
    SHOAL_METHOD_A3C,
} shoal_train_method;

/* a3c: an actor copies the shared parameters, takes up to `rollout` steps in its environment, and changes the shared parameters by the
 * gradient of those steps: n-step returns with `gamma`, an `entropy` bonus, the norm clipped. The learning rate falls to 0 on the way
 * to `env_steps`.
 *
 * An image is a step of an environment here, and an epoch is 10,000 of them, by all actors together; the last one ends with the job.
 * The job is done when the mean return of the last 100 episodes is at least `until`, or else after `env_steps`, and reward
 * says what was reached. That is success both times: who needs one of them looks at reward. An actor that dies loses the episode and
 * the rollout it was in. */

/* Which client has which samples, for fedavg. */
typedef enum shoal_train_split {
    SHOAL_SPLIT_IID,    /* any, equally many (shoal_split_iid) */
    SHOAL_SPLIT_SHARDS, /* sorted by label and cut into two shards a client (shoal_split_label): about two labels each */
} shoal_train_split;

/* What is averaged, for sync. */
typedef enum shoal_train_average {
    SHOAL_AVERAGE_PARAMETERS, /* when a round ends */
    SHOAL_AVERAGE_GRADIENTS,  /* of every batch */
} shoal_train_average;

/* Methods by name; NULL beyond the last. SHOAL_ENOENT with the names. */
const char *shoal_train_method_name(shoal_train_method method);
SHOAL_MUST_USE shoal_err shoal_train_method_find(const char *name, shoal_train_method *out_method);

/* What one worker has done: as it last wrote it, without waiting for it. */
typedef struct shoal_train_worker {
    int32_t pid;           /* 0: it does not run */
    int64_t images;        /* trained on, by all processes that had this rank */
    int64_t images_before; /* of these, in the job that was resumed */
    int64_t epoch;         /* that it is in, from 0 */
    double loss;           /* of its training, a running mean; NaN before the first batch */
    int deaths;
} shoal_train_worker;

/* What an event is about. */
typedef enum shoal_train_event_kind {
    SHOAL_TRAIN_BEGIN, /* all workers are started. text: the path that was resumed, or "" */
    SHOAL_TRAIN_TICK,  /* some 20 times a second: time to look at the workers, or to stop */
    SHOAL_TRAIN_EPOCH, /* an epoch is finished, the model tested, and the checkpoint written */
    SHOAL_TRAIN_DEATH, /* a worker died: worker, text. It is started again, or has no pid and the job fails */
    SHOAL_TRAIN_SAVE, /* a checkpoint is written: text is the path. The first one, before the workers start, is not reported */
    SHOAL_TRAIN_SUMMARY, /* the job is done, and did not fail */
} shoal_train_event_kind;

/* The result of a job. When it was resumed, images, epochs, tested_epoch and episodes are of the whole job, the rest is of this call. */
typedef struct shoal_train_result {
    double seconds;           /* since shoal_train_run was called */
    double train_seconds;     /* of these, those in which workers trained */
    int64_t images;           /* trained on */
    double images_per_second; /* over train_seconds */
    int64_t epochs;           /* finished */
    double test_loss;         /* of the last test; NaN when there was none */
    double test_accuracy;     /* 0 to 1 */
    int64_t tested_epoch;     /* after which that was; a job that is stopped may have trained on since; 0: no test */
    int64_t deaths;
    int64_t episodes; /* a3c: finished */
    double reward;    /* a3c: mean return of the last 100 of them, or of as many as there are; NaN when there is none */
    bool stopped;     /* by the callback */
    int64_t reached_epoch; /* in which `until` was reached; 0: it was not */
} shoal_train_result;

/* A finished epoch as its event reported it, but seconds, train_seconds and deaths are of the whole job. */
typedef struct shoal_train_epoch {
    shoal_train_result so_far;
    double loss;
} shoal_train_epoch;

/* What a job did before it was resumed, by its checkpoint. */
typedef struct shoal_train_past {
    const shoal_train_epoch *epochs; /* of more than 1,000, every second, fourth, ... and the last */
    int64_t count;                   /* 0: also when an earlier version wrote the file */
    shoal_train_result so_far;       /* when the file was written; of the whole job */
} shoal_train_past;

/* What a callback is given; it is the job's, as long as the call lasts. */
typedef struct shoal_train_event {
    shoal_train_event_kind kind;
    shoal_train_result so_far;
    int64_t images_total; /* of the whole job */
    double loss;          /* mean of the workers' */
    int worker;           /* DEATH: its rank */
    const char *text;     /* DEATH: how it ended; SAVE, and BEGIN of a resumed job: the path; else "" */
    const shoal_train_worker *workers;
    int workers_count;
    const shoal_train_past *past; /* BEGIN of a resumed job; else NULL */
} shoal_train_event;

/* Return false to stop the job at the next step. Called in the thread that runs the job. */
typedef bool (*shoal_train_callback)(const shoal_train_event *event, void *context);

/* Options of a job. Zero is the default of each. */
typedef struct shoal_train_options {
    shoal_train_method method;
    const char *model; /* a name of shoal_model_names; NULL: "mnist-cnn"; fedavg: "fedavg-cnn"; a3c: "actor-critic" */
    shoal_module
        *module;      /* instead: this one, which is shared and holds the result; a3c: as shoal_actor_critic_create's */
    const char *data; /* "mnist", "fashion-mnist", or a folder of such files; NULL: "mnist" */
    shoal_dataset *train_set;    /* instead, together with test_set: sets that can travel */
    shoal_dataset *test_set;     /* may be NULL: the model is not tested */
    int workers;                 /* 4; serial: 1 */
    int64_t epochs;              /* 1; fedavg: rounds, 20 */
    int64_t batch;               /* 64; fedavg: 10 */
    int64_t steps;               /* local: batches between two means; 16 */
    int64_t rounds;              /* sync: means of parameters in an epoch; 1. fedavg: the same as epochs; 20 */
    shoal_train_average average; /* sync */
    double lr;                   /* 0.01; fedavg: 0.1; a3c: 0.002 */
    double lr_decay;             /* what lr is multiplied by after each epoch; 1. Not for a3c */
    double momentum;             /* 0.5; fedavg: none; negative: none */
    int64_t clients;             /* fedavg: 100 */
    double fraction;             /* fedavg: of the clients, in a round, at least one; 0.1 */
    int64_t local_epochs;        /* fedavg: passes of a client over its samples in a round; 5 */
    shoal_train_split split;     /* fedavg */
    double server_momentum;      /* fedavg: of the common parameters' way from round to round (Hsu et al. 2019); none */
    uint64_t seed;               /* of initial values, orders and dropout */
    bool shard;                  /* hogwild: each worker its part of the set */
    bool shared_state;           /* hogwild: one momentum for all workers */
    shoal_start start;           /* of the workers */
    int restarts;                /* of one worker; 10; negative: none */
    const char *save;            /* a checkpoint: see below */
    const char *resume;          /* such a file: go on from there */
    bool allow_nan;    /* go on when a loss is NaN or infinite; else that fails the job, and save keeps the last good
                                  epoch */
    double until;      /* stop after an epoch whose test accuracy is at least this; 0: never. a3c: when the mean
                                    return is; 0: what the environment counts as solved; negative: never */
    const char *env;   /* a3c: an environment (env.h) by name; NULL: "cartpole" */
    int64_t env_steps; /* a3c: most steps, of all actors together; 10,000 for each of epochs; 2,000,000 */
    int64_t rollout;   /* a3c: steps between two changes by one actor; 20 */
    double gamma;      /* a3c: how much of the next step's return counts; 0.99; negative: none */
    double entropy;    /* a3c: weight of the policy's entropy; 0.01; negative: none */
    shoal_train_callback call; /* may be NULL */
    void *context;
} shoal_train_options;

/* The options with what is 0 replaced by its default, that of the method where it has one of its own; what says none stays
 * negative. NULL: those of no options at all. */
shoal_train_options shoal_train_defaults(const shoal_train_options *options);

/* Checkpoints. save is written before the workers start, after each epoch, and when the job ends or is stopped; aside, synced and
 * renamed, so the file is always a whole one, whenever the job is killed and whatever the disk does. It is a safetensors file of the
 * weights (shoal_weights_read) that has also what a job needs to go on. A save that fails fails the job; the file is then the
 * last good one.
 *
 * resume takes the parameters, momentum and position out of such a file; save may name the same one. serial, sync, local and fedavg end in
 * the same bits as if they had never been interrupted, also after a stop in the middle of an epoch (they go on from the beginning of the
 * round that was under way); hogwild goes on where each worker was, with new momentum; a3c with new
 * episodes. Method, model, data, number of
 * samples, workers, batch, lr, lr_decay, momentum, seed and the method's own settings must be those that the job began with, because the result
 * depends on them. Others may change: epochs (more of them train on; fewer than the file has are refused), until, restarts, start,
 * save. Of a job that has nothing left to do the model is tested, BEGIN and SUMMARY are told, and no worker is started.
 * Errors: those of reading; SHOAL_EINVAL for a file that is no checkpoint, of another model, or of another job, which names the
 * setting and both values; SHOAL_ECORRUPT. The module is then as it was. */
/* Checks the options of a job. It reads no file. Errors: SHOAL_EINVAL, which says what would be right; SHOAL_ENOENT for
 * an unknown model. */
SHOAL_MUST_USE shoal_err shoal_train_check(const shoal_train_options *options);

/* Runs the job: returns when it is done or stopped, and leaves no process behind. out_result may be NULL; after an error it is
 * untouched. Workers ignore SIGINT, so that a Ctrl-C is for the caller to deal with. Errors: those of shoal_train_check;
 * SHOAL_ECHILD when a worker failed, or died more often than it may be started again; SHOAL_ENAN when a loss became NaN or infinite;
 * what opening data, starting processes and writing the file give. */
SHOAL_MUST_USE shoal_err shoal_train_run(const shoal_train_options *options, shoal_train_result *out_result);

/* Loss (nll_loss, mean) and accuracy of a model that gives log-probabilities, in evaluation mode; afterwards it is in the mode that it
 * was in. Outputs may be NULL. */
SHOAL_MUST_USE shoal_err shoal_evaluate(shoal_module *module, shoal_dataset *set, double *out_loss,
                                        double *out_accuracy);

#ifdef __cplusplus
}
#endif
#endif
