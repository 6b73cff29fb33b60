/* The CUDA twin of cpu/elementwise_reference.c; the contract is kernels/elementwise.h. */
#include "kernels/cuda/launch.cuh"

extern "C" const sh_elementwise_kernels sh_elementwise_kernels_cuda = {nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr};
