#include "device/cuda_driver.h"

#include "base/error.h"
#include "shm/card_lock.h"
#include "shm/timeline.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

sh_cuda_driver sh_cu;

static void *library;
static bool started;

/* Why the context was lost. Written once under the lock, before `lost` is set with release order; read after `lost` was
 * seen with acquire order. */
static char lost_text[256];
static sh_a32 lost;

/* Every function, by the order of SH_CUDA_CALLS: they are the first fields of sh_cuda_driver. */
static const char *const symbols[] = {
#define SYMBOL(field, symbol, arguments) symbol,
    SH_CUDA_CALLS(SYMBOL)
#undef SYMBOL
};

static shoal_err too_old(int version, const char *missing)
{
    return sh_fail(SHOAL_ELAYOUT,
                   "the CUDA driver is too old: it has CUDA %d.%d%s%s, and Shoal needs CUDA %d.%d or later",
                   version / 1000, version % 1000 / 10, missing ? " without " : "", missing ? missing : "",
                   SH_CUDA_VERSION_NEEDED / 1000, SH_CUDA_VERSION_NEEDED % 1000 / 10);
}

static shoal_err load_functions(const char *path, void *from)
{
    int (*get_version)(int *);
    *(void **)(void *)&get_version = dlsym(from, "cuDriverGetVersion");
    int version = 0;
    if (!get_version) {
        return sh_fail(SHOAL_ELAYOUT, "%s is not a CUDA driver: it has no function cuDriverGetVersion", path);
    }
    int result = get_version(&version);
    if (result != SH_CU_OK) {
        return sh_fail(SHOAL_EOS, "the CUDA driver cannot report its version: error %d", result);
    }
    if (version < SH_CUDA_VERSION_NEEDED) {
        return too_old(version, NULL);
    }
    void **fields = (void **)(void *)&sh_cu;
    for (size_t i = 0; i < sizeof symbols / sizeof symbols[0]; i++) {
        fields[i] = dlsym(from, symbols[i]);
        if (!fields[i]) {
            return too_old(version, symbols[i]);
        }
    }
    sh_cu.version = version;
    return SHOAL_OK;
}

/* The driver's name and text of an error. */
static void describe(int result, char *name, size_t name_size, char *text, size_t text_size)
{
    const char *n = NULL, *t = NULL;
    (void)sh_cu.cuGetErrorName(result, &n);
    (void)sh_cu.cuGetErrorString(result, &t);
    snprintf(name, name_size, "%s", n ? n : "no name");
    snprintf(text, text_size, "%s", t ? t : "unknown error");
}

/* Why cuInit failed. Without permission the driver says that there is no device, or that a system call failed. */
static shoal_err init_failed(int result)
{
    static const char control[] = "/dev/nvidiactl";
    if (access(control, F_OK) == 0 && access(control, R_OK | W_OK) != 0) {
        return sh_fail(SHOAL_EPERM, "this user may not use the GPU: cannot read and write %s", control);
    }
    if (result == SH_CU_NO_DEVICE) {
        return sh_fail(SHOAL_ENOENT, "no CUDA GPU found: the driver (CUDA %d.%d) sees none%s", sh_cu.version / 1000,
                       sh_cu.version % 1000 / 10,
                       getenv("CUDA_VISIBLE_DEVICES") ? ", and CUDA_VISIBLE_DEVICES is set" : "");
    }
    if (result == SH_CU_DRIVER_MISMATCH) {
        return sh_fail(SHOAL_ELAYOUT,
                       "the CUDA driver library (CUDA %d.%d) and the kernel's driver module have different versions",
                       sh_cu.version / 1000, sh_cu.version % 1000 / 10);
    }
    char name[64], text[128];
    describe(result, name, sizeof name, text, sizeof text);
    return sh_fail(SHOAL_EOS, "cannot start the CUDA driver: %s (%d: %s)", text, result, name);
}

static shoal_err load_library(void)
{
    const char *own = getenv("SHOAL_CUDA_DRIVER");
    const char *path = own && own[0] ? own : "libcuda.so.1";
    void *fresh = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!fresh) {
        const char *why = dlerror();
        return sh_fail(SHOAL_ENOENT, "cannot load the CUDA driver: %s", why ? why : path);
    }
    shoal_err err = load_functions(path, fresh);
    if (err != SHOAL_OK) {
        dlclose(fresh);
        return err;
    }
    library = fresh;
    return SHOAL_OK;
}

shoal_err sh_cuda_driver_find(void)
{
    return library ? SHOAL_OK : load_library();
}

shoal_err sh_cuda_driver_load(void)
{
    if (!started) {
        SH_TRY(sh_cuda_driver_find());
        int result = sh_cu.cuInit(0);
        if (result != SH_CU_OK) {
            return init_failed(result);
        }
        started = true;
    }
    return SHOAL_OK;
}

static shoal_err code_of(int result)
{
    switch (result) {
#define CASE(name, number, meaning)                                                                                    \
    case number: return meaning;
        SH_CU_RESULTS(CASE)
#undef CASE
    default: return result > SH_CU_CAPTURE_FIRST && result < SH_CU_CAPTURE_LAST ? SHOAL_ESTATE : SHOAL_EOS;
    }
}

/* Keeps the first reason: what comes after it is its consequence. The streams of other processes must not wait for this
 * process's GPU any more, which will do nothing. They are released after `lost` is set, so that own_work in
 * cuda_order.c takes no mark for done that was only raised. */
static void remember(const char *what, int result, const char *name, const char *text)
{
    sh_cardlock_lock(SH_CARD_LOCK_STATE);
    bool first = sh_load_relaxed(&lost) == 0;
    if (first) {
        snprintf(lost_text, sizeof lost_text, "%s: %s (%d: %s)", what, text, result, name);
        sh_store_release(&lost, 1); /* pairs with the acquire in sh_cuda_is_well: the text is visible */
    }
    sh_cardlock_unlock(SH_CARD_LOCK_STATE);
    if (first) {
        sh_timelines_lose();
    }
}

bool sh_cuda_is_well(void)
{
    return sh_load_acquire(&lost) == 0;
}

int sh_cuda_relax(void)
{
    int mode = SH_CU_CAPTURE_RELAXED;
    (void)sh_cu.cuThreadExchangeStreamCaptureMode(&mode);
    return mode;
}

void sh_cuda_restrict(int mode)
{
    (void)sh_cu.cuThreadExchangeStreamCaptureMode(&mode);
}

shoal_err sh_cuda_lost(void)
{
    if (__builtin_expect(sh_cuda_is_well(), 1)) {
        return SHOAL_OK;
    }
    return sh_fail(SHOAL_ECUDA,
                   "this process can no longer use the GPU: start a new process; the first failure was: %s", lost_text);
}

shoal_err sh_cuda_result(const char *what, int result)
{
    sh_cardlock_check_call();
    if (__builtin_expect(result == SH_CU_OK, 1)) {
        return SHOAL_OK;
    }
    char name[64], text[128];
    describe(result, name, sizeof name, text, sizeof text);
    if (code_of(result) == SHOAL_ECUDA) {
        remember(what, result, name, text);
        return sh_cuda_lost();
    }
    return sh_fail(code_of(result), "%s: %s (%d: %s)", what, text, result, name);
}
