/* Shared by the tests of convolution: jobs with their arrays, what kernels make of them, and shapes.
 *
 * Most data are small multiples of a power of two, so that every sum is exact. Then all kernels have to agree to the
 * last bit, in whatever order they add, and the pool has many ties to decide. */
#ifndef SH_KERNELS_CONV2D_TEST_H
#define SH_KERNELS_CONV2D_TEST_H

#include "base/random.h"
#include "kernels/conv2d.h"
#include "kernels/kernels.h"
#include "tests/harness/cuda_mirror.h"
#include "tests/harness/runner.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define CASES sh_repeats(200)

static uint64_t seed;
static sh_exec exec;
static const sh_conv_kernels *const reference = &sh_conv_kernels_reference;

/* Returns variant i of the fast kernels, or NULL if this CPU cannot run it. */
static inline const sh_conv_kernels *fast(int i)
{
    const sh_kernels *kernels = sh_mirror_fast(i);
    return kernels ? kernels->conv : NULL;
}

static inline int64_t below(int64_t bound)
{
    return (int64_t)sh_splitmix_below(&seed, (uint64_t)bound);
}

static inline int64_t from_to(int64_t from, int64_t to)
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

static inline float *room(int64_t count)
{
    float *p = malloc(sizeof *p * (size_t)count);
    ck_assert_ptr_nonnull(p);
    return p;
}

/* Returns count multiples of step, from -8 to 8 steps. */
static inline float *grains(int64_t count, float step)
{
    float *p = room(count);
    for (int64_t i = 0; i < count; i++) {
        p[i] = (float)from_to(-8, 8) * step;
    }
    return p;
}

static inline void job_sizes(job *j)
{
    const sh_conv2d *c = &j->c;
    const int64_t out_h = sh_conv2d_out_h(c), out_w = sh_conv2d_out_w(c);
    j->in = c->n * c->in_c * c->in_h * c->in_w;
    j->weights = c->out_c * (c->in_c / c->groups) * c->kernel_h * c->kernel_w;
    j->planes = c->n * c->out_c;
    j->outs = j->planes * out_h * out_w;
    j->pooled = j->planes * (out_h / 2) * (out_w / 2);
}

static inline float *multipliers(int64_t count)
{
    static const float some[] = {0, 2, 2, 0, 1, 0.5F, -1};
    float *p = room(count);
    for (int64_t i = 0; i < count; i++) {
        p[i] = some[below(sizeof some / sizeof some[0])];
    }
    return p;
}

static inline job job_exact(sh_conv2d c, bool bias, bool drop, float step)
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

static inline void job_end(job *j)
{
    free(j->x);
    free(j->w);
    free(j->bias);
    free(j->drop);
    free(j->grad_out);
    free(j->grad_pooled);
}

/* Sets all gradients to fill, because backward adds to grad_w and grad_bias but overwrites grad_x. If it is to
 * overwrite them too, they are NaN. */
static inline gradients gradients_begin(const job *j, float fill)
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

static inline void gradients_end(gradients *g)
{
    free(g->x);
    free(g->w);
    free(g->bias);
}

/* What kernels make of a job. */
typedef struct answer {
    float *y; /* of the convolution, or of the block */
    uint8_t *winner;
    gradients grad;
} answer;

/* count: elements of y. */
static inline answer answer_begin(const job *j, int64_t count, float fill)
{
    answer a = {.y = room(count), .winner = malloc((size_t)count), .grad = gradients_begin(j, fill)};
    ck_assert_ptr_nonnull(a.winner);
    return a;
}

static inline void answer_end(answer *a)
{
    free(a->y);
    free(a->winner);
    gradients_end(&a->grad);
}

static inline void forward(const sh_conv_kernels *k, const job *j, float *y)
{
    ck_assert_ok(k->forward(&exec, &j->c, j->x, j->w, j->bias, y));
}

static inline void backward(const sh_conv_kernels *k, const job *j, const gradients *g)
{
    ck_assert_ok(k->backward(&exec, &j->c, j->grad_out, j->x, j->w, g->x, g->w, g->bias));
}

static inline void block_forward(const sh_conv_kernels *k, const job *j, answer *a)
{
    ck_assert_ok(k->pool_relu_forward(&exec, &j->c, j->x, j->w, j->bias, j->drop, a->y, a->winner));
}

static inline void block_backward(const sh_conv_kernels *k, const job *j, const uint8_t *winner, const gradients *g)
{
    ck_assert_ok(k->pool_relu_backward(&exec, &j->c, j->grad_pooled, j->x, j->w, j->drop, winner, g->x, g->w, g->bias));
}

static inline void expect(const char *what, const sh_conv2d *c, const float *got, const float *wanted, int64_t count,
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

static inline void expect_gradients(const job *j, const gradients *got, const gradients *wanted, double slack)
{
    expect("grad_x", &j->c, got->x, wanted->x, j->in, slack);
    expect("grad_w", &j->c, got->w, wanted->w, j->weights, slack);
    expect("grad_bias", &j->c, got->bias, wanted->bias, j->c.out_c, slack);
}

/* ---- shapes ---- */

static inline sh_conv2d shape(int64_t n, int64_t in_c, int64_t size, int64_t out_c, int64_t kernel, int64_t pad)
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

static inline sh_conv2d any_shape(void)
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

static inline bool has_block(const sh_conv2d *c)
{
    return sh_conv2d_out_h(c) >= 2 && sh_conv2d_out_w(c) >= 2;
}

static inline void scratch_end(void)
{
    free(exec.scratch);
    exec = (sh_exec){0};
}

static inline TCase *conv2d_case(const char *name)
{
    TCase *tc = tcase_create(name);
    tcase_set_timeout(tc, SH_TEST_SECONDS);
    tcase_add_checked_fixture(tc, NULL, scratch_end);
    return tc;
}

#endif
