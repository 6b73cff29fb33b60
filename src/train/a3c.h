/* A3C (Mnih et al., "Asynchronous methods for deep reinforcement learning", 2016): what the actors and their job share, and the
 * arithmetic of a rollout.
 *
 * An actor counts a reward as (1 - gamma) times what it is, so that values are of the size of one reward, whatever gamma is, and within
 * reach of a fresh critic; the weight of the entropy is reduced in the same way, so it still is in the environment's units. */
#ifndef SH_TRAIN_A3C_H
#define SH_TRAIN_A3C_H

#include "sync/atomic.h"

#include <shoal/process.h>

#define SH_A3C_EPOCH 10000 /* steps of all environments together */

/* Synchronisation: every actor adds (relaxed) the steps of a rollout when it has changed the parameters by it; actors and job read
 * (relaxed): the number stands for itself.
 * The actor whose addition makes an epoch full, and only that one sees it, rings: it puts a word on the queue that the job waits at.
 * death: of an actor between its change and its addition: one rollout is not counted, and the job lasts so much longer; before it
 * rings: the job, which looks twenty times a second, sees the epoch then. */
typedef struct sh_a3c_shm {
    sh_a64 steps __attribute__((aligned(SH_CACHE_LINE))); /* of all environments together */
} sh_a3c_shm;

/* The same for all actors; travels as bytes, between processes of one program. */
typedef struct sh_a3c_settings {
    int64_t rollout, env_steps;
    double gamma, entropy;
} sh_a3c_settings;

/* What an actor runs. Its own arguments: "env" (a name), "settings", "count" (sh_a3c_shm), "state" (of RMSprop), "bell", and "returns", a queue
 * on which it puts the return of each episode that it finishes, a float of 8 bytes: that is one word in the ring, so it is there or
 * not, whenever the actor dies, and an actor never waits for the job. */
shoal_err sh_a3c_act(int rank, const shoal_value *args);

/* returns[t] = rewards[t] + gamma * returns[t + 1]; next stands behind the last. */
void sh_a3c_returns(int64_t n, const double *rewards, double next, double gamma, double *out_returns);

/* The loss of n steps, summed, and its gradient by the outputs [n, actions + 1] that they were chosen by (gradient: =). Of one step,
 * with its return R, chosen action a, logits z and value V in output, p = softmax(z), H the entropy of p, and A = R - V taken as a
 * constant in the first term:
 *
 *     - A log p[a]  -  entropy * H  +  1/2 (R - V)²
 */
double sh_a3c_loss(int64_t n, int64_t actions, const float *output, const int64_t *chosen, const double *returns,
                   double entropy, float *gradient);

/* An action drawn by a number u from 0 to below 1. */
int64_t sh_a3c_choose(int64_t actions, const float *logits, double u);

#endif
