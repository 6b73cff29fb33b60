/* Tests of the tree of names: adding, finding, iterating, errors, copying, text;
 * kinds that the program defines; rebuilding. */
#include "nn/help_test.h"
#include "tests/harness/numbers.h"

/* ---- a kind that the program defines: two weights, a count of calls, and a child ---- */

typedef struct scaler_state {
    int calls;
    char *note;
} scaler_state;

static int scalers_ended;

static shoal_err scaler_init(shoal_module *self, const double *settings)
{
    scaler_state *state = shoal_module_state(self);
    state->note = malloc(16);
    if (settings[1] < 0) {
        return shoal_fail(SHOAL_EINVAL, "scaler: %g is below 0", settings[1]);
    }
    SH_TRY(shoal_module_add_buffer(self, "seen", shoal_zeros(SHOAL_I64, SHOAL_SCALAR)));
    SH_TRY(shoal_module_add_parameter(self, "scale", shoal_full(SHOAL_F32, settings[0], SHOAL_SCALAR)));
    SH_TRY(shoal_module_add_parameter(self, "shift", shoal_full(SHOAL_F32, settings[1], SHOAL_SHAPE(3))));
    return shoal_module_add_child(self, "act", shoal_relu_create());
}

static shoal_tensor *scaler_forward(shoal_module *self, shoal_tensor *x)
{
    scaler_state *state = shoal_module_state(self);
    state->calls++;
    x = shoal_mul(x, shoal_module_parameter_at(self, 0));
    x = shoal_add(x, shoal_module_parameter_at(self, 1));
    return shoal_module_forward(shoal_module_child_at(self, 0), x);
}

static void scaler_fini(shoal_module *self)
{
    scaler_state *state = shoal_module_state(self);
    free(state->note);
    scalers_ended++;
}

static const shoal_module_type scaler = {
    .name = "Scaler",
    .state_size = sizeof(scaler_state),
    .init = scaler_init,
    .forward = scaler_forward,
    .fini = scaler_fini,
};

static shoal_module *new_scaler(double scale, double shift)
{
    return shoal_module_create(&scaler, 2, (double[]){scale, shift});
}

START_TEST(a_kind_of_ones_own)
{
    shoal_module *m = new_scaler(2, -1);
    ck_assert_ptr_null(m);
    ck_failed(SHOAL_EINVAL, "below 0");
    ck_assert_int_eq(scalers_ended, 1);

    m = new_scaler(2, 1);
    ck_assert_str_eq(shoal_module_type_name(m), "Scaler");
    ck_assert(shoal_module_settings(m)[1] == 1 && shoal_module_settings(m)[15] == 0);
    ck_assert_str_eq(names_of(m), "scale []; shift [3]; seen []*");
    ck_assert_int_eq(shoal_module_count(m), 4);
    shoal_tensor *x = shoal_from_data(SHOAL_F32, (float[]){-5, 0, 5}, SHOAL_SHAPE(3));
    size_t mark = shoal_scope_mark();
    shoal_tensor *y = shoal_module_forward(m, x);
    ck_assert_uint_eq(shoal_scope_mark(), mark + 1);
    ck_assert(data(y)[0] == 0 && data(y)[1] == 1 && data(y)[2] == 11);
    ck_assert_ok(shoal_backward(shoal_sum(y, SHOAL_ALL_DIMS, false)));
    ck_assert(item_of(shoal_tensor_grad(shoal_module_get(m, "scale"))) == 5);
    ck_assert_int_eq(((scaler_state *)shoal_module_state(m))->calls, 1);
    ck_assert_str_eq(text_of(m), "Scaler(\n  2, 1\n  (act): ReLU()\n)");
    shoal_scope_release(0);
    shoal_module_destroy(m);
    shoal_tensor_release(x);
    ck_assert_int_eq(scalers_ended, 2);
}
END_TEST

/* The example at the head of nn.h, verbatim. */
static shoal_err net_init(shoal_module *self, const double *settings)
{
    shoal_err err = shoal_module_add_child(self, "fc1", shoal_linear_create(784, (int64_t)settings[0], true));
    return err ? err : shoal_module_add_child(self, "fc2", shoal_linear_create((int64_t)settings[0], 10, true));
}

static shoal_tensor *net_forward(shoal_module *self, shoal_tensor *x)
{
    x = shoal_relu(shoal_module_forward(shoal_module_child_at(self, 0), x));
    return shoal_log_softmax(shoal_module_forward(shoal_module_child_at(self, 1), x), 1);
}

static const shoal_module_type net = {.name = "net", .init = net_init, .forward = net_forward};

START_TEST(the_example_of_the_header)
{
    shoal_module *m = shoal_module_create(&net, 1, (double[]){200});
    shoal_tensor *x = shoal_zeros(SHOAL_F32, SHOAL_SHAPE(3, 784));
    ck_shape(shoal_module_forward(m, x), SHOAL_SHAPE(3, 10));
    ck_assert_int_eq(shoal_module_count(m), 784 * 200 + 200 + 2000 + 10);
    shoal_scope_release(0);
    shoal_module_destroy(m);
    shoal_tensor_release(x);
}
END_TEST

START_TEST(the_state_is_aligned_and_zeroed)
{
    static const shoal_module_type wide = {.name = "Wide", .state_size = 100, .forward = scaler_forward};
    shoal_module *m = shoal_module_create(&wide, 0, NULL);
    char zero[100] = {0};
    ck_assert_uint_eq((uintptr_t)shoal_module_state(m) % _Alignof(max_align_t), 0);
    ck_assert_mem_eq(shoal_module_state(m), zero, sizeof zero);
    shoal_module_destroy(m);
}
END_TEST

START_TEST(kinds_are_checked)
{
    static const shoal_module_type nameless = {.forward = scaler_forward}, still = {.name = "Still"};
    static const shoal_module_type other = {.name = "Scaler", .forward = scaler_forward};
    static const shoal_module_type linear = {.name = "Linear", .forward = scaler_forward};
    double many[SHOAL_MODULE_SETTINGS + 1] = {0};
    ck_assert_ptr_null(shoal_module_create(NULL, 0, NULL));
    ck_failed(SHOAL_EINVAL, "shoal_module_create: type is NULL");
    ck_assert_ptr_null(shoal_module_create(&nameless, 0, NULL));
    ck_failed(SHOAL_EINVAL, "name");
    ck_assert_ptr_null(shoal_module_create(&still, 0, NULL));
    ck_failed(SHOAL_EINVAL, "forward");
    ck_assert_ptr_null(shoal_module_create(&scaler, COUNT(many), many));
    ck_failed(SHOAL_EINVAL, "17 settings");
    ck_assert_err(shoal_module_register(NULL), SHOAL_EINVAL);
    ck_assert_err(shoal_module_register(&linear), SHOAL_ESTATE);
    ck_assert_ok(shoal_module_register(&scaler));
    ck_assert_ok(shoal_module_register(&scaler));
    ck_assert_err(shoal_module_register(&other), SHOAL_ESTATE);
    ck_assert_ptr_eq(sh_module_type_find("Scaler"), &scaler);
    ck_assert_ptr_nonnull(sh_module_type_find("mnist-cnn"));
    ck_assert_ptr_null(sh_module_type_find("None"));
    ck_failed(SHOAL_ENOENT, "'None'");
}
END_TEST

static const shoal_module_type *registered[40];
static char kind_names[40][16];

START_TEST(many_kinds_can_be_registered)
{
    for (size_t i = 0; i < COUNT(registered); i++) {
        shoal_module_type *type = malloc(sizeof *type);
        snprintf(kind_names[i], sizeof kind_names[i], "Kind%zu", i);
        *type = (shoal_module_type){.name = kind_names[i], .forward = scaler_forward};
        ck_assert_ok(shoal_module_register(type));
        registered[i] = type;
    }
    for (size_t i = 0; i < COUNT(registered); i++) {
        ck_assert_ptr_eq(sh_module_type_find(kind_names[i]), registered[i]);
    }
}
END_TEST

/* ---- names ---- */

START_TEST(names_are_found_through_the_tree)
{
    shoal_module *inner = shoal_sequential(new_scaler(1, 2), shoal_linear_create(3, 2, true));
    shoal_module *m = shoal_sequential(shoal_flatten_create(), inner, shoal_linear_create(2, 2, false));
    ck_assert_str_eq(names_of(m), "1.0.scale []; 1.0.shift [3]; 1.0.seen []*; 1.1.weight [2, 3]; 1.1.bias [2]; "
                                  "2.weight [2, 2]");
    ck_assert_ptr_eq(shoal_module_child(m, "1"), inner);
    ck_assert_ptr_eq(shoal_module_child_at(m, 1), inner);
    ck_assert_ptr_null(shoal_module_child_at(m, 3));
    ck_assert_str_eq(shoal_module_type_name(shoal_module_child(m, "1.0.act")), "ReLU");
    shoal_tensor *bias = shoal_module_get(m, "1.1.bias");
    ck_shape(bias, SHOAL_SHAPE(2));
    ck_assert_ptr_eq(bias, shoal_module_parameter_at(shoal_module_child(m, "1.1"), 1));
    ck_assert_ptr_null(shoal_module_parameter_at(shoal_module_child(m, "1.0"), 2)); /* a buffer is not a parameter */
    static const char *const wrong[] = {"", "1", "1.1", "1.1.bias.x", "1.1.bia", "1.1.biass", ".1.1.bias", "3.bias"};
    for (size_t i = 0; i < COUNT(wrong); i++) {
        ck_assert_msg(!shoal_module_get(m, wrong[i]), "%s", wrong[i]);
        ck_failed(SHOAL_ENOENT, wrong[i]);
    }
    ck_assert_ptr_null(shoal_module_child(m, "1.1.bias"));
    ck_failed(SHOAL_ENOENT, "1.1.bias");
    ck_assert_int_eq(shoal_module_count(m), 4 + 8 + 4);
    shoal_module_destroy(m);
}
END_TEST

START_TEST(names_are_checked)
{
    shoal_module *m = new_scaler(1, 1);
    static const char *const taken[] = {"scale", "seen", "act"}, *const wrong[] = {"", "a.b", ".", NULL};
    for (size_t i = 0; i < COUNT(taken); i++) {
        ck_assert_err(shoal_module_add_parameter(m, taken[i], shoal_zeros(SHOAL_F32, SHOAL_SCALAR)), SHOAL_EINVAL);
        ck_assert_err(shoal_module_add_buffer(m, taken[i], shoal_zeros(SHOAL_F32, SHOAL_SCALAR)), SHOAL_EINVAL);
        ck_assert_err(shoal_module_add_child(m, taken[i], shoal_linear_create(2, 2, true)), SHOAL_EINVAL);
        ck_failed(SHOAL_EINVAL, taken[i]);
    }
    for (size_t i = 0; i < COUNT(wrong); i++) {
        ck_assert_err(shoal_module_add_parameter(m, wrong[i], shoal_zeros(SHOAL_F32, SHOAL_SCALAR)), SHOAL_EINVAL);
        ck_assert_err(shoal_module_add_child(m, wrong[i], shoal_relu_create()), SHOAL_EINVAL);
    }
    ck_assert_str_eq(names_of(m), "scale []; shift [3]; seen []*");
    shoal_module_destroy(m);
}
END_TEST

/* Returns a chain of modules, each with a name of ten bytes. */
static shoal_module *chain(int depth)
{
    shoal_module *m = shoal_linear_create(1, 1, true);
    for (int i = 0; m && i < depth; i++) {
        shoal_module *outer = shoal_sequential_create(0, NULL);
        if (shoal_module_add_child(outer, "abcdefghij", m) != SHOAL_OK) {
            shoal_module_destroy(outer);
            return NULL;
        }
        m = outer;
    }
    return m;
}

START_TEST(dotted_names_are_bounded)
{
    shoal_module *m = chain(21); /* 21 * 11 + 6 = 237 */
    ck_assert_msg(m != NULL, "%s", shoal_last_error_text());
    shoal_named it = {0};
    ck_assert(shoal_module_next(m, &it) == SHOAL_OK);
    ck_assert_uint_eq(strlen(it.name), 237);
    ck_assert_ptr_eq(shoal_module_get(m, it.name), it.tensor);

    shoal_module *last = m;
    while (shoal_module_child_at(last, 0)) {
        last = shoal_module_child_at(last, 0);
    }
    ck_assert_ok(shoal_module_add_buffer(last, "12345678", shoal_zeros(SHOAL_F32, SHOAL_SCALAR)));
    ck_assert_err(shoal_module_add_buffer(last, "123456789", shoal_zeros(SHOAL_F32, SHOAL_SCALAR)), SHOAL_ELIMIT);
    ck_assert_err(shoal_module_add_child(last, "12", chain(1)), SHOAL_ELIMIT);
    shoal_module_destroy(m);
    ck_assert_ptr_null(chain(22));
    ck_failed(SHOAL_ELIMIT, "239");
}
END_TEST

START_TEST(parents_and_children)
{
    shoal_module *m = shoal_sequential(shoal_linear_create(2, 2, true)), *other = shoal_sequential(shoal_relu_create());
    shoal_module *child = shoal_module_child_at(m, 0);
    ck_assert_err(shoal_module_add_child(other, "1", child), SHOAL_EINVAL);
    ck_failed(SHOAL_EINVAL, "has a parent");
    ck_assert_err(shoal_module_add_child(m, "self", m), SHOAL_EINVAL);
    ck_assert_err(shoal_module_add_child(child, "up", m), SHOAL_EINVAL);
    ck_failed(SHOAL_EINVAL, "itself");
    shoal_module_destroy(child); /* its parent owns it, so nothing happens */
    ck_assert_str_eq(names_of(m), "0.weight [2, 2]; 0.bias [2]");
    shoal_module_destroy(m);
    shoal_module_destroy(other);
}
END_TEST

START_TEST(failed_constructors_nest)
{
    (void)shoal_fail(SHOAL_OK, "none");
    shoal_module *m = shoal_sequential(shoal_linear_create(4, 4, true), shoal_linear_create(0, 4, true),
                                       shoal_sequential(shoal_relu_create()));
    ck_assert_ptr_null(m);
    ck_failed(SHOAL_EINVAL, "Linear: in is 0");
    shoal_module *taken = shoal_sequential(shoal_relu_create());
    ck_assert_ptr_null(
        shoal_sequential(shoal_linear_create(1, 1, true), shoal_module_child_at(taken, 0), shoal_gelu_create()));
    ck_failed(SHOAL_EINVAL, "has a parent");
    shoal_module_destroy(taken);
    m = shoal_sequential_create(0, NULL);
    ck_assert_err(shoal_module_add_child(m, "a", shoal_dropout_create(2)), SHOAL_EINVAL);
    ck_assert_err(shoal_module_add_parameter(m, "b", shoal_zeros(SHOAL_F32, SHOAL_SHAPE(-1))), SHOAL_EINVAL);
    shoal_module_destroy(m);
}
END_TEST

START_TEST(parameters_are_leaves_that_need_gradients)
{
    shoal_module *m = shoal_sequential_create(0, NULL);
    ck_assert_ok(shoal_module_add_parameter(m, "f", shoal_zeros(SHOAL_F32, SHOAL_SHAPE(2, 3))));
    ck_assert_ok(shoal_module_add_parameter(m, "i", shoal_zeros(SHOAL_I64, SHOAL_SHAPE(2))));
    ck_assert_ok(shoal_module_add_buffer(m, "b", shoal_zeros(SHOAL_F32, SHOAL_SHAPE(2))));
    ck_assert(shoal_tensor_requires_grad(shoal_module_get(m, "f")));
    ck_assert(!shoal_tensor_requires_grad(shoal_module_get(m, "i")));
    ck_assert(!shoal_tensor_requires_grad(shoal_module_get(m, "b")));
    shoal_tensor *made = shoal_tensor_retain(shoal_neg(shoal_module_get(m, "f")));
    ck_assert_err(shoal_module_add_parameter(m, "made", made), SHOAL_EINVAL);
    ck_failed(SHOAL_EINVAL, "detach");
    shoal_tensor *turned = shoal_tensor_retain(shoal_transpose(shoal_detach(shoal_module_get(m, "f")), 0, 1));
    ck_assert_err(shoal_module_add_parameter(m, "turned", turned), SHOAL_EINVAL);
    ck_failed(SHOAL_EINVAL, "contiguous");
    shoal_scope_release(0);
    shoal_module_destroy(m);
}
END_TEST

START_TEST(null_is_allowed)
{
    shoal_named it = {0};
    char text[8];
    shoal_tensor *x = shoal_zeros(SHOAL_F32, SHOAL_SHAPE(1));
    shoal_module_destroy(NULL);
    shoal_module_train(NULL, true);
    shoal_module_zero_grad(NULL);
    ck_assert(!shoal_module_training(NULL) && shoal_module_next(NULL, &it) == SHOAL_EINVAL);
    ck_assert_int_eq(shoal_module_count(NULL), 0);
    ck_assert_ptr_null(shoal_module_state(NULL));
    ck_assert_ptr_null(shoal_module_type_name(NULL));
    ck_assert_ptr_null(shoal_module_settings(NULL));
    ck_assert_ptr_null(shoal_module_child_at(NULL, 0));
    ck_assert_ptr_null(shoal_module_parameter_at(NULL, 0));
    ck_assert_ptr_null(shoal_module_get(NULL, "x"));
    ck_failed(SHOAL_EINVAL, "module is NULL");
    ck_assert_ptr_null(shoal_module_child(NULL, "x"));
    ck_failed(SHOAL_EINVAL, "module is NULL");
    ck_assert_ptr_null(shoal_module_forward(NULL, x));
    ck_failed(SHOAL_EINVAL, "module is NULL");
    shoal_module *m = shoal_linear_create(1, 1, true);
    ck_assert_ptr_null(shoal_module_get(m, NULL));
    ck_failed(SHOAL_EINVAL, "name is NULL");
    (void)shoal_fail(SHOAL_ELIMIT, "an earlier one");
    ck_assert_ptr_null(shoal_module_forward(m, NULL));
    ck_failed(SHOAL_ELIMIT, "an earlier one");
    ck_assert_err(shoal_module_copy(m, NULL), SHOAL_EINVAL);
    ck_assert_err(shoal_module_copy(NULL, m), SHOAL_EINVAL);
    ck_assert_err(shoal_module_add_buffer(NULL, "x", shoal_zeros(SHOAL_F32, SHOAL_SCALAR)), SHOAL_EINVAL);
    ck_assert_err(shoal_module_add_child(NULL, "x", shoal_relu_create()), SHOAL_EINVAL);
    (void)shoal_fail(SHOAL_OK, "none"); /* a NULL that does not come from a failed call */
    ck_assert_err(shoal_module_add_parameter(m, "x", NULL), SHOAL_EINVAL);
    (void)shoal_fail(SHOAL_OK, "none");
    ck_assert_err(shoal_module_add_child(m, "x", NULL), SHOAL_EINVAL);
    ck_assert_uint_eq(shoal_module_format(NULL, text, sizeof text), 4);
    ck_assert_str_eq(text, "NULL");
    shoal_module_destroy(m);
    shoal_tensor_release(x);
}
END_TEST

/* ---- use ---- */

START_TEST(modes_reach_all_below)
{
    shoal_module *m = shoal_sequential(shoal_relu_create(), shoal_sequential(shoal_dropout_create(0.5)));
    const shoal_module *drop = shoal_module_child(m, "1.0");
    ck_assert(shoal_module_training(m) && shoal_module_training(drop));
    shoal_module_train(m, false);
    ck_assert(!shoal_module_training(m) && !shoal_module_training(drop));
    shoal_module_train(shoal_module_child(m, "1"), true);
    ck_assert(!shoal_module_training(m) && shoal_module_training(drop));
    shoal_module_destroy(m);
}
END_TEST

START_TEST(zeroed_gradients_are_zeros_to_who_looks)
{
    shoal_module *m = shoal_linear_create(2, 1, true);
    shoal_tensor *x = shoal_from_data(SHOAL_F32, (float[]){3, 4}, SHOAL_SHAPE(1, 2));
    shoal_tensor *w = shoal_module_get(m, "weight"), *b = shoal_module_get(m, "bias");
    shoal_module_zero_grad(m);
    ck_assert_ptr_null(shoal_tensor_grad(w));
    for (int i = 0; i < 3; i++) {
        ck_assert_ok(shoal_backward(shoal_sum(shoal_module_forward(m, x), SHOAL_ALL_DIMS, false)));
        ck_assert(data(w->grad)[0] == 3 && data(w->grad)[1] == 4 && data(b->grad)[0] == 1);
        const float *before = data(w->grad);
        shoal_module_zero_grad(m);
        ck_assert(w->grad_is_zero && b->grad_is_zero);
        if (i == 1) {
            ck_assert(data(shoal_tensor_grad(w))[0] == 0 && data(shoal_tensor_grad(w))[1] == 0);
        }
        ck_assert_ptr_eq(data(w->grad), before);
    }
    ck_assert(data(shoal_tensor_grad(b))[0] == 0);

    /* A gradient that others can see is zeroed at once. */
    shoal_tensor *shared = shoal_empty_shared(SHOAL_F32, SHOAL_SHAPE(1, 2)), *kept;
    data(shared)[0] = data(shared)[1] = 7;
    ck_assert_ok(shoal_tensor_set_grad(w, shared));
    shoal_tensor_release(shared);
    ck_assert_ok(shoal_backward(shoal_sum(shoal_module_forward(m, x), SHOAL_ALL_DIMS, false)));
    ck_assert(data(w->grad)[0] == 10);
    kept = shoal_tensor_retain(b->grad);
    shoal_module_zero_grad(m);
    ck_assert(!w->grad_is_zero && data(w->grad)[0] == 0 && data(w->grad)[1] == 0);
    ck_assert(!b->grad_is_zero && data(kept)[0] == 0);
    shoal_tensor_release(kept);
    shoal_scope_release(0);
    shoal_module_destroy(m);
    shoal_tensor_release(x);
}
END_TEST

START_TEST(copies_values_and_checks_names)
{
    shoal_module *a = shoal_sequential(shoal_linear_create(3, 2, true), new_scaler(2, 5)),
                 *b = shoal_sequential(shoal_linear_create(3, 2, true), new_scaler(1, 1));
    data(shoal_module_get(a, "1.seen"))[0] = 1;
    uint32_t version = shoal_module_get(b, "0.weight")->storage->version;
    ck_assert_ok(shoal_module_copy(b, a));
    for (shoal_named it = {0}; shoal_module_next(a, &it) == SHOAL_OK;) {
        const shoal_tensor *copy = shoal_module_get(b, it.name);
        ck_assert_msg(shoal_tensor_equal(it.tensor, copy), "%s", it.name);
        ck_assert(shoal_tensor_storage_id(it.tensor) != shoal_tensor_storage_id(copy));
    }
    ck_assert_uint_ne(shoal_module_get(b, "0.weight")->storage->version, version);

    float first = data(shoal_module_get(b, "0.weight"))[0];
    shoal_module *shape = shoal_sequential(shoal_linear_create(3, 2, true), shoal_linear_create(1, 1, true)),
                 *fewer = shoal_sequential(shoal_linear_create(3, 2, true)),
                 *narrow = shoal_sequential(shoal_linear_create(2, 2, true), new_scaler(1, 1));
    ck_assert_err(shoal_module_copy(b, shape), SHOAL_EINVAL);
    ck_failed(SHOAL_EINVAL, "'1.scale' in the target, '1.weight' in the source");
    ck_assert_err(shoal_module_copy(b, fewer), SHOAL_EINVAL);
    ck_failed(SHOAL_EINVAL, "'1.scale' exists only in the target");
    ck_assert_err(shoal_module_copy(fewer, b), SHOAL_EINVAL);
    ck_failed(SHOAL_EINVAL, "only in the source");
    ck_assert_err(shoal_module_copy(b, narrow), SHOAL_EINVAL);
    ck_failed(SHOAL_EINVAL, "'0.weight' is f32 [2, 3] in the target and f32 [2, 2] in the source");
    ck_assert(data(shoal_module_get(b, "0.weight"))[0] == first);
    shoal_module_destroy(a);
    shoal_module_destroy(b);
    shoal_module_destroy(shape);
    shoal_module_destroy(fewer);
    shoal_module_destroy(narrow);
}
END_TEST

START_TEST(a_tied_parameter_counts_once)
{
    shoal_module *m = shoal_sequential(shoal_linear_create(3, 3, true), shoal_linear_create(3, 3, true));
    ck_assert_ok(sh_module_replace(m, "1.weight", shoal_module_get(m, "0.weight")));
    ck_assert_int_eq(shoal_module_count(m), 15);
    shoal_module_destroy(m);
}
END_TEST

START_TEST(text_is_cut_to_the_capacity)
{
    shoal_module *m = shoal_linear_create(3, 2, true);
    const char *whole = "Linear(in_features=3, out_features=2, bias=True)";
    char text[64];
    for (size_t capacity = 0; capacity < sizeof text; capacity++) {
        memset(text, 'x', sizeof text);
        ck_assert_uint_eq(shoal_module_format(m, text, capacity), strlen(whole));
        size_t shown = capacity == 0 ? 0 : capacity - 1 < strlen(whole) ? capacity - 1 : strlen(whole);
        ck_assert_mem_eq(text, whole, shown);
        ck_assert_int_eq(text[shown], capacity == 0 ? 'x' : '\0');
        ck_assert_int_eq(text[capacity], 'x');
    }
    ck_assert_uint_eq(shoal_module_format(m, NULL, 0), strlen(whole));
    shoal_module_destroy(m);
}
END_TEST

/* ---- rebuilding ---- */

static void rebuild_below(shoal_module *to, const shoal_module *from)
{
    for (size_t i = 0; i < from->child_count; i++) {
        const shoal_module *c = from->children[i].module;
        shoal_module *built =
            sh_module_rebuild_child(to, from->children[i].name, c->type->name, c->settings, c->training);
        ck_assert_msg(built != NULL, "%s", shoal_last_error_text());
        rebuild_below(built, c);
    }
}

static shoal_module *rebuild(const shoal_module *from)
{
    shoal_module *to = sh_module_rebuild(from->type->name, from->settings, from->training);
    ck_assert_msg(to != NULL, "%s", shoal_last_error_text());
    rebuild_below(to, from);
    for (shoal_named it = {0}; shoal_module_next(from, &it) == SHOAL_OK;) {
        ck_assert_ok(sh_module_put(to, it.name, it.is_buffer, it.tensor));
    }
    return to;
}

START_TEST(a_module_is_built_again_over_the_same_parameters)
{
    ck_assert_ok(shoal_module_register(&scaler));
    shoal_module *from =
        shoal_sequential(shoal_sequential(new_scaler(1, 2), shoal_dropout_create(0.25)), shoal_lstm_create(3, 4, 2),
                         shoal_model_create("mnist-cnn"), shoal_conv2d_create(1, 2, 3, 2, 1));
    ck_assert_ok(shoal_module_add_parameter(from, "late", shoal_zeros(SHOAL_F32, SHOAL_SHAPE(2))));
    ck_assert_ok(shoal_module_add_buffer(shoal_module_child(from, "1"), "extra", shoal_zeros(SHOAL_F32, SHOAL_SCALAR)));
    ck_assert_ok(shoal_module_add_child(shoal_module_child(from, "0.0"), "more", shoal_gelu_create()));
    shoal_module_train(shoal_module_child(from, "2"), false);
    ck_assert_ok(shoal_tensor_set_requires_grad(shoal_module_get(from, "3.bias"), false));

    shoal_module *to = rebuild(from);
    char *names = strdup(names_of(from)), *text = strdup(text_of(from));
    ck_assert_str_eq(names_of(to), names);
    ck_assert_str_eq(text_of(to), text);
    for (shoal_named it = {0}; shoal_module_next(from, &it) == SHOAL_OK;) {
        ck_assert_ptr_eq(shoal_module_get(to, it.name), it.tensor);
    }
    ck_assert(shoal_module_training(to) && !shoal_module_training(shoal_module_child(to, "2.conv2_drop")));
    ck_assert(!shoal_tensor_requires_grad(shoal_module_get(to, "3.bias")));
    free(names);
    free(text);
    shoal_module_destroy(from);
    shoal_module_destroy(to);
}
END_TEST

START_TEST(building_again_draws_no_numbers)
{
    static const double none[SHOAL_MODULE_SETTINGS];
    shoal_tensor *a = shoal_zeros(SHOAL_F32, SHOAL_SHAPE(8)), *b = shoal_zeros(SHOAL_F32, SHOAL_SHAPE(8));
    for (const char *const *name = shoal_model_names(); *name; name++) {
        shoal_manual_seed(5);
        shoal_module *m = sh_module_rebuild(*name, none, true);
        ck_assert_ptr_nonnull(shoal_uniform_(a, 0, 1));
        shoal_manual_seed(5);
        ck_assert_ptr_nonnull(shoal_uniform_(b, 0, 1));
        ck_assert(shoal_tensor_equal(a, b));
        ck_assert(!sh_module_is_rebuilding());
        shoal_module_destroy(m);
    }
    shoal_tensor_release(a);
    shoal_tensor_release(b);
}
END_TEST

START_TEST(wrong_descriptions_are_refused)
{
    static const double none[SHOAL_MODULE_SETTINGS];
    double settings[SHOAL_MODULE_SETTINGS] = {320, 51};
    ck_assert_ptr_null(sh_module_rebuild("nothing", none, true));
    ck_failed(SHOAL_ENOENT, "nothing");
    ck_assert_ptr_null(sh_module_rebuild("Linear", none, true));
    ck_failed(SHOAL_EINVAL, "Linear");
    shoal_module *m = shoal_model_create("mnist-cnn");
    ck_assert_ptr_null(sh_module_rebuild_child(m, "fc1", "Conv2d", none, true));
    ck_failed(SHOAL_ECORRUPT, "Linear");
    ck_assert_ptr_null(sh_module_rebuild_child(m, "fc1", "Linear", settings, true));
    ck_failed(SHOAL_ECORRUPT, "other settings");
    shoal_tensor *t = shoal_zeros(SHOAL_F32, SHOAL_SHAPE(10, 50)), *d = shoal_zeros(SHOAL_F64, SHOAL_SHAPE(10, 50));
    ck_assert_ok(sh_module_replace(m, "fc2.weight", t));
    ck_assert_ptr_eq(shoal_module_get(m, "fc2.weight"), t);
    ck_assert_err(sh_module_replace(m, "fc1.weight", t), SHOAL_EINVAL);
    ck_assert_err(sh_module_replace(m, "fc2.weight", d), SHOAL_EINVAL);
    ck_assert_err(sh_module_replace(m, "fc3.weight", t), SHOAL_ENOENT);
    ck_assert_err(sh_module_put(m, "fc3.weight", false, t), SHOAL_ENOENT);
    ck_assert_err(sh_module_put(m, "fc2", false, t), SHOAL_EINVAL);
    shoal_tensor_release(t);
    shoal_tensor_release(d);
    shoal_module_destroy(m);
}
END_TEST

static Suite *suite(void)
{
    const TTest *const tests[] = {
        a_kind_of_ones_own,
        the_example_of_the_header,
        the_state_is_aligned_and_zeroed,
        kinds_are_checked,
        many_kinds_can_be_registered,
        names_are_found_through_the_tree,
        names_are_checked,
        dotted_names_are_bounded,
        parents_and_children,
        failed_constructors_nest,
        parameters_are_leaves_that_need_gradients,
        null_is_allowed,
        modes_reach_all_below,
        zeroed_gradients_are_zeros_to_who_looks,
        copies_values_and_checks_names,
        a_tied_parameter_counts_once,
        text_is_cut_to_the_capacity,
        a_module_is_built_again_over_the_same_parameters,
        building_again_draws_no_numbers,
        wrong_descriptions_are_refused,
    };
    return sh_test_suite("module", tests, COUNT(tests));
}

SH_TEST_MAIN(suite)
