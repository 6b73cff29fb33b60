/* Loops over strided views on a card. The host sorts and merges the dimensions (cpu/iter.h). A thread finds the places
 * of its elements by division. */
#ifndef SH_KERNELS_CUDA_ELEMENT_CUH
#define SH_KERNELS_CUDA_ELEMENT_CUH

#include "kernels/both.h"
#include "kernels/cuda/launch.cuh"

extern "C" {
#include "kernels/cpu/iter.h"
}

#define SH_THREADS 256
#define SH_MOST_BLOCKS (16u * SH_MULTIPROCESSORS)

/* Returns SHOAL_EINVAL unless dtype is f32 or f64. */
static inline shoal_err sh_check_float(const char *what, shoal_dtype dtype)
{
    if (dtype != SHOAL_F32 && dtype != SHOAL_F64) {
        return shoal_fail(SHOAL_EINVAL, "%s does not support %s, only f32 and f64", what, shoal_dtype_name(dtype));
    }
    return SHOAL_OK;
}

/* ---- division by a number that the host knows: n / divisor for n below 2^31, as a product and a shift (Granlund and
 * Montgomery, "Division by invariant integers using multiplication", 1994) ---- */

typedef struct sh_divider {
    uint32_t divisor, factor, shift;
} sh_divider;

static inline sh_divider sh_divider_make(uint32_t divisor)
{
    uint32_t shift = 0;
    while ((UINT64_C(1) << shift) < divisor) {
        shift++;
    }
    uint64_t factor = ((((UINT64_C(1) << shift) - divisor) << 32) / divisor) + 1;
    return sh_divider{divisor, (uint32_t)factor, shift};
}

SH_BOTH static inline uint32_t sh_divide(uint32_t n, sh_divider by)
{
    return ((uint32_t)((uint64_t)n * by.factor >> 32) + n) >> by.shift;
}

/* The same for numbers up to 2^53. Numbers of more than 31 bits are multiplied by 1 / divisor in f64, which is off by
 * one at most. */
typedef struct sh_wide_divider {
    int64_t divisor;
    double inverse;
    sh_divider fast;
    bool wide;
} sh_wide_divider;

/* For numbers up to most. The divisor may be 0 if it is never used. */
static inline sh_wide_divider sh_wide_divider_make(int64_t divisor, int64_t most)
{
    divisor = divisor > 0 ? divisor : 1;
    bool wide = most > INT32_MAX || divisor > INT32_MAX;
    return sh_wide_divider{divisor, 1 / (double)divisor, sh_divider_make(wide ? 1u : (uint32_t)divisor), wide};
}

SH_BOTH static inline int64_t sh_wide_divide(int64_t n, const sh_wide_divider &by)
{
    if (!by.wide) {
        return (int64_t)sh_divide((uint32_t)n, by.fast);
    }
    int64_t quotient = (int64_t)((double)n * by.inverse), rest = n - quotient * by.divisor;
    return quotient + (rest >= by.divisor) - (rest < 0);
}

/* ---- loops ---- */

/* Returns whether every view can be accessed in packs of `width` elements that are adjacent, or all the same (stride
 * 0). sizes has the element size of each view. */
static inline bool sh_loop_packs(const sh_iter *it, const size_t sizes[], int width)
{
    int32_t last = it->ndim - 1;
    if (it->ndim == 0 || (it->ndim > 1 && it->shape[last] % width != 0)) {
        return false;
    }
    for (int32_t v = 0; v < it->count; v++) {
        int64_t pack = (int64_t)sizes[v] * width;
        if (it->strides[v][last] == 0 && v > 0) {
            continue;
        }
        if (it->strides[v][last] != (int64_t)sizes[v] || (uintptr_t)it->data[v] % (size_t)pack != 0) {
            return false;
        }
        for (int32_t d = 0; d < last; d++) {
            if (it->strides[v][d] % pack != 0) {
                return false;
            }
        }
    }
    return true;
}

/* The argument of a kernel: a walk over N views in packs of V elements. */
template <int N> struct sh_loop {
    uint32_t count; /* elements */
    uint32_t packs; /* of V elements; if ndim is 1, the last one may be shorter */
    int32_t ndim;
    uint32_t repeats; /* bit v: all elements of a pack of view v are the same one */
    sh_divider sizes[SH_MAX_DIMS];
    int64_t strides[N][SH_MAX_DIMS]; /* in bytes; the last one from pack to pack */
    char *data[N];

    /* Stores the place of pack i in each view. */
    __device__ __forceinline__ void at(uint32_t i, char *(&place)[N]) const
    {
        for (int v = 0; v < N; v++) {
            place[v] = data[v];
        }
        for (int d = ndim - 1; d > 0; d--) {
            uint32_t rest = sh_divide(i, sizes[d]), here = i - rest * sizes[d].divisor;
            for (int v = 0; v < N; v++) {
                place[v] += (int64_t)here * strides[v][d];
            }
            i = rest;
        }
        for (int v = 0; v < N; v++) {
            place[v] += (int64_t)i * strides[v][0];
        }
    }

    /* Returns the number of elements of pack i. */
    template <int V> __device__ __forceinline__ int lanes(uint32_t i) const
    {
        return V == 1 || i * V + V <= count ? V : (int)(count - i * V);
    }
};

/* Visits each pack of a loop once over the whole grid. */
#define SH_FOR_PACKS(i, loop)                                                                                          \
    for (uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; i < (loop).packs; i += gridDim.x * blockDim.x)

template <int N> static inline unsigned sh_loop_blocks(const sh_loop<N> &loop)
{
    return sh_blocks(loop.packs, SH_THREADS, SH_MOST_BLOCKS);
}

template <class T, int V> struct alignas(sizeof(T) * V) sh_pack {
    T x[V];
};

/* Reads the first `lanes` elements of a pack of view v. The others become 0. */
template <class T, int V, int N>
__device__ __forceinline__ void sh_load(const sh_loop<N> &loop, int v, const char *place, int lanes, T (&out)[V])
{
    const T *from = (const T *)place;
    if (V == 1) {
        out[0] = *from;
    } else if (loop.repeats >> v & 1) {
        T x = *from;
        for (int k = 0; k < V; k++) {
            out[k] = x;
        }
    } else if (lanes == V) {
        sh_pack<T, V> pack = *(const sh_pack<T, V> *)from;
        for (int k = 0; k < V; k++) {
            out[k] = pack.x[k];
        }
    } else {
        for (int k = 0; k < V; k++) {
            out[k] = k < lanes ? from[k] : T(0);
        }
    }
}

/* Writes the first `lanes` elements of a pack. */
template <class T, int V> __device__ __forceinline__ void sh_store(char *place, int lanes, const T (&in)[V])
{
    T *to = (T *)place;
    if (V > 1 && lanes == V) {
        sh_pack<T, V> pack;
        for (int k = 0; k < V; k++) {
            pack.x[k] = in[k];
        }
        *(sh_pack<T, V> *)to = pack;
    } else {
        for (int k = 0; k < V; k++) {
            if (k < lanes) {
                to[k] = in[k];
            }
        }
    }
}

/* ---- packs of a contiguous array of n elements: pack i of it is elements i · V to i · V + V - 1 ---- */

template <int V, class T> static __device__ __forceinline__ bool sh_is_pack(const T *p, int64_t left)
{
    return left >= V && (uintptr_t)p % (sizeof(T) * V) == 0;
}

/* Writes pack i, up to the end of the array; in one access if the alignment allows it. */
template <class T, int V> static __device__ __forceinline__ void sh_put(T *array, int64_t i, int64_t n, const T (&x)[V])
{
    T *to = array + i * V;
    int64_t left = n - i * V;
    if (sh_is_pack<V>(to, left)) {
        sh_store((char *)to, V, x);
    } else {
        for (int k = 0; k < V; k++) {
            if (k < left) {
                to[k] = x[k];
            }
        }
    }
}

/* Reads pack i. Elements behind the end become 0. */
template <class T, int V> static __device__ __forceinline__ void sh_get(const T *array, int64_t i, int64_t n, T (&x)[V])
{
    const T *from = array + i * V;
    int64_t left = n - i * V;
    if (sh_is_pack<V>(from, left)) {
        sh_pack<T, V> pack = *(const sh_pack<T, V> *)from;
        for (int k = 0; k < V; k++) {
            x[k] = pack.x[k];
        }
    } else {
        for (int k = 0; k < V; k++) {
            x[k] = k < left ? from[k] : T(0);
        }
    }
}

/* ---- launches ---- */

template <int N> static sh_loop<N> sh_loop_make(const sh_iter *it, uint32_t count, int width)
{
    sh_loop<N> loop = {};
    int last = it->ndim - 1;
    loop.count = count;
    loop.packs = (count + (uint32_t)width - 1) / (uint32_t)width;
    loop.ndim = it->ndim;
    for (int d = 0; d < it->ndim; d++) {
        loop.sizes[d] = sh_divider_make((uint32_t)(d == last ? (it->shape[d] + width - 1) / width : it->shape[d]));
    }
    for (int v = 0; v < N; v++) {
        loop.data[v] = it->data[v];
        loop.repeats |= (uint32_t)(last >= 0 && it->strides[v][last] == 0) << v;
        for (int d = 0; d < it->ndim; d++) {
            loop.strides[v][d] = it->strides[v][d] * (d == last ? width : 1);
        }
    }
    return loop;
}

/* Calls launch(loop) for the views, in packs of width. If there are 2^30 elements or more, calls it for pieces, so that
 * a kernel can count in 32 bits. Does nothing if there are none. */
template <int N, class Launch> static shoal_err sh_loop_run(const sh_iter *it, int width, Launch launch)
{
    int64_t count = 1;
    for (int32_t d = 0; d < it->ndim; d++) {
        count *= it->shape[d];
    }
    if (count == 0) {
        return SHOAL_OK;
    }
    if (count < INT64_C(1) << 30) {
        return launch(sh_loop_make<N>(it, (uint32_t)count, width));
    }
    sh_iter half = *it;
    int32_t d = 0;
    while (it->shape[d] == 1) { /* dimensions that earlier halving has reduced to 1 */
        d++;
    }
    int64_t first = it->shape[d] / 2;
    first = d == it->ndim - 1 ? first / width * width : first;
    half.shape[d] = first;
    shoal_err err = sh_loop_run<N>(&half, width, launch);
    for (int v = 0; v < N; v++) {
        half.data[v] += first * it->strides[v][d];
    }
    half.shape[d] = it->shape[d] - first;
    return err ? err : sh_loop_run<N>(&half, width, launch);
}

#endif
