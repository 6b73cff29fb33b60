/* Optimisers: change the parameters of a module by their gradients, with the formulas of PyTorch.
 *
 * An optimiser works on the parameters that its module has when the optimiser is made. It retains them, so the module
 * may be destroyed first. Its state, such as momentum, is private, or shared by all processes that adopt the same
 * tensors. Steps on shared parameters take no lock. Only one thread at a time may use an optimiser. Nothing here
 * blocks, except shoal_clip_grad_norm on a GPU if it is asked for the norm.
 */
#ifndef SHOAL_OPTIM_H
#define SHOAL_OPTIM_H

#include <shoal/nn.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct shoal_optimizer shoal_optimizer;

/* Options of the optimisers. 0 stands for PyTorch's default, which the comment beside the member says if it is not 0.
 * To set 0 itself for a beta, alpha, eps or AdamW's weight_decay, use a negative number. maximize follows the
 * gradient upwards. */
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

/* Make an optimiser for the parameters of a module. The caller owns it: shoal_optimizer_destroy. options may be NULL
 * for the defaults. Returns NULL on failure. Errors: SHOAL_EINVAL if a number is out of range (the text names it);
 * SHOAL_ENOMEM. */
shoal_optimizer *shoal_sgd_create_with(shoal_module *module, const shoal_sgd_options *options);
shoal_optimizer *shoal_adam_create_with(shoal_module *module, const shoal_adam_options *options);
shoal_optimizer *shoal_adamw_create_with(shoal_module *module, const shoal_adam_options *options);
shoal_optimizer *shoal_rmsprop_create_with(shoal_module *module, const shoal_rmsprop_options *options);

/* Destroys an optimiser. Its module is unchanged. NULL is allowed. Never changes the last error. */
void shoal_optimizer_destroy(shoal_optimizer *optimizer);

/* Make an optimiser with named options: shoal_sgd_create(model, .lr = 0.01, .momentum = 0.5). The caller owns it.
 * C++17 has no designated initialisers: fill in the options and pass them, shoal_sgd_create(model, options). Errors:
 * as for shoal_sgd_create_with. */
#ifdef __cplusplus
#define SHOAL_OPTIM_WITH(call, options, module, ...) call(module, shoal_cxx_options(options{__VA_ARGS__}))
#else
#define SHOAL_OPTIM_WITH(call, options, module, ...) call(module, &(options){__VA_ARGS__})
#endif
#define SHOAL_OPTIM_ALONE(call, options, module) call(module, NULL)
/* Chooses one of the two by the number of arguments, because -pedantic does not allow an empty "...". */
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

/* Takes one step of an optimiser: changes every parameter that has a gradient. The parameters count as changed in
 * place. Errors: SHOAL_ENOMEM if there is no memory for the state, at the first step; SHOAL_ETYPE if a parameter is
 * neither f32 nor f64. The parameters before the failure are then changed. */
SHOAL_MUST_USE shoal_err shoal_optimizer_step(shoal_optimizer *optimizer);

/* Zeroes the gradients of all parameters, for the next backward, like shoal_module_zero_grad. NULL is allowed. */
void shoal_optimizer_zero_grad(shoal_optimizer *optimizer);

/* Set or get the learning rate. Here it may be any number, 0 too. */
void shoal_optimizer_set_lr(shoal_optimizer *optimizer, double lr);
double shoal_optimizer_lr(const shoal_optimizer *optimizer);

/* Scales all gradients of a module down so that their common 2-norm is at most max_norm. *out_norm is the norm before;
 * out_norm may be NULL. Blocks if the module is on a GPU and out_norm is not NULL. Errors: SHOAL_EINVAL if max_norm is
 * not a positive number, or the gradients are on several devices; SHOAL_ENOMEM. */
SHOAL_MUST_USE shoal_err shoal_clip_grad_norm(shoal_module *module, double max_norm, double *out_norm);

/* Makes the state of an optimiser, zeroed, for every parameter that needs a gradient. Without this call, the first
 * step makes the state of the parameters that have a gradient then. Errors: SHOAL_ENOMEM; SHOAL_ETYPE if a parameter
 * is neither f32 nor f64. */
SHOAL_MUST_USE shoal_err shoal_optimizer_prepare(shoal_optimizer *optimizer);

/* Gets the next tensor of an optimiser's state. Its name is like "conv1.weight.momentum_buffer" or
 * "conv1.weight.step". Begin with a zeroed shoal_named. The optimiser owns the tensors: copy into them to restore a
 * state, share them to share the state. Names and shapes are PyTorch's: step has no dims and is f32, and SGD has it
 * only with dampening. Every state is on the device of its parameter. Returns SHOAL_END after the last. */
SHOAL_MUST_USE shoal_err shoal_optimizer_next(const shoal_optimizer *optimizer, shoal_named *it);

/* Replaces a tensor of an optimiser's state by another one, which it retains. The state need not exist yet. Processes
 * that adopt the same shared tensors share the state. Errors: SHOAL_ENOENT if the optimiser has no tensor of that
 * name; SHOAL_EINVAL if dtype, shape or device differ, or the tensor is not contiguous. */
SHOAL_MUST_USE shoal_err shoal_optimizer_adopt(shoal_optimizer *optimizer, const char *name, shoal_tensor *t);

#ifdef __cplusplus
}
#endif
#endif
