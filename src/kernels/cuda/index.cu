/* The CUDA twin of cpu/index_reference.c; the contract is kernels/index.h. An index out of range reads 0 and writes
 * nothing.
 *
 * Sums have a fixed order without atomics: the warp or block of an index's first occurrence also adds all later ones,
 * in order. This compares each index with all others, which is cheap for the thousands of indices of a batch. */
#include "kernels/cuda/element.cuh"

#define ADD_THREADS 128
#define ALL_LANES 0xffffffffu

#define FOR_EACH(I, i, n) for (I i = blockIdx.x * (I)blockDim.x + threadIdx.x; i < (n); i += gridDim.x * (I)blockDim.x)

/* ---- rows of a table ---- */

/* Copies rows of `units` units. A unit has as many bytes as divide a row and suit the alignment. I: an integer type
 * that can count all units. */
template <class Unit, class I>
static __global__ void select_kernel(Unit *out, const Unit *table, const int64_t *index, I total, I units, I count,
                                     int64_t rows)
{
    FOR_EACH(I, at, total)
    {
        I row = at / units, o = row / count;
        int64_t from = index[row - o * count];
        Unit x = {};
        if ((uint64_t)from < (uint64_t)rows) {
            x = table[((int64_t)o * rows + from) * (int64_t)units + (int64_t)(at - row * units)];
        }
        out[at] = x;
    }
}

template <class Unit>
static shoal_err select_units(sh_exec *exec, const sh_index_shape *s, size_t row, void *out, const void *table,
                              const int64_t *index)
{
    uint64_t units = row / sizeof(Unit), total = (uint64_t)(s->outer * s->count) * units;
    unsigned blocks = sh_blocks((int64_t)total, SH_THREADS, SH_MOST_BLOCKS);
    if (total < UINT64_C(1) << 31) {
        select_kernel<Unit, uint32_t><<<blocks, SH_THREADS, 0, sh_stream(exec)>>>(
            (Unit *)out, (const Unit *)table, index, (uint32_t)total, (uint32_t)units, (uint32_t)s->count, s->rows);
    } else {
        select_kernel<Unit, uint64_t><<<blocks, SH_THREADS, 0, sh_stream(exec)>>>(
            (Unit *)out, (const Unit *)table, index, total, units, (uint64_t)s->count, s->rows);
    }
    return sh_cuda_launched("select");
}

static shoal_err select_rows(sh_exec *exec, const sh_index_shape *s, void *out, const void *table, const int64_t *index)
{
    size_t row = (size_t)s->inner * shoal_dtype_size(s->dtype);
    uintptr_t all = (uintptr_t)out | (uintptr_t)table | row;
    if (s->outer * s->count * (int64_t)row == 0) {
        return SHOAL_OK;
    }
    return all % 16 == 0  ? select_units<uint4>(exec, s, row, out, table, index)
           : all % 4 == 0 ? select_units<uint32_t>(exec, s, row, out, table, index)
                          : select_units<uint8_t>(exec, s, row, out, table, index);
}

/* One block per index i and ADD_THREADS of the table's outer · inner columns; it takes more columns if the grid is
 * narrower than the table. If i is the first occurrence of its index, the block adds the rows of all occurrences. */
template <class T>
static __global__ void add_kernel(T *table, const T *in, const int64_t *index, int64_t count, int64_t rows,
                                  int64_t inner, int64_t columns)
{
    __shared__ uint32_t hits[ADD_THREADS / 32];
    int64_t i = blockIdx.x, mine = index[i];
    if ((uint64_t)mine >= (uint64_t)rows) {
        return;
    }
    for (int64_t first = 0; first < i; first += 8 * ADD_THREADS) {
        bool earlier = false;
        for (int64_t k = first + threadIdx.x; k < i && k < first + 8 * ADD_THREADS; k += ADD_THREADS) {
            earlier |= index[k] == mine;
        }
        if (__syncthreads_or(earlier)) {
            return;
        }
    }
    for (int64_t left_column = blockIdx.y * (int64_t)ADD_THREADS; left_column < columns;
         left_column += gridDim.y * (int64_t)ADD_THREADS) {
        int64_t column = left_column + threadIdx.x, o = column / inner, j = column - o * inner;
        T *to = table + (o * rows + mine) * inner + j, sum = column < columns ? *to : T(0);
        for (int64_t first = i; first < count; first += ADD_THREADS) {
            int64_t k = first + threadIdx.x;
            uint32_t votes = __ballot_sync(ALL_LANES, k < count && index[k] == mine);
            if (threadIdx.x % 32 == 0) {
                hits[threadIdx.x / 32] = votes;
            }
            __syncthreads();
            for (int w = 0; column < columns && w < ADD_THREADS / 32; w++) {
                for (uint32_t left = hits[w]; left != 0; left &= left - 1) {
                    int64_t from = first + w * 32 + __ffs((int)left) - 1;
                    sum += in[(o * count + from) * inner + j];
                }
            }
            __syncthreads();
        }
        if (column < columns) {
            *to = sum;
        }
    }
}

template <class T>
static shoal_err add_of(sh_exec *exec, const sh_index_shape *s, void *table, const void *in, const int64_t *index)
{
    int64_t columns = s->outer * s->inner, across = (columns + ADD_THREADS - 1) / ADD_THREADS;
    if (s->count > INT32_MAX) {
        return shoal_fail(SHOAL_EINVAL, "adding by index on a GPU: %lld indices are too many", (long long)s->count);
    }
    dim3 blocks((unsigned)s->count, (unsigned)(across < 65535 ? across : 65535));
    add_kernel<T><<<blocks, ADD_THREADS, 0, sh_stream(exec)>>>((T *)table, (const T *)in, index, s->count, s->rows,
                                                               s->inner, columns);
    return sh_cuda_launched("add by index");
}

static shoal_err no_add(shoal_dtype dtype)
{
    return shoal_fail(SHOAL_EINVAL, "adding by index does not support %s", shoal_dtype_name(dtype));
}

/* Adds integers as unsigned ones, so that they wrap around. */
static shoal_err add_rows(sh_exec *exec, const sh_index_shape *s, void *table, const void *in, const int64_t *index)
{
    bool empty = s->outer * s->count * s->inner == 0;
    switch (s->dtype) {
    case SHOAL_F32: return empty ? SHOAL_OK : add_of<float>(exec, s, table, in, index);
    case SHOAL_F64: return empty ? SHOAL_OK : add_of<double>(exec, s, table, in, index);
    case SHOAL_I64: return empty ? SHOAL_OK : add_of<uint64_t>(exec, s, table, in, index);
    case SHOAL_I32: return empty ? SHOAL_OK : add_of<uint32_t>(exec, s, table, in, index);
    default: return no_add(s->dtype);
    }
}

/* ---- gather: the views are out, index, and a with stride 0 along dim; an index then moves along dim ---- */

template <class T> static __global__ void gather_kernel(sh_loop<3> loop, int64_t bound, int64_t stride)
{
    SH_FOR_PACKS(i, loop)
    {
        char *p[3];
        loop.at(i, p);
        int64_t from = *(const int64_t *)p[1];
        *(T *)p[0] = (uint64_t)from < (uint64_t)bound ? *(const T *)(p[2] + from * stride) : T(0);
    }
}

template <class T> static shoal_err gather_size(sh_exec *exec, const sh_iter *it, int64_t bound, int64_t stride)
{
    return sh_loop_run<3>(it, 1, [&](const sh_loop<3> &loop) {
        gather_kernel<T><<<sh_loop_blocks(loop), SH_THREADS, 0, sh_stream(exec)>>>(loop, bound, stride * sizeof(T));
        return sh_cuda_launched("gather");
    });
}

/* straight: the view that has the shape of index. indexed: the one that is accessed where the index says. */
static shoal_err check(int32_t dim, const sh_view *indexed, const sh_view *straight, const sh_view *index)
{
    int32_t ndim = index->ndim;
    bool fits = index->dtype == SHOAL_I64 && dim >= 0 && dim < ndim && ndim == straight->ndim &&
                ndim == indexed->ndim && straight->dtype == indexed->dtype;
    for (int32_t d = 0; fits && d < ndim; d++) {
        fits = index->shape[d] == straight->shape[d] && (d == dim || index->shape[d] <= indexed->shape[d]);
    }
    return fits ? SHOAL_OK
                : shoal_fail(SHOAL_EINVAL, "gather or scatter along dimension %d: dtypes or shapes do not match",
                             (int)dim);
}

/* Returns the part of v that an index of that shape reaches from the places 0 along dim. */
static sh_view reached(const sh_view *v, const sh_view *index, int32_t dim)
{
    sh_view part = *v;
    for (int32_t d = 0; d < v->ndim; d++) {
        part.shape[d] = index->shape[d];
    }
    part.strides[dim] = 0;
    return part;
}

static shoal_err gather(sh_exec *exec, int32_t dim, const sh_view *out, const sh_view *a, const sh_view *index)
{
    sh_iter it;
    shoal_err err = check(dim, a, out, index);
    if (err) {
        return err;
    }
    sh_view part = reached(a, index, dim);
    const sh_view *views[] = {out, index, &part};
    err = sh_iter_init(&it, 3, views);
    if (err) {
        return err;
    }
    int64_t bound = a->shape[dim], stride = a->strides[dim];
    switch (shoal_dtype_size(a->dtype)) {
    case 1: return gather_size<uint8_t>(exec, &it, bound, stride);
    case 2: return gather_size<uint16_t>(exec, &it, bound, stride);
    case 4: return gather_size<uint32_t>(exec, &it, bound, stride);
    default: return gather_size<uint64_t>(exec, &it, bound, stride);
    }
}

/* ---- scatter: two places collide only if they are on one line along dim. The loop runs over the lines of out, index
 * and a; each warp takes one place i of one line ---- */

typedef struct lines {
    sh_loop<3> loop;
    int64_t n, bound;                     /* places on a line of the index; places on a line of out */
    int64_t out_step, index_step, a_step; /* in bytes along a line */
    bool across;                          /* neighbouring warps take neighbouring lines */
} lines;

static __device__ __forceinline__ int64_t index_at(const lines &l, const char *index, int64_t i)
{
    return *(const int64_t *)(index + i * l.index_step);
}

/* Returns whether the index occurs at a place from `first` to `end` - 1. All lanes of a warp call it together. */
static __device__ __forceinline__ bool occurs(const lines &l, const char *index, int64_t first, int64_t end,
                                              int64_t mine)
{
    for (int64_t k = first + threadIdx.x % 32; k - threadIdx.x % 32 < end; k += 32) {
        if (__any_sync(ALL_LANES, k < end && index_at(l, index, k) == mine)) {
            return true;
        }
    }
    return false;
}

/* Adds all occurrences from place i on, in order. The lanes read ahead. */
template <class T>
static __device__ __forceinline__ void scatter_sum(const lines &l, char *const (&p)[3], int64_t i, int64_t mine)
{
    T *to = (T *)(p[0] + mine * l.out_step), sum = *to;
    for (int64_t first = i; first < l.n; first += 32) {
        int64_t k = first + threadIdx.x % 32;
        bool hit = k < l.n && index_at(l, p[1], k) == mine;
        T x = hit ? *(const T *)(p[2] + k * l.a_step) : T(0);
        for (uint32_t left = __ballot_sync(ALL_LANES, hit); left != 0; left &= left - 1) {
            sum += __shfl_sync(ALL_LANES, x, __ffs((int)left) - 1);
        }
    }
    if (threadIdx.x % 32 == 0) {
        *to = sum;
    }
}

/* One warp per place. The first occurrence of an index adds all; the last one writes. */
template <class T, bool add> static __global__ void scatter_kernel(lines l)
{
    uint64_t lines = l.loop.count, total = lines * (uint64_t)l.n, by = l.across ? lines : (uint64_t)l.n;
    FOR_EACH(uint64_t, thread, total * 32)
    {
        uint64_t at = thread / 32, high = total <= UINT32_MAX ? (uint32_t)at / (uint32_t)by : at / by;
        uint64_t low = at - high * by;
        char *p[3];
        l.loop.at((uint32_t)(l.across ? low : high), p);
        int64_t i = (int64_t)(l.across ? high : low), mine = index_at(l, p[1], i);
        if ((uint64_t)mine >= (uint64_t)l.bound || occurs(l, p[1], add ? 0 : i + 1, add ? i : l.n, mine)) {
            continue;
        }
        if constexpr (add) {
            scatter_sum<T>(l, p, i, mine);
        } else if (threadIdx.x % 32 == 0) {
            *(T *)(p[0] + mine * l.out_step) = *(const T *)(p[2] + i * l.a_step);
        }
    }
}

template <class T, bool add> static shoal_err scatter_run(sh_exec *exec, const sh_iter *it, lines l)
{
    return sh_loop_run<3>(it, 1, [&](const sh_loop<3> &loop) {
        l.loop = loop;
        unsigned blocks = sh_blocks((int64_t)loop.count * l.n * 32, SH_THREADS, SH_MOST_BLOCKS);
        scatter_kernel<T, add><<<blocks, SH_THREADS, 0, sh_stream(exec)>>>(l);
        return sh_cuda_launched("scatter");
    });
}

/* Prepares the lines. */
static shoal_err lines_of(int32_t dim, const sh_view *out, const sh_view *a, const sh_view *index, sh_iter *it,
                          lines *l)
{
    int64_t size = (int64_t)shoal_dtype_size(a->dtype);
    shoal_err err = check(dim, out, a, index);
    if (err) {
        return err;
    }
    sh_view heads[] = {reached(out, index, dim), *index, *a};
    const sh_view *views[] = {&heads[0], &heads[1], &heads[2]};
    for (sh_view &v : heads) {
        v.shape[dim] = index->shape[dim] == 0 ? 0 : 1;
    }
    l->n = index->shape[dim];
    l->bound = out->shape[dim];
    l->out_step = out->strides[dim] * size;
    l->index_step = index->strides[dim] * (int64_t)sizeof(int64_t);
    l->a_step = a->strides[dim] * size;
    l->across = index->strides[dim] > 1;
    return sh_iter_init(it, 3, views);
}

static shoal_err scatter(sh_exec *exec, int32_t dim, const sh_view *out, const sh_view *a, const sh_view *index)
{
    sh_iter it;
    lines l = {};
    shoal_err err = lines_of(dim, out, a, index, &it, &l);
    if (err) {
        return err;
    }
    switch (shoal_dtype_size(a->dtype)) {
    case 1: return scatter_run<uint8_t, false>(exec, &it, l);
    case 2: return scatter_run<uint16_t, false>(exec, &it, l);
    case 4: return scatter_run<uint32_t, false>(exec, &it, l);
    default: return scatter_run<uint64_t, false>(exec, &it, l);
    }
}

static shoal_err scatter_add(sh_exec *exec, int32_t dim, const sh_view *out, const sh_view *a, const sh_view *index)
{
    sh_iter it;
    lines l = {};
    shoal_err err = shoal_dtype_size(out->dtype) < 4 ? no_add(out->dtype) : lines_of(dim, out, a, index, &it, &l);
    if (err) {
        return err;
    }
    switch (a->dtype) {
    case SHOAL_F32: return scatter_run<float, true>(exec, &it, l);
    case SHOAL_F64: return scatter_run<double, true>(exec, &it, l);
    case SHOAL_I64: return scatter_run<uint64_t, true>(exec, &it, l);
    default: return scatter_run<uint32_t, true>(exec, &it, l);
    }
}

/* ---- one_hot ---- */

template <class T>
static __global__ void one_hot_kernel(T *out, const int64_t *index, int64_t total, int64_t classes, T one)
{
    FOR_EACH(int64_t, i, total)
    {
        int64_t row = total <= INT32_MAX ? (uint32_t)i / (uint32_t)classes : i / classes;
        out[i] = index[row] == i - row * classes ? one : T(0);
    }
}

template <class T>
static shoal_err one_hot_of(sh_exec *exec, void *out, const int64_t *index, int64_t count, int64_t classes)
{
    int64_t total = count * classes;
    if (total > 0) {
        one_hot_kernel<T><<<sh_blocks(total, SH_THREADS, SH_MOST_BLOCKS), SH_THREADS, 0, sh_stream(exec)>>>(
            (T *)out, index, total, classes, T(1));
    }
    return sh_cuda_launched("one_hot");
}

static shoal_err one_hot(sh_exec *exec, shoal_dtype dtype, void *out, const int64_t *index, int64_t count,
                         int64_t classes)
{
    switch (dtype) {
    case SHOAL_F32: return one_hot_of<float>(exec, out, index, count, classes);
    case SHOAL_F64: return one_hot_of<double>(exec, out, index, count, classes);
    case SHOAL_I64: return one_hot_of<int64_t>(exec, out, index, count, classes);
    case SHOAL_I32: return one_hot_of<int32_t>(exec, out, index, count, classes);
    case SHOAL_U8:
    case SHOAL_B8: return one_hot_of<uint8_t>(exec, out, index, count, classes);
    default: return shoal_fail(SHOAL_EINVAL, "one_hot does not support %s", shoal_dtype_name(dtype));
    }
}

extern "C" const sh_index_kernels sh_index_kernels_cuda = {select_rows, add_rows,    gather,
                                                           scatter,     scatter_add, one_hot};
