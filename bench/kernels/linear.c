/* linear beside matmul: x·wᵀ with w [out, in] as modules keep it, and the same product with the weight transposed beforehand. The two
 * are measured in turn, round by round, so that what else the machine does hits both. */
#include "bench/kernels/measure.h"

#include "kernels/kernels.h"

#include <math.h>

#define ROUNDS 41

typedef struct shape {
    int64_t rows, in, out;
} shape;

static const shape shapes[] = {
    {1, 50, 10},     {1, 16, 64},     {1, 128, 512},  {1, 784, 128},   {1, 1024, 1024}, {2, 32, 64},
    {2, 128, 512},   {4, 64, 64},     {4, 128, 512},  {8, 64, 64},     {8, 128, 512},   {16, 128, 512},
    {16, 256, 1024}, {32, 64, 256},   {32, 128, 512}, {64, 128, 512},  {64, 50, 10},    {64, 512, 1},
    {64, 320, 50},   {64, 256, 256},  {64, 784, 256}, {128, 784, 256}, {10, 3136, 512}, {50, 3136, 512},
    {256, 256, 256}, {256, 512, 512},
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

/* Both products against the plain kernel's. */
static bool agrees(work *w, float *wanted)
{
    sh_exec exec = {0};
    sh_matmul_args args = w->linear;
    float *got = args.c;
    args.c = wanted;
    bool good = sh_kernels_find("reference")->matmul->matmul(&exec, &args) == SHOAL_OK;
    const sh_matmul_args *both[] = {&w->linear, &w->matmul};
    for (int v = 0; v < 2; v++) {
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
    both.linear.bias = bias;
    both.matmul = both.linear;
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
        (void)fprintf(stderr, "usage: linear [reference|avx2|avx512]; this CPU cannot run %s\n", argv[1]);
        return 2;
    }
    double peak = measure_fma_peak();
    bool good = true;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        good = run(&shapes[i], kernels, peak) && good;
    }
    return good ? 0 : 1;
}
