#include "train/card_cnn.h"

#include "base/error.h"
#include "data/dataset.h"

#include <stdlib.h>
#include <string.h>

#define TOGETHER 10

bool sh_card_cnn_fits(const sh_worker *w)
{
    sh_byte_images images;
    return w->card->device->kernels()->fedavg_cnn != NULL && w->card->count == SH_FEDAVG_CNN_TENSORS &&
           strcmp(shoal_module_type_name(w->model), "fedavg-cnn") == 0 && sh_dataset_bytes(w->set, &images);
}

shoal_err sh_card_cnn_open(sh_card_cnn *s, const sh_worker *w, int clients, const shoal_tensor *params,
                           const shoal_tensor *momentum, const shoal_tensor *order, int64_t order_stride)
{
    sh_card *card = w->card;
    int64_t size = (int64_t)card->device->kernels()->fedavg_cnn->scratch_size(w->settings.batch, clients);
    s->captures = sh_card_captures();
    s->scratch = sh_card_make(card, SHOAL_U8, SHOAL_SHAPE(size));
    s->counts = s->scratch ? sh_card_make(card, SHOAL_I64, SHOAL_SHAPE(clients)) : NULL;
    if (s->counts == NULL) {
        return shoal_last_error();
    }
    s->step = (sh_fedavg_cnn_step){.stride = card->offsets[card->count],
                                   .clients = clients,
                                   .pixels = sh_tensor_ptr(card->samples),
                                   .labels = sh_tensor_ptr(card->labels),
                                   .order = sh_tensor_ptr(order),
                                   .order_stride = order_stride,
                                   .counts = sh_tensor_ptr(s->counts),
                                   .scale = card->scale,
                                   .shift = card->shift,
                                   .batch = w->settings.batch,
                                   .state = &sh_card_progress_of(card)->at,
                                   .loss = &sh_card_progress_of(card)->loss,
                                   .momentum_factor = (float)w->settings.momentum,
                                   .tf32 = w->settings.tf32};
    for (size_t i = 0; i < card->count; i++) {
        s->step.param[i] = sh_card_at(card, params, i);
        s->step.momentum[i] = momentum ? sh_card_at(card, momentum, i) : NULL;
    }
    card->ahead = 2 * TOGETHER; /* and from there twice or half as many: whole captures for long */
    return SHOAL_OK;
}

static void forget(sh_card_cnn *s)
{
    shoal_capture_destroy(s->capture);
    s->capture = NULL;
}

void sh_card_cnn_close(sh_card_cnn *s)
{
    forget(s);
    shoal_tensor_release(s->scratch);
    shoal_tensor_release(s->counts);
    *s = (sh_card_cnn){.captures = false};
}

shoal_err sh_card_cnn_count(sh_card_cnn *s, const int64_t *counts)
{
    const sh_device *device = s->counts->storage->device;
    return device->write(sh_tensor_ptr(s->counts), counts, (size_t)s->counts->count * sizeof *counts);
}

void sh_card_cnn_begin(sh_card_cnn *s, const sh_card *card, double lr, const shoal_tensor *grads)
{
    if (s->step.lr != (float)lr || (s->step.grad[0] == NULL) != (grads == NULL)) {
        forget(s);
    }
    s->step.lr = (float)lr;
    for (size_t i = 0; i < card->count; i++) {
        s->step.grad[i] = grads ? sh_card_at(card, grads, i) : NULL;
    }
}

static shoal_err launch(sh_card_cnn *s, const sh_card *card, int64_t count)
{
    shoal_err err = SHOAL_OK;
    for (int64_t i = 0; i < count && err == SHOAL_OK; i++) {
        err = card->device->kernels()->fedavg_cnn->step(card->exec, &s->step, sh_tensor_ptr(s->scratch));
        s->ran = true;
    }
    return err;
}

static shoal_err capture(sh_card_cnn *s, const sh_card *card)
{
    shoal_err err = shoal_capture_begin(&s->capture);
    if (err != SHOAL_OK) {
        return err;
    }
    err = launch(s, card, TOGETHER);
    shoal_err ended = shoal_capture_end(s->capture);
    err = err == SHOAL_OK ? ended : err;
    if (err != SHOAL_OK) {
        forget(s);
    }
    return err;
}

shoal_err sh_card_cnn_steps(sh_card_cnn *s, const sh_card *card, int64_t count)
{
    shoal_err err = SHOAL_OK;
    while (s->captures && s->ran && count >= TOGETHER && err == SHOAL_OK) {
        err = s->capture ? SHOAL_OK : capture(s, card);
        err = err == SHOAL_OK ? shoal_capture_replay(s->capture) : err;
        count -= TOGETHER;
    }
    return err == SHOAL_OK ? launch(s, card, count) : err;
}

/* ---- the plan for one client ---- */

typedef struct one_client {
    sh_card_cnn cnn;
    int64_t count; /* of samples, as the card has it */
} one_client;

static shoal_err open(sh_worker *w)
{
    sh_card *card = w->card;
    one_client *o = card->own = calloc(1, sizeof *o);
    if (o == NULL) {
        return sh_fail(SHOAL_ENOMEM, "no memory for the steps on the GPU");
    }
    o->count = -1;
    return sh_card_cnn_open(&o->cnn, w, 1, card->params, card->momentum, card->order, 0);
}

static void close(sh_card *card)
{
    one_client *o = card->own;
    if (o != NULL) {
        sh_card_cnn_close(&o->cnn);
        free(o);
    }
}

static shoal_err begin(sh_worker *w, double lr, uint64_t seed, bool change)
{
    (void)seed; /* this model draws nothing */
    one_client *o = w->card->own;
    sh_card_cnn_begin(&o->cnn, w->card, lr, change ? NULL : w->card->grads);
    if (o->count == w->loader->count) {
        return SHOAL_OK;
    }
    o->count = w->loader->count;
    return sh_card_cnn_count(&o->cnn, &o->count);
}

/* A smaller batch needs nothing: the step knows the number of samples. */
static shoal_err steps(sh_worker *w, int64_t samples, int64_t count)
{
    (void)samples;
    one_client *o = w->card->own;
    return sh_card_cnn_steps(&o->cnn, w->card, count);
}

const sh_card_plan sh_card_cnn_plan =
    {.name = "cnn", .fits = sh_card_cnn_fits, .open = open, .close = close, .begin = begin, .steps = steps};
