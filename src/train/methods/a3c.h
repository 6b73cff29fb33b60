/* A3C (Mnih et al., "Asynchronous methods for deep reinforcement learning", 2016): what the actors and their job share,
 * and the arithmetic of a rollout.
 *
 * An actor multiplies each reward by (1 - gamma), so that values are as large as one reward, whatever gamma is, and a
 * fresh critic can reach them. The weight of the entropy is scaled in the same way, so the option is still in the
 * environment's units. */
#ifndef SH_TRAIN_A3C_H
#define SH_TRAIN_A3C_H

#include "sync/atomic.h"

#include <shoal/process.h>

#define SH_A3C_EPOCH 10000 /* steps of all environments in total */

/* Synchronisation: every actor adds (relaxed) the steps of a rollout after it has applied them to the parameters;
 * actors and job read (relaxed): the number is independent of other data. The actor whose addition completes an epoch,
 * and only that actor sees this, rings: it puts a word on the queue that the job waits for. death: of an actor between
 * its change and its addition: one rollout is not counted, and the job takes that many steps more; before it rings: the
 * job checks twenty times a second, and sees the epoch then. */
typedef struct sh_a3c_shm {
    sh_a64 steps __attribute__((aligned(SH_CACHE_LINE))); /* of all environments together */
} sh_a3c_shm;

/* The settings that all actors share; sent as bytes between processes of one program. */
typedef struct sh_a3c_settings {
    int64_t rollout, env_steps;
    double gamma, entropy;
} sh_a3c_settings;

/* Runs an actor. Its own arguments: "env" (a name), "settings", "count" (sh_a3c_shm), "state" (of RMSprop), "bell", and
 * "returns", a queue. It puts the return of each finished episode on that queue, a float of 8 bytes: that is one word
 * in the ring, so it is there completely or not at all when the actor dies, and an actor never waits for the job. */
shoal_err sh_a3c_act(int rank, const shoal_value *args);

/* Computes returns[t] = rewards[t] + gamma * returns[t + 1]; next follows the last. */
void sh_a3c_returns(int64_t n, const double *rewards, double next, double gamma, double *out_returns);

/* Returns the summed loss of n steps, and writes its gradient with respect to the outputs [n, actions + 1] that chose
 * them (gradient: =). The loss of one step with return R, chosen action a, logits z and value V in output, p =
 * softmax(z), H the entropy of p, and A = R - V taken as a constant in the first term:
 *
 *     - A log p[a]  -  entropy * H  +  1/2 (R - V)²
 */
double sh_a3c_loss(int64_t n, int64_t actions, const float *output, const int64_t *chosen, const double *returns,
                   double entropy, float *gradient);

/* Returns the action that a random number u in [0, 1) selects. */
int64_t sh_a3c_choose(int64_t actions, const float *logits, double u);

#endif
