/* Measures linear and matmul: x·wᵀ with w [out, in] as modules store it, and the same product with the weight
 * transposed in advance. The two alternate, round by round, so that other load on the machine affects both. */
#include "bench/kernels/measure.h"

#include "kernels/kernels.h"

#include <math.h>

#define ROUNDS 61

typedef struct shape {
    int64_t rows, in, out;
} shape;

/* Each number of rows with each layer, then a few more. */
static const int64_t rows[] = {1, 2, 3, 4, 6, 8, 10, 12, 16, 24, 32, 64};
static const shape layers[] = {{0, 16, 64},   {0, 32, 64},   {0, 64, 64},    {0, 128, 128}, {0, 128, 512},
                               {0, 256, 256}, {0, 784, 128}, {0, 3136, 512}, {0, 512, 10}};
static const shape others[] = {
    {1, 50, 10},    {1, 1024, 1024}, {16, 256, 1024}, {64, 50, 10},    {64, 512, 1},    {64, 320, 50},
    {64, 784, 256}, {128, 784, 256}, {50, 3136, 512}, {256, 256, 256}, {256, 512, 512},
};

typedef struct work {
    const sh_kernels *kernels;
    sh_exec exec;
    sh_matmul_args linear, matmul;
} work;

static double time_of(work *w, const sh_matmul_args *args, int64_t times)
{
    double begin = measure_now();
    for (int64_t i = 0; i < times; i++) {
        if (w->kernels->matmul->matmul(&w->exec, args)) {
            abort();
        }
    }
    return (measure_now() - begin) / (double)times;
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static float *numbers(int64_t n, uint64_t seed)
{
    float *x = aligned_alloc(64, ((size_t)n * sizeof *x + 63) / 64 * 64);
    for (int64_t i = 0; x && i < n; i++) {
        x[i] = measure_random(&seed);
    }
    return x;
}

/* Compares both products with the reference kernel's. */
static bool agrees(work *w, float *wanted)
{
    bool good = true;
    const sh_matmul_args *both[] = {&w->linear, &w->matmul};
    for (int v = 0; v < 2; v++) {
        sh_exec exec = {0};
        sh_matmul_args args = *both[v];
        float *got = args.c;
        args.c = wanted;
        good = good && sh_kernels_find("reference")->matmul->matmul(&exec, &args) == SHOAL_OK;
        memset(got, 0xff, (size_t)(args.m * args.n) * sizeof *got);
        (void)time_of(w, both[v], 1);
        for (int64_t i = 0; i < args.m * args.n; i++) {
            good = good && fabsf(got[i] - wanted[i]) <= 1e-4f * sqrtf((float)args.k);
        }
    }
    return good;
}

static void tell(const char *isa, const shape *s, work *w, double peak)
{
    double flops = 2.0 * (double)s->rows * (double)s->in * (double)s->out, linear[ROUNDS], matmul[ROUNDS];
    int64_t times = 1 + (int64_t)(2e-4 * 50e9 / flops);
    for (int r = 0; r < ROUNDS; r++) {
        linear[r] = time_of(w, &w->linear, times);
        matmul[r] = time_of(w, &w->matmul, times);
    }
    qsort(linear, ROUNDS, sizeof *linear, by_size);
    qsort(matmul, ROUNDS, sizeof *matmul, by_size);
    printf("{\"name\":\"linear_%lldx%lld_%lld\",\"isa\":\"%s\",\"unit\":\"us\",\"linear\":%.3f,\"matmul\":%.3f,"
           "\"linear_median\":%.3f,\"matmul_median\":%.3f,\"ratio\":%.3f,\"of_peak\":%.3f}\n",
           (long long)s->rows, (long long)s->in, (long long)s->out, isa, linear[0] * 1e6, matmul[0] * 1e6,
           linear[ROUNDS / 2] * 1e6, matmul[ROUNDS / 2] * 1e6, linear[0] / matmul[0], flops / linear[0] / peak);
    (void)fflush(stdout);
}

static bool run(const shape *s, const sh_kernels *kernels, double peak)
{
    float *x = numbers(s->rows * s->in, 1), *w = numbers(s->out * s->in, 2), *t = numbers(s->out * s->in, 2);
    float *y = numbers(s->rows * s->out, 3), *wanted = numbers(s->rows * s->out, 3), *bias = numbers(s->out, 4);
    for (int64_t o = 0; o < s->out; o++) {
        for (int64_t i = 0; i < s->in; i++) {
            t[i * s->out + o] = w[o * s->in + i];
        }
    }
    work both = {.kernels = kernels};
    both.linear = (sh_matmul_args){.dtype = SHOAL_F32, .batch = 1, .m = s->rows, .n = s->out, .k = s->in, .alpha = 1};
    both.linear.a = x;
    both.linear.a_row = s->in;
    both.linear.a_col = 1;
    both.linear.c = y;
    both.linear.c_row = s->out;
    both.matmul = both.linear;
    both.linear.bias = bias;
    both.linear.b = w;
    both.linear.b_row = 1;
    both.linear.b_col = s->in;
    both.matmul.b = t;
    both.matmul.b_row = s->out;
    both.matmul.b_col = 1;
    bool good = agrees(&both, wanted);
    if (good) {
        tell(kernels->name, s, &both, peak);
    } else {
        (void)fprintf(stderr, "%lldx%lld -> %lld: wrong answer\n", (long long)s->rows, (long long)s->in,
                      (long long)s->out);
    }
    free(both.exec.scratch);
    free(x);
    free(w);
    free(t);
    free(y);
    free(wanted);
    free(bias);
    return good;
}

int main(int argc, char **argv)
{
    const sh_kernels *kernels = argc > 1 ? sh_kernels_find(argv[1]) : sh_kernels_cpu();
    if (!kernels) {
        (void)fprintf(stderr, "usage: linear [reference|avx2|avx512 [ROWS IN OUT]]; this CPU cannot run %s\n", argv[1]);
        return 2;
    }
    double peak = measure_fma_peak();
    bool good = true;
    if (argc == 5) {
        return run(&(shape){atoll(argv[2]), atoll(argv[3]), atoll(argv[4])}, kernels, peak) ? 0 : 1;
    }
    for (size_t l = 0; l < sizeof layers / sizeof *layers; l++) {
        for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
            good = run(&(shape){rows[r], layers[l].in, layers[l].out}, kernels, peak) && good;
        }
    }
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        good = run(&others[i], kernels, peak) && good;
    }
    return good ? 0 : 1;
}
