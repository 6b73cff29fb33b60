/* A small reproducible random generator (splitmix64): for tests, jitter and names, not for secrets. */
#ifndef SH_BASE_RANDOM_H
#define SH_BASE_RANDOM_H

#include <stdint.h>

static inline uint64_t sh_splitmix_next(uint64_t *state)
{
    uint64_t z = (*state += UINT64_C(0x9e3779b97f4a7c15));
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

/* Returns a number from 0 to bound - 1; bound > 0. The bias is below 2^-32 for the bounds used here. */
static inline uint64_t sh_splitmix_below(uint64_t *state, uint64_t bound)
{
    return (uint64_t)(((unsigned __int128)sh_splitmix_next(state) * bound) >> 64);
}

#endif
