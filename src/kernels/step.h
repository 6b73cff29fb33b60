/* The contract of the small kernels around a training step on a GPU: they take a batch from a data set in GPU memory,
 * and advance the counters, so that the same launches can be repeated. Optional: a table without them has NULL. */
#ifndef SH_KERNELS_STEP_H
#define SH_KERNELS_STEP_H

#include "kernels/view.h"

/* Row i of the batch is sample order[state[0] + i] of the set, for i < count. All pointers are GPU memory. Contiguous;
 * samples and x are aligned to 16 bytes. */
typedef struct sh_step_batch {
    void *x;             /* [count, row] */
    const void *samples; /* [n, row] */
    int64_t row;         /* elements of a sample */
    int64_t size;        /* bytes of an element; not used if scaled */
    bool scaled;         /* samples are u8 and x is f32: x = sample * scale + shift, rounded after each of both */
    float scale, shift;

    void *y;            /* [count] */
    const void *labels; /* [n] */
    int64_t label_size; /* bytes of an element of y */
    bool byte_labels;   /* labels are u8 and y is i64 */

    const int64_t *order;
    const int64_t *state;
    int64_t count;
} sh_step_batch;

typedef struct sh_step_kernels {
    shoal_err (*take)(sh_exec *exec, const sh_step_batch *batch);
    /* state[0] += count; *sum += *loss. */
    shoal_err (*count)(sh_exec *exec, int64_t *state, int64_t count, float *sum, const float *loss);
} sh_step_kernels;

extern const sh_step_kernels sh_step_kernels_reference; /* for tests: the CPU's tables do not have it */

#endif
