/* The CUDA twin of cpu/norm_reference.c; the contract is kernels/norm.h. */
#include "kernels/cuda/group.cuh"

#define MOST_CHUNKS 256 /* chunks of rows, for the gradients of gamma and beta */
#define LEAST_ROWS 128  /* rows per chunk */
#define WANTED_BLOCKS (4 * SH_MULTIPROCESSORS)

struct pair {
    double a, b;
};

static __device__ pair added(const pair &x, const pair &y)
{
    return pair{x.a + y.a, x.b + y.b};
}

/* A group of lanes computes one row. Each lane writes only elements that it has read, so y may be x. A row of at most
 * one batch per lane is read once, and stays in registers. */
template <class T>
static __global__ void __launch_bounds__(SH_MOST_LANES, 2)
    norm_rows(int64_t rows, int64_t n, const sh_groups g, T eps, T *y, T *mean, T *rstd, const T *x, const T *gamma,
              const T *beta)
{
    const sh_place p = sh_place_of(g);
    const int64_t start = p.row * n, end = p.row < rows ? n : 0, step = (int64_t)SH_BATCH * g.lanes;
    const bool once = n <= step;
    T v[SH_BATCH];
    double sum = 0, squares = 0;
#pragma unroll 1
    for (int64_t i = p.lane; i < end; i += step) {
        sh_batch_load(v, x + start + i, g.lanes, g.lanes, sh_batch_left(end, i), T(0));
        T part = 0;
#pragma unroll
        for (int k = 0; k < SH_BATCH; k++) {
            part += v[k];
        }
        sum += (double)part;
    }
    const T m = (T)(sh_group_sum(g, sum) / (double)n);
#pragma unroll 1
    for (int64_t i = p.lane; i < end; i += step) {
        if (!once) {
            sh_batch_load(v, x + start + i, g.lanes, g.lanes, sh_batch_left(end, i), T(0));
        }
        const int left = sh_batch_left(end, i);
        T part = 0;
#pragma unroll
        for (int k = 0; k < SH_BATCH; k++) {
            const T d = k * g.lanes < left ? v[k] - m : T(0);
            part += d * d;
        }
        squares += (double)part;
    }
    const T scale = T(1) / sqrt((T)(sh_group_sum(g, squares) / (double)n) + eps);
#pragma unroll 1
    for (int64_t i = p.lane; i < end; i += step) {
        if (!once) {
            sh_batch_load(v, x + start + i, g.lanes, g.lanes, sh_batch_left(end, i), T(0));
        }
        const int left = sh_batch_left(end, i);
        T *to = y + start + i;
#pragma unroll
        for (int k = 0; k < SH_BATCH; k++) {
            if (k * g.lanes < left) {
                const T w = gamma ? gamma[i + k * g.lanes] : T(1), b = beta ? beta[i + k * g.lanes] : T(0);
                to[k * g.lanes] = (v[k] - m) * scale * w + b;
            }
        }
    }
    if (mean && p.lane == 0 && end > 0) {
        mean[p.row] = m;
        rstd[p.row] = scale;
    }
}

/* A batch of a row: g = dy · gamma, and xhat = (x - mean) · rstd. */
template <class T> struct gradient_batch {
    T g[SH_BATCH], xhat[SH_BATCH];

    __device__ __forceinline__ void load(const T *dy, const T *x, const T *gamma, T mean, T rstd, int lanes, int left)
    {
        sh_batch_load(g, dy, lanes, lanes, left, T(0));
        sh_batch_load(xhat, x, lanes, lanes, left, T(0));
#pragma unroll
        for (int k = 0; k < SH_BATCH; k++) {
            g[k] *= gamma && k * lanes < left ? gamma[k * lanes] : T(1);
            xhat[k] = (xhat[k] - mean) * rstd;
        }
    }
};

/* dx = rstd · (g - mean(g) - xhat · mean(g · xhat)). */
template <class T>
static __global__ void __launch_bounds__(SH_MOST_LANES, 2)
    norm_gradient_of_x(int64_t rows, int64_t n, const sh_groups g, T *dx, const T *dy, const T *x, const T *gamma,
                       const T *mean, const T *rstd)
{
    const sh_place p = sh_place_of(g);
    const int64_t start = p.row * n, end = p.row < rows ? n : 0, step = (int64_t)SH_BATCH * g.lanes;
    const bool once = n <= step;
    const T m = end > 0 ? mean[p.row] : T(0), scale = end > 0 ? rstd[p.row] : T(0);
    gradient_batch<T> b;
    pair sums = {0, 0};
#pragma unroll 1
    for (int64_t i = p.lane; i < end; i += step) {
        const int left = sh_batch_left(end, i);
        b.load(dy + start + i, x + start + i, gamma ? gamma + i : nullptr, m, scale, g.lanes, left);
        T of_g = 0, of_gx = 0;
#pragma unroll
        for (int k = 0; k < SH_BATCH; k++) {
            of_g += b.g[k];
            of_gx += b.g[k] * b.xhat[k];
        }
        sums = added(sums, pair{(double)of_g, (double)of_gx});
    }
    sums = sh_group_join(g, sums, added);
    const T mean_g = (T)(sums.a / (double)n), mean_gx = (T)(sums.b / (double)n);
#pragma unroll 1
    for (int64_t i = p.lane; i < end; i += step) {
        const int left = sh_batch_left(end, i);
        if (!once) {
            b.load(dy + start + i, x + start + i, gamma ? gamma + i : nullptr, m, scale, g.lanes, left);
        }
#pragma unroll
        for (int k = 0; k < SH_BATCH; k++) {
            if (k * g.lanes < left) {
                dx[start + i + k * g.lanes] = scale * (b.g[k] - mean_g - b.xhat[k] * mean_gx);
            }
        }
    }
}

template <class T> static __device__ void add_parameters(T *dgamma, T *dbeta, int64_t j, const pair &sums)
{
    if (dgamma) {
        dgamma[j] = (T)((double)dgamma[j] + sums.a);
    }
    if (dbeta) {
        dbeta[j] = (T)((double)dbeta[j] + sums.b);
    }
}

/* A group of lanes computes one column, over the rows of chunk blockIdx.y. If there are several chunks, it stores the
 * sums in found [chunks, n]. */
template <class T>
static __global__ void __launch_bounds__(SH_THREADS)
    norm_gradient_of_parameters(int64_t rows, int64_t n, int64_t chunk, const sh_groups g, T *dgamma, T *dbeta,
                                pair *found, const T *dy, const T *x, const T *mean, const T *rstd)
{
    const sh_place p = sh_place_of(g);
    const int64_t j = p.row, first = blockIdx.y * chunk, end = first + chunk < rows ? first + chunk : rows;
    pair sums = {0, 0};
#pragma unroll 1
    for (int64_t i = first + p.lane; i < end && j < n; i += (int64_t)SH_BATCH * g.lanes) {
        T d[SH_BATCH], xhat[SH_BATCH], of_gamma = 0, of_beta = 0;
        const int left = sh_batch_left(end, i);
        sh_batch_load(d, dy + i * n + j, g.lanes * n, g.lanes, left, T(0));
        sh_batch_load(xhat, x + i * n + j, g.lanes * n, g.lanes, left, T(0));
#pragma unroll
        for (int k = 0; k < SH_BATCH; k++) {
            const int64_t row = i + k * g.lanes;
            of_gamma += k * g.lanes < left ? d[k] * ((xhat[k] - mean[row]) * rstd[row]) : T(0);
            of_beta += d[k];
        }
        sums = added(sums, pair{(double)of_gamma, (double)of_beta});
    }
    sums = sh_group_join(g, sums, added);
    if (p.lane > 0 || j >= n) {
        return;
    }
    if (found) {
        found[blockIdx.y * n + j] = sums;
    } else {
        add_parameters(dgamma, dbeta, j, sums);
    }
}

template <class T>
static __global__ void __launch_bounds__(SH_THREADS)
    norm_finish_parameters(int64_t chunks, int64_t n, const sh_groups g, T *dgamma, T *dbeta, const pair *found)
{
    const sh_place p = sh_place_of(g);
    pair sums = {0, 0};
    for (int64_t c = p.lane; c < chunks && p.row < n; c += g.lanes) {
        sums = added(sums, found[c * n + p.row]);
    }
    sums = sh_group_join(g, sums, added);
    if (p.lane == 0 && p.row < n) {
        add_parameters(dgamma, dbeta, p.row, sums);
    }
}

/* ---- launches ---- */

static shoal_err check(const sh_norm_shape *s)
{
    shoal_err err = sh_check_float("layer norm", s->dtype);
    return err        ? err
           : s->n > 0 ? SHOAL_OK
                      : shoal_fail(SHOAL_EINVAL, "layer norm over %lld elements; it needs at least 1", (long long)s->n);
}

template <class T>
static shoal_err norm_of(sh_exec *exec, const sh_norm_shape *s, double eps, void *y, void *mean, void *rstd,
                         const void *x, const void *gamma, const void *beta)
{
    sh_groups g = sh_groups_of_rows(s->rows, s->n, SH_BATCH, 64);
    norm_rows<T><<<sh_group_blocks(g, s->rows), (unsigned)sh_group_threads(g), 0, sh_stream(exec)>>>(
        s->rows, s->n, g, (T)eps, (T *)y, (T *)mean, (T *)rstd, (const T *)x, (const T *)gamma, (const T *)beta);
    return sh_cuda_launched("layer norm");
}

template <class T>
static shoal_err parameters_of(sh_exec *exec, const sh_norm_shape *s, void *dgamma, void *dbeta, const void *dy,
                               const void *x, const void *mean, const void *rstd)
{
    sh_groups g = sh_groups_of_columns(s->n, s->rows, s->n, SH_BATCH);
    int64_t blocks = sh_group_blocks(g, s->n), chunks = 1;
    while (chunks < MOST_CHUNKS && s->rows / (chunks * 2) >= LEAST_ROWS && blocks * chunks < WANTED_BLOCKS) {
        chunks *= 2;
    }
    pair *found = nullptr;
    if (chunks > 1) {
        found = (pair *)sh_cuda_the_host->scratch(exec, sizeof *found * (size_t)(chunks * s->n));
        if (!found) {
            return SHOAL_ENOMEM;
        }
    }
    dim3 grid((unsigned)blocks, (unsigned)chunks);
    norm_gradient_of_parameters<T><<<grid, (unsigned)sh_group_threads(g), 0, sh_stream(exec)>>>(
        s->rows, s->n, (s->rows + chunks - 1) / chunks, g, (T *)dgamma, (T *)dbeta, found, (const T *)dy, (const T *)x,
        (const T *)mean, (const T *)rstd);
    if (chunks > 1) {
        g = sh_groups_of_columns(s->n, chunks, s->n, SH_BATCH);
        norm_finish_parameters<T><<<sh_group_blocks(g, s->n), (unsigned)sh_group_threads(g), 0, sh_stream(exec)>>>(
            chunks, s->n, g, (T *)dgamma, (T *)dbeta, found);
    }
    return sh_cuda_launched("layer norm backward");
}

/* Computes dx last, because it may be dy. */
template <class T>
static shoal_err backward_of(sh_exec *exec, const sh_norm_shape *s, void *dx, void *dgamma, void *dbeta, const void *dy,
                             const void *x, const void *gamma, const void *mean, const void *rstd)
{
    if (dgamma || dbeta) {
        shoal_err err = parameters_of<T>(exec, s, dgamma, dbeta, dy, x, mean, rstd);
        if (err != SHOAL_OK) {
            return err;
        }
    }
    if (!dx) {
        return SHOAL_OK;
    }
    sh_groups g = sh_groups_of_rows(s->rows, s->n, SH_BATCH, 64);
    norm_gradient_of_x<T><<<sh_group_blocks(g, s->rows), (unsigned)sh_group_threads(g), 0, sh_stream(exec)>>>(
        s->rows, s->n, g, (T *)dx, (const T *)dy, (const T *)x, (const T *)gamma, (const T *)mean, (const T *)rstd);
    return sh_cuda_launched("layer norm backward");
}

static shoal_err layer_norm(sh_exec *exec, const sh_norm_shape *s, double eps, void *y, void *mean, void *rstd,
                            const void *x, const void *gamma, const void *beta)
{
    shoal_err err = check(s);
    if (err != SHOAL_OK || s->rows == 0) {
        return err;
    }
    return s->dtype == SHOAL_F32 ? norm_of<float>(exec, s, eps, y, mean, rstd, x, gamma, beta)
                                 : norm_of<double>(exec, s, eps, y, mean, rstd, x, gamma, beta);
}

static shoal_err layer_norm_backward(sh_exec *exec, const sh_norm_shape *s, void *dx, void *dgamma, void *dbeta,
                                     const void *dy, const void *x, const void *gamma, const void *mean,
                                     const void *rstd)
{
    shoal_err err = check(s);
    if (err != SHOAL_OK || s->rows == 0) {
        return err;
    }
    return s->dtype == SHOAL_F32 ? backward_of<float>(exec, s, dx, dgamma, dbeta, dy, x, gamma, mean, rstd)
                                 : backward_of<double>(exec, s, dx, dgamma, dbeta, dy, x, gamma, mean, rstd);
}

extern "C" const sh_norm_kernels sh_norm_kernels_cuda = {layer_norm, layer_norm_backward};
