/* The contract of the optimiser kernels: one step over a contiguous parameter, in PyTorch's order of operations. f32
 * and f64. Scalars are rounded to the dtype first, as PyTorch does.
 *
 * param and the state arrays are updated in place; grad is only read. Arrays may not overlap.
 * Other processes may update the same parameters at the same time (Hogwild). Loads and stores are ordinary vector
 * instructions: an update of an element may overwrite another process's update, but no element is ever torn (aligned
 * elements on x86-64). This race is intended. */
#ifndef SH_KERNELS_OPTIM_H
#define SH_KERNELS_OPTIM_H

#include "kernels/view.h"

/* g = ±grad + weight_decay·p (- if maximize), or ±grad if weight_decay is 0, also where p is infinite. With momentum: b
 * = momentum·b + (1 - dampening)·g, then g = g + momentum·b if nesterov, else g = b. p -= lr · g. */
typedef struct sh_sgd_args {
    double lr, momentum, dampening, weight_decay;
    bool nesterov, maximize;
    bool first; /* the momentum buffer is still empty: b = g, without dampening */
} sh_sgd_args;

/* g as for SGD. m = beta1·m + (1 - beta1)·g; v = beta2·v + (1 - beta2)·g²;
 * p -= lr / bias1 · m / (sqrt(v) / sqrt(bias2) + eps), where bias_i = 1 - beta_i^step.
 * decoupled (AdamW): first p *= 1 - lr·weight_decay, and g has no weight decay. */
typedef struct sh_adam_args {
    double lr, beta1, beta2, eps, weight_decay;
    double bias1, bias2;
    bool decoupled, maximize;
} sh_adam_args;

/* g as for SGD. v = alpha·v + (1 - alpha)·g²; d = sqrt(v) + eps, or, if centered, a = alpha·a + (1 - alpha)·g and
 * d = sqrt(v - a²) + eps. p -= lr · g / d, or, with momentum, b = momentum·b + g / d and p -= lr · b. */
typedef struct sh_rmsprop_args {
    double lr, alpha, eps, weight_decay, momentum;
    bool maximize;
} sh_rmsprop_args;

/* One of several parameters of a step: the arguments of the functions for one. */
typedef struct sh_optim_part {
    int64_t n;
    void *param;
    const void *grad;
    void *state[3]; /* sgd: buffer; adam: m, v, v_max; rmsprop: v, average, buffer. NULL as there */
    /* NULL, or the number of this step in device memory. It replaces what the arguments say about the step (first,
     * bias1, bias2), so that a captured step stays right when it is replayed */
    const float *step;
} sh_optim_part;

typedef struct sh_optim_kernels {
    /* buffer holds b; it may be NULL if momentum is 0. */
    shoal_err (*sgd)(sh_exec *exec, shoal_dtype dtype, int64_t n, const sh_sgd_args *args, void *param, void *buffer,
                     const void *grad);
    /* v_max is amsgrad's running maximum of v, which the step then uses instead of v; NULL for plain Adam. */
    shoal_err (*adam)(sh_exec *exec, shoal_dtype dtype, int64_t n, const sh_adam_args *args, void *param, void *m,
                      void *v, void *v_max, const void *grad);
    /* average holds a; it is NULL unless the step is centered. buffer holds b; it is NULL unless there is momentum. */
    shoal_err (*rmsprop)(sh_exec *exec, shoal_dtype dtype, int64_t n, const sh_rmsprop_args *args, void *param, void *v,
                         void *average, void *buffer, const void *grad);
    /* x *= factor. */
    shoal_err (*scale)(sh_exec *exec, shoal_dtype dtype, int64_t n, void *x, double factor);
    /* x *= min(1, max_norm / (sqrt(*sumsq) + 1e-6)). sumsq is one element of dtype in device memory: the sum of the
     * squares of all gradients together. */
    shoal_err (*clip)(sh_exec *exec, shoal_dtype dtype, int64_t n, void *x, const void *sumsq, double max_norm);
    /* out = Σ weights[j] · in[j] for j = 0 … count - 1, summed in that order and in f64. out may be one of the inputs.
     * The arrays in and weights are in host memory. */
    shoal_err (*average)(sh_exec *exec, shoal_dtype dtype, int64_t n, void *out, const void *const *in,
                         const double *weights, int32_t count);

    /* Optional, all or none; NULL on the CPU. The same steps for count parameters of one dtype in few launches. The
     * array parts is in host memory. */
    shoal_err (*sgd_all)(sh_exec *exec, shoal_dtype dtype, const sh_sgd_args *args, const sh_optim_part *parts,
                         int32_t count);
    shoal_err (*adam_all)(sh_exec *exec, shoal_dtype dtype, const sh_adam_args *args, const sh_optim_part *parts,
                          int32_t count);
    shoal_err (*rmsprop_all)(sh_exec *exec, shoal_dtype dtype, const sh_rmsprop_args *args, const sh_optim_part *parts,
                             int32_t count);
    /* *steps[i] += 1. The array steps is in host memory, the numbers are in device memory. */
    shoal_err (*count_steps)(sh_exec *exec, float *const *steps, int32_t count);
    /* *sumsq = the sum of the squares of all param, in f64 and always in the same order. */
    shoal_err (*sumsq_all)(sh_exec *exec, shoal_dtype dtype, const sh_optim_part *parts, int32_t count, double *sumsq);
    /* param *= min(1, max_norm / (sqrt(*sumsq) + 1e-6)); unchanged if that is NaN. */
    shoal_err (*clip_all)(sh_exec *exec, shoal_dtype dtype, const sh_optim_part *parts, int32_t count,
                          const double *sumsq, double max_norm);
} sh_optim_kernels;

extern const sh_optim_kernels sh_optim_kernels_reference;
extern const sh_optim_kernels sh_optim_kernels_avx2;
extern const sh_optim_kernels sh_optim_kernels_avx512;

#endif
