/* The CUDA twin of cpu/norm_reference.c; the contract is kernels/norm.h. */
#include "kernels/cuda/group.cuh"

#define MOST_CHUNKS 64    /* of the rows, for the gradients of gamma and beta */
#define LEAST_ROWS 64     /* of a chunk */
#define WANTED_BLOCKS 264 /* 2 for each of 132 multiprocessors */

struct pair {
    double a, b;
};

static __device__ pair added(const pair &x, const pair &y)
{
    return pair{x.a + y.a, x.b + y.b};
}

/* A group of lanes computes one row; a lane reads and writes the same elements, so y may be x. */
template <class T>
static __global__ void __launch_bounds__(SH_MOST_LANES)
    norm_rows(int64_t rows, int64_t n, const sh_groups g, double eps, T *y, T *mean, T *rstd, const T *x,
              const T *gamma, const T *beta)
{
    sh_place p = sh_place_of(g);
    int64_t start = p.row * n, end = p.row < rows ? n : 0;
    sh_sum<T> sum, squares;
    for (int64_t j = p.lane; j < end; j += g.lanes) {
        sum.add(x[start + j]);
    }
    double m = sh_group_sum(g, sum.value()) / (double)n;
    for (int64_t j = p.lane; j < end; j += g.lanes) {
        T d = x[start + j] - (T)m;
        squares.add(d * d);
    }
    double scale = 1 / sqrt(sh_group_sum(g, squares.value()) / (double)n + eps);
    for (int64_t j = p.lane; j < end; j += g.lanes) {
        T v = (x[start + j] - (T)m) * (T)scale;
        v *= gamma ? gamma[j] : T(1);
        y[start + j] = v + (beta ? beta[j] : T(0));
    }
    if (mean && p.lane == 0 && end > 0) {
        mean[p.row] = (T)m;
        rstd[p.row] = (T)scale;
    }
}

/* With xhat = (x - mean) · rstd and g = dy · gamma: dx = rstd · (g - mean(g) - xhat · mean(g · xhat)). */
template <class T>
static __global__ void __launch_bounds__(SH_MOST_LANES)
    norm_gradient_of_x(int64_t rows, int64_t n, const sh_groups g, T *dx, const T *dy, const T *x, const T *gamma,
                       const T *mean, const T *rstd)
{
    sh_place p = sh_place_of(g);
    int64_t start = p.row * n, end = p.row < rows ? n : 0;
    T m = end > 0 ? mean[p.row] : T(0), scale = end > 0 ? rstd[p.row] : T(0);
    sh_sum<T> of_g, of_gx;
    for (int64_t j = p.lane; j < end; j += g.lanes) {
        T d = dy[start + j] * (gamma ? gamma[j] : T(1));
        of_g.add(d);
        of_gx.add(d * ((x[start + j] - m) * scale));
    }
    pair sums = sh_group_join(g, pair{of_g.value(), of_gx.value()}, added);
    T mean_g = (T)(sums.a / (double)n), mean_gx = (T)(sums.b / (double)n);
    for (int64_t j = p.lane; j < end; j += g.lanes) {
        T d = dy[start + j] * (gamma ? gamma[j] : T(1)), xhat = (x[start + j] - m) * scale;
        dx[start + j] = scale * (d - mean_g - xhat * mean_gx);
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

/* A group of lanes computes one column, of the rows of chunk blockIdx.y. If there are several chunks, it leaves the sums
 * in found [chunks, n]. */
template <class T>
static __global__ void __launch_bounds__(SH_THREADS)
    norm_gradient_of_parameters(int64_t rows, int64_t n, int64_t chunk, const sh_groups g, T *dgamma, T *dbeta,
                                pair *found, const T *dy, const T *x, const T *mean, const T *rstd)
{
    sh_place p = sh_place_of(g);
    int64_t j = p.row, first = blockIdx.y * chunk, end = first + chunk < rows ? first + chunk : rows;
    sh_sum<T> of_gamma, of_beta;
    for (int64_t r = first + p.lane; r < end && j < n; r += g.lanes) {
        T d = dy[r * n + j];
        of_gamma.add(d * ((x[r * n + j] - mean[r]) * rstd[r]));
        of_beta.add(d);
    }
    pair sums = sh_group_join(g, pair{of_gamma.value(), of_beta.value()}, added);
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
    norm_finish_parameters(int64_t chunks, int64_t n, T *dgamma, T *dbeta, const pair *found)
{
    int64_t j = (int64_t)blockIdx.x * SH_THREADS + threadIdx.x;
    if (j >= n) {
        return;
    }
    pair sums = {0, 0};
    for (int64_t c = 0; c < chunks; c++) {
        sums = added(sums, found[c * n + j]);
    }
    add_parameters(dgamma, dbeta, j, sums);
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
    sh_groups g = sh_groups_of_rows(s->rows, s->n, SH_MOST_LANES);
    norm_rows<T><<<sh_group_blocks(g, s->rows), (unsigned)sh_group_threads(g), 0, sh_stream(exec)>>>(
        s->rows, s->n, g, eps, (T *)y, (T *)mean, (T *)rstd, (const T *)x, (const T *)gamma, (const T *)beta);
    return sh_cuda_launched("layer norm");
}

template <class T>
static shoal_err parameters_of(sh_exec *exec, const sh_norm_shape *s, void *dgamma, void *dbeta, const void *dy,
                               const void *x, const void *mean, const void *rstd)
{
    sh_groups g = sh_groups_of_columns(s->n, s->rows, s->n);
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
        unsigned finish = sh_blocks(s->n, SH_THREADS, 0x7fffffffu);
        norm_finish_parameters<T>
            <<<finish, SH_THREADS, 0, sh_stream(exec)>>>(chunks, s->n, (T *)dgamma, (T *)dbeta, found);
    }
    return sh_cuda_launched("layer norm backward");
}

/* dx may be dy, so it comes last. */
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
    sh_groups g = sh_groups_of_rows(s->rows, s->n, SH_MOST_LANES);
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
