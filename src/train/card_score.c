/* Tests of fedavg-cnn on images of bytes, by the forward half of its steps (kernels/fedavg_cnn.h). Op by op, a test took an
 * eighth of a round of fedavg. */
#include "train/card_cnn.h"

#include "base/error.h"
#include "data/dataset.h"

#include <stdlib.h>

typedef struct sh_card_tests {
    shoal_tensor *pixels, *labels, *scratch;
    shoal_tensor *order;  /* i64 [samples]: 0, 1, 2 ... */
    shoal_tensor *counts; /* i64 [batches] samples in each */
    shoal_tensor *at;     /* i64 [1]: 0 */
    shoal_tensor *scores; /* f64 [batches, 2] */
    double *host;         /* the same */
} sh_card_tests;

void sh_card_tests_close(sh_card_tests *t)
{
    if (t == NULL) {
        return;
    }
    shoal_tensor *all[] = {t->pixels, t->labels, t->scratch, t->order, t->counts, t->at, t->scores};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        shoal_tensor_release(all[i]);
    }
    free(t->host);
    free(t);
}

/* Makes a tensor on the card with the numbers that `number` gives. */
static shoal_tensor *numbers(const sh_card *card, int64_t count, int64_t length, int64_t (*number)(int64_t, int64_t))
{
    shoal_tensor *t = sh_card_make(card, SHOAL_I64, SHOAL_SHAPE(count));
    int64_t *host = t ? malloc((size_t)count * sizeof *host) : NULL;
    for (int64_t i = 0; host != NULL && i < count; i++) {
        host[i] = number(i, length);
    }
    shoal_err err = host ? card->device->write(sh_tensor_ptr(t), host, (size_t)count * sizeof *host)
                         : (t ? sh_fail(SHOAL_ENOMEM, "no memory for the tests on the GPU") : SHOAL_ENOMEM);
    free(host);
    if (err != SHOAL_OK) {
        shoal_tensor_release(t);
        t = NULL;
    }
    return t;
}

static int64_t own_number(int64_t i, int64_t length)
{
    (void)length;
    return i;
}

static int64_t count_of_batch(int64_t batch, int64_t length)
{
    int64_t left = length - batch * SH_EVALUATE_BATCH;
    return left < SH_EVALUATE_BATCH ? left : SH_EVALUATE_BATCH;
}

static shoal_err open_tests(const sh_worker *w, const sh_byte_images *images)
{
    sh_card *card = w->card;
    int64_t length = shoal_dataset_length(w->test_set), batches = sh_evaluate_batches(w->test_set);
    int64_t size = (int64_t)card->device->kernels()->fedavg_cnn->scratch_size(SH_EVALUATE_BATCH, 1);
    sh_card_tests *t = calloc(1, sizeof *t);
    if (t == NULL || (t->host = calloc((size_t)batches, 2 * sizeof *t->host)) == NULL) {
        sh_card_tests_close(t);
        return sh_fail(SHOAL_ENOMEM, "no memory for the tests on the GPU");
    }
    t->pixels = sh_card_upload(card, images->pixels);
    t->labels = t->pixels ? sh_card_upload(card, images->labels) : NULL;
    t->scratch = t->labels ? sh_card_make(card, SHOAL_U8, SHOAL_SHAPE(size)) : NULL;
    t->order = t->scratch ? numbers(card, length, length, own_number) : NULL;
    t->counts = t->order ? numbers(card, batches, length, count_of_batch) : NULL;
    t->at = t->counts ? numbers(card, 1, length, own_number) : NULL;
    t->scores = t->at ? sh_card_make(card, SHOAL_F64, SHOAL_SHAPE(batches, 2)) : NULL;
    if (t->scores == NULL) {
        sh_cleanup_begin();
        sh_card_tests_close(t);
        sh_cleanup_end();
        return shoal_last_error();
    }
    card->tests = t;
    return SHOAL_OK;
}

/* Enqueues the test of a batch. */
static shoal_err start(const sh_worker *w, const sh_byte_images *images, int64_t batch)
{
    const sh_card *card = w->card;
    const sh_card_tests *t = card->tests;
    sh_fedavg_cnn_step step = {.stride = card->offsets[card->count],
                               .clients = 1,
                               .pixels = sh_tensor_ptr(t->pixels),
                               .labels = sh_tensor_ptr(t->labels),
                               .order = (const int64_t *)sh_tensor_ptr(t->order) + batch * SH_EVALUATE_BATCH,
                               .counts = (const int64_t *)sh_tensor_ptr(t->counts) + batch,
                               .scale = images->scale,
                               .shift = images->shift,
                               .batch = SH_EVALUATE_BATCH,
                               .state = sh_tensor_ptr(t->at),
                               .loss = &sh_card_progress_of(card)->loss,
                               .tf32 = w->settings.tf32,
                               .score = (double *)sh_tensor_ptr(t->scores) + 2 * batch};
    for (size_t i = 0; i < card->count; i++) {
        step.param[i] = sh_card_at(card, card->params, i);
    }
    return card->device->kernels()->fedavg_cnn->step(card->exec, &step, sh_tensor_ptr(t->scratch));
}

shoal_err sh_card_score(sh_worker *w, sh_score *out_scores, bool *out_done)
{
    sh_card *card = w->card;
    sh_byte_images images;
    *out_done = card->plan == &sh_card_cnn_plan && sh_dataset_bytes(w->test_set, &images);
    if (!*out_done) {
        return SHOAL_OK;
    }
    int64_t batches = sh_evaluate_batches(w->test_set);
    shoal_err err = card->tests ? SHOAL_OK : open_tests(w, &images);
    for (int64_t i = w->rank; i < batches && err == SHOAL_OK; i += w->settings.workers) {
        err = start(w, &images, i);
    }
    if (err == SHOAL_OK) { /* waits for all of them */
        err = card->device->read(card->tests->host, sh_tensor_ptr(card->tests->scores),
                                 (size_t)batches * 2 * sizeof(double));
    }
    for (int64_t i = w->rank; i < batches && err == SHOAL_OK; i += w->settings.workers) {
        out_scores[i] = (sh_score){.loss = card->tests->host[2 * i], .right = card->tests->host[2 * i + 1]};
    }
    return err;
}
