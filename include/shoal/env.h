/* Environments for reinforcement learning: a program observes an environment, acts on it, and gets rewards.
 *
 *     shoal_env *env = shoal_env_create("cartpole", 1);
 *     float seen[4];
 *     shoal_env_outcome out = {0};
 *     shoal_err err = shoal_env_reset(env, seen);
 *     while (err == SHOAL_OK && !out.terminated && !out.truncated) {
 *         err = shoal_env_step(env, choose(seen), seen, &out);
 *     }
 *
 * An environment belongs to its process, and only one thread at a time may use it. Nothing here blocks. Each
 * environment has its own random generator, so the same seed and the same actions give the same episodes.
 *
 * "cartpole" is CartPole-v1 of Gym (Barto, Sutton and Anderson 1983): a pole on a cart that is pushed left (0) or
 * right (1). An observation is the position and velocity of the cart and the angle (in radians) and angular velocity
 * of the pole. Each step gives a reward of 1. An episode terminates if the pole leans more than 12 degrees or the
 * cart is more than 2.4 from the middle, and is truncated after 500 steps. A mean return of 475 counts as solved.
 */
#ifndef SHOAL_ENV_H
#define SHOAL_ENV_H

#include <shoal/error.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct shoal_env shoal_env;

/* The outcome of a step. Both terminated and truncated can be true. */
typedef struct shoal_env_outcome {
    double reward;
    bool terminated; /* the task itself ended */
    bool truncated;  /* the limit of steps was reached; the state that follows still has a value */
} shoal_env_outcome;

/* An environment type. The functions get the environment; its state (shoal_env_state) has state_size bytes, which are
 * zero before init. reset and step write `observation` floats. */
typedef struct shoal_env_type {
    const char *name;
    int64_t observation; /* the number of floats in an observation */
    int64_t actions;     /* the number of actions, which are 0 to actions - 1 */
    int64_t most_steps;  /* the limit of steps in an episode; 0: no limit */
    double solved;       /* the mean return of 100 episodes that counts as solved; 0: undefined */
    size_t state_size;

    shoal_err (*init)(shoal_env *self); /* may be NULL */
    void (*fini)(shoal_env *self);      /* may be NULL; also called after a failed init */
    shoal_err (*reset)(shoal_env *self, float *observation);
    shoal_err (*step)(shoal_env *self, int64_t action, float *observation, double *out_reward, bool *out_terminated);
} shoal_env_type;

/* Registers an environment type by its name. The actors of a job, which are other processes, find it by this name.
 * Call it before shoal_init. type must exist until the process ends. Thread-safe. Errors: SHOAL_EINVAL if the type
 * lacks something (the text names it); SHOAL_ESTATE if another type has the name; SHOAL_ENOMEM. */
SHOAL_MUST_USE shoal_err shoal_env_register(const shoal_env_type *type);

/* Finds an environment type by its name. Thread-safe. Errors: SHOAL_ENOENT if there is none (the text lists the
 * names). */
const shoal_env_type *shoal_env_find(const char *name);

/* Returns the i-th environment type, those of the library first; NULL after the last. Thread-safe. */
const shoal_env_type *shoal_env_at(size_t i);

/* Makes an environment by the name of its type. The caller owns it: shoal_env_destroy. Call shoal_env_reset before
 * the first step. Returns NULL on failure. Errors: SHOAL_ENOENT; SHOAL_ENOMEM; the error of init. */
shoal_env *shoal_env_create(const char *name, uint64_t seed);

/* Destroys an environment. NULL is allowed. Never changes the last error. */
void shoal_env_destroy(shoal_env *env);

/* Begins a new episode, even if the last one has not ended, and writes the first observation. Errors: the error of
 * the type's reset. */
SHOAL_MUST_USE shoal_err shoal_env_reset(shoal_env *env, float *out_observation);

/* Takes one step with an action. Writes the observation after it, after the last step of an episode too. Errors:
 * SHOAL_EINVAL if there is no such action; SHOAL_ESTATE if no episode has begun (call shoal_env_reset); the error of
 * the type's step, which also ends the episode. */
SHOAL_MUST_USE shoal_err shoal_env_step(shoal_env *env, int64_t action, float *out_observation,
                                        shoal_env_outcome *out_outcome);

/* Returns the type of an environment; NULL for NULL. */
const shoal_env_type *shoal_env_type_of(const shoal_env *env);

/* Returns the number of steps taken in the current episode; 0 for NULL. */
int64_t shoal_env_steps(const shoal_env *env);

/* Returns the state of an environment, aligned for any type. It is for the functions of an environment type. NULL for
 * NULL. */
void *shoal_env_state(const shoal_env *env);

/* Returns the next random number of an environment, from low to below high. It is for the functions of an environment
 * type. */
double shoal_env_uniform(shoal_env *env, double low, double high);

#ifdef __cplusplus
}
#endif
#endif
