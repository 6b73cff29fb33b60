/* Adam and AdamW. */
#include "optim/optim.h"

#include "base/error.h"

#include <math.h>

enum { ADAM_STEP, ADAM_FIRST, ADAM_SECOND, ADAM_MAX };

static bool adam_wants(const shoal_optimizer *optimizer, int state)
{
    return state != ADAM_MAX || optimizer->adam.o.amsgrad;
}

static sh_adam_args adam_args(const shoal_optimizer *optimizer, double bias1, double bias2)
{
    const sh_adam_settings *s = &optimizer->adam;
    return (sh_adam_args){
        .lr = optimizer->lr,
        .beta1 = s->o.beta1,
        .beta2 = s->o.beta2,
        .eps = s->o.eps,
        .weight_decay = s->o.weight_decay,
        .bias1 = bias1,
        .bias2 = bias2,
        .decoupled = s->decoupled,
        .maximize = s->o.maximize,
    };
}

static shoal_err adam_step(shoal_optimizer *optimizer, const sh_update *u)
{
    sh_adam_settings *s = &optimizer->adam;
    if (u->step != s->last_step) {
        s->last_step = u->step;
        s->bias1 = 1 - pow(s->o.beta1, s->last_step);
        s->bias2 = 1 - pow(s->o.beta2, s->last_step);
    }
    sh_adam_args args = adam_args(optimizer, s->bias1, s->bias2);
    return u->kernels->adam(u->exec, u->dtype, u->count, &args, u->parameter, u->state[ADAM_FIRST],
                            u->state[ADAM_SECOND], u->state[ADAM_MAX], u->grad);
}

static shoal_err adam_step_all(shoal_optimizer *optimizer, const sh_updates *u)
{
    sh_adam_args args = adam_args(optimizer, 1, 1); /* the kernel computes them from the step */
    return u->kernels->adam_all(u->exec, u->dtype, &args, u->parts, u->count);
}

#define ADAM_KIND(title)                                                                                               \
    {                                                                                                                  \
        .name = title,                                                                                                 \
        .states = {[ADAM_STEP] = SH_OPTIM_STEP,                                                                        \
                   [ADAM_FIRST] = "exp_avg",                                                                           \
                   [ADAM_SECOND] = "exp_avg_sq",                                                                       \
                   [ADAM_MAX] = "max_exp_avg_sq"},                                                                     \
        .part = {ADAM_FIRST, ADAM_SECOND, ADAM_MAX}, .wants = adam_wants, .step = adam_step,                           \
        .step_all = adam_step_all,                                                                                     \
    }

static const sh_optim_kind adam = ADAM_KIND("Adam");
static const sh_optim_kind adamw = ADAM_KIND("AdamW");

static shoal_err adam_check(const char *kind, const shoal_adam_options *o)
{
    SH_TRY(sh_optim_check(kind, "lr", o->lr, 0, INFINITY, true));
    SH_TRY(sh_optim_check(kind, "beta1", o->beta1, 0, 1, true));
    SH_TRY(sh_optim_check(kind, "beta2", o->beta2, 0, 1, true));
    SH_TRY(sh_optim_check(kind, "eps", o->eps, 0, INFINITY, true));
    return sh_optim_check(kind, "weight_decay", o->weight_decay, 0, INFINITY, true);
}

static shoal_optimizer *create(const sh_optim_kind *kind, shoal_module *module, const shoal_adam_options *options,
                               bool decoupled)
{
    shoal_adam_options o = options ? *options : (shoal_adam_options){0};
    o.lr = o.lr == 0 ? 0.001 : o.lr;
    o.beta1 = sh_optim_default(o.beta1, 0.9);
    o.beta2 = sh_optim_default(o.beta2, 0.999);
    o.eps = sh_optim_default(o.eps, 1e-8);
    o.weight_decay = decoupled ? sh_optim_default(o.weight_decay, 0.01) : o.weight_decay;
    if (adam_check(kind->name, &o) != SHOAL_OK) {
        return NULL;
    }
    shoal_optimizer *optimizer = sh_optimizer_create(kind, module, o.lr);
    if (optimizer) {
        optimizer->adam = (sh_adam_settings){.o = o, .decoupled = decoupled};
    }
    return optimizer;
}

shoal_optimizer *shoal_adam_create_with(shoal_module *module, const shoal_adam_options *options)
{
    SH_NEED_OR_NULL(module);
    return create(&adam, module, options, false);
}

shoal_optimizer *shoal_adamw_create_with(shoal_module *module, const shoal_adam_options *options)
{
    SH_NEED_OR_NULL(module);
    return create(&adamw, module, options, true);
}
