/* The actor's side of A3C: it copies the shared parameters, acts, and applies its gradient to the shared parameters. */
#include "train/job/worker.h"
#include "train/methods/a3c.h"
#include "train/model/clone.h"
#include "train/model/state.h"

#include "base/error.h"
#include "base/random.h"

#include <shoal/autograd.h>
#include <shoal/env.h>
#include <shoal/share.h>

#include <stdlib.h>
#include <string.h>

/* The largest norm of a rollout's gradient. It is far above what occurs while all goes well: the rollouts with the
 * largest gradients are those in which something went wrong, and clipping only these would make the actors learn less
 * from them. */
#define CLIP 40.0
#define ALPHA 0.99
#define EPS 1e-5

/* A parameter, and the actor's copy of it. */
typedef struct pair {
    shoal_tensor *shared, *own;
} pair;

typedef struct actor {
    sh_worker w;
    sh_a3c_settings settings;
    sh_a3c_shm *count;
    shoal_queue *returns, *bell;
    uint64_t random;

    shoal_env *env;
    bool under_way;      /* an episode */
    double episode;      /* its return so far */
    int64_t observation; /* numbers in one */
    int64_t actions;     /* how many there are */
    double unit;         /* the factor of rewards */

    shoal_module *local;
    shoal_optimizer *rmsprop; /* for the shared parameters, with the shared state */
    pair *pairs;
    size_t pair_count;

    /* A rollout: [rollout + 1, observation], the last row is what came after it; and the gradient [rollout + 1, actions
     * + 1]. */
    shoal_tensor *seen, *gradient;
    int64_t *chosen;
    double *rewards, *wanted;
} actor;

/* ---- opening and closing ---- */

static shoal_err open_arguments(actor *a, const shoal_value *own)
{
    size_t size = 0;
    const void *settings = shoal_value_as_bytes(shoal_value_find(own, "settings"), &size);
    shoal_block *count = shoal_arg_block(own, "count");
    a->returns = shoal_arg_queue(own, "returns");
    a->bell = shoal_arg_queue(own, "bell");
    if (settings == NULL || count == NULL || a->returns == NULL || a->bell == NULL) {
        return shoal_last_error();
    }
    if (size != sizeof a->settings) {
        return sh_fail(SHOAL_ELAYOUT, "the settings have %zu bytes instead of %zu", size, sizeof a->settings);
    }
    memcpy(&a->settings, settings, size);
    a->unit = a->settings.gamma < 1 ? 1 - a->settings.gamma : 1;
    a->count = shoal_block_data(count);
    return SHOAL_OK;
}

/* A restarted actor gets other random numbers than the one that died. */
static shoal_err open_env(actor *a, const char *name)
{
    uint64_t done = sh_racy_load(&a->w.progress->images);
    a->random = sh_worker_seed(&a->w, done, 1);
    a->env = name != NULL ? shoal_env_create(name, sh_worker_seed(&a->w, done, 2)) : NULL;
    if (a->env == NULL) {
        return shoal_last_error();
    }
    a->observation = shoal_env_type_of(a->env)->observation;
    a->actions = shoal_env_type_of(a->env)->actions;
    return SHOAL_OK;
}

static shoal_err open_model(actor *a, const shoal_value *state)
{
    a->local = sh_clone_module(a->w.model);
    a->rmsprop =
        a->local ? shoal_rmsprop_create(a->w.model, .lr = a->w.settings.engine.lr, .alpha = ALPHA, .eps = EPS) : NULL;
    if (a->rmsprop == NULL) {
        return shoal_last_error();
    }
    size_t most = 0;
    for (shoal_named it = {0}; shoal_module_next(a->local, &it) == SHOAL_OK;) {
        most++;
    }
    a->pairs = calloc(most + 1, sizeof *a->pairs);
    if (a->pairs == NULL) {
        return sh_fail(SHOAL_ENOMEM, "no memory for %zu parameters", most);
    }
    for (shoal_named it = {0}; shoal_module_next(a->local, &it) == SHOAL_OK;) {
        a->pairs[a->pair_count++] = (pair){.shared = shoal_module_get(a->w.model, it.name), .own = it.tensor};
    }
    return sh_state_adopt(a->rmsprop, state);
}

static shoal_err open_rollout(actor *a)
{
    int64_t n = a->settings.rollout;
    a->seen = shoal_zeros(SHOAL_F32, SHOAL_SHAPE(n + 1, a->observation));
    a->gradient = shoal_zeros(SHOAL_F32, SHOAL_SHAPE(n + 1, a->actions + 1));
    a->chosen = calloc((size_t)n, sizeof *a->chosen);
    a->rewards = calloc((size_t)n, sizeof *a->rewards);
    a->wanted = calloc((size_t)n, sizeof *a->wanted);
    if (a->seen == NULL || a->gradient == NULL) {
        return shoal_last_error();
    }
    return a->chosen != NULL && a->rewards != NULL && a->wanted != NULL
               ? SHOAL_OK
               : sh_fail(SHOAL_ENOMEM, "no memory for a rollout of %lld steps", (long long)n);
}

static shoal_err actor_open(actor *a, int rank, const shoal_value *args)
{
    const shoal_value *own = shoal_value_find(args, "own");
    *a = (actor){0};
    SH_TRY(sh_worker_attach(&a->w, rank, args));
    SH_TRY(open_arguments(a, own));
    SH_TRY(open_env(a, shoal_arg_string(own, "env")));
    SH_TRY(open_model(a, shoal_value_find(own, "state")));
    return open_rollout(a);
}

static void actor_close(actor *a)
{
    free(a->chosen);
    free(a->rewards);
    free(a->wanted);
    free(a->pairs);
    shoal_tensor_release(a->seen);
    shoal_tensor_release(a->gradient);
    shoal_optimizer_destroy(a->rmsprop);
    shoal_module_destroy(a->local);
    shoal_env_destroy(a->env);
    sh_worker_close(&a->w);
}

/* ---- acting ---- */

static float *row(const actor *a, int64_t t)
{
    return (float *)shoal_tensor_data(a->seen) + t * a->observation;
}

/* Copies the shared parameters into the local model. Others change them meanwhile, as in Hogwild. */
static shoal_err copy_parameters(actor *a)
{
    shoal_no_grad_begin();
    bool good = true;
    for (size_t i = 0; i < a->pair_count && good; i++) {
        good = shoal_copy_(a->pairs[i].own, a->pairs[i].shared) != NULL;
    }
    shoal_no_grad_end();
    return good ? SHOAL_OK : shoal_last_error();
}

/* Runs the local model on n rows. Returns a contiguous [n, actions + 1]. */
static shoal_tensor *forward(const actor *a, int64_t first, int64_t n)
{
    shoal_tensor *y = shoal_contiguous(shoal_module_forward(a->local, shoal_narrow(a->seen, 0, first, n)));
    if (y != NULL && (shoal_tensor_dtype(y) != SHOAL_F32 || shoal_tensor_ndim(y) != 2 || shoal_tensor_size(y, 0) != n ||
                      shoal_tensor_size(y, 1) != a->actions + 1)) {
        (void)sh_fail(
            SHOAL_EINVAL,
            "the model returns %lld numbers for %lld observations; it must return f32 [%lld, %lld]: logits and value",
            (long long)shoal_tensor_count(y), (long long)n, (long long)n, (long long)a->actions + 1);
        return NULL;
    }
    return y;
}

static shoal_err choose(actor *a, int64_t t)
{
    shoal_no_grad_begin();
    shoal_tensor *output = forward(a, t, 1);
    shoal_no_grad_end();
    if (output == NULL) {
        return shoal_last_error();
    }
    double u = (double)(sh_splitmix_next(&a->random) >> 11) * 0x1p-53;
    a->chosen[t] = sh_a3c_choose(a->actions, shoal_tensor_data(output), u);
    return SHOAL_OK;
}

static shoal_err begin_episode(actor *a)
{
    a->under_way = true;
    a->episode = 0;
    return shoal_env_reset(a->env, row(a, 0));
}

/* Takes steps until the rollout is full or the episode ends. If the episode was truncated, not terminated, the state
 * that follows has a value: row n is then as in a full rollout. */
static shoal_err roll_out(actor *a, int64_t *out_n, bool *out_terminated)
{
    shoal_env_outcome outcome = {0};
    int64_t t = 0;
    shoal_err err = a->under_way ? SHOAL_OK : begin_episode(a);
    while (err == SHOAL_OK && t < a->settings.rollout && a->under_way) {
        err = choose(a, t);
        if (err == SHOAL_OK) {
            err = shoal_env_step(a->env, a->chosen[t], row(a, t + 1), &outcome);
        }
        a->rewards[t++] = outcome.reward * a->unit;
        a->episode += outcome.reward;
        a->under_way = !outcome.terminated && !outcome.truncated;
    }
    *out_n = t;
    *out_terminated = outcome.terminated;
    return err;
}

/* ---- learning ---- */

/* Applies the gradient of the local model to the shared parameters. */
static shoal_err change_parameters(actor *a)
{
    double done = (double)sh_load_relaxed(&a->count->steps) / (double)a->settings.env_steps;
    SH_TRY(shoal_clip_grad_norm(a->local, CLIP, NULL));
    shoal_optimizer_set_lr(a->rmsprop, a->w.settings.engine.lr * (done < 1 ? 1 - done : 0));
    for (size_t i = 0; i < a->pair_count; i++) {
        SH_TRY(shoal_tensor_set_grad(a->pairs[i].shared, shoal_tensor_grad(a->pairs[i].own)));
    }
    SH_TRY(shoal_optimizer_step(a->rmsprop));
    for (size_t i = 0; i < a->pair_count; i++) { /* otherwise zeroing the local gradient would write zeros */
        SH_TRY(shoal_tensor_set_grad(a->pairs[i].shared, NULL));
    }
    return SHOAL_OK;
}

static shoal_err learn(actor *a, int64_t n, bool terminated, double *out_loss)
{
    shoal_tensor *output = forward(a, 0, n + 1);
    if (output == NULL) {
        return shoal_last_error();
    }
    const float *data = shoal_tensor_data(output);
    float *gradient = shoal_tensor_data(a->gradient);
    int64_t width = a->actions + 1;
    sh_a3c_returns(n, a->rewards, terminated ? 0 : (double)data[n * width + a->actions], a->settings.gamma, a->wanted);
    *out_loss = sh_a3c_loss(n, a->actions, data, a->chosen, a->wanted, a->settings.entropy * a->unit, gradient);
    memset(gradient + n * width, 0, (size_t)width * sizeof *gradient); /* the row after the last is a constant */
    shoal_module_zero_grad(a->local);
    SH_TRY(shoal_backward_with(output, shoal_narrow(a->gradient, 0, 0, n + 1), false));
    return change_parameters(a);
}

static shoal_err count_steps(actor *a, uint64_t n)
{
    uint64_t before = sh_add_relaxed(&a->count->steps, n), epoch = (before + n) / SH_A3C_EPOCH;
    return before / SH_A3C_EPOCH < epoch ? shoal_queue_put_bytes(a->bell, &epoch, sizeof epoch, SHOAL_NOW) : SHOAL_OK;
}

static shoal_err act_and_learn(actor *a, int64_t *out_n, double *out_loss)
{
    bool terminated;
    SH_TRY(copy_parameters(a));
    SH_TRY(roll_out(a, out_n, &terminated));
    return learn(a, *out_n, terminated, out_loss);
}

static shoal_err one_rollout(actor *a)
{
    int64_t n = 0;
    double loss = 0;
    size_t mark = shoal_scope_mark();
    shoal_err err = act_and_learn(a, &n, &loss);
    shoal_scope_release(mark);
    SH_TRY(err);
    sh_worker_report(&a->w, 0, &(sh_engine_done){.steps = 1, .samples = n, .loss = loss / (double)n});
    err = count_steps(a, (uint64_t)n);
    if (a->under_way) {
        memcpy(row(a, 0), row(a, n), (size_t)a->observation * sizeof(float));
        return err;
    }
    SH_TRY(err);
    return shoal_queue_put_bytes(a->returns, &a->episode, sizeof a->episode, SHOAL_NOW);
}

shoal_err sh_a3c_act(int rank, const shoal_value *args)
{
    actor a;
    shoal_err err = actor_open(&a, rank, args);
    while (err == SHOAL_OK && !sh_worker_stopped(&a.w) &&
           (int64_t)sh_load_relaxed(&a.count->steps) < a.settings.env_steps) {
        err = one_rollout(&a);
    }
    actor_close(&a);
    return err;
}
