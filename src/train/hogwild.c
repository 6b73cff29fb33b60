/* Hogwild (Niu et al., "Hogwild!: a lock-free approach to parallelizing stochastic gradient descent", 2011): all workers change the
 * same parameters, all the time, without locks; an update may be lost, and that is on purpose.
 *
 * Nobody waits for anybody. A worker that died goes on where its position stands, with new momentum, or with the one that is shared. */
#include "train/job.h"
#include "train/state.h"

#include <shoal/share.h>

static shoal_err work(int rank, const shoal_value *args)
{
    sh_worker w;
    shoal_err err = sh_worker_open(&w, rank, args);
    if (err == SHOAL_OK) {
        err = sh_state_adopt(w.sgd, shoal_value_find(args, "own")); /* nothing there: its own */
    }
    uint64_t position = err == SHOAL_OK ? sh_racy_load(&w.progress->position) : 0;
    int64_t epoch = (int64_t)(position >> 32), batch = (int64_t)(position & UINT32_MAX);
    while (err == SHOAL_OK && epoch < w.settings.epochs && !sh_worker_stopped(&w)) {
        err = sh_worker_train(&w, epoch, batch, INT64_MAX);
        if (err == SHOAL_OK && !sh_worker_stopped(&w)) {
            sh_racy_store(&w.progress->position, sh_position(++epoch, 0));
            batch = 0;
        }
    }
    sh_worker_close(&w);
    return err;
}

/* One momentum for all: changed by all, without locks, as the parameters are. */
static shoal_err open(sh_job *job)
{
    if (!job->o.shared_state) {
        return SHOAL_OK;
    }
    shoal_optimizer *sgd = shoal_sgd_create(job->model, .lr = job->o.lr, .momentum = job->o.momentum);
    shoal_err err = sgd ? shoal_optimizer_prepare(sgd) : shoal_last_error();
    if (err == SHOAL_OK) {
        job->own = sh_state_zeros(sgd);
        err = job->own ? SHOAL_OK : shoal_last_error();
    }
    shoal_optimizer_destroy(sgd);
    return err;
}

static void close(sh_job *job)
{
    shoal_value_destroy(job->own);
}

static shoal_value *arguments(sh_job *job, int rank)
{
    (void)rank;
    return job->own ? shoal_value_copy(job->own) : shoal_value_null();
}

/* Epochs that every worker has finished. */
static int64_t finished(const sh_job *job)
{
    int64_t least = job->o.epochs;
    for (int i = 0; i < job->o.workers; i++) {
        int64_t epoch = (int64_t)(sh_racy_load(&job->board->workers[i].position) >> 32);
        least = epoch < least ? epoch : least;
    }
    return least;
}

static shoal_err run(sh_job *job)
{
    shoal_err err = SHOAL_OK;
    while (err == SHOAL_OK && !sh_crew_done(job) && !job->result.stopped) {
        err = sh_crew_wait(job);
        int64_t epochs = finished(job);
        if (err == SHOAL_OK && epochs > job->result.epochs && epochs < job->o.epochs && !job->result.stopped) {
            err = sh_job_epoch(job, epochs, false); /* while they go on */
        }
    }
    return err == SHOAL_OK && !job->result.stopped ? sh_job_epoch(job, job->o.epochs, true) : err;
}

const sh_method sh_method_hogwild =
    {.name = "hogwild", .target = work, .open = open, .close = close, .arguments = arguments, .run = run};
