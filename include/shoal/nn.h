/* Modules: neural networks and their layers. A module has named parameters, buffers and children, and a forward
 * function.
 *
 * Names and initial values are those of PyTorch, so weights can be exchanged in both directions. Initial values come
 * from this thread's random generator (shoal_manual_seed).
 *
 * The caller owns the result of a create. A parent owns its children; if it cannot take one, it destroys it, so calls
 * can be nested. Parameters are leaf tensors that need gradients. To use a parameter for longer than its module,
 * retain it. Functions that make a module return NULL on failure.
 *
 * Only one thread at a time may use a module. Processes share the parameters of a module after shoal_module_share.
 * Nothing here blocks, except shoal_module_to, and shoal_module_copy between devices.
 *
 * A module type of the program:
 *
 *     static shoal_err net_init(shoal_module *self, const double *settings)
 *     {
 *         int64_t hidden = (int64_t)settings[0];
 *         shoal_err err = shoal_module_add_child(
 *             self, "fc1", shoal_linear_create(784, hidden, true));
 *         return err ? err : shoal_module_add_child(
 *             self, "fc2", shoal_linear_create(hidden, 10, true));
 *     }
 *
 *     static shoal_tensor *net_forward(shoal_module *self, shoal_tensor *x)
 *     {
 *         shoal_module *fc1 = shoal_module_child_at(self, 0);
 *         shoal_module *fc2 = shoal_module_child_at(self, 1);
 *         x = shoal_relu(shoal_module_forward(fc1, x));
 *         return shoal_log_softmax(shoal_module_forward(fc2, x), 1);
 *     }
 *
 *     static const shoal_module_type net = {
 *         .name = "net", .init = net_init, .forward = net_forward};
 *     shoal_module *m = shoal_module_create(&net, 1, (double[]){200});
 */
#ifndef SHOAL_NN_H
#define SHOAL_NN_H

#include <shoal/ops.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct shoal_module shoal_module;

/* A module type. Settings are numbers, so that another process can build the same module from the name of its type
 * and its settings. */
#define SHOAL_MODULE_SETTINGS 16

typedef struct shoal_module_type {
    const char *name;
    size_t state_size; /* bytes of state in each module (shoal_module_state), zeroed before init */

    /* May be NULL. Adds parameters, buffers and children. settings has SHOAL_MODULE_SETTINGS numbers; those that were
     * not given are 0. */
    shoal_err (*init)(shoal_module *self, const double *settings);
    /* Computes the result of the module for x. */
    shoal_tensor *(*forward)(shoal_module *self, shoal_tensor *x);

    /* May be NULL. Frees what init put into the state, not parameters and children. Called after a failed init too. */
    void (*fini)(shoal_module *self);

    /* May be NULL. Writes what shoal_module_format shows between the parentheses, at most capacity bytes, the NUL
     * included. Without it, shoal_module_format shows the settings. */
    void (*describe)(const shoal_module *self, char *buffer, size_t capacity);
} shoal_module_type;

/* Makes a module of a type, in training mode. The caller owns it: shoal_module_destroy. type must exist as long as
 * the module. Errors: the error of init; SHOAL_EINVAL if there are too many settings, or the type has no name or no
 * forward; SHOAL_ENOMEM. */
shoal_module *shoal_module_create(const shoal_module_type *type, size_t count, const double *settings);

/* Destroys a module and its children. Does nothing for NULL and for a child, which belongs to its parent. Never
 * changes the last error. */
void shoal_module_destroy(shoal_module *module);

/* Return the state, the name of the type, or the settings of a module. The module owns them. The state is aligned for
 * any type. They return NULL for NULL. Cannot fail. */
void *shoal_module_state(const shoal_module *module);
const char *shoal_module_type_name(const shoal_module *module);
const double *shoal_module_settings(const shoal_module *module);

/* Registers a module type by its name, so that this process can receive modules of this type. Call it before
 * shoal_init. The types of this library are already registered. type must exist until the process ends. Errors:
 * SHOAL_ESTATE if another type has the name; SHOAL_EINVAL if the type has no name or no forward; SHOAL_ENOMEM. */
SHOAL_MUST_USE shoal_err shoal_module_register(const shoal_module_type *type);

/* Add a parameter, a buffer or a child to a module, in init or later. They take over the caller's reference to the
 * tensor, or the child, on failure too. A name must not have a dot. A parameter must be contiguous; a float parameter
 * is set to need a gradient. Errors: SHOAL_EINVAL if the name is taken or invalid, the tensor is not a leaf, or the
 * child already has a parent (which keeps it) or contains the module; SHOAL_ELIMIT if a dotted name is longer than
 * SHOAL_MODULE_NAME bytes; SHOAL_ENOMEM. */
#define SHOAL_MODULE_NAME 239
SHOAL_MUST_USE shoal_err shoal_module_add_parameter(shoal_module *module, const char *name, shoal_tensor *t);
SHOAL_MUST_USE shoal_err shoal_module_add_buffer(shoal_module *module, const char *name, shoal_tensor *t);
SHOAL_MUST_USE shoal_err shoal_module_add_child(shoal_module *module, const char *name, shoal_module *child);

/* Runs a module: returns its result for x. The result belongs to the scope; the scope's intermediate results are
 * released. NULL gives NULL. Errors: the error of the module's forward function, or SHOAL_EINVAL if it returned NULL
 * without setting one. */
shoal_tensor *shoal_module_forward(shoal_module *module, shoal_tensor *x);

/* Sets the training mode of a module and all modules below it. It is on at first. In training mode dropout is active.
 * NULL is allowed. */
void shoal_module_train(shoal_module *module, bool training);

/* Returns whether a module is in training mode; false for NULL. */
bool shoal_module_training(const shoal_module *module);

/* An iterator over named tensors, for shoal_module_next and shoal_optimizer_next. Zero it before the first call. The
 * module or optimiser owns the tensor. */
typedef struct shoal_named {
    const char *name; /* valid until the next call with the same iterator */
    shoal_tensor *tensor;
    bool is_buffer;
    struct shoal_named_private {
        size_t at;
        char text[256];
    } private_;
} shoal_named;

/* Gets the next parameter or buffer of a module and its children, with its dotted name. The order is PyTorch's: a
 * module's parameters as they were added, its buffers, then those of its children. Begin with a zeroed shoal_named.
 * Returns SHOAL_END after the last. */
SHOAL_MUST_USE shoal_err shoal_module_next(const shoal_module *module, shoal_named *it);

/* Find a parameter or buffer (get) or a child by its dotted name. The module owns the result. Errors: SHOAL_ENOENT if
 * there is none. */
shoal_tensor *shoal_module_get(const shoal_module *module, const char *name);
shoal_module *shoal_module_child(const shoal_module *module, const char *name);

/* Return the i-th parameter or child of a module, without those of its children. They are for forward functions. The
 * module owns the result. They return NULL if i is out of range, and do not change the last error. */
shoal_tensor *shoal_module_parameter_at(const shoal_module *module, size_t i);
shoal_module *shoal_module_child_at(const shoal_module *module, size_t i);

/* Returns the number of elements of all parameters of a module. A parameter with two names counts once. Returns 0 for
 * NULL. */
int64_t shoal_module_count(const shoal_module *module);

/* Zeroes all gradients of a module, for the next backward. Do not keep gradients across this call: call
 * shoal_tensor_grad again. NULL is allowed. */
void shoal_module_zero_grad(shoal_module *module);

/* Moves the parameters, buffers and gradients of a module to a device, in place: the tensors remain, with other
 * elements behind them, so an optimiser made before still works, and parameters that share memory still do. The
 * elements of a shared module are private afterwards; other processes keep the old ones. Blocks until they are there.
 * If it fails, some may have moved: call it again. Errors: as for shoal_empty_on; SHOAL_ESTATE if another library holds
 * a tensor (shoal_tensor_to_dlpack). */
SHOAL_MUST_USE shoal_err shoal_module_to(shoal_module *module, shoal_device device);

/* Copies the parameters and buffers of one module to another with the same names and shapes, which may be on another
 * device. Errors: SHOAL_EINVAL if the modules differ (the text names the first difference); nothing is copied then. */
SHOAL_MUST_USE shoal_err shoal_module_copy(shoal_module *to, const shoal_module *from);

/* Writes a module as text for people: types, settings and children, in the style of PyTorch. Writes at most capacity
 * bytes, the NUL included. With a capacity of 0, buffer may be NULL. Returns the length of the whole text without the
 * NUL. */
size_t shoal_module_format(const shoal_module *module, char *buffer, size_t capacity);

/* Make a layer. The caller owns it. A stride of 0 is the default: 1 for a convolution, size for a pooling. options
 * may be NULL. Returns NULL on failure. Errors: SHOAL_EINVAL if a number is out of range (the text names it);
 * SHOAL_ENOMEM. */
shoal_module *shoal_linear_create(int64_t in, int64_t out, bool bias);
shoal_module *shoal_conv2d_create(int64_t in, int64_t out, int64_t size, int64_t stride, int64_t padding);
shoal_module *shoal_conv2d_create_with(int64_t in, int64_t out, const int64_t size[2],
                                       const shoal_conv2d_options *options, bool bias);
shoal_module *shoal_max_pool2d_create(int64_t size, int64_t stride);
shoal_module *shoal_avg_pool2d_create(int64_t size, int64_t stride);
shoal_module *shoal_dropout_create(double p);
shoal_module *shoal_dropout2d_create(double p);
shoal_module *shoal_relu_create(void);
shoal_module *shoal_tanh_create(void);
shoal_module *shoal_sigmoid_create(void);
shoal_module *shoal_gelu_create(void);
shoal_module *shoal_log_softmax_create(int dim);
shoal_module *shoal_flatten_create(void);
shoal_module *shoal_embedding_create(int64_t count, int64_t width);
shoal_module *shoal_layer_norm_create(int64_t width);

/* Makes an LSTM. It maps x [N, T, in] to [N, T, hidden], the output of the last layer at each step, and starts from
 * zeros. layers 0 means 1. The caller owns it. Errors: as for shoal_linear_create. */
shoal_module *shoal_lstm_create(int64_t in, int64_t hidden, int64_t layers);

/* Makes an actor-critic model for environments. It maps observations [N, observation] to [N, actions + 1]: the logits
 * of the policy and, in the last column, the value of the state. It consists of two networks with one hidden layer
 * each (hidden 0 means 64), with children "policy1", "policy2", "value1" and "value2". The caller owns it. Errors: as
 * for shoal_linear_create. */
shoal_module *shoal_actor_critic_create(int64_t observation, int64_t actions, int64_t hidden);

/* Make a module that runs its children one after another. The children are named "0", "1" and so on. It takes over
 * the children, on failure too; if one is NULL, it destroys the others and returns NULL. The caller owns the result.
 * shoal_sequential(a, b, c) takes them as arguments. Errors: as for shoal_module_add_child. */
shoal_module *shoal_sequential_create(size_t count, shoal_module *const *children);
#ifndef __cplusplus
#define shoal_sequential(...)                                                                                          \
    shoal_sequential_create(sizeof((shoal_module *[]){__VA_ARGS__}) / sizeof(shoal_module *),                          \
                            (shoal_module *[]){__VA_ARGS__})
#endif

/* Makes a model by its name: "mnist-cnn", "fedavg-cnn", "mlp", "logistic" or "lenet5" for images [N, 1, 28, 28], or
 * "lstm-classifier", which reads the rows of such images as steps. All return log-probabilities of 10 classes. The
 * caller owns the model. Errors: SHOAL_ENOENT if there is no such model (the text lists the names); SHOAL_ENOMEM. */
shoal_module *shoal_model_create(const char *name);

/* Returns the names of all models that shoal_model_create makes, with NULL after the last. The library owns them. */
const char *const *shoal_model_names(void);

#ifdef __cplusplus
}

template <class... Module> shoal_module *shoal_sequential(Module *...children)
{
    shoal_module *const all[] = {children...};
    return shoal_sequential_create(sizeof...(Module), all);
}
#endif
#endif
