/* Optimisers: PyTorch's formulas, over the parameters that a module has when the optimiser is made. They are retained, so the
 * module may go first.
 *
 * The state (momentum and so on) is private, or shared by all processes that adopt the same tensors; steps on shared
 * parameters take no lock. One thread uses an optimiser at a time. Nothing here blocks.
 */
#ifndef SHOAL_OPTIM_H
#define SHOAL_OPTIM_H

#include <shoal/nn.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct shoal_optimizer shoal_optimizer;

/* Options of the optimisers. In all of them 0 stands for PyTorch's default where that is not 0; a negative beta, alpha, eps or weight decay of AdamW is
 * then 0 itself. maximize goes up the gradient. */
typedef struct shoal_sgd_options {
    double lr; /* 0.001 */
    double momentum;
    double dampening;
    double weight_decay;
    bool nesterov; /* needs momentum, and no dampening */
    bool maximize;
} shoal_sgd_options;

typedef struct shoal_adam_options {
    double lr;           /* 0.001 */
    double beta1, beta2; /* 0.9, 0.999 */
    double eps;          /* 1e-8 */
    double weight_decay; /* Adam: 0; AdamW: 0.01 */
    bool amsgrad;
    bool maximize;
} shoal_adam_options;

typedef struct shoal_rmsprop_options {
    double lr;    /* 0.01 */
    double alpha; /* 0.99 */
    double eps;   /* 1e-8 */
    double momentum;
    double weight_decay;
    bool centered;
    bool maximize;
} shoal_rmsprop_options;

/* Make an optimiser, which the caller owns. options may be NULL: the defaults. Errors: SHOAL_EINVAL for numbers out of range (named),
 * SHOAL_ENOMEM. */
shoal_optimizer *shoal_sgd_create_with(shoal_module *module, const shoal_sgd_options *options);
shoal_optimizer *shoal_adam_create_with(shoal_module *module, const shoal_adam_options *options);
shoal_optimizer *shoal_adamw_create_with(shoal_module *module, const shoal_adam_options *options);
shoal_optimizer *shoal_rmsprop_create_with(shoal_module *module, const shoal_rmsprop_options *options);
void shoal_optimizer_destroy(shoal_optimizer *optimizer);

/* Make an optimiser with options by name: shoal_sgd_create(model, .lr = 0.01, .momentum = 0.5). In C++17, which has no such names, fill in the options and give
 * them: shoal_sgd_create(model, options). */
#ifdef __cplusplus
#define SHOAL_OPTIM_WITH(call, options, module, ...) call(module, shoal_cxx_options(options{__VA_ARGS__}))
#else
#define SHOAL_OPTIM_WITH(call, options, module, ...) call(module, &(options){__VA_ARGS__})
#endif
#define SHOAL_OPTIM_ALONE(call, options, module) call(module, NULL)
/* Which of the two, by the number of arguments: -pedantic allows no macro that lacks those of its "...". */
#define SHOAL_OPTIM_PICK(m, a, b, c, d, e, f, g, h, i, j, k, which, ...) which
#define SHOAL_OPTIM_MAKE(...)                                                                                          \
    SHOAL_OPTIM_PICK(__VA_ARGS__, SHOAL_OPTIM_WITH, SHOAL_OPTIM_WITH, SHOAL_OPTIM_WITH, SHOAL_OPTIM_WITH,              \
                     SHOAL_OPTIM_WITH, SHOAL_OPTIM_WITH, SHOAL_OPTIM_WITH, SHOAL_OPTIM_WITH, SHOAL_OPTIM_WITH,         \
                     SHOAL_OPTIM_WITH, SHOAL_OPTIM_WITH, SHOAL_OPTIM_ALONE, 0)
#define shoal_sgd_create(...) SHOAL_OPTIM_MAKE(__VA_ARGS__)(shoal_sgd_create_with, shoal_sgd_options, __VA_ARGS__)
#define shoal_adam_create(...) SHOAL_OPTIM_MAKE(__VA_ARGS__)(shoal_adam_create_with, shoal_adam_options, __VA_ARGS__)
#define shoal_adamw_create(...) SHOAL_OPTIM_MAKE(__VA_ARGS__)(shoal_adamw_create_with, shoal_adam_options, __VA_ARGS__)
#define shoal_rmsprop_create(...)                                                                                      \
    SHOAL_OPTIM_MAKE(__VA_ARGS__)(shoal_rmsprop_create_with, shoal_rmsprop_options, __VA_ARGS__)

/* Takes one step: changes every parameter that has a grad; its storage counts as changed in place. Errors: SHOAL_ENOMEM for the state at the
 * first step, SHOAL_ETYPE for parameters that are neither f32 nor f64; the parameters before are then changed. */
shoal_err shoal_optimizer_step(shoal_optimizer *optimizer);

/* Zeroes all grads, for the next backward, as shoal_module_zero_grad makes them. */
void shoal_optimizer_zero_grad(shoal_optimizer *optimizer);

/* The learning rate. It may be any number here, 0 too. */
void shoal_optimizer_set_lr(shoal_optimizer *optimizer, double lr);
double shoal_optimizer_lr(const shoal_optimizer *optimizer);

/* Scales all grads down so that their common 2-norm is at most max_norm. out_norm (may be NULL) is the norm before.
 * Of a module on a card it waits. Errors: SHOAL_EINVAL for a max_norm that is not a positive number, or grads on several devices;
 * SHOAL_ENOMEM. */
SHOAL_MUST_USE shoal_err shoal_clip_grad_norm(shoal_module *module, double max_norm, double *out_norm);

/* The state of an optimiser by names like "conv1.weight.momentum_buffer" and "conv1.weight.step"; begin with a zeroed it; SHOAL_END after the
 * last. The tensors are
 * the optimiser's own: copy into them to restore, share them to share the state. prepare makes them all at once, zeroed, for
 * every parameter that needs a gradient; a first step makes those of the parameters that have one. Names and shapes are
 * PyTorch's: step is 0-d, f32 and always on the CPU; SGD has one only together with dampening. */
SHOAL_MUST_USE shoal_err shoal_optimizer_prepare(shoal_optimizer *optimizer);
SHOAL_MUST_USE shoal_err shoal_optimizer_next(const shoal_optimizer *optimizer, shoal_named *it);

/* Takes a tensor (retained) in the place of the one of that name, made already or not. Errors: SHOAL_ENOENT for a name that
 * this optimiser does not have; SHOAL_EINVAL for a dtype or shape other than that name's, or a tensor not contiguous. */
SHOAL_MUST_USE shoal_err shoal_optimizer_adopt(shoal_optimizer *optimizer, const char *name, shoal_tensor *t);

#ifdef __cplusplus
}
#endif
#endif
