/* The CUDA twin of cpu/pool_reference.c; the contract is kernels/pool.h. */
#include "kernels/cuda/launch.cuh"

extern "C" const sh_pooling_kernels sh_pooling_kernels_cuda = {nullptr, nullptr, nullptr, nullptr};
