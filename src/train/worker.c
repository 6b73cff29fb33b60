#include "train/worker.h"
#include "train/card.h"
#include "train/mps.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/random.h"

#include <shoal/autograd.h>
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
    return s->lr * pow(s->lr_decay, (double)epoch);
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
    return (count + s->batch - 1) / s->batch;
}

int64_t sh_shard_samples(const sh_settings *s, int64_t length, int rank, int64_t batch)
{
    int64_t first, count;
    shard_of(s, length, rank, &first, &count);
    int64_t left = count - batch * s->batch;
    return left <= 0 ? 0 : left < s->batch ? left : s->batch;
}

int64_t sh_shard_images(const sh_settings *s, int64_t length, int rank, int64_t epoch, int64_t batch)
{
    int64_t first, count;
    shard_of(s, length, rank, &first, &count);
    return epoch * count + (batch < sh_shard_batches(s, length, rank) ? batch * s->batch : count);
}

uint64_t sh_worker_order_seed(uint64_t seed, int64_t stream)
{
    return mix(seed, (uint64_t)stream, 0, 1);
}

shoal_err sh_worker_load(sh_worker *w, const int64_t *order, int64_t count)
{
    shoal_loader *loader = shoal_loader_create(w->set, .batch = w->settings.batch, .shuffle = true,
                                               .seed = sh_worker_order_seed(w->settings.seed, w->stream),
                                               .order = order, .order_count = count);
    if (loader == NULL) {
        return shoal_last_error();
    }
    shoal_loader_destroy(w->loader);
    w->loader = loader;
    w->loads++;
    return SHOAL_OK;
}

shoal_err sh_worker_take(sh_worker *w)
{
    return w->card ? sh_card_take(w->card, w->global) : shoal_module_copy(w->model, w->global);
}

shoal_err sh_worker_give(sh_worker *w)
{
    return w->card ? sh_card_give(w->card, w->model) : SHOAL_OK;
}

shoal_err sh_worker_renew(sh_worker *w)
{
    if (w->card) {
        return sh_card_take_momentum(w->card, NULL);
    }
    shoal_optimizer_destroy(w->sgd);
    w->sgd = shoal_sgd_create(w->model, .lr = w->settings.lr, .momentum = w->settings.momentum);
    return w->sgd ? SHOAL_OK : shoal_last_error();
}

/* Makes a loader of the worker's part of the set. */
static shoal_err load_shard(sh_worker *w)
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
    shoal_err err = sh_worker_load(w, order, count);
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
    shoal_block *parts = shoal_arg_block(args, "trial");
    w->test_set = parts ? shoal_dataset_retain(shoal_arg_dataset(args, "test_data")) : NULL;
    w->parts = w->test_set ? shoal_block_data(parts) : NULL;
    w->evaluator = (sh_evaluator){.set = w->test_set, .device = w->settings.device};
    return w->parts ? SHOAL_OK : shoal_last_error();
}

shoal_err sh_worker_open_without_loader(sh_worker *w, int rank, const shoal_value *args)
{
    shoal_err err = sh_worker_attach(w, rank, args);
    if (err != SHOAL_OK) {
        return err;
    }
    w->global = shoal_arg_module(args, "global");
    w->tasks = w->global ? shoal_arg_queue(args, "tasks") : NULL;
    w->answers = w->tasks ? shoal_arg_queue(args, "answers") : NULL;
    w->set = w->answers ? shoal_dataset_retain(shoal_arg_dataset(args, "data")) : NULL;
    if (w->set == NULL) {
        return shoal_last_error();
    }
    err = open_tests(w, args);
    if (err == SHOAL_OK && w->settings.device == SHOAL_CUDA) {
        sh_mps_join(w->settings.mps, w->settings.cuda_share);
        err = sh_card_open(w);
    }
    return err == SHOAL_OK ? sh_worker_renew(w) : err;
}

shoal_err sh_worker_open(sh_worker *w, int rank, const shoal_value *args)
{
    shoal_err err = sh_worker_open_without_loader(w, rank, args);
    return err == SHOAL_OK ? load_shard(w) : err;
}

void sh_worker_close(sh_worker *w)
{
    sh_evaluator_fini(&w->evaluator);
    sh_card_close(w->card);
    shoal_optimizer_destroy(w->sgd);
    shoal_loader_destroy(w->loader);
    shoal_dataset_release(w->set);
    shoal_dataset_release(w->test_set);
}

shoal_err sh_worker_ring(const sh_worker *w, int64_t number)
{
    return shoal_queue_put_bytes(w->answers, &number, sizeof number, SHOAL_FOREVER);
}

shoal_err sh_worker_next(sh_worker *w, int64_t *out_task)
{
    for (;;) {
        int64_t task = 0;
        size_t size;
        shoal_err err = sh_worker_has_trial(w) ? sh_worker_test(w) : SHOAL_OK;
        if (err == SHOAL_OK) { /* the job closes the queue at its end */
            err = sh_worker_stopped(w) ? SHOAL_ECLOSED
                                       : shoal_queue_get_bytes(w->tasks, &task, sizeof task, SHOAL_FOREVER, &size);
        }
        if (err != SHOAL_OK || task >= 0) {
            *out_task = err == SHOAL_OK ? task : *out_task;
            return err;
        }
    }
}

/* death: before the first store the step counts as not taken. A position without its images miscounts one batch. */
void sh_worker_tell_many(const sh_worker *w, uint64_t position, int64_t images, double loss, int64_t steps)
{
    sh_progress_shm *p = w->progress;
    uint64_t bits = sh_racy_load(&p->loss);
    double mean, share = 1 - pow(1 - LOSS_SHARE, (double)steps);
    memcpy(&mean, &bits, sizeof mean);
    mean = bits == 0 || !isfinite(mean) ? loss : mean + share * (loss - mean);
    memcpy(&bits, &mean, sizeof bits);
    sh_racy_store(&p->position, position);
    sh_racy_store(&p->images, sh_racy_load(&p->images) + (uint64_t)images);
    sh_racy_store(&p->loss, bits);
}

void sh_worker_tell(const sh_worker *w, uint64_t position, int64_t images, double loss)
{
    sh_worker_tell_many(w, position, images, loss, 1);
}

static shoal_err step(const sh_worker *w, const shoal_batch *b, bool change, double *out_loss)
{
    shoal_optimizer_zero_grad(w->sgd);
    shoal_tensor *loss = shoal_nll_loss(shoal_module_forward(w->model, b->x), b->y);
    shoal_err err = shoal_backward(loss);
    if (err == SHOAL_OK && change) {
        err = shoal_optimizer_step(w->sgd);
    }
    return err == SHOAL_OK ? shoal_item(loss, out_loss) : err;
}

void sh_worker_note_begin(const sh_worker *w)
{
    uint64_t none = 0;
    if (sh_load_relaxed(&w->board->begun) == 0) {
        (void)sh_cas_acq_rel(&w->board->begun, &none, (uint64_t)sh_now());
    }
}

static uint64_t seed_of_run(const sh_worker *w, int64_t epoch, int64_t first)
{
    return mix(w->settings.seed, (uint64_t)w->stream, (uint64_t)epoch, 2 + (uint64_t)first);
}

/* On a card, rounds may be longer than on the CPU, but the random numbers are the same. */
static shoal_err run_on_card(sh_worker *w, int64_t epoch, int64_t first, int64_t last, bool change)
{
    int64_t batches = shoal_loader_batches(w->loader), every = w->settings.reseed;
    shoal_err err = SHOAL_OK;
    last = last < batches ? last : batches;
    for (int64_t at = first, end; at < last && err == SHOAL_OK && !sh_worker_stopped(w); at = end) {
        end = every > 0 && at / every * every + every < last ? at / every * every + every : last;
        err = sh_card_run(w, epoch, at, end, seed_of_run(w, epoch, at), change);
    }
    return err;
}

static shoal_err run_batches(sh_worker *w, int64_t epoch, int64_t first, int64_t last, bool change)
{
    sh_worker_note_begin(w);
    if (w->card) {
        return run_on_card(w, epoch, first, last, change);
    }
    int64_t batches = shoal_loader_batches(w->loader);
    if (first >= batches || first >= last) {
        return SHOAL_OK;
    }
    shoal_optimizer_set_lr(w->sgd, sh_settings_lr(&w->settings, epoch / w->passes));
    shoal_manual_seed(seed_of_run(w, epoch, first));
    shoal_err err = shoal_loader_seek(w->loader, epoch, first);
    shoal_batch b;
    for (int64_t at = first; err == SHOAL_OK && at < last && at < batches && !sh_worker_stopped(w); at++) {
        double loss = 0;
        err = sh_worker_has_trial(w) ? sh_worker_test(w) : SHOAL_OK;
        if (err == SHOAL_OK) {
            err = shoal_loader_next(w->loader, &b);
        }
        if (err == SHOAL_OK) {
            err = step(w, &b, change, &loss);
        }
        if (err == SHOAL_OK) {
            sh_worker_tell(w, sh_position(epoch / w->passes, b.index + 1), b.count, loss);
        }
    }
    return err;
}

shoal_err sh_worker_train(sh_worker *w, int64_t epoch, int64_t first, int64_t last)
{
    return run_batches(w, epoch, first, last, true);
}

shoal_err sh_worker_gradient(sh_worker *w, int64_t epoch, int64_t batch)
{
    return run_batches(w, epoch, batch, batch + 1, false);
}
