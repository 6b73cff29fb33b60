/* Checkpoints: a job as one safetensors file, which is also a file of weights.
 *
 * The model's tensors stand there under their own names, what else a job needs under names that begin with "shoal/", settings and
 * numbers as texts. Nothing in it but the past epochs (past.h) depends on the clock or on who died, so jobs that repeat to the bit write
 * files that do, but for these.
 *
 * A file is written and read by the same calls, one for each thing that it holds: so what is written is what is read, in one order, and
 * neither can be forgotten. When it is written they put the thing into the file; when it is read they compare it, or take it out.
 * Nothing in a file is trusted: a number has bounds, a tensor its dtype and shape; every error names the file. */
#ifndef SH_TRAIN_CHECKPOINT_H
#define SH_TRAIN_CHECKPOINT_H

#include <shoal/file.h>
#include <shoal/value.h>

typedef struct sh_checkpoint {
    shoal_tensors *set;
    const char *path;
    bool writing; /* else it is read */
} sh_checkpoint;

/* A setting that the result depends on: the file's must be this one. SHOAL_EINVAL with both when it is not. */
shoal_err sh_checkpoint_setting(sh_checkpoint *c, const char *name, const char *text);
shoal_err sh_checkpoint_setting_whole(sh_checkpoint *c, const char *name, int64_t x);
shoal_err sh_checkpoint_setting_number(sh_checkpoint *c, const char *name, double x);

/* A setting that may change when the job goes on: written for whoever reads the file, and ignored when it is resumed. */
shoal_err sh_checkpoint_note(sh_checkpoint *c, const char *name, const char *text);
shoal_err sh_checkpoint_note_whole(sh_checkpoint *c, const char *name, int64_t x);
shoal_err sh_checkpoint_note_number(sh_checkpoint *c, const char *name, double x);

/* How far a job is: *x into the file, or out of it. least to most are possible; most that is too small for the file is
 * SHOAL_EINVAL, what is no such number SHOAL_ECORRUPT. */
shoal_err sh_checkpoint_whole(sh_checkpoint *c, const char *name, int64_t least, int64_t most, int64_t *x);

/* The same of a result; NaN is always possible. */
shoal_err sh_checkpoint_number(sh_checkpoint *c, const char *name, double least, double most, double *x);

/* t into the file as shoal/NAME, or that into t, which has its dtype and shape already. */
shoal_err sh_checkpoint_tensor(sh_checkpoint *c, const char *name, shoal_tensor *t);

/* All tensors of a map, such as an optimiser's state, as shoal/NAME/KEY. */
shoal_err sh_checkpoint_map(sh_checkpoint *c, const char *name, const shoal_value *map);

#endif
