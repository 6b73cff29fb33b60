/* The plain version of the kernels around a step, for tests; the contract is kernels/step.h. */
#include "kernels/step.h"

#include <string.h>

static void take_label(const sh_step_batch *b, int64_t i, int64_t sample)
{
    if (b->byte_labels) {
        ((int64_t *)b->y)[i] = ((const uint8_t *)b->labels)[sample];
        return;
    }
    memcpy((char *)b->y + i * b->label_size, (const char *)b->labels + sample * b->label_size, (size_t)b->label_size);
}

static void scale_row(const sh_step_batch *b, int64_t i, int64_t sample)
{
    float *to = (float *)b->x + i * b->row;
    for (int64_t k = 0; k < b->row; k++) {
        float product = (float)((const uint8_t *)b->samples)[sample * b->row + k] * b->scale;
        to[k] = product + b->shift;
    }
}

static shoal_err take(sh_exec *exec, const sh_step_batch *b)
{
    (void)exec;
    for (int64_t i = 0; i < b->count; i++) {
        int64_t sample = b->order[b->state[0] + i], size = b->row * b->size;
        take_label(b, i, sample);
        if (b->scaled) {
            scale_row(b, i, sample);
        } else {
            memcpy((char *)b->x + i * size, (const char *)b->samples + sample * size, (size_t)size);
        }
    }
    return SHOAL_OK;
}

static shoal_err count(sh_exec *exec, int64_t *state, int64_t samples, float *sum, const float *loss)
{
    (void)exec;
    state[0] += samples;
    *sum += *loss;
    return SHOAL_OK;
}

const sh_step_kernels sh_step_kernels_reference = {.take = take, .count = count};
