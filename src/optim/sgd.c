#include "optim/optim.h"

#include "base/error.h"

#include <math.h>

enum { SGD_BUFFER, SGD_STEP };

/* Without dampening, a first step on a buffer of zeros is like any other. */
static bool sgd_wants(const shoal_optimizer *optimizer, int state)
{
    const shoal_sgd_options *s = &optimizer->sgd;
    return s->momentum != 0 && (state == SGD_BUFFER || s->dampening != 0);
}

static sh_sgd_args sgd_args(const shoal_optimizer *optimizer, bool first)
{
    const shoal_sgd_options *s = &optimizer->sgd;
    return (sh_sgd_args){
        .lr = optimizer->lr,
        .momentum = s->momentum,
        .dampening = s->dampening,
        .weight_decay = s->weight_decay,
        .nesterov = s->nesterov,
        .maximize = s->maximize,
        .first = first,
    };
}

static shoal_err sgd_step(shoal_optimizer *optimizer, const sh_update *u)
{
    sh_sgd_args args = sgd_args(optimizer, u->step == 1);
    return u->kernels->sgd(u->exec, u->dtype, u->count, &args, u->parameter, u->state[SGD_BUFFER], u->grad);
}

static shoal_err sgd_step_all(shoal_optimizer *optimizer, const sh_updates *u)
{
    sh_sgd_args args = sgd_args(optimizer, false);
    return u->kernels->sgd_all(u->exec, u->dtype, &args, u->parts, u->count);
}

static const sh_optim_kind sgd = {
    .name = "SGD",
    .states = {[SGD_BUFFER] = "momentum_buffer", [SGD_STEP] = SH_OPTIM_STEP},
    .part = {SGD_BUFFER, -1, -1},
    .wants = sgd_wants,
    .step = sgd_step,
    .step_all = sgd_step_all,
};

static shoal_err sgd_check(const shoal_sgd_options *o)
{
    SH_TRY(sh_optim_check("SGD", "lr", o->lr, 0, INFINITY, true));
    SH_TRY(sh_optim_check("SGD", "momentum", o->momentum, 0, INFINITY, true));
    SH_TRY(sh_optim_check("SGD", "weight_decay", o->weight_decay, 0, INFINITY, true));
    if (!isfinite(o->dampening)) {
        return sh_fail(SHOAL_EINVAL, "SGD: dampening is %g, it must be finite", o->dampening);
    }
    if (o->nesterov && (o->momentum == 0 || o->dampening != 0)) {
        return sh_fail(SHOAL_EINVAL, "SGD: nesterov needs momentum (it is %g) and no dampening (it is %g)", o->momentum,
                       o->dampening);
    }
    return SHOAL_OK;
}

shoal_optimizer *shoal_sgd_create_with(shoal_module *module, const shoal_sgd_options *options)
{
    SH_NEED_OR_NULL(module);
    shoal_sgd_options o = options ? *options : (shoal_sgd_options){0};
    o.lr = o.lr == 0 ? 0.001 : o.lr;
    if (sgd_check(&o) != SHOAL_OK) {
        return NULL;
    }
    shoal_optimizer *optimizer = sh_optimizer_create(&sgd, module, o.lr);
    if (optimizer) {
        optimizer->sgd = o;
    }
    return optimizer;
}
