/* One step of an optimiser over a contiguous parameter, in PyTorch's order of operations. f32 and f64; scalars are
 * rounded to the dtype first, as PyTorch does.
 *
 * param and the state arrays are updated in place (`+=` in spirit), grad is only read. Arrays may not overlap.
 * The parameters may be shared with processes that update them at the same time (Hogwild): loads and stores are plain vector
 * ones, an element may lose another's update, and no element is ever torn (x86-64: aligned elements). That race is on purpose. */
#ifndef SH_KERNELS_OPTIM_H
#define SH_KERNELS_OPTIM_H

#include "kernels/view.h"

typedef struct sh_sgd_args {
    double lr, momentum, dampening, weight_decay;
    bool nesterov, maximize;
    bool first; /* the buffer is empty: it becomes the gradient, without dampening */
} sh_sgd_args;

/* g = ±grad + weight_decay·p; m = beta1·m + (1 - beta1)·g; v = beta2·v + (1 - beta2)·g²;
 * p -= lr / bias1 · m / (sqrt(v) / sqrt(bias2) + eps), bias_i = 1 - beta_i^step.
 * decoupled (AdamW): p *= 1 - lr·weight_decay first, and g without it. */
typedef struct sh_adam_args {
    double lr, beta1, beta2, eps, weight_decay;
    double bias1, bias2;
    bool decoupled, maximize;
} sh_adam_args;

/* v = alpha·v + (1 - alpha)·g²; d = sqrt(v) + eps, or centered: a = alpha·a + (1 - alpha)·g, d = sqrt(v - a²) + eps;
 * p -= lr · g / d, or with momentum: b = momentum·b + g / d, p -= lr · b. */
typedef struct sh_rmsprop_args {
    double lr, alpha, eps, weight_decay, momentum;
    bool maximize;
} sh_rmsprop_args;

typedef struct sh_optim_kernels {
    /* buffer may be NULL when momentum is 0. */
    shoal_err (*sgd)(sh_exec *exec, shoal_dtype dtype, int64_t n, const sh_sgd_args *args, void *param, void *buffer,
                     const void *grad);
    /* v_max: amsgrad's running maximum of v, used in its place; or NULL. */
    shoal_err (*adam)(sh_exec *exec, shoal_dtype dtype, int64_t n, const sh_adam_args *args, void *param, void *m,
                      void *v, void *v_max, const void *grad);
    /* average: not NULL for the centered form; buffer: not NULL for momentum. */
    shoal_err (*rmsprop)(sh_exec *exec, shoal_dtype dtype, int64_t n, const sh_rmsprop_args *args, void *param, void *v,
                         void *average, void *buffer, const void *grad);
    /* x *= factor. */
    shoal_err (*scale)(sh_exec *exec, shoal_dtype dtype, int64_t n, void *x, double factor);
    /* x *= min(1, max_norm / (sqrt(*sumsq) + 1e-6)); sumsq: one element of dtype on the device, the sum of squares of all
     * gradients together. */
    shoal_err (*clip)(sh_exec *exec, shoal_dtype dtype, int64_t n, void *x, const void *sumsq, double max_norm);
    /* out = Σ weights[j] · in[j], j = 0 … count - 1 in order, summed in f64; out may be one of in. in and weights lie on
     * the host. */
    shoal_err (*average)(sh_exec *exec, shoal_dtype dtype, int64_t n, void *out, const void *const *in,
                         const double *weights, int32_t count);
} sh_optim_kernels;

extern const sh_optim_kernels sh_optim_kernels_reference;
extern const sh_optim_kernels sh_optim_kernels_avx2;
extern const sh_optim_kernels sh_optim_kernels_avx512;

#endif
