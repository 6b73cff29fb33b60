/* The kinds with parameters, which the models and the table of kinds use, and access to their insides. */
#ifndef SH_NN_LAYERS_H
#define SH_NN_LAYERS_H

#include "nn/module.h"

#define SH_KINDS(X)                                                                                                    \
    X(linear)                                                                                                          \
    X(conv2d)                                                                                                          \
    X(max_pool2d)                                                                                                      \
    X(avg_pool2d)                                                                                                      \
    X(dropout)                                                                                                         \
    X(dropout2d)                                                                                                       \
    X(relu)                                                                                                            \
    X(tanh)                                                                                                            \
    X(sigmoid)                                                                                                         \
    X(gelu)                                                                                                            \
    X(log_softmax)                                                                                                     \
    X(flatten)                                                                                                         \
    X(embedding)                                                                                                       \
    X(layer_norm)                                                                                                      \
    X(lstm)                                                                                                            \
    X(actor_critic)                                                                                                    \
    X(sequential)

#define SH_LAYER_DECLARE(name) extern const shoal_module_type sh_layer_##name;
SH_KINDS(SH_LAYER_DECLARE)
#undef SH_LAYER_DECLARE

/* Returns the probability that a dropout uses now: 0 if it is not training. */
double sh_layer_dropout_p(const shoal_module *dropout);

/* Returns h of the last layer at the last step, [N, hidden]. */
shoal_tensor *sh_layer_lstm_last(shoal_module *lstm, shoal_tensor *x);

#endif
