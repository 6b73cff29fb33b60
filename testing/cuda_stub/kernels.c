/* The stub of libshoal_cuda: the CPU's plain kernels, over card memory that is host memory. */
#include "device/cuda.h"
#include "testing/optim_all.h"

typedef struct passage {
    int unused;
} passage;

static void passage_add(passage *p, const void *data, size_t size, bool written)
{
    (void)p;
    (void)data;
    (void)size;
    (void)written;
}

static shoal_err passage_open(passage *p)
{
    (void)p;
    return SHOAL_OK;
}

static void *passage_at(const passage *p, const void *data)
{
    (void)p;
    return (void *)(uintptr_t)data;
}

static const sh_cuda_host *the_host;

/* Tells libshoal that there was a launch, as libshoal_cuda does. */
static shoal_err passage_close(passage *p, shoal_err err)
{
    (void)p;
    return err == SHOAL_OK ? the_host->result("run a kernel", SH_CU_OK) : err;
}

static const sh_kernels *passage_kernels(void)
{
    return reference_with_all();
}

/* The scratch of the CPU's kernels is host memory of their own. */
static sh_exec *passage_exec(sh_exec *exec)
{
    (void)exec;
    static _Thread_local sh_exec own;
    return &own;
}

#include "testing/passed_kernels.h"

static sh_kernels kernels;
static const sh_cuda_library library = {SH_CUDA_LAYOUT, &kernels};

__attribute__((visibility("default"))) const sh_cuda_library *sh_cuda_library_open(const sh_cuda_host *host)
{
    the_host = host;
    kernels = passed_kernels;
    kernels.step = &sh_step_kernels_reference;
    return &library;
}
