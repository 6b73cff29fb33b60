/* Kinds without parameters: pools, dropouts, activations and Flatten; and Sequential. */
#include "nn/init.h"
#include "nn/layers.h"

#include "base/error.h"

#include <stdio.h>

/* ---- pools: size, stride (0 means the size) ---- */

static shoal_err pool_init(shoal_module *self, const double *settings)
{
    (void)settings;
    int64_t size, stride;
    SH_TRY(sh_setting(self, 0, "size", 1, &size));
    SH_TRY(sh_setting(self, 1, "stride", 0, &stride));
    stride = stride > 0 ? stride : size;
    shoal_pool2d_options *o = shoal_module_state(self);
    *o = (shoal_pool2d_options){.size = {size, size}, .stride = {stride, stride}};
    return SHOAL_OK;
}

static shoal_tensor *max_pool2d_forward(shoal_module *self, shoal_tensor *x)
{
    return shoal_max_pool2d_with(x, shoal_module_state(self));
}

static shoal_tensor *avg_pool2d_forward(shoal_module *self, shoal_tensor *x)
{
    return shoal_avg_pool2d_with(x, shoal_module_state(self));
}

static void max_pool2d_describe(const shoal_module *self, char *buffer, size_t capacity)
{
    const shoal_pool2d_options *o = shoal_module_state(self);
    snprintf(buffer, capacity, "kernel_size=%lld, stride=%lld, padding=0, dilation=1, ceil_mode=False",
             (long long)o->size[0], (long long)o->stride[0]);
}

static void avg_pool2d_describe(const shoal_module *self, char *buffer, size_t capacity)
{
    const shoal_pool2d_options *o = shoal_module_state(self);
    snprintf(buffer, capacity, "kernel_size=%lld, stride=%lld, padding=0", (long long)o->size[0],
             (long long)o->stride[0]);
}

const shoal_module_type sh_layer_max_pool2d = {
    .name = "MaxPool2d",
    .state_size = sizeof(shoal_pool2d_options),
    .init = pool_init,
    .forward = max_pool2d_forward,
    .describe = max_pool2d_describe,
};

const shoal_module_type sh_layer_avg_pool2d = {
    .name = "AvgPool2d",
    .state_size = sizeof(shoal_pool2d_options),
    .init = pool_init,
    .forward = avg_pool2d_forward,
    .describe = avg_pool2d_describe,
};

shoal_module *shoal_max_pool2d_create(int64_t size, int64_t stride)
{
    return shoal_module_create(&sh_layer_max_pool2d, 2, (double[]){(double)size, (double)stride});
}

shoal_module *shoal_avg_pool2d_create(int64_t size, int64_t stride)
{
    return shoal_module_create(&sh_layer_avg_pool2d, 2, (double[]){(double)size, (double)stride});
}

/* ---- dropouts: p ---- */

static shoal_err dropout_init(shoal_module *self, const double *settings)
{
    return settings[0] >= 0 && settings[0] <= 1
               ? SHOAL_OK
               : sh_fail(SHOAL_EINVAL, "%s: p is %g, it must be from 0 to 1", self->type->name, settings[0]);
}

double sh_layer_dropout_p(const shoal_module *dropout)
{
    return dropout->training ? dropout->settings[0] : 0;
}

static shoal_tensor *dropout_forward(shoal_module *self, shoal_tensor *x)
{
    return shoal_dropout(x, sh_layer_dropout_p(self));
}

static shoal_tensor *dropout2d_forward(shoal_module *self, shoal_tensor *x)
{
    return shoal_dropout2d(x, sh_layer_dropout_p(self));
}

static void dropout_describe(const shoal_module *self, char *buffer, size_t capacity)
{
    snprintf(buffer, capacity, "p=%g, inplace=False", self->settings[0]);
}

const shoal_module_type sh_layer_dropout = {
    .name = "Dropout",
    .init = dropout_init,
    .forward = dropout_forward,
    .describe = dropout_describe,
};

const shoal_module_type sh_layer_dropout2d = {
    .name = "Dropout2d",
    .init = dropout_init,
    .forward = dropout2d_forward,
    .describe = dropout_describe,
};

shoal_module *shoal_dropout_create(double p)
{
    return shoal_module_create(&sh_layer_dropout, 1, &p);
}

shoal_module *shoal_dropout2d_create(double p)
{
    return shoal_module_create(&sh_layer_dropout2d, 1, &p);
}

/* ---- activations ---- */

#define ACTIVATION(kind, title)                                                                                        \
    static shoal_tensor *kind##_forward(shoal_module *self, shoal_tensor *x)                                           \
    {                                                                                                                  \
        (void)self;                                                                                                    \
        return shoal_##kind(x);                                                                                        \
    }                                                                                                                  \
    const shoal_module_type sh_layer_##kind = {.name = title, .forward = kind##_forward};                              \
    shoal_module *shoal_##kind##_create(void)                                                                          \
    {                                                                                                                  \
        return shoal_module_create(&sh_layer_##kind, 0, NULL);                                                         \
    }

ACTIVATION(relu, "ReLU")
ACTIVATION(tanh, "Tanh")
ACTIVATION(sigmoid, "Sigmoid")
ACTIVATION(gelu, "GELU")

static shoal_tensor *log_softmax_forward(shoal_module *self, shoal_tensor *x)
{
    return shoal_log_softmax(x, (int)self->settings[0]);
}

static void log_softmax_describe(const shoal_module *self, char *buffer, size_t capacity)
{
    snprintf(buffer, capacity, "dim=%.0f", self->settings[0]);
}

const shoal_module_type sh_layer_log_softmax = {
    .name = "LogSoftmax",
    .forward = log_softmax_forward,
    .describe = log_softmax_describe,
};

shoal_module *shoal_log_softmax_create(int dim)
{
    return shoal_module_create(&sh_layer_log_softmax, 1, (double[]){dim});
}

static shoal_tensor *flatten_forward(shoal_module *self, shoal_tensor *x)
{
    (void)self;
    return shoal_flatten(x, 1);
}

static void flatten_describe(const shoal_module *self, char *buffer, size_t capacity)
{
    (void)self;
    snprintf(buffer, capacity, "start_dim=1, end_dim=-1");
}

const shoal_module_type sh_layer_flatten = {
    .name = "Flatten",
    .forward = flatten_forward,
    .describe = flatten_describe,
};

shoal_module *shoal_flatten_create(void)
{
    return shoal_module_create(&sh_layer_flatten, 0, NULL);
}

/* ---- Sequential: its children are added later, not made by init ---- */

static shoal_tensor *sequential_forward(shoal_module *self, shoal_tensor *x)
{
    for (size_t i = 0; x && i < self->child_count; i++) {
        x = shoal_module_forward(sh_module_child_at(self, i), x);
    }
    return x;
}

const shoal_module_type sh_layer_sequential = {.name = "Sequential", .forward = sequential_forward};

static void destroy_all(size_t count, shoal_module *const *modules)
{
    for (size_t i = 0; i < count; i++) {
        shoal_module_destroy(modules[i]);
    }
}

shoal_module *shoal_sequential_create(size_t count, shoal_module *const *children)
{
    if (count > 0 && !children) {
        return sh_not_given(__func__, "children");
    }
    shoal_module *m = NULL;
    bool complete = count == 0 || children;
    for (size_t i = 0; complete && i < count; i++) {
        complete = children[i] != NULL;
    }
    if (complete) {
        m = shoal_module_create(&sh_layer_sequential, 0, NULL);
    }
    for (size_t i = 0; m && i < count; i++) {
        char name[24];
        snprintf(name, sizeof name, "%zu", i);
        if (shoal_module_add_child(m, name, children[i]) != SHOAL_OK) {
            destroy_all(count - i - 1, children + i + 1);
            shoal_module_destroy(m);
            return NULL;
        }
    }
    if (!m && children) {
        destroy_all(count, children);
    }
    return m;
}

/* ---- the table of all kinds ---- */

#define LAYER_ADDRESS(name) &sh_layer_##name,
const shoal_module_type *const sh_module_types[] = {SH_KINDS(LAYER_ADDRESS) NULL};
