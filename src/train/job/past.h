/* The past epochs of a job, as they were reported. They are kept in its checkpoint, so that a resumed job can show all
 * of them. They hold times and losses, so unlike the rest of a checkpoint they differ from run to run. */
#ifndef SH_TRAIN_PAST_H
#define SH_TRAIN_PAST_H

#include "train/job/checkpoint.h"

#include <shoal/train.h>

typedef struct sh_past {
    shoal_train_epoch *epochs; /* by number; NULL: none yet */
    int64_t count;
    shoal_train_result before; /* the result so far of the job that this one resumes; zeros: it resumes none */
} sh_past;

void sh_past_fini(sh_past *past);
shoal_train_past sh_past_view(const sh_past *past);

/* Adds a finished epoch. so_far: of this call. Thins out a full list. Drops the epoch if there is no memory. */
void sh_past_add(sh_past *past, const shoal_train_result *so_far, int64_t epoch, double loss);

/* Writes the epochs to a checkpoint, or reads them; a file of an earlier version has none. so_far: of this call; when
 * reading, its epochs are the finished ones. */
shoal_err sh_past_pass(sh_past *past, const shoal_train_result *so_far, sh_checkpoint *c);

#endif
