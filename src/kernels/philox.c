/* The random functions that run on the host only. */
#include "kernels/philox.h"

#include "kernels/random.h"

void sh_philox(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4])
{
    sh_philox_block(counter[0], counter[1], counter[2], counter[3], key[0], key[1], out);
}

static uint64_t word64(sh_random_key key, uint64_t i)
{
    uint64_t block = key.offset + i / 2;
    uint32_t words[4];
    sh_philox_block((uint32_t)block, (uint32_t)(block >> 32), (uint32_t)key.stream, (uint32_t)(key.stream >> 32),
                    (uint32_t)key.seed, (uint32_t)(key.seed >> 32), words);
    return words[i % 2 * 2] | (uint64_t)words[i % 2 * 2 + 1] << 32;
}

void sh_random_permutation(sh_random_key key, int64_t *out, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        out[i] = i;
    }
    for (int64_t i = n - 1; i > 0; i--) {
        uint64_t word = word64(key, (uint64_t)(n - 1 - i));
        int64_t j = (int64_t)(((unsigned __int128)word * (uint64_t)(i + 1)) >> 64);
        int64_t t = out[i];
        out[i] = out[j];
        out[j] = t;
    }
}
