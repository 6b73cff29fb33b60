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
    int64_t blocks; /* of random numbers drawn so far, for a plan that counts them here */
    uint64_t seed;  /* of those */
    float loss;     /* the sum of the batches' losses */
    float unused;   /* no gap whose bytes nobody sets */
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

/* fused: a whole step of mnist-cnn in two launches (kernels/small_cnn.h). cnn: fedavg-cnn (kernels/fedavg_cnn.h). ops: any
 * model, op by op. All are captured. */
extern const sh_card_plan sh_card_fused, sh_card_cnn_plan, sh_card_ops;

/* Returns whether steps are captured: unless SHOAL_CAPTURE=off, to look for the op that fails, or for a driver that
 * cannot. */
bool sh_card_captures(void);

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

    bool has_common;                 /* params are what the next round begins with */
    shoal_tensor *common, *sums;     /* of a round of fedavg (card_sums.c); NULL: none yet */
    struct sh_card_clients *clients; /* side by side (card_clients.c); NULL: one after another */
    struct sh_card_tests *tests;     /* card_score.c; NULL: none yet */
    shoal_tensor *progress;          /* an sh_card_progress */
    int64_t ahead;                   /* steps to enqueue at a time */
};

static inline float *sh_card_at(const sh_card *card, const shoal_tensor *t, size_t parameter)
{
    return (float *)sh_tensor_ptr(t) + card->offsets[parameter];
}

static inline sh_card_progress *sh_card_progress_of(const sh_card *card)
{
    return sh_tensor_ptr(card->progress);
}

/* Takes how long card->ahead steps took, and sets how many are enqueued next. */
void sh_card_ran_ahead(sh_card *card, int64_t took);

/* Adds parameters on the card, times weight, to the sums (card_sums.c). */
shoal_err sh_card_sums_add_from(sh_card *card, shoal_tensor *params, double weight);

/* Accept NULL. */
void sh_card_clients_close(struct sh_card_clients *c);
void sh_card_tests_close(struct sh_card_tests *t);

/* Makes a tensor on the card with the elements of one on the host. */
shoal_tensor *sh_card_upload(const sh_card *card, const shoal_tensor *from);

/* Makes a tensor on the card. */
shoal_tensor *sh_card_make(const sh_card *card, shoal_dtype dtype, int ndim, const int64_t *shape);

/* Makes a view of parameter i in params, momentum or grads, with that shape. */
shoal_tensor *sh_card_view(const sh_card *card, const shoal_tensor *in, size_t i, const shoal_tensor *like);

#endif
