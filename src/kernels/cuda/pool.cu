/* The CUDA twin of cpu/pool_reference.c; the contract is kernels/pool.h. Forward has one thread per output. Backward
 * has one thread per element of x, which adds the windows that contain the element in row-major order, as the reference
 * does. */
#include "kernels/cuda/element.cuh"

/* A sh_pool2d whose planes have less than 2^31 elements. */
struct pooling {
    int32_t in_h, in_w, out_h, out_w;
    int64_t kernel_h, kernel_w, stride_h, stride_w, pad_h, pad_w; /* with padding, these may be larger than a plane */
    bool exclude_pad;
    int64_t planes;
    sh_wide_divider by_in_h, by_in_w, by_out_h, by_out_w, by_stride_h, by_stride_w;
};

/* A range of rows or columns, from first to end - 1. */
struct range {
    int32_t first, end;
};

/* Returns the elements of x in window i. */
static __device__ __forceinline__ range elements_of(int32_t i, int64_t kernel, int64_t stride, int64_t pad,
                                                    int32_t size)
{
    int64_t first = i * stride - pad, end = first + kernel;
    return range{(int32_t)(first < 0 ? 0 : first), (int32_t)(end > size ? size : end)};
}

/* Returns the windows that contain element i of x. */
static __device__ __forceinline__ range windows_of(int32_t i, int64_t kernel, const sh_wide_divider &by_stride,
                                                   int64_t pad, int32_t count)
{
    int64_t at = i + pad, before = at - kernel; /* windows that begin at `before` or earlier end before the element */
    int64_t first = before < 0 ? 0 : sh_wide_divide(before, by_stride) + 1, end = sh_wide_divide(at, by_stride) + 1;
    return range{(int32_t)(first < count ? first : count), (int32_t)(end < count ? end : count)};
}

/* Returns the divisor of the mean of window (i, j). */
template <class T> static __device__ __forceinline__ T count_of(const pooling &p, int32_t i, int32_t j)
{
    if (!p.exclude_pad) {
        return (T)(p.kernel_h * p.kernel_w);
    }
    range h = elements_of(i, p.kernel_h, p.stride_h, p.pad_h, p.in_h);
    range w = elements_of(j, p.kernel_w, p.stride_w, p.pad_w, p.in_w);
    return (T)((int64_t)(h.end - h.first) * (w.end - w.first));
}

/* y [planes, out_h, out_w]; winner is NULL for the mean. */
template <class T>
static __global__ void __launch_bounds__(SH_THREADS) pool_windows(const pooling p, const T *x, T *y, int32_t *winner)
{
    int64_t count = p.planes * p.out_h * p.out_w, step = (int64_t)gridDim.x * SH_THREADS;
    for (int64_t at = (int64_t)blockIdx.x * SH_THREADS + threadIdx.x; at < count; at += step) {
        int64_t line = sh_wide_divide(at, p.by_out_w), plane = sh_wide_divide(line, p.by_out_h);
        int32_t i = (int32_t)(line - plane * p.out_h), j = (int32_t)(at - line * p.out_w);
        range h = elements_of(i, p.kernel_h, p.stride_h, p.pad_h, p.in_h);
        range w = elements_of(j, p.kernel_w, p.stride_w, p.pad_w, p.in_w);
        const T *from = x + plane * p.in_h * p.in_w;
        int32_t best = h.first * p.in_w + w.first;
        T greatest = from[best], sum = 0;
        for (int32_t r = h.first; r < h.end; r++) {
            for (int32_t c = w.first; c < w.end; c++) {
                T v = from[r * p.in_w + c];
                sum += v;
                if (v > greatest || v != v) {
                    best = r * p.in_w + c;
                    greatest = v;
                }
            }
        }
        y[at] = winner ? greatest : sum / count_of<T>(p, i, j);
        if (winner) {
            winner[at] = best;
        }
    }
}

/* grad_x [planes, in_h, in_w]; winner is NULL for the mean. */
template <class T>
static __global__ void __launch_bounds__(SH_THREADS)
    pool_gradient(const pooling p, const T *grad_y, const int32_t *winner, T *grad_x)
{
    int64_t count = p.planes * p.in_h * p.in_w, step = (int64_t)gridDim.x * SH_THREADS;
    for (int64_t at = (int64_t)blockIdx.x * SH_THREADS + threadIdx.x; at < count; at += step) {
        int64_t line = sh_wide_divide(at, p.by_in_w), plane = sh_wide_divide(line, p.by_in_h);
        int32_t r = (int32_t)(line - plane * p.in_h), c = (int32_t)(at - line * p.in_w), here = r * p.in_w + c;
        range h = windows_of(r, p.kernel_h, p.by_stride_h, p.pad_h, p.out_h);
        range w = windows_of(c, p.kernel_w, p.by_stride_w, p.pad_w, p.out_w);
        int64_t first = plane * p.out_h * p.out_w;
        T sum = 0;
        for (int32_t i = h.first; i < h.end; i++) {
            for (int32_t j = w.first; j < w.end; j++) {
                int64_t from = first + i * p.out_w + j;
                if (!winner) {
                    sum += grad_y[from] / count_of<T>(p, i, j);
                } else if (winner[from] == here) {
                    sum += grad_y[from];
                }
            }
        }
        grad_x[at] = sum;
    }
}

/* The same for windows that do not overlap, without padding: one thread per window, which writes the elements up to the
 * next window. */
template <class T>
static __global__ void __launch_bounds__(SH_THREADS)
    pool_gradient_apart(const pooling p, const T *grad_y, const int32_t *winner, T *grad_x)
{
    int64_t count = p.planes * p.out_h * p.out_w, step = (int64_t)gridDim.x * SH_THREADS;
    for (int64_t at = (int64_t)blockIdx.x * SH_THREADS + threadIdx.x; at < count; at += step) {
        int64_t line = sh_wide_divide(at, p.by_out_w), plane = sh_wide_divide(line, p.by_out_h);
        int32_t i = (int32_t)(line - plane * p.out_h), j = (int32_t)(at - line * p.out_w);
        int32_t top = (int32_t)(i * p.stride_h), left = (int32_t)(j * p.stride_w);
        int32_t bottom = i == p.out_h - 1 ? p.in_h : top + (int32_t)p.stride_h;
        int32_t right = j == p.out_w - 1 ? p.in_w : left + (int32_t)p.stride_w;
        int32_t won = winner ? winner[at] : 0;
        T g = winner ? grad_y[at] : grad_y[at] / count_of<T>(p, i, j);
        T *to = grad_x + plane * p.in_h * p.in_w;
        for (int32_t r = top; r < bottom; r++) {
            for (int32_t c = left; c < right; c++) {
                bool gets = winner ? r * p.in_w + c == won : r - top < p.kernel_h && c - left < p.kernel_w;
                to[r * p.in_w + c] = gets ? g : T(0);
            }
        }
    }
}

static shoal_err pooling_init(pooling *to, const sh_pool2d *p)
{
    int64_t planes = p->n * p->c, out_h = sh_pool2d_out_h(p), out_w = sh_pool2d_out_w(p);
    if (p->in_h * p->in_w > INT32_MAX || out_h * out_w > INT32_MAX) {
        return shoal_fail(SHOAL_EINVAL, "pooling on a GPU: planes of %lld x %lld are too large", (long long)p->in_h,
                          (long long)p->in_w);
    }
    if (p->dtype != SHOAL_F32 && p->dtype != SHOAL_F64) {
        return shoal_fail(SHOAL_EINVAL, "pooling does not support %s", shoal_dtype_name(p->dtype));
    }
    int64_t elements = planes * p->in_h * p->in_w, outputs = planes * out_h * out_w;
    *to = pooling{};
    to->planes = planes;
    to->exclude_pad = p->exclude_pad;
    to->in_h = (int32_t)p->in_h, to->in_w = (int32_t)p->in_w;
    to->out_h = (int32_t)out_h, to->out_w = (int32_t)out_w;
    to->kernel_h = p->kernel_h, to->kernel_w = p->kernel_w;
    to->stride_h = p->stride_h, to->stride_w = p->stride_w;
    to->pad_h = p->pad_h, to->pad_w = p->pad_w;
    to->by_in_h = sh_wide_divider_make(p->in_h, elements), to->by_in_w = sh_wide_divider_make(p->in_w, elements);
    to->by_out_h = sh_wide_divider_make(out_h, outputs), to->by_out_w = sh_wide_divider_make(out_w, outputs);
    to->by_stride_h = sh_wide_divider_make(p->stride_h, p->in_h + p->pad_h);
    to->by_stride_w = sh_wide_divider_make(p->stride_w, p->in_w + p->pad_w);
    return SHOAL_OK;
}

static shoal_err forward(sh_exec *exec, const sh_pool2d *args, const void *x, void *y, int32_t *winner)
{
    pooling p;
    shoal_err err = pooling_init(&p, args);
    if (err != SHOAL_OK || p.planes * p.out_h * p.out_w == 0) {
        return err;
    }
    unsigned blocks = sh_blocks(p.planes * p.out_h * p.out_w, SH_THREADS, SH_MOST_BLOCKS);
    if (args->dtype == SHOAL_F32) {
        pool_windows<<<blocks, SH_THREADS, 0, sh_stream(exec)>>>(p, (const float *)x, (float *)y, winner);
    } else {
        pool_windows<<<blocks, SH_THREADS, 0, sh_stream(exec)>>>(p, (const double *)x, (double *)y, winner);
    }
    return sh_cuda_launched("pooling");
}

template <class T>
static void launch_backward(sh_exec *exec, const pooling &p, const void *grad_y, const int32_t *winner, void *grad_x)
{
    bool apart = p.pad_h == 0 && p.pad_w == 0 && p.stride_h >= p.kernel_h && p.stride_w >= p.kernel_w;
    if (apart) {
        unsigned blocks = sh_blocks(p.planes * p.out_h * p.out_w, SH_THREADS, SH_MOST_BLOCKS);
        pool_gradient_apart<<<blocks, SH_THREADS, 0, sh_stream(exec)>>>(p, (const T *)grad_y, winner, (T *)grad_x);
    } else {
        unsigned blocks = sh_blocks(p.planes * p.in_h * p.in_w, SH_THREADS, SH_MOST_BLOCKS);
        pool_gradient<<<blocks, SH_THREADS, 0, sh_stream(exec)>>>(p, (const T *)grad_y, winner, (T *)grad_x);
    }
}

static shoal_err backward(sh_exec *exec, const sh_pool2d *args, const void *grad_y, const int32_t *winner, void *grad_x)
{
    pooling p;
    shoal_err err = pooling_init(&p, args);
    if (err != SHOAL_OK || p.planes * p.in_h * p.in_w == 0) {
        return err;
    }
    if (args->dtype == SHOAL_F32) {
        launch_backward<float>(exec, p, grad_y, winner, grad_x);
    } else {
        launch_backward<double>(exec, p, grad_y, winner, grad_x);
    }
    return sh_cuda_launched("pooling backward");
}

static shoal_err avg_forward(sh_exec *exec, const sh_pool2d *p, const void *x, void *y)
{
    return forward(exec, p, x, y, nullptr);
}

static shoal_err avg_backward(sh_exec *exec, const sh_pool2d *p, const void *grad_y, void *grad_x)
{
    return backward(exec, p, grad_y, nullptr, grad_x);
}

extern "C" const sh_pooling_kernels sh_pooling_kernels_cuda = {forward, backward, avg_forward, avg_backward};
