/* The contract of the random kernels. Each number is a function of seed, stream and position: Philox4x32-10 (Salmon et
 * al., "Parallel random numbers: as easy as 1, 2, 3", 2011).
 *
 * Block b of (seed, stream) is philox(counter = {b low, b high, stream low, stream high}, key = {seed low, seed high}):
 * four words of 32 bits. A fill starts at block `offset`. Element i is computed from
 *
 *     f32, bernoulli, dropout   word i % 4 of block offset + i / 4
 *     f64, i64                  words 2(i % 2) (low) and 2(i % 2) + 1 (high) of block offset + i / 2
 *
 * A fill of n elements uses sh_random_blocks(dtype, n) blocks; the caller then advances its offset by as many. Filling
 * an array in pieces that start at whole blocks gives the same numbers as filling it at once. All instruction sets of
 * the CPU give bit-identical results, and so does a card. There, if exec->advance is not NULL, a fill starts at block
 * offset + *exec->advance.
 *
 *     uniform f32   (word >> 8) · 2^-24                        uniform f64   (word64 >> 11) · 2^-53
 *     normal        Box-Muller on elements 2j, 2j + 1 with words u, v: r = sqrt(-2 log((u + 1) / 2^32)),
 *                   r · cos(2π v / 2^32) and r · sin(2π v / 2^32); f64 likewise with 53 of 64 bits
 *     bernoulli     uniform f32 < p
 *     below n       (word64 · n) >> 64 */
#ifndef SH_KERNELS_RANDOM_H
#define SH_KERNELS_RANDOM_H

#include "kernels/view.h"

typedef struct sh_random_key {
    uint64_t seed, stream;
    uint64_t offset; /* in blocks of four words */
} sh_random_key;

/* Returns how many blocks a fill of n elements uses. */
static inline uint64_t sh_random_blocks(shoal_dtype dtype, int64_t n)
{
    return dtype == SHOAL_F64 || dtype == SHOAL_I64 ? ((uint64_t)n + 1) / 2 : ((uint64_t)n + 3) / 4;
}

typedef struct sh_random_kernels {
    /* out[0..n) = low + (high - low) · u, with u in [0, 1) as above; low 0 and high 1 give u itself. Rounding may make
     * the result equal to high. f32 and f64. */
    shoal_err (*uniform)(sh_exec *exec, sh_random_key key, shoal_dtype dtype, void *out, int64_t n, double low,
                         double high);
    /* out[0..n) = mean + deviation · z, with z normal as above. f32 and f64. */
    shoal_err (*normal)(sh_exec *exec, sh_random_key key, shoal_dtype dtype, void *out, int64_t n, double mean,
                        double deviation);
    /* out[0..n) = u < p ? value : 0. For bool, value is 1. f32, f64, u8 and bool. Every dtype uses one word per
     * element, so a call uses sh_random_blocks(SHOAL_F32, n) blocks. */
    shoal_err (*bernoulli)(sh_exec *exec, sh_random_key key, shoal_dtype dtype, void *out, int64_t n, double p,
                           double value);
    /* out[0..n) = an integer from low to high - 1. high > low. */
    shoal_err (*integers)(sh_exec *exec, sh_random_key key, int64_t *out, int64_t n, int64_t low, int64_t high);
    /* y = u >= p ? x / (1 - p) : 0. mask = u >= p, as bytes 1 and 0, saved for backward. p = 1 gives zeros. y may be x.
     * Contiguous. f32 and f64; both use one word per element. */
    shoal_err (*dropout)(sh_exec *exec, sh_random_key key, shoal_dtype dtype, void *y, uint8_t *mask, const void *x,
                         int64_t n, double p);
    /* dx = mask ? dy / (1 - p) : 0. dx may be dy. Saved by dropout: mask. */
    shoal_err (*dropout_backward)(sh_exec *exec, shoal_dtype dtype, void *dx, const void *dy, const uint8_t *mask,
                                  int64_t n, double p);
} sh_random_kernels;

extern const sh_random_kernels sh_random_kernels_reference;
extern const sh_random_kernels sh_random_kernels_avx2;
extern const sh_random_kernels sh_random_kernels_avx512;

/* Computes one block, on the host. */
void sh_philox(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]);

/* out[0..n) = a random permutation of 0 … n - 1, computed on the host by Fisher-Yates from the end: place i is swapped
 * with a place below i + 1, drawn from 64-bit word n - 1 - i. Uses sh_random_blocks(SHOAL_I64, n) blocks. */
void sh_random_permutation(sh_random_key key, int64_t *out, int64_t n);

#endif
