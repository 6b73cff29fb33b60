/* The CUDA twin of cpu/conv2d_reference.c; the contract is kernels/conv2d.h.
 *
 * The kernels here serve every shape and both element types: each thread computes one output, or each block one sum, in
 * a fixed order. The launchers ask conv2d_fused.cu first, which has fast kernels for small square windows in f32. */
#include "kernels/cuda/conv2d_fused.cuh"

namespace
{

constexpr int THREADS = 128;
constexpr int64_t MOST_BLOCKS = 65535; /* the limit of a grid's y and z dimensions */

/* The largest size. A loop in strides of the grid must not exceed 31 bits. */
constexpr int64_t MOST_SIZE = INT32_MAX - MOST_BLOCKS;

/* The sizes as the kernels use them: each fits in 31 bits (checked by sizes_of), products need 64. */
struct sizes {
    int n, in_c, in_h, in_w, out_c, kernel_h, kernel_w, stride_h, stride_w, pad_h, pad_w, dilation_h, dilation_w;
    int out_h, out_w, group_in, group_out; /* group_…: channels of one group */
    bool overwrite;
};

/* In f64 the sum is rounded as in the CPU's reference, so that both give the same bits. */
__device__ inline double plus_product(double sum, double a, double b)
{
    return __dadd_rn(sum, __dmul_rn(a, b));
}

__device__ inline float plus_product(float sum, float a, float b)
{
    return fmaf(a, b, sum);
}

/* The convolution at one output. */
template <typename T>
__device__ T at(const sizes &s, const T *x, const T *w, const T *bias, int64_t n, int o, int i, int j)
{
    const int top = i * s.stride_h - s.pad_h, left = j * s.stride_w - s.pad_w;
    T sum = bias ? bias[o] : 0;
    const T *plane = x + (n * s.in_c + o / s.group_out * s.group_in) * (int64_t)s.in_h * s.in_w;
    w += (int64_t)o * s.group_in * s.kernel_h * s.kernel_w;
    for (int k = 0; k < s.group_in; k++, plane += (int64_t)s.in_h * s.in_w) {
        for (int a = 0, h = top; a < s.kernel_h; a++, h += s.dilation_h) {
            for (int b = 0, v = left; b < s.kernel_w; b++, v += s.dilation_w, w++) {
                if (h >= 0 && h < s.in_h && v >= 0 && v < s.in_w) {
                    sum = plus_product(sum, *w, plane[(int64_t)h * s.in_w + v]);
                }
            }
        }
    }
    return sum;
}

/* In all kernels below, blockIdx.z counts images and blockIdx.y channels. */
#define FOR_IMAGES(n) for (int n = blockIdx.z; n < s.n; n += gridDim.z)
#define FOR_CHANNELS(c, count) for (int c = blockIdx.y; c < (count); c += gridDim.y)
#define FOR_PIXELS(p, count)                                                                                           \
    for (int64_t p = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; p < (count); p += (int64_t)gridDim.x * blockDim.x)

template <typename T> __global__ void forward_all(sizes s, const T *x, const T *w, const T *bias, T *y)
{
    const int64_t plane = (int64_t)s.out_h * s.out_w;
    FOR_IMAGES(n)
    {
        FOR_CHANNELS(o, s.out_c)
        {
            FOR_PIXELS(p, plane)
            {
                y[((int64_t)n * s.out_c + o) * plane + p] =
                    at(s, x, w, bias, n, o, (int)(p / s.out_w), (int)(p % s.out_w));
            }
        }
    }
}

template <typename T>
__global__ void pool_relu_forward_all(sizes s, const T *x, const T *w, const T *bias, const T *drop, T *y,
                                      uint8_t *winner)
{
    const int pooled_w = s.out_w / 2;
    const int64_t plane = (int64_t)(s.out_h / 2) * pooled_w;
    FOR_IMAGES(n)
    {
        FOR_CHANNELS(o, s.out_c)
        {
            const int64_t map = (int64_t)n * s.out_c + o;
            const T factor = drop ? drop[map] : 1;
            FOR_PIXELS(p, plane)
            {
                T v[4] = {0, 0, 0, 0};
                for (int k = 0; k < 4 && factor != 0; k++) {
                    v[k] = at(s, x, w, bias, n, o, 2 * (int)(p / pooled_w) + k / 2, 2 * (int)(p % pooled_w) + k % 2) *
                           factor;
                }
                const sh_pooled<T> best = sh_pool_relu(v[0], v[1], v[2], v[3]);
                y[map * plane + p] = best.y;
                winner[map * plane + p] = best.winner;
            }
        }
    }
}

/* grad [N, O, OH, OW] = the gradient of the convolution's output: zero except at the pool's winners. */
template <typename T>
__global__ void spread_winners(sizes s, const T *grad_y, const T *drop, const uint8_t *winner, T *grad)
{
    const int pooled_h = s.out_h / 2, pooled_w = s.out_w / 2;
    const int64_t plane = (int64_t)s.out_h * s.out_w;
    FOR_IMAGES(n)
    {
        FOR_CHANNELS(o, s.out_c)
        {
            const int64_t map = (int64_t)n * s.out_c + o;
            const T factor = drop ? drop[map] : 1;
            FOR_PIXELS(p, plane)
            {
                const int i = (int)(p / s.out_w), j = (int)(p % s.out_w);
                T g = 0;
                if (i / 2 < pooled_h && j / 2 < pooled_w && factor != 0) {
                    const int64_t window = (map * pooled_h + i / 2) * pooled_w + j / 2;
                    g = winner[window] == i % 2 * 2 + j % 2 ? grad_y[window] * factor : 0;
                }
                grad[map * plane + p] = g;
            }
        }
    }
}

/* Returns whether output i, in one dimension, reads input h with kernel element a, and stores i in *out_i. */
__device__ inline bool reads(int h, int a, int pad, int dilation, int stride, int out_size, int *out_i)
{
    const int from = h + pad - a * dilation;
    *out_i = from / stride;
    return from >= 0 && from % stride == 0 && *out_i < out_size;
}

/* SPARSE: an output whose gradient is 0 is not a winner: it adds nothing, even if the weight is infinite or NaN. */
template <typename T, bool SPARSE> __global__ void grad_x_all(sizes s, const T *grad, const T *w, T *grad_x)
{
    const int64_t plane = (int64_t)s.in_h * s.in_w, out_plane = (int64_t)s.out_h * s.out_w;
    const int window = s.kernel_h * s.kernel_w;
    FOR_IMAGES(n)
    {
        FOR_CHANNELS(c, s.in_c)
        {
            const int group = c / s.group_in;
            FOR_PIXELS(p, plane)
            {
                const int h = (int)(p / s.in_w), v = (int)(p % s.in_w);
                T sum = 0;
                for (int o = group * s.group_out; o < (group + 1) * s.group_out; o++) {
                    const T *g = grad + ((int64_t)n * s.out_c + o) * out_plane;
                    const T *weight = w + ((int64_t)o * s.group_in + c % s.group_in) * window;
                    for (int a = 0; a < s.kernel_h; a++) {
                        for (int b = 0, i, j; b < s.kernel_w; b++) {
                            if (reads(h, a, s.pad_h, s.dilation_h, s.stride_h, s.out_h, &i) &&
                                reads(v, b, s.pad_w, s.dilation_w, s.stride_w, s.out_w, &j)) {
                                const T value = g[(int64_t)i * s.out_w + j];
                                sum = SPARSE && value == 0 ? sum : plus_product(sum, value, weight[a * s.kernel_w + b]);
                            }
                        }
                    }
                }
                grad_x[((int64_t)n * s.in_c + c) * plane + p] = sum;
            }
        }
    }
}

/* Adds up one number per thread, in a fixed order. Only thread 0 gets the result. */
template <typename T> __device__ T block_sum(T value)
{
    __shared__ T part[THREADS];
    part[threadIdx.x] = value;
    __syncthreads();
    for (int half = THREADS / 2; half > 0; half /= 2) {
        if (threadIdx.x < half) {
            part[threadIdx.x] += part[threadIdx.x + half];
        }
        __syncthreads();
    }
    const T sum = part[0];
    __syncthreads();
    return sum;
}

/* grad_w += or =. blockIdx.x: the element among one output channel's weights; blockIdx.y: the output channel. */
template <typename T, bool SPARSE> __global__ void grad_w_all(sizes s, const T *grad, const T *x, T *grad_w)
{
    const int window = s.kernel_h * s.kernel_w, weights = s.group_in * window;
    const int k = blockIdx.x / window, a = blockIdx.x % window / s.kernel_w, b = blockIdx.x % s.kernel_w;
    const int64_t out_plane = (int64_t)s.out_h * s.out_w;
    FOR_CHANNELS(o, s.out_c)
    {
        const int c = o / s.group_out * s.group_in + k;
        T sum = 0;
        for (int n = 0; n < s.n; n++) {
            const T *g = grad + ((int64_t)n * s.out_c + o) * out_plane;
            const T *plane = x + ((int64_t)n * s.in_c + c) * s.in_h * s.in_w;
            for (int64_t p = threadIdx.x; p < out_plane; p += THREADS) {
                const int h = (int)(p / s.out_w) * s.stride_h - s.pad_h + a * s.dilation_h;
                const int v = (int)(p % s.out_w) * s.stride_w - s.pad_w + b * s.dilation_w;
                if (h >= 0 && h < s.in_h && v >= 0 && v < s.in_w && !(SPARSE && g[p] == 0)) {
                    sum = plus_product(sum, g[p], plane[(int64_t)h * s.in_w + v]);
                }
            }
        }
        sum = block_sum(sum);
        if (threadIdx.x == 0) {
            T *to = grad_w + (int64_t)o * weights + blockIdx.x;
            *to = (s.overwrite ? 0 : *to) + sum;
        }
    }
}

/* grad_bias += or =. blockIdx.y: the output channel. */
template <typename T> __global__ void grad_bias_all(sizes s, const T *grad, T *grad_bias)
{
    const int64_t out_plane = (int64_t)s.out_h * s.out_w;
    FOR_CHANNELS(o, s.out_c)
    {
        T sum = 0;
        for (int n = 0; n < s.n; n++) {
            for (int64_t p = threadIdx.x; p < out_plane; p += THREADS) {
                sum += grad[((int64_t)n * s.out_c + o) * out_plane + p];
            }
        }
        sum = block_sum(sum);
        if (threadIdx.x == 0) {
            grad_bias[o] = (s.overwrite ? 0 : grad_bias[o]) + sum;
        }
    }
}

/* ---- launchers ---- */

shoal_err sizes_of(const sh_conv2d *c, sizes *out)
{
    const int64_t all[] = {c->n,
                           c->in_c,
                           c->in_h,
                           c->in_w,
                           c->out_c,
                           c->kernel_h,
                           c->kernel_w,
                           c->stride_h,
                           c->stride_w,
                           c->pad_h,
                           c->pad_w,
                           c->dilation_h,
                           c->dilation_w,
                           sh_conv2d_out_h(c),
                           sh_conv2d_out_w(c),
                           c->in_h + 2 * c->pad_h,
                           c->in_w + 2 * c->pad_w,
                           c->in_c * c->kernel_h * c->kernel_w};
    for (int64_t size : all) {
        if (size > MOST_SIZE) {
            return sh_cuda_the_host->fail(SHOAL_EINVAL, "conv2d on a GPU does not support a size of %lld",
                                          (long long)size);
        }
    }
    *out = {(int)c->n,
            (int)c->in_c,
            (int)c->in_h,
            (int)c->in_w,
            (int)c->out_c,
            (int)c->kernel_h,
            (int)c->kernel_w,
            (int)c->stride_h,
            (int)c->stride_w,
            (int)c->pad_h,
            (int)c->pad_w,
            (int)c->dilation_h,
            (int)c->dilation_w,
            (int)sh_conv2d_out_h(c),
            (int)sh_conv2d_out_w(c),
            (int)(c->in_c / c->groups),
            (int)(c->out_c / c->groups),
            c->overwrite};
    return SHOAL_OK;
}

dim3 grid_of(int64_t pixels, int64_t channels, int64_t images)
{
    return dim3(sh_blocks(pixels, THREADS, 1u << 20), (unsigned)(channels < MOST_BLOCKS ? channels : MOST_BLOCKS),
                (unsigned)(images < MOST_BLOCKS ? images : MOST_BLOCKS));
}

/* Computes the gradients of x, w and the bias from the gradient of the convolution's output. */
template <typename T, bool SPARSE>
shoal_err backward_of(sh_exec *exec, const sizes &s, const T *grad, const T *x, const T *w, T *grad_x, T *grad_w,
                      T *grad_bias)
{
    const cudaStream_t stream = sh_stream(exec);
    if (grad_x) {
        grad_x_all<T, SPARSE>
            <<<grid_of((int64_t)s.in_h * s.in_w, s.in_c, s.n), THREADS, 0, stream>>>(s, grad, w, grad_x);
    }
    if (grad_w) {
        const unsigned channels = (unsigned)(s.out_c < MOST_BLOCKS ? s.out_c : MOST_BLOCKS);
        const unsigned weights = (unsigned)(s.group_in * s.kernel_h * s.kernel_w);
        grad_w_all<T, SPARSE><<<dim3(weights, channels), THREADS, 0, stream>>>(s, grad, x, grad_w);
    }
    if (grad_bias) {
        grad_bias_all<T><<<grid_of(1, s.out_c, 1), THREADS, 0, stream>>>(s, grad, grad_bias);
    }
    return sh_cuda_launched("conv2d backward");
}

template <typename T> shoal_err run_forward(sh_exec *exec, const sizes &s, const T *x, const T *w, const T *bias, T *y)
{
    forward_all<T>
        <<<grid_of((int64_t)s.out_h * s.out_w, s.out_c, s.n), THREADS, 0, sh_stream(exec)>>>(s, x, w, bias, y);
    return sh_cuda_launched("conv2d");
}

template <typename T>
shoal_err run_pool_relu_forward(sh_exec *exec, const sizes &s, const T *x, const T *w, const T *bias, const T *drop,
                                T *y, uint8_t *winner)
{
    const int64_t plane = (int64_t)(s.out_h / 2) * (s.out_w / 2);
    pool_relu_forward_all<T>
        <<<grid_of(plane, s.out_c, s.n), THREADS, 0, sh_stream(exec)>>>(s, x, w, bias, drop, y, winner);
    return sh_cuda_launched("conv2d_pool_relu");
}

template <typename T>
shoal_err run_pool_relu_backward(sh_exec *exec, const sizes &s, const T *grad_y, const T *x, const T *w, const T *drop,
                                 const uint8_t *winner, T *grad_x, T *grad_w, T *grad_bias)
{
    const int64_t plane = (int64_t)s.out_h * s.out_w;
    T *grad = (T *)sh_cuda_the_host->scratch(exec, sizeof(T) * (size_t)(plane * s.out_c * s.n));
    if (!grad) {
        return SHOAL_ENOMEM;
    }
    spread_winners<T><<<grid_of(plane, s.out_c, s.n), THREADS, 0, sh_stream(exec)>>>(s, grad_y, drop, winner, grad);
    return backward_of<T, true>(exec, s, grad, x, w, grad_x, grad_w, grad_bias);
}

/* Checks c. Then runs `work` for its element type with s, its sizes; does nothing if there are no images. */
#define BY_TYPE(work, ...)                                                                                             \
    do {                                                                                                               \
        if (c->dtype != SHOAL_F32 && c->dtype != SHOAL_F64) {                                                          \
            return sh_cuda_the_host->fail(SHOAL_EINVAL, "conv2d does not support %s", shoal_dtype_name(c->dtype));     \
        }                                                                                                              \
        sizes s;                                                                                                       \
        shoal_err err = sizes_of(c, &s);                                                                               \
        if (err != SHOAL_OK || c->n == 0) {                                                                            \
            return err;                                                                                                \
        }                                                                                                              \
        if (c->dtype == SHOAL_F32) {                                                                                   \
            typedef float T;                                                                                           \
            return work(exec, s, __VA_ARGS__);                                                                         \
        }                                                                                                              \
        typedef double T;                                                                                              \
        return work(exec, s, __VA_ARGS__);                                                                             \
    } while (0)

shoal_err forward(sh_exec *exec, const sh_conv2d *c, const void *x, const void *w, const void *bias, void *y)
{
    BY_TYPE(run_forward<T>, (const T *)x, (const T *)w, (const T *)bias, (T *)y);
}

/* Without images, gradients that are overwritten (not added to) become zero. */
shoal_err zero_gradients(sh_exec *exec, const sh_conv2d *c, void *grad_w, void *grad_bias)
{
    const size_t size = shoal_dtype_size(c->dtype), bias = size * (size_t)c->out_c;
    const size_t weights = bias * (size_t)(c->in_c / c->groups * c->kernel_h * c->kernel_w);
    shoal_err err = SHOAL_OK;
    if (grad_w) {
        err = sh_cuda_called("conv2d backward", cudaMemsetAsync(grad_w, 0, weights, sh_stream(exec)));
    }
    if (err == SHOAL_OK && grad_bias) {
        err = sh_cuda_called("conv2d backward", cudaMemsetAsync(grad_bias, 0, bias, sh_stream(exec)));
    }
    return err;
}

bool overwrites_with_zeros(const sh_conv2d *c)
{
    return c->n == 0 && c->overwrite && sh_dtype_is_wide_float(c->dtype);
}

shoal_err backward(sh_exec *exec, const sh_conv2d *c, const void *grad_y, const void *x, const void *w, void *grad_x,
                   void *grad_w, void *grad_bias)
{
    if (overwrites_with_zeros(c)) {
        return zero_gradients(exec, c, grad_w, grad_bias);
    }
#define DENSE backward_of<T, false>
    BY_TYPE(DENSE, (const T *)grad_y, (const T *)x, (const T *)w, (T *)grad_x, (T *)grad_w, (T *)grad_bias);
#undef DENSE
}

shoal_err pool_relu_forward(sh_exec *exec, const sh_conv2d *c, const void *x, const void *w, const void *bias,
                            const void *drop, void *y, uint8_t *winner)
{
    sh_cuda_fused_conv fused;
    if (sh_cuda_fused_conv_of(c, &fused) && c->n > 0 && sh_cuda_fused_conv_forward_fits(fused)) {
        return sh_cuda_fused_conv_forward(exec, fused, (const float *)x, (const float *)w, (const float *)bias,
                                          (const float *)drop, (float *)y, winner);
    }
    BY_TYPE(run_pool_relu_forward<T>, (const T *)x, (const T *)w, (const T *)bias, (const T *)drop, (T *)y, winner);
}

shoal_err pool_relu_backward(sh_exec *exec, const sh_conv2d *c, const void *grad_y, const void *x, const void *w,
                             const void *drop, const uint8_t *winner, void *grad_x, void *grad_w, void *grad_bias)
{
    sh_cuda_fused_conv fused;
    if (overwrites_with_zeros(c)) {
        return zero_gradients(exec, c, grad_w, grad_bias);
    }
    if (sh_cuda_fused_conv_of(c, &fused) && c->n > 0 && sh_cuda_fused_conv_backward_fits(fused)) {
        return sh_cuda_fused_conv_backward(exec, fused, (const float *)grad_y, (const float *)x, (const float *)w,
                                           (const float *)drop, winner, (float *)grad_x, (float *)grad_w,
                                           (float *)grad_bias);
    }
    BY_TYPE(run_pool_relu_backward<T>, (const T *)grad_y, (const T *)x, (const T *)w, (const T *)drop, winner,
            (T *)grad_x, (T *)grad_w, (T *)grad_bias);
}

} // namespace

extern "C" const sh_conv_kernels sh_conv_kernels_cuda = {forward, backward, pool_relu_forward, pool_relu_backward};
