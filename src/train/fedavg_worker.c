/* A worker's side of federated averaging: trains its clients of a round, one after another, or side by side on a card. */
#include "train/card.h"
#include "train/fedavg.h"
#include "train/flat_model.h"

#include "base/death.h"
#include "base/error.h"

#include <shoal/share.h>

#include <stdlib.h>

typedef struct fedavg_worker {
    sh_worker base; /* first, so that a pointer to it is a pointer to the whole */
    const sh_parts_shm *parts;
    sh_flat_shm *sums;
    int64_t length; /* of a row */
    int64_t *drawn;
    sh_card_client *clients; /* side by side; NULL: one after another */
    int room;                /* of clients */
} fedavg_worker;

/* Trains the model as that client, from the common parameters. Its random numbers depend on the client and the round,
 * not on the worker. */
static shoal_err train_client(fedavg_worker *w, int64_t round, int64_t client, int64_t *out_samples)
{
    sh_worker *base = &w->base;
    size_t mark = shoal_scope_mark();
    const int64_t *samples = sh_part(w->parts, client, out_samples);
    base->stream = client;
    shoal_err err = base->card ? sh_card_sums_client(base->card) : sh_worker_take(base);
    if (err == SHOAL_OK && !base->card) {
        err = sh_worker_renew(base);
    }
    if (err == SHOAL_OK) {
        err = sh_worker_load(base, samples, *out_samples);
    }
    for (int64_t pass = 0; err == SHOAL_OK && pass < base->passes && !sh_worker_stopped(base); pass++) {
        err = sh_worker_train(base, round * base->passes + pass, 0, INT64_MAX);
    }
    shoal_scope_release(mark);
    return err;
}

/* Writes the row that done does not name, and then names it (fedavg.h). */
static void add_client(fedavg_worker *w, int64_t round, int64_t before, int64_t samples)
{
    double *rows[2] = {w->sums->rows, w->sums->rows + w->length};
    SH_DEATH("train.fedavg.trained"); /* death: done still says before; the client is trained again */
    sh_flat_add(rows[(before + 1) % 2], before > 0 ? rows[before % 2] : NULL, w->base.model, (double)samples);
    SH_DEATH("train.fedavg.summed"); /* death: the same; the row is written again, from the same inputs */
    sh_store_release(&w->sums->done, sh_position(round, before + 1));
    SH_DEATH(
        "train.fedavg.named"); /* death: the client is done; the next client follows, or only the answer is missing */
}

/* Returns how many clients of this round are already in the sums: a dead process of this rank may have left some. */
static int64_t clients_done(const fedavg_worker *w, int64_t round)
{
    uint64_t done = sh_load_acquire(&w->sums->done);
    return done >> 32 == (uint64_t)round ? (int64_t)(done & UINT32_MAX) : 0;
}

/* Trains as many clients as the card trains at a time, from that turn on, and adds them to the card's sums. Returns how
 * many. */
static shoal_err train_on_card(fedavg_worker *w, int64_t round, int64_t turn, int64_t turns, int64_t *out_count)
{
    sh_worker *base = &w->base;
    const int64_t *drawn = w->drawn + base->rank;
    int64_t workers = w->parts->plan.workers, samples;
    *out_count = w->room > 0 && w->room < turns - turn ? w->room : w->room > 0 ? turns - turn : 1;
    if (w->room == 0) {
        shoal_err err = train_client(w, round, drawn[turn * workers], &samples);
        return err == SHOAL_OK ? sh_card_sums_add(base->card, (double)samples) : err;
    }
    for (int64_t i = 0; i < *out_count; i++) {
        sh_card_client *c = &w->clients[i];
        c->number = drawn[(turn + i) * workers];
        c->samples = sh_part(w->parts, c->number, &c->count);
    }
    return sh_card_clients_train(base, round, w->clients, (int)*out_count);
}

/* On a card the sums of a round stay there until its last client. death: the round's clients are trained again. */
static shoal_err train_round_on_card(fedavg_worker *w, int64_t round)
{
    sh_worker *base = &w->base;
    const sh_fedavg_plan *s = &w->parts->plan;
    int64_t turns = sh_fedavg_turns(s, base->rank);
    if (clients_done(w, round) == turns) {
        return SHOAL_OK; /* a dead process of this rank has done all but the answer */
    }
    shoal_err err = sh_card_sums_begin(base->card, base->global);
    for (int64_t turn = 0, count; turn < turns && err == SHOAL_OK && !sh_worker_stopped(base); turn += count) {
        err = train_on_card(w, round, turn, turns, &count);
    }
    if (err == SHOAL_OK && !sh_worker_stopped(base)) {
        err = sh_card_sums_give(base->card, base->model, w->sums->rows + turns % 2 * w->length);
        SH_DEATH("train.fedavg.given"); /* death: done still names an earlier round */
        if (err == SHOAL_OK) {
            sh_store_release(&w->sums->done, sh_position(round, turns));
        }
    }
    return err;
}

static shoal_err train_round(sh_worker *base, int64_t round)
{
    fedavg_worker *w = (fedavg_worker *)base;
    const sh_fedavg_plan *s = &w->parts->plan;
    int64_t turns = sh_fedavg_turns(s, base->rank);
    shoal_err err = SHOAL_OK;
    sh_fedavg_draw(s, round, w->drawn);
    if (base->card) {
        return train_round_on_card(w, round);
    }
    for (int64_t turn = clients_done(w, round); turn < turns && err == SHOAL_OK && !sh_worker_stopped(base); turn++) {
        int64_t samples;
        err = train_client(w, round, w->drawn[base->rank + turn * s->workers], &samples);
        if (err == SHOAL_OK && !sh_worker_stopped(base)) { /* else the client has not finished its training */
            add_client(w, round, turn, samples);
        }
    }
    return err;
}

/* Asks the card for room for all clients of a round, of any size. */
static shoal_err open_clients(fedavg_worker *w)
{
    const sh_parts_shm *parts = w->parts;
    int64_t turns = sh_fedavg_turns(&parts->plan, w->base.rank), most = 0;
    for (int64_t i = 0, count; i < parts->plan.clients; i++) {
        sh_part(parts, i, &count);
        most = most < count ? count : most;
    }
    shoal_err err = sh_card_clients_open(&w->base, turns, most, &w->room);
    if (err == SHOAL_OK && w->room > 0) {
        w->clients = malloc((size_t)w->room * sizeof *w->clients);
        err = w->clients ? SHOAL_OK : sh_fail(SHOAL_ENOMEM, "no memory for %d clients", w->room);
    }
    return err;
}

static shoal_err open_own(fedavg_worker *w, const shoal_value *own)
{
    shoal_block *parts = shoal_arg_block(own, "parts");
    shoal_block *sums = parts ? shoal_arg_block(own, "sums") : NULL;
    if (sums == NULL) {
        return shoal_last_error();
    }
    w->parts = shoal_block_data(parts);
    w->sums = shoal_block_data(sums);
    w->base.passes = w->parts->plan.local_epochs;
    w->drawn = malloc((size_t)w->parts->plan.clients * sizeof *w->drawn);
    return w->drawn ? sh_flat_length(w->base.model, &w->length)
                    : sh_fail(SHOAL_ENOMEM, "no memory for %lld clients", (long long)w->parts->plan.clients);
}

shoal_err sh_fedavg_work(int rank, const shoal_value *args)
{
    fedavg_worker w = {0};
    const shoal_value *own = shoal_value_find(args, "own");
    shoal_err err = sh_worker_open_without_loader(&w.base, rank, args);
    if (err == SHOAL_OK) {
        err = open_own(&w, own);
    }
    if (err == SHOAL_OK && w.base.card) {
        err = open_clients(&w);
    }
    if (err == SHOAL_OK) {
        err = sh_rounds_serve(&w.base, train_round);
    }
    free(w.drawn);
    free(w.clients);
    sh_worker_close(&w.base);
    return err;
}
