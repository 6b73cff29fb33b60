/* Checkpoints: a job saved as one safetensors file, which is also a file of weights.
 *
 * The model's tensors have their own names, other tensors of a job have names that begin with "shoal/", and settings
 * and numbers are texts. Nothing in the file except the past epochs (past.h) depends on the clock or on deaths, so
 * bit-identical jobs write bit-identical files, except for these.
 *
 * The same calls write and read a file, one for each item in it: so reading and writing cannot get out of step. When
 * writing, a call puts the item into the file; when reading, it compares the item or takes it out. Nothing in a file is
 * trusted: numbers have bounds, tensors have a dtype and shape, and every error names the file. */
#ifndef SH_TRAIN_CHECKPOINT_H
#define SH_TRAIN_CHECKPOINT_H

#include <shoal/file.h>
#include <shoal/value.h>

typedef struct sh_checkpoint {
    shoal_tensors *set;
    const char *path;
    bool writing; /* else reading */
} sh_checkpoint;

/* A setting that the result depends on: the file must have the same. Returns SHOAL_EINVAL, with both in the text, if it
 * has not. */
shoal_err sh_checkpoint_setting(sh_checkpoint *c, const char *name, const char *text);
shoal_err sh_checkpoint_setting_whole(sh_checkpoint *c, const char *name, int64_t x);
shoal_err sh_checkpoint_setting_number(sh_checkpoint *c, const char *name, double x);

/* A setting that may change when the job is resumed: written for people who read the file, and ignored when reading. */
shoal_err sh_checkpoint_note(sh_checkpoint *c, const char *name, const char *text);
shoal_err sh_checkpoint_note_whole(sh_checkpoint *c, const char *name, int64_t x);
shoal_err sh_checkpoint_note_number(sh_checkpoint *c, const char *name, double x);

/* The progress of a job: writes *x to the file, or reads it. Errors: SHOAL_ECORRUPT if it is not a
 * number from least to most. */
shoal_err sh_checkpoint_whole(sh_checkpoint *c, const char *name, int64_t least, int64_t most, int64_t *x);

/* The same for a result; NaN is always allowed. Errors: SHOAL_ECORRUPT if it is out of range. */
shoal_err sh_checkpoint_number(sh_checkpoint *c, const char *name, double least, double most, double *x);

/* Writes t to the file as shoal/NAME, or reads it into t, which already has its dtype and shape. */
shoal_err sh_checkpoint_tensor(sh_checkpoint *c, const char *name, shoal_tensor *t);

/* Writes or reads all tensors of a map, such as an optimiser's state, as shoal/NAME/KEY. */
shoal_err sh_checkpoint_map(sh_checkpoint *c, const char *name, const shoal_value *map);

#endif
