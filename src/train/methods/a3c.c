/* The job's side of A3C: options, the shared state, and the mean return that ends it. As in Hogwild, actors never wait
 * for each other. There is no engine: an actor chooses between steps of its environment what it computes, on the
 * CPU. */
#include "train/methods/a3c.h"
#include "train/job/crew.h"
#include "train/model/state.h"

#include "base/error.h"

#include <shoal/env.h>
#include <shoal/share.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MODEL "actor-critic"
#define EPISODES 100
#define ROLLOUT_MOST INT64_C(100000)
#define STEPS INT64_C(2000000)
#define STEPS_MOST INT64_C(10000000000) /* a million epochs */
#define NEVER (-1.0)

typedef struct a3c {
    shoal_value *state; /* of RMSprop */
    shoal_queue *returns;
    shoal_block *count_block;
    sh_a3c_shm *count;
    double last[EPISODES]; /* returns; that of episode i is at i % EPISODES */
} a3c;

/* ---- options ---- */

/* Returns the number of epochs, rounded up, at least one: check reports an invalid number of steps. */
static int64_t epochs_of(int64_t steps)
{
    return steps >= 1 && steps <= STEPS_MOST ? (steps + SH_A3C_EPOCH - 1) / SH_A3C_EPOCH : 1;
}

static void defaults(shoal_train_options *o)
{
    o->model = o->model != NULL ? o->model : MODEL;
    o->lr = o->lr != 0 ? o->lr : 0.002;
    o->a3c.env = o->a3c.env != NULL ? o->a3c.env : "cartpole";
    o->a3c.rollout = o->a3c.rollout != 0 ? o->a3c.rollout : 20;
    o->a3c.gamma = o->a3c.gamma != 0 ? o->a3c.gamma : 0.99;
    o->a3c.entropy = o->a3c.entropy != 0 ? o->a3c.entropy : 0.01;
    if (o->a3c.env_steps == 0) {
        o->a3c.env_steps = o->epochs > 0 && o->epochs <= STEPS_MOST / SH_A3C_EPOCH ? o->epochs * SH_A3C_EPOCH : STEPS;
    }
    o->epochs = epochs_of(o->a3c.env_steps);
    const shoal_env_type *type = shoal_env_find(o->a3c.env);
    if (o->until == 0) {
        o->until = type != NULL && type->solved != 0 ? type->solved : NEVER;
    }
}

static shoal_err check(const shoal_train_options *o)
{
    if (o->device != SHOAL_CPU) {
        return sh_fail(SHOAL_EINVAL,
                       "a3c trains on the CPU: an actor's steps, one sample each, are too small for a GPU");
    }
    if (shoal_env_find(o->a3c.env) == NULL) {
        return shoal_last_error();
    }
    if (o->module == NULL && strcmp(o->model, MODEL) != 0) {
        return sh_fail(SHOAL_ENOENT, "unknown model '%s' for a3c; the model is " MODEL, o->model);
    }
    if (o->a3c.rollout < 1 || o->a3c.rollout > ROLLOUT_MOST) {
        return sh_fail(SHOAL_EINVAL, "%lld steps in a rollout; the range is 1 to %lld", (long long)o->a3c.rollout,
                       (long long)ROLLOUT_MOST);
    }
    if (o->a3c.env_steps < 1 || o->a3c.env_steps > STEPS_MOST) {
        return sh_fail(SHOAL_EINVAL, "%lld steps of environments; the range is 1 to %lld", (long long)o->a3c.env_steps,
                       (long long)STEPS_MOST);
    }
    if (!(o->a3c.gamma <= 1)) {
        return sh_fail(SHOAL_EINVAL, "gamma is %g; it must be at most 1", o->a3c.gamma);
    }
    if (!isfinite(o->a3c.entropy)) {
        return sh_fail(SHOAL_EINVAL, "the entropy weight is %g; it must be a number", o->a3c.entropy);
    }
    return isnan(o->until) ? sh_fail(SHOAL_EINVAL, "training until a mean return of %g; it must be a number", o->until)
                           : SHOAL_OK;
}

static shoal_module *make_model(const shoal_train_options *o)
{
    const shoal_env_type *type = shoal_env_find(o->a3c.env);
    return type != NULL ? shoal_actor_critic_create(type->observation, type->actions, 0) : NULL;
}

/* ---- opening and closing ---- */

static shoal_err open_state(sh_job *job, a3c *a)
{
    shoal_optimizer *rmsprop = shoal_rmsprop_create(job->model, .lr = job->o.lr);
    a->state = sh_state_zeros(rmsprop);
    shoal_optimizer_destroy(rmsprop);
    return a->state ? SHOAL_OK : shoal_last_error();
}

static shoal_err a3c_open(sh_job *job)
{
    a3c *a = calloc(1, sizeof *a);
    job->own = a;
    job->images_total = job->o.a3c.env_steps;
    if (a == NULL) {
        return sh_fail(SHOAL_ENOMEM, "no memory for an a3c job");
    }
    SH_TRY(open_state(job, a));
    SH_TRY(shoal_queue_create(0, &a->returns));
    SH_TRY(shoal_block_create_zeroed(sizeof *a->count, &a->count_block));
    a->count = shoal_block_data(a->count_block);
    return SHOAL_OK;
}

static void a3c_close(sh_job *job)
{
    a3c *a = job->own;
    if (a != NULL) {
        shoal_value_destroy(a->state);
        shoal_release(a->returns);
        shoal_release(a->count_block);
        free(a);
    }
}

static shoal_value *arguments(sh_job *job, int rank)
{
    (void)rank;
    const a3c *a = job->own;
    const sh_a3c_settings settings = {.rollout = job->o.a3c.rollout,
                                      .env_steps = job->o.a3c.env_steps,
                                      .gamma = fmax(job->o.a3c.gamma, 0),
                                      .entropy = fmax(job->o.a3c.entropy, 0)};
    return shoal_map("env", job->o.a3c.env, "settings", shoal_value_bytes(&settings, sizeof settings), "count",
                     a->count_block, "returns", a->returns, "bell", job->answers, "state", shoal_value_copy(a->state));
}

/* ---- running ---- */

/* Computes the mean return of the last episodes, which may end the job. */
static void count_mean(sh_job *job)
{
    a3c *a = job->own;
    int64_t n = job->result.episodes < EPISODES ? job->result.episodes : EPISODES;
    double sum = 0;
    for (int64_t i = 0; i < n; i++) {
        sum += a->last[i];
    }
    job->result.reward = n > 0 ? sum / (double)n : NAN;
    job->enough = n == EPISODES && job->o.until >= 0 && job->result.reward >= job->o.until;
}

/* Receives returns in the order in which episodes finished, up to the one that reaches the wanted mean. It does so when
 * the bell rings and twenty times a second, not for each episode: short episodes come by the thousand each second, and
 * the actors need the cores. */
static shoal_err gather(sh_job *job)
{
    a3c *a = job->own;
    double episode;
    size_t size;
    shoal_err err = SHOAL_OK;
    while (!job->enough &&
           (err = shoal_queue_get_bytes(a->returns, &episode, sizeof episode, SHOAL_NOW, &size)) == SHOAL_OK) {
        a->last[job->result.episodes++ % EPISODES] = episode;
        count_mean(job);
    }
    return err == SHOAL_ETIMEDOUT ? SHOAL_OK : err;
}

/* Returns the number of finished epochs. The last one ends with the job, by the limit of steps or by the mean return,
 * so it may be shorter. Actors may take a few steps beyond the limit, which belong to no epoch. */
static int64_t finished(const sh_job *job)
{
    const a3c *a = job->own;
    int64_t steps = (int64_t)sh_load_relaxed(&a->count->steps);
    int64_t epochs = job->enough ? epochs_of(steps) : steps / SH_A3C_EPOCH;
    return steps < job->o.a3c.env_steps && epochs < job->o.epochs ? epochs : job->o.epochs;
}

static shoal_err run(sh_job *job)
{
    while (!sh_crew_done(job) && !sh_job_over(job)) {
        SH_TRY(sh_crew_wait(job));
        SH_TRY(gather(job));
        int64_t epochs = finished(job);
        if (epochs > job->result.epochs && epochs < job->o.epochs && !sh_job_over(job)) {
            SH_TRY(sh_job_epoch(job, epochs, false)); /* while the actors train */
        }
    }
    sh_store_relaxed(&job->board->stop, 1); /* the actors end while the last epoch is reported */
    SH_TRY(gather(job));                    /* receives what actors sent that ended by themselves */
    if (job->result.stopped) {
        return SHOAL_OK;
    }
    if (finished(job) > job->result.epochs) {
        SH_TRY(sh_job_epoch(job, finished(job), false));
    }
    job->result.reached_epoch = job->enough ? job->result.epochs : 0;
    return SHOAL_OK;
}

/* ---- checkpoints ---- */

static shoal_err pass_settings(sh_job *job, sh_checkpoint *c)
{
    SH_TRY(sh_checkpoint_setting(c, "env", job->o.a3c.env));
    SH_TRY(sh_checkpoint_setting_whole(c, "rollout", job->o.a3c.rollout));
    SH_TRY(sh_checkpoint_setting_number(c, "gamma", job->o.a3c.gamma));
    SH_TRY(sh_checkpoint_setting_number(c, "entropy", job->o.a3c.entropy));
    return sh_checkpoint_note_whole(c, "env_steps", job->o.a3c.env_steps);
}

/* Takes the number of steps of each actor, which also selects the random numbers that it continues with. */
static shoal_err take_steps(sh_job *job, const sh_checkpoint *c, const int64_t *steps)
{
    a3c *a = job->own;
    int64_t sum = 0;
    for (int i = 0; i < job->o.workers; i++) {
        if (steps[i] < 0 || steps[i] > STEPS_MOST || (sum += steps[i]) > 2 * STEPS_MOST) {
            return sh_fail(SHOAL_ECORRUPT, "%s: the checkpoint is broken: actor %d has taken %lld steps", c->path, i,
                           (long long)steps[i]);
        }
        sh_racy_store(&job->board->workers[i].images, (uint64_t)steps[i]);
    }
    sh_store_relaxed(&a->count->steps, (uint64_t)sum);
    job->images_before = sum;
    if (sum < job->o.a3c.env_steps && job->result.epochs >= job->o.epochs) {
        job->result.epochs = job->o.epochs - 1; /* the last epoch had ended with the job, which continues now */
    }
    return SHOAL_OK;
}

static shoal_err pass_steps(sh_job *job, sh_checkpoint *c)
{
    shoal_tensor *steps = shoal_empty(SHOAL_I64, SHOAL_SHAPE(job->o.workers));
    int64_t *at = steps != NULL ? shoal_tensor_data(steps) : NULL;
    for (int i = 0; at != NULL && i < job->o.workers; i++) {
        at[i] = (int64_t)sh_racy_load(&job->board->workers[i].images);
    }
    shoal_err err = sh_checkpoint_tensor(c, "steps", steps);
    if (err == SHOAL_OK && !c->writing) {
        err = take_steps(job, c, at);
    }
    shoal_tensor_release(steps);
    return err;
}

static shoal_err pass_episodes(sh_job *job, sh_checkpoint *c)
{
    a3c *a = job->own;
    shoal_tensor *last = shoal_from_data(SHOAL_F64, a->last, SHOAL_SHAPE(EPISODES));
    shoal_err err = sh_checkpoint_whole(c, "episodes", 0, INT64_MAX / 2, &job->result.episodes);
    if (err == SHOAL_OK) {
        err = sh_checkpoint_tensor(c, "returns", last);
    }
    if (err == SHOAL_OK && !c->writing) {
        err = shoal_tensor_read(last, a->last, sizeof a->last);
        count_mean(job);
    }
    shoal_tensor_release(last);
    return err;
}

/* Passes everything except the unfinished episodes. The steps and the state are taken before the parameters, which keep
 * changing. */
static shoal_err checkpoint(sh_job *job, sh_checkpoint *c)
{
    const a3c *a = job->own;
    SH_TRY(pass_settings(job, c));
    SH_TRY(pass_episodes(job, c));
    SH_TRY(pass_steps(job, c));
    return sh_checkpoint_map(c, "rmsprop", a->state);
}

const sh_method sh_method_a3c = {
    .name = "a3c",
    .target = sh_a3c_act,
    .no_data = true,
    .defaults = defaults,
    .check = check,
    .make_model = make_model,
    .open = a3c_open,
    .close = a3c_close,
    .arguments = arguments,
    .run = run,
    .checkpoint = checkpoint,
};
