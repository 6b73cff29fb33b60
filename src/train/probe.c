/* Looks for the card in a short process of its own, so that the job fails with one sentence before it writes a file or
 * starts a worker, and its own process never starts the CUDA driver. The job opens its data meanwhile. */
#include "train/job.h"

#include "base/error.h"
#include "device/device.h"

#include <shoal/process.h>

#define LIMIT SHOAL_SECONDS(30)

/* Returns to the job why there is no card: the error and its text. */
static shoal_err look(int rank, const shoal_value *args)
{
    (void)rank;
    sh_mps_join(shoal_value_as_string(args), 0);
    shoal_err err = sh_device_look(SHOAL_CUDA);
    return err == SHOAL_OK ? SHOAL_OK : shoal_return(shoal_list((int)err, shoal_last_error_text()));
}

shoal_err sh_probe_start(sh_job *job)
{
    shoal_err err = sh_device_find(job->o.device);
    if (err != SHOAL_OK || job->o.device != SHOAL_CUDA) {
        return err;
    }
    return shoal_process_start(look, shoal_value_string(job->o.mps == SHOAL_MPS_OFF ? SH_MPS_NOWHERE : ""),
                               &(shoal_process_options){.start = job->o.start, .name = "probe"}, &job->probe);
}

/* What a probe that was killed or hangs cannot say, the workers will. */
shoal_err sh_probe_end(sh_job *job)
{
    int64_t found = SHOAL_OK;
    shoal_err err = SHOAL_OK;
    if (job->probe != NULL && shoal_process_join(job->probe, LIMIT, NULL) == SHOAL_OK) {
        const shoal_value *why = shoal_process_result(job->probe);
        if (why != NULL && shoal_value_as_int(shoal_value_at(why, 0), &found) == SHOAL_OK) {
            err = sh_fail((shoal_err)found, "%s", shoal_value_as_string(shoal_value_at(why, 1)));
        }
    }
    shoal_process_destroy(job->probe);
    job->probe = NULL;
    return err;
}
