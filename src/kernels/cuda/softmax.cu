/* The CUDA twin of cpu/softmax_reference.c; the contract is kernels/softmax.h. */
#include "kernels/cuda/launch.cuh"

extern "C" const sh_softmax_kernels sh_softmax_kernels_cuda = {nullptr, nullptr, nullptr, nullptr, nullptr, nullptr};
