/* The options of a training job: names, defaults and checks. */
#include "train/job/job.h"

#include "base/error.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define EPOCHS_MOST INT64_C(1000000)
#define BATCH_MOST INT64_C(1000000)

static const sh_method *const methods[] = {
    [SHOAL_METHOD_HOGWILD] = &sh_method_hogwild, [SHOAL_METHOD_SERIAL] = &sh_method_serial,
    [SHOAL_METHOD_SYNC] = &sh_method_sync,       [SHOAL_METHOD_LOCAL] = &sh_method_local,
    [SHOAL_METHOD_FEDAVG] = &sh_method_fedavg,   [SHOAL_METHOD_A3C] = &sh_method_a3c,
};

#define METHODS (sizeof methods / sizeof *methods)

const sh_method *sh_method_of(shoal_train_method method)
{
    return (size_t)method < METHODS ? methods[method] : NULL;
}

const char *shoal_train_method_name(shoal_train_method method)
{
    const sh_method *m = sh_method_of(method);
    return m != NULL ? m->name : NULL;
}

shoal_err shoal_train_method_find(const char *name, shoal_train_method *out_method)
{
    SH_NEED(name);
    SH_NEED(out_method);
    for (size_t i = 0; name != NULL && i < METHODS; i++) {
        if (strcmp(name, methods[i]->name) == 0) {
            *out_method = (shoal_train_method)i;
            return SHOAL_OK;
        }
    }
    char names[128] = "";
    for (size_t i = 0, at = 0; i < METHODS && at < sizeof names; i++) {
        at += (size_t)snprintf(names + at, sizeof names - at, "%s%s", i == 0 ? "" : ", ", methods[i]->name);
    }
    return sh_fail(SHOAL_ENOENT, "unknown method '%s'; the methods are %s", name != NULL ? name : "", names);
}

shoal_train_options shoal_train_defaults(const shoal_train_options *options)
{
    shoal_train_options o = options != NULL ? *options : (shoal_train_options){0};
    const sh_method *m = sh_method_of(o.method);
    if (m != NULL && m->defaults != NULL) {
        m->defaults(&o);
    }
    o.model = o.model != NULL ? o.model : "mnist-cnn";
    o.data = o.data != NULL || (m != NULL && m->no_data) ? o.data : "mnist";
    o.workers = o.workers != 0 ? o.workers : m != NULL && m->alone ? 1 : 4;
    o.epochs = o.epochs != 0 ? o.epochs : 1;
    o.batch = o.batch != 0 ? o.batch : 64;
    o.steps = o.steps != 0 ? o.steps : 16;
    o.rounds = o.rounds != 0 ? o.rounds : 1;
    o.lr = o.lr != 0 ? o.lr : 0.01;
    o.lr_decay = o.lr_decay != 0 ? o.lr_decay : 1;
    o.momentum = o.momentum != 0 ? o.momentum : 0.5;
    o.restarts = o.restarts != 0 ? o.restarts : 10;
    return o;
}

shoal_train_options sh_job_defaults(const shoal_train_options *options)
{
    shoal_train_options o = shoal_train_defaults(options);
    o.momentum = o.momentum < 0 ? 0 : o.momentum;
    o.restarts = o.restarts < 0 ? 0 : o.restarts;
    return o;
}

static shoal_err check_whole(const char *name, int64_t x, int64_t most)
{
    return x >= 1 && x <= most
               ? SHOAL_OK
               : sh_fail(SHOAL_EINVAL, "%lld %s; the range is 1 to %lld", (long long)x, name, (long long)most);
}

static shoal_err check_model(const shoal_train_options *o)
{
    const char *const *names = shoal_model_names();
    for (size_t i = 0; o->module == NULL && names[i] != NULL; i++) {
        if (strcmp(o->model, names[i]) == 0) {
            return SHOAL_OK;
        }
    }
    if (o->module != NULL) {
        return SHOAL_OK;
    }
    char text[256] = "";
    for (size_t i = 0, at = 0; names[i] != NULL && at < sizeof text; i++) {
        at += (size_t)snprintf(text + at, sizeof text - at, "%s%s", i == 0 ? "" : ", ", names[i]);
    }
    return sh_fail(SHOAL_ENOENT, "unknown model '%s'; the models are %s", o->model, text);
}

/* Checks the device, and the options that only a GPU has. */
static shoal_err check_device(const shoal_train_options *o)
{
    const sh_engine_type *engine = sh_engine_of(o->device);
    if (engine == NULL) {
        return sh_fail(SHOAL_EINVAL, "%d is not a device", (int)o->device);
    }
    if (o->device != SHOAL_CUDA && o->tf32) {
        return sh_fail(SHOAL_EINVAL, "tf32 needs the device cuda");
    }
    if (o->device != SHOAL_CUDA && o->mps == SHOAL_MPS_OFF) {
        return sh_fail(SHOAL_EINVAL, "mps off needs the device cuda");
    }
    if (o->device != SHOAL_CUDA && o->cuda_share > 0) {
        return sh_fail(SHOAL_EINVAL, "cuda_share needs the device cuda");
    }
    return engine->service != NULL ? engine->service->check(o) : SHOAL_OK;
}

static shoal_err check_numbers(const shoal_train_options *o)
{
    SH_TRY(check_whole("workers", o->workers, SHOAL_TRAIN_WORKERS));
    SH_TRY(check_whole("epochs", o->epochs, EPOCHS_MOST));
    SH_TRY(check_whole("samples in a batch", o->batch, BATCH_MOST));
    SH_TRY(check_whole("batches between two means", o->steps, BATCH_MOST));
    SH_TRY(check_whole("rounds in an epoch", o->rounds, BATCH_MOST));
    if (o->average != SHOAL_AVERAGE_PARAMETERS && o->average != SHOAL_AVERAGE_GRADIENTS) {
        return sh_fail(SHOAL_EINVAL, "unknown average %d", (int)o->average);
    }
    if (o->start < SHOAL_START_DEFAULT || o->start > SHOAL_START_FORKSERVER) {
        return sh_fail(SHOAL_EINVAL, "unknown start method %d", (int)o->start);
    }
    SH_TRY(check_device(o));
    if (!(o->lr > 0 && isfinite(o->lr))) {
        return sh_fail(SHOAL_EINVAL, "the learning rate is %g; it must be above 0", o->lr);
    }
    if (!(o->lr_decay > 0 && o->lr_decay <= 1)) {
        return sh_fail(SHOAL_EINVAL, "the decay of the learning rate is %g; it must be above 0 and at most 1",
                       o->lr_decay);
    }
    return o->momentum >= 0 && o->momentum < 1
               ? SHOAL_OK
               : sh_fail(SHOAL_EINVAL, "the momentum is %g; it must be at least 0 and below 1", o->momentum);
}

static shoal_err check_until(const shoal_train_options *o)
{
    if (!(o->until <= 1)) {
        return sh_fail(SHOAL_EINVAL, "training until an accuracy of %g; the range is 0 to 1", o->until);
    }
    return o->until > 0 && o->train_set != NULL && o->test_set == NULL
               ? sh_fail(SHOAL_EINVAL, "training until an accuracy of %g, but there is no test set", o->until)
               : SHOAL_OK;
}

shoal_err shoal_train_check(const shoal_train_options *options)
{
    SH_NEED(options);
    shoal_train_options o = sh_job_defaults(options);
    const sh_method *m = sh_method_of(o.method);
    if (m == NULL) {
        return sh_fail(SHOAL_EINVAL, "unknown method %d", (int)o.method);
    }
    SH_TRY(check_numbers(&o));
    if (m->alone && o.workers != 1) {
        return sh_fail(SHOAL_EINVAL, "%d workers were given, but %s has one", o.workers, m->name);
    }
    if (o.train_set == NULL && o.test_set != NULL) {
        return sh_fail(SHOAL_EINVAL, "a test set was given, but no training set");
    }
    if (m->no_data && (o.data != NULL || o.train_set != NULL)) {
        return sh_fail(SHOAL_EINVAL, "a data set was given, but %s takes none", m->name);
    }
    if (!m->no_data) {
        SH_TRY(check_until(&o));
    }
    if (m->make_model == NULL) {
        SH_TRY(check_model(&o));
    }
    return m->check != NULL ? m->check(&o) : SHOAL_OK;
}
