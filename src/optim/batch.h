/* Collects the parameters of a step for a device that makes it in few launches (sh_optim_kernels.sgd_all …). */
#ifndef SH_OPTIM_BATCH_H
#define SH_OPTIM_BATCH_H

#include "optim/optim.h"

#define SH_OPTIM_BATCH 64

typedef struct sh_optim_batch {
    const sh_device *device; /* of all its parameters */
    shoal_dtype dtype;
    int32_t count, step_count; /* 0 at first */
    sh_optim_part parts[SH_OPTIM_BATCH];
    float *steps[SH_OPTIM_BATCH];
} sh_optim_batch;

/* Returns whether the device makes the step of several parameters at once and counts the steps itself. */
static inline bool sh_optim_batches(const sh_device *device)
{
    return device->kernels()->optim->sgd_all != NULL;
}

/* Adds a parameter with its contiguous gradient, which must live until the batch has run. Runs the batch first if it
 * does not fit in. Errors: SHOAL_EINVAL if the gradient is on another device; those of the kernels. */
shoal_err sh_optim_batch_add(sh_optim_batch *batch, shoal_optimizer *optimizer, const sh_optim_slot *slot,
                             const shoal_tensor *grad);

/* Makes the step of the collected parameters, and empties the batch. */
shoal_err sh_optim_batch_run(sh_optim_batch *batch, shoal_optimizer *optimizer);

#endif
