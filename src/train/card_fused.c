/* The plan for mnist-cnn on images of bytes: two launches a step. They count and draw by themselves, so nothing needs to
 * be captured. */
#include "train/card_inside.h"

#include "base/error.h"
#include "data/dataset.h"

#include <stdlib.h>
#include <string.h>

typedef struct fused {
    sh_small_cnn_step step;
    shoal_tensor *scratch;
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
        return sh_fail(SHOAL_ENOMEM, "no memory for the steps on the card");
    }
    int64_t size = (int64_t)card->device->kernels()->small_cnn->scratch_size(w->settings.batch);
    f->scratch = sh_card_make(card, SHOAL_U8, SHOAL_SHAPE(size));
    f->step = (sh_small_cnn_step){.pixels = sh_tensor_ptr(card->samples),
                                  .labels = sh_tensor_ptr(card->labels),
                                  .order = sh_tensor_ptr(card->order),
                                  .scale = card->scale,
                                  .shift = card->shift,
                                  .state = &sh_card_progress_of(card)->at,
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
        shoal_tensor_release(f->scratch);
        free(f);
    }
}

static shoal_err begin(sh_worker *w, double lr, uint64_t seed, bool change)
{
    fused *f = w->card->own;
    f->step.lr = (float)lr;
    f->step.key = (sh_random_key){.seed = seed};
    for (size_t i = 0; i < w->card->count; i++) {
        f->step.grad[i] = change ? NULL : sh_card_at(w->card, w->card->grads, i);
    }
    return SHOAL_OK;
}

static shoal_err step(sh_worker *w, int64_t samples)
{
    fused *f = w->card->own;
    f->step.batch = samples;
    return w->card->device->kernels()->small_cnn->step(w->card->exec, &f->step, sh_tensor_ptr(f->scratch));
}

const sh_card_plan sh_card_fused =
    {.name = "fused", .fits = fits, .open = open, .close = close, .begin = begin, .step = step};
