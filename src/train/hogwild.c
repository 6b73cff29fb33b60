/* Hogwild (Niu et al., "Hogwild!: a lock-free approach to parallelizing stochastic gradient descent", 2011): all workers change the
 * same parameters, all the time, without locks; an update may be lost, and that is on purpose.
 *
 * Nobody waits for anybody. A worker that died goes on where its position stands, with new momentum. */
#include "train/job.h"

static shoal_err work(int rank, const shoal_value *args)
{
    sh_worker w;
    shoal_err err = sh_worker_open(&w, rank, args);
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

const sh_method sh_method_hogwild = {.name = "hogwild", .target = work, .run = run};
