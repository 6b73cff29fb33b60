/* The CUDA twin of cpu/reduce_reference.c; the contract is kernels/reduce.h. */
#include "kernels/cuda/launch.cuh"

extern "C" const sh_reduce_kernels sh_reduce_kernels_cuda = {nullptr, nullptr};
