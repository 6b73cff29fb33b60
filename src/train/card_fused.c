/* The plan for mnist-cnn on images of bytes: two launches a step. They count and draw by themselves, so several steps are
 * captured together; the rest of a run is launched step by step. */
#include "train/card_inside.h"

#include "base/error.h"
#include "data/dataset.h"

#include <stdlib.h>
#include <string.h>

#define TOGETHER 25

typedef struct fused {
    sh_small_cnn_step step;
    shoal_tensor *scratch;
    bool captures, ran;     /* ran: a step has run as it is, so the kernels are loaded */
    shoal_capture *capture; /* of TOGETHER steps of whole batches; NULL: none yet */
} fused;

static bool fits(const sh_worker *w)
{
    sh_byte_images images;
    return w->card->device->kernels()->small_cnn != NULL && w->card->count == SH_SMALL_CNN_TENSORS &&
           strcmp(shoal_module_type_name(w->model), "mnist-cnn") == 0 && sh_dataset_bytes(w->set, &images);
}

static shoal_err open(sh_worker *w)
{
    sh_card *card = w->card;
    fused *f = card->own = calloc(1, sizeof *f);
    if (f == NULL) {
        return sh_fail(SHOAL_ENOMEM, "no memory for the steps on the GPU");
    }
    int64_t size = (int64_t)card->device->kernels()->small_cnn->scratch_size(w->settings.batch);
    f->captures = sh_card_captures();
    f->scratch = sh_card_make(card, SHOAL_U8, SHOAL_SHAPE(size));
    f->step = (sh_small_cnn_step){.pixels = sh_tensor_ptr(card->samples),
                                  .labels = sh_tensor_ptr(card->labels),
                                  .order = sh_tensor_ptr(card->order),
                                  .scale = card->scale,
                                  .shift = card->shift,
                                  .state = &sh_card_progress_of(card)->at,
                                  .seed = &sh_card_progress_of(card)->seed,
                                  .loss = &sh_card_progress_of(card)->loss,
                                  .momentum_factor = (float)w->settings.momentum,
                                  .training = true};
    for (size_t i = 0; i < card->count; i++) {
        f->step.param[i] = sh_card_at(card, card->params, i);
        f->step.momentum[i] = card->momentum ? sh_card_at(card, card->momentum, i) : NULL;
    }
    return f->scratch ? SHOAL_OK : shoal_last_error();
}

static void close(sh_card *card)
{
    fused *f = card->own;
    if (f != NULL) {
        shoal_capture_destroy(f->capture);
        shoal_tensor_release(f->scratch);
        free(f);
    }
}

/* The captured steps have their learning rate in them. */
static shoal_err begin(sh_worker *w, double lr, uint64_t seed, bool change)
{
    (void)seed; /* in the card's progress */
    fused *f = w->card->own;
    if (f->step.lr != (float)lr || (f->step.grad[0] == NULL) != change) {
        shoal_capture_destroy(f->capture);
        f->capture = NULL;
    }
    f->step.lr = (float)lr;
    for (size_t i = 0; i < w->card->count; i++) {
        f->step.grad[i] = change ? NULL : sh_card_at(w->card, w->card->grads, i);
    }
    return SHOAL_OK;
}

static shoal_err launch(const sh_card *card, int64_t samples, int64_t count)
{
    fused *f = card->own;
    shoal_err err = SHOAL_OK;
    f->step.batch = samples;
    for (int64_t i = 0; i < count && err == SHOAL_OK; i++) {
        err = card->device->kernels()->small_cnn->step(card->exec, &f->step, sh_tensor_ptr(f->scratch));
    }
    f->ran = true;
    return err;
}

static shoal_err capture(const sh_card *card, int64_t samples)
{
    fused *f = card->own;
    shoal_err err = shoal_capture_begin(&f->capture);
    if (err != SHOAL_OK) {
        return err;
    }
    err = launch(card, samples, TOGETHER);
    shoal_err ended = shoal_capture_end(f->capture);
    err = err == SHOAL_OK ? ended : err;
    if (err != SHOAL_OK) {
        shoal_capture_destroy(f->capture);
        f->capture = NULL;
    }
    return err;
}

static shoal_err steps(sh_worker *w, int64_t samples, int64_t count)
{
    const sh_card *card = w->card;
    fused *f = card->own;
    shoal_err err = SHOAL_OK;
    while (f->captures && f->ran && samples == w->loader->batch && count >= TOGETHER && err == SHOAL_OK) {
        err = f->capture ? SHOAL_OK : capture(card, samples);
        err = err == SHOAL_OK ? shoal_capture_replay(f->capture) : err;
        count -= TOGETHER;
    }
    return err == SHOAL_OK ? launch(card, samples, count) : err;
}

const sh_card_plan sh_card_fused =
    {.name = "fused", .fits = fits, .open = open, .close = close, .begin = begin, .steps = steps};
