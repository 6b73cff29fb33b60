/* Steps of the model fedavg-cnn on images of bytes, for one client or for several side by side (kernels/fedavg_cnn.h).
 * The kernels count the steps by themselves, so several steps are captured together; the rest of a run is launched step
 * by step. */
#ifndef SH_TRAIN_STEPS_FEDAVG_CNN_H
#define SH_TRAIN_STEPS_FEDAVG_CNN_H

#include "train/engines/cuda/gpu.h"

typedef struct sh_gpu_cnn {
    sh_fedavg_cnn_step step;
    shoal_tensor *scratch, *counts;
    bool captures, ran;     /* ran: a step has run as it is, so the kernels are loaded */
    shoal_capture *capture; /* of several steps; NULL: none yet */
} sh_gpu_cnn;

/* Returns whether the engine's model and set can be trained in this way. */
bool sh_gpu_cnn_fits(const sh_gpu *g);

/* Opens the steps of that many clients over params and momentum (NULL: none), each f32 [clients, all parameters].
 * Client c's order begins at order + c * order_stride. Where the steps are, and their losses, is in g->progress. close
 * accepts what a failed open left. */
shoal_err sh_gpu_cnn_open(sh_gpu_cnn *s, sh_gpu *g, int clients, const shoal_tensor *params,
                          const shoal_tensor *momentum, const shoal_tensor *order, int64_t order_stride);
void sh_gpu_cnn_close(sh_gpu_cnn *s);

/* Sets how many samples each client has in its order. */
shoal_err sh_gpu_cnn_count(sh_gpu_cnn *s, const int64_t *counts);

/* Sets the learning rate, and where the gradient goes: NULL takes the steps. Captured steps have both in them. */
void sh_gpu_cnn_begin(sh_gpu_cnn *s, const sh_gpu *g, double lr, const shoal_tensor *grads);

/* Enqueues that many steps. */
shoal_err sh_gpu_cnn_steps(sh_gpu_cnn *s, const sh_gpu *g, int64_t count);

#endif
