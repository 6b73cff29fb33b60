/* The inside of the GPU's engine, for its files. engine.c moves data, a plan takes the steps, clients.c and sums.c are
 * for federated methods, score.c tests.
 *
 * All parameters are in one tensor, and so is the momentum: one copy moves them. The engine enqueues some milliseconds
 * of steps without waiting, then reads how far the GPU is, and returns. */
#ifndef SH_TRAIN_GPU_H
#define SH_TRAIN_GPU_H

#include "train/engines/engine.h"

#include "data/loader.h"
#include "nn/module.h"
#include "tensor/tensor.h"

/* What the steps keep in GPU memory; the engine reads it back. */
typedef struct sh_gpu_progress {
    int64_t at;     /* samples of the pass before the next batch */
    int64_t blocks; /* of random numbers drawn so far, for a plan that counts them here */
    uint64_t seed;  /* of those */
    float loss;     /* the sum of the batches' losses */
    float unused;   /* no gap whose bytes nobody sets */
} sh_gpu_progress;

typedef struct sh_gpu sh_gpu;

/* How steps are taken. */
typedef struct sh_gpu_plan {
    const char *name;
    bool (*fits)(const sh_gpu *g); /* whether it can train this model on this set */
    shoal_err (*open)(sh_gpu *g);
    void (*close)(sh_gpu *g); /* accepts what a failed open left */
    /* Prepares for steps with g->run's learning rate and seed. With its `gradient`, a step leaves the gradient in
     * g->grads and changes nothing. */
    shoal_err (*begin)(sh_gpu *g);
    /* Enqueues `count` steps of `samples` samples each. */
    shoal_err (*steps)(sh_gpu *g, int64_t samples, int64_t count);
} sh_gpu_plan;

/* mnist_cnn: a whole step of mnist-cnn in two launches (kernels/small_cnn.h). fedavg_cnn: of fedavg-cnn
 * (kernels/fedavg_cnn.h). any: any model, op by op. All are captured. */
extern const sh_gpu_plan sh_gpu_plan_mnist_cnn, sh_gpu_plan_fedavg_cnn, sh_gpu_plan_any;

/* Returns whether steps are captured: unless SHOAL_CAPTURE=off, to look for the op that fails, or for a driver that
 * cannot. */
bool sh_gpu_captures(void);

struct sh_gpu {
    sh_engine base;
    const sh_device *device;
    sh_exec *exec;
    const sh_gpu_plan *plan;
    void *own;                               /* the plan's state */
    size_t count;                            /* of parameters */
    int64_t *offsets;                        /* of each in the tensors below, in elements; count + 1 of them */
    float *host;                             /* pinned, room for all parameters */
    shoal_tensor *params, *momentum, *grads; /* f32 [offsets[count]]; momentum: NULL without */
    shoal_module *module;                    /* its parameters are views of params */

    shoal_tensor *samples, *labels; /* the data set: as bytes (scaled), or as the set gives them */
    bool scaled;
    float scale, shift;
    shoal_tensor *order; /* i64, the samples of a pass */
    int64_t order_pass, order_loaders;

    sh_engine_run run;
    int64_t at;                 /* the next batch of the run */
    shoal_tensor *progress;     /* an sh_gpu_progress */
    float loss_before;          /* in the progress, of steps that were returned */
    int64_t ahead;              /* steps to enqueue at a time */
    sh_evaluator evaluator;     /* of the test set */
    struct sh_gpu_tests *tests; /* score.c; NULL: none yet */

    bool has_common;                /* params are what the next round begins with */
    shoal_tensor *common, *sums;    /* of a round of clients (sums.c); NULL: none yet */
    struct sh_gpu_clients *clients; /* at the same time (clients.c); NULL: one after another */
};

static inline float *sh_gpu_at(const sh_gpu *g, const shoal_tensor *t, size_t parameter)
{
    return (float *)sh_tensor_ptr(t) + g->offsets[parameter];
}

static inline sh_gpu_progress *sh_gpu_progress_of(const sh_gpu *g)
{
    return sh_tensor_ptr(g->progress);
}

/* begin_steps says where the GPU is. end_steps waits for `steps` steps that were enqueued since `begun`, fills in their
 * number and mean loss, and sets how many to enqueue next. */
shoal_err sh_gpu_begin_steps(sh_gpu *g, int64_t at, uint64_t seed);
shoal_err sh_gpu_end_steps(sh_gpu *g, int64_t steps, int64_t begun, sh_engine_done *out_done);

/* Slots of the engine that are in other files. */
shoal_err sh_gpu_load(sh_engine *e, const shoal_module *from);
shoal_err sh_gpu_load_state(sh_engine *e, const shoal_value *from);
shoal_err sh_gpu_begin_round(sh_engine *e, const shoal_module *common);
shoal_err sh_gpu_begin_client(sh_engine *e);
shoal_err sh_gpu_end_client(sh_engine *e, double weight);
shoal_err sh_gpu_store_sum(sh_engine *e, const double *before, double *out);
shoal_err sh_gpu_open_group(sh_engine *e, int64_t wanted, int64_t samples, int64_t passes, int *out_room);
shoal_err sh_gpu_begin_group(sh_engine *e, const sh_engine_group *group);
shoal_err sh_gpu_run_group(sh_engine *e, sh_engine_done *out_done);
shoal_err sh_gpu_end_group(sh_engine *e);
shoal_err sh_gpu_test(sh_engine *e, shoal_module *module, const int64_t *batches, int64_t count, sh_score *out_scores);

/* Adds parameters on the GPU, times weight, to the sums (sums.c). */
shoal_err sh_gpu_add_to_sums(sh_gpu *g, shoal_tensor *params, double weight);

/* Accept NULL. */
void sh_gpu_clients_close(struct sh_gpu_clients *c);
void sh_gpu_tests_close(struct sh_gpu_tests *t);

/* upload makes a tensor on the GPU with the elements of one on the host, make one without values. view makes a view of
 * parameter i in params, momentum or grads, with the shape of `like`. Return NULL on failure. */
shoal_tensor *sh_gpu_upload(const sh_gpu *g, const shoal_tensor *from);
shoal_tensor *sh_gpu_make(const sh_gpu *g, shoal_dtype dtype, int ndim, const int64_t *shape);
shoal_tensor *sh_gpu_view(const sh_gpu *g, const shoal_tensor *in, size_t i, const shoal_tensor *like);

#endif
