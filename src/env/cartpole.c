/* CartPole-v1: the equations of Barto, Sutton and Anderson ("Neuronlike adaptive elements that can solve difficult
 * learning control problems", 1983) with Florian's correction and without friction, with the constants and the Euler
 * integration of Gym. As in Gym, the state is kept in doubles and observed in floats. */
#include "env/cartpole.h"

#include "env/env.h"

#include <math.h>

#define GRAVITY 9.8
#define CART_MASS 1.0
#define POLE_MASS 0.1
#define MASS (CART_MASS + POLE_MASS)
#define HALF_LENGTH 0.5
#define FORCE 10.0
#define TAU 0.02 /* seconds between states */
#define PI 3.14159265358979323846
#define MOST_ANGLE (12 * 2 * PI / 360)
#define MOST_X 2.4
#define START 0.05

static void observe(const sh_cartpole *s, float *observation)
{
    observation[0] = (float)s->x;
    observation[1] = (float)s->speed;
    observation[2] = (float)s->angle;
    observation[3] = (float)s->spin;
}

static shoal_err reset(shoal_env *self, float *observation)
{
    sh_cartpole *s = shoal_env_state(self);
    s->x = shoal_env_uniform(self, -START, START);
    s->speed = shoal_env_uniform(self, -START, START);
    s->angle = shoal_env_uniform(self, -START, START);
    s->spin = shoal_env_uniform(self, -START, START);
    observe(s, observation);
    return SHOAL_OK;
}

static shoal_err step(shoal_env *self, int64_t action, float *observation, double *out_reward, bool *out_terminated)
{
    sh_cartpole *s = shoal_env_state(self);
    double force = action == 1 ? FORCE : -FORCE, cosine = cos(s->angle), sine = sin(s->angle);
    double push = (force + POLE_MASS * HALF_LENGTH * (s->spin * s->spin) * sine) / MASS;
    double spin_up =
        (GRAVITY * sine - cosine * push) / (HALF_LENGTH * (4.0 / 3.0 - POLE_MASS * cosine * cosine / MASS));
    double speed_up = push - POLE_MASS * HALF_LENGTH * spin_up * cosine / MASS;
    s->x += TAU * s->speed;
    s->speed += TAU * speed_up;
    s->angle += TAU * s->spin;
    s->spin += TAU * spin_up;
    observe(s, observation);
    *out_reward = 1;
    *out_terminated = fabs(s->x) > MOST_X || fabs(s->angle) > MOST_ANGLE;
    return SHOAL_OK;
}

const shoal_env_type sh_env_cartpole = {
    .name = "cartpole",
    .observation = 4,
    .actions = 2,
    .most_steps = 500,
    .solved = 475,
    .state_size = sizeof(sh_cartpole),
    .reset = reset,
    .step = step,
};
