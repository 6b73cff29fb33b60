/* LSTM. Settings: in, hidden, layers (0 means one). Parameters: weight_ih_l0 [4H, in], weight_hh_l0 [4H, H],
 * bias_ih_l0, bias_hh_l0 [4H], then those of the next layer; gates are in the order i f g o. The batch is the first
 * dim. */
#include "autograd/op.h"
#include "nn/init.h"
#include "nn/layers.h"

#include "base/error.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define PARAMETERS 4 /* in a layer */

typedef struct lstm_state {
    shoal_tensor **steps; /* holds one layer's outputs; kept between calls */
    int64_t room;
} lstm_state;

static int64_t layers_of(const shoal_module *self)
{
    return self->settings[2] == 0 ? 1 : (int64_t)self->settings[2];
}

static shoal_err add(shoal_module *self, const char *what, int64_t layer, shoal_tensor *t)
{
    char name[48];
    snprintf(name, sizeof name, "%s_l%lld", what, (long long)layer);
    return sh_module_add_parameter(self, name, t);
}

static shoal_err add_layer(shoal_module *self, int64_t layer, int64_t in, int64_t hidden)
{
    double bound = 1 / sqrt((double)hidden);
    SH_TRY(add(self, "weight_ih", layer, sh_init_uniform(bound, SHOAL_SHAPE(4 * hidden, in))));
    SH_TRY(add(self, "weight_hh", layer, sh_init_uniform(bound, SHOAL_SHAPE(4 * hidden, hidden))));
    SH_TRY(add(self, "bias_ih", layer, sh_init_uniform(bound, SHOAL_SHAPE(4 * hidden))));
    return add(self, "bias_hh", layer, sh_init_uniform(bound, SHOAL_SHAPE(4 * hidden)));
}

static shoal_err lstm_init(shoal_module *self, const double *settings)
{
    (void)settings;
    int64_t in, hidden, layers;
    SH_TRY(sh_setting(self, 0, "in", 1, &in));
    SH_TRY(sh_setting(self, 1, "hidden", 1, &hidden));
    SH_TRY(sh_setting(self, 2, "layers", 0, &layers));
    for (int64_t i = 0; i < layers_of(self); i++) {
        SH_TRY(add_layer(self, i, i == 0 ? in : hidden, hidden));
    }
    return SHOAL_OK;
}

static void lstm_fini(shoal_module *self)
{
    lstm_state *state = shoal_module_state(self);
    free(state->steps);
}

static shoal_err make_room(lstm_state *state, int64_t steps)
{
    if (steps > state->room) {
        shoal_tensor **fresh = realloc(state->steps, (size_t)steps * sizeof *fresh);
        if (!fresh) {
            return sh_fail(SHOAL_ENOMEM, "LSTM: no memory for %lld steps", (long long)steps);
        }
        state->steps = fresh;
        state->room = steps;
    }
    return SHOAL_OK;
}

/* Runs one layer over all steps: reads steps[t] and replaces it by the output. */
static shoal_err run_layer(const shoal_module *self, int64_t layer, shoal_tensor **steps, int64_t count)
{
    const sh_module_tensor *p = &self->entries[PARAMETERS * layer];
    const int64_t shape[] = {steps[0]->shape[0], (int64_t)self->settings[1]};
    shoal_tensor *h = sh_zeros_on(steps[0], 2, shape), *c = h;
    if (!h) {
        return shoal_last_error();
    }
    for (int64_t t = 0; t < count; t++) {
        SH_TRY(shoal_lstm_cell(steps[t], h, c, p[0].tensor, p[1].tensor, p[2].tensor, p[3].tensor, &h, &c));
        steps[t] = h;
    }
    return SHOAL_OK;
}

static shoal_err check_input(const shoal_module *self, const shoal_tensor *x)
{
    if (x->ndim != 3 || x->shape[1] < 1 || x->shape[2] != (int64_t)self->settings[0]) {
        sh_text text;
        return sh_fail(SHOAL_EINVAL, "LSTM: x is %s, it must be [N, T, %.0f] with at least one step",
                       sh_tensor_text(&text, x), self->settings[0]);
    }
    return SHOAL_OK;
}

/* Runs all layers. Leaves the outputs of the last layer in the state's steps. */
static shoal_err run(shoal_module *self, shoal_tensor *x)
{
    lstm_state *state = shoal_module_state(self);
    SH_TRY(check_input(self, x));
    SH_TRY(make_room(state, x->shape[1]));
    for (int64_t t = 0; t < x->shape[1]; t++) {
        state->steps[t] = shoal_select(x, 1, t);
        if (!state->steps[t]) {
            return shoal_last_error();
        }
    }
    for (int64_t layer = 0; layer < layers_of(self); layer++) {
        SH_TRY(run_layer(self, layer, state->steps, x->shape[1]));
    }
    return SHOAL_OK;
}

static shoal_tensor *lstm_forward(shoal_module *self, shoal_tensor *x)
{
    const lstm_state *state = shoal_module_state(self);
    return run(self, x) == SHOAL_OK ? shoal_stack(state->steps, (size_t)x->shape[1], 1) : NULL;
}

shoal_tensor *sh_layer_lstm_last(shoal_module *lstm, shoal_tensor *x)
{
    const lstm_state *state = shoal_module_state(lstm);
    return x && run(lstm, x) == SHOAL_OK ? state->steps[x->shape[1] - 1] : NULL;
}

static void lstm_describe(const shoal_module *self, char *buffer, size_t capacity)
{
    int n = snprintf(buffer, capacity, "%.0f, %.0f", self->settings[0], self->settings[1]);
    if (layers_of(self) > 1) {
        n += snprintf(buffer + n, capacity - (size_t)n, ", num_layers=%lld", (long long)layers_of(self));
    }
    snprintf(buffer + n, capacity - (size_t)n, ", batch_first=True");
}

const shoal_module_type sh_layer_lstm = {
    .name = "LSTM",
    .state_size = sizeof(lstm_state),
    .init = lstm_init,
    .forward = lstm_forward,
    .fini = lstm_fini,
    .describe = lstm_describe,
};

shoal_module *shoal_lstm_create(int64_t in, int64_t hidden, int64_t layers)
{
    return shoal_module_create(&sh_layer_lstm, 3, (double[]){(double)in, (double)hidden, (double)layers});
}
