/* The CUDA twin of cpu/rnn_reference.c; the contract is kernels/rnn.h. A thread reads all that it needs of an element
 * before it writes, so outputs may be inputs where the contract allows it. */
#include "kernels/cuda/element.cuh"

template <class T> static __device__ __forceinline__ T sigmoid(T x)
{
    return T(1) / (T(1) + exp(-x));
}

/* Returns the position of the first gate in [n, 4·hidden] of element `at` of [n, hidden]. */
static __device__ __forceinline__ int64_t gate_of(int64_t at, const sh_wide_divider &by_hidden)
{
    return at + sh_wide_divide(at, by_hidden) * 3 * by_hidden.divisor;
}

template <class T>
static __global__ void __launch_bounds__(SH_THREADS)
    lstm_cells(int64_t count, const sh_wide_divider by_hidden, T *h, T *c, T *acts, const T *gates, const T *c_prev)
{
    int64_t step = (int64_t)gridDim.x * SH_THREADS;
    for (int64_t at = (int64_t)blockIdx.x * SH_THREADS + threadIdx.x; at < count; at += step) {
        int64_t gate = gate_of(at, by_hidden), hidden = by_hidden.divisor;
        T i = sigmoid(gates[gate]), f = sigmoid(gates[gate + hidden]);
        T g = tanh(gates[gate + 2 * hidden]), o = sigmoid(gates[gate + 3 * hidden]);
        T next = f * c_prev[at] + i * g;
        c[at] = next;
        h[at] = o * tanh(next);
        acts[gate] = i;
        acts[gate + hidden] = f;
        acts[gate + 2 * hidden] = g;
        acts[gate + 3 * hidden] = o;
    }
}

template <class T>
static __global__ void __launch_bounds__(SH_THREADS)
    lstm_cells_backward(int64_t count, const sh_wide_divider by_hidden, T *dgates, T *dc_prev, const T *dh, const T *dc,
                        const T *acts, const T *c, const T *c_prev)
{
    int64_t step = (int64_t)gridDim.x * SH_THREADS;
    for (int64_t at = (int64_t)blockIdx.x * SH_THREADS + threadIdx.x; at < count; at += step) {
        int64_t gate = gate_of(at, by_hidden), hidden = by_hidden.divisor;
        T i = acts[gate], f = acts[gate + hidden], g = acts[gate + 2 * hidden], o = acts[gate + 3 * hidden];
        T t = tanh(c[at]), gh = dh[at], before = c_prev[at];
        T gc = (dc ? dc[at] : T(0)) + gh * o * (1 - t * t);
        dc_prev[at] = gc * f;
        dgates[gate] = gc * g * i * (1 - i);
        dgates[gate + hidden] = gc * before * f * (1 - f);
        dgates[gate + 2 * hidden] = gc * i * (1 - g * g);
        dgates[gate + 3 * hidden] = gh * t * o * (1 - o);
    }
}

template <class T>
static shoal_err lstm_of(sh_exec *exec, const sh_lstm_shape *s, void *h, void *c, void *acts, const void *gates,
                         const void *c_prev)
{
    int64_t count = s->n * s->hidden;
    lstm_cells<T><<<sh_blocks(count, SH_THREADS, SH_MOST_BLOCKS), SH_THREADS, 0, sh_stream(exec)>>>(
        count, sh_wide_divider_make(s->hidden, count), (T *)h, (T *)c, (T *)acts, (const T *)gates, (const T *)c_prev);
    return sh_cuda_launched("lstm");
}

template <class T>
static shoal_err backward_of(sh_exec *exec, const sh_lstm_shape *s, void *dgates, void *dc_prev, const void *dh,
                             const void *dc, const void *acts, const void *c, const void *c_prev)
{
    int64_t count = s->n * s->hidden;
    lstm_cells_backward<T><<<sh_blocks(count, SH_THREADS, SH_MOST_BLOCKS), SH_THREADS, 0, sh_stream(exec)>>>(
        count, sh_wide_divider_make(s->hidden, count), (T *)dgates, (T *)dc_prev, (const T *)dh, (const T *)dc,
        (const T *)acts, (const T *)c, (const T *)c_prev);
    return sh_cuda_launched("lstm backward");
}

static shoal_err lstm(sh_exec *exec, const sh_lstm_shape *s, void *h, void *c, void *acts, const void *gates,
                      const void *c_prev)
{
    shoal_err err = sh_check_float("lstm", s->dtype);
    if (err != SHOAL_OK || s->n * s->hidden == 0) {
        return err;
    }
    return s->dtype == SHOAL_F32 ? lstm_of<float>(exec, s, h, c, acts, gates, c_prev)
                                 : lstm_of<double>(exec, s, h, c, acts, gates, c_prev);
}

static shoal_err lstm_backward(sh_exec *exec, const sh_lstm_shape *s, void *dgates, void *dc_prev, const void *dh,
                               const void *dc, const void *acts, const void *c, const void *c_prev)
{
    shoal_err err = sh_check_float("lstm", s->dtype);
    if (err != SHOAL_OK || s->n * s->hidden == 0) {
        return err;
    }
    return s->dtype == SHOAL_F32 ? backward_of<float>(exec, s, dgates, dc_prev, dh, dc, acts, c, c_prev)
                                 : backward_of<double>(exec, s, dgates, dc_prev, dh, dc, acts, c, c_prev);
}

extern "C" const sh_rnn_kernels sh_rnn_kernels_cuda = {lstm, lstm_backward};
