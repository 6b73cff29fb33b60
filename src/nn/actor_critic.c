/* A policy and a value function over the same observation. Settings: observation, actions, hidden (0 means 64). */
#include "nn/init.h"
#include "nn/layers.h"

#define HIDDEN 64

enum { POLICY1, POLICY2, VALUE1, VALUE2 };

static shoal_err actor_critic_init(shoal_module *self, const double *settings)
{
    (void)settings;
    int64_t observation, actions, hidden;
    shoal_err err = sh_setting(self, 0, "observation", 1, &observation);
    if (err == SHOAL_OK) {
        err = sh_setting(self, 1, "actions", 1, &actions);
    }
    if (err == SHOAL_OK) {
        err = sh_setting(self, 2, "hidden", 0, &hidden);
    }
    if (err != SHOAL_OK) {
        return err;
    }
    hidden = hidden > 0 ? hidden : HIDDEN;
    SH_TRY(sh_module_add_child(self, "policy1", shoal_linear_create(observation, hidden, true)));
    SH_TRY(sh_module_add_child(self, "policy2", shoal_linear_create(hidden, actions, true)));
    SH_TRY(sh_module_add_child(self, "value1", shoal_linear_create(observation, hidden, true)));
    return sh_module_add_child(self, "value2", shoal_linear_create(hidden, 1, true));
}

static shoal_tensor *net(const shoal_module *self, size_t first, shoal_tensor *x)
{
    const shoal_module *a = sh_module_child_at(self, first), *b = sh_module_child_at(self, first + 1);
    x = shoal_linear_relu(x, sh_module_parameter(a, 0), sh_module_parameter(a, 1));
    return shoal_linear(x, sh_module_parameter(b, 0), sh_module_parameter(b, 1));
}

static shoal_tensor *actor_critic_forward(shoal_module *self, shoal_tensor *x)
{
    shoal_tensor *parts[] = {net(self, POLICY1, x), net(self, VALUE1, x)};
    return shoal_cat(parts, 2, 1);
}

const shoal_module_type sh_layer_actor_critic = {
    .name = "actor-critic",
    .init = actor_critic_init,
    .forward = actor_critic_forward,
};

shoal_module *shoal_actor_critic_create(int64_t observation, int64_t actions, int64_t hidden)
{
    return shoal_module_create(&sh_layer_actor_critic, 3,
                               (double[]){(double)observation, (double)actions, (double)hidden});
}
