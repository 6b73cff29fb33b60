/* The CUDA twin of cpu/matmul_reference.c; the contract is kernels/matmul.h. */
#include "kernels/cuda/launch.cuh"

extern "C" const sh_matmul_kernels sh_matmul_kernels_cuda = {nullptr};
