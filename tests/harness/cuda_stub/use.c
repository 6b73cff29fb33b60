#include "tests/harness/cuda_stub/stub.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>

static void set_path(const char *variable, const char *file)
{
    const char *build = getenv("SHOAL_BUILD_DIR");
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/tests/%s", build ? build : "build", file);
    setenv(variable, path, 1);
}

void sh_stub_use(void)
{
    if (!getenv("SHOAL_TEST_CARD")) {
        set_path("SHOAL_CUDA_DRIVER", "libcuda_stub.so");
        set_path("SHOAL_CUDA_LIBRARY", "libshoal_cuda_stub.so");
    }
}

const sh_stub *sh_stub_control(void)
{
    const char *path = getenv("SHOAL_CUDA_DRIVER");
    void *library = path && !getenv("SHOAL_TEST_CARD") ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : NULL;
    return library ? dlsym(library, "shoal_stub") : NULL;
}
