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

static shoal_err sgd_step(shoal_optimizer *optimizer, const sh_update *u)
{
    const shoal_sgd_options *s = &optimizer->sgd;
    sh_sgd_args args = {
        .lr = optimizer->lr,
        .momentum = s->momentum,
        .dampening = s->dampening,
        .weight_decay = s->weight_decay,
        .nesterov = s->nesterov,
        .maximize = s->maximize,
        .first = u->step == 1,
    };
    return u->kernels->sgd(u->exec, u->dtype, u->count, &args, u->parameter, u->state[SGD_BUFFER], u->grad);
}

static const sh_optim_kind sgd = {
    .name = "SGD",
    .states = {[SGD_BUFFER] = "momentum_buffer", [SGD_STEP] = SH_OPTIM_STEP},
    .wants = sgd_wants,
    .step = sgd_step,
};

static shoal_err sgd_check(const shoal_sgd_options *o)
{
    shoal_err err = sh_optim_check("SGD", "lr", o->lr, 0, INFINITY, true);
    if (err == SHOAL_OK) {
        err = sh_optim_check("SGD", "momentum", o->momentum, 0, INFINITY, true);
    }
    if (err == SHOAL_OK) {
        err = sh_optim_check("SGD", "weight_decay", o->weight_decay, 0, INFINITY, true);
    }
    if (err == SHOAL_OK && !isfinite(o->dampening)) {
        err = sh_fail(SHOAL_EINVAL, "SGD: dampening is %g, it must be finite", o->dampening);
    }
    if (err == SHOAL_OK && o->nesterov && (o->momentum == 0 || o->dampening != 0)) {
        err = sh_fail(SHOAL_EINVAL, "SGD: nesterov needs momentum (it is %g) and no dampening (it is %g)", o->momentum,
                      o->dampening);
    }
    return err;
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
