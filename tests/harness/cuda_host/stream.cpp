/* Kernels run on the streams of the stub driver, which libshoal has loaded. */
#include "tests/harness/cuda_host/cuda_runtime.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

thread_local cudaError_t sh_host_error;

typedef void stub_call(cudaStream_t stream, void (*run)(const void *call), const void *call, size_t size);

static stub_call *find(void)
{
    const char *path = getenv("SHOAL_CUDA_DRIVER");
    void *driver = path ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : NULL;
    stub_call *found = driver ? (stub_call *)dlsym(driver, "shoal_stub_call") : NULL;
    if (!found) {
        fprintf(stderr, "cuda_host: SHOAL_CUDA_DRIVER does not name the stub driver\n");
        abort();
    }
    return found;
}

void sh_host_enqueue(cudaStream_t stream, void (*run)(const void *call), const void *call, size_t size)
{
    static stub_call *const enqueue = find();
    enqueue(stream, run, call, size);
}
