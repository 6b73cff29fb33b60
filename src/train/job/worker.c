/* A worker: its half of the board, its tasks, and its steps, which its engine takes. */
#include "train/job/worker.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/random.h"

#include <shoal/share.h>

#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

/* The weight of a batch in the running mean of the loss. */
#define LOSS_SHARE 0.05

static uint64_t mix(uint64_t seed, uint64_t a, uint64_t b, uint64_t c)
{
    uint64_t state = seed;
    state = sh_splitmix_next(&state) ^ a;
    state = sh_splitmix_next(&state) ^ b;
    state = sh_splitmix_next(&state) ^ c;
    return sh_splitmix_next(&state);
}

uint64_t sh_worker_seed(const sh_worker *w, uint64_t a, uint64_t b)
{
    return mix(w->settings.seed, (uint64_t)w->rank, a, b);
}

double sh_settings_lr(const sh_settings *s, int64_t epoch)
{
    return s->engine.lr * pow(s->lr_decay, (double)epoch);
}

static void shard_of(const sh_settings *s, int64_t length, int rank, int64_t *out_first, int64_t *out_count)
{
    int64_t each = s->shard ? length / s->workers : length;
    *out_first = s->shard ? each * rank : 0;
    *out_count = s->shard && rank == s->workers - 1 ? length - *out_first : each;
}

int64_t sh_shard_batches(const sh_settings *s, int64_t length, int rank)
{
    int64_t first, count;
    shard_of(s, length, rank, &first, &count);
    return (count + s->engine.batch - 1) / s->engine.batch;
}

int64_t sh_shard_samples(const sh_settings *s, int64_t length, int rank, int64_t batch)
{
    int64_t first, count;
    shard_of(s, length, rank, &first, &count);
    int64_t left = count - batch * s->engine.batch;
    return left <= 0 ? 0 : left < s->engine.batch ? left : s->engine.batch;
}

int64_t sh_shard_images(const sh_settings *s, int64_t length, int rank, int64_t epoch, int64_t batch)
{
    int64_t first, count;
    shard_of(s, length, rank, &first, &count);
    return epoch * count + (batch < sh_shard_batches(s, length, rank) ? batch * s->engine.batch : count);
}

uint64_t sh_worker_order_seed(uint64_t seed, int64_t stream)
{
    return mix(seed, (uint64_t)stream, 0, 1);
}

shoal_err sh_worker_take_samples(sh_worker *w, const int64_t *samples, int64_t count)
{
    return sh_engine_take_samples(w->engine, samples, count, sh_worker_order_seed(w->settings.seed, w->stream));
}

/* Gives the engine the worker's part of the set. */
static shoal_err take_shard(sh_worker *w)
{
    int64_t first, count;
    shard_of(&w->settings, shoal_dataset_length(w->set), w->rank, &first, &count);
    int64_t *order = malloc((size_t)(count + 1) * sizeof *order);
    if (order == NULL) {
        return sh_fail(SHOAL_ENOMEM, "no memory for the order of %lld samples", (long long)count);
    }
    for (int64_t i = 0; i < count; i++) {
        order[i] = first + i;
    }
    shoal_err err = sh_worker_take_samples(w, order, count);
    free(order);
    return err;
}

shoal_err sh_worker_attach(sh_worker *w, int rank, const shoal_value *args)
{
    size_t size = 0;
    const void *settings = shoal_value_as_bytes(shoal_value_find(args, "settings"), &size);
    shoal_block *board = shoal_arg_block(args, "board");
    *w = (sh_worker){.rank = rank, .stream = rank, .passes = 1, .model = shoal_arg_module(args, "model")};
    if (settings == NULL || board == NULL || w->model == NULL) {
        return shoal_last_error();
    }
    if (size != sizeof w->settings) {
        return sh_fail(SHOAL_ELAYOUT, "the settings have %zu bytes instead of %zu", size, sizeof w->settings);
    }
    memcpy(&w->settings, settings, size);
    signal(SIGINT,
           SIG_IGN); /* Ctrl-C and a terminal's hangup reach the whole process group; the job says when to stop */
    signal(SIGHUP, SIG_IGN);
    shoal_module_train(w->model, true);
    w->board = shoal_block_data(board);
    w->progress = &w->board->workers[rank];
    return SHOAL_OK;
}

static shoal_err open_tests(sh_worker *w, const shoal_value *args)
{
    if (shoal_value_type(shoal_value_find(args, "test_data")) == SHOAL_TYPE_NULL) {
        return SHOAL_OK;
    }
    shoal_block *scores = shoal_arg_block(args, "scores");
    w->test_set = scores ? shoal_dataset_retain(shoal_arg_dataset(args, "test_data")) : NULL;
    w->scores = w->test_set ? shoal_block_data(scores) : NULL;
    return w->scores ? SHOAL_OK : shoal_last_error();
}

shoal_err sh_worker_open_without_samples(sh_worker *w, int rank, const shoal_value *args)
{
    SH_TRY(sh_worker_attach(w, rank, args));
    w->global = shoal_arg_module(args, "global");
    w->tasks = w->global ? shoal_arg_queue(args, "tasks") : NULL;
    w->answers = w->tasks ? shoal_arg_queue(args, "answers") : NULL;
    w->set = w->answers ? shoal_dataset_retain(shoal_arg_dataset(args, "data")) : NULL;
    if (w->set == NULL) {
        return shoal_last_error();
    }
    SH_TRY(open_tests(w, args));
    return sh_engine_open(&w->settings.engine, w->model, w->set, w->test_set, &w->engine);
}

shoal_err sh_worker_open(sh_worker *w, int rank, const shoal_value *args)
{
    SH_TRY(sh_worker_open_without_samples(w, rank, args));
    return take_shard(w);
}

void sh_worker_close(sh_worker *w)
{
    sh_engine_close(w->engine);
    shoal_dataset_release(w->set);
    shoal_dataset_release(w->test_set);
}

shoal_err sh_worker_ring(const sh_worker *w, int64_t number)
{
    return shoal_queue_put_bytes(w->answers, &number, sizeof number, SHOAL_FOREVER);
}

/* Waits for a task; a negative one only wakes the worker. */
static shoal_err next(sh_worker *w, int64_t *out_task)
{
    size_t size;
    if (sh_worker_has_test(w)) {
        SH_TRY(sh_worker_test(w));
    }
    if (sh_worker_stopped(w)) { /* the job closes the queue at its end */
        return SHOAL_ECLOSED;
    }
    return shoal_queue_get_bytes(w->tasks, out_task, sizeof *out_task, SHOAL_FOREVER, &size);
}

shoal_err sh_worker_next(sh_worker *w, int64_t *out_task)
{
    int64_t task;
    do {
        task = 0;
        SH_TRY(next(w, &task));
    } while (task < 0);
    *out_task = task;
    return SHOAL_OK;
}

/* death: before the first store the steps count as not taken. A position without its images miscounts one batch. */
void sh_worker_report(const sh_worker *w, uint64_t position, const sh_engine_done *done)
{
    sh_progress_shm *p = w->progress;
    uint64_t bits = sh_racy_load(&p->loss);
    double mean, share = 1 - pow(1 - LOSS_SHARE, (double)done->steps);
    memcpy(&mean, &bits, sizeof mean);
    mean = bits == 0 || !isfinite(mean) ? done->loss : mean + share * (done->loss - mean);
    memcpy(&bits, &mean, sizeof bits);
    sh_racy_store(&p->position, position);
    sh_racy_store(&p->images, sh_racy_load(&p->images) + (uint64_t)done->samples);
    sh_racy_store(&p->loss, bits);
}

void sh_worker_begin_training(const sh_worker *w)
{
    uint64_t none = 0;
    if (sh_load_relaxed(&w->board->begun) == 0) {
        (void)sh_cas_acq_rel(&w->board->begun, &none, (uint64_t)sh_now());
    }
}

static uint64_t seed_of_run(const sh_worker *w, int64_t pass, int64_t first)
{
    return mix(w->settings.seed, (uint64_t)w->stream, (uint64_t)pass, 2 + (uint64_t)first);
}

/* Runs batches with one seed. */
static shoal_err run(sh_worker *w, const sh_engine_run *run)
{
    const sh_engine_type *type = w->engine->type;
    sh_engine_done done = {.batch = run->first};
    SH_TRY(type->begin(w->engine, run));
    while (done.batch < run->last && !sh_worker_stopped(w)) {
        if (sh_worker_has_test(w)) {
            SH_TRY(sh_worker_test(w));
        }
        SH_TRY(type->run(w->engine, &done));
        sh_worker_report(w, sh_position(run->pass / w->passes, done.batch), &done);
    }
    return SHOAL_OK;
}

static shoal_err run_batches(sh_worker *w, int64_t pass, int64_t first, int64_t last, bool gradient)
{
    int64_t batches = shoal_loader_batches(w->engine->loader), every = w->settings.reseed;
    sh_worker_begin_training(w);
    last = last < batches ? last : batches;
    for (int64_t at = first, end; at < last && !sh_worker_stopped(w); at = end) {
        end = every > 0 && at / every * every + every < last ? at / every * every + every : last;
        SH_TRY(run(w, &(sh_engine_run){.pass = pass,
                                       .first = at,
                                       .last = end,
                                       .lr = sh_settings_lr(&w->settings, pass / w->passes),
                                       .seed = seed_of_run(w, pass, at),
                                       .gradient = gradient}));
    }
    return SHOAL_OK;
}

shoal_err sh_worker_train(sh_worker *w, int64_t pass, int64_t first, int64_t last)
{
    return run_batches(w, pass, first, last, false);
}

shoal_err sh_worker_gradient(sh_worker *w, int64_t pass, int64_t batch)
{
    return run_batches(w, pass, batch, batch + 1, true);
}
