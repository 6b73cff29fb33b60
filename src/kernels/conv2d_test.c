/* Tests of convolution: the reference against finite differences, the fast kernels against the reference, and the fused
 * block against the chain of single kernels.
 *
 * Most data are small multiples of a power of two, so that every sum is exact. Then all kernels have to agree to the
 * last bit, in whatever order they add, and the pool has many ties to decide. */
#include "base/random.h"
#include "kernels/conv2d.h"
#include "kernels/kernels.h"
#include "kernels/pool.h"
#include "testing/cuda_mirror.h"
#include "testing/runner.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CASES sh_repeats(200)

static uint64_t seed;
static sh_exec exec;
static const sh_conv_kernels *const reference = &sh_conv_kernels_reference;

/* Returns variant i of the fast kernels, or NULL if this CPU cannot run it. */
static const sh_conv_kernels *fast(int i)
{
    const sh_kernels *card = sh_mirror_kernels(); /* with SHOAL_TEST_CARD: instead of variant 0 */
    const sh_kernels *kernels = card ? (i == 0 ? card : NULL) : sh_kernels_find(i == 0 ? "avx2" : "avx512");
    if (kernels != NULL) {
        return kernels->conv;
    }
    printf("skipped: this CPU has no %s\n", i == 0 ? "AVX2" : "AVX-512");
    return NULL;
}

static int64_t below(int64_t bound)
{
    return (int64_t)sh_splitmix_below(&seed, (uint64_t)bound);
}

static int64_t from_to(int64_t from, int64_t to)
{
    return from + below(to - from + 1);
}

/* All arrays of one convolution, each of its exact size, so that AddressSanitizer detects an access beyond the end. */
typedef struct job {
    sh_conv2d c;
    int64_t in, weights, outs, planes, pooled; /* elements; planes counts the planes of outputs */
    float *x, *w, *bias, *drop;                /* drop is for the fused block, and may be NULL */
    float *grad_out, *grad_pooled;
} job;

typedef struct gradients {
    float *x, *w, *bias;
} gradients;

static float *room(int64_t count)
{
    float *p = malloc(sizeof *p * (size_t)count);
    ck_assert_ptr_nonnull(p);
    return p;
}

/* Returns count multiples of step, from -8 to 8 steps. */
static float *grains(int64_t count, float step)
{
    float *p = room(count);
    for (int64_t i = 0; i < count; i++) {
        p[i] = (float)from_to(-8, 8) * step;
    }
    return p;
}

static float *reals(int64_t count)
{
    float *p = room(count);
    for (int64_t i = 0; i < count; i++) {
        p[i] = (float)((double)(sh_splitmix_next(&seed) >> 11) * 0x1p-52 - 1);
    }
    return p;
}

static void job_sizes(job *j)
{
    const sh_conv2d *c = &j->c;
    const int64_t out_h = sh_conv2d_out_h(c), out_w = sh_conv2d_out_w(c);
    j->in = c->n * c->in_c * c->in_h * c->in_w;
    j->weights = c->out_c * (c->in_c / c->groups) * c->kernel_h * c->kernel_w;
    j->planes = c->n * c->out_c;
    j->outs = j->planes * out_h * out_w;
    j->pooled = j->planes * (out_h / 2) * (out_w / 2);
}

static float *multipliers(int64_t count)
{
    static const float some[] = {0, 2, 2, 0, 1, 0.5F, -1};
    float *p = room(count);
    for (int64_t i = 0; i < count; i++) {
        p[i] = some[below(sizeof some / sizeof some[0])];
    }
    return p;
}

static job job_exact(sh_conv2d c, bool bias, bool drop, float step)
{
    job j = {.c = c};
    job_sizes(&j);
    j.c.overwrite = below(3) == 0;
    j.x = grains(j.in, step);
    j.w = grains(j.weights, 0.25F);
    j.bias = bias ? grains(c.out_c, step * 0.25F) : NULL;
    j.drop = drop ? multipliers(j.planes) : NULL;
    j.grad_out = grains(j.outs, 0.25F);
    j.grad_pooled = grains(j.pooled + 1, 0.25F);
    return j;
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

static void job_end(job *j)
{
    free(j->x);
    free(j->w);
    free(j->bias);
    free(j->drop);
    free(j->grad_out);
    free(j->grad_pooled);
}

/* Sets all gradients to fill, because backward adds to grad_w and grad_bias but overwrites grad_x. If it is to overwrite
 * them too, they are NaN. */
static gradients gradients_begin(const job *j, float fill)
{
    fill = j->c.overwrite ? NAN : fill;
    gradients g = {room(j->in), room(j->weights), room(j->c.out_c)};
    for (int64_t i = 0; i < j->weights; i++) {
        g.w[i] = fill * (float)(i % 5);
    }
    for (int64_t i = 0; i < j->c.out_c; i++) {
        g.bias[i] = fill * (float)(i % 3);
    }
    memset(g.x, 0xff, sizeof *g.x * (size_t)j->in);
    return g;
}

static void gradients_end(gradients *g)
{
    free(g->x);
    free(g->w);
    free(g->bias);
}

static void expect(const char *what, const sh_conv2d *c, const float *got, const float *wanted, int64_t count,
                   double slack)
{
    for (int64_t i = 0; i < count; i++) {
        const bool same = slack == 0 ? got[i] == wanted[i] : fabs((double)got[i] - (double)wanted[i]) <= slack;
        ck_assert_msg(
            same || (isnan(got[i]) && isnan(wanted[i])),
            "%s[%lld] = %.9g, wanted %.9g; n %lld, %lld x %lld x %lld -> %lld, kernel %lld x %lld, stride %lld "
            "%lld, pad %lld %lld, dilation %lld %lld, groups %lld",
            what, (long long)i, (double)got[i], (double)wanted[i], (long long)c->n, (long long)c->in_c,
            (long long)c->in_h, (long long)c->in_w, (long long)c->out_c, (long long)c->kernel_h, (long long)c->kernel_w,
            (long long)c->stride_h, (long long)c->stride_w, (long long)c->pad_h, (long long)c->pad_w,
            (long long)c->dilation_h, (long long)c->dilation_w, (long long)c->groups);
    }
}

static void expect_gradients(const job *j, const gradients *got, const gradients *wanted, double slack)
{
    expect("grad_x", &j->c, got->x, wanted->x, j->in, slack);
    expect("grad_w", &j->c, got->w, wanted->w, j->weights, slack);
    expect("grad_bias", &j->c, got->bias, wanted->bias, j->c.out_c, slack);
}

/* ---- shapes ---- */

static sh_conv2d shape(int64_t n, int64_t in_c, int64_t size, int64_t out_c, int64_t kernel, int64_t pad)
{
    return (sh_conv2d){.dtype = SHOAL_F32,
                       .n = n,
                       .in_c = in_c,
                       .in_h = size,
                       .in_w = size,
                       .out_c = out_c,
                       .kernel_h = kernel,
                       .kernel_w = kernel,
                       .stride_h = 1,
                       .stride_w = 1,
                       .pad_h = pad,
                       .pad_w = pad,
                       .dilation_h = 1,
                       .dilation_w = 1,
                       .groups = 1};
}

static sh_conv2d any_shape(void)
{
    const int64_t groups = below(3) == 0 ? from_to(2, 3) : 1;
    sh_conv2d c = {.dtype = SHOAL_F32, .n = from_to(1, 3), .groups = groups};
    c.in_c = groups * from_to(1, 4);
    c.out_c = groups * from_to(1, 10);
    c.kernel_h = from_to(1, 5);
    c.kernel_w = from_to(1, 5);
    c.stride_h = from_to(1, 3);
    c.stride_w = from_to(1, 3);
    c.dilation_h = from_to(1, 2);
    c.dilation_w = from_to(1, 2);
    c.pad_h = from_to(0, 3);
    c.pad_w = from_to(0, 3);
    c.in_h = from_to(c.dilation_h * (c.kernel_h - 1) + 1, 14);
    c.in_w = from_to(c.dilation_w * (c.kernel_w - 1) + 1, 24);
    return c;
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
static void chain(const job *j, float *y, gradients *g)
{
    const sh_pool2d pool = pool_of(&j->c);
    float *map = room(j->outs), *grad = room(j->pooled + 1);
    int32_t *place = malloc(sizeof *place * (size_t)(j->pooled + 1));
    ck_assert_ok(reference->forward(&exec, &j->c, j->x, j->w, j->bias, map));
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
    float *y = room(j->pooled + 1), *wanted_y = room(j->pooled + 1);
    uint8_t *winner = malloc((size_t)j->pooled + 1);
    gradients got = gradients_begin(j, 0.5F), wanted = gradients_begin(j, 0.5F);
    chain(j, wanted_y, &wanted);
    ck_assert_ok(k->pool_relu_forward(&exec, &j->c, j->x, j->w, j->bias, j->drop, y, winner));
    expect("y", &j->c, y, wanted_y, j->pooled, slack);
    for (int64_t i = 0; i < j->pooled; i++) {
        ck_assert_msg((winner[i] == SH_WINNER_DEAD) == (y[i] == 0) && winner[i] <= SH_WINNER_DEAD,
                      "winner[%lld] is %d where y is %g", (long long)i, winner[i], (double)y[i]);
    }
    ck_assert_ok(
        k->pool_relu_backward(&exec, &j->c, j->grad_pooled, j->x, j->w, j->drop, winner, got.x, got.w, got.bias));
    expect_gradients(j, &got, &wanted, slack);
    gradients_end(&got);
    gradients_end(&wanted);
    free(y);
    free(wanted_y);
    free(winner);
}

static bool has_block(const sh_conv2d *c)
{
    return sh_conv2d_out_h(c) >= 2 && sh_conv2d_out_w(c) >= 2;
}

/* ---- tests ---- */

START_TEST(general_is_exact)
{
    const sh_conv_kernels *k = fast(_i);
    for (int round = 0; k && round < CASES; round++) {
        seed = (uint64_t)round + 1;
        job j = job_exact(any_shape(), below(2), false, 0.25F);
        float *y = room(j.outs), *wanted_y = room(j.outs);
        gradients got = gradients_begin(&j, 0.5F), wanted = gradients_begin(&j, 0.5F);
        ck_assert_ok(reference->forward(&exec, &j.c, j.x, j.w, j.bias, wanted_y));
        ck_assert_ok(k->forward(&exec, &j.c, j.x, j.w, j.bias, y));
        expect("y", &j.c, y, wanted_y, j.outs, 0);
        ck_assert_ok(reference->backward(&exec, &j.c, j.grad_out, j.x, j.w, wanted.x, wanted.w, wanted.bias));
        ck_assert_ok(k->backward(&exec, &j.c, j.grad_out, j.x, j.w, got.x, got.w, got.bias));
        expect_gradients(&j, &got, &wanted, 0);
        gradients_end(&got);
        gradients_end(&wanted);
        free(y);
        free(wanted_y);
        job_end(&j);
    }
}
END_TEST

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
        const int64_t n = round % 4 == 3 ? 1 : 3;
        const sh_conv2d c =
            shape(n, layers[round % 4].in_c, layers[round % 4].size, layers[round % 4].out_c, 5, layers[round % 4].pad);
        job j = job_exact(c, true, round / 4 == (round % 4 == 1), 0.25F);
        check_block(k, &j, 0);
        job_end(&j);
    }
}
END_TEST

/* Rows or columns so long that few channels fit in a card's shared memory. */
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
        job j = job_real(shape(2, layers[round].in_c, layers[round].size, layers[round].out_c, 5, layers[round].pad),
                         round == 1);
        float *y = room(j.pooled), *wanted_y = room(j.pooled);
        uint8_t *winner = malloc((size_t)j.pooled), *wanted_winner = malloc((size_t)j.pooled);
        gradients got = gradients_begin(&j, 0), wanted = gradients_begin(&j, 0);
        ck_assert_ok(reference->pool_relu_forward(&exec, &j.c, j.x, j.w, j.bias, j.drop, wanted_y, wanted_winner));
        ck_assert_ok(k->pool_relu_forward(&exec, &j.c, j.x, j.w, j.bias, j.drop, y, winner));
        expect("y", &j.c, y, wanted_y, j.pooled, 1e-4);
        ck_assert_ok(reference->pool_relu_backward(&exec, &j.c, j.grad_pooled, j.x, j.w, j.drop, wanted_winner,
                                                   wanted.x, wanted.w, wanted.bias));
        ck_assert_ok(
            k->pool_relu_backward(&exec, &j.c, j.grad_pooled, j.x, j.w, j.drop, wanted_winner, got.x, got.w, got.bias));
        expect_gradients(&j, &got, &wanted, 1e-3);
        gradients_end(&got);
        gradients_end(&wanted);
        free(y);
        free(wanted_y);
        free(winner);
        free(wanted_winner);
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
            j.w[i] =
                j.w[i] == 0 ? 1 : j.w[i]; /* 0 * inf is NaN, and the chain's backward multiplies dead winners too */
        }
        float *y = room(j.pooled), *wanted_y = room(j.pooled);
        uint8_t *winner = malloc((size_t)j.pooled), *wanted_winner = malloc((size_t)j.pooled);
        gradients got = gradients_begin(&j, 0), wanted = gradients_begin(&j, 0);
        ck_assert_ok(reference->pool_relu_forward(&exec, &j.c, j.x, j.w, j.bias, j.drop, wanted_y, wanted_winner));
        ck_assert_ok(k->pool_relu_forward(&exec, &j.c, j.x, j.w, j.bias, j.drop, y, winner));
        expect("y", &j.c, y, wanted_y, j.pooled, 0);
        ck_assert_mem_eq(winner, wanted_winner, (size_t)j.pooled);
        ck_assert_ok(reference->pool_relu_backward(&exec, &j.c, j.grad_pooled, j.x, j.w, j.drop, winner, wanted.x,
                                                   wanted.w, wanted.bias));
        ck_assert_ok(
            k->pool_relu_backward(&exec, &j.c, j.grad_pooled, j.x, j.w, j.drop, winner, got.x, got.w, got.bias));
        expect("grad_x", &j.c, got.x, wanted.x, j.in, 0);
        expect("grad_bias", &j.c, got.bias, wanted.bias, j.c.out_c, 0);
        gradients_end(&got);
        gradients_end(&wanted);
        free(y);
        free(wanted_y);
        free(winner);
        free(wanted_winner);
        job_end(&j);
    }
}
END_TEST

/* A gradient that is not wanted may be NULL, and does not change the others. */
START_TEST(gradients_are_optional)
{
    const sh_conv_kernels *k = fast(_i);
    for (int round = 0; k && round < 4 * 8; round++) {
        seed = (uint64_t)round + 1;
        const int which = round % 8;
        const sh_conv2d c = round / 8 == 0   ? shape(2, 1, 12, 10, 5, 0)
                            : round / 8 == 1 ? shape(2, 10, 12, 20, 5, 0)
                            : round / 8 == 2 ? shape(1, 3, 14, 32, 5, 2)
                                             : shape(2, 2, 7, 3, 4, 1);
        job j = job_exact(c, true, false, 0.25F);
        float *y = room(j.pooled);
        uint8_t *winner = malloc((size_t)j.pooled);
        ck_assert_ok(reference->pool_relu_forward(&exec, &j.c, j.x, j.w, j.bias, NULL, y, winner));
        gradients g[4];
        for (int i = 0; i < 4; i++) {
            g[i] = gradients_begin(&j, 0.5F);
            const sh_conv_kernels *by = i % 2 ? k : reference;
            float *gx = which & 1 ? g[i].x : NULL, *gw = which & 2 ? g[i].w : NULL, *gb = which & 4 ? g[i].bias : NULL;
            ck_assert_ok(i < 2
                             ? by->backward(&exec, &j.c, j.grad_out, j.x, j.w, gx, gw, gb)
                             : by->pool_relu_backward(&exec, &j.c, j.grad_pooled, j.x, j.w, NULL, winner, gx, gw, gb));
        }
        expect_gradients(&j, &g[1], &g[0], 0);
        expect_gradients(&j, &g[3], &g[2], 0);
        for (int i = 0; i < 4; i++) {
            gradients_end(&g[i]);
        }
        free(y);
        free(winner);
        job_end(&j);
    }
}
END_TEST

static gradients gradients_of(const sh_conv_kernels *k, const job *j, bool block, const uint8_t *winner)
{
    gradients g = gradients_begin(j, 0);
    ck_assert_ok(block ? k->pool_relu_backward(&exec, &j->c, j->grad_pooled, j->x, j->w, NULL, winner, g.x, g.w, g.bias)
                       : k->backward(&exec, &j->c, j->grad_out, j->x, j->w, g.x, g.w, g.bias));
    return g;
}

START_TEST(overwriting_is_adding_to_zeros)
{
    const sh_conv_kernels *k = fast(_i);
    for (int round = 0; k && round < 20; round++) {
        seed = (uint64_t)round + 1;
        const int64_t n = round / 10 == 0 ? 2 : 0; /* without images the gradients are 0 */
        const sh_conv2d c = round / 2 % 5 == 0   ? shape(n, 1, 12, 10, 5, 0)
                            : round / 2 % 5 == 1 ? shape(n, 10, 12, 20, 5, 0)
                            : round / 2 % 5 == 2 ? shape(n, 32, 14, 64, 5, 2)
                            : round / 2 % 5 == 3 ? shape(n, 2, 7, 3, 4, 1)
                                                 : shape(n, 3, 9, 4, 3, 1);
        job j = job_exact(c, true, false, 0.25F);
        float *y = room(j.pooled + 1);
        uint8_t *winner = malloc((size_t)j.pooled + 1);
        ck_assert_ok(reference->pool_relu_forward(&exec, &j.c, j.x, j.w, j.bias, NULL, y, winner));
        j.c.overwrite = false;
        gradients added = gradients_of(reference, &j, round % 2, winner);
        j.c.overwrite = true;
        gradients by_reference = gradients_of(reference, &j, round % 2, winner);
        gradients by_fast = gradients_of(k, &j, round % 2, winner);
        expect_gradients(&j, &by_reference, &added, 0);
        expect_gradients(&j, &by_fast, &added, 0);
        gradients_end(&added);
        gradients_end(&by_reference);
        gradients_end(&by_fast);
        free(y);
        free(winner);
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

/* All gradients are 0.1 and all pixels 1.1: plain sums over the images in f32 would be off by more than 1e-4. Shapes for
 * the general algorithm and for both of the block's. Equal calls have equal bits. */
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

static void scratch_end(void)
{
    free(exec.scratch);
    exec = (sh_exec){0};
}

static Suite *suite(void)
{
    Suite *s = suite_create("kernels/conv2d");
    TCase *tc = tcase_create("conv2d");
    tcase_set_timeout(tc, SH_TEST_SECONDS);
    tcase_add_checked_fixture(tc, NULL, scratch_end);
    tcase_add_test(tc, block_of_the_reference_is_the_chain);
    tcase_add_test(tc, finite_differences);
    tcase_add_loop_test(tc, general_is_exact, 0, 2);
    tcase_add_loop_test(tc, block_of_any_shape_is_exact, 0, 2);
    tcase_add_loop_test(tc, block_of_the_layers_is_exact, 0, 2);
    tcase_add_loop_test(tc, block_of_long_images_is_exact, 0, 2);
    tcase_add_loop_test(tc, block_is_close_on_reals, 0, 2);
    tcase_add_loop_test(tc, block_lets_nan_through, 0, 2);
    tcase_add_loop_test(tc, gradients_are_optional, 0, 2);
    tcase_add_loop_test(tc, overwriting_is_adding_to_zeros, 0, 2);
    tcase_add_loop_test(tc, sums_of_many_images_are_accurate, 0, 3);
    tcase_add_loop_test(tc, element_types, 0, 2);
    suite_add_tcase(s, tc);
    return s;
}

SH_TEST_MAIN(suite)
