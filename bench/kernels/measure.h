/* Shared by the kernel benchmarks: the clock, the fastest of many rounds, the limits, and the JSON line. */
#ifndef BENCH_KERNELS_MEASURE_H
#define BENCH_KERNELS_MEASURE_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define MEASURE_ROUNDS 15
#define MEASURE_SECONDS 0.004 /* for one round */

static inline double measure_now(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* Returns the seconds of one call in the fastest round, so that other processes on this core do not count. */
static inline double measure(void (*call)(void *), void *context)
{
    double best = 1e9;
    call(context);
    int64_t times = 1;
    for (int round = 0; round < MEASURE_ROUNDS;) {
        double begin = measure_now();
        for (int64_t i = 0; i < times; i++) {
            call(context);
        }
        double seconds = measure_now() - begin;
        if (seconds < MEASURE_SECONDS / 2) {
            times *= 2;
            continue;
        }
        best = seconds / (double)times < best ? seconds / (double)times : best;
        round++;
    }
    return best;
}

#if defined(__x86_64__)
/* 12 sums, each a chain of fused multiply-adds: enough to hide the latency, without memory access. */
#define MEASURE_FMA(isa, type)                                                                                         \
    __attribute__((target(isa), optimize("O3"))) static inline void measure_fma_##type(void *steps)                    \
    {                                                                                                                  \
        typedef float v __attribute__((vector_size(sizeof(type))));                                                    \
        v x = {0.5f}, y = {0.25f}, s[12] = {{0}};                                                                      \
        _Pragma("GCC unroll 12") for (int j = 0; j < 12; j++)                                                          \
        {                                                                                                              \
            __asm__ volatile("" : "+x"(s[j])); /* the compiler must not know that they are equal */                    \
        }                                                                                                              \
        for (int64_t i = 0; i < *(int64_t *)steps; i++) {                                                              \
            _Pragma("GCC unroll 12") for (int j = 0; j < 12; j++)                                                      \
            {                                                                                                          \
                s[j] = s[j] * x + y;                                                                                   \
            }                                                                                                          \
        }                                                                                                              \
        _Pragma("GCC unroll 12") for (int j = 0; j < 12; j++)                                                          \
        {                                                                                                              \
            __asm__ volatile("" ::"x"(s[j]));                                                                          \
        }                                                                                                              \
    }
typedef struct measure_64 {
    char bytes[64];
} measure_64;
typedef struct measure_32 {
    char bytes[32];
} measure_32;
MEASURE_FMA("avx512f,fma", measure_64)
MEASURE_FMA("avx2,fma", measure_32)

/* Returns the f32 FLOP/s of one core. */
static inline double measure_fma_peak(void)
{
    int64_t steps = 100000;
    double wide = 0, narrow = 0;
    if (__builtin_cpu_supports("avx512f")) {
        wide = (double)steps * 12 * 16 * 2 / measure(measure_fma_measure_64, &steps);
    }
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
        narrow = (double)steps * 12 * 8 * 2 / measure(measure_fma_measure_32, &steps);
    }
    return wide > narrow ? wide : narrow;
}
#else
static inline double measure_fma_peak(void)
{
    return 0;
}
#endif

/* Prints one line. other is the value of another library for the same work, or 0. */
static inline void measure_tell(const char *name, double value, const char *unit, double limit, const char *limit_name,
                                double other, const char *other_name)
{
    printf("{\"name\":\"%s\",\"value\":%.4g,\"unit\":\"%s\",\"limit\":%.4g,\"limit_name\":\"%s\",\"ratio\":%.3f", name,
           value, unit, limit, limit_name, limit > 0 ? value / limit : 0);
    if (other > 0) {
        printf(",\"%s\":%.4g", other_name, other);
    }
    printf("}\n");
    (void)fflush(stdout);
}

static inline float measure_random(uint64_t *state)
{
    *state = *state * UINT64_C(6364136223846793005) + 1442695040888963407u;
    return (float)(int32_t)(*state >> 40) * 0x1p-23f - 1;
}

#endif
