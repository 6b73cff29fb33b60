/* Environments by name, and what all of them have in common. */
#include "env/env.h"

#include "base/error.h"
#include "base/fork.h"
#include "base/grow.h"
#include "base/random.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- kinds ---- */

static const shoal_env_type *const own[] = {&sh_env_cartpole};

#define OWN (sizeof own / sizeof *own)

static struct {
    pthread_mutex_t lock;
    const shoal_env_type **list; /* the kinds that the program registered; never shrinks */
    size_t count, room;
} registry = {.lock = PTHREAD_MUTEX_INITIALIZER};

__attribute__((constructor)) static void register_lock(void)
{
    static const sh_fork_part part = {.lock = &registry.lock};
    sh_fork_register(SH_FORK_ENVS, &part);
}

/* The caller of this and the next two functions holds the lock. */
static const shoal_env_type *type_at(size_t i)
{
    return i < OWN ? own[i] : i - OWN < registry.count ? registry.list[i - OWN] : NULL;
}

static const shoal_env_type *find(const char *name)
{
    const shoal_env_type *type;
    for (size_t i = 0; (type = type_at(i)) != NULL && strcmp(type->name, name) != 0; i++) {
    }
    return type;
}

static shoal_err append(const shoal_env_type *type)
{
    if (!sh_grow(&registry.list, registry.count, &registry.room, sizeof *registry.list)) {
        return sh_fail(SHOAL_ENOMEM, "no memory for %zu kinds of environments", registry.count + 1);
    }
    registry.list[registry.count++] = type;
    return SHOAL_OK;
}

const shoal_env_type *shoal_env_at(size_t i)
{
    sh_fork_lock(&registry.lock);
    const shoal_env_type *type = type_at(i);
    sh_fork_unlock(&registry.lock);
    return type;
}

const shoal_env_type *shoal_env_find(const char *name)
{
    SH_GIVEN_OR_NULL(name);
    sh_fork_lock(&registry.lock);
    const shoal_env_type *type = name != NULL ? find(name) : NULL;
    sh_fork_unlock(&registry.lock);
    if (type == NULL) {
        char known[256] = "";
        const shoal_env_type *one;
        for (size_t i = 0, at = 0; (one = shoal_env_at(i)) != NULL && at < sizeof known; i++) {
            at += (size_t)snprintf(known + at, sizeof known - at, "%s%s", i == 0 ? "" : ", ", one->name);
        }
        (void)sh_fail(SHOAL_ENOENT, "unknown environment '%s': the known ones are %s", name != NULL ? name : "(null)",
                      known);
    }
    return type;
}

static shoal_err check(const shoal_env_type *type)
{
    if (type == NULL || type->name == NULL || type->reset == NULL || type->step == NULL) {
        return sh_fail(SHOAL_EINVAL, "an environment needs a name and the functions reset and step");
    }
    if (type->observation < 1 || type->actions < 1 || type->most_steps < 0) {
        return sh_fail(
            SHOAL_EINVAL,
            "environment '%s': observations of %lld numbers, %lld actions, %lld steps; they must be at least 1, 1 "
            "and 0",
            type->name, (long long)type->observation, (long long)type->actions, (long long)type->most_steps);
    }
    return SHOAL_OK;
}

shoal_err shoal_env_register(const shoal_env_type *type)
{
    SH_NEED(type);
    SH_TRY(check(type));
    sh_fork_lock(&registry.lock);
    const shoal_env_type *known = find(type->name);
    shoal_err err = known == NULL   ? append(type)
                    : known == type ? SHOAL_OK
                                    : sh_fail(SHOAL_ESTATE, "there is already another environment '%s'", type->name);
    sh_fork_unlock(&registry.lock);
    return err;
}

/* ---- environments ---- */

shoal_env *shoal_env_create(const char *name, uint64_t seed)
{
    SH_GIVEN_OR_NULL(name);
    const shoal_env_type *type = shoal_env_find(name);
    if (type == NULL) {
        return NULL;
    }
    shoal_env *env = calloc(1, sizeof *env + type->state_size);
    if (env == NULL) {
        (void)sh_fail(SHOAL_ENOMEM, "no memory for the environment '%s'", name);
        return NULL;
    }
    env->type = type;
    env->random = seed;
    uint64_t mark = sh_callback_mark();
    if (type->init != NULL && sh_callback_err(mark, type->init(env), type->name, "init") != SHOAL_OK) {
        shoal_env_destroy(env);
        return NULL;
    }
    return env;
}

void shoal_env_destroy(shoal_env *env)
{
    if (env != NULL && env->type->fini != NULL) {
        env->type->fini(env);
    }
    free(env);
}

shoal_err shoal_env_reset(shoal_env *env, float *out_observation)
{
    SH_NEED(env);
    SH_NEED(out_observation);
    if (env == NULL || out_observation == NULL) {
        return sh_fail(SHOAL_EINVAL, "shoal_env_reset: the %s is NULL", env == NULL ? "environment" : "observation");
    }
    env->steps = 0;
    env->under_way = false;
    uint64_t mark = sh_callback_mark();
    shoal_err err = sh_callback_err(mark, env->type->reset(env, out_observation), env->type->name, "reset");
    env->under_way = err == SHOAL_OK;
    return err;
}

static shoal_err check_step(const shoal_env *env, int64_t action, const float *observation,
                            const shoal_env_outcome *outcome)
{
    if (env == NULL || observation == NULL || outcome == NULL) {
        return sh_fail(SHOAL_EINVAL, "shoal_env_step: the %s is NULL",
                       env == NULL           ? "environment"
                       : observation == NULL ? "observation"
                                             : "outcome");
    }
    if (action < 0 || action >= env->type->actions) {
        return sh_fail(SHOAL_EINVAL, "action %lld of environment '%s': actions are 0 to %lld", (long long)action,
                       env->type->name, (long long)env->type->actions - 1);
    }
    return env->under_way
               ? SHOAL_OK
               : sh_fail(SHOAL_ESTATE, "environment '%s' has no episode: call shoal_env_reset first", env->type->name);
}

shoal_err shoal_env_step(shoal_env *env, int64_t action, float *out_observation, shoal_env_outcome *out_outcome)
{
    SH_NEED(env);
    SH_NEED(out_observation);
    SH_NEED(out_outcome);
    SH_TRY(check_step(env, action, out_observation, out_outcome));
    shoal_env_outcome out = {0};
    uint64_t mark = sh_callback_mark();
    shoal_err err = sh_callback_err(mark, env->type->step(env, action, out_observation, &out.reward, &out.terminated),
                                    env->type->name, "step");
    if (err == SHOAL_OK) {
        env->steps++;
        out.truncated = env->type->most_steps > 0 && env->steps >= env->type->most_steps;
        *out_outcome = out;
    }
    env->under_way = err == SHOAL_OK && !out.terminated && !out.truncated;
    return err;
}

const shoal_env_type *shoal_env_type_of(const shoal_env *env)
{
    return env != NULL ? env->type : NULL;
}

int64_t shoal_env_steps(const shoal_env *env)
{
    return env != NULL ? env->steps : 0;
}

void *shoal_env_state(const shoal_env *env)
{
    return env != NULL ? (void *)env->state : NULL;
}

double shoal_env_uniform(shoal_env *env, double low, double high)
{
    if (!env) {
        return 0;
    }
    double part = (double)(sh_splitmix_next(&env->random) >> 11) * 0x1p-53; /* from 0 to below 1 */
    return low + part * (high - low);
}
