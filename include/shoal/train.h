/* Training jobs: train one model with several processes.
 *
 * A program describes a job in shoal_train_options, runs it with shoal_train_run, and watches it through a callback:
 *
 *     shoal_train_result r;
 *     shoal_train_options job = {.workers = 4, .epochs = 1};
 *     shoal_err err = shoal_train_run(&job, &r);
 *
 * The workers are processes that share the parameters (Hogwild) or whose parameters are averaged. The calling process
 * starts them, watches them and tests the model with the help of the workers. A worker that dies is counted and
 * started again.
 */
#ifndef SHOAL_TRAIN_H
#define SHOAL_TRAIN_H

#include <shoal/data.h>
#include <shoal/device.h>
#include <shoal/nn.h>
#include <shoal/process.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The largest number of workers of a job. */
#define SHOAL_TRAIN_WORKERS 1024

/* Training methods: what the workers share, and when.
 *
 *   hogwild  The workers share the parameters all the time, without locks. Each has its own momentum. Each passes over
 *            the whole set in its own order, so an epoch is as many passes as there are workers; with hogwild.shard,
 *            each passes over its part of the set.
 *   serial   One worker shares nothing.
 *   sync     Each worker takes the common parameters and passes once over its contiguous part of the set. Then the
 *            parameters become the mean of all workers' parameters. Momentum starts anew with each pass. With
 *            SHOAL_AVERAGE_GRADIENTS there is one step for each batch instead, by the mean of the workers' gradients.
 *   local    The parameters are averaged every `local.steps` batches. Each worker keeps its momentum.
 *   fedavg   Federated averaging (McMahan et al. 2017). The set is split among `clients`. In each round a fraction of
 *            them is drawn; each takes the common parameters and passes `local_epochs` times over its samples. Then
 *            the parameters become the mean of theirs, weighted by their numbers of samples. The workers play the
 *            drawn clients in turn, so memory does not grow with the number of clients. An epoch of the job is a
 *            round. The defaults are those of the paper: model "fedavg-cnn", 20 rounds, batch 10, no momentum.
 *   a3c      Asynchronous advantage actor-critic (Mnih et al. 2016). The workers are actors, each in its own
 *            environment; there are no data sets. They share the parameters and RMSprop's averages all the time,
 *            without locks. See "a3c" below.
 *
 * serial, sync, local and fedavg give the same bits for the same seed and number of workers, even if workers die.
 *
 * Every method reports each epoch once. The workers of hogwild and a3c keep training while the model is tested: if
 * several epochs end during one test, their events come together, with the results of the next test (tested_epoch
 * says which one). */
typedef enum shoal_train_method {
    SHOAL_METHOD_HOGWILD,
    SHOAL_METHOD_SERIAL,
    SHOAL_METHOD_SYNC,
    SHOAL_METHOD_LOCAL,
    SHOAL_METHOD_FEDAVG,
    SHOAL_METHOD_A3C,
} shoal_train_method;

/* a3c. An actor copies the shared parameters, takes up to `rollout` steps in its environment, and changes the shared
 * parameters by the gradient of those steps: n-step returns with `gamma`, an `entropy` bonus, and a clipped norm. The
 * learning rate falls linearly to 0 at `env_steps`.
 *
 * Here an image is a step of an environment, and an epoch is 10,000 steps of all actors together; the last one ends
 * with the job. The job is done when the mean return of the last 100 episodes is at least `until`, or after
 * `env_steps`. Both are success; reward says what was reached. An actor that dies loses its current episode and
 * rollout. */

/* How fedavg splits the samples among clients. */
typedef enum shoal_train_split {
    SHOAL_SPLIT_IID,    /* random samples, equally many (shoal_split_iid) */
    SHOAL_SPLIT_SHARDS, /* two shards of the set sorted by label (shoal_split_label): about two labels each */
} shoal_train_split;

/* What sync averages. */
typedef enum shoal_train_average {
    SHOAL_AVERAGE_PARAMETERS, /* the parameters, at the end of each round */
    SHOAL_AVERAGE_GRADIENTS,  /* the gradients of every batch */
} shoal_train_average;

/* How workers share a GPU. With NVIDIA's multi-process service (MPS) their kernels run at the same time. Without it
 * the GPU runs the kernels of one process at a time, and the workers take turns. */
typedef enum shoal_train_mps {
    SHOAL_MPS_AUTO, /* use a running MPS daemon; else start one for the job if it has several workers or cuda_share */
    SHOAL_MPS_OFF,  /* do not use MPS, even if a daemon runs */
} shoal_train_mps;

/* Returns the name of a training method, such as "hogwild"; NULL after the last method. The library owns it. Does not
 * block. Thread-safe. */
const char *shoal_train_method_name(shoal_train_method method);

/* Finds a training method by its name. Does not block. Thread-safe. Errors: SHOAL_ENOENT if there is none (the text
 * lists the names). */
SHOAL_MUST_USE shoal_err shoal_train_method_find(const char *name, shoal_train_method *out_method);

/* The progress of one worker, as it last reported it. */
typedef struct shoal_train_worker {
    int32_t pid;           /* 0 if it does not run */
    int64_t images;        /* trained on, by all processes of this rank */
    int64_t images_before; /* the part of images that was trained on before the job was resumed */
    int64_t epoch;         /* the current epoch, from 0 */
    double loss;           /* running mean of its training loss; NaN before the first batch */
    int deaths;
} shoal_train_worker;

/* The kinds of events of a job. */
typedef enum shoal_train_event_kind {
    SHOAL_TRAIN_BEGIN, /* all workers are started. text: the path of the checkpoint that was resumed, or "" */
    SHOAL_TRAIN_TICK,  /* about 20 times a second, to look at the workers or to stop the job */
    SHOAL_TRAIN_EPOCH, /* an epoch is finished, the model is tested, and the checkpoint is written */
    SHOAL_TRAIN_DEATH, /* a worker died: see worker and text. It is started again, or its pid is 0 and the job fails */
    SHOAL_TRAIN_SAVE,  /* a checkpoint was written: text is its path. Not for the first one, before the workers start */
    SHOAL_TRAIN_NOTE,  /* text is a line for people, such as how the workers share a GPU */
    SHOAL_TRAIN_SUMMARY, /* the job is done and did not fail */
} shoal_train_event_kind;

/* The result of a job. If the job was resumed, images, epochs, tested_epoch and episodes count the whole job; the
 * other members are about this call. */
typedef struct shoal_train_result {
    double seconds;           /* since shoal_train_run was called */
    double train_seconds;     /* the part of seconds in which workers trained */
    int64_t images;           /* trained on */
    double images_per_second; /* over train_seconds */
    int64_t epochs;           /* finished */
    double test_loss;         /* of the last test; NaN if there was none */
    double test_accuracy;     /* of the last test, 0 to 1 */
    int64_t tested_epoch;  /* the epoch after which the last test was; 0: no test. A stopped job may have trained on */
    int64_t deaths;        /* of workers */
    int64_t episodes;      /* a3c: finished */
    double reward;         /* a3c: mean return of the last 100 episodes, or of all if fewer; NaN if there are none */
    bool stopped;          /* by the callback */
    int64_t reached_epoch; /* the epoch in which `until` was reached; 0: it was not */
} shoal_train_result;

/* A finished epoch of a job, as its event reported it. But seconds, train_seconds and deaths count the whole job. */
typedef struct shoal_train_epoch {
    shoal_train_result so_far;
    double loss;
} shoal_train_epoch;

/* The past of a resumed job, from its checkpoint. */
typedef struct shoal_train_past {
    const shoal_train_epoch *epochs; /* if there are more than 1,000: every second, fourth and so on, and the last */
    int64_t count;                   /* of epochs; 0 also if an earlier version wrote the file */
    shoal_train_result so_far;       /* when the file was written, for the whole job */
} shoal_train_past;

/* An event of a job, for its callback. The job owns it and all it points to, during the callback only. */
typedef struct shoal_train_event {
    shoal_train_event_kind kind;
    shoal_train_result so_far;
    int64_t images_total; /* images of the whole job */
    double loss;          /* mean of the workers' losses */
    int worker;           /* DEATH: its rank */
    const char *text;     /* DEATH: how it ended; SAVE, and BEGIN of a resumed job: the path; NOTE: the line; else "" */
    const shoal_train_worker *workers;
    int workers_count;
    const shoal_train_past *past; /* of a resumed job, in BEGIN; else NULL */
} shoal_train_event;

/* A function that watches a job. The thread that runs the job calls it for each event, with the context of the
 * options. It returns false to stop the job at the next step. */
typedef bool (*shoal_train_callback)(const shoal_train_event *event, void *context);

/* Options of hogwild. The options of a method are a member of shoal_train_options, such as `.fedavg.clients`. Zero is
 * the default of each. An option of another method than the job's is an error. */
typedef struct shoal_hogwild_options {
    bool shard;        /* all workers pass over their part of the set only */
    bool shared_state; /* all workers share one momentum; SHOAL_CPU only */
} shoal_hogwild_options;

/* Options of sync; see shoal_hogwild_options. */
typedef struct shoal_sync_options {
    shoal_train_average average;
    int64_t rounds; /* averages of the parameters in an epoch, 1 */
} shoal_sync_options;

/* Options of local; see shoal_hogwild_options. */
typedef struct shoal_local_options {
    int64_t steps; /* batches between two averages, 16 */
} shoal_local_options;

/* Options of fedavg; see shoal_hogwild_options. */
typedef struct shoal_fedavg_options {
    int64_t clients;         /* 100 */
    double fraction;         /* fraction of the clients in a round, at least one client, 0.1 */
    int64_t local_epochs;    /* passes of a client over its samples in a round, 5 */
    shoal_train_split split; /* of the samples among clients */
    double server_momentum;  /* momentum of the common parameters between rounds (Hsu et al. 2019), none */
    int64_t rounds;          /* the same as epochs, 20 */
} shoal_fedavg_options;

/* Options of a3c; see shoal_hogwild_options. */
typedef struct shoal_a3c_options {
    const char *env;   /* the name of an environment (env.h); NULL: "cartpole" */
    int64_t env_steps; /* limit of the steps of all actors together: 10,000 for each of epochs, or 2,000,000 */
    int64_t rollout;   /* steps between two updates by one actor, 20 */
    double gamma;      /* discount factor, 0.99; negative: 0 */
    double entropy;    /* weight of the policy's entropy, 0.01; negative: 0 */
} shoal_a3c_options;

/* A member of shoal_train_options, and what its first members were called in version 0.2. */
#define SHOAL_OPTIONS(member, old)                                                                                     \
    union {                                                                                                            \
        member;                                                                                                        \
        __extension__ struct {                                                                                         \
            old                                                                                                        \
        };                                                                                                             \
    }

#ifdef __clang__
#pragma clang diagnostic push
#pragma clang diagnostic ignored "-Wpedantic" /* for C++: structs without a name */
#endif

/* Options of a job. Zero is the default of each; the comments have the default's value. */
typedef struct shoal_train_options {
    shoal_train_method method;
    const char *model; /* a name of shoal_model_names; NULL: "mnist-cnn"; fedavg: "fedavg-cnn"; a3c: "actor-critic" */

    /* Instead of model: a module of the program. The job shares it, and it holds the result. For a3c, its input and
     * output must be like those of shoal_actor_critic_create. */
    shoal_module *module;

    const char *data;         /* "mnist", "fashion-mnist", or a folder with such files; NULL: "mnist" */
    shoal_dataset *train_set; /* instead of data, together with test_set: a set that can be sent to other processes */
    shoal_dataset *test_set;  /* NULL: the model is not tested */
    int workers;              /* 4; serial: 1 */
    int64_t epochs;           /* 1; fedavg: the number of rounds, 20; a3c: 200 (see a3c.env_steps) */
    int64_t batch;            /* samples in a batch: 64; fedavg: 10. Not for a3c */
    double lr;                /* learning rate: 0.01; fedavg: 0.1; a3c: 0.002 */
    double lr_decay;          /* factor of lr after each epoch, 1. Not for a3c */
    double momentum;          /* 0.5; fedavg: none; negative: none. Not for a3c */
    uint64_t seed;            /* for initial values, orders and dropout: 0 */
    shoal_start start;        /* start method of the workers */
    int restarts;             /* of one worker: 10; negative: none */
    shoal_device device;      /* where the workers train: SHOAL_CPU. SHOAL_CUDA: not with a3c or shared_state */
    shoal_train_mps mps;      /* SHOAL_CUDA only */
    int cuda_share;     /* SHOAL_CUDA, needs MPS: percent of the GPU's multiprocessors that a worker may use; 0: all */
    bool tf32;          /* SHOAL_CUDA only: round the factors of products to TF32. Affects only fedavg-cnn */
    const char *save;   /* path of a checkpoint to write; see "Checkpoints" */
    const char *resume; /* path of a checkpoint to continue from */

    /* Continue if a loss is NaN or infinite. Otherwise the job then fails with SHOAL_ENAN, and `save` keeps the last
     * good epoch. */
    bool allow_nan;

    /* Stop after an epoch whose test accuracy is at least this; 0 or negative: never. a3c: stop when the mean return is
     * at least this; 0: what the environment counts as solved; negative: never. */
    double until;

    shoal_train_callback call; /* may be NULL */
    void *context;

    /* The methods' own options. The name of version 0.2 is the same option: `clients` is `fedavg.clients`. One
     * initialiser must not have both names of options of a method. */
    SHOAL_OPTIONS(shoal_hogwild_options hogwild, bool shard; bool shared_state;);
    SHOAL_OPTIONS(shoal_sync_options sync, shoal_train_average average;);
    SHOAL_OPTIONS(shoal_local_options local, int64_t steps;);
    SHOAL_OPTIONS(shoal_fedavg_options fedavg, int64_t clients; double fraction; int64_t local_epochs;
                  shoal_train_split split; double server_momentum;);
    SHOAL_OPTIONS(shoal_a3c_options a3c, const char *env; int64_t env_steps; int64_t rollout; double gamma;
                  double entropy;);
    int64_t rounds; /* of version 0.2: sync.rounds or fedavg.rounds */
} shoal_train_options;

#ifdef __clang__
#pragma clang diagnostic pop
#endif

/* Returns a copy of the options in which every 0 is replaced by the default of the method. Options that the method does
 * not have stay 0, and negative numbers that stand for none stay. NULL stands for options that are all 0. Cannot
 * fail. */
shoal_train_options shoal_train_defaults(const shoal_train_options *options);

/* Checkpoints. The file `save` is written before the workers start, after each epoch, and when the job ends or is
 * stopped. It is written to a temporary file, synced and renamed, so it is always complete, even if the job is killed
 * or the disk is full. It is a safetensors file of the weights (shoal_weights_read) that also has the state of the
 * job. If a save fails, the job fails, and the last good file stays.
 *
 * `resume` takes the parameters, the momentum and the position from such a file. `save` may name the same file.
 * serial, sync, local and fedavg end with the same bits as if they had not been interrupted, even after a stop in the
 * middle of an epoch: they continue from the beginning of the interrupted round. hogwild continues where each worker
 * was, with new momentum unless it is shared (shared_state). a3c continues with new episodes.
 *
 * These settings must be the same as when the job began, because the result depends on them: method, model, data,
 * number of samples, workers, batch, lr, lr_decay, momentum, seed, and the settings of the method. These may change:
 * epochs (but not to fewer than the file has), env_steps, until, restarts, start, device, mps, cuda_share, tf32,
 * allow_nan and save. On another device, and with another tf32, the bits differ. If nothing is left to do, the model is
 * tested, the callback gets BEGIN and SUMMARY, and no worker is started.
 *
 * Errors of resume: those of reading; SHOAL_EINVAL if the file is not a checkpoint, or is one of another model or job
 * (the text has the setting and both values); SHOAL_ECORRUPT. The module is then unchanged. */

/* Checks the options of a job. Reads no file. Does not block. Thread-safe. Errors: SHOAL_EINVAL (the text says what
 * would be valid, or to which methods an option belongs); SHOAL_ENOENT if the model is unknown, or if cuda_share is set
 * and MPS is missing: its program is not installed and no daemon runs. */
SHOAL_MUST_USE shoal_err shoal_train_check(const shoal_train_options *options);

/* Runs a training job. Blocks until it is done or the callback stops it, and leaves no process behind. out_result may
 * be NULL, and does not change on failure. Workers ignore SIGINT, so the caller decides what Ctrl-C does. Errors:
 * those of shoal_train_check; SHOAL_ECHILD if a worker failed, or died more often than it may be restarted;
 * SHOAL_ENAN if a loss became NaN or infinite; with SHOAL_CUDA those of shoal_cuda_count, and SHOAL_ELIMIT if MPS does
 * not accept that many workers; those of opening the data, starting processes and writing the checkpoint. */
SHOAL_MUST_USE shoal_err shoal_train_run(const shoal_train_options *options, shoal_train_result *out_result);

/* Computes the loss (mean of nll_loss) and the accuracy of a model on a data set. The model must return
 * log-probabilities. The call runs on the device of its parameters, in evaluation mode, and then restores the mode that
 * the model had. out_loss and out_accuracy may be NULL. Blocks until it is done. Errors: those of the model and of the
 * data set; SHOAL_ENOMEM; on a GPU also those of shoal_cuda_wait. */
SHOAL_MUST_USE shoal_err shoal_evaluate(shoal_module *module, shoal_dataset *set, double *out_loss,
                                        double *out_accuracy);

/* Tests a model as shoal_evaluate does, and counts its confusion matrix: out_confusion[i * classes + j] is the number
 * of samples of class i that the model took for class j. out_confusion has room for classes * classes numbers; out_loss
 * and out_accuracy may be NULL. None of them changes on failure. Blocks until it is done. Errors: those of
 * shoal_evaluate; SHOAL_EINVAL also if a class of the data set or of the model is not from 0 to classes - 1. */
SHOAL_MUST_USE shoal_err shoal_evaluate_classes(shoal_module *module, shoal_dataset *set, int classes,
                                                int64_t *out_confusion, double *out_loss, double *out_accuracy);

#ifdef __cplusplus
}
#endif
#endif
