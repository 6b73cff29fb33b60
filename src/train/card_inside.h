/* The inside of a worker's half on the card (card.h), for its files: card.c moves data, and a plan takes the steps. */
#ifndef SH_TRAIN_CARD_INSIDE_H
#define SH_TRAIN_CARD_INSIDE_H

#include "train/card.h"

#include "data/loader.h"
#include "nn/module.h"
#include "tensor/tensor.h"

/* What the steps keep in card memory; the worker reads it back. */
typedef struct sh_card_progress {
    int64_t at;     /* samples of the epoch before the next batch */
    int64_t blocks; /* of random numbers, for a plan that counts them here; */
    uint64_t seed;  /* of those */
    float loss;     /* the sum of the batches' losses */
    float unused;
} sh_card_progress;

/* How steps are taken. */
typedef struct sh_card_plan {
    const char *name;
    bool (*fits)(const sh_worker *w); /* whether it can train this model on this set */
    shoal_err (*open)(sh_worker *w);
    void (*close)(sh_card *card); /* accepts what a failed open left */
    /* Begins a run of steps. change: false leaves the gradient in card->grads instead of taking the step. */
    shoal_err (*begin)(sh_worker *w, double lr, uint64_t seed, bool change);
    /* Enqueues `count` steps of `samples` samples each. */
    shoal_err (*steps)(sh_worker *w, int64_t samples, int64_t count);
} sh_card_plan;

/* fused: a whole step of mnist-cnn in two launches (kernels/small_cnn.h). ops: any model, op by op. Both are captured. */
extern const sh_card_plan sh_card_fused, sh_card_ops;

struct sh_card {
    const sh_device *device;
    sh_exec *exec;
    const sh_card_plan *plan;
    void *own;                               /* the plan's state */
    size_t count;                            /* of parameters */
    int64_t *offsets;                        /* of each in the tensors below, in elements; count + 1 of them */
    float *host;                             /* pinned, room for all parameters */
    shoal_tensor *params, *momentum, *grads; /* f32 [offsets[count]]; momentum: NULL without */
    shoal_module *module;                    /* its parameters are views of params */

    shoal_tensor *samples, *labels; /* the data set: as bytes (scaled), or as the set gives them */
    bool scaled;
    float scale, shift;
    shoal_tensor *order; /* i64, the samples of an epoch */
    int64_t order_epoch, order_loads;

    shoal_tensor *common, *sums; /* of a round of fedavg (card_sums.c); NULL: none yet */
    double *sums_host;           /* pinned */
    shoal_tensor *progress;      /* an sh_card_progress */
    int64_t ahead;               /* steps to enqueue at a time */
};

static inline float *sh_card_at(const sh_card *card, const shoal_tensor *t, size_t parameter)
{
    return (float *)sh_tensor_ptr(t) + card->offsets[parameter];
}

static inline sh_card_progress *sh_card_progress_of(const sh_card *card)
{
    return sh_tensor_ptr(card->progress);
}

/* Makes a tensor on the card. */
shoal_tensor *sh_card_make(const sh_card *card, shoal_dtype dtype, int ndim, const int64_t *shape);

/* Makes a view of parameter i in params, momentum or grads, with that shape. */
shoal_tensor *sh_card_view(const sh_card *card, const shoal_tensor *in, size_t i, const shoal_tensor *like);

#endif
