/* A whole training step, captured and replayed: it gives the bits of ordinary steps, also mixed with them. On a card;
 * over the stub driver, whose kernels are not recorded, only that a step can be captured. And a model is tested
 * there. */
#include "device/cuda.h"
#include "tests/harness/cuda_stub/stub.h"
#include "tests/harness/runner.h"

#include <stdlib.h>
#include <string.h>

#define BATCH 32
#define STEPS 12

typedef struct trainer {
    shoal_module *model;
    shoal_optimizer *optimizer;
    shoal_tensor *x, *y; /* the batch, always in the same tensors */
    shoal_tensor *images, *classes;
} trainer;

static void open_card(void)
{
    sh_stub_use();
    ck_assert_msg(sh_device_get(SHOAL_CUDA) != NULL, "%s", shoal_last_error_text());
}

static void close_card(void)
{
    (void)shoal_cuda_trim();
    shoal_cuda_memory m;
    ck_assert_ok(shoal_cuda_memory_get(&m));
    ck_assert_msg(m.held == 0, "%zu bytes of GPU memory are left, %zu of them asked for", m.held, m.asked);
}

static shoal_tensor *keep(shoal_tensor *t)
{
    ck_assert_msg(t != NULL, "%s", shoal_last_error_text());
    return shoal_tensor_retain(t);
}

static void begin(trainer *t)
{
    size_t mark = shoal_scope_mark();
    shoal_manual_seed(3);
    t->model = shoal_sequential(shoal_linear_create(20, 64, true), shoal_relu_create(), shoal_dropout_create(0.5),
                                shoal_linear_create(64, 5, true));
    ck_assert_ptr_nonnull(t->model);
    ck_assert_ok(shoal_module_to(t->model, SHOAL_CUDA));
    t->optimizer = shoal_sgd_create(t->model, .lr = 0.1, .momentum = 0.9);
    ck_assert_ptr_nonnull(t->optimizer);
    shoal_tensor *images = shoal_scoped(shoal_empty(SHOAL_F32, SHOAL_SHAPE(STEPS, BATCH, 20)));
    shoal_tensor *classes = shoal_scoped(shoal_empty(SHOAL_I64, SHOAL_SHAPE(STEPS, BATCH)));
    ck_assert(shoal_normal_(images, 0, 1) && shoal_randint_(classes, 0, 5));
    t->images = keep(shoal_to_device(images, SHOAL_CUDA));
    t->classes = keep(shoal_to_device(classes, SHOAL_CUDA));
    t->x = keep(shoal_clone(shoal_select(t->images, 0, 0)));
    t->y = keep(shoal_clone(shoal_select(t->classes, 0, 0)));
    shoal_scope_release(mark);
}

static void end(trainer *t)
{
    shoal_optimizer_destroy(t->optimizer);
    shoal_module_destroy(t->model);
    shoal_tensor_release(t->x);
    shoal_tensor_release(t->y);
    shoal_tensor_release(t->images);
    shoal_tensor_release(t->classes);
}

static void load(trainer *t, int i)
{
    size_t mark = shoal_scope_mark();
    ck_assert_ptr_nonnull(shoal_copy_(t->x, shoal_select(t->images, 0, i)));
    ck_assert_ptr_nonnull(shoal_copy_(t->y, shoal_select(t->classes, 0, i)));
    shoal_scope_release(mark);
}

static void step(trainer *t)
{
    size_t mark = shoal_scope_mark();
    shoal_optimizer_zero_grad(t->optimizer);
    shoal_tensor *loss = shoal_cross_entropy(shoal_module_forward(t->model, t->x), t->y);
    ck_assert_msg(loss && shoal_backward(loss) == SHOAL_OK, "%s", shoal_last_error_text());
    ck_assert_ok(shoal_optimizer_step(t->optimizer));
    shoal_scope_release(mark);
}

static void read_weights(trainer *t, float out[64 * 20])
{
    ck_assert_ok(shoal_tensor_read(shoal_module_get(t->model, "0.weight"), out, 64 * 20 * sizeof(float)));
}

/* Every way starts with an ordinary step, which makes the gradients and the momentum. */
START_TEST(the_same_bits)
{
    enum { ORDINARY, REPLAYED, MIXED, WAYS };
    static float weights[WAYS][64 * 20];
    for (int way = 0; way < WAYS; way++) {
        trainer t;
        shoal_capture *c = NULL;
        begin(&t);
        step(&t);
        if (way != ORDINARY) {
            ck_assert_ok(shoal_capture_begin(&c));
            step(&t);
            ck_assert_ok(shoal_capture_end(c));
        }
        for (int i = 1; i < STEPS; i++) {
            load(&t, i);
            if (way == REPLAYED || (way == MIXED && i % 3 != 0)) {
                ck_assert_ok(shoal_capture_replay(c));
            } else {
                step(&t);
            }
        }
        read_weights(&t, weights[way]);
        shoal_capture_destroy(c);
        end(&t);
    }
    if (getenv("SHOAL_TEST_CARD")) {
        ck_assert_mem_eq(weights[ORDINARY], weights[REPLAYED], sizeof weights[0]);
        ck_assert_mem_eq(weights[ORDINARY], weights[MIXED], sizeof weights[0]);
    }
}
END_TEST

/* The elements are moved, and the model stays where it is. */
START_TEST(a_model_is_tested_where_it_is)
{
    int64_t numbers[700]; /* two batches */
    for (int64_t i = 0; i < 700; i++) {
        numbers[i] = i;
    }
    shoal_dataset *all = shoal_mnist(SHOAL_PART_TEST), *some = shoal_subset(all, numbers, 700);
    shoal_manual_seed(3);
    shoal_module *model = shoal_model_create("logistic");
    double here[2], there[2];
    ck_assert_ok(shoal_evaluate(model, some, &here[0], &here[1]));
    ck_assert_ok(shoal_module_to(model, SHOAL_CUDA));
    ck_assert_ok(shoal_evaluate(model, some, &there[0], &there[1]));
    ck_assert_double_eq_tol(here[0], there[0], 1e-4);
    ck_assert_double_eq_tol(here[1], there[1], 1.5 / 700);
    shoal_named first = {0};
    ck_assert_ok(shoal_module_next(model, &first));
    ck_assert_int_eq(shoal_tensor_device(first.tensor), SHOAL_CUDA);
    shoal_module_destroy(model);
    shoal_dataset_release(some);
    shoal_dataset_release(all);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("cuda_step");
    TCase *tc = tcase_create("step");
    tcase_set_timeout(tc, SH_TEST_SECONDS);
    tcase_add_checked_fixture(tc, open_card, NULL);
    tcase_add_checked_fixture(tc, sh_leaks_begin, sh_leaks_end);
    tcase_add_checked_fixture(tc, NULL, close_card);
    tcase_add_test(tc, the_same_bits);
    tcase_add_test(tc, a_model_is_tested_where_it_is);
    suite_add_tcase(s, tc);
    return s;
}

SH_TEST_MAIN(suite)
