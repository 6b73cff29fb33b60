/* The CUDA twin of cpu/softmax_reference.c; the contract is kernels/softmax.h.
 *
 * A group of lanes computes one row: the n elements of a softmax, `inner` apart. Each lane writes only elements that it
 * has read, so outputs may be inputs. */
#include "kernels/cuda/group.cuh"

#define MOST_BLOCKS (8u * SH_MULTIPROCESSORS)
#define MOST_TARGETS 2048 /* targets that one block adds in the time of a second launch */

/* The rows of one launch. */
struct rows {
    int64_t count, n, inner;
    sh_wide_divider by_inner;

    __device__ __forceinline__ int64_t start(int64_t row) const
    {
        if (inner == 1) {
            return row * n;
        }
        int64_t outer = sh_wide_divide(row, by_inner);
        return outer * n * inner + (row - outer * inner);
    }
};

/* The losses of one launch. target is NULL if there are none. */
template <class T> struct losses {
    const int64_t *target;
    int64_t ignored, classes;
    const T *weight; /* NULL: all 1 */
    shoal_reduction reduction;
    T *loss, *total;

    __device__ __forceinline__ bool in_range(int64_t t) const
    {
        return t >= 0 && t < classes;
    }
    /* Returns the weight of target t, or NaN if t is out of range. */
    __device__ __forceinline__ T weight_of(int64_t t) const
    {
        return t == ignored ? T(0) : !in_range(t) ? T(NAN) : weight ? weight[t] : T(1);
    }
};

/* What some rows add to the loss and to the total weight. */
struct share {
    double loss, weight;
};

static __device__ share joined(const share &a, const share &b)
{
    return share{a.loss + b.loss, a.weight + b.weight};
}

template <class T> static __device__ void write_loss(const losses<T> &l, const share &all)
{
    if (l.reduction != SHOAL_REDUCTION_NONE) {
        *l.loss = (T)(l.reduction == SHOAL_REDUCTION_MEAN ? all.loss / all.weight : all.loss);
    }
    *l.total = (T)all.weight;
}

/* Joins the results of a block's threads. A single block writes the result; several leave it to finish_loss. */
template <class T> static __device__ void end_block(const losses<T> &l, share mine, share *found)
{
    sh_groups all = {(int32_t)blockDim.x, 1, false};
    mine = sh_group_join(all, mine, joined);
    if (threadIdx.x > 0) {
        return;
    }
    if (gridDim.x == 1) {
        write_loss(l, mine);
    } else {
        found[blockIdx.x] = mine;
    }
}

template <class T>
static __global__ void __launch_bounds__(SH_THREADS) finish_loss(const losses<T> l, const share *found, int count)
{
    share mine = {0, 0};
    for (int i = (int)threadIdx.x; i < count; i += SH_THREADS) {
        mine = joined(mine, found[i]);
    }
    end_block(l, mine, nullptr);
}

/* Adds the loss of a row whose log-probability of target t is `log_prob`. */
template <class T>
static __device__ __forceinline__ void add_loss(const losses<T> &l, int64_t row, int64_t t, T log_prob, share *mine)
{
    T weight = l.weight_of(t), loss = t == l.ignored ? T(0) : -weight * log_prob;
    mine->loss += (double)loss;
    mine->weight += (double)weight;
    if (l.reduction == SHOAL_REDUCTION_NONE) {
        l.loss[row] = loss;
    }
}

/* ---- softmax, log_softmax, and cross_entropy if there are targets ---- */

/* A row of at most one batch per lane is read once, and stays in registers. */
template <class T>
static __global__ void __launch_bounds__(SH_MOST_LANES, 2)
    forward_rows(const rows r, const sh_groups g, sh_softmax_op op, const losses<T> l, share *found, T *y, const T *x)
{
    const sh_place p = sh_place_of(g);
    const int64_t step = (int64_t)SH_BATCH * g.lanes, hop = g.lanes * r.inner;
    const bool once = r.n <= step;
    share mine = {0, 0};
    /* All groups of a block stay in the loop together, because they wait for each other. Those behind the last row do
     * nothing. */
    for (int64_t row = p.row; row - p.group < r.count; row += (int64_t)gridDim.x * g.groups) {
        const bool there = row < r.count;
        const int64_t start = there ? r.start(row) : 0, n = there ? r.n : 0;
        const int64_t target = there && l.target ? l.target[row] : -1;
        T v[SH_BATCH], greatest = -INFINITY;
#pragma unroll 1
        for (int64_t i = p.lane; i < n; i += step) {
            sh_batch_load(v, x + start + i * r.inner, hop, g.lanes, sh_batch_left(n, i), T(-INFINITY));
#pragma unroll
            for (int k = 0; k < SH_BATCH; k++) {
                greatest = fmax(greatest, v[k]);
            }
        }
        greatest = sh_group_join(g, greatest, [](T a, T b) { return fmax(a, b); });
        double sum = 0;
#pragma unroll 1
        for (int64_t i = p.lane; i < n; i += step) {
            if (!once) {
                sh_batch_load(v, x + start + i * r.inner, hop, g.lanes, sh_batch_left(n, i), T(-INFINITY));
            }
            T part = 0;
#pragma unroll
            for (int k = 0; k < SH_BATCH; k++) {
                part += exp(v[k] - greatest); /* exp(-inf) = 0 for an element that does not exist */
            }
            sum += (double)part;
        }
        const T log_sum = log((T)sh_group_sum(g, sum));
#pragma unroll 1
        for (int64_t i = p.lane; i < n; i += step) {
            const int left = sh_batch_left(n, i);
            T *to = y + start + i * r.inner;
            if (!once) {
                sh_batch_load(v, x + start + i * r.inner, hop, g.lanes, left, T(-INFINITY));
            }
#pragma unroll
            for (int k = 0; k < SH_BATCH; k++) {
                const T log_prob = v[k] - greatest - log_sum;
                if (k * g.lanes < left) {
                    to[k * hop] = op == SH_SOFTMAX ? exp(log_prob) : log_prob;
                    if (l.target && k * g.lanes == target - i && target != l.ignored) {
                        add_loss(l, row, target, log_prob, &mine);
                    }
                }
            }
        }
        if (there && l.target && p.lane == 0 && (target == l.ignored || !l.in_range(target))) {
            add_loss(l, row, target, T(0), &mine);
        }
    }
    if (l.target) {
        end_block(l, mine, found);
    }
}

/* ---- backward of softmax and log_softmax ---- */

template <class T>
static __global__ void __launch_bounds__(SH_MOST_LANES, 2)
    backward_rows(const rows r, const sh_groups g, sh_softmax_op op, T *dx, const T *dy, const T *y)
{
    const sh_place p = sh_place_of(g);
    const int64_t step = (int64_t)SH_BATCH * g.lanes, hop = g.lanes * r.inner;
    const bool there = p.row < r.count, once = r.n <= step;
    const int64_t start = there ? r.start(p.row) : 0, n = there ? r.n : 0;
    T d[SH_BATCH], v[SH_BATCH];
    double sum = 0;
#pragma unroll 1
    for (int64_t i = p.lane; i < n; i += step) {
        const int64_t at = start + i * r.inner;
        sh_batch_load(d, dy + at, hop, g.lanes, sh_batch_left(n, i), T(0));
        sh_batch_load(v, y + at, hop, g.lanes, sh_batch_left(n, i), T(0));
        T part = 0;
#pragma unroll
        for (int k = 0; k < SH_BATCH; k++) {
            part += op == SH_SOFTMAX ? d[k] * v[k] : d[k];
        }
        sum += (double)part;
    }
    const T all = (T)sh_group_sum(g, sum);
#pragma unroll 1
    for (int64_t i = p.lane; i < n; i += step) {
        const int64_t at = start + i * r.inner;
        const int left = sh_batch_left(n, i);
        if (!once) {
            sh_batch_load(d, dy + at, hop, g.lanes, left, T(0));
            sh_batch_load(v, y + at, hop, g.lanes, left, T(0));
        }
#pragma unroll
        for (int k = 0; k < SH_BATCH; k++) {
            if (k * g.lanes < left) {
                dx[at + k * hop] = op == SH_SOFTMAX ? v[k] * (d[k] - all) : d[k] - exp(v[k]) * all;
            }
        }
    }
}

/* ---- nll ---- */

template <class T>
static __global__ void __launch_bounds__(SH_MOST_LANES, 2)
    nll_rows(const rows r, const losses<T> l, share *found, const T *log_probs)
{
    share mine = {0, 0};
    for (int64_t row = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; row < r.count;
         row += (int64_t)gridDim.x * blockDim.x) {
        int64_t t = l.target[row];
        bool used = t != l.ignored && l.in_range(t);
        add_loss(l, row, t, used ? log_probs[r.start(row) + t * r.inner] : T(0), &mine);
    }
    end_block(l, mine, found);
}

/* dx = scale · (softmax - onehot). If log_probs is NULL, softmax counts as 0. */
template <class T>
static __global__ void __launch_bounds__(SH_MOST_LANES, 2)
    loss_gradient(const rows r, const sh_groups g, const losses<T> l, T *dx, const T *dloss, const T *log_probs)
{
    const sh_place p = sh_place_of(g);
    if (p.row >= r.count) {
        return;
    }
    const int64_t t = l.target[p.row], start = r.start(p.row);
    T scale = 0;
    if (t != l.ignored) {
        scale = dloss[l.reduction == SHOAL_REDUCTION_NONE ? p.row : 0] * l.weight_of(t);
        scale = l.reduction == SHOAL_REDUCTION_MEAN ? scale / *l.total : scale;
    }
    const int64_t hop = g.lanes * r.inner;
#pragma unroll 1
    for (int64_t i = p.lane; i < r.n; i += (int64_t)SH_BATCH * g.lanes) {
        const int64_t at = start + i * r.inner;
        const int left = sh_batch_left(r.n, i);
        T v[SH_BATCH];
        if (log_probs) {
            sh_batch_load(v, log_probs + at, hop, g.lanes, left, T(0));
        }
#pragma unroll
        for (int k = 0; k < SH_BATCH; k++) {
            if (k * g.lanes < left) {
                const T prob = log_probs && t != l.ignored ? exp(v[k]) : T(0);
                dx[at + k * hop] = scale * (prob - (k * g.lanes == t - i ? T(1) : T(0)));
            }
        }
    }
}

/* ---- launches ---- */

static rows rows_of(const sh_softmax_shape *s)
{
    return rows{s->outer * s->inner, s->n, s->inner, sh_wide_divider_make(s->inner, s->outer * s->inner)};
}

static sh_groups groups_of(const sh_softmax_shape *s)
{
    return s->inner == 1 ? sh_groups_of_rows(s->outer, s->n, SH_BATCH, 64)
                         : sh_groups_of_columns(s->outer * s->inner, s->n, s->inner, SH_BATCH);
}

template <class T> static losses<T> losses_of(const sh_nll_args *args, void *loss, const void *total)
{
    return losses<T>{args->target,    args->ignore_index, args->shape.n, (const T *)args->weight,
                     args->reduction, (T *)loss,          (T *)total};
}

template <class T>
static shoal_err forward_of(sh_exec *exec, sh_softmax_op op, const sh_softmax_shape *s, void *y, const void *x)
{
    sh_groups g = groups_of(s);
    unsigned blocks = sh_group_blocks(g, s->outer * s->inner);
    forward_rows<T><<<blocks, (unsigned)sh_group_threads(g), 0, sh_stream(exec)>>>(rows_of(s), g, op, losses<T>{},
                                                                                   nullptr, (T *)y, (const T *)x);
    return sh_cuda_launched("softmax");
}

template <class T>
static shoal_err backward_of(sh_exec *exec, sh_softmax_op op, const sh_softmax_shape *s, void *dx, const void *dy,
                             const void *y)
{
    sh_groups g = groups_of(s);
    unsigned blocks = sh_group_blocks(g, s->outer * s->inner);
    backward_rows<T><<<blocks, (unsigned)sh_group_threads(g), 0, sh_stream(exec)>>>(rows_of(s), g, op, (T *)dx,
                                                                                    (const T *)dy, (const T *)y);
    return sh_cuda_launched("softmax backward");
}

/* Calls launch(found) for a launch of `blocks` blocks. If there are several, joins their results. */
template <class T, class Launch>
static shoal_err with_finish(sh_exec *exec, const losses<T> &l, unsigned blocks, Launch launch)
{
    share *found = nullptr;
    if (blocks > 1) {
        found = (share *)sh_cuda_the_host->scratch(exec, sizeof *found * blocks);
        if (!found) {
            return SHOAL_ENOMEM;
        }
    }
    launch(found);
    if (blocks > 1) {
        finish_loss<T><<<1, SH_THREADS, 0, sh_stream(exec)>>>(l, found, (int)blocks);
    }
    return sh_cuda_launched("nll");
}

template <class T>
static shoal_err nll_of(sh_exec *exec, const sh_nll_args *args, void *loss, void *total, const void *log_probs)
{
    rows r = rows_of(&args->shape);
    losses<T> l = losses_of<T>(args, loss, total);
    int threads = SH_WARP;
    while (threads < r.count && threads < SH_MOST_LANES) {
        threads *= 2;
    }
    unsigned blocks = r.count <= MOST_TARGETS ? 1 : sh_blocks(r.count, threads, MOST_BLOCKS);
    return with_finish(exec, l, blocks, [&](share *found) {
        nll_rows<T><<<blocks, (unsigned)threads, 0, sh_stream(exec)>>>(r, l, found, (const T *)log_probs);
    });
}

template <class T>
static shoal_err cross_entropy_of(sh_exec *exec, const sh_nll_args *args, void *loss, void *total, void *log_probs,
                                  const void *x)
{
    rows r = rows_of(&args->shape);
    losses<T> l = losses_of<T>(args, loss, total);
    sh_groups g = groups_of(&args->shape);
    while (!g.side_by_side && g.groups < r.count && g.lanes * g.groups < SH_MOST_LANES) {
        g.groups *= 2;
    }
    unsigned blocks = sh_group_blocks(g, r.count);
    blocks = blocks < 1 ? 1 : blocks < MOST_BLOCKS ? blocks : MOST_BLOCKS;
    return with_finish(exec, l, blocks, [&](share *found) {
        forward_rows<T><<<blocks, (unsigned)sh_group_threads(g), 0, sh_stream(exec)>>>(r, g, SH_LOG_SOFTMAX, l, found,
                                                                                       (T *)log_probs, (const T *)x);
    });
}

template <class T>
static shoal_err gradient_of(sh_exec *exec, const sh_nll_args *args, void *dx, const void *dloss, const void *total,
                             const void *log_probs)
{
    rows r = rows_of(&args->shape);
    sh_groups g = groups_of(&args->shape);
    loss_gradient<T><<<sh_group_blocks(g, r.count), (unsigned)sh_group_threads(g), 0, sh_stream(exec)>>>(
        r, g, losses_of<T>(args, nullptr, total), (T *)dx, (const T *)dloss, (const T *)log_probs);
    return sh_cuda_launched("nll backward");
}

static bool is_empty(const sh_softmax_shape *s)
{
    return s->outer * s->n * s->inner == 0;
}

static shoal_err forward(sh_exec *exec, sh_softmax_op op, const sh_softmax_shape *s, void *y, const void *x)
{
    shoal_err err = sh_check_float("softmax", s->dtype);
    if (err != SHOAL_OK || is_empty(s)) {
        return err;
    }
    return s->dtype == SHOAL_F32 ? forward_of<float>(exec, op, s, y, x) : forward_of<double>(exec, op, s, y, x);
}

static shoal_err backward(sh_exec *exec, sh_softmax_op op, const sh_softmax_shape *s, void *dx, const void *dy,
                          const void *y)
{
    shoal_err err = sh_check_float("softmax", s->dtype);
    if (err != SHOAL_OK || is_empty(s)) {
        return err;
    }
    return s->dtype == SHOAL_F32 ? backward_of<float>(exec, op, s, dx, dy, y)
                                 : backward_of<double>(exec, op, s, dx, dy, y);
}

static shoal_err nll(sh_exec *exec, const sh_nll_args *args, void *loss, void *total, const void *log_probs)
{
    shoal_err err = sh_check_float("nll", args->shape.dtype);
    if (err != SHOAL_OK) {
        return err;
    }
    return args->shape.dtype == SHOAL_F32 ? nll_of<float>(exec, args, loss, total, log_probs)
                                          : nll_of<double>(exec, args, loss, total, log_probs);
}

static shoal_err cross_entropy(sh_exec *exec, const sh_nll_args *args, void *loss, void *total, void *log_probs,
                               const void *x)
{
    shoal_err err = sh_check_float("nll", args->shape.dtype);
    if (err != SHOAL_OK) {
        return err;
    }
    return args->shape.dtype == SHOAL_F32 ? cross_entropy_of<float>(exec, args, loss, total, log_probs, x)
                                          : cross_entropy_of<double>(exec, args, loss, total, log_probs, x);
}

static shoal_err cross_entropy_backward(sh_exec *exec, const sh_nll_args *args, void *dx, const void *dloss,
                                        const void *total, const void *log_probs)
{
    shoal_err err = sh_check_float("nll", args->shape.dtype);
    if (err != SHOAL_OK || is_empty(&args->shape)) {
        return err;
    }
    return args->shape.dtype == SHOAL_F32 ? gradient_of<float>(exec, args, dx, dloss, total, log_probs)
                                          : gradient_of<double>(exec, args, dx, dloss, total, log_probs);
}

static shoal_err nll_backward(sh_exec *exec, const sh_nll_args *args, void *dx, const void *dloss, const void *total)
{
    return cross_entropy_backward(exec, args, dx, dloss, total, nullptr);
}

extern "C" const sh_softmax_kernels sh_softmax_kernels_cuda = {forward,      backward,      nll,
                                                               nll_backward, cross_entropy, cross_entropy_backward};
