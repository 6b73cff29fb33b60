/* Modules: parameters, buffers and children by name, and a forward function. Names and default initialisations are
 * PyTorch's, so weights go both ways.
 *
 * The caller owns what a create returns; a parent owns its children and, when it cannot take one, destroys it, so that
 * constructors can be nested. Parameters are leaf tensors that need gradients; who keeps one longer than its module
 * retains it. Initial values come from the thread's generator (shoal_manual_seed).
 *
 * One thread uses a module at a time; processes share its parameters after shoal_module_share.
 *
 * A module of one's own:
 *
 *     static shoal_err net_init(shoal_module *self, const double *settings)
 *     {
 *         int64_t n = (int64_t)settings[0];
 *         shoal_module *fc1 = shoal_linear_create(784, n, true);
 *         shoal_module *fc2 = shoal_linear_create(n, 10, true);
 *         shoal_err err = shoal_module_add_child(self, "fc1", fc1);
 *         shoal_err err2 = shoal_module_add_child(self, "fc2", fc2);
 *         return err ? err : err2;
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

/* A kind of module. Settings are numbers, so that a module can be built again in another process from its kind's name and
 * its settings. */
#define SHOAL_MODULE_SETTINGS 16

typedef struct shoal_module_type {
    const char *name;
    size_t state_size; /* bytes of state that each module of this kind has, zeroed before init; shoal_module_state */

    /* Adds parameters, buffers and children; may be NULL. settings has SHOAL_MODULE_SETTINGS numbers, those not given 0. */
    shoal_err (*init)(shoal_module *self, const double *settings);
    shoal_tensor *(*forward)(shoal_module *self, shoal_tensor *x);

    /* May be NULL: frees what init put into the state, not parameters and children. Called after a failed init too. */
    void (*fini)(shoal_module *self);

    /* May be NULL: writes what shoal_module_format puts between the parentheses, at most capacity bytes with the NUL.
     * Without it the settings stand there as numbers. */
    void (*describe)(const shoal_module *self, char *buffer, size_t capacity);
} shoal_module_type;

/* Makes a module of a kind, in training mode. type must stay as long as the module. NULL: what init returned, SHOAL_ENOMEM,
 * SHOAL_EINVAL for too many settings or a kind without name or forward. */
shoal_module *shoal_module_create(const shoal_module_type *type, size_t count, const double *settings);

/* Destroys a module and its children. NULL is allowed; nothing happens to a child, which is its parent's. */
void shoal_module_destroy(shoal_module *module);

/* The state, the kind's name and the settings of a module. Of NULL: NULL. The state is aligned for any type. */
void *shoal_module_state(const shoal_module *module);
const char *shoal_module_type_name(const shoal_module *module);
const double *shoal_module_settings(const shoal_module *module);

/* Makes a kind known by its name, so that such a module can arrive from another process. Call it before shoal_init. type
 * must stay. The kinds of this library are known. Errors: SHOAL_ESTATE when the name is taken by another. */
SHOAL_MUST_USE shoal_err shoal_module_register(const shoal_module_type *type);

/* Add a tensor or a child to a module, in init or afterwards. add_parameter and add_buffer take over the caller's reference, add_child the module, also when they
 * fail. A name has no dot. A float parameter is set to need a gradient; others stay as
 * they are. A parameter is contiguous. Errors: SHOAL_EINVAL for a name that is taken or wrong, a tensor that is no leaf, and
 * a child that has a parent already (which keeps it) or stands above the module; SHOAL_ELIMIT for dotted names over
 * SHOAL_MODULE_NAME bytes; SHOAL_ENOMEM. */
#define SHOAL_MODULE_NAME 239
SHOAL_MUST_USE shoal_err shoal_module_add_parameter(shoal_module *module, const char *name, shoal_tensor *t);
SHOAL_MUST_USE shoal_err shoal_module_add_buffer(shoal_module *module, const char *name, shoal_tensor *t);
SHOAL_MUST_USE shoal_err shoal_module_add_child(shoal_module *module, const char *name, shoal_module *child);

/* Runs a module; the result belongs to the scope, what was computed on the way is let go. NULL gives NULL; so
 * does a forward that fails, with the error that it told, or SHOAL_EINVAL when it told none. */
shoal_tensor *shoal_module_forward(shoal_module *module, shoal_tensor *x);

/* Set and get training mode, which is on at first; for the module and all below it. */
void shoal_module_train(shoal_module *module, bool training);
bool shoal_module_training(const shoal_module *module);

/* An iterator over all parameters and buffers, with those of children, by dotted names, in PyTorch's order: a module's parameters as they were
 * added, its buffers, then its children's. The tensor and the name are borrowed. */
typedef struct shoal_named {
    const char *name; /* valid until the next call with the same iterator */
    shoal_tensor *tensor;
    bool is_buffer;
    struct shoal_named_private {
        size_t at;
        char text[256];
    } private_;
} shoal_named;

/* Goes over all parameters and buffers. Begin with a zeroed shoal_named. SHOAL_END after the last. */
SHOAL_MUST_USE shoal_err shoal_module_next(const shoal_module *module, shoal_named *it);

/* Find a parameter, buffer or child by its dotted name; NULL and SHOAL_ENOENT. */
shoal_tensor *shoal_module_get(const shoal_module *module, const char *name);
shoal_module *shoal_module_child(const shoal_module *module, const char *name);

/* The parameters and children of a module itself by place, for forward functions. NULL beyond the last. */
shoal_tensor *shoal_module_parameter_at(const shoal_module *module, size_t i);
shoal_module *shoal_module_child_at(const shoal_module *module, size_t i);

/* The number of elements of all parameters; one that stands under two names counts once. */
int64_t shoal_module_count(const shoal_module *module);

/* Zeroes all grads, for the next backward. Ask shoal_tensor_grad again instead of keeping what it returned. */
void shoal_module_zero_grad(shoal_module *module);

/* Copies the values of another module of the same names and shapes. Errors: SHOAL_EINVAL, which names the first that differs;
 * nothing is copied then. */
SHOAL_MUST_USE shoal_err shoal_module_copy(shoal_module *to, const shoal_module *from);

/* Writes a module as text: kinds, settings and children, like PyTorch's. Returns the length of the whole text; with a capacity of 0
 * buffer may be NULL. */
size_t shoal_module_format(const shoal_module *module, char *buffer, size_t capacity);

/* Make a module of one of the library's kinds. A stride of 0 is the default: 1, or a pool's size; options may be NULL. Errors: SHOAL_EINVAL for numbers out of range, named. */
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

/* Makes an LSTM: x [N, T, in] to [N, T, hidden] (the last layer's h of each step), from zeros. layers 0 is 1. */
shoal_module *shoal_lstm_create(int64_t in, int64_t hidden, int64_t layers);

/* Makes an actor and critic for environments: observations [N, observation] to [N, actions + 1], the logits of the policy and, in the last
 * column, the value of the state. Two networks of one hidden layer (0: 64) each: "policy1", "policy2", "value1", "value2". */
shoal_module *shoal_actor_critic_create(int64_t observation, int64_t actions, int64_t hidden);

/* Makes a module that runs its children one after another. They are named "0", "1", … A NULL among them destroys the others and gives NULL. */
shoal_module *shoal_sequential_create(size_t count, shoal_module *const *children);
#ifndef __cplusplus
#define shoal_sequential(...)                                                                                          \
    shoal_sequential_create(sizeof((shoal_module *[]){__VA_ARGS__}) / sizeof(shoal_module *),                          \
                            (shoal_module *[]){__VA_ARGS__})
#endif

/* Makes a ready model: "mnist-cnn", "fedavg-cnn", "mlp", "logistic", "lenet5" over [N, 1, 28, 28], "lstm-classifier" (rows as
 * steps); all give log-probabilities of 10 classes. NULL and SHOAL_ENOENT, with the names, for another. The list ends with
 * NULL. */
shoal_module *shoal_model_create(const char *name);
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
