/* Tests of the fused block of convolution, pool and relu: the reference against the chain of single kernels, and the
 * fast kernels against both. */
#include "kernels/conv2d_test.h"
#include "kernels/pool.h"

/* ---- jobs ---- */

static float *reals(int64_t count)
{
    float *p = room(count);
    for (int64_t i = 0; i < count; i++) {
        p[i] = (float)((double)(sh_splitmix_next(&seed) >> 11) * 0x1p-52 - 1);
    }
    return p;
}

static job job_real(sh_conv2d c, bool drop)
{
    job j = {.c = c};
    job_sizes(&j);
    j.c.overwrite = below(3) == 0;
    j.x = reals(j.in);
    j.w = reals(j.weights);
    j.bias = reals(c.out_c);
    j.drop = drop ? multipliers(j.planes) : NULL;
    j.grad_out = reals(j.outs);
    j.grad_pooled = reals(j.pooled + 1);
    return j;
}

/* Shapes for which the fused block has special algorithms, and similar ones. */
static sh_conv2d block_shape(void)
{
    static const int64_t outs[] = {1, 2, 3, 4, 5, 7, 10, 16, 20, 32, 33};
    static const int64_t ins[] = {1, 1, 2, 3, 10, 16, 17, 20};
    const int64_t kernel = below(4) == 0 ? 3 : 5;
    sh_conv2d c = shape(from_to(1, 3), ins[below(8)], 0, outs[below(11)], kernel, below(2) ? kernel / 2 : below(4));
    c.in_h = from_to(kernel + 1, below(4) ? 14 : 30);
    c.in_w = from_to(kernel + 1, below(2) ? 14 : 34);
    c.pad_w = below(3) ? c.pad_h : below(3);
    return c;
}

static const struct {
    int64_t in_c, size, out_c, pad;
} layers[] = {{1, 28, 10, 0}, {10, 12, 20, 0}, {1, 28, 32, 2}, {32, 14, 64, 2}};

static sh_conv2d layer(int64_t n, int i)
{
    return shape(n, layers[i].in_c, layers[i].size, layers[i].out_c, 5, layers[i].pad);
}

/* ---- the fused block as a chain of single reference kernels ---- */

static sh_pool2d pool_of(const sh_conv2d *c)
{
    return (sh_pool2d){.dtype = c->dtype,
                       .n = c->n,
                       .c = c->out_c,
                       .in_h = sh_conv2d_out_h(c),
                       .in_w = sh_conv2d_out_w(c),
                       .kernel_h = 2,
                       .kernel_w = 2,
                       .stride_h = 2,
                       .stride_w = 2};
}

static void drop_planes(const job *j, float *map)
{
    const int64_t plane = j->outs / j->planes;
    for (int64_t k = 0; j->drop && k < j->outs; k++) {
        map[k] = j->drop[k / plane] == 0 ? 0 : map[k] * j->drop[k / plane];
    }
}

/* Computes y and all gradients. */
static void chain(const job *j, float *y, const gradients *g)
{
    const sh_pool2d pool = pool_of(&j->c);
    float *map = room(j->outs), *grad = room(j->pooled + 1);
    int32_t *place = malloc(sizeof *place * (size_t)(j->pooled + 1));
    forward(reference, j, map);
    drop_planes(j, map);
    ck_assert_ok(sh_pooling_kernels_reference.max_forward(&exec, &pool, map, y, place));
    for (int64_t k = 0; k < j->pooled; k++) {
        grad[k] = y[k] <= 0 ? 0 : j->grad_pooled[k];
        y[k] = y[k] <= 0 ? 0 : y[k];
    }
    ck_assert_ok(sh_pooling_kernels_reference.max_backward(&exec, &pool, grad, place, map));
    drop_planes(j, map);
    ck_assert_ok(reference->backward(&exec, &j->c, map, j->x, j->w, g->x, g->w, g->bias));
    free(map);
    free(grad);
    free(place);
}

/* Compares the fused block of kernels k with the chain. */
static void check_block(const sh_conv_kernels *k, const job *j, double slack)
{
    answer got = answer_begin(j, j->pooled + 1, 0.5F), wanted = answer_begin(j, j->pooled + 1, 0.5F);
    chain(j, wanted.y, &wanted.grad);
    block_forward(k, j, &got);
    expect("y", &j->c, got.y, wanted.y, j->pooled, slack);
    for (int64_t i = 0; i < j->pooled; i++) {
        ck_assert_msg((got.winner[i] == SH_WINNER_DEAD) == (got.y[i] == 0) && got.winner[i] <= SH_WINNER_DEAD,
                      "winner[%lld] is %d where y is %g", (long long)i, got.winner[i], (double)got.y[i]);
    }
    block_backward(k, j, got.winner, &got.grad);
    expect_gradients(j, &got.grad, &wanted.grad, slack);
    answer_end(&got);
    answer_end(&wanted);
}

/* ---- tests ---- */

START_TEST(block_of_the_reference_is_the_chain)
{
    for (int round = 0; round < CASES / 4; round++) {
        seed = (uint64_t)round + 1;
        const sh_conv2d c = any_shape();
        if (has_block(&c)) {
            job j = job_exact(c, below(2), below(2), 0.25F);
            check_block(reference, &j, 0);
            job_end(&j);
        }
    }
}
END_TEST

START_TEST(block_of_any_shape_is_exact)
{
    const sh_conv_kernels *k = fast(_i);
    for (int round = 0; k && round < CASES; round++) {
        seed = (uint64_t)round + 1;
        const sh_conv2d c = round % 4 == 0 ? any_shape() : block_shape();
        if (has_block(&c)) {
            job j = job_exact(c, below(2), below(2), below(5) ? 0.25F : 0x1p-130F);
            check_block(k, &j, 0);
            job_end(&j);
        }
    }
}
END_TEST

START_TEST(block_of_the_layers_is_exact)
{
    const sh_conv_kernels *k = fast(_i);
    for (int round = 0; k && round < 8; round++) {
        seed = (uint64_t)round + 1;
        const sh_conv2d c = layer(round % 4 == 3 ? 1 : 3, round % 4);
        job j = job_exact(c, true, round / 4 == (round % 4 == 1), 0.25F);
        check_block(k, &j, 0);
        job_end(&j);
    }
}
END_TEST

/* Rows or columns so long that few channels fit in a GPU's shared memory. */
START_TEST(block_of_long_images_is_exact)
{
    static const struct {
        int64_t n, in_c, in_h, in_w, out_c, kernel, pad;
    } shapes[] = {
        {1, 128, 2, 34, 1, 3, 1}, {16, 64, 22, 8, 1, 3, 0}, {1, 128, 3, 46, 16, 5, 2}, {16, 64, 54, 2, 1, 5, 2}};
    const sh_conv_kernels *k = fast(_i);
    for (size_t i = 0; k && i < sizeof shapes / sizeof *shapes; i++) {
        seed = i + 1;
        sh_conv2d c = shape(shapes[i].n, shapes[i].in_c, 0, shapes[i].out_c, shapes[i].kernel, shapes[i].pad);
        c.in_h = shapes[i].in_h;
        c.in_w = shapes[i].in_w;
        job j = job_exact(c, true, false, 0.25F);
        check_block(k, &j, 0);
        job_end(&j);
    }
}
END_TEST

/* Here sums are rounded, so they are equal only up to rounding. Near ties may be decided either way, so backward gets
 * the winners of the reference. */
START_TEST(block_is_close_on_reals)
{
    const sh_conv_kernels *k = fast(_i);
    for (int round = 0; k && round < 4; round++) {
        seed = (uint64_t)round + 1;
        job j = job_real(layer(2, round), round == 1);
        answer got = answer_begin(&j, j.pooled, 0), wanted = answer_begin(&j, j.pooled, 0);
        block_forward(reference, &j, &wanted);
        block_forward(k, &j, &got);
        expect("y", &j.c, got.y, wanted.y, j.pooled, 1e-4);
        block_backward(reference, &j, wanted.winner, &wanted.grad);
        block_backward(k, &j, wanted.winner, &got.grad);
        expect_gradients(&j, &got.grad, &wanted.grad, 1e-3);
        answer_end(&got);
        answer_end(&wanted);
        job_end(&j);
    }
}
END_TEST

/* NaN and infinity in the image reach the same outputs as in the reference. */
START_TEST(block_lets_nan_through)
{
    const sh_conv_kernels *k = fast(_i);
    for (int round = 0; k && round < CASES / 4; round++) {
        seed = (uint64_t)round + 1;
        job j = job_exact(block_shape(), true, below(2), 0.25F);
        for (int hits = 0; hits < 3; hits++) {
            j.x[below(j.in)] = hits == 0 ? NAN : hits == 1 ? INFINITY : -INFINITY;
            j.grad_pooled[below(j.pooled)] = hits == 0 ? NAN : INFINITY;
        }
        for (int64_t i = 0; i < j.weights; i++) {
            /* 0 * inf is NaN, and the chain's backward multiplies dead winners too. */
            j.w[i] = j.w[i] == 0 ? 1 : j.w[i];
        }
        answer got = answer_begin(&j, j.pooled, 0), wanted = answer_begin(&j, j.pooled, 0);
        block_forward(reference, &j, &wanted);
        block_forward(k, &j, &got);
        expect("y", &j.c, got.y, wanted.y, j.pooled, 0);
        ck_assert_mem_eq(got.winner, wanted.winner, (size_t)j.pooled);
        block_backward(reference, &j, got.winner, &wanted.grad);
        block_backward(k, &j, got.winner, &got.grad);
        expect("grad_x", &j.c, got.grad.x, wanted.grad.x, j.in, 0);
        expect("grad_bias", &j.c, got.grad.bias, wanted.grad.bias, j.c.out_c, 0);
        answer_end(&got);
        answer_end(&wanted);
        job_end(&j);
    }
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("kernels/conv2d_block");
    TCase *tc = conv2d_case("block");
    tcase_add_test(tc, block_of_the_reference_is_the_chain);
    tcase_add_loop_test(tc, block_of_any_shape_is_exact, 0, 2);
    tcase_add_loop_test(tc, block_of_the_layers_is_exact, 0, 2);
    tcase_add_loop_test(tc, block_of_long_images_is_exact, 0, 2);
    tcase_add_loop_test(tc, block_is_close_on_reals, 0, 2);
    tcase_add_loop_test(tc, block_lets_nan_through, 0, 2);
    suite_add_tcase(s, tc);
    return s;
}

SH_TEST_MAIN(suite)
