/* Opens, runs and closes a job, and reports its events. */
#include "train/job.h"
#include "train/trial.h"

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
    job->put_down = calloc(n, sizeof *job->put_down);
    job->seen = calloc(n, sizeof *job->seen);
    job->tasks = calloc(n, sizeof *job->tasks);
    if (job->died == NULL || job->put_down == NULL || job->seen == NULL || job->tasks == NULL) {
        return sh_fail(SHOAL_ENOMEM, "no memory for %zu workers", n);
    }
    shoal_err err = shoal_block_create_zeroed(sizeof(sh_board_shm) + n * sizeof(sh_progress_shm), &job->board_block);
    if (err == SHOAL_OK) {
        job->board = shoal_block_data(job->board_block);
        err = shoal_queue_create(0, &job->answers);
    }
    return err;
}

/* Called before a worker runs: the board still has the progress of the resumed job. */
static void note_before(sh_job *job)
{
    for (int i = 0; i < job->o.workers; i++) {
        job->seen[i].images_before = (int64_t)sh_racy_load(&job->board->workers[i].images);
    }
}

shoal_err sh_job_open(sh_job *job, const shoal_train_options *options)
{
    *job = (sh_job){.begun = sh_now(), .result = {.test_loss = NAN, .test_accuracy = NAN, .reward = NAN}};
    shoal_err err = shoal_train_check(options);
    if (err != SHOAL_OK) {
        return err;
    }
    job->o = sh_job_defaults(options);
    job->method = sh_method_of(job->o.method);
    job->settings = (sh_settings){.epochs = job->o.epochs,
                                  .batch = job->o.batch,
                                  .lr = job->o.lr,
                                  .lr_decay = job->o.lr_decay,
                                  .momentum = job->o.momentum,
                                  .seed = job->o.seed,
                                  .workers = job->o.workers,
                                  .device = job->o.device,
                                  .cuda_share = job->o.cuda_share,
                                  .tf32 = job->o.tf32,
                                  .shard = job->method->shards || job->o.shard};
    err = sh_probe_start(job);
    if (err == SHOAL_OK) {
        err = open_model(job);
    }
    if (err == SHOAL_OK && !job->method->no_data) {
        err = open_sets(job);
    }
    if (err == SHOAL_OK) {
        err = open_board(job);
    }
    if (err == SHOAL_OK) {
        err = sh_trial_open(job);
    }
    if (err == SHOAL_OK && job->method->open != NULL) {
        err = job->method->open(job);
    }
    if (err == SHOAL_OK && job->o.resume != NULL) {
        err = sh_job_resume(job);
        note_before(job);
    }
    return err == SHOAL_OK ? sh_probe_end(job) : err;
}

void sh_job_close(sh_job *job)
{
    if (job->method != NULL && job->method->close != NULL) {
        job->method->close(job);
    }
    for (int i = 0; job->tasks != NULL && i < job->o.workers; i++) {
        shoal_release(job->tasks[i]);
    }
    free(job->tasks);
    shoal_release(job->answers);
    sh_trial_close(job);
    shoal_release(job->board_block);
    shoal_process_destroy(job->probe);
    sh_supervisor_destroy(job->workers);
    free(job->died);
    free(job->put_down);
    free(job->seen);
    sh_past_fini(&job->past);
    shoal_value_destroy(job->packed);
    shoal_dataset_release(job->train_set);
    shoal_dataset_release(job->test_set);
    if (job->own_model) {
        shoal_module_destroy(job->model);
    }
}

/* ---- reporting ---- */

static double seconds_between(int64_t from, int64_t to)
{
    return (double)(to - from) * 1e-9;
}

/* Reads the board into seen and result; returns the mean loss. */
static double look(sh_job *job)
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

static void look_at_clock(sh_job *job)
{
    int64_t now = sh_now();
    job->result.seconds = seconds_between(job->begun, now);
    if (job->training) {
        int64_t begun = (int64_t)sh_load_relaxed(&job->board->begun);
        begun = begun > job->train_begun ? begun : job->train_begun; /* a3c has no first step here */
        job->result.train_seconds = seconds_between(begun + job->idle, now);
    }
}

/* Brings result and seen up to date; returns the mean loss. */
static double update(sh_job *job)
{
    double loss = look(job);
    shoal_train_result *r = &job->result;
    look_at_clock(job);
    r->images_per_second = r->train_seconds > 0 ? (double)(r->images - job->images_before) / r->train_seconds : 0;
    return loss;
}

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
    double loss = update(job);
    call(job, kind, worker, text, loss);
}

void sh_job_stop(sh_job *job)
{
    job->result.stopped = true;
    sh_store_relaxed(&job->board->stop, 1);
}

shoal_err sh_job_test(sh_job *job)
{
    shoal_train_result *r = &job->result;
    if (job->test_set == NULL) {
        return SHOAL_OK;
    }
    shoal_err err = sh_trial_run(job, &r->test_loss, &r->test_accuracy);
    r->tested_epoch = err == SHOAL_OK ? r->epochs : r->tested_epoch;
    return err;
}

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

/* Saves, unless the last epoch did, and reports it. */
static shoal_err save(sh_job *job)
{
    shoal_err err = job->saved ? SHOAL_OK : sh_job_save(job);
    if (err == SHOAL_OK && job->o.save != NULL) {
        sh_job_tell(job, SHOAL_TRAIN_SAVE, -1, job->o.save);
    }
    return err;
}

static bool good_enough(const sh_job *job)
{
    return job->enough || (job->o.until > 0 && job->result.test_accuracy >= job->o.until);
}

/* Tests the model after `finished` epochs, decides whether it is good enough, and writes the file, including the epochs
 * from first on. */
static shoal_err finish_epochs(sh_job *job, int64_t first, int64_t finished, bool pause, double *out_loss)
{
    int64_t begun = sh_now();
    shoal_err err = sh_job_check_losses(job);
    job->result.epochs = finished;
    if (err == SHOAL_OK) {
        err = sh_job_test(job);
    }
    if (err == SHOAL_OK) {
        err = sh_job_check_losses(job);
    }
    if (err != SHOAL_OK) {
        return err;
    }
    if (good_enough(job)) {
        job->enough = true;
        job->result.reached_epoch = finished;
        sh_store_relaxed(&job->board->stop, 1);
    }
    job->idle += pause ? sh_now() - begun : 0;
    *out_loss = update(job);
    for (int64_t epoch = first; epoch <= finished; epoch++) {
        sh_past_add(&job->past, &job->result, epoch, *out_loss);
    }
    begun = sh_now();
    err = sh_job_save(job);
    job->idle += pause ? sh_now() - begun : 0;
    return err;
}

shoal_err sh_job_epoch(sh_job *job, int64_t finished, bool pause)
{
    int64_t first = job->result.epochs + 1;
    double loss;
    shoal_err err = finish_epochs(job, first, finished, pause, &loss);
    if (err != SHOAL_OK) {
        return err;
    }
    for (job->result.epochs = first; job->result.epochs <= finished; job->result.epochs++) {
        call(job, SHOAL_TRAIN_EPOCH, -1, "", loss);
    }
    job->result.epochs = finished;
    bool last = finished >= job->o.epochs || job->enough;
    job->saved = last && pause;
    if (!last && !job->result.stopped && job->o.save != NULL) {
        sh_job_tell(job, SHOAL_TRAIN_SAVE, -1, job->o.save);
    }
    return SHOAL_OK;
}

void sh_job_place(sh_job *job, int rank, int64_t epoch, int64_t batch)
{
    sh_progress_shm *p = &job->board->workers[rank];
    int64_t images = sh_shard_images(&job->settings, shoal_dataset_length(job->train_set), rank, epoch, batch);
    sh_racy_store(&p->position, sh_position(epoch, batch));
    sh_racy_store(&p->images, (uint64_t)images);
    job->images_before += images;
}

/* ---- running ---- */

static void tell_begin(sh_job *job)
{
    sh_job_tell(job, SHOAL_TRAIN_BEGIN, -1, job->o.resume != NULL ? job->o.resume : "");
}

void sh_job_tell_mps(sh_job *job)
{
    char note[sizeof job->mps.note];
    memcpy(note, job->mps.note, sizeof note);
    job->mps.note[0] = 0;
    if (note[0] != 0) {
        sh_job_tell(job, SHOAL_TRAIN_NOTE, -1, note);
    }
}

static shoal_err run(sh_job *job)
{
    job->train_begun = sh_now();
    job->training = true;
    shoal_err err = sh_mps_start(&job->mps, &job->o);
    sh_crew_note_mps(job);
    if (err == SHOAL_OK) {
        err = sh_crew_start(job);
    }
    if (err == SHOAL_OK) {
        tell_begin(job);
        sh_job_tell_mps(job);
        err = job->method->run(job);
    }
    look_at_clock(job);
    job->training = false;
    return err;
}

/* Cleans up, and keeps the error text of the failure. */
static shoal_err end(sh_job *job, shoal_err err)
{
    sh_error saved;
    sh_error_save(&saved, err);
    sh_crew_end(job);
    sh_mps_stop(&job->mps);
    return sh_error_restore(&saved);
}

/* Handles a resumed job that has nothing left to do: it only repeats the test of the last epoch. The
 * file keeps the time and the rate of the job, in which nothing was trained now. */
static shoal_err run_nothing(sh_job *job)
{
    shoal_err err = sh_job_test(job);
    if (err == SHOAL_OK) {
        err = sh_job_check_losses(job);
    }
    if (err == SHOAL_OK) {
        job->result.reached_epoch = good_enough(job) ? job->result.epochs : 0;
        (void)look(job);
        job->result.images_per_second = job->past.before.images_per_second;
        err = sh_job_save(job); /* before a report reads the clock */
    }
    if (err == SHOAL_OK) {
        job->saved = true;
        tell_begin(job);
    }
    return err;
}

/* Writes the file before the first worker starts, so that the job can be resumed whenever it is killed, and an
 * unwritable path fails at once. */
static shoal_err run_whole(sh_job *job)
{
    bool nothing = job->result.epochs >= job->o.epochs || good_enough(job);
    shoal_err err = nothing ? run_nothing(job) : sh_job_save(job);
    if (err == SHOAL_OK && !nothing) {
        err = end(job, run(job));
    }
    return err == SHOAL_OK ? save(job) : err;
}

shoal_err shoal_train_run(const shoal_train_options *options, shoal_train_result *out_result)
{
    SH_NEED(options);
    sh_job job;
    shoal_err err = sh_job_open(&job, options);
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
    sh_job_close(&job);
    return sh_error_restore(&saved);
}
