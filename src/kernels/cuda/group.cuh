/* Divides a block's threads into groups of lanes. A group works on one row: its lanes take the elements in turn, and
 * their results are joined in an order that depends on the shape only, so that the same input always gives the same
 * bits. */
#ifndef SH_KERNELS_CUDA_GROUP_CUH
#define SH_KERNELS_CUDA_GROUP_CUH

#include "kernels/cuda/element.cuh"

#define SH_WARP 32
#define SH_MOST_LANES 512
#define SH_ENOUGH_LANES (INT64_C(1) << 17) /* lanes that keep a large GPU busy */
#define SH_BATCH 4 /* elements that a lane reads at once, so that it waits for memory only once */

/* How a launch divides its blocks. All numbers are powers of two. */
typedef struct sh_groups {
    int32_t lanes;  /* per group; all in one warp or in whole warps, unless side_by_side */
    int32_t groups; /* per block */
    /* Neighbouring threads belong to neighbouring groups, for rows that lie side by side in memory. Otherwise they
     * belong to one group. At most SH_THREADS threads per block. */
    bool side_by_side;
} sh_groups;

static inline int sh_group_threads(sh_groups g)
{
    return g.lanes * g.groups;
}

static inline unsigned sh_group_blocks(sh_groups g, int64_t rows)
{
    return (unsigned)((rows + g.groups - 1) / g.groups);
}

/* For rows of n adjacent elements. A lane takes at least `least` elements, and about `most` if there are many rows. */
static inline sh_groups sh_groups_of_rows(int64_t rows, int64_t n, int least, int most)
{
    int lanes = 1;
    while (lanes < SH_MOST_LANES && lanes * least < n &&
           (lanes < SH_WARP || rows * lanes < SH_ENOUGH_LANES || lanes * most < n)) {
        lanes *= 2;
    }
    int groups = lanes < SH_THREADS ? SH_THREADS / lanes : 1;
    while (groups > 1 && groups / 2 >= rows && lanes * groups > SH_WARP) {
        groups /= 2;
    }
    return sh_groups{lanes, groups, false};
}

/* For rows of n elements; `beside` rows lie side by side. */
static inline sh_groups sh_groups_of_columns(int64_t rows, int64_t n, int64_t beside, int least)
{
    int lanes = 1, width = 1;
    while (width < beside && width < SH_WARP) {
        width *= 2;
    }
    while (lanes * width < SH_THREADS && lanes * least < n && rows * lanes < SH_ENOUGH_LANES) {
        lanes *= 2;
    }
    return sh_groups{lanes, SH_THREADS / lanes, true};
}

/* The place of the calling thread. */
typedef struct sh_place {
    int lane, group;
    int64_t row; /* groups are numbered through all blocks */
} sh_place;

__device__ __forceinline__ sh_place sh_place_of(const sh_groups &g)
{
    int t = (int)threadIdx.x, last_lane = g.lanes - 1, last_group = g.groups - 1;
    int group = g.side_by_side ? t & last_group : t >> __popc((unsigned)last_lane);
    int lane = g.side_by_side ? t >> __popc((unsigned)last_group) : t & last_lane;
    return sh_place{lane, group, (int64_t)blockIdx.x * g.groups + group};
}

/* Returns the value of the lane whose number differs in the bit `other`. S consists of words of 4 bytes. */
template <class S> __device__ __forceinline__ S sh_exchange(S s, int other)
{
    static_assert(sizeof(S) % 4 == 0, "words");
    uint32_t words[sizeof(S) / 4];
    memcpy(words, &s, sizeof s);
    for (size_t i = 0; i < sizeof(S) / 4; i++) {
        words[i] = __shfl_xor_sync(0xffffffffu, words[i], other);
    }
    memcpy(&s, words, sizeof s);
    return s;
}

/* Joins the values of `lanes` neighbours. Each gets the result. join(a, b) must equal join(b, a) to the bit. */
template <class S, class Join> __device__ __forceinline__ S sh_join_neighbours(int lanes, S s, Join join)
{
#pragma unroll 1
    for (int other = lanes / 2; other > 0; other /= 2) {
        s = join(s, sh_exchange(s, other));
    }
    return s;
}

/* Joins the values of a group's lanes. Each lane gets the result. All threads of the block must call it. */
template <class S, class Join> __device__ S sh_group_join(const sh_groups &g, S s, Join join)
{
    __shared__ S shared[SH_THREADS];
    int t = (int)threadIdx.x;
    if (g.side_by_side) {
        shared[t] = s;
#pragma unroll 1
        for (int half = g.lanes / 2; half > 0; half /= 2) {
            __syncthreads();
            if (t < half * g.groups) {
                shared[t] = join(shared[t], shared[t + half * g.groups]);
            }
        }
        __syncthreads();
        s = shared[t & (g.groups - 1)];
        __syncthreads();
        return s;
    }
    if (g.lanes <= SH_WARP) {
        return sh_join_neighbours(g.lanes, s, join);
    }
    s = sh_join_neighbours(SH_WARP, s, join);
    if (t % SH_WARP == 0) {
        shared[t / SH_WARP] = s;
    }
    __syncthreads();
    int warps = g.lanes / SH_WARP, first = t / g.lanes * warps;
    s = sh_join_neighbours(warps, shared[first + (t & (warps - 1))], join);
    __syncthreads();
    return s;
}

/* A batch of a lane: every lanes-th element of the row, from the lane's next one on. Returns the number of elements
 * from that one to the end of the row, those of other lanes included. Element k of the batch exists if k · lanes <
 * left. */
__device__ __forceinline__ int sh_batch_left(int64_t n, int64_t next)
{
    return n - next < INT32_MAX ? (int)(n - next) : INT32_MAX;
}

/* Reads a batch whose elements are `hop` apart. Elements that do not exist become `otherwise`. */
template <class T>
__device__ __forceinline__ void sh_batch_load(T (&x)[SH_BATCH], const T *from, int64_t hop, int lanes, int left,
                                              T otherwise)
{
    if ((SH_BATCH - 1) * lanes < left) {
#pragma unroll
        for (int k = 0; k < SH_BATCH; k++) {
            x[k] = from[k * hop];
        }
        return;
    }
#pragma unroll
    for (int k = 0; k < SH_BATCH; k++) {
        x[k] = k * lanes < left ? from[k * hop] : otherwise;
    }
}

/* A lane adds up a batch in T, and the batches in f64. So long sums stay accurate, and f64 does not dominate the
 * time. */
__device__ __forceinline__ double sh_group_sum(const sh_groups &g, double x)
{
    return sh_group_join(g, x, [](double a, double b) { return a + b; });
}

#endif
