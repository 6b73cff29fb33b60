/* The pointwise half of an LSTM cell; the products with the weights are matmuls. f32 and f64, contiguous.
 *
 * gates [n, 4·hidden] = x·Wx + h·Wh + biases, in PyTorch's order i, f, g, o; the others are [n, hidden].
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
    /* h, c, acts `=`. acts [n, 4·hidden]: i, f, g, o after their functions, saved for backward; may be gates. c may be
     * c_prev if no backward follows. */
    shoal_err (*lstm)(sh_exec *exec, const sh_lstm_shape *shape, void *h, void *c, void *acts, const void *gates,
                      const void *c_prev);
    /* dgates [n, 4·hidden] and dc_prev `=`, from the gradients of h and c; dc may be NULL (zeros). dgates may be acts, dc_prev
     * may be dc. c and c_prev are those of the forward pass. */
    shoal_err (*lstm_backward)(sh_exec *exec, const sh_lstm_shape *shape, void *dgates, void *dc_prev, const void *dh,
                               const void *dc, const void *acts, const void *c, const void *c_prev);
} sh_rnn_kernels;

extern const sh_rnn_kernels sh_rnn_kernels_reference;
extern const sh_rnn_kernels sh_rnn_kernels_avx2;
extern const sh_rnn_kernels sh_rnn_kernels_avx512;

#endif
