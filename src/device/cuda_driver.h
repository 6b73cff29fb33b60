/* The CUDA driver: its functions, loaded with dlopen, and what its errors mean. The few types and numbers that Shoal
 * needs are declared here, so that no CUDA header is needed to build it. The names are NVIDIA's. */
#ifndef SH_DEVICE_CUDA_DRIVER_H
#define SH_DEVICE_CUDA_DRIVER_H

#include <shoal/error.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SH_CUDA_VERSION_NEEDED 12000 /* as the driver counts: 1000 · major + 10 · minor */

/* Results of the driver: name, number (a CUresult; the runtime that libshoal_cuda uses has the same), and what it means
 * for Shoal. SHOAL_ECUDA: the context does not work any more. Any other result is SHOAL_EOS. */
#define SH_CU_RESULTS(RESULT)                                                                                          \
    RESULT(SH_CU_OK, 0, SHOAL_OK)                                                                                      \
    RESULT(SH_CU_INVALID_VALUE, 1, SHOAL_EOS)                                                                          \
    RESULT(SH_CU_OUT_OF_MEMORY, 2, SHOAL_ENOMEM)                                                                       \
    RESULT(SH_CU_DEVICE_UNAVAILABLE, 46, SHOAL_ECUDA)                                                                  \
    RESULT(SH_CU_NO_DEVICE, 100, SHOAL_ENOENT)                                                                         \
    RESULT(SH_CU_INVALID_DEVICE, 101, SHOAL_ENOENT)                                                                    \
    RESULT(SH_CU_ECC_UNCORRECTABLE, 214, SHOAL_ECUDA)                                                                  \
    RESULT(SH_CU_NVLINK_UNCORRECTABLE, 220, SHOAL_ECUDA)                                                               \
    RESULT(SH_CU_CONTAINED, 226, SHOAL_ECUDA)                                                                          \
    RESULT(SH_CU_OPERATING_SYSTEM, 304, SHOAL_EOS)                                                                     \
    RESULT(SH_CU_NOT_READY, 600, SHOAL_EOS)                                                                            \
    RESULT(SH_CU_ILLEGAL_ADDRESS, 700, SHOAL_ECUDA)                                                                    \
    RESULT(SH_CU_LAUNCH_TIMEOUT, 702, SHOAL_ECUDA)                                                                     \
    RESULT(SH_CU_CONTEXT_IS_DESTROYED, 709, SHOAL_ECUDA)                                                               \
    RESULT(SH_CU_ASSERT, 710, SHOAL_ECUDA)                                                                             \
    RESULT(SH_CU_ALREADY_REGISTERED, 712, SHOAL_EOS)                                                                   \
    RESULT(SH_CU_HARDWARE_STACK_ERROR, 714, SHOAL_ECUDA)                                                               \
    RESULT(SH_CU_ILLEGAL_INSTRUCTION, 715, SHOAL_ECUDA)                                                                \
    RESULT(SH_CU_MISALIGNED_ADDRESS, 716, SHOAL_ECUDA)                                                                 \
    RESULT(SH_CU_INVALID_ADDRESS_SPACE, 717, SHOAL_ECUDA)                                                              \
    RESULT(SH_CU_INVALID_PC, 718, SHOAL_ECUDA)                                                                         \
    RESULT(SH_CU_LAUNCH_FAILED, 719, SHOAL_ECUDA)                                                                      \
    RESULT(SH_CU_TENSOR_MEMORY_LEAK, 721, SHOAL_ECUDA)                                                                 \
    RESULT(SH_CU_NOT_PERMITTED, 800, SHOAL_EPERM)                                                                      \
    RESULT(SH_CU_NOT_SUPPORTED, 801, SHOAL_EOS)                                                                        \
    RESULT(SH_CU_DRIVER_MISMATCH, 803, SHOAL_EOS)                                                                      \
    RESULT(SH_CU_MPS_RPC_FAILURE, 806, SHOAL_ECUDA)                                                                    \
    RESULT(SH_CU_MPS_MAX_CLIENTS_REACHED, 808, SHOAL_ELIMIT)                                                           \
    RESULT(SH_CU_MPS_MAX_CONNECTIONS_REACHED, 809, SHOAL_ELIMIT)                                                       \
    RESULT(SH_CU_MPS_CLIENT_TERMINATED, 810, SHOAL_ECUDA)                                                              \
    RESULT(SH_CU_CAPTURE_FIRST, 900, SHOAL_ESTATE) /* 900 to 908: what a capture cannot hold */                        \
    RESULT(SH_CU_CAPTURE_LAST, 908, SHOAL_ESTATE)                                                                      \
    RESULT(SH_CU_EXTERNAL_DEVICE, 911, SHOAL_ECUDA)                                                                    \
    RESULT(SH_CU_UNKNOWN, 999, SHOAL_ECUDA)

typedef enum sh_cu_result {
#define SH_CU_NUMBER(name, number, meaning) name = number,
    SH_CU_RESULTS(SH_CU_NUMBER)
#undef SH_CU_NUMBER
} sh_cu_result;

typedef int sh_cu_device;
typedef uint64_t sh_cu_address; /* CUdeviceptr */
typedef uint64_t sh_cu_memory;  /* CUmemGenericAllocationHandle */
typedef struct CUctx_st *sh_cu_context;
typedef struct CUstream_st *sh_cu_stream;
typedef struct CUevent_st *sh_cu_event;
typedef struct CUgraph_st *sh_cu_graph;
typedef struct CUgraphExec_st *sh_cu_graph_exec;

typedef struct sh_cu_location {
    int type; /* SH_CU_LOCATION_DEVICE */
    int id;
} sh_cu_location;

/* CUmemAllocationProp */
typedef struct sh_cu_memory_kind {
    int type;    /* SH_CU_MEMORY_PINNED */
    int handles; /* SH_CU_HANDLE_FD */
    sh_cu_location location;
    void *unused;
    unsigned char flags[8];
} sh_cu_memory_kind;

/* CUmemAccessDesc */
typedef struct sh_cu_access {
    sh_cu_location location;
    int flags; /* SH_CU_ACCESS_READ_WRITE */
} sh_cu_access;

enum {
    SH_CU_LOCATION_DEVICE = 1,
    SH_CU_MEMORY_PINNED = 1,
    SH_CU_HANDLE_FD = 1,
    SH_CU_ACCESS_READ_WRITE = 3,
    SH_CU_GRANULARITY_MINIMUM = 0,
    SH_CU_STREAM_NON_BLOCKING = 1,
    SH_CU_EVENT_DISABLE_TIMING = 2,
    SH_CU_HOST_REGISTER_PORTABLE_MAPPED = 3,
    SH_CU_WAIT_VALUE_GEQ = 0,
    SH_CU_WRITE_VALUE_DEFAULT = 0,
    SH_CU_CAPTURE_RELAXED = 2,
    SH_CU_CAPTURE_NONE = 0,
};

/* The functions: field, the symbol of the version that we mean, arguments. Each returns a CUresult. */
#define SH_CUDA_CALLS(CALL)                                                                                            \
    CALL(cuGetErrorName, "cuGetErrorName", (int, const char **))                                                       \
    CALL(cuGetErrorString, "cuGetErrorString", (int, const char **))                                                   \
    CALL(cuInit, "cuInit", (unsigned))                                                                                 \
    CALL(cuDriverGetVersion, "cuDriverGetVersion", (int *))                                                            \
    CALL(cuDeviceGetCount, "cuDeviceGetCount", (int *))                                                                \
    CALL(cuDeviceGet, "cuDeviceGet", (sh_cu_device *, int))                                                            \
    CALL(cuDeviceGetName, "cuDeviceGetName", (char *, int, sh_cu_device))                                              \
    CALL(cuDeviceGetUuid, "cuDeviceGetUuid_v2", (uint8_t *, sh_cu_device))                                             \
    CALL(cuDeviceTotalMem, "cuDeviceTotalMem_v2", (size_t *, sh_cu_device))                                            \
    CALL(cuDevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain", (sh_cu_context *, sh_cu_device))                        \
    CALL(cuDevicePrimaryCtxRelease, "cuDevicePrimaryCtxRelease_v2", (sh_cu_device))                                    \
    CALL(cuCtxSetCurrent, "cuCtxSetCurrent", (sh_cu_context))                                                          \
    CALL(cuStreamCreate, "cuStreamCreate", (sh_cu_stream *, unsigned))                                                 \
    CALL(cuStreamDestroy, "cuStreamDestroy_v2", (sh_cu_stream))                                                        \
    CALL(cuStreamQuery, "cuStreamQuery", (sh_cu_stream))                                                               \
    CALL(cuStreamSynchronize, "cuStreamSynchronize", (sh_cu_stream))                                                   \
    CALL(cuMemGetInfo, "cuMemGetInfo_v2", (size_t *, size_t *))                                                        \
    CALL(cuMemcpyHtoDAsync, "cuMemcpyHtoDAsync_v2", (sh_cu_address, const void *, size_t, sh_cu_stream))               \
    CALL(cuMemcpyDtoHAsync, "cuMemcpyDtoHAsync_v2", (void *, sh_cu_address, size_t, sh_cu_stream))                     \
    CALL(cuMemcpyDtoDAsync, "cuMemcpyDtoDAsync_v2", (sh_cu_address, sh_cu_address, size_t, sh_cu_stream))              \
    CALL(cuMemAllocHost, "cuMemAllocHost_v2", (void **, size_t))                                                       \
    CALL(cuMemFreeHost, "cuMemFreeHost", (void *))                                                                     \
    CALL(cuMemHostRegister, "cuMemHostRegister_v2", (void *, size_t, unsigned))                                        \
    CALL(cuMemHostUnregister, "cuMemHostUnregister", (void *))                                                         \
    CALL(cuMemHostGetDevicePointer, "cuMemHostGetDevicePointer_v2", (sh_cu_address *, void *, unsigned))               \
    CALL(cuMemGetAllocationGranularity, "cuMemGetAllocationGranularity", (size_t *, const sh_cu_memory_kind *, int))   \
    CALL(cuMemCreate, "cuMemCreate", (sh_cu_memory *, size_t, const sh_cu_memory_kind *, unsigned long long))          \
    CALL(cuMemRelease, "cuMemRelease", (sh_cu_memory))                                                                 \
    CALL(cuMemAddressReserve, "cuMemAddressReserve",                                                                   \
         (sh_cu_address *, size_t, size_t, sh_cu_address, unsigned long long))                                         \
    CALL(cuMemAddressFree, "cuMemAddressFree", (sh_cu_address, size_t))                                                \
    CALL(cuMemMap, "cuMemMap", (sh_cu_address, size_t, size_t, sh_cu_memory, unsigned long long))                      \
    CALL(cuMemUnmap, "cuMemUnmap", (sh_cu_address, size_t))                                                            \
    CALL(cuMemSetAccess, "cuMemSetAccess", (sh_cu_address, size_t, const sh_cu_access *, size_t))                      \
    CALL(cuMemExportToShareableHandle, "cuMemExportToShareableHandle",                                                 \
         (void *, sh_cu_memory, int, unsigned long long))                                                              \
    CALL(cuMemImportFromShareableHandle, "cuMemImportFromShareableHandle", (sh_cu_memory *, void *, int))              \
    CALL(cuStreamWriteValue64, "cuStreamWriteValue64_v2", (sh_cu_stream, sh_cu_address, uint64_t, unsigned))           \
    CALL(cuStreamWaitValue64, "cuStreamWaitValue64_v2", (sh_cu_stream, sh_cu_address, uint64_t, unsigned))             \
    CALL(cuEventCreate, "cuEventCreate", (sh_cu_event *, unsigned))                                                    \
    CALL(cuEventDestroy, "cuEventDestroy_v2", (sh_cu_event))                                                           \
    CALL(cuEventRecord, "cuEventRecord", (sh_cu_event, sh_cu_stream))                                                  \
    CALL(cuStreamWaitEvent, "cuStreamWaitEvent", (sh_cu_stream, sh_cu_event, unsigned))                                \
    CALL(cuStreamIsCapturing, "cuStreamIsCapturing", (sh_cu_stream, int *))                                            \
    CALL(cuThreadExchangeStreamCaptureMode, "cuThreadExchangeStreamCaptureMode", (int *))                              \
    CALL(cuStreamBeginCapture, "cuStreamBeginCapture_v2", (sh_cu_stream, int))                                         \
    CALL(cuStreamEndCapture, "cuStreamEndCapture", (sh_cu_stream, sh_cu_graph *))                                      \
    CALL(cuGraphInstantiate, "cuGraphInstantiateWithFlags", (sh_cu_graph_exec *, sh_cu_graph, unsigned long long))     \
    CALL(cuGraphUpload, "cuGraphUpload", (sh_cu_graph_exec, sh_cu_stream))                                             \
    CALL(cuGraphLaunch, "cuGraphLaunch", (sh_cu_graph_exec, sh_cu_stream))                                             \
    CALL(cuGraphExecDestroy, "cuGraphExecDestroy", (sh_cu_graph_exec))                                                 \
    CALL(cuGraphDestroy, "cuGraphDestroy", (sh_cu_graph))

typedef struct sh_cuda_driver {
#define SH_CUDA_FIELD(field, symbol, arguments) int(*field) arguments;
    SH_CUDA_CALLS(SH_CUDA_FIELD)
#undef SH_CUDA_FIELD
    int version; /* of the CUDA that the driver has, such as 13000 */
} sh_cuda_driver;

/* Valid after sh_cuda_driver_load. */
extern sh_cuda_driver sh_cu;

/* Loads the driver's library without initialising it: a process that has done no more can still fork children that use
 * the card. Not thread-safe. Errors: SHOAL_ENOENT, SHOAL_ELAYOUT. */
shoal_err sh_cuda_driver_find(void);

/* Loads the driver's library (libcuda.so.1, or the file that SHOAL_CUDA_DRIVER names) and initialises it, once. Not
 * thread-safe. Errors: SHOAL_ENOENT if there is no driver or no card, SHOAL_ELAYOUT if the driver is too old,
 * SHOAL_EPERM if this user may not use the card, SHOAL_EOS. */
shoal_err sh_cuda_driver_load(void);

/* Returns SHOAL_OK if result is SH_CU_OK. Otherwise records an error and returns its code: SHOAL_ENOMEM, SHOAL_EPERM,
 * SHOAL_ENOENT, SHOAL_ECUDA or SHOAL_EOS. `what` says what Shoal was doing. An error after which the context does not
 * work any more is remembered (sh_cuda_lost). */
shoal_err sh_cuda_result(const char *what, int result);

/* Returns SHOAL_ECUDA with a text that says why, if an earlier error ended this process's context; else SHOAL_OK. */
shoal_err sh_cuda_lost(void);

/* Between these, a capture that another library has begun in any thread neither forbids nor is broken by calls of this
 * thread that allocate, free or wait. relax returns what restrict gets. */
int sh_cuda_relax(void);
void sh_cuda_restrict(int mode);

/* The same, without setting an error. May be called in a signal handler. */
bool sh_cuda_is_well(void);

#endif
