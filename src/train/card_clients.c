/* A worker's clients of a round of fedavg, side by side: each has its own parameters, momentum and order, and a step is one
 * set of launches for all. The orders of several passes go to the card in one copy; what one pass needs is moved into
 * place there, so nothing waits for the host between passes. */
#include "train/card_cnn.h"

#include "base/clock.h"
#include "base/error.h"

#include <stdlib.h>
#include <string.h>

/* Images in one step, about: more do not make it faster. Clients, because each has its parameters in memory. */
#define IMAGES_AT_ONCE 500
#define CLIENTS_AT_ONCE 50

#define ORDERS_SIZE ((int64_t)4 << 20) /* bytes of orders in one copy, about */

typedef struct sh_card_clients {
    int room;
    int64_t length; /* of a client's order */
    int64_t passes; /* whose orders fit into one copy */
    sh_card_cnn cnn;
    shoal_tensor *params, *momentum; /* f32 [room, all parameters]; momentum: NULL without */
    shoal_tensor *order;             /* i64 [room, length], of the pass that runs */
    shoal_tensor *orders;            /* i64 [passes, room, length] */
    int64_t *host;                   /* pinned: the same */
    shoal_tensor *at;                /* i64 [1], that of card->progress */
    int64_t *counts;                 /* [room] */
} sh_card_clients;

/* ---- opening and closing ---- */

/* Returns how many clients to train side by side: so many that the last group of a round is not much smaller. */
static int room_for(int64_t wanted, int64_t batch)
{
    int64_t most = batch < IMAGES_AT_ONCE ? IMAGES_AT_ONCE / batch : 1;
    most = most < CLIENTS_AT_ONCE ? most : CLIENTS_AT_ONCE;
    int64_t groups = (wanted + most - 1) / most;
    return (int)((wanted + groups - 1) / groups);
}

static shoal_tensor *view_of_at(const sh_card *card)
{
    sh_shape s;
    return sh_shape_init(&s, SHOAL_I64, SHOAL_SHAPE(1)) == SHOAL_OK ? sh_tensor_over(card->progress->storage, &s)
                                                                    : NULL;
}

static shoal_err make_tensors(const sh_card *card, sh_card_clients *c)
{
    int64_t all = card->offsets[card->count];
    c->params = sh_card_make(card, SHOAL_F32, SHOAL_SHAPE(c->room, all));
    c->momentum = c->params && card->momentum ? sh_card_make(card, SHOAL_F32, SHOAL_SHAPE(c->room, all)) : NULL;
    if (c->params == NULL || (card->momentum && c->momentum == NULL)) {
        return shoal_last_error();
    }
    c->order = sh_card_make(card, SHOAL_I64, SHOAL_SHAPE(c->room, c->length));
    c->orders = c->order ? sh_card_make(card, SHOAL_I64, SHOAL_SHAPE(c->passes, c->room, c->length)) : NULL;
    c->at = c->orders ? view_of_at(card) : NULL;
    c->host = c->at ? card->device->alloc_pinned((size_t)c->orders->count * sizeof *c->host) : NULL;
    return c->host ? SHOAL_OK : shoal_last_error();
}

shoal_err sh_card_clients_open(sh_worker *w, int64_t wanted, int64_t samples, int *out_room)
{
    sh_card *card = w->card;
    *out_room = 0;
    if (card->plan != &sh_card_cnn_plan || wanted < 1 || samples < 1) {
        return SHOAL_OK;
    }
    sh_card_clients *c = card->clients = calloc(1, sizeof *c);
    if (c == NULL) {
        return sh_fail(SHOAL_ENOMEM, "no memory for clients on the GPU");
    }
    c->room = room_for(wanted, w->settings.batch);
    c->length = samples;
    int64_t each = c->room * samples * (int64_t)sizeof(int64_t), fit = each < ORDERS_SIZE ? ORDERS_SIZE / each : 1;
    c->passes = fit < w->passes ? fit : w->passes;
    c->counts = calloc((size_t)c->room, sizeof *c->counts);
    shoal_err err = c->counts ? make_tensors(card, c) : sh_fail(SHOAL_ENOMEM, "no memory for %d clients", c->room);
    if (err == SHOAL_OK) {
        err = sh_card_cnn_open(&c->cnn, w, c->room, c->params, c->momentum, c->order, c->length);
    }
    *out_room = err == SHOAL_OK ? c->room : 0;
    return err;
}

void sh_card_clients_close(sh_card_clients *c)
{
    if (c == NULL) {
        return;
    }
    sh_card_cnn_close(&c->cnn);
    if (c->host != NULL) {
        c->orders->storage->device->free_pinned(c->host, (size_t)c->orders->count * sizeof *c->host);
    }
    shoal_tensor *all[] = {c->params, c->momentum, c->order, c->orders, c->at};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        shoal_tensor_release(all[i]);
    }
    free(c->counts);
    free(c);
}

/* ---- a round ---- */

/* Arranges the orders of passes first to first + count - 1 of the round, and sends them. */
static shoal_err send_orders(sh_worker *w, int64_t round, int64_t first, int64_t count, const sh_card_client *clients)
{
    sh_card_clients *c = w->card->clients;
    shoal_err err = SHOAL_OK;
    for (int i = 0; i < c->room && err == SHOAL_OK; i++) {
        if (c->counts[i] == 0) {
            continue;
        }
        w->stream = clients[i].number;
        err = sh_worker_load(w, clients[i].samples, clients[i].count);
        for (int64_t pass = 0; pass < count && err == SHOAL_OK; pass++) {
            const int64_t *order = sh_loader_order(w->loader, round * w->passes + first + pass);
            memcpy(c->host + (pass * c->room + i) * c->length, order, (size_t)clients[i].count * sizeof *order);
        }
    }
    return err == SHOAL_OK ? w->card->device->write_later(sh_tensor_ptr(c->orders), c->host,
                                                          (size_t)(count * c->room * c->length) * sizeof *c->host)
                           : err;
}

/* Enqueues what makes the card begin that pass of those it has the orders of. */
static shoal_err begin_pass(const sh_card_clients *c, int64_t pass)
{
    sh_shape s;
    shoal_err err = sh_shape_init(&s, SHOAL_I64, SHOAL_SHAPE(c->room, c->length));
    s.offset = pass * c->room * c->length;
    shoal_tensor *from = err == SHOAL_OK ? sh_tensor_over(c->orders->storage, &s) : NULL;
    err = from ? sh_tensor_copy_data(c->order, from) : shoal_last_error();
    shoal_tensor_release(from);
    return err == SHOAL_OK ? sh_tensor_fill(c->at, 0) : err;
}

/* Enqueues steps at to end - 1 of a run of passes of `each` steps. */
static shoal_err enqueue(const sh_card *card, int64_t each, int64_t at, int64_t end)
{
    sh_card_clients *c = card->clients;
    shoal_err err = SHOAL_OK;
    while (at < end && err == SHOAL_OK) {
        int64_t left = each - at % each, count = end - at < left ? end - at : left;
        err = at % each == 0 ? begin_pass(c, at / each) : SHOAL_OK;
        err = err == SHOAL_OK ? sh_card_cnn_steps(&c->cnn, card, count) : err;
        at += count;
    }
    return err;
}

/* Returns the number of images in these steps, of all clients. */
static int64_t images_of(const sh_card_clients *c, int64_t batch, int64_t each, int64_t at, int64_t end)
{
    int64_t images = 0;
    for (; at < end; at++) {
        for (int i = 0; i < c->room; i++) {
            int64_t left = c->counts[i] - at % each * batch;
            images += left <= 0 ? 0 : left < batch ? left : batch;
        }
    }
    return images;
}

/* Trains that many passes whose orders the card has, of `each` steps. */
static shoal_err run_passes(sh_worker *w, int64_t round, int64_t passes, int64_t each)
{
    sh_card *card = w->card;
    sh_card_progress p = {.at = 0};
    float before = 0;
    shoal_err err = card->device->write(sh_tensor_ptr(card->progress), &p, sizeof p);
    for (int64_t at = 0, end; at < passes * each && err == SHOAL_OK && !sh_worker_stopped(w); at = end) {
        int64_t begun = sh_now();
        end = at + card->ahead < passes * each ? at + card->ahead : passes * each;
        err = enqueue(card, each, at, end);
        if (err == SHOAL_OK) {
            err = card->device->read(&p, sh_tensor_ptr(card->progress), sizeof p); /* waits for the steps */
        }
        if (err == SHOAL_OK) {
            sh_worker_tell_many(w, sh_position(round, (end - 1) % each + 1),
                                images_of(card->clients, w->settings.batch, each, at, end),
                                (double)(p.loss - before) / (double)(end - at), end - at);
            before = p.loss;
            sh_card_ran_ahead(card, sh_now() - begun);
        }
    }
    return err;
}

/* Puts the clients at their beginning. Returns the steps of a pass of the one that has the most samples. */
static shoal_err begin_clients(sh_worker *w, int64_t round, const sh_card_client *clients, int count,
                               int64_t *out_steps)
{
    sh_card *card = w->card;
    sh_card_clients *c = card->clients;
    int64_t most = 0;
    for (int i = 0; i < c->room; i++) {
        c->counts[i] = i < count ? clients[i].count : 0;
        most = most < c->counts[i] ? c->counts[i] : most;
    }
    *out_steps = (most + w->settings.batch - 1) / w->settings.batch;
    shoal_err err = sh_card_cnn_count(&c->cnn, c->counts);
    err = err == SHOAL_OK ? sh_tensor_copy_data(c->params, card->common) : err;
    err = err == SHOAL_OK && c->momentum ? sh_tensor_fill(c->momentum, 0) : err;
    sh_card_cnn_begin(&c->cnn, card, sh_settings_lr(&w->settings, round), NULL);
    return err;
}

static shoal_err add_to_sums(sh_card *card, const sh_card_client *clients, int count)
{
    sh_card_clients *c = card->clients;
    shoal_err err = SHOAL_OK;
    for (int i = 0; i < count && err == SHOAL_OK; i++) {
        sh_shape s;
        err = sh_shape_init(&s, SHOAL_F32, SHOAL_SHAPE(card->offsets[card->count]));
        s.offset = i * card->offsets[card->count];
        shoal_tensor *params = err == SHOAL_OK ? sh_tensor_over(c->params->storage, &s) : NULL;
        err = params ? sh_card_sums_add_from(card, params, (double)clients[i].count) : shoal_last_error();
        shoal_tensor_release(params);
    }
    return err;
}

shoal_err sh_card_clients_train(sh_worker *w, int64_t round, const sh_card_client *clients, int count)
{
    sh_card_clients *c = w->card->clients;
    int64_t steps = 0;
    sh_worker_note_begin(w);
    shoal_err err = begin_clients(w, round, clients, count, &steps);
    for (int64_t pass = 0; pass < w->passes && err == SHOAL_OK && !sh_worker_stopped(w); pass += c->passes) {
        int64_t passes = w->passes - pass < c->passes ? w->passes - pass : c->passes;
        err = send_orders(w, round, pass, passes, clients);
        err = err == SHOAL_OK ? run_passes(w, round, passes, steps) : err;
    }
    return err == SHOAL_OK && !sh_worker_stopped(w) ? add_to_sums(w->card, clients, count) : err;
}
