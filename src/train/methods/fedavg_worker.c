/* A worker's side of federated averaging: runs its clients of a round, one after another or several at the same time,
 * as its engine does. */
#include "train/methods/fedavg.h"
#include "train/model/flat_model.h"

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
    sh_engine_client *clients; /* at the same time; NULL: one after another */
    int room;                  /* of clients */
} fedavg_worker;

/* Returns the client that this worker trains at that turn of the round. */
static int64_t client_at(const fedavg_worker *w, int64_t turn)
{
    return w->drawn[w->base.rank + turn * w->parts->plan.workers];
}

static shoal_err run_client(fedavg_worker *w, int64_t round, int64_t client)
{
    sh_worker *base = &w->base;
    int64_t count;
    const int64_t *samples = sh_part(w->parts, client, &count);
    base->stream = client;
    SH_TRY(base->engine->type->begin_client(base->engine));
    SH_TRY(sh_worker_take_samples(base, samples, count));
    for (int64_t pass = 0; pass < base->passes && !sh_worker_stopped(base); pass++) {
        SH_TRY(sh_worker_train(base, round * base->passes + pass, 0, INT64_MAX));
    }
    return base->engine->type->end_client(base->engine, (double)count);
}

/* Trains the model as that client, from the common parameters. Its random numbers depend on the client and the round,
 * not on the worker. */
static shoal_err train_client(fedavg_worker *w, int64_t round, int64_t client)
{
    size_t mark = shoal_scope_mark();
    shoal_err err = run_client(w, round, client);
    shoal_scope_release(mark);
    return err;
}

/* Trains `count` clients from that turn on at the same time. */
static shoal_err train_group(fedavg_worker *w, int64_t round, int64_t turn, int count)
{
    sh_worker *base = &w->base;
    const sh_engine_type *type = base->engine->type;
    sh_engine_done done = {.steps = 0};
    for (int i = 0; i < count; i++) {
        int64_t client = client_at(w, turn + i);
        w->clients[i].samples = sh_part(w->parts, client, &w->clients[i].count);
        w->clients[i].order = sh_worker_order_seed(base->settings.seed, client);
    }
    sh_worker_begin_training(base);
    SH_TRY(type->begin_group(base->engine, &(sh_engine_group){.clients = w->clients,
                                                              .count = count,
                                                              .pass = round * base->passes,
                                                              .passes = base->passes,
                                                              .lr = sh_settings_lr(&base->settings, round)}));
    do {
        SH_TRY(type->run_group(base->engine, &done));
        if (done.steps > 0) {
            sh_worker_report(base, sh_position(round, done.batch), &done);
        }
    } while (done.steps > 0 && !sh_worker_stopped(base));
    return sh_worker_stopped(base) ? SHOAL_OK : type->end_group(base->engine);
}

/* Trains `count` clients from that turn on. If the job stops, not all of them. */
static shoal_err train_clients(fedavg_worker *w, int64_t round, int64_t turn, int64_t count)
{
    int64_t each = w->room > 0 ? w->room : 1;
    for (int64_t i = 0; i < count && !sh_worker_stopped(&w->base); i += each) {
        int64_t left = count - i;
        SH_TRY(w->room > 0 ? train_group(w, round, turn + i, (int)(left < each ? left : each))
                           : train_client(w, round, client_at(w, turn + i)));
    }
    return SHOAL_OK;
}

/* Adds `count` clients that were trained: writes the row that done does not name, and then names it (fedavg.h). */
static shoal_err add_clients(fedavg_worker *w, int64_t round, int64_t before, int64_t count)
{
    sh_engine *e = w->base.engine;
    double *rows[2] = {w->sums->rows, w->sums->rows + w->length};
    int64_t after = before + count;
    SH_DEATH("train.fedavg.trained"); /* death: done still says before; the clients are trained again */
    SH_TRY(e->type->store_sum(e, before > 0 ? rows[before % 2] : NULL, rows[after % 2]));
    SH_DEATH("train.fedavg.summed"); /* death: the same; the row is written again, from the same inputs */
    sh_store_release(&w->sums->done, sh_position(round, after));
    SH_DEATH(
        "train.fedavg.named"); /* death: the clients are done; the next one follows, or only the answer is missing */
    return SHOAL_OK;
}

/* Returns how many clients of this round are already in the sums: a dead process of this rank may have left some. */
static int64_t clients_done(const fedavg_worker *w, int64_t round)
{
    uint64_t done = sh_load_acquire(&w->sums->done);
    return done >> 32 == (uint64_t)round ? (int64_t)(done & UINT32_MAX) : 0;
}

static shoal_err train_round(sh_worker *base, int64_t round)
{
    fedavg_worker *w = (fedavg_worker *)base;
    const sh_fedavg_plan *s = &w->parts->plan;
    int64_t turns = sh_fedavg_turns(s, base->rank), turn = clients_done(w, round);
    sh_fedavg_draw(s, round, w->drawn);
    if (turn < turns) {
        SH_TRY(base->engine->type->begin_round(base->engine, base->global));
    }
    while (turn < turns && !sh_worker_stopped(base)) {
        int64_t most = base->engine->type->clients_in_sum, count = turns - turn < most ? turns - turn : most;
        SH_TRY(train_clients(w, round, turn, count));
        if (!sh_worker_stopped(base)) { /* else a client has not finished its training */
            SH_TRY(add_clients(w, round, turn, count));
        }
        turn += count;
    }
    return SHOAL_OK;
}

/* Asks the engine for room for all clients of a round, of any size. */
static shoal_err open_clients(fedavg_worker *w)
{
    const sh_parts_shm *parts = w->parts;
    sh_engine *e = w->base.engine;
    int64_t turns = sh_fedavg_turns(&parts->plan, w->base.rank), most = 0;
    for (int64_t i = 0, count; i < parts->plan.clients; i++) {
        sh_part(parts, i, &count);
        most = most < count ? count : most;
    }
    SH_TRY(e->type->open_group(e, turns, most, w->base.passes, &w->room));
    if (w->room > 0) {
        w->clients = malloc((size_t)w->room * sizeof *w->clients);
        return w->clients ? SHOAL_OK : sh_fail(SHOAL_ENOMEM, "no memory for %d clients", w->room);
    }
    return SHOAL_OK;
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
    if (w->drawn == NULL) {
        return sh_fail(SHOAL_ENOMEM, "no memory for %lld clients", (long long)w->parts->plan.clients);
    }
    SH_TRY(sh_flat_length(w->base.model, &w->length));
    return w->base.engine->type->open_group != NULL ? open_clients(w) : SHOAL_OK;
}

shoal_err sh_fedavg_work(int rank, const shoal_value *args)
{
    fedavg_worker w = {0};
    shoal_err err = sh_worker_open_without_samples(&w.base, rank, args);
    if (err == SHOAL_OK) {
        err = open_own(&w, shoal_value_find(args, "own"));
    }
    if (err == SHOAL_OK) {
        err = sh_rounds_serve(&w.base, train_round);
    }
    free(w.drawn);
    free(w.clients);
    sh_worker_close(&w.base);
    return err;
}
