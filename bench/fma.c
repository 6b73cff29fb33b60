/* The FMA peak of one core: fused multiply-adds on registers, with enough of them in flight to hide their latency. */
#include "bench/bench.h"

#define STEPS 2000000u
#define TRIES 5

#if defined(__x86_64__)
#include <immintrin.h>

#define LANES 8
#define SUMS 12

__attribute__((target("avx2,fma"))) static double flops_once(void)
{
    __m256 sum[SUMS], factor = _mm256_set1_ps(0.999999f), term = _mm256_set1_ps(1e-6f);
    for (int i = 0; i < SUMS; i++) {
        sum[i] = _mm256_set1_ps((float)i);
    }
    double begun = bench_now();
    for (unsigned step = 0; step < STEPS; step++) {
#pragma GCC unroll 12
        for (int i = 0; i < SUMS; i++) {
            sum[i] = _mm256_fmadd_ps(sum[i], factor, term);
        }
    }
    double seconds = bench_now() - begun;
    for (int i = 0; i < SUMS; i++) {
        __asm__ volatile("" ::"x"(sum[i]));
    }
    return 2.0 * LANES * SUMS * STEPS / seconds;
}

double bench_fma_peak(void)
{
    double best = 0;
    for (int i = 0; __builtin_cpu_supports("fma") && i < TRIES; i++) {
        double once = flops_once();
        best = once > best ? once : best;
    }
    return best * 1e-9;
}
#else
double bench_fma_peak(void)
{
    return 0;
}
#endif
