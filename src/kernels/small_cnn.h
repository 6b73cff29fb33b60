/* The contract of a whole training step of the model mnist-cnn (nn/models.c) on a GPU, in two launches: one block
 * per image computes its loss and gradients, then one thread per parameter adds the images up and takes the step. Op by
 * op, the same step is about 30 launches. Optional: a table without it has NULL.
 *
 *     x [1, 28, 28] -> conv 10 5x5, pool, relu [10, 12, 12] -> conv 20 5x5, drop channels, pool, relu [20, 4, 4]
 *       -> linear 50, relu, dropout -> linear 10 -> log_softmax -> mean of the negative log-likelihood
 *
 * It computes what the ops do, and draws the same random numbers at the same positions. f32. The sums have a fixed
 * order, so the same input gives the same bits. */
#ifndef SH_KERNELS_SMALL_CNN_H
#define SH_KERNELS_SMALL_CNN_H

#include "kernels/random.h"
#include "kernels/view.h"

#define SH_SMALL_CNN_TENSORS 8

/* All pointers but this struct are GPU memory. */
typedef struct sh_small_cnn_step {
    /* In the order of the module's parameters: weight and bias of conv1, conv2, fc1, fc2. */
    float *param[SH_SMALL_CNN_TENSORS];
    float *momentum[SH_SMALL_CNN_TENSORS]; /* the buffers of SGD, zeros before the first step; NULL without momentum */
    float *grad[SH_SMALL_CNN_TENSORS];     /* not NULL: the gradient is written here (`=`), and no step is taken */

    /* Image order[at + i] is row i of the batch; pixel p of it is p * scale + shift. */
    const uint8_t *pixels; /* [n, 784] */
    const uint8_t *labels; /* [n] */
    const int64_t *order;
    float scale, shift;
    int64_t batch;

    /* state[0] = at, in samples; state[1] = blocks of random numbers drawn before this step. The step adds what it
     * used to both, so that the same launches can be repeated. */
    int64_t *state;
    sh_random_key key;
    const uint64_t *seed; /* not NULL: replaces key.seed, so that the same launches can be repeated with another one */
    float lr, momentum_factor;
    float *loss;   /* += the batch's mean loss */
    bool training; /* with dropout */
} sh_small_cnn_step;

typedef struct sh_small_cnn_kernels {
    /* Returns the bytes of scratch memory that a step of this batch needs. */
    size_t (*scratch_size)(int64_t batch);
    /* Takes a step. scratch is GPU memory of that size, aligned to 256 bytes. */
    shoal_err (*step)(sh_exec *exec, const sh_small_cnn_step *args, void *scratch);
} sh_small_cnn_kernels;

#endif
