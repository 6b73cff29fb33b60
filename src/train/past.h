/* The epochs of a job as they were told: kept in its checkpoint, so that whoever resumes the job can show all of them. They hold times and
 * losses, so unlike the rest of a checkpoint they differ from run to run. */
#ifndef SH_TRAIN_PAST_H
#define SH_TRAIN_PAST_H

#include "train/checkpoint.h"

#include <shoal/train.h>

typedef struct sh_past {
    shoal_train_epoch *epochs; /* by number; NULL: none yet */
    int64_t count;
    shoal_train_result before; /* where the job stood when it was saved that this one resumes; zeros: it resumes none */
} sh_past;

void sh_past_fini(sh_past *past);
shoal_train_past sh_past_view(const sh_past *past);

/* An epoch is finished; so_far is of this call. A list that is full is thinned out. Without memory the epoch is not kept. */
void sh_past_add(sh_past *past, const shoal_train_result *so_far, int64_t epoch, double loss);

/* Into a checkpoint, or out of it: then epochs are finished, and a file of an earlier version has none of them. so_far: of this
 * call. */
shoal_err sh_past_pass(sh_past *past, const shoal_train_result *so_far, sh_checkpoint *c);

#endif
