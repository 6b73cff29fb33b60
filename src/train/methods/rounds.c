/* The job's side of the methods with rounds. */
#include "train/methods/rounds.h"
#include "train/job/crew.h"
#include "train/methods/gradients.h"
#include "train/model/clone.h"
#include "train/model/reduce.h"

#include "base/error.h"

#include <shoal/share.h>

#include <stdio.h>
#include <stdlib.h>

#define NO_ROUND SH_NO_TASK

typedef struct place {
    shoal_module *model;
    /* Two maps of momentum: a round reads one and writes the other, in turn. NULL: none is kept. */
    shoal_value *state;
    bool answered; /* this round */
} place;

typedef struct rounds {
    place *places;
    /* Number of finished rounds. The job's parameters are their result, so this is the position of a checkpoint. */
    int64_t next;
    int64_t round; /* in progress */
    int waiting;   /* number of missing answers */
    shoal_module **models;
    sh_gradients *gradients; /* NULL: parameters are averaged */
    sh_rounds_plan plan;
    sh_rounds_reduce reduce; /* NULL: the parameters become the mean of the workers' parameters */
    void *own;               /* the method's own state */
} rounds;

/* ---- opening and closing ---- */

static shoal_err open_state(sh_job *job, place *p)
{
    const sh_engine_type *engine = sh_engine_of(job->o.device);
    const sh_engine_settings *settings = &job->settings.engine;
    p->state = shoal_list(engine->new_state(settings, p->model), engine->new_state(settings, p->model));
    return p->state ? SHOAL_OK : shoal_last_error();
}

static shoal_err open_place(sh_job *job, rounds *r, int rank)
{
    place *p = &r->places[rank];
    p->model = r->models[rank] = sh_clone_module(job->model);
    return !p->model ? shoal_last_error() : r->plan.kind == SH_ROUNDS_KEEP ? open_state(job, p) : SHOAL_OK;
}

int64_t sh_rounds_batches(const sh_job *job)
{
    int64_t most = 1, length = shoal_dataset_length(job->train_set);
    for (int i = 0; i < job->o.workers; i++) {
        int64_t batches = sh_shard_batches(&job->settings, length, i);
        most = batches > most ? batches : most;
    }
    return most;
}

void *sh_rounds_own(const sh_job *job)
{
    return job->own != NULL ? ((rounds *)job->own)->own : NULL;
}

shoal_err sh_rounds_open(sh_job *job, int64_t steps, sh_rounds_kind kind)
{
    return sh_rounds_open_with(job, steps, kind, NULL, NULL);
}

static sh_rounds_plan plan_of(int64_t batches, int64_t steps, sh_rounds_kind kind)
{
    return (sh_rounds_plan){.steps = steps, .rounds = (batches + steps - 1) / steps, .kind = kind};
}

shoal_err sh_rounds_open_with(sh_job *job, int64_t steps, sh_rounds_kind kind, void *own, sh_rounds_reduce reduce)
{
    size_t n = (size_t)job->o.workers;
    rounds *r = job->own = calloc(1, sizeof *r);
    int64_t batches = sh_rounds_batches(job);
    steps = steps > 0 && steps < batches ? steps : batches;
    if (r != NULL) {
        r->plan = plan_of(batches, steps, kind);
        r->reduce = reduce;
        r->own = own;
        r->round = NO_ROUND;
        r->places = calloc(n, sizeof *r->places);
        r->models = calloc(n, sizeof *r->models);
    }
    if (r == NULL || r->places == NULL || r->models == NULL) {
        return sh_fail(SHOAL_ENOMEM, "no memory for %zu workers", n);
    }
    for (int i = 0; i < job->o.workers; i++) {
        SH_TRY(open_place(job, r, i));
    }
    return kind == SH_ROUNDS_GRADIENTS ? sh_gradients_open(job, &r->gradients) : SHOAL_OK;
}

void sh_rounds_close(sh_job *job)
{
    rounds *r = job->own;
    for (int i = 0; r != NULL && r->places != NULL && i < job->o.workers; i++) {
        shoal_value_destroy(r->places[i].state);
        shoal_module_destroy(r->places[i].model);
    }
    if (r != NULL) {
        sh_gradients_close(r->gradients);
        free(r->places);
        free(r->models);
        free(r);
    }
}

/* ---- workers ---- */

shoal_module *sh_rounds_model(sh_job *job, int rank)
{
    return ((rounds *)job->own)->places[rank].model;
}

shoal_value *sh_rounds_arguments(sh_job *job, int rank)
{
    rounds *r = job->own;
    const place *p = &r->places[rank];
    return shoal_map("plan", shoal_value_bytes(&r->plan, sizeof r->plan), "state",
                     p->state ? shoal_value_copy(p->state) : shoal_value_null(), "gradients",
                     r->gradients ? shoal_value_module(sh_gradients_of(r->gradients, rank)) : shoal_value_null());
}

/* If the process before has answered, its results count: a second run of the round would change them, and the momentum
 * that the next round begins with. */
int64_t sh_rounds_task(sh_job *job, int rank)
{
    const rounds *r = job->own;
    return r->places[rank].answered ? SH_NO_TASK : r->round;
}

void sh_rounds_hear(sh_job *job, int64_t number)
{
    rounds *r = job->own;
    place *p = &r->places[number % SHOAL_TRAIN_WORKERS];
    if (number / SHOAL_TRAIN_WORKERS == r->round && !p->answered) {
        p->answered = true;
        r->waiting--;
    }
}

/* ---- rounds ---- */

static shoal_err reduce(sh_job *job, int64_t round)
{
    const rounds *r = job->own;
    if (r->reduce != NULL) {
        return r->reduce(job, round);
    }
    return r->gradients ? sh_gradients_step(r->gradients, job, round, r->plan.rounds)
                        : sh_reducer_mean(&sh_reducer_here, job->model, r->models, job->o.workers);
}

/* Runs a round, unless the job stops in it. */
static shoal_err run_round(sh_job *job, int64_t round)
{
    rounds *r = job->own;
    r->round = round;
    r->waiting = job->o.workers;
    for (int i = 0; i < job->o.workers; i++) {
        r->places[i].answered = false;
    }
    for (int i = 0; i < job->o.workers; i++) {
        SH_TRY(sh_crew_send(job, i, round));
    }
    while (r->waiting > 0 && !job->result.stopped) {
        SH_TRY(sh_crew_wait(job));
    }
    if (r->waiting == 0) {
        SH_TRY(reduce(job, round));
        r->next = round + 1;
    }
    return SHOAL_OK;
}

shoal_err sh_rounds_run(sh_job *job)
{
    rounds *r = job->own;
    int64_t all = job->o.epochs * r->plan.rounds;
    while (r->next < all && !sh_job_over(job)) {
        SH_TRY(run_round(job, r->next));
        int64_t finished = r->next / r->plan.rounds;
        if (finished > job->result.epochs) {
            SH_TRY(sh_job_epoch(job, finished, true));
        }
    }
    return SHOAL_OK;
}

/* ---- checkpoints ---- */

/* Nothing changes the initial state of a round during the round, so a stop in the middle leaves the state of the round
 * before. */
static shoal_err pass_momentum(const rounds *r, sh_checkpoint *c, int rank)
{
    char name[32];
    snprintf(name, sizeof name, "momentum/%d", rank);
    return sh_checkpoint_map(c, name, shoal_value_at(r->places[rank].state, (size_t)(r->next % 2)));
}

/* Passes the position. With one worker, the rounds of a file from another device may have another length: the job keeps
 * it if an epoch has begun, and else uses its own. */
static shoal_err pass_round(sh_job *job, sh_checkpoint *c)
{
    rounds *r = job->own;
    int64_t steps = r->plan.steps, batches = sh_rounds_batches(job);
    if (job->method->alone) {
        SH_TRY(sh_checkpoint_whole(c, "batches_in_round", 1, batches, &steps));
    } else {
        SH_TRY(sh_checkpoint_setting_whole(c, "batches_in_round", steps));
    }
    SH_TRY(sh_checkpoint_whole(c, "round", 0, INT64_MAX, &r->next));
    if (steps == r->plan.steps) {
        return SHOAL_OK;
    }
    sh_rounds_plan there = plan_of(batches, steps, r->plan.kind);
    if (r->next % there.rounds == 0 && r->next / there.rounds < INT64_MAX / r->plan.rounds) {
        r->next = r->next / there.rounds * r->plan.rounds;
    } else {
        r->plan = there;
    }
    return SHOAL_OK;
}

shoal_err sh_rounds_checkpoint(sh_job *job, sh_checkpoint *c)
{
    rounds *r = job->own;
    const sh_rounds_plan *s = &r->plan;
    SH_TRY(pass_round(job, c));
    SH_TRY(sh_checkpoint_check_epochs(job, c, r->next / s->rounds + (r->next % s->rounds > 0)));
    for (int i = 0; i < job->o.workers && s->kind == SH_ROUNDS_KEEP; i++) {
        SH_TRY(pass_momentum(r, c, i));
    }
    if (r->gradients != NULL) {
        SH_TRY(sh_gradients_checkpoint(r->gradients, c));
    }
    if (!c->writing) {
        job->result.epochs = r->next / s->rounds;
        for (int i = 0; i < job->o.workers; i++) {
            sh_job_place(job, i, job->result.epochs, r->next % s->rounds * s->steps);
        }
    }
    return SHOAL_OK;
}
