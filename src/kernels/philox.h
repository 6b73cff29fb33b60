/* Philox4x32-10: ten rounds over a counter of four words. Compiled for a GPU, too. */
#ifndef SH_KERNELS_PHILOX_H
#define SH_KERNELS_PHILOX_H

#include "kernels/both.h"

#include <stdint.h>

#define SH_PHILOX_ROUNDS 10
#define SH_PHILOX_M0 0xd2511f53u
#define SH_PHILOX_M1 0xcd9e8d57u
#define SH_PHILOX_W0 0x9e3779b9u
#define SH_PHILOX_W1 0xbb67ae85u

SH_BOTH static inline void sh_philox_block(uint32_t c0, uint32_t c1, uint32_t c2, uint32_t c3, uint32_t k0, uint32_t k1,
                                           uint32_t out[4])
{
#ifndef __CUDACC__
#pragma GCC unroll 10
#endif
    for (int round = 0; round < SH_PHILOX_ROUNDS; round++) {
        uint64_t p0 = (uint64_t)SH_PHILOX_M0 * c0, p1 = (uint64_t)SH_PHILOX_M1 * c2;
        uint32_t n0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0, n2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c1 = (uint32_t)p1;
        c3 = (uint32_t)p0;
        c0 = n0;
        c2 = n2;
        k0 += SH_PHILOX_W0;
        k1 += SH_PHILOX_W1;
    }
    out[0] = c0, out[1] = c1, out[2] = c2, out[3] = c3;
}

#endif
