/* The job's half of the GPU's engine: looks for a GPU, and runs MPS for the workers.
 *
 * A short process of its own looks for the GPU, so that the job fails with one sentence before it writes a file or
 * starts a worker, and its own process never starts the CUDA driver. The job opens its data meanwhile. */
#include "train/engines/service.h"
#include "train/engines/cuda/mps.h"

#include "base/error.h"
#include "device/device.h"

#include <shoal/process.h>
#include <shoal/share.h>

#include <stdlib.h>
#include <string.h>

#define LIMIT SHOAL_SECONDS(30)

typedef struct service {
    sh_service base;
    shoal_train_options o;
    shoal_process *probe; /* NULL: none runs */
    sh_mps mps;
    char note[sizeof((sh_mps *)0)->note]; /* the last one that was returned */
} service;

static shoal_err check(const shoal_train_options *o)
{
    if (o->mps != SHOAL_MPS_AUTO && o->mps != SHOAL_MPS_OFF) {
        return sh_fail(SHOAL_EINVAL, "unknown use of MPS %d", (int)o->mps);
    }
    if (o->cuda_share < 0 || o->cuda_share > 100) {
        return sh_fail(SHOAL_EINVAL, "a worker's share of the GPU is %d %%; the range is 1 to 100", o->cuda_share);
    }
    return o->cuda_share > 0 && o->mps == SHOAL_MPS_OFF ? sh_fail(SHOAL_EINVAL, "cuda_share needs MPS, but it is off")
                                                        : sh_mps_check(o);
}

/* ---- looking for a GPU ---- */

/* Returns to the job why there is no GPU: the error and its text. */
static shoal_err look(int rank, const shoal_value *args)
{
    (void)rank;
    sh_mps_join(shoal_value_as_string(args), 0);
    shoal_err err = sh_device_look(SHOAL_CUDA);
    return err == SHOAL_OK ? SHOAL_OK : shoal_return(shoal_list((int)err, shoal_last_error_text()));
}

static shoal_err open_service(const shoal_train_options *o, sh_service **out_service)
{
    SH_TRY(sh_device_find(SHOAL_CUDA));
    service *s = calloc(1, sizeof *s);
    if (s == NULL) {
        return sh_fail(SHOAL_ENOMEM, "no memory to look for a GPU");
    }
    s->base.type = &sh_service_cuda;
    s->o = *o;
    shoal_err err = shoal_process_start(look, shoal_value_string(o->mps == SHOAL_MPS_OFF ? SH_MPS_NOWHERE : ""),
                                        &(shoal_process_options){.start = o->start, .name = "probe"}, &s->probe);
    if (err != SHOAL_OK) {
        free(s);
        return err;
    }
    *out_service = &s->base;
    return SHOAL_OK;
}

/* What a probe that was killed or hangs cannot say, the workers will. */
static shoal_err find(sh_service *base)
{
    service *s = (service *)base;
    int64_t found = SHOAL_OK;
    shoal_err err = SHOAL_OK;
    if (s->probe != NULL && shoal_process_join(s->probe, LIMIT, NULL) == SHOAL_OK) {
        const shoal_value *why = shoal_process_result(s->probe);
        if (why != NULL && shoal_value_as_int(shoal_value_at(why, 0), &found) == SHOAL_OK) {
            err = sh_fail((shoal_err)found, "%s", shoal_value_as_string(shoal_value_at(why, 1)));
        }
    }
    shoal_process_destroy(s->probe);
    s->probe = NULL;
    return err;
}

static void close_service(sh_service *base)
{
    shoal_process_destroy(((service *)base)->probe);
    free(base);
}

/* ---- MPS ---- */

static shoal_err start(sh_service *base)
{
    service *s = (service *)base;
    return sh_mps_start(&s->mps, &s->o);
}

static void stop(sh_service *base)
{
    sh_mps_stop(&((service *)base)->mps);
}

static void fill_settings(const sh_service *base, sh_service_settings *out_settings)
{
    const service *s = (const service *)base;
    *out_settings = (sh_service_settings){.share = s->o.cuda_share, .restarts = s->mps.used};
    memcpy(out_settings->folder, s->mps.folder, sizeof out_settings->folder);
}

static void lost(sh_service *base)
{
    sh_mps_recover(&((service *)base)->mps);
}

static bool may_replace(const sh_service *base)
{
    return ((const service *)base)->mps.owner != 0;
}

static void replace(sh_service *base)
{
    sh_mps_replace(&((service *)base)->mps);
}

static const char *note(sh_service *base)
{
    service *s = (service *)base;
    memcpy(s->note, s->mps.note, sizeof s->note);
    s->mps.note[0] = 0;
    return s->note;
}

const sh_service_type sh_service_cuda = {
    .check = check,
    .open = open_service,
    .find = find,
    .close = close_service,
    .start = start,
    .stop = stop,
    .settings = fill_settings,
    .lost = lost,
    .may_replace = may_replace,
    .replace = replace,
    .note = note,
};
