/* Tests of convolution: the reference against finite differences, and the fast kernels against the reference. The fused
 * block with a pool and relu has its own tests, in conv2d_block_test.c. */
#include "kernels/conv2d_test.h"

START_TEST(general_is_exact)
{
    const sh_conv_kernels *k = fast(_i);
    for (int round = 0; k && round < CASES; round++) {
        seed = (uint64_t)round + 1;
        job j = job_exact(any_shape(), below(2), false, 0.25F);
        answer got = answer_begin(&j, j.outs, 0.5F), wanted = answer_begin(&j, j.outs, 0.5F);
        forward(reference, &j, wanted.y);
        forward(k, &j, got.y);
        expect("y", &j.c, got.y, wanted.y, j.outs, 0);
        backward(reference, &j, &wanted.grad);
        backward(k, &j, &got.grad);
        expect_gradients(&j, &got.grad, &wanted.grad, 0);
        answer_end(&got);
        answer_end(&wanted);
        job_end(&j);
    }
}
END_TEST

/* A gradient that is not wanted may be NULL, and does not change the others. */
START_TEST(gradients_are_optional)
{
    const sh_conv2d shapes[] = {shape(2, 1, 12, 10, 5, 0), shape(2, 10, 12, 20, 5, 0), shape(1, 3, 14, 32, 5, 2),
                                shape(2, 2, 7, 3, 4, 1)};
    const sh_conv_kernels *k = fast(_i);
    for (int round = 0; k && round < 4 * 8; round++) {
        seed = (uint64_t)round + 1;
        const int which = round % 8;
        job j = job_exact(shapes[round / 8], true, false, 0.25F);
        answer a[4];
        for (int i = 0; i < 4; i++) {
            a[i] = answer_begin(&j, j.pooled, 0.5F);
            const sh_conv_kernels *by = i % 2 ? k : reference;
            const gradients *all = &a[i].grad;
            const gradients some = {which & 1 ? all->x : NULL, which & 2 ? all->w : NULL, which & 4 ? all->bias : NULL};
            if (i < 2) {
                backward(by, &j, &some);
            } else {
                block_forward(reference, &j, &a[i]);
                block_backward(by, &j, a[i].winner, &some);
            }
        }
        expect_gradients(&j, &a[1].grad, &a[0].grad, 0);
        expect_gradients(&j, &a[3].grad, &a[2].grad, 0);
        for (int i = 0; i < 4; i++) {
            answer_end(&a[i]);
        }
        job_end(&j);
    }
}
END_TEST

static answer answer_of(const sh_conv_kernels *k, const job *j, bool block)
{
    answer a = answer_begin(j, j->pooled + 1, 0);
    if (block) {
        block_forward(reference, j, &a);
        block_backward(k, j, a.winner, &a.grad);
    } else {
        backward(k, j, &a.grad);
    }
    return a;
}

START_TEST(overwriting_is_adding_to_zeros)
{
    const sh_conv2d shapes[] = {shape(0, 1, 12, 10, 5, 0), shape(0, 10, 12, 20, 5, 0), shape(0, 32, 14, 64, 5, 2),
                                shape(0, 2, 7, 3, 4, 1), shape(0, 3, 9, 4, 3, 1)};
    const sh_conv_kernels *k = fast(_i);
    for (int round = 0; k && round < 20; round++) {
        seed = (uint64_t)round + 1;
        sh_conv2d c = shapes[round / 2 % 5];
        c.n = round / 10 == 0 ? 2 : 0; /* without images the gradients are 0 */
        job j = job_exact(c, true, false, 0.25F);
        j.c.overwrite = false;
        answer added = answer_of(reference, &j, round % 2);
        j.c.overwrite = true;
        answer by_reference = answer_of(reference, &j, round % 2), by_fast = answer_of(k, &j, round % 2);
        expect_gradients(&j, &by_reference.grad, &added.grad, 0);
        expect_gradients(&j, &by_fast.grad, &added.grad, 0);
        answer_end(&added);
        answer_end(&by_reference);
        answer_end(&by_fast);
        job_end(&j);
    }
}
END_TEST

/* ---- finite differences, in f64 ---- */

typedef struct wide {
    sh_conv2d c;
    int64_t counts[3]; /* of x, w, bias */
    double *values[3], *grads[3];
    double *drop, *y, *grad_y;
    uint8_t *winner;
    int64_t outs;
    bool block;
} wide;

static double *wide_reals(int64_t count)
{
    double *p = malloc(sizeof *p * (size_t)count);
    for (int64_t i = 0; i < count; i++) {
        p[i] = (double)(sh_splitmix_next(&seed) >> 11) * 0x1p-52 - 1;
    }
    return p;
}

static double wide_loss(wide *j)
{
    if (j->block) {
        ck_assert_ok(reference->pool_relu_forward(&exec, &j->c, j->values[0], j->values[1], j->values[2], j->drop, j->y,
                                                  j->winner));
    } else {
        ck_assert_ok(reference->forward(&exec, &j->c, j->values[0], j->values[1], j->values[2], j->y));
    }
    double loss = 0;
    for (int64_t i = 0; i < j->outs; i++) {
        loss += j->y[i] * j->grad_y[i];
    }
    return loss;
}

static wide wide_begin(sh_conv2d c, bool block)
{
    wide j = {.c = c, .block = block};
    const int64_t out_h = sh_conv2d_out_h(&c), out_w = sh_conv2d_out_w(&c);
    j.c.dtype = SHOAL_F64;
    j.counts[0] = c.n * c.in_c * c.in_h * c.in_w;
    j.counts[1] = c.out_c * (c.in_c / c.groups) * c.kernel_h * c.kernel_w;
    j.counts[2] = c.out_c;
    for (int k = 0; k < 3; k++) {
        j.values[k] = wide_reals(j.counts[k]);
        j.grads[k] = calloc((size_t)j.counts[k], sizeof(double));
    }
    j.outs = c.n * c.out_c * (block ? (out_h / 2) * (out_w / 2) : out_h * out_w);
    j.y = wide_reals(j.outs + 1);
    j.grad_y = wide_reals(j.outs + 1);
    j.drop = wide_reals(c.n * c.out_c);
    j.winner = malloc((size_t)j.outs + 1);
    return j;
}

static void wide_end(wide *j)
{
    for (int k = 0; k < 3; k++) {
        free(j->values[k]);
        free(j->grads[k]);
    }
    free(j->y);
    free(j->grad_y);
    free(j->drop);
    free(j->winner);
}

START_TEST(finite_differences)
{
    const double step = 1e-6;
    for (int round = 0; round < CASES / 8; round++) {
        seed = (uint64_t)round + 1;
        const sh_conv2d c = any_shape();
        wide j = wide_begin(c, round % 2 && has_block(&c));
        (void)wide_loss(&j);
        ck_assert_ok(j.block ? reference->pool_relu_backward(&exec, &j.c, j.grad_y, j.values[0], j.values[1], j.drop,
                                                             j.winner, j.grads[0], j.grads[1], j.grads[2])
                             : reference->backward(&exec, &j.c, j.grad_y, j.values[0], j.values[1], j.grads[0],
                                                   j.grads[1], j.grads[2]));
        for (int probe = 0; probe < 12; probe++) {
            const int k = probe % 3;
            const int64_t at = below(j.counts[k]);
            const double saved = j.values[k][at];
            j.values[k][at] = saved + step;
            const double up = wide_loss(&j);
            j.values[k][at] = saved - step;
            const double down = wide_loss(&j);
            j.values[k][at] = saved;
            ck_assert_msg(fabs((up - down) / (2 * step) - j.grads[k][at]) < 1e-6,
                          "round %d, array %d at %lld: %.9g by difference, %.9g by backward", round, k, (long long)at,
                          (up - down) / (2 * step), j.grads[k][at]);
        }
        wide_end(&j);
    }
}
END_TEST

static void expect_sums(const char *what, const float *got, int64_t n, double wanted, double tolerance)
{
    for (int64_t i = 0; i < n; i++) {
        ck_assert_msg(fabs(got[i] - wanted) <= tolerance * wanted, "%s: %.9g, not %.9g", what, (double)got[i], wanted);
    }
}

static gradients gradients_of(const sh_conv_kernels *k, const job *j, bool block, const uint8_t *winner)
{
    gradients g = gradients_begin(j, 0);
    if (block) {
        block_backward(k, j, winner, &g);
    } else {
        backward(k, j, &g);
    }
    return g;
}

/* All gradients are 0.1 and all pixels 1.1: plain sums over the images in f32 would be off by more than 1e-4. Shapes
 * for the general algorithm and for both of the block's. Equal calls have equal bits. */
START_TEST(sums_of_many_images_are_accurate)
{
    const sh_conv_kernels *k = _i < 2 ? fast(_i) : reference;
    const bool card = k != reference && sh_mirror_kernels(); /* there a thread continues in f32 */
    for (int round = 0; k && round < 3; round++) {
        const bool block = round > 0;
        job j = job_exact(shape(card ? 200 : 20000, round == 1 ? 1 : 2, 6, 2, 3, 0), true, false, 1);
        uint8_t *winner = calloc((size_t)j.pooled, 1);
        for (int64_t i = 0; i < j.in; i++) {
            j.x[i] = 1.1F;
        }
        for (int64_t i = 0; i < j.outs; i++) {
            j.grad_out[i] = 0.1F;
        }
        for (int64_t i = 0; i < j.pooled; i++) {
            j.grad_pooled[i] = 0.1F;
        }
        gradients g = gradients_of(k, &j, block, winner), again = gradients_of(k, &j, block, winner);
        const double count = (double)(block ? j.pooled : j.outs) / 2;
        expect_sums("grad_w", g.w, j.weights, (double)0.1F * 1.1F * count, card ? 2e-5 : 1e-5);
        expect_sums("grad_bias", g.bias, 2, (double)0.1F * count, card ? 2e-5 : 2e-6);
        ck_assert_mem_eq(g.w, again.w, sizeof(float) * (size_t)j.weights);
        ck_assert_mem_eq(g.bias, again.bias, sizeof(float) * 2);
        gradients_end(&g);
        gradients_end(&again);
        free(winner);
        job_end(&j);
    }
}
END_TEST

/* f64 works in the fast tables too; other types are rejected. */
START_TEST(element_types)
{
    const sh_conv_kernels *k = fast(_i);
    if (!k) {
        return;
    }
    wide j = wide_begin(shape(1, 2, 8, 3, 5, 2), true);
    double wanted[3 * 16];
    (void)wide_loss(&j);
    memcpy(wanted, j.y, sizeof wanted);
    memset(j.y, 0, sizeof wanted);
    ck_assert_ok(k->pool_relu_forward(&exec, &j.c, j.values[0], j.values[1], j.values[2], j.drop, j.y, j.winner));
    for (int i = 0; i < 3 * 16; i++) {
        ck_assert_double_le(fabs(j.y[i] - wanted[i]), 1e-12);
    }
    int32_t y[3 * 8 * 8] = {0};
    j.c.dtype = SHOAL_I32;
    ck_assert_err(k->forward(&exec, &j.c, j.values[0], j.values[1], NULL, y), SHOAL_EINVAL);
    wide_end(&j);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("kernels/conv2d");
    TCase *tc = conv2d_case("conv2d");
    tcase_add_test(tc, finite_differences);
    tcase_add_loop_test(tc, general_is_exact, 0, 2);
    tcase_add_loop_test(tc, gradients_are_optional, 0, 2);
    tcase_add_loop_test(tc, overwriting_is_adding_to_zeros, 0, 2);
    tcase_add_loop_test(tc, sums_of_many_images_are_accurate, 0, 3);
    tcase_add_loop_test(tc, element_types, 0, 2);
    suite_add_tcase(s, tc);
    return s;
}

SH_TEST_MAIN(suite)
