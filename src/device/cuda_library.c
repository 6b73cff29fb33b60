/* Finds and loads libshoal_cuda. It lies beside libshoal, or where the program's libraries are. */
#include "device/cuda_share.h"

#include "base/error.h"

#include <shoal/version.h>

#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define FILE_NAME "libshoal_cuda.so"

#ifndef SH_HAS_CUDA /* set by the build, if it makes libshoal_cuda */
#define SH_HAS_CUDA 0
#endif

static shoal_err launched(const char *what, int result)
{
    sh_cuda_touch();
    return sh_cuda_result(what, result);
}

static const sh_cuda_host host = {
    .fail = shoal_fail,
    .result = launched,
    .scratch = sh_cuda_scratch,
};

/* Writes the folder of this library, or of the program; "" if it is not known. */
static void folder_of(bool program, char out[PATH_MAX])
{
    out[0] = 0;
    if (program) {
        ssize_t n = readlink("/proc/self/exe", out, PATH_MAX - 1);
        out[n > 0 ? n : 0] = 0;
    } else {
        Dl_info info;
        if (dladdr((const void *)&host, &info) == 0 || !info.dli_fname || !realpath(info.dli_fname, out)) {
            out[0] = 0;
        }
    }
    char *slash = strrchr(out, '/');
    *(slash ? slash : out) = 0;
}

/* Returns the library that was found first, or NULL. Writes the file that is there but cannot be loaded to `bad`. */
static void *load_first(char bad[PATH_MAX + 64])
{
    static const struct {
        bool program;
        const char *below;
    } places[] = {
        {false, ""}, {true, "/"}, {true, "/lib/"}, {true, "/../lib/"}, {true, "/../"}}; /* the last: in a wheel */
    for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
        char folder[PATH_MAX], path[PATH_MAX + 64];
        folder_of(places[i].program, folder);
        snprintf(path, sizeof path, "%s%s" FILE_NAME, folder, places[i].below[0] ? places[i].below : "/");
        if (folder[0] && access(path, F_OK) == 0) {
            void *found = dlopen(path, RTLD_NOW | RTLD_LOCAL);
            if (!found) {
                snprintf(bad, PATH_MAX + 64, "%s", path);
            }
            return found;
        }
    }
    return dlopen(FILE_NAME, RTLD_NOW | RTLD_LOCAL);
}

static shoal_err not_found(const char *bad)
{
    if (bad[0]) {
        const char *why = dlerror();
        return sh_fail(SHOAL_ELAYOUT, "cannot load %s: %s", bad, why ? why : "unknown reason");
    }
    if (!SH_HAS_CUDA) {
        return sh_fail(SHOAL_ENOENT, "this build of Shoal has no CUDA support: use the CPU, or build with nvcc");
    }
    return sh_fail(
        SHOAL_ENOENT,
        "cannot find " FILE_NAME
        ", which has the CUDA kernels: build it with make, put it beside libshoal.so, or set SHOAL_CUDA_LIBRARY "
        "to its path");
}

shoal_err sh_cuda_library_load(const sh_cuda_library **out_library)
{
    static const sh_cuda_library *loaded;
    if (loaded) {
        *out_library = loaded;
        return SHOAL_OK;
    }
    const char *own = getenv("SHOAL_CUDA_LIBRARY");
    char bad[PATH_MAX + 64] = "";
    void *file;
    if (own && own[0]) {
        snprintf(bad, sizeof bad, "%s", own);
        file = dlopen(own, RTLD_NOW | RTLD_LOCAL);
    } else {
        file = load_first(bad);
    }
    if (!file) {
        return not_found(bad);
    }
    sh_cuda_library_open_fn *open_library;
    *(void **)(void *)&open_library = dlsym(file, "sh_cuda_library_open");
    const sh_cuda_library *library = open_library ? open_library(&host) : NULL;
    if (!library || library->layout != SH_CUDA_LAYOUT) {
        dlclose(file);
        return sh_fail(SHOAL_ELAYOUT, "%s is from another build of Shoal than this library (version %s)",
                       own && own[0] ? own : FILE_NAME, shoal_version());
    }
    *out_library = loaded = library;
    return SHOAL_OK;
}
