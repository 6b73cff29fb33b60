/* Engines: the one interface between a training method and the code that computes.
 *
 * A worker has one engine. A method sees parameters that it can load, train, test and store, and never knows what
 * trains them; an engine sees samples, a learning rate and a seed, and never knows the method. An engine is a folder
 * with one sh_engine_type, and a line in engine.c.
 *
 *   parameters   load, store       Copies of the named parameters and buffers of a module in shared memory.
 *                share, adopt      Parameters that several workers change at the same time.
 *   state        load_state, ...   What the optimiser keeps from step to step: a map of tensors in shared memory.
 *   batches      begin, run        Run these batches.
 *   clients      begin_round, ...  Run these clients, and add up their parameters.
 *   tests        test              Test these batches.
 *
 * A module or a state that a method has stored is all that a checkpoint needs: an engine keeps nothing that a later one
 * could not begin without. So a worker that dies loses no more than what it has done since the last store.
 *
 * An engine calls nobody back. It runs some steps and returns: then its worker reports them, sees whether the job
 * stops, tests the model if the job asks for it, and calls again.
 *
 * No call is thread-safe. Every slot may fail with what its computations fail with; what may be NULL says so. */
#ifndef SH_TRAIN_ENGINE_H
#define SH_TRAIN_ENGINE_H

#include "train/engines/service.h"
#include "train/model/evaluate.h"

#include <shoal/optim.h>
#include <shoal/train.h>
#include <shoal/value.h>

typedef struct sh_engine sh_engine;
typedef struct sh_engine_type sh_engine_type;

/* What a worker tells its engine; sent as bytes between processes of one program. */
typedef struct sh_engine_settings {
    int64_t batch;
    double lr, momentum;
    shoal_device device;
    bool tf32;
    sh_service_settings service;
} sh_engine_settings;

/* Batches to run, of the engine's samples. */
typedef struct sh_engine_run {
    int64_t pass;        /* over the samples: selects their order */
    int64_t first, last; /* batches first to last - 1; the pass has them */
    double lr;
    uint64_t seed; /* of dropout */
    bool gradient; /* compute the gradient for store_gradient, and take no step */
} sh_engine_run;

/* Steps that were run. */
typedef struct sh_engine_done {
    int64_t steps;
    int64_t batch; /* the next one of the pass */
    int64_t samples;
    double loss; /* mean of the steps' losses */
} sh_engine_done;

/* A client of a federated method, and its samples. */
typedef struct sh_engine_client {
    const int64_t *samples;
    int64_t count;
    uint64_t order; /* seed of the order of its samples */
} sh_engine_client;

/* Clients to run at the same time, each `passes` times over its samples. */
typedef struct sh_engine_group {
    const sh_engine_client *clients;
    int count;
    int64_t pass, passes; /* the first one */
    double lr;
} sh_engine_group;

struct sh_engine_type {
    const char *name;
    const sh_service_type *service; /* of the job; NULL: none */

    /* A method whose rounds only bound what a death costs makes them so many times longer, because loading and storing
     * take long. */
    int64_t round_factor;

    /* Opens an engine whose base is filled in; its memory is zeroed, and of this size. Makes parameters, with undefined
     * values unless they are the module's own, and a zero state. close accepts what a failed open left. */
    size_t size;
    shoal_err (*open)(sh_engine *e);
    void (*close)(sh_engine *e);

    /* load makes the parameters those of a module, store copies them to a module. Both modules have the architecture of
     * e->module. An engine that trains e->module in place does nothing if it is that one. */
    shoal_err (*load)(sh_engine *e, const shoal_module *from);
    shoal_err (*store)(sh_engine *e, shoal_module *to);

    /* Makes a zero state for a module, in shared memory. Called by the job, which opens no engine. */
    shoal_value *(*new_state)(const sh_engine_settings *settings, shoal_module *module);

    /* The same for the state. load_state with NULL makes it zero. */
    shoal_err (*load_state)(sh_engine *e, const shoal_value *from);
    shoal_err (*store_state)(sh_engine *e, const shoal_value *to);

    /* Trains with the tensors of this state from now on, which other workers change too. NULL: it cannot. */
    shoal_err (*adopt_state)(sh_engine *e, const shoal_value *state);

    /* Makes parameters for all workers to change: share returns a value to send to the others, which call adopt. NULL:
     * it trains e->module in place, so workers that have the same module share it already. */
    shoal_value *(*share)(sh_engine *e);
    shoal_err (*adopt)(sh_engine *e, const shoal_value *shared);

    /* begin prepares for batches, and run runs some of them: at least one, unless all are done. The same run from the
     * same parameters and state gives the same bits, in however many calls. */
    shoal_err (*begin)(sh_engine *e, const sh_engine_run *run);
    shoal_err (*run)(sh_engine *e, sh_engine_done *out_done);

    /* Copies the gradient of a run with `gradient` to a module whose values are gradients, and the buffers. */
    shoal_err (*store_gradient)(sh_engine *e, shoal_module *to);

    /* The clients of a round begin with common parameters. For each: begin_client makes the parameters the common ones
     * and the state zero, runs train it, and end_client adds it, times weight. store_sum writes to a row of
     * flat_model.h the sum of those since begin_round or the last store_sum, plus the row `before` unless it is NULL.
     * After clients_in_sum clients there must be a store_sum. */
    int64_t clients_in_sum;
    shoal_err (*begin_round)(sh_engine *e, const shoal_module *common);
    shoal_err (*begin_client)(sh_engine *e);
    shoal_err (*end_client)(sh_engine *e, double weight);
    shoal_err (*store_sum)(sh_engine *e, const double *before, double *out);

    /* Clients at the same time, instead of begin_client to end_client. open_group makes room for up to `wanted` clients
     * of up to `samples` samples each, with that many passes, and returns for how many there is room, 0 if this model
     * is trained one after another; begin_group and run_group are like begin and run, and end_group adds each client,
     * times its number of samples. NULL: one after another. */
    shoal_err (*open_group)(sh_engine *e, int64_t wanted, int64_t samples, int64_t passes, int *out_room);
    shoal_err (*begin_group)(sh_engine *e, const sh_engine_group *group);
    shoal_err (*run_group)(sh_engine *e, sh_engine_done *out_done);
    shoal_err (*end_group)(sh_engine *e);

    /* Tests batches of e->test_set (evaluate.h): with the parameters of a module, or the engine's own if it is NULL. It
     * may load that module, but does so between two runs only. */
    shoal_err (*test)(sh_engine *e, shoal_module *module, const int64_t *batches, int64_t count, sh_score *out_scores);
};

/* What every engine has; the engine's own struct begins with it. */
struct sh_engine {
    const sh_engine_type *type;
    sh_engine_settings settings;
    shoal_module *module; /* what the method wants to be trained, in shared memory. The caller's, like the sets */
    shoal_dataset *set, *test_set; /* test_set: NULL: it tests nothing */
    shoal_loader *loader;          /* of its samples; NULL: none yet */
    int64_t loaders;               /* how many it has had: another number means other samples */
};

/* Returns the engine of a device, or NULL. */
const sh_engine_type *sh_engine_of(shoal_device device);

/* Opens the engine of settings->device. close accepts NULL. Errors: those of sh_device_get; SHOAL_ETYPE if it cannot
 * train the model. */
shoal_err sh_engine_open(const sh_engine_settings *settings, shoal_module *module, shoal_dataset *set,
                         shoal_dataset *test_set, sh_engine **out_engine);
void sh_engine_close(sh_engine *e);

/* Sets the samples of the next runs. seed: of their order. */
shoal_err sh_engine_take_samples(sh_engine *e, const int64_t *samples, int64_t count, uint64_t seed);

/* new_state of engines that train by SGD. */
shoal_value *sh_engine_new_sgd_state(const sh_engine_settings *settings, shoal_module *module);

extern const sh_engine_type sh_engine_cpu, sh_engine_cuda;

#endif
