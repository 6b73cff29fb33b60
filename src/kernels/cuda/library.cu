/* The entry of libshoal_cuda, and what its launchers share. */
#include "kernels/cuda/launch.cuh"

#include <stdarg.h>
#include <stdio.h>

const sh_cuda_host *sh_cuda_the_host;

static const sh_kernels kernels = {
    "cuda",
    &sh_elementwise_kernels_cuda,
    &sh_reduce_kernels_cuda,
    &sh_matmul_kernels_cuda,
    &sh_softmax_kernels_cuda,
    &sh_norm_kernels_cuda,
    &sh_index_kernels_cuda,
    &sh_rnn_kernels_cuda,
    &sh_random_kernels_cuda,
    &sh_optim_kernels_cuda,
    &sh_conv_kernels_cuda,
    &sh_pooling_kernels_cuda,
    &sh_small_cnn_kernels_cuda,
    &sh_step_kernels_cuda,
    &sh_fedavg_cnn_kernels_cuda,
};

static const sh_cuda_library library = {SH_CUDA_LAYOUT, &kernels};

extern "C" __attribute__((visibility("default"))) const sh_cuda_library *sh_cuda_library_open(const sh_cuda_host *host)
{
    sh_cuda_the_host = host;
    return &library;
}

/* Called by the files of kernels/cpu that are compiled into this library: libshoal does not export its own to it. */
extern "C" shoal_err shoal_fail(shoal_err err, const char *format, ...)
{
    char text[256];
    va_list args;
    va_start(args, format);
    (void)vsnprintf(text, sizeof text, format, args);
    va_end(args);
    return sh_cuda_the_host->fail(err, "%s", text);
}

shoal_err sh_cuda_called(const char *what, cudaError_t result)
{
    if (result != cudaSuccess) {
        (void)cudaGetLastError(); /* reported here, not by the next launch */
    }
    return sh_cuda_the_host->result(what, (int)result); /* runtime and driver have the same numbers */
}

shoal_err sh_cuda_launched(const char *what)
{
    return sh_cuda_called(what, cudaGetLastError());
}
