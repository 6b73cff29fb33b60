/* Layers with parameters, except the recurrent ones: Linear, Conv2d, Embedding, LayerNorm. */
#include "nn/layers.h"
#include "nn/init.h"

#include "base/error.h"

#include <stdio.h>

/* ---- Linear: in, out, no bias ---- */

static shoal_err linear_init(shoal_module *self, const double *settings)
{
    int64_t in, out;
    SH_TRY(sh_setting(self, 0, "in", 1, &in));
    SH_TRY(sh_setting(self, 1, "out", 1, &out));
    return sh_init_weight_and_bias(self, SHOAL_SHAPE(out, in), settings[2] == 0);
}

static shoal_tensor *linear_forward(shoal_module *self, shoal_tensor *x)
{
    return shoal_linear(x, sh_module_parameter(self, 0), shoal_module_parameter_at(self, 1));
}

static void linear_describe(const shoal_module *self, char *buffer, size_t capacity)
{
    const double *s = self->settings;
    snprintf(buffer, capacity, "in_features=%.0f, out_features=%.0f, bias=%s", s[0], s[1],
             s[2] == 0 ? "True" : "False");
}

const shoal_module_type sh_layer_linear = {
    .name = "Linear",
    .init = linear_init,
    .forward = linear_forward,
    .describe = linear_describe,
};

shoal_module *shoal_linear_create(int64_t in, int64_t out, bool bias)
{
    return shoal_module_create(&sh_layer_linear, 3, (double[]){(double)in, (double)out, !bias});
}

/* ---- Conv2d ---- */

typedef enum conv2d_setting {
    CONV_IN,
    CONV_OUT,
    CONV_SIZE, /* this and the next three have two values each */
    CONV_STRIDE = 4,
    CONV_PADDING = 6,
    CONV_DILATION = 8,
    CONV_GROUPS = 10,
    CONV_NO_BIAS,
    CONV_SETTINGS,
} conv2d_setting;

/* Returns the setting, or the default 1 if it is 0. */
static int64_t or_one(double setting)
{
    return setting == 0 ? 1 : (int64_t)setting;
}

static shoal_err conv2d_check(const shoal_module *self)
{
    static const struct {
        int setting;
        const char *name;
        int64_t low;
    } rules[] = {{CONV_IN, "in", 1},
                 {CONV_OUT, "out", 1},
                 {CONV_SIZE, "size", 1},
                 {CONV_SIZE + 1, "size", 1},
                 {CONV_STRIDE, "stride", 0},
                 {CONV_STRIDE + 1, "stride", 0},
                 {CONV_PADDING, "padding", 0},
                 {CONV_PADDING + 1, "padding", 0},
                 {CONV_DILATION, "dilation", 0},
                 {CONV_DILATION + 1, "dilation", 0},
                 {CONV_GROUPS, "groups", 0}};
    for (size_t i = 0; i < sizeof rules / sizeof rules[0]; i++) {
        int64_t unused;
        SH_TRY(sh_setting(self, rules[i].setting, rules[i].name, rules[i].low, &unused));
    }
    return SHOAL_OK;
}

static shoal_err conv2d_init(shoal_module *self, const double *s)
{
    SH_TRY(conv2d_check(self));
    int64_t in = (int64_t)s[CONV_IN], out = (int64_t)s[CONV_OUT], groups = or_one(s[CONV_GROUPS]);
    if (in % groups != 0 || out % groups != 0) {
        return sh_fail(SHOAL_EINVAL, "Conv2d: %lld and %lld channels cannot be divided into %lld groups", (long long)in,
                       (long long)out, (long long)groups);
    }
    shoal_conv2d_options *o = shoal_module_state(self);
    for (int d = 0; d < 2; d++) {
        o->stride[d] = or_one(s[CONV_STRIDE + d]);
        o->padding[d] = (int64_t)s[CONV_PADDING + d];
        o->dilation[d] = or_one(s[CONV_DILATION + d]);
    }
    o->groups = groups;
    const int64_t shape[] = {out, in / groups, (int64_t)s[CONV_SIZE], (int64_t)s[CONV_SIZE + 1]};
    return sh_init_weight_and_bias(self, 4, shape, s[CONV_NO_BIAS] == 0);
}

static shoal_tensor *conv2d_forward(shoal_module *self, shoal_tensor *x)
{
    return shoal_conv2d(x, sh_module_parameter(self, 0), shoal_module_parameter_at(self, 1), shoal_module_state(self));
}

/* Writes ", name=(a, b)" unless both are the default. */
static int describe_pair(char *buffer, size_t capacity, const char *name, const int64_t *pair, int64_t usual)
{
    if (pair[0] == usual && pair[1] == usual) {
        return 0;
    }
    return snprintf(buffer, capacity, ", %s=(%lld, %lld)", name, (long long)pair[0], (long long)pair[1]);
}

static void conv2d_describe(const shoal_module *self, char *buffer, size_t capacity)
{
    const double *s = self->settings;
    const shoal_conv2d_options *o = shoal_module_state(self);
    char rest[160] = "";
    int n = describe_pair(rest, sizeof rest, "padding", o->padding, 0);
    n += describe_pair(rest + n, sizeof rest - (size_t)n, "dilation", o->dilation, 1);
    if (o->groups != 1) {
        n += snprintf(rest + n, sizeof rest - (size_t)n, ", groups=%lld", (long long)o->groups);
    }
    snprintf(rest + n, sizeof rest - (size_t)n, "%s", s[CONV_NO_BIAS] == 0 ? "" : ", bias=False");
    snprintf(buffer, capacity, "%.0f, %.0f, kernel_size=(%.0f, %.0f), stride=(%lld, %lld)%s", s[CONV_IN], s[CONV_OUT],
             s[CONV_SIZE], s[CONV_SIZE + 1], (long long)o->stride[0], (long long)o->stride[1], rest);
}

const shoal_module_type sh_layer_conv2d = {
    .name = "Conv2d",
    .state_size = sizeof(shoal_conv2d_options),
    .init = conv2d_init,
    .forward = conv2d_forward,
    .describe = conv2d_describe,
};

shoal_module *shoal_conv2d_create_with(int64_t in, int64_t out, const int64_t size[2],
                                       const shoal_conv2d_options *options, bool bias)
{
    SH_GIVEN_OR_NULL(size);
    shoal_conv2d_options o = options ? *options : (shoal_conv2d_options){0};
    double settings[CONV_SETTINGS] = {
        [CONV_IN] = (double)in,
        [CONV_OUT] = (double)out,
        [CONV_GROUPS] = (double)o.groups,
        [CONV_NO_BIAS] = !bias,
    };
    for (int d = 0; d < 2; d++) {
        settings[CONV_SIZE + d] = size ? (double)size[d] : 0;
        settings[CONV_STRIDE + d] = (double)o.stride[d];
        settings[CONV_PADDING + d] = (double)o.padding[d];
        settings[CONV_DILATION + d] = (double)o.dilation[d];
    }
    return shoal_module_create(&sh_layer_conv2d, CONV_SETTINGS, settings);
}

shoal_module *shoal_conv2d_create(int64_t in, int64_t out, int64_t size, int64_t stride, int64_t padding)
{
    shoal_conv2d_options o = {.stride = {stride, stride}, .padding = {padding, padding}};
    return shoal_conv2d_create_with(in, out, (int64_t[]){size, size}, &o, true);
}

/* ---- Embedding: count, width ---- */

static shoal_err embedding_init(shoal_module *self, const double *settings)
{
    (void)settings;
    int64_t count, width;
    SH_TRY(sh_setting(self, 0, "count", 1, &count));
    SH_TRY(sh_setting(self, 1, "width", 1, &width));
    return sh_module_add_parameter(self, "weight", sh_init_normal(SHOAL_SHAPE(count, width)));
}

static shoal_tensor *embedding_forward(shoal_module *self, shoal_tensor *x)
{
    return shoal_embedding(sh_module_parameter(self, 0), x);
}

static void embedding_describe(const shoal_module *self, char *buffer, size_t capacity)
{
    snprintf(buffer, capacity, "%.0f, %.0f", self->settings[0], self->settings[1]);
}

const shoal_module_type sh_layer_embedding = {
    .name = "Embedding",
    .init = embedding_init,
    .forward = embedding_forward,
    .describe = embedding_describe,
};

shoal_module *shoal_embedding_create(int64_t count, int64_t width)
{
    return shoal_module_create(&sh_layer_embedding, 2, (double[]){(double)count, (double)width});
}

/* ---- LayerNorm: width, eps (0 means 1e-5) ---- */

static double layer_norm_eps(const shoal_module *self)
{
    return self->settings[1] > 0 ? self->settings[1] : 1e-5;
}

static shoal_err layer_norm_init(shoal_module *self, const double *settings)
{
    (void)settings;
    int64_t width;
    SH_TRY(sh_setting(self, 0, "width", 1, &width));
    SH_TRY(sh_module_add_parameter(self, "weight", sh_init_full(1, SHOAL_SHAPE(width))));
    return sh_module_add_parameter(self, "bias", sh_init_full(0, SHOAL_SHAPE(width)));
}

static shoal_tensor *layer_norm_forward(shoal_module *self, shoal_tensor *x)
{
    return shoal_layer_norm(x, sh_module_parameter(self, 0), sh_module_parameter(self, 1), 1, layer_norm_eps(self));
}

static void layer_norm_describe(const shoal_module *self, char *buffer, size_t capacity)
{
    snprintf(buffer, capacity, "(%.0f,), eps=%g, elementwise_affine=True", self->settings[0], layer_norm_eps(self));
}

const shoal_module_type sh_layer_layer_norm = {
    .name = "LayerNorm",
    .init = layer_norm_init,
    .forward = layer_norm_forward,
    .describe = layer_norm_describe,
};

shoal_module *shoal_layer_norm_create(int64_t width)
{
    return shoal_module_create(&sh_layer_layer_norm, 1, (double[]){(double)width});
}
