/* A3C on CartPole: the well-known algorithm in C. Each actor has an environment and a copy of the model. Every few
 * steps it applies the gradient of its copy to the parent's parameters, without a lock, through one RMSprop state that
 * all actors share. They also share the score, a running mean of the returns.
 *
 *     build/examples/a3c_cartpole [actors [steps of each]]
 */
#include <shoal/shoal.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define OBSERVATION 4
#define ACTIONS 2
#define HIDDEN 64
#define ROLLOUT 20
#define GAMMA 0.99
#define UNIT (1 - GAMMA) /* the scale of a reward, so that returns are of the order of 1 */
#define ENTROPY 0.01

typedef struct rollout {
    int64_t n;
    float seen[ROLLOUT + 1][OBSERVATION]; /* the last one follows the last action */
    int64_t chosen[ROLLOUT];
    shoal_env_outcome outcome; /* of the last step; a reward is always 1 */
} rollout;

/* Draws an action for an observation from the policy. */
static shoal_err choose(shoal_module *model, shoal_env *env, const float *seen, int64_t *out_action)
{
    double left = 0;
    size_t mark = shoal_scope_mark();
    shoal_no_grad_begin();
    shoal_tensor *x = shoal_scoped(shoal_from_data(SHOAL_F32, seen, SHOAL_SHAPE(1, OBSERVATION)));
    shoal_tensor *p = shoal_softmax(shoal_narrow(shoal_module_forward(model, x), 1, 0, ACTIONS), 1);
    shoal_err err = shoal_tensor_at(p, 2, (int64_t[]){0, 0}, &left);
    shoal_no_grad_end();
    shoal_scope_release(mark);
    *out_action = shoal_env_uniform(env, 0, 1) >= left;
    return err;
}

static bool is_over(const rollout *r)
{
    return r->outcome.terminated || r->outcome.truncated;
}

static shoal_err roll_out(shoal_module *model, shoal_env *env, rollout *r)
{
    bool fresh = r->n == 0 || is_over(r);
    memcpy(r->seen[0], r->seen[r->n], sizeof r->seen[0]);
    shoal_err err = fresh ? shoal_env_reset(env, r->seen[0]) : SHOAL_OK;
    r->outcome = (shoal_env_outcome){0};
    for (r->n = 0; err == SHOAL_OK && r->n < ROLLOUT && !is_over(r); r->n++) {
        err = choose(model, env, r->seen[r->n], &r->chosen[r->n]);
        err = err == SHOAL_OK ? shoal_env_step(env, r->chosen[r->n], r->seen[r->n + 1], &r->outcome) : err;
    }
    return err;
}

static shoal_tensor *loss_of(shoal_module *model, const rollout *r)
{
    float wanted[ROLLOUT];
    shoal_tensor *seen = shoal_scoped(shoal_from_data(SHOAL_F32, r->seen, SHOAL_SHAPE(r->n + 1, OBSERVATION)));
    shoal_tensor *all = shoal_module_forward(model, seen), *y = shoal_narrow(all, 0, 0, r->n);
    double next = 0;
    if (!r->outcome.terminated && shoal_tensor_at(all, 2, (int64_t[]){r->n, ACTIONS}, &next) != SHOAL_OK) {
        return NULL;
    }
    for (int64_t t = r->n - 1; t >= 0; t--) {
        wanted[t] = (float)(next = UNIT + GAMMA * next);
    }
    shoal_tensor *returns = shoal_scoped(shoal_from_data(SHOAL_F32, wanted, SHOAL_SHAPE(r->n)));
    shoal_tensor *chosen = shoal_scoped(shoal_from_data(SHOAL_I64, r->chosen, SHOAL_SHAPE(r->n, 1)));
    shoal_tensor *log_p = shoal_log_softmax(shoal_narrow(y, 1, 0, ACTIONS), 1);
    shoal_tensor *advantage = shoal_sub(returns, shoal_select(y, 1, ACTIONS));
    shoal_tensor *gain = shoal_mul(shoal_squeeze(shoal_gather(log_p, 1, chosen), 1), shoal_detach(advantage));
    shoal_tensor *minus_entropy = shoal_sum(shoal_mul(shoal_exp(log_p), log_p), SHOAL_ALL_DIMS, false);
    shoal_tensor *loss = shoal_sub(shoal_mul_scalar(shoal_square(advantage), 0.5), gain);
    return shoal_add(shoal_sum(loss, SHOAL_ALL_DIMS, false), shoal_mul_scalar(minus_entropy, ENTROPY * UNIT));
}

/* Makes the gradient of the actor's copy the gradient of the parent's parameters. */
static shoal_err take_gradient(shoal_module *model, shoal_module *local)
{
    shoal_err err = SHOAL_OK;
    for (shoal_named it = {0}; err == SHOAL_OK && shoal_module_next(local, &it) == SHOAL_OK;) {
        err = shoal_tensor_set_grad(shoal_module_get(model, it.name), shoal_tensor_grad(it.tensor));
    }
    return err;
}

static shoal_err act(int rank, const shoal_value *args)
{
    int64_t steps = 0;
    shoal_module *model = shoal_arg_module(args, "model");      /* the parent's parameters */
    const shoal_value *state = shoal_value_find(args, "state"); /* RMSprop's state, shared by all actors */
    float *score = shoal_tensor_data(shoal_arg_tensor(args, "score"));
    shoal_module *local = shoal_actor_critic_create(OBSERVATION, ACTIONS, HIDDEN);
    shoal_optimizer *rmsprop = shoal_rmsprop_create(model, .lr = 0.002, .eps = 1e-5);
    shoal_env *env = shoal_env_create("cartpole", (uint64_t)rank + 1);
    shoal_err err = score && local && rmsprop && env ? shoal_arg_int(args, "steps", &steps) : shoal_last_error();
    for (size_t i = 0; err == SHOAL_OK && i < shoal_value_count(state); i++) {
        err = shoal_optimizer_adopt(rmsprop, shoal_value_key_at(state, i),
                                    shoal_value_as_tensor(shoal_value_at(state, i)));
    }
    rollout r = {0};
    for (int64_t done = 0; err == SHOAL_OK && done < steps; done += r.n) {
        size_t mark = shoal_scope_mark();
        err = shoal_module_copy(local, model);
        err = err ? err : roll_out(local, env, &r);
        shoal_module_zero_grad(local);
        err = err ? err : shoal_backward(loss_of(local, &r));
        err = err ? err : take_gradient(model, local);
        err = err ? err : shoal_optimizer_step(rmsprop); /* updates the shared parameters */
        shoal_scope_release(mark);
        if (is_over(&r)) {
            *score += 0.05f * ((float)shoal_env_steps(env) - *score); /* a lost update does no harm */
        }
    }
    shoal_env_destroy(env);
    shoal_optimizer_destroy(rmsprop);
    shoal_module_destroy(local);
    return err;
}

static shoal_err run(int actors, int64_t steps)
{
    shoal_manual_seed(1);
    shoal_tensor *score = shoal_zeros(SHOAL_F32, SHOAL_SHAPE(1));
    shoal_module *model = shoal_actor_critic_create(OBSERVATION, ACTIONS, HIDDEN);
    shoal_optimizer *rmsprop = shoal_rmsprop_create(model, .lr = 0.002, .eps = 1e-5);
    shoal_err err = rmsprop ? shoal_optimizer_prepare(rmsprop) : shoal_last_error();
    shoal_value *state = shoal_value_map();
    for (shoal_named it = {0}; err == SHOAL_OK && shoal_optimizer_next(rmsprop, &it) == SHOAL_OK;) {
        state = shoal_map_set(state, it.name, shoal_value_tensor(it.tensor)); /* this shares the tensor */
    }
    shoal_value *args = shoal_map("model", model, "state", state, "score", score, "steps", steps);
    if (err == SHOAL_OK) {
        err = shoal_spawn(act, actors, args);
    } else {
        shoal_value_destroy(args);
    }
    double mean = 0;
    err = err == SHOAL_OK ? shoal_item(score, &mean) : err;
    if (err == SHOAL_OK) {
        printf("%d actors, %lld steps each: mean return %.1f of 500\n", actors, (long long)steps, mean);
    }
    shoal_tensor_release(score);
    shoal_optimizer_destroy(rmsprop);
    shoal_module_destroy(model);
    return err;
}

int main(int argc, char **argv)
{
    shoal_err err = shoal_init(&argc, &argv); /* a spawned child runs its function here and does not return */
    if (err == SHOAL_OK) {
        err = run(argc > 1 ? atoi(argv[1]) : 4, argc > 2 ? atoll(argv[2]) : 60000);
    }
    if (err != SHOAL_OK) {
        fprintf(stderr, "%s: %s\n", shoal_err_name(err), shoal_last_error_text());
    }
    return err != SHOAL_OK;
}
