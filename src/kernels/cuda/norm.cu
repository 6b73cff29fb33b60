/* The CUDA twin of cpu/norm_reference.c; the contract is kernels/norm.h. */
#include "kernels/cuda/launch.cuh"

extern "C" const sh_norm_kernels sh_norm_kernels_cuda = {nullptr, nullptr};
