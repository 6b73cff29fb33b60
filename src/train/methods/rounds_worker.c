/* A worker's side of the methods with rounds. */
#include "train/methods/rounds.h"

#include "base/error.h"

#include <shoal/share.h>

#include <string.h>

typedef struct rounds_worker {
    sh_worker base; /* first, so that a pointer to it is a pointer to the whole */
    sh_rounds_plan plan;
    shoal_module *gradients;  /* owned by the arguments, like the next; NULL if parameters are averaged */
    const shoal_value *state; /* a list of two maps */
} rounds_worker;

/* Begins a round with the job's parameters, and the momentum that belongs to it. */
static shoal_err begin_round(rounds_worker *w, int64_t round)
{
    sh_engine *e = w->base.engine;
    SH_TRY(e->type->load(e, w->base.global));
    if (w->gradients != NULL) {
        return SHOAL_OK; /* the job has the momentum */
    }
    bool kept = w->plan.kind == SH_ROUNDS_KEEP;
    return e->type->load_state(e, kept ? shoal_value_at(w->state, (size_t)(round % 2)) : NULL);
}

/* Stores the results of a round where the job and the next round find them. death: the map that the round began with is
 * unchanged. */
static shoal_err end_round(rounds_worker *w, int64_t round)
{
    sh_engine *e = w->base.engine;
    if (w->gradients != NULL) {
        return e->type->store_gradient(e, w->gradients);
    }
    SH_TRY(e->type->store(e, w->base.model));
    return w->plan.kind == SH_ROUNDS_KEEP ? e->type->store_state(e, shoal_value_at(w->state, (size_t)((round + 1) % 2)))
                                          : SHOAL_OK;
}

/* Calls begin_round or end_round, and releases what it makes. */
static shoal_err in_scope(shoal_err (*call)(rounds_worker *w, int64_t round), rounds_worker *w, int64_t round)
{
    size_t mark = shoal_scope_mark();
    shoal_err err = call(w, round);
    shoal_scope_release(mark);
    return err;
}

static shoal_err train_round(sh_worker *base, int64_t round)
{
    rounds_worker *w = (rounds_worker *)base;
    const sh_rounds_plan *s = &w->plan;
    int64_t epoch = round / s->rounds, first = round % s->rounds * s->steps;
    SH_TRY(in_scope(begin_round, w, round));
    if (w->gradients != NULL) {
        SH_TRY(sh_worker_gradient(base, epoch, first));
    } else {
        SH_TRY(sh_worker_train(base, epoch, first, first + s->steps));
    }
    return in_scope(end_round, w, round);
}

shoal_err sh_rounds_serve(sh_worker *w, shoal_err (*train)(sh_worker *w, int64_t round))
{
    int64_t round;
    shoal_err err;
    w->model_is_apart = true;
    while ((err = sh_worker_next(w, &round)) == SHOAL_OK) {
        SH_TRY(train(w, round));
        if (!sh_worker_stopped(w)) {
            SH_TRY(sh_worker_ring(w, sh_answer(round, w->rank)));
        }
    }
    return err == SHOAL_ECLOSED ? SHOAL_OK : err;
}

static shoal_err open_own(rounds_worker *w, const shoal_value *own)
{
    w->state = shoal_value_find(own, "state");
    size_t size = 0;
    const void *plan = shoal_value_as_bytes(shoal_value_find(own, "plan"), &size);
    if (plan == NULL || size != sizeof w->plan) {
        return sh_fail(SHOAL_ELAYOUT, "the plan of rounds has %zu bytes instead of %zu", size, sizeof w->plan);
    }
    memcpy(&w->plan, plan, size);
    if (w->plan.kind == SH_ROUNDS_GRADIENTS) {
        w->gradients = shoal_arg_module(own, "gradients");
    }
    return w->state && (w->gradients || w->plan.kind != SH_ROUNDS_GRADIENTS) ? SHOAL_OK : shoal_last_error();
}

shoal_err sh_rounds_work(int rank, const shoal_value *args)
{
    rounds_worker w = {0};
    const shoal_value *own = shoal_value_find(args, "own");
    shoal_err err = sh_worker_open(&w.base, rank, args);
    if (err == SHOAL_OK) {
        err = open_own(&w, own);
    }
    if (err == SHOAL_OK) {
        err = sh_rounds_serve(&w.base, train_round);
    }
    sh_worker_close(&w.base);
    return err;
}
