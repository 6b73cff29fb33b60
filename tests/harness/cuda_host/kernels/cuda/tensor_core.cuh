/* The functions of src/kernels/cuda/tensor_core.cuh on the host. That file says who has which elements. */
#ifndef SH_KERNELS_CUDA_TENSOR_CORE_CUH
#define SH_KERNELS_CUDA_TENSOR_CORE_CUH

#include <cuda_runtime.h>

/* Rounds to nearest, ties away from zero, as cvt.rna does. */
static inline uint32_t sh_tf32(float x)
{
    const uint32_t bits = __float_as_uint(x);
    return x - x != 0 ? bits : (bits + 0x1000U) & 0xffffe000U;
}

struct sh_tf32_pair {
    uint32_t high, low;
};

static inline sh_tf32_pair sh_tf32_split(float x)
{
    const uint32_t high = (__float_as_uint(x) + 0x1000U) & 0xffffe000U;
    return {high, __float_as_uint(x - __uint_as_float(high))};
}

/* What the tensor cores read of a factor. */
static inline float sh_tf32_read(uint32_t bits)
{
    return __uint_as_float(bits & 0xffffe000U);
}

/* The factors of a product, which the lanes of a warp write together. */
struct sh_tf32_factors {
    float a[16][8], b[8][16]; /* b: [column][row] */
    uint32_t which[SH_FIBER_LANES];
};
static_assert(sizeof(sh_tf32_factors) <= SH_FIBER_ROOM, "in the room of a warp");

static inline const sh_tf32_factors *sh_tf32_give(const uint32_t a[4], const uint32_t *b, int rows_of_b, uint32_t which)
{
    sh_tf32_factors *f = (sh_tf32_factors *)sh_fiber_room();
    const int g = (int)sh_fiber_lane() / 4, q = (int)sh_fiber_lane() % 4;
    for (int i = 0; i < 4; i++) {
        f->a[g + i % 2 * 8][q + i / 2 * 4] = sh_tf32_read(a[i]);
    }
    for (int i = 0; i < rows_of_b / 4; i++) {
        f->b[g][q + 4 * i] = sh_tf32_read(b[i]);
    }
    f->which[sh_fiber_lane()] = which;
    sh_fiber_sync_room();
    return f;
}

static inline void sh_tf32_mma(float c[4], const uint32_t a[4], const uint32_t b[2])
{
    const sh_tf32_factors *f = sh_tf32_give(a, b, 8, 0);
    const int g = (int)sh_fiber_lane() / 4, q = (int)sh_fiber_lane() % 4;
    for (int i = 0; i < 4; i++) {
        const float *row = f->a[g + i / 2 * 8], *column = f->b[2 * q + i % 2];
        double sum = 0;
        for (int k = 0; k < 8; k++) {
            sum += (double)row[k] * column[k];
        }
        c[i] = (float)(c[i] + sum);
    }
}

static inline void sh_tf32_mma_first(float c[4], const uint32_t a[4], const uint32_t b[2])
{
    c[0] = c[1] = c[2] = c[3] = 0;
    sh_tf32_mma(c, a, b);
}

constexpr uint32_t SH_SPARSE_LEFT = 0x4, SH_SPARSE_RIGHT = 0xe;

template <int PAIR>
static inline void sh_tf32_mma_sparse(float c[4], const uint32_t a[4], const uint32_t b[4], uint32_t which)
{
    const sh_tf32_factors *f = sh_tf32_give(a, b, 16, which);
    const int g = (int)sh_fiber_lane() / 4, q = (int)sh_fiber_lane() % 4;
    for (int i = 0; i < 4; i++) {
        const float *row = f->a[g + i / 2 * 8], *column = f->b[2 * q + i % 2];
        double sum = 0;
        for (int j = 0; j < 8; j++) {
            const uint32_t side = f->which[g * 4 + PAIR * 2 + j / 4] >> (i / 2 * 16 + j % 4 * 4) & 15;
            if (side != SH_SPARSE_LEFT && side != SH_SPARSE_RIGHT) {
                sh_fiber_fail("which is 0x%x: neither left nor right", side);
            }
            sum += (double)row[j] * column[2 * j + (side == SH_SPARSE_RIGHT)];
        }
        c[i] = (float)(c[i] + sum);
    }
}

template <int PAIR>
static inline void sh_tf32_mma_sparse_first(float c[4], const uint32_t a[4], const uint32_t b[4], uint32_t which)
{
    c[0] = c[1] = c[2] = c[3] = 0;
    sh_tf32_mma_sparse<PAIR>(c, a, b, which);
}

/* Addresses of shared memory are 32 bits: counted from where the block's begins. */
static inline uint32_t sh_shared_address(const void *p)
{
    return (uint32_t)((const char *)p - (const char *)sh_fiber_shared());
}

static inline void sh_tf32_load_a(uint32_t a[4], uint32_t from)
{
    uint32_t *rows = (uint32_t *)sh_fiber_room();
    rows[sh_fiber_lane()] = from;
    if (from % 16 != 0) {
        sh_fiber_fail("it loads a row at %u of its shared memory: not aligned to 16", from);
    }
    sh_fiber_sync_room();
    const int g = (int)sh_fiber_lane() / 4, q = (int)sh_fiber_lane() % 4;
    for (int i = 0; i < 4; i++) {
        memcpy(&a[i], (const char *)sh_fiber_shared() + rows[g + i % 2 * 8 + i / 2 * 16] + q * 4, sizeof a[i]);
    }
}

#endif
