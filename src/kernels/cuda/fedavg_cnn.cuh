/* Shared by the files of the step of fedavg-cnn (kernels/fedavg_cnn.h). Image n = client * batch + row.
 *
 *   fedavg_cnn.cu        conv1, its gradient, the sums over parts and the update; the order of the launches
 *   fedavg_cnn_conv2*.cu conv2 with pool and relu, forward and backward, on the tensor cores
 *   fedavg_cnn_linear.cu fc1, fc2 and the loss, forward and backward
 *   fedavg_cnn_score.cu  the score of a step that only tests
 *
 * f32 on the tensor cores: a factor is split into two TF32 numbers, high and low, and high*high + high*low + low*high
 * is added up in f32. What is left out is below f32's own rounding. With tf32 it is high*high alone. */
#ifndef SH_KERNELS_CUDA_FEDAVG_CNN_CUH
#define SH_KERNELS_CUDA_FEDAVG_CNN_CUH

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/tensor_core.cuh"
#include "kernels/fedavg_cnn.h"

/* A pool's winner is 0 to 3, its place in the window by rows, or CLOSED if relu gave 0. */
constexpr int SH_CLOSED = 4;

/* The number of parameters of conv1 and of conv2. */
constexpr int SH_W1 = 32 * 25, SH_W2 = 64 * 32 * 25;

/* The step's scratch memory. n images; channels last where it says so, so that a tap's 32 channels are 128 bytes. */
struct sh_fedavg_cnn_memory {
    /* [clients] rows of their batches. Written by the first launch, because the last one changes the state and cannot
     * read it. */

    int *rows;
    float *x1;         /* [n, 18, 18, 32] conv1's output after pool and relu, channels last, with a border of 2 zeros */
    uint8_t *winners1; /* [n, 14, 14, 32] */
    float *x2;         /* [n, 3136] conv2's output after pool and relu, in the order of fc1's columns: [64, 7, 7] */
    uint8_t *winners2; /* [n, 64, 7, 7] */
    float *h;          /* [n, 512] fc1's output after relu */
    float *dh;         /* [n, 512] the gradient of fc1's output before relu */
    /* [n, 10] the gradient of fc2's output; zeros in rows that the batch does not have. In a step that only tests: the
     * log-probabilities. */

    float *dz;
    float *losses; /* [n] of the rows; 0 in those that the batch does not have */
    float *dx2;    /* [n, 3136] the gradient of x2 */
    float *dx1;    /* [n, 14, 14, 32] the gradient of x1 without its border, channels last */
    float *parts1; /* [clients, parts1_count, SH_W1 + 32] parts of the gradient of conv1's weight and bias */
    float *parts2; /* [clients, parts2_count, SH_W2 + 64] the same of conv2, in the order of the parameters */
    int parts1_count, parts2_count;
    void *conv2, *linear; /* private memory of these files */
};

/* conv2: reads x1, param 2 and 3; writes x2 and winners2. */
shoal_err sh_fedavg_cnn_conv2(sh_exec *exec, const sh_fedavg_cnn_step &s, const sh_fedavg_cnn_memory &m);
/* Reads x1, winners2, dx2 and param 2; writes dx1 and parts2. The sum of all parts is the gradient. */
shoal_err sh_fedavg_cnn_conv2_backward(sh_exec *exec, const sh_fedavg_cnn_step &s, const sh_fedavg_cnn_memory &m);
size_t sh_fedavg_cnn_conv2_size(int64_t batch, int clients); /* bytes of m.conv2 */
int sh_fedavg_cnn_conv2_parts(int64_t batch, int clients);   /* the value of parts2_count */

/* fc1, fc2, loss: reads x2 and param 4 to 7; writes h, dz, losses, dh. */
shoal_err sh_fedavg_cnn_linear(sh_exec *exec, const sh_fedavg_cnn_step &s, const sh_fedavg_cnn_memory &m);
/* Reads x2, h, dz, dh; writes dx2, and updates param 4 to 7 (sh_fedavg_cnn_change). */
shoal_err sh_fedavg_cnn_linear_backward(sh_exec *exec, const sh_fedavg_cnn_step &s, const sh_fedavg_cnn_memory &m);
size_t sh_fedavg_cnn_linear_size(int64_t batch, int clients);

/* For a step that only tests: computes the score when fc2's output is in dz. */
shoal_err sh_fedavg_cnn_score(sh_exec *exec, const sh_fedavg_cnn_step &s, const sh_fedavg_cnn_memory &m);

/* Updates one parameter with its gradient, or keeps the gradient. at: c * stride + the parameter's number in tensor t.
 * Only for clients that have rows. */
static __device__ inline void sh_fedavg_cnn_change(const sh_fedavg_cnn_step &s, int t, int64_t at, float gradient)
{
    if (s.grad[t] != nullptr) {
        s.grad[t][at] = gradient;
        return;
    }
    if (s.momentum[t] != nullptr) {
        gradient += s.momentum_factor * s.momentum[t][at];
        s.momentum[t][at] = gradient;
    }
    s.param[t][at] -= s.lr * gradient;
}

/* The values that a step changes, as they were. */
struct sh_fedavg_cnn_old {
    float4 param, momentum;
};

/* The same for 4 consecutive parameters, in two halves: the GPU reads the old values while it computes the gradient.
 * at is a multiple of 4. Without MOMENTUM it needs fewer registers, and there must be no momentum. */
template <bool MOMENTUM>
static __device__ inline sh_fedavg_cnn_old sh_fedavg_cnn_fetch4(const sh_fedavg_cnn_step &s, int t, int64_t at)
{
    sh_fedavg_cnn_old old = {};
    if (s.grad[t] == nullptr) {
        old.param = *(const float4 *)(s.param[t] + at);
        if (MOMENTUM && s.momentum[t] != nullptr) {
            old.momentum = *(const float4 *)(s.momentum[t] + at);
        }
    }
    return old;
}

template <bool MOMENTUM>
static __device__ inline void sh_fedavg_cnn_change4(const sh_fedavg_cnn_step &s, int t, int64_t at, float4 g,
                                                    const sh_fedavg_cnn_old &old)
{
    if (s.grad[t] != nullptr) {
        *(float4 *)(s.grad[t] + at) = g;
        return;
    }
    if (MOMENTUM && s.momentum[t] != nullptr) {
        g.x += s.momentum_factor * old.momentum.x, g.y += s.momentum_factor * old.momentum.y;
        g.z += s.momentum_factor * old.momentum.z, g.w += s.momentum_factor * old.momentum.w;
        *(float4 *)(s.momentum[t] + at) = g;
    }
    *(float4 *)(s.param[t] + at) = make_float4(old.param.x - s.lr * g.x, old.param.y - s.lr * g.y,
                                               old.param.z - s.lr * g.z, old.param.w - s.lr * g.w);
}

#endif
