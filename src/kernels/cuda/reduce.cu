/* The CUDA twin of cpu/reduce_reference.c; the contract is kernels/reduce.h.
 *
 * A group of lanes computes one result. If there are few results of many elements, the elements are also divided among
 * blocks: each block writes its state to scratch memory, and a second launch joins the states. */
#include "kernels/cuda/group.cuh"

extern "C" {
#include "kernels/reduce_plan.h"
}

#include <type_traits>

#define BATCH 8         /* elements that a lane reads at once */
#define ONE_BLOCK 16384 /* elements that one block reduces in the time of a second launch */
#define WANTED_BLOCKS (4 * SH_MULTIPROCESSORS)
#define LEAST_ELEMENTS 8192     /* the least elements per block if they are divided */
#define MANY (INT64_C(1) << 22) /* elements that keep a GPU busy if each lane takes 32 */

/* Converts numbers of elements to offsets in memory. */
struct dims {
    int32_t ndim;
    bool wide; /* the numbers need 64 bits */
    sh_wide_divider sizes[SH_MAX_DIMS];
    int64_t strides[2][SH_MAX_DIMS];

    __device__ __forceinline__ int64_t at(int64_t i, int view) const
    {
        int64_t offset = 0;
#pragma unroll 1
        for (int d = ndim - 1; d > 0 && wide; d--) {
            int64_t rest = sh_wide_divide(i, sizes[d]);
            offset += (i - rest * sizes[d].divisor) * strides[view][d];
            i = rest;
        }
        uint32_t n = (uint32_t)i;
#pragma unroll 1
        for (int d = ndim - 1; d > 0 && !wide; d--) {
            uint32_t rest = sh_divide(n, sizes[d].fast);
            offset += (int64_t)(n - rest * sizes[d].fast.divisor) * strides[view][d];
            n = rest;
        }
        return offset + (wide || ndim == 1 ? i : (int64_t)n) * strides[view][0];
    }
};

/* The work of one launch. */
struct reduction {
    dims kept;    /* of a, and of out */
    dims reduced; /* of a */
    int64_t results, each;
    int64_t chunk;  /* elements per result and block */
    int64_t chunks; /* chunks per result */
    const void *a;
    void *out;
    void *found;       /* [results, chunks] states; NULL if there is one chunk */
    shoal_dtype dtype; /* of a */
    sh_reduce_op op;
};

/* ---- elements: f32, f64, and all integers as i64 ---- */

/* A bool in memory: every byte other than 0 is true. */
struct truth {
    uint8_t byte;
    __device__ __forceinline__ operator int64_t() const
    {
        return byte != 0;
    }
};

/* Reads elements i, i + lanes, ...; of a last batch only those before the end. where(i) is the offset of element i. */
template <class From, bool last, int B, class X, class Where>
__device__ __forceinline__ void get_as(X (&x)[B], const reduction &r, int64_t i, int64_t end, int lanes, Where where)
{
#pragma unroll
    for (int k = 0; k < B; k++) {
        int64_t j = i + k * lanes;
        x[k] = !last || j < end ? (X)((const From *)r.a)[where(j)] : X(0);
    }
}

template <bool last, int B, class X, class Where>
__device__ __forceinline__ void get(X (&x)[B], const reduction &r, int64_t i, int64_t end, int lanes, Where where)
{
    get_as<X, last>(x, r, i, end, lanes, where);
}

template <bool last, int B, class Where>
__device__ __forceinline__ void get(int64_t (&x)[B], const reduction &r, int64_t i, int64_t end, int lanes, Where where)
{
    switch (r.dtype) {
    case SHOAL_I64: get_as<int64_t, last>(x, r, i, end, lanes, where); break;
    case SHOAL_I32: get_as<int32_t, last>(x, r, i, end, lanes, where); break;
    case SHOAL_B8: get_as<truth, last>(x, r, i, end, lanes, where); break;
    default: get_as<uint8_t, last>(x, r, i, end, lanes, where); break;
    }
}

template <class X> __device__ __forceinline__ void put(const reduction &r, int64_t at, X x)
{
    ((X *)r.out)[at] = x;
}

/* For the dtype of a. */
template <> __device__ __forceinline__ void put<int64_t>(const reduction &r, int64_t at, int64_t x)
{
    switch (r.dtype) {
    case SHOAL_I64: ((int64_t *)r.out)[at] = x; break;
    case SHOAL_I32: ((int32_t *)r.out)[at] = (int32_t)x; break;
    default: ((uint8_t *)r.out)[at] = (uint8_t)x; break;
    }
}

/* ---- the reductions. A lane reads elements into its state; the states of lanes are joined; put writes the result
 * ---- */

/* SUM, MEAN, SUMSQ */
template <class T> struct sums {
    using X = T;
    using state = double;
    state total = 0;
    T part = 0; /* of one batch */

    __device__ __forceinline__ void see(const reduction &r, T x, int64_t i)
    {
        part += r.op == SH_REDUCE_SUMSQ ? x * x : x;
    }
    __device__ __forceinline__ void end_batch()
    {
        total += part;
        part = 0;
    }
    __device__ __forceinline__ state found() const
    {
        return total;
    }
    static __device__ __forceinline__ state join(state a, state b)
    {
        return a + b;
    }
    static __device__ __forceinline__ void write(const reduction &r, int64_t at, state s)
    {
        put<T>(r, at, (T)(r.op == SH_REDUCE_MEAN ? s / (double)r.each : s));
    }
};

template <> struct sums<int64_t> {
    using X = int64_t;
    using state = uint64_t;
    state sum = 0;

    __device__ __forceinline__ void see(const reduction &r, int64_t x, int64_t i)
    {
        sum += (uint64_t)x;
    }
    __device__ __forceinline__ void end_batch()
    {
    }
    __device__ __forceinline__ state found() const
    {
        return sum;
    }
    static __device__ __forceinline__ state join(state a, state b)
    {
        return a + b;
    }
    static __device__ __forceinline__ void write(const reduction &r, int64_t at, state s)
    {
        ((uint64_t *)r.out)[at] = s;
    }
};

/* PROD: of f32 in f64; of integers as uint64_t, because signed numbers must not overflow */
template <class T> struct products {
    using X = T;
    using state = typename std::conditional<std::is_integral<T>::value, uint64_t, double>::type;
    state product = 1;

    __device__ __forceinline__ void see(const reduction &r, T x, int64_t i)
    {
        product *= (state)x;
    }
    __device__ __forceinline__ void end_batch()
    {
    }
    __device__ __forceinline__ state found() const
    {
        return product;
    }
    static __device__ __forceinline__ state join(state a, state b)
    {
        return a * b;
    }
    static __device__ __forceinline__ void write(const reduction &r, int64_t at, state s)
    {
        using result = typename std::conditional<std::is_integral<T>::value, uint64_t, T>::type;
        ((result *)r.out)[at] = (result)s;
    }
};

/* MAX, MIN, ARGMAX, ARGMIN. A minimum is the maximum of the elements in reverse order. */
template <class T> struct extremes {
    using X = T;
    struct state { /* 16 bytes without padding, in scratch memory */
        typename std::conditional<std::is_integral<T>::value, int64_t, double>::type x;
        int64_t at; /* -1: no element yet */
    };
    T best = 0;
    int64_t first = -1;

    static __device__ __forceinline__ T turned(const reduction &r, T x)
    {
        bool least = r.op == SH_REDUCE_MIN || r.op == SH_REDUCE_ARGMIN;
        return !least ? x : std::is_integral<T>::value ? -1 - x : -x;
    }
    /* Returns whether y replaces x, if y comes later. A NaN replaces everything but a NaN. */
    template <class V> static __device__ __forceinline__ bool beats(V y, V x)
    {
        return y > x || (y != y && x == x);
    }
    __device__ __forceinline__ void see(const reduction &r, T x, int64_t i)
    {
        x = turned(r, x);
        if (first < 0 || beats(x, best)) {
            best = x;
            first = i;
        }
    }
    __device__ __forceinline__ void end_batch()
    {
    }
    __device__ __forceinline__ state found() const
    {
        return state{best, first};
    }
    static __device__ __forceinline__ state join(const state &a, const state &b)
    {
        if (a.at < 0 || b.at < 0) {
            return a.at < 0 ? b : a;
        }
        return a.at < b.at ? (beats(b.x, a.x) ? b : a) : (beats(a.x, b.x) ? a : b);
    }
    static __device__ __forceinline__ void write(const reduction &r, int64_t at, const state &s)
    {
        if (r.op == SH_REDUCE_MAX || r.op == SH_REDUCE_MIN) {
            put<T>(r, at, turned(r, (T)s.x));
        } else {
            ((int64_t *)r.out)[at] = s.at;
        }
    }
};

/* ANY; ALL is: not any element is 0 */
template <class T> struct flags {
    using X = T;
    using state = uint32_t;
    state any = 0;

    __device__ __forceinline__ void see(const reduction &r, T x, int64_t i)
    {
        any |= (x != 0) == (r.op == SH_REDUCE_ANY);
    }
    __device__ __forceinline__ void end_batch()
    {
    }
    __device__ __forceinline__ state found() const
    {
        return any;
    }
    static __device__ __forceinline__ state join(state a, state b)
    {
        return a | b;
    }
    static __device__ __forceinline__ void write(const reduction &r, int64_t at, state s)
    {
        ((uint8_t *)r.out)[at] = (uint8_t)(s ^ (r.op == SH_REDUCE_ALL));
    }
};

/* log Σ exp(x), in f64: Σ exp(x - greatest), rescaled when the greatest grows. The difference of equal infinities
 * counts as 0. */
template <class T> struct log_sums {
    using X = T;
    struct state {
        double greatest, sum;
    };
    state s = {-INFINITY, 0};

    __device__ __forceinline__ void see(const reduction &r, T x, int64_t i)
    {
        s = join(s, state{(double)x, 1});
    }
    __device__ __forceinline__ void end_batch()
    {
    }
    __device__ __forceinline__ state found() const
    {
        return s;
    }
    /* A NaN fails the comparison and stays in the sum. */
    static __device__ __forceinline__ state join(const state &a, const state &b)
    {
        bool first = a.greatest > b.greatest;
        state high = first ? a : b, low = first ? b : a;
        double ratio = low.greatest == high.greatest ? 1 : exp(low.greatest - high.greatest);
        return state{high.greatest, high.sum + low.sum * ratio};
    }
    static __device__ __forceinline__ void write(const reduction &r, int64_t at, const state &s)
    {
        put<T>(r, at, (T)(log(s.sum) + s.greatest));
    }
};

/* ---- the two launches ---- */

template <bool last, int B, class Op, class Where>
__device__ __forceinline__ void see_batch(Op &op, const reduction &r, int64_t i, int64_t end, int lanes, Where where)
{
    typename Op::X x[B];
    get<last>(x, r, i, end, lanes, where);
#pragma unroll
    for (int k = 0; k < B; k++) {
        int64_t j = i + k * lanes;
        if (!last || j < end) {
            op.see(r, x[k], j);
        }
    }
    op.end_batch();
}

/* Reads elements i, i + lanes, ... before end. fast: separate code for full batches. */
template <bool fast, int B, class Op, class Where>
__device__ __forceinline__ void see_all(Op &op, const reduction &r, int64_t i, int64_t end, int lanes, Where where)
{
#pragma unroll 1
    for (; fast && i + (B - 1) * lanes < end; i += B * lanes) {
        see_batch<false, B>(op, r, i, end, lanes, where);
    }
#pragma unroll 1
    for (; i < end; i += B * lanes) {
        see_batch<true, B>(op, r, i, end, lanes, where);
    }
}

/* Most reductions have one dimension after merging. The others get less code. */
template <class Op>
__device__ __forceinline__ void see_row(Op &op, const reduction &r, int64_t base, int64_t begin, int64_t end, int lanes)
{
    if (r.reduced.ndim == 1) {
        int64_t stride = r.reduced.strides[0][0];
        see_all<!std::is_integral<typename Op::X>::value, BATCH>(op, r, begin, end, lanes,
                                                                 [=](int64_t i) { return base + i * stride; });
    } else {
        see_all<false, 2>(op, r, begin, end, lanes, [&](int64_t i) { return base + r.reduced.at(i, 0); });
    }
}

template <class Op>
__global__ void __launch_bounds__(SH_MOST_LANES, 2) reduce_elements(const reduction r, const sh_groups g)
{
    sh_place p = sh_place_of(g);
    Op op;
    if (p.row < r.results) {
        int64_t begin = blockIdx.y * r.chunk, end = begin + r.chunk < r.each ? begin + r.chunk : r.each;
        see_row(op, r, r.kept.at(p.row, 0), begin + p.lane, end, g.lanes);
    }
    auto found = sh_group_join(g, op.found(), Op::join);
    if (p.lane > 0 || p.row >= r.results) {
        return;
    }
    if (r.found) {
        ((typename Op::state *)r.found)[p.row * r.chunks + blockIdx.y] = found;
    } else {
        Op::write(r, r.kept.at(p.row, 1), found);
    }
}

/* One warp joins the states of one result. */
template <class Op> __global__ void __launch_bounds__(SH_THREADS) reduce_found(const reduction r)
{
    int lane = (int)threadIdx.x % SH_WARP;
    int64_t row = ((int64_t)blockIdx.x * SH_THREADS + threadIdx.x) / SH_WARP;
    if (row >= r.results) {
        return;
    }
    auto found = Op().found();
    for (int64_t c = lane; c < r.chunks; c += SH_WARP) {
        found = Op::join(found, ((const typename Op::state *)r.found)[row * r.chunks + c]);
    }
    found = sh_join_neighbours(SH_WARP, found, Op::join);
    if (lane == 0) {
        Op::write(r, r.kept.at(row, 1), found);
    }
}

template <class Op> static shoal_err launch(sh_exec *exec, reduction *r, sh_groups g)
{
    if (r->chunks > 1) {
        size_t size = sizeof(typename Op::state) * (size_t)(r->results * r->chunks);
        r->found = sh_cuda_the_host->scratch(exec, size);
        if (!r->found) {
            return SHOAL_ENOMEM;
        }
    }
    dim3 grid(sh_group_blocks(g, r->results), (unsigned)r->chunks);
    reduce_elements<Op><<<grid, (unsigned)sh_group_threads(g), 0, sh_stream(exec)>>>(*r, g);
    if (r->chunks > 1) {
        unsigned blocks = sh_blocks(r->results * SH_WARP, SH_THREADS, 0x7fffffffu);
        reduce_found<Op><<<blocks, SH_THREADS, 0, sh_stream(exec)>>>(*r);
    }
    return sh_cuda_launched("reduce");
}

template <template <class> class Op> static shoal_err launch_of(sh_exec *exec, reduction *r, sh_groups g)
{
    switch (r->dtype) {
    case SHOAL_F32: return launch<Op<float>>(exec, r, g);
    case SHOAL_F64: return launch<Op<double>>(exec, r, g);
    default: return launch<Op<int64_t>>(exec, r, g);
    }
}

/* ---- the host: from shapes to launches ---- */

/* Sorts n dimensions by the memory order of the first strides and merges them, unless their order matters. */
static shoal_err dims_init(dims *d, int32_t n, const int64_t shape[], const int64_t first[], const int64_t second[],
                           bool ordered)
{
    sh_view views[2] = {};
    const sh_view *const both[] = {&views[0], &views[1]};
    for (int v = 0; v < 2; v++) {
        views[v].dtype = SHOAL_U8; /* strides of the iterator count elements */
        views[v].ndim = n;
        memcpy(views[v].shape, shape, sizeof views[v].shape);
        memcpy(views[v].strides, v == 0 ? first : second, sizeof views[v].strides);
    }
    sh_iter it = {};
    shoal_err err = sh_iter_init(&it, 2, both);
    if (err) {
        return err;
    }
    *d = dims{};
    d->ndim = ordered ? n : it.ndim;
    memcpy(d->strides[0], ordered ? first : it.strides[0], sizeof d->strides[0]);
    memcpy(d->strides[1], ordered ? second : it.strides[1], sizeof d->strides[1]);
    const int64_t *sizes = ordered ? shape : it.shape;
    int64_t count = 1;
    for (int i = 0; i < d->ndim; i++) {
        count *= sizes[i];
    }
    for (int i = 0; i < d->ndim; i++) {
        d->sizes[i] = sh_wide_divider_make(sizes[i], count);
        d->wide = d->sizes[i].wide;
    }
    if (d->ndim == 0) { /* one element */
        d->ndim = 1;
        d->sizes[0] = sh_wide_divider_make(1, 1);
    }
    return SHOAL_OK;
}

static shoal_err reduction_init(reduction *r, sh_reduce_op op, const sh_view *out, const sh_view *a)
{
    sh_reduce_plan p;
    bool ordered = op == SH_REDUCE_ARGMAX || op == SH_REDUCE_ARGMIN;
    shoal_err err = sh_reduce_plan_init(&p, op, out, a);
    if (err) {
        return err;
    }
    *r = {};
    r->results = p.results;
    r->each = p.each;
    r->a = a->data;
    r->out = out->data;
    r->dtype = a->dtype;
    r->op = op;
    err = dims_init(&r->kept, p.kept, p.kept_shape, p.kept_in, p.kept_out, false);
    return err ? err : dims_init(&r->reduced, p.reduced, p.reduced_shape, p.reduced_in, p.reduced_in, ordered);
}

static sh_groups divide(reduction *r)
{
    int kept = r->kept.ndim - 1, reduced = r->reduced.ndim - 1;
    int64_t beside = r->kept.strides[0][kept];
    bool columns = r->results > 1 && r->each > 1 && beside > 0 && beside < r->reduced.strides[0][reduced];
    int least = r->results * r->each < MANY ? BATCH : 4 * BATCH;
    sh_groups g = columns ? sh_groups_of_columns(r->results, r->each, r->kept.sizes[kept].divisor, least)
                          : sh_groups_of_rows(r->results, r->each, least, 8 * BATCH);
    int64_t blocks = sh_group_blocks(g, r->results), here = r->each * (r->results < g.groups ? r->results : g.groups);
    int64_t chunks = 1;
    if (here > ONE_BLOCK && blocks < WANTED_BLOCKS / 2) {
        int64_t wanted = WANTED_BLOCKS / blocks, most = here / LEAST_ELEMENTS;
        chunks = wanted < most ? wanted : most;
        chunks = chunks < r->each ? chunks : r->each;
    }
    r->chunk = r->each / chunks + (r->each % chunks != 0);
    r->chunks = r->chunk > 0 ? (r->each + r->chunk - 1) / r->chunk : 1;
    return g;
}

static shoal_err reduce(sh_exec *exec, sh_reduce_op op, const sh_view *out, const sh_view *a)
{
    reduction r;
    shoal_err err = reduction_init(&r, op, out, a);
    if (err != SHOAL_OK || r.results == 0) {
        return err;
    }
    sh_groups g = divide(&r);
    switch (op) {
    case SH_REDUCE_SUM:
    case SH_REDUCE_MEAN:
    case SH_REDUCE_SUMSQ: return launch_of<sums>(exec, &r, g);
    case SH_REDUCE_PROD: return launch_of<products>(exec, &r, g);
    case SH_REDUCE_ANY:
    case SH_REDUCE_ALL: return launch_of<flags>(exec, &r, g);
    default: return launch_of<extremes>(exec, &r, g);
    }
}

static shoal_err logsumexp(sh_exec *exec, const sh_view *out, const sh_view *a)
{
    reduction r;
    shoal_err err = reduction_init(&r, SH_REDUCE_SUMSQ, out, a);
    if (err != SHOAL_OK || r.results == 0) {
        return err;
    }
    sh_groups g = divide(&r);
    return r.dtype == SHOAL_F32 ? launch<log_sums<float>>(exec, &r, g) : launch<log_sums<double>>(exec, &r, g);
}

extern "C" const sh_reduce_kernels sh_reduce_kernels_cuda = {reduce, logsumexp};
