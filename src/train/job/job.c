/* Opens, runs and closes a job. */
#include "train/job/job.h"
#include "train/job/crew.h"
#include "train/job/scoring.h"

#include "base/clock.h"
#include "base/error.h"
#include "proc/supervisor.h"

#include <shoal/share.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- opening and closing ---- */

static shoal_dataset *open_data(const char *data, shoal_part part)
{
    if (strcmp(data, "mnist") == 0) {
        return shoal_mnist(part);
    }
    return strcmp(data, "fashion-mnist") == 0 ? shoal_fashion_mnist(part) : shoal_mnist_at(data, part);
}

static void count_images(sh_job *job)
{
    int64_t length = shoal_dataset_length(job->train_set);
    job->images_total = job->o.epochs * length * (job->settings.shard ? 1 : job->o.workers);
}

static shoal_err open_sets(sh_job *job)
{
    if (job->o.train_set != NULL) {
        job->train_set = shoal_dataset_retain(job->o.train_set);
        job->test_set = job->o.test_set != NULL ? shoal_dataset_retain(job->o.test_set) : NULL;
    } else {
        job->train_set = open_data(job->o.data, SHOAL_PART_TRAIN);
        job->test_set = job->train_set ? open_data(job->o.data, SHOAL_PART_TEST) : NULL;
        if (job->test_set == NULL) {
            return shoal_last_error();
        }
    }
    if (shoal_dataset_length(job->train_set) < job->o.workers) {
        return sh_fail(SHOAL_EINVAL, "%d workers, but the set has %lld samples", job->o.workers,
                       (long long)shoal_dataset_length(job->train_set));
    }
    if (job->test_set != NULL && shoal_dataset_length(job->test_set) == 0) {
        return sh_fail(SHOAL_EINVAL, "%s has no test samples", job->o.train_set != NULL ? "the test set" : job->o.data);
    }
    count_images(job);
    job->packed = shoal_value_dataset(job->train_set);
    return job->packed ? SHOAL_OK : shoal_last_error();
}

static shoal_err open_model(sh_job *job)
{
    job->own_model = job->o.module == NULL;
    if (job->own_model) {
        shoal_manual_seed(job->o.seed);
    }
    if (!job->own_model) {
        job->model = job->o.module;
    } else if (job->method->make_model != NULL) {
        job->model = job->method->make_model(&job->o);
    } else {
        job->model = shoal_model_create(job->o.model);
    }
    return job->model ? shoal_module_share(job->model) : shoal_last_error();
}

static shoal_err open_board(sh_job *job)
{
    size_t n = (size_t)job->o.workers;
    job->died = calloc(n, sizeof *job->died);
    job->killed = calloc(n, sizeof *job->killed);
    job->seen = calloc(n, sizeof *job->seen);
    job->tasks = calloc(n, sizeof *job->tasks);
    if (job->died == NULL || job->killed == NULL || job->seen == NULL || job->tasks == NULL) {
        return sh_fail(SHOAL_ENOMEM, "no memory for %zu workers", n);
    }
    SH_TRY(shoal_block_create_zeroed(sizeof(sh_board_shm) + n * sizeof(sh_progress_shm), &job->board_block));
    job->board = shoal_block_data(job->board_block);
    return shoal_queue_create(0, &job->answers);
}

/* Called before a worker runs: the board still has the progress of the resumed job. */
static void note_before(sh_job *job)
{
    for (int i = 0; i < job->o.workers; i++) {
        job->seen[i].images_before = (int64_t)sh_racy_load(&job->board->workers[i].images);
    }
}

static void fill_settings(sh_job *job)
{
    const shoal_train_options *o = &job->o;
    job->settings = (sh_settings){
        .epochs = o->epochs,
        .lr_decay = o->lr_decay,
        .seed = o->seed,
        .workers = o->workers,
        .shard = job->method->shards || o->hogwild.shard,
        .engine = {.batch = o->batch, .lr = o->lr, .momentum = o->momentum, .device = o->device, .tf32 = o->tf32}};
}

static shoal_err job_open(sh_job *job, const shoal_train_options *options)
{
    *job = (sh_job){.begun = sh_now(), .result = {.test_loss = NAN, .test_accuracy = NAN, .reward = NAN}};
    SH_TRY(shoal_train_check(options));
    job->o = sh_job_defaults(options);
    job->method = sh_method_of(job->o.method);
    fill_settings(job);
    const sh_service_type *service = sh_engine_of(job->o.device)->service;
    if (service != NULL) {
        SH_TRY(service->open(&job->o, &job->service));
    }
    SH_TRY(open_model(job));
    if (!job->method->no_data) {
        SH_TRY(open_sets(job));
    }
    SH_TRY(open_board(job));
    SH_TRY(sh_scoring_open(job));
    if (job->method->open != NULL) {
        SH_TRY(job->method->open(job));
    }
    if (job->o.resume != NULL) {
        SH_TRY(sh_job_resume(job));
        note_before(job);
    }
    return service != NULL ? service->find(job->service) : SHOAL_OK;
}

static void job_close(sh_job *job)
{
    if (job->method != NULL && job->method->close != NULL) {
        job->method->close(job);
    }
    for (int i = 0; job->tasks != NULL && i < job->o.workers; i++) {
        shoal_release(job->tasks[i]);
    }
    free(job->tasks);
    shoal_release(job->answers);
    sh_scoring_close(job);
    shoal_release(job->board_block);
    if (job->service != NULL) {
        job->service->type->close(job->service);
    }
    sh_supervisor_destroy(job->workers);
    free(job->died);
    free(job->killed);
    free(job->seen);
    sh_past_fini(&job->past);
    shoal_value_destroy(job->packed);
    shoal_dataset_release(job->train_set);
    shoal_dataset_release(job->test_set);
    if (job->own_model) {
        shoal_module_destroy(job->model);
    }
}

/* ---- running ---- */

/* Saves, unless the last epoch did, and reports it. */
static shoal_err save(sh_job *job)
{
    if (!job->saved) {
        SH_TRY(sh_job_save(job));
    }
    if (job->o.save != NULL) {
        sh_job_tell(job, SHOAL_TRAIN_SAVE, -1, job->o.save);
    }
    return SHOAL_OK;
}

static void tell_begin(sh_job *job)
{
    sh_job_tell(job, SHOAL_TRAIN_BEGIN, -1, job->o.resume != NULL ? job->o.resume : "");
}

static shoal_err run_workers(sh_job *job)
{
    if (job->service != NULL) {
        SH_TRY(job->service->type->start(job->service));
    }
    SH_TRY(sh_crew_start(job));
    tell_begin(job);
    sh_job_tell_note(job);
    return job->method->run(job);
}

static shoal_err run(sh_job *job)
{
    job->train_begun = sh_now();
    job->training = true;
    shoal_err err = run_workers(job);
    sh_job_update_clock(job);
    job->training = false;
    return err;
}

/* Cleans up, and keeps the error text of the failure. */
static shoal_err end(sh_job *job, shoal_err err)
{
    sh_error saved;
    sh_error_save(&saved, err);
    sh_crew_end(job);
    if (job->service != NULL) {
        job->service->type->stop(job->service);
    }
    return sh_error_restore(&saved);
}

/* Handles a resumed job that has nothing left to do: it only repeats the test of the last epoch. The
 * file keeps the time and the rate of the job, in which nothing was trained now. */
static shoal_err run_nothing(sh_job *job)
{
    SH_TRY(sh_job_test(job));
    SH_TRY(sh_job_check_losses(job));
    job->result.reached_epoch = sh_job_good_enough(job) ? job->result.epochs : 0;
    (void)sh_job_update(job);
    job->result.images_per_second = job->past.before.images_per_second;
    job->result.seconds = 0; /* what past.before has is the job's time */
    SH_TRY(sh_job_save(job));
    job->saved = true;
    tell_begin(job);
    return SHOAL_OK;
}

/* Writes the file before the first worker starts, so that the job can be resumed whenever it is killed, and an
 * unwritable path fails at once. */
static shoal_err run_whole(sh_job *job)
{
    if (job->result.epochs >= job->o.epochs || sh_job_good_enough(job)) {
        SH_TRY(run_nothing(job));
    } else {
        SH_TRY(sh_job_save(job));
        SH_TRY(end(job, run(job)));
    }
    return save(job);
}

shoal_err shoal_train_run(const shoal_train_options *options, shoal_train_result *out_result)
{
    SH_NEED(options);
    sh_job job;
    shoal_err err = job_open(&job, options);
    if (err == SHOAL_OK) {
        err = run_whole(&job);
    }
    if (err == SHOAL_OK) {
        sh_job_tell(&job, SHOAL_TRAIN_SUMMARY, -1, "");
        if (out_result != NULL) {
            *out_result = job.result;
        }
    }
    sh_error saved;
    sh_error_save(&saved, err);
    job_close(&job);
    return sh_error_restore(&saved);
}
