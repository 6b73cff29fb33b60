#include "train/job/crew.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/interrupt.h"
#include "proc/supervisor.h"

#include <shoal/share.h>

#include <signal.h>
#include <string.h>

#define TICK SHOAL_MS(50)
#define STALL_FIRST SHOAL_SECONDS(60)
#define REPLACED_MOST 3

int64_t sh_crew_stall = SHOAL_SECONDS(5);
int64_t sh_crew_grace = SHOAL_SECONDS(3);

/* ---- messages ---- */

/* Each process gets its own queue: a task that a dead process had taken is on no queue any more. */
static shoal_err renew_tasks(sh_job *job, int rank)
{
    shoal_release(job->tasks[rank]);
    job->tasks[rank] = NULL;
    return shoal_queue_create(0, &job->tasks[rank]);
}

shoal_err sh_crew_send(sh_job *job, int rank, int64_t task)
{
    return shoal_queue_put_bytes(job->tasks[rank], &task, sizeof task, SHOAL_NOW);
}

void sh_crew_close(sh_job *job)
{
    for (int i = 0; i < job->o.workers; i++) {
        shoal_queue_close(job->tasks[i]);
    }
}

/* Hands the workers' numbers to the method; a negative one only wakes the job. */
static shoal_err hear(sh_job *job)
{
    int64_t number = 0;
    size_t size;
    shoal_err err;
    while ((err = shoal_queue_get_bytes(job->answers, &number, sizeof number, SHOAL_NOW, &size)) == SHOAL_OK) {
        if (number >= 0 && job->method->hear != NULL) {
            job->method->hear(job, number);
        }
    }
    return err == SHOAL_ETIMEDOUT ? SHOAL_OK : err;
}

/* ---- starts and ends ---- */

static shoal_value *copy_of(const shoal_value *value)
{
    return value != NULL ? shoal_value_copy(value) : shoal_value_null();
}

/* Prepares the queue of a new process. The process before may have answered just before it died: what it has sent
 * counts, so it is heard before the method names the first task. */
static shoal_err prepare_tasks(sh_job *job, int rank)
{
    SH_TRY(renew_tasks(job, rank));
    SH_TRY(hear(job));
    int64_t task = job->method->task != NULL ? job->method->task(job, rank) : SH_NO_TASK;
    return task != SH_NO_TASK ? sh_crew_send(job, rank, task) : SHOAL_OK;
}

static shoal_value *arguments_of(void *owner, int rank)
{
    sh_job *job = owner;
    const sh_method *m = job->method;
    if (prepare_tasks(job, rank) != SHOAL_OK) {
        return NULL;
    }
    if (job->service != NULL) {
        job->service->type->settings(job->service, &job->settings.engine.service);
    }
    shoal_module *model = m->model != NULL ? m->model(job, rank) : job->model;
    shoal_value *own = m->arguments != NULL ? m->arguments(job, rank) : shoal_value_null();
    shoal_value *scores = job->scores_block != NULL ? shoal_value_of(job->scores_block) : shoal_value_null();
    return shoal_map("model", model, "global", job->model, "data", copy_of(job->packed), "test_data",
                     copy_of(job->packed_test), "scores", scores, "board", job->board_block, "tasks", job->tasks[rank],
                     "answers", job->answers, "settings", shoal_value_bytes(&job->settings, sizeof job->settings),
                     "own", own);
}

/* Decides about a worker that ended: it is done, it failed, or it died. */
static sh_verdict ended(void *owner, int rank, const shoal_process *process)
{
    sh_job *job = owner;
    const shoal_status *status = &process->status;
    bool killed = job->killed[rank];
    job->killed[rank] = false;
    if (killed && status->end == SHOAL_PROCESS_KILLED) {
        return sh_job_over(job) ? SH_VERDICT_DONE : SH_VERDICT_REPLACE;
    }
    if (status->end == SHOAL_PROCESS_RETURNED || (status->end != SHOAL_PROCESS_FAILED && sh_job_over(job))) {
        return SH_VERDICT_DONE;
    }
    if (status->end == SHOAL_PROCESS_FAILED && status->err != SHOAL_ECUDA) { /* a lost device is like a death */
        (void)sh_fail(SHOAL_ECHILD, "%s", status->text);
        return SH_VERDICT_FAIL;
    }
    if (status->end == SHOAL_PROCESS_FAILED && job->service != NULL) {
        job->service->type->lost(job->service);
    }
    job->result.deaths++;
    memcpy(job->died[rank], status->text, sizeof job->died[rank]);
    if (job->seen[rank].deaths++ < job->o.restarts) {
        return SH_VERDICT_REPLACE;
    }
    (void)sh_fail(SHOAL_ECHILD, "%s, and had already been restarted %d time%s", status->text, job->o.restarts,
                  job->o.restarts == 1 ? "" : "s");
    return SH_VERDICT_FAIL;
}

shoal_err sh_crew_start(sh_job *job)
{
    sh_supervisor_rules rules = {.target = job->method->target,
                                 .options = {.start = job->o.start, .name = job->method->name},
                                 .numbered = true,
                                 .waits_for = SH_WAITS_ANY,
                                 .owner = job,
                                 .arguments = arguments_of,
                                 .ended = ended};
    SH_TRY(sh_supervisor_create(&rules, job->o.workers, &job->workers));
    return sh_supervisor_start(job->workers);
}

bool sh_crew_done(const sh_job *job)
{
    return sh_supervisor_running(job->workers) == 0;
}

void sh_crew_kill(sh_job *job)
{
    for (int i = 0; i < job->o.workers; i++) {
        if (sh_supervisor_runs(job->workers, i)) {
            job->killed[i] = true;
            (void)kill(shoal_process_pid(sh_supervisor_process(job->workers, i)), SIGKILL);
        }
    }
}

void sh_crew_end(sh_job *job)
{
    sh_store_relaxed(&job->board->stop, 1);
    sh_crew_close(job);
    if (job->workers != NULL) {
        sh_supervisor_end(job->workers, sh_crew_grace, 0);
    }
}

/* ---- watching ---- */

/* Handles workers that ended, then reports deaths. A death is reported after its consequence is known, also the one
 * that ends the job: then no process has the rank. */
static shoal_err tend(sh_job *job)
{
    sh_error saved; /* the callback may change the last error */
    sh_error_save(&saved, sh_supervisor_tend(job->workers));
    for (int i = 0; i < job->o.workers; i++) {
        if (job->died[i][0] != 0) {
            sh_job_tell(job, SHOAL_TRAIN_DEATH, i, job->died[i]);
            job->died[i][0] = 0;
        }
    }
    sh_job_tell_note(job);
    return sh_error_restore(&saved);
}

/* Returns whether a worker has made progress since the last call. */
static bool moved(sh_job *job)
{
    uint64_t sum = (uint64_t)job->result.epochs + job->test;
    for (int i = 0; i < job->o.workers; i++) {
        sum += sh_racy_load(&job->board->workers[i].images);
    }
    bool differs = sum != job->stall.sum;
    job->stall.sum = sum;
    return differs;
}

/* Replaces the service and all workers if no worker makes progress after a death (mps.h). A worker that starts may have
 * to compile the kernels first, so the first progress may take longer. */
static shoal_err watch_stall(sh_job *job)
{
    int64_t now = sh_now();
    if (moved(job) || job->stall.since == 0) {
        job->stall.began = job->stall.began || job->result.images > job->images_before;
        job->stall.replaced = 0;
        job->stall.since = now;
    }
    int64_t limit = job->stall.began ? sh_crew_stall : STALL_FIRST;
    bool may_replace = job->service != NULL && job->service->type->may_replace(job->service);
    if (!may_replace || job->result.deaths == 0 || now - job->stall.since < limit) {
        return SHOAL_OK;
    }
    if (job->stall.replaced++ == REPLACED_MOST) {
        return sh_fail(SHOAL_ECUDA,
                       "no worker makes progress, although MPS and the workers were started again %d times",
                       REPLACED_MOST);
    }
    sh_crew_kill(job);
    job->service->type->replace(job->service);
    job->stall.since = sh_now();
    return SHOAL_OK;
}

static shoal_err tick(sh_job *job)
{
    int64_t now = sh_now();
    if (now < job->next_tick) {
        return SHOAL_OK;
    }
    job->next_tick = now + TICK;
    sh_job_tell(job, SHOAL_TRAIN_TICK, -1, "");
    SH_TRY(watch_stall(job));
    return sh_job_check_losses(job);
}

shoal_err sh_crew_wait(sh_job *job)
{
    sh_supervisor_wait(job->workers, job->answers, NULL, sh_now() + TICK);
    if (sh_interrupt_mine.hit) {
        return sh_fail_waiting(TICK, "the workers have not ended");
    }
    SH_TRY(hear(job));
    if (job->method->gather != NULL) {
        SH_TRY(job->method->gather(job));
    }
    SH_TRY(tend(job));
    return tick(job);
}
