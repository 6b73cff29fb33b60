/* The ready-made models. All take [N, 1, 28, 28] and return log-probabilities [N, 10]. Their forwards pass the
 * children's parameters to fused ops where these exist, and call the children's forwards elsewhere. */
#include "nn/layers.h"

#include "base/error.h"

#include <stdio.h>
#include <string.h>

#define CLASSES 10

typedef struct part {
    const char *name;
    shoal_module *module;
} part;

/* Adds all parts. After an error it destroys the remaining ones,
 * so that the caller can list the constructors inline. */
static shoal_err add_parts(shoal_module *self, size_t count, const part *parts)
{
    shoal_err err = SHOAL_OK;
    for (size_t i = 0; i < count; i++) {
        if (err == SHOAL_OK) {
            err = sh_module_add_child(self, parts[i].name, parts[i].module);
        } else {
            shoal_module_destroy(parts[i].module);
        }
    }
    return err;
}

#define ADD_PARTS(self, ...) add_parts(self, sizeof((part[]){__VA_ARGS__}) / sizeof(part), (part[]){__VA_ARGS__})

/* Return the weight or bias of child i. */
static shoal_tensor *weight(const shoal_module *self, size_t i)
{
    return sh_module_parameter(sh_module_child_at(self, i), 0);
}

static shoal_tensor *bias(const shoal_module *self, size_t i)
{
    return sh_module_parameter(sh_module_child_at(self, i), 1);
}

/* max_pool(relu(conv)) equals relu(max_pool(conv)), so one fused op serves networks of either form. */
static shoal_tensor *block(const shoal_module *self, size_t i, shoal_tensor *x, int64_t padding, double p)
{
    return shoal_conv2d_pool_relu(x, weight(self, i), bias(self, i), padding, p);
}

static shoal_tensor *dense_relu(const shoal_module *self, size_t i, shoal_tensor *x)
{
    return shoal_linear_relu(x, weight(self, i), bias(self, i));
}

static shoal_tensor *classify(const shoal_module *self, size_t i, shoal_tensor *x)
{
    return shoal_log_softmax(shoal_linear(x, weight(self, i), bias(self, i)), 1);
}

/* ---- mnist-cnn: the network of PyTorch's MNIST Hogwild example, 21,840 parameters ---- */

enum { MNIST_CONV1, MNIST_CONV2, MNIST_CONV2_DROP, MNIST_FC1, MNIST_FC2 };

static shoal_err mnist_cnn_init(shoal_module *self, const double *settings)
{
    (void)settings;
    return ADD_PARTS(self, {"conv1", shoal_conv2d_create(1, 10, 5, 1, 0)},
                     {"conv2", shoal_conv2d_create(10, 20, 5, 1, 0)}, {"conv2_drop", shoal_dropout2d_create(0.5)},
                     {"fc1", shoal_linear_create(320, 50, true)}, {"fc2", shoal_linear_create(50, CLASSES, true)});
}

static shoal_tensor *mnist_cnn_forward(shoal_module *self, shoal_tensor *x)
{
    x = block(self, MNIST_CONV1, x, 0, 0);
    x = block(self, MNIST_CONV2, x, 0, sh_layer_dropout_p(sh_module_child_at(self, MNIST_CONV2_DROP)));
    x = dense_relu(self, MNIST_FC1, shoal_flatten(x, 1));
    x = shoal_dropout(x, self->training ? 0.5 : 0);
    return classify(self, MNIST_FC2, x);
}

/* ---- fedavg-cnn: the CNN of McMahan et al. 2017, 1,663,370 parameters ---- */

static shoal_err fedavg_cnn_init(shoal_module *self, const double *settings)
{
    (void)settings;
    return ADD_PARTS(self, {"conv1", shoal_conv2d_create(1, 32, 5, 1, 2)},
                     {"conv2", shoal_conv2d_create(32, 64, 5, 1, 2)}, {"fc1", shoal_linear_create(3136, 512, true)},
                     {"fc2", shoal_linear_create(512, CLASSES, true)});
}

static shoal_tensor *fedavg_cnn_forward(shoal_module *self, shoal_tensor *x)
{
    x = block(self, 1, block(self, 0, x, 2, 0), 2, 0);
    return classify(self, 3, dense_relu(self, 2, shoal_flatten(x, 1)));
}

/* ---- mlp: the 2NN of McMahan et al. 2017, 199,210 parameters ---- */

static shoal_err mlp_init(shoal_module *self, const double *settings)
{
    (void)settings;
    return ADD_PARTS(self, {"fc1", shoal_linear_create(784, 200, true)}, {"fc2", shoal_linear_create(200, 200, true)},
                     {"fc3", shoal_linear_create(200, CLASSES, true)});
}

static shoal_tensor *mlp_forward(shoal_module *self, shoal_tensor *x)
{
    return classify(self, 2, dense_relu(self, 1, dense_relu(self, 0, shoal_flatten(x, 1))));
}

/* ---- logistic regression, 7,850 parameters ---- */

static shoal_err logistic_init(shoal_module *self, const double *settings)
{
    (void)settings;
    return ADD_PARTS(self, {"fc", shoal_linear_create(784, CLASSES, true)});
}

static shoal_tensor *logistic_forward(shoal_module *self, shoal_tensor *x)
{
    return classify(self, 0, shoal_flatten(x, 1));
}

/* ---- lenet5: the layers of LeCun et al. 1998, with max-pools and relu, 61,706 parameters ---- */

static shoal_err lenet5_init(shoal_module *self, const double *settings)
{
    (void)settings;
    return ADD_PARTS(self, {"conv1", shoal_conv2d_create(1, 6, 5, 1, 2)},
                     {"conv2", shoal_conv2d_create(6, 16, 5, 1, 0)}, {"fc1", shoal_linear_create(400, 120, true)},
                     {"fc2", shoal_linear_create(120, 84, true)}, {"fc3", shoal_linear_create(84, CLASSES, true)});
}

static shoal_tensor *lenet5_forward(shoal_module *self, shoal_tensor *x)
{
    x = block(self, 1, block(self, 0, x, 2, 0), 0, 0);
    return classify(self, 4, dense_relu(self, 3, dense_relu(self, 2, shoal_flatten(x, 1))));
}

/* ---- lstm-classifier: the rows of an image as steps, 82,186 parameters ---- */

static shoal_err lstm_classifier_init(shoal_module *self, const double *settings)
{
    (void)settings;
    return ADD_PARTS(self, {"lstm", shoal_lstm_create(28, 128, 1)}, {"fc", shoal_linear_create(128, CLASSES, true)});
}

static shoal_tensor *lstm_classifier_forward(shoal_module *self, shoal_tensor *x)
{
    shoal_tensor *rows = shoal_reshape(x, SHOAL_SHAPE(-1, 28, 28));
    return classify(self, 1, sh_layer_lstm_last(sh_module_child_at(self, 0), rows));
}

/* ---- by name ---- */

static const shoal_module_type models[] = {
    {.name = "mnist-cnn", .init = mnist_cnn_init, .forward = mnist_cnn_forward},
    {.name = "fedavg-cnn", .init = fedavg_cnn_init, .forward = fedavg_cnn_forward},
    {.name = "mlp", .init = mlp_init, .forward = mlp_forward},
    {.name = "logistic", .init = logistic_init, .forward = logistic_forward},
    {.name = "lenet5", .init = lenet5_init, .forward = lenet5_forward},
    {.name = "lstm-classifier", .init = lstm_classifier_init, .forward = lstm_classifier_forward},
};

const shoal_module_type *const sh_model_types[] = {&models[0], &models[1], &models[2], &models[3],
                                                   &models[4], &models[5], NULL};

static const char *const names[] = {"mnist-cnn", "fedavg-cnn", "mlp", "logistic", "lenet5", "lstm-classifier", NULL};

_Static_assert(sizeof sh_model_types == sizeof names, "a name for each model");
_Static_assert(sizeof models / sizeof models[0] + 1 == sizeof names / sizeof names[0], "a model for each name");

const char *const *shoal_model_names(void)
{
    return names;
}

shoal_module *shoal_model_create(const char *name)
{
    SH_GIVEN_OR_NULL(name);
    char known[256] = "";
    size_t length = 0;
    for (size_t i = 0; names[i]; i++) {
        if (name && strcmp(models[i].name, name) == 0) {
            return shoal_module_create(&models[i], 0, NULL);
        }
        length += (size_t)snprintf(known + length, sizeof known - length, "%s%s", i > 0 ? ", " : "", names[i]);
    }
    (void)sh_fail(SHOAL_ENOENT, "unknown model '%s'; the models are %s", name ? name : "(null)", known);
    return NULL;
}
