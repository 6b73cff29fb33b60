/* The workers of a job: starting, watching, starting again. */
#include "train/job.h"

#include "base/clock.h"
#include "base/error.h"

#include <shoal/share.h>

#include <stdio.h>

#define TICK SHOAL_MS(50)
#define GRACE SHOAL_SECONDS(3) /* for the step that a worker is in when the job stops */

static shoal_value *arguments_of(sh_job *job, int rank)
{
    const sh_method *m = job->method;
    shoal_module *model = m->model != NULL ? m->model(job, rank) : job->model;
    shoal_value *own = m->arguments != NULL ? m->arguments(job, rank) : shoal_value_null();
    shoal_value *data = job->packed != NULL ? shoal_value_copy(job->packed) : shoal_value_null();
    return shoal_map("model", model, "data", data, "board", job->board_block, "settings",
                     shoal_value_bytes(&job->settings, sizeof job->settings), "own", own);
}

static shoal_err start(sh_job *job, int rank)
{
    char name[32];
    snprintf(name, sizeof name, "%s-%d", job->method->name, rank);
    shoal_value *args = arguments_of(job, rank);
    if (args == NULL) {
        return shoal_last_error();
    }
    return shoal_process_start(job->method->target, args,
                               &(shoal_process_options){.start = job->o.start, .name = name, .rank = rank},
                               &job->members[rank].process);
}

shoal_err sh_crew_start(sh_job *job)
{
    shoal_err err = SHOAL_OK;
    for (int i = 0; i < job->o.workers && err == SHOAL_OK; i++) {
        err = start(job, i);
    }
    return err;
}

/* A death is told of when it is known what follows, also the one that ends the job: no process has the rank then. */
static shoal_err died(sh_job *job, int rank, const char *text)
{
    bool again = job->seen[rank].deaths++ < job->o.restarts;
    job->result.deaths++;
    shoal_err err = again ? start(job, rank)
                          : sh_fail(SHOAL_ECHILD, "%s, and was started again %d times before", text, job->o.restarts);
    char why[1024]; /* outlives the callback */
    snprintf(why, sizeof why, "%s", err == SHOAL_OK ? "" : shoal_last_error_text());
    sh_job_tell(job, SHOAL_TRAIN_DEATH, rank, text);
    return err == SHOAL_OK ? SHOAL_OK : sh_fail(err, "%s", why);
}

/* A worker that ended: it is done, it failed, or it died. */
static shoal_err ended(sh_job *job, int rank)
{
    sh_member *m = &job->members[rank];
    shoal_status status;
    shoal_err err = shoal_process_join(m->process, SHOAL_NOW, &status);
    if (err != SHOAL_OK) {
        return err == SHOAL_ETIMEDOUT ? SHOAL_OK : err;
    }
    shoal_process_destroy(m->process);
    m->process = NULL;
    m->done = status.end == SHOAL_RETURNED;
    if (m->done) {
        return SHOAL_OK;
    }
    if (status.end == SHOAL_FAILED) {
        return sh_fail(SHOAL_ECHILD, "%s", status.text);
    }
    if (sh_job_over(job)) {
        m->done = true;
        return SHOAL_OK;
    }
    return died(job, rank, status.text);
}

static shoal_err tick(sh_job *job)
{
    int64_t now = sh_now();
    if (now < job->next_tick) {
        return SHOAL_OK;
    }
    job->next_tick = now + TICK;
    sh_job_tell(job, SHOAL_TRAIN_TICK, -1, "");
    return sh_job_check_losses(job);
}

/* What is waited for: the processes that run, and the answers. */
static size_t fill(sh_job *job)
{
    size_t n = 0;
    for (int i = 0; i < job->o.workers; i++) {
        if (job->members[i].process != NULL) {
            job->things[n++] = (shoal_waitable){.process = job->members[i].process};
        }
    }
    if (job->answers != NULL) {
        job->things[n++] = (shoal_waitable){.queue = job->answers};
    }
    return n;
}

shoal_err sh_crew_wait(sh_job *job)
{
    size_t n = fill(job);
    shoal_err err = n > 0 ? shoal_wait(job->things, n, TICK) : SHOAL_OK;
    if (err == SHOAL_OK && job->method->gather != NULL) {
        err = job->method->gather(job);
    }
    size_t at = 0;
    for (int i = 0; i < job->o.workers && err == SHOAL_OK; i++) {
        if (job->members[i].process != NULL && job->things[at++].ready) {
            err = ended(job, i);
        }
    }
    if (err != SHOAL_OK && err != SHOAL_ETIMEDOUT) {
        return err;
    }
    return tick(job);
}

shoal_err sh_crew_hear(sh_job *job)
{
    uint64_t word;
    size_t size;
    shoal_err err;
    do {
        err = shoal_queue_get_bytes(job->answers, &word, sizeof word, SHOAL_NOW, &size);
    } while (err == SHOAL_OK);
    return err == SHOAL_ETIMEDOUT ? SHOAL_OK : err;
}

bool sh_crew_done(const sh_job *job)
{
    for (int i = 0; i < job->o.workers; i++) {
        if (!job->members[i].done) {
            return false;
        }
    }
    return true;
}

void sh_crew_end(sh_job *job)
{
    int64_t deadline = sh_deadline(GRACE);
    sh_store_relaxed(&job->board->stop, 1);
    for (int i = 0; i < job->o.workers; i++) {
        shoal_process *p = job->members[i].process;
        int64_t left = deadline - sh_now();
        if (p != NULL && shoal_process_join(p, left > 0 ? left : 0, NULL) != SHOAL_OK) {
            (void)!shoal_process_kill(p);
        }
        shoal_process_destroy(p);
        job->members[i].process = NULL;
    }
}
