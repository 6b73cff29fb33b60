/* The rules of recording and backward: accumulation, leaves, hooks, errors, and that no memory leaks. */
#include "autograd/node.h"
#include "tests/harness/numbers.h"
#include "tests/harness/runner.h"

#include <malloc.h>
#include <math.h>
#include <pthread.h>
#include <string.h>

enum {
    CHAIN = 200000,
    STEPS = SH_SLOW ? 200 : 1000,
};

/* Returns an f64 leaf that needs a gradient. */
static shoal_tensor *leaf(int64_t n, double value)
{
    shoal_tensor *t = shoal_full(SHOAL_F64, value, SHOAL_SHAPE(n));
    ck_assert_ok(shoal_tensor_set_requires_grad(t, true));
    return t;
}

static shoal_tensor *total(shoal_tensor *t)
{
    return shoal_sum(t, SHOAL_ALL_DIMS, false);
}

static double first(const shoal_tensor *t)
{
    ck_assert_ptr_nonnull(t);
    return *(const double *)shoal_tensor_data(t);
}

static void end(shoal_tensor *a, shoal_tensor *b)
{
    shoal_tensor_release(a);
    shoal_tensor_release(b);
    shoal_scope_release(0);
}

START_TEST(adds_up)
{
    shoal_tensor *x = leaf(3, 2);
    ck_assert_ptr_null(shoal_tensor_grad(x));
    ck_assert_ok(shoal_backward(total(shoal_square(x))));
    ck_assert(first(shoal_tensor_grad(x)) == 4);
    ck_assert_ok(shoal_backward(total(shoal_mul_scalar(x, 3))));
    ck_assert(first(shoal_tensor_grad(x)) == 7);
    ck_assert_ok(shoal_tensor_set_grad(x, NULL));
    ck_assert_ptr_null(shoal_tensor_grad(x));
    /* used twice, also within one op */
    ck_assert_ok(shoal_backward(total(shoal_add(shoal_mul(x, x), shoal_add(x, x)))));
    ck_assert(first(shoal_tensor_grad(x)) == 6);
    end(x, NULL);
}
END_TEST

/* The leaf's own grad as the initial gradient is added like any other. */
START_TEST(grad_of_itself)
{
    shoal_tensor *x = leaf(2, 1);
    ck_assert_ok(shoal_backward(total(shoal_mul_scalar(x, 5))));
    ck_assert_ok(shoal_backward_with(shoal_add_scalar(x, 1), shoal_tensor_grad(x), false));
    ck_assert(first(shoal_tensor_grad(x)) == 10);
    ck_assert_ok(shoal_backward_with(x, shoal_tensor_grad(x), false));
    ck_assert(first(shoal_tensor_grad(x)) == 20);
    end(x, NULL);
}
END_TEST

/* If backward gives one gradient to several inputs, they must not share its memory. */
START_TEST(gradients_are_apart)
{
    shoal_tensor *x = leaf(2, 1), *y = leaf(2, 1);
    shoal_tensor *g = shoal_scoped(shoal_full(SHOAL_F64, 3, SHOAL_SHAPE(2)));
    ck_assert_ok(shoal_backward_with(shoal_add(x, y), g, false));
    shoal_tensor *gx = shoal_tensor_grad(x), *gy = shoal_tensor_grad(y);
    ck_assert(shoal_tensor_storage_id(gx) != shoal_tensor_storage_id(gy));
    ck_assert(shoal_tensor_storage_id(gx) != shoal_tensor_storage_id(g));
    ck_assert(shoal_tensor_storage_id(gy) != shoal_tensor_storage_id(g));
    shoal_fill_(gx, 100);
    ck_assert(first(gy) == 3 && first(g) == 3);
    end(x, y);
}
END_TEST

START_TEST(recording)
{
    shoal_tensor *x = leaf(2, 1);
    ck_assert(shoal_grad_enabled());
    shoal_no_grad_begin();
    shoal_no_grad_begin();
    shoal_no_grad_end();
    ck_assert(!shoal_grad_enabled());
    shoal_tensor *y = shoal_square(x);
    shoal_no_grad_end();
    ck_assert(shoal_grad_enabled() && !shoal_tensor_requires_grad(y) && shoal_tensor_is_leaf(y));
    ck_assert_err(shoal_backward(total(y)), SHOAL_ESTATE);

    shoal_tensor *z = shoal_square(x), *d = shoal_detach(z);
    ck_assert(shoal_tensor_requires_grad(z) && !shoal_tensor_is_leaf(z));
    ck_assert(!shoal_tensor_requires_grad(d) && shoal_tensor_is_leaf(d));
    ck_assert(shoal_tensor_storage_id(d) == shoal_tensor_storage_id(z));
    ck_assert_ok(shoal_backward(total(shoal_mul(z, d))));
    ck_assert(first(shoal_tensor_grad(x)) == 2);
    end(x, NULL);
}
END_TEST

START_TEST(leaves)
{
    shoal_tensor *i = shoal_zeros(SHOAL_I64, SHOAL_SHAPE(2)), *x = leaf(2, 1);
    ck_assert_err(shoal_tensor_set_requires_grad(i, true), SHOAL_ETYPE);
    ck_assert_ptr_nonnull(strstr(shoal_last_error_text(), "i64 [2]"));
    ck_assert_err(shoal_tensor_set_requires_grad(shoal_square(x), false), SHOAL_ESTATE);
    shoal_tensor *wrong = shoal_scoped(shoal_zeros(SHOAL_F64, SHOAL_SHAPE(3)));
    ck_assert_err(shoal_tensor_set_grad(x, wrong), SHOAL_EINVAL);
    ck_assert_err(shoal_tensor_set_grad(x, x), SHOAL_EINVAL);
    ck_assert_err(shoal_backward(shoal_square(x)), SHOAL_EINVAL);
    ck_assert_err(shoal_backward_with(shoal_square(x), wrong, false), SHOAL_EINVAL);
    ck_assert_ok(shoal_tensor_set_requires_grad(x, false));
    ck_assert(!shoal_tensor_requires_grad(shoal_square(x)));
    end(i, x);
}
END_TEST

START_TEST(twice)
{
    shoal_tensor *x = leaf(2, 3);
    shoal_tensor *loss = total(shoal_square(x));
    ck_assert_ok(shoal_backward_with(loss, NULL, true));
    ck_assert_ok(shoal_backward(loss));
    ck_assert(first(shoal_tensor_grad(x)) == 12);
    ck_assert_err(shoal_backward(loss), SHOAL_ESTATE);
    ck_assert_ptr_nonnull(strstr(shoal_last_error_text(), "second time"));
    ck_assert(first(shoal_tensor_grad(x)) == 12);
    end(x, NULL);
}
END_TEST

/* ---- hooks ---- */

typedef struct note {
    char order[16];
    double seen[16];
    int count;
    double factor;
    char name;
} note;

static note journal;

static shoal_tensor *write_down(shoal_tensor *grad, void *context)
{
    const note *own = context;
    journal.order[journal.count] = own->name;
    journal.seen[journal.count++] = first(grad);
    return own->factor == 1 ? grad : shoal_mul_scalar(grad, own->factor);
}

static shoal_tensor *give_nothing(shoal_tensor *grad, void *context)
{
    (void)grad;
    (void)context;
    return NULL;
}

static shoal_tensor *give_other_shape(shoal_tensor *grad, void *context)
{
    (void)context;
    return shoal_sum(grad, SHOAL_ALL_DIMS, false);
}

START_TEST(hooks)
{
    note a = {.name = 'a', .factor = 10}, b = {.name = 'b', .factor = 1}, c = {.name = 'c', .factor = 2};
    shoal_tensor *x = leaf(2, 1);
    int id, last;
    ck_assert_ok(shoal_tensor_add_hook(x, write_down, &a, NULL));
    ck_assert_ok(shoal_tensor_add_hook(x, write_down, &b, &id));
    shoal_tensor *y = shoal_mul_scalar(x, 3);
    ck_assert_ok(shoal_tensor_add_hook(y, write_down, &c, NULL));
    /* x is used three times: its hooks get the sum, once; y's hook runs before */
    ck_assert_ok(shoal_backward(total(shoal_add(shoal_add(y, y), x))));
    ck_assert_str_eq(journal.order, "cab");
    ck_assert(journal.seen[0] == 2 && journal.seen[1] == 3 * 4 + 1 && journal.seen[2] == 130);
    ck_assert(first(shoal_tensor_grad(x)) == 130);

    shoal_tensor_remove_hook(x, id);
    shoal_tensor_remove_hook(x, 1234);
    ck_assert_ok(shoal_backward(total(x)));
    ck_assert_str_eq(journal.order, "caba");
    ck_assert(first(shoal_tensor_grad(x)) == 140);

    for (int i = 1; i < SH_HOOKS; i++) {
        ck_assert_ok(shoal_tensor_add_hook(x, write_down, &b, &last));
    }
    ck_assert_err(shoal_tensor_add_hook(x, write_down, &b, &last), SHOAL_ELIMIT);
    ck_assert_err(shoal_tensor_add_hook(x, NULL, NULL, NULL), SHOAL_EINVAL);
    ck_assert_err(shoal_tensor_add_hook(shoal_detach(x), write_down, &b, NULL), SHOAL_EINVAL);
    end(x, NULL);
}
END_TEST

START_TEST(hooks_that_fail)
{
    shoal_tensor *x = leaf(2, 1), *y = leaf(2, 1);
    ck_assert_ok(shoal_tensor_add_hook(x, give_nothing, NULL, NULL));
    ck_assert_err(shoal_backward(total(shoal_square(x))), SHOAL_EINVAL);
    ck_assert_ptr_null(shoal_tensor_grad(x));
    shoal_tensor *z = shoal_square(y);
    ck_assert_ok(shoal_tensor_add_hook(z, give_other_shape, NULL, NULL));
    ck_assert_err(shoal_backward(total(z)), SHOAL_EINVAL);
    ck_assert_ptr_null(shoal_tensor_grad(y));
    ck_assert(shoal_grad_enabled());
    end(x, y);
}
END_TEST

/* ---- in place ---- */

START_TEST(changed_in_place)
{
    shoal_tensor *x = leaf(2, 2), *c = shoal_ones(SHOAL_F64, SHOAL_SHAPE(2));
    shoal_tensor *loss = total(shoal_mul(x, c));
    shoal_fill_(c, 5);
    ck_assert_err(shoal_backward(loss), SHOAL_ESTATE);
    ck_assert_ptr_nonnull(strstr(shoal_last_error_text(), "mul"));

    /* add saves nothing, so its operands may change */
    loss = total(shoal_add(x, c));
    shoal_fill_(c, 6);
    ck_assert_ok(shoal_backward(loss));

    /* a change through another view of the same storage, and of a saved output */
    shoal_tensor *e = shoal_exp(x);
    loss = total(e);
    shoal_zero_(shoal_narrow(shoal_detach(e), 0, 1, 1));
    ck_assert_err(shoal_backward(loss), SHOAL_ESTATE);

    /* a parameter that changed between forward and backward */
    loss = total(shoal_square(x));
    shoal_no_grad_begin();
    ck_assert_ptr_nonnull(shoal_add_scalar_(x, 1));
    shoal_no_grad_end();
    ck_assert_err(shoal_backward(loss), SHOAL_ESTATE);
    end(x, c);
}
END_TEST

START_TEST(in_place_refused)
{
    shoal_tensor *x = leaf(4, 1), *c = shoal_ones(SHOAL_F64, SHOAL_SHAPE(4));
    ck_assert_ptr_null(shoal_add_(x, c));
    ck_assert_int_eq(shoal_last_error(), SHOAL_ESTATE);
    ck_assert_ptr_null(shoal_add_(shoal_narrow(x, 0, 0, 2), shoal_narrow(c, 0, 0, 2)));
    ck_assert_int_eq(shoal_last_error(), SHOAL_ESTATE);
    ck_assert(first(x) == 1);
    ck_assert_ptr_null(shoal_add_(c, shoal_scoped(shoal_ones(SHOAL_F64, SHOAL_SHAPE(2, 4)))));
    ck_assert_int_eq(shoal_last_error(), SHOAL_EINVAL);
    /* what is overwritten although backward needs it was copied; otherwise nothing is copied */
    ck_assert_ok(shoal_backward(total(shoal_mul_(shoal_clone(x), x))));
    ck_assert(first(shoal_tensor_grad(x)) == 2);
    ck_assert_ok(shoal_tensor_set_grad(x, NULL));
    shoal_tensor *y = shoal_clone(x);
    ck_assert_ptr_eq(shoal_relu_(shoal_add_(y, c)), y);
    ck_assert_ok(shoal_backward(total(y)));
    ck_assert(first(shoal_tensor_grad(x)) == 1);
    end(x, c);
}
END_TEST

/* A tensor without a gradient, written from a tensor with one, becomes part of the record. */
START_TEST(copied_into)
{
    shoal_tensor *x = leaf(2, 3), *buffer = shoal_zeros(SHOAL_F64, SHOAL_SHAPE(2));
    ck_assert_ptr_eq(shoal_copy_(buffer, shoal_square(x)), buffer);
    ck_assert(shoal_tensor_requires_grad(buffer) && !shoal_tensor_is_leaf(buffer));
    ck_assert_ok(shoal_backward(total(buffer)));
    ck_assert(first(shoal_tensor_grad(x)) == 6);
    end(x, buffer);
}
END_TEST

/* Operands that overlap the output, and elements that share memory. */
START_TEST(overlaps)
{
    shoal_tensor *t = shoal_arange(SHOAL_F64, 0, 9, 1);
    shoal_tensor *m = shoal_reshape(t, SHOAL_SHAPE(3, 3));
    ck_assert_ptr_nonnull(shoal_add_(m, shoal_transpose(m, 0, 1)));
    for (int i = 0; i < 3; i++) {
        for (int j = 0; j < 3; j++) {
            ck_assert(item_at(m, SHOAL_SHAPE(i, j)) == 4 * (i + j));
        }
    }
    ck_assert_ptr_nonnull(shoal_copy_(shoal_narrow(t, 0, 1, 8), shoal_narrow(t, 0, 0, 8)));
    ck_assert(item_at(t, SHOAL_SHAPE(0)) == 0 && item_at(t, SHOAL_SHAPE(1)) == 0);
    ck_assert(item_at(t, SHOAL_SHAPE(2)) == 4 && item_at(t, SHOAL_SHAPE(8)) == 12);
    ck_assert_ptr_null(shoal_add_scalar_(shoal_expand(shoal_narrow(t, 0, 0, 1), SHOAL_SHAPE(4)), 1));
    ck_assert_int_eq(shoal_last_error(), SHOAL_EINVAL);
    shoal_tensor *none = shoal_expand(shoal_reshape(shoal_narrow(t, 0, 0, 0), SHOAL_SHAPE(0, 1)), SHOAL_SHAPE(0, 3));
    ck_assert_ptr_nonnull(shoal_add_scalar_(none, 1)); /* no element of these is repeated */
    shoal_no_grad_end();                               /* one call too many does no harm */
    ck_assert(shoal_grad_enabled());
    end(t, NULL);
}
END_TEST

/* Halves have no arithmetic, but their gradients add up. */
START_TEST(halves)
{
    shoal_tensor *x = shoal_full(_i ? SHOAL_BF16 : SHOAL_F16, 2, SHOAL_SHAPE(1, 3));
    ck_assert_ok(shoal_tensor_set_requires_grad(x, true));
    for (int i = 0; i < 2; i++) {
        shoal_tensor *wide = shoal_to_dtype(shoal_expand(x, SHOAL_SHAPE(4, 3)), SHOAL_F32);
        ck_assert_ok(shoal_backward(total(shoal_add(shoal_square(wide), shoal_to_dtype(x, SHOAL_F32)))));
    }
    shoal_tensor *grad = shoal_tensor_grad(x);
    ck_assert_int_eq(shoal_tensor_dtype(grad), shoal_tensor_dtype(x));
    ck_assert(item_at(grad, SHOAL_SHAPE(0, 2)) == 2 * (4 * 4 + 4));
    end(x, NULL);
}
END_TEST

/* An empty batch: results without elements, and gradients of zeros. */
START_TEST(nothing_in_a_batch)
{
    shoal_tensor *x = shoal_zeros(SHOAL_F64, SHOAL_SHAPE(0, 1, 6, 6)), *flat = shoal_flatten(x, 1);
    shoal_tensor *w = shoal_ones(SHOAL_F64, SHOAL_SHAPE(2, 1, 3, 3)), *v = shoal_ones(SHOAL_F64, SHOAL_SHAPE(4, 36));
    shoal_tensor *none = shoal_scoped(shoal_zeros(SHOAL_I64, SHOAL_SHAPE(0)));
    ck_assert_ok(shoal_tensor_set_requires_grad(w, true));
    ck_assert_ok(shoal_tensor_set_requires_grad(v, true));
    shoal_tensor *u = shoal_scoped(shoal_ones(SHOAL_F64, SHOAL_SHAPE(4, 1))), *h, *c;
    shoal_tensor *state = shoal_scoped(shoal_zeros(SHOAL_F64, SHOAL_SHAPE(0, 1)));
    ck_assert_ok(shoal_lstm_cell(flat, state, state, v, u, NULL, NULL, &h, &c));
    shoal_tensor *row = shoal_narrow(shoal_linear(flat, v, NULL), 1, 0, 4);
    shoal_tensor *results[] = {
        shoal_conv2d(x, w, NULL, NULL),
        shoal_conv2d_pool_relu(x, w, NULL, 0, 0.5),
        shoal_max_pool2d(shoal_conv2d(x, w, NULL, NULL), 2),
        shoal_avg_pool2d(shoal_conv2d(x, w, NULL, NULL), 2),
        shoal_softmax(row, 1),
        shoal_log_softmax(row, 0),
        shoal_dropout(row, 0.5),
        shoal_layer_norm(row, NULL, NULL, 1, 1e-5),
        shoal_nll_loss_with(row, none, NULL, SHOAL_REDUCTION_SUM),
        shoal_cross_entropy_with(row, none, SHOAL_REDUCTION_SUM),
        shoal_mse_loss(row, shoal_detach(row), SHOAL_REDUCTION_SUM),
        h,
    };
    for (size_t i = 0; i < sizeof results / sizeof results[0]; i++) {
        ck_assert_msg(results[i] != NULL, "%zu: %s", i, shoal_last_error_text());
        ck_assert_ok(shoal_backward_with(total(results[i]), NULL, true));
    }
    ck_assert(item_of(shoal_norm(shoal_tensor_grad(w))) == 0 && item_of(shoal_norm(shoal_tensor_grad(v))) == 0);
    ck_assert(isnan(item_of(shoal_nll_loss(row, none))));
    shoal_tensor_release(v);
    end(x, w);
}
END_TEST

/* ---- long chains, many steps ---- */

static shoal_tensor *chain_of(shoal_tensor *x, int length)
{
    shoal_tensor *t = x;
    for (int i = 0; i < length; i++) {
        t = shoal_add_scalar(t, 1e-6);
    }
    return t;
}

START_TEST(long_chain)
{
    shoal_tensor *x = leaf(1, 1);
    ck_assert_ok(shoal_backward(chain_of(x, CHAIN)));
    ck_assert(first(shoal_tensor_grad(x)) == 1);
    end(x, NULL);
}
END_TEST

/* The scope is released, but the last tensor stays and keeps all nodes. Releasing the tensor releases them. */
START_TEST(long_chain_released)
{
    shoal_tensor *x = leaf(1, 1);
    shoal_tensor *last = shoal_tensor_retain(chain_of(x, CHAIN));
    shoal_scope_release(0);
    shoal_tensor_release(last);
    ck_assert_ptr_null(shoal_tensor_grad(x));
    end(x, NULL);
}
END_TEST

typedef struct net {
    shoal_tensor *w1, *b1, *w2, *x, *y;
} net;

static net net_create(uint64_t seed)
{
    shoal_manual_seed(seed);
    net n = {
        .w1 = shoal_normal_(shoal_empty(SHOAL_F32, SHOAL_SHAPE(8, 1, 3, 3)), 0, 0.3),
        .b1 = shoal_zeros(SHOAL_F32, SHOAL_SHAPE(8)),
        .w2 = shoal_normal_(shoal_empty(SHOAL_F32, SHOAL_SHAPE(10, 8 * 25)), 0, 0.1),
        .x = shoal_normal_(shoal_empty(SHOAL_F32, SHOAL_SHAPE(16, 1, 12, 12)), 0, 1),
        .y = shoal_randint_(shoal_empty(SHOAL_I64, SHOAL_SHAPE(16)), 0, 10),
    };
    ck_assert_ok(shoal_tensor_set_requires_grad(n.w1, true));
    ck_assert_ok(shoal_tensor_set_requires_grad(n.b1, true));
    ck_assert_ok(shoal_tensor_set_requires_grad(n.w2, true));
    return n;
}

static void net_release(net *n)
{
    shoal_tensor *all[] = {n->w1, n->b1, n->w2, n->x, n->y};
    for (int i = 0; i < 5; i++) {
        shoal_tensor_release(all[i]);
    }
}

/* Takes one step of gradient descent. Returns the loss before the step. */
static double net_step(net *n)
{
    size_t mark = shoal_scope_mark();
    shoal_tensor *h = shoal_conv2d_pool_relu(n->x, n->w1, n->b1, 0, 0.2);
    shoal_tensor *out = shoal_linear(shoal_dropout(shoal_flatten(h, 1), 0.1), n->w2, NULL);
    shoal_tensor *loss = shoal_nll_loss(shoal_log_softmax(out, 1), n->y);
    double value = item_of(loss);
    ck_assert_ok(shoal_backward(loss));
    shoal_no_grad_begin();
    shoal_tensor *parameters[] = {n->w1, n->b1, n->w2};
    for (int i = 0; i < 3; i++) {
        ck_assert_ptr_nonnull(shoal_add_scaled_(parameters[i], shoal_tensor_grad(parameters[i]), -0.05));
        ck_assert_ptr_nonnull(shoal_zero_(shoal_tensor_grad(parameters[i])));
    }
    shoal_no_grad_end();
    shoal_scope_release(mark);
    ck_assert_uint_eq(shoal_scope_mark(), mark);
    return value;
}

START_TEST(steady)
{
    net n = net_create(3);
    double before = net_step(&n);
    for (int i = 0; i < 20; i++) {
        (void)net_step(&n);
    }
    size_t used = mallinfo2().uordblks + mallinfo2().hblkhd;
    double loss = 0;
    for (int i = 0; i < STEPS; i++) {
        loss = net_step(&n);
    }
    if (!SH_SLOW) { /* a sanitizer's malloc is not counted */
        ck_assert_uint_eq(mallinfo2().uordblks + mallinfo2().hblkhd, used);
    }
    ck_assert_msg(loss < before / 2, "the loss went from %g to %g", before, loss);
    net_release(&n);
}
END_TEST

/* ---- threads ---- */

static void *train(void *seed)
{
    net n = net_create((uint64_t)(uintptr_t)seed);
    double *loss = malloc(sizeof *loss);
    for (int i = 0; i < 30; i++) {
        *loss = net_step(&n);
    }
    net_release(&n);
    return loss;
}

/* Two threads, each with a separate record and the same seed, get the same numbers. */
START_TEST(two_threads)
{
    pthread_t threads[2];
    void *loss[2];
    for (int i = 0; i < 2; i++) {
        ck_assert_int_eq(pthread_create(&threads[i], NULL, train, (void *)(uintptr_t)11), 0);
    }
    for (int i = 0; i < 2; i++) {
        ck_assert_int_eq(pthread_join(threads[i], &loss[i]), 0);
    }
    ck_assert(*(double *)loss[0] == *(double *)loss[1]);
    free(loss[0]);
    free(loss[1]);
}
END_TEST

static void add_all_but_threads(TCase *tc)
{
    tcase_add_test(tc, adds_up);
    tcase_add_test(tc, grad_of_itself);
    tcase_add_test(tc, gradients_are_apart);
    tcase_add_test(tc, recording);
    tcase_add_test(tc, leaves);
    tcase_add_test(tc, twice);
    tcase_add_test(tc, hooks);
    tcase_add_test(tc, hooks_that_fail);
    tcase_add_test(tc, changed_in_place);
    tcase_add_test(tc, in_place_refused);
    tcase_add_test(tc, copied_into);
    tcase_add_test(tc, overlaps);
    tcase_add_loop_test(tc, halves, 0, 2);
    tcase_add_test(tc, nothing_in_a_batch);
    tcase_add_test(tc, long_chain);
    tcase_add_test(tc, long_chain_released);
    tcase_add_test(tc, steady);
}

static Suite *suite(void)
{
    Suite *s = suite_create("autograd/rules");
    TCase *tc = tcase_create("rules");
    tcase_set_timeout(tc, SH_TEST_SECONDS);
    tcase_add_checked_fixture(tc, sh_leaks_begin, sh_leaks_end);
    tcase_add_test(tc, two_threads);
#if !defined(__SANITIZE_THREAD__)
    const bool all = true;
#else
    const bool all = false; /* it has nothing to find in the rest, and takes half a minute for it */
#endif
    if (all) {
        add_all_but_threads(tc);
    }
    suite_add_tcase(s, tc);
    return s;
}

SH_TEST_MAIN(suite)
