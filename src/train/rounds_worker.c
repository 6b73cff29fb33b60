/* A worker's side of the methods with rounds. */
#include "train/card.h"
#include "train/gradients.h"
#include "train/rounds.h"
#include "train/state.h"

#include "base/error.h"

#include <shoal/ops.h>
#include <shoal/share.h>

#include <string.h>

typedef struct rounds_worker {
    sh_worker base; /* first, so that a pointer to it is a pointer to the whole */
    sh_rounds_plan plan;
    shoal_module *gradients;  /* owned by the arguments, like the next; NULL if parameters are averaged */
    const shoal_value *state; /* a list of two maps */
} rounds_worker;

/* Copies the momentum that the round before wrote into the map that this round writes.
 * death: the map that was read is unchanged. */
static shoal_err carry_state(rounds_worker *w, int64_t round)
{
    const shoal_value *from = shoal_value_at(w->state, (size_t)(round % 2));
    const shoal_value *to = shoal_value_at(w->state, (size_t)((round + 1) % 2));
    shoal_err err = SHOAL_OK;
    for (size_t i = 0; i < shoal_value_count(to) && err == SHOAL_OK; i++) {
        shoal_tensor *t = shoal_value_as_tensor(shoal_value_at(to, i));
        const shoal_value *old = shoal_value_find(from, shoal_value_key_at(to, i));
        err = shoal_copy_(t, shoal_value_as_tensor(old)) ? SHOAL_OK : shoal_last_error();
    }
    return err == SHOAL_OK ? sh_state_adopt(w->base.sgd, to) : err;
}

/* Begins a round from the job's parameters, and the momentum that belongs to it. */
static shoal_err begin_round(rounds_worker *w, int64_t round)
{
    sh_worker *base = &w->base;
    shoal_err err = sh_worker_take(base);
    if (err != SHOAL_OK || w->gradients != NULL) {
        return err;
    }
    if (w->plan.kind != SH_ROUNDS_KEEP) {
        return sh_worker_renew(base);
    }
    return base->card ? sh_card_take_momentum(base->card, shoal_value_at(w->state, (size_t)(round % 2)))
                      : carry_state(w, round);
}

/* Leaves the results of a round where the job and the next round find them. */
static shoal_err end_round(rounds_worker *w, int64_t round)
{
    sh_worker *base = &w->base;
    if (w->gradients != NULL) {
        return base->card ? sh_card_give_gradient(base->card, w->gradients)
                          : sh_gradients_leave(w->gradients, base->model);
    }
    shoal_err err = sh_worker_give(base);
    return err == SHOAL_OK && base->card && w->plan.kind == SH_ROUNDS_KEEP
               ? sh_card_give_momentum(base->card, shoal_value_at(w->state, (size_t)((round + 1) % 2)))
               : err;
}

static shoal_err train_round(sh_worker *base, int64_t round)
{
    rounds_worker *w = (rounds_worker *)base;
    const sh_rounds_plan *s = &w->plan;
    int64_t epoch = round / s->rounds, first = round % s->rounds * s->steps;
    size_t mark = shoal_scope_mark();
    shoal_err err = begin_round(w, round);
    shoal_scope_release(mark);
    if (err == SHOAL_OK) {
        err = w->gradients != NULL ? sh_worker_gradient(base, epoch, first)
                                   : sh_worker_train(base, epoch, first, first + s->steps);
    }
    return err == SHOAL_OK ? end_round(w, round) : err;
}

shoal_err sh_rounds_serve(sh_worker *w, shoal_err (*train)(sh_worker *w, int64_t round))
{
    int64_t round;
    shoal_err err;
    w->model_is_apart = true;
    while ((err = sh_worker_next(w, &round)) == SHOAL_OK) {
        err = train(w, round);
        if (err == SHOAL_OK && !sh_worker_stopped(w)) {
            err = sh_worker_ring(w, sh_answer(round, w->rank));
        }
        if (err != SHOAL_OK) {
            return err;
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
