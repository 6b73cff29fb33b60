/* The arithmetic of a rollout, in plain C: for a few steps of a few actions, one op of the tape costs more than all of
 * this. */
#include "train/methods/a3c.h"

#include <math.h>

void sh_a3c_returns(int64_t n, const double *rewards, double next, double gamma, double *out_returns)
{
    for (int64_t t = n - 1; t >= 0; t--) {
        next = rewards[t] + gamma * next;
        out_returns[t] = next;
    }
}

static double greatest(int64_t n, const float *x)
{
    double most = (double)x[0];
    for (int64_t i = 1; i < n; i++) {
        most = (double)x[i] > most ? (double)x[i] : most;
    }
    return most;
}

/* Returns log(Σ exp(logits)); log p[i] is logits[i] minus that. */
static double log_sum(int64_t actions, const float *logits)
{
    double most = greatest(actions, logits), sum = 0;
    for (int64_t i = 0; i < actions; i++) {
        sum += exp((double)logits[i] - most);
    }
    return most + log(sum);
}

static double entropy_of(int64_t actions, const float *logits, double whole)
{
    double sum = 0;
    for (int64_t i = 0; i < actions; i++) {
        double log_p = (double)logits[i] - whole;
        sum -= exp(log_p) * log_p;
    }
    return sum;
}

/* d/dz[i] of -A log p[a] is A (p[i] - [i = a]); of -H it is p[i] (log p[i] + H). */
static double loss_of_step(int64_t actions, const float *output, int64_t chosen, double wanted, double entropy,
                           float *gradient)
{
    double whole = log_sum(actions, output), advantage = wanted - (double)output[actions];
    double own = entropy_of(actions, output, whole);
    for (int64_t i = 0; i < actions; i++) {
        double log_p = (double)output[i] - whole, p = exp(log_p);
        gradient[i] = (float)(advantage * (p - (i == chosen ? 1 : 0)) + entropy * p * (log_p + own));
    }
    gradient[actions] = (float)-advantage;
    return -advantage * ((double)output[chosen] - whole) - entropy * own + 0.5 * advantage * advantage;
}

double sh_a3c_loss(int64_t n, int64_t actions, const float *output, const int64_t *chosen, const double *returns,
                   double entropy, float *gradient)
{
    double sum = 0;
    for (int64_t t = 0; t < n; t++) {
        int64_t row = t * (actions + 1);
        sum += loss_of_step(actions, output + row, chosen[t], returns[t], entropy, gradient + row);
    }
    return sum;
}

int64_t sh_a3c_choose(int64_t actions, const float *logits, double u)
{
    double most = greatest(actions, logits), sum = 0;
    for (int64_t i = 0; i < actions; i++) {
        sum += exp((double)logits[i] - most);
    }
    double left = u * sum;
    int64_t i = 0;
    for (; i < actions - 1; i++) {
        left -= exp((double)logits[i] - most);
        if (left < 0) {
            break;
        }
    }
    return i;
}
