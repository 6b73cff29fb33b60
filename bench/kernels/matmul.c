/* Measures matrix products of the shapes that the models use,
 * compared with the FMA peak and with OpenBLAS if it can be loaded. */
#include "bench/kernels/measure.h"

#include "kernels/kernels.h"

#include <dlfcn.h>
#include <math.h>

enum { ROW_MAJOR = 101, NO_TRANSPOSE = 111, TRANSPOSE = 112 };
typedef void (*sgemm_fn)(int, int, int, int, int, int, float, const float *, int, const float *, int, float, float *,
                         int);

typedef struct shape {
    const char *name;
    int64_t m, k, n;
    bool a_transposed, b_transposed, accumulate;
} shape;

static const shape shapes[] = {
    {"linear_320_50", 64, 320, 50, false, true, false},
    {"linear_320_50_dx", 64, 50, 320, false, false, false},
    {"linear_320_50_dw", 50, 64, 320, true, false, true},
    {"linear_50_10", 64, 50, 10, false, true, false},
    {"linear_50_10_dx", 64, 10, 50, false, false, false},
    {"linear_50_10_dw", 10, 64, 50, true, false, true},
    {"fed10_3136_512", 10, 3136, 512, false, true, false},
    {"fed10_3136_512_dx", 10, 512, 3136, false, false, false},
    {"fed10_3136_512_dw", 512, 10, 3136, true, false, false},
    {"fed50_3136_512", 50, 3136, 512, false, true, false},
    {"fed50_3136_512_dx", 50, 512, 3136, false, false, false},
    {"fed50_3136_512_dw", 512, 50, 3136, true, false, false},
    {"fed50_3136_512_dw_add", 512, 50, 3136, true, false, true},
    {"fed10_512_3136_nn", 10, 3136, 512, false, false, false},
    {"fed10_3136_dw_tall", 3136, 10, 512, true, false, false},
    {"square_128", 128, 128, 128, false, false, false},
    {"square_256", 256, 256, 256, false, false, false},
    {"square_512", 512, 512, 512, false, false, false},
    {"square_512_nt", 512, 512, 512, false, true, false},
    {"square_512_tn", 512, 512, 512, true, false, false},
    {"square_1024", 1024, 1024, 1024, false, false, false},
};

typedef struct work {
    const sh_kernels *kernels;
    sh_exec exec;
    sh_matmul_args args;
    const shape *shape;
    sgemm_fn sgemm;
} work;

static void ours(void *context)
{
    work *w = context;
    if (w->kernels->matmul->matmul(&w->exec, &w->args)) {
        abort();
    }
}

static void theirs(void *context)
{
    work *w = context;
    const shape *s = w->shape;
    w->sgemm(ROW_MAJOR, s->a_transposed ? TRANSPOSE : NO_TRANSPOSE, s->b_transposed ? TRANSPOSE : NO_TRANSPOSE,
             (int)s->m, (int)s->n, (int)s->k, 1, w->args.a, (int)(s->a_transposed ? s->m : s->k), w->args.b,
             (int)(s->b_transposed ? s->k : s->n), s->accumulate, w->args.c, (int)s->n);
}

static sgemm_fn load_openblas(void)
{
    void *library = dlopen("libopenblas.so.0", RTLD_NOW | RTLD_LOCAL);
    void (*threads)(int) = library ? (void (*)(int))dlsym(library, "openblas_set_num_threads") : NULL;
    if (threads) {
        threads(1);
    }
    return library ? (sgemm_fn)dlsym(library, "cblas_sgemm") : NULL;
}

static float *numbers(int64_t n, uint64_t seed)
{
    float *x = aligned_alloc(64, ((size_t)n * sizeof *x + 63) / 64 * 64);
    for (int64_t i = 0; x && i < n; i++) {
        x[i] = measure_random(&seed);
    }
    return x;
}

static bool agrees(const work *w, float *wanted)
{
    int64_t n = w->args.m * w->args.n;
    sh_exec exec = {0};
    sh_matmul_args args = w->args;
    args.c = wanted;
    if (sh_kernels_find("reference")->matmul->matmul(&exec, &args)) {
        return false;
    }
    for (int64_t i = 0; i < n; i++) {
        if (fabsf(((float *)w->args.c)[i] - wanted[i]) > 1e-4f * sqrtf((float)w->args.k)) {
            return false;
        }
    }
    return true;
}

static bool run(const shape *s, const sh_kernels *kernels, sgemm_fn sgemm, double peak)
{
    work w = {.kernels = kernels, .shape = s, .sgemm = sgemm};
    float *a = numbers(s->m * s->k, 1), *b = numbers(s->k * s->n, 2), *c = numbers(s->m * s->n, 3);
    float *wanted = numbers(s->m * s->n, 3);
    w.args = (sh_matmul_args){.dtype = SHOAL_F32, .batch = 1, .m = s->m, .n = s->n, .k = s->k, .a = a, .b = b, .c = c};
    w.args.a_row = s->a_transposed ? 1 : s->k;
    w.args.a_col = s->a_transposed ? s->m : 1;
    w.args.b_row = s->b_transposed ? 1 : s->n;
    w.args.b_col = s->b_transposed ? s->k : 1;
    w.args.c_row = s->n;
    w.args.alpha = 1;
    w.args.accumulate = s->accumulate;
    ours(&w);
    bool good = agrees(&w, wanted);
    double flops = 2.0 * (double)s->m * (double)s->n * (double)s->k;
    if (good) {
        double mine = flops / measure(ours, &w), other = sgemm ? flops / measure(theirs, &w) : 0;
        measure_tell(s->name, mine * 1e-9, "GFLOP/s", peak * 1e-9, "fma_peak", other * 1e-9, "openblas");
    } else {
        (void)fprintf(stderr, "%s: wrong answer\n", s->name);
    }
    free(w.exec.scratch);
    free(a);
    free(b);
    free(c);
    free(wanted);
    return good;
}

int main(int argc, char **argv)
{
    const sh_kernels *kernels = argc > 1 ? sh_kernels_find(argv[1]) : sh_kernels_cpu();
    if (!kernels) {
        (void)fprintf(stderr, "usage: matmul [reference|avx2|avx512] [shape]; this CPU cannot run %s\n", argv[1]);
        return 2;
    }
    sgemm_fn sgemm = load_openblas();
    double peak = measure_fma_peak();
    bool good = true;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        if (argc < 3 || strstr(shapes[i].name, argv[2])) {
            good = run(&shapes[i], kernels, sgemm, peak) && good;
        }
    }
    return good ? 0 : 1;
}
