/* The internals of optimisers: one slot for each parameter,
 * and a kind that defines the names of its state and its step. */
#ifndef SH_OPTIM_OPTIM_H
#define SH_OPTIM_OPTIM_H

#include "nn/module.h"

#include <shoal/optim.h>

#define SH_OPTIM_STATES 4

typedef struct sh_optim_slot {
    char *name; /* of the parameter */
    shoal_tensor *parameter;
    shoal_tensor *state[SH_OPTIM_STATES]; /* in the order of the kind's names; NULL until made, or if not wanted */
} sh_optim_slot;

/* The arguments of a step for one parameter: the parameter and its gradient, both contiguous. */
typedef struct sh_update {
    sh_exec *exec;
    const sh_optim_kernels *kernels;
    shoal_dtype dtype;
    int64_t count;
    void *parameter;
    const void *grad;
    void *state[SH_OPTIM_STATES]; /* memory of the slot's state; NULL if not wanted */
    float step;                   /* the number of this step, from 1; 0 if there is no state "step" */
} sh_update;

/* The same for several parameters of one dtype, on a device that has kernels for them (sh_optim_kernels.sgd_all …). */
typedef struct sh_updates {
    sh_exec *exec;
    const sh_optim_kernels *kernels;
    shoal_dtype dtype;
    const sh_optim_part *parts;
    int32_t count;
} sh_updates;

/* A state named SH_OPTIM_STEP is 0-d and f32. It is on the CPU, or with the parameter if the device has sgd_all …: a
 * captured step then counts on when it is replayed. */
typedef struct sh_optim_kind {
    const char *name;
    const char *states[SH_OPTIM_STATES];
    int part[3]; /* which state is state[i] of sh_optim_part; -1 if none is */
    bool (*wants)(const shoal_optimizer *optimizer, int state);
    shoal_err (*step)(shoal_optimizer *optimizer, const sh_update *update);
    shoal_err (*step_all)(shoal_optimizer *optimizer, const sh_updates *updates);
} sh_optim_kind;

#define SH_OPTIM_STEP "step"

typedef struct sh_adam_settings {
    shoal_adam_options o;
    bool decoupled;
    float last_step; /* the step of bias1 and bias2, which are cached because most slots are at the same step */
    double bias1, bias2;
} sh_adam_settings;

struct shoal_optimizer {
    const sh_optim_kind *kind;
    double lr;
    union {
        shoal_sgd_options sgd;
        sh_adam_settings adam;
        shoal_rmsprop_options rmsprop;
    };
    size_t count;
    sh_optim_slot *slots;
};

/* Creates an optimiser with a slot for each of the module's parameters and everything else zero. Returns NULL after an
 * error. Errors: SHOAL_EINVAL if module is NULL, SHOAL_ENOMEM. */
shoal_optimizer *sh_optimizer_create(const sh_optim_kind *kind, shoal_module *module, double lr);

/* Checks that low <= x <= high (x < high if open). Errors: SHOAL_EINVAL; the text contains the names. */
shoal_err sh_optim_check(const char *kind, const char *name, double x, double low, double high, bool open);

/* Returns an option whose default is not 0. */
static inline double sh_optim_default(double given, double usual)
{
    return given == 0 ? usual : given < 0 ? 0 : given;
}

#endif
