/* Measures the fused block (convolution, dropout of channels, 2x2 max-pool, relu) on the layers of two small networks,
 * compared with the FMA peak of one core.
 *
 * usage: kernels_conv [avx2|avx512 [part of a layer's name]]
 *
 * Checks against the reference first. Then prints one JSON line for each layer and direction. GFLOP/s are those of the
 * dense convolution, forward or its gradients. The kernels skip some of that work, so the value may exceed the peak. */
#include <src/kernels/conv2d.h>

#include <shoal/shoal.h>

#include <immintrin.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef struct layer {
    const char *name;
    int64_t n, in_c, size, out_c, pad;
    bool drop, grad_x;
} layer;

static const layer layers[] = {
    {"mnist_conv1_b64", 64, 1, 28, 10, 0, false, false},  {"mnist_conv2_b64", 64, 10, 12, 20, 0, true, true},
    {"fedavg_conv1_b10", 10, 1, 28, 32, 2, false, false}, {"fedavg_conv2_b10", 10, 32, 14, 64, 2, false, true},
    {"fedavg_conv1_b50", 50, 1, 28, 32, 2, false, false}, {"fedavg_conv2_b50", 50, 32, 14, 64, 2, false, true},
};

enum {
    ROUNDS = 41,
    CHECKED = 3, /* images compared with the reference */
};

static const double ROUND_SECONDS = 0.008;

typedef struct setup {
    const layer *l;
    sh_conv2d c;
    int64_t image_x, image_y, weights; /* elements */
    float *x, *w, *bias, *drop, *y, *grad_y, *grad_x, *grad_w, *grad_bias;
    uint8_t *winner;
} setup;

static sh_exec exec;

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* 20 chains of fused multiply-adds hide the latency. Returns GFLOP/s. */
__attribute__((target("avx2,fma"))) static double peak_once(void)
{
    __m256 sum[10];
    const __m256 f = _mm256_set1_ps(0.5F);
    const int64_t count = 200000;
    for (int i = 0; i < 10; i++) {
        sum[i] = _mm256_set1_ps((float)i);
    }
    const double begun = now();
    for (int64_t k = 0; k < count; k++) {
#pragma GCC unroll 10
        for (int i = 0; i < 10; i++) {
            __asm__ volatile("vfmadd231ps %1, %1, %0" : "+x"(sum[i]) : "x"(f));
        }
    }
    return (double)count * 10 * 8 * 2 / (now() - begun) * 1e-9;
}

static double fma_peak(void)
{
    double best = 0;
    for (int i = 0; i < 40; i++) {
        const double once = peak_once();
        best = once > best ? once : best;
    }
    return best;
}

static float *reals(int64_t count, float scale)
{
    float *p = aligned_alloc(64, ((size_t)count * sizeof *p + 63) / 64 * 64);
    for (int64_t i = 0; p && i < count; i++) {
        p[i] = ((float)rand() / (float)RAND_MAX * 2 - 1) * scale;
    }
    return p;
}

static setup setup_of(const layer *l)
{
    const int64_t out = l->size + 2 * l->pad - 4;
    setup s = {
        .l = l,
        .c = {.dtype = SHOAL_F32, .n = l->n, .in_c = l->in_c, .in_h = l->size, .in_w = l->size, .out_c = l->out_c},
        .image_x = l->in_c * l->size * l->size,
        .image_y = l->out_c * (out / 2) * (out / 2),
        .weights = l->out_c * l->in_c * 25,
    };
    s.c.kernel_h = s.c.kernel_w = 5;
    s.c.stride_h = s.c.stride_w = s.c.dilation_h = s.c.dilation_w = s.c.groups = 1;
    s.c.pad_h = s.c.pad_w = l->pad;
    s.x = reals(l->n * s.image_x, 1);
    s.w = reals(s.weights, 1 / sqrtf((float)(25 * l->in_c)));
    s.bias = reals(l->out_c, 0.2F);
    s.drop = l->drop ? reals(l->n * l->out_c, 1) : NULL;
    for (int64_t i = 0; s.drop && i < l->n * l->out_c; i++) {
        s.drop[i] = s.drop[i] < 0 ? 0 : 2;
    }
    s.y = reals(l->n * s.image_y, 1);
    s.grad_y = reals(l->n * s.image_y, 1);
    s.grad_x = l->grad_x ? reals(l->n * s.image_x, 1) : NULL;
    s.grad_w = reals(s.weights, 0);
    s.grad_bias = reals(l->out_c, 0);
    s.winner = malloc((size_t)(l->n * s.image_y));
    return s;
}

static void setup_end(setup *s)
{
    void *all[] = {s->x, s->w, s->bias, s->drop, s->y, s->grad_y, s->grad_x, s->grad_w, s->grad_bias, s->winner};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        free(all[i]);
    }
}

static shoal_err forward(const sh_conv_kernels *k, const setup *s)
{
    return k->pool_relu_forward(&exec, &s->c, s->x, s->w, s->bias, s->drop, s->y, s->winner);
}

static shoal_err backward(const sh_conv_kernels *k, const setup *s)
{
    return k->pool_relu_backward(&exec, &s->c, s->grad_y, s->x, s->w, s->drop, s->winner, s->grad_x, s->grad_w,
                                 s->grad_bias);
}

static bool close_to(const char *what, const float *got, const float *wanted, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        if (!(fabsf(got[i] - wanted[i]) <= 1e-3F)) {
            fprintf(stderr, "%s[%lld] = %g, wanted %g\n", what, (long long)i, (double)got[i], (double)wanted[i]);
            return false;
        }
    }
    return true;
}

/* Compares the results of the kernels for the first images with the reference. */
static bool is_right(const sh_conv_kernels *k, const layer *l)
{
    layer few = *l;
    few.n = CHECKED;
    srand(1);
    setup s = setup_of(&few);
    srand(1);
    setup wanted = setup_of(&few);
    bool right = forward(k, &s) == SHOAL_OK && forward(&sh_conv_kernels_reference, &wanted) == SHOAL_OK &&
                 close_to("y", s.y, wanted.y, CHECKED * s.image_y);
    /* Near ties may be decided either way. */
    memcpy(s.winner, wanted.winner, (size_t)(CHECKED * s.image_y));
    right = right && backward(k, &s) == SHOAL_OK && backward(&sh_conv_kernels_reference, &wanted) == SHOAL_OK &&
            close_to("grad_w", s.grad_w, wanted.grad_w, s.weights) &&
            close_to("grad_bias", s.grad_bias, wanted.grad_bias, l->out_c) &&
            (!l->grad_x || close_to("grad_x", s.grad_x, wanted.grad_x, CHECKED * s.image_x));
    setup_end(&s);
    setup_end(&wanted);
    return right;
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Returns the median seconds of one call. */
static double seconds_of(shoal_err (*call)(const sh_conv_kernels *, const setup *), const sh_conv_kernels *k,
                         const setup *s)
{
    double rounds[ROUNDS];
    const double begun = now();
    (void)call(k, s);
    int64_t calls = (int64_t)(ROUND_SECONDS / (now() - begun)) + 1;
    for (int r = 0; r < ROUNDS; r++) {
        const double start = now();
        for (int64_t i = 0; i < calls; i++) {
            (void)call(k, s);
        }
        rounds[r] = (now() - start) / (double)calls;
    }
    qsort(rounds, ROUNDS, sizeof rounds[0], by_value);
    return rounds[ROUNDS / 2];
}

static void tell(const setup *s, const char *direction, double seconds, double products, double peak, double live)
{
    const int64_t out = s->l->size + 2 * s->l->pad - 4;
    const double flops = 2.0 * products * (double)(s->weights * out * out);
    const double each = seconds / (double)s->l->n;
    printf("{\"name\": \"%s_%s\", \"us_per_image\": %.3f, \"gflops\": %.1f, \"fma_peak\": %.1f, \"of_peak\": %.3f, "
           "\"live\": %.3f}\n",
           s->l->name, direction, each * 1e6, flops / each * 1e-9, peak, flops / each * 1e-9 / peak, live);
}

static void measure(const sh_conv_kernels *k, const layer *l, double peak)
{
    srand(2);
    setup s = setup_of(l);
    const double forth = seconds_of(forward, k, &s), back = seconds_of(backward, k, &s);
    int64_t live = 0;
    for (int64_t i = 0; i < l->n * s.image_y; i++) {
        live += s.winner[i] != SH_WINNER_DEAD;
    }
    const double share = (double)live / (double)(l->n * s.image_y);
    tell(&s, "forward", forth, 1, peak, share);
    tell(&s, "backward", back, l->grad_x ? 2 : 1, peak, share);
    setup_end(&s);
}

int main(int argc, char **argv)
{
    __builtin_cpu_init();
    const bool wide = __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512bw");
    const sh_conv_kernels *k = argc > 1 ? strcmp(argv[1], "avx2") == 0 ? &sh_conv_kernels_avx2 : &sh_conv_kernels_avx512
                               : wide   ? &sh_conv_kernels_avx512
                                        : &sh_conv_kernels_avx2;
    if (!__builtin_cpu_supports("avx2") || (k == &sh_conv_kernels_avx512 && !wide)) {
        fprintf(stderr, "this CPU does not have the instructions that the kernels need\n");
        return EXIT_FAILURE;
    }
    const double peak = fma_peak();
    for (size_t i = 0; i < sizeof layers / sizeof layers[0]; i++) {
        if (argc > 2 && !strstr(layers[i].name, argv[2])) {
            continue;
        }
        if (!is_right(k, &layers[i])) {
            fprintf(stderr, "%s: wrong\n", layers[i].name);
            return EXIT_FAILURE;
        }
        measure(k, &layers[i], peak);
    }
    free(exec.scratch);
    return EXIT_SUCCESS;
}
