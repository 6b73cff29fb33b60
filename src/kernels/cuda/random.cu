/* The CUDA twin of cpu/random_reference.c; the contract is kernels/random.h. */
#include "kernels/cuda/launch.cuh"

extern "C" const sh_random_kernels sh_random_kernels_cuda = {nullptr, nullptr, nullptr, nullptr, nullptr, nullptr};
