/* Tests of optimisers on a device that makes the step of all parameters at once: the same numbers as parameter by
 * parameter on the CPU. With SHOAL_TEST_CARD the device is the card. */
#include "optim/batch.h"

#include "tests/harness/cuda_mirror.h"
#include "tests/harness/far_device.h"
#include "tests/harness/numbers.h"
#include "tests/harness/runner.h"

#include <shoal/autograd.h>

#include <math.h>
#include <stdio.h>

#define PARAMETERS 70 /* more than a batch */
#define TURNED 4      /* its gradient is not contiguous */
#define IDLE 7        /* has no gradient */

static double number(int parameter, int64_t i, int step)
{
    return sin(parameter * 1.3 + (double)i * 0.7 + step);
}

static shoal_tensor *make(int parameter, int64_t rows, int64_t columns, int step)
{
    double x[16];
    for (int64_t i = 0; i < rows * columns; i++) {
        x[i] = number(parameter, i, step);
    }
    shoal_tensor *exact = shoal_from_data(SHOAL_F64, x, SHOAL_SHAPE(rows, columns));
    shoal_tensor *t =
        parameter % 10 == 9 ? shoal_tensor_retain(exact) : shoal_tensor_retain(shoal_to_dtype(exact, SHOAL_F32));
    shoal_tensor_release(exact);
    return t;
}

static shoal_err many_init(shoal_module *self, const double *settings)
{
    (void)settings;
    for (int p = 0; p < PARAMETERS; p++) {
        char name[16];
        (void)snprintf(name, sizeof name, "p%d", p);
        SH_TRY(shoal_module_add_parameter(self, name, make(p, p % 4 + 1, 3, 0)));
    }
    return SHOAL_OK;
}

static shoal_tensor *many_forward(shoal_module *self, shoal_tensor *x)
{
    (void)self;
    return x;
}

static const shoal_module_type many = {.name = "Many", .init = many_init, .forward = many_forward};

static const sh_device *there(void)
{
    const sh_device *card = sh_mirror_device();
    return card ? card : sh_far_device();
}

static void move(shoal_tensor *t, const sh_device *device)
{
    ck_assert_ok(sh_storage_move(t->storage, device));
}

static void set_grads(shoal_module *m, const sh_device *device, int step)
{
    for (int p = 0; p < PARAMETERS; p++) {
        shoal_tensor *w = shoal_module_parameter_at(m, (size_t)p);
        shoal_tensor *g =
            p == TURNED ? make(p, w->shape[1], w->shape[0], step) : make(p, w->shape[0], w->shape[1], step);
        move(g, device);
        if (p != IDLE) {
            ck_assert_ok(shoal_tensor_set_grad(w, p == TURNED ? shoal_transpose(g, 0, 1) : g));
        }
        shoal_tensor_release(g);
        shoal_scope_release(0);
    }
}

static shoal_optimizer *optimizer_of(shoal_module *m, int kind)
{
    switch (kind) {
    case 0: return shoal_sgd_create(m, .lr = 0.1, .weight_decay = 0.1);
    case 1: return shoal_sgd_create(m, .lr = 0.1, .momentum = 0.5, .dampening = 0.2);
    case 2: return shoal_adam_create(m, .lr = 0.1, .amsgrad = true);
    case 3: return shoal_adamw_create(m, .lr = 0.1);
    default: return shoal_rmsprop_create(m, .lr = 0.1, .centered = true, .momentum = 0.5);
    }
}

static void compare(const shoal_tensor *got, const shoal_tensor *wanted, const char *name)
{
    double x[16], y[16];
    shoal_tensor *a = shoal_to_dtype((shoal_tensor *)(uintptr_t)got, SHOAL_F64),
                 *b = shoal_to_dtype((shoal_tensor *)(uintptr_t)wanted, SHOAL_F64);
    ck_assert_ok(shoal_tensor_read(a, x, (size_t)got->count * sizeof *x));
    ck_assert_ok(shoal_tensor_read(b, y, (size_t)got->count * sizeof *y));
    for (int64_t i = 0; i < got->count; i++) {
        ck_assert_msg(fabs(x[i] - y[i]) <= 2e-5 * fmax(1, fabs(y[i])), "%s: %g, not %g", name, x[i], y[i]);
    }
    shoal_scope_release(0);
}

START_TEST(all_parameters_step_together)
{
    shoal_module *here = shoal_module_create(&many, 0, NULL), *far = shoal_module_create(&many, 0, NULL);
    ck_assert(here && far);
    shoal_scope_release(0);
    for (size_t p = 0; p < PARAMETERS; p++) {
        move(shoal_module_parameter_at(far, p), there());
    }
    shoal_optimizer *a = optimizer_of(far, _i), *b = optimizer_of(here, _i);
    for (int step = 1; step < 4; step++) {
        double norm = 0, wanted = 0;
        set_grads(far, there(), step);
        set_grads(here, &sh_device_cpu, step);
        ck_assert_ok(shoal_clip_grad_norm(far, 2, step == 1 ? NULL : &norm));
        ck_assert_ok(shoal_clip_grad_norm(here, 2, &wanted));
        ck_assert(step == 1 || fabs(norm - wanted) < 1e-4 * wanted);
        ck_assert_ok(shoal_optimizer_step(a));
        ck_assert_ok(shoal_optimizer_step(b));
    }
    for (size_t p = 0; p < PARAMETERS; p++) {
        compare(shoal_module_parameter_at(far, p), shoal_module_parameter_at(here, p), "a parameter");
    }
    shoal_named s = {0}, t = {0};
    while (shoal_optimizer_next(a, &s) == SHOAL_OK) {
        ck_assert_ok(shoal_optimizer_next(b, &t));
        ck_assert_str_eq(s.name, t.name);
        ck_assert_ptr_eq(s.tensor->storage->device, there());
        compare(s.tensor, t.tensor, s.name);
    }
    shoal_optimizer_destroy(a);
    shoal_optimizer_destroy(b);
    shoal_module_destroy(here);
    shoal_module_destroy(far);
}
END_TEST

/* The way of one launch is not taken if the gradients differ in dtype or strides; here they do not. */
START_TEST(equal_gradients_are_clipped_in_place)
{
    shoal_module *m = shoal_linear_create(2, 1, true);
    shoal_tensor *w = shoal_module_get(m, "weight"), *b = shoal_module_get(m, "bias");
    shoal_tensor *gw = shoal_from_data(SHOAL_F32, (float[]){3, 4}, SHOAL_SHAPE(1, 2)),
                 *gb = shoal_from_data(SHOAL_F32, (float[]){12}, SHOAL_SHAPE(1));
    shoal_tensor *const all[] = {w, b, gw, gb};
    for (int i = 0; i < 4; i++) {
        move(all[i], there());
    }
    ck_assert_ok(shoal_tensor_set_grad(w, gw));
    ck_assert_ok(shoal_tensor_set_grad(b, gb));
    double norm = 0;
    ck_assert_ok(shoal_clip_grad_norm(m, 20, NULL));
    ck_assert(item_of(gb) == 12);
    ck_assert_ok(shoal_clip_grad_norm(m, 2, &norm));
    ck_assert(fabs(norm - 13) < 1e-5);
    ck_assert(fabs(item_of(gb) - 24.0 / 13) < 1e-5);
    shoal_tensor_release(gw);
    shoal_tensor_release(gb);
    shoal_module_destroy(m);
}
END_TEST

START_TEST(what_is_on_another_device_is_refused)
{
    shoal_module *m = shoal_linear_create(2, 1, false);
    shoal_tensor *w = shoal_module_get(m, "weight"), *g = shoal_ones(SHOAL_F32, SHOAL_SHAPE(1, 2)),
                 *step = shoal_zeros(SHOAL_F32, SHOAL_SCALAR);
    ck_assert_ok(shoal_tensor_set_grad(w, g));
    move(w, there());
    move(g, &sh_device_cpu);
    shoal_optimizer *o = shoal_adam_create(m, .lr = 0.1);
    ck_assert_err(shoal_optimizer_step(o), SHOAL_EINVAL);
    ck_assert_err(shoal_optimizer_adopt(o, "weight.step", step), SHOAL_EINVAL);
    move(step, there());
    ck_assert_ok(shoal_optimizer_adopt(o, "weight.step", step));
    move(g, there());
    ck_assert_ok(shoal_optimizer_step(o));
    ck_assert(item_of(step) == 1);
    shoal_tensor_release(g);
    shoal_tensor_release(step);
    shoal_optimizer_destroy(o);
    shoal_module_destroy(m);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("batch");
    TCase *group = tcase_create("batch");
    tcase_set_timeout(group, SH_TEST_SECONDS);
    tcase_add_checked_fixture(group, sh_leaks_begin, sh_leaks_end);
    tcase_add_loop_test(group, all_parameters_step_together, 0, 5);
    tcase_add_test(group, equal_gradients_are_clipped_in_place);
    tcase_add_test(group, what_is_on_another_device_is_refused);
    suite_add_tcase(s, group);
    return s;
}

SH_TEST_MAIN(suite)
