/* The CUDA twin of cpu/elementwise_reference.c; the contract is kernels/elementwise.h. */
#include "kernels/cuda/elementwise_move.cuh"
#include "kernels/cuda/elementwise_ops.cuh"

/* Every byte of a bool except 0 counts as 1. After this, bools are numbers of type u8. */
template <class T, int V> __device__ __forceinline__ void as_bools(T (&x)[V])
{
    for (int k = 0; k < V; k++) {
        x[k] = x[k] != 0;
    }
}

template <class T, int V> static __global__ void one_kernel(sh_loop<2> loop, int op, T x, T y)
{
    SH_FOR_PACKS(i, loop)
    {
        char *p[2];
        loop.at(i, p);
        int lanes = loop.template lanes<V>(i);
        T a[V], out[V] = {};
        sh_load(loop, 1, p[1], lanes, a);
        if constexpr (std::is_floating_point<T>::value) {
            float_one(op, x, y, a, out);
        } else {
            integer_one(op, x, y, a, out);
        }
        sh_store(p[0], lanes, out);
    }
}

template <class T, int V> static __global__ void two_kernel(sh_loop<3> loop, int op, bool bools, T x, T y)
{
    SH_FOR_PACKS(i, loop)
    {
        char *p[3];
        loop.at(i, p);
        int lanes = loop.template lanes<V>(i);
        T a[V], b[V], out[V] = {};
        sh_load(loop, 1, p[1], lanes, a);
        sh_load(loop, 2, p[2], lanes, b);
        if constexpr (std::is_floating_point<T>::value) {
            float_two(op, x, y, a, b, out);
        } else {
            if (bools) {
                as_bools(a);
                as_bools(b);
            }
            integer_two(op, x, y, a, b, out);
        }
        sh_store(p[0], lanes, out);
    }
}

template <class T> static __global__ void compare_kernel(sh_loop<3> loop, int op, bool bools)
{
    SH_FOR_PACKS(i, loop)
    {
        char *p[3];
        loop.at(i, p);
        T a[1], b[1];
        sh_load(loop, 1, p[1], 1, a);
        sh_load(loop, 2, p[2], 1, b);
        if (bools) {
            as_bools(a);
            as_bools(b);
        }
        *(uint8_t *)p[0] = compare(op, a[0], b[0]);
    }
}

/* ---- launches ---- */

/* Packs are worth their code for f32 only. */
template <class T> constexpr int width_of()
{
    return std::is_same<T, float>::value ? 4 : 1;
}

template <class T> static shoal_err one(sh_exec *exec, int op, const sh_view *out, const sh_view *a, T x, T y)
{
    const sh_view *views[] = {out, a};
    const size_t sizes[] = {sizeof(T), sizeof(T)};
    constexpr int width = width_of<T>();
    sh_iter it;
    shoal_err err = sh_iter_init(&it, 2, views);
    if (err) {
        return err;
    }
    bool packs = sh_loop_packs(&it, sizes, width);
    return sh_loop_run<2>(&it, packs ? width : 1, [&](const sh_loop<2> &loop) {
        auto *kernel = packs ? one_kernel<T, width> : one_kernel<T, 1>;
        kernel<<<sh_loop_blocks(loop), SH_THREADS, 0, sh_stream(exec)>>>(loop, op, x, y);
        return sh_cuda_launched("an elementwise op");
    });
}

template <class T>
static shoal_err two(sh_exec *exec, int op, const sh_view *out, const sh_view *a, const sh_view *b, T x, T y)
{
    const sh_view *views[] = {out, a, b};
    const size_t sizes[] = {sizeof(T), sizeof(T), sizeof(T)};
    constexpr int width = width_of<T>();
    sh_iter it;
    shoal_err err = sh_iter_init(&it, 3, views);
    if (err) {
        return err;
    }
    bool compares = op >= SH_BINARY_EQ && op < SH_BINARY_OPS, bools = a->dtype == SHOAL_B8;
    bool packs = !compares && sh_loop_packs(&it, sizes, width);
    return sh_loop_run<3>(&it, packs ? width : 1, [&](const sh_loop<3> &loop) {
        unsigned blocks = sh_loop_blocks(loop);
        if (compares) {
            compare_kernel<T><<<blocks, SH_THREADS, 0, sh_stream(exec)>>>(loop, op, bools);
        } else {
            auto *kernel = packs ? two_kernel<T, width> : two_kernel<T, 1>;
            kernel<<<blocks, SH_THREADS, 0, sh_stream(exec)>>>(loop, op, bools, x, y);
        }
        return sh_cuda_launched("an elementwise op");
    });
}

static shoal_err one_of(sh_exec *exec, int op, const sh_view *out, const sh_view *a, sh_scalar x, sh_scalar y)
{
    switch (a->dtype) {
    case SHOAL_F32: return one<float>(exec, op, out, a, (float)x.f, (float)y.f);
    case SHOAL_F64: return one<double>(exec, op, out, a, x.f, y.f);
    case SHOAL_I64: return one<int64_t>(exec, op, out, a, x.i, y.i);
    case SHOAL_I32: return one<int32_t>(exec, op, out, a, sh_as_i32(x.i), sh_as_i32(y.i));
    default: return one<uint8_t>(exec, op, out, a, (uint8_t)x.i, (uint8_t)y.i);
    }
}

static shoal_err two_of(sh_exec *exec, int op, const sh_view *out, const sh_view *a, const sh_view *b, sh_scalar x,
                        sh_scalar y)
{
    switch (a->dtype) {
    case SHOAL_F32: return two<float>(exec, op, out, a, b, (float)x.f, (float)y.f);
    case SHOAL_F64: return two<double>(exec, op, out, a, b, x.f, y.f);
    case SHOAL_I64: return two<int64_t>(exec, op, out, a, b, x.i, y.i);
    case SHOAL_I32: return two<int32_t>(exec, op, out, a, b, sh_as_i32(x.i), sh_as_i32(y.i));
    default: return two<uint8_t>(exec, op, out, a, b, (uint8_t)x.i, (uint8_t)y.i);
    }
}

/* ---- the kernels, and which op exists for which dtype ---- */

static bool is_integer(shoal_dtype dtype)
{
    return dtype == SHOAL_I64 || dtype == SHOAL_I32 || dtype == SHOAL_U8;
}

static shoal_err unary(sh_exec *exec, sh_unary_op op, const sh_view *out, const sh_view *a)
{
    bool exists = sh_dtype_is_wide_float(a->dtype) ? op < SH_UNARY_NOT
                  : is_integer(a->dtype)           ? op <= SH_UNARY_RELU || op == SH_UNARY_NOT
                                                   : a->dtype == SHOAL_B8 && op == SH_UNARY_NOT;
    if ((unsigned)op >= SH_UNARY_OPS || out->dtype != a->dtype || !exists) {
        return no_such("unary", op, a->dtype);
    }
    int which = a->dtype == SHOAL_B8 ? ONE_LOGICAL_NOT : (int)op;
    return one_of(exec, which, out, a, sh_scalar_int(0), sh_scalar_int(0));
}

static int64_t saturated(shoal_dtype dtype, int64_t x)
{
    int64_t low = dtype == SHOAL_I32 ? INT32_MIN : dtype == SHOAL_U8 ? 0 : INT64_MIN;
    int64_t high = dtype == SHOAL_I32 ? INT32_MAX : dtype == SHOAL_U8 ? UINT8_MAX : INT64_MAX;
    return x < low ? low : x > high ? high : x;
}

static shoal_err scalar(sh_exec *exec, sh_scalar_op op, const sh_view *out, const sh_view *a, sh_scalar x, sh_scalar y)
{
    bool everywhere = op == SH_SCALAR_ADD || op == SH_SCALAR_MUL || op == SH_SCALAR_CLAMP;
    bool exists = sh_dtype_is_wide_float(a->dtype) || (is_integer(a->dtype) && everywhere);
    if ((unsigned)op >= SH_SCALAR_OPS || out->dtype != a->dtype || !exists) {
        return no_such("scalar", op, a->dtype);
    }
    if (op == SH_SCALAR_CLAMP) {
        if (sh_dtype_is_wide_float(a->dtype) && (x.f != x.f || y.f != y.f)) {
            return fill(exec, out, sh_scalar_float(NAN));
        }
        x.i = saturated(a->dtype, x.i);
        y.i = saturated(a->dtype, y.i);
    }
    int which = op == SH_SCALAR_POW && x.f == 2   ? (int)SH_UNARY_SQUARE
                : op == SH_SCALAR_POW && x.f == 3 ? (int)ONE_CUBE
                                                  : ONE_SCALAR + op;
    return one_of(exec, which, out, a, x, y);
}

static bool binary_exists(sh_binary_op op, shoal_dtype dtype)
{
    bool bits = op == SH_BINARY_AND || op == SH_BINARY_OR || op == SH_BINARY_XOR;
    bool order = op == SH_BINARY_MAX || op == SH_BINARY_MIN || sh_binary_is_comparison(op);
    return sh_dtype_is_wide_float(dtype) ? !bits
           : is_integer(dtype)           ? op != SH_BINARY_POW
                                         : dtype == SHOAL_B8 && (bits || order);
}

static shoal_err binary(sh_exec *exec, sh_binary_op op, const sh_view *out, const sh_view *a, const sh_view *b)
{
    shoal_dtype wanted = sh_binary_is_comparison(op) ? SHOAL_B8 : a->dtype;
    if ((unsigned)op >= SH_BINARY_OPS || a->dtype != b->dtype || out->dtype != wanted || !binary_exists(op, a->dtype)) {
        return no_such("binary", op, a->dtype);
    }
    return two_of(exec, op, out, a, b, sh_scalar_int(0), sh_scalar_int(0));
}

static shoal_err grad(sh_exec *exec, sh_grad_op op, const sh_view *out, const sh_view *g, const sh_view *saved,
                      double p, double q)
{
    if ((unsigned)op >= SH_GRAD_OPS || g->dtype != saved->dtype || out->dtype != g->dtype ||
        !sh_dtype_is_wide_float(g->dtype)) {
        return no_such("gradient", op, g->dtype);
    }
    int which = op == SH_GRAD_POW && p == 2   ? TWO_GRAD + SH_GRAD_SQUARE
                : op == SH_GRAD_POW && p == 3 ? (int)TWO_CUBE_GRAD
                                              : TWO_GRAD + op;
    return two_of(exec, which, out, g, saved, sh_scalar_float(p), sh_scalar_float(q));
}

static shoal_err axpy(sh_exec *exec, const sh_view *out, const sh_view *a, sh_scalar alpha)
{
    if (out->dtype != a->dtype || (!sh_dtype_is_wide_float(a->dtype) && !is_integer(a->dtype))) {
        return no_such("axpy", 0, a->dtype);
    }
    return two_of(exec, TWO_AXPY, out, out, a, alpha, alpha);
}

extern "C" const sh_elementwise_kernels sh_elementwise_kernels_cuda = {unary, scalar, binary, grad,
                                                                       where, axpy,   fill,   copy};
