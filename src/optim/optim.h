/* Optimisers inside: one slot per parameter, and a kind that knows its state's names and its step. */
#ifndef SH_OPTIM_OPTIM_H
#define SH_OPTIM_OPTIM_H

#include "nn/module.h"

#include <shoal/optim.h>

#define SH_OPTIM_STATES 4

typedef struct sh_optim_slot {
    char *name; /* the parameter's */
    shoal_tensor *parameter;
    shoal_tensor *state[SH_OPTIM_STATES]; /* in the order of the kind's names; NULL until made, and where not wanted */
} sh_optim_slot;

/* What a step works on: a parameter and its gradient, both contiguous. */
typedef struct sh_update {
    sh_exec *exec;
    const sh_optim_kernels *kernels;
    shoal_dtype dtype;
    int64_t count;
    void *parameter;
    const void *grad;
    void *state[SH_OPTIM_STATES]; /* memory of the slot's state; NULL where not wanted */
    float step;                   /* the number of this step, from 1; 0 where there is no state "step" */
} sh_update;

typedef struct sh_optim_kind {
    const char *name;
    const char *states[SH_OPTIM_STATES]; /* a state called SH_OPTIM_STEP is 0-d, f32 and on the CPU */
    bool (*wants)(const shoal_optimizer *optimizer, int state);
    shoal_err (*step)(shoal_optimizer *optimizer, const sh_update *update);
} sh_optim_kind;

#define SH_OPTIM_STEP "step"

typedef struct sh_adam_settings {
    shoal_adam_options o;
    bool decoupled;
    float last_step; /* whose bias corrections stand here: the slots usually are at the same step */
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

/* With the module's parameters in slots, everything else zero. NULL: SHOAL_EINVAL for a module of NULL, SHOAL_ENOMEM. */
shoal_optimizer *sh_optimizer_create(const sh_optim_kind *kind, shoal_module *module, double lr);

/* x if low <= x <= high (below high, when open). Errors: SHOAL_EINVAL with the names. */
shoal_err sh_optim_check(const char *kind, const char *name, double x, double low, double high, bool open);

/* An option whose default is not 0. */
static inline double sh_optim_default(double given, double usual)
{
    return given == 0 ? usual : given < 0 ? 0 : given;
}

#endif
