/* Tests of the ready-made models: names and sizes are those of the same networks in PyTorch, and each model learns. */
#include "nn/help_test.h"
#include "tests/harness/numbers.h"

/* The output of state_dict() for the same network in PyTorch, and its number of parameters. */
static const struct {
    const char *name, *names;
    int64_t count;
} models[] = {
    {"mnist-cnn",
     "conv1.weight [10, 1, 5, 5]; conv1.bias [10]; conv2.weight [20, 10, 5, 5]; conv2.bias [20]; "
     "fc1.weight [50, 320]; fc1.bias [50]; fc2.weight [10, 50]; fc2.bias [10]",
     21840},
    {"fedavg-cnn",
     "conv1.weight [32, 1, 5, 5]; conv1.bias [32]; conv2.weight [64, 32, 5, 5]; conv2.bias [64]; "
     "fc1.weight [512, 3136]; fc1.bias [512]; fc2.weight [10, 512]; fc2.bias [10]",
     1663370},
    {"mlp",
     "fc1.weight [200, 784]; fc1.bias [200]; fc2.weight [200, 200]; fc2.bias [200]; fc3.weight [10, 200]; "
     "fc3.bias [10]",
     199210},
    {"logistic", "fc.weight [10, 784]; fc.bias [10]", 7850},
    {"lenet5",
     "conv1.weight [6, 1, 5, 5]; conv1.bias [6]; conv2.weight [16, 6, 5, 5]; conv2.bias [16]; "
     "fc1.weight [120, 400]; fc1.bias [120]; fc2.weight [84, 120]; fc2.bias [84]; fc3.weight [10, 84]; fc3.bias [10]",
     61706},
    {"lstm-classifier",
     "lstm.weight_ih_l0 [512, 28]; lstm.weight_hh_l0 [512, 128]; lstm.bias_ih_l0 [512]; lstm.bias_hh_l0 [512]; "
     "fc.weight [10, 128]; fc.bias [10]",
     82186},
};

START_TEST(models_have_pytorchs_names_and_sizes)
{
    const char *const *listed = shoal_model_names();
    for (size_t i = 0; i < COUNT(models); i++) {
        shoal_module *m = shoal_model_create(models[i].name);
        ck_assert_str_eq(listed[i], models[i].name);
        ck_assert_str_eq(shoal_module_type_name(m), models[i].name);
        ck_assert_str_eq(names_of(m), models[i].names);
        ck_assert_int_eq(shoal_module_count(m), models[i].count);
        shoal_module_destroy(m);
    }
    ck_assert_ptr_null(listed[COUNT(models)]);
}
END_TEST

START_TEST(the_text_of_a_model)
{
    shoal_module *m = shoal_model_create("mnist-cnn");
    ck_assert_str_eq(text_of(m), "mnist-cnn(\n"
                                 "  (conv1): Conv2d(1, 10, kernel_size=(5, 5), stride=(1, 1))\n"
                                 "  (conv2): Conv2d(10, 20, kernel_size=(5, 5), stride=(1, 1))\n"
                                 "  (conv2_drop): Dropout2d(p=0.5, inplace=False)\n"
                                 "  (fc1): Linear(in_features=320, out_features=50, bias=True)\n"
                                 "  (fc2): Linear(in_features=50, out_features=10, bias=True)\n"
                                 ")");
    shoal_module_destroy(m);
}
END_TEST

#define BATCH 4

typedef struct batch {
    shoal_tensor *x, *y;
} batch;

static batch batch_make(void)
{
    shoal_manual_seed(11);
    batch b = {.x = shoal_uniform_(shoal_empty(SHOAL_F32, SHOAL_SHAPE(BATCH, 1, 28, 28)), 0, 1),
               .y = shoal_empty(SHOAL_I64, SHOAL_SHAPE(BATCH))};
    for (int64_t i = 0; i < BATCH; i++) {
        ((int64_t *)shoal_tensor_data(b.y))[i] = (i * 7) % 10;
    }
    return b;
}

static void batch_release(const batch *b)
{
    shoal_tensor_release(b->x);
    shoal_tensor_release(b->y);
}

START_TEST(results_are_log_probabilities)
{
    batch b = batch_make();
    for (size_t i = 0; i < COUNT(models); i++) {
        shoal_module *m = shoal_model_create(models[i].name);
        size_t mark = shoal_scope_mark();
        const shoal_tensor *y = shoal_module_forward(m, b.x);
        ck_shape(y, SHOAL_SHAPE(BATCH, 10));
        ck_assert_uint_eq(shoal_scope_mark(), mark + 1);
        for (int row = 0; row < BATCH; row++) {
            double sum = 0;
            for (int k = 0; k < 10; k++) {
                sum += exp((double)data(y)[row * 10 + k]);
            }
            ck_assert_msg(fabs(sum - 1) < 1e-5, "%s: %g", models[i].name, sum);
        }
        shoal_scope_release(0);
        shoal_module_destroy(m);
    }
    batch_release(&b);
}
END_TEST

START_TEST(evaluation_is_the_same_each_time_and_training_is_not)
{
    batch b = batch_make();
    shoal_module *m = shoal_model_create("mnist-cnn");
    ck_assert(!shoal_tensor_equal(shoal_module_forward(m, b.x), shoal_module_forward(m, b.x)));
    shoal_module_train(m, false);
    shoal_tensor *y = shoal_module_forward(m, b.x);
    ck_assert(shoal_tensor_equal(y, shoal_module_forward(m, b.x)));

    /* The fused forward equals the network as PyTorch's example writes it. */
    shoal_tensor *z = shoal_module_forward(shoal_module_child(m, "conv1"), b.x);
    z = shoal_relu(shoal_max_pool2d(z, 2));
    z = shoal_module_forward(shoal_module_child(m, "conv2"), z);
    z = shoal_relu(shoal_max_pool2d(shoal_module_forward(shoal_module_child(m, "conv2_drop"), z), 2));
    z = shoal_relu(shoal_module_forward(shoal_module_child(m, "fc1"), shoal_reshape(z, SHOAL_SHAPE(-1, 320))));
    z = shoal_log_softmax(shoal_module_forward(shoal_module_child(m, "fc2"), z), 1);
    ck_assert_msg(z != NULL, "%s", shoal_last_error_text());
    ck_assert(shoal_tensor_close(y, z, 1e-5, 1e-6));
    shoal_scope_release(0);
    shoal_module_destroy(m);
    batch_release(&b);
}
END_TEST

/* Sets the network so that two of its results show what dropout did: h0 = channel 0 of conv2 (all 1) after both
 * dropouts; h20 = a unit of fc1 (always 1) after the second only. */
static void show_dropout(const shoal_module *m)
{
    for (shoal_named it = {0}; shoal_module_next(m, &it) == SHOAL_OK;) {
        ck_assert_ok(sh_tensor_fill(it.tensor, strcmp(it.name, "conv2.bias") == 0));
    }
    data(shoal_module_get(m, "fc1.weight"))[0] = 1;
    data(shoal_module_get(m, "fc1.bias"))[20] = 1;
    data(shoal_module_get(m, "fc2.weight"))[0] = 1;
    data(shoal_module_get(m, "fc2.weight"))[50 + 20] = 1;
}

START_TEST(training_drops_channels_and_units)
{
    enum { N = 1000 };
    shoal_tensor *x = shoal_zeros(SHOAL_F32, SHOAL_SHAPE(N, 1, 28, 28));
    shoal_module *m = shoal_model_create("mnist-cnn");
    show_dropout(m);
    shoal_manual_seed(8);
    const shoal_tensor *y = shoal_module_forward(m, x);
    int kept0 = 0, kept20 = 0;
    for (int i = 0; i < N; i++) {
        const float *row = data(y) + 10 * (ptrdiff_t)i;
        double h0 = (double)row[0] - row[2], h20 = (double)row[1] - row[2];
        ck_assert_msg(fabs(h0) < 1e-5 || fabs(h0 - 4) < 1e-5, "%g", h0);
        ck_assert_msg(fabs(h20) < 1e-5 || fabs(h20 - 2) < 1e-5, "%g", h20);
        kept0 += h0 > 1;
        kept20 += h20 > 1;
    }
    ck_assert_msg(abs(kept0 - N / 4) < 70 && abs(kept20 - N / 2) < 80, "%d and %d of %d", kept0, kept20, N);
    shoal_scope_release(0);
    shoal_module_destroy(m);
    shoal_tensor_release(x);
}
END_TEST

static double train_step(shoal_module *m, shoal_optimizer *adam, const batch *b)
{
    size_t mark = shoal_scope_mark();
    shoal_optimizer_zero_grad(adam);
    shoal_tensor *loss = shoal_nll_loss(shoal_module_forward(m, b->x), b->y);
    ck_assert_ok(shoal_backward(loss));
    ck_assert_ok(shoal_optimizer_step(adam));
    double value = item_of(loss);
    shoal_scope_release(mark);
    return value;
}

START_TEST(the_loss_falls)
{
    batch b = batch_make();
    shoal_module *m = shoal_model_create(models[_i].name);
    shoal_optimizer *adam = shoal_adam_create(m, .lr = 0.005);
    shoal_module_train(m, false);
    double first = train_step(m, adam, &b), last = first;
    for (int i = 1; i < 30; i++) {
        last = train_step(m, adam, &b);
    }
    ck_assert_msg(last < 0.7 * first, "%s: from %g to %g", models[_i].name, first, last);
    shoal_optimizer_destroy(adam);
    shoal_module_destroy(m);
    batch_release(&b);
}
END_TEST

START_TEST(wrong_images_are_refused)
{
    shoal_tensor *x = shoal_zeros(SHOAL_F32, SHOAL_SHAPE(2, 1, 27, 28));
    for (size_t i = 0; i < COUNT(models); i++) {
        shoal_module *m = shoal_model_create(models[i].name);
        size_t mark = shoal_scope_mark();
        ck_assert_msg(!shoal_module_forward(m, x), "%s", models[i].name);
        ck_assert_int_eq(shoal_last_error(), SHOAL_EINVAL);
        ck_assert_uint_eq(shoal_scope_mark(), mark);
        shoal_module_destroy(m);
    }
    shoal_tensor_release(x);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("models");
    TCase *group = tcase_create("models");
    tcase_set_timeout(group, SH_TEST_SECONDS);
    tcase_add_checked_fixture(group, sh_leaks_begin, sh_leaks_end);
    tcase_add_test(group, models_have_pytorchs_names_and_sizes);
    tcase_add_test(group, the_text_of_a_model);
    tcase_add_test(group, results_are_log_probabilities);
    tcase_add_test(group, evaluation_is_the_same_each_time_and_training_is_not);
    tcase_add_test(group, training_drops_channels_and_units);
    tcase_add_loop_test(group, the_loss_falls, 0, COUNT(models));
    tcase_add_test(group, wrong_images_are_refused);
    suite_add_tcase(s, group);
    return s;
}

SH_TEST_MAIN(suite)
