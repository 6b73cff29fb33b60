/* Shared by all optimisers: slots, state by name, the loop of a step. */
#include "base/error.h"
#include "optim/batch.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- creation ---- */

shoal_err sh_optim_check(const char *kind, const char *name, double x, double low, double high, bool open)
{
    if (x >= low && (open ? x < high : x <= high)) {
        return SHOAL_OK;
    }
    return isinf(high) ? sh_fail(SHOAL_EINVAL, "%s: %s is %g, it must be at least %g", kind, name, x, low)
                       : sh_fail(SHOAL_EINVAL, "%s: %s is %g, it must be from %g to %s%g", kind, name, x, low,
                                 open ? "below " : "", high);
}

static bool has_slot(const shoal_optimizer *o, const shoal_tensor *parameter)
{
    for (size_t i = 0; i < o->count; i++) {
        if (o->slots[i].parameter == parameter) {
            return true;
        }
    }
    return false;
}

/* Buffers get no slot, nor does a parameter under its second name. */
static shoal_err add_slot(shoal_optimizer *o, const shoal_named *it)
{
    if (it->is_buffer || has_slot(o, it->tensor)) {
        return SHOAL_OK;
    }
    char *name = strdup(it->name);
    if (!name) {
        return sh_fail(SHOAL_ENOMEM, "no memory for the name of a parameter");
    }
    o->slots[o->count++] = (sh_optim_slot){.name = name, .parameter = shoal_tensor_retain(it->tensor)};
    return SHOAL_OK;
}

shoal_optimizer *sh_optimizer_create(const sh_optim_kind *kind, shoal_module *module, double lr)
{
    if (!module) {
        (void)sh_fail(SHOAL_EINVAL, "%s: the module is NULL", kind->name);
        return NULL;
    }
    shoal_optimizer *o = calloc(1, sizeof *o);
    sh_optim_slot *slots = calloc(module->total + 1, sizeof *slots);
    if (!o || !slots) {
        free(o);
        free(slots);
        (void)sh_fail(SHOAL_ENOMEM, "%s: no memory for %zu parameters", kind->name, module->total);
        return NULL;
    }
    o->kind = kind;
    o->lr = lr;
    o->slots = slots;
    for (shoal_named it = {0}; shoal_module_next(module, &it) == SHOAL_OK;) {
        if (add_slot(o, &it) != SHOAL_OK) {
            shoal_optimizer_destroy(o);
            return NULL;
        }
    }
    return o;
}

void shoal_optimizer_destroy(shoal_optimizer *optimizer)
{
    for (size_t i = 0; optimizer && i < optimizer->count; i++) {
        sh_optim_slot *slot = &optimizer->slots[i];
        for (int s = 0; s < SH_OPTIM_STATES; s++) {
            shoal_tensor_release(slot->state[s]);
        }
        shoal_tensor_release(slot->parameter);
        free(slot->name);
    }
    if (optimizer) {
        free(optimizer->slots);
        free(optimizer);
    }
}

void shoal_optimizer_set_lr(shoal_optimizer *optimizer, double lr)
{
    if (optimizer) {
        optimizer->lr = lr;
    }
}

double shoal_optimizer_lr(const shoal_optimizer *optimizer)
{
    return optimizer ? optimizer->lr : 0;
}

/* ---- state ---- */

static bool wants(const shoal_optimizer *o, int state)
{
    return o->kind->states[state] && o->kind->wants(o, state);
}

static bool is_step(const shoal_optimizer *o, int state)
{
    return strcmp(o->kind->states[state], SH_OPTIM_STEP) == 0;
}

/* Returns where a state belongs: with the parameter, but step counts where the kernels read them. */
static const sh_device *place_of(const shoal_optimizer *o, const sh_optim_slot *slot, int state)
{
    const sh_device *device = slot->parameter->storage->device;
    return is_step(o, state) && !sh_optim_batches(device) ? &sh_device_cpu : device;
}

/* The state follows a parameter that was moved to another device. */
static shoal_err prepare_slot(const shoal_optimizer *o, sh_optim_slot *slot)
{
    for (int s = 0; s < SH_OPTIM_STATES; s++) {
        if (!slot->state[s] && wants(o, s)) {
            slot->state[s] = is_step(o, s) ? shoal_zeros(SHOAL_F32, SHOAL_SCALAR) : shoal_zeros_like(slot->parameter);
            if (!slot->state[s]) {
                return shoal_last_error();
            }
        }
        if (slot->state[s] && slot->state[s]->storage->device != place_of(o, slot, s)) {
            SH_TRY(sh_storage_move(slot->state[s]->storage, place_of(o, slot, s)));
        }
    }
    return SHOAL_OK;
}

shoal_err shoal_optimizer_prepare(shoal_optimizer *optimizer)
{
    SH_NEED(optimizer);
    for (size_t i = 0; i < optimizer->count; i++) {
        if (optimizer->slots[i].parameter->requires_grad) {
            SH_TRY(prepare_slot(optimizer, &optimizer->slots[i]));
        }
    }
    return SHOAL_OK;
}

shoal_err shoal_optimizer_next(const shoal_optimizer *optimizer, shoal_named *it)
{
    if (!optimizer || !it) {
        return sh_null_error("shoal_optimizer_next", optimizer ? "it" : "optimizer");
    }
    size_t end = optimizer->count * SH_OPTIM_STATES;
    while (it->private_.at < end) {
        size_t at = it->private_.at++;
        const sh_optim_slot *slot = &optimizer->slots[at / SH_OPTIM_STATES];
        if (slot->state[at % SH_OPTIM_STATES]) {
            snprintf(it->private_.text, sizeof it->private_.text, "%s.%s", slot->name,
                     optimizer->kind->states[at % SH_OPTIM_STATES]);
            it->name = it->private_.text;
            it->tensor = slot->state[at % SH_OPTIM_STATES];
            it->is_buffer = true;
            return SHOAL_OK;
        }
    }
    return SHOAL_END;
}

/* Finds the slot and the state of a name. Returns NULL if it does not exist. */
static sh_optim_slot *find_state(const shoal_optimizer *o, const char *name, int *out_state)
{
    const char *dot = strrchr(name, '.');
    for (int s = 0; dot && s < SH_OPTIM_STATES; s++) {
        if (!wants(o, s) || strcmp(dot + 1, o->kind->states[s]) != 0) {
            continue;
        }
        *out_state = s;
        size_t length = (size_t)(dot - name);
        for (size_t i = 0; i < o->count; i++) {
            if (strncmp(o->slots[i].name, name, length) == 0 && o->slots[i].name[length] == '\0') {
                return &o->slots[i];
            }
        }
    }
    return NULL;
}

static bool fits(const shoal_optimizer *o, const sh_optim_slot *slot, int state, const shoal_tensor *t)
{
    const shoal_tensor *p = slot->parameter;
    if (is_step(o, state)) {
        return t->dtype == SHOAL_F32 && t->ndim == 0 && t->storage->device == place_of(o, slot, state);
    }
    return t->contiguous && t->dtype == p->dtype && t->ndim == p->ndim && t->storage->device == p->storage->device &&
           memcmp(t->shape, p->shape, (size_t)p->ndim * sizeof p->shape[0]) == 0;
}

shoal_err shoal_optimizer_adopt(shoal_optimizer *optimizer, const char *name, shoal_tensor *t)
{
    SH_NEED(optimizer);
    SH_NEED(name);
    SH_NEED_TENSOR(t);
    if (sh_tensor_check(t) != SHOAL_OK) {
        return shoal_last_error();
    }
    int state;
    sh_optim_slot *slot = find_state(optimizer, name, &state);
    if (!slot) {
        return sh_fail(SHOAL_ENOENT, "%s has no state '%s'", optimizer->kind->name, name);
    }
    if (!fits(optimizer, slot, state, t)) {
        sh_text given, own;
        return sh_fail(SHOAL_EINVAL, "%s cannot be '%s'; it must be contiguous and have the shape and dtype of %s",
                       sh_tensor_text(&given, t), name,
                       is_step(optimizer, state) ? "f32 []" : sh_tensor_text(&own, slot->parameter));
    }
    (void)shoal_tensor_retain(t);
    shoal_tensor_release(slot->state[state]);
    slot->state[state] = t;
    return SHOAL_OK;
}

/* ---- steps ---- */

/* Increments the step count. Other processes may share and increment it;
 * a lost increment is harmless, as for parameters. */
static float count_step(void *step)
{
    union {
        float number;
        uint32_t bits;
    } now;
    sh_a32 *word = step;
    now.bits = sh_racy_load(word);
    now.number += 1;
    sh_racy_store(word, now.bits);
    return now.number;
}

static shoal_err update_slot(shoal_optimizer *o, sh_optim_slot *slot, shoal_tensor *grad)
{
    const sh_device *device = slot->parameter->storage->device;
    sh_update u = {
        .exec = device->exec(),
        .kernels = device->kernels()->optim,
        .dtype = slot->parameter->dtype,
        .count = slot->parameter->count,
        .parameter = sh_tensor_ptr(slot->parameter),
        .grad = sh_tensor_ptr(grad),
    };
    if (!u.exec) {
        return shoal_last_error();
    }
    for (int s = 0; s < SH_OPTIM_STATES; s++) {
        u.state[s] = slot->state[s] ? sh_tensor_ptr(slot->state[s]) : NULL;
        if (u.state[s] && is_step(o, s)) {
            u.step = count_step(u.state[s]);
            sh_tensor_touch(slot->state[s]);
        }
    }
    shoal_err err = o->kind->step(o, &u);
    sh_tensor_touch(slot->parameter);
    return err;
}

/* A device that makes the step of several parameters at once gets this one by the batch. */
static shoal_err step_slot(shoal_optimizer *o, sh_optim_slot *slot, sh_optim_batch *batch)
{
    shoal_tensor *grad = shoal_tensor_grad(slot->parameter);
    if (!grad) {
        return SHOAL_OK;
    }
    SH_TRY(prepare_slot(o, slot));
    size_t mark = shoal_scope_mark();
    grad = grad->contiguous ? grad : shoal_contiguous(grad);
    if (!grad) {
        return shoal_last_error();
    }
    if (sh_optim_batches(slot->parameter->storage->device)) {
        return sh_optim_batch_add(batch, o, slot, grad);
    }
    shoal_err err = update_slot(o, slot, grad);
    shoal_scope_release(mark);
    return err;
}

shoal_err shoal_optimizer_step(shoal_optimizer *optimizer)
{
    SH_NEED(optimizer);
    sh_optim_batch batch;
    batch.count = batch.step_count = 0;
    size_t mark = shoal_scope_mark(); /* contiguous gradients live until their batch has run */
    shoal_err err = SHOAL_OK;
    for (size_t i = 0; err == SHOAL_OK && i < optimizer->count; i++) {
        err = step_slot(optimizer, &optimizer->slots[i], &batch);
    }
    if (err == SHOAL_OK) {
        err = sh_optim_batch_run(&batch, optimizer);
    }
    shoal_scope_release(mark);
    return err;
}

void shoal_optimizer_zero_grad(shoal_optimizer *optimizer)
{
    for (size_t i = 0; optimizer && i < optimizer->count; i++) {
        sh_parameter_zero_grad(optimizer->slots[i].parameter);
    }
}
