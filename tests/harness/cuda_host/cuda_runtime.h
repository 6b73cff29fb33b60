/* CUDA C++ as far as src/kernels/cuda uses it, for a C++ compiler: the kernels of a card run on the host, one block
 * after another, each thread of a block as a fiber of its own (fibers.h). Takes the place of NVIDIA's header of this
 * name. */
#ifndef TESTING_CUDA_HOST_CUDA_RUNTIME_H
#define TESTING_CUDA_HOST_CUDA_RUNTIME_H

#include "tests/harness/cuda_host/fibers.h"

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <type_traits>

/* ---- words of the language ---- */

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __grid_constant__
#define __launch_bounds__(...)
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __shared__ static /* one block runs at a time; sources.py takes care of extern __shared__ */

struct __align__(8) float2
{
    float x, y;
};
struct __align__(16) float4
{
    float x, y, z, w;
};
struct __align__(16) int4
{
    int x, y, z, w;
};
struct __align__(16) uint4
{
    unsigned x, y, z, w;
};
struct __align__(4) uchar4
{
    unsigned char x, y, z, w;
};

static inline float2 make_float2(float x, float y)
{
    return float2{x, y};
}

static inline float4 make_float4(float x, float y, float z, float w)
{
    return float4{x, y, z, w};
}

/* ---- functions of a thread ---- */

template <class A, class B> static inline typename std::common_type<A, B>::type min(A a, B b)
{
    return a < b ? a : b;
}

template <class A, class B> static inline typename std::common_type<A, B>::type max(A a, B b)
{
    return a > b ? a : b;
}

template <class To, class From> static inline To sh_bits_as(From from)
{
    To to;
    static_assert(sizeof to == sizeof from, "the same bits");
    memcpy(&to, &from, sizeof to);
    return to;
}

#define __uint_as_float(x) sh_bits_as<float>((uint32_t)(x))
#define __int_as_float(x) sh_bits_as<float>((int32_t)(x))
#define __float_as_uint(x) sh_bits_as<uint32_t>((float)(x))
#define __float_as_int(x) sh_bits_as<int32_t>((float)(x))
#define __popc(x) __builtin_popcount(x)
#define __ffs(x) __builtin_ffs(x)
#define __umulhi(a, b) ((uint32_t)((uint64_t)(uint32_t)(a) * (uint32_t)(b) >> 32))
#define __umul64hi(a, b) ((uint64_t)((unsigned __int128)(uint64_t)(a) * (uint64_t)(b) >> 64))
/* Rounded each for itself: the files are compiled with -ffp-contract=off. */
#define __fmul_rn(a, b) ((float)(a) * (float)(b))
#define __fadd_rn(a, b) ((float)(a) + (float)(b))
#define __dmul_rn(a, b) ((double)(a) * (double)(b))
#define __dadd_rn(a, b) ((double)(a) + (double)(b))

/* ---- functions of a block and of a warp ---- */

#define __syncthreads() sh_fiber_sync_block(0)
#define __syncthreads_or(x) sh_fiber_sync_block((x) != 0)
#define __syncwarp() ((void)sh_fiber_vote(~0u, 0))
#define __ballot_sync(lanes, x) sh_fiber_vote(lanes, (x) != 0)
#define __any_sync(lanes, x) (sh_fiber_vote(lanes, (x) != 0) != 0)

template <class T> static inline T __shfl_sync(unsigned lanes, T mine, int lane)
{
    static_assert(sizeof(T) <= sizeof(uint64_t), "one register or two");
    uint64_t bits = 0;
    memcpy(&bits, &mine, sizeof mine);
    bits = sh_fiber_exchange(lanes, bits, (unsigned)lane % SH_FIBER_LANES);
    memcpy(&mine, &bits, sizeof mine);
    return mine;
}

template <class T> static inline T __shfl_xor_sync(unsigned lanes, T mine, int other)
{
    return __shfl_sync(lanes, mine, (int)(sh_fiber_lane() ^ (unsigned)other));
}

/* ---- the runtime ---- */

typedef enum cudaError_t { cudaSuccess = 0, cudaErrorInvalidValue = 1, cudaErrorInvalidConfiguration = 9 } cudaError_t;
typedef struct CUstream_st *cudaStream_t;

typedef enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize } cudaFuncAttribute;
typedef enum cudaDeviceAttr { cudaDevAttrMaxSharedMemoryPerBlockOptin } cudaDeviceAttr;
typedef struct cudaFuncAttributes {
    int ptxVersion, binaryVersion;
} cudaFuncAttributes;

extern thread_local cudaError_t sh_host_error; /* of the last launch */

static inline cudaError_t cudaGetLastError(void)
{
    const cudaError_t last = sh_host_error;
    sh_host_error = cudaSuccess;
    return last;
}

template <class K> static inline cudaError_t cudaFuncSetAttribute(K *kernel, cudaFuncAttribute, int bytes)
{
    return kernel && (size_t)bytes <= SH_FIBER_MOST_SHARED ? cudaSuccess : cudaErrorInvalidValue;
}

template <class K> static inline cudaError_t cudaFuncGetAttributes(cudaFuncAttributes *out, K *)
{
    *out = cudaFuncAttributes{80, 80};
    return cudaSuccess;
}

static inline cudaError_t cudaGetDevice(int *out)
{
    *out = 0;
    return cudaSuccess;
}

static inline cudaError_t cudaDeviceGetAttribute(int *out, cudaDeviceAttr, int)
{
    *out = SH_FIBER_MOST_SHARED;
    return cudaSuccess;
}

/* ---- what a stream does ---- */

/* Calls run(a copy of call) on the stream of the stub driver, or records it for a graph. */
void sh_host_enqueue(cudaStream_t stream, void (*run)(const void *call), const void *call, size_t size);

template <class Call> static inline void sh_host_do(cudaStream_t stream, const Call &call)
{
    static_assert(std::is_trivially_copyable<Call>::value, "the stub copies its bytes");
    sh_host_enqueue(
        stream, [](const void *copy) { (*(const Call *)copy)(); }, &call, sizeof call);
}

/* sources.py writes launches as calls of this. */
struct sh_host_config {
    dim3 blocks, threads;
    size_t shared = 0;
    cudaStream_t stream = nullptr;
};

template <class Kernel, class... Args>
static inline void sh_host_launch(const sh_host_config &c, const Kernel &kernel, const Args &...args)
{
    if (!sh_fiber_grid_fits(c.blocks, c.threads, c.shared)) {
        sh_host_error = cudaErrorInvalidConfiguration;
        return;
    }
    sh_host_do(c.stream, [=] {
        const auto thread = [&] { kernel(args...); };
        using Thread = decltype(thread);
        sh_fiber_run(
            c.blocks, c.threads, c.shared, [](const void *t) { (*(Thread *)t)(); }, &thread);
    });
}

static inline cudaError_t cudaMemsetAsync(void *to, int value, size_t size, cudaStream_t stream)
{
    sh_host_do(stream, [=] { memset(to, value, size); });
    return cudaSuccess;
}

typedef enum cudaMemcpyKind { cudaMemcpyDeviceToDevice, cudaMemcpyDefault } cudaMemcpyKind;

static inline cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t size, cudaMemcpyKind, cudaStream_t stream)
{
    sh_host_do(stream, [=] { memmove(to, from, size); });
    return cudaSuccess;
}

typedef enum cudaLaunchAttributeID { cudaLaunchAttributeProgrammaticStreamSerialization } cudaLaunchAttributeID;
typedef struct cudaLaunchAttribute {
    cudaLaunchAttributeID id;
    struct {
        int programmaticStreamSerializationAllowed;
    } val;
} cudaLaunchAttribute;
typedef struct cudaLaunchConfig_t {
    dim3 gridDim, blockDim;
    size_t dynamicSmemBytes;
    cudaStream_t stream;
    cudaLaunchAttribute *attrs;
    unsigned numAttrs;
} cudaLaunchConfig_t;

template <class... P>
static inline cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t *c, void (*kernel)(P...), P... args)
{
    sh_host_launch({c->gridDim, c->blockDim, c->dynamicSmemBytes, c->stream}, kernel, args...);
    return cudaSuccess;
}

#endif
