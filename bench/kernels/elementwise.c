/* Measures kernels that are bound by memory, compared with memcpy of as many bytes,
 * in the L1 cache and beyond the last cache. */
#include "bench/kernels/measure.h"

#include "kernels/kernels.h"

#include <math.h>

typedef enum what {
    ADD,
    AXPY,
    RELU,
    EXP,
    TANH,
    GELU,
    SUM,
    BIAS,
    SGD,
    ADAM,
    UNIFORM,
    NORMAL,
    DROPOUT,
    TO_BF16,
    WHATS
} what;

typedef struct line {
    const char *name;
    int arrays; /* how many f32 arrays are read or written, to count the bytes */
} line;

static const line lines[WHATS] = {
    [ADD] = {"add", 3},          [AXPY] = {"axpy", 3},       [RELU] = {"relu", 2},       [EXP] = {"exp", 2},
    [TANH] = {"tanh", 2},        [GELU] = {"gelu", 2},       [SUM] = {"sum", 1},         [BIAS] = {"add_bias", 2},
    [SGD] = {"sgd_momentum", 5}, [ADAM] = {"adam", 7},       [UNIFORM] = {"uniform", 1}, [NORMAL] = {"normal", 1},
    [DROPOUT] = {"dropout", 2},  [TO_BF16] = {"to_bf16", 2},
};

typedef struct work {
    const sh_kernels *k;
    sh_exec exec;
    what what;
    int64_t n;
    float *a, *b, *c, *d;
    uint8_t *mask;
} work;

static sh_view flat(void *data, int64_t n, shoal_dtype dtype)
{
    return (sh_view){.data = data, .shape = {n}, .strides = {1}, .ndim = 1, .dtype = dtype};
}

static shoal_err call(work *w)
{
    sh_view a = flat(w->a, w->n, SHOAL_F32), b = flat(w->b, w->n, SHOAL_F32), c = flat(w->c, w->n, SHOAL_F32);
    sh_random_key key = {.seed = 1};
    sh_sgd_args sgd = {.lr = 1e-9, .momentum = 0.5};
    sh_adam_args adam = {.lr = 1e-9, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8, .bias1 = 0.1, .bias2 = 0.001};
    const sh_elementwise_kernels *e = w->k->elementwise;
    switch (w->what) {
    case ADD: return e->binary(&w->exec, SH_BINARY_ADD, &c, &a, &b);
    case AXPY: return e->axpy(&w->exec, &c, &a, sh_scalar_float(1e-9));
    case RELU: return e->unary(&w->exec, SH_UNARY_RELU, &c, &a);
    case EXP: return e->unary(&w->exec, SH_UNARY_EXP, &c, &a);
    case TANH: return e->unary(&w->exec, SH_UNARY_TANH, &c, &a);
    case GELU: return e->unary(&w->exec, SH_UNARY_GELU, &c, &a);
    case SUM: b.shape[0] = 1; return w->k->reduce->reduce(&w->exec, SH_REDUCE_SUM, &b, &a);
    case BIAS:
        a = (sh_view){.data = w->a, .shape = {w->n / 64, 64}, .strides = {64, 1}, .ndim = 2, .dtype = SHOAL_F32};
        c = a;
        c.data = w->c;
        b = a;
        b.data = w->b;
        b.strides[0] = 0;
        return e->binary(&w->exec, SH_BINARY_ADD, &c, &a, &b);
    case SGD: return w->k->optim->sgd(&w->exec, SHOAL_F32, w->n, &sgd, w->a, w->b, w->c);
    case ADAM: return w->k->optim->adam(&w->exec, SHOAL_F32, w->n, &adam, w->a, w->b, w->d, NULL, w->c);
    case UNIFORM: return w->k->random->uniform(&w->exec, key, SHOAL_F32, w->c, w->n, 0, 1);
    case NORMAL: return w->k->random->normal(&w->exec, key, SHOAL_F32, w->c, w->n, 0, 1);
    case DROPOUT: return w->k->random->dropout(&w->exec, key, SHOAL_F32, w->c, w->mask, w->a, w->n, 0.5);
    case TO_BF16: c.dtype = SHOAL_BF16; return e->copy(&w->exec, &c, &a);
    case WHATS: break;
    }
    return SHOAL_EINVAL;
}

static void run(void *context)
{
    if (call(context)) {
        abort();
    }
}

static void copy(void *context)
{
    work *w = context;
    memcpy(w->c, w->a, (size_t)w->n * sizeof *w->a);
    __asm__ volatile("" ::: "memory");
}

static void reset(work *w)
{
    uint64_t seed = 1;
    for (int64_t i = 0; i < w->n; i++) {
        w->a[i] = measure_random(&seed);
        w->b[i] = measure_random(&seed);
        w->c[i] = measure_random(&seed);
        w->d[i] = fabsf(measure_random(&seed)) + 1;
    }
}

/* Compares the array that the call writes with the reference. */
static bool agrees(work *w)
{
    float *array = w->what == SGD || w->what == ADAM ? w->a : w->what == SUM ? w->b : w->c;
    int64_t n = w->what == SUM ? 1 : w->what == TO_BF16 ? w->n / 2 : w->n;
    float *mine = malloc((size_t)n * sizeof *mine);
    const sh_kernels *fast = w->k;
    reset(w);
    run(w);
    memcpy(mine, array, (size_t)n * sizeof *mine);
    reset(w);
    w->k = sh_kernels_find("reference");
    run(w);
    w->k = fast;
    bool good = true;
    for (int64_t i = 0; i < n && good; i++) {
        good = fabsf(mine[i] - array[i]) <= 1e-5f * (1 + fabsf(array[i])) || memcmp(&mine[i], &array[i], 4) == 0;
    }
    free(mine);
    return good;
}

static bool measure_size(const sh_kernels *k, int64_t n, const char *where)
{
    size_t bytes = (size_t)n * sizeof(float);
    work w = {
        .k = k, .n = n, .a = aligned_alloc(64, bytes), .b = aligned_alloc(64, bytes), .c = aligned_alloc(64, bytes)};
    w.d = aligned_alloc(64, bytes);
    w.mask = malloc((size_t)n);
    reset(&w);
    double limit = 2 * (double)bytes / measure(copy, &w);
    bool good = true;
    for (int i = 0; i < WHATS; i++) {
        w.what = (what)i;
        char name[64];
        (void)snprintf(name, sizeof name, "%s_%s", lines[i].name, where);
        if (!agrees(&w)) {
            (void)fprintf(stderr, "%s: wrong answer\n", name);
            good = false;
            continue;
        }
        reset(&w);
        double moved = (double)bytes * lines[i].arrays;
        measure_tell(name, moved / measure(run, &w) * 1e-9, "GB/s", limit * 1e-9, "memcpy", 0, "");
    }
    free(w.exec.scratch);
    free(w.a);
    free(w.b);
    free(w.c);
    free(w.d);
    free(w.mask);
    return good;
}

int main(int argc, char **argv)
{
    const sh_kernels *k = argc > 1 ? sh_kernels_find(argv[1]) : sh_kernels_cpu();
    if (!k) {
        (void)fprintf(stderr, "usage: elementwise [reference|avx2|avx512]; this CPU cannot run %s\n", argv[1]);
        return 2;
    }
    bool good = measure_size(k, 2048, "l1");
    good = measure_size(k, 1 << 20, "4mib") && good;
    return good ? 0 : 1;
}
