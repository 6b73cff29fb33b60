/* What a job knows of its workers, and its events. */
#include "train/job/job.h"

#include "base/clock.h"
#include "base/error.h"
#include "proc/supervisor.h"

#include <math.h>
#include <string.h>

/* ---- the board ---- */

static double seconds_between(int64_t from, int64_t to)
{
    return (double)(to - from) * 1e-9;
}

/* Reads the board into seen and result; returns the mean loss. */
static double read_board(sh_job *job)
{
    double sum = 0;
    int known = 0;
    job->result.images = 0;
    for (int i = 0; i < job->o.workers; i++) {
        const sh_progress_shm *p = &job->board->workers[i];
        shoal_train_worker *seen = &job->seen[i];
        uint64_t bits = sh_racy_load(&p->loss);
        memcpy(&seen->loss, &bits, sizeof bits);
        seen->loss = bits == 0 ? NAN : seen->loss;
        seen->images = (int64_t)sh_racy_load(&p->images);
        seen->epoch = (int64_t)(sh_racy_load(&p->position) >> 32);
        seen->pid = job->workers != NULL && sh_supervisor_runs(job->workers, i)
                        ? shoal_process_pid(sh_supervisor_process(job->workers, i))
                        : 0;
        job->result.images += seen->images;
        sum += bits == 0 ? 0 : seen->loss;
        known += bits != 0;
    }
    return known > 0 ? sum / known : NAN;
}

void sh_job_update_clock(sh_job *job)
{
    int64_t now = sh_now();
    job->result.seconds = seconds_between(job->begun, now);
    if (job->training) {
        int64_t begun = (int64_t)sh_load_relaxed(&job->board->begun);
        begun = begun > job->train_begun ? begun : job->train_begun; /* a3c has no first step here */
        job->result.train_seconds = seconds_between(begun + job->idle, now);
    }
}

double sh_job_update(sh_job *job)
{
    double loss = read_board(job);
    shoal_train_result *r = &job->result;
    sh_job_update_clock(job);
    r->images_per_second = r->train_seconds > 0 ? (double)(r->images - job->images_before) / r->train_seconds : 0;
    return loss;
}

void sh_job_place(sh_job *job, int rank, int64_t epoch, int64_t batch)
{
    sh_progress_shm *p = &job->board->workers[rank];
    int64_t images = sh_shard_images(&job->settings, shoal_dataset_length(job->train_set), rank, epoch, batch);
    sh_racy_store(&p->position, sh_position(epoch, batch));
    sh_racy_store(&p->images, (uint64_t)images);
    job->images_before += images;
}

/* ---- events ---- */

static void call(sh_job *job, shoal_train_event_kind kind, int worker, const char *text, double loss)
{
    shoal_train_past past = sh_past_view(&job->past);
    if (job->o.call == NULL) {
        return;
    }
    shoal_train_event event = {.kind = kind,
                               .so_far = job->result,
                               .images_total = job->images_total,
                               .loss = loss,
                               .worker = worker,
                               .text = text,
                               .workers = job->seen,
                               .workers_count = job->o.workers,
                               .past = kind == SHOAL_TRAIN_BEGIN && job->o.resume != NULL ? &past : NULL};
    if (!job->o.call(&event, job->o.context)) {
        sh_job_stop(job);
    }
}

void sh_job_tell(sh_job *job, shoal_train_event_kind kind, int worker, const char *text)
{
    double loss = sh_job_update(job);
    call(job, kind, worker, text, loss);
}

void sh_job_tell_result(sh_job *job, shoal_train_event_kind kind, double loss)
{
    call(job, kind, -1, "", loss);
}

void sh_job_tell_note(sh_job *job)
{
    const char *note = job->service != NULL ? job->service->type->note(job->service) : "";
    if (note[0] != 0) {
        sh_job_tell(job, SHOAL_TRAIN_NOTE, -1, note);
    }
}

void sh_job_stop(sh_job *job)
{
    job->result.stopped = true;
    sh_store_relaxed(&job->board->stop, 1);
}

/* ---- losses ---- */

static shoal_err diverged(const char *what, double loss, int64_t epoch, double lr)
{
    return sh_fail(
        SHOAL_ENAN,
        "the %s loss is %s in epoch %lld: a learning rate of %g is too large, or the data has NaN or infinity", what,
        isnan(loss) ? "nan" : "inf", (long long)epoch, lr);
}

shoal_err sh_job_check_losses(const sh_job *job)
{
    const shoal_train_result *r = &job->result;
    for (int i = 0; !job->o.allow_nan && i < job->o.workers; i++) {
        uint64_t bits = sh_racy_load(&job->board->workers[i].loss);
        double loss;
        memcpy(&loss, &bits, sizeof loss);
        if (!isfinite(loss)) {
            int64_t epoch = (int64_t)(sh_racy_load(&job->board->workers[i].position) >> 32);
            epoch = (epoch > r->epochs ? epoch : r->epochs) + 1;
            return diverged("training", loss, epoch < job->o.epochs ? epoch : job->o.epochs, job->o.lr);
        }
    }
    bool tested = !job->o.allow_nan && r->tested_epoch > 0;
    return tested && !isfinite(r->test_loss) ? diverged("test", r->test_loss, r->tested_epoch, job->o.lr) : SHOAL_OK;
}
