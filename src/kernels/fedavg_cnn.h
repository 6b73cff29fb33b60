/* The contract of a whole training step of the model fedavg-cnn (nn/models.c) on a GPU, for several clients in the
 * same launches. A client is one set of parameters with its own samples: a worker of fedavg trains all its clients of a
 * round side by side; serial, hogwild, sync and local have one client. Op by op, the same step of one client is about
 * 20 launches, which do not fill a card. Optional: a table without it has NULL.
 *
 *     x [1, 28, 28] -> conv 32 5x5 with a border of 2, pool, relu [32, 14, 14]
 *       -> conv 64 5x5 with a border of 2, pool, relu [64, 7, 7] -> linear 512, relu -> linear 10
 *       -> log_softmax -> mean of the negative log-likelihood
 *
 * It computes what the ops do, in f32, or with the factors of products rounded to TF32 if asked. Sums have a fixed
 * order: the same input gives the same bits. */
#ifndef SH_KERNELS_FEDAVG_CNN_H
#define SH_KERNELS_FEDAVG_CNN_H

#include "kernels/view.h"

#define SH_FEDAVG_CNN_TENSORS 8

/* All pointers but this struct are GPU memory. Client c's part of each tensor begins c * stride elements after that of
 * client 0: `param`, `momentum` and `grad` have the same layout. */
typedef struct sh_fedavg_cnn_step {
    /* In the order of the module's parameters: weight and bias of conv1, conv2, fc1, fc2. Aligned to 256 bytes. */
    float *param[SH_FEDAVG_CNN_TENSORS];
    float *momentum[SH_FEDAVG_CNN_TENSORS]; /* the buffers of SGD, zeros before the first step; NULL without momentum */
    float *grad[SH_FEDAVG_CNN_TENSORS];     /* not NULL: the gradient is written here (`=`), and no step is taken */
    int64_t stride;                         /* a multiple of 64 */
    int clients;

    /* Row i of client c's batch is image order[c * order_stride + at + i]; pixel p of it is p * scale + shift. The
     * client has counts[c] samples in its order, so its batch has rows = counts[c] - at rows, at least 0 and at most
     * `batch`. Its loss and gradient are means over these rows. A client without rows is left as it is. */
    const uint8_t *pixels; /* [n, 784] */
    const uint8_t *labels; /* [n] */
    const int64_t *order;
    int64_t order_stride;
    const int64_t *counts; /* [clients] */
    float scale, shift;
    int64_t batch;

    int64_t *state; /* state[0] = at. The step adds batch to it, so that the same launches can be repeated */
    float lr, momentum_factor;
    float *loss; /* += the mean over the clients that have rows of their batches' mean losses */
    bool tf32;

    /* [clients, 2]; not NULL: the step only tests, and changes nothing else but scratch memory. = the sum of the losses
     * of a client's rows, and how many of them have their greatest output at the label (the first of equal ones). */
    double *score;
} sh_fedavg_cnn_step;

typedef struct sh_fedavg_cnn_kernels {
    /* Returns the bytes of scratch memory that a step needs. */
    size_t (*scratch_size)(int64_t batch, int clients);
    /* Takes a step. scratch is GPU memory of that size, aligned to 256 bytes. What an earlier step left there is not
     * used. */
    shoal_err (*step)(sh_exec *exec, const sh_fedavg_cnn_step *args, void *scratch);
} sh_fedavg_cnn_kernels;

extern const sh_fedavg_cnn_kernels sh_fedavg_cnn_kernels_reference; /* for tests: the CPU's tables do not have it */

#endif
