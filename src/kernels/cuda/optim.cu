/* The CUDA twin of cpu/optim_reference.c; the contract is kernels/optim.h. A launch updates up to MOST_PARTS
 * parameters: each block takes one piece of one of them. Hogwild's races are intended: loads and stores are plain, and
 * an aligned element is never torn. */
#include "kernels/cuda/element.cuh"

#include <math.h>

#define MOST_PARTS 64 /* parts per launch, which are arguments of the kernel */
#define WIDTH 4
#define PIECE (SH_THREADS * WIDTH) /* elements per block */
#define MOST_INPUTS 64             /* inputs of average per launch, which are arguments of the kernel */

typedef struct batch {
    int32_t count;
    int32_t first[MOST_PARTS]; /* the first block of each part */
    sh_optim_part parts[MOST_PARTS];
} batch;

/* Returns this block's part, and stores the pack of this thread in *out_pack. */
static __device__ __forceinline__ const sh_optim_part &part_of(const batch &all, int64_t *out_pack)
{
    int low = 0, high = all.count - 1, block = (int)blockIdx.x;
    while (low < high) {
        int middle = (low + high + 1) / 2;
        if (all.first[middle] <= block) {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    *out_pack = (int64_t)(block - all.first[low]) * SH_THREADS + threadIdx.x;
    return all.parts[low];
}

/* ---- sgd ---- */

template <class T> struct sgd_numbers {
    T lr, momentum, rest, decay;
    bool decays, has_momentum, nesterov, maximize, first;

    explicit sgd_numbers(const sh_sgd_args &a)
        : lr((T)a.lr), momentum((T)a.momentum), rest((T)(1 - a.dampening)), decay((T)a.weight_decay),
          decays(a.weight_decay != 0), has_momentum(a.momentum != 0), nesterov(a.nesterov), maximize(a.maximize),
          first(a.first)
    {
    }
};

template <class T> static __global__ void sgd_kernel(const __grid_constant__ batch all, sgd_numbers<T> c)
{
    int64_t i;
    const sh_optim_part &part = part_of(all, &i);
    if (i * WIDTH >= part.n) {
        return;
    }
    T *param = (T *)part.param, *buffer = (T *)part.state[0];
    bool first = part.step ? *part.step == 1 : c.first;
    T p[WIDTH], g[WIDTH], b[WIDTH] = {};
    sh_get(param, i, part.n, p);
    sh_get((const T *)part.grad, i, part.n, g);
    if (c.has_momentum && !first) {
        sh_get(buffer, i, part.n, b);
    }
    for (int k = 0; k < WIDTH; k++) {
        T step = c.maximize ? -g[k] : g[k];
        step = c.decays ? step + c.decay * p[k] : step;
        if (c.has_momentum) {
            b[k] = first ? step : c.momentum * b[k] + c.rest * step;
            step = c.nesterov ? step + c.momentum * b[k] : b[k];
        }
        p[k] -= c.lr * step;
    }
    if (c.has_momentum) {
        sh_put(buffer, i, part.n, b);
    }
    sh_put(param, i, part.n, p);
}

/* ---- adam ---- */

template <class T> struct adam_numbers {
    T step, root, eps, beta1, rest1, beta2, rest2, shrink, decay;
    double lr, exact1, exact2; /* for the bias correction, if the step is in GPU memory */
    bool decays, maximize;

    explicit adam_numbers(const sh_adam_args &a)
        : step((T)(a.lr / a.bias1)), root((T)sqrt(a.bias2)), eps((T)a.eps), beta1((T)a.beta1), rest1((T)(1 - a.beta1)),
          beta2((T)a.beta2), rest2((T)(1 - a.beta2)), shrink(a.decoupled ? (T)(1 - a.lr * a.weight_decay) : 1),
          decay((T)a.weight_decay), lr(a.lr), exact1(a.beta1), exact2(a.beta2),
          decays(!a.decoupled && a.weight_decay != 0), maximize(a.maximize)
    {
    }
};

template <class T> static __global__ void adam_kernel(const __grid_constant__ batch all, adam_numbers<T> c)
{
    __shared__ T bias[2];
    int64_t i;
    const sh_optim_part &part = part_of(all, &i);
    if (threadIdx.x == 0 && part.step) {
        double step = *part.step;
        bias[0] = (T)(c.lr / (1 - pow(c.exact1, step)));
        bias[1] = (T)sqrt(1 - pow(c.exact2, step));
    }
    __syncthreads();
    T size = part.step ? bias[0] : c.step, root = part.step ? bias[1] : c.root;
    if (i * WIDTH >= part.n) {
        return;
    }
    T *param = (T *)part.param, *first = (T *)part.state[0], *second = (T *)part.state[1], *most = (T *)part.state[2];
    T p[WIDTH], g[WIDTH], m[WIDTH], v[WIDTH], largest[WIDTH] = {};
    sh_get(param, i, part.n, p);
    sh_get((const T *)part.grad, i, part.n, g);
    sh_get(first, i, part.n, m);
    sh_get(second, i, part.n, v);
    if (most) {
        sh_get(most, i, part.n, largest);
    }
    for (int k = 0; k < WIDTH; k++) {
        p[k] *= c.shrink;
        T grad = c.maximize ? -g[k] : g[k];
        grad = c.decays ? grad + c.decay * p[k] : grad;
        m[k] = c.beta1 * m[k] + c.rest1 * grad;
        v[k] = c.beta2 * v[k] + c.rest2 * grad * grad;
        largest[k] = v[k] > largest[k] ? v[k] : largest[k];
        p[k] -= size * (m[k] / (sqrt(most ? largest[k] : v[k]) / root + c.eps));
    }
    sh_put(first, i, part.n, m);
    sh_put(second, i, part.n, v);
    if (most) {
        sh_put(most, i, part.n, largest);
    }
    sh_put(param, i, part.n, p);
}

/* ---- rmsprop ---- */

template <class T> struct rmsprop_numbers {
    T lr, alpha, rest, eps, decay, momentum;
    bool decays, maximize;

    explicit rmsprop_numbers(const sh_rmsprop_args &a)
        : lr((T)a.lr), alpha((T)a.alpha), rest((T)(1 - a.alpha)), eps((T)a.eps), decay((T)a.weight_decay),
          momentum((T)a.momentum), decays(a.weight_decay != 0), maximize(a.maximize)
    {
    }
};

template <class T> static __global__ void rmsprop_kernel(const __grid_constant__ batch all, rmsprop_numbers<T> c)
{
    int64_t i;
    const sh_optim_part &part = part_of(all, &i);
    if (i * WIDTH >= part.n) {
        return;
    }
    T *param = (T *)part.param, *square = (T *)part.state[0], *average = (T *)part.state[1],
      *buffer = (T *)part.state[2];
    T p[WIDTH], g[WIDTH], v[WIDTH], a[WIDTH] = {}, b[WIDTH] = {};
    sh_get(param, i, part.n, p);
    sh_get((const T *)part.grad, i, part.n, g);
    sh_get(square, i, part.n, v);
    if (average) {
        sh_get(average, i, part.n, a);
    }
    if (buffer) {
        sh_get(buffer, i, part.n, b);
    }
    for (int k = 0; k < WIDTH; k++) {
        T grad = c.maximize ? -g[k] : g[k];
        grad = c.decays ? grad + c.decay * p[k] : grad;
        v[k] = c.alpha * v[k] + c.rest * grad * grad;
        a[k] = average ? c.alpha * a[k] + c.rest * grad : 0;
        T step = grad / (sqrt(v[k] - a[k] * a[k]) + c.eps);
        b[k] = buffer ? c.momentum * b[k] + step : step;
        p[k] -= c.lr * b[k];
    }
    sh_put(square, i, part.n, v);
    if (average) {
        sh_put(average, i, part.n, a);
    }
    if (buffer) {
        sh_put(buffer, i, part.n, b);
    }
    sh_put(param, i, part.n, p);
}

/* ---- sums of squares, and scaling ---- */

/* *out = the sum of the values of the block's threads, added by halves. */
static __device__ __forceinline__ void sum_block(double own, double *out)
{
    __shared__ double sums[SH_THREADS];
    sums[threadIdx.x] = own;
    for (int half = SH_THREADS / 2; half > 0; half /= 2) {
        __syncthreads();
        if ((int)threadIdx.x < half) {
            sums[threadIdx.x] += sums[threadIdx.x + half];
        }
    }
    if (threadIdx.x == 0) {
        *out = sums[0];
    }
}

/* sums[block] = the sum of the squares of the block's piece, first within each thread. */
template <class T> static __global__ void sumsq_kernel(const __grid_constant__ batch all, double *sums)
{
    int64_t i;
    const sh_optim_part &part = part_of(all, &i);
    T x[WIDTH] = {};
    if (i * WIDTH < part.n) {
        sh_get((const T *)part.param, i, part.n, x);
    }
    double sum = 0;
    for (int k = 0; k < WIDTH; k++) {
        sum += (double)x[k] * (double)x[k];
    }
    sum_block(sum, &sums[blockIdx.x]);
}

/* *out = the sum of n numbers. One block. */
static __global__ void sum_kernel(double *out, const double *sums, int64_t n)
{
    double sum = 0;
    for (int64_t i = threadIdx.x; i < n; i += SH_THREADS) {
        sum += sums[i];
    }
    sum_block(sum, out);
}

/* Multiplies by factor. If sumsq is given (of type S), by the factor that makes the norm at most `factor`, and by
 * if_nan if that is NaN. */
template <class T, class S>
static __global__ void scale_kernel(const __grid_constant__ batch all, double factor, const S *sumsq, double if_nan)
{
    int64_t i;
    const sh_optim_part &part = part_of(all, &i);
    if (i * WIDTH >= part.n) {
        return;
    }
    if (sumsq) {
        factor = factor / (sqrt((double)*sumsq) + 1e-6);
        factor = factor != factor ? if_nan : factor > 1 ? 1 : factor;
    }
    T x[WIDTH];
    sh_get((const T *)part.param, i, part.n, x);
    for (int k = 0; k < WIDTH; k++) {
        x[k] *= (T)factor;
    }
    sh_put((T *)part.param, i, part.n, x);
}

typedef struct counters {
    float *steps[MOST_PARTS];
} counters;

static __global__ void count_kernel(counters c, int32_t count)
{
    if ((int)threadIdx.x < count) {
        *c.steps[threadIdx.x] += 1;
    }
}

/* ---- launches ---- */

static int64_t blocks_of(const sh_optim_part *part)
{
    return (part->n + PIECE - 1) / PIECE;
}

/* Calls launch(batch, blocks) for the parts, MOST_PARTS at a time. */
template <class Launch>
static shoal_err each_batch(const char *what, const sh_optim_part *parts, int32_t count, Launch launch)
{
    for (int32_t at = 0; at < count;) {
        batch all = {};
        int64_t blocks = 0;
        for (; at < count && all.count < MOST_PARTS && blocks + blocks_of(&parts[at]) <= INT32_MAX; at++) {
            if (parts[at].n > 0) {
                all.first[all.count] = (int32_t)blocks;
                all.parts[all.count++] = parts[at];
                blocks += blocks_of(&parts[at]);
            }
        }
        if (blocks == 0 && at < count) {
            return shoal_fail(SHOAL_EINVAL, "%s: a parameter of %lld elements is too large", what,
                              (long long)parts[at].n);
        }
        if (blocks > 0) {
            launch(all, (unsigned)blocks);
            shoal_err err = sh_cuda_launched(what);
            if (err) {
                return err;
            }
        }
    }
    return SHOAL_OK;
}

/* Runs the update of a rule, which has a kernel for each type. */
template <template <class> class Numbers, class Args>
static shoal_err step_all(const char *what, void (*f32)(batch, Numbers<float>), void (*f64)(batch, Numbers<double>),
                          sh_exec *exec, shoal_dtype dtype, const Args *args, const sh_optim_part *parts, int32_t count)
{
    shoal_err err = sh_check_float(what, dtype);
    return err ? err : each_batch(what, parts, count, [&](const batch &all, unsigned blocks) {
        if (dtype == SHOAL_F32) {
            f32<<<blocks, SH_THREADS, 0, sh_stream(exec)>>>(all, Numbers<float>(*args));
        } else {
            f64<<<blocks, SH_THREADS, 0, sh_stream(exec)>>>(all, Numbers<double>(*args));
        }
    });
}

static shoal_err sgd_all(sh_exec *exec, shoal_dtype dtype, const sh_sgd_args *args, const sh_optim_part *parts,
                         int32_t count)
{
    return step_all("sgd", sgd_kernel<float>, sgd_kernel<double>, exec, dtype, args, parts, count);
}

static shoal_err sgd(sh_exec *exec, shoal_dtype dtype, int64_t n, const sh_sgd_args *args, void *param, void *buffer,
                     const void *grad)
{
    sh_optim_part part = {n, param, grad, {buffer}, nullptr};
    return sgd_all(exec, dtype, args, &part, 1);
}

static shoal_err adam_all(sh_exec *exec, shoal_dtype dtype, const sh_adam_args *args, const sh_optim_part *parts,
                          int32_t count)
{
    return step_all("adam", adam_kernel<float>, adam_kernel<double>, exec, dtype, args, parts, count);
}

static shoal_err adam(sh_exec *exec, shoal_dtype dtype, int64_t n, const sh_adam_args *args, void *param, void *m,
                      void *v, void *v_max, const void *grad)
{
    sh_optim_part part = {n, param, grad, {m, v, v_max}, nullptr};
    return adam_all(exec, dtype, args, &part, 1);
}

static shoal_err rmsprop_all(sh_exec *exec, shoal_dtype dtype, const sh_rmsprop_args *args, const sh_optim_part *parts,
                             int32_t count)
{
    return step_all("rmsprop", rmsprop_kernel<float>, rmsprop_kernel<double>, exec, dtype, args, parts, count);
}

static shoal_err rmsprop(sh_exec *exec, shoal_dtype dtype, int64_t n, const sh_rmsprop_args *args, void *param, void *v,
                         void *average, void *buffer, const void *grad)
{
    sh_optim_part part = {n, param, grad, {v, average, buffer}, nullptr};
    return rmsprop_all(exec, dtype, args, &part, 1);
}

template <class S>
static shoal_err scale_run(const char *what, sh_exec *exec, shoal_dtype dtype, const sh_optim_part *parts,
                           int32_t count, double factor, const S *sumsq, double if_nan)
{
    shoal_err err = sh_check_float(what, dtype);
    return err ? err : each_batch(what, parts, count, [&](const batch &all, unsigned blocks) {
        auto *kernel = dtype == SHOAL_F32 ? scale_kernel<float, S> : scale_kernel<double, S>;
        kernel<<<blocks, SH_THREADS, 0, sh_stream(exec)>>>(all, factor, sumsq, if_nan);
    });
}

static shoal_err scale(sh_exec *exec, shoal_dtype dtype, int64_t n, void *x, double factor)
{
    sh_optim_part part = {n, x, nullptr, {}, nullptr};
    return scale_run<double>("scale", exec, dtype, &part, 1, factor, nullptr, NAN);
}

static shoal_err clip(sh_exec *exec, shoal_dtype dtype, int64_t n, void *x, const void *sumsq, double max_norm)
{
    sh_optim_part part = {n, x, nullptr, {}, nullptr};
    return dtype == SHOAL_F32 ? scale_run("clip", exec, dtype, &part, 1, max_norm, (const float *)sumsq, NAN)
                              : scale_run("clip", exec, dtype, &part, 1, max_norm, (const double *)sumsq, NAN);
}

static shoal_err clip_all(sh_exec *exec, shoal_dtype dtype, const sh_optim_part *parts, int32_t count,
                          const double *sumsq, double max_norm)
{
    return scale_run("clip", exec, dtype, parts, count, max_norm, sumsq, 1);
}

static shoal_err sumsq_all(sh_exec *exec, shoal_dtype dtype, const sh_optim_part *parts, int32_t count, double *sumsq)
{
    shoal_err err = sh_check_float("clip", dtype);
    int64_t total = 0;
    for (int32_t i = 0; i < count; i++) {
        total += blocks_of(&parts[i]);
    }
    double *sums = err ? nullptr : (double *)sh_cuda_the_host->scratch(exec, (size_t)(total + 1) * sizeof(double));
    if (!sums) {
        return err ? err : SHOAL_ENOMEM;
    }
    int64_t done = 0;
    err = each_batch("clip", parts, count, [&](const batch &all, unsigned blocks) {
        auto *kernel = dtype == SHOAL_F32 ? sumsq_kernel<float> : sumsq_kernel<double>;
        kernel<<<blocks, SH_THREADS, 0, sh_stream(exec)>>>(all, sums + done);
        done += blocks;
    });
    if (err) {
        return err;
    }
    sum_kernel<<<1, SH_THREADS, 0, sh_stream(exec)>>>(sumsq, sums, total);
    return sh_cuda_launched("clip");
}

static shoal_err count_steps(sh_exec *exec, float *const *steps, int32_t count)
{
    shoal_err err = SHOAL_OK;
    for (int32_t at = 0; err == SHOAL_OK && at < count; at += MOST_PARTS) {
        counters c = {};
        int32_t n = count - at < MOST_PARTS ? count - at : MOST_PARTS;
        for (int32_t i = 0; i < n; i++) {
            c.steps[i] = steps[at + i];
        }
        count_kernel<<<1, MOST_PARTS, 0, sh_stream(exec)>>>(c, n);
        err = sh_cuda_launched("count_steps");
    }
    return err;
}

/* ---- average ---- */

typedef struct inputs {
    const void *in[MOST_INPUTS];
    double weights[MOST_INPUTS];
} inputs;

/* out = before + the weighted sum of count inputs; before is NULL for 0. */
template <class T, class R>
static __global__ void average_kernel(const __grid_constant__ inputs all, int32_t count, const double *before, R *out,
                                      int64_t n)
{
    for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < n; i += gridDim.x * (int64_t)blockDim.x) {
        double sum = before ? before[i] : 0;
        for (int32_t j = 0; j < count; j++) {
            sum += all.weights[j] * (double)((const T *)all.in[j])[i];
        }
        out[i] = (R)sum;
    }
}

/* For more inputs than a launch takes: keeps the partial sums in scratch memory, so that out is written only at the
 * end. */
template <class T>
static shoal_err average_run(sh_exec *exec, int64_t n, T *out, const void *const *in, const double *weights,
                             int32_t count)
{
    unsigned blocks = sh_blocks(n, SH_THREADS, SH_MOST_BLOCKS);
    double *sums = nullptr;
    if (count > MOST_INPUTS) {
        sums = (double *)sh_cuda_the_host->scratch(exec, (size_t)n * sizeof(double));
        if (!sums) {
            return SHOAL_ENOMEM;
        }
    }
    int32_t at = 0;
    do {
        inputs all = {};
        int32_t now = count - at < MOST_INPUTS ? count - at : MOST_INPUTS;
        for (int32_t j = 0; j < now; j++) {
            all.in[j] = in[at + j];
            all.weights[j] = weights[at + j];
        }
        const double *before = at > 0 ? sums : nullptr;
        if (at + now < count) {
            average_kernel<T, double><<<blocks, SH_THREADS, 0, sh_stream(exec)>>>(all, now, before, sums, n);
        } else {
            average_kernel<T, T><<<blocks, SH_THREADS, 0, sh_stream(exec)>>>(all, now, before, out, n);
        }
        shoal_err err = sh_cuda_launched("average");
        if (err) {
            return err;
        }
        at += now;
    } while (at < count);
    return SHOAL_OK;
}

static shoal_err average(sh_exec *exec, shoal_dtype dtype, int64_t n, void *out, const void *const *in,
                         const double *weights, int32_t count)
{
    shoal_err err = sh_check_float("average", dtype);
    if (err || n == 0) {
        return err;
    }
    return dtype == SHOAL_F32 ? average_run(exec, n, (float *)out, in, weights, count)
                              : average_run(exec, n, (double *)out, in, weights, count);
}

extern "C" const sh_optim_kernels sh_optim_kernels_cuda = {
    sgd, adam, rmsprop, scale, clip, average, sgd_all, adam_all, rmsprop_all, count_steps, sumsq_all, clip_all,
};
