/* The CUDA twin of cpu/optim_reference.c; the contract is kernels/optim.h. */
#include "kernels/cuda/launch.cuh"

extern "C" const sh_optim_kernels sh_optim_kernels_cuda = {nullptr, nullptr, nullptr, nullptr, nullptr, nullptr};
