/* Tests a model batch by batch. A batch has the same samples and gives the same bits whoever tests it. */
#ifndef SH_TRAIN_EVALUATE_H
#define SH_TRAIN_EVALUATE_H

#include "data/loader.h"

#include <shoal/nn.h>

#define SH_EVALUATE_BATCH INT64_C(500) /* samples in a batch; the last may have fewer */

typedef struct sh_evaluator {
    shoal_dataset *set;
    shoal_device device; /* of the model */
    sh_batch full;       /* the tensors that batches are fetched into */
    sh_batch *kept;      /* on a GPU: the batches that were tested before; NULL: none yet */
    int64_t *confusion;  /* [true class][predicted class], counted by start, which waits for the GPU then; NULL: not */
    int64_t classes;
} sh_evaluator;

/* The sums over the samples of a batch: the loss, and how many were right. */
typedef struct sh_score {
    double loss, right;
} sh_score;

/* Returns the number of batches of a test set. */
int64_t sh_evaluate_batches(const shoal_dataset *set);

/* Tests a model on one batch, in evaluation mode. start leaves the score in two tensors of the model's device, which
 * the caller owns, and does not wait for a GPU; read reads them. fini accepts a zeroed evaluator. */
shoal_err sh_evaluate_start(sh_evaluator *e, shoal_module *module, int64_t batch, sh_batch *out_sums);
shoal_err sh_evaluate_read(const sh_batch *sums, sh_score *out_score);
shoal_err sh_evaluate_batch(sh_evaluator *e, shoal_module *module, int64_t batch, sh_score *out_score);
void sh_evaluator_fini(sh_evaluator *e);

#endif
