/* Tests of optimisers: their formulas, written here in double; state by name;
 * zeroing and clipping gradients; errors. */
#include "optim/optim.h"

#include "tests/harness/numbers.h"
#include "tests/harness/runner.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define N 37
#define STEPS 6

/* ---- a module of two parameters, one of which never gets a gradient ---- */

static shoal_err pair_init(shoal_module *self, const double *settings)
{
    shoal_dtype dtype = settings[0] != 0 ? SHOAL_F64 : SHOAL_F32;
    SH_TRY(shoal_module_add_parameter(self, "idle", shoal_ones(dtype, SHOAL_SHAPE(3))));
    return shoal_module_add_parameter(self, "w", shoal_zeros(dtype, SHOAL_SHAPE(N)));
}

static shoal_tensor *pair_forward(shoal_module *self, shoal_tensor *x)
{
    return shoal_mul(x, shoal_module_parameter_at(self, 1));
}

static const shoal_module_type pair = {.name = "Pair", .init = pair_init, .forward = pair_forward};

static double start_value(int i)
{
    return sin(1.0 + i) / 2;
}

/* Returns the gradient of step s: some are 0, some tiny, signs change. */
static double grad_value(int s, int i)
{
    return i % 7 == 0 ? 0 : cos(s * 1.7 + i) * (i % 5 == 0 ? 1e-4 : 0.3);
}

static double element(const shoal_tensor *t, int64_t i)
{
    return t->ndim == 0 ? item_of(t) : item_at(t, 1, &i);
}

static void set_values(shoal_tensor *t, double (*value)(int, int), int s)
{
    shoal_no_grad_begin();
    for (int i = 0; i < N; i++) {
        double x = value ? value(s, i) : start_value(i);
        ck_assert_ptr_nonnull(shoal_fill_(shoal_narrow(t, 0, i, 1), x));
    }
    shoal_no_grad_end();
    shoal_scope_release(0);
}

static shoal_module *pair_create(bool f64)
{
    shoal_module *m = shoal_module_create(&pair, 1, (double[]){f64});
    shoal_tensor *w = shoal_module_get(m, "w"), *g = shoal_zeros_like(w);
    set_values(w, NULL, 0);
    ck_assert_ok(shoal_tensor_set_grad(w, g));
    shoal_tensor_release(g);
    return m;
}

/* ---- the formulas, for one element ---- */

typedef struct by_hand {
    double p, buffer, m, v, v_max, average;
} by_hand;

typedef void (*formula)(by_hand *x, double g, int step, const void *options);

static void sgd_by_hand(by_hand *x, double g, int step, const void *options)
{
    const shoal_sgd_options *o = options;
    g = (o->maximize ? -g : g) + o->weight_decay * x->p;
    if (o->momentum != 0) {
        x->buffer = step == 1 ? g : o->momentum * x->buffer + (1 - o->dampening) * g;
        g = o->nesterov ? g + o->momentum * x->buffer : x->buffer;
    }
    x->p -= o->lr * g;
}

static void adam_update(by_hand *x, double g, int step, const shoal_adam_options *o)
{
    x->m = o->beta1 * x->m + (1 - o->beta1) * g;
    x->v = o->beta2 * x->v + (1 - o->beta2) * g * g;
    x->v_max = fmax(x->v_max, x->v);
    double m = x->m / (1 - pow(o->beta1, step)), v = (o->amsgrad ? x->v_max : x->v) / (1 - pow(o->beta2, step));
    x->p -= o->lr * m / (sqrt(v) + o->eps);
}

static void adam_by_hand(by_hand *x, double g, int step, const void *options)
{
    const shoal_adam_options *o = options;
    adam_update(x, (o->maximize ? -g : g) + o->weight_decay * x->p, step, o);
}

static void adamw_by_hand(by_hand *x, double g, int step, const void *options)
{
    const shoal_adam_options *o = options;
    x->p *= 1 - o->lr * o->weight_decay;
    adam_update(x, o->maximize ? -g : g, step, o);
}

static void rmsprop_by_hand(by_hand *x, double g, int step, const void *options)
{
    const shoal_rmsprop_options *o = options;
    (void)step;
    g = (o->maximize ? -g : g) + o->weight_decay * x->p;
    x->v = o->alpha * x->v + (1 - o->alpha) * g * g;
    x->average = o->alpha * x->average + (1 - o->alpha) * g;
    double d = g / (sqrt(o->centered ? x->v - x->average * x->average : x->v) + o->eps);
    if (o->momentum != 0) {
        x->buffer = o->momentum * x->buffer + d;
        d = x->buffer;
    }
    x->p -= o->lr * d;
}

/* Takes STEPS steps of both and compares after each. Destroys the optimiser. */
static void compare(const char *what, bool f64, shoal_module *m, shoal_optimizer *optimizer, formula by,
                    const void *options)
{
    by_hand wanted[N] = {0};
    shoal_tensor *w = shoal_module_get(m, "w");
    double close = f64 ? 1e-13 : 2e-6;
    ck_assert_msg(optimizer != NULL, "%s: %s", what, shoal_last_error_text());
    for (int i = 0; i < N; i++) {
        wanted[i].p = element(w, i);
    }
    for (int s = 1; s <= STEPS; s++) {
        uint32_t version = w->storage->version;
        set_values(shoal_tensor_grad(w), grad_value, s);
        ck_assert_ok(shoal_optimizer_step(optimizer));
        ck_assert_uint_ne(w->storage->version, version);
        for (int i = 0; i < N; i++) {
            by(&wanted[i], element(shoal_tensor_grad(w), i), s, options);
            ck_assert_msg(fabs(element(w, i) - wanted[i].p) <= close * (1 + fabs(wanted[i].p)),
                          "%s, step %d, element %d: %.9g, wanted %.9g", what, s, i, element(w, i), wanted[i].p);
        }
    }
    ck_assert(element(shoal_module_get(m, "idle"), 0) == 1); /* it has no gradient */
    shoal_optimizer_destroy(optimizer);
    shoal_module_destroy(m);
}

START_TEST(sgd_follows_its_formula)
{
    static const shoal_sgd_options cases[] = {
        {.lr = 0.1},
        {.lr = 0.1, .weight_decay = 0.05},
        {.lr = 0.1, .momentum = 0.9},
        {.lr = 0.1, .momentum = 0.9, .dampening = 0.5},
        {.lr = 0.1, .momentum = 0.9, .weight_decay = 0.1, .nesterov = true},
        {.lr = 0.1, .momentum = 0.5, .dampening = 0.2, .weight_decay = 0.01, .maximize = true},
    };
    for (size_t i = 0; i < 2 * sizeof cases / sizeof cases[0]; i++) {
        const shoal_sgd_options *o = &cases[i / 2];
        shoal_module *m = pair_create(i % 2);
        char what[32];
        snprintf(what, sizeof what, "SGD, case %zu", i);
        compare(what, i % 2, m, shoal_sgd_create_with(m, o), sgd_by_hand, o);
    }
}
END_TEST

static const shoal_adam_options adams[] = {
    {.lr = 0.01, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8},
    {.lr = 0.01, .beta1 = 0.8, .beta2 = 0.9, .eps = 1e-3, .weight_decay = 0.1},
    {.lr = 0.01, .beta1 = 0.8, .beta2 = 0.6, .eps = 1e-3, .weight_decay = 0.1, .amsgrad = true},
    {.lr = 0.01, .beta1 = 0.8, .beta2 = 0.9, .eps = 1e-3, .weight_decay = 0.2, .maximize = true},
};

START_TEST(adam_follows_its_formula)
{
    for (size_t i = 0; i < 2 * sizeof adams / sizeof adams[0]; i++) {
        const shoal_adam_options *o = &adams[i / 2];
        shoal_module *m = pair_create(i % 2);
        compare("Adam", i % 2, m, shoal_adam_create_with(m, o), adam_by_hand, o);
    }
}
END_TEST

START_TEST(adamw_follows_its_formula)
{
    for (size_t i = 0; i < 2 * sizeof adams / sizeof adams[0]; i++) {
        shoal_adam_options o = adams[i / 2], given = o;
        shoal_module *m = pair_create(i % 2);
        given.weight_decay = o.weight_decay == 0 ? -1 : o.weight_decay; /* 0 would mean the default */
        compare("AdamW", i % 2, m, shoal_adamw_create_with(m, &given), adamw_by_hand, &o);
    }
}
END_TEST

START_TEST(rmsprop_follows_its_formula)
{
    static const shoal_rmsprop_options cases[] = {
        {.lr = 0.01, .alpha = 0.99, .eps = 1e-8},
        {.lr = 0.01, .alpha = 0.9, .eps = 1e-3, .weight_decay = 0.1},
        {.lr = 0.01, .alpha = 0.9, .eps = 1e-3, .momentum = 0.9},
        {.lr = 0.01, .alpha = 0.9, .eps = 1e-3, .centered = true},
        {.lr = 0.01,
         .alpha = 0.9,
         .eps = 1e-3,
         .momentum = 0.5,
         .weight_decay = 0.1,
         .centered = true,
         .maximize = true},
    };
    for (size_t i = 0; i < 2 * sizeof cases / sizeof cases[0]; i++) {
        const shoal_rmsprop_options *o = &cases[i / 2];
        shoal_module *m = pair_create(i % 2);
        char what[32];
        snprintf(what, sizeof what, "RMSprop, case %zu", i);
        compare(what, i % 2, m, shoal_rmsprop_create_with(m, o), rmsprop_by_hand, o);
    }
}
END_TEST

START_TEST(defaults_are_pytorchs)
{
    static const shoal_adam_options adam = {.lr = 0.001, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8},
                                    adamw = {
                                        .lr = 0.001, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8, .weight_decay = 0.01};
    static const shoal_rmsprop_options rmsprop = {.lr = 0.01, .alpha = 0.99, .eps = 1e-8};
    static const shoal_sgd_options sgd = {.lr = 0.001};
    shoal_module *m = pair_create(true);
    compare("Adam", true, m, shoal_adam_create_with(m, NULL), adam_by_hand, &adam);
    m = pair_create(true);
    compare("AdamW", true, m, shoal_adamw_create(m, .amsgrad = false), adamw_by_hand, &adamw);
    m = pair_create(true);
    compare("RMSprop", true, m, shoal_rmsprop_create_with(m, NULL), rmsprop_by_hand, &rmsprop);
    m = pair_create(true);
    compare("SGD", true, m, shoal_sgd_create_with(m, NULL), sgd_by_hand, &sgd);
}
END_TEST

/* ---- state ---- */

static double clipped(shoal_module *m, double max_norm)
{
    double norm = -1;
    ck_assert_ok(shoal_clip_grad_norm(m, max_norm, &norm));
    return norm;
}

static void ck_names(const shoal_optimizer *o, const char *wanted)
{
    char text[1024] = "";
    for (shoal_named it = {0}; shoal_optimizer_next(o, &it) == SHOAL_OK;) {
        sh_text tensor;
        size_t n = strlen(text);
        snprintf(text + n, sizeof text - n, "%s%s %s", n > 0 ? "; " : "", it.name, sh_tensor_text(&tensor, it.tensor));
    }
    ck_assert_str_eq(text, wanted);
}

START_TEST(state_has_pytorchs_names)
{
    shoal_module *m = pair_create(false);
    const struct {
        shoal_optimizer *optimizer;
        const char *stepped, *idle;
    } cases[] = {
        {shoal_sgd_create(m, .lr = 0.1), "", ""},
        {shoal_sgd_create(m, .momentum = 0.5), "w.momentum_buffer f32 [37]", "idle.momentum_buffer f32 [3]; "},
        {shoal_sgd_create(m, .momentum = 0.5, .dampening = 0.1), "w.momentum_buffer f32 [37]; w.step f32 []",
         "idle.momentum_buffer f32 [3]; idle.step f32 []; "},
        {shoal_adam_create(m, .lr = 0.1), "w.step f32 []; w.exp_avg f32 [37]; w.exp_avg_sq f32 [37]",
         "idle.step f32 []; idle.exp_avg f32 [3]; idle.exp_avg_sq f32 [3]; "},
        {shoal_adamw_create(m, .amsgrad = true),
         "w.step f32 []; w.exp_avg f32 [37]; w.exp_avg_sq f32 [37]; w.max_exp_avg_sq f32 [37]",
         "idle.step f32 []; idle.exp_avg f32 [3]; idle.exp_avg_sq f32 [3]; idle.max_exp_avg_sq f32 [3]; "},
        {shoal_rmsprop_create(m, .centered = true, .momentum = 0.1),
         "w.step f32 []; w.square_avg f32 [37]; w.momentum_buffer f32 [37]; w.grad_avg f32 [37]",
         "idle.step f32 []; idle.square_avg f32 [3]; idle.momentum_buffer f32 [3]; idle.grad_avg f32 [3]; "},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char both[1024];
        shoal_optimizer *o = cases[i].optimizer;
        ck_names(o, "");
        ck_assert_ok(shoal_optimizer_step(o));
        ck_names(o, cases[i].stepped);
        ck_assert_ok(shoal_optimizer_prepare(o));
        snprintf(both, sizeof both, "%s%s", cases[i].idle, cases[i].stepped);
        ck_names(o, both);
        shoal_optimizer_destroy(o);
    }
    shoal_module_destroy(m);
}
END_TEST

/* Takes steps from number `from` on, and sets the gradient before each. */
static void steps(shoal_module *m, shoal_optimizer *o, int from, int to)
{
    for (int s = from; s < to; s++) {
        set_values(shoal_tensor_grad(shoal_module_get(m, "w")), grad_value, s);
        ck_assert_ok(shoal_optimizer_step(o));
    }
}

static shoal_optimizer *nth(int i, shoal_module *m)
{
    switch (i) {
    case 0: return shoal_sgd_create(m, .lr = 0.1, .momentum = 0.9, .dampening = 0.3);
    case 1: return shoal_sgd_create(m, .lr = 0.1, .momentum = 0.9, .nesterov = true);
    case 2: return shoal_adam_create(m, .lr = 0.1);
    case 3: return shoal_adamw_create(m, .lr = 0.1, .amsgrad = true);
    default: return shoal_rmsprop_create(m, .momentum = 0.5, .centered = true);
    }
}

START_TEST(copied_state_goes_on_bit_for_bit)
{
    shoal_module *a = pair_create(false), *b = pair_create(false);
    shoal_optimizer *from = nth(_i, a), *to = nth(_i, b);
    steps(a, from, 0, 4);
    ck_assert_ok(shoal_module_copy(b, a));
    ck_assert_ok(shoal_optimizer_prepare(from));
    ck_assert_ok(shoal_optimizer_prepare(to));
    shoal_named x = {0}, y = {0};
    while (shoal_optimizer_next(from, &x) == SHOAL_OK) {
        ck_assert(shoal_optimizer_next(to, &y) == SHOAL_OK);
        ck_assert_ptr_nonnull(shoal_copy_(y.tensor, x.tensor));
    }
    steps(a, from, 4, 7);
    steps(b, to, 4, 7);
    ck_assert(shoal_tensor_equal(shoal_module_get(a, "w"), shoal_module_get(b, "w")));
    shoal_optimizer_destroy(from);
    shoal_optimizer_destroy(to);
    shoal_module_destroy(a);
    shoal_module_destroy(b);
}
END_TEST

START_TEST(adopted_state_is_one_state)
{
    shoal_module *alone = pair_create(false), *a = pair_create(false), *b = pair_create(false);
    shoal_optimizer *single = nth(_i, alone), *one = nth(_i, a), *two = nth(_i, b);
    ck_assert_ok(sh_module_replace(b, "w", shoal_module_get(a, "w")));
    shoal_optimizer_destroy(two);
    two = nth(_i, b);
    ck_assert_ok(shoal_optimizer_prepare(one));
    for (shoal_named it = {0}; shoal_optimizer_next(one, &it) == SHOAL_OK;) {
        ck_assert_ok(shoal_optimizer_adopt(two, it.name, it.tensor));
    }
    for (int s = 0; s < 6; s++) { /* alternating, as two processes would */
        steps(alone, single, s, s + 1);
        steps(a, s % 2 ? two : one, s, s + 1);
    }
    ck_assert(shoal_tensor_equal(shoal_module_get(alone, "w"), shoal_module_get(a, "w")));
    shoal_optimizer_destroy(single);
    shoal_optimizer_destroy(one);
    shoal_optimizer_destroy(two);
    shoal_module_destroy(alone);
    shoal_module_destroy(a);
    shoal_module_destroy(b);
}
END_TEST

START_TEST(adopt_checks_names_and_shapes)
{
    shoal_module *m = pair_create(false);
    shoal_optimizer *o = shoal_adam_create(m, .lr = 0.1);
    shoal_tensor *good = shoal_zeros(SHOAL_F32, SHOAL_SHAPE(N)), *wide = shoal_zeros(SHOAL_F64, SHOAL_SHAPE(N)),
                 *scalar = shoal_zeros(SHOAL_F32, SHOAL_SCALAR);
    ck_assert_ok(shoal_optimizer_adopt(o, "w.exp_avg", good));
    ck_assert_ok(shoal_optimizer_adopt(o, "w.step", scalar));
    ck_assert_err(shoal_optimizer_adopt(o, "w.step", good), SHOAL_EINVAL);
    ck_assert_err(shoal_optimizer_adopt(o, "w.exp_avg", wide), SHOAL_EINVAL);
    ck_assert_err(shoal_optimizer_adopt(o, "idle.exp_avg", good), SHOAL_EINVAL);
    static const char *const wrong[] = {"w.momentum_buffer", "w",        "exp_avg",          ".exp_avg",
                                        "ww.exp_avg",        "w.exp_av", "w.max_exp_avg_sq", ""};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        ck_assert_err(shoal_optimizer_adopt(o, wrong[i], good), SHOAL_ENOENT);
    }
    ck_assert_err(shoal_optimizer_adopt(NULL, "w.step", good), SHOAL_EINVAL);
    ck_assert_err(shoal_optimizer_adopt(o, NULL, good), SHOAL_EINVAL);
    shoal_optimizer_destroy(o);
    shoal_tensor_release(good);
    shoal_tensor_release(wide);
    shoal_tensor_release(scalar);
    shoal_module_destroy(m);
}
END_TEST

/* ---- use ---- */

START_TEST(options_out_of_range_are_named)
{
    shoal_module *m = pair_create(false);
    const struct {
        shoal_optimizer *optimizer;
        const char *name;
    } none[] = {
        {shoal_sgd_create(m, .lr = -1), "lr"},
        {shoal_sgd_create(m, .lr = NAN), "lr"},
        {shoal_sgd_create(m, .momentum = -0.1), "momentum"},
        {shoal_sgd_create(m, .weight_decay = -0.1), "weight_decay"},
        {shoal_sgd_create(m, .nesterov = true), "nesterov"},
        {shoal_sgd_create(m, .nesterov = true, .momentum = 0.5, .dampening = 0.1), "nesterov"},
        {shoal_adam_create(m, .beta1 = 1), "beta1"},
        {shoal_adam_create(m, .beta2 = 1.5), "beta2"},
        {shoal_adam_create(m, .weight_decay = -0.5), "weight_decay"},
        {shoal_adamw_create(m, .eps = INFINITY), "eps"},
        {shoal_rmsprop_create(m, .momentum = -1), "momentum"},
        {shoal_rmsprop_create(m, .alpha = NAN), "alpha"},
        {shoal_rmsprop_create(NULL, .lr = 0.1), "NULL"},
    };
    for (size_t i = 0; i < sizeof none / sizeof none[0]; i++) {
        ck_assert_msg(!none[i].optimizer, "%s", none[i].name);
    }
    ck_assert_ptr_null(shoal_adam_create(m, .beta2 = 1.5));
    ck_assert_int_eq(shoal_last_error(), SHOAL_EINVAL);
    ck_assert_str_eq(shoal_last_error_text(), "Adam: beta2 is 1.5, it must be from 0 to below 1");
    shoal_module_destroy(m);
}
END_TEST

START_TEST(null_is_allowed)
{
    shoal_named it = {0};
    shoal_optimizer_destroy(NULL);
    shoal_optimizer_zero_grad(NULL);
    shoal_optimizer_set_lr(NULL, 1);
    ck_assert(shoal_optimizer_lr(NULL) == 0 && shoal_optimizer_next(NULL, &it) == SHOAL_EINVAL);
    ck_assert_err(shoal_optimizer_step(NULL), SHOAL_EINVAL);
    ck_assert_err(shoal_optimizer_prepare(NULL), SHOAL_EINVAL);
    ck_assert_err(shoal_clip_grad_norm(NULL, 1, NULL), SHOAL_EINVAL);
}
END_TEST

START_TEST(the_learning_rate_changes)
{
    shoal_module *m = pair_create(false);
    shoal_optimizer *o = shoal_sgd_create(m, .lr = 0.5);
    shoal_tensor *w = shoal_module_get(m, "w");
    ck_assert(shoal_optimizer_lr(o) == 0.5);
    shoal_optimizer_set_lr(o, 0);
    steps(m, o, 1, 2);
    ck_assert(element(w, 1) == (float)start_value(1));
    shoal_optimizer_set_lr(o, 1);
    steps(m, o, 1, 2);
    ck_assert(fabs(element(w, 1) - (start_value(1) - grad_value(1, 1))) < 1e-7);
    shoal_optimizer_destroy(o);
    shoal_module_destroy(m);
}
END_TEST

START_TEST(the_optimiser_keeps_its_parameters)
{
    shoal_module *m = pair_create(false);
    shoal_optimizer *o = shoal_adam_create(m, .lr = 0.5);
    shoal_module_destroy(m);
    ck_assert_ok(shoal_optimizer_step(o));
    shoal_optimizer_destroy(o);
}
END_TEST

START_TEST(a_step_makes_an_earlier_record_out_of_date)
{
    shoal_module *m = pair_create(false);
    shoal_optimizer *o = shoal_sgd_create(m, .lr = 0.5);
    shoal_tensor *w = shoal_module_get(m, "w");
    shoal_tensor *loss = shoal_sum(shoal_square(w), SHOAL_ALL_DIMS, false);
    ck_assert_ok(shoal_optimizer_step(o));
    ck_assert_err(shoal_backward(loss), SHOAL_ESTATE);
    shoal_scope_release(0);
    shoal_optimizer_destroy(o);
    shoal_module_destroy(m);
}
END_TEST

START_TEST(zeroed_gradients_step_as_zeros)
{
    shoal_module *m = pair_create(false);
    shoal_optimizer *o = shoal_sgd_create(m, .lr = 1, .weight_decay = 0.5);
    shoal_tensor *w = shoal_module_get(m, "w");
    set_values(shoal_tensor_grad(w), grad_value, 1);
    shoal_optimizer_zero_grad(o);
    ck_assert(w->grad_is_zero);
    ck_assert_ok(shoal_optimizer_step(o));
    for (int i = 0; i < N; i++) {
        ck_assert(fabs(element(w, i) - start_value(i) / 2) < 1e-7);
    }
    shoal_optimizer_destroy(o);
    shoal_module_destroy(m);
}
END_TEST

START_TEST(gradients_of_any_strides_are_used)
{
    shoal_module *m = pair_create(false);
    shoal_optimizer *o = shoal_sgd_create(m, .lr = 1);
    shoal_tensor *w = shoal_module_get(m, "w"), *wide = shoal_zeros(SHOAL_F32, SHOAL_SHAPE(N, 2));
    shoal_tensor *column = shoal_select(wide, 1, 1);
    ck_assert_ok(shoal_tensor_set_grad(w, column));
    shoal_scope_release(0);
    set_values(shoal_tensor_grad(w), grad_value, 2);
    ck_assert(fabs(clipped(m, 1e9) - item_of(shoal_norm(shoal_tensor_grad(w)))) < 1e-6);
    ck_assert_ok(shoal_optimizer_step(o));
    for (int i = 0; i < N; i++) {
        ck_assert(fabs(element(w, i) - (start_value(i) - grad_value(2, i))) < 1e-7);
    }
    shoal_scope_release(0);
    shoal_optimizer_destroy(o);
    shoal_module_destroy(m);
    shoal_tensor_release(wide);
}
END_TEST

START_TEST(a_tied_parameter_steps_once)
{
    shoal_module *m = shoal_sequential(shoal_linear_create(2, 2, false), shoal_linear_create(2, 2, false));
    shoal_tensor *w = shoal_module_get(m, "0.weight"), *g = shoal_ones(SHOAL_F32, SHOAL_SHAPE(2, 2));
    ck_assert_ok(sh_module_replace(m, "1.weight", w));
    ck_assert_ok(shoal_tensor_set_grad(w, g));
    shoal_optimizer *o = shoal_sgd_create(m, .lr = 1);
    float before = *(float *)shoal_tensor_data(w);
    ck_assert(fabs(clipped(m, 10) - 2) < 1e-6);
    ck_assert_ok(shoal_optimizer_step(o));
    ck_assert(*(float *)shoal_tensor_data(w) == before - 1);
    shoal_tensor_release(g);
    shoal_optimizer_destroy(o);
    shoal_module_destroy(m);
}
END_TEST

START_TEST(clipping_scales_all_gradients_together)
{
    shoal_module *m = shoal_linear_create(2, 1, true);
    shoal_tensor *w = shoal_module_get(m, "weight"), *b = shoal_module_get(m, "bias");
    ck_assert(clipped(m, 1) == 0); /* no gradients */
    shoal_tensor *gw = shoal_from_data(SHOAL_F32, (float[]){3, 4}, SHOAL_SHAPE(1, 2)),
                 *gb = shoal_from_data(SHOAL_F32, (float[]){12}, SHOAL_SHAPE(1));
    ck_assert_ok(shoal_tensor_set_grad(w, gw));
    ck_assert_ok(shoal_tensor_set_grad(b, gb));
    ck_assert(fabs(clipped(m, 20) - 13) < 1e-5);
    ck_assert(element(gb, 0) == 12);
    ck_assert(fabs(clipped(m, 2) - 13) < 1e-5);
    ck_assert(fabs(element(gb, 0) - 24.0 / 13) < 1e-5);
    ck_assert(fabs(*(float *)shoal_tensor_data(gw) - 6.0 / 13) < 1e-5);
    ck_assert(fabs(clipped(m, 5) - 2) < 1e-5);
    ck_assert_err(shoal_clip_grad_norm(m, 0, NULL), SHOAL_EINVAL);
    ck_assert_err(shoal_clip_grad_norm(m, NAN, NULL), SHOAL_EINVAL);
    ck_assert_int_eq(shoal_last_error(), SHOAL_EINVAL);
    shoal_tensor_release(gw);
    shoal_tensor_release(gb);
    shoal_module_zero_grad(m);
    ck_assert(clipped(m, 5) == 0);
    shoal_module_destroy(m);
}
END_TEST

static shoal_err hollow_init(shoal_module *self, const double *settings)
{
    (void)settings;
    SH_TRY(shoal_module_add_parameter(self, "none", shoal_zeros(SHOAL_F32, SHOAL_SHAPE(0, 3))));
    return shoal_module_add_parameter(self, "w", shoal_zeros(SHOAL_F32, SHOAL_SHAPE(2)));
}

static const shoal_module_type hollow = {.name = "Hollow", .init = hollow_init, .forward = pair_forward};

/* A gradient that is an expanded tensor without elements: there is nothing to scale. */
START_TEST(a_gradient_of_nothing_is_clipped)
{
    shoal_module *m = shoal_module_create(&hollow, 0, NULL);
    shoal_tensor *column = shoal_zeros(SHOAL_F32, SHOAL_SHAPE(0, 1)),
                 *g = shoal_from_data(SHOAL_F32, (float[]){3, 4}, SHOAL_SHAPE(2));
    ck_assert_ok(shoal_tensor_set_grad(shoal_module_get(m, "none"), shoal_expand(column, SHOAL_SHAPE(0, 3))));
    ck_assert(clipped(m, 1) == 0);
    ck_assert(clipped(m, 1e-9) == 0);
    ck_assert_ok(shoal_tensor_set_grad(shoal_module_get(m, "w"), g));
    ck_assert(clipped(m, 2.5) == 5);
    ck_assert(fabs(element(g, 1) - 2) < 1e-5);
    shoal_scope_release(0);
    shoal_module_destroy(m);
    shoal_tensor_release(column);
    shoal_tensor_release(g);
}
END_TEST

static Suite *suite(void)
{
    const TTest *const tests[] = {
        sgd_follows_its_formula,
        adam_follows_its_formula,
        adamw_follows_its_formula,
        rmsprop_follows_its_formula,
        defaults_are_pytorchs,
        state_has_pytorchs_names,
        adopt_checks_names_and_shapes,
        options_out_of_range_are_named,
        null_is_allowed,
        the_learning_rate_changes,
        the_optimiser_keeps_its_parameters,
        a_step_makes_an_earlier_record_out_of_date,
        zeroed_gradients_step_as_zeros,
        gradients_of_any_strides_are_used,
        a_tied_parameter_steps_once,
        clipping_scales_all_gradients_together,
        a_gradient_of_nothing_is_clipped,
    };
    Suite *s = suite_create("optim");
    TCase *group = tcase_create("optim");
    tcase_set_timeout(group, SH_TEST_SECONDS);
    tcase_add_checked_fixture(group, sh_leaks_begin, sh_leaks_end);
    for (size_t i = 0; i < sizeof tests / sizeof tests[0]; i++) {
        tcase_add_test(group, tests[i]);
    }
    tcase_add_loop_test(group, copied_state_goes_on_bit_for_bit, 0, 5);
    tcase_add_loop_test(group, adopted_state_is_one_state, 0, 5);
    suite_add_tcase(s, group);
    return s;
}

SH_TEST_MAIN(suite)
