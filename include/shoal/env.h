/* Environments for reinforcement learning: something that is observed, acted on, and gives rewards.
 *
 *     shoal_env *env = shoal_env_create("cartpole", 1);
 *     float observation[4];
 *     shoal_env_outcome out = {0};
 *     shoal_err err = shoal_env_reset(env, observation);
 *     while (err == SHOAL_OK && !out.terminated && !out.truncated) {
 *         int64_t action = choose(observation);
 *         err = shoal_env_step(env, action, observation, &out);
 *     }
 *
 * An environment belongs to the process and, at any time, to one thread. Nothing here blocks. Its random numbers come from a generator
 * of its own, so the same seed and the same actions give the same episodes.
 *
 * "cartpole" is CartPole-v1 of Gym (Barto, Sutton and Anderson 1983): a pole on a cart that is pushed left (0) or right (1). The
 * observation is the cart's place and speed and the pole's angle (radians) and speed; each step is a reward of 1; an episode
 * terminates beyond 12 degrees or 2.4 from the middle, and is truncated after 500 steps. Solved is a mean return of 475.
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

/* What a step gave. terminated: the task itself ended. truncated: the limit of steps was reached; what would have followed still has
 * a value. Both can be. */
typedef struct shoal_env_outcome {
    double reward;
    bool terminated;
    bool truncated;
} shoal_env_outcome;

/* A kind of environment. The functions get the environment, whose state (shoal_env_state) has state_size zeroed bytes before init, and
 * write type->observation floats. */
typedef struct shoal_env_type {
    const char *name;
    int64_t observation; /* numbers in an observation */
    int64_t actions;     /* 0 to actions - 1 */
    int64_t most_steps;  /* of an episode; 0: no limit */
    double solved;       /* the mean return of 100 episodes that counts as solved; 0: nobody has said */
    size_t state_size;

    shoal_err (*init)(shoal_env *self); /* may be NULL */
    void (*fini)(shoal_env *self);      /* may be NULL; called after a failed init too */
    shoal_err (*reset)(shoal_env *self, float *observation);
    shoal_err (*step)(shoal_env *self, int64_t action, float *observation, double *out_reward, bool *out_terminated);
} shoal_env_type;

/* Makes a kind known by its name, so that the actors of a job, which are other processes, find it. Call it before shoal_init. type
 * must stay. Errors: SHOAL_EINVAL for a kind that lacks something, named; SHOAL_ESTATE when the name is taken by another;
 * SHOAL_ENOMEM. From any thread. */
SHOAL_MUST_USE shoal_err shoal_env_register(const shoal_env_type *type);

/* Find a kind of environment. find: the kind of that name, NULL and SHOAL_ENOENT with the names that there are. at: the i-th of all, the library's first; NULL beyond the
 * last. From any thread. */
const shoal_env_type *shoal_env_find(const char *name);
const shoal_env_type *shoal_env_at(size_t i);

/* Makes an environment of the kind of that name, before its first episode; the caller's. NULL: SHOAL_ENOENT, SHOAL_ENOMEM, what init
 * returned. destroy: NULL is allowed. */
shoal_env *shoal_env_create(const char *name, uint64_t seed);
void shoal_env_destroy(shoal_env *env);

/* Begins an episode, wherever the last one stood. Errors: what the kind's reset gives. */
SHOAL_MUST_USE shoal_err shoal_env_reset(shoal_env *env, float *out_observation);

/* Takes one step. The observation after the last step of an episode is written too. Errors: SHOAL_EINVAL for an action that there is not;
 * SHOAL_ESTATE when no episode is under way: reset first; what the kind's step gives, after which there is none either. */
SHOAL_MUST_USE shoal_err shoal_env_step(shoal_env *env, int64_t action, float *out_observation,
                                        shoal_env_outcome *out_outcome);

/* The kind of an environment, and the steps of its episode so far. */
const shoal_env_type *shoal_env_type_of(const shoal_env *env);
int64_t shoal_env_steps(const shoal_env *env); /* taken in this episode */

/* The state of an environment, aligned for any type, and the next number of its generator, from low to below high. For the functions
 * of a kind. */
void *shoal_env_state(const shoal_env *env);
double shoal_env_uniform(shoal_env *env, double low, double high);

#ifdef __cplusplus
}
#endif
#endif
