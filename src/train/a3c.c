/* The job's side of A3C: options, what is shared, and the mean return that ends it. Nobody waits for anybody, as in Hogwild. */
#include "train/a3c.h"
#include "train/job.h"
#include "train/state.h"

#include "base/error.h"

#include <shoal/env.h>
#include <shoal/share.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MODEL "actor-critic"
#define EPOCH 10000 /* steps */
#define EPISODES 100
#define ROLLOUT_MOST INT64_C(100000)
#define STEPS_MOST INT64_C(1000000000000)

typedef struct a3c {
    shoal_value *state; /* of RMSprop */
    shoal_queue *returns;
    shoal_block *count_block;
    sh_a3c_shm *count;
    double last[EPISODES]; /* returns; episode i stands at i % EPISODES */
    bool reached;          /* the mean return that was wanted */
} a3c;

/* ---- options ---- */

static double or_usual(double given, double usual)
{
    return given == 0 ? usual : given < 0 ? 0 : given;
}

static void defaults(shoal_train_options *o)
{
    o->model = o->model != NULL ? o->model : MODEL;
    o->lr = o->lr != 0 ? o->lr : 0.002;
    o->env = o->env != NULL ? o->env : "cartpole";
    o->env_steps = o->env_steps != 0 ? o->env_steps : 2000000;
    o->rollout = o->rollout != 0 ? o->rollout : 20;
    o->gamma = or_usual(o->gamma, 0.99);
    o->entropy = or_usual(o->entropy, 0.01);
    const shoal_env_type *type = shoal_env_find(o->env);
    double solved = type != NULL && type->solved != 0 ? type->solved : INFINITY;
    o->until = o->until == 0 ? solved : o->until < 0 ? INFINITY : o->until;
}

static shoal_err check(const shoal_train_options *o)
{
    if (shoal_env_find(o->env) == NULL) {
        return shoal_last_error();
    }
    if (o->module == NULL && strcmp(o->model, MODEL) != 0) {
        return sh_fail(SHOAL_ENOENT, "no model '%s' for a3c; there is " MODEL, o->model);
    }
    if (o->rollout < 1 || o->rollout > ROLLOUT_MOST) {
        return sh_fail(SHOAL_EINVAL, "%lld steps in a rollout; 1 to %lld are possible", (long long)o->rollout,
                       (long long)ROLLOUT_MOST);
    }
    if (o->env_steps < 1 || o->env_steps > STEPS_MOST) {
        return sh_fail(SHOAL_EINVAL, "%lld steps of environments; 1 to %lld are possible", (long long)o->env_steps,
                       (long long)STEPS_MOST);
    }
    if (!(o->gamma <= 1)) {
        return sh_fail(SHOAL_EINVAL, "a gamma of %g; it must be at most 1", o->gamma);
    }
    if (!isfinite(o->entropy)) {
        return sh_fail(SHOAL_EINVAL, "an entropy weight of %g; a number is wanted", o->entropy);
    }
    return isnan(o->until) ? sh_fail(SHOAL_EINVAL, "until a mean return of %g; a number is wanted", o->until)
                           : SHOAL_OK;
}

static shoal_module *make_model(const shoal_train_options *o)
{
    const shoal_env_type *type = shoal_env_find(o->env);
    return type != NULL ? shoal_actor_critic_create(type->observation, type->actions, 0) : NULL;
}

/* ---- opening and closing ---- */

static shoal_err open_state(sh_job *job, a3c *a)
{
    shoal_optimizer *rmsprop = shoal_rmsprop_create(job->model, .lr = job->o.lr);
    shoal_err err = rmsprop ? shoal_optimizer_prepare(rmsprop) : shoal_last_error();
    if (err == SHOAL_OK) {
        a->state = sh_state_zeros(rmsprop);
        err = a->state ? SHOAL_OK : shoal_last_error();
    }
    shoal_optimizer_destroy(rmsprop);
    return err;
}

static shoal_err open(sh_job *job)
{
    a3c *a = calloc(1, sizeof *a);
    job->own = a;
    job->images_total = job->o.env_steps;
    shoal_err err = a ? open_state(job, a) : sh_fail(SHOAL_ENOMEM, "no memory for a job");
    if (err == SHOAL_OK) {
        err = shoal_queue_create(0, &a->returns);
    }
    if (err == SHOAL_OK) {
        err = shoal_block_create_zeroed(sizeof *a->count, &a->count_block);
    }
    if (err == SHOAL_OK) {
        a->count = shoal_block_data(a->count_block);
    }
    return err;
}

static void close(sh_job *job)
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
    const sh_a3c_settings settings = {
        .rollout = job->o.rollout, .env_steps = job->o.env_steps, .gamma = job->o.gamma, .entropy = job->o.entropy};
    return shoal_map("env", job->o.env, "settings", shoal_value_bytes(&settings, sizeof settings), "count",
                     a->count_block, "returns", a->returns, "state", shoal_value_copy(a->state));
}

/* ---- running ---- */

/* An episode is finished: the mean of the last, which the job waits for. */
static void count_episode(sh_job *job, double episode)
{
    a3c *a = job->own;
    shoal_train_result *r = &job->result;
    a->last[r->episodes++ % EPISODES] = episode;
    int64_t n = r->episodes < EPISODES ? r->episodes : EPISODES;
    double sum = 0;
    for (int64_t i = 0; i < n; i++) {
        sum += a->last[i];
    }
    r->reward = sum / (double)n;
    a->reached = n == EPISODES && r->reward >= job->o.until;
}

/* In the order in which they were finished, up to the one that makes the mean; twenty times a second, not at each one: while
 * episodes are short there are thousands a second, and the actors need the cores. */
static shoal_err gather(sh_job *job)
{
    a3c *a = job->own;
    double episode;
    size_t size;
    shoal_err err = SHOAL_OK;
    while (!a->reached &&
           (err = shoal_queue_get_bytes(a->returns, &episode, sizeof episode, SHOAL_NOW, &size)) == SHOAL_OK) {
        count_episode(job, episode);
    }
    return err == SHOAL_ETIMEDOUT ? SHOAL_OK : err;
}

static shoal_err run(sh_job *job)
{
    a3c *a = job->own;
    shoal_err err = SHOAL_OK;
    while (err == SHOAL_OK && !sh_crew_done(job) && !job->result.stopped && !a->reached) {
        err = sh_crew_wait(job);
        if (err == SHOAL_OK) {
            err = gather(job);
        }
        int64_t steps = (int64_t)sh_load_relaxed(&a->count->steps);
        bool goes_on = steps < job->o.env_steps && !a->reached && !job->result.stopped;
        if (err == SHOAL_OK && goes_on && steps / EPOCH > job->result.epochs) {
            err = sh_job_epoch(job, steps / EPOCH, false);
        }
    }
    if (err == SHOAL_OK) { /* what the last ones sent before they returned */
        err = gather(job);
    }
    int64_t steps = (int64_t)sh_load_relaxed(&a->count->steps);
    return err == SHOAL_OK && !job->result.stopped ? sh_job_epoch(job, steps / EPOCH, false) : err;
}

const sh_method sh_method_a3c = {
    .name = "a3c",
    .target = sh_a3c_act,
    .no_data = true,
    .defaults = defaults,
    .check = check,
    .make_model = make_model,
    .open = open,
    .close = close,
    .arguments = arguments,
    .run = run,
};
