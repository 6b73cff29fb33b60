#include "optim/batch.h"

#include <string.h>

shoal_err sh_optim_batch_run(sh_optim_batch *batch, shoal_optimizer *optimizer)
{
    if (batch->count == 0) {
        return SHOAL_OK;
    }
    sh_updates u = {
        .exec = batch->device->exec(),
        .kernels = batch->device->kernels()->optim,
        .dtype = batch->dtype,
        .parts = batch->parts,
        .count = batch->count,
    };
    int32_t step_count = batch->step_count;
    batch->count = batch->step_count = 0;
    if (!u.exec) {
        return shoal_last_error();
    }
    if (step_count > 0) {
        SH_TRY(u.kernels->count_steps(u.exec, batch->steps, step_count));
    }
    return optimizer->kind->step_all(optimizer, &u);
}

static void *memory_of(const shoal_tensor *t)
{
    return t ? sh_tensor_ptr(t) : NULL;
}

shoal_err sh_optim_batch_add(sh_optim_batch *batch, shoal_optimizer *optimizer, const sh_optim_slot *slot,
                             const shoal_tensor *grad)
{
    shoal_tensor *p = slot->parameter;
    const sh_device *device = p->storage->device;
    if (grad->storage->device != device) {
        return sh_device_mixed("shoal_optimizer_step", device, grad->storage->device);
    }
    if (batch->count == SH_OPTIM_BATCH || (batch->count > 0 && (batch->device != device || batch->dtype != p->dtype))) {
        SH_TRY(sh_optim_batch_run(batch, optimizer));
    }
    const sh_optim_kind *kind = optimizer->kind;
    sh_optim_part part = {.n = p->count, .param = sh_tensor_ptr(p), .grad = sh_tensor_ptr(grad)};
    for (int i = 0; i < 3; i++) {
        part.state[i] = kind->part[i] < 0 ? NULL : memory_of(slot->state[kind->part[i]]);
    }
    for (int s = 0; s < SH_OPTIM_STATES; s++) {
        if (slot->state[s] && strcmp(kind->states[s], SH_OPTIM_STEP) == 0) {
            float *step = sh_tensor_ptr(slot->state[s]);
            part.step = batch->steps[batch->step_count++] = step;
            sh_tensor_touch(slot->state[s]);
        }
    }
    batch->device = device;
    batch->dtype = p->dtype;
    batch->parts[batch->count++] = part;
    sh_tensor_touch(p);
    return SHOAL_OK;
}
