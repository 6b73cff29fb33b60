/* The CUDA twin of cpu/index_reference.c; the contract is kernels/index.h. */
#include "kernels/cuda/launch.cuh"

extern "C" const sh_index_kernels sh_index_kernels_cuda = {nullptr, nullptr, nullptr, nullptr, nullptr, nullptr};
