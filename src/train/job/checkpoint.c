#include "train/job/job.h"

#include "base/error.h"
#include "data/tensors.h"

#include <shoal/autograd.h>
#include <shoal/ops.h>
#include <shoal/share.h>

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define VERSION "1"
#define NAME_MOST 512 /* of a tensor: a prefix, and a dotted name of a parameter */

/* ---- texts ---- */

shoal_err sh_checkpoint_setting(sh_checkpoint *c, const char *name, const char *text)
{
    if (c->writing) {
        return shoal_tensors_set_text(c->set, name, text);
    }
    const char *there = shoal_tensors_text(c->set, name);
    if (there == NULL) {
        return sh_fail(SHOAL_EINVAL, "%s: the checkpoint does not say its %s; %s was given", c->path, name, text);
    }
    return strcmp(there, text) == 0 ? SHOAL_OK
                                    : sh_fail(SHOAL_EINVAL,
                                              "%s: %s is %.60s in the checkpoint, but %.60s was given; a resumed job "
                                              "keeps the settings that it began with",
                                              c->path, name, there, text);
}

shoal_err sh_checkpoint_setting_whole(sh_checkpoint *c, const char *name, int64_t x)
{
    char text[32];
    snprintf(text, sizeof text, "%" PRId64, x);
    return sh_checkpoint_setting(c, name, text);
}

/* Writes the shortest text that reads back as this number. */
static const char *text_of(double x, char text[32])
{
    for (int digits = 6; digits <= 17; digits++) {
        snprintf(text, 32, "%.*g", digits, x);
        if (strtod(text, NULL) == x) {
            break;
        }
    }
    return text;
}

shoal_err sh_checkpoint_setting_number(sh_checkpoint *c, const char *name, double x)
{
    char text[32];
    return sh_checkpoint_setting(c, name, text_of(x, text));
}

shoal_err sh_checkpoint_note(sh_checkpoint *c, const char *name, const char *text)
{
    return c->writing ? shoal_tensors_set_text(c->set, name, text) : SHOAL_OK;
}

shoal_err sh_checkpoint_note_whole(sh_checkpoint *c, const char *name, int64_t x)
{
    char text[32];
    snprintf(text, sizeof text, "%" PRId64, x);
    return sh_checkpoint_note(c, name, text);
}

shoal_err sh_checkpoint_note_number(sh_checkpoint *c, const char *name, double x)
{
    char text[32];
    return sh_checkpoint_note(c, name, text_of(x, text));
}

static shoal_err no_number(const sh_checkpoint *c, const char *name, const char *text)
{
    return text == NULL ? sh_fail(SHOAL_ECORRUPT, "%s: not a checkpoint, or a broken one: %s is missing", c->path, name)
                        : sh_fail(SHOAL_ECORRUPT, "%s: the checkpoint is broken: %s is '%.60s'", c->path, name, text);
}

shoal_err sh_checkpoint_whole(sh_checkpoint *c, const char *name, int64_t least, int64_t most, int64_t *x)
{
    if (c->writing) {
        return sh_checkpoint_setting_whole(c, name, *x);
    }
    const char *text = shoal_tensors_text(c->set, name);
    char *end = NULL;
    errno = 0;
    long long there = text != NULL ? strtoll(text, &end, 10) : 0;
    if (text == NULL || errno != 0 || end == text || *end != 0 || there < least || there > most) {
        return no_number(c, name, text);
    }
    *x = there;
    return SHOAL_OK;
}

shoal_err sh_checkpoint_number(sh_checkpoint *c, const char *name, double least, double most, double *x)
{
    if (c->writing) {
        return sh_checkpoint_setting_number(c, name, *x);
    }
    const char *text = shoal_tensors_text(c->set, name);
    char *end = NULL;
    double there = text != NULL ? strtod(text, &end) : 0;
    if (text == NULL || end == text || *end != 0 || there < least || there > most) {
        return no_number(c, name, text);
    }
    *x = there;
    return SHOAL_OK;
}

/* ---- tensors ---- */

shoal_err sh_checkpoint_tensor(sh_checkpoint *c, const char *name, shoal_tensor *t)
{
    char whole[NAME_MOST];
    if (t == NULL) {
        return shoal_last_error();
    }
    if ((size_t)snprintf(whole, sizeof whole, SH_TENSORS_OWN "%s", name) >= sizeof whole) {
        return sh_fail(SHOAL_EINVAL, "%s: the name of a tensor has more than %d bytes: %.60s", c->path, NAME_MOST,
                       name);
    }
    return c->writing ? shoal_tensors_add(c->set, whole, t) : sh_tensors_take(c->set, c->path, whole, t);
}

shoal_err sh_checkpoint_map(sh_checkpoint *c, const char *name, const shoal_value *map)
{
    for (size_t i = 0; i < shoal_value_count(map); i++) {
        char whole[NAME_MOST];
        snprintf(whole, sizeof whole, "%s/%s", name, shoal_value_key_at(map, i));
        SH_TRY(sh_checkpoint_tensor(c, whole, shoal_value_as_tensor(shoal_value_at(map, i))));
    }
    return SHOAL_OK;
}

/* ---- a job ---- */

/* A directory may have been moved since, so only its number of samples is compared. A name is always the same set. */
static bool is_folder(const char *data)
{
    for (size_t i = 0; data != NULL && shoal_data_name(i) != NULL; i++) {
        if (strcmp(data, shoal_data_name(i)) == 0) {
            return false;
        }
    }
    return data != NULL;
}

static shoal_err pass_data(const sh_job *job, sh_checkpoint *c)
{
    const char *data = job->o.train_set == NULL ? job->o.data : NULL;
    if (data == NULL || (!c->writing && is_folder(data) && is_folder(shoal_tensors_text(c->set, "data")))) {
        return SHOAL_OK;
    }
    /* The whole path, because the job may be resumed in another directory. */
    char *whole = c->writing && is_folder(data) ? realpath(data, NULL) : NULL;
    shoal_err err = sh_checkpoint_setting(c, "data", whole != NULL ? whole : data);
    free(whole);
    return err;
}

/* Passes the settings that every method has. A module or sets that the caller made have no name: only their shapes and
 * the number of samples can be compared. */
static shoal_err settings(const sh_job *job, sh_checkpoint *c)
{
    char seed[32];
    snprintf(seed, sizeof seed, "%" PRIu64, job->o.seed);
    const struct {
        const char *name, *text;
    } texts[] = {
        {"method", job->method->name},
        {"model", job->own_model ? job->o.model : NULL},
        {"seed", seed},
    };
    const struct {
        const char *name;
        int64_t x;
    } wholes[] = {
        {"samples", shoal_dataset_length(job->train_set)}, /* 0: there is no set */
        {"workers", job->o.workers},
        {"batch", job->o.batch},
    };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        if (texts[i].text != NULL) {
            SH_TRY(sh_checkpoint_setting(c, texts[i].name, texts[i].text));
        }
    }
    SH_TRY(pass_data(job, c));
    for (size_t i = 0; i < sizeof wholes / sizeof *wholes; i++) {
        SH_TRY(sh_checkpoint_setting_whole(c, wholes[i].name, wholes[i].x));
    }
    SH_TRY(sh_checkpoint_setting_number(c, "lr", job->o.lr));
    SH_TRY(sh_checkpoint_setting_number(c, "lr_decay", job->o.lr_decay));
    return sh_checkpoint_setting_number(c, "momentum", job->o.momentum);
}

static shoal_err notes(const sh_job *job, sh_checkpoint *c)
{
    const shoal_train_options *o = &job->o;
    SH_TRY(sh_checkpoint_note_whole(c, "epochs_wanted", o->epochs));
    SH_TRY(sh_checkpoint_note_whole(c, "restarts", o->restarts));
    SH_TRY(sh_checkpoint_note(c, "device", sh_engine_of(o->device)->name));
    if (o->tf32) {
        SH_TRY(sh_checkpoint_note(c, "tf32", "true"));
    }
    if (o->until > 0 || o->method == SHOAL_METHOD_A3C) { /* a3c: no note means its default, not never */
        SH_TRY(sh_checkpoint_note_number(c, "until", o->until > 0 ? o->until : 0));
    }
    if (job->result.reached_epoch > 0) {
        SH_TRY(sh_checkpoint_note_whole(c, "reached_epoch", job->result.reached_epoch));
    }
    return sh_checkpoint_note(c, "allow_nan", o->allow_nan ? "true" : "false");
}

shoal_err sh_checkpoint_check_epochs(const sh_job *job, const sh_checkpoint *c, int64_t begun)
{
    return c->writing || begun <= job->o.epochs
               ? SHOAL_OK
               : sh_fail(SHOAL_EINVAL, "%s: %lld epochs are finished or begun; epochs must be at least %lld", c->path,
                         (long long)begun, (long long)begun);
}

/* Passes everything except the weights. */
static shoal_err pass(sh_job *job, sh_checkpoint *c)
{
    shoal_train_result *r = &job->result;
    SH_TRY(settings(job, c));
    SH_TRY(notes(job, c));
    SH_TRY(sh_checkpoint_whole(c, "epochs", 0, INT64_MAX, &r->epochs));
    int64_t finished = r->epochs;
    SH_TRY(sh_checkpoint_number(c, "test_loss", -INFINITY, INFINITY, &r->test_loss));
    SH_TRY(sh_checkpoint_number(c, "test_accuracy", 0, 1, &r->test_accuracy));
    r->tested_epoch = isnan(r->test_accuracy) ? 0 : r->epochs;
    SH_TRY(sh_past_pass(&job->past, r, c));
    if (job->method->checkpoint != NULL) {
        SH_TRY(job->method->checkpoint(job, c));
    }
    return sh_checkpoint_check_epochs(job, c, finished); /* the method knows those begun */
}

/* Returns SHOAL_ENAN if a number is NaN or infinite. Any other number times 0 is 0. */
static shoal_err check_finite(shoal_tensor *t, const char *name)
{
    double zero = 0;
    SH_TRY(shoal_item(shoal_sum(shoal_mul_scalar(t, 0), SHOAL_ALL_DIMS, false), &zero));
    return zero != 0 ? sh_fail(SHOAL_ENAN, "the parameter %s is NaN or infinite: training has diverged", name)
                     : SHOAL_OK;
}

/* Adds a tensor of the model. If workers train the job's own model, they change it while it is written, so a copy is
 * checked and written. Buffers may hold infinities on purpose, as masks do. */
static shoal_err add_weight(const sh_job *job, sh_checkpoint *c, const shoal_named *it)
{
    size_t mark = shoal_scope_mark();
    shoal_no_grad_begin();
    shoal_tensor *t = job->method->model == NULL ? shoal_clone(it->tensor) : it->tensor;
    bool check = !job->o.allow_nan && shoal_tensor_requires_grad(it->tensor);
    shoal_err err = t == NULL ? shoal_last_error() : check ? check_finite(t, it->name) : SHOAL_OK;
    if (err == SHOAL_OK) {
        err = shoal_tensors_add(c->set, it->name, t);
    }
    shoal_no_grad_end();
    shoal_scope_release(mark);
    return err;
}

static shoal_err fill(sh_job *job, sh_checkpoint *c)
{
    SH_TRY(shoal_tensors_set_text(c->set, "checkpoint", VERSION));
    SH_TRY(pass(job, c));
    for (shoal_named it = {0}; shoal_module_next(job->model, &it) == SHOAL_OK;) {
        SH_TRY(add_weight(job, c, &it));
    }
    return SHOAL_OK;
}

shoal_err sh_job_save(sh_job *job)
{
    if (job->o.save == NULL) {
        return SHOAL_OK;
    }
    sh_checkpoint c = {.set = shoal_tensors_create(), .path = job->o.save, .writing = true};
    shoal_err err = c.set ? fill(job, &c) : shoal_last_error();
    if (err == SHOAL_OK) {
        err = shoal_safetensors_write(job->o.save, c.set);
    }
    shoal_tensors_destroy(c.set);
    return err;
}

static shoal_err take(sh_job *job, sh_checkpoint *c)
{
    const char *version = shoal_tensors_text(c->set, "checkpoint");
    if (version == NULL) {
        return sh_fail(SHOAL_EINVAL, "%s: not a checkpoint of a training job", c->path);
    }
    if (strcmp(version, VERSION) != 0) {
        return sh_fail(SHOAL_EINVAL, "%s: a checkpoint of version %.20s; only version " VERSION " can be read", c->path,
                       version);
    }
    if (shoal_tensors_text(c->set, "lr_decay") == NULL) { /* the file is older than that option */
        SH_TRY(shoal_tensors_set_text(c->set, "lr_decay", "1"));
    }
    SH_TRY(pass(job, c));
    return sh_weights_take(c->set, c->path,
                           job->model); /* last, so that an earlier failure leaves the model unchanged */
}

shoal_err sh_job_resume(sh_job *job)
{
    sh_checkpoint c = {.set = shoal_safetensors_read(job->o.resume), .path = job->o.resume};
    shoal_err err = c.set ? take(job, &c) : shoal_last_error();
    shoal_tensors_destroy(c.set);
    return err;
}
