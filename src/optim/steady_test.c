/* Tests that a training loop in steady state does not call malloc: tensors come from the device's cache, and modules
 * and optimisers need nothing else. The sanitizers replace the allocator, so with them the test only runs the loop. */
#include "optim/optim.h"

#include "tests/harness/runner.h"

#include <stdlib.h>

static long asked;

#if !SH_SLOW
extern void *__libc_malloc(size_t size);
extern void *__libc_calloc(size_t count, size_t size);
extern void *__libc_realloc(void *p, size_t size);

void *malloc(size_t size)
{
    asked++;
    return __libc_malloc(size);
}

void *calloc(size_t count, size_t size)
{
    asked++;
    return __libc_calloc(count, size);
}

void *realloc(void *p, size_t size)
{
    asked++;
    return __libc_realloc(p, size);
}
#endif

typedef struct counts {
    long forward, zero, step;
} counts;

static counts train_step(shoal_module *m, shoal_optimizer *o, shoal_tensor *x, shoal_tensor *y)
{
    counts c = {0};
    long before = asked;
    shoal_optimizer_zero_grad(o);
    c.zero = asked - before;

    before = asked;
    shoal_tensor *out = shoal_module_forward(m, x);
    c.forward = asked - before;
    ck_assert_ok(shoal_backward(shoal_nll_loss(out, y)));

    before = asked;
    shoal_err err = shoal_optimizer_step(o);
    c.step = asked - before; /* libcheck allocates memory too */
    ck_assert_ok(err);
    shoal_scope_release(0);
    return c;
}

static shoal_optimizer *nth(int i, shoal_module *m)
{
    switch (i) {
    case 0: return shoal_sgd_create(m, .momentum = 0.5);
    case 1: return shoal_adam_create(m, .lr = 0.01);
    default: return shoal_rmsprop_create(m, .centered = true, .momentum = 0.5);
    }
}

START_TEST(training_allocates_nothing_but_tensors)
{
    static const char *const models[] = {"mnist-cnn", "lenet5", "lstm-classifier"};
    shoal_tensor *x = shoal_zeros(SHOAL_F32, SHOAL_SHAPE(4, 1, 28, 28)), *y = shoal_zeros(SHOAL_I64, SHOAL_SHAPE(4));
    shoal_module *m = shoal_model_create(models[_i]);
    shoal_optimizer *o = nth(_i, m);
    long start = asked;
    counts c = {0};
    for (int i = 0; i < 10; i++) {
        c = train_step(m, o, x, y);
    }
    ck_assert(SH_SLOW || asked > start); /* proves that the counter works: the first step made the state */
    ck_assert_msg(c.forward == 0 && c.zero == 0 && c.step == 0, "%s: forward %ld, zero_grad %ld, step %ld", models[_i],
                  c.forward, c.zero, c.step);
    shoal_optimizer_destroy(o);
    shoal_module_destroy(m);
    shoal_tensor_release(x);
    shoal_tensor_release(y);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("steady");
    TCase *group = tcase_create("steady");
    tcase_set_timeout(group, SH_TEST_SECONDS);
    tcase_add_checked_fixture(group, sh_leaks_begin, sh_leaks_end);
    tcase_add_loop_test(group, training_allocates_nothing_but_tensors, 0, 3);
    suite_add_tcase(s, group);
    return s;
}

SH_TEST_MAIN(suite)
