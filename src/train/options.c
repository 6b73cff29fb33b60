/* The options of a training job: names, defaults and checks. */
#include "train/job/job.h"

#include "base/error.h"

#include <math.h>
#include <stddef.h>
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

/* Fills in the options of the batches of a data set. */
static void fill_in_data(shoal_train_options *o)
{
    o->data = o->data != NULL ? o->data : "mnist";
    o->batch = o->batch != 0 ? o->batch : 64;
    o->lr_decay = o->lr_decay != 0 ? o->lr_decay : 1;
    o->momentum = o->momentum != 0 ? o->momentum : 0.5;
}

shoal_train_options shoal_train_defaults(const shoal_train_options *options)
{
    shoal_train_options o = options != NULL ? *options : (shoal_train_options){0};
    const sh_method *m = sh_method_of(o.method);
    if (m != NULL && m->defaults != NULL) {
        m->defaults(&o);
    }
    o.model = o.model != NULL ? o.model : "mnist-cnn";
    o.workers = o.workers != 0 ? o.workers : m != NULL && m->alone ? 1 : 4;
    o.epochs = o.epochs != 0 ? o.epochs : 1;
    o.lr = o.lr != 0 ? o.lr : 0.01;
    o.restarts = o.restarts != 0 ? o.restarts : 10;
    if (m == NULL || !m->no_data) {
        fill_in_data(&o);
    }
    return o;
}

/* A checkpoint of a method without data sets has the settings of their batches, too: version 0.2 wrote them. */
shoal_train_options sh_job_defaults(const shoal_train_options *options)
{
    shoal_train_options o = shoal_train_defaults(options);
    const char *data = o.data;
    fill_in_data(&o);
    o.data = data;
    o.momentum = o.momentum < 0 ? 0 : o.momentum;
    o.restarts = o.restarts < 0 ? 0 : o.restarts;
    return o;
}

/* ---- options that not all methods have ---- */

#define OF(method) (1u << SHOAL_METHOD_##method)
#define OF_DATA (~OF(A3C)) /* the methods that train on data sets */

typedef enum kind { FLAG, CHOICE, WHOLE, NUMBER, NAME } kind;

/* clang-format off */
#define KIND_OF(x) _Generic((x), bool: FLAG, int64_t: WHOLE, double: NUMBER, const char *: NAME, default: CHOICE)
/* clang-format on */

typedef struct owned {
    const char *name;
    size_t at;
    kind kind;
    unsigned methods; /* a bit for each that has it */
} owned;

#define OPTION(field, of)                                                                                              \
    {                                                                                                                  \
        .name = #field, .at = offsetof(shoal_train_options, field),                                                    \
        .kind = KIND_OF(((shoal_train_options *)0)->field), .methods = of                                              \
    }

static const owned some_have[] = {
    OPTION(batch, OF_DATA),
    OPTION(lr_decay, OF_DATA),
    OPTION(momentum, OF_DATA),
    OPTION(rounds, OF(SYNC) | OF(FEDAVG)),
    OPTION(hogwild.shard, OF(HOGWILD)),
    OPTION(hogwild.shared_state, OF(HOGWILD)),
    OPTION(sync.average, OF(SYNC)),
    OPTION(sync.rounds, OF(SYNC)),
    OPTION(local.steps, OF(LOCAL)),
    OPTION(fedavg.clients, OF(FEDAVG)),
    OPTION(fedavg.fraction, OF(FEDAVG)),
    OPTION(fedavg.local_epochs, OF(FEDAVG)),
    OPTION(fedavg.split, OF(FEDAVG)),
    OPTION(fedavg.server_momentum, OF(FEDAVG)),
    OPTION(fedavg.rounds, OF(FEDAVG)),
    OPTION(a3c.env, OF(A3C)),
    OPTION(a3c.env_steps, OF(A3C)),
    OPTION(a3c.rollout, OF(A3C)),
    OPTION(a3c.gamma, OF(A3C)),
    OPTION(a3c.entropy, OF(A3C)),
};

/* Returns whether an option is not zero. -0.0 is zero. */
static bool is_given(const shoal_train_options *o, const owned *option)
{
    const void *at = (const char *)o + option->at;
    switch (option->kind) {
    case FLAG: return *(const bool *)at;
    case CHOICE: return *(const unsigned *)at != 0;
    case WHOLE: return *(const int64_t *)at != 0;
    case NUMBER: return *(const double *)at != 0;
    case NAME: return *(const char *const *)at != NULL;
    }
    return false;
}

static shoal_err belongs_to_others(const owned *option, const sh_method *method)
{
    char names[128] = "";
    size_t at = 0;
    for (unsigned i = 0; i < METHODS && at < sizeof names; i++) {
        unsigned later = option->methods >> i >> 1 & ((1u << METHODS >> i >> 1) - 1);
        if (option->methods >> i & 1) {
            const char *join = at == 0 ? "" : later != 0 ? ", " : " and ";
            at += (size_t)snprintf(names + at, sizeof names - at, "%s%s", join, methods[i]->name);
        }
    }
    return sh_fail(SHOAL_EINVAL, "%s is an option of %s, but the method is %s", option->name, names, method->name);
}

/* Checks that the method has every option that is given. */
static shoal_err check_owners(const shoal_train_options *o)
{
    for (size_t i = 0; i < sizeof some_have / sizeof *some_have; i++) {
        if (is_given(o, &some_have[i]) && (some_have[i].methods >> o->method & 1) == 0) {
            return belongs_to_others(&some_have[i], methods[o->method]);
        }
    }
    return SHOAL_OK;
}

/* ---- checks ---- */

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

static shoal_err check_paths(const shoal_train_options *o)
{
    const struct {
        const char *name, *path;
    } paths[] = {{"data", o->data}, {"save", o->save}, {"resume", o->resume}};
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++) {
        if (paths[i].path != NULL && paths[i].path[0] == 0) {
            return sh_fail(SHOAL_EINVAL, "%s is an empty path", paths[i].name);
        }
    }
    return SHOAL_OK;
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
    SH_TRY(check_owners(options));
    SH_TRY(check_numbers(&o));
    SH_TRY(check_paths(&o));
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
