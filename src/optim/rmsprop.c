#include "optim/optim.h"

#include "base/error.h"

#include <math.h>

enum { RMS_STEP, RMS_SQUARE, RMS_BUFFER, RMS_AVERAGE };

static bool rmsprop_wants(const shoal_optimizer *optimizer, int state)
{
    switch (state) {
    case RMS_BUFFER: return optimizer->rmsprop.momentum != 0;
    case RMS_AVERAGE: return optimizer->rmsprop.centered;
    default: return true;
    }
}

static sh_rmsprop_args rmsprop_args(const shoal_optimizer *optimizer)
{
    const shoal_rmsprop_options *o = &optimizer->rmsprop;
    return (sh_rmsprop_args){
        .lr = optimizer->lr,
        .alpha = o->alpha,
        .eps = o->eps,
        .weight_decay = o->weight_decay,
        .momentum = o->momentum,
        .maximize = o->maximize,
    };
}

static shoal_err rmsprop_step(shoal_optimizer *optimizer, const sh_update *u)
{
    sh_rmsprop_args args = rmsprop_args(optimizer);
    return u->kernels->rmsprop(u->exec, u->dtype, u->count, &args, u->parameter, u->state[RMS_SQUARE],
                               u->state[RMS_AVERAGE], u->state[RMS_BUFFER], u->grad);
}

static shoal_err rmsprop_step_all(shoal_optimizer *optimizer, const sh_updates *u)
{
    sh_rmsprop_args args = rmsprop_args(optimizer);
    return u->kernels->rmsprop_all(u->exec, u->dtype, &args, u->parts, u->count);
}

static const sh_optim_kind rmsprop = {
    .name = "RMSprop",
    .states = {[RMS_STEP] = SH_OPTIM_STEP,
               [RMS_SQUARE] = "square_avg",
               [RMS_BUFFER] = "momentum_buffer",
               [RMS_AVERAGE] = "grad_avg"},
    .part = {RMS_SQUARE, RMS_AVERAGE, RMS_BUFFER},
    .wants = rmsprop_wants,
    .step = rmsprop_step,
    .step_all = rmsprop_step_all,
};

static shoal_err rmsprop_check(const shoal_rmsprop_options *o)
{
    SH_TRY(sh_optim_check("RMSprop", "lr", o->lr, 0, INFINITY, true));
    SH_TRY(sh_optim_check("RMSprop", "alpha", o->alpha, 0, INFINITY, true));
    SH_TRY(sh_optim_check("RMSprop", "eps", o->eps, 0, INFINITY, true));
    SH_TRY(sh_optim_check("RMSprop", "momentum", o->momentum, 0, INFINITY, true));
    return sh_optim_check("RMSprop", "weight_decay", o->weight_decay, 0, INFINITY, true);
}

shoal_optimizer *shoal_rmsprop_create_with(shoal_module *module, const shoal_rmsprop_options *options)
{
    SH_NEED_OR_NULL(module);
    shoal_rmsprop_options o = options ? *options : (shoal_rmsprop_options){0};
    o.lr = o.lr == 0 ? 0.01 : o.lr;
    o.alpha = sh_optim_default(o.alpha, 0.99);
    o.eps = sh_optim_default(o.eps, 1e-8);
    if (rmsprop_check(&o) != SHOAL_OK) {
        return NULL;
    }
    shoal_optimizer *optimizer = sh_optimizer_create(&rmsprop, module, o.lr);
    if (optimizer) {
        optimizer->rmsprop = o;
    }
    return optimizer;
}
