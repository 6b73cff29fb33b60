/* fill, where and copy: the twin of cpu/elementwise_move.h. Included by elementwise.cu. */
#include "kernels/cuda/convert.cuh"
#include "kernels/cuda/element.cuh"
#include "kernels/elementwise.h"

static shoal_err no_such(const char *what, int op, shoal_dtype dtype)
{
    return shoal_fail(SHOAL_EINVAL, "%s op %d is not defined for %s", what, op, shoal_dtype_name(dtype));
}

/* ---- fill and where move bits ---- */

template <class T, int V> static __global__ void fill_kernel(sh_loop<1> loop, T x)
{
    T all[V];
    for (int k = 0; k < V; k++) {
        all[k] = x;
    }
    SH_FOR_PACKS(i, loop)
    {
        char *p[1];
        loop.at(i, p);
        sh_store(p[0], loop.template lanes<V>(i), all);
    }
}

template <class T> static shoal_err fill_size(sh_exec *exec, const sh_iter *it, const void *bits)
{
    T x;
    memcpy(&x, bits, sizeof x);
    constexpr int width = 16 / (int)sizeof(T);
    const size_t sizes[] = {sizeof(T)};
    bool packs = sh_loop_packs(it, sizes, width);
    return sh_loop_run<1>(it, packs ? width : 1, [&](const sh_loop<1> &loop) {
        auto *kernel = packs ? fill_kernel<T, width> : fill_kernel<T, 1>;
        kernel<<<sh_loop_blocks(loop), SH_THREADS, 0, sh_stream(exec)>>>(loop, x);
        return sh_cuda_launched("fill");
    });
}

static shoal_err fill(sh_exec *exec, const sh_view *out, sh_scalar x)
{
    float f = (float)x.f;
    uint16_t bf16 = sh_float_to_bf16(f), f16 = sh_float_to_f16(f);
    int32_t i32 = sh_as_i32(x.i);
    uint8_t u8 = (uint8_t)x.i, b8 = x.f != 0;
    sh_iter it;
    if ((unsigned)out->dtype >= SHOAL_DTYPES) {
        return no_such("fill", 0, out->dtype);
    }
    shoal_err err = sh_iter_init(&it, 1, &out);
    if (err) {
        return err;
    }
    switch (out->dtype) {
    case SHOAL_F32: return fill_size<uint32_t>(exec, &it, &f);
    case SHOAL_F64: return fill_size<uint64_t>(exec, &it, &x.f);
    case SHOAL_BF16: return fill_size<uint16_t>(exec, &it, &bf16);
    case SHOAL_F16: return fill_size<uint16_t>(exec, &it, &f16);
    case SHOAL_I64: return fill_size<uint64_t>(exec, &it, &x.i);
    case SHOAL_I32: return fill_size<uint32_t>(exec, &it, &i32);
    case SHOAL_U8: return fill_size<uint8_t>(exec, &it, &u8);
    case SHOAL_B8: return fill_size<uint8_t>(exec, &it, &b8);
    }
    return SHOAL_OK;
}

template <class T, int V> static __global__ void where_kernel(sh_loop<4> loop)
{
    SH_FOR_PACKS(i, loop)
    {
        char *p[4];
        loop.at(i, p);
        int lanes = loop.template lanes<V>(i);
        uint8_t cond[V];
        T a[V], b[V];
        sh_load(loop, 1, p[1], lanes, cond);
        sh_load(loop, 2, p[2], lanes, a);
        sh_load(loop, 3, p[3], lanes, b);
        for (int k = 0; k < V; k++) {
            a[k] = cond[k] ? a[k] : b[k];
        }
        sh_store(p[0], lanes, a);
    }
}

template <class T> static shoal_err where_size(sh_exec *exec, const sh_iter *it)
{
    const size_t sizes[] = {sizeof(T), 1, sizeof(T), sizeof(T)};
    bool packs = sh_loop_packs(it, sizes, 4);
    return sh_loop_run<4>(it, packs ? 4 : 1, [&](const sh_loop<4> &loop) {
        auto *kernel = packs ? where_kernel<T, 4> : where_kernel<T, 1>;
        kernel<<<sh_loop_blocks(loop), SH_THREADS, 0, sh_stream(exec)>>>(loop);
        return sh_cuda_launched("where");
    });
}

static shoal_err where(sh_exec *exec, const sh_view *out, const sh_view *cond, const sh_view *a, const sh_view *b)
{
    if (cond->dtype != SHOAL_B8 || a->dtype != b->dtype || out->dtype != a->dtype) {
        return no_such("where", 0, a->dtype);
    }
    const sh_view *views[] = {out, cond, a, b};
    sh_iter it;
    shoal_err err = sh_iter_init(&it, 4, views);
    if (err) {
        return err;
    }
    switch (shoal_dtype_size(a->dtype)) {
    case 1: return where_size<uint8_t>(exec, &it);
    case 2: return where_size<uint16_t>(exec, &it);
    case 4: return where_size<uint32_t>(exec, &it);
    case 8: return where_size<uint64_t>(exec, &it);
    }
    return no_such("where", 0, a->dtype);
}

/* ---- copy: between any two dtypes ---- */

template <shoal_dtype From, shoal_dtype To, int V>
__device__ __forceinline__ void convert_pack(const sh_loop<2> &loop, const char *from, int lanes,
                                             typename sh_element<To>::type (&out)[V])
{
    typename sh_element<From>::type in[V];
    sh_load(loop, 1, from, lanes, in);
    for (int k = 0; k < V; k++) {
        out[k] = sh_element<To>::put(sh_element<From>::get(in[k]));
    }
}

template <shoal_dtype To, int V> static __global__ void convert_kernel(sh_loop<2> loop, shoal_dtype from)
{
    SH_FOR_PACKS(i, loop)
    {
        char *p[2];
        loop.at(i, p);
        int lanes = loop.template lanes<V>(i);
        typename sh_element<To>::type out[V];
        switch (from) {
        case SHOAL_F32: convert_pack<SHOAL_F32, To>(loop, p[1], lanes, out); break;
        case SHOAL_F64: convert_pack<SHOAL_F64, To>(loop, p[1], lanes, out); break;
        case SHOAL_BF16: convert_pack<SHOAL_BF16, To>(loop, p[1], lanes, out); break;
        case SHOAL_F16: convert_pack<SHOAL_F16, To>(loop, p[1], lanes, out); break;
        case SHOAL_I64: convert_pack<SHOAL_I64, To>(loop, p[1], lanes, out); break;
        case SHOAL_I32: convert_pack<SHOAL_I32, To>(loop, p[1], lanes, out); break;
        case SHOAL_U8: convert_pack<SHOAL_U8, To>(loop, p[1], lanes, out); break;
        case SHOAL_B8: convert_pack<SHOAL_B8, To>(loop, p[1], lanes, out); break;
        }
        sh_store(p[0], lanes, out);
    }
}

template <shoal_dtype To> static shoal_err convert_to(sh_exec *exec, const sh_iter *it, shoal_dtype from)
{
    const size_t sizes[] = {sizeof(typename sh_element<To>::type), shoal_dtype_size(from)};
    bool packs = sh_loop_packs(it, sizes, 4);
    return sh_loop_run<2>(it, packs ? 4 : 1, [&](const sh_loop<2> &loop) {
        auto *kernel = packs ? convert_kernel<To, 4> : convert_kernel<To, 1>;
        kernel<<<sh_loop_blocks(loop), SH_THREADS, 0, sh_stream(exec)>>>(loop, from);
        return sh_cuda_launched("copy");
    });
}

static shoal_err convert(sh_exec *exec, const sh_iter *it, shoal_dtype to, shoal_dtype from)
{
    switch (to) {
    case SHOAL_F32: return convert_to<SHOAL_F32>(exec, it, from);
    case SHOAL_F64: return convert_to<SHOAL_F64>(exec, it, from);
    case SHOAL_BF16: return convert_to<SHOAL_BF16>(exec, it, from);
    case SHOAL_F16: return convert_to<SHOAL_F16>(exec, it, from);
    case SHOAL_I64: return convert_to<SHOAL_I64>(exec, it, from);
    case SHOAL_I32: return convert_to<SHOAL_I32>(exec, it, from);
    case SHOAL_U8: return convert_to<SHOAL_U8>(exec, it, from);
    case SHOAL_B8: return convert_to<SHOAL_B8>(exec, it, from);
    }
    return SHOAL_OK;
}

template <class T, int V> static __global__ void move_kernel(sh_loop<2> loop)
{
    SH_FOR_PACKS(i, loop)
    {
        char *p[2];
        loop.at(i, p);
        int lanes = loop.template lanes<V>(i);
        T a[V];
        sh_load(loop, 1, p[1], lanes, a);
        sh_store(p[0], lanes, a);
    }
}

template <class T> static shoal_err move_size(sh_exec *exec, const sh_iter *it)
{
    const size_t sizes[] = {sizeof(T), sizeof(T)};
    constexpr int width = 16 / (int)sizeof(T);
    bool packs = sh_loop_packs(it, sizes, width);
    return sh_loop_run<2>(it, packs ? width : 1, [&](const sh_loop<2> &loop) {
        auto *kernel = packs ? move_kernel<T, width> : move_kernel<T, 1>;
        kernel<<<sh_loop_blocks(loop), SH_THREADS, 0, sh_stream(exec)>>>(loop);
        return sh_cuda_launched("copy");
    });
}

/* Copies between views of one dtype. It moves bits, which keeps every NaN. A kernel is faster than cudaMemcpyAsync at
 * the sizes of our models: 3 us instead of 4.7 for 1.66 million f32, and half the time on the host. */
static shoal_err move(sh_exec *exec, size_t size, const sh_iter *it)
{
    switch (size) {
    case 1: return move_size<uint8_t>(exec, it);
    case 2: return move_size<uint16_t>(exec, it);
    case 4: return move_size<uint32_t>(exec, it);
    default: return move_size<uint64_t>(exec, it);
    }
}

static shoal_err copy(sh_exec *exec, const sh_view *out, const sh_view *a)
{
    if ((unsigned)a->dtype >= SHOAL_DTYPES || (unsigned)out->dtype >= SHOAL_DTYPES) {
        return no_such("copy", 0, a->dtype);
    }
    const sh_view *views[] = {out, a};
    sh_iter it;
    shoal_err err = sh_iter_init(&it, 2, views);
    if (err) {
        return err;
    }
    /* A copy of bools turns every byte except 0 into 1. */
    return a->dtype == out->dtype && a->dtype != SHOAL_B8 ? move(exec, shoal_dtype_size(a->dtype), &it)
                                                          : convert(exec, &it, out->dtype, a->dtype);
}
