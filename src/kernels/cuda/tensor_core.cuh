/* Products on the tensor cores: c [16, 8] += a [16, 8] * b [8, 8] of a warp, in TF32 with sums in f32. Needs compute
 * capability 8.0. With g = lane / 4 and q = lane % 4, a lane has
 *
 *   a[0] = a(g, q), a[1] = a(g + 8, q), a[2] = a(g, q + 4), a[3] = a(g + 8, q + 4)
 *   b[0] = b(q, g), b[1] = b(q + 4, g)
 *   c[0] = c(g, 2q), c[1] = c(g, 2q + 1), c[2] = c(g + 8, 2q), c[3] = c(g + 8, 2q + 1)
 *
 * The order in which a product's factors are numbered is free, as long as it is the same in a and b. */
#ifndef SH_KERNELS_CUDA_TENSOR_CORE_CUH
#define SH_KERNELS_CUDA_TENSOR_CORE_CUH

#include <cuda_runtime.h>
#include <stdint.h>

/* x rounded to TF32, as the bits of a float. */
static __device__ inline uint32_t sh_tf32(float x)
{
    uint32_t bits;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(x));
    return bits;
}

/* x as the sum of two TF32 numbers, with an error of at most 2^-23 of x. The lowest 13 bits of low are not 0: the
 * tensor cores do not read them. If x is NaN or infinite, low is NaN, and high may be anything. sh_tf32 handles that
 * case, but needs four instructions where this needs two. */
struct sh_tf32_pair {
    uint32_t high, low;
};

static __device__ inline sh_tf32_pair sh_tf32_split(float x)
{
    const uint32_t high = (__float_as_uint(x) + 0x1000U) & 0xffffe000U;
    return {high, __float_as_uint(x - __uint_as_float(high))};
}

static __device__ inline void sh_tf32_mma(float c[4], const uint32_t a[4], const uint32_t b[2])
{
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, "
        "%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

/* c = the same product. */
static __device__ inline void sh_tf32_mma_first(float c[4], const uint32_t a[4], const uint32_t b[2])
{
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %10, "
        "%10, %10};"
        : "=f"(c[0]), "=f"(c[1]), "=f"(c[2]), "=f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "f"(0.0F));
}

/* c += a [16, 16] * b [16, 8], where of columns 2j and 2j + 1 of a row of a at most one is not 0. A lane has
 *
 *   a[0] = that element of row g, j = q; a[1] of row g + 8; a[2] of row g, j = q + 4; a[3] of row g + 8, j = q + 4
 *   b[i] = b(q + 4 * i, g)
 *   which: 4 bits for each j, SH_SPARSE_LEFT or SH_SPARSE_RIGHT. If q % 2 is 0: j = 0 to 3 of row g, then of row
 *          g + 8. If it is 1: j = 4 to 7. Only the lanes with q / 2 == PAIR are asked. */
constexpr uint32_t SH_SPARSE_LEFT = 0x4, SH_SPARSE_RIGHT = 0xe;

template <int PAIR>
static __device__ inline void sh_tf32_mma_sparse(float c[4], const uint32_t a[4], const uint32_t b[4], uint32_t which)
{
    asm("mma.sp::ordered_metadata.sync.aligned.m16n8k16.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9, %10, %11}, {%0, %1, %2, %3}, %12, %13;"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "r"(b[2]), "r"(b[3]), "r"(which),
          "n"(PAIR));
}

template <int PAIR>
static __device__ inline void sh_tf32_mma_sparse_first(float c[4], const uint32_t a[4], const uint32_t b[4],
                                                       uint32_t which)
{
    asm("mma.sp::ordered_metadata.sync.aligned.m16n8k16.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9, %10, %11}, {%14, %14, %14, %14}, %12, %13;"
        : "=f"(c[0]), "=f"(c[1]), "=f"(c[2]), "=f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "r"(b[2]), "r"(b[3]), "r"(which), "n"(PAIR),
          "f"(0.0F));
}

/* Returns the address of memory that the block shares, as sh_tf32_load_a takes it. */
static __device__ inline uint32_t sh_shared_address(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

/* Loads a from shared memory. Lane l passes the address of 4 floats, aligned to 16 bytes: row l % 16, columns l / 16 *
 * 4 to + 3. */
static __device__ inline void sh_tf32_load_a(uint32_t a[4], uint32_t from)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(a[0]), "=r"(a[1]), "=r"(a[2]), "=r"(a[3])
                 : "r"(from));
}

#endif
