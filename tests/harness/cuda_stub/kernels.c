/* The stub of libshoal_cuda: the CPU's plain kernels, over card memory that is host memory. */
#include "device/cuda.h"
#include "tests/harness/optim_all.h"
#include "tests/harness/passage_free.h"

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

static const sh_kernels *reference; /* set when the library is opened: threads run kernels at the same time */

static const sh_kernels *passage_kernels(void)
{
    return reference;
}

/* The scratch of the CPU's kernels is host memory of their own. */
static sh_exec *passage_exec(sh_exec *exec)
{
    (void)exec;
    static _Thread_local sh_exec own;
    return &own;
}

#include "tests/harness/passed_kernels.h"

static shoal_err fedavg_cnn_step(sh_exec *exec, const sh_fedavg_cnn_step *args, void *scratch)
{
    return passage_close(NULL, sh_fedavg_cnn_kernels_reference.step(passage_exec(exec), args, scratch));
}

static sh_fedavg_cnn_kernels fedavg_cnn;
static sh_kernels kernels;
static const sh_cuda_library library = {SH_CUDA_LAYOUT, &kernels};

__attribute__((visibility("default"))) const sh_cuda_library *sh_cuda_library_open(const sh_cuda_host *host)
{
    the_host = host;
    reference = reference_with_all();
    kernels = passed_kernels;
    kernels.step = &sh_step_kernels_reference;
    fedavg_cnn = sh_fedavg_cnn_kernels_reference;
    fedavg_cnn.step = fedavg_cnn_step;
    kernels.fedavg_cnn = &fedavg_cnn;
    return &library;
}
