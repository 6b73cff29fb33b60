/* The contract of the pointwise half of an LSTM cell; matmul computes the other half, the products with the weights.
 * f32 and f64, contiguous.
 *
 * gates [n, 4·hidden] = x·Wx + h·Wh + biases, in PyTorch's order i, f, g, o. All other arrays are [n, hidden].
 *
 *     i, f, o = sigmoid(…), g = tanh(…);   c = f · c_prev + i · g;   h = o · tanh(c) */
#ifndef SH_KERNELS_RNN_H
#define SH_KERNELS_RNN_H

#include "kernels/view.h"

typedef struct sh_lstm_shape {
    shoal_dtype dtype;
    int64_t n, hidden;
} sh_lstm_shape;

typedef struct sh_rnn_kernels {
    /* h =, c =, acts =. acts [n, 4·hidden] holds i, f, g and o after their functions, saved for backward; it may be
     * gates. c may be c_prev if no backward pass follows. */
    shoal_err (*lstm)(sh_exec *exec, const sh_lstm_shape *shape, void *h, void *c, void *acts, const void *gates,
                      const void *c_prev);
    /* dgates [n, 4·hidden] =, dc_prev =, from the gradients of h and c. A NULL dc means zeros. dgates may be acts, and
     * dc_prev may be dc. Saved by lstm: acts, c, c_prev. */
    shoal_err (*lstm_backward)(sh_exec *exec, const sh_lstm_shape *shape, void *dgates, void *dc_prev, const void *dh,
                               const void *dc, const void *acts, const void *c, const void *c_prev);
} sh_rnn_kernels;

extern const sh_rnn_kernels sh_rnn_kernels_reference;
extern const sh_rnn_kernels sh_rnn_kernels_avx2;
extern const sh_rnn_kernels sh_rnn_kernels_avx512;

#endif
