/* Chooses the kernels that this CPU runs. */
#include "kernels/kernels.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define KERNELS(isa)                                                                                                   \
    {                                                                                                                  \
        .name = #isa, .elementwise = &sh_elementwise_kernels_##isa, .reduce = &sh_reduce_kernels_##isa,                \
        .matmul = &sh_matmul_kernels_##isa, .softmax = &sh_softmax_kernels_##isa, .norm = &sh_norm_kernels_##isa,      \
        .index = &sh_index_kernels_##isa, .rnn = &sh_rnn_kernels_##isa, .random = &sh_random_kernels_##isa,            \
        .optim = &sh_optim_kernels_##isa, .conv = &sh_conv_kernels_##isa, .pool = &sh_pooling_kernels_##isa,           \
    }

/* From the slowest to the fastest. */
typedef enum level {
    LEVEL_REFERENCE,
    LEVEL_AVX2,
    LEVEL_AVX512,
} level;

/* The kernels that are compiled in; the build omits those that the target cannot run. */
static const sh_kernels tables[] = {
    [LEVEL_REFERENCE] = KERNELS(reference),
#if defined(SH_KERNELS_AVX2)
    [LEVEL_AVX2] = KERNELS(avx2),
#endif
#if defined(SH_KERNELS_AVX512)
    [LEVEL_AVX512] = KERNELS(avx512),
#endif
};

static level level_of_cpu(void)
{
    level best = LEVEL_REFERENCE;
#if defined(SH_KERNELS_AVX2)
    __builtin_cpu_init();
    /* Every CPU with AVX2 and FMA has F16C, which not every compiler can check for. */
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
        best = LEVEL_AVX2;
    }
#endif
#if defined(SH_KERNELS_AVX512)
    if (best == LEVEL_AVX2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq")) {
        best = LEVEL_AVX512;
    }
#endif
    return best;
}

static const sh_kernels *chosen;

static void choose(void)
{
    const char *wish = getenv("SHOAL_CPU");
    level limit = LEVEL_AVX512, best = level_of_cpu();
    if (wish && strcmp(wish, "plain") == 0) {
        limit = LEVEL_REFERENCE;
    } else if (wish && strcmp(wish, "avx2") == 0) {
        limit = LEVEL_AVX2;
    }
    chosen = &tables[best < limit ? best : limit];
}

const sh_kernels *sh_kernels_cpu(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    (void)pthread_once(&once, choose);
    return chosen;
}

const sh_kernels *sh_kernels_find(const char *name)
{
    for (size_t i = 0; i <= (size_t)level_of_cpu(); i++) {
        if (strcmp(tables[i].name, name) == 0) {
            return &tables[i];
        }
    }
    return NULL;
}
