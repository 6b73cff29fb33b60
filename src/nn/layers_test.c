/* Tests of the kinds: names, shapes, initial values, results, errors, text. */
#include "nn/help_test.h"

/* The values of the tensor are in [-bound, bound), come near both ends,
 * and have the mean and variance of that distribution. */
static void ck_uniform(const shoal_tensor *t, double bound)
{
    double low = INFINITY, high = -INFINITY, sum = 0, squares = 0, n = (double)t->count;
    for (int64_t i = 0; i < t->count; i++) {
        double x = data(t)[i];
        low = fmin(low, x);
        high = fmax(high, x);
        sum += x;
        squares += x * x;
    }
    ck_assert_msg(low >= -bound && high <= bound, "%g to %g, bound %g", low, high, bound);
    if (t->count >= 200) {
        ck_assert_msg(low < -0.9 * bound && high > 0.9 * bound, "%g to %g, bound %g", low, high, bound);
        ck_assert_msg(fabs(sum / n) < 5 * bound / sqrt(3 * n), "mean %g of %g", sum / n, n);
        ck_assert_msg(fabs(squares / n / (bound * bound / 3) - 1) < 5 / sqrt(n), "variance %g", squares / n);
    }
}

START_TEST(initial_values_are_as_pytorch_draws_them)
{
    shoal_manual_seed(1);
    shoal_module *linear = shoal_linear_create(400, 300, true), *conv = shoal_conv2d_create(8, 40, 5, 1, 0),
                 *lstm = shoal_lstm_create(30, 64, 2), *norm = shoal_layer_norm_create(7),
                 *embedding = shoal_embedding_create(100, 50);
    ck_uniform(shoal_module_get(linear, "weight"), 1 / sqrt(400));
    ck_uniform(shoal_module_get(linear, "bias"), 1 / sqrt(400));
    ck_uniform(shoal_module_get(conv, "weight"), 1 / sqrt(200));
    ck_uniform(shoal_module_get(conv, "bias"), 1 / sqrt(200));
    for (shoal_named it = {0}; shoal_module_next(lstm, &it) == SHOAL_OK;) {
        ck_uniform(it.tensor, 1 / sqrt(64));
    }
    for (int i = 0; i < 7; i++) {
        ck_assert(data(shoal_module_get(norm, "weight"))[i] == 1 && data(shoal_module_get(norm, "bias"))[i] == 0);
    }
    const float *e = data(shoal_module_get(embedding, "weight"));
    double sum = 0, squares = 0, within = 0;
    for (int i = 0; i < 5000; i++) {
        sum += e[i];
        squares += e[i] * e[i];
        within += fabsf(e[i]) < 1;
    }
    ck_assert_msg(fabs(sum) < 5 * sqrt(5000) && fabs(squares / 5000 - 1) < 0.1 && fabs(within / 5000 - 0.6827) < 0.035,
                  "sum %g, squares %g, within 1: %g", sum, squares, within);
    shoal_module *const all[] = {linear, conv, lstm, norm, embedding};
    for (size_t i = 0; i < COUNT(all); i++) {
        shoal_module_destroy(all[i]);
    }
}
END_TEST

START_TEST(a_seed_gives_the_same_module)
{
    shoal_manual_seed(9);
    shoal_module *a = shoal_model_create("mnist-cnn"), *b = shoal_model_create("mnist-cnn");
    shoal_manual_seed(9);
    shoal_module *c = shoal_model_create("mnist-cnn");
    for (shoal_named it = {0}; shoal_module_next(a, &it) == SHOAL_OK;) {
        ck_assert(shoal_tensor_equal(it.tensor, shoal_module_get(c, it.name)));
        ck_assert(!shoal_tensor_equal(it.tensor, shoal_module_get(b, it.name)));
    }
    shoal_module_destroy(a);
    shoal_module_destroy(b);
    shoal_module_destroy(c);
}
END_TEST

START_TEST(names_are_those_of_pytorchs_state_dict)
{
    static const int64_t size[2] = {3, 5};
    const shoal_conv2d_options options = {.groups = 2};
    const struct {
        shoal_module *module;
        const char *names;
    } cases[] = {
        {shoal_linear_create(4, 3, true), "weight [3, 4]; bias [3]"},
        {shoal_linear_create(4, 3, false), "weight [3, 4]"},
        {shoal_conv2d_create(3, 8, 5, 0, 0), "weight [8, 3, 5, 5]; bias [8]"},
        {shoal_conv2d_create_with(4, 6, size, &options, false), "weight [6, 2, 3, 5]"},
        {shoal_conv2d_create_with(4, 6, size, NULL, true), "weight [6, 4, 3, 5]; bias [6]"},
        {shoal_embedding_create(10, 3), "weight [10, 3]"},
        {shoal_layer_norm_create(5), "weight [5]; bias [5]"},
        {shoal_lstm_create(3, 4, 2), "weight_ih_l0 [16, 3]; weight_hh_l0 [16, 4]; bias_ih_l0 [16]; bias_hh_l0 [16]; "
                                     "weight_ih_l1 [16, 4]; weight_hh_l1 [16, 4]; bias_ih_l1 [16]; bias_hh_l1 [16]"},
        {shoal_actor_critic_create(4, 2, 8),
         "policy1.weight [8, 4]; policy1.bias [8]; policy2.weight [2, 8]; policy2.bias [2]; "
         "value1.weight [8, 4]; value1.bias [8]; value2.weight [1, 8]; value2.bias [1]"},
        {shoal_max_pool2d_create(2, 0), ""},
        {shoal_avg_pool2d_create(2, 0), ""},
        {shoal_dropout_create(0), ""},
        {shoal_dropout2d_create(1), ""},
        {shoal_relu_create(), ""},
        {shoal_tanh_create(), ""},
        {shoal_sigmoid_create(), ""},
        {shoal_gelu_create(), ""},
        {shoal_log_softmax_create(-1), ""},
        {shoal_flatten_create(), ""},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        ck_assert_msg(cases[i].module != NULL, "%zu: %s", i, shoal_last_error_text());
        ck_assert_str_eq(names_of(cases[i].module), cases[i].names);
        shoal_module_destroy(cases[i].module);
    }
}
END_TEST

START_TEST(text_is_like_pytorchs)
{
    const shoal_conv2d_options options = {.stride = {2, 2}, .padding = {1, 2}, .dilation = {2, 2}, .groups = 2};
    shoal_module *m = shoal_sequential(
        shoal_linear_create(4, 3, false), shoal_relu_create(), shoal_tanh_create(), shoal_sigmoid_create(),
        shoal_gelu_create(), shoal_log_softmax_create(1), shoal_flatten_create(), shoal_embedding_create(10, 3),
        shoal_layer_norm_create(5), shoal_lstm_create(28, 128, 0), shoal_lstm_create(28, 128, 2),
        shoal_max_pool2d_create(2, 0), shoal_avg_pool2d_create(3, 1), shoal_dropout_create(0.25),
        shoal_conv2d_create_with(4, 8, (int64_t[]){3, 5}, &options, false), shoal_sequential(shoal_relu_create()),
        shoal_sequential_create(0, NULL));
    ck_assert_str_eq(text_of(m), "Sequential(\n"
                                 "  (0): Linear(in_features=4, out_features=3, bias=False)\n"
                                 "  (1): ReLU()\n"
                                 "  (2): Tanh()\n"
                                 "  (3): Sigmoid()\n"
                                 "  (4): GELU()\n"
                                 "  (5): LogSoftmax(dim=1)\n"
                                 "  (6): Flatten(start_dim=1, end_dim=-1)\n"
                                 "  (7): Embedding(10, 3)\n"
                                 "  (8): LayerNorm((5,), eps=1e-05, elementwise_affine=True)\n"
                                 "  (9): LSTM(28, 128, batch_first=True)\n"
                                 "  (10): LSTM(28, 128, num_layers=2, batch_first=True)\n"
                                 "  (11): MaxPool2d(kernel_size=2, stride=2, padding=0, dilation=1, ceil_mode=False)\n"
                                 "  (12): AvgPool2d(kernel_size=3, stride=1, padding=0)\n"
                                 "  (13): Dropout(p=0.25, inplace=False)\n"
                                 "  (14): Conv2d(4, 8, kernel_size=(3, 5), stride=(2, 2), padding=(1, 2), dilation=(2, "
                                 "2), groups=2, bias=False)\n"
                                 "  (15): Sequential(\n"
                                 "    (0): ReLU()\n"
                                 "  )\n"
                                 "  (16): Sequential()\n"
                                 ")");
    shoal_module_destroy(m);
}
END_TEST

START_TEST(numbers_out_of_range_are_named)
{
    const struct {
        shoal_module *module;
        const char *words;
    } cases[] = {
        {shoal_linear_create(0, 3, true), "Linear"},
        {shoal_linear_create(3, -1, true), "Linear"},
        {shoal_conv2d_create(0, 3, 3, 1, 0), "Conv2d"},
        {shoal_conv2d_create(1, 3, 0, 1, 0), "Conv2d"},
        {shoal_conv2d_create(1, 3, 3, -1, 0), "Conv2d"},
        {shoal_conv2d_create(1, 3, 3, 1, -1), "Conv2d"},
        {shoal_conv2d_create_with(3, 4, (int64_t[]){1, 1}, &(shoal_conv2d_options){.groups = 2}, true), "groups"},
        {shoal_conv2d_create_with(3, 4, NULL, NULL, true), "Conv2d"},
        {shoal_max_pool2d_create(0, 1), "MaxPool2d"},
        {shoal_avg_pool2d_create(2, -1), "AvgPool2d"},
        {shoal_dropout_create(-0.1), "Dropout"},
        {shoal_dropout2d_create(NAN), "Dropout2d"},
        {shoal_embedding_create(0, 2), "Embedding"},
        {shoal_layer_norm_create(0), "LayerNorm"},
        {shoal_lstm_create(3, 0, 1), "LSTM"},
        {shoal_lstm_create(3, 3, -1), "LSTM"},
        {shoal_actor_critic_create(0, 2, 0), "actor-critic"},
        {shoal_actor_critic_create(4, 0, 0), "actor-critic"},
        {shoal_actor_critic_create(4, 2, -1), "actor-critic"},
        {shoal_model_create("nothing"), "unknown model 'nothing'; the models are mnist-cnn, fedavg-cnn"},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        ck_assert_ptr_null(cases[i].module);
    }
    ck_failed(SHOAL_ENOENT, cases[COUNT(cases) - 1].words);
    ck_assert_ptr_null(shoal_conv2d_create(1, 3, 3, 1, -1));
    ck_failed(SHOAL_EINVAL, "Conv2d: padding is -1");
    ck_assert_ptr_null(shoal_model_create(NULL));
    ck_failed(SHOAL_EINVAL, "shoal_model_create: name is NULL");
}
END_TEST

/* ---- results must equal those of the ops ---- */

static void ck_same(shoal_tensor *found, shoal_tensor *wanted)
{
    ck_assert_msg(found && wanted, "%s", shoal_last_error_text());
    ck_assert(shoal_tensor_equal(found, wanted));
}

START_TEST(layers_compute_their_ops)
{
    const shoal_conv2d_options conv_options = {.stride = {2, 2}, .padding = {1, 1}};
    const shoal_pool2d_options wide = {.size = {3, 3}, .stride = {1, 1}};
    shoal_module *linear = shoal_linear_create(6, 4, true), *conv = shoal_conv2d_create(2, 3, 3, 2, 1),
                 *norm = shoal_layer_norm_create(6), *embedding = shoal_embedding_create(5, 2);
    shoal_tensor *x = shoal_uniform_(shoal_empty(SHOAL_F32, SHOAL_SHAPE(2, 2, 6, 6)), -1, 1);
    shoal_tensor *index = shoal_from_data(SHOAL_I64, (int64_t[]){4, 0, 4}, SHOAL_SHAPE(3));
    ck_same(shoal_module_forward(linear, x),
            shoal_linear(x, shoal_module_get(linear, "weight"), shoal_module_get(linear, "bias")));
    ck_same(shoal_module_forward(conv, x),
            shoal_conv2d(x, shoal_module_get(conv, "weight"), shoal_module_get(conv, "bias"), &conv_options));
    ck_same(shoal_module_forward(norm, x),
            shoal_layer_norm(x, shoal_module_get(norm, "weight"), shoal_module_get(norm, "bias"), 1, 1e-5));
    ck_same(shoal_module_forward(embedding, index), shoal_embedding(shoal_module_get(embedding, "weight"), index));
    const struct {
        shoal_module *module;
        shoal_tensor *wanted;
    } cases[] = {
        {shoal_max_pool2d_create(2, 0), shoal_max_pool2d(x, 2)},
        {shoal_avg_pool2d_create(3, 1), shoal_avg_pool2d_with(x, &wide)},
        {shoal_relu_create(), shoal_relu(x)},
        {shoal_tanh_create(), shoal_tanh(x)},
        {shoal_sigmoid_create(), shoal_sigmoid(x)},
        {shoal_gelu_create(), shoal_gelu(x)},
        {shoal_log_softmax_create(-2), shoal_log_softmax(x, -2)},
        {shoal_flatten_create(), shoal_flatten(x, 1)},
        {shoal_sequential(shoal_tanh_create(), shoal_relu_create()), shoal_relu(shoal_tanh(x))},
        {shoal_sequential_create(0, NULL), x},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        ck_same(shoal_module_forward(cases[i].module, x), cases[i].wanted);
        shoal_module_destroy(cases[i].module);
    }
    shoal_scope_release(0);
    shoal_module_destroy(linear);
    shoal_module_destroy(conv);
    shoal_module_destroy(norm);
    shoal_module_destroy(embedding);
    shoal_tensor_release(x);
    shoal_tensor_release(index);
}
END_TEST

START_TEST(actor_critic_is_two_networks)
{
    shoal_module *m = shoal_actor_critic_create(3, 2, 5);
    shoal_tensor *x = shoal_uniform_(shoal_empty(SHOAL_F32, SHOAL_SHAPE(4, 3)), -1, 1), *parts[2];
    static const char *const nets[] = {"policy", "value"};
    for (int i = 0; i < 2; i++) {
        char first[16], second[16];
        snprintf(first, sizeof first, "%s1", nets[i]);
        snprintf(second, sizeof second, "%s2", nets[i]);
        parts[i] = shoal_module_forward(shoal_module_child(m, second),
                                        shoal_relu(shoal_module_forward(shoal_module_child(m, first), x)));
    }
    shoal_tensor *y = shoal_module_forward(m, x);
    ck_assert_int_eq(shoal_tensor_size(y, 1), 3);
    ck_assert(shoal_tensor_close(y, shoal_cat(parts, 2, 1), 1e-6, 1e-6));
    shoal_scope_release(0);
    shoal_module_destroy(m);
    shoal_tensor_release(x);
}
END_TEST

START_TEST(dropouts_work_in_training_only)
{
    shoal_tensor *x = shoal_ones(SHOAL_F32, SHOAL_SHAPE(40, 50, 4));
    shoal_module *const both[] = {shoal_dropout_create(0.25), shoal_dropout2d_create(0.25)};
    shoal_manual_seed(3);
    for (int k = 0; k < 2; k++) {
        const shoal_tensor *y = shoal_module_forward(both[k], x);
        ck_assert_msg(y != NULL, "%s", shoal_last_error_text());
        int kept = 0, split = 0;
        for (int i = 0; i < 8000; i++) {
            ck_assert(data(y)[i] == 0 || fabsf(data(y)[i] - 4.0f / 3) < 1e-6f);
            kept += data(y)[i] != 0;
            split += data(y)[i] != data(y)[i / 4 * 4];
        }
        ck_assert_msg(abs(kept - 6000) < 400, "%d of 8000 kept", kept);
        ck_assert_int_eq(split > 0, k == 0);
        shoal_module_train(both[k], false);
        ck_assert_ptr_eq(shoal_module_forward(both[k], x), x);
        shoal_module_destroy(both[k]);
    }
    shoal_scope_release(0);
    shoal_tensor_release(x);
}
END_TEST

static void is_all(const shoal_tensor *t, float value)
{
    ck_assert_msg(t != NULL, "%s", shoal_last_error_text());
    for (int64_t i = 0; i < shoal_tensor_count(t); i++) {
        ck_assert(data(t)[i] == value);
    }
}

/* A probability of 1 gives zeros and zero gradients as in PyTorch, also in the convolution block. */
START_TEST(dropouts_of_everything_give_zeros)
{
    shoal_tensor *x = shoal_ones(SHOAL_F32, SHOAL_SHAPE(3, 2, 5, 7));
    shoal_tensor *w = shoal_ones(SHOAL_F32, SHOAL_SHAPE(4, 2, 2, 2));
    shoal_module *const both[] = {shoal_dropout_create(1), shoal_dropout2d_create(1)};
    ck_assert_ok(shoal_tensor_set_requires_grad(x, true));
    ck_assert_ok(shoal_tensor_set_requires_grad(w, true));
    for (int k = 0; k < 3; k++) {
        shoal_tensor *y = k < 2 ? shoal_module_forward(both[k], x) : shoal_conv2d_pool_relu(x, w, NULL, 0, 1);
        is_all(y, 0);
        ck_assert_ok(shoal_tensor_set_grad(x, NULL));
        ck_assert_ok(shoal_backward(shoal_sum(y, SHOAL_ALL_DIMS, false)));
        is_all(shoal_tensor_grad(x), 0);
    }
    is_all(shoal_tensor_grad(w), 0);
    for (int k = 0; k < 2; k++) {
        shoal_module_train(both[k], false);
        ck_assert_ptr_eq(shoal_module_forward(both[k], x), x);
        shoal_module_destroy(both[k]);
    }
    shoal_scope_release(0);
    shoal_tensor_release(x);
    shoal_tensor_release(w);
}
END_TEST

/* ---- LSTM, against the formulas in double ---- */

static double sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

/* Computes one layer from x [n, t, in] to out [n, t, hidden]. */
static void lstm_by_hand(const shoal_module *m, int layer, int n, int t, int in, int hidden, const double *x,
                         double *out)
{
    const float *w[4];
    for (int k = 0; k < 4; k++) {
        w[k] = data(shoal_module_parameter_at(m, (size_t)(4 * layer + k)));
    }
    for (int b = 0; b < n; b++) {
        double h[8] = {0}, c[8] = {0}, gates[32];
        for (int s = 0; s < t; s++) {
            for (int g = 0; g < 4 * hidden; g++) {
                gates[g] = (double)w[2][g] + (double)w[3][g];
                for (int i = 0; i < in; i++) {
                    gates[g] += (double)w[0][g * in + i] * x[(b * t + s) * in + i];
                }
                for (int i = 0; i < hidden; i++) {
                    gates[g] += (double)w[1][g * hidden + i] * h[i];
                }
            }
            for (int i = 0; i < hidden; i++) {
                c[i] = sigmoid(gates[hidden + i]) * c[i] + sigmoid(gates[i]) * tanh(gates[2 * hidden + i]);
                h[i] = sigmoid(gates[3 * hidden + i]) * tanh(c[i]);
                out[(b * t + s) * hidden + i] = h[i];
            }
        }
    }
}

START_TEST(lstm_follows_its_formulas)
{
    enum { N = 2, T = 5, IN = 3, H = 4 };
    shoal_manual_seed(4);
    shoal_module *m = shoal_lstm_create(IN, H, 2);
    shoal_tensor *x = shoal_uniform_(shoal_empty(SHOAL_F32, SHOAL_SHAPE(N, T, IN)), -2, 2);
    double input[N * T * IN], first[N * T * H], second[N * T * H];
    for (int i = 0; i < N * T * IN; i++) {
        input[i] = data(x)[i];
    }
    lstm_by_hand(m, 0, N, T, IN, H, input, first);
    lstm_by_hand(m, 1, N, T, H, H, first, second);
    shoal_tensor *y = shoal_module_forward(m, x);
    ck_shape(y, SHOAL_SHAPE(N, T, H));
    for (int i = 0; i < N * T * H; i++) {
        ck_assert_msg(fabs(data(y)[i] - second[i]) < 1e-6, "%d: %g, wanted %g", i, (double)data(y)[i], second[i]);
    }
    ck_assert_ok(shoal_backward(shoal_sum(y, SHOAL_ALL_DIMS, false)));
    for (shoal_named it = {0}; shoal_module_next(m, &it) == SHOAL_OK;) {
        ck_assert_msg(shoal_tensor_grad(it.tensor) != NULL, "%s", it.name);
    }
    shoal_tensor *flat = shoal_zeros(SHOAL_F32, SHOAL_SHAPE(2, 3)),
                 *none = shoal_zeros(SHOAL_F32, SHOAL_SHAPE(2, 0, 3));
    ck_assert_ptr_null(shoal_module_forward(m, flat));
    ck_failed(SHOAL_EINVAL, "[N, T, 3]");
    ck_assert_ptr_null(shoal_module_forward(m, none));
    ck_failed(SHOAL_EINVAL, "at least one step");
    shoal_scope_release(0);
    shoal_tensor_release(x);
    shoal_tensor_release(flat);
    shoal_tensor_release(none);
    shoal_module_destroy(m);
}
END_TEST

static Suite *suite(void)
{
    const TTest *const tests[] = {
        initial_values_are_as_pytorch_draws_them,
        a_seed_gives_the_same_module,
        names_are_those_of_pytorchs_state_dict,
        text_is_like_pytorchs,
        numbers_out_of_range_are_named,
        layers_compute_their_ops,
        actor_critic_is_two_networks,
        dropouts_work_in_training_only,
        dropouts_of_everything_give_zeros,
        lstm_follows_its_formulas,
    };
    return sh_test_suite("layers", tests, COUNT(tests));
}

SH_TEST_MAIN(suite)
